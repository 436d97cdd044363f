"""Candidate paths: up to K for each demand, stored as a trie."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import numpy.typing as npt

from teal.network.packed import PackedPaths, PathScan, pack
from teal.network.trie import Trie
from teal.runtime.arrays import BoolArray, Int64Array, IntArray, UnsignedArray
from teal.runtime.parallel import kernel


@dataclasses.dataclass(frozen=True, eq=False)
class LevelTrie:
    """T trie nodes; those of a source are numbered 1, 2, ... level by level with siblings adjacent,
    0 is the source.

    The children of node i are then ``child_end[i - 1]`` to ``child_end[i] - 1`` (those of node 1
    begin where level 1 ends), so that a sum over the children of a node reads adjacent entries, in
    one fixed order.

    Attributes:
        parent: (T,) number of each node's parent, within its source.
        link: (T,) the link that leads into each node.
        child_end: (T,) number after the last child of each node.
        is_path_end: (T,) 1 where a path ends.
        end_node: (D, K) number of the node where each path ends, 0 where there is no path.
        path_count: (D,) number of paths of each demand.
        node_ptr: (S + 1,) the nodes of source s are ``node_ptr[s]:node_ptr[s + 1]``.
        demand_ptr: (S + 1,) the same for demands.
        level_ptr: (S + 1,) the same for ``level_end``.
        level_end: (levels of all sources,) number after the last node of each level.
        link_ptr: (E + 1,) the nodes into which link e leads are
            ``link_node[link_ptr[e]:link_ptr[e + 1]]``.
        link_node: (T,) node numbers from 0 to T - 1 over all sources, ascending for each link.
        max_slots: node numbers that the source with most nodes needs, 0 included.
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
    max_slots: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


def by_level(packed: PackedPaths, num_paths: int) -> LevelTrie:
    """Renumber the nodes of a packed path set level by level.

    Args:
        packed: its nodes must come after their parents.
        num_paths: K.
    """
    scan, nodes, demands = packed.scan, packed.num_nodes, len(packed.scan.path_count)
    unsigned = scan.parent.dtype
    parent, link, child_end = np.empty((3, nodes), unsigned)
    is_path_end = np.zeros(nodes, np.uint8)
    end_node = np.zeros((demands, num_paths), unsigned)
    level_ptr = np.zeros(len(scan.node_ptr), np.int64)
    level_end = np.empty(nodes, np.int32)  # no source has more levels than nodes
    levels = _renumber(
        scan, packed.max_slots, parent, link, child_end, is_path_end, end_node, level_ptr, level_end
    )
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
        level_end[:levels].copy(),
        link_ptr,
        link_node,
        packed.max_slots,
    )


@kernel
def _renumber(
    scan: PathScan,
    max_slots: int,
    parent: UnsignedArray,
    link: UnsignedArray,
    child_end: UnsignedArray,
    is_path_end: npt.NDArray[np.uint8],
    end_node: UnsignedArray,
    level_ptr: Int64Array,
    level_end: IntArray,
) -> int:
    """Fill the arrays of a LevelTrie; the number of levels of all sources."""
    first_child, next_sibling = np.empty(max_slots, np.int64), np.empty(max_slots, np.int64)
    new_number, old_number = np.empty(max_slots, np.int64), np.empty(max_slots, np.int64)
    levels = 0
    for s in range(len(scan.node_ptr) - 1):
        base, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        first_child[: nodes + 1] = 0  # 0 stands for none: the source is no node's child
        for n in range(nodes, 0, -1):
            above = scan.parent[base + n - 1]
            next_sibling[n] = first_child[above]
            first_child[above] = n
        old_number[0], new_number[0] = 0, 0
        assigned, level_stop = (
            1,
            1,
        )  # numbers given so far; the number after the last node of the current level
        for i in range(nodes + 1):
            if i == level_stop:
                level_end[levels] = assigned
                level_stop, levels = assigned, levels + 1
            child = first_child[old_number[i]]
            while child:
                old_number[assigned], new_number[child] = child, assigned
                parent[base + assigned - 1], link[base + assigned - 1] = (
                    i,
                    scan.link[base + child - 1],
                )
                assigned += 1
                child = next_sibling[child]
            if i:
                child_end[base + i - 1] = assigned
            elif nodes:
                level_end[levels] = assigned
                level_stop, levels = assigned, levels + 1
        level_ptr[s + 1] = levels
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            for k in range(scan.path_count[d]):
                end_node[d, k] = new_number[scan.end_node[p]]
                is_path_end[base + end_node[d, k] - 1] = 1
                p += 1
    return levels


