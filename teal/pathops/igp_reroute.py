"""The loads of one destination after links fail, found from those before at the nodes that change alone.

Towards one destination, a failure of links divides the nodes into three kinds:

- *cut*: every next hop is gone, or leads over nodes that are themselves cut; the distance grows, or becomes infinite;
- *narrowed*: some next hops are gone, others remain; the distance stays, and the others take all;
- *unchanged*: all next hops remain.

Nodes are told apart in the order of their distances, and only cut ones are searched anew, by Dijkstra's algorithm from
the nodes that are not cut (Ramalingam and Reps, "An incremental algorithm for a generalization of the shortest-path
problem", 1996).  The loads follow in two passes, since loads are linear in what is sent:

1. from far to near along the old next hops: cut and narrowed nodes withdraw all that they send, and unchanged ones
   what no longer reaches them;
2. from far to near along the new next hops: what remains at cut and narrowed nodes is sent anew.

With k nodes behind a failure both passes cost the arcs of these and of the nodes on their ways, not all arcs.

The kernels take arrays, not the named tuples that hold them: reading a tuple's array counts a reference, and two
threads that count at once wait for each other (3,828 pairs of Germany50's cables on two cores: 0.35 s with tuples,
0.18 s).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.shortest import heap_pop, heap_push
from teal.runtime.arrays import AnyArray, FloatArray, IntArray
from teal.runtime.parallel import inner_kernel, kernel

_UNCHANGED, _NARROWED, _CUT = 0, 1, 2  # kinds of nodes


class RerouteScratch(NamedTuple):
    """Memory of one thread; what it holds before a call does not matter.

    Attributes:
        kind: (N,) of each node.
        distance: (N,) to the destination, after the failure.
        cut: (N,) cut nodes, by their distance before the failure.
        settled: (N,) cut nodes that have a path, by distance.
        hop: (E,) new next hops of a node.
        keys: (E + N + 1,) of the heap.
        heap_nodes: (E + N + 1,) of the heap.
        moved: (N,) Gbit/s withdrawn from a node, then Gbit/s sent by it anew.
    """

    kind: AnyArray
    distance: FloatArray
    cut: IntArray
    settled: IntArray
    hop: IntArray
    keys: FloatArray
    heap_nodes: IntArray
    moved: FloatArray


@inner_kernel
def new_reroute_scratch(nodes: int, links: int) -> RerouteScratch:
    """Memory for :func:`reroute`."""
    size = links + nodes + 1
    return RerouteScratch(
        np.zeros(nodes, dtype=np.int8), np.empty(nodes), np.empty(nodes, dtype=np.int32),
        np.empty(nodes, dtype=np.int32), np.empty(links, dtype=np.int32), np.empty(size),
        np.empty(size, dtype=np.int32), np.empty(nodes),
    )  # fmt: skip


@kernel
def places_in_order(order: IntArray, reached: IntArray, place: IntArray) -> None:
    """Fill ``place`` (D, N) with the place of each node in ``order`` (D, N); nodes without a path keep theirs."""
    for t in range(len(order)):
        for i in range(reached[t]):
            place[t, order[t, i]] = i


@inner_kernel
def reroute(  # type: ignore[no-untyped-def]
    links, dags, place, is_failed, failed_links, volume, passing, load, lost, scratch
):
    """Change loads of M matrices without a failure into those with it, over all destinations.

    Args:
        links: of the network, without the failure.
        dags: without the failure.
        place: (N, N) see :func:`places_in_order`.
        is_failed: (E,) whether a link has failed.
        failed_links: their numbers.
        volume: (M, N, N) Gbit/s to the first node from the second one.
        passing: (M, N, N) Gbit/s to the first node that pass the second one, without the failure.
        load: (M, E) Gbit/s, changed.
        lost: (M,) Gbit/s, to which the volume of nodes without a path is added.
        scratch: memory.
    """
    distance, order, reached, arc_start, arc, share = dags
    out_ptr, out_link, in_ptr, in_link, tail, head, metric, weight = links
    kind, distance_after, cut, settled, hop, keys, heap_nodes, moved = scratch
    nodes = len(place)
    for t in range(nodes):
        first = nodes
        for e in failed_links:
            to_end = distance[t, head[e]]
            if to_end < np.inf and distance[t, tail[e]] == metric[e] + to_end:
                first = min(first, place[t, tail[e]])
        if first == nodes:
            continue
        last, cuts = _find_kinds(t, first, order, reached, arc_start, arc, head, is_failed, kind, cut)
        distance_after[:] = distance[t]
        paths = _settle(
            cut, cuts, out_ptr, out_link, in_ptr, in_link, tail, head, metric, is_failed, kind, distance_after, settled,
            keys, heap_nodes,
        )  # fmt: skip
        for m in range(len(volume)):
            _withdraw(t, last, order, arc_start, arc, share, head, kind, m, passing, load, moved)
            if paths < cuts:
                for c in range(cuts):
                    if distance_after[cut[c]] == np.inf:
                        lost[m] += volume[m, t, cut[c]]
                        moved[cut[c]] = 0.0
            _send(
                t, last, settled, paths, order, reached, arc_start, arc, share, out_ptr, out_link, head, metric, weight,
                is_failed, kind, distance_after, hop, m, load, moved,
            )  # fmt: skip


@inner_kernel
def _find_kinds(  # type: ignore[no-untyped-def]
    t, first, order, reached, arc_start, arc, head, is_failed, kind, cut
):
    """Fill ``kind`` (N,) from a place of the order on, and ``cut``.

    Returns:
        The last place whose node is not unchanged, and the number of cut nodes.
    """
    kind[:] = _UNCHANGED
    last, cuts = first, 0
    for i in range(first, reached[t]):
        left = 0
        for a in range(arc_start[t, i], arc_start[t, i + 1]):
            if not is_failed[arc[t, a]] and kind[head[arc[t, a]]] != _CUT:
                left += 1
        if left < arc_start[t, i + 1] - arc_start[t, i]:
            last = i
            if left == 0:
                kind[order[t, i]] = _CUT
                cut[cuts] = order[t, i]
                cuts += 1
            else:
                kind[order[t, i]] = _NARROWED
    return last, cuts


@inner_kernel
def _settle(  # type: ignore[no-untyped-def]
    cut, cuts, out_ptr, out_link, in_ptr, in_link, tail, head, metric, is_failed, kind, distance, settled,
    keys, heap_nodes
):  # fmt: skip
    """Find the distances of cut nodes; the number of those that have a path, which ``settled`` lists by distance."""
    for c in range(cuts):
        distance[cut[c]] = np.inf
    size = 0
    for c in range(cuts):
        u, best = cut[c], np.inf
        for j in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[j]
            if not is_failed[e] and kind[head[e]] != _CUT:
                best = min(best, metric[e] + distance[head[e]])
        if best < np.inf:
            distance[u] = best
            size = heap_push(keys, heap_nodes, size, best, u)
    count = 0
    while size:
        key, u = keys[0], heap_nodes[0]
        size = heap_pop(keys, heap_nodes, size)
        if key > distance[u]:
            continue  # the node was reached by a shorter path since this entry was pushed
        settled[count] = u
        count += 1
        for j in range(in_ptr[u], in_ptr[u + 1]):
            e = in_link[j]
            other = tail[e]
            if not is_failed[e] and kind[other] == _CUT and key + metric[e] < distance[other]:
                distance[other] = key + metric[e]
                size = heap_push(keys, heap_nodes, size, distance[other], other)
    return count


@inner_kernel
def _withdraw(  # type: ignore[no-untyped-def]
    t, last, order, arc_start, arc, share, head, kind, m, passing, load, moved
):
    """Take back what changed nodes send; ``moved`` (N,) becomes what they have to send anew, 0 at unchanged nodes."""
    moved[:] = 0.0
    for j in range(last):
        i = last - j
        u = order[t, i]
        back = passing[m, t, u] if kind[u] != _UNCHANGED else moved[u]
        if back != 0.0:
            for a in range(arc_start[t, i], arc_start[t, i + 1]):
                part = back * share[t, a]
                load[m, arc[t, a]] -= part
                moved[head[arc[t, a]]] += part
        moved[u] = passing[m, t, u] - moved[u] if kind[u] != _UNCHANGED else 0.0
    moved[t] = 0.0


@kernel
def _send(  # type: ignore[no-untyped-def]
    t, last, settled, paths, order, reached, arc_start, arc, share, out_ptr, out_link, head, metric, weight,
    is_failed, kind, distance, hop, m, load, moved
):  # fmt: skip
    """Send ``moved`` along the new next hops, from far to near: cut nodes and the others, merged by distance."""
    j = paths - 1
    farthest = distance[settled[j]] if paths else 0.0
    i = last  # nothing is moved at nodes behind it, but what cut nodes send them
    while i + 1 < reached[t] and distance[order[t, i + 1]] < farthest:
        i += 1
    while i > 0 or j >= 0:
        if i > 0 and kind[order[t, i]] == _CUT:
            i -= 1
            continue
        if j >= 0 and (i == 0 or distance[settled[j]] >= distance[order[t, i]]):
            u, at = settled[j], 0
            j -= 1
        else:
            u, at = order[t, i], i
            i -= 1
        sent = moved[u]
        if sent == 0.0:
            continue
        if kind[u] == _UNCHANGED:
            for a in range(arc_start[t, at], arc_start[t, at + 1]):
                part = sent * share[t, a]
                load[m, arc[t, a]] += part
                moved[head[arc[t, a]]] += part
            continue
        total, hops = 0.0, 0
        for b in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[b]
            if not is_failed[e] and distance[u] == metric[e] + distance[head[e]]:
                total += weight[e]
                hop[hops] = e
                hops += 1
        for h in range(hops):
            part = sent * weight[hop[h]] / total
            load[m, hop[h]] += part
            moved[head[hop[h]]] += part
