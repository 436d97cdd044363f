"""Compiled kernels for survivable paths: some of a demand's paths survive every group failure,
wherever the network allows it.

The first path of a demand is a shortest path.  Each further path minimises lexicographically: the
number of its groups that all previous paths share (whose failure would disconnect the demand), the
number of crossings of groups by previous paths, and the weight.  Hence paths are disjoint where
possible, and share as few groups as possible elsewhere.  If that path crosses all shared groups
again, although another path can avoid one of them, a shortest path around that group replaces it
(two paths around two groups may exist where no path avoids both).

A path is an array of link indices; bans are stamps (see :mod:`teal.network.shortest`).  Entry
point: :func:`search_survivable`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.disjoint import NO_STAMP, ZERO, DemandPaths, empty_paths, grow_tree
from teal.network.failures import Groups, ban_group
from teal.network.path_search import TargetChunk, empty_trie, insert_paths, renumber_by_depth
from teal.network.shortest import (
    Adjacency,
    SearchScratch,
    find_shortest_path,
    make_scratch,
    walk_back,
)
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, partitioned_kernel

# Initial number of rows of the cache of reachable nodes; it doubles when full.
_INITIAL_ROWS = 16


class _SearchState(NamedTuple):
    """Scratch memory of the search for one source, over E links and G failure groups.

    Attributes:
        cost: (E,) link weight plus penalties; equal to the weight before each demand.
        num_crossing_paths: (G,) number of the demand's paths that cross each group; 0 before each
            demand.
        crossed_groups: (G,) groups that any path of the demand crosses; the caller counts the used
            entries.
        path_stamp: (G,) stamp of the last path that crossed each group, -1 for none.
        cache_row: (G,) row of each group in the cache of reachable nodes, -1 if not computed.
    """

    cost: FloatArray
    num_crossing_paths: Int64Array
    crossed_groups: Int64Array
    path_stamp: Int64Array
    cache_row: Int64Array


@inner_kernel
def _list_crossed_groups(
    path: IntArray,
    length: int,
    groups: Groups,
    stamp_of_group: Int64Array,
    stamp: int,
    path_groups: Int64Array,
) -> int:
    """List the groups of links that a path crosses, each once.

    Args:
        path: (N,) link indices; the first ``length`` are used.
        length: number of links of the path.
        groups: groups of links that fail together.
        stamp_of_group: (G,) stamp of the last path that crossed each group (updated).
        stamp: stamp of this path, unused so far.
        path_groups: (G,) group indices (written).

    Returns:
        number of groups.
    """
    num_groups = 0
    for i in range(length):
        for j in range(groups.link_ptr[path[i]], groups.link_ptr[path[i] + 1]):
            group = groups.link_group[j]
            if stamp_of_group[group] != stamp:
                stamp_of_group[group] = stamp
                path_groups[num_groups] = group
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
    state: _SearchState,
    paths: DemandPaths,
    k: int,
    stamp: int,
    path_groups: Int64Array,
) -> int:
    """Find the path of minimum cost without banned links, by A*.

    Args:
        source: node where the path starts.
        target: node where the path ends.
        chunk: sources and demands of the search, with the A* potentials.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        ban_stamp: links with this stamp in ``scratch.stamp_of_link`` are banned.
        scratch: heap, distances and stamps of A*.
        pred_link: (N,) link into each node on a shortest path (written).
        state: link costs, and the stamps of groups.
        paths: paths of the demand; path ``k`` is written.
        k: index of the path.
        stamp: stamp of this path in ``state.path_stamp``, unused so far.
        path_groups: (G,) groups that the path crosses, each once (written).

    Returns:
        number of groups that the path crosses; -1 if there is no path.
    """
    potential = chunk.potential[target]
    path_cost = find_shortest_path(
        source, target, graph, state.cost, potential, ban_stamp, NO_STAMP, scratch, pred_link
    )
    if not np.isfinite(path_cost):
        return -1
    paths.length[k] = walk_back(source, target, pred_link, graph.tail, paths.links[k])
    return _list_crossed_groups(
        paths.links[k], paths.length[k], groups, state.path_stamp, stamp, path_groups
    )


@inner_kernel
def _is_duplicate(paths: DemandPaths, k: int) -> bool:
    """Return whether a path equals an earlier path of the same demand.

    Args:
        paths: paths of the demand.
        k: index of the path.
    """
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
    source_index: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    penalty: FloatArray,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """Find the survivable paths of all demands of one source, and build the source's path trie.

    A group of links is *common* if all paths of the demand so far cross it, and the source still
    reaches the target without it: another path can avoid it.  Path k minimises

        weight + penalty[0] * (crossings of groups by earlier paths)
               + penalty[1] * (groups that all earlier paths cross).

    If that path crosses all common groups again, a shortest path around the first of them replaces
    it.  The search of a demand ends at a duplicate path.

    Args:
        source_index: index of the source in the chunk.
        chunk: sources and demands of the search.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        penalty: (2,) penalty per crossing of a group that some path crosses, and of a group that
            all paths cross.
        parent: (capacity,) parent of each trie node, -1 for the source (written).
        link: (capacity,) link that leads into each trie node (written).
        leaf: (demands of the chunk, K) trie node where each path ends, -1 where there is no path;
            the rows of this source are written.

    Returns:
        number of trie nodes, or -1 if ``parent`` and ``link`` are too small.
    """
    source = chunk.sources[source_index]
    num_nodes = len(graph.out_ptr) - 1
    num_groups = len(groups.group_ptr) - 1
    # Heap, distances and bans of A*.
    scratch = make_scratch(num_nodes, len(graph.tail))
    # (N,) link into each node on a shortest path, or in a breadth-first tree.
    pred_link = np.empty(num_nodes, dtype=np.int32)
    # Links, lengths and weights of the demand's paths.
    paths = empty_paths(chunk.max_paths, num_nodes)
    trie = empty_trie(parent, link)
    # Link costs, crossings of each group, list of crossed groups, stamps of the last crossing path,
    # and cache row of each group.
    state = _SearchState(
        chunk.weight.copy(),
        np.zeros(num_groups, np.int64),
        np.empty(num_groups, np.int64),
        np.full(num_groups, -1, np.int64),
        np.full(num_groups, -1, np.int64),
    )
    # (G,) groups that the new path crosses.
    path_groups = np.empty(num_groups, np.int64)
    # (N,) queue of the breadth-first search.
    queue = np.empty(num_nodes, dtype=np.int32)
    # (rows, N) whether the source reaches each node while a group is down, a row per group.
    is_reached = np.empty((_INITIAL_ROWS, num_nodes), np.bool_)
    num_cache_rows = 0
    # Last used stamps of banned links, and of paths.
    last_ban_stamp = ZERO
    last_path_stamp = ZERO
    num_trie_nodes = ZERO
    for d in range(chunk.demand_ptr[source_index], chunk.demand_ptr[source_index + 1]):
        target = chunk.targets[d]
        num_found = 0
        # Number of groups that some path of the demand crosses.
        num_crossed_groups = 0
        for k in range(chunk.max_paths):
            # Count the common groups, which all k earlier paths cross, and store the first.
            num_common = 0
            first_common_group = -1
            for i in range(num_crossed_groups):
                group = state.crossed_groups[i]
                if state.num_crossing_paths[group] < k:
                    continue
                # Breadth-first search without the group, once for each group and source.
                if state.cache_row[group] < 0:
                    # Double the cache of reachable nodes when it is full.
                    if num_cache_rows == len(is_reached):
                        enlarged = np.empty((2 * num_cache_rows, num_nodes), np.bool_)
                        enlarged[:num_cache_rows] = is_reached
                        is_reached = enlarged
                    last_ban_stamp += 1
                    ban_group(group, groups, last_ban_stamp, scratch.stamp_of_link)
                    grow_tree(
                        source, graph, scratch.stamp_of_link, last_ban_stamp, pred_link, queue
                    )
                    for node in range(num_nodes):
                        is_reached[num_cache_rows, node] = pred_link[node] >= 0
                    state.cache_row[group] = num_cache_rows
                    num_cache_rows += 1
                if is_reached[state.cache_row[group], target]:
                    first_common_group = group if num_common == 0 else first_common_group
                    num_common += 1
            # Find the path with the smallest sum of weights and penalties, without bans.
            last_path_stamp += 1
            num_path_groups = _find_path(
                source,
                target,
                chunk,
                graph,
                groups,
                NO_STAMP,
                scratch,
                pred_link,
                state,
                paths,
                k,
                last_path_stamp,
                path_groups,
            )
            if num_path_groups < 0:
                break
            # Count the common groups that the new path crosses, too.
            num_crossed_common = 0
            for i in range(num_path_groups):
                row = state.cache_row[path_groups[i]]
                num_crossed_common += (
                    state.num_crossing_paths[path_groups[i]] == k
                    and row >= 0
                    and is_reached[row, target]
                )
            # If the new path avoids no common group, replace it by one around the first of them.
            if num_common and num_crossed_common == num_common:
                last_ban_stamp = last_ban_stamp + 1
                last_path_stamp = last_path_stamp + 1
                ban_group(first_common_group, groups, last_ban_stamp, scratch.stamp_of_link)
                num_path_groups = _find_path(
                    source,
                    target,
                    chunk,
                    graph,
                    groups,
                    last_ban_stamp,
                    scratch,
                    pred_link,
                    state,
                    paths,
                    k,
                    last_path_stamp,
                    path_groups,
                )
            if _is_duplicate(paths, k):
                break
            num_found = k + 1
            # Count the crossings of the new path, and update the link costs.
            for i in range(num_path_groups):
                group = path_groups[i]
                if state.num_crossing_paths[group] == 0:
                    state.crossed_groups[num_crossed_groups] = group
                    num_crossed_groups += 1
                state.num_crossing_paths[group] += 1
            _set_costs(k + 1, num_crossed_groups, chunk.weight, groups, penalty, state)
        # Reset the counts and link costs for the next demand.
        for i in range(num_crossed_groups):
            group = state.crossed_groups[i]
            state.num_crossing_paths[group] = 0
            for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
                e = groups.group_link[j]
                state.cost[e] = chunk.weight[e]
        # Insert the demand's paths into the trie.
        num_trie_nodes = insert_paths(paths, num_found, trie, num_trie_nodes, leaf[d])
    return renumber_by_depth(
        trie,
        num_trie_nodes,
        leaf[chunk.demand_ptr[source_index] : chunk.demand_ptr[source_index + 1]],
    )


@inner_kernel
def _set_costs(
    num_found: int,
    num_crossed_groups: int,
    weight: FloatArray,
    groups: Groups,
    penalty: FloatArray,
    state: _SearchState,
) -> None:
    """Compute the link costs for the next path of a demand.

    The cost of link e is weight[e] plus a penalty for each of its groups: penalty[1] if all paths
    of the demand cross the group, else penalty[0] times the number of paths that cross it.

    Args:
        num_found: number of paths of the demand so far.
        num_crossed_groups: number of entries of ``state.crossed_groups``.
        weight: (E,) link weights.
        groups: groups of links that fail together.
        penalty: (2,) penalties.
        state: counts of crossings; ``state.cost`` is written for the links of crossed groups.
    """
    # Reset the costs in all crossed groups before a penalty is added, since groups overlap.
    for i in range(num_crossed_groups):
        group = state.crossed_groups[i]
        for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
            state.cost[groups.group_link[j]] = weight[groups.group_link[j]]
    # Add the penalty of each group to its links.
    for i in range(num_crossed_groups):
        group = state.crossed_groups[i]
        group_cost = (
            penalty[1]
            if state.num_crossing_paths[group] == num_found
            else penalty[0] * state.num_crossing_paths[group]
        )
        for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
            state.cost[groups.group_link[j]] += group_cost


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
    """Find the survivable paths of a chunk of C sources, and build a path trie for each source.

    Args:
        begin, end: range of sources of the chunk that this call searches.
        chunk: sources and their demands, D' in all, up to K paths each.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        penalty: (2,) penalty per crossing of a group that some path crosses, and of a group that
            all paths cross.
        parent: (C, capacity) parent of each trie node, -1 for the source; nodes are numbered from 0
            within each source (written).
        link: (C, capacity) link that leads into each trie node (written).
        node_count: (C,) number of trie nodes, -1 where the capacity was too small (written).
        leaf: (D', K) trie node where each path ends, -1 where there is no path (written).
    """
    for source_index in range(begin, end):
        node_count[source_index] = _search_source(
            source_index,
            chunk,
            graph,
            groups,
            penalty,
            parent[source_index],
            link[source_index],
            leaf,
        )


def penalties(weight: FloatArray, num_nodes: int, groups: Groups, max_paths: int) -> FloatArray:
    """Return the two penalties (2,) of the path search, for crossings of groups.

    They are so large that the search minimises lexicographically. The first, per crossing of a
    group that an earlier path crosses, is at least the weight of any path.  The second, per
    crossing of a group that all earlier paths cross, exceeds any sum of first penalties on a path.

    Args:
        weight: (E,) link weights; infinite ones are ignored.
        num_nodes: N; a path has fewer than N links.
        groups: groups of links that fail together.
        max_paths: K.
    """
    # Upper bound on the weight of a path; 1 if all weights are 0.
    max_path_weight = num_nodes * float(weight[np.isfinite(weight)].max(initial=0.0)) or 1.0
    # Upper bound on the crossings of groups by earlier paths, over all links of a path.
    max_crossings = num_nodes * max(1, int(np.diff(groups.link_ptr).max(initial=1))) * max_paths
    return np.array([max_path_weight, max_path_weight * (max_crossings + 1)])
