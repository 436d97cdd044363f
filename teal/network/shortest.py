"""Compiled shortest-path kernels: A* and Dijkstra's algorithm over a CSR graph.

A path is an array of link indices.  Links and nodes are banned by stamps: an entry of a stamp array
is banned while it equals the current stamp, so that incrementing the stamp lifts all bans at once.
Entry points: :func:`find_shortest_path` (one target), :func:`shortest_trees` (all nodes).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.parallel import as_int64, inner_kernel, partitioned_kernel, threads_for

# Minimum visits of links, by searches from all roots together, for which they use all threads.
_MIN_PARALLEL_VISITS = 1_000_000


class Adjacency(NamedTuple):
    """Directed graph of N nodes and E links in CSR form.

    Attributes:
        out_ptr: (N + 1,) the links out of node n are ``out_link[out_ptr[n]:out_ptr[n + 1]]``.
        out_link: (E,) link indices.
        in_ptr: (N + 1,) the links into node n are ``in_link[in_ptr[n]:in_ptr[n + 1]]``.
        in_link: (E,) link indices.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends.
        has_transit: (N,) whether paths may pass through a node.
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
        """The number N of nodes."""
        return len(self.out_ptr) - 1


class SearchScratch(NamedTuple):
    """Scratch memory of a best-first search; only the stamps must be valid before a search.

    Attributes:
        stamp_of_link: (E,) stamps; a link is banned while its stamp equals the search's
            ``link_ban_stamp``.
        stamp_of_node: (N,) stamps; a node is banned while its stamp equals the search's
            ``node_ban_stamp``.
        distance: (N,) minimum weight of a path from the source to each node found so far.
        heap_keys: (2 E + 2,) priorities of the binary heap, the minimum first.
        heap_nodes: (2 E + 2,) nodes of the binary heap.
    """

    stamp_of_link: IntArray
    stamp_of_node: IntArray
    distance: FloatArray
    heap_keys: FloatArray
    heap_nodes: IntArray


def make_graph(
    num_nodes: int, tail: IntArray, head: IntArray, no_transit: BoolArray | None = None
) -> Adjacency:
    """Build a directed graph in CSR form from the ends of its links.

    Args:
        num_nodes: N.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends.
        no_transit: (N,) whether paths must not pass through a node; None for no such node.
    """
    has_transit = np.ones(num_nodes, dtype=bool) if no_transit is None else ~no_transit
    return Adjacency(
        *_group_by_node(tail, num_nodes), *_group_by_node(head, num_nodes), tail, head, has_transit
    )


def _group_by_node(nodes: IntArray, num_nodes: int) -> tuple[IntArray, IntArray]:
    """Group links by one of their end nodes, in CSR form.

    Args:
        nodes: (E,) node of each link.
        num_nodes: N.

    Returns:
        ptr (N + 1,) and link indices (E,): the links of node n are ``links[ptr[n]:ptr[n + 1]]``.
    """
    degree = np.bincount(nodes, minlength=num_nodes)
    ptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int32)
    return ptr, np.argsort(nodes, kind="stable").astype(np.int32)


