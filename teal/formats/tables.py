"""Traffic as long tables, CSV or Parquet: columns ``timestamp``, ``source``, ``target``, ``rate`` (Gbit/s).

A timestamp is ISO 8601 or seconds since 1970, UTC.  Rows may come in any order, though sorted by
timestamp is much faster; a pair that a timestamp does not name has rate 0.  Files are read in batches, twice.

A fifth column, ``endpoint``, says that a row is the demand of one pair of endpoints (a host, a prefix, a tunnel) at the
two nodes: the rates of all endpoints of a pair of nodes are added, so that paths and time of a solve do not depend on
the number of endpoints.  An allocation gives all endpoints of a pair the same splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from teal.errors import InputError
from teal.formats.rate_store import RateArray, RateFile, make_rates
from teal.network import Topology, TrafficMatrices
from teal.network.traffic import usual_interval
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.storage import atomic_file, content_key, file_key

_BATCH_ROWS = 1 << 20  # rows of a table in memory at a time
_COLUMNS = ("timestamp", "source", "target", "rate")
_ENDPOINT = "endpoint"  # optional column
_Batch = tuple[Int64Array, Int64Array, FloatArray]  # timestamp, source * N + target, rate


def read_table(path: Path, topology: Topology, progress: bool = False) -> TrafficMatrices:
    """Read a CSV or Parquet table.

    Raises:
        InputError: a column missing, an unknown node, a rate that is negative or not a number, a
            timestamp that is none, a (timestamp, source, target) twice without a column ``endpoint``, a demand to its
            own source.
    """
    may_repeat = _has_endpoints(path)
    where, key = str(path), content_key(file_key(path), topology.node_names)
    stamps, pairs_seen = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for stamp, pair, _ in tqdm(
        _batches(path, topology), desc=f"scanning {path.name}", unit="batch", disable=not progress
    ):
        stamps = np.union1d(stamps, stamp)
        pairs_seen = np.union1d(pairs_seen, pair)
    if not len(stamps):
        raise InputError(where, "", "at least one row", "none")

    def fill(rates: RateFile | RateArray) -> None:
        is_begun = np.zeros(len(stamps), dtype=bool)  # matrices of which some rows were read
        for stamp, pair, rate in tqdm(
            _batches(path, topology), desc=f"reading {path.name}", unit="batch", disable=not progress
        ):
            order = np.argsort(stamp, kind="stable")
            batch_stamps, starts = np.unique(stamp[order], return_index=True)
            columns = np.searchsorted(pairs_seen, pair)
            for value, part in zip(batch_stamps, np.split(order, starts[1:]), strict=True):
                row = int(np.searchsorted(stamps, value))
                filled = rates.read(row).copy() if is_begun[row] else np.full(len(pairs_seen), np.nan)
                column = columns[part]
                if may_repeat:
                    sums = np.bincount(column, rate[part], minlength=len(pairs_seen))
                    filled = np.nan_to_num(filled) + sums
                elif np.isfinite(filled[column]).any() or len(np.unique(column)) < len(column):
                    time = np.datetime64(int(value), "s")
                    expected = f"each source and target once, or a column {_ENDPOINT} that tells their demands apart"
                    raise InputError(where, f"timestamp {time}", expected, "a pair twice")
                else:
                    filled[column] = rate[part]
                rates.write(row, filled[None])
                is_begun[row] = True
        for row in range(len(stamps)):
            rates.write(row, np.nan_to_num(rates.read(row))[None])

    times = stamps.astype("datetime64[s]")
    pairs = np.stack(np.divmod(pairs_seen, topology.num_nodes), 1).astype(np.int32)
    return TrafficMatrices(
        name=path.stem,
        pairs=pairs,
        timestamps=times,
        rates=make_rates((len(stamps), len(pairs)), key, fill),
        interval_s=usual_interval(times),
        key=key,
        origin=where,
    )


def _has_endpoints(path: Path) -> bool:
    """Whether the table has the optional column ``endpoint``; false if it cannot be read: the reader then says why."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    try:
        if path.suffix.lower() == ".parquet":
            return _ENDPOINT in pq.read_schema(path).names
        with csv.open_csv(path) as reader:
            return _ENDPOINT in reader.schema.names
    except (pa.ArrowException, OSError):
        return False


