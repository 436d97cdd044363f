"""Candidate paths: up to K for each demand, stored as a trie."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from teal.network.levels import LevelTrie, by_level
from teal.network.packed import PackedPaths, pack
from teal.network.trie import Trie
from teal.runtime.arrays import BoolArray, Int64Array, IntArray


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
        return f"PathSet({int(self.mask.sum()):,} paths of {self.num_demands:,} demands, K = {self.num_paths})"

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
        return [int(self.pairs[demand, 0]), *(int(link_target[link]) for link in self.links_of(demand, k))]

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
        """The same paths in the layout of compiled CPU scans."""
        return pack(self.leaf, self.trie, self.demand_ptr, self.num_links)

    @cached_property
    def levels(self) -> LevelTrie:
        """The same paths in the layout of GPU scans."""
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
