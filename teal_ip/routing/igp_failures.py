"""Loads under shortest-path routing when links fail: after convergence, and while backup paths are
in use.

For every destination what passes each node without failure is kept.  A failure changes a
destination only if a failed link is on its DAG, and then only the nodes behind it.

- *After convergence* every node uses the shortest paths of the network without the failed links.
- *Under fast reroute* (TI-LFA, RFC 9855) only the node at a failed link has acted.  If it has other
  next hops of equal cost, these take all; else it sends over its shortest path after convergence,
  by a list of segments.  All other nodes still use the paths of before.
- *Micro-loops* are possible for a destination if next hops of before and after convergence together
  contain a cycle, since nodes do not change at the same time (RFC 8333).  Traffic at risk is that
  of nodes which can reach the cycle.

The loads of one destination after links fail, found from those before at the nodes that change
alone.

Towards one destination, a failure of links divides the nodes into three kinds:

- *cut*: every next hop is gone, or leads over nodes that are themselves cut; the distance grows, or
  becomes infinite;
- *narrowed*: some next hops are gone, others remain; the distance stays, and the others take all;
- *unchanged*: all next hops remain.

Nodes are told apart in the order of their distances, and only cut ones are searched anew, by
Dijkstra's algorithm from the nodes that are not cut (Ramalingam and Reps, "An incremental algorithm
for a generalization of the shortest-path problem", 1996).  The loads follow in two passes, since
loads are linear in what is sent:

1. from far to near along the old next hops: cut and narrowed nodes withdraw all that they send, and
   unchanged ones what no longer reaches them;
2. from far to near along the new next hops: what remains at cut and narrowed nodes is sent anew.

With k nodes behind a failure both passes cost the arcs of these and of the nodes on their ways, not
all arcs.

The kernels take arrays, not the named tuples that hold them: reading a tuple's array counts a
reference, and two threads that count at once wait for each other (3,828 pairs of Germany50's cables
on two cores: 0.35 s with tuples, 0.18 s).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.errors import InputError
from teal.network.ecmp import EcmpDag, IgpLinks, grow_dag, is_on_dag, new_dags
from teal.network.segment_lists import SegmentPolicies
from teal.network.shortest import heap_pop, heap_push
from teal.pathops.segment_passes import MAX_BLOCKS, load_inwards
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import as_int64, inner_kernel, kernel, partitioned_kernel, threads_for
from teal_ip.routing.steering import steering_of

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
        np.zeros(nodes, dtype=np.int8),
        np.empty(nodes),
        np.empty(nodes, dtype=np.int32),
        np.empty(nodes, dtype=np.int32),
        np.empty(links, dtype=np.int32),
        np.empty(size),
        np.empty(size, dtype=np.int32),
        np.empty(nodes),
    )


@kernel
def places_in_order(order: IntArray, reached: IntArray, place: IntArray) -> None:
    """Fill ``place`` (D, N) with the place of each node in ``order`` (D, N); nodes without a path
    keep theirs.
    """
    for t in range(len(order)):
        for i in range(reached[t]):
            place[t, order[t, i]] = i


@inner_kernel
def reroute(  # type: ignore[no-untyped-def]
    links, dags, place, is_failed, failed_links, volume, passing, load, lost, scratch
):
    """Change loads of M matrices without a failure into those with it, over all destinations.

    Args:
        links: links of the network, without the failure.
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
    out_ptr, out_link, in_ptr, in_link, tail, head, metric, weight, has_transit = links
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
        last, cuts = _find_kinds(
            t, first, order, reached, arc_start, arc, head, is_failed, kind, cut
        )
        distance_after[:] = distance[t]
        paths = _settle(
            cut,
            cuts,
            out_ptr,
            out_link,
            in_ptr,
            in_link,
            tail,
            head,
            metric,
            has_transit,
            is_failed,
            kind,
            distance_after,
            settled,
            keys,
            heap_nodes,
        )
        for m in range(len(volume)):
            _withdraw(t, last, order, arc_start, arc, share, head, kind, m, passing, load, moved)
            if paths < cuts:
                for c in range(cuts):
                    if distance_after[cut[c]] == np.inf:
                        lost[m] += volume[m, t, cut[c]]
                        moved[cut[c]] = 0.0
            _send(
                t,
                last,
                settled,
                paths,
                order,
                reached,
                arc_start,
                arc,
                share,
                out_ptr,
                out_link,
                head,
                metric,
                weight,
                has_transit,
                is_failed,
                kind,
                distance_after,
                hop,
                m,
                load,
                moved,
            )


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
    cut,
    cuts,
    out_ptr,
    out_link,
    in_ptr,
    in_link,
    tail,
    head,
    metric,
    has_transit,
    is_failed,
    kind,
    distance,
    settled,
    keys,
    heap_nodes,
):
    """Find the distances of cut nodes; the number of those that have a path, which ``settled``
    lists by distance.
    """
    for c in range(cuts):
        distance[cut[c]] = np.inf
    size = 0
    for c in range(cuts):
        u, best = cut[c], np.inf
        for j in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[j]
            is_allowed = (
                has_transit[head[e]] or distance[head[e]] == 0.0
            )  # that of the destination alone is 0
            if not is_failed[e] and kind[head[e]] != _CUT and is_allowed:
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
        if not has_transit[u]:
            continue
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
    """Take back what changed nodes send; ``moved`` (N,) becomes what they have to send anew, 0 at
    unchanged nodes.
    """
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
    t,
    last,
    settled,
    paths,
    order,
    reached,
    arc_start,
    arc,
    share,
    out_ptr,
    out_link,
    head,
    metric,
    weight,
    has_transit,
    is_failed,
    kind,
    distance,
    hop,
    m,
    load,
    moved,
):
    """Send ``moved`` along the new next hops, from far to near: cut nodes and the others, merged by
    distance.
    """
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
            is_allowed = has_transit[head[e]] or distance[head[e]] == 0.0
            if not is_failed[e] and is_allowed and distance[u] == metric[e] + distance[head[e]]:
                total += weight[e]
                hop[hops] = e
                hops += 1
        for h in range(hops):
            part = sent * weight[hop[h]] / total
            load[m, hop[h]] += part
            moved[head[hop[h]]] += part


