"""Shortest paths: A* and Dijkstra's algorithm over a CSR graph, compiled.

The links out of node n are ``out_link[out_ptr[n]:out_ptr[n + 1]]``; a path is an array of link numbers.
"Banned" arrays hold a stamp: an entry is banned while it equals the current stamp, so that lifting
all bans is one increment.
"""

from __future__ import annotations

import numpy as np

from teal.network.topology import FloatArray, IntArray
from teal.parallel import kernel, parallel_kernel, prange

# mypy cannot see through Numba's types; these kernels are checked by their tests.
# mypy: disable-error-code="no-untyped-def"


@kernel
def heap_push(keys, items, size, key, item):
    """Insert ``item``; the new size."""
    i = size
    while i > 0:
        above = (i - 1) // 2
        if keys[above] <= key:
            break
        keys[i], items[i] = keys[above], items[above]
        i = above
    keys[i], items[i] = key, item
    return size + 1


@kernel
def heap_pop(keys, items, size):
    """Remove the smallest; the caller has read ``keys[0], items[0]``."""
    size -= 1
    key, item = keys[size], items[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i], items[i] = keys[child], items[child]
        i = child
    keys[i], items[i] = key, item
    return size


@kernel
def walk_back(source, target, into, tail, path):
    """Write the links that ``into`` (node -> link into it) leads along into ``path``; their number."""
    length, node = 0, target
    while node != source:
        path[length] = into[node]
        node = tail[into[node]]
        length += 1
    for i in range(length // 2):
        path[i], path[length - 1 - i] = path[length - 1 - i], path[i]
    return length


@kernel
def heap_of(num_links):
    """Room for one push a link, twice over: rounding may reopen a node of equal length."""
    return np.empty(2 * num_links + 2), np.empty(2 * num_links + 2, dtype=np.int32)


@kernel
def best_first(
    source, target, out_ptr, out_link, head, weight, potential, banned, ban, closed, shut, distance, into, keys, items
):
    """A* from ``source`` to ``target``: ``potential`` (N,) is a lower bound of the way that remains.

    Links with ``banned == ban`` and nodes with ``closed == shut`` are not used.  Returns the length,
    infinity if there is no way; ``into`` then leads back along it.
    """
    distance[:] = np.inf
    if not np.isfinite(potential[source]):
        return np.inf
    distance[source] = 0.0
    size = heap_push(keys, items, 0, potential[source], source)
    while size:
        key, node = keys[0], items[0]
        size = heap_pop(keys, items, size)
        if node == target:
            return distance[target]
        if key > distance[node] + potential[node]:
            continue
        for i in range(out_ptr[node], out_ptr[node + 1]):
            link = out_link[i]
            other = head[link]
            if banned[link] == ban or closed[other] == shut or not np.isfinite(potential[other]):
                continue
            length = distance[node] + weight[link]
            if length < distance[other]:
                distance[other], into[other] = length, link
                size = heap_push(keys, items, size, length + potential[other], other)
    return np.inf


@parallel_kernel
def _trees(sources, out_ptr, out_link, tail, head, weight, distance, into):
    nodes = len(out_ptr) - 1
    for i in prange(len(sources)):
        keys, items = heap_of(len(tail))
        banned, closed = np.zeros(len(tail), dtype=np.int32), np.zeros(nodes, dtype=np.int32)
        zero = np.zeros(nodes)
        into[i] = -1
        best_first(
            sources[i], -1, out_ptr, out_link, head, weight, zero, banned, 1, closed, 1, distance[i], into[i], keys,
            items,
        )  # fmt: skip


def shortest_trees(
    num_nodes: int, tail: IntArray, head: IntArray, weight: FloatArray, roots: IntArray
) -> tuple[FloatArray, IntArray]:
    """Least weight from each root to every node, by Dijkstra's algorithm.

    Args:
        num_nodes: N.
        tail, head: (E,) node where each link starts and ends; swapped, distances go to the roots.
        weight: (E,) at least 0, infinite for a link that may not be used.
        roots: (R,).

    Returns:
        distance (R, N), infinite where no way leads, and the link into each node (R, N), -1 there.
    """
    out_ptr, out_link = csr(tail, num_nodes)
    distance, into = np.empty((len(roots), num_nodes)), np.empty((len(roots), num_nodes), dtype=np.int32)
    _trees(np.asarray(roots, dtype=np.int32), out_ptr, out_link, tail, head, weight, distance, into)
    return distance, into


def csr(nodes: IntArray, num_nodes: int) -> tuple[IntArray, IntArray]:
    """Links grouped by a node of theirs: (ptr, links)."""
    counts = np.bincount(nodes, minlength=num_nodes)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return ptr, np.argsort(nodes, kind="stable").astype(np.int32)
