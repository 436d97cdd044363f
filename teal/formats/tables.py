"""Reader and writer of traffic as long tables, CSV or Parquet: columns ``timestamp``, ``source``,
``target``, ``rate`` (Gbit/s).

Timestamps are those of :mod:`teal.formats.times`, in a column ``timestamp`` or ``time``; a table
without one is one matrix.  Rows may have any order, but sorting by timestamp is much faster; a pair
without a row at a timestamp has rate 0.  Files are read in batches, in two passes.  A pandas frame
with these columns is read by the same rules.

Column names are matched without case and surrounding spaces; that of the rate may have a unit, as
``rate (Mbit/s)``.  The separator of a CSV file is the most frequent of comma, semicolon and tab in
its first line; unless it is a comma, rates may have decimal commas (:mod:`teal.formats.numerals`).

A fifth column, ``endpoint``, means that a row is the demand of one pair of endpoints (a host, a
prefix, a tunnel) at the two nodes: the rates of all endpoints of a pair of nodes are added, so that
paths and solve time do not depend on the number of endpoints.  An allocation gives all endpoints of
a pair the same splits.

A column ``class`` names the priority class of the demand: the demands of a pair of nodes in
different classes are separate demands.  Classes are ordered by number if all names are numbers,
else by name, the highest priority first, unless the caller gives another order.  A warning names
unused columns.  Entry points: :func:`read_table`, :func:`read_frame`, :func:`write_table`.
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

# Rows of a table in memory at a time.
_BATCH_ROWS = 1 << 20
_COLUMNS = ("timestamp", "source", "target", "rate")
# Time of a matrix without a timestamp.
_DEFAULT_TIME_S = int(np.datetime64("2024-01-01T00:00:00", "s").astype(np.int64))
# Optional columns.
_ENDPOINT = "endpoint"
_CLASS = "class"
_TIMESTAMP = "timestamp"
# Other names of the column timestamp.
_TIME_NAMES = ("time", "datetime")
_KNOWN_COLUMNS = (*_COLUMNS, _ENDPOINT, _CLASS)
# Tables with a lower ratio of rows to (pairs times timestamps) and a larger ratio of the longest to
# the shortest step between times have polls of different routers at different seconds.
_MIN_DENSITY = 0.5
_MAX_STEP_RATIO = 10
# Maximum number of faults in a message.
_MAX_LISTED_ROWS = 10
# Line of the first row of a CSV file, after the header.
_FIRST_DATA_LINE = 2
# Number with a decimal point and without separators of thousands.
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
# No-break spaces that Excel writes in names.
_NO_BREAK_SPACES = "\u00a0\u202f"
# Maximum number of rows that are inspected for the decimal sign.
_MAX_INSPECTED_ROWS = 1_000_000
# Three arrays (R,) of the rows of a batch: time in seconds since 1970; demand code
# (class * N + source) * N + target, with classes numbered in the order of their first row; rate.
_Batch = tuple[Int64Array, Int64Array, FloatArray]


@dataclasses.dataclass(frozen=True)
class _TableSource:
    """Traffic table of a file or a frame, whose rows are read in batches.

    Attributes:
        where: name of the file, for messages.
        name: name of the matrices.
        columns: column names as written.
        batches: opens the table and returns its batches of rows.
        separator: column separator of a CSV file; "" for other tables.
        first_line: line of the first row; None where rows are counted from 0.
    """

    where: str
    name: str
    columns: list[str]
    batches: Callable[[], Any]
    separator: str
    first_line: int | None

    @property
    def column_indices(self) -> dict[str, int]:
        """Position in ``columns`` of each column of a traffic table that is present, by its
        standard name: timestamp, source, target, rate, endpoint or class.

        Raises:
            InputError: two columns have the same standard name.
        """
        normalised = [_normalise_heading(text) for text in self.columns]
        indices: dict[str, int] = {}
        for index, name in enumerate(normalised):
            # A column time is the timestamp, unless there is a column timestamp.
            name = _TIMESTAMP if name in _TIME_NAMES and _TIMESTAMP not in normalised else name
            if name not in _KNOWN_COLUMNS:
                continue
            if name in indices:
                duplicates = f"{self.columns[indices[name]]!r} and {self.columns[index]!r}"
                raise InputError.invalid(
                    self.where, name, f"two columns have this name: {duplicates}", "keep one"
                )
            indices[name] = index
        return indices

    @property
    def unused_columns(self) -> list[str]:
        """Names, as written, of the non-empty headings that are no column of a traffic table."""
        used = set(self.column_indices.values())
        return [text for index, text in enumerate(self.columns) if index not in used and text]


def _file_source(path: Path) -> _TableSource:
    """Return the table of a CSV or Parquet file; its column names are read now, its rows later.

    Raises:
        InputError: the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = str(path)
    try:
        if path.suffix.lower() == ".parquet":
            columns = list(pq.read_schema(path).names)

            def parquet_batches() -> Any:
                return map(_with_plain_texts, pq.ParquetFile(path).iter_batches(_BATCH_ROWS))

            # No separator, and rows are counted from 0.
            return _TableSource(where, path.stem, columns, parquet_batches, "", None)
        # A CSV file is opened now for its column names, and again for each pass over its rows.
        reader, separator = _open_csv(path)
        with reader:
            columns = list(reader.schema.names)
        return _TableSource(
            where, path.stem, columns, lambda: _open_csv(path)[0], separator, _FIRST_DATA_LINE
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _unreadable_table_error(where, error) from None


def _with_plain_texts(batch: Any) -> Any:
    """Return an Arrow batch with all columns of texts as type string.

    Polars writes large strings, pandas dictionaries for categories.
    """
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        is_dictionary = pa.types.is_dictionary(column.type)
        text_type = column.type.value_type if is_dictionary else column.type
        is_text = pa.types.is_large_string(text_type) or pa.types.is_string(text_type)
        columns.append(column.cast(pa.string()) if is_text else column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _unreadable_table_error(where: str, error: Exception) -> InputError:
    """Build the error about a table that pyarrow cannot read, from the first line of ``error``."""
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError.invalid(
        where, "", f"the table cannot be read: {first_line}", f"use columns {', '.join(_COLUMNS)}"
    )


def _frame_source(frame: Any) -> _TableSource:
    """Return the table of a pandas frame, converted to Arrow with the column types of a file."""
    import pyarrow as pa

    columns = [str(name) for name in frame.columns]
    arrays = [
        _frame_column(frame.iloc[:, index], _normalise_heading(name), pa)
        for index, name in enumerate(columns)
    ]
    table = pa.Table.from_arrays(arrays, names=columns)
    # No separator, and rows are counted from 0.
    return _TableSource(
        "data frame",
        "frame",
        columns,
        lambda: iter(table.to_batches(_BATCH_ROWS)),
        "",
        None,
    )


def _frame_column(series: Any, normalised_name: str, pa: Any) -> Any:
    """Convert a column of a pandas frame to an Arrow array: a column of rates to float64, one of
    times to times in seconds or to float64, other columns to texts.

    Args:
        series: the column.
        normalised_name: normalised name of the column.
        pa: the module pyarrow.
    """
    import pandas as pd

    # Times: periods become their starts, and zones UTC.
    dtype = series.dtype
    is_time = normalised_name == _TIMESTAMP or normalised_name in _TIME_NAMES
    if is_time and isinstance(dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
        dtype = series.dtype
    if is_time and pd.api.types.is_datetime64_any_dtype(dtype):
        times = naive_times(series).astype("datetime64[s]")
        return pa.array(times, from_pandas=True)
    # Numbers, as rates or as times; NaN becomes null in a column of times only.
    is_number = pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
    is_real = is_number and not pd.api.types.is_complex_dtype(dtype)
    if normalised_name == "rate" and is_real:
        return pa.array(series.to_numpy(np.float64, na_value=np.nan))
    if is_time and is_real:
        return pa.array(series.to_numpy(np.float64, na_value=np.nan), from_pandas=True)
    # Names, and other texts; the code of a missing value, -1, selects the last entry, None.
    codes, distinct = pd.factorize(series, use_na_sentinel=True)
    texts = np.array([cell_text(value) for value in distinct] + [None], dtype=object)
    return pa.array(texts[codes], pa.string())


def read_table(
    path: Path,
    topology: Topology,
    progress: bool = False,
    class_order: Sequence[str] = (),
    unit: str = "",
) -> TrafficMatrices:
    """Read the traffic matrices of a CSV or Parquet table.

    Args:
        path: path of the file.
        topology: network with the node names.
        progress: show progress bars.
        class_order: names of the classes, the highest priority first; () orders them by number or
            by name.
        unit: unit by which the caller scales the rates afterwards, so that a unit in the heading
            is ignored; "" applies the unit in the heading.

    Raises:
        InputError: a missing column, an unknown node, a rate that is negative or not a number, an
            invalid timestamp, a repeated (timestamp, source, target) without a column
            ``endpoint``, a self-loop, or an order that differs from the classes of the table.
    """
    source = _file_source(path)
    # Key of the cache of rates: the file, and the settings that decide how it is read.
    aliases = [f"{alias}={name}" for alias, name in sorted(topology.aliases.items())]
    key = content_key(file_key(path), topology.node_names, *class_order, *aliases, bool(unit))
    return _read_matrices(source, key, topology, progress, class_order, not unit)


def read_frame(
    frame: Any, topology: Topology, class_order: Sequence[str] = (), unit: str = ""
) -> TrafficMatrices:
    """Read the traffic matrices of a pandas frame that has the columns of a table.

    Args:
        frame: the frame.
        topology: network with the node names.
        class_order: names of the classes, the highest priority first; () orders them by number or
            by name.
        unit: unit by which the caller scales the rates afterwards, so that a unit in the heading
            is ignored; "" applies the unit in the heading.

    Raises:
        InputError: a missing column, or an invalid name, rate or timestamp.
    """
    source = _frame_source(frame)
    # Key of the cache of rates: a hash of all cells.
    column_texts: list[object] = []
    for batch in source.batches():
        column_texts += [repr(column.to_pylist()) for column in batch.columns]
    key = content_key(*source.columns, *column_texts, topology.node_names, *class_order, bool(unit))
    return _read_matrices(source, key, topology, False, class_order, not unit)


def is_table(frame: Any) -> bool:
    """Return whether a pandas frame has the columns ``source``, ``target`` and ``rate``."""
    names = {_normalise_heading(str(name)) for name in frame.columns}
    return set(_COLUMNS[1:]) <= names


def _read_matrices(
    source: _TableSource,
    key: str,
    topology: Topology,
    progress: bool,
    class_order: Sequence[str],
    applies_unit: bool,
) -> TrafficMatrices:
    """Read the matrices of a table in two passes: first the demands and times, then the rates.

    Args:
        source: the table.
        key: content hash of the table, for the cache of the rates.
        topology: network with the node names.
        progress: show progress bars.
        class_order: names of the classes, the highest priority first; () orders them by number or
            by name.
        applies_unit: whether to apply a unit in the heading of the rates.

    Returns:
        T matrices of D demands, sorted by class, source and target.

    Raises:
        InputError: a missing column, no rows, or an invalid cell.
    """
    _check_columns(source)
    # Index of each class, in the order of first occurrence; filled by the first pass.
    class_index: dict[str, int] = {}
    decimal = _decimal_sign(source)

    def parsed_batches(action: str) -> Iterator[_Batch]:
        table_batches = _parse_batches(source, topology, class_index, decimal, applies_unit)
        yield from progress_bar(
            table_batches, desc=f"{action} {source.name}", unit="batch", disable=not progress
        )

    # First pass: (T,) timestamps and (D,) demand codes, both ascending.
    timestamps, distinct_codes, num_rows = _scan(parsed_batches("scanning"))
    if not len(timestamps):
        raise InputError.invalid(
            source.where, "", "the table has no rows", "add a row for each demand"
        )
    # Replace the class index in each code by the rank of the class, and sort: the demands are then
    # ordered by class, source and target.
    class_names, class_rank = _order_classes(source.where, list(class_index), class_order)
    num_pairs = topology.num_nodes**2
    ranked_codes = class_rank[distinct_codes // num_pairs] * num_pairs + distinct_codes % num_pairs
    # (D,) position among the sorted demands of each entry of distinct_codes.
    demand_of_code = np.empty(len(ranked_codes), dtype=np.int64)
    demand_of_code[np.argsort(ranked_codes)] = np.arange(len(ranked_codes))
    ranked_codes.sort()
    layout = _Layout(timestamps, distinct_codes, demand_of_code)

    # Second pass: write the rates (T, D), a row for each timestamp.
    def write_rates(rates: RateFile | RateArray) -> None:
        _write_rates(rates, parsed_batches("reading"), source, layout)

    _warn_of_sparse_times(source, timestamps, num_rows / (len(timestamps) * len(ranked_codes)))
    times = timestamps.astype("datetime64[s]")
    # Decode (D, 2) source and target; class c has the demands class_ptr[c]:class_ptr[c + 1].
    pairs = np.stack(np.divmod(ranked_codes % num_pairs, topology.num_nodes), 1).astype(np.int32)
    class_ptr = np.searchsorted(ranked_codes, np.arange(len(class_rank) + 1) * num_pairs).astype(
        np.int64
    )
    return TrafficMatrices(
        name=source.name,
        pairs=pairs,
        timestamps=times,
        rates=make_rates((len(timestamps), len(pairs)), key, write_rates),
        interval_s=usual_interval(times),
        key=key,
        origin=source.where,
        classes=DemandClasses(class_names, class_ptr) if class_names else None,
    )


def _check_columns(source: _TableSource) -> None:
    """Raise InputError for a missing column other than the timestamp, and warn about unused
    columns.
    """
    # All columns but the first, the timestamp, are required.
    for column in _COLUMNS[1:]:
        if column not in source.column_indices:
            actual = ", ".join(source.columns)
            raise InputError(source.where, column, "columns " + ", ".join(_COLUMNS), actual)
    if source.unused_columns:
        warn(f"{source.where}: unused columns: {listed(source.unused_columns, 10)}")


def _scan(batches: Iterator[_Batch]) -> tuple[Int64Array, Int64Array, int]:
    """Return the distinct timestamps (T,) and demand codes (D,) of all batches, both ascending, and
    the number of rows.
    """
    timestamps = np.zeros(0, np.int64)
    codes = np.zeros(0, np.int64)
    num_rows = 0
    for row_timestamps, row_codes, _ in batches:
        timestamps = np.union1d(timestamps, row_timestamps)
        codes = np.union1d(codes, row_codes)
        num_rows += len(row_timestamps)
    return timestamps, codes, num_rows


@dataclasses.dataclass(frozen=True, eq=False)
class _Layout:
    """Row and column of each rate of a table in the array of rates, (T, D).

    Attributes:
        timestamps: (T,) seconds since 1970 of each row, ascending.
        codes: (D,) demand codes (class * N + source) * N + target, ascending; classes are numbered
            in the order of their first row in the table.
        demand_of_code: (D,) column of each entry of ``codes``; columns are ordered by the priority
            of the class, source and target.
    """

    timestamps: Int64Array
    codes: Int64Array
    demand_of_code: Int64Array


def _write_rates(
    rates: RateFile | RateArray,
    batches: Iterator[_Batch],
    source: _TableSource,
    layout: _Layout,
) -> None:
    """Write the rates of all batches; a demand without a row at a timestamp has rate 0.

    Args:
        rates: (T, D) Gbit/s (written), one matrix at a time.
        batches: batches of table rows: timestamps, demand codes and rates.
        source: the table, for its columns and for messages.
        layout: matrix and demand of each timestamp and code.

    Raises:
        InputError: two rates of a demand at one timestamp, without a column ``endpoint``.
    """
    has_endpoints = _ENDPOINT in source.column_indices
    num_demands = len(layout.codes)
    # Matrices of which a row has been written.  Without endpoints, NaN marks their demands without
    # a row so far.
    is_started = np.zeros(len(layout.timestamps), dtype=bool)
    for row_timestamps, row_codes, row_rates in batches:
        # Group the rows of the batch by timestamp.
        rows_by_time = np.argsort(row_timestamps, kind="stable")
        batch_timestamps, group_starts = np.unique(row_timestamps[rows_by_time], return_index=True)
        # Demand of each row of the batch.
        row_demands = layout.demand_of_code[np.searchsorted(layout.codes, row_codes)]
        for timestamp, rows in zip(
            batch_timestamps, np.split(rows_by_time, group_starts[1:]), strict=True
        ):
            # (D,) rates of the matrix so far: an earlier batch may have begun it.
            matrix_index = int(np.searchsorted(layout.timestamps, timestamp))
            matrix_rates = (
                rates.read(matrix_index).copy()
                if is_started[matrix_index]
                else np.full(num_demands, np.nan)
            )
            demands = row_demands[rows]
            # Add the rates of endpoints; without endpoints a second rate of a demand is an error.
            if has_endpoints:
                sums = np.bincount(demands, row_rates[rows], minlength=num_demands)
                matrix_rates = np.nan_to_num(matrix_rates) + sums
            elif np.isfinite(matrix_rates[demands]).any() or len(np.unique(demands)) < len(demands):
                raise _repeated_pair_error(source, int(timestamp))
            else:
                matrix_rates[demands] = row_rates[rows]
            rates.write(matrix_index, matrix_rates[None])
            is_started[matrix_index] = True
    # Demands without a row have rate 0.
    for matrix_index in range(len(layout.timestamps)):
        rates.write(matrix_index, np.nan_to_num(rates.read(matrix_index))[None])


def _order_classes(
    where: str, classes: list[str], class_order: Sequence[str]
) -> tuple[tuple[str, ...], Int64Array]:
    """Order the classes of a table by priority.

    Args:
        where: name of the file, for messages.
        classes: the C classes, in the order of their first row; [] without a column ``class``.
        class_order: names of the classes, the highest priority first; () orders them by number if
            all names are numbers, else by name.

    Returns:
        Names of the classes, the highest priority first, and (C,) position of each class of
        ``classes`` among them; () and [0] without classes.

    Raises:
        InputError: ``class_order`` differs from the classes of the table.
    """
    if not classes:
        if class_order:
            raise InputError.invalid(
                where,
                _CLASS,
                "the table has no column class, but --classes orders classes",
                "add the column, or give the fraction of each class as NAME=FRACTION",
            )
        return (), np.zeros(1, np.int64)
    if class_order and set(class_order) != set(classes):
        raise InputError(
            "--classes",
            "",
            "the classes of the traffic: " + ", ".join(classes),
            ", ".join(class_order),
        )
    has_numeric_names = all(name.isdecimal() for name in classes)
    ordered = tuple(class_order) or tuple(sorted(classes, key=int if has_numeric_names else str))
    return ordered, np.array([ordered.index(name) for name in classes], dtype=np.int64)


def _repeated_pair_error(source: _TableSource, time_s: int) -> InputError:
    """Build the error about two rows with the same source and target at time ``time_s`` (seconds
    since 1970).
    """
    problem = "two rows have the same source and target"
    remedy = f"merge them, or add a column {_ENDPOINT} so that their rates are added"
    if _TIMESTAMP not in source.column_indices:
        return InputError.invalid(
            source.where, "", problem, f"{remedy}, or a column timestamp (or time)"
        )
    time = np.datetime64(time_s, "s")
    zone = (
        "if local clocks repeat this hour in autumn, add the zone (2026-10-25T02:00:00+02:00): "
        "times without a zone are read as UTC"
    )
    return InputError.invalid(source.where, f"timestamp {time}", problem, f"{remedy}; {zone}")


def _warn_of_sparse_times(source: _TableSource, timestamps: Int64Array, density: float) -> None:
    """Warn where the rows of one poll seem to have different times, so that each becomes a separate
    matrix.

    Args:
        source: the table.
        timestamps: (T,) seconds since 1970, ascending.
        density: number of rows / (number of demands * T).
    """
    steps_s = np.diff(timestamps)
    if (
        density > _MIN_DENSITY
        or len(steps_s) < 2
        or steps_s.max() < _MAX_STEP_RATIO * steps_s.min()
    ):
        return
    warn(
        f"{source.where}: only {100 * density:.0f}% of the demands have a row at each of the "
        f"{len(timestamps):,} times, and the others count as 0; times are {steps_s.min():,} to "
        f"{steps_s.max():,} s apart.  If the rows of one poll have different times, round them to "
        "the polling interval"
    )


def _normalise_heading(name: str) -> str:
    """Return a column name in lower case, without surrounding spaces; "rate" for a rate with a
    unit, such as ``rate (Mbit/s)``.
    """
    normalised = name.strip().strip("\ufeff").lower()
    without_unit = heading(name)[0]
    return without_unit if without_unit == "rate" else normalised


def _open_csv(path: Path) -> tuple[Any, str]:
    """Open a CSV file for reading in batches; also return the delimiter.

    Source, target, rate and class are read as text, for checks of this module; pyarrow infers the
    type of other columns.
    """
    import pyarrow as pa
    import pyarrow.csv as csv

    # Without a byte order mark, which pyarrow removes, too.
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        first_line = stream.readline().rstrip("\r\n")
    delimiter = separator_of(first_line)
    # pyarrow needs the column names as they are after the quotes are removed.
    quoted_names = first_line.split(delimiter)
    unquoted_names = [name.strip().strip('"') for name in quoted_names]
    text_columns = ("source", "target", "rate", _CLASS)
    column_types = {
        name: pa.string()
        for name in unquoted_names + quoted_names
        if _normalise_heading(name) in text_columns
    }
    reader = csv.open_csv(
        path,
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(column_types=column_types),
    )
    return reader, delimiter


class _InvalidRows:
    """Collector of the invalid rows of a table: descriptions of the first ones, and their number.

    Args:
        where: name of the file.
        first_line: line of the first row; None for a Parquet file, whose rows are counted from 0.
    """

    def __init__(self, where: str, first_line: int | None) -> None:
        self._where = where
        self._first_line = first_line
        # Index in the file of the batch's first row.
        self._batch_start_row = 0
        self._messages: list[str] = []
        self._num_invalid = 0
        self._expected = ""

    def next_batch(self, num_rows: int) -> None:
        """Add the number of rows of a checked batch to the row number at which the next batch
        starts.
        """
        self._batch_start_row += num_rows

    def add(self, is_invalid: BoolArray, expected: str, describe: Callable[[int], str]) -> None:
        """Collect the rows of the present batch that are invalid.

        Args:
            is_invalid: whether each row is invalid.
            expected: accepted values.
            describe: function that describes a row of the batch.
        """
        rows = np.flatnonzero(is_invalid)
        if not len(rows):
            return
        self._expected = self._expected or expected
        self._num_invalid += len(rows)
        # Describe the first invalid rows, each by its line in a CSV file or by its row number.
        for row in rows[: _MAX_LISTED_ROWS - len(self._messages)].tolist():
            file_row = self._batch_start_row + row
            location = (
                f"row {file_row}"
                if self._first_line is None
                else f"line {self._first_line + file_row}"
            )
            self._messages.append(f"{location}: {describe(row)}")

    def check(self) -> None:
        """Raise InputError, naming the first invalid rows, if any row is invalid."""
        if self._num_invalid:
            remainder = (
                f" and {self._num_invalid - len(self._messages):,} more"
                if self._num_invalid > len(self._messages)
                else ""
            )
            row_phrase = "invalid row" if self._num_invalid == 1 else "invalid rows"
            raise InputError.invalid(
                self._where,
                "",
                f"{row_phrase}: {', '.join(self._messages)}{remainder}",
                f"use {self._expected}",
            )


def _node_names(topology: Topology) -> _NodeNames:
    """Return the names and aliases of all nodes, with the index of each node."""
    import pyarrow as pa

    node_index = topology.node_index()
    return _NodeNames(
        topology.name,
        pa.array(list(node_index), pa.string()),
        np.array(list(node_index.values()), dtype=np.int64),
    )


def _parse_batches(
    source: _TableSource,
    topology: Topology,
    class_index: dict[str, int],
    decimal: Decimal,
    applies_unit: bool,
) -> Iterator[_Batch]:
    """Yield the rows of a table in batches of up to a million, as numbers.

    A batch of R rows is three arrays (R,): seconds since 1970; demand code
    (class * N + source) * N + target; and rate, Gbit/s unless the caller scales it.  Self-loops are
    dropped.  Invalid cells become arbitrary numbers in a batch, and one error at the end.

    Args:
        source: the table.
        topology: the network, with N nodes.
        class_index: index of each class by name; new classes are added (written).
        decimal: decimal sign of the rates.
        applies_unit: whether to apply a unit in the heading of the rates.

    Raises:
        InputError: after the last batch, with the first invalid rows of the whole table.
    """
    import pyarrow as pa

    where = source.where
    node_names = _node_names(topology)
    invalid_rows = _InvalidRows(where, source.first_line)
    column_indices = source.column_indices
    # Unit in brackets in the heading of the rates; "" for none.
    unit = heading(source.columns[column_indices["rate"]])[1]
    try:
        for batch in source.batches():
            columns = {
                name: batch.column(column_index) for name, column_index in column_indices.items()
            }
            # Nodes and rate of each row.
            source_node, is_known_source, _ = _look_up_nodes(
                columns, "source", node_names, invalid_rows
            )
            target_node, is_known_target, target_text = _look_up_nodes(
                columns, "target", node_names, invalid_rows
            )
            rate = _parse_rates(columns["rate"], decimal, invalid_rows, pa)
            if unit and applies_unit:
                rate *= gbps_per_unit(unit, f"{where}: rate")
            # A self-loop is an error unless its rate is 0: pandas creates such rows when it groups
            # by categories.
            is_loop = is_known_source & is_known_target & (source_node == target_node)
            invalid_rows.add(
                is_loop & (rate > 0),
                "a target other than the source",
                partial(_describe_cell, "target", target_text),
            )
            # Timestamp and code of each row.
            timestamps = np.full(batch.num_rows, _DEFAULT_TIME_S)
            if _TIMESTAMP in columns:
                timestamps = _seconds(columns[_TIMESTAMP], where, pa)
            invalid_rows.next_batch(batch.num_rows)
            codes = source_node * topology.num_nodes + target_node
            if _CLASS in columns:
                codes += _class_indices(columns[_CLASS], class_index) * topology.num_nodes**2
            yield timestamps[~is_loop], codes[~is_loop], rate[~is_loop]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _unreadable_table_error(where, error) from None
    invalid_rows.check()


@dataclasses.dataclass(frozen=True, eq=False)
class _NodeNames:
    """Names and aliases of the nodes of a network.

    Attributes:
        network: name of the network, for messages.
        names: Arrow array (n,) of names and aliases.
        nodes: (n,) node index of each name.
    """

    network: str
    names: Any
    nodes: Int64Array


def _look_up_nodes(
    columns: dict[str, Any], column: str, node_names: _NodeNames, invalid_rows: _InvalidRows
) -> tuple[Int64Array, BoolArray, Any]:
    """Look up the nodes of a column of R rows.

    Args:
        columns: Arrow columns of a batch, by name.
        column: ``source`` or ``target``.
        node_names: names of the nodes.
        invalid_rows: collects the rows with unknown names (written).

    Returns:
        (R,) node index of each row, arbitrary where the name is unknown; (R,) whether it is known;
        and the Arrow column of normalised names.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Normalise Unicode and white space.
    text = pc.utf8_normalize(columns[column].cast(pa.string()), "NFC")
    for space in _NO_BREAK_SPACES:
        text = pc.replace_substring(text, space, " ")
    text = pc.utf8_trim_whitespace(text)
    # Look up the names.
    positions = pc.index_in(text, value_set=node_names.names)
    is_unknown = positions.is_null().to_numpy(zero_copy_only=False)
    expected = f"a {column} that is a node of {node_names.network}"
    invalid_rows.add(is_unknown, expected, partial(_describe_cell, column, text))
    return (
        node_names.nodes[positions.fill_null(0).to_numpy(zero_copy_only=False)],
        ~is_unknown,
        text,
    )


def _class_indices(column: Any, class_index: dict[str, int]) -> Int64Array:
    """Return the (R,) class index of each row of an Arrow column of class names.

    Args:
        column: the column; an empty cell is the class "".
        class_index: index of each class by name; new classes get the next index (written).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded_names = pc.utf8_trim_whitespace(
        column.cast(pa.string()).fill_null("")
    ).dictionary_encode()
    # Look up each distinct name once, then expand to the rows.
    distinct_names = encoded_names.dictionary.to_pylist()
    for name in distinct_names:
        class_index.setdefault(name, len(class_index))
    index_of_name = np.array([class_index[name] for name in distinct_names], dtype=np.int64)
    indices: Int64Array = index_of_name[encoded_names.indices.to_numpy(zero_copy_only=False)]
    return indices


def _describe_cell(name: str, column: Any, row: int) -> str:
    """Describe the cell in one row of an Arrow column for a message: ``NAME 'TEXT'``."""
    return f"{name} {column[row].as_py()!r}"


def _decimal_sign(source: _TableSource) -> Decimal:
    """Return the decimal sign of a table's rates, decided by its first million rates.

    The result is a point if the table is unreadable; reading its rows then reports the error.

    Raises:
        InputError: rates with decimal points and others with decimal commas, or ambiguous rates
            only.
    """
    import pyarrow as pa

    # A decimal comma would end the column.
    if source.separator == ",":
        return Decimal.POINT
    texts: list[str] = []
    try:
        for batch in source.batches():
            rates = batch.column(source.column_indices["rate"])
            if not pa.types.is_string(rates.type):
                return Decimal.POINT
            texts += [text for text in rates.to_pylist() if text]
            # A later rate with the other decimal sign is an error when it is parsed.
            if len(texts) > _MAX_INSPECTED_ROWS:
                break
    except (pa.ArrowException, OSError):
        return Decimal.POINT
    return decimal_of(texts, source.where, "column rate", source.separator)


def _has_point(text: Any) -> Any:
    """Return an Arrow column of truth values: whether each text is certainly a number with a
    decimal point, such as 2.5 or 1,000.5.

    Points and commas are exchanged first, so that the pattern of certain decimal commas applies.

    Args:
        text: Arrow column of texts.
    """
    import pyarrow.compute as pc

    swapped_text = pc.replace_substring(text, ",", "\0")
    swapped_text = pc.replace_substring(swapped_text, ".", ",")
    swapped_text = pc.replace_substring(swapped_text, "\0", ".")
    return pc.match_substring_regex(swapped_text, f"^(?:{CERTAIN_COMMA})$").fill_null(False)


def _parse_rates(column: Any, decimal: Decimal, invalid_rows: _InvalidRows, pa: Any) -> FloatArray:
    """Parse an Arrow column of R rates, numbers or texts.

    Args:
        column: the column.
        decimal: decimal sign of texts.
        invalid_rows: collects the rows whose rate is no finite number >= 0 (written).
        pa: the module pyarrow.

    Returns:
        (R,) rates; 0 where a row is invalid.
    """
    import pyarrow.compute as pc

    text = column
    if pa.types.is_string(column.type):
        text = pc.utf8_trim_whitespace(column)
        # Rewrite decimal commas and separators of thousands in Python's notation.
        if decimal is Decimal.COMMA:
            with_point = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
            # A number with a decimal point contradicts the column: the suffix makes it invalid.
            text = pc.if_else(
                _has_point(text),
                pc.binary_join_element_wise(text, " (a decimal point)", ""),
                with_point,
            )
        # With a decimal point, remove commas between groups of three digits.
        elif pc.any(pc.match_substring(text, ",")).as_py():
            has_thousands_commas = pc.match_substring_regex(
                text, r"^[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$"
            )
            text = pc.if_else(
                has_thousands_commas.fill_null(False), pc.replace_substring(text, ",", ""), text
            )
        # Texts that are not numbers become NaN, and NaN is an invalid rate.
        is_number = pc.match_substring_regex(text, _NUMBER).fill_null(False)
        column = pc.if_else(is_number, text, "nan")
    # Collect the invalid rates, which become 0.
    rates_or_nan = column.cast(pa.float64()).fill_null(float("nan")).to_numpy(zero_copy_only=False)
    is_invalid = ~(np.isfinite(rates_or_nan) & (rates_or_nan >= 0))
    expected = "a finite rate >= 0 without a unit (--traffic-unit names the unit of all rates)"
    invalid_rows.add(is_invalid, expected, partial(_describe_cell, "rate", text))
    return np.where(is_invalid, 0.0, rates_or_nan)


def _seconds(column: Any, where: str, pa: Any) -> Int64Array:
    """Parse an Arrow column of numbers, times or ISO texts into (R,) seconds since 1970, rounded
    down.

    Args:
        column: the column.
        where: name of the file, for messages.
        pa: the module pyarrow.

    Raises:
        InputError: an empty cell, or a value that is not a time from 1990 to 2100.
    """
    types = pa.types
    if column.null_count:
        raise InputError.invalid(
            where, "timestamp", "rows without a time", "fill in the empty cells"
        )
    if types.is_string(column.type):
        seconds = seconds_of_texts(column.to_pandas(), where, "timestamp")
    elif types.is_timestamp(column.type) or types.is_date(column.type):
        integers = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
        seconds = seconds_of_numbers(integers.to_numpy(zero_copy_only=False), where, "timestamp")
    elif types.is_integer(column.type) or types.is_floating(column.type):
        seconds = seconds_of_numbers(column.to_numpy(zero_copy_only=False), where, "timestamp")
    else:
        raise InputError(
            where, "timestamp", "ISO 8601, or a number of seconds since 1970", str(column.type)
        )
    return np.floor(seconds).astype(np.int64)


def write_table(path: Path, traffic: TrafficMatrices, topology: Topology) -> None:
    """Write the matrices as a CSV or Parquet table with a row for each matrix and demand, also of
    rate 0.

    Args:
        path: path of the file; the suffix decides the format.
        traffic: T matrices of D demands.
        topology: network with the node names.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    # Columns (D,) of the demands: source, target and class.
    names = np.array(topology.node_names)
    fields = [("timestamp", pa.timestamp("s")), ("source", pa.string()), ("target", pa.string())]
    columns = [names[traffic.pairs[:, side]] for side in (0, 1)]
    if traffic.classes is not None:
        fields.append((_CLASS, pa.string()))
        columns.append(np.array(traffic.classes.names)[traffic.classes.of_demand])
    schema = pa.schema([*fields, ("rate", pa.float64())])
    # Write about a million rows at a time: all rows of some consecutive matrices.
    matrices_per_batch = max(1, _BATCH_ROWS // traffic.num_demands)
    with atomic_file(path) as temporary:
        writer: Any = (pq.ParquetWriter if path.suffix.lower() == ".parquet" else csv.CSVWriter)(
            str(temporary), schema
        )
        with writer:
            for begin in range(0, traffic.num_matrices, matrices_per_batch):
                rates = traffic.read(slice(begin, begin + matrices_per_batch))
                # Columns of this part: each timestamp D times, and the demand columns once for each
                # matrix.
                timestamps = np.repeat(
                    traffic.timestamps[begin : begin + matrices_per_batch], traffic.num_demands
                )
                tiled = (np.tile(column, len(rates)) for column in columns)
                writer.write_table(pa.table([timestamps, *tiled, rates.reshape(-1)], schema=schema))
