"""Link loads of shortest-path routing under link failures: after convergence, and during fast
reroute.

The traffic through each node towards each destination is stored for the network without failure.
A failure affects a destination only if a failed link is on its shortest-path DAG, and then only
nodes upstream of that link.

- *After convergence* every node uses the shortest paths of the network without the failed links.
- *Fast reroute* (TI-LFA, RFC 9855): only the node at a failed link has reacted.  If it has other
  equal-cost next hops, these take all traffic; else it uses its shortest path after convergence, by
  a segment list.  All other nodes still use the old paths.
- *Micro-loops* are possible for a destination if the next hops before and after convergence
  together contain a cycle, since nodes do not converge simultaneously (RFC 8333).  Traffic at risk
  is that of nodes which can reach the cycle.

Towards one destination, a failure divides the nodes into three kinds:

- *affected*: every next hop has failed or leads to an affected node; the distance grows, or becomes
  infinite;
- *fewer hops*: some next hops are lost, and the others take all traffic; the distance stays;
- *unchanged*: all next hops remain.

Nodes are classified in order of their distances.  New distances are computed for affected nodes
only, by Dijkstra's algorithm from the other nodes (Ramalingam and Reps, "An incremental algorithm
for a generalization of the shortest-path problem", 1996).  Loads are linear in the traffic, hence
two passes update them:

1. from far to near along the old next hops: affected nodes and nodes with fewer hops withdraw all
   their traffic, unchanged nodes withdraw the traffic that no longer reaches them;
2. from far to near along the new next hops: the traffic that arrives at affected nodes and at nodes
   with fewer hops is added.

Arrays over pairs of nodes have the destination first: ``volume[m, t, u]`` is the demand from node u
to node t in matrix m.

Both passes visit the arcs of nodes upstream of the failure and of nodes on their paths, not all
arcs.

The kernels take arrays, not the named tuples that hold them: reading a tuple's array changes a
reference count, on which two threads contend (3,828 pairs of Germany50's cables on two cores: 0.35
s with tuples, 0.18 s without).  Entry points: :class:`IgpFailures`, :func:`reroute`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.errors import InputError
from teal.network.ecmp import EcmpDag, IgpLinks, is_on_dag, new_dags, shortest_path_dag
from teal.network.segment_lists import SegmentPolicies
from teal.network.shortest import heap_pop, heap_push
from teal.pathops.segment_passes import MAX_BLOCKS, add_ecmp_loads
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import as_int64, inner_kernel, kernel, partitioned_kernel, threads_for
from teal_ip.routing.steering import steering_of

# Kinds of nodes towards one destination, under a failure: all next hops remain; some are lost, and
# the distance stays; all are lost, and the distance grows.
_UNCHANGED = 0
_FEWER_HOPS = 1
_AFFECTED = 2


class RerouteScratch(NamedTuple):
    """Scratch arrays of one thread for :func:`reroute`; their content before a call is ignored.

    Attributes:
        node_kind: (N,) kind of each node: ``_UNCHANGED``, ``_FEWER_HOPS`` or ``_AFFECTED``.
        distance: (N,) distance of each node to the destination after the failure.
        affected_nodes: (N,) indices of affected nodes, by their distance before the failure.
        settled_nodes: (N,) affected nodes with a path after the failure, by new distance.
        new_next_hops: (E,) links that are the next hops of one node after the failure.
        heap_keys: (E + N + 1,) distances in the heap of Dijkstra's algorithm.
        heap_nodes: (E + N + 1,) nodes in the heap.
        rerouted_traffic: (N,) Gbit/s withdrawn upstream of each node, then Gbit/s to send from
            it anew.
    """

    node_kind: AnyArray
    distance: FloatArray
    affected_nodes: IntArray
    settled_nodes: IntArray
    new_next_hops: IntArray
    heap_keys: FloatArray
    heap_nodes: IntArray
    rerouted_traffic: FloatArray


@inner_kernel
def new_reroute_scratch(num_nodes: int, num_links: int) -> RerouteScratch:
    """Allocate the scratch arrays of :func:`reroute` for a network of N nodes and E links."""
    size = num_links + num_nodes + 1
    return RerouteScratch(
        np.zeros(num_nodes, dtype=np.int8),
        np.empty(num_nodes),
        np.empty(num_nodes, dtype=np.int32),
        np.empty(num_nodes, dtype=np.int32),
        np.empty(num_links, dtype=np.int32),
        np.empty(size),
        np.empty(size, dtype=np.int32),
        np.empty(num_nodes),
    )


@kernel
def positions_in_order(order: IntArray, num_reached: IntArray, node_position: IntArray) -> None:
    """Fill ``node_position`` with the rank of each node by distance to each destination.

    ``order[t, node_position[t, u]] == u``; entries of nodes without a path keep their values.

    Args:
        order: (D, N) nodes by distance to destination t, the destination first.
        num_reached: (D,) number of nodes with a path; the valid part of each row of ``order``.
        node_position: (D, N) ranks (written).
    """
    for t in range(len(order)):
        for i in range(num_reached[t]):
            node_position[t, order[t, i]] = i


@inner_kernel
def reroute(  # type: ignore[no-untyped-def]
    links, dags, node_position, is_failed, failed_links, volume, node_traffic, load, lost, scratch
):
    """Update the loads of M matrices from no failure to a failure, after the IGP has converged.

    For each destination with a failed link on its shortest paths: classify the nodes, compute the
    new distances of affected nodes (those that lose all next hops), withdraw traffic from the old
    next hops, and send it along the new ones.

    Args:
        links: :class:`teal.network.ecmp.IgpLinks`, the E links of the network without the failure:
            links out of and into each node in CSR form, end nodes, metrics and load-balancing
            weights of links, and which nodes forward transit traffic.
        dags: :class:`teal.network.ecmp.Dags`, the shortest-path DAG towards each of the N
            destinations without the failure: distances, nodes by distance, number of nodes with a
            path, and next hops of each node with their traffic shares.
        node_position: (N, N) rank of node u by distance to destination t, at [t, u]; N if there is
            no path.
        is_failed: (E,) whether a link has failed.
        failed_links: indices of the failed links.
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        node_traffic: (M, N, N) Gbit/s through node u to destination t without the failure, at
            [m, t, u]: demand from u plus transit traffic.
        load: (M, E) link loads, Gbit/s: without the failure on entry, with it on return.
        lost: (M,) Gbit/s; the demand of nodes that lose their path is added.
        scratch: scratch arrays of :func:`new_reroute_scratch`.
    """
    # The arrays of the named tuples.  The next hops of the node order[t, i] are the links
    # arc[t, arc_start[t, i]:arc_start[t, i + 1]]; their traffic shares are at the same positions.
    distance, order, num_reached, arc_start, arc, split_ratio = dags
    out_ptr, out_link, in_ptr, in_link, tail, head, metric, weight, has_transit = links
    (
        node_kind,
        distance_after,
        affected_nodes,
        settled_nodes,
        new_next_hops,
        heap_keys,
        heap_nodes,
        rerouted_traffic,
    ) = scratch
    num_nodes = len(node_position)
    for t in range(num_nodes):
        # Rank of the nearest node with a failed next hop, which is a link that is on a shortest
        # path of its start: nodes closer to the destination keep their paths.  Without such a node
        # the failure does not affect the destination.
        first_changed_position = num_nodes
        for e in failed_links:
            head_distance = distance[t, head[e]]
            if head_distance < np.inf and distance[t, tail[e]] == metric[e] + head_distance:
                first_changed_position = min(first_changed_position, node_position[t, tail[e]])
        if first_changed_position == num_nodes:
            continue
        # Classify the nodes up to the last one that loses a next hop, and compute the new distances
        # of affected ones.
        last_changed_position, num_affected = _classify_nodes(
            t,
            first_changed_position,
            order,
            num_reached,
            arc_start,
            arc,
            head,
            is_failed,
            node_kind,
            affected_nodes,
        )
        distance_after[:] = distance[t]
        num_with_path = _settle_affected_nodes(
            affected_nodes,
            num_affected,
            out_ptr,
            out_link,
            in_ptr,
            in_link,
            tail,
            head,
            metric,
            has_transit,
            is_failed,
            node_kind,
            distance_after,
            settled_nodes,
            heap_keys,
            heap_nodes,
        )
        # Reroute the traffic of each matrix m.
        for m in range(len(volume)):
            # Withdraw the traffic from the old next hops.
            _withdraw_old_traffic(
                t,
                last_changed_position,
                order,
                arc_start,
                arc,
                split_ratio,
                head,
                node_kind,
                m,
                node_traffic,
                load,
                rerouted_traffic,
            )
            # The demand of nodes without a path is lost.
            if num_with_path < num_affected:
                for c in range(num_affected):
                    if distance_after[affected_nodes[c]] == np.inf:
                        lost[m] += volume[m, t, affected_nodes[c]]
                        rerouted_traffic[affected_nodes[c]] = 0.0
            # Send the traffic that still reaches changed nodes along their new next hops.
            _send_rerouted_traffic(
                t,
                last_changed_position,
                settled_nodes,
                num_with_path,
                order,
                num_reached,
                arc_start,
                arc,
                split_ratio,
                out_ptr,
                out_link,
                head,
                metric,
                weight,
                has_transit,
                is_failed,
                node_kind,
                distance_after,
                new_next_hops,
                m,
                load,
                rerouted_traffic,
            )


@inner_kernel
def _classify_nodes(  # type: ignore[no-untyped-def]
    t,
    first_changed_position,
    order,
    num_reached,
    arc_start,
    arc,
    head,
    is_failed,
    node_kind,
    affected_nodes,
):
    """Classify the nodes towards destination t under a failure, in order of distance.

    A next hop is lost if its link has failed or leads to an affected node.  A node that loses all
    its next hops is affected, one that loses some has fewer hops, any other one is unchanged.

    Args:
        t: destination.
        first_changed_position: first position in ``order[t]`` whose node has a failed next hop.
        order: (N, N) nodes by distance to each destination.
        num_reached: (N,) number of nodes with a path to each destination.
        arc_start: (N, N + 1) next hops of the node ``order[t, i]`` are the links
            arc[t, arc_start[t, i]:arc_start[t, i + 1]].
        arc: (N, E) links of each shortest-path DAG.
        head: (E,) node where each link ends.
        is_failed: (E,) whether a link has failed.
        node_kind: (N,) ``_UNCHANGED``, ``_FEWER_HOPS`` or ``_AFFECTED`` (written).
        affected_nodes: (N,) affected nodes, by distance; the first ``num_affected`` are written.

    Returns:
        last position in ``order[t]`` of a node that is affected or has fewer hops, and number of
        affected nodes.
    """
    node_kind[:] = _UNCHANGED
    last_changed_position = first_changed_position
    num_affected = 0
    for i in range(first_changed_position, num_reached[t]):
        # Count the next hops that neither fail nor lead to affected nodes.
        num_remaining = 0
        for a in range(arc_start[t, i], arc_start[t, i + 1]):
            if not is_failed[arc[t, a]] and node_kind[head[arc[t, a]]] != _AFFECTED:
                num_remaining += 1
        # Classify the node.
        if num_remaining < arc_start[t, i + 1] - arc_start[t, i]:
            last_changed_position = i
            if num_remaining == 0:
                node_kind[order[t, i]] = _AFFECTED
                affected_nodes[num_affected] = order[t, i]
                num_affected += 1
            else:
                node_kind[order[t, i]] = _FEWER_HOPS
    return last_changed_position, num_affected


@inner_kernel
def _settle_affected_nodes(  # type: ignore[no-untyped-def]
    affected_nodes,
    num_affected,
    out_ptr,
    out_link,
    in_ptr,
    in_link,
    tail,
    head,
    metric,
    has_transit,
    is_failed,
    node_kind,
    distance,
    settled_nodes,
    heap_keys,
    heap_nodes,
):
    """Compute the distances of affected nodes to one destination after a failure.

    Dijkstra's algorithm, which starts from each affected node's best link to another node: the
    distances of nodes that are not affected do not change.

    Args:
        affected_nodes: (N,) affected nodes; the first ``num_affected`` are used.
        num_affected: number of affected nodes.
        out_ptr: (N + 1,) links out of node u are out_link[out_ptr[u]:out_ptr[u + 1]].
        out_link: (E,) links by node where they start.
        in_ptr: (N + 1,) links into node u are in_link[in_ptr[u]:in_ptr[u + 1]].
        in_link: (E,) links by node where they end.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends.
        metric: (E,) IGP metrics.
        has_transit: (N,) whether a node forwards transit traffic.
        is_failed: (E,) whether a link has failed.
        node_kind: (N,) ``_UNCHANGED``, ``_FEWER_HOPS`` (some next hops are lost) or ``_AFFECTED``
            (all are lost, and the distance grows).
        distance: (N,) distances before the failure; entries of affected nodes are overwritten,
            infinite without a path.
        settled_nodes: (N,) affected nodes with a path, by new distance (written).
        heap_keys: (E + N + 1,) distances in the heap (scratch).
        heap_nodes: (E + N + 1,) nodes in the heap (scratch).

    Returns:
        number of affected nodes with a path.
    """
    # Push affected nodes with a live link to a node that is not affected, with the length of the
    # best path over such a link; the others have no path so far.
    for c in range(num_affected):
        distance[affected_nodes[c]] = np.inf
    heap_size = 0
    for c in range(num_affected):
        u = affected_nodes[c]
        best_distance = np.inf
        for j in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[j]
            # The link must end at a node that forwards transit traffic, or at the destination,
            # which alone has distance 0.
            head_forwards = has_transit[head[e]] or distance[head[e]] == 0.0
            if not is_failed[e] and node_kind[head[e]] != _AFFECTED and head_forwards:
                best_distance = min(best_distance, metric[e] + distance[head[e]])
        if best_distance < np.inf:
            distance[u] = best_distance
            heap_size = heap_push(heap_keys, heap_nodes, heap_size, best_distance, u)
    # Dijkstra's algorithm among affected nodes, against the direction of links.
    num_settled = 0
    while heap_size:
        node_distance = heap_keys[0]
        u = heap_nodes[0]
        heap_size = heap_pop(heap_keys, heap_nodes, heap_size)
        # Skip outdated entries: the node was reached by a shorter path.
        if node_distance > distance[u]:
            continue
        settled_nodes[num_settled] = u
        num_settled += 1
        if not has_transit[u]:
            continue
        for j in range(in_ptr[u], in_ptr[u + 1]):
            e = in_link[j]
            neighbour = tail[e]
            if (
                not is_failed[e]
                and node_kind[neighbour] == _AFFECTED
                and node_distance + metric[e] < distance[neighbour]
            ):
                distance[neighbour] = node_distance + metric[e]
                heap_size = heap_push(
                    heap_keys, heap_nodes, heap_size, distance[neighbour], neighbour
                )
    return num_settled


@inner_kernel
def _withdraw_old_traffic(  # type: ignore[no-untyped-def]
    t,
    last_changed_position,
    order,
    arc_start,
    arc,
    split_ratio,
    head,
    node_kind,
    m,
    node_traffic,
    load,
    rerouted_traffic,
):
    """Withdraw one matrix's traffic to destination t from the old next hops of changed nodes.

    Changed nodes (affected, or with fewer hops) withdraw all traffic through them.  Unchanged nodes
    withdraw the traffic that upstream nodes have withdrawn.

    Args:
        t: destination.
        last_changed_position: last position in ``order[t]`` whose node has changed.
        order: (N, N) nodes by distance to each destination.
        arc_start: (N, N + 1) next hops of the node ``order[t, i]`` are the links
            arc[t, arc_start[t, i]:arc_start[t, i + 1]].
        arc: (N, E) links of each shortest-path DAG.
        split_ratio: (N, E) share of its node's traffic on each entry of ``arc``.
        head: (E,) node where each link ends.
        node_kind: (N,) ``_UNCHANGED``, ``_FEWER_HOPS`` (some next hops are lost) or ``_AFFECTED``
            (all are lost, and the distance grows).
        m: traffic matrix.
        node_traffic: (M, N, N) Gbit/s through node u to t without the failure, at [m, t, u].
        load: (M, E) link loads, Gbit/s; row m is updated.
        rerouted_traffic: (N,) Gbit/s that still reach each changed node, to be sent anew; 0 at
            unchanged nodes (written).
    """
    # Until a node is visited, its entry is the traffic withdrawn upstream of it.
    rerouted_traffic[:] = 0.0
    # From far to near, without the destination.
    for j in range(last_changed_position):
        i = last_changed_position - j
        u = order[t, i]
        withdrawn_traffic = (
            node_traffic[m, t, u] if node_kind[u] != _UNCHANGED else rerouted_traffic[u]
        )
        if withdrawn_traffic != 0.0:
            for a in range(arc_start[t, i], arc_start[t, i + 1]):
                link_traffic = withdrawn_traffic * split_ratio[t, a]
                load[m, arc[t, a]] -= link_traffic
                rerouted_traffic[head[arc[t, a]]] += link_traffic
        # Traffic that still reaches a changed node is to be sent along its new next hops.
        rerouted_traffic[u] = (
            node_traffic[m, t, u] - rerouted_traffic[u] if node_kind[u] != _UNCHANGED else 0.0
        )
    rerouted_traffic[t] = 0.0


@kernel
def _send_rerouted_traffic(  # type: ignore[no-untyped-def]
    t,
    last_changed_position,
    settled_nodes,
    num_with_path,
    order,
    num_reached,
    arc_start,
    arc,
    split_ratio,
    out_ptr,
    out_link,
    head,
    metric,
    weight,
    has_transit,
    is_failed,
    node_kind,
    distance,
    new_next_hops,
    m,
    load,
    rerouted_traffic,
):
    """Send one matrix's rerouted traffic to destination t along the next hops after the failure.

    Nodes are visited by decreasing new distance, so that transit traffic is complete: two sorted
    lists are merged, ``settled_nodes`` (affected nodes) and ``order[t]`` (the others).

    Args:
        t: destination.
        last_changed_position: last position in ``order[t]`` whose node has changed.
        settled_nodes: (N,) affected nodes with a path, by new distance.
        num_with_path: number of entries of ``settled_nodes``.
        order: (N, N) nodes by distance to each destination before the failure.
        num_reached: (N,) number of nodes with a path to each destination before the failure.
        arc_start: (N, N + 1) old next hops of the node ``order[t, i]`` are the links
            arc[t, arc_start[t, i]:arc_start[t, i + 1]].
        arc: (N, E) links of each shortest-path DAG before the failure.
        split_ratio: (N, E) share of its node's traffic on each entry of ``arc``.
        out_ptr: (N + 1,) links out of node u are out_link[out_ptr[u]:out_ptr[u + 1]].
        out_link: (E,) links by node where they start.
        head: (E,) node where each link ends.
        metric: (E,) IGP metrics.
        weight: (E,) load-balancing weights; a node divides its traffic in proportion to them.
        has_transit: (N,) whether a node forwards transit traffic.
        is_failed: (E,) whether a link has failed.
        node_kind: (N,) ``_UNCHANGED``, ``_FEWER_HOPS`` (some next hops are lost) or ``_AFFECTED``
            (all are lost, and the distance grows).
        distance: (N,) distances after the failure.
        new_next_hops: (E,) new next hops of one node (scratch).
        m: traffic matrix.
        load: (M, E) link loads, Gbit/s; row m is updated.
        rerouted_traffic: (N,) Gbit/s to send from each node; transit traffic is added on the way.
    """
    # Start at the last changed node, or beyond it at the last node nearer than the farthest
    # affected one, since affected nodes may send traffic there.  The next node of the old order is
    # at position i, the next one of the settled nodes at position j.
    j = num_with_path - 1
    max_affected_distance = distance[settled_nodes[j]] if num_with_path else 0.0
    i = last_changed_position
    while i + 1 < num_reached[t] and distance[order[t, i + 1]] < max_affected_distance:
        i += 1
    while i > 0 or j >= 0:
        # Skip affected nodes in the old order; the list of settled nodes has them by new distance.
        if i > 0 and node_kind[order[t, i]] == _AFFECTED:
            i -= 1
            continue
        # Visit the farther one of the next affected node and the next other node, whose position in
        # the old order gives its old next hops.
        if j >= 0 and (i == 0 or distance[settled_nodes[j]] >= distance[order[t, i]]):
            u = settled_nodes[j]
            position = 0
            j -= 1
        else:
            u = order[t, i]
            position = i
            i -= 1
        node_traffic = rerouted_traffic[u]
        if node_traffic == 0.0:
            continue
        # Unchanged nodes keep their next hops and split ratios.
        if node_kind[u] == _UNCHANGED:
            for a in range(arc_start[t, position], arc_start[t, position + 1]):
                link_traffic = node_traffic * split_ratio[t, a]
                load[m, arc[t, a]] += link_traffic
                rerouted_traffic[head[arc[t, a]]] += link_traffic
            continue
        # Changed nodes divide traffic over live links on shortest paths, by weight (ECMP, UCMP).
        total_weight = 0.0
        num_next_hops = 0
        for b in range(out_ptr[u], out_ptr[u + 1]):
            e = out_link[b]
            head_forwards = has_transit[head[e]] or distance[head[e]] == 0.0
            if not is_failed[e] and head_forwards and distance[u] == metric[e] + distance[head[e]]:
                total_weight += weight[e]
                new_next_hops[num_next_hops] = e
                num_next_hops += 1
        for h in range(num_next_hops):
            link_traffic = node_traffic * weight[new_next_hops[h]] / total_weight
            load[m, new_next_hops[h]] += link_traffic
            rerouted_traffic[head[new_next_hops[h]]] += link_traffic


# Approximate scalar operations per failure and arc; the number of threads depends on it.
_OPERATIONS_PER_ARC = 8


class FailureResults(NamedTuple):
    """Loads of M matrices under S failures.

    Attributes:
        utilisation: (S, M) largest utilisation of a live link.
        busiest: (S, M) index of the link with this utilisation; -1 without any load.
        overload: (S, M) load above capacity, summed over live links, Gbit/s.
        lost: (S, M) Gbit/s of demand that is not delivered.
        at_risk: (S, M) Gbit/s of demand from nodes that can reach a micro-loop; 0 unless fast
            reroute is simulated.
        load: (S, M, E) link loads, Gbit/s; (0, M, E) unless requested.
    """

    utilisation: FloatArray
    busiest: Int64Array
    overload: FloatArray
    lost: FloatArray
    at_risk: FloatArray
    load: FloatArray


@inner_kernel
def _load_live_hops(  # type: ignore[no-untyped-def]
    t, links, dags, is_failed, volume, load, blocked_traffic
):
    """Load traffic to one destination over the old next hops that have not failed.

    The live next hops of a node take all its traffic, in proportion to their split ratios.

    Args:
        t: destination, row of ``dags``.
        links: the E links of the network.
        dags: shortest-path DAGs without the failure.
        is_failed: (E,) whether a link has failed.
        volume: (N,) Gbit/s from each node to the destination; replaced by the traffic through it.
        load: (E,) link loads, Gbit/s; the traffic is added.
        blocked_traffic: (N,) Gbit/s at nodes without a live next hop; such traffic is added.
    """
    order = dags.order[t]
    arc_start = dags.arc_start[t]
    arc = dags.arc[t]
    split_ratio = dags.share[t]
    # From far to near, without the destination.
    for j in range(dags.reached[t] - 1):
        i = dags.reached[t] - 1 - j
        node_traffic = volume[order[i]]
        if node_traffic == 0.0:
            continue
        # Sum of the split ratios of live next hops.
        live_ratio_sum = 0.0
        for a in range(arc_start[i], arc_start[i + 1]):
            if not is_failed[arc[a]]:
                live_ratio_sum += split_ratio[a]
        if live_ratio_sum == 0.0:
            blocked_traffic[order[i]] += node_traffic
            continue
        # Divide the traffic among the live next hops.
        for a in range(arc_start[i], arc_start[i + 1]):
            link = arc[a]
            if not is_failed[link]:
                link_traffic = node_traffic * split_ratio[a] / live_ratio_sum
                load[link] += link_traffic
                volume[links.head[link]] += link_traffic


@inner_kernel
def _traffic_at_risk(  # type: ignore[no-untyped-def]
    t, links, dags, dags_after, is_failed, num_hops_left, queue, demand
):
    """Return the Gbit/s of demand to destination t from nodes that can reach a micro-loop.

    A micro-loop is a cycle of next hops, where each node may use those before or those after
    convergence.  Kahn's algorithm repeatedly removes nodes without next hops; the nodes that remain
    can reach a cycle.

    Args:
        t: destination, row of ``dags``.
        links: the E links of the network.
        dags: shortest-path DAGs without the failure.
        dags_after: DAG towards t after convergence, in row 0.
        is_failed: (E,) whether a link has failed.
        num_hops_left: (N,) number of next hops of each node to nodes not yet removed (scratch).
        queue: (N,) removed nodes in order of removal (scratch).
        demand: (N,) Gbit/s from each node to t.
    """
    num_nodes = len(num_hops_left)
    distance = dags.distance[t]
    distance_after = dags_after.distance[0]
    tail = links.tail
    # Count the next hops of each node, those before and after convergence together.
    num_hops_left[:] = 0
    for e in range(len(tail)):
        if not is_failed[e] and (
            is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)
        ):
            num_hops_left[tail[e]] += 1
    # Kahn's algorithm: remove nodes without next hops, and the links into them.
    queue_size = 0
    for u in range(num_nodes):
        if num_hops_left[u] == 0:
            queue[queue_size] = u
            queue_size += 1
    num_processed = 0
    while num_processed < queue_size:
        u = queue[num_processed]
        num_processed += 1
        for j in range(links.in_ptr[u], links.in_ptr[u + 1]):
            e = links.in_link[j]
            if not is_failed[e] and (
                is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)
            ):
                num_hops_left[tail[e]] -= 1
                if num_hops_left[tail[e]] == 0:
                    queue[queue_size] = tail[e]
                    queue_size += 1
    # Sum the demand of the nodes that remain.
    demand_at_risk = 0.0
    for u in range(num_nodes):
        if num_hops_left[u] > 0:
            demand_at_risk += demand[u]
    return demand_at_risk


@inner_kernel
def _fast_reroute(  # type: ignore[no-untyped-def]
    links,
    failed_links,
    dags,
    dags_after,
    volume,
    is_failed,
    heap_keys,
    heap_nodes,
    node_traffic,
    backup_buffer,
    num_hops_left,
    queue,
    load,
    lost,
    at_risk,
):
    """Update the loads of M matrices from no failure to a failure, during fast reroute (TI-LFA).

    Only nodes at a failed link have reacted: their live equal-cost next hops take all traffic;
    without any, the traffic follows the shortest paths after convergence, by a segment list.

    Args:
        links: the E links of the network; ``metric`` is changed temporarily.
        failed_links: indices of the failed links.
        dags: shortest-path DAG towards each of the N destinations without the failure.
        dags_after: DAG towards one destination after convergence, in row 0 (scratch).
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        is_failed: (E,) whether a link has failed.
        heap_keys: (2 E + 2,) distances in the heap of Dijkstra's algorithm (scratch).
        heap_nodes: (2 E + 2,) nodes in the heap (scratch).
        node_traffic: (N,) Gbit/s through each node to the destination (scratch).
        backup_buffer: (N + E,) Gbit/s that each node sends along its backup path, then saved
            metrics of failed links (scratch).
        num_hops_left: (N,) numbers of next hops in the search for micro-loops (scratch).
        queue: (N,) nodes in the search for micro-loops (scratch).
        load: (M, E) link loads, Gbit/s: without the failure on entry, in fast reroute on return.
        lost: (M,) Gbit/s; the demand of disconnected nodes and the traffic at nodes without a
            backup path are added.
        at_risk: (M,) Gbit/s; the demand from nodes that can reach a micro-loop is added.
    """
    num_matrices, num_nodes = volume.shape[0], volume.shape[1]
    for t in range(num_nodes):
        # Skip destinations whose shortest paths do not use a failed link.
        distance = dags.distance[t]
        is_affected = False
        for e in failed_links:
            if is_on_dag(distance, links, e):
                is_affected = True
                break
        if not is_affected:
            continue
        # Shortest paths after convergence: without the failed links, whose metrics are saved.
        for e in failed_links:
            backup_buffer[num_nodes + e] = links.metric[e]
            links.metric[e] = np.inf
        shortest_path_dag(t, as_int64(0), links, dags_after, heap_keys, heap_nodes)
        for e in failed_links:
            links.metric[e] = backup_buffer[num_nodes + e]
        for m in range(num_matrices):
            # Withdraw the loads before the failure: load negative demand.
            for u in range(num_nodes):
                node_traffic[u] = -volume[m, t, u]
            add_ecmp_loads(t, links.head, dags, node_traffic, load[m])
            # The demand of nodes that lose their path is lost.
            for u in range(num_nodes):
                node_traffic[u] = volume[m, t, u]
                if dags_after.distance[0, u] == np.inf and dags.distance[t, u] < np.inf:
                    lost[m] += volume[m, t, u]
                    node_traffic[u] = 0.0
            # Load the live old next hops.  Nodes without any send their traffic along backup paths:
            # it is collected in the first N entries of the buffer.
            backup_buffer[:num_nodes] = 0.0
            _load_live_hops(t, links, dags, is_failed, node_traffic, load[m], backup_buffer)
            # Nodes unaware of the failure send traffic to nodes without a backup path: it is lost.
            for u in range(num_nodes):
                if dags_after.distance[0, u] == np.inf:
                    lost[m] += backup_buffer[u]
            # Load the backup paths.
            add_ecmp_loads(0, links.head, dags_after, backup_buffer[:num_nodes], load[m])
            # Micro-loops.
            at_risk[m] += _traffic_at_risk(
                t, links, dags, dags_after, is_failed, num_hops_left, queue, volume[m, t]
            )


@partitioned_kernel("blocks", lambda blocks: blocks)
def _evaluate_failures(  # type: ignore[no-untyped-def]
    begin,
    end,
    links,
    dags,
    node_position,
    failure_ptr,
    failure_link,
    volume,
    node_traffic,
    load_without_failure,
    lost_without_failure,
    inverse_capacity,
    capacity,
    in_fast_reroute,
    blocks,
    utilisation,
    busiest,
    overload,
    lost,
    at_risk,
    all_loads,
):
    """Evaluate M traffic matrices under S failures; fill the arrays of :class:`FailureResults`.

    Failures are dealt to blocks: block b evaluates failures b, b + ``blocks``, b + 2 ``blocks``...

    Args:
        begin: first block.
        end: block after the last one.
        links: the E links of the network without a failure, in CSR form.
        dags: shortest-path DAG towards each of the N destinations without a failure.
        node_position: (N, N) rank of node u by distance to destination t, at [t, u]; N if there is
            no path.
        failure_ptr: (S + 1,) links of failure s are
            failure_link[failure_ptr[s]:failure_ptr[s + 1]].
        failure_link: failed links of all failures, concatenated.
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        node_traffic: (M, N, N) Gbit/s through node u to t without a failure, at [m, t, u].
        load_without_failure: (M, E) link loads without a failure, Gbit/s.
        lost_without_failure: (M,) Gbit/s lost without a failure.
        inverse_capacity: (E,) 1 / capacity; 0 for links without capacity.
        capacity: (E,) Gbit/s.
        in_fast_reroute: evaluate loads during fast reroute, not after convergence.
        blocks: number of blocks.
        utilisation: (S, M) largest utilisation of a live link (written).
        busiest: (S, M) index of that link; -1 without any load (written).
        overload: (S, M) load above capacity, summed over live links, Gbit/s (written).
        lost: (S, M) Gbit/s of demand that is not delivered (written).
        at_risk: (S, M) Gbit/s of demand at risk of micro-loops; added to in fast reroute only.
        all_loads: (S, M, E) link loads, Gbit/s (written); (0, M, E) unless requested.
    """
    for block in range(begin, end):
        # Scratch arrays of the block: for ``reroute``, then for ``_fast_reroute``, whose arrays
        # over links are allocated only if it is simulated.
        num_matrices = volume.shape[0]
        num_nodes = volume.shape[1]
        num_links = load_without_failure.shape[1]
        scratch = new_reroute_scratch(num_nodes, num_links)
        num_repair_arcs = num_links if in_fast_reroute else 0
        # Links with metrics of their own, which fast reroute changes temporarily.
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
        # DAG after convergence towards one destination, and the heap of its search.
        dags_after = new_dags(1, num_nodes, num_repair_arcs)
        heap_keys = np.empty(2 * num_repair_arcs + 2)
        heap_nodes = np.empty(2 * num_repair_arcs + 2, dtype=np.int32)
        # (N,) Gbit/s through each node; (N + E,) Gbit/s of backup traffic by node, then the saved
        # metrics of links.
        fast_reroute_traffic = np.empty(num_nodes)
        backup_buffer = np.zeros(num_nodes + num_links)
        # (N,) next-hop counts and queue of Kahn's algorithm.
        num_hops_left = np.empty(num_nodes, dtype=np.int32)
        queue = np.empty(num_nodes, dtype=np.int32)
        # (E,) failed links and (M, E) loads of the current failure.
        is_failed = np.zeros(num_links, dtype=np.bool_)
        load = np.empty((num_matrices, num_links))
        for s in range(block, len(failure_ptr) - 1, blocks):
            # Start from the loads without failure.
            failed_links = failure_link[failure_ptr[s] : failure_ptr[s + 1]]
            for e in failed_links:
                is_failed[e] = True
            load[:] = load_without_failure
            for m in range(num_matrices):
                lost[s, m] = lost_without_failure[m]
            # Loads during fast reroute, or after convergence.
            if in_fast_reroute:
                _fast_reroute(
                    thread_links,
                    failed_links,
                    dags,
                    dags_after,
                    volume,
                    is_failed,
                    heap_keys,
                    heap_nodes,
                    fast_reroute_traffic,
                    backup_buffer,
                    num_hops_left,
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
                    node_traffic,
                    load,
                    lost[s],
                    scratch,
                )
            # Largest utilisation, its link, and load above capacity of each matrix.
            for m in range(num_matrices):
                largest_utilisation = 0.0
                busiest_link = -1
                total_overload = 0.0
                for e in range(num_links):
                    if is_failed[e]:
                        load[m, e] = 0.0
                        continue
                    # Subtraction may leave a load slightly below 0.
                    load[m, e] = max(0.0, load[m, e])
                    link_utilisation = load[m, e] * inverse_capacity[e]
                    if link_utilisation > largest_utilisation:
                        largest_utilisation = link_utilisation
                        busiest_link = e
                    total_overload += max(0.0, load[m, e] - capacity[e])
                utilisation[s, m] = largest_utilisation
                busiest[s, m] = busiest_link
                overload[s, m] = total_overload
                # Loads of all links, if requested: else ``all_loads`` has no row.
                if len(all_loads):
                    for e in range(num_links):
                        all_loads[s, m, e] = load[m, e]
            # Restore the links.
            for e in failed_links:
                is_failed[e] = False


@partitioned_kernel("blocks", int)
def _loads_without_failure(  # type: ignore[no-untyped-def]
    begin, end, head, dags, volume, node_traffic, load, blocks
):
    """Compute link loads and traffic through each node without failure.

    Destinations are dealt to blocks: block b loads destinations b, b + ``blocks``, ...

    Args:
        begin: first block.
        end: block after the last one.
        head: (E,) node where each link ends.
        dags: shortest-path DAG towards each destination.
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        node_traffic: (M, N, N) Gbit/s through node u to destination t, at [m, t, u] (written).
        load: (blocks, M, E) link loads by block, Gbit/s; each block adds to its row.
        blocks: number of blocks.
    """
    # The traffic through a node starts as its own demand; the pass adds the transit traffic.
    for block in range(begin, end):
        for t in range(block, volume.shape[1], blocks):
            for m in range(len(volume)):
                for u in range(volume.shape[2]):
                    node_traffic[m, t, u] = volume[m, t, u]
                add_ecmp_loads(t, head, dags, node_traffic[m, t], load[block, m])


class IgpFailures:
    """Loads of M matrices without failure, and under failures of sets of links.

    Args:
        dag: network of N nodes and E links, with its shortest paths without failure.
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        adjacency: (M, E) Gbit/s on adjacency segments of each link; None for none.  It is lost
            when the link fails: adjacency segments are assumed unprotected, and no source has
            withdrawn the list yet.
        looping: (M,) Gbit/s lost in forwarding loops; None for none.

    Attributes:
        load: (M, E) link loads without failure, Gbit/s.
        traffic_through_nodes: (M, N, N) Gbit/s through node u to destination t without failure, at
            [m, t, u]: demand from u plus transit traffic.
        lost: (M,) Gbit/s lost without failure: no path, a failed adjacency, or a forwarding loop.
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
        num_nodes = dag.topology.num_nodes
        num_links = dag.topology.num_links
        # Traffic through each node, computed below; and ranks of nodes by distance to each
        # destination, N without a path.
        self.traffic_through_nodes = np.empty_like(self._volume)
        self._node_position = np.full((num_nodes, num_nodes), num_nodes, dtype=np.int32)
        positions_in_order(dag.dags.order, dag.dags.reached, self._node_position)
        # Approximate cost of one evaluation, which decides the number of threads.
        self._operations = _OPERATIONS_PER_ARC * dag.num_arcs * len(volume)
        # (blocks, M, E) loads by block, whose sum does not depend on the number of threads.
        blocks = max(1, min(num_nodes, MAX_BLOCKS))
        load = np.zeros((blocks, len(volume), num_links))
        with threads_for(self._operations):
            _loads_without_failure(
                dag.links.head, dag.dags, self._volume, self.traffic_through_nodes, load, blocks
            )
        # Add the traffic of adjacency segments: on a failed link it is lost, as is the demand of
        # nodes without a path.
        adjacency = np.zeros((len(volume), num_links)) if adjacency is None else adjacency
        is_live = _is_live_link(dag)
        self._adjacency = np.where(is_live, adjacency, 0)
        self.load: FloatArray = load.sum(0) + self._adjacency
        self.lost: FloatArray = np.where(dag.reaches, 0, self._volume).sum((1, 2)) + adjacency[
            :, ~is_live
        ].sum(1)
        self.lost += 0.0 if looping is None else looping
        # Pairs, demands and segment lists; None without lists, or if the traffic is already that
        # under a failure.
        self._steered_demands: tuple[IntArray, FloatArray, SegmentPolicies] | None = None

    @classmethod
    def of_demands(
        cls,
        dag: EcmpDag,
        pairs: IntArray,
        demand: FloatArray,
        policies: SegmentPolicies,
        after: EcmpDag | None = None,
    ) -> IgpFailures:
        """Return the loads of demands that follow segment lists, or else shortest paths.

        A list with a failed midpoint or adjacency loses its traffic there.

        Args:
            dag: shortest paths without failure.
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.
            policies: segment lists of some demands.
            after: shortest paths under a failure that changes the traffic of the lists; None for
                no failure.
        """
        # Volumes (M, N, N), adjacency loads (M, E), and traffic (M,) in forwarding loops.
        loads = cls(dag, *steering_of(after or dag, policies).traffic(pairs, demand))
        loads._steered_demands = (
            (pairs, demand, policies) if policies.lists and after is None else None
        )
        return loads

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Compute loads and lost traffic under each failure of a set of links.

        Args:
            failures: link indices of each failure; an empty list for no failure.
            repairing: loads during fast reroute instead of after convergence, and traffic at risk.
            loads: also return the loads of all links.

        Returns:
            results of the S failures, in their order.
        """
        failures = [sorted(set(links)) for links in failures]
        results = self._evaluate(failures, repairing=repairing, loads=loads)
        # Traffic of adjacency segments on failed links is lost.
        for s, links in enumerate(failures):
            results.lost[s] += self._adjacency[:, links].sum(1)
        # Recompute the failures that change the traffic of segment lists.
        if self._steered_demands is not None:
            for s in self._list_changing_failures(
                self._steered_demands[2], results.lost, repairing
            ):
                steered_loads = IgpFailures.of_demands(
                    self.dag, *self._steered_demands, self.dag.without(failures[s])
                )
                changed_results = steered_loads.under(
                    [failures[s]], repairing=repairing, loads=loads
                )
                # Replace the results of the failure in each array; that of the link loads has no
                # rows unless they are requested.
                for result_array, changed_array in zip(results, changed_results, strict=True):
                    result_array[s : s + 1] = changed_array
        return results

    def _evaluate(
        self, failures: list[list[int]], *, repairing: bool, loads: bool
    ) -> FailureResults:
        """Compute the loads under each failure; segment lists carry the traffic that they carry
        without failure.

        Args:
            failures: link indices of each failure.
            repairing: loads during fast reroute instead of after convergence.
            loads: also return the loads of all links.
        """
        num_matrices = len(self._volume)
        num_failures = len(failures)
        num_links = self.dag.topology.num_links
        # CSR: the links of failure s are failure_link[failure_ptr[s]:failure_ptr[s + 1]].
        failure_ptr = np.concatenate([[0], np.cumsum([len(links) for links in failures])]).astype(
            np.int64
        )
        failure_link = np.array([link for links in failures for link in links], dtype=np.int64)
        # Evaluate the failures in parallel; all loads (S, M, E) are stored only if requested.
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
                self.traffic_through_nodes,
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
        """Return the indices of the failures that change the traffic on segment lists.

        A failure under which more traffic is lost may have made a segment unusable; with transit
        policies every failure counts.

        Args:
            policies: segment lists.
            lost: (S, M) Gbit/s lost under each of S failures.
            repairing: whether fast reroute is simulated.

        Raises:
            InputError: fast reroute with policies of transit traffic.
        """
        # A list with an unusable segment loses traffic.
        is_changed = np.array((lost > self.lost).any(1))
        # The traffic that crosses a router depends on the failure.
        if policies.is_transit:
            if repairing:
                raise InputError.invalid(
                    "--repair",
                    "",
                    "fast reroute cannot be simulated with transit policies",
                    "use policies of single demands",
                )
            is_changed[:] = True
        return np.flatnonzero(is_changed).tolist()


def _is_live_link(dag: EcmpDag) -> BoolArray:
    """Return whether each link (E,) is in service: failed links have an infinite metric."""
    return np.isfinite(dag.links.metric)
