"""Traffic matrices under failures: link loads and prices of one-midpoint lists, for demands or for
transit traffic.

:class:`Scenarios` evaluates F failures times M matrices for policies of demands,
:class:`TransitScenarios` for policies that steer the traffic crossing a router.
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
# Index of failure, matrix and link.
Key = tuple[int, int, int]


class Scenarios:
    """Link loads and prices of all matrices under all failures.

    Where a failure disconnects the ends of a demand, its lists carry it as far as their midpoints.

    Args:
        dags: shortest paths without failure, then under each.
        source, target: (D,) ends of the demands, in ascending order.
        demand: (M, D) Gbit/s.

    Attributes:
        is_transit: whether policies steer the traffic that crosses a router, not a demand.
        source: (D,) node where each policy begins: the demand's source, or a transit router.
        target: (D,) node where each policy ends.
        offered: (M, D) Gbit/s that each policy can carry, under each of F failures.
    """

    is_transit = False

    def __init__(
        self, dags: Sequence[EcmpDag], source: IntArray, target: IntArray, demand: FloatArray
    ) -> None:
        self.passes = [SegmentPasses(dag) for dag in dags]
        self.source = source
        self.target = target
        self.nodes = dags[0].topology.num_nodes
        self.capacity = np.array(
            [np.where(np.isfinite(dag.links.metric), dag.topology.capacity, 0.0) for dag in dags]
        )
        self._demands = source, target, demand
        self.offered = [demand] * len(dags)
        self._set_policies()

    def _set_policies(self) -> None:
        # Admissible midpoints, by the first demand of each block.
        self._admissible_midpoints: dict[int, BoolArray] = {}
        self._by_source = grouped(self.source, self.nodes)
        # (F, D)
        self.connected = np.array(
            [passes.dag.reaches[self.target, self.source] for passes in self.passes]
        )

    def utilisation(self, policy: Int64Array, mid: IntArray, share: FloatArray) -> FloatArray:
        """Link utilisation (F, M, E) of columns (n,); all other traffic follows shortest paths."""
        result = []
        nodes = self.nodes
        source = self.source[policy]
        target = self.target[policy]
        begins, ends, demand = self._demands
        for failure, passes in enumerate(self.passes):
            # Volumes of segments if all demands follow their shortest paths.
            reaches = passes.dag.reaches
            size = nodes * nodes
            volume = np.array(
                [
                    np.bincount(ends.astype(np.int64) * nodes + begins, volumes, size)
                    for volumes in demand
                ]
            )
            # Move the shares from the shortest paths to the two segments of their lists.
            moved = self.offered[failure][:, policy] * share
            # Whether the last segment has a path.
            arrives = reaches[target, source]
            steps = (
                (-1, target, source, arrives),
                (1, mid, source, reaches[mid, source]),
                (1, target, mid, arrives),
            )
            for sign, end, begin, has_path in steps:
                uses_segment = (end != begin) & has_path
                segment = end[uses_segment].astype(np.int64) * nodes + begin[uses_segment]
                for matrix_volume, matrix_moved in zip(volume, moved, strict=True):
                    matrix_volume += sign * np.bincount(segment, matrix_moved[uses_segment], size)
            load = passes.segment_load(volume.reshape(-1, nodes, nodes))
            capacity = self.capacity[failure]
            result.append(np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1.0), 0.0))
        return np.array(result)

    def least(
        self, cost: FloatArray, direct: FloatArray, prices: dict[tuple[int, int], FloatArray]
    ) -> float:
        """Return the least cost of all traffic, from the costs (D,) of each policy's cheapest list
        and of its shortest paths.

        Args:
            cost: (D,) cost of the cheapest list.
            direct: (D,) cost of the shortest paths.
            prices: link prices (E,) by (failure, matrix).
        """
        return float(np.minimum(direct, cost).sum())

    @property
    def largest_offered(self) -> FloatArray:
        """Largest Gbit/s (D,) that each policy can carry, over all matrices and failures."""
        result = np.zeros(len(self.source))
        for offered in self.offered:
            np.maximum(result, offered.max(0), out=result)
        return result

    def sums(self, policy: Int64Array) -> sp.csr_array:
        """Rows (R, n) of ones for sets of columns (n,) whose shares sum to at most 1."""
        rows, row_index = np.unique(policy, return_inverse=True)
        return sp.csr_array(
            (np.ones(len(policy)), (row_index, np.arange(len(policy)))),
            shape=(len(rows), len(policy)),
        )

    def excluded(self, policies: Int64Array) -> BoolArray:
        """Whether each policy (D,) cannot be installed together with one of these (n,)."""
        return np.zeros(len(self.source), dtype=bool)

    def conflicting(self, policy: Int64Array, mid: IntArray) -> BoolArray:
        """Whether others of these columns (n,) change the loads of each column; False if each
        policy steers only its demand.
        """
        return np.zeros(len(policy), dtype=bool)

    def row(self, key: Key, demand: Int64Array, mid: IntArray) -> FloatArray:
        """Row of the master (n,): increase of a link's utilisation if a whole demand moves from its
        shortest paths to a midpoint.
        """
        failure, matrix, link = key
        unit = np.zeros((1, self.capacity.shape[1]))
        unit[0, link] = 1.0 / self.capacity[failure, link]
        value = self.passes[failure].segment_sum(unit)[0]
        # Nodes that are disconnected from each other.
        value[~np.isfinite(value)] = 0.0
        np.fill_diagonal(value, 0.0)
        source, target = self.source[demand], self.target[demand]
        after = self.connected[failure, demand] * (value[target, mid] - value[target, source])
        return np.asarray(self.offered[failure][matrix, demand] * (value[mid, source] + after))

    def cheapest(
        self, prices: dict[tuple[int, int], FloatArray], end: Deadline
    ) -> tuple[IntArray, FloatArray, FloatArray] | None:
        """Return each demand's cheapest midpoint (D,), its cost (D,) and the cost of the shortest
        paths (D,), for whole demands.

        Args:
            prices: link prices (E,) by (failure, matrix).
            end: time limit; None is returned after it.
        """
        values = {
            key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()
        }
        best = self.target.copy()
        cost = np.empty(len(self.source))
        # One matrix without failures: the compiled kernel.
        if len(self.passes) == 1 and len(self.offered[0]) == 1 and not self.is_transit:
            pi = next(iter(values.values()), np.zeros((self.nodes, self.nodes)))
            with threads_for(len(self.source) * self.nodes):
                cheapest_midpoints(
                    pi,
                    np.ascontiguousarray(pi.T),
                    self.source,
                    self.target,
                    *self._by_source,
                    best,
                    cost,
                )
            offered = self.offered[0][0]
            return best, offered * cost, offered * pi[self.target, self.source]
        # All scenarios, in blocks of demands.
        direct = np.zeros(len(self.source))
        for block, total in self._costs(values):
            if end.is_over:
                return None
            rows = np.arange(len(total))
            best[block] = total.argmin(1)
            cost[block] = total[rows, best[block]]
            direct[block] = total[rows, self.target[block]]
        return best, cost, direct

    def _costs(
        self, values: dict[tuple[int, int], FloatArray]
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Yield blocks of demands with their costs over each midpoint (n, N), from summed prices of
        segments (N, N).
        """
        for value in values.values():
            value[~np.isfinite(value)] = 0.0
            np.fill_diagonal(value, 0.0)
        block_size = max(1, _BLOCK_ENTRIES // self.nodes)
        for begin in range(0, len(self.source), block_size):
            block = slice(begin, begin + block_size)
            source = self.source[block]
            target = self.target[block]
            # Cached, since it takes longer than all costs.
            if begin not in self._admissible_midpoints:
                self._admissible_midpoints[begin] = self.admissible_midpoints(source, target)
            total = np.where(self._admissible_midpoints[begin], 0.0, np.inf)
            for (failure, matrix), value in values.items():
                after = self.connected[failure, block, None] * value[target]
                total += self.offered[failure][matrix, block, None] * (value[:, source].T + after)
            yield block, total

    def promising(
        self, prices: dict[tuple[int, int], FloatArray], count: int, deadline: Deadline
    ) -> tuple[Int64Array, IntArray]:
        """Return demands (n,) and midpoints (n,) of the ``count`` columns that save most at link
        prices by (failure, matrix).

        After the deadline, only the blocks of demands examined so far count.
        """
        values = {
            key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()
        }
        demands = np.zeros(0, dtype=np.int64)
        mids = np.zeros(0, dtype=np.int32)
        savings = np.zeros(0)
        for block, total in self._costs(values):
            if deadline.is_over:
                break
            # Change of cost against the shortest paths; no midpoint is an end of its demand.
            cost_change = total - total[np.arange(len(total)), self.target[block]][:, None]
            for end in (self.source[block], self.target[block]):
                cost_change[np.arange(len(cost_change)), end] = np.inf
            num_cheapest = min(count, cost_change.size - 1)
            cheapest = np.argpartition(cost_change, num_cheapest, axis=None)[:count]
            demand_index, mid = np.unravel_index(cheapest, cost_change.shape)
            demands = np.append(demands, demand_index + block.start)
            mids = np.append(mids, mid.astype(np.int32))
            savings = np.append(savings, -cost_change[demand_index, mid])
        order = np.argsort(-savings, kind="stable")[:count]
        order = order[np.isfinite(savings[order])]
        return demands[order], mids[order]

    def admissible_midpoints(self, source: IntArray, target: IntArray) -> BoolArray:
        """Whether each midpoint (n, N) is admissible: no failure that leaves the demand's ends
        connected disconnects the midpoint from one of them.
        """
        admissible = np.ones((len(source), self.nodes), dtype=bool)
        for passes in self.passes:
            reaches = passes.dag.reaches
            admissible &= reaches[:, source].T & reaches[target] | ~reaches[target, source][:, None]
        return admissible


class TransitScenarios(Scenarios):
    """Scenarios for policies that steer all traffic crossing a router towards an endpoint.

    V[m, t] Gbit/s cross router m towards t under a failure, provided that no policy captures what
    another one steers.  So the midpoints of m exclude those whose last segment returns to m under
    any failure.  Of two policies of an endpoint, neither router may be on the shortest paths of the
    other (:meth:`excluded`), and no list may cross the router of another policy that would capture
    it (:meth:`conflicting`), under any failure: bounds hold for such sets of policies.

    Linear programs and bounds relax both conditions: the first is enforced along one path of each
    router only (first next hops, without failure), the second not at all.
    """

    is_transit = True

    def __init__(
        self, dags: Sequence[EcmpDag], source: IntArray, target: IntArray, demand: FloatArray
    ) -> None:
        super().__init__(dags, source, target, demand)
        volume = volumes(np.stack([source, target], 1), demand, self.nodes)
        crossing = np.array(
            [np.where(dag.reaches, IgpFailures(dag, volume).passing, 0.0) for dag in dags]
        )
        crossing[..., np.arange(self.nodes), np.arange(self.nodes)] = 0.0
        self.source, self.target = (
            ends.astype(np.int32) for ends in np.nonzero(crossing.max((0, 1)).T)
        )
        self.offered = list(crossing[:, :, self.target, self.source])
        self._set_policies()
        dag = dags[0]
        self._parent = np.full((self.nodes, self.nodes), -1, dtype=np.int32)
        first_next_hops(dag.links.head, dag.dags, self._parent)

    @override
    def least(
        self, cost: FloatArray, direct: FloatArray, prices: dict[tuple[int, int], FloatArray]
    ) -> float:
        source, target, demand = self._demands
        # Cost of all traffic on its shortest paths.
        shortest_path_cost = 0.0
        for (failure, matrix), price in prices.items():
            value = self.passes[failure].segment_sum(price[None])[0][target, source]
            shortest_path_cost += float(demand[matrix] @ np.where(np.isfinite(value), value, 0.0))
        # Policies whose routers are on one path exclude each other: an antichain saves at most.
        saving = np.zeros((self.nodes, self.nodes))
        saving[self.target, self.source] = np.maximum(0.0, direct - cost)
        return shortest_path_cost - max_antichain_saving(
            self.passes[0].dag.dags, self._parent, saving
        )

    @override
    def admissible_midpoints(self, source: IntArray, target: IntArray) -> BoolArray:
        admissible = super().admissible_midpoints(source, target)
        mids = np.arange(self.nodes)
        for passes in self.passes:
            admissible &= ~self._is_between(passes, mids, target[:, None], source[:, None])
        return admissible

    @override
    def sums(self, policy: Int64Array) -> sp.csr_array:
        columns: dict[tuple[int, int], list[int]] = {}
        for column, d in enumerate(policy.tolist()):
            columns.setdefault((int(self.source[d]), int(self.target[d])), []).append(column)
        entries = []
        for row, (node, target) in enumerate(columns):
            while node not in (target, -1):
                entries += [(row, column) for column in columns.get((node, target), ())]
                node = int(self._parent[target, node])
        rows_and_columns = np.array(entries, dtype=np.int64).reshape(-1, 2).T
        return sp.csr_array(
            (np.ones(len(entries)), (rows_and_columns[0], rows_and_columns[1])),
            shape=(len(columns), len(policy)),
        )

    @override
    def excluded(self, policies: Int64Array) -> BoolArray:
        result = np.zeros(len(self.source), dtype=bool)
        for policy in policies.tolist():
            target = int(self.target[policy])
            node = int(self.source[policy])
            same_endpoint = np.flatnonzero(self.target == target)
            other_nodes = self.source[same_endpoint]
            for passes in self.passes:
                is_before = self._is_between(passes, node, target, other_nodes)
                shares_path = is_before | self._is_between(passes, other_nodes, target, node)
                result[same_endpoint] |= shares_path & (other_nodes != node)
        return result

    @override
    def conflicting(self, policy: Int64Array, mid: IntArray) -> BoolArray:
        result = np.zeros(len(policy), dtype=bool)
        begin, target = self.source[policy], self.target[policy]
        for q in np.unique(policy).tolist():
            router = int(self.source[q])
            endpoint = int(self.target[q])
            for passes in self.passes:
                first = (mid == endpoint) & self._is_between(passes, begin, mid, router)
                last = (target == endpoint) & self._is_between(passes, mid, target, router)
                result |= (first | last) & (begin != router)
        return result

    @staticmethod
    def _is_between(
        passes: SegmentPasses, begin: AnyArray | int, end: AnyArray | int, node: AnyArray | int
    ) -> BoolArray:
        """Whether shortest paths between two nodes cross a third one; False without a path."""
        distance = passes.dag.dags.distance
        shortest = distance[end, begin]
        is_on_path = np.isfinite(shortest) & (
            distance[node, begin] + distance[end, node] == shortest
        )
        is_end = np.equal(node, begin) | np.equal(node, end)
        return np.asarray(is_on_path & (passes.dag.links.has_transit[node] | is_end))
