"""Traffic as long tables, CSV or Parquet: columns ``timestamp``, ``source``, ``target``, ``rate``
(Gbit/s).

Timestamps are those of :mod:`teal.formats.times`, in a column ``timestamp`` or ``time``; a table
without one is one matrix.  Rows may come in any order, though sorted by timestamp is much faster; a
pair that a timestamp does not name has rate 0.  Files are read in batches, twice.  A pandas frame
with these columns is read by the same rules.

Names of columns are matched without case and spaces around them; that of the rate may have a unit
behind it, as ``rate (Mbit/s)``.  The separator of a CSV file is a comma, a semicolon or a tab,
whichever its first line has most of; where it is no comma, rates may have decimal commas
(:mod:`teal.formats.numerals`).

A fifth column, ``endpoint``, says that a row is the demand of one pair of endpoints (a host, a
prefix, a tunnel) at the two nodes: the rates of all endpoints of a pair of nodes are added, so that
paths and time of a solve do not depend on the number of endpoints.  An allocation gives all
endpoints of a pair the same splits.

Columns of other names are not used, and named in a warning.

A column ``class`` names the priority class of the demand: the demands of a pair of nodes in
different classes are demands of their own.  Classes are ordered by number if all names are numbers,
else by name, the highest priority first, unless the caller gives another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError, listed
from teal.formats.cells import cell_text, heading, separator_of
from teal.formats.numerals import CERTAIN_COMMA, Decimal, decimal_of
from teal.formats.rate_store import RateArray, RateFile, make_rates
from teal.formats.side_tables import warn
from teal.formats.times import naive_times, seconds_of_numbers, seconds_of_texts
from teal.formats.units import gbps_per_unit
from teal.network import DemandClasses, Topology, TrafficMatrices
from teal.network.traffic import usual_interval
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.progress import progress_bar
from teal.runtime.storage import atomic_file, content_key, file_key

_BATCH_ROWS = 1 << 20  # rows of a table in memory at a time
_COLUMNS = ("timestamp", "source", "target", "rate")
_FIRST_TIME = int(
    np.datetime64("2024-01-01T00:00:00", "s").astype(np.int64)
)  # of a matrix without a time
_ENDPOINT, _CLASS = "endpoint", "class"  # optional columns
_TIMESTAMP = "timestamp"
_TIME_NAMES = ("time", "datetime")  # other names of the column timestamp
_USED = (*_COLUMNS, _ENDPOINT, _CLASS)
# Tables whose times are so irregular, and in which so few pairs have a row at each of them, have
# polls of different routers at different seconds.
_MIN_DENSITY = 0.5  # rows for each pair and time
_POLL_FACTOR = 10  # longest step between times over the shortest one
_MAX_FAULTS = 10  # that are listed
_FIRST_LINE = 2  # of the rows of a CSV file, after that of the names
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_UNBROKEN_SPACES = "\u00a0\u202f"  # of Excel, in names
_MAX_STYLE_ROWS = 1_000_000  # of a file, which are looked at for their decimal sign
_Batch = tuple[
    Int64Array, Int64Array, FloatArray
]  # timestamp, (class * N + source) * N + target, rate


@dataclasses.dataclass(frozen=True)
class _Source:
    """A table of a file or a frame.

    Attributes:
        where: the file, for messages.
        name: name of the matrices.
        columns: names of its columns as they are written.
        batches: opens the table, and returns its batches of rows.
        separator: what separates columns in a CSV file; "" for other tables.
        first_line: line of the first row; None where rows are counted from 0.
    """

    where: str
    name: str
    columns: list[str]
    batches: Callable[[], Any]
    separator: str
    first_line: int | None

    @property
    def places(self) -> dict[str, int]:
        """Index of each column that is used, by its plain name."""
        plain = [_plain(text) for text in self.columns]
        places: dict[str, int] = {}
        for place, name in enumerate(plain):
            name = _TIMESTAMP if name in _TIME_NAMES and _TIMESTAMP not in plain else name
            if name not in _USED:
                continue
            if name in places:
                found = f"{self.columns[places[name]]!r} and {self.columns[place]!r}"
                raise InputError(self.where, name, "this column once", found)
            places[name] = place
        return places

    @property
    def unused(self) -> list[str]:
        """Names of the columns that are not used."""
        used = set(self.places.values())
        return [text for place, text in enumerate(self.columns) if place not in used and text]


def _file_source(path: Path) -> _Source:
    """The table of a file.

    Raises:
        InputError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = str(path)
    try:
        if path.suffix.lower() == ".parquet":
            columns = list(pq.read_schema(path).names)

            def parquet_batches() -> Any:
                return pq.ParquetFile(path).iter_batches(_BATCH_ROWS)

            return _Source(where, path.stem, columns, parquet_batches, "", None)
        reader, separator = _open_csv(path)
        with reader:
            columns = list(reader.schema.names)
        return _Source(
            where, path.stem, columns, lambda: _open_csv(path)[0], separator, _FIRST_LINE
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(where, "", "a table of " + ", ".join(_COLUMNS), first_line) from None


def _frame_source(frame: Any) -> _Source:
    """The table of a pandas frame, whose columns have the types of those of a file."""
    import pyarrow as pa

    columns = [str(name) for name in frame.columns]
    arrays = [
        _frame_column(frame.iloc[:, place], _plain(name), pa) for place, name in enumerate(columns)
    ]
    table = pa.Table.from_arrays(arrays, names=columns)
    return _Source(
        "data frame",
        "frame",
        columns,
        lambda: iter(table.to_batches(_BATCH_ROWS)),
        "",
        None,
    )


def _frame_column(series: Any, name: str, pa: Any) -> Any:
    """A column of a frame as an array of Arrow: numbers, times, or texts."""
    import pandas as pd

    kind = series.dtype
    is_time = name == _TIMESTAMP or name in _TIME_NAMES
    if is_time and isinstance(kind, pd.PeriodDtype):
        series = series.dt.to_timestamp()
        kind = series.dtype
    if is_time and pd.api.types.is_datetime64_any_dtype(kind):
        moments = naive_times(series).astype("datetime64[s]")
        return pa.array(moments, from_pandas=True)
    is_number = pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)
    is_real = is_number and not pd.api.types.is_complex_dtype(kind)
    if name == "rate" and is_real:
        return pa.array(series.to_numpy(np.float64, na_value=np.nan))
    if is_time and is_real:
        return pa.array(series.to_numpy(np.float64, na_value=np.nan), from_pandas=True)
    # Names, and whatever is written as text.
    codes, different = pd.factorize(series, use_na_sentinel=True)
    texts = np.array([cell_text(value) for value in different] + [None], dtype=object)
    return pa.array(texts[codes], pa.string())


