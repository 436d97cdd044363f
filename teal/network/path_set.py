"""Candidate paths: up to K for each demand, stored as a path trie.

:class:`PathSet` is the public structure; :attr:`PathSet.packed` is its layout for CPU scans
(:mod:`teal.network.packed`), :class:`LevelTrie` its layout for level-synchronous GPU scans.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import numpy.typing as npt

from teal.deprecated import with_old_keywords
from teal.network.packed import PackedPaths, PathScan, pack
from teal.network.trie import Trie
from teal.runtime.arrays import BoolArray, Int64Array, IntArray, UnsignedArray
from teal.runtime.parallel import kernel


@dataclasses.dataclass(frozen=True, eq=False)
class LevelTrie:
    """Path trie of T nodes in level order, for level-synchronous scans on a GPU.

    The nodes of a source are numbered 1, 2, ... level by level, siblings adjacent; 0 is the source.

    The children of node i are ``child_end[i - 1]`` to ``child_end[i] - 1``; the children of node 1
    begin where level 1 ends.  A sum over the children of a node hence reads adjacent entries, in
    one fixed order.

    Attributes:
        parent: (T,) number of each node's parent, within its source.
        link: (T,) the link that leads into each node.
        child_end: (T,) number after the last child of each node.
        is_path_end: (T,) 1 where a path ends.
        end_node: (D, K) number of the node where each path ends, 0 where there is no path.
        path_count: (D,) number of paths of each demand.
        node_ptr: (S + 1,) the nodes of source s are ``node_ptr[s]:node_ptr[s + 1]``.
        demand_ptr: (S + 1,) the demands of source s are ``demand_ptr[s]:demand_ptr[s + 1]``.
        level_ptr: (S + 1,) the levels of source s are ``level_end[level_ptr[s]:level_ptr[s + 1]]``.
        level_end: (levels of all sources,) number after the last node of each level.
        link_ptr: (E + 1,) the nodes into which link e leads are
            ``link_node[link_ptr[e]:link_ptr[e + 1]]``.
        link_node: (T,) node numbers from 0 to T - 1 over all sources, ascending for each link.
        max_trie_nodes: maximum number of nodes of a source, including the source itself.
    """

    parent: UnsignedArray
    link: UnsignedArray
    child_end: UnsignedArray
    is_path_end: npt.NDArray[np.uint8]
    end_node: UnsignedArray
    path_count: npt.NDArray[np.uint8]
    node_ptr: Int64Array
    demand_ptr: Int64Array
    level_ptr: Int64Array
    level_end: IntArray
    link_ptr: Int64Array
    link_node: IntArray
    max_trie_nodes: int

    @property
    def num_bytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


def by_level(packed: PackedPaths, num_paths: int) -> LevelTrie:
    """Convert a packed path set to level order, for level-synchronous scans on a GPU.

    Args:
        packed: path set in scan order; parents come before their children.
        num_paths: K.
    """
    scan = packed.scan
    num_nodes = packed.num_nodes
    num_demands = len(packed.scan.path_count)
    # Renumber the nodes of each source level by level.
    dtype = scan.parent.dtype
    parent, link, child_end = np.empty((3, num_nodes), dtype)
    is_path_end = np.zeros(num_nodes, np.uint8)
    end_node = np.zeros((num_demands, num_paths), dtype)
    level_ptr = np.zeros(len(scan.node_ptr), np.int64)
    # A source has at most as many levels as nodes.
    level_end = np.empty(num_nodes, np.int32)
    num_levels = _renumber(
        scan,
        packed.max_trie_nodes,
        parent,
        link,
        child_end,
        is_path_end,
        end_node,
        level_ptr,
        level_end,
    )
    # Trie nodes grouped by link, in CSR form.
    link_ptr = np.concatenate(
        [[0], np.cumsum(np.bincount(link, minlength=packed.num_links))]
    ).astype(np.int64)
    link_node = np.argsort(link, kind="stable").astype(np.int32)
    return LevelTrie(
        parent,
        link,
        child_end,
        is_path_end,
        end_node,
        scan.path_count,
        scan.node_ptr,
        scan.demand_ptr,
        level_ptr,
        level_end[:num_levels].copy(),
        link_ptr,
        link_node,
        packed.max_trie_nodes,
    )


@kernel
def _renumber(
    scan: PathScan,
    max_trie_nodes: int,
    parent: UnsignedArray,
    link: UnsignedArray,
    child_end: UnsignedArray,
    is_path_end: npt.NDArray[np.uint8],
    end_node: UnsignedArray,
    level_ptr: Int64Array,
    level_end: IntArray,
) -> int:
    """Number the trie nodes of each source level by level, siblings adjacent.

    Within a source, 0 is the source itself and its nodes are 1, 2, ...; node i of source s is entry
    ``scan.node_ptr[s] + i - 1`` of an array (T,) over all trie nodes.

    Args:
        scan: paths, demands and trie nodes in scan order.
        max_trie_nodes: maximum number of nodes of a source, including the source itself.
        parent: (T,) new number of each node's parent (written).
        link: (T,) link that leads into each node (written).
        child_end: (T,) number after the last child of each node (written).
        is_path_end: (T,) 1 where a path ends (written; zero before).
        end_node: (D, K) new number of the node where each path ends (written; zero before).
        level_ptr: (S + 1,) the levels of source s are ``level_end[level_ptr[s]:level_ptr[s + 1]]``
            (written; zero before).
        level_end: (T,) number after the last node of each level; one entry per level (written).

    Returns:
        number of levels of all S sources together.
    """
    # Child lists of one source, in old numbers: first child and next sibling, 0 for none.
    first_child = np.empty(max_trie_nodes, np.int64)
    next_sibling = np.empty(max_trie_nodes, np.int64)
    # New number of each old one, and old number of each new one.
    new_number = np.empty(max_trie_nodes, np.int64)
    old_number = np.empty(max_trie_nodes, np.int64)
    num_levels = 0
    for s in range(len(scan.node_ptr) - 1):
        first_node = scan.node_ptr[s]
        num_nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        # Build the child lists.
        first_child[: num_nodes + 1] = 0
        for n in range(num_nodes, 0, -1):
            parent_node = scan.parent[first_node + n - 1]
            next_sibling[n] = first_child[parent_node]
            first_child[parent_node] = n
        old_number[0] = 0
        new_number[0] = 0
        # Next unused number, and the number after the last node of the current level.
        next_number = 1
        next_level_begin = 1
        # Breadth-first numbering: the children of node i get the next numbers.
        for i in range(num_nodes + 1):
            # At the first node of a level, all nodes of that level have numbers.
            if i == next_level_begin:
                level_end[num_levels] = next_number
                next_level_begin = next_number
                num_levels = num_levels + 1
            child = first_child[old_number[i]]
            while child:
                old_number[next_number] = child
                new_number[child] = next_number
                parent[first_node + next_number - 1] = i
                link[first_node + next_number - 1] = scan.link[first_node + child - 1]
                next_number += 1
                child = next_sibling[child]
            # End of the node's children; those of the source (i = 0) are level 1.
            if i:
                child_end[first_node + i - 1] = next_number
            elif num_nodes:
                level_end[num_levels] = next_number
                next_level_begin = next_number
                num_levels = num_levels + 1
        level_ptr[s + 1] = num_levels
        # End nodes of the paths in the new numbering.
        path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            for k in range(scan.path_count[d]):
                end_node[d, k] = new_number[scan.end_node[path]]
                is_path_end[first_node + end_node[d, k] - 1] = 1
                path += 1
    return num_levels


@dataclasses.dataclass(frozen=True, eq=False)
class PathSet:
    """Up to K distinct paths for each of D demands, as a trie of T nodes.

    A demand with fewer than K paths has ``leaf`` -1 in its last columns.

    Attributes:
        pairs: (D, 2) source and target node index of each demand, sorted.
        leaf: (D, K) trie node where each path ends, -1 where there is no path.
        trie: path trie, with shared prefixes per source.
        demand_ptr: (S + 1,) the demands of source i are ``demand_ptr[i]:demand_ptr[i + 1]``.
        num_links: E.
        key: content hash of the paths.
        topology_key: content hash of the network's nodes and links.
    """

    pairs: IntArray
    leaf: IntArray
    trie: Trie
    demand_ptr: IntArray
    num_links: int
    key: str
    topology_key: str

    def __repr__(self) -> str:
        return (
            f"PathSet({int(self.mask.sum()):,} paths of {self.num_demands:,} demands, K = "
            f"{self.num_paths})"
        )

    def links_of(self, demand: int, k: int) -> list[int]:
        """Return the link indices along a path, from its source; empty if the demand has no such
        path.

        Args:
            demand: index of the demand.
            k: index of the path.
        """
        links = []
        node = int(self.leaf[demand, k])
        while node >= 0:
            links.append(int(self.trie.link[node]))
            node = int(self.trie.parent[node])
        return links[::-1]

    def nodes_of(self, demand: int, k: int, link_target: IntArray) -> list[int]:
        """Return the node indices along a path, from its source to its target.

        Args:
            demand: index of the demand.
            k: index of the path.
            link_target: (E,) node where each link ends.
        """
        return [
            int(self.pairs[demand, 0]),
            *(int(link_target[link]) for link in self.links_of(demand, k)),
        ]

    @property
    def num_demands(self) -> int:
        """The number D of demands."""
        return self.leaf.shape[0]

    @property
    def num_paths(self) -> int:
        """The maximum number K of paths of a demand, which is the number of columns of ``leaf``."""
        return self.leaf.shape[1]

    @cached_property
    def mask(self) -> BoolArray:
        """Array (D, K) of booleans: whether each path exists."""
        return self.leaf >= 0

    @cached_property
    def hops(self) -> IntArray:
        """Number (D, K) of links of each path; 0 where there is no path."""
        if not self.trie.num_nodes:
            return np.zeros_like(self.leaf)
        return np.where(self.mask, self.trie.depth[self.leaf], 0).astype(np.int32)

    @property
    def scan_size(self) -> int:
        """The number of entries that one scan over all paths reads: trie nodes and path slots."""
        return self.trie.num_nodes + self.leaf.size

    @cached_property
    def packed(self) -> PackedPaths:
        """The paths in the memory layout of compiled CPU scans."""
        return pack(self.leaf, self.trie, self.demand_ptr, self.num_links)

    @cached_property
    def levels(self) -> LevelTrie:
        """The paths in the memory layout of GPU scans, level by level."""
        return by_level(self.packed, self.num_paths)

    @property
    def num_incidences(self) -> int:
        """The number of links of all paths together."""
        return int(self.hops.sum(dtype=np.int64))

    @with_old_keywords
    def incidences(self, max_paths: int | None = None) -> tuple[Int64Array, Int64Array]:
        """Return the pairs of a path and a link on it, as two arrays: path slots ``d * K + k``,
        ascending, and link indices. The links of a path are listed from the last to the first.

        LP solvers and tests use them; other code scans the trie.

        Args:
            max_paths: number of first paths of each demand to list; None for all.
        """
        leaves = self.leaf.copy()
        if max_paths is not None:
            leaves[:, max_paths:] = -1
        # Walk all paths at once from their ends to their sources, a link in each round.
        slot_node = leaves.reshape(-1)
        open_slots = np.flatnonzero(slot_node >= 0)
        slots_by_round = []
        links_by_round = []
        while len(open_slots):
            slots_by_round.append(open_slots)
            links_by_round.append(self.trie.link[slot_node[open_slots]])
            slot_node[open_slots] = self.trie.parent[slot_node[open_slots]]
            open_slots = open_slots[slot_node[open_slots] >= 0]
        if not slots_by_round:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        # Sort by path slot; the stable sort keeps the order of a path's links.
        path_slots = np.concatenate(slots_by_round)
        link_indices = np.concatenate(links_by_round).astype(np.int64)
        order = np.argsort(path_slots, kind="stable")
        return path_slots[order], link_indices[order]
