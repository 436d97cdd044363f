"""Path sets of a subset of the demands, and concatenations of path sets.

A subset is made in two passes that are parallel over the sources: the trie nodes on the selected
paths are marked and counted, then copied.  Entry points: :func:`of_demands`, :func:`joined`.
"""

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
    """Return the path set of some demands, in the same order.

    Sources without selected demands have empty tries.

    Args:
        paths: paths of all D demands.
        demands: (n,) indices of the selected demands, ascending.
    """
    return extract_demands(
        paths.packed, demands, paths.pairs[demands], paths.num_paths, paths.topology_key
    )


def extract_demands(
    packed: PackedPaths, demands: Int64Array, pairs: IntArray, num_paths: int, topology_key: str
) -> PathSet:
    """Return the path set of some demands, with only the trie nodes on their paths.

    Args:
        packed: paths of all D demands.
        demands: (n,) indices of the selected demands, ascending.
        pairs: (n, 2) node pairs of these demands.
        num_paths: K.
        topology_key: content hash of the network's nodes and links.
    """
    scan = packed.scan
    num_sources = len(scan.node_ptr) - 1
    # (S + 1,) the selected demands of source s are demands[demand_ptr[s]:demand_ptr[s + 1]].
    demand_ptr = np.searchsorted(demands, scan.demand_ptr).astype(np.int64)
    # First pass: number of used trie nodes (row 0) and of paths (row 1) of each source, and the
    # index of each selected demand's first path.
    source_counts = np.zeros((2, num_sources), dtype=np.int64)
    first_path = np.empty(len(demands), dtype=np.int64)
    _count_nodes(scan, demands, demand_ptr, packed.max_trie_nodes, first_path, source_counts)
    node_ptr, path_ptr = (
        np.concatenate([[0], np.cumsum(row)]).astype(np.int64) for row in source_counts
    )
    num_nodes = int(node_ptr[-1])
    total_paths = int(path_ptr[-1])
    # Second pass: copy the used nodes into arrays of that size.
    subset_scan = PathScan(
        np.empty(num_nodes, scan.parent.dtype),
        np.empty(num_nodes, scan.link.dtype),
        np.empty(total_paths, scan.end_node.dtype),
        scan.path_count[demands],
        node_ptr,
        demand_ptr,
        path_ptr,
    )
    parent = np.empty(num_nodes, dtype=np.int32)
    link = np.empty(num_nodes, dtype=np.int32)
    leaves = np.full((len(demands), num_paths), -1, dtype=np.int32)
    _copy_nodes(scan, demands, first_path, packed.max_trie_nodes, subset_scan, parent, link, leaves)
    trie = Trie(parent, link, node_ptr.astype(np.int32))
    return _path_set(pairs, leaves, trie, subset_scan, packed.num_links, topology_key)


