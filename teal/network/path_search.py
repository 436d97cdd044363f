"""Numba kernels that find the candidate paths of one source and put them into its trie.

Graphs are CSR: the links out of node n are ``out_link[out_ptr[n]:out_ptr[n + 1]]``.  A path is an
array of link numbers.  "Banned" arrays hold a stamp: an entry is banned while it equals the current
stamp, so that lifting all bans is one increment.
"""

from __future__ import annotations

import numpy as np

from teal.network.shortest import best_first, heap_of, walk_back
from teal.network.trie import insert_path, sort_by_depth
from teal.parallel import kernel, parallel_kernel, prange

# mypy cannot see through Numba's types; these kernels are checked by their tests.
# mypy: disable-error-code="no-untyped-def"

HOPS_DISJOINT, WEIGHTED_DISJOINT, YEN = 0, 1, 2
_NONE = -2  # a stamp that nothing carries


@kernel
def _grow_tree(source, out_ptr, out_link, head, into, queue):
    """Fewest hops from ``source``: ``into`` (N,) receives the link into each node, -1 where no way leads."""
    into[:] = -1
    queue[0] = source
    begin, end = 0, 1
    while begin < end:
        node = queue[begin]
        begin += 1
        for i in range(out_ptr[node], out_ptr[node + 1]):
            other = head[out_link[i]]
            if into[other] < 0 and other != source:
                into[other] = out_link[i]
                queue[end] = other
                end += 1


@kernel
def _expand(begin, end, ptr, links, far, banned, ban, seen, other, mark, into, queue):
    """Take ``queue[begin:end]`` one level on; (its new end, the first node that ``other`` has seen too, or -1)."""
    last = end
    for i in range(begin, end):
        node = queue[i]
        for at in range(ptr[node], ptr[node + 1]):
            link = links[at]
            beyond = far[link]
            if banned[link] != ban and seen[beyond] != mark:
                seen[beyond], into[beyond] = mark, link
                if other[beyond] == mark:
                    return last, beyond
                queue[last] = beyond
                last += 1
    return last, -1


@kernel
def _meet(source, target, out_ptr, out_link, in_ptr, in_link, tail, head, banned, ban, seen, mark, into, queue, path):
    """A path of fewest hops without banned links, by breadth-first search from both ends; its length or 0.

    Row 0 of ``seen``, ``into`` and ``queue`` belongs to the search from the source, row 1 to the other.
    Each round takes the smaller frontier one level on.  The first node that both have seen is on a
    shortest path: had a shorter one existed, an earlier level would have met.
    """
    seen[0, source], seen[1, target] = mark, mark
    queue[0, 0], queue[1, 0] = source, target
    begin0, end0, begin1, end1 = 0, 1, 0, 1
    while begin0 < end0 and begin1 < end1:
        if end0 - begin0 <= end1 - begin1:
            last, middle = _expand(
                begin0, end0, out_ptr, out_link, head, banned, ban, seen[0], seen[1], mark, into[0], queue[0]
            )
            begin0, end0 = end0, last
        else:
            last, middle = _expand(
                begin1, end1, in_ptr, in_link, tail, banned, ban, seen[1], seen[0], mark, into[1], queue[1]
            )
            begin1, end1 = end1, last
        if middle >= 0:
            return _join(source, target, middle, into, tail, head, path)
    return 0


@kernel
def _join(source, target, middle, into, tail, head, path):
    """Write the links from ``source`` to ``middle`` and on to ``target`` into ``path``; their number."""
    length = walk_back(source, middle, into[0], tail, path)
    while middle != target:
        path[length] = into[1, middle]
        middle = head[path[length]]
        length += 1
    return length


@kernel
def _disjoint(
    source, target, most, by_hops, tree, out_ptr, out_link, in_ptr, in_link, tail, head, weight, potential, banned,
    ban, closed, seen, distance, into, queue, keys, items, paths, lengths,
):  # fmt: skip
    """Up to ``most`` link-disjoint paths, each a shortest one once the earlier ones' links are gone.

    By hops the first path follows ``tree``.  Stamps from ``ban`` to ``ban + most`` are used up.
    """
    # No more paths than links that leave the source or enter the target.
    most = min(most, out_ptr[source + 1] - out_ptr[source], in_ptr[target + 1] - in_ptr[target])
    for found in range(most):
        lengths[found] = 0
        if not by_hops:
            way = best_first(
                source, target, out_ptr, out_link, head, weight, potential, banned, ban, closed, _NONE, distance,
                into[0], keys, items,
            )  # fmt: skip
            if np.isfinite(way):
                lengths[found] = walk_back(source, target, into[0], tail, paths[found])
        elif found:
            lengths[found] = _meet(
                source, target, out_ptr, out_link, in_ptr, in_link, tail, head, banned, ban, seen, ban + found, into,
                queue, paths[found],
            )  # fmt: skip
        elif tree[target] >= 0:
            lengths[found] = walk_back(source, target, tree, tail, paths[found])
        if not lengths[found]:
            return found
        for i in range(lengths[found]):
            banned[paths[found, i]] = ban
    return most


@kernel
def _same(a, b, length):
    for i in range(length):
        if a[i] != b[i]:
            return False
    return True


