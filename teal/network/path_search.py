"""Numba kernels that find the candidate paths of sources and put them into their tries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.disjoint import (
    NO_STAMP,
    ZERO,
    FoundPaths,
    TwoSided,
    disjoint_by_hops,
    disjoint_by_weight,
    empty_paths,
    grow_tree,
)
from teal.network.failures import Groups
from teal.network.shortest import Adjacency, SearchScratch, best_first, make_scratch, walk_back
from teal.network.trie import insert_path, sort_by_depth
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import inner_kernel, kernel, partitioned_kernel


@inner_kernel
def _same_prefix(a: IntArray, b: IntArray, length: int) -> bool:
    """Whether two paths have the same first ``length`` links."""
    for i in range(length):
        if a[i] != b[i]:
            return False
    return True


@inner_kernel
def yen(
    source: int,
    target: int,
    graph: Adjacency,
    weight: FloatArray,
    potential: FloatArray,
    stamp: int,
    scratch: SearchScratch,
    into: IntArray,
    paths: FoundPaths,
    candidates: FoundPaths,
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
        for i in range(
            paths.length[count - 1]
        ):  # the new path leaves the last one at the node before its link i
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
                        if candidates.length[j] == length and _same_prefix(
                            candidates.links[j], path, length
                        ):
                            is_known = True
                    if not is_known:
                        candidates.links[slot, :length] = path[:length]
                        candidates.length[slot], candidates.weight[slot] = (
                            length,
                            root_weight + total,
                        )
                        kept = min(kept + 1, max_paths)
            root_weight += weight[last[i]]
        if kept == 0:
            break
        best = int(np.argmin(candidates.weight[:kept]))
        paths.length[count] = candidates.length[best]
        paths.links[count, : paths.length[count]] = candidates.links[best, : paths.length[count]]
        count += 1
        kept -= 1
        candidates.links[best], candidates.length[best] = (
            candidates.links[kept],
            candidates.length[kept],
        )
        candidates.weight[best] = candidates.weight[kept]
    return count, stamp


class TargetChunk(NamedTuple):
    """A part of a path search: C sources and their demands.

    Attributes:
        sources: (C,) node index of each source.
        demand_ptr: (C + 1,) the demands of the i-th source are
            ``targets[demand_ptr[i]:demand_ptr[i + 1]]``.
        targets: (demands of the chunk,) node index of each demand's target.
        max_paths: K.
        weight: (E,) of each link.
        potential: (N, N) row t has the least weight from each node to t; not read by
            :func:`search_by_hops`.
    """

    sources: IntArray
    demand_ptr: IntArray
    targets: IntArray
    max_paths: int
    weight: FloatArray
    potential: FloatArray


class _GrowingTrie(NamedTuple):
    """The trie of one source while it is built; see :func:`teal.network.trie.insert_path`."""

    parent: IntArray
    link: IntArray
    first_child: IntArray
    next_sibling: IntArray


@inner_kernel
def empty_trie(parent: IntArray, link: IntArray) -> _GrowingTrie:
    """A trie without nodes, with room for as many as ``parent`` and ``link`` have."""
    room = len(parent)
    return _GrowingTrie(
        parent, link, np.full(room + 1, -1, dtype=np.int32), np.empty(room, dtype=np.int32)
    )


@kernel
def insert(
    paths: FoundPaths, num_found: int, trie: _GrowingTrie, count: int, leaf: IntArray
) -> int:
    """Put the paths of a demand into the trie; the new number of nodes, -1 where there is no room
    (from then on).
    """
    for k in range(len(leaf)):
        leaf[k] = -1
        if k < num_found and count >= 0:
            end, count = insert_path(
                paths.links[k],
                paths.length[k],
                trie.parent,
                trie.link,
                trie.first_child,
                trie.next_sibling,
                count,
            )
            leaf[k] = end
            if end == -2:
                count = -1
    return count


@kernel
def finish(trie: _GrowingTrie, count: int, leaf: IntArray) -> int:
    """Renumber the nodes of a source by depth."""
    if count >= 0:
        sort_by_depth(trie.parent[:count], trie.link[:count], leaf)
    return count


@inner_kernel
def _source_by_hops(
    c: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """The paths of one source by fewest hops; the number of its trie nodes or -1."""
    source, nodes = chunk.sources[c], len(graph.out_ptr) - 1
    tree, banned = np.empty(nodes, dtype=np.int32), np.full(len(graph.tail), -1, dtype=np.int32)
    search = TwoSided(
        np.full((2, nodes), -1, dtype=np.int32),
        np.empty((2, nodes), dtype=np.int32),
        np.empty((2, nodes), dtype=np.int32),
    )
    paths, trie = empty_paths(chunk.max_paths, nodes), empty_trie(parent, link)
    grow_tree(source, graph, banned, NO_STAMP, tree, search.queue[0])
    stamp, count = ZERO, ZERO
    for d in range(chunk.demand_ptr[c], chunk.demand_ptr[c + 1]):
        stamp += chunk.max_paths + 2
        num_found = disjoint_by_hops(
            source, chunk.targets[d], tree, graph, groups, stamp, banned, search, paths
        )
        count = insert(paths, num_found, trie, count, leaf[d])
    return finish(trie, count, leaf[chunk.demand_ptr[c] : chunk.demand_ptr[c + 1]])


@inner_kernel
def _source_by_weight(
    c: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """Search from one source by least weight."""
    source, nodes = chunk.sources[c], len(graph.out_ptr) - 1
    scratch, into = make_scratch(nodes, len(graph.tail)), np.empty(nodes, dtype=np.int32)
    paths, trie = empty_paths(chunk.max_paths, nodes), empty_trie(parent, link)
    count = ZERO
    for d in range(chunk.demand_ptr[c], chunk.demand_ptr[c + 1]):
        target, stamp = chunk.targets[d], 2 * d + 1
        num_found = disjoint_by_weight(
            source,
            target,
            graph,
            groups,
            chunk.weight,
            chunk.potential[target],
            stamp,
            scratch,
            into,
            paths,
        )
        count = insert(paths, num_found, trie, count, leaf[d])
    return finish(trie, count, leaf[chunk.demand_ptr[c] : chunk.demand_ptr[c + 1]])


@inner_kernel
def _source_by_yen(
    c: int, chunk: TargetChunk, graph: Adjacency, parent: IntArray, link: IntArray, leaf: IntArray
) -> int:
    """Search from one source by Yen's algorithm."""
    source, nodes = chunk.sources[c], len(graph.out_ptr) - 1
    scratch, into = make_scratch(nodes, len(graph.tail)), np.empty(nodes, dtype=np.int32)
    paths, candidates = empty_paths(chunk.max_paths, nodes), empty_paths(chunk.max_paths, nodes)
    trie = empty_trie(parent, link)
    stamp, count = ZERO, ZERO
    for d in range(chunk.demand_ptr[c], chunk.demand_ptr[c + 1]):
        target = chunk.targets[d]
        num_found, stamp = yen(
            source,
            target,
            graph,
            chunk.weight,
            chunk.potential[target],
            stamp,
            scratch,
            into,
            paths,
            candidates,
        )
        count = insert(paths, num_found, trie, count, leaf[d])
    return finish(trie, count, leaf[chunk.demand_ptr[c] : chunk.demand_ptr[c + 1]])


