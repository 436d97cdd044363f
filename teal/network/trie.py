"""The path trie: every path of every demand, prefixes shared per source."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from teal.runtime.arrays import IntArray
from teal.runtime.parallel import inner_kernel, kernel


@dataclasses.dataclass(frozen=True, eq=False)
class Trie:
    """T trie nodes; a node stands for the path from its source down to it.

    The nodes of one source are consecutive and parents come before children: sums along paths need
    one loop over the nodes from first to last, sums over the paths through each link one loop from
    last to first.

    Attributes:
        parent: (T,) index of each node's parent, -1 where the parent is the source, which is no
            trie node.
        link: (T,) index of the network's link that leads into the node.
        source_ptr: (S + 1,) the nodes of the i-th of the S sources, in increasing order of their
            indices, are ``source_ptr[i]:source_ptr[i + 1]``.
    """

    parent: IntArray
    link: IntArray
    source_ptr: IntArray

    @property
    def num_nodes(self) -> int:
        """T."""
        return len(self.parent)

    @cached_property
    def depth(self) -> IntArray:
        """(T,) number of links from the source to the node, at least 1."""
        return _depth(self.parent)

    @cached_property
    def levels(self) -> list[IntArray]:
        """Indices of the trie nodes of depth 1, 2, ..., for backends that process all nodes of a
        level at once.
        """
        order = np.argsort(self.depth, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(self.depth)[1:]) if self.num_nodes else np.zeros(0, int)
        return [part.astype(np.int32) for part in np.split(order, ends[:-1])] if len(ends) else []


@kernel
def _depth(parent: IntArray) -> IntArray:
    depth = np.ones(len(parent), dtype=np.int32)
    for node in range(len(parent)):
        if parent[node] >= 0:
            depth[node] = depth[parent[node]] + 1
    return depth


@inner_kernel
def insert_path(  # type: ignore[no-untyped-def]
    path, length, parent, link, first_child, next_sibling, count
) -> tuple[int, int]:
    """Follow ``path[:length]`` down one source's trie and add the nodes that are missing.

    Node numbers are local to the source.  Returns (node of the path's end, new count), or (-2,
    count) when ``parent`` is full; nodes added until then stay.

    Args:
        path: indices of the links of the path.
        length: number of links of the path.
        parent: (room,) parent of each node, -1 for the source.
        link: (room,) link that leads into each node.
        first_child: (room + 1,) first child of the source, then of each node; -1 for none.
        next_sibling: (room,) next child of the same parent; -1 for none.
        count: nodes so far.
    """
    node = -1
    for i in range(length):
        child = first_child[node + 1]
        while child >= 0 and link[child] != path[i]:
            child = next_sibling[child]
        if child < 0:
            if count == len(parent):
                return -2, count
            child = count
            parent[child], link[child] = node, path[i]
            next_sibling[child] = first_child[node + 1]
            first_child[node + 1] = child
            first_child[child + 1] = -1
            count += 1
        node = child
    return node, count


@inner_kernel
def sort_by_depth(parent, link, leaf) -> None:  # type: ignore[no-untyped-def]
    """Renumber one source's trie level by level, in place.

    Nodes that are adjacent in memory then seldom depend on each other, so that the processor
    overlaps their loads: a scan of Kdl on an AMD EPYC takes half the time that it takes in the
    order in which paths were found.

    Args:
        parent: (T_s,) parent of each node of the source, in local numbers; parents come first.
        link: (T_s,) link that leads into each node.
        leaf: (D_s, K) last node of each path, -1 for none; receives the new numbers.
    """
    count = len(parent)
    depth = np.zeros(count, dtype=np.int32)  # 0 for a first link here, unlike Trie.depth
    start = np.zeros(count + 2, dtype=np.int32)
    for node in range(count):
        if parent[node] >= 0:
            depth[node] = depth[parent[node]] + 1
        start[depth[node] + 1] += 1
    for level in range(count):
        start[level + 1] += start[level]
    new_number = np.empty(count, dtype=np.int32)
    old_parent, old_link = parent.copy(), link.copy()
    for node in range(count):
        new_number[node] = start[depth[node]]
        start[depth[node]] += 1
        old = old_parent[node]
        parent[new_number[node]] = new_number[old] if old >= 0 else -1
        link[new_number[node]] = old_link[node]
    for d in range(leaf.shape[0]):
        for k in range(leaf.shape[1]):
            if leaf[d, k] >= 0:
                leaf[d, k] = new_number[leaf[d, k]]