_OPERATIONS_PER_ARC = 8  # scalar operations of a failure for each arc, approximately


class FailureResults(NamedTuple):
    """The loads of M matrices when S sets of links fail.

    Attributes:
        utilisation: (S, M) largest of a link that works.
        busiest: (S, M) its number; -1 without any load.
        overload: (S, M) Gbit/s above the capacities, over all links.
        lost: (S, M) Gbit/s of demands whose ends are cut off from each other.
        at_risk: (S, M) Gbit/s of nodes that can reach a micro-loop; 0 unless asked for.
        load: (S, M, E) Gbit/s; (0, M, E) unless asked for.
    """

    utilisation: FloatArray
    busiest: Int64Array
    overload: FloatArray
    lost: FloatArray
    at_risk: FloatArray
    load: FloatArray


@inner_kernel
def _load_without(  # type: ignore[no-untyped-def]
    row, links, dags, is_failed, volume, load, stuck
):
    """:func:`load_inwards` where the next hops that are left take all; what has none is added to
    ``stuck`` (N,).
    """
    order, arc_start, arc, share = (
        dags.order[row],
        dags.arc_start[row],
        dags.arc[row],
        dags.share[row],
    )
    for j in range(dags.reached[row] - 1):
        i = dags.reached[row] - 1 - j
        passing = volume[order[i]]
        if passing == 0.0:
            continue
        left = 0.0
        for a in range(arc_start[i], arc_start[i + 1]):
            if not is_failed[arc[a]]:
                left += share[a]
        if left == 0.0:
            stuck[order[i]] += passing
            continue
        for a in range(arc_start[i], arc_start[i + 1]):
            link = arc[a]
            if not is_failed[link]:
                part = passing * share[a] / left
                load[link] += part
                volume[links.head[link]] += part


