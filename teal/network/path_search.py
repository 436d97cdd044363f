"""Numba kernels that find the candidate paths of one source and put them into its trie.

A path is an array of link numbers; bans are stamps (see :mod:`teal.network.shortest`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.shortest import Graph, SearchScratch, best_first, make_scratch, walk_back
from teal.network.trie import insert_path, sort_by_depth
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.parallel import kernel, parallel_kernel, prange

HOPS_DISJOINT, WEIGHTED_DISJOINT, YEN = 0, 1, 2  # search methods
_NO_STAMP = -2  # a stamp that no entry ever carries: nothing is banned


class _FoundPaths(NamedTuple):
    """Up to K paths: ``links`` (K, N) link numbers, ``length`` (K,) number of links, ``weight`` (K,) sum of weights."""

    links: IntArray
    length: Int64Array
    weight: FloatArray


class _TwoSided(NamedTuple):
    """Memory of a breadth-first search from both ends; row 0 belongs to the source's side, row 1 to the target's.

    Attributes:
        seen: (2, N) stamp of the search that reached a node last.
        into: (2, N) the link by which a node was reached.
        queue: (2, N) nodes in the order in which they were reached.
    """

    seen: IntArray
    into: IntArray
    queue: IntArray


@kernel
def _grow_tree(source: int, graph: Graph, into: IntArray, queue: IntArray) -> None:
    """Paths of fewest hops from ``source``: ``into`` (N,) receives the link into each node, -1 where there is none."""
    into[:] = -1
    queue[0] = source
    begin, end = 0, 1
    while begin < end:
        node = queue[begin]
        begin += 1
        for i in range(graph.out_ptr[node], graph.out_ptr[node + 1]):
            other = graph.head[graph.out_link[i]]
            if into[other] < 0 and other != source:
                into[other] = graph.out_link[i]
                queue[end] = other
                end += 1


@kernel
def _expand(
    begin: int,
    end: int,
    ptr: IntArray,
    links: IntArray,
    far_end: IntArray,
    banned: IntArray,
    ban: int,
    mark: int,
    search: _TwoSided,
    side: int,
) -> tuple[int, int]:
    """Expand ``queue[side, begin:end]`` by one level of breadth-first search.

    Returns:
        the new end of the queue, and the first node that the other side has seen too, or -1.
    """
    last = end
    for i in range(begin, end):
        node = search.queue[side, i]
        for at in range(ptr[node], ptr[node + 1]):
            link = links[at]
            other = far_end[link]
            if banned[link] != ban and search.seen[side, other] != mark:
                search.seen[side, other], search.into[side, other] = mark, link
                if search.seen[1 - side, other] == mark:
                    return last, other
                search.queue[side, last] = other
                last += 1
    return last, -1


@kernel
def _meet(
    source: int, target: int, graph: Graph, banned: IntArray, ban: int, mark: int, search: _TwoSided, path: IntArray
) -> int:
    """Write a path of fewest hops without banned links into ``path``; its number of links, 0 if there is none.

    Breadth-first search from both ends.  Each round expands the smaller frontier by one level.  The first node
    that both sides have seen lies on a shortest path: a shorter one would have met at an earlier level.
    """
    search.seen[0, source], search.seen[1, target] = mark, mark
    search.queue[0, 0], search.queue[1, 0] = source, target
    begin0, end0, begin1, end1 = 0, 1, 0, 1
    while begin0 < end0 and begin1 < end1:
        if end0 - begin0 <= end1 - begin1:
            last, middle = _expand(
                begin0, end0, graph.out_ptr, graph.out_link, graph.head, banned, ban, mark, search, 0
            )  # fmt: skip
            begin0, end0 = end0, last
        else:
            last, middle = _expand(
                begin1, end1, graph.in_ptr, graph.in_link, graph.tail, banned, ban, mark, search, 1
            )  # fmt: skip
            begin1, end1 = end1, last
        if middle >= 0:
            return _join(source, target, middle, search.into, graph, path)
    return 0


@kernel
def _join(source: int, target: int, middle: int, into: IntArray, graph: Graph, path: IntArray) -> int:
    """Write the links from ``source`` to ``middle`` and on to ``target`` into ``path``; their number."""
    length = walk_back(source, middle, into[0], graph.tail, path)
    while middle != target:
        path[length] = into[1, middle]
        middle = graph.head[path[length]]
        length += 1
    return length


@kernel
def _disjoint(
    source: int,
    target: int,
    by_hops: bool,
    tree: IntArray,
    graph: Graph,
    weight: FloatArray,
    potential: FloatArray,
    stamp: int,
    scratch: SearchScratch,
    search: _TwoSided,
    paths: _FoundPaths,
) -> int:
    """Up to K link-disjoint paths, each a shortest one without the links of those before it; their number.

    By hops, the first path follows ``tree``.  The stamps from ``stamp`` to ``stamp + K`` are used.
    """
    # No more disjoint paths than links that leave the source or enter the target.
    out_degree = graph.out_ptr[source + 1] - graph.out_ptr[source]
    max_paths = min(len(paths.length), out_degree, graph.in_ptr[target + 1] - graph.in_ptr[target])
    for k in range(max_paths):
        paths.length[k] = 0
        if not by_hops:
            total = best_first(
                source, target, graph, weight, potential, stamp, _NO_STAMP, scratch, search.into[0]
            )  # fmt: skip
            if np.isfinite(total):
                paths.length[k] = walk_back(source, target, search.into[0], graph.tail, paths.links[k])
        elif k:
            paths.length[k] = _meet(
                source, target, graph, scratch.banned_links, stamp, stamp + k, search, paths.links[k]
            )  # fmt: skip
        elif tree[target] >= 0:
            paths.length[k] = walk_back(source, target, tree, graph.tail, paths.links[k])
        if not paths.length[k]:
            return k
        for i in range(paths.length[k]):
            scratch.banned_links[paths.links[k, i]] = stamp
    return max_paths


@kernel
def _same_prefix(a: IntArray, b: IntArray, length: int) -> bool:
    """Whether two paths have the same first ``length`` links."""
    for i in range(length):
        if a[i] != b[i]:
            return False
    return True


@kernel
def _yen(
    source: int,
    target: int,
    graph: Graph,
    weight: FloatArray,
    potential: FloatArray,
    stamp: int,
    scratch: SearchScratch,
    into: IntArray,
    paths: _FoundPaths,
    candidates: _FoundPaths,
) -> tuple[int, int]:
    """Yen's K shortest loopless paths (Yen 1971).

    Only the K best candidates are kept: more are never needed.

    Returns:
        the number of paths found, and the next unused stamp.
    """
    max_paths = len(paths.length)
    total = best_first(source, target, graph, weight, potential, stamp, stamp, scratch, into)
    stamp += 1
    if not np.isfinite(total):
        return 0, stamp
    paths.length[0] = walk_back(source, target, into, graph.tail, paths.links[0])
    count, kept = 1, 0  # paths found, candidates kept
    while count < max_paths:
        last, root_weight = paths.links[count - 1], 0.0
        for i in range(paths.length[count - 1]):  # the new path leaves the last one at the node before its link i
            spur = graph.tail[last[i]]
            for j in range(count):
                if paths.length[j] > i and _same_prefix(paths.links[j], last, i):
                    scratch.banned_links[paths.links[j, i]] = stamp
            for j in range(i):
                scratch.banned_nodes[graph.tail[last[j]]] = stamp
            total = best_first(spur, target, graph, weight, potential, stamp, stamp, scratch, into)
            stamp += 1
            if np.isfinite(total):
                slot = kept
                if kept == max_paths:
                    slot = int(np.argmax(candidates.weight))
                if kept < max_paths or root_weight + total < candidates.weight[slot]:
                    path = np.empty(len(scratch.banned_nodes), dtype=np.int32)
                    path[:i] = last[:i]
                    length = i + walk_back(spur, target, into, graph.tail, path[i:])
                    is_known = False
                    for j in range(kept):
                        if candidates.length[j] == length and _same_prefix(candidates.links[j], path, length):
                            is_known = True
                    if not is_known:
                        candidates.links[slot, :length] = path[:length]
                        candidates.length[slot], candidates.weight[slot] = length, root_weight + total
                        kept = min(kept + 1, max_paths)
            root_weight += weight[last[i]]
        if kept == 0:
            break
        best = int(np.argmin(candidates.weight[:kept]))
        paths.length[count] = candidates.length[best]
        paths.links[count, : paths.length[count]] = candidates.links[best, : paths.length[count]]
        count += 1
        kept -= 1
        candidates.links[best], candidates.length[best] = candidates.links[kept], candidates.length[kept]
        candidates.weight[best] = candidates.weight[kept]
    return count, stamp


@kernel
def _empty_paths(num_paths: int, num_nodes: int) -> _FoundPaths:
    return _FoundPaths(
        np.empty((num_paths, num_nodes), dtype=np.int32), np.zeros(num_paths, dtype=np.int64), np.empty(num_paths)
    )


@parallel_kernel
def search_sources(
    method: int,
    sources: IntArray,
    demand_ptr: IntArray,
    targets: IntArray,
    max_paths: int,
    graph: Graph,
    weight: FloatArray,
    potential: FloatArray,
    parent: IntArray,
    link: IntArray,
    node_count: IntArray,
    leaf: IntArray,
) -> None:
    """Find the paths of a chunk of C sources and build their tries.

    Args:
        method: HOPS_DISJOINT, WEIGHTED_DISJOINT or YEN.
        sources: (C,) node index of each source of the chunk.
        demand_ptr: (C + 1,) the demands of the i-th source are ``targets[demand_ptr[i]:demand_ptr[i + 1]]``.
        targets: (demands of the chunk,) node index of each demand's target.
        max_paths: K.
        graph: the network.
        weight: (E,) of each link.
        potential: (N, N) row t has the least weight from each node to t; not read by HOPS_DISJOINT.
        parent: (C, room) receives each source's trie, nodes numbered from 0 for each source.
        link: (C, room) likewise.
        node_count: (C,) receives the number of trie nodes, -1 where ``room`` was too small.
        leaf: (demands of the chunk, K) receives the trie node of each path's end, -1 where there is no path.
    """
    nodes, links, room = len(graph.out_ptr) - 1, len(graph.tail), parent.shape[1]
    for c in prange(len(sources)):
        source = sources[c]
        first_child = np.full(room + 1, -1, dtype=np.int32)
        next_sibling = np.empty(room, dtype=np.int32)
        tree = np.empty(nodes, dtype=np.int32)
        search = _TwoSided(
            np.full((2, nodes), -1, dtype=np.int32),
            np.empty((2, nodes), dtype=np.int32),
            np.empty((2, nodes), dtype=np.int32),
        )
        scratch = make_scratch(nodes, links)
        paths, candidates = _empty_paths(max_paths, nodes), _empty_paths(max_paths, nodes)
        stamp, count, overflow = 0, 0, False
        if method == HOPS_DISJOINT:
            _grow_tree(source, graph, tree, search.queue[0])
        for d in range(demand_ptr[c], demand_ptr[c + 1]):
            target = targets[d]
            to_target = potential[target] if method != HOPS_DISJOINT else potential[0]
            if method == YEN:
                found, stamp = _yen(
                    source, target, graph, weight, to_target, stamp, scratch, search.into[0], paths, candidates
                )  # fmt: skip
            else:
                stamp += max_paths
                found = _disjoint(
                    source, target, method == HOPS_DISJOINT, tree, graph, weight, to_target, stamp, scratch, search,
                    paths,
                )  # fmt: skip
            for k in range(max_paths):
                leaf[d, k] = -1
                if k < found and not overflow:
                    end, count = insert_path(
                        paths.links[k], paths.length[k], parent[c], link[c], first_child, next_sibling, count
                    )  # fmt: skip
                    overflow = overflow or end == -2
                    leaf[d, k] = end
        node_count[c] = -1 if overflow else count
        if not overflow:
            sort_by_depth(parent[c, :count], link[c, :count], leaf[demand_ptr[c] : demand_ptr[c + 1]])
