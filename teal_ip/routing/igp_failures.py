"""Link loads of shortest-path routing under link failures: after convergence, and during fast
reroute.

For every destination the traffic that passes each node without failure is stored.  A failure
changes a destination only if a failed link is on its shortest-path DAG, and then only the nodes
behind the link.

- *After convergence* every node uses the shortest paths of the network without the failed links.
- *Fast reroute* (TI-LFA, RFC 9855): only the node at a failed link has reacted.  If it has other
  equal-cost next hops, these take all traffic; else it uses its shortest path after convergence, by
  a segment list.  All other nodes still use the old paths.
- *Micro-loops* are possible for a destination if the next hops before and after convergence
  together contain a cycle, since nodes do not converge simultaneously (RFC 8333).  Traffic at risk
  is that of nodes which can reach the cycle.

Towards one destination, a failure divides the nodes into three kinds:

- *cut*: every next hop has failed, or leads over cut nodes; the distance grows, or becomes
  infinite;
- *narrowed*: some next hops have failed, others remain and take all; the distance stays;
- *unchanged*: all next hops remain.

Nodes are classified in order of their distances, and new distances are computed for cut nodes only,
by Dijkstra's algorithm from the other nodes (Ramalingam and Reps, "An incremental algorithm for a
generalization of the shortest-path problem", 1996).  The loads are updated in two passes, since
they are linear in the traffic:

1. from far to near along the old next hops: cut and narrowed nodes withdraw all their traffic, and
   unchanged ones the traffic that no longer reaches them;
2. from far to near along the new next hops: the remaining traffic of cut and narrowed nodes is
   added.

With k nodes behind a failure, both passes cost the arcs of these and of the nodes on their paths,
not all arcs.

The kernels take arrays, not the named tuples that hold them: reading a tuple's array changes a
reference count, on which two threads contend (3,828 pairs of Germany50's cables on two cores: 0.35
s with tuples, 0.18 s without).  Entry points: :class:`IgpFailures`, :func:`reroute`.
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

# Kinds of nodes.
_UNCHANGED = 0
_NARROWED = 1
_CUT = 2


class RerouteScratch(NamedTuple):
    """Work arrays of one thread; their content before a call is ignored.

    Attributes:
        kind: (N,) kind of each node.
        distance: (N,) distance to the destination after the failure.
        cut: (N,) cut nodes, by their distance before the failure.
        settled: (N,) cut nodes that have a path, by distance.
        hop: (E,) new next hops of a node.
        keys: (E + N + 1,) keys of the heap.
        heap_nodes: (E + N + 1,) nodes of the heap.
        moved: (N,) Gbit/s withdrawn from a node, then Gbit/s to be sent again.
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
    """Allocate work arrays for :func:`reroute`."""
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
def positions_in_order(order: IntArray, reached: IntArray, node_position: IntArray) -> None:
    """Fill ``node_position`` (D, N) with the position of each node in ``order`` (D, N); entries of
    nodes without a path stay.
    """
    for t in range(len(order)):
        for i in range(reached[t]):
            node_position[t, order[t, i]] = i


