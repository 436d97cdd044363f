"""Allocations as tables: one row for each path that carries traffic.

Columns ``source``, ``target``, ``k`` (index of the path among the demand's paths, from 0), ``nodes`` (along the path: a
list in Parquet, separated by spaces in CSV), ``split`` (share of the demand) and ``flow`` (Gbit/s).

For many matrices there is one Parquet file of the paths, with ``source``, ``target``, ``demand`` (index d of the
demand), ``k`` and ``nodes``, and files with one row for each matrix.  Their column ``splits`` (shares) or ``weights``
(entries of split tables, whole numbers) has D * K numbers, that of demand d and path k at position d * K + k.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.formats.rows import columns_of
from teal.network import PathSet, Topology
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file

ALLOCATION_SUFFIXES = (".parquet", ".csv")  # of the files that write_allocation can write


def write_allocation(file: Path, topology: Topology, paths: PathSet, demand: FloatArray, splits: FloatArray) -> int:
    """Write the allocation of one matrix.  Returns the number of rows.

    Args:
        file: .csv or .parquet.
        topology: gives the names of the nodes.
        paths: candidate paths, (D, K).
        demand: (D,) Gbit/s.
        splits: (D, K) share of the demand on each path.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    demand_index, k = np.nonzero((splits > 0) & (demand > 0)[:, None] & paths.mask)
    columns = _path_columns(topology, paths, demand_index, k)
    if file.suffix.lower() == ".csv":
        columns["nodes"] = pc.binary_join(columns["nodes"], " ")
    columns["split"] = pa.array(splits[demand_index, k])
    columns["flow"] = pa.array(splits[demand_index, k] * demand[demand_index])
    table = pa.table(columns)
    with atomic_file(file) as temporary:
        (csv.write_csv if file.suffix.lower() == ".csv" else pq.write_table)(table, str(temporary))
    return len(demand_index)


def write_candidates(file: Path, topology: Topology, paths: PathSet) -> None:
    """Write all candidate paths as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    demand_index, k = np.nonzero(paths.mask)
    table = pa.table(
        {"demand": pa.array(demand_index.astype(np.int32)), **_path_columns(topology, paths, demand_index, k)}
    )
    with atomic_file(file) as temporary:
        pq.write_table(table, temporary)


class MatrixFile:
    """A Parquet file that is being written, one row for each matrix: the fields of a dataclass, and (D, K) shares.

    Args:
        file: path of the file.
        name: of the column with the shares, ``splits`` or ``weights``.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._writer: Any = None

    def add(self, rows: Sequence[Any], shares: npt.NDArray[Any] | None) -> None:
        """Write B rows.

        Args:
            rows: B dataclasses, all of one type.
            shares: (B, D, K); None leaves out the column, in all calls or in none.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = columns_of(rows[0])
        columns: dict[str, Any] = {field: [getattr(row, field) for row in rows] for field in fields}
        if shares is not None:
            flat = pa.array(np.ascontiguousarray(shares).reshape(-1))
            columns[self._name] = pa.FixedSizeListArray.from_arrays(flat, shares[0].size)
        table = pa.table(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(str(self._file), table.schema, compression="zstd")
        self._writer.write_table(table)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def _path_columns(
    topology: Topology, paths: PathSet, demand_index: npt.NDArray[Any], k: npt.NDArray[Any]
) -> dict[str, Any]:
    """Columns source, target, k and nodes; row i has path ``k[i]`` of demand ``demand_index[i]``."""
    import pyarrow as pa

    names = pa.array(topology.node_names)
    ends = paths.pairs[demand_index]
    # The nodes along each path are filled in from its end; the first one is the source.
    node, length = paths.leaf[demand_index, k].astype(np.int64), paths.hops[demand_index, k].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(length + 1)])
    path_nodes = np.empty(offsets[-1], dtype=np.int32)
    path_nodes[offsets[:-1]] = ends[:, 0]
    place = offsets[:-1] + length
    while len(node):
        path_nodes[place] = topology.link_target[paths.trie.link[node]]
        node, place = paths.trie.parent[node].astype(np.int64), place - 1
        is_inside = node >= 0
        node, place = node[is_inside], place[is_inside]
    return {
        "source": names.take(pa.array(ends[:, 0])),
        "target": names.take(pa.array(ends[:, 1])),
        "k": pa.array(k.astype(np.int32)),
        "nodes": pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), names.take(pa.array(path_nodes))),
    }