# Three functions and not one with an argument: each is compiled only where it is used, which takes
# seconds.
@partitioned_kernel("chunk", lambda chunk: len(chunk.sources))
def search_by_hops(
    begin: int,
    end: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    parent: IntArray,
    link: IntArray,
    node_count: IntArray,
    leaf: IntArray,
) -> None:
    """Find the disjoint paths of fewest hops of a chunk of sources, and build their tries.

    Args:
        chunk: the sources and their demands.
        graph: the network.
        groups: groups of links that fail together.
        parent: (C, room) receives each source's trie, nodes numbered from 0 for each source.
        link: (C, room) likewise.
        node_count: (C,) receives the number of trie nodes, -1 where ``room`` was too small.
        leaf: (demands of the chunk, K) receives the trie node of each path's end, -1 where there is
            no path.
    """
    for c in range(begin, end):
        node_count[c] = _source_by_hops(c, chunk, graph, groups, parent[c], link[c], leaf)


@partitioned_kernel("chunk", lambda chunk: len(chunk.sources))
def search_by_weight(
    begin: int,
    end: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    parent: IntArray,
    link: IntArray,
    node_count: IntArray,
    leaf: IntArray,
) -> None:
    """Search all sources by least weight."""
    for c in range(begin, end):
        node_count[c] = _source_by_weight(c, chunk, graph, groups, parent[c], link[c], leaf)


@partitioned_kernel("chunk", lambda chunk: len(chunk.sources))
def search_yen(
    begin: int,
    end: int,
    chunk: TargetChunk,
    graph: Adjacency,
    parent: IntArray,
    link: IntArray,
    node_count: IntArray,
    leaf: IntArray,
) -> None:
    """Search all sources for the K shortest loopless paths."""
    for c in range(begin, end):
        node_count[c] = _source_by_yen(c, chunk, graph, parent[c], link[c], leaf)
