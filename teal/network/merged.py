"""Demands between the same nodes that may use the same paths, as one row: the demands of several classes.

Rows are found by a 64-bit hash of a demand's nodes and of the links of its paths, in their order.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from teal.network.packed import PathScan
from teal.network.path_set import PathSet
from teal.network.subset import of_demands
from teal.runtime.arrays import AnyArray, Int64Array
from teal.runtime.parallel import inlined_kernel, parallel_kernel, prange


@dataclasses.dataclass(frozen=True, eq=False)
class MergedRows:
    """R rows for D demands.

    Attributes:
        paths: of the rows, in the order of the first demand of each.
        row: (D,) number of each demand's row.
        first: (R,) number of the first demand of each row, ascending.
    """

    paths: PathSet
    row: Int64Array
    first: Int64Array


def merged_rows(paths: PathSet) -> MergedRows:
    """The rows of all demands; computed once for a path set, and kept with it."""
    known = paths.__dict__.get("merged_rows")
    if known is None:
        known = paths.__dict__["merged_rows"] = _merged_rows(paths)
    return known


def _merged_rows(paths: PathSet) -> MergedRows:
    scan = paths.packed.scan
    key = np.empty(paths.num_demands, np.uint64)
    _hash_demands(scan, paths.pairs.astype(np.uint64), paths.packed.max_slots, key)
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)  # of the rows, by their first demands
    first = first[order].astype(np.int64)
    if len(first) == paths.num_demands:
        return MergedRows(paths, np.arange(len(first)), first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return MergedRows(of_demands(paths, first), place[row.reshape(-1)], first)


@inlined_kernel
def _mixed(key, number):  # type: ignore[no-untyped-def]
    """``key`` with ``number`` mixed in (splitmix64, Steele et al. 2014); all uint64."""
    z = key * np.uint64(0x9E3779B97F4A7C15) + number + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@parallel_kernel
def _hash_demands(scan: PathScan, pairs: AnyArray, max_slots: int, out: AnyArray) -> None:
    """Hash each demand's pair and paths.

    Args:
        scan: of all demands.
        pairs: (D, 2) uint64.
        max_slots: the largest number of trie nodes of a source, and one for the source itself.
        out: (D,) uint64, receives the hashes.
    """
    for s in prange(len(scan.node_ptr) - 1):
        node_key = np.zeros(max_slots, np.uint64)
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        for i in range(nodes):
            node_key[i + 1] = _mixed(node_key[scan.parent[first + i]], np.uint64(scan.link[first + i]))
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            key = _mixed(_mixed(np.uint64(0), pairs[d, 0]), pairs[d, 1])
            for _ in range(scan.path_count[d]):
                key = _mixed(key, node_key[scan.end_node[p]])
                p += 1
            out[d] = key
