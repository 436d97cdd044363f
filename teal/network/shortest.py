"""Shortest paths: A* and Dijkstra's algorithm over a graph in compressed sparse row (CSR) form,
compiled.

A path is an array of link numbers.  Links and nodes are banned by stamps: an entry of a stamp array
is banned while it equals the current stamp, so that raising the stamp by one lifts all bans at
once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.parallel import as_int64, inner_kernel, partitioned_kernel, threads_for

_MIN_PARALLEL_VISITS = 1_000_000  # of links, by searches from all roots together


class Adjacency(NamedTuple):
    """N nodes and E directed links.

    Attributes:
        out_ptr: (N + 1,) the links out of node n are ``out_link[out_ptr[n]:out_ptr[n + 1]]``.
        out_link: (E,) link numbers.
        in_ptr: (N + 1,) the links into node n are ``in_link[in_ptr[n]:in_ptr[n + 1]]``.
        in_link: (E,) link numbers.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends.
        has_transit: (N,) whether paths may lead through a node, not only begin or end there.
    """

    out_ptr: IntArray
    out_link: IntArray
    in_ptr: IntArray
    in_link: IntArray
    tail: IntArray
    head: IntArray
    has_transit: BoolArray

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.out_ptr) - 1


class SearchScratch(NamedTuple):
    """Memory of one best-first search; what it holds before a search does not matter, but for the
    stamps.

    Attributes:
        banned_links: (E,) stamps; a link is not used while its stamp equals the search's
            ``link_stamp``.
        banned_nodes: (N,) stamps; the same for nodes and ``node_stamp``.
        distance: (N,) least weight from the source found so far.
        heap_keys: priorities of the binary heap.
        heap_nodes: its nodes.
    """

    banned_links: IntArray
    banned_nodes: IntArray
    distance: FloatArray
    heap_keys: FloatArray
    heap_nodes: IntArray


def make_graph(
    num_nodes: int, tail: IntArray, head: IntArray, no_transit: BoolArray | None = None
) -> Adjacency:
    """The graph of links that lead from ``tail`` (E,) to ``head`` (E,).

    Args:
        num_nodes: N.
        tail: (E,) node where each link starts.
        head: (E,) node where it ends.
        no_transit: (N,) whether paths must not lead through a node; None if they may lead through
            all.
    """
    has_transit = np.ones(num_nodes, dtype=bool) if no_transit is None else ~no_transit
    return Adjacency(
        *_group_by_node(tail, num_nodes), *_group_by_node(head, num_nodes), tail, head, has_transit
    )


def _group_by_node(nodes: IntArray, num_nodes: int) -> tuple[IntArray, IntArray]:
    """CSR pointers (N + 1,) and link numbers (E,), grouped by the node of each link."""
    counts = np.bincount(nodes, minlength=num_nodes)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return ptr, np.argsort(nodes, kind="stable").astype(np.int32)


@inner_kernel
def make_scratch(num_nodes: int, num_links: int) -> SearchScratch:
    """Scratch with no stamps set (-1).  The heap has room for two pushes a link: rounding may
    reopen a node.
    """
    return SearchScratch(
        np.full(num_links, -1, dtype=np.int32),
        np.full(num_nodes, -1, dtype=np.int32),
        np.empty(num_nodes),
        np.empty(2 * num_links + 2),
        np.empty(2 * num_links + 2, dtype=np.int32),
    )


@inner_kernel
def heap_push(keys: FloatArray, nodes: IntArray, size: int, key: float, node: int) -> int:
    """Insert ``node`` with priority ``key``; the new size."""
    i = size
    while i > 0:
        above = (i - 1) // 2
        if keys[above] <= key:
            break
        keys[i], nodes[i] = keys[above], nodes[above]
        i = above
    keys[i], nodes[i] = key, node
    return size + 1


@inner_kernel
def heap_pop(keys: FloatArray, nodes: IntArray, size: int) -> int:
    """Remove the smallest entry, which the caller has read from ``keys[0], nodes[0]``; the new
    size.
    """
    size -= 1
    key, node = keys[size], nodes[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i], nodes[i] = keys[child], nodes[child]
        i = child
    keys[i], nodes[i] = key, node
    return size


@inner_kernel
def walk_back(source: int, target: int, into: IntArray, tail: IntArray, path: IntArray) -> int:
    """Write the path that ``into`` (N,), the link into each node, describes into ``path``; its
    number of links.
    """
    length, node = 0, target
    while node != source:
        path[length] = into[node]
        node = tail[into[node]]
        length += 1
    for i in range(length // 2):
        path[i], path[length - 1 - i] = path[length - 1 - i], path[i]
    return length


@inner_kernel
def best_first(
    source: int,
    target: int,
    graph: Adjacency,
    weight: FloatArray,
    potential: FloatArray,
    link_stamp: int,
    node_stamp: int,
    scratch: SearchScratch,
    into: IntArray,
) -> float:
    """A* from ``source`` to ``target``: the least weight of a path without banned links and nodes,
    infinite if none.

    Args:
        source: node where the path starts.
        target: node where it ends; -1 finds paths to all nodes.
        graph: the network.
        weight: (E,) of each link, at least 0.
        potential: (N,) lower bound of the weight from each node to the target.
        link_stamp: links with this stamp are banned.
        node_stamp: nodes with this stamp are banned.
        scratch: memory, with the stamps.
        into: (N,) receives the link into each node on a shortest path.
    """
    distance, keys, nodes = scratch.distance, scratch.heap_keys, scratch.heap_nodes
    distance[:] = np.inf
    if not np.isfinite(potential[source]):
        return np.inf
    distance[source] = 0.0
    size = heap_push(keys, nodes, as_int64(0), potential[source], source)
    while size:
        key, node = keys[0], nodes[0]
        size = heap_pop(keys, nodes, size)
        if node == target:
            return distance[target]
        if key > distance[node] + potential[node]:
            continue  # the node was reached by a shorter path since this entry was pushed
        if node != source and not graph.has_transit[node]:
            continue
        for i in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
            link = graph.out_link[i]
            other = graph.head[link]
            is_banned = (
                scratch.banned_links[link] == link_stamp
                or scratch.banned_nodes[other] == node_stamp
            )
            if is_banned or not np.isfinite(potential[other]):
                continue
            length = distance[node] + weight[link]
            if length < distance[other]:
                distance[other], into[other] = length, link
                size = heap_push(keys, nodes, size, length + potential[other], other)
    return np.inf


@partitioned_kernel("roots")
def _trees(
    begin: int,
    end: int,
    roots: IntArray,
    graph: Adjacency,
    weight: FloatArray,
    distance: FloatArray,
    into: IntArray,
) -> None:
    nodes, links = len(graph.out_ptr) - 1, len(graph.tail)
    for i in range(begin, end):
        scratch = make_scratch(nodes, links)
        no_potential = np.zeros(nodes)
        into[i] = -1
        best_first(
            roots[i],
            as_int64(-1),
            graph,
            weight,
            no_potential,
            as_int64(0),
            as_int64(0),
            scratch,
            into[i],
        )
        for node in range(
            nodes
        ):  # an assignment of arrays would compile messages about shapes, for a second
            distance[i, node] = scratch.distance[node]


def shortest_trees(
    num_nodes: int,
    tail: IntArray,
    head: IntArray,
    weight: FloatArray,
    roots: IntArray,
    no_transit: BoolArray | None = None,
) -> tuple[FloatArray, IntArray]:
    """Least weight from each root to every node, by Dijkstra's algorithm.

    Args:
        num_nodes: N.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends; with tail and head swapped, weights are those of paths
            to the roots.
        weight: (E,) at least 0, infinite for a link that may not be used.
        roots: (R,) nodes.
        no_transit: (N,) whether paths must not lead through a node; None if they may lead through
            all.

    Returns:
        distance (R, N), infinite where there is no path, and the link into each node (R, N), -1
        there.
    """
    graph = make_graph(num_nodes, tail, head, no_transit)
    distance, into = (
        np.empty((len(roots), num_nodes)),
        np.empty((len(roots), num_nodes), dtype=np.int32),
    )
    # A few microseconds a link and root: from 0.1 s on, threads are worth the compilation of their
    # form.
    with threads_for(len(roots) * len(tail), least=_MIN_PARALLEL_VISITS):
        _trees(np.asarray(roots, dtype=np.int32), graph, weight, distance, into)
    return distance, into