def read_table(
    path: Path,
    topology: Topology,
    progress: bool = False,
    class_order: Sequence[str] = (),
    unit: str = "",
) -> TrafficMatrices:
    """Read a CSV or Parquet table.

    Args:
        path: path of the file.
        topology: network whose nodes it names.
        progress: whether to show bars.
        class_order: names of the classes, the highest priority first; () for the default.
        unit: unit by which the caller multiplies the rates, in the place of one in the heading; ""
            for none.

    Raises:
        InputError: a column missing, an unknown node, a rate that is negative or not a number, an
            invalid timestamp, a (timestamp, source, target) twice without a column ``endpoint``, a
            demand to its own source; an order that is not that of the classes found.
    """
    source = _file_source(path)
    aliases = [f"{alias}={name}" for alias, name in sorted(topology.aliases.items())]
    key = content_key(file_key(path), topology.node_names, *class_order, *aliases, bool(unit))
    return _read(source, key, topology, progress, class_order, not unit)


def read_frame(
    frame: Any, topology: Topology, class_order: Sequence[str] = (), unit: str = ""
) -> TrafficMatrices:
    """Read a pandas frame with the columns of a table; arguments and errors as for
    :func:`read_table`.
    """
    source = _frame_source(frame)
    digest: list[object] = []
    for batch in source.batches():
        digest += [repr(column.to_pylist()) for column in batch.columns]
    key = content_key(*source.columns, *digest, topology.node_names, *class_order, bool(unit))
    return _read(source, key, topology, False, class_order, not unit)