@inner_kernel
def reroute(  # type: ignore[no-untyped-def]
    links, dags, node_position, is_failed, failed_links, volume, passing, load, lost, scratch
):
    """Update the loads of M matrices from no failure to a failure, over all destinations.

    Args:
        links: links of the network, without the failure.
        dags: shortest paths, without the failure.
        node_position: (N, N) positions of nodes, see :func:`positions_in_order`.
        is_failed: (E,) whether a link has failed.
        failed_links: indices of the failed links.
        volume: (M, N, N) Gbit/s to the first node from the second one.
        passing: (M, N, N) Gbit/s to the first node that pass the second one, without the failure.
        load: (M, E) Gbit/s, updated in place.
        lost: (M,) Gbit/s, to which the volume of nodes without a path is added.
        scratch: work arrays.
    """
    distance, order, reached, arc_start, arc, share = dags
    out_ptr, out_link, in_ptr, in_link, tail, head, metric, weight, has_transit = links
    kind, distance_after, cut, settled, hop, keys, heap_nodes, moved = scratch
    nodes = len(node_position)
    # For each destination t:
    for t in range(nodes):
        # First node, in order of distance, whose next hops fail.
        first = nodes
        for e in failed_links:
            head_distance = distance[t, head[e]]
            if head_distance < np.inf and distance[t, tail[e]] == metric[e] + head_distance:
                first = min(first, node_position[t, tail[e]])
        if first == nodes:
            continue
        # Kinds of nodes, and new distances of cut ones.
        last, num_cut = _find_kinds(
            t, first, order, reached, arc_start, arc, head, is_failed, kind, cut
        )
        distance_after[:] = distance[t]
        num_with_path = _settle(
            cut,
            num_cut,
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
        # Move the traffic of each matrix m.
        for m in range(len(volume)):
            _withdraw(t, last, order, arc_start, arc, share, head, kind, m, passing, load, moved)
            # Traffic of nodes without a path is lost.
            if num_with_path < num_cut:
                for c in range(num_cut):
                    if distance_after[cut[c]] == np.inf:
                        lost[m] += volume[m, t, cut[c]]
                        moved[cut[c]] = 0.0
            _send(
                t,
                last,
                settled,
                num_with_path,
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
    """Classify nodes from a position of the order on: fill ``kind`` (N,) and ``cut``.

    Returns:
        last position whose node is not unchanged, and number of cut nodes.
    """
    kind[:] = _UNCHANGED
    last = first
    num_cut = 0
    for i in range(first, reached[t]):
        # Count the next hops that neither fail nor lead to cut nodes.
        num_remaining = 0
        for a in range(arc_start[t, i], arc_start[t, i + 1]):
            if not is_failed[arc[t, a]] and kind[head[arc[t, a]]] != _CUT:
                num_remaining += 1
        # Classify the node.
        if num_remaining < arc_start[t, i + 1] - arc_start[t, i]:
            last = i
            if num_remaining == 0:
                kind[order[t, i]] = _CUT
                cut[num_cut] = order[t, i]
                num_cut += 1
            else:
                kind[order[t, i]] = _NARROWED
    return last, num_cut


@inner_kernel
def _settle(  # type: ignore[no-untyped-def]
    cut,
    num_cut,
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
    """Compute the new distances of cut nodes; return the number of those that have a path, which
    ``settled`` lists by distance.
    """
    # Push cut nodes with neighbours that are not cut.
    for c in range(num_cut):
        distance[cut[c]] = np.inf
    size = 0
    for c in range(num_cut):
        u = cut[c]
        best = np.inf
        for j in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[j]
            # Only the destination has distance 0.
            is_allowed = has_transit[head[e]] or distance[head[e]] == 0.0
            if not is_failed[e] and kind[head[e]] != _CUT and is_allowed:
                best = min(best, metric[e] + distance[head[e]])
        if best < np.inf:
            distance[u] = best
            size = heap_push(keys, heap_nodes, size, best, u)
    # Dijkstra's algorithm among cut nodes.
    num_settled = 0
    while size:
        key = keys[0]
        u = heap_nodes[0]
        size = heap_pop(keys, heap_nodes, size)
        # Skip outdated entries: the node was reached by a shorter path.
        if key > distance[u]:
            continue
        settled[num_settled] = u
        num_settled += 1
        if not has_transit[u]:
            continue
        for j in range(in_ptr[u], in_ptr[u + 1]):
            e = in_link[j]
            neighbour = tail[e]
            if (
                not is_failed[e]
                and kind[neighbour] == _CUT
                and key + metric[e] < distance[neighbour]
            ):
                distance[neighbour] = key + metric[e]
                size = heap_push(keys, heap_nodes, size, distance[neighbour], neighbour)
    return num_settled


@inner_kernel
def _withdraw(  # type: ignore[no-untyped-def]
    t, last, order, arc_start, arc, share, head, kind, m, passing, load, moved
):
    """Withdraw traffic of changed nodes from ``load``; ``moved`` (N,) receives the traffic that
    they must send again, 0 at unchanged nodes.
    """
    moved[:] = 0.0
    # From far to near: changed nodes withdraw all traffic that passes them, the others the traffic
    # that no longer reaches them.
    for j in range(last):
        i = last - j
        u = order[t, i]
        withdrawn = passing[m, t, u] if kind[u] != _UNCHANGED else moved[u]
        if withdrawn != 0.0:
            for a in range(arc_start[t, i], arc_start[t, i + 1]):
                amount = withdrawn * share[t, a]
                load[m, arc[t, a]] -= amount
                moved[head[arc[t, a]]] += amount
        # Traffic that still reaches a changed node is sent again.
        moved[u] = passing[m, t, u] - moved[u] if kind[u] != _UNCHANGED else 0.0
    moved[t] = 0.0


@kernel
def _send(  # type: ignore[no-untyped-def]
    t,
    last,
    settled,
    num_with_path,
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
    # Nothing is moved at nodes behind ``last``, except from cut nodes.
    j = num_with_path - 1
    farthest = distance[settled[j]] if num_with_path else 0.0
    i = last
    while i + 1 < reached[t] and distance[order[t, i + 1]] < farthest:
        i += 1
    while i > 0 or j >= 0:
        # Skip cut nodes in the old order; they follow in the order of their new distances.
        if i > 0 and kind[order[t, i]] == _CUT:
            i -= 1
            continue
        # Take the farther one of the next cut node and the next other node.
        if j >= 0 and (i == 0 or distance[settled[j]] >= distance[order[t, i]]):
            u = settled[j]
            position = 0
            j -= 1
        else:
            u = order[t, i]
            position = i
            i -= 1
        amount = moved[u]
        if amount == 0.0:
            continue
        # Unchanged nodes use the old next hops and shares.
        if kind[u] == _UNCHANGED:
            for a in range(arc_start[t, position], arc_start[t, position + 1]):
                link_amount = amount * share[t, a]
                load[m, arc[t, a]] += link_amount
                moved[head[arc[t, a]]] += link_amount
            continue
        # Other nodes use the remaining links on shortest paths, in proportion to their weights.
        total_weight = 0.0
        num_hops = 0
        for b in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[b]
            is_allowed = has_transit[head[e]] or distance[head[e]] == 0.0
            if not is_failed[e] and is_allowed and distance[u] == metric[e] + distance[head[e]]:
                total_weight += weight[e]
                hop[num_hops] = e
                num_hops += 1
        for h in range(num_hops):
            link_amount = amount * weight[hop[h]] / total_weight
            load[m, hop[h]] += link_amount
            moved[head[hop[h]]] += link_amount


# Scalar operations of a failure per arc, approximately; decides how many threads are used.
_OPERATIONS_PER_ARC = 8


class FailureResults(NamedTuple):
    """Loads of M matrices under S failures.

    Attributes:
        utilisation: (S, M) largest utilisation of a live link.
        busiest: (S, M) index of that link; -1 without any load.
        overload: (S, M) Gbit/s above the capacities, over all links.
        lost: (S, M) Gbit/s of disconnected demands.
        at_risk: (S, M) Gbit/s of nodes that can reach a micro-loop; 0 unless simulated.
        load: (S, M, E) Gbit/s; (0, M, E) unless requested.
    """

    utilisation: FloatArray
    busiest: Int64Array
    overload: FloatArray
    lost: FloatArray
    at_risk: FloatArray
    load: FloatArray


@inner_kernel
def _load_remaining_hops(  # type: ignore[no-untyped-def]
    row, links, dags, is_failed, volume, load, stuck
):
    """Variant of :func:`load_inwards` in which the remaining next hops take all traffic; traffic
    without any is added to ``stuck`` (N,).
    """
    order = dags.order[row]
    arc_start = dags.arc_start[row]
    arc = dags.arc[row]
    share = dags.share[row]
    # From far to near, without the destination.
    for j in range(dags.reached[row] - 1):
        i = dags.reached[row] - 1 - j
        passing = volume[order[i]]
        if passing == 0.0:
            continue
        # Share of the next hops that have not failed.
        remaining_share = 0.0
        for a in range(arc_start[i], arc_start[i + 1]):
            if not is_failed[arc[a]]:
                remaining_share += share[a]
        if remaining_share == 0.0:
            stuck[order[i]] += passing
            continue
        # Divide the traffic among them.
        for a in range(arc_start[i], arc_start[i + 1]):
            link = arc[a]
            if not is_failed[link]:
                amount = passing * share[a] / remaining_share
                load[link] += amount
                volume[links.head[link]] += amount


@inner_kernel
def _volume_at_risk(  # type: ignore[no-untyped-def]
    row, links, dags, after, is_failed, hops_left, queue, volume
):
    """Return the Gbit/s of nodes that can reach a cycle of the next hops before and after together.

    Repeatedly removes nodes without remaining next hops (Kahn's algorithm); the other nodes can
    reach a cycle.
    """
    nodes = len(hops_left)
    distance = dags.distance[row]
    distance_after = after.distance[0]
    tail = links.tail
    # Number of next hops of each node, before and after together.
    hops_left[:] = 0
    for e in range(len(tail)):
        if not is_failed[e] and (
            is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)
        ):
            hops_left[tail[e]] += 1
    # Remove nodes without next hops; this removes next hops of their neighbours.
    size = 0
    for u in range(nodes):
        if hops_left[u] == 0:
            queue[size] = u
            size += 1
    num_processed = 0
    while num_processed < size:
        u = queue[num_processed]
        num_processed += 1
        for j in range(links.in_ptr[u], links.in_ptr[u + 1]):
            e = links.in_link[j]
            if not is_failed[e] and (
                is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)
            ):
                hops_left[tail[e]] -= 1
                if hops_left[tail[e]] == 0:
                    queue[size] = tail[e]
                    size += 1
    # Traffic of the other nodes.
    total = 0.0
    for u in range(nodes):
        if hops_left[u] > 0:
            total += volume[u]
    return total


@inner_kernel
def _fast_reroute(  # type: ignore[no-untyped-def]
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
    """Update loads (M, E) from no failure to a failure during fast reroute.

    Adds lost traffic to ``lost`` (M,) and traffic at risk of micro-loops to ``at_risk`` (M,).
    """
    matrices, nodes = volume.shape[0], volume.shape[1]
    for t in range(nodes):
        # Skip destinations whose shortest paths do not use a failed link.
        distance = dags.distance[t]
        is_affected = False
        for e in failed_links:
            if is_on_dag(distance, links, e):
                is_affected = True
                break
        if not is_affected:
            continue
        # Shortest paths after convergence; ``stuck`` keeps the metrics of failed links meanwhile.
        for e in failed_links:
            stuck[nodes + e] = links.metric[e]
            links.metric[e] = np.inf
        grow_dag(t, as_int64(0), links, after, keys, heap_nodes)
        for e in failed_links:
            links.metric[e] = stuck[nodes + e]
        for m in range(matrices):
            for u in range(nodes):
                passing[u] = -volume[m, t, u]
            # Withdraw the loads before the failure.
            load_inwards(t, links.head, dags, passing, load[m])
            # Traffic of nodes that lose their paths is lost.
            for u in range(nodes):
                passing[u] = volume[m, t, u]
                if after.distance[0, u] == np.inf and dags.distance[t, u] < np.inf:
                    lost[m] += volume[m, t, u]
                    passing[u] = 0.0
            # Old paths with the remaining next hops, and backup paths of stuck traffic.
            stuck[:nodes] = 0.0
            _load_remaining_hops(t, links, dags, is_failed, passing, load[m], stuck)
            for u in range(nodes):
                # Sent there by nodes that do not know of the failure yet.
                if after.distance[0, u] == np.inf:
                    lost[m] += stuck[u]
            load_inwards(0, links.head, after, stuck[:nodes], load[m])
            # Micro-loops.
            at_risk[m] += _volume_at_risk(
                t, links, dags, after, is_failed, hops_left, queue, volume[m, t]
            )


@partitioned_kernel("blocks", lambda blocks: blocks)
def _evaluate_failures(  # type: ignore[no-untyped-def]
    begin,
    end,
    links,
    dags,
    node_position,
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
    """Evaluate every ``blocks``-th failure from each of the blocks ``begin`` to ``end`` on.

    Args:
        begin: first block.
        end: block after the last one.
        links: links of the network, without a failure.
        dags: shortest paths, without a failure.
        node_position: (N, N) positions of nodes, see :func:`positions_in_order`.
        set_ptr: (S + 1,) begin of each failure in ``set_link``.
        set_link: links of all failures.
        volume: (M, N, N) Gbit/s to the first node from the second one.
        passing: (M, N, N) Gbit/s to the first node that pass the second one, without a failure.
        base: (M, E) Gbit/s without a failure.
        lost_before: (M,) Gbit/s lost without a failure.
        inverse_capacity: (E,) 1 / capacity; 0 for links without capacity.
        capacity: (E,) Gbit/s.
        is_repairing: loads during fast reroute, not after convergence.
        blocks: number of blocks.
        utilisation: (S, M) result, like the following ones as in :class:`FailureResults`.
        busiest: (S, M) result.
        overload: (S, M) result.
        lost: (S, M) result.
        at_risk: (S, M) result.
        loads: (S, M, E) result; empty unless requested.
    """
    for block in range(begin, end):
        # Work arrays.
        matrices = volume.shape[0]
        nodes = volume.shape[1]
        num_links = base.shape[1]
        scratch = new_reroute_scratch(nodes, num_links)
        num_repair_arcs = num_links if is_repairing else 0
        thread_links = IgpLinks(
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
        after = new_dags(1, nodes, num_repair_arcs)
        keys = np.empty(2 * num_repair_arcs + 2)
        heap_nodes = np.empty(2 * num_repair_arcs + 2, dtype=np.int32)
        at_node = np.empty(nodes)
        stuck = np.zeros(nodes + num_links)
        hops_left = np.empty(nodes, dtype=np.int32)
        queue = np.empty(nodes, dtype=np.int32)
        is_failed = np.zeros(num_links, dtype=np.bool_)
        load = np.empty((matrices, num_links))
        for s in range(block, len(set_ptr) - 1, blocks):
            # Begin with the loads without failure.
            failed_links = set_link[set_ptr[s] : set_ptr[s + 1]]
            for e in failed_links:
                is_failed[e] = True
            load[:] = base
            for m in range(matrices):
                lost[s, m] = lost_before[m]
            # Loads during fast reroute, or after convergence.
            if is_repairing:
                _fast_reroute(
                    thread_links,
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
                    node_position,
                    is_failed,
                    failed_links,
                    volume,
                    passing,
                    load,
                    lost[s],
                    scratch,
                )
            # Largest utilisation, its link, and overload of each matrix.
            for m in range(matrices):
                largest = 0.0
                busiest_link = -1
                excess = 0.0
                for e in range(num_links):
                    if is_failed[e]:
                        load[m, e] = 0.0
                        continue
                    # A difference of loads, which rounding may leave below 0.
                    load[m, e] = max(0.0, load[m, e])
                    link_utilisation = load[m, e] * inverse_capacity[e]
                    if link_utilisation > largest:
                        largest = link_utilisation
                        busiest_link = e
                    excess += max(0.0, load[m, e] - capacity[e])
                utilisation[s, m] = largest
                busiest[s, m] = busiest_link
                overload[s, m] = excess
                # Loads of all links, if requested.
                if len(loads):
                    for e in range(num_links):
                        loads[s, m, e] = load[m, e]
            # Clear the failure for the next one.
            for e in failed_links:
                is_failed[e] = False


@partitioned_kernel("blocks", int)
def _loads_without_failure(  # type: ignore[no-untyped-def]
    begin, end, head, dags, volume, passing, load, blocks
):
    """Fill ``passing`` (M, N, N), Gbit/s to the first node that pass the second one, and add the
    loads to ``load``.
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
        adjacency: (M, E) Gbit/s on adjacency segments; None for none.  It is lost when the link
            fails: adjacency segments are assumed unprotected, and no source has withdrawn the list
            yet.
        looping: (M,) Gbit/s lost in forwarding loops; None for none.

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
        self.dag = dag
        self._volume = np.ascontiguousarray(volume)
        nodes = dag.topology.num_nodes
        num_links = dag.topology.num_links
        self.passing = np.empty_like(self._volume)
        self._node_position = np.full((nodes, nodes), nodes, dtype=np.int32)
        positions_in_order(dag.dags.order, dag.dags.reached, self._node_position)
        self._operations = _OPERATIONS_PER_ARC * dag.num_arcs * len(volume)
        blocks = max(1, min(nodes, MAX_BLOCKS))
        load = np.zeros((blocks, len(volume), num_links))
        with threads_for(self._operations):
            _loads_without_failure(
                dag.links.head, dag.dags, self._volume, self.passing, load, blocks
            )
        adjacency = np.zeros((len(volume), num_links)) if adjacency is None else adjacency
        is_live = _is_live_link(dag)
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
        """Load demands along their segment lists; a list whose midpoint or adjacency fails loses
        its traffic there, once.

        Args:
            dag: shortest paths without failure.
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.
            policies: segment lists of some demands.
            after: shortest paths under the failure that affects the lists; None for no failure.
        """
        loads = cls(dag, *steering_of(after or dag, policies).traffic(pairs, demand))
        loads._demands = (pairs, demand, policies) if policies.lists and after is None else None
        return loads

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Compute the loads when all links of each set fail.

        Args:
            failures: link indices of each set.
            repairing: loads during fast reroute instead of after convergence, and traffic at risk.
            loads: also return the loads of all links.
        """
        failures = [sorted(set(links)) for links in failures]
        results = self._evaluate(failures, repairing=repairing, loads=loads)
        # Traffic of adjacency segments on failed links is lost.
        for s, links in enumerate(failures):
            results.lost[s] += self._adjacency[:, links].sum(1)
        # Failures that change the segment lists.
        if self._demands is not None:
            for s in self._list_changing_failures(self._demands[2], results.lost, repairing):
                rerouted = IgpFailures.of_demands(
                    self.dag, *self._demands, self.dag.without(failures[s])
                )
                changed_results = rerouted.under([failures[s]], repairing=repairing, loads=loads)
                for result, changed_result in zip(results, changed_results, strict=True):
                    result[s : s + 1] = changed_result
        return results

    def _evaluate(
        self, failures: list[list[int]], *, repairing: bool, loads: bool
    ) -> FailureResults:
        """Compute the loads with unchanged segment lists; arguments as in :meth:`under`."""
        num_matrices = len(self._volume)
        num_failures = len(failures)
        num_links = self.dag.topology.num_links
        # Links of all failures, concatenated.
        failure_ptr = np.concatenate([[0], np.cumsum([len(links) for links in failures])]).astype(
            np.int64
        )
        failure_link = np.array([link for links in failures for link in links], dtype=np.int64)
        capacity = self.dag.topology.capacity
        inverse_capacity = np.where(capacity > 0, 1 / np.where(capacity > 0, capacity, 1), 0)
        results = FailureResults(
            utilisation=np.zeros((num_failures, num_matrices)),
            busiest=np.zeros((num_failures, num_matrices), dtype=np.int64),
            overload=np.zeros((num_failures, num_matrices)),
            lost=np.zeros((num_failures, num_matrices)),
            at_risk=np.zeros((num_failures, num_matrices)),
            load=np.zeros((num_failures if loads else 0, num_matrices, num_links)),
        )
        with threads_for(self._operations * num_failures):
            _evaluate_failures(
                self.dag.links,
                self.dag.dags,
                self._node_position,
                failure_ptr,
                failure_link,
                self._volume,
                self.passing,
                self.load,
                self.lost,
                inverse_capacity,
                capacity,
                repairing,
                max(1, min(num_failures, MAX_BLOCKS)),
                *results,
            )
        return results

    def _list_changing_failures(
        self, policies: SegmentPolicies, lost: FloatArray, repairing: bool
    ) -> list[int]:
        """Return the failures that change segment lists or the traffic that uses them.

        Args:
            policies: segment lists.
            lost: (S, M) Gbit/s lost under each failure.
            repairing: whether fast reroute is simulated.

        Raises:
            InputError: fast reroute of transit policies.
        """
        # A failure that cuts lists loses traffic.
        is_changed = np.array((lost > self.lost).any(1))
        # The traffic that crosses a router depends on the failure.
        if policies.is_transit:
            if repairing:
                raise InputError("--repair", "", "policies of single demands", "transit policies")
            is_changed[:] = True
        return np.flatnonzero(is_changed).tolist()


def _is_live_link(dag: EcmpDag) -> BoolArray:
    return np.isfinite(dag.links.metric)
