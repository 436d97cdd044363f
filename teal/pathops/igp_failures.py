"""Loads under shortest-path routing when links fail: after convergence, and while backup paths are in use.

For every destination what passes each node without failure is kept.  A failure changes a destination only if a failed
link is on its DAG, and then only the nodes behind it: :mod:`teal.pathops.igp_reroute`.

- *After convergence* every node uses the shortest paths of the network without the failed links.
- *Under fast reroute* (TI-LFA, RFC 9855) only the node at a failed link has acted.  If it has other next hops of equal
  cost, these take all; else it sends over its shortest path after convergence, by a list of segments.  All other nodes
  still use the paths of before.
- *Micro-loops* are possible for a destination if next hops of before and after convergence together contain a cycle,
  since nodes do not change at the same time (RFC 8333).  Traffic at risk is that of nodes which can reach the cycle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.ecmp import EcmpDag, IgpLinks, grow_dag, is_on_dag, new_dags
from teal.network.segment_lists import SegmentPolicies, segment_traffic
from teal.pathops.igp_reroute import new_reroute_scratch, places_in_order, reroute
from teal.pathops.segment_passes import MOST_BLOCKS, load_inwards
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import as_int64, inner_kernel, parallel_kernel, prange, threads_for

_OPERATIONS_PER_ARC = 8  # scalar operations of a failure for each arc, approximately


class FailureResults(NamedTuple):
    """What the failures of S sets of links do to M matrices.

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
    """:func:`load_inwards` where the next hops that are left take all; what has none is added to ``stuck`` (N,)."""
    order, arc_start, arc, share = dags.order[row], dags.arc_start[row], dags.arc[row], dags.share[row]
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

    Nodes without next hops are removed, then those whose next hops are all removed, until none is left to remove.
    """
    nodes = len(hops_left)
    distance, distance_after = dags.distance[row], after.distance[0]
    tail = links.tail
    hops_left[:] = 0
    for e in range(len(tail)):
        if not is_failed[e] and (is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)):
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
            if not is_failed[e] and (is_on_dag(distance, links, e) or is_on_dag(distance_after, links, e)):
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
    links, failed_links, dags, after, volume, is_failed, keys, heap_nodes, passing, stuck, hops_left, queue,
    load, lost, at_risk
):  # fmt: skip
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
                if after.distance[0, u] == np.inf:  # sent there by nodes that know of no failure yet
                    lost[m] += stuck[u]
            load_inwards(0, links.head, after, stuck[:nodes], load[m])
            at_risk[m] += _volume_at_loops(t, links, dags, after, is_failed, hops_left, queue, volume[m, t])


@parallel_kernel
def _all_failures(  # type: ignore[no-untyped-def]
    links, dags, place, set_ptr, set_link, volume, passing, base, lost_before, inverse_capacity, capacity,
    is_repairing, blocks, utilisation, busiest, overload, lost, at_risk, loads
):  # fmt: skip
    for block in prange(blocks):
        matrices, nodes, num_links = volume.shape[0], volume.shape[1], base.shape[1]
        scratch = new_reroute_scratch(nodes, num_links)
        repairs = num_links if is_repairing else 0
        own = IgpLinks(
            links.out_ptr, links.out_link, links.in_ptr, links.in_link, links.tail, links.head,
            links.metric.copy(), links.weight,
        )  # fmt: skip
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
                    own, failed_links, dags, after, volume, is_failed, keys, heap_nodes, at_node, stuck, hops_left,
                    queue, load, lost[s], at_risk[s],
                )  # fmt: skip
            else:
                reroute(links, dags, place, is_failed, failed_links, volume, passing, load, lost[s], scratch)
            for m in range(matrices):
                largest, where, over = 0.0, -1, 0.0
                for e in range(num_links):
                    if is_failed[e]:
                        load[m, e] = 0.0
                        continue
                    load[m, e] = max(0.0, load[m, e])  # a difference of loads, which rounding may leave below 0
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


@parallel_kernel
def _loads_without_failure(  # type: ignore[no-untyped-def]
    head, dags, volume, passing, load, blocks
):
    """Fill ``passing`` (M, N, N), Gbit/s to the first node that pass the second one, and add to ``load``."""
    for block in prange(blocks):
        for t in range(as_int64(block), volume.shape[1], blocks):
            for m in range(len(volume)):
                for u in range(volume.shape[2]):
                    passing[m, t, u] = volume[m, t, u]
                load_inwards(t, head, dags, passing[m, t], load[block, m])


class IgpFailures:
    """Loads of M matrices without failure, and under failures of sets of links.

    Args:
        dag: shortest paths without failure.
        volume: (M, N, N) Gbit/s to the first node, the destination, from the second one.
        adjacency: (M, E) Gbit/s that takes a link whatever the metrics say; None for none.  It is lost when the link
            fails: adjacency segments are taken as unprotected, and no source has withdrawn the list yet.

    Attributes:
        load: (M, E) Gbit/s without failure.
        lost: (M,) Gbit/s between nodes that have no path even without failure.
    """

    def __init__(self, dag: EcmpDag, volume: FloatArray, adjacency: FloatArray | None = None) -> None:
        self.dag, self._volume = dag, np.ascontiguousarray(volume)
        nodes, num_links = dag.topology.num_nodes, dag.topology.num_links
        self._passing = np.empty_like(self._volume)
        self._place = np.full((nodes, nodes), nodes, dtype=np.int32)
        places_in_order(dag.dags.order, dag.dags.reached, self._place)
        self._operations = _OPERATIONS_PER_ARC * dag.num_arcs * len(volume)
        blocks = max(1, min(nodes, MOST_BLOCKS))
        load = np.zeros((blocks, len(volume), num_links))
        with threads_for(self._operations):
            _loads_without_failure(dag.links.head, dag.dags, self._volume, self._passing, load, blocks)
        adjacency, is_live = np.zeros((len(volume), num_links)) if adjacency is None else adjacency, _live(dag)
        self._adjacency = np.where(is_live, adjacency, 0)
        self.load: FloatArray = load.sum(0) + self._adjacency
        self.lost: FloatArray = np.where(dag.reaches, 0, self._volume).sum((1, 2)) + adjacency[:, ~is_live].sum(1)
        self._demands: tuple[IntArray, FloatArray, SegmentPolicies] | None = None

    @classmethod
    def of_demands(
        cls, dag: EcmpDag, pairs: IntArray, demand: FloatArray, policies: SegmentPolicies, after: EcmpDag | None = None
    ) -> IgpFailures:
        """Demands along their segment lists; a list whose midpoint or adjacency fails loses its traffic there, once.

        Args:
            dag: shortest paths without failure.
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.
            policies: lists of some of them.
            after: shortest paths under the failure that the lists meet; None for no failure.
        """
        topology, end = dag.topology, after or dag
        loads = cls(dag, *segment_traffic(
            pairs, demand, policies, topology.num_nodes, topology.link_source, end.reaches, _live(end)
        ))  # fmt: skip
        loads._demands = (pairs, demand, policies) if policies.lists and after is None else None
        return loads

    def under(self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False) -> FailureResults:
        """What each set of links does when all of its links fail.

        Args:
            failures: numbers of the links of each set.
            repairing: loads while backup paths are in use, not after convergence, and the traffic at risk.
            loads: also return the loads of all links.
        """
        topology, matrices, sets = self.dag.topology, len(self._volume), len(failures)
        failures = [sorted(set(links)) for links in failures]
        ptr = np.concatenate([[0], np.cumsum([len(links) for links in failures])]).astype(np.int64)
        flat = np.array([link for links in failures for link in links], dtype=np.int64)
        capacity = topology.capacity
        inverse = np.where(capacity > 0, 1 / np.where(capacity > 0, capacity, 1), 0)
        results = FailureResults(
            utilisation=np.zeros((sets, matrices)), busiest=np.zeros((sets, matrices), dtype=np.int64),
            overload=np.zeros((sets, matrices)), lost=np.zeros((sets, matrices)), at_risk=np.zeros((sets, matrices)),
            load=np.zeros((sets if loads else 0, matrices, topology.num_links)),
        )  # fmt: skip
        with threads_for(self._operations * sets):
            _all_failures(
                self.dag.links, self.dag.dags, self._place, ptr, flat, self._volume, self._passing, self.load,
                self.lost, inverse, capacity, repairing, max(1, min(sets, MOST_BLOCKS)), *results,
            )  # fmt: skip
        for s, links in enumerate(failures):
            results.lost[s] += self._adjacency[:, links].sum(1)
        if self._demands is not None:
            for s in np.flatnonzero((results.lost > self.lost).any(1)).tolist():  # a failure that cuts lists loses
                cut = IgpFailures.of_demands(self.dag, *self._demands, self.dag.without(failures[s]))
                for every, one in zip(results, cut.under([failures[s]], repairing=repairing, loads=loads), strict=True):
                    every[s : s + 1] = one
        return results


def _live(dag: EcmpDag) -> BoolArray:
    return np.isfinite(dag.links.metric)


def volumes(pairs: IntArray, demand: FloatArray, nodes: int) -> FloatArray:
    """(M, N, N) Gbit/s to the first node from the second one, of demands (M, D) between pairs (D, 2)."""
    volume = np.zeros((len(demand), nodes, nodes))
    for m, row in enumerate(demand):
        np.add.at(volume[m], (pairs[:, 1], pairs[:, 0]), row)
    return volume
