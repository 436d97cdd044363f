"""Traffic matrices under failures: link loads and prices of lists with one midpoint, for policies
of demands or of transit traffic.

:class:`Scenarios` evaluates F failures times M matrices for policies of demands,
:class:`TransitScenarios` for policies that steer the traffic crossing a router.

Axis letters: F failures (index 0: no failure), M matrices, D demands or transit policies, E links,
N nodes.  Arrays (N, N) of segments have the node where the segment ends first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from typing_extensions import override

from teal.network.ecmp import EcmpDag
from teal.pathops.segment_passes import SegmentPasses, volumes
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.parallel import threads_for
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.segments.kernels import (
    cheapest_midpoints,
    first_next_hops,
    grouped,
    max_antichain_saving,
)

# Entries (demands times midpoints) that are priced at once.
_BLOCK_ENTRIES = 1 << 19
# A row of the master: index of failure, matrix and link.
Key = tuple[int, int, int]


class Scenarios:
    """Link loads and prices of all matrices under all failures.

    If a failure disconnects the ends of a demand, its lists carry traffic as far as their
    midpoints.

    Args:
        dags: (F,) shortest paths without failure, then under each.
        source, target: (D,) ends of the demands, in ascending order.
        demand: (M, D) Gbit/s.

    Attributes:
        is_transit: whether policies steer the traffic that crosses a router, not a demand.
        passes: (F,) kernels that sum values over segments and load segments onto links.
        source: (D,) node where each policy begins: the demand's source, or a transit router.
        target: (D,) node where each policy ends.
        num_nodes: number of nodes, N.
        capacity: (F, E) Gbit/s; 0 for failed links.
        offered_traffic: for each of the F failures, (M, D) Gbit/s that each policy can carry.
        ends_connected: (F, D) whether the ends of each policy are connected.
    """

    is_transit = False

    def __init__(
        self, dags: Sequence[EcmpDag], source: IntArray, target: IntArray, demand: FloatArray
    ) -> None:
        """Prepare the kernels over the shortest paths of every failure, and the link capacities."""
        self.passes = [SegmentPasses(dag) for dag in dags]
        self.source = source
        self.target = target
        self.num_nodes = dags[0].topology.num_nodes
        self.capacity = np.array(
            [np.where(np.isfinite(dag.links.metric), dag.topology.capacity, 0.0) for dag in dags]
        )
        self._demands = source, target, demand
        self.offered_traffic = [demand] * len(dags)
        self._set_policies()

    def _set_policies(self) -> None:
        """Compute what depends on the policies: their grouping by source, and their
        connectivity.
        """
        # Cache of admissible midpoints (n, N), by the first demand of each block of n demands.
        self._admissible_midpoints: dict[int, BoolArray] = {}
        self._by_source = grouped(self.source, self.num_nodes)
        self.ends_connected = np.array(
            [passes.dag.reaches[self.target, self.source] for passes in self.passes]
        )

    def utilisation(self, policy: Int64Array, mid: IntArray, share: FloatArray) -> FloatArray:
        """Return the link utilisation (F, M, E) if these columns move traffic off the shortest
        paths.

        Args:
            policy: (n,) demand, or transit policy, of each column.
            mid: (n,) midpoint of each column.
            share: (n,) share of the policy's traffic that the column moves.
        """
        utilisations = []
        num_nodes = self.num_nodes
        source = self.source[policy]
        target = self.target[policy]
        demand_source, demand_target, demand = self._demands
        for failure, passes in enumerate(self.passes):
            # Gbit/s of each segment (M, N * N) if all demands follow their shortest paths.
            reaches = passes.dag.reaches
            num_segments = num_nodes * num_nodes
            volume = np.array(
                [
                    np.bincount(
                        demand_target.astype(np.int64) * num_nodes + demand_source,
                        matrix_demand,
                        num_segments,
                    )
                    for matrix_demand in demand
                ]
            )
            # Gbit/s (M, n) that each column moves from the shortest paths to its two segments.
            moved_traffic = self.offered_traffic[failure][:, policy] * share
            # Whether (n,) the ends are connected; if not, traffic ends at the midpoint.
            is_connected = reaches[target, source]
            # Sign, end, begin and connectivity of the segments that lose or gain traffic.
            segment_changes = (
                (-1, target, source, is_connected),
                (1, mid, source, reaches[mid, source]),
                (1, target, mid, is_connected),
            )
            for sign, segment_end, segment_begin, has_path in segment_changes:
                uses_segment = (segment_end != segment_begin) & has_path
                segment = (
                    segment_end[uses_segment].astype(np.int64) * num_nodes
                    + segment_begin[uses_segment]
                )
                for matrix_volume, matrix_moved in zip(volume, moved_traffic, strict=True):
                    matrix_volume += sign * np.bincount(
                        segment, matrix_moved[uses_segment], num_segments
                    )
            # Link loads (M, E) over capacities; 0 for failed links.
            load = passes.segment_load(volume.reshape(-1, num_nodes, num_nodes))
            capacity = self.capacity[failure]
            utilisations.append(
                np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1.0), 0.0)
            )
        return np.array(utilisations)

    def least_cost(
        self,
        list_cost: FloatArray,
        direct_cost: FloatArray,
        prices: dict[tuple[int, int], FloatArray],
    ) -> float:
        """Return the least cost of all traffic under link prices: sum over d of min(direct[d],
        cost[d]).

        Args:
            list_cost: (D,) cost of the cheapest list of each policy.
            direct_cost: (D,) cost of its shortest paths.
            prices: link prices (E,) per Gbit/s by (failure, matrix).
        """
        return float(np.minimum(direct_cost, list_cost).sum())

    @property
    def largest_offered(self) -> FloatArray:
        """Largest Gbit/s (D,) that each policy can carry, over all matrices and failures."""
        largest = np.zeros(len(self.source))
        for offered_traffic in self.offered_traffic:
            np.maximum(largest, offered_traffic.max(0), out=largest)
        return largest

    def share_sum_rows(self, policy: Int64Array) -> sp.csr_array:
        """Return constraint rows (R, n) of ones: the shares of the columns of a row sum to at most
        1.

        There is a row for each policy that occurs.

        Args:
            policy: (n,) policy of each column.
        """
        rows, row_index = np.unique(policy, return_inverse=True)
        return sp.csr_array(
            (np.ones(len(policy)), (row_index, np.arange(len(policy)))),
            shape=(len(rows), len(policy)),
        )

    def excluded(self, policies: Int64Array) -> BoolArray:
        """Whether each policy (D,) cannot be installed together with one of the given ones.

        Policies that steer only their own demand never exclude each other.

        Args:
            policies: (n,) indices of the given policies.
        """
        return np.zeros(len(self.source), dtype=bool)

    def conflicting(self, policy: Int64Array, mid: IntArray) -> BoolArray:
        """Whether other columns change the loads of each column (n,), as a policy may steer its
        traffic.

        Policies that steer only their own demand never conflict.

        Args:
            policy: (n,) policy of each column.
            mid: (n,) midpoint of each column.
        """
        return np.zeros(len(policy), dtype=bool)

    def utilisation_row(self, key: Key, demand: Int64Array, mid: IntArray) -> FloatArray:
        """Return the master's row (n,) of a link: increase of its utilisation per column.

        A column moves the whole traffic of a demand from its shortest paths to the list over a
        midpoint.  With g the share of a segment's traffic on the link, over the link's capacity:

            row = traffic * (g(source to mid) + g(mid to target) - g(source to target))

        Args:
            key: failure, matrix and link.
            demand: (n,) demand of each column.
            mid: (n,) midpoint of each column.
        """
        failure, matrix, link = key
        link_value = np.zeros((1, self.capacity.shape[1]))
        link_value[0, link] = 1.0 / self.capacity[failure, link]
        link_share = self.passes[failure].segment_sum(link_value)[0]
        # (N, N) share of each segment on the link, over its capacity; 0 for disconnected nodes.
        link_share[~np.isfinite(link_share)] = 0.0
        np.fill_diagonal(link_share, 0.0)
        source, target = self.source[demand], self.target[demand]
        # Without a path between its ends, a demand uses only the first segment of a list.
        last_segment_change = self.ends_connected[failure, demand] * (
            link_share[target, mid] - link_share[target, source]
        )
        return np.asarray(
            self.offered_traffic[failure][matrix, demand]
            * (link_share[mid, source] + last_segment_change)
        )

    def cheapest(
        self, prices: dict[tuple[int, int], FloatArray], deadline: Deadline
    ) -> tuple[IntArray, FloatArray, FloatArray] | None:
        """Find the cheapest midpoint of each demand under link prices.

        Args:
            prices: link prices (E,) per Gbit/s by (failure, matrix); scenarios without prices cost
                nothing.
            deadline: time limit.

        Returns:
            the cheapest midpoints (D,), the costs (D,) of the lists over them, and the costs (D,)
            of the shortest paths, each for the whole traffic of a demand over all scenarios; None
            after the time limit.
        """
        segment_prices = {
            key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()
        }
        cheapest_mid = self.target.copy()
        cost = np.empty(len(self.source))
        # One matrix without failures: the compiled kernel.
        if len(self.passes) == 1 and len(self.offered_traffic[0]) == 1 and not self.is_transit:
            segment_price = next(
                iter(segment_prices.values()), np.zeros((self.num_nodes, self.num_nodes))
            )
            with threads_for(len(self.source) * self.num_nodes):
                cheapest_midpoints(
                    segment_price,
                    np.ascontiguousarray(segment_price.T),
                    self.source,
                    self.target,
                    *self._by_source,
                    cheapest_mid,
                    cost,
                )
            offered_traffic = self.offered_traffic[0][0]
            return (
                cheapest_mid,
                offered_traffic * cost,
                offered_traffic * segment_price[self.target, self.source],
            )
        # All scenarios, in blocks of demands.
        direct_cost = np.zeros(len(self.source))
        for block, list_cost in self._list_cost_blocks(segment_prices):
            if deadline.is_over:
                return None
            row = np.arange(len(list_cost))
            cheapest_mid[block] = list_cost.argmin(1)
            cost[block] = list_cost[row, cheapest_mid[block]]
            direct_cost[block] = list_cost[row, self.target[block]]
        return cheapest_mid, cost, direct_cost

    def _list_cost_blocks(
        self, segment_prices: dict[tuple[int, int], FloatArray]
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Yield blocks of n demands with the cost of each demand's list over each midpoint (n, N),
        summed over the scenarios; infinite for inadmissible midpoints.

        Args:
            segment_prices: prices of segments (N, N) by (failure, matrix); infinite prices of
                disconnected nodes become 0, in place.
        """
        for segment_price in segment_prices.values():
            segment_price[~np.isfinite(segment_price)] = 0.0
            np.fill_diagonal(segment_price, 0.0)
        block_size = max(1, _BLOCK_ENTRIES // self.num_nodes)
        for begin in range(0, len(self.source), block_size):
            block = slice(begin, begin + block_size)
            source = self.source[block]
            target = self.target[block]
            # The admissible midpoints are cached, since they take longer than all costs.
            if begin not in self._admissible_midpoints:
                self._admissible_midpoints[begin] = self.admissible_midpoints(source, target)
            list_cost = np.where(self._admissible_midpoints[begin], 0.0, np.inf)
            for (failure, matrix), segment_price in segment_prices.items():
                last_segment_cost = (
                    self.ends_connected[failure, block, None] * segment_price[target]
                )
                list_cost += self.offered_traffic[failure][matrix, block, None] * (
                    segment_price[:, source].T + last_segment_cost
                )
            yield block, list_cost

    def most_saving_columns(
        self, prices: dict[tuple[int, int], FloatArray], count: int, deadline: Deadline
    ) -> tuple[Int64Array, IntArray]:
        """Return demands (n,) and midpoints (n,) of the columns that save most against the shortest
        paths.

        Args:
            prices: link prices (E,) per Gbit/s by (failure, matrix).
            count: largest number of columns.
            deadline: time limit; after it, only the blocks of demands examined so far count.
        """
        segment_prices = {
            key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()
        }
        demands = np.zeros(0, dtype=np.int64)
        mids = np.zeros(0, dtype=np.int32)
        savings = np.zeros(0)
        for block, list_cost in self._list_cost_blocks(segment_prices):
            if deadline.is_over:
                break
            # Change of cost (n, N) against the shortest paths.  An end of a demand is no midpoint.
            cost_change = (
                list_cost - list_cost[np.arange(len(list_cost)), self.target[block]][:, None]
            )
            for end in (self.source[block], self.target[block]):
                cost_change[np.arange(len(cost_change)), end] = np.inf
            # Candidates of this block.
            # argpartition needs a position within the array.
            num_cheapest = min(count, cost_change.size - 1)
            cheapest = np.argpartition(cost_change, num_cheapest, axis=None)[:count]
            demand_index, mid = np.unravel_index(cheapest, cost_change.shape)
            demands = np.append(demands, demand_index + block.start)
            mids = np.append(mids, mid.astype(np.int32))
            savings = np.append(savings, -cost_change[demand_index, mid])
        # The best of all blocks; infinite costs are inadmissible midpoints.
        order = np.argsort(-savings, kind="stable")[:count]
        order = order[np.isfinite(savings[order])]
        return demands[order], mids[order]

    def admissible_midpoints(self, source: IntArray, target: IntArray) -> BoolArray:
        """Whether each midpoint (n, N) is admissible for n demands.

        A midpoint is inadmissible if some failure disconnects it from an end of the demand while
        the ends stay connected with each other.

        Args:
            source, target: (n,) ends of the demands.
        """
        admissible = np.ones((len(source), self.num_nodes), dtype=bool)
        for passes in self.passes:
            reaches = passes.dag.reaches
            admissible &= reaches[:, source].T & reaches[target] | ~reaches[target, source][:, None]
        return admissible


class TransitScenarios(Scenarios):
    """Scenarios for policies that steer all traffic crossing a router towards an endpoint.

    A policy (m, t) steers the V[m, t] Gbit/s that cross router m towards node t under a failure.  V
    holds only if no policy captures traffic that another one steers.  Therefore

    - a midpoint of (m, t) is inadmissible if its last segment returns to m under any failure;
    - two policies (m, t) and (n, t) exclude each other (:meth:`excluded`) if m is on the shortest
      paths from n to t, or n on the shortest paths from m to t, under any failure;
    - a list conflicts (:meth:`conflicting`) if it crosses the router of another policy that would
      capture its traffic, under any failure.

    Bounds hold for sets of policies without exclusion and conflicts.  Linear programs and bounds
    relax both conditions: exclusion is enforced along one path of each router only (its first next
    hops, without failure), conflicts not at all.
    """

    is_transit = True

    def __init__(
        self, dags: Sequence[EcmpDag], source: IntArray, target: IntArray, demand: FloatArray
    ) -> None:
        """Derive the transit policies: a policy for each router and endpoint with crossing traffic.

        Args:
            dags: (F,) shortest paths of the IGP without failure, then under each.
            source, target: (D,) ends of the demands, in ascending order.
            demand: (M, D) Gbit/s.
        """
        super().__init__(dags, source, target, demand)
        volume = volumes(np.stack([source, target], 1), demand, self.num_nodes)
        # (F, M, N, N) Gbit/s that cross a router (last axis) towards a node; 0 at the node itself.
        crossing_traffic = np.array(
            [
                np.where(dag.reaches, IgpFailures(dag, volume).traffic_through_nodes, 0.0)
                for dag in dags
            ]
        )
        crossing_traffic[..., np.arange(self.num_nodes), np.arange(self.num_nodes)] = 0.0
        # Policies: pairs of router and endpoint with crossing traffic in some scenario.
        self.source, self.target = (
            ends.astype(np.int32) for ends in np.nonzero(crossing_traffic.max((0, 1)).T)
        )
        # Gbit/s (M, D) that cross each policy's router, for each failure.
        self.offered_traffic = list(crossing_traffic[:, :, self.target, self.source])
        self._set_policies()
        # (N, N) first next hop from each node (column) to each destination (row); -1 for none.
        dag = dags[0]
        self._next_hop = np.full((self.num_nodes, self.num_nodes), -1, dtype=np.int32)
        first_next_hops(dag.links.head, dag.dags, self._next_hop)

    @override
    def least_cost(
        self,
        list_cost: FloatArray,
        direct_cost: FloatArray,
        prices: dict[tuple[int, int], FloatArray],
    ) -> float:
        """Return a lower bound on the cost of all traffic under link prices.

        It is the cost of the shortest paths minus the largest total saving of policies that do not
        exclude each other: along the first next hops towards an endpoint they form an antichain of
        a tree.

        Args:
            list_cost: (D,) cost of the cheapest list of each policy.
            direct_cost: (D,) cost of its shortest paths.
            prices: link prices (E,) per Gbit/s by (failure, matrix).
        """
        source, target, demand = self._demands
        # Cost of all traffic on its shortest paths.
        shortest_path_cost = 0.0
        for (failure, matrix), price in prices.items():
            path_price = self.passes[failure].segment_sum(price[None])[0][target, source]
            shortest_path_cost += float(
                demand[matrix] @ np.where(np.isfinite(path_price), path_price, 0.0)
            )
        # (N, N) saving of each policy, endpoint first.
        saving = np.zeros((self.num_nodes, self.num_nodes))
        saving[self.target, self.source] = np.maximum(0.0, direct_cost - list_cost)
        return shortest_path_cost - max_antichain_saving(
            self.passes[0].dag.dags, self._next_hop, saving
        )

    @override
    def admissible_midpoints(self, source: IntArray, target: IntArray) -> BoolArray:
        """Whether each midpoint (n, N) is admissible for n policies: no failure disconnects it from
        an end, and its last segment does not return to the router where the policy begins.

        Args:
            source, target: (n,) routers and endpoints of the policies.
        """
        admissible = super().admissible_midpoints(source, target)
        mids = np.arange(self.num_nodes)
        for passes in self.passes:
            admissible &= ~self._is_between(passes, mids, target[:, None], source[:, None])
        return admissible

    @override
    def share_sum_rows(self, policy: Int64Array) -> sp.csr_array:
        """Return constraint rows (R, n) of ones: the shares of the columns of a row sum to at most
        1.

        There is a row for each policy that occurs: its columns, and those of the policies whose
        routers follow on the path of first next hops to the same endpoint, since they exclude each
        other.

        Args:
            policy: (n,) policy of each column.
        """
        policy_columns: dict[tuple[int, int], list[int]] = {}
        for column, d in enumerate(policy.tolist()):
            policy_columns.setdefault((int(self.source[d]), int(self.target[d])), []).append(column)
        row_column_pairs = []
        for row, (node, target) in enumerate(policy_columns):
            # The policy's router, and the routers that follow on its way to the endpoint.
            while node not in (target, -1):
                row_column_pairs += [
                    (row, column) for column in policy_columns.get((node, target), ())
                ]
                node = int(self._next_hop[target, node])
        rows_and_columns = np.array(row_column_pairs, dtype=np.int64).reshape(-1, 2).T
        return sp.csr_array(
            (np.ones(len(row_column_pairs)), (rows_and_columns[0], rows_and_columns[1])),
            shape=(len(policy_columns), len(policy)),
        )

    @override
    def excluded(self, policies: Int64Array) -> BoolArray:
        """Whether each policy (D,) cannot be installed together with one of the given ones: both
        have one endpoint, and the router of one is on the other's shortest paths under a failure.

        Args:
            policies: (n,) indices of the given policies.
        """
        is_excluded = np.zeros(len(self.source), dtype=bool)
        for policy in policies.tolist():
            target = int(self.target[policy])
            router = int(self.source[policy])
            same_endpoint = np.flatnonzero(self.target == target)
            other_routers = self.source[same_endpoint]
            for passes in self.passes:
                # Either router on the other one's shortest paths to the endpoint.
                follows_router = self._is_between(passes, router, target, other_routers)
                shares_path = follows_router | self._is_between(
                    passes, other_routers, target, router
                )
                is_excluded[same_endpoint] |= shares_path & (other_routers != router)
        return is_excluded

    @override
    def conflicting(self, policy: Int64Array, mid: IntArray) -> BoolArray:
        """Whether the policy of another column captures the traffic of each column (n,).

        A policy (router, endpoint) captures a segment to its endpoint that crosses its router under
        some failure: the first segment of the list if the midpoint is the endpoint, or the last
        one.

        Args:
            policy: (n,) policy of each column.
            mid: (n,) midpoint of each column.
        """
        is_conflicting = np.zeros(len(policy), dtype=bool)
        begin, target = self.source[policy], self.target[policy]
        for capturing_policy in np.unique(policy).tolist():
            router = int(self.source[capturing_policy])
            endpoint = int(self.target[capturing_policy])
            for passes in self.passes:
                captures_first = (mid == endpoint) & self._is_between(passes, begin, mid, router)
                captures_last = (target == endpoint) & self._is_between(passes, mid, target, router)
                is_conflicting |= (captures_first | captures_last) & (begin != router)
        return is_conflicting

    @staticmethod
    def _is_between(
        passes: SegmentPasses, begin: AnyArray | int, end: AnyArray | int, node: AnyArray | int
    ) -> BoolArray:
        """Whether the shortest paths from ``begin`` to ``end`` cross ``node``; False without a
        path.

            distance(begin, node) + distance(node, end) = distance(begin, end)

        Node arguments are indices or index arrays, which broadcast against each other.
        """
        distance = passes.dag.dags.distance
        shortest = distance[end, begin]
        is_on_path = np.isfinite(shortest) & (
            distance[node, begin] + distance[end, node] == shortest
        )
        is_end = np.equal(node, begin) | np.equal(node, end)
        return np.asarray(is_on_path & (passes.dag.links.has_transit[node] | is_end))
