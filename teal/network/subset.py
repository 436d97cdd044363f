"""The path set of some of the demands, cut out of the packed trie of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from teal.network.candidate_lists import CandidateLists
from teal.network.packed import PackedPaths, PathScan
from teal.network.path_set import PathSet
from teal.network.trie import Trie
from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.parallel import partitioned_kernel

AnyColumns = TypeVar("AnyColumns", PathSet, CandidateLists)


def of_demands(paths: PathSet, demands: Int64Array) -> PathSet:
    """The paths of ``demands`` alone, in the same order; sources without a demand keep an empty
    trie.

    Args:
        paths: paths of all D demands.
        demands: (n,) demand numbers, ascending.
    """
    return cut(paths.packed, demands, paths.pairs[demands], paths.num_paths, paths.topology_key)


def cut(
    packed: PackedPaths, demands: Int64Array, pairs: IntArray, num_paths: int, topology_key: str
) -> PathSet:
    """The paths of ``demands`` alone.

    Only nodes on a path of these demands are kept.  Two passes over the marked nodes, parallel over
    the sources.

    Args:
        packed: the paths of all D demands.
        demands: (n,) demand numbers, ascending.
        pairs: (n, 2) their node pairs.
        num_paths: K.
        topology_key: content key of the network's nodes and links.
    """
    scan = packed.scan
    sources = len(scan.node_ptr) - 1
    demand_ptr = np.searchsorted(demands, scan.demand_ptr).astype(np.int64)
    sizes = np.zeros((2, sources), dtype=np.int64)  # nodes and paths of each source
    first_path = np.empty(len(demands), dtype=np.int64)
    _count(scan, demands, demand_ptr, packed.max_slots, first_path, sizes)
    node_ptr, path_ptr = (np.concatenate([[0], np.cumsum(row)]).astype(np.int64) for row in sizes)
    nodes, total_paths = int(node_ptr[-1]), int(path_ptr[-1])
    kept = PathScan(
        np.empty(nodes, scan.parent.dtype),
        np.empty(nodes, scan.link.dtype),
        np.empty(total_paths, scan.end_node.dtype),
        scan.path_count[demands],
        node_ptr,
        demand_ptr,
        path_ptr,
    )
    parent, link = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    leaf = np.full((len(demands), num_paths), -1, dtype=np.int32)
    _cut(scan, demands, first_path, packed.max_slots, kept, parent, link, leaf)
    trie = Trie(parent, link, node_ptr.astype(np.int32))
    return _path_set(pairs, leaf, trie, kept, packed.num_links, topology_key)


def first_demands(paths: AnyColumns, count: int) -> AnyColumns:
    """The paths of the first ``count`` demands, which end where the demands of a source end;
    nothing is copied.
    """
    if isinstance(paths, CandidateLists):
        return paths.first_demands(count)
    scan = paths.packed.scan
    sources = int(np.searchsorted(scan.demand_ptr, count))
    nodes, ends = int(scan.node_ptr[sources]), int(scan.path_ptr[sources])
    first_scan = PathScan(
        scan.parent[:nodes],
        scan.link[:nodes],
        scan.end_node[:ends],
        scan.path_count[:count],
        scan.node_ptr[: sources + 1],
        scan.demand_ptr[: sources + 1],
        scan.path_ptr[: sources + 1],
    )
    trie = Trie(
        paths.trie.parent[:nodes], paths.trie.link[:nodes], paths.trie.source_ptr[: sources + 1]
    )
    return _path_set(
        paths.pairs[:count],
        paths.leaf[:count],
        trie,
        first_scan,
        paths.num_links,
        paths.topology_key,
    )


def joined(parts: Sequence[PathSet]) -> PathSet:
    """The paths of all parts, which follow each other in the order of their demands.

    Args:
        parts: at least one, of whole sources each.
    """
    scans, tries = [part.packed.scan for part in parts], [part.trie for part in parts]
    first_node = np.cumsum([0, *(trie.num_nodes for trie in tries)])[:-1]

    def concatenated(name: str) -> Any:
        return np.concatenate([getattr(scan, name) for scan in scans])

    def continued(name: str) -> Int64Array:
        ptrs = [getattr(scan, name) for scan in scans]
        offsets = np.cumsum([0, *(ptr[-1] for ptr in ptrs)])[:-1]
        return np.concatenate(
            [[0], *(ptr[1:] + offset for ptr, offset in zip(ptrs, offsets, strict=True))]
        )

    def renumbered(nodes: Sequence[IntArray]) -> IntArray:
        moved = [
            np.where(numbers >= 0, numbers + first, -1)
            for numbers, first in zip(nodes, first_node, strict=True)
        ]
        return np.concatenate(moved).astype(np.int32)

    scan = PathScan(
        *(concatenated(name) for name in ("parent", "link", "end_node", "path_count")),
        *(continued(name) for name in ("node_ptr", "demand_ptr", "path_ptr")),
    )
    trie = Trie(
        renumbered([trie.parent for trie in tries]),
        np.concatenate([trie.link for trie in tries]),
        scan.node_ptr.astype(np.int32),
    )
    pairs, leaf = (
        np.concatenate([part.pairs for part in parts]),
        renumbered([part.leaf for part in parts]),
    )
    return _path_set(pairs, leaf, trie, scan, parts[0].num_links, parts[0].topology_key)


def _path_set(
    pairs: IntArray, leaf: IntArray, trie: Trie, scan: PathScan, num_links: int, topology_key: str
) -> PathSet:
    """A path set whose packed form is known already."""
    paths = PathSet(
        pairs, leaf, trie, scan.demand_ptr.astype(np.int32), num_links, "", topology_key
    )
    max_slots = int(np.diff(scan.node_ptr).max(initial=0)) + 1
    paths.__dict__["packed"] = PackedPaths(scan, max_slots, num_links)  # the cached property
    return paths


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _count(
    begin: int,
    end: int,
    scan: PathScan,
    demands: Int64Array,
    demand_ptr: Int64Array,
    max_slots: int,
    first_path: Int64Array,
    sizes: Int64Array,
) -> None:
    """Count the nodes and paths that each source keeps; ``first_path`` (n,) receives the first path
    of each demand.
    """
    for s in range(begin, end):
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


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _cut(
    begin: int,
    end: int,
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
    cut_parent, cut_link, cut_end = cut.parent, cut.link, cut.end_node
    for s in range(begin, end):
        number = np.zeros(
            max_slots, dtype=np.int32
        )  # of each kept node in the cut trie; -1: kept, not yet numbered
        first, offset = scan.node_ptr[s], cut.node_ptr[s]
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
                at = offset + count
                cut_parent[at], cut_link[at] = above, scan.link[first + i]
                parent[at], link[at] = offset + above - 1 if above > 0 else -1, scan.link[first + i]
                count += 1
                number[i + 1] = count
        path = cut.path_ptr[s]
        for i in range(cut.demand_ptr[s], cut.demand_ptr[s + 1]):
            for k in range(cut.path_count[i]):
                place = number[np.int64(scan.end_node[first_path[i] + k])]
                cut_end[path] = place
                leaf[i, k] = offset + place - 1
                path += 1
