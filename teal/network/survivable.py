"""Numba kernels that find paths of which some survive the failure of a group of links, wherever the
network allows it.

The first path of a demand is a shortest one.  Each further path minimises, in this order, the
number of groups on it that all paths so far have in common, since the failure of one of them would
strand the demand; the number of times that paths so far cross its groups; and its weight.  So paths
are disjoint where there are disjoint ones, and share as few groups as possible where there are
none.  Where the minimum leaves all common groups in common, though the demand survives one of them,
the next path is a shortest one without that group (two paths around two groups may exist where no
path avoids both).

A path is an array of link numbers; bans are stamps (see :mod:`teal.network.shortest`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.disjoint import NO_STAMP, ZERO, FoundPaths, empty_paths, grow_tree
from teal.network.failures import Groups, ban_group
from teal.network.path_search import TargetChunk, empty_trie, finish, insert
from teal.network.shortest import Adjacency, SearchScratch, best_first, make_scratch, walk_back
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, partitioned_kernel

_FIRST_ROWS = 16  # groups of a source for which it is first kept who survives them


class _Memory(NamedTuple):
    """Memory of the search for one source.

    Attributes:
        cost: (E,) weight and penalties; the weight between two demands.
        hits: (G,) number of the demand's paths that cross each group; 0 between two demands.
        touched: (G,) groups with hits, the first ``count``.
        seen: (G,) stamp of the path that crossed the group last.
        row: (G,) row of ``reached``, -1: none yet.
    """

    cost: FloatArray
    hits: Int64Array
    touched: Int64Array
    seen: Int64Array
    row: Int64Array


@inner_kernel
def _crossed(
    path: IntArray, length: int, groups: Groups, seen: Int64Array, stamp: int, out: Int64Array
) -> int:
    """Write the groups that a path crosses into ``out``, each once; their number."""
    count = 0
    for i in range(length):
        for j in range(groups.link_ptr[path[i]], groups.link_ptr[path[i] + 1]):
            group = groups.link_group[j]
            if seen[group] != stamp:
                seen[group] = stamp
                out[count] = group
                count += 1
    return count


@inner_kernel
def _find(
    source: int,
    target: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    ban: int,
    scratch: SearchScratch,
    into: IntArray,
    memory: _Memory,
    paths: FoundPaths,
    k: int,
    stamp: int,
    crossed: Int64Array,
) -> int:
    """Find the cheapest path without banned links, as path ``k``; the number of groups in
    ``crossed``, -1: no path.

    Args:
        source, target, chunk, graph, groups, scratch, into, memory, paths: as in :func:`_source`.
        ban: stamp of the links that are banned.
        k: number of the path.
        stamp: number that no path before has had.
        crossed: (G,) receives the groups on the path.
    """
    potential = chunk.potential[target]
    total = best_first(source, target, graph, memory.cost, potential, ban, NO_STAMP, scratch, into)
    if not np.isfinite(total):
        return -1
    paths.length[k] = walk_back(source, target, into, graph.tail, paths.links[k])
    return _crossed(paths.links[k], paths.length[k], groups, memory.seen, stamp, crossed)


@inner_kernel
def _is_known(paths: FoundPaths, k: int) -> bool:
    """Whether path ``k`` equals one before it."""
    for j in range(k):
        if paths.length[j] == paths.length[k]:
            is_same = True
            for i in range(paths.length[k]):
                is_same = is_same and paths.links[j, i] == paths.links[k, i]
            if is_same:
                return True
    return False


@inner_kernel
def _source(
    c: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    penalty: FloatArray,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """The paths of one source; the number of its trie nodes or -1.

    Args:
        c: number of the source in the chunk.
        chunk, graph, groups: what is searched.
        penalty: (2,) of each crossing of a group that a path has crossed, and of a group that all
            paths have crossed.
        parent, link, leaf: as in :func:`search_survivable`.
    """
    source, nodes, count_groups = (
        chunk.sources[c],
        len(graph.out_ptr) - 1,
        len(groups.group_ptr) - 1,
    )
    scratch, into = make_scratch(nodes, len(graph.tail)), np.empty(nodes, dtype=np.int32)
    paths, trie = empty_paths(chunk.max_paths, nodes), empty_trie(parent, link)
    memory = _Memory(
        chunk.weight.copy(),
        np.zeros(count_groups, np.int64),
        np.empty(count_groups, np.int64),
        np.full(count_groups, -1, np.int64),
        np.full(count_groups, -1, np.int64),
    )
    crossed, queue = np.empty(count_groups, np.int64), np.empty(nodes, dtype=np.int32)
    reached, rows = np.empty((_FIRST_ROWS, nodes), np.bool_), 0
    stamp, path_stamp, count = ZERO, ZERO, ZERO
    for d in range(chunk.demand_ptr[c], chunk.demand_ptr[c + 1]):
        target, num_found, touched = chunk.targets[d], 0, 0
        for k in range(chunk.max_paths):
            common = 0  # groups that all paths so far cross and that the demand survives
            banned = -1  # the first of them
            for i in range(touched):
                group = memory.touched[i]
                if memory.hits[group] < k:
                    continue
                if memory.row[group] < 0:
                    if rows == len(reached):
                        grown = np.empty((2 * rows, nodes), np.bool_)
                        grown[:rows] = reached
                        reached = grown
                    stamp += 1
                    ban_group(group, groups, stamp, scratch.banned_links)
                    grow_tree(source, graph, scratch.banned_links, stamp, into, queue)
                    for node in range(nodes):
                        reached[rows, node] = into[node] >= 0
                    memory.row[group] = rows
                    rows += 1
                if reached[memory.row[group], target]:
                    banned = group if common == 0 else banned
                    common += 1
            path_stamp += 1
            size = _find(
                source,
                target,
                chunk,
                graph,
                groups,
                NO_STAMP,
                scratch,
                into,
                memory,
                paths,
                k,
                path_stamp,
                crossed,
            )
            if size < 0:
                break
            left = 0  # groups in common that the new path crosses too
            for i in range(size):
                row = memory.row[crossed[i]]
                left += memory.hits[crossed[i]] == k and row >= 0 and reached[row, target]
            if common and left == common:
                stamp, path_stamp = stamp + 1, path_stamp + 1
                ban_group(banned, groups, stamp, scratch.banned_links)
                size = _find(
                    source,
                    target,
                    chunk,
                    graph,
                    groups,
                    stamp,
                    scratch,
                    into,
                    memory,
                    paths,
                    k,
                    path_stamp,
                    crossed,
                )
            if _is_known(paths, k):
                break
            num_found = k + 1
            for i in range(size):
                group = crossed[i]
                if memory.hits[group] == 0:
                    memory.touched[touched] = group
                    touched += 1
                memory.hits[group] += 1
            _set_costs(k + 1, touched, chunk.weight, groups, penalty, memory)
        for i in range(touched):
            group = memory.touched[i]
            memory.hits[group] = 0
            for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
                e = groups.group_link[j]
                memory.cost[e] = chunk.weight[e]
        count = insert(paths, num_found, trie, count, leaf[d])
    return finish(trie, count, leaf[chunk.demand_ptr[c] : chunk.demand_ptr[c + 1]])


@inner_kernel
def _set_costs(
    num_found: int,
    touched: int,
    weight: FloatArray,
    groups: Groups,
    penalty: FloatArray,
    memory: _Memory,
) -> None:
    """Set the costs of the links of all groups with hits, after ``num_found`` paths."""
    for i in range(touched):
        group = memory.touched[i]
        for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
            memory.cost[groups.group_link[j]] = weight[groups.group_link[j]]
    for i in range(touched):
        group = memory.touched[i]
        group_cost = (
            penalty[1] if memory.hits[group] == num_found else penalty[0] * memory.hits[group]
        )
        for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
            memory.cost[groups.group_link[j]] += group_cost


@partitioned_kernel("chunk", lambda chunk: len(chunk.sources))
def search_survivable(
    begin: int,
    end: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    penalty: FloatArray,
    parent: IntArray,
    link: IntArray,
    node_count: IntArray,
    leaf: IntArray,
) -> None:
    """Find the paths of a chunk of sources that survive failures of groups, and build their tries.

    Args:
        chunk, graph, parent, link, node_count, leaf: as in
            :func:`teal.network.path_search.search_by_hops`.
        groups: groups of links that fail together.
        penalty: (2,) see :func:`penalties`.
    """
    for c in range(begin, end):
        node_count[c] = _source(c, chunk, graph, groups, penalty, parent[c], link[c], leaf)


def penalties(weight: FloatArray, nodes: int, groups: Groups, max_paths: int) -> FloatArray:
    """(2,) costs that put one aim before the next: above every weight of a path, and above every
    sum of the first.
    """
    longest = nodes * float(weight[np.isfinite(weight)].max(initial=0.0)) or 1.0
    crossings = nodes * max(1, int(np.diff(groups.link_ptr).max(initial=1))) * max_paths
    return np.array([longest, longest * (crossings + 1)])