@dataclasses.dataclass(frozen=True, eq=False)
class PathSet:
    """Up to K paths for each of D demands, as a trie of T nodes.

    A demand with fewer than K paths has ``leaf`` -1 in its last columns; no path is stored twice.

    Attributes:
        pairs: (D, 2) source and target node index of each demand, sorted.
        leaf: (D, K) trie node where each path ends, -1 where there is no path.
        trie: the paths, prefixes shared per source.
        demand_ptr: (S + 1,) the demands of the i-th source of the trie.
        num_links: E.
        key: content key of the paths.
        topology_key: content key of the network's nodes and links.
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
        """Numbers of the links along a path, from its source; empty where there is no path."""
        links, node = [], int(self.leaf[demand, k])
        while node >= 0:
            links.append(int(self.trie.link[node]))
            node = int(self.trie.parent[node])
        return links[::-1]

    def nodes_of(self, demand: int, k: int, link_target: IntArray) -> list[int]:
        """Numbers of the nodes along a path, from its source to its target.

        Args:
            demand: number of the demand.
            k: number of the path.
            link_target: (E,) node where each link ends.
        """
        return [
            int(self.pairs[demand, 0]),
            *(int(link_target[link]) for link in self.links_of(demand, k)),
        ]

    @property
    def num_demands(self) -> int:
        """D."""
        return self.leaf.shape[0]

    @property
    def num_paths(self) -> int:
        """K, the number of columns: no demand has more paths."""
        return self.leaf.shape[1]

    @cached_property
    def mask(self) -> BoolArray:
        """(D, K) true where there is a path."""
        return self.leaf >= 0

    @cached_property
    def hops(self) -> IntArray:
        """(D, K) number of links along each path, 0 where there is no path."""
        if not self.trie.num_nodes:
            return np.zeros_like(self.leaf)
        return np.where(self.mask, self.trie.depth[self.leaf], 0).astype(np.int32)

    @property
    def scan_size(self) -> int:
        """Entries that one pass over all paths touches: nodes of the trie, and path slots."""
        return self.trie.num_nodes + self.leaf.size

    @cached_property
    def packed(self) -> PackedPaths:
        """The paths in the layout of compiled CPU scans."""
        return pack(self.leaf, self.trie, self.demand_ptr, self.num_links)

    @cached_property
    def levels(self) -> LevelTrie:
        """The paths in the layout of GPU scans."""
        return by_level(self.packed, self.num_paths)

    @property
    def num_incidences(self) -> int:
        """Number of (path, link) pairs."""
        return int(self.hops.sum(dtype=np.int64))

    def incidences(self, most: int | None = None) -> tuple[Int64Array, Int64Array]:
        """Every (path, link) pair explicitly: path number ``d * K + k`` and link number.

        For LP solvers and tests; the other code scans the trie.

        Args:
            most: paths of a demand, the first ones; None for all.
        """
        leaf = self.leaf.copy()
        if most is not None:
            leaf[:, most:] = -1
        node = leaf.reshape(-1)
        path = np.flatnonzero(node >= 0)
        paths, links = [], []
        while len(path):
            paths.append(path)
            links.append(self.trie.link[node[path]])
            node[path] = self.trie.parent[node[path]]
            path = path[node[path] >= 0]
        if not paths:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows, columns = np.concatenate(paths), np.concatenate(links).astype(np.int64)
        order = np.argsort(rows, kind="stable")
        return rows[order], columns[order]
