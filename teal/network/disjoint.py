"""Numba kernels that find disjoint paths between two nodes.

The first paths share no group of links that fail together: cables, which are all links between two
nodes, and groups that are given.  Where no such path is left, further paths share no link with
those before them: a second member of a cable adds capacity, though it fails with the first.

A path is an array of link numbers; bans are stamps (see :mod:`teal.network.shortest`).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from teal.network.failures import Groups, ban_groups_of
from teal.network.shortest import Adjacency, SearchScratch, best_first, walk_back
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel

ZERO = cast(
    int, np.int64(0)
)  # not the literal 0, for which, as for any literal, Numba compiles a callee once more
NO_STAMP = -2  # a stamp that no entry ever carries: nothing is banned


class FoundPaths(NamedTuple):
    """Up to K paths: ``links`` (K, N) link numbers, ``length`` (K,) number of links, ``weight``
    (K,) sum of weights.
    """

    links: IntArray
    length: Int64Array
    weight: FloatArray


@inner_kernel
def empty_paths(num_paths: int, num_nodes: int) -> FoundPaths:
    """Memory for so many paths."""
    return FoundPaths(
        np.empty((num_paths, num_nodes), dtype=np.int32),
        np.zeros(num_paths, dtype=np.int64),
        np.empty(num_paths),
    )


class TwoSided(NamedTuple):
    """Memory of a breadth-first search from both ends; row 0 belongs to the source's side, row 1 to
    the target's.

    Attributes:
        seen: (2, N) stamp of the search that reached a node last.
        into: (2, N) the link by which a node was reached.
        queue: (2, N) nodes in the order in which they were reached.
    """

    seen: IntArray
    into: IntArray
    queue: IntArray


@inner_kernel
def grow_tree(
    source: int, graph: Adjacency, banned: IntArray, ban: int, into: IntArray, queue: IntArray
) -> None:
    """Paths of fewest hops from ``source`` without banned links.

    Args:
        source: node where the paths begin.
        graph: the network.
        banned: (E,) stamps.
        ban: stamp of the links that are banned.
        into: (N,) receives the link into each node, -1 where there is none.
        queue: (N,) memory.
    """
    into[:] = -1
    queue[0] = source
    begin, end = 0, 1
    while begin < end:
        node = queue[begin]
        begin += 1
        if node != source and not graph.has_transit[node]:
            continue
        for i in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
            link = graph.out_link[i]
            other = graph.head[link]
            if banned[link] != ban and into[other] < 0 and other != source:
                into[other] = link
                queue[end] = other
                end += 1


@inner_kernel
def _expand(
    begin: int,
    end: int,
    ptr: IntArray,
    links: IntArray,
    far_end: IntArray,
    has_transit: BoolArray,
    banned: IntArray,
    ban: int,
    mark: int,
    search: TwoSided,
    side: int,
) -> tuple[int, int]:
    """Expand ``queue[side, begin:end]`` by one level of breadth-first search; ``queue[:, 0]`` are
    both ends.

    Returns:
        the new end of the queue, and the first node that the other side has seen too, or -1.
    """
    last = end
    for i in range(begin, end):
        node = search.queue[side, i]
        if i > 0 and not has_transit[node]:
            continue
        for at in range(ptr[node], ptr[node + 1]):
            link = links[at]
            other = far_end[link]
            if banned[link] != ban and search.seen[side, other] != mark:
                search.seen[side, other], search.into[side, other] = mark, link
                if search.seen[1 - side, other] == mark and (
                    has_transit[other] or other == search.queue[1 - side, 0]
                ):
                    return last, other
                search.queue[side, last] = other
                last += 1
    return last, -1


@inner_kernel
def _meet(
    source: int,
    target: int,
    graph: Adjacency,
    banned: IntArray,
    ban: int,
    mark: int,
    search: TwoSided,
    path: IntArray,
) -> int:
    """Write a path of fewest hops without banned links into ``path``; its number of links, 0 if
    there is none.

    Breadth-first search from both ends.  Each round expands the smaller frontier by one level.  The
    first node that both sides have seen lies on a shortest path: a shorter one would have met at an
    earlier level.
    """
    search.seen[0, source], search.seen[1, target] = mark, mark
    search.queue[0, 0], search.queue[1, 0] = source, target
    begin0, end0, begin1, end1 = ZERO, ZERO + 1, ZERO, ZERO + 1
    while begin0 < end0 and begin1 < end1:
        if end0 - begin0 <= end1 - begin1:
            last, middle = _expand(
                begin0,
                end0,
                graph.out_ptr,
                graph.out_link,
                graph.head,
                graph.has_transit,
                banned,
                ban,
                mark,
                search,
                ZERO,
            )
            begin0, end0 = end0, last
        else:
            last, middle = _expand(
                begin1,
                end1,
                graph.in_ptr,
                graph.in_link,
                graph.tail,
                graph.has_transit,
                banned,
                ban,
                mark,
                search,
                ZERO + 1,
            )
            begin1, end1 = end1, last
        if middle >= 0:
            return _join(source, target, middle, search.into, graph, path)
    return 0


@inner_kernel
def _join(
    source: int, target: int, middle: int, into: IntArray, graph: Adjacency, path: IntArray
) -> int:
    """Write the links from ``source`` to ``middle`` and on to ``target`` into ``path``; their
    number.
    """
    length = walk_back(source, middle, into[0], graph.tail, path)
    while middle != target:
        path[length] = into[1, middle]
        middle = graph.head[path[length]]
        length += 1
    return length


@inner_kernel
def _most_disjoint(source: int, target: int, graph: Adjacency, max_paths: int) -> int:
    """No more disjoint paths than links that leave the source or enter the target."""
    out_degree = graph.out_ptr[source + 1] - graph.out_ptr[source]
    return min(max_paths, out_degree, graph.in_ptr[target + 1] - graph.in_ptr[target])


@inner_kernel
def _ban_links(paths: FoundPaths, count: int, stamp: int, banned: IntArray) -> None:
    """Stamp the links of the first ``count`` paths in ``banned`` (E,)."""
    for k in range(count):
        for i in range(paths.length[k]):
            banned[paths.links[k, i]] = stamp


@inner_kernel
def _ban_path(
    paths: FoundPaths, k: int, groups: Groups, by_groups: bool, stamp: int, banned: IntArray
) -> None:
    """Stamp the links of path ``k`` in ``banned`` (E,) and, ``by_groups``, those that fail with
    them.
    """
    for i in range(paths.length[k]):
        if by_groups:
            ban_groups_of(paths.links[k, i], groups, stamp, banned)
        else:
            banned[paths.links[k, i]] = stamp


@inner_kernel
def disjoint_by_hops(
    source: int,
    target: int,
    tree: IntArray,
    graph: Adjacency,
    groups: Groups,
    stamp: int,
    banned: IntArray,
    search: TwoSided,
    paths: FoundPaths,
) -> int:
    """Up to K disjoint paths, each of fewest hops without the links that those before it ban; their
    number.

    The first path follows ``tree``.  The stamps from ``stamp`` to ``stamp + K + 1`` are used.
    """
    max_paths = _most_disjoint(source, target, graph, len(paths.length))
    if max_paths == 0 or tree[target] < 0:
        return 0
    paths.length[0] = walk_back(source, target, tree, graph.tail, paths.links[0])
    by_groups, ban, mark, k = True, stamp, stamp, 1
    _ban_path(paths, 0, groups, by_groups, ban, banned)
    while k < max_paths:
        mark += 1
        paths.length[k] = _meet(source, target, graph, banned, ban, mark, search, paths.links[k])
        if paths.length[k]:
            _ban_path(paths, k, groups, by_groups, ban, banned)
            k += 1
        elif by_groups:
            by_groups, ban = False, stamp + 1
            _ban_links(paths, k, ban, banned)
        else:
            break
    return k


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
    into: IntArray,
    paths: FoundPaths,
) -> int:
    """Up to K disjoint paths, each of least weight without the links that those before it ban;
    their number.

    The stamps ``stamp`` and ``stamp + 1`` are used.
    """
    max_paths = _most_disjoint(source, target, graph, len(paths.length))
    by_groups, ban, k = True, stamp, ZERO
    while k < max_paths:
        total = best_first(source, target, graph, weight, potential, ban, NO_STAMP, scratch, into)
        if np.isfinite(total):
            paths.length[k] = walk_back(source, target, into, graph.tail, paths.links[k])
            _ban_path(paths, k, groups, by_groups, ban, scratch.banned_links)
            k += 1
        elif by_groups and k:
            by_groups, ban = False, stamp + 1
            _ban_links(paths, k, ban, scratch.banned_links)
        else:
            break
    return k