@inner_kernel
def _volume_at_loops(  # type: ignore[no-untyped-def]
    row, links, dags, after, is_failed, hops_left, queue, volume
):
    """Gbit/s of nodes that can reach a cycle of the next hops of before and after together.

    Nodes without next hops are removed, then those whose next hops are all removed, until none is
    left to remove.
    """
    nodes = len(hops_left)
    distance, distance_after = dags.distance[row], after.distance[0]
    tail = links.tail
    hops_left[:] = 0
    for e in range(len(tail)):
        if not is_failed[e] and (
            is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)
        ):
            hops_left[tail[e]] += 1
    size = 0
    for u in range(nodes):
        if hops_left[u] == 0:
            queue[size] = u
            size += 1
    done = 0
    while done < size:
        u = queue[done]
        done += 1
        for j in range(links.in_ptr[u], links.in_ptr[u + 1]):
            e = links.in_link[j]
            if not is_failed[e] and (
                is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)
            ):
                hops_left[tail[e]] -= 1
                if hops_left[tail[e]] == 0:
                    queue[size] = tail[e]
                    size += 1
    total = 0.0
    for u in range(nodes):
        if hops_left[u] > 0:
            total += volume[u]
    return total


@inner_kernel
def _repair(  # type: ignore[no-untyped-def]
    links,
    failed_links,
    dags,
    after,
    volume,
    is_failed,
    keys,
    heap_nodes,
    passing,
    stuck,
    hops_left,
    queue,
    load,
    lost,
    at_risk,
):
    """Loads (M, E) of a failure while backup paths are in use, by changing those without it.

    Adds what is lost to ``lost`` (M,) and what micro-loops may take to ``at_risk`` (M,).
    """
    matrices, nodes = volume.shape[0], volume.shape[1]
    for t in range(nodes):
        distance, is_hit = dags.distance[t], False
        for e in failed_links:
            if is_on_dag(distance, links, e):
                is_hit = True
                break
        if not is_hit:
            continue
        for e in failed_links:
            stuck[nodes + e] = links.metric[e]  # kept here while the links have failed
            links.metric[e] = np.inf
        grow_dag(t, as_int64(0), links, after, keys, heap_nodes)
        for e in failed_links:
            links.metric[e] = stuck[nodes + e]
        for m in range(matrices):
            for u in range(nodes):
                passing[u] = -volume[m, t, u]
            load_inwards(t, links.head, dags, passing, load[m])  # take the loads before away
            for u in range(nodes):
                passing[u] = volume[m, t, u]
                if after.distance[0, u] == np.inf and dags.distance[t, u] < np.inf:
                    lost[m] += volume[m, t, u]
                    passing[u] = 0.0
            stuck[:nodes] = 0.0
            _load_without(t, links, dags, is_failed, passing, load[m], stuck)
            for u in range(nodes):
                if (
                    after.distance[0, u] == np.inf
                ):  # sent there by nodes that know of no failure yet
                    lost[m] += stuck[u]
            load_inwards(0, links.head, after, stuck[:nodes], load[m])
            at_risk[m] += _volume_at_loops(
                t, links, dags, after, is_failed, hops_left, queue, volume[m, t]
            )


