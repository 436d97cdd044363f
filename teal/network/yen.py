"""Numba kernel that finds the K shortest loopless paths between two nodes (Yen 1971)."""

from __future__ import annotations

import numpy as np

from teal.network.disjoint import FoundPaths
from teal.network.shortest import Adjacency, SearchScratch, best_first, walk_back
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import inner_kernel


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