def is_table(frame: Any) -> bool:
    """Whether a frame has the columns of a table."""
    names = {_plain(str(name)) for name in frame.columns}
    return set(_COLUMNS[1:]) <= names


def _read(
    source: _Source,
    key: str,
    topology: Topology,
    progress: bool,
    class_order: Sequence[str],
    has_own_unit: bool,
) -> TrafficMatrices:
    """The matrices of a table; arguments and errors as for :func:`read_table`."""
    where = source.where
    for column in _COLUMNS[1:]:  # without times the table is one matrix
        if column not in source.places:
            found = ", ".join(source.columns)
            raise InputError(where, column, "columns " + ", ".join(_COLUMNS), found)
    if source.unused:
        warn(f"{where}: columns that are not used: {listed(source.unused, 10)}")
    # Classes in the order in which they first occur, which is that of the codes.
    labels: dict[str, int] = {}
    may_repeat = _ENDPOINT in source.places
    decimal = _decimal(source)
    stamps, pairs_seen = np.zeros(0, np.int64), np.zeros(0, np.int64)
    num_rows = 0

    def batches(what: str) -> Iterator[_Batch]:
        read = _batches(source, topology, labels, decimal, has_own_unit)
        yield from progress_bar(
            read, desc=f"{what} {source.name}", unit="batch", disable=not progress
        )

    for stamp, pair, _ in batches("scanning"):
        stamps = np.union1d(stamps, stamp)
        pairs_seen = np.union1d(pairs_seen, pair)
        num_rows += len(stamp)
    if not len(stamps):
        raise InputError(where, "", "at least one row", "none")
    names, rank = _ordered(where, list(labels), class_order)
    square = topology.num_nodes**2
    codes = rank[pairs_seen // square] * square + pairs_seen % square
    column_of = np.empty(
        len(codes), dtype=np.int64
    )  # of pairs_seen, which is sorted by the order of occurrence
    column_of[np.argsort(codes)] = np.arange(len(codes))
    codes.sort()

    def fill(rates: RateFile | RateArray) -> None:
        is_begun = np.zeros(len(stamps), dtype=bool)  # matrices of which some rows were read
        for stamp, pair, rate in batches("reading"):
            order = np.argsort(stamp, kind="stable")
            batch_stamps, starts = np.unique(stamp[order], return_index=True)
            columns = column_of[np.searchsorted(pairs_seen, pair)]
            for value, part in zip(batch_stamps, np.split(order, starts[1:]), strict=True):
                row = int(np.searchsorted(stamps, value))
                filled = (
                    rates.read(row).copy() if is_begun[row] else np.full(len(pairs_seen), np.nan)
                )
                column = columns[part]
                if may_repeat:
                    sums = np.bincount(column, rate[part], minlength=len(pairs_seen))
                    filled = np.nan_to_num(filled) + sums
                elif np.isfinite(filled[column]).any() or len(np.unique(column)) < len(column):
                    raise _pair_twice(source, int(value))
                else:
                    filled[column] = rate[part]
                rates.write(row, filled[None])
                is_begun[row] = True
        for row in range(len(stamps)):
            rates.write(row, np.nan_to_num(rates.read(row))[None])

    _warn_of_sparse_times(source, stamps, num_rows / (len(stamps) * len(codes)))
    times = stamps.astype("datetime64[s]")
    pairs = np.stack(np.divmod(codes % square, topology.num_nodes), 1).astype(np.int32)
    ptr = np.searchsorted(codes, np.arange(len(rank) + 1) * square).astype(np.int64)
    return TrafficMatrices(
        name=source.name,
        pairs=pairs,
        timestamps=times,
        rates=make_rates((len(stamps), len(pairs)), key, fill),
        interval_s=usual_interval(times),
        key=key,
        origin=where,
        classes=DemandClasses(names, ptr) if names else None,
    )


def _ordered(
    where: str, labels: list[str], order: Sequence[str]
) -> tuple[tuple[str, ...], Int64Array]:
    """Names of the classes, the highest priority first, and the rank of each label; no name without
    classes.
    """
    if not labels:
        if order:
            raise InputError(where, _CLASS, "a column class, for --class-order", "none")
        return (), np.zeros(1, np.int64)
    if order and set(order) != set(labels):
        raise InputError(
            "--class-order",
            "",
            "the classes of the traffic: " + ", ".join(labels),
            ", ".join(order),
        )
    is_numbers = all(label.isdecimal() for label in labels)
    names = tuple(order) or tuple(sorted(labels, key=int if is_numbers else str))
    return names, np.array([names.index(label) for label in labels], dtype=np.int64)


def _pair_twice(source: _Source, second: int) -> InputError:
    """The error about two rows of a pair at one time."""
    others = f"a column {_ENDPOINT} that tells their demands apart"
    if _TIMESTAMP not in source.places:
        expected = f"each source and target once, a column timestamp (or time), or {others}"
        return InputError(source.where, "", expected, "a pair twice")
    time = np.datetime64(second, "s")
    expected = (
        f"each source and target once, or {others}; times without a zone are read as UTC (an hour "
        "that local clocks repeat in autumn needs its zone, as 2026-10-25T02:00:00+02:00)"
    )
    return InputError(source.where, f"timestamp {time}", expected, "a pair twice")


def _warn_of_sparse_times(source: _Source, stamps: Int64Array, density: float) -> None:
    """Warn where rows of one poll seem to have different times, so that each is a matrix of its
    own.

    Args:
        source: the table.
        stamps: (T,) seconds since 1970.
        density: rows for each pair and time.
    """
    steps = np.diff(stamps)
    if density > _MIN_DENSITY or len(steps) < 2 or steps.max() < _POLL_FACTOR * steps.min():
        return
    warn(
        f"{source.where}: at each of its {len(stamps):,} times most pairs have no row and count as "
        f"0 ({100 * density:.0f}% have one), and times lie {steps.min():,} to {steps.max():,} s "
        "apart: if the rows of one poll have different times, round them to its interval"
    )


def _plain(name: str) -> str:
    """The name of a column as it is matched."""
    plain = name.strip().strip("\ufeff").lower()
    without_unit = heading(name)[0]
    return without_unit if without_unit == "rate" else plain


def _open_csv(path: Path) -> tuple[Any, str]:
    """A reader of a CSV file in batches, all columns but the time as text, and the delimiter by the
    first line.
    """
    import pyarrow as pa
    import pyarrow.csv as csv

    with path.open(encoding="utf-8", errors="replace") as stream:
        first_line = stream.readline().rstrip("\r\n")
    delimiter = separator_of(first_line)
    names = first_line.split(delimiter)
    unquoted = [name.strip().strip('"') for name in names]
    as_text = ("source", "target", "rate", _CLASS)
    text = {name: pa.string() for name in unquoted + names if _plain(name) in as_text}
    reader = csv.open_csv(
        path,
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(column_types=text),
    )
    return reader, delimiter


class _Faults:
    """The faults of a table: the first ones with their lines, and how many there are.

    Args:
        where: the file.
        first_line: line of the first row; None for a Parquet file, whose rows are counted from 0.
    """

    def __init__(self, where: str, first_line: int | None) -> None:
        self._where, self._first_line = where, first_line
        self._row = 0  # of the batch's first row in the file
        self._messages: list[str] = []
        self._count, self._expected = 0, ""

    def next_batch(self, rows: int) -> None:
        """The rows of the batch that was just read have been looked at."""
        self._row += rows

    def add(self, is_bad: BoolArray, expected: str, describe: Callable[[int], str]) -> None:
        """Note the rows of the batch that are bad.

        Args:
            is_bad: for each row whether it is wrong.
            expected: what should be there.
            describe: says what is there, of a row of the batch.
        """
        rows = np.flatnonzero(is_bad)
        if not len(rows):
            return
        self._expected = self._expected or expected
        self._count += len(rows)
        for row in rows[: _MAX_FAULTS - len(self._messages)].tolist():
            place = self._row + row
            line = (
                f"row {place}" if self._first_line is None else f"line {self._first_line + place}"
            )
            self._messages.append(f"{line}: {describe(row)}")

    def check(self) -> None:
        """Raise InputError if anything was found."""
        if self._count:
            more = (
                f"; and {self._count - len(self._messages):,} more"
                if self._count > len(self._messages)
                else ""
            )
            raise InputError(self._where, "", self._expected, "; ".join(self._messages) + more)


def _batches(
    source: _Source,
    topology: Topology,
    labels: dict[str, int],
    decimal: Decimal,
    has_own_unit: bool,
) -> Iterator[_Batch]:
    """The table in batches of (timestamp, (class * N + source) * N + target, rate) arrays, checked.

    Args:
        source: the table.
        topology: network.
        labels: number of each class; classes that occur for the first time are added.
        decimal: decimal sign of the rates.
        has_own_unit: whether a unit in the heading of the rates counts.

    Raises:
        InputError: at the end, with the first faults of the whole table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    where, index = source.where, topology.node_index()
    names, nodes = (
        pa.array(list(index), pa.string()),
        np.array(list(index.values()), dtype=np.int64),
    )
    faults = _Faults(where, source.first_line)
    places = source.places
    unit = heading(source.columns[places["rate"]])[1]
    try:
        for batch in source.batches():
            columns = {name: batch.column(place) for name, place in places.items()}
            ends, is_known = [], np.ones(batch.num_rows, dtype=bool)
            for column in ("source", "target"):
                node = pc.utf8_normalize(columns[column].cast(pa.string()), "NFC")
                for space in _UNBROKEN_SPACES:
                    node = pc.replace_substring(node, space, " ")
                node = pc.utf8_trim_whitespace(node)
                at = pc.index_in(node, value_set=names)
                unknown = at.is_null().to_numpy(zero_copy_only=False)
                expected = f"a {column} that is a node of {topology.name}"
                faults.add(unknown, expected, partial(_cell_text, column, node))
                ends.append(nodes[at.fill_null(0).to_numpy(zero_copy_only=False)])
                is_known &= ~unknown
            rate = _rates(columns["rate"], decimal, faults, pa)
            if unit and has_own_unit:
                rate *= gbps_per_unit(unit, f"{where}: rate")
            # Grouping by categories makes rows of a node with itself, which have no rate.
            is_own = is_known & (ends[0] == ends[1])
            faults.add(
                is_own & (rate > 0),
                "a target other than the source",
                partial(_cell_text, "target", node),
            )
            stamp = np.full(batch.num_rows, _FIRST_TIME)
            if _TIMESTAMP in columns:
                stamp = _seconds(columns[_TIMESTAMP], where, pa)
            faults.next_batch(batch.num_rows)
            code = ends[0] * topology.num_nodes + ends[1]
            if _CLASS in columns:
                class_names = pc.utf8_trim_whitespace(
                    columns[_CLASS].cast(pa.string()).fill_null("")
                ).dictionary_encode()
                for label in class_names.dictionary.to_pylist():
                    labels.setdefault(label, len(labels))
                number = np.array(
                    [labels[label] for label in class_names.dictionary.to_pylist()], dtype=np.int64
                )
                code += (
                    number[class_names.indices.to_numpy(zero_copy_only=False)]
                    * topology.num_nodes**2
                )
            yield stamp[~is_own], code[~is_own], rate[~is_own]
    except (pa.ArrowException, OSError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(where, "", "a table of " + ", ".join(_COLUMNS), first_line) from None
    faults.check()


def _cell_text(name: str, column: Any, row: int) -> str:
    """The text of a row of a column, for a message."""
    return f"{name} {column[row].as_py()!r}"


def _decimal(source: _Source) -> Decimal:
    """The decimal sign of the rates of a table; a point if it cannot be read: the reader then says
    why.
    """
    import pyarrow as pa

    if source.separator == ",":  # a decimal comma would end the column
        return Decimal.POINT
    texts: list[str] = []
    try:
        for batch in source.batches():
            rates = batch.column(source.places["rate"])
            if not pa.types.is_string(rates.type):
                return Decimal.POINT
            texts += [text for text in rates.to_pylist() if text]
            if len(texts) > _MAX_STYLE_ROWS:  # a later rate that contradicts them is a fault
                break
    except (pa.ArrowException, OSError):
        return Decimal.POINT
    return decimal_of(texts, source.where, "column rate", source.separator)


def _has_point(text: Any) -> Any:
    """Whether each text certainly has a decimal point: with points and commas exchanged, a decimal
    comma.
    """
    import pyarrow.compute as pc

    exchanged = pc.replace_substring(text, ",", "\0")
    exchanged = pc.replace_substring(exchanged, ".", ",")
    exchanged = pc.replace_substring(exchanged, "\0", ".")
    return pc.match_substring_regex(exchanged, f"^(?:{CERTAIN_COMMA})$").fill_null(False)


def _rates(column: Any, decimal: Decimal, faults: _Faults, pa: Any) -> FloatArray:
    """Rates, 0 where there is a fault."""
    import pyarrow.compute as pc

    text = column
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        text = pc.utf8_trim_whitespace(column)
        if decimal is Decimal.COMMA:
            plain = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
            text = pc.if_else(
                _has_point(text), pc.binary_join_element_wise(text, " (a decimal point)", ""), plain
            )
        elif pc.any(pc.match_substring(text, ",")).as_py():
            grouped = pc.match_substring_regex(text, r"^[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$")
            text = pc.if_else(grouped.fill_null(False), pc.replace_substring(text, ",", ""), text)
        is_number = pc.match_substring_regex(text, _NUMBER).fill_null(False)
        column = pc.if_else(is_number, text, "nan")
    rate = column.cast(pa.float64()).fill_null(float("nan")).to_numpy(zero_copy_only=False)
    bad = ~(np.isfinite(rate) & (rate >= 0))
    expected = "a finite rate >= 0, a number alone (--traffic-unit names the unit of all rates)"
    faults.add(bad, expected, partial(_cell_text, "rate", text))
    return np.where(bad, 0.0, rate)


def _seconds(column: Any, where: str, pa: Any) -> Int64Array:
    """Whole seconds since 1970 of timestamps, numbers or ISO texts."""
    kinds = pa.types
    if column.null_count:
        raise InputError(where, "timestamp", "a time in every row", "an empty one")
    if kinds.is_string(column.type) or kinds.is_large_string(column.type):
        seconds = seconds_of_texts(column.to_pandas(), where, "timestamp")
    elif kinds.is_timestamp(column.type) or kinds.is_date(column.type):
        stamps = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        seconds = seconds_of_numbers(stamps.to_numpy(zero_copy_only=False), where, "timestamp")
    elif kinds.is_integer(column.type) or kinds.is_floating(column.type):
        seconds = seconds_of_numbers(column.to_numpy(zero_copy_only=False), where, "timestamp")
    else:
        raise InputError(
            where, "timestamp", "ISO 8601, or a number of seconds since 1970", str(column.type)
        )
    return np.floor(seconds).astype(np.int64)


def write_table(path: Path, traffic: TrafficMatrices, topology: Topology) -> None:
    """Write a CSV or Parquet table, about a million rows at a time, with a row for demands of rate
    0 too.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    names = np.array(topology.node_names)
    fields = [("timestamp", pa.timestamp("s")), ("source", pa.string()), ("target", pa.string())]
    columns = [names[traffic.pairs[:, side]] for side in (0, 1)]
    if traffic.classes is not None:
        fields.append((_CLASS, pa.string()))
        columns.append(np.array(traffic.classes.names)[traffic.classes.of_demand])
    schema = pa.schema([*fields, ("rate", pa.float64())])
    step = max(1, _BATCH_ROWS // traffic.num_demands)
    with atomic_file(path) as temporary:
        writer: Any = (pq.ParquetWriter if path.suffix.lower() == ".parquet" else csv.CSVWriter)(
            str(temporary), schema
        )
        with writer:
            for begin in range(0, traffic.num_matrices, step):
                rates = traffic.read(slice(begin, begin + step))
                stamps = np.repeat(traffic.timestamps[begin : begin + step], traffic.num_demands)
                tiled = (np.tile(column, len(rates)) for column in columns)
                writer.write_table(pa.table([stamps, *tiled, rates.reshape(-1)], schema=schema))
