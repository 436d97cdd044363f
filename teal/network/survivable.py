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

# Initial number of rows of the cache of reachable nodes; it doubles when full.
_INITIAL_ROWS = 16


class _Scratch(NamedTuple):
    """Scratch memory of the search for one source, over E links and G failure groups.

    Attributes:
        cost: (E,) link weight plus penalties; equal to the weight before each demand.
        num_crossing: (G,) number of the demand's paths that cross each group; 0 before each demand.
        crossed: (G,) groups that any path of the demand crosses; the caller counts the used
            entries.
        path_stamp: (G,) stamp of the last path that crossed each group, -1 for none.
        reached_row: (G,) row of each group in the cache of reachable nodes, -1 if not computed.
    """

    cost: FloatArray
    num_crossing: Int64Array
    crossed: Int64Array
    path_stamp: Int64Array
    reached_row: Int64Array


@inner_kernel
def _crossed_groups(
    path: IntArray, length: int, groups: Groups, visited: Int64Array, stamp: int, out: Int64Array
) -> int:
    """List the groups of links that a path crosses, each once.

    Args:
        path: (N,) link indices; the first ``length`` are used.
        length: number of links of the path.
        groups: groups of links that fail together.
        visited: (G,) stamp of the last path that crossed each group (updated).
        stamp: stamp of this path, unused so far.
        out: (G,) group indices (written).

    Returns:
        number of groups.
    """
    num_groups = 0
    for i in range(length):
        for j in range(groups.link_ptr[path[i]], groups.link_ptr[path[i] + 1]):
            group = groups.link_group[j]
            if visited[group] != stamp:
                visited[group] = stamp
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
    new_groups: Int64Array,
) -> int:
    """Find the path of minimum cost without banned links, by A*.

    Args:
        source: node where the path starts.
        target: node where the path ends.
        chunk: sources and demands of the search, with the A* potentials.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        ban_stamp: links with this stamp in ``scratch.banned_links`` are banned.
        scratch: heap, distances and stamps of A*.
        pred_link: (N,) link into each node on a shortest path (written).
        memory: link costs, and the stamps of groups.
        paths: paths of the demand; path ``k`` is written.
        k: index of the path.
        stamp: stamp of this path in ``memory.path_stamp``, unused so far.
        new_groups: (G,) groups that the path crosses, each once (written).

    Returns:
        number of groups that the path crosses; -1 if there is no path.
    """
    potential = chunk.potential[target]
    path_cost = best_first(
        source, target, graph, memory.cost, potential, ban_stamp, NO_STAMP, scratch, pred_link
    )
    if not np.isfinite(path_cost):
        return -1
    paths.length[k] = walk_back(source, target, pred_link, graph.tail, paths.links[k])
    return _crossed_groups(
        paths.links[k], paths.length[k], groups, memory.path_stamp, stamp, new_groups
    )


