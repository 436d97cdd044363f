"""The path trie: every path of every demand, prefixes shared per source."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from teal.runtime.arrays import IntArray
from teal.runtime.parallel import kernel


@dataclasses.dataclass(frozen=True, eq=False)
class Trie:
    """T trie nodes; a node stands for the path from its source down to it.

    The nodes of one source are consecutive and parents come before children, so that a sum along
    each path is one forward scan and a sum over the paths through each link one backward scan.

    Attributes:
        parent: (T,) each node's parent, -1 for a node right below the source.
        link: (T,) the link that leads into the node.
        source_ptr: (S + 1,) the nodes of the i-th source are ``source_ptr[i]:source_ptr[i + 1]``.
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
        """(T,) number of links from the source, 1 for the first."""
        return _depth(self.parent)

    @cached_property
    def levels(self) -> list[IntArray]:
        """The trie nodes of depth 1, 2, ..., for backends that process all nodes of a level at once."""
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


@kernel
def insert_path(  # type: ignore[no-untyped-def]
    path, length, parent, link, first_child, next_sibling, count
) -> tuple[int, int]:
    """Follow ``path[:length]`` down one source's trie and add the nodes that are missing.

    Node numbers are local to the source; ``first_child[0]`` belongs to the source itself and
    ``first_child[n + 1]`` to node n.  Returns (node of the path's end, new count), or (-2, count)
    when ``parent`` has no room left.
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


@kernel
def sort_by_depth(parent, link, leaf) -> None:  # type: ignore[no-untyped-def]
    """Renumber one source's trie level by level, in place; ``leaf`` (..., K) follows.

    Nodes that are adjacent in memory then seldom depend on each other, so that the processor overlaps their
    loads: measured, a scan takes half the time that it takes in the order in which paths were found.
    """
    count = len(parent)
    depth = np.zeros(count, dtype=np.int32)
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