def first_demands(paths: AnyColumns, count: int) -> AnyColumns:
    """Return the paths of the first demands, as views of the same arrays.

    Args:
        paths: paths or segment lists of D demands.
        count: number of demands; these include either all demands of a source or none.
    """
    if isinstance(paths, CandidateLists):
        return paths.first_demands(count)
    # Sources, trie nodes and paths of these demands.
    scan = paths.packed.scan
    num_sources = int(np.searchsorted(scan.demand_ptr, count))
    num_nodes = int(scan.node_ptr[num_sources])
    num_paths = int(scan.path_ptr[num_sources])
    # Slices of all arrays.
    first_scan = PathScan(
        scan.parent[:num_nodes],
        scan.link[:num_nodes],
        scan.end_node[:num_paths],
        scan.path_count[:count],
        scan.node_ptr[: num_sources + 1],
        scan.demand_ptr[: num_sources + 1],
        scan.path_ptr[: num_sources + 1],
    )
    # Nodes of these sources come first in the trie.
    trie = Trie(
        paths.trie.parent[:num_nodes],
        paths.trie.link[:num_nodes],
        paths.trie.source_ptr[: num_sources + 1],
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
    """Return the concatenation of path sets, in the order of their demands.

    Args:
        parts: at least one path set, over the same links; equal sources of two parts stay separate.
    """
    # Packed form, trie, and index of the first trie node of each part.
    scans = [part.packed.scan for part in parts]
    tries = [part.trie for part in parts]
    first_node = np.cumsum([0, *(trie.num_nodes for trie in tries)])[:-1]

    def joined_array(name: str) -> Any:
        """Return the concatenation of an array of :class:`PathScan` over all parts."""
        return np.concatenate([getattr(scan, name) for scan in scans])

    def joined_pointers(name: str) -> Int64Array:
        """Return the concatenated CSR pointers of all parts, shifted by the sizes of previous
        parts.
        """
        ptrs = [getattr(scan, name) for scan in scans]
        offsets = np.cumsum([0, *(ptr[-1] for ptr in ptrs)])[:-1]
        return np.concatenate(
            [[0], *(ptr[1:] + offset for ptr, offset in zip(ptrs, offsets, strict=True))]
        )

    def joined_node_indices(nodes: Sequence[IntArray]) -> IntArray:
        """Return the concatenated node indices of all parts, shifted by each part's first node; -1
        stays.
        """
        shifted_parts = [
            np.where(numbers >= 0, numbers + first, -1)
            for numbers, first in zip(nodes, first_node, strict=True)
        ]
        return np.concatenate(shifted_parts).astype(np.int32)

    # Arrays in scan order, whose node numbers count within each source.
    scan = PathScan(
        *(joined_array(name) for name in ("parent", "link", "end_node", "path_count")),
        *(joined_pointers(name) for name in ("node_ptr", "demand_ptr", "path_ptr")),
    )
    # Trie, whose node indices count over all sources of all parts.
    trie = Trie(
        joined_node_indices([trie.parent for trie in tries]),
        np.concatenate([trie.link for trie in tries]),
        scan.node_ptr.astype(np.int32),
    )
    pairs = np.concatenate([part.pairs for part in parts])
    leaf = joined_node_indices([part.leaf for part in parts])
    return _path_set(pairs, leaf, trie, scan, parts[0].num_links, parts[0].topology_key)


def _path_set(
    pairs: IntArray, leaf: IntArray, trie: Trie, scan: PathScan, num_links: int, topology_key: str
) -> PathSet:
    """Return a path set with its packed form, which need not be computed again.

    Args:
        pairs: (D, 2) source and target node of each demand.
        leaf: (D, K) trie node where each path ends, -1 where there is no path.
        trie: path trie.
        scan: the same paths in scan order.
        num_links: E.
        topology_key: content hash of the network's nodes and links.
    """
    paths = PathSet(
        pairs, leaf, trie, scan.demand_ptr.astype(np.int32), num_links, "", topology_key
    )
    max_trie_nodes = int(np.diff(scan.node_ptr).max(initial=0)) + 1
    # Fill the cached property.
    paths.__dict__["packed"] = PackedPaths(scan, max_trie_nodes, num_links)
    return paths


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _count_nodes(
    begin: int,
    end: int,
    scan: PathScan,
    demands: Int64Array,
    demand_ptr: Int64Array,
    max_trie_nodes: int,
    first_path: Int64Array,
    source_counts: Int64Array,
) -> None:
    """Count the trie nodes and paths of the selected demands of each source.

    Args:
        begin, end: range of sources that this call counts.
        scan: packed paths of all D demands, from S sources.
        demands: (n,) indices of the selected demands, ascending.
        demand_ptr: (S + 1,) the selected demands of source s are
            ``demands[demand_ptr[s]:demand_ptr[s + 1]]``.
        max_trie_nodes: maximum number of nodes of a source, including the source itself.
        first_path: (n,) index of each selected demand's first path in ``scan`` (written).
        source_counts: (2, S) number of trie nodes on selected paths, and of selected paths
            (written).
    """
    for s in range(begin, end):
        # Whether a node is counted already, by number within the source; 0 is the source itself.
        is_marked = np.zeros(max_trie_nodes, dtype=np.uint8)
        is_marked[0] = 1
        first_node = scan.node_ptr[s]
        d = scan.demand_ptr[s]
        path = scan.path_ptr[s]
        num_nodes = 0
        num_paths = 0
        for i in range(demand_ptr[s], demand_ptr[s + 1]):
            # Skip the demands before the selected one, and their paths.
            while d < demands[i]:
                path += scan.path_count[d]
                d += 1
            first_path[i] = path
            # Mark the nodes of each path from its end, up to the first marked one.
            for k in range(scan.path_count[d]):
                node = np.int64(scan.end_node[path + k])
                while is_marked[node] == 0:
                    is_marked[node] = 1
                    num_nodes += 1
                    node = np.int64(scan.parent[first_node + node - 1])
            num_paths += scan.path_count[d]
        source_counts[0, s] = num_nodes
        source_counts[1, s] = num_paths


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _copy_nodes(
    begin: int,
    end: int,
    scan: PathScan,
    demands: Int64Array,
    first_path: Int64Array,
    max_trie_nodes: int,
    subset_scan: PathScan,
    parent: IntArray,
    link: IntArray,
    leaves: IntArray,
) -> None:
    """Copy the trie nodes and paths of the selected demands of each source.

    Args:
        begin, end: range of sources that this call copies.
        scan: packed paths of all D demands, from S sources.
        demands: (n,) indices of the selected demands, ascending.
        first_path: (n,) index of each selected demand's first path in ``scan``.
        max_trie_nodes: maximum number of nodes of a source, including the source itself.
        subset_scan: packed paths of the selected demands, with T' nodes; ``parent``, ``link`` and
            ``end_node`` are written, the other fields are read.
        parent: (T',) parent of each node as an index over all sources, -1 for the source (written).
        link: (T',) link that leads into each node (written).
        leaves: (n, K) node where each path ends as an index over all sources (written; -1 before).
    """
    subset_parent = subset_scan.parent
    subset_link = subset_scan.link
    subset_end_node = subset_scan.end_node
    for s in range(begin, end):
        # New number of each node within the source; 0: unused, -1: used, not yet numbered.
        new_number = np.zeros(max_trie_nodes, dtype=np.int32)
        first_node = scan.node_ptr[s]
        first_subset_node = subset_scan.node_ptr[s]
        max_node = np.int64(0)
        # Mark the nodes of each selected path from its end, up to the first marked one.
        for i in range(subset_scan.demand_ptr[s], subset_scan.demand_ptr[s + 1]):
            for k in range(subset_scan.path_count[i]):
                node = np.int64(scan.end_node[first_path[i] + k])
                if node > max_node:
                    max_node = node
                while node > 0 and new_number[node] == 0:
                    new_number[node] = -1
                    node = np.int64(scan.parent[first_node + node - 1])
        num_copied = 0
        # Copy the marked nodes in their order: parents come before children.
        for i in range(max_node):
            if new_number[i + 1] != 0:
                new_parent = new_number[np.int64(scan.parent[first_node + i])]
                position = first_subset_node + num_copied
                subset_parent[position] = new_parent
                subset_link[position] = scan.link[first_node + i]
                parent[position] = first_subset_node + new_parent - 1 if new_parent > 0 else -1
                link[position] = scan.link[first_node + i]
                num_copied += 1
                new_number[i + 1] = num_copied
        # Renumber the end nodes of the paths.
        path = subset_scan.path_ptr[s]
        for i in range(subset_scan.demand_ptr[s], subset_scan.demand_ptr[s + 1]):
            for k in range(subset_scan.path_count[i]):
                end_number = new_number[np.int64(scan.end_node[first_path[i] + k])]
                subset_end_node[path] = end_number
                leaves[i, k] = first_subset_node + end_number - 1
                path += 1
