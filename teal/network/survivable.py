"""Compiled kernels for survivable paths: some of a demand's paths survive every group failure,
wherever the network allows it.

The first path of a demand is a shortest path.  Each further path minimises lexicographically: the
number of its groups that all previous paths share (whose failure would disconnect the demand), the
number of crossings of groups by previous paths, and the weight.  Hence paths are disjoint where
possible, and share as few groups as possible elsewhere.  Where the minimum still leaves all common
groups in common although the demand survives one of them, the next path is a shortest one without
that group (two paths around two groups may exist where no path avoids both).

A path is an array of link indices; bans are stamps (see :mod:`teal.network.shortest`).  Entry
point: :func:`search_survivable`.
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

# Initial number of rows for groups whose reachability under failure is cached.
_INITIAL_ROWS = 16


class _Scratch(NamedTuple):
    """Scratch memory of the search for one source.

    Attributes:
        cost: (E,) weight and penalties; the plain weight between two demands.
        hits: (G,) number of the demand's paths that cross each group; 0 between two demands.
        touched: (G,) list of the groups with hits.
        seen: (G,) stamp of the last path that crossed the group.
        row: (G,) row of ``reached``, -1: not computed.
    """

    cost: FloatArray
    hits: Int64Array
    touched: Int64Array
    seen: Int64Array
    row: Int64Array


@inner_kernel
def _crossed_groups(
    path: IntArray, length: int, groups: Groups, seen: Int64Array, stamp: int, out: Int64Array
) -> int:
    """Write the groups that a path crosses to ``out``, each once; return their number."""
    num_groups = 0
    for i in range(length):
        for j in range(groups.link_ptr[path[i]], groups.link_ptr[path[i] + 1]):
            group = groups.link_group[j]
            if seen[group] != stamp:
                seen[group] = stamp
                out[num_groups] = group
                num_groups += 1
    return num_groups


@inner_kernel
def _find_path(
    source: int,
    target: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    ban_stamp: int,
    scratch: SearchScratch,
    pred_link: IntArray,
    memory: _Scratch,
    paths: FoundPaths,
    k: int,
    stamp: int,
    crossed: Int64Array,
) -> int:
    """Find the cheapest path without banned links, as path ``k``; return the number of its groups,
    -1: no path.

    Args:
        source, target, chunk, graph, groups, scratch, pred_link, memory, paths: as in
            :func:`_search_source`.
        ban_stamp: stamp of banned links.
        k: index of the path.
        stamp: unused stamp of the path.
        crossed: (G,) receives the groups on the path.
    """
    potential = chunk.potential[target]
    path_cost = best_first(
        source, target, graph, memory.cost, potential, ban_stamp, NO_STAMP, scratch, pred_link
    )
    if not np.isfinite(path_cost):
        return -1
    paths.length[k] = walk_back(source, target, pred_link, graph.tail, paths.links[k])
    return _crossed_groups(paths.links[k], paths.length[k], groups, memory.seen, stamp, crossed)


@inner_kernel
def _is_duplicate(paths: FoundPaths, k: int) -> bool:
    """Return whether path ``k`` equals an earlier one."""
    for j in range(k):
        if paths.length[j] == paths.length[k]:
            is_same = True
            for i in range(paths.length[k]):
                is_same = is_same and paths.links[j, i] == paths.links[k, i]
            if is_same:
                return True
    return False


@inner_kernel
def _search_source(
    c: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    penalty: FloatArray,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """Find the paths of one source; return the number of its trie nodes, or -1.

    Args:
        c: index of the source in the chunk.
        chunk, graph, groups: as in :func:`search_survivable`.
        penalty: (2,) penalty per crossing of a group that some path crosses, and of a group that
            all paths cross.
        parent, link, leaf: as in :func:`search_survivable`.
    """
    source = chunk.sources[c]
    num_nodes = len(graph.out_ptr) - 1
    num_groups = len(groups.group_ptr) - 1
    scratch = make_scratch(num_nodes, len(graph.tail))
    pred_link = np.empty(num_nodes, dtype=np.int32)
    paths = empty_paths(chunk.max_paths, num_nodes)
    trie = empty_trie(parent, link)
    memory = _Scratch(
        chunk.weight.copy(),
        np.zeros(num_groups, np.int64),
        np.empty(num_groups, np.int64),
        np.full(num_groups, -1, np.int64),
        np.full(num_groups, -1, np.int64),
    )
    crossed = np.empty(num_groups, np.int64)
    queue = np.empty(num_nodes, dtype=np.int32)
    reached = np.empty((_INITIAL_ROWS, num_nodes), np.bool_)
    num_rows = 0
    stamp = ZERO
    path_stamp = ZERO
    num_trie_nodes = ZERO
    for d in range(chunk.demand_ptr[c], chunk.demand_ptr[c + 1]):
        target = chunk.targets[d]
        num_found = 0
        num_touched = 0
        for k in range(chunk.max_paths):
            # Number of groups that all paths so far cross and that the demand survives.
            num_common = 0
            # The first of these groups.
            first_common = -1
            for i in range(num_touched):
                group = memory.touched[i]
                if memory.hits[group] < k:
                    continue
                # Nodes that the source reaches while the group is down; computed once a group.
                if memory.row[group] < 0:
                    if num_rows == len(reached):
                        enlarged = np.empty((2 * num_rows, num_nodes), np.bool_)
                        enlarged[:num_rows] = reached
                        reached = enlarged
                    stamp += 1
                    ban_group(group, groups, stamp, scratch.banned_links)
                    grow_tree(source, graph, scratch.banned_links, stamp, pred_link, queue)
                    for node in range(num_nodes):
                        reached[num_rows, node] = pred_link[node] >= 0
                    memory.row[group] = num_rows
                    num_rows += 1
                if reached[memory.row[group], target]:
                    first_common = group if num_common == 0 else first_common
                    num_common += 1
            # Find the cheapest path under the penalties.
            path_stamp += 1
            num_crossed = _find_path(
                source,
                target,
                chunk,
                graph,
                groups,
                NO_STAMP,
                scratch,
                pred_link,
                memory,
                paths,
                k,
                path_stamp,
                crossed,
            )
            if num_crossed < 0:
                break
            # Common groups that the new path crosses too.
            num_still_common = 0
            for i in range(num_crossed):
                row = memory.row[crossed[i]]
                num_still_common += (
                    memory.hits[crossed[i]] == k and row >= 0 and reached[row, target]
                )
            # All common groups stay in common: use a shortest path around the first of them.
            if num_common and num_still_common == num_common:
                stamp = stamp + 1
                path_stamp = path_stamp + 1
                ban_group(first_common, groups, stamp, scratch.banned_links)
                num_crossed = _find_path(
                    source,
                    target,
                    chunk,
                    graph,
                    groups,
                    stamp,
                    scratch,
                    pred_link,
                    memory,
                    paths,
                    k,
                    path_stamp,
                    crossed,
                )
            if _is_duplicate(paths, k):
                break
            num_found = k + 1
            # Count the crossings of the new path, and update the costs.
            for i in range(num_crossed):
                group = crossed[i]
                if memory.hits[group] == 0:
                    memory.touched[num_touched] = group
                    num_touched += 1
                memory.hits[group] += 1
            _set_costs(k + 1, num_touched, chunk.weight, groups, penalty, memory)
        # Reset hits and costs for the next demand.
        for i in range(num_touched):
            group = memory.touched[i]
            memory.hits[group] = 0
            for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
                e = groups.group_link[j]
                memory.cost[e] = chunk.weight[e]
        # Insert the demand's paths into the trie.
        num_trie_nodes = insert(paths, num_found, trie, num_trie_nodes, leaf[d])
    return finish(trie, num_trie_nodes, leaf[chunk.demand_ptr[c] : chunk.demand_ptr[c + 1]])


@inner_kernel
def _set_costs(
    num_found: int,
    num_touched: int,
    weight: FloatArray,
    groups: Groups,
    penalty: FloatArray,
    memory: _Scratch,
) -> None:
    """Set the costs of the links of all groups with hits, after ``num_found`` paths."""
    for i in range(num_touched):
        group = memory.touched[i]
        for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
            memory.cost[groups.group_link[j]] = weight[groups.group_link[j]]
    for i in range(num_touched):
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
    """Find the survivable paths of a chunk of sources, and build their tries.

    Args:
        chunk, graph, parent, link, node_count, leaf: as in
            :func:`teal.network.path_search.search_by_hops`.
        groups: groups of links that fail together.
        penalty: (2,) penalties of :func:`penalties`.
    """
    for c in range(begin, end):
        node_count[c] = _search_source(c, chunk, graph, groups, penalty, parent[c], link[c], leaf)


def penalties(weight: FloatArray, num_nodes: int, groups: Groups, max_paths: int) -> FloatArray:
    """Return (2,) penalties for a lexicographic order: the first exceeds every path weight, the
    second every sum of first penalties.
    """
    max_path_weight = num_nodes * float(weight[np.isfinite(weight)].max(initial=0.0)) or 1.0
    max_crossings = num_nodes * max(1, int(np.diff(groups.link_ptr).max(initial=1))) * max_paths
    return np.array([max_path_weight, max_path_weight * (max_crossings + 1)])
