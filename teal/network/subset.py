"""The path set of some of the demands, cut out of the packed trie of all of them."""

from __future__ import annotations

import numpy as np

from teal.network.packed import PackedPaths, PathScan
from teal.network.path_set import PathSet
from teal.network.trie import Trie
from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.parallel import parallel_kernel, prange


def of_demands(paths: PathSet, demands: Int64Array) -> PathSet:
    """The paths of ``demands`` alone, in the same order; sources without a demand keep an empty trie.

    Only nodes on a path of these demands are kept.  Two passes over the marked nodes, parallel over the sources.

    Args:
        paths: of all D demands.
        demands: (n,) demand numbers, ascending.
    """
    scan = paths.packed.scan
    sources = len(scan.node_ptr) - 1
    demand_ptr = np.searchsorted(demands, scan.demand_ptr).astype(np.int64)
    sizes = np.zeros((2, sources), dtype=np.int64)  # nodes and paths of each source
    first_path = np.empty(len(demands), dtype=np.int64)
    _count(scan, demands, demand_ptr, paths.packed.max_slots, first_path, sizes)
    node_ptr, path_ptr = (np.concatenate([[0], np.cumsum(row)]).astype(np.int64) for row in sizes)
    nodes, num_paths = int(node_ptr[-1]), int(path_ptr[-1])
    cut = PathScan(
        np.empty(nodes, scan.parent.dtype), np.empty(nodes, scan.link.dtype), np.empty(num_paths, scan.end_node.dtype),
        scan.path_count[demands], node_ptr, demand_ptr, path_ptr,
    )  # fmt: skip
    parent, link = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    leaf = np.full((len(demands), paths.num_paths), -1, dtype=np.int32)
    _cut(scan, demands, first_path, paths.packed.max_slots, cut, parent, link, leaf)
    trie = Trie(parent, link, node_ptr.astype(np.int32))
    ptr = demand_ptr.astype(np.int32)
    subset = PathSet(paths.pairs[demands], leaf, trie, ptr, paths.num_links, "", paths.topology_key)
    max_slots = int(np.diff(node_ptr).max(initial=0)) + 1
    subset.__dict__["packed"] = PackedPaths(cut, max_slots, paths.num_links)  # the cached property, known already
    return subset


@parallel_kernel
def _count(
    scan: PathScan,
    demands: Int64Array,
    demand_ptr: Int64Array,
    max_slots: int,
    first_path: Int64Array,
    sizes: Int64Array,
) -> None:
    """Count the nodes and paths that each source keeps; ``first_path`` (n,) receives the first path of each demand."""
    for s in prange(len(scan.node_ptr) - 1):
        is_marked = np.zeros(max_slots, dtype=np.uint8)
        is_marked[0] = 1
        first, d, path = scan.node_ptr[s], scan.demand_ptr[s], scan.path_ptr[s]
        nodes, num_paths = 0, 0
        for i in range(demand_ptr[s], demand_ptr[s + 1]):
            while d < demands[i]:
                path += scan.path_count[d]
                d += 1
            first_path[i] = path
            for k in range(scan.path_count[d]):
                node = np.int64(scan.end_node[path + k])
                while is_marked[node] == 0:
                    is_marked[node] = 1
                    nodes += 1
                    node = np.int64(scan.parent[first + node - 1])
            num_paths += scan.path_count[d]
        sizes[0, s], sizes[1, s] = nodes, num_paths


@parallel_kernel
def _cut(
    scan: PathScan,
    demands: Int64Array,
    first_path: Int64Array,
    max_slots: int,
    cut: PathScan,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> None:
    """Fill ``cut`` and the same trie with node numbers that count over all sources."""
    # Locals: Numba drops a store to an array that is reached through a tuple inside prange.
    cut_parent, cut_link, cut_end = cut.parent, cut.link, cut.end_node
    for s in prange(len(scan.node_ptr) - 1):
        number = np.zeros(max_slots, dtype=np.int32)  # of each kept node in the cut trie; -1: kept, not yet numbered
        first, begin = scan.node_ptr[s], cut.node_ptr[s]
        last_node = np.int64(0)
        for i in range(cut.demand_ptr[s], cut.demand_ptr[s + 1]):
            for k in range(cut.path_count[i]):
                node = np.int64(scan.end_node[first_path[i] + k])
                if node > last_node:
                    last_node = node
                while node > 0 and number[node] == 0:
                    number[node] = -1
                    node = np.int64(scan.parent[first + node - 1])
        count = 0
        for i in range(last_node):  # parents come before children, so the order is kept
            if number[i + 1] != 0:
                above = number[np.int64(scan.parent[first + i])]
                at = begin + count
                cut_parent[at], cut_link[at] = above, scan.link[first + i]
                parent[at], link[at] = begin + above - 1 if above > 0 else -1, scan.link[first + i]
                count += 1
                number[i + 1] = count
        path = cut.path_ptr[s]
        for i in range(cut.demand_ptr[s], cut.demand_ptr[s + 1]):
            for k in range(cut.path_count[i]):
                place = number[np.int64(scan.end_node[first_path[i] + k])]
                cut_end[path] = place
                leaf[i, k] = begin + place - 1
                path += 1
