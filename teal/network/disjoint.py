"""Compiled kernels for disjoint paths between two nodes, by successive shortest paths.

The first paths share no group of links that fail together: cables (all links between two nodes) and
the given groups.  Where no such path is left, further paths share no link with the earlier ones: a
parallel link of a used cable adds capacity, although it fails with the first.

A path is an array of link indices; bans are stamps (see :mod:`teal.network.shortest`).  Entry
points: :func:`disjoint_by_hops` (bidirectional breadth-first search), :func:`disjoint_by_weight`
(A*).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from teal.network.failures import Groups, ban_groups_of
from teal.network.shortest import Adjacency, SearchScratch, find_shortest_path, walk_back
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel

# A variable instead of the literal 0: Numba compiles a callee once more for any literal.
ZERO = cast(int, np.int64(0))
# No entry ever has this stamp, so that nothing is banned.
NO_STAMP = -2


class DemandPaths(NamedTuple):
    """Paths of one demand, at most K.

    Attributes:
        links: (K, N) link indices of each path from source to target; only the first
            ``length[k]`` of row k are used.
        length: (K,) number of links of each path.
        weight: (K,) sum of the link weights of each path; only Yen's candidates use it.
    """

    links: IntArray
    length: Int64Array
    weight: FloatArray


@inner_kernel
def empty_paths(num_paths: int, num_nodes: int) -> DemandPaths:
    """Allocate memory for the paths of one demand.

    Args:
        num_paths: K, maximum number of paths.
        num_nodes: N; a path has fewer links.
    """
    return DemandPaths(
        np.empty((num_paths, num_nodes), dtype=np.int32),
        np.zeros(num_paths, dtype=np.int64),
        np.empty(num_paths),
    )


class BidirectionalScratch(NamedTuple):
    """Scratch memory of a bidirectional breadth-first search: row 0 is the side of the source, row
    1 that of the target.

    Attributes:
        last_visit: (2, N) stamp of the last search that reached a node.
        pred_link: (2, N) link by which a node was reached (predecessor link).
        queue: (2, N) nodes in the order in which they were reached.
    """

    last_visit: IntArray
    pred_link: IntArray
    queue: IntArray


@inner_kernel
def grow_tree(
    source: int,
    graph: Adjacency,
    stamp_of_link: IntArray,
    ban_stamp: int,
    pred_link: IntArray,
    queue: IntArray,
) -> None:
    """Compute a tree of fewest-hop paths from a node without banned links (breadth-first search).

    Args:
        source: node where the paths begin.
        graph: the network.
        stamp_of_link: (E,) stamp of each link.
        ban_stamp: links with this stamp are banned.
        pred_link: (N,) link into each node, -1 for unreached nodes and the source (written).
        queue: (N,) nodes in the order in which they were reached (scratch).
    """
    pred_link[:] = -1
    queue[0] = source
    queue_begin = 0
    queue_end = 1
    # Take the next node from the queue, and append the nodes that it reaches first.
    while queue_begin < queue_end:
        node = queue[queue_begin]
        queue_begin += 1
        # Paths may end at this node, but not pass through it.
        if node != source and not graph.has_transit[node]:
            continue
        for i in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
            link = graph.out_link[i]
            neighbour = graph.head[link]
            if (
                stamp_of_link[link] != ban_stamp
                and pred_link[neighbour] < 0
                and neighbour != source
            ):
                pred_link[neighbour] = link
                queue[queue_end] = neighbour
                queue_end += 1


@inner_kernel
def _expand_level(
    begin: int,
    end: int,
    ptr: IntArray,
    links: IntArray,
    far_end: IntArray,
    has_transit: BoolArray,
    stamp_of_link: IntArray,
    ban_stamp: int,
    visit_stamp: int,
    search: BidirectionalScratch,
    side: int,
) -> tuple[int, int]:
    """Expand one side of a bidirectional breadth-first search by one level.

    Args:
        begin, end: the frontier is ``search.queue[side, begin:end]``.
        ptr: (N + 1,) node n has the links ``links[ptr[n]:ptr[n + 1]]``: out of it on side 0, into
            it on side 1.
        links: (E,) link indices.
        far_end: (E,) the other end of each link: its head on side 0, its tail on side 1.
        has_transit: (N,) whether paths may pass through a node.
        stamp_of_link: (E,) stamp of each link.
        ban_stamp: links with this stamp are banned.
        visit_stamp: stamp of this search in ``search.last_visit``.
        search: both sides of the search (updated); ``search.queue[:, 0]`` are source and target.
        side: 0 for the source's side, 1 for the target's.

    Returns:
        the new end of the queue, and the first node that both sides have reached, or -1.
    """
    queue_end = end
    for i in range(begin, end):
        node = search.queue[side, i]
        # Entry 0 of the queue is the source or target itself, which needs no transit.
        if i > 0 and not has_transit[node]:
            continue
        for position in range(ptr[node], ptr[node + 1]):
            link = links[position]
            neighbour = far_end[link]
            if (
                stamp_of_link[link] != ban_stamp
                and search.last_visit[side, neighbour] != visit_stamp
            ):
                # Reach the neighbour; the sides meet there if the path may pass through it.
                search.last_visit[side, neighbour] = visit_stamp
                search.pred_link[side, neighbour] = link
                if search.last_visit[1 - side, neighbour] == visit_stamp and (
                    has_transit[neighbour] or neighbour == search.queue[1 - side, 0]
                ):
                    return queue_end, neighbour
                search.queue[side, queue_end] = neighbour
                queue_end += 1
    return queue_end, -1


@inner_kernel
def _bidirectional_search(
    source: int,
    target: int,
    graph: Adjacency,
    stamp_of_link: IntArray,
    ban_stamp: int,
    visit_stamp: int,
    search: BidirectionalScratch,
    path: IntArray,
) -> int:
    """Find a fewest-hop path without banned links, by bidirectional breadth-first search.

    Each round expands the smaller frontier by one level.  The first node that both sides have
    reached lies on a shortest path, since the sides would have met at an earlier level on a shorter
    one.

    Args:
        source: node where the path starts.
        target: node where the path ends.
        graph: the network in CSR form.
        stamp_of_link: (E,) stamp of each link.
        ban_stamp: links with this stamp are banned.
        visit_stamp: stamp of this search in ``search.last_visit``, unused so far.
        search: visited stamps, predecessor links and queue of each side (updated).
        path: (N,) link indices of the path (written).

    Returns:
        number of links of the path; 0 if there is none.
    """
    # Put source and target into the queues of their sides.
    search.last_visit[0, source] = visit_stamp
    search.last_visit[1, target] = visit_stamp
    search.queue[0, 0] = source
    search.queue[1, 0] = target
    # The frontiers are queue[0, source_begin:source_end] and queue[1, target_begin:target_end].
    # ZERO, not 0: for a literal Numba would compile _expand_level once more.
    source_begin = ZERO
    source_end = ZERO + 1
    target_begin = ZERO
    target_end = ZERO + 1
    # Expand the smaller frontier by one level until the sides meet.
    while source_begin < source_end and target_begin < target_end:
        if source_end - source_begin <= target_end - target_begin:
            # From the source, along outgoing links.
            new_end, meeting_node = _expand_level(
                source_begin,
                source_end,
                graph.out_ptr,
                graph.out_link,
                graph.head,
                graph.has_transit,
                stamp_of_link,
                ban_stamp,
                visit_stamp,
                search,
                ZERO,
            )
            source_begin = source_end
            source_end = new_end
        else:
            # From the target, against incoming links.
            new_end, meeting_node = _expand_level(
                target_begin,
                target_end,
                graph.in_ptr,
                graph.in_link,
                graph.tail,
                graph.has_transit,
                stamp_of_link,
                ban_stamp,
                visit_stamp,
                search,
                ZERO + 1,
            )
            target_begin = target_end
            target_end = new_end
        if meeting_node >= 0:
            return _join_halves(source, target, meeting_node, search.pred_link, graph, path)
    return 0


@inner_kernel
def _join_halves(
    source: int, target: int, node: int, pred_link: IntArray, graph: Adjacency, path: IntArray
) -> int:
    """Join the two halves of a path that a bidirectional search has found.

    Args:
        source: node where the path starts.
        target: node where the path ends.
        node: node that both sides have reached.
        pred_link: (2, N) link between each node and the previous one on its side: into the node
            from the source, or out of the node towards the target.
        graph: the network in CSR form.
        path: (N,) link indices of the path (written).

    Returns:
        number of links of the path.
    """
    length = walk_back(source, node, pred_link[0], graph.tail, path)
    # Append the links of the target's half, from the meeting node on.
    while node != target:
        path[length] = pred_link[1, node]
        node = graph.head[path[length]]
        length += 1
    return length


@inner_kernel
def _max_disjoint_paths(source: int, target: int, graph: Adjacency, max_paths: int) -> int:
    """Return an upper bound on the number of disjoint paths.

    It is the smallest of three numbers: the links out of the source, the links into the target, and
    the requested number.

    Args:
        source: node where the paths start.
        target: node where the paths end.
        graph: the network in CSR form.
        max_paths: requested number of paths.
    """
    out_degree = graph.out_ptr[source + 1] - graph.out_ptr[source]
    return min(max_paths, out_degree, graph.in_ptr[target + 1] - graph.in_ptr[target])


@inner_kernel
def _ban_links_of_paths(
    paths: DemandPaths, num_paths: int, stamp: int, stamp_of_link: IntArray
) -> None:
    """Ban the links of the first paths of a demand.

    Args:
        paths: paths of the demand.
        num_paths: number of paths whose links are banned.
        stamp: stamp that marks a link as banned.
        stamp_of_link: (E,) stamp of each link (updated).
    """
    for k in range(num_paths):
        for i in range(paths.length[k]):
            stamp_of_link[paths.links[k, i]] = stamp


@inner_kernel
def _ban_path(
    paths: DemandPaths,
    k: int,
    groups: Groups,
    bans_groups: bool,
    stamp: int,
    stamp_of_link: IntArray,
) -> None:
    """Ban the links of one path, and optionally all links that fail together with one of them.

    Args:
        paths: paths of the demand.
        k: index of the path.
        groups: groups of links that fail together.
        bans_groups: whether to ban all links of the groups of the path's links.
        stamp: stamp that marks a link as banned.
        stamp_of_link: (E,) stamp of each link (updated).
    """
    for i in range(paths.length[k]):
        if bans_groups:
            ban_groups_of(paths.links[k, i], groups, stamp, stamp_of_link)
        else:
            stamp_of_link[paths.links[k, i]] = stamp


@inner_kernel
def disjoint_by_hops(
    source: int,
    target: int,
    tree_link: IntArray,
    graph: Adjacency,
    groups: Groups,
    stamp: int,
    stamp_of_link: IntArray,
    search: BidirectionalScratch,
    paths: DemandPaths,
) -> int:
    """Find up to K disjoint paths of fewest hops.

    The first path follows ``tree_link``.  Each further path is a fewest-hop path that avoids the
    groups of the earlier ones; once there is none, it avoids only their links. A link is banned if
    its entry in ``stamp_of_link`` equals the current stamp, so that a new stamp lifts all bans.

    Args:
        source: node where the paths start.
        target: node where the paths end.
        tree_link: (N,) link into each node of a breadth-first tree from the source, -1 for none.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        stamp: first unused stamp; the search uses ``stamp`` to ``stamp + K + 1``.
        stamp_of_link: (E,) stamp of each link (updated).
        search: scratch memory of the bidirectional searches (updated).
        paths: K slots for paths; links and lengths are written.

    Returns:
        number of paths found.
    """
    max_paths = _max_disjoint_paths(source, target, graph, len(paths.length))
    if max_paths == 0 or tree_link[target] < 0:
        return 0
    paths.length[0] = walk_back(source, target, tree_link, graph.tail, paths.links[0])
    bans_groups = True
    # Stamps of bans and of searches are in different arrays, so that they may be equal.
    ban_stamp = stamp
    visit_stamp = stamp
    num_found = 1
    # Ban whole groups first; once no path is left, ban only the links of the paths found.
    _ban_path(paths, 0, groups, bans_groups, ban_stamp, stamp_of_link)
    while num_found < max_paths:
        visit_stamp += 1
        paths.length[num_found] = _bidirectional_search(
            source,
            target,
            graph,
            stamp_of_link,
            ban_stamp,
            visit_stamp,
            search,
            paths.links[num_found],
        )
        if paths.length[num_found]:
            _ban_path(paths, num_found, groups, bans_groups, ban_stamp, stamp_of_link)
            num_found += 1
        elif bans_groups:
            bans_groups = False
            ban_stamp = stamp + 1
            _ban_links_of_paths(paths, num_found, ban_stamp, stamp_of_link)
        else:
            break
    return num_found


@inner_kernel
def disjoint_by_weight(
    source: int,
    target: int,
    graph: Adjacency,
    groups: Groups,
    weight: FloatArray,
    potential: FloatArray,
    stamp: int,
    scratch: SearchScratch,
    pred_link: IntArray,
    paths: DemandPaths,
) -> int:
    """Find up to K disjoint paths of minimum weight.

    Each path is a shortest path (A*) that avoids the groups of the earlier ones; once there is
    none, it avoids only their links. A link is banned if its entry in ``scratch.stamp_of_link``
    equals the current stamp, so that a new stamp lifts all bans.

    Args:
        source: node where the paths start.
        target: node where the paths end.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        weight: (E,) link weights.
        potential: (N,) lower bound on the weight from each node to the target, for A*.
        stamp: first unused stamp; the search uses ``stamp`` and ``stamp + 1``.
        scratch: heap, distances and stamps of A* (updated).
        pred_link: (N,) link into each node on a shortest path (scratch).
        paths: K slots for paths; links and lengths are written.

    Returns:
        number of paths found.
    """
    max_paths = _max_disjoint_paths(source, target, graph, len(paths.length))
    bans_groups = True
    ban_stamp = stamp
    num_found = ZERO
    # Ban whole groups first; once no path is left, ban only the links of the paths found.
    while num_found < max_paths:
        path_weight = find_shortest_path(
            source, target, graph, weight, potential, ban_stamp, NO_STAMP, scratch, pred_link
        )
        if np.isfinite(path_weight):
            paths.length[num_found] = walk_back(
                source, target, pred_link, graph.tail, paths.links[num_found]
            )
            _ban_path(paths, num_found, groups, bans_groups, ban_stamp, scratch.stamp_of_link)
            num_found += 1
        elif bans_groups and num_found:
            bans_groups = False
            ban_stamp = stamp + 1
            _ban_links_of_paths(paths, num_found, ban_stamp, scratch.stamp_of_link)
        else:
            break
    return num_found