@inner_kernel
def make_scratch(num_nodes: int, num_links: int) -> SearchScratch:
    """Return scratch memory of a best-first search, in which no link or node is banned (stamps -1).

    The heap has space for two pushes per link, since rounding may reopen a node.

    Args:
        num_nodes: N.
        num_links: E.
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
    """Insert a node into a binary min-heap, and return its new size.

    Args:
        keys: (capacity,) priorities of the heap; ``size`` are in use (updated).
        nodes: (capacity,) nodes of the heap (updated).
        size: number of entries.
        key: priority of the node.
        node: the node.
    """
    # Move larger entries down, from the new leaf towards the root.
    i = size
    while i > 0:
        parent = (i - 1) // 2
        if keys[parent] <= key:
            break
        keys[i] = keys[parent]
        nodes[i] = nodes[parent]
        i = parent
    keys[i] = key
    nodes[i] = node
    return size + 1


@inner_kernel
def heap_pop(keys: FloatArray, nodes: IntArray, size: int) -> int:
    """Remove the minimum of a binary min-heap, and return its new size.

    The caller has read the minimum from ``keys[0]`` and ``nodes[0]``.

    Args:
        keys: (capacity,) priorities of the heap; ``size`` are in use (updated).
        nodes: (capacity,) nodes of the heap (updated).
        size: number of entries, at least 1.
    """
    size -= 1
    key = keys[size]
    node = nodes[size]
    # The last entry of the heap takes the place of the minimum.
    # Move smaller children up, until the last entry fits.
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i] = keys[child]
        nodes[i] = nodes[child]
        i = child
    keys[i] = key
    nodes[i] = node
    return size


@inner_kernel
def walk_back(source: int, target: int, pred_link: IntArray, tail: IntArray, path: IntArray) -> int:
    """Write the path from a source to a target, by following its links back; return their number.

    Args:
        source: node where the path starts.
        target: node where the path ends.
        pred_link: (N,) link into each node on its path from the source.
        tail: (E,) node where each link starts.
        path: (at least the path's length,) link indices from source to target (written).
    """
    length = 0
    node = target
    while node != source:
        path[length] = pred_link[node]
        node = tail[pred_link[node]]
        length += 1
    # Reverse the links.
    for i in range(length // 2):
        path[i], path[length - 1 - i] = path[length - 1 - i], path[i]
    return length


@inner_kernel
def find_shortest_path(
    source: int,
    target: int,
    graph: Adjacency,
    weight: FloatArray,
    potential: FloatArray,
    link_ban_stamp: int,
    node_ban_stamp: int,
    scratch: SearchScratch,
    pred_link: IntArray,
) -> float:
    """Find a path of minimum weight without banned links and nodes, by A*.

    Nodes are expanded by ascending ``distance[node] + potential[node]``.

    Args:
        source: node where the path starts.
        target: node where the path ends; -1 computes the distances of all nodes.
        graph: the network in CSR form.
        weight: (E,) non-negative link weights.
        potential: (N,) lower bound on the weight from each node to the target; infinite where there
            is no path.  All zero gives Dijkstra's algorithm.
        link_ban_stamp: links with this stamp are banned.
        node_ban_stamp: nodes with this stamp are banned.
        scratch: stamps of banned links and nodes; ``distance`` and the heap are written.
        pred_link: (N,) link into each reached node on a shortest path (written).

    Returns:
        weight of the path; infinite if there is none, or ``target`` is -1.
    """
    distance = scratch.distance
    heap_keys = scratch.heap_keys
    heap_nodes = scratch.heap_nodes
    distance[:] = np.inf
    # No path leads from the source to the target.
    if not np.isfinite(potential[source]):
        return np.inf
    distance[source] = 0.0
    heap_size = heap_push(heap_keys, heap_nodes, as_int64(0), potential[source], source)
    # Expand the node with the smallest key.
    while heap_size:
        node_priority = heap_keys[0]
        node = heap_nodes[0]
        heap_size = heap_pop(heap_keys, heap_nodes, heap_size)
        if node == target:
            return distance[target]
        if node_priority > distance[node] + potential[node]:
            # Stale heap entry: a shorter path has reached the node since it was pushed.
            continue
        if node != source and not graph.has_transit[node]:
            # Paths may end at this node, but not pass through it.
            continue
        # Relax the links out of the node.
        for i in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
            link = graph.out_link[i]
            neighbour = graph.head[link]
            is_banned = (
                scratch.stamp_of_link[link] == link_ban_stamp
                or scratch.stamp_of_node[neighbour] == node_ban_stamp
            )
            if is_banned or not np.isfinite(potential[neighbour]):
                continue
            new_distance = distance[node] + weight[link]
            if new_distance < distance[neighbour]:
                distance[neighbour] = new_distance
                pred_link[neighbour] = link
                heap_size = heap_push(
                    heap_keys, heap_nodes, heap_size, new_distance + potential[neighbour], neighbour
                )
    return np.inf


@partitioned_kernel("roots")
def _compute_trees(
    begin: int,
    end: int,
    roots: IntArray,
    graph: Adjacency,
    weight: FloatArray,
    distance: FloatArray,
    pred_link: IntArray,
) -> None:
    """Compute the shortest-path trees of some roots, by Dijkstra's algorithm.

    Args:
        begin, end: range of roots that this call searches.
        roots: (R,) root nodes.
        graph: the network in CSR form.
        weight: (E,) non-negative link weights.
        distance: (R, N) weight from each root to each node, infinite where there is no path
            (written).
        pred_link: (R, N) link into each node, -1 where there is no path (written).
    """
    num_nodes = len(graph.out_ptr) - 1
    num_links = len(graph.tail)
    for i in range(begin, end):
        scratch = make_scratch(num_nodes, num_links)
        # A* without potentials is Dijkstra's algorithm.
        no_potential = np.zeros(num_nodes)
        pred_link[i] = -1
        find_shortest_path(
            roots[i],
            as_int64(-1),
            graph,
            weight,
            no_potential,
            as_int64(0),
            as_int64(0),
            scratch,
            pred_link[i],
        )
        # A loop, because Numba needs a second to compile an assignment of arrays (error messages
        # about shapes).
        for node in range(num_nodes):
            distance[i, node] = scratch.distance[node]


def shortest_trees(
    num_nodes: int,
    tail: IntArray,
    head: IntArray,
    weight: FloatArray,
    roots: IntArray,
    no_transit: BoolArray | None = None,
) -> tuple[FloatArray, IntArray]:
    """Compute shortest-path trees from each root to every node, by Dijkstra's algorithm.

    Args:
        num_nodes: N.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends; with tail and head swapped, trees lead to the roots.
        weight: (E,) non-negative link weights, infinite for unusable links.
        roots: (R,) root nodes.
        no_transit: (N,) whether paths must not pass through a node; None for no such node.

    Returns:
        distance (R, N), infinite where there is no path, and the link into each node (R, N), -1
        where there is no path.
    """
    graph = make_graph(num_nodes, tail, head, no_transit)
    distance = np.empty((len(roots), num_nodes))
    pred_link = np.empty((len(roots), num_nodes), dtype=np.int32)
    with threads_for(len(roots) * len(tail), min_operations=_MIN_PARALLEL_VISITS):
        _compute_trees(np.asarray(roots, dtype=np.int32), graph, weight, distance, pred_link)
    return distance, pred_link