@kernel
def _yen(
    source,
    target,
    most,
    out_ptr,
    out_link,
    tail,
    head,
    weight,
    potential,
    banned,
    closed,
    stamp,
    distance,
    into,
    keys,
    items,
    paths,
    lengths,
    spare,
    spare_length,
    spare_cost,
):
    """Yen's ``most`` shortest loopless paths (Yen 1971).  Returns (number found, next unused stamp).

    Of the candidates only the ``most`` best are kept, in ``spare``: more can never be needed.
    """
    cost = best_first(
        source, target, out_ptr, out_link, head, weight, potential, banned, stamp, closed, stamp, distance, into,
        keys, items,
    )  # fmt: skip
    stamp += 1
    if not np.isfinite(cost):
        return 0, stamp
    lengths[0] = walk_back(source, target, into, tail, paths[0])
    found, kept = 1, 0
    while found < most:
        last, root_cost = paths[found - 1], 0.0
        for i in range(lengths[found - 1]):  # the spur leaves the last path before its i-th link
            spur = tail[last[i]]
            for j in range(found):
                if lengths[j] > i and _same(paths[j], last, i):
                    banned[paths[j, i]] = stamp
            for j in range(i):
                closed[tail[last[j]]] = stamp
            way = best_first(
                spur, target, out_ptr, out_link, head, weight, potential, banned, stamp, closed, stamp, distance,
                into, keys, items,
            )  # fmt: skip
            stamp += 1
            if np.isfinite(way):
                slot = kept
                if kept == most:
                    slot = int(np.argmax(spare_cost))
                if kept < most or root_cost + way < spare_cost[slot]:
                    candidate = np.empty(len(closed), dtype=np.int32)
                    candidate[:i] = last[:i]
                    length = i + walk_back(spur, target, into, tail, candidate[i:])
                    known = False
                    for j in range(kept):
                        if spare_length[j] == length and _same(spare[j], candidate, length):
                            known = True
                    if not known:
                        spare[slot, :length] = candidate[:length]
                        spare_length[slot], spare_cost[slot] = length, root_cost + way
                        kept = min(kept + 1, most)
            root_cost += weight[last[i]]
        if kept == 0:
            break
        best = int(np.argmin(spare_cost[:kept]))
        lengths[found] = spare_length[best]
        paths[found, : lengths[found]] = spare[best, : lengths[found]]
        found += 1
        kept -= 1
        spare[best], spare_length[best], spare_cost[best] = spare[kept], spare_length[kept], spare_cost[kept]
    return found, stamp


@parallel_kernel
def search_sources(
    method, sources, demand_ptr, targets, most, out_ptr, out_link, in_ptr, in_link, tail, head, weight, potential,
    parent, link, counts, leaf,
):  # fmt: skip
    """Find the paths of a chunk of sources and build their tries.

    Args:
        method: HOPS_DISJOINT, WEIGHTED_DISJOINT or YEN.
        sources: (C,) node index of each source of the chunk.
        demand_ptr: (C + 1,) the demands of the i-th source are ``targets[demand_ptr[i]:demand_ptr[i + 1]]``.
        targets: node index of each demand's target.
        most: K.
        weight: (E,) of a link; potential: (N, N) row t the least weight to t (not read by hops).
        parent, link: (C, room) scratch that receives the tries, numbered from 0 for each source.
        counts: (C,) receives the number of trie nodes, -1 where ``room`` was too small.
        leaf: (demands, K) receives the trie node of each path's end, -1 where there is none.
    """
    nodes, links, room = len(out_ptr) - 1, len(tail), parent.shape[1]
    for c in prange(len(sources)):
        source = sources[c]
        first_child = np.full(room + 1, -1, dtype=np.int32)
        next_sibling = np.empty(room, dtype=np.int32)
        tree, into = np.empty(nodes, dtype=np.int32), np.empty((2, nodes), dtype=np.int32)
        seen, queue = np.full((2, nodes), -1, dtype=np.int32), np.empty((2, nodes), dtype=np.int32)
        banned, closed = np.full(links, -1, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
        distance = np.empty(nodes)
        keys, items = heap_of(links)
        paths, lengths = np.empty((most, nodes), dtype=np.int32), np.zeros(most, dtype=np.int64)
        spare, spare_length = np.empty((most, nodes), dtype=np.int32), np.zeros(most, dtype=np.int64)
        spare_cost = np.empty(most)
        stamp, count, overflow = 0, 0, False
        if method == HOPS_DISJOINT:
            _grow_tree(source, out_ptr, out_link, head, tree, queue[0])
        for d in range(demand_ptr[c], demand_ptr[c + 1]):
            target = targets[d]
            row = potential[target] if method != HOPS_DISJOINT else potential[0]
            if method == YEN:
                found, stamp = _yen(
                    source, target, most, out_ptr, out_link, tail, head, weight, row, banned, closed, stamp, distance,
                    into[0], keys, items, paths, lengths, spare, spare_length, spare_cost,
                )  # fmt: skip
            else:
                stamp += most
                found = _disjoint(
                    source, target, most, method == HOPS_DISJOINT, tree, out_ptr, out_link, in_ptr, in_link, tail,
                    head, weight, row, banned, stamp, closed, seen, distance, into, queue, keys, items, paths, lengths,
                )  # fmt: skip
            for k in range(most):
                leaf[d, k] = -1
                if k < found and not overflow:
                    end, count = insert_path(paths[k], lengths[k], parent[c], link[c], first_child, next_sibling, count)
                    overflow = overflow or end == -2
                    leaf[d, k] = end
        counts[c] = -1 if overflow else count
        if not overflow:
            sort_by_depth(parent[c, :count], link[c, :count], leaf[demand_ptr[c] : demand_ptr[c + 1]])