@inner_kernel
def _is_duplicate(paths: FoundPaths, k: int) -> bool:
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
    c: int,
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
        c: index of the source in the chunk.
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
    source = chunk.sources[c]
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
    memory = _Scratch(
        chunk.weight.copy(),
        np.zeros(num_groups, np.int64),
        np.empty(num_groups, np.int64),
        np.full(num_groups, -1, np.int64),
        np.full(num_groups, -1, np.int64),
    )
    # (G,) groups that the new path crosses.
    new_groups = np.empty(num_groups, np.int64)
    # (N,) queue of the breadth-first search.
    queue = np.empty(num_nodes, dtype=np.int32)
    # (rows, N) whether the source reaches each node while a group is down, a row per group.
    reached = np.empty((_INITIAL_ROWS, num_nodes), np.bool_)
    num_rows = 0
    # Last used stamps of banned links, and of paths.
    ban_stamp = ZERO
    path_stamp = ZERO
    num_trie_nodes = ZERO
    for d in range(chunk.demand_ptr[c], chunk.demand_ptr[c + 1]):
        target = chunk.targets[d]
        num_found = 0
        # Number of entries of memory.crossed.
        num_crossed_groups = 0
        for k in range(chunk.max_paths):
            # Count the common groups, which all k earlier paths cross, and store the first.
            num_common = 0
            first_common = -1
            for i in range(num_crossed_groups):
                group = memory.crossed[i]
                if memory.num_crossing[group] < k:
                    continue
                # Breadth-first search without the group, once for each group and source.
                if memory.reached_row[group] < 0:
                    # Double the cache of reachable nodes when it is full.
                    if num_rows == len(reached):
                        enlarged = np.empty((2 * num_rows, num_nodes), np.bool_)
                        enlarged[:num_rows] = reached
                        reached = enlarged
                    ban_stamp += 1
                    ban_group(group, groups, ban_stamp, scratch.banned_links)
                    grow_tree(source, graph, scratch.banned_links, ban_stamp, pred_link, queue)
                    for node in range(num_nodes):
                        reached[num_rows, node] = pred_link[node] >= 0
                    memory.reached_row[group] = num_rows
                    num_rows += 1
                if reached[memory.reached_row[group], target]:
                    first_common = group if num_common == 0 else first_common
                    num_common += 1
            # Find the path with the smallest sum of weights and penalties, without bans.
            path_stamp += 1
            num_new_groups = _find_path(
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
                new_groups,
            )
            if num_new_groups < 0:
                break
            # Count the common groups that the new path crosses, too.
            num_still_common = 0
            for i in range(num_new_groups):
                row = memory.reached_row[new_groups[i]]
                num_still_common += (
                    memory.num_crossing[new_groups[i]] == k and row >= 0 and reached[row, target]
                )
            # If the new path avoids no common group, replace it by one around the first of them.
            if num_common and num_still_common == num_common:
                ban_stamp = ban_stamp + 1
                path_stamp = path_stamp + 1
                ban_group(first_common, groups, ban_stamp, scratch.banned_links)
                num_new_groups = _find_path(
                    source,
                    target,
                    chunk,
                    graph,
                    groups,
                    ban_stamp,
                    scratch,
                    pred_link,
                    memory,
                    paths,
                    k,
                    path_stamp,
                    new_groups,
                )
            if _is_duplicate(paths, k):
                break
            num_found = k + 1
            # Count the crossings of the new path, and update the link costs.
            for i in range(num_new_groups):
                group = new_groups[i]
                if memory.num_crossing[group] == 0:
                    memory.crossed[num_crossed_groups] = group
                    num_crossed_groups += 1
                memory.num_crossing[group] += 1
            _set_costs(k + 1, num_crossed_groups, chunk.weight, groups, penalty, memory)
        # Reset the counts and link costs for the next demand.
        for i in range(num_crossed_groups):
            group = memory.crossed[i]
            memory.num_crossing[group] = 0
            for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
                e = groups.group_link[j]
                memory.cost[e] = chunk.weight[e]
        # Insert the demand's paths into the trie.
        num_trie_nodes = insert(paths, num_found, trie, num_trie_nodes, leaf[d])
    return finish(trie, num_trie_nodes, leaf[chunk.demand_ptr[c] : chunk.demand_ptr[c + 1]])


@inner_kernel
def _set_costs(
    num_found: int,
    num_crossed_groups: int,
    weight: FloatArray,
    groups: Groups,
    penalty: FloatArray,
    memory: _Scratch,
) -> None:
    """Compute the link costs for the next path of a demand.

    The cost of link e is weight[e] plus a penalty for each of its groups: penalty[1] if all paths
    of the demand cross the group, else penalty[0] times the number of paths that cross it.

    Args:
        num_found: number of paths of the demand so far.
        num_crossed_groups: number of entries of ``memory.crossed``.
        weight: (E,) link weights.
        groups: groups of links that fail together.
        penalty: (2,) penalties.
        memory: counts of crossings; ``memory.cost`` is written for the links of crossed groups.
    """
    # Reset the costs in all crossed groups before a penalty is added, since groups overlap.
    for i in range(num_crossed_groups):
        group = memory.crossed[i]
        for j in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
            memory.cost[groups.group_link[j]] = weight[groups.group_link[j]]
    # Add the penalty of each group to its links.
    for i in range(num_crossed_groups):
        group = memory.crossed[i]
        group_cost = (
            penalty[1]
            if memory.num_crossing[group] == num_found
            else penalty[0] * memory.num_crossing[group]
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
    for c in range(begin, end):
        node_count[c] = _search_source(c, chunk, graph, groups, penalty, parent[c], link[c], leaf)


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
    max_path_weight = num_nodes * float(weight[np.isfinite(weight)].max(initial=0.0)) or 1.0
    max_crossings = num_nodes * max(1, int(np.diff(groups.link_ptr).max(initial=1))) * max_paths
    return np.array([max_path_weight, max_path_weight * (max_crossings + 1)])