def _batches(path: Path, topology: Topology) -> Iterator[_Batch]:
    """The table in batches of (timestamp, source * N + target, rate) arrays, checked."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    where, names = str(path), pa.array(list(topology.node_names), pa.string())
    batches: Any
    try:
        if path.suffix.lower() == ".parquet":
            batches = pq.ParquetFile(path).iter_batches(_BATCH_ROWS)
        else:
            text = {column: pa.string() for column in ("source", "target", "rate")}
            batches = csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=text))
        for batch in batches:
            for column in _COLUMNS:
                if column not in batch.schema.names:
                    raise InputError(where, column, "columns " + ", ".join(_COLUMNS), ", ".join(batch.schema.names))
            ends = []
            for column in ("source", "target"):
                node = batch.column(column).cast(pa.string())
                at = pc.index_in(node, value_set=names)
                if at.null_count:
                    unknown = node[pc.index(at.is_null(), True).as_py()]
                    raise InputError(where, column, f"a node of {topology.name}", repr(unknown.as_py()))
                ends.append(at.to_numpy(zero_copy_only=False).astype(np.int64))
            rate = _rates(batch.column("rate"), where, pa)
            if (ends[0] == ends[1]).any():
                node = topology.node_names[ends[0][np.argmax(ends[0] == ends[1])]]
                raise InputError(where, "target", "a node other than the source", repr(node))
            stamp = _seconds(batch.column("timestamp"), where, pa)
            yield stamp, ends[0] * topology.num_nodes + ends[1], rate
    except (pa.ArrowException, OSError, KeyError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(where, "", "a table of " + ", ".join(_COLUMNS), first_line) from None


def _rates(column: Any, where: str, pa: Any) -> FloatArray:
    try:
        rate = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise InputError(where, "rate", "numbers", str(error).splitlines()[0]) from None
    bad = ~(np.isfinite(rate) & (rate >= 0))
    if bad.any():
        raise InputError(where, f"rate, row {int(np.argmax(bad))} of its batch", "a finite rate >= 0", rate[bad][0])
    return rate


def _seconds(column: Any, where: str, pa: Any) -> Int64Array:
    """Seconds since 1970 of timestamps, integers or ISO text."""
    if column.null_count:
        raise InputError(where, "timestamp", "a time in every row", "an empty one")
    try:
        if pa.types.is_integer(column.type):
            return column.to_numpy(zero_copy_only=False).astype(np.int64)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.timestamp("s"))
        stamps = column.cast(pa.timestamp("s"), safe=False)
        return stamps.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise InputError(where, "timestamp", "ISO 8601 or seconds", str(error).splitlines()[0]) from None


def write_table(path: Path, traffic: TrafficMatrices, topology: Topology) -> None:
    """Write a CSV or Parquet table, about a million rows at a time, with a row for demands of rate 0 too."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    schema = pa.schema(
        [("timestamp", pa.timestamp("s")), ("source", pa.string()), ("target", pa.string()), ("rate", pa.float64())]
    )
    names = np.array(topology.node_names)
    source, target = (names[traffic.pairs[:, side]] for side in (0, 1))
    step = max(1, _BATCH_ROWS // traffic.num_demands)
    with atomic_file(path) as temporary:
        writer: Any = (pq.ParquetWriter if path.suffix.lower() == ".parquet" else csv.CSVWriter)(str(temporary), schema)
        with writer:
            for begin in range(0, traffic.num_matrices, step):
                rates = traffic.read(slice(begin, begin + step))
                stamps = np.repeat(traffic.timestamps[begin : begin + step], traffic.num_demands)
                ends = (np.tile(nodes, len(rates)) for nodes in (source, target))
                writer.write_table(pa.table([stamps, *ends, rates.reshape(-1)], schema=schema))
