"""Compiled kernels of the candidate path search: one source at a time, into its path trie.

Entry points, one per method: :func:`search_by_hops` and :func:`search_by_weight` (disjoint paths,
:mod:`teal.network.disjoint`), :func:`search_yen` (Yen 1971).  :class:`TargetChunk` holds a chunk of
sources and their demands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.disjoint import (
    NO_STAMP,
    ZERO,
    BidirectionalScratch,
    DemandPaths,
    disjoint_by_hops,
    disjoint_by_weight,
    empty_paths,
    grow_tree,
)
from teal.network.failures import Groups
from teal.network.shortest import (
    Adjacency,
    SearchScratch,
    find_shortest_path,
    make_scratch,
    walk_back,
)
from teal.network.trie import insert_path, sort_by_depth
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import inner_kernel, kernel, partitioned_kernel


@inner_kernel
def _same_prefix(a: IntArray, b: IntArray, length: int) -> bool:
    """Return whether two paths share their first links.

    Args:
        a, b: link indices of the paths, from the source.
        length: number of links to compare.
    """
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
    pred_link: IntArray,
    paths: DemandPaths,
    candidates: DemandPaths,
) -> tuple[int, int]:
    """Find the K shortest loopless paths of one demand (Yen 1971).

    The next path leaves the last path found at one of its nodes, the *spur node*: it consists of
    the links before that node (the *root*) and a shortest path from there that avoids the nodes of
    the root, and the links by which earlier paths with the same root leave it.  The lightest of all
    such candidates becomes the next path.

    At most K candidates are stored, since no more can become paths. A link or node is banned from a
    search if its entry in ``scratch.stamp_of_link`` or ``scratch.stamp_of_node`` equals the stamp
    of the search, so that a new stamp lifts all bans.

    Args:
        source: node where the paths start.
        target: node where the paths end.
        graph: the network in CSR form.
        weight: (E,) link weights.
        potential: (N,) lower bound on the weight from each node to the target, for A*.
        stamp: first unused stamp of banned links and nodes.
        scratch: heap, distances and stamps of A*.
        pred_link: (N,) link into each node on a shortest path (scratch).
        paths: K slots for paths; links and lengths are written, by ascending weight.
        candidates: K slots for candidate paths (scratch).

    Returns:
        number of paths found, and the next unused stamp.
    """
    max_paths = len(paths.length)
    # The first path is a shortest path; the unused stamp bans nothing.
    path_weight = find_shortest_path(
        source, target, graph, weight, potential, stamp, stamp, scratch, pred_link
    )
    stamp += 1
    if not np.isfinite(path_weight):
        return 0, stamp
    paths.length[0] = walk_back(source, target, pred_link, graph.tail, paths.links[0])
    num_found = 1
    num_candidates = 0
    while num_found < max_paths:
        # Find a candidate for each spur node of the last path.
        last_path = paths.links[num_found - 1]
        # Weight of the root, the links of the last path before the spur node.
        root_weight = 0.0
        for root_length in range(paths.length[num_found - 1]):
            # Ban the links by which paths with this root leave it, and the nodes of the root.
            spur_node = graph.tail[last_path[root_length]]
            for j in range(num_found):
                if paths.length[j] > root_length and _same_prefix(
                    paths.links[j], last_path, root_length
                ):
                    scratch.stamp_of_link[paths.links[j, root_length]] = stamp
            for j in range(root_length):
                scratch.stamp_of_node[graph.tail[last_path[j]]] = stamp
            # Shortest path from the spur node to the target.
            path_weight = find_shortest_path(
                spur_node, target, graph, weight, potential, stamp, stamp, scratch, pred_link
            )
            stamp += 1
            if np.isfinite(path_weight):
                # Store root and spur path as a candidate; if all slots are used, replace the worst
                # candidate if it is heavier.
                slot = num_candidates
                if num_candidates == max_paths:
                    slot = int(np.argmax(candidates.weight))
                if (
                    num_candidates < max_paths
                    or root_weight + path_weight < candidates.weight[slot]
                ):
                    # Skip a candidate that is stored already.
                    candidate_path = np.empty(len(scratch.stamp_of_node), dtype=np.int32)
                    candidate_path[:root_length] = last_path[:root_length]
                    candidate_length = root_length + walk_back(
                        spur_node, target, pred_link, graph.tail, candidate_path[root_length:]
                    )
                    is_duplicate = False
                    for j in range(num_candidates):
                        if candidates.length[j] == candidate_length and _same_prefix(
                            candidates.links[j], candidate_path, candidate_length
                        ):
                            is_duplicate = True
                    if not is_duplicate:
                        candidates.links[slot, :candidate_length] = candidate_path[
                            :candidate_length
                        ]
                        candidates.length[slot] = candidate_length
                        candidates.weight[slot] = root_weight + path_weight
                        num_candidates = min(num_candidates + 1, max_paths)
            root_weight += weight[last_path[root_length]]
        # Without a candidate, all loopless paths have been found.
        if num_candidates == 0:
            break
        # The candidate of minimum weight is the next path; the last candidate fills its slot.
        best_candidate = int(np.argmin(candidates.weight[:num_candidates]))
        paths.length[num_found] = candidates.length[best_candidate]
        paths.links[num_found, : paths.length[num_found]] = candidates.links[
            best_candidate, : paths.length[num_found]
        ]
        num_found += 1
        num_candidates -= 1
        candidates.links[best_candidate] = candidates.links[num_candidates]
        candidates.length[best_candidate] = candidates.length[num_candidates]
        candidates.weight[best_candidate] = candidates.weight[num_candidates]
    return num_found, stamp


class TargetChunk(NamedTuple):
    """Chunk of a path search: C sources and their D' demands, up to K paths each.

    Attributes:
        sources: (C,) node index of each source.
        demand_ptr: (C + 1,) the demands of source i have the targets
            ``targets[demand_ptr[i]:demand_ptr[i + 1]]``.
        targets: (D',) node index of each demand's target.
        max_paths: K.
        weight: (E,) link weights.
        potential: (N, N) lower bound on the weight from each node to t, in row t; unused by
            :func:`search_by_hops`.
    """

    sources: IntArray
    demand_ptr: IntArray
    targets: IntArray
    max_paths: int
    weight: FloatArray
    potential: FloatArray


class _GrowingTrie(NamedTuple):
    """Path trie of one source during construction; nodes are numbered from 0.

    Attributes:
        parent: (capacity,) parent of each node, -1 for the source.
        link: (capacity,) link that leads into each node.
        first_child: (capacity + 1,) first child of the source, then of each node; -1 for none.
        next_sibling: (capacity,) next child of the same parent; -1 for none.
    """

    parent: IntArray
    link: IntArray
    first_child: IntArray
    next_sibling: IntArray


@inner_kernel
def empty_trie(parent: IntArray, link: IntArray) -> _GrowingTrie:
    """Return an empty path trie of one source.

    Args:
        parent: (capacity,) memory for the parent of each node.
        link: (capacity,) memory for the link that leads into each node.
    """
    capacity = len(parent)
    return _GrowingTrie(
        parent, link, np.full(capacity + 1, -1, dtype=np.int32), np.empty(capacity, dtype=np.int32)
    )


@kernel
def insert_paths(
    paths: DemandPaths, num_found: int, trie: _GrowingTrie, num_nodes: int, leaf: IntArray
) -> int:
    """Insert the paths of one demand into the trie of its source.

    Args:
        paths: paths of the demand; the first ``num_found`` are used.
        num_found: number of paths.
        trie: trie of the source (updated).
        num_nodes: number of trie nodes; -1 if the trie is full.
        leaf: (K,) trie node where each path ends, -1 where there is no path (written).

    Returns:
        the new number of trie nodes; -1 if the trie is full now, or was already.
    """
    for k in range(len(leaf)):
        leaf[k] = -1
        if k < num_found and num_nodes >= 0:
            end_node, num_nodes = insert_path(
                paths.links[k],
                paths.length[k],
                trie.parent,
                trie.link,
                trie.first_child,
                trie.next_sibling,
                num_nodes,
            )
            leaf[k] = end_node
            # insert_path returns node -2 when the arrays are full.
            if end_node == -2:
                num_nodes = -1
    return num_nodes


@kernel
def renumber_by_depth(trie: _GrowingTrie, num_nodes: int, leaf: IntArray) -> int:
    """Renumber the trie nodes of a source by depth; return their number unchanged.

    Args:
        trie: trie of the source (updated).
        num_nodes: number of trie nodes; -1 if the trie was too small, and then nothing is changed.
        leaf: (demands of the source, K) trie node where each path ends, -1 for none (updated).
    """
    if num_nodes >= 0:
        sort_by_depth(trie.parent[:num_nodes], trie.link[:num_nodes], leaf)
    return num_nodes


@inner_kernel
def _source_by_hops(
    source_index: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """Find the disjoint paths of fewest hops of all demands of one source, and build its trie.

    Args:
        source_index: index of the source in the chunk.
        chunk: sources and demands of the search.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        parent: (capacity,) parent of each trie node, -1 for the source (written).
        link: (capacity,) link that leads into each trie node (written).
        leaf: (demands of the chunk, K) trie node where each path ends, -1 where there is no path;
            the rows of this source are written.

    Returns:
        number of trie nodes, or -1 if ``parent`` and ``link`` are too small.
    """
    source = chunk.sources[source_index]
    num_nodes = len(graph.out_ptr) - 1
    # (N,) link into each node in the breadth-first tree of the source.
    tree_link = np.empty(num_nodes, dtype=np.int32)
    # (E,) stamp of each link; a link is banned while its stamp equals that of the search.
    stamp_of_link = np.full(len(graph.tail), -1, dtype=np.int32)
    # Visited stamps, predecessor links and queues of the bidirectional search.
    search = BidirectionalScratch(
        np.full((2, num_nodes), -1, dtype=np.int32),
        np.empty((2, num_nodes), dtype=np.int32),
        np.empty((2, num_nodes), dtype=np.int32),
    )
    paths = empty_paths(chunk.max_paths, num_nodes)
    trie = empty_trie(parent, link)
    # Breadth-first tree without bans: the first path of each demand follows it.
    grow_tree(source, graph, stamp_of_link, NO_STAMP, tree_link, search.queue[0])
    stamp = ZERO
    num_trie_nodes = ZERO
    for d in range(chunk.demand_ptr[source_index], chunk.demand_ptr[source_index + 1]):
        # A demand uses at most K + 2 stamps of banned links and of searches.
        stamp += chunk.max_paths + 2
        num_found = disjoint_by_hops(
            source, chunk.targets[d], tree_link, graph, groups, stamp, stamp_of_link, search, paths
        )
        num_trie_nodes = insert_paths(paths, num_found, trie, num_trie_nodes, leaf[d])
    return renumber_by_depth(
        trie,
        num_trie_nodes,
        leaf[chunk.demand_ptr[source_index] : chunk.demand_ptr[source_index + 1]],
    )


@inner_kernel
def _source_by_weight(
    source_index: int,
    chunk: TargetChunk,
    graph: Adjacency,
    groups: Groups,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """Find the disjoint paths of minimum weight of all demands of one source, and build its trie.

    Args:
        source_index: index of the source in the chunk.
        chunk: sources and demands of the search, with the A* potentials.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        parent: (capacity,) parent of each trie node, -1 for the source (written).
        link: (capacity,) link that leads into each trie node (written).
        leaf: (demands of the chunk, K) trie node where each path ends, -1 where there is no path;
            the rows of this source are written.

    Returns:
        number of trie nodes, or -1 if ``parent`` and ``link`` are too small.
    """
    source = chunk.sources[source_index]
    num_nodes = len(graph.out_ptr) - 1
    # Heap, distances and bans of A*.
    scratch = make_scratch(num_nodes, len(graph.tail))
    # (N,) link into each node on a shortest path.
    pred_link = np.empty(num_nodes, dtype=np.int32)
    paths = empty_paths(chunk.max_paths, num_nodes)
    trie = empty_trie(parent, link)
    num_trie_nodes = ZERO
    for d in range(chunk.demand_ptr[source_index], chunk.demand_ptr[source_index + 1]):
        target = chunk.targets[d]
        # A demand uses two stamps of banned links.
        stamp = 2 * d + 1
        num_found = disjoint_by_weight(
            source,
            target,
            graph,
            groups,
            chunk.weight,
            chunk.potential[target],
            stamp,
            scratch,
            pred_link,
            paths,
        )
        num_trie_nodes = insert_paths(paths, num_found, trie, num_trie_nodes, leaf[d])
    return renumber_by_depth(
        trie,
        num_trie_nodes,
        leaf[chunk.demand_ptr[source_index] : chunk.demand_ptr[source_index + 1]],
    )


@inner_kernel
def _source_by_yen(
    source_index: int,
    chunk: TargetChunk,
    graph: Adjacency,
    parent: IntArray,
    link: IntArray,
    leaf: IntArray,
) -> int:
    """Find the K shortest loopless paths of all demands of one source (Yen 1971), and build its
    trie.

    Args:
        source_index: index of the source in the chunk.
        chunk: sources and demands of the search, with the A* potentials.
        graph: the network in CSR form.
        parent: (capacity,) parent of each trie node, -1 for the source (written).
        link: (capacity,) link that leads into each trie node (written).
        leaf: (demands of the chunk, K) trie node where each path ends, -1 where there is no path;
            the rows of this source are written.

    Returns:
        number of trie nodes, or -1 if ``parent`` and ``link`` are too small.
    """
    source = chunk.sources[source_index]
    num_nodes = len(graph.out_ptr) - 1
    # Heap, distances and bans of A*.
    scratch = make_scratch(num_nodes, len(graph.tail))
    # (N,) link into each node on a shortest path.
    pred_link = np.empty(num_nodes, dtype=np.int32)
    paths = empty_paths(chunk.max_paths, num_nodes)
    candidates = empty_paths(chunk.max_paths, num_nodes)
    trie = empty_trie(parent, link)
    stamp = ZERO
    num_trie_nodes = ZERO
    for d in range(chunk.demand_ptr[source_index], chunk.demand_ptr[source_index + 1]):
        # ``yen`` returns the next unused stamp for the next demand.
        target = chunk.targets[d]
        num_found, stamp = yen(
            source,
            target,
            graph,
            chunk.weight,
            chunk.potential[target],
            stamp,
            scratch,
            pred_link,
            paths,
            candidates,
        )
        num_trie_nodes = insert_paths(paths, num_found, trie, num_trie_nodes, leaf[d])
    return renumber_by_depth(
        trie,
        num_trie_nodes,
        leaf[chunk.demand_ptr[source_index] : chunk.demand_ptr[source_index + 1]],
    )


# Three functions instead of one with an argument: each is compiled only where it is used, since a
# compilation takes seconds.
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
    """Find the disjoint paths of fewest hops of a chunk of C sources, and build their tries.

    Args:
        begin, end: range of sources of the chunk that this call searches.
        chunk: sources and their demands, D' in all, up to K paths each.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        parent: (C, capacity) parent of each trie node, -1 for the source; nodes are numbered from 0
            within each source (written).
        link: (C, capacity) link that leads into each trie node (written).
        node_count: (C,) number of trie nodes, -1 where the capacity was too small (written).
        leaf: (D', K) trie node where each path ends, -1 where there is no path (written).
    """
    for source_index in range(begin, end):
        node_count[source_index] = _source_by_hops(
            source_index, chunk, graph, groups, parent[source_index], link[source_index], leaf
        )


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
    """Find the disjoint paths of minimum weight of a chunk of C sources, and build their tries.

    Args:
        begin, end: range of sources of the chunk that this call searches.
        chunk: sources and their demands, D' in all, up to K paths each, and the A* potentials.
        graph: the network in CSR form.
        groups: groups of links that fail together.
        parent: (C, capacity) parent of each trie node, -1 for the source; nodes are numbered from 0
            within each source (written).
        link: (C, capacity) link that leads into each trie node (written).
        node_count: (C,) number of trie nodes, -1 where the capacity was too small (written).
        leaf: (D', K) trie node where each path ends, -1 where there is no path (written).
    """
    for source_index in range(begin, end):
        node_count[source_index] = _source_by_weight(
            source_index, chunk, graph, groups, parent[source_index], link[source_index], leaf
        )


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
    """Find the K shortest loopless paths of a chunk of C sources, and build their tries.

    Args:
        begin, end: range of sources of the chunk that this call searches.
        chunk: sources and their demands, D' in all, up to K paths each, and the A* potentials.
        graph: the network in CSR form.
        parent: (C, capacity) parent of each trie node, -1 for the source; nodes are numbered from 0
            within each source (written).
        link: (C, capacity) link that leads into each trie node (written).
        node_count: (C,) number of trie nodes, -1 where the capacity was too small (written).
        leaf: (D', K) trie node where each path ends, -1 where there is no path (written).
    """
    for source_index in range(begin, end):
        node_count[source_index] = _source_by_yen(
            source_index, chunk, graph, parent[source_index], link[source_index], leaf
        )