@partitioned_kernel("blocks", lambda blocks: blocks)
def _all_failures(  # type: ignore[no-untyped-def]
    begin,
    end,
    links,
    dags,
    place,
    set_ptr,
    set_link,
    volume,
    passing,
    base,
    lost_before,
    inverse_capacity,
    capacity,
    is_repairing,
    blocks,
    utilisation,
    busiest,
    overload,
    lost,
    at_risk,
    loads,
):
    for block in range(begin, end):
        matrices, nodes, num_links = volume.shape[0], volume.shape[1], base.shape[1]
        scratch = new_reroute_scratch(nodes, num_links)
        repairs = num_links if is_repairing else 0
        own = IgpLinks(
            links.out_ptr,
            links.out_link,
            links.in_ptr,
            links.in_link,
            links.tail,
            links.head,
            links.metric.copy(),
            links.weight,
            links.has_transit,
        )
        after = new_dags(1, nodes, repairs)
        keys, heap_nodes = np.empty(2 * repairs + 2), np.empty(2 * repairs + 2, dtype=np.int32)
        at_node, stuck = np.empty(nodes), np.zeros(nodes + num_links)
        hops_left, queue = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
        is_failed, load = np.zeros(num_links, dtype=np.bool_), np.empty((matrices, num_links))
        for s in range(block, len(set_ptr) - 1, blocks):
            failed_links = set_link[set_ptr[s] : set_ptr[s + 1]]
            for e in failed_links:
                is_failed[e] = True
            load[:] = base
            for m in range(matrices):
                lost[s, m] = lost_before[m]
            if is_repairing:
                _repair(
                    own,
                    failed_links,
                    dags,
                    after,
                    volume,
                    is_failed,
                    keys,
                    heap_nodes,
                    at_node,
                    stuck,
                    hops_left,
                    queue,
                    load,
                    lost[s],
                    at_risk[s],
                )
            else:
                reroute(
                    links,
                    dags,
                    place,
                    is_failed,
                    failed_links,
                    volume,
                    passing,
                    load,
                    lost[s],
                    scratch,
                )
            for m in range(matrices):
                largest, where, over = 0.0, -1, 0.0
                for e in range(num_links):
                    if is_failed[e]:
                        load[m, e] = 0.0
                        continue
                    load[m, e] = max(
                        0.0, load[m, e]
                    )  # a difference of loads, which rounding may leave below 0
                    u = load[m, e] * inverse_capacity[e]
                    if u > largest:
                        largest, where = u, e
                    over += max(0.0, load[m, e] - capacity[e])
                utilisation[s, m], busiest[s, m], overload[s, m] = largest, where, over
                if len(loads):
                    for e in range(num_links):
                        loads[s, m, e] = load[m, e]
            for e in failed_links:
                is_failed[e] = False


@partitioned_kernel("blocks", int)
def _loads_without_failure(  # type: ignore[no-untyped-def]
    begin, end, head, dags, volume, passing, load, blocks
):
    """Fill ``passing`` (M, N, N), Gbit/s to the first node that pass the second one, and add to
    ``load``.
    """
    for block in range(begin, end):
        for t in range(block, volume.shape[1], blocks):
            for m in range(len(volume)):
                for u in range(volume.shape[2]):
                    passing[m, t, u] = volume[m, t, u]
                load_inwards(t, head, dags, passing[m, t], load[block, m])


