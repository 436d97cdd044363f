"""Allocations as tables: one row for each path that carries something.

Columns ``source``, ``target``, ``k`` (which of the demand's paths), ``nodes`` (along it: a list in Parquet,
separated by spaces in CSV), ``split`` (share of the demand) and ``flow`` (Gbit/s).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from teal.network import PathSet, Topology
from teal.network.topology import FloatArray
from teal.storage import atomic_file

ALLOCATION_SUFFIXES = (".parquet", ".csv")


def write_allocation(file: Path, topology: Topology, paths: PathSet, demand: FloatArray, splits: FloatArray) -> int:
    """Write the allocation of one matrix; the number of rows.

    Args:
        demand: (D,) Gbit/s.
        splits: (D, K).
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    row, k = np.nonzero((splits > 0) & (demand > 0)[:, None] & paths.mask)
    names = pa.array(topology.node_names)
    ends = paths.pairs[row]
    # The nodes along each path, filled in from its end: entry 0 is the source.
    node, length = paths.leaf[row, k].astype(np.int64), paths.hops[row, k].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(length + 1)])
    along = np.empty(offsets[-1], dtype=np.int32)
    along[offsets[:-1]] = ends[:, 0]
    place = offsets[:-1] + length
    while len(node):
        along[place] = topology.link_target[paths.trie.link[node]]
        node, place = paths.trie.parent[node].astype(np.int64), place - 1
        going_on = node >= 0
        node, place = node[going_on], place[going_on]
    nodes = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), names.take(pa.array(along)))
    if file.suffix.lower() == ".csv":
        nodes = pc.binary_join(nodes, " ")
    table = pa.table(
        {
            "source": names.take(pa.array(ends[:, 0])),
            "target": names.take(pa.array(ends[:, 1])),
            "k": pa.array(k.astype(np.int32)),
            "nodes": nodes,
            "split": pa.array(splits[row, k]),
            "flow": pa.array(splits[row, k] * demand[row]),
        }
    )
    with atomic_file(file) as temporary:
        (csv.write_csv if file.suffix.lower() == ".csv" else pq.write_table)(table, str(temporary))
    return len(row)