class IgpFailures:
    """Loads of M matrices without failure, and under failures of sets of links.

    Args:
        dag: shortest paths without failure.
        volume: (M, N, N) Gbit/s to the first node, the destination, from the second one.
        adjacency: (M, E) Gbit/s that takes a link whatever the metrics say; None for none.  It is
            lost when the link fails: adjacency segments are taken as unprotected, and no source has
            withdrawn the list yet.
        looping: (M,) Gbit/s that is lost in forwarding loops; None for none.

    Attributes:
        load: (M, E) Gbit/s without failure.
        passing: (M, N, N) Gbit/s to the first node that cross the second one, without failure.
        lost: (M,) Gbit/s between nodes that have no path even without failure.
    """

    def __init__(
        self,
        dag: EcmpDag,
        volume: FloatArray,
        adjacency: FloatArray | None = None,
        looping: FloatArray | None = None,
    ) -> None:
        self.dag, self._volume = dag, np.ascontiguousarray(volume)
        nodes, num_links = dag.topology.num_nodes, dag.topology.num_links
        self.passing = np.empty_like(self._volume)
        self._place = np.full((nodes, nodes), nodes, dtype=np.int32)
        places_in_order(dag.dags.order, dag.dags.reached, self._place)
        self._operations = _OPERATIONS_PER_ARC * dag.num_arcs * len(volume)
        blocks = max(1, min(nodes, MAX_BLOCKS))
        load = np.zeros((blocks, len(volume), num_links))
        with threads_for(self._operations):
            _loads_without_failure(
                dag.links.head, dag.dags, self._volume, self.passing, load, blocks
            )
        adjacency, is_live = (
            np.zeros((len(volume), num_links)) if adjacency is None else adjacency,
            _live(dag),
        )
        self._adjacency = np.where(is_live, adjacency, 0)
        self.load: FloatArray = load.sum(0) + self._adjacency
        self.lost: FloatArray = np.where(dag.reaches, 0, self._volume).sum((1, 2)) + adjacency[
            :, ~is_live
        ].sum(1)
        self.lost += 0.0 if looping is None else looping
        self._demands: tuple[IntArray, FloatArray, SegmentPolicies] | None = None

    @classmethod
    def of_demands(
        cls,
        dag: EcmpDag,
        pairs: IntArray,
        demand: FloatArray,
        policies: SegmentPolicies,
        after: EcmpDag | None = None,
    ) -> IgpFailures:
        """Demands along their segment lists; a list whose midpoint or adjacency fails loses its
        traffic there, once.

        Args:
            dag: shortest paths without failure.
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.
            policies: lists of some of them.
            after: shortest paths under the failure that the lists meet; None for no failure.
        """
        loads = cls(dag, *steering_of(after or dag, policies).traffic(pairs, demand))
        loads._demands = (pairs, demand, policies) if policies.lists and after is None else None
        return loads

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """The loads when all links of each set fail.

        Args:
            failures: numbers of the links of each set.
            repairing: loads while backup paths are in use, not after convergence, and the traffic
                at risk.
            loads: also return the loads of all links.
        """
        topology, matrices, sets = self.dag.topology, len(self._volume), len(failures)
        failures = [sorted(set(links)) for links in failures]
        ptr = np.concatenate([[0], np.cumsum([len(links) for links in failures])]).astype(np.int64)
        flat = np.array([link for links in failures for link in links], dtype=np.int64)
        capacity = topology.capacity
        inverse = np.where(capacity > 0, 1 / np.where(capacity > 0, capacity, 1), 0)
        results = FailureResults(
            utilisation=np.zeros((sets, matrices)),
            busiest=np.zeros((sets, matrices), dtype=np.int64),
            overload=np.zeros((sets, matrices)),
            lost=np.zeros((sets, matrices)),
            at_risk=np.zeros((sets, matrices)),
            load=np.zeros((sets if loads else 0, matrices, topology.num_links)),
        )
        with threads_for(self._operations * sets):
            _all_failures(
                self.dag.links,
                self.dag.dags,
                self._place,
                ptr,
                flat,
                self._volume,
                self.passing,
                self.load,
                self.lost,
                inverse,
                capacity,
                repairing,
                max(1, min(sets, MAX_BLOCKS)),
                *results,
            )
        for s, links in enumerate(failures):
            results.lost[s] += self._adjacency[:, links].sum(1)
        if self._demands is not None:
            is_changed = np.array(
                (results.lost > self.lost).any(1)
            )  # a failure that cuts lists loses
            if self._demands[2].is_transit:  # what crosses a router depends on the failure
                if repairing:
                    raise InputError(
                        "--repair", "", "policies of single demands", "transit policies"
                    )
                is_changed[:] = True
            for s in np.flatnonzero(is_changed).tolist():
                cut = IgpFailures.of_demands(
                    self.dag, *self._demands, self.dag.without(failures[s])
                )
                for every, one in zip(
                    results, cut.under([failures[s]], repairing=repairing, loads=loads), strict=True
                ):
                    every[s : s + 1] = one
        return results


def _live(dag: EcmpDag) -> BoolArray:
    return np.isfinite(dag.links.metric)
