"""Matrices under failures: loads and prices of lists with one midpoint, of demands or of what
crosses a router.
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
from teal_ip.segments.kernels import cheapest_midpoints, first_next_hops, grouped, most_saved

_BLOCK_NUMBERS = 1 << 19  # demands times midpoints that are priced at once
Key = tuple[int, int, int]  # failure, matrix, link


class Scenarios:
    """Loads and prices of all matrices under all failures.

    Where a failure cuts the ends of a demand off from each other, its lists take it as far as their
    midpoints.

    Args:
        dags: shortest paths without failure, then under each.
        source, target: (D,) ends of the demands, in ascending order.
        demand: (M, D) Gbit/s.

    Attributes:
        is_transit: whether policies steer what crosses a router, and not a demand.
        source: (D,) node where each policy begins: that of a demand, or a router that traffic
            crosses.
        target: (D,) node where it ends.
        offered: (M, D) Gbit/s that it can take, under each of F failures.
    """

    is_transit = False

    def __init__(
        self, dags: Sequence[EcmpDag], source: IntArray, target: IntArray, demand: FloatArray
    ) -> None:
        self.passes, self.source, self.target = [SegmentPasses(dag) for dag in dags], source, target
        self.nodes = dags[0].topology.num_nodes
        self.capacity = np.array(
            [np.where(np.isfinite(dag.links.metric), dag.topology.capacity, 0.0) for dag in dags]
        )
        self._demands = source, target, demand
        self.offered = [demand] * len(dags)
        self._set_policies()

    def _set_policies(self) -> None:
        self._kept: dict[int, BoolArray] = {}  # midpoints, by the first demand of each block
        self._by_source = grouped(self.source, self.nodes)
        self.connected = np.array(
            [passes.dag.reaches[self.target, self.source] for passes in self.passes]
        )  # (F, D)

    def utilisation(self, policy: Int64Array, mid: IntArray, share: FloatArray) -> FloatArray:
        """(F, M, E) of columns (n,); everything else goes straight."""
        result, nodes, source, target = [], self.nodes, self.source[policy], self.target[policy]
        begins, ends, demand = self._demands
        for failure, passes in enumerate(self.passes):
            reaches, size = passes.dag.reaches, nodes * nodes
            volume = np.array(
                [np.bincount(ends.astype(np.int64) * nodes + begins, one, size) for one in demand]
            )
            moved = self.offered[failure][:, policy] * share
            arrives = reaches[target, source]  # at the end of the last segment
            steps = (
                (-1, target, source, arrives),
                (1, mid, source, reaches[mid, source]),
                (1, target, mid, arrives),
            )
            for sign, end, begin, does in steps:
                used = (end != begin) & does
                place = end[used].astype(np.int64) * nodes + begin[used]
                for of_matrix, part in zip(volume, moved, strict=True):
                    of_matrix += sign * np.bincount(place, part[used], size)
            load = passes.segment_load(volume.reshape(-1, nodes, nodes))
            capacity = self.capacity[failure]
            result.append(np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1.0), 0.0))
        return np.array(result)

    def least(
        self, cost: FloatArray, direct: FloatArray, prices: dict[tuple[int, int], FloatArray]
    ) -> float:
        """Least cost of all traffic, by the costs (D,) of the cheapest list and of the direct way
        of each policy.

        Args:
            prices: (E,) of links, by failure and matrix.
        """
        return float(np.minimum(direct, cost).sum())

    @property
    def largest_offered(self) -> FloatArray:
        """(D,) Gbit/s that each policy can take, the largest of all matrices and failures."""
        result = np.zeros(len(self.source))
        for offered in self.offered:
            np.maximum(result, offered.max(0), out=result)
        return result

    def sums(self, policy: Int64Array) -> sp.csr_array:
        """(R, n) ones for the columns (n,) of which the shares together are at most 1."""
        rows, row = np.unique(policy, return_inverse=True)
        return sp.csr_array(
            (np.ones(len(policy)), (row, np.arange(len(policy)))), shape=(len(rows), len(policy))
        )

    def excluded(self, policies: Int64Array) -> BoolArray:
        """(D,) the policies that cannot be installed together with one of these (n,)."""
        return np.zeros(len(self.source), dtype=bool)

    def conflicting(self, policy: Int64Array, mid: IntArray) -> BoolArray:
        """(n,) the columns whose loads other ones of these change; none where each policy steers
        its demand alone.
        """
        return np.zeros(len(policy), dtype=bool)

    def row(self, key: Key, demand: Int64Array, mid: IntArray) -> FloatArray:
        """(n,) by how much the utilisation of a link rises if whole demands go by midpoints and not
        straight.
        """
        failure, matrix, link = key
        unit = np.zeros((1, self.capacity.shape[1]))
        unit[0, link] = 1.0 / self.capacity[failure, link]
        value = self.passes[failure].segment_sum(unit)[0]
        value[~np.isfinite(value)] = 0.0  # between nodes that are cut off from each other
        np.fill_diagonal(value, 0.0)
        source, target = self.source[demand], self.target[demand]
        after = self.connected[failure, demand] * (value[target, mid] - value[target, source])
        return np.asarray(self.offered[failure][matrix, demand] * (value[mid, source] + after))

    def cheapest(
        self, prices: dict[tuple[int, int], FloatArray], end: Deadline
    ) -> tuple[IntArray, FloatArray, FloatArray] | None:
        """The cheapest midpoint of each demand (D,), its cost (D,) and that of the direct way (D,),
        of whole demands.

        Args:
            prices: (E,) of links, by failure and matrix.
            end: deadline after which there is no answer.
        """
        values = {
            key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()
        }
        best, cost = self.target.copy(), np.empty(len(self.source))
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
        direct = np.zeros(len(self.source))
        for part, total in self._costs(values):
            if end.is_over:
                return None
            at = np.arange(len(total))
            best[part] = total.argmin(1)
            cost[part], direct[part] = total[at, best[part]], total[at, self.target[part]]
        return best, cost, direct

    def _costs(
        self, values: dict[tuple[int, int], FloatArray]
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Some demands, and the cost of each over each midpoint (n, N), at sums of prices (N, N) of
        segments.
        """
        for value in values.values():
            value[~np.isfinite(value)] = 0.0
            np.fill_diagonal(value, 0.0)
        size = max(1, _BLOCK_NUMBERS // self.nodes)
        for begin in range(0, len(self.source), size):
            part = slice(begin, begin + size)
            source, target = self.source[part], self.target[part]
            if begin not in self._kept:  # which takes longer than all costs
                self._kept[begin] = self.kept(source, target)
            total = np.where(self._kept[begin], 0.0, np.inf)
            for (failure, matrix), value in values.items():
                after = self.connected[failure, part, None] * value[target]
                total += self.offered[failure][matrix, part, None] * (value[:, source].T + after)
            yield part, total

    def promising(
        self, prices: dict[tuple[int, int], FloatArray], count: int, deadline: Deadline
    ) -> tuple[Int64Array, IntArray]:
        """The ``count`` columns, demands (n,) and midpoints (n,), that save most at prices of
        links.

        At the deadline those of the demands that were looked at.
        """
        values = {
            key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()
        }
        demands, mids, savings = (
            np.zeros(0, dtype=np.int64),
            np.zeros(0, dtype=np.int32),
            np.zeros(0),
        )
        for part, total in self._costs(values):
            if deadline.is_over:
                break
            rise = total - total[np.arange(len(total)), self.target[part]][:, None]
            for end in (self.source[part], self.target[part]):
                rise[np.arange(len(rise)), end] = np.inf
            first = np.argpartition(rise, min(count, rise.size - 1), axis=None)[:count]
            at, mid = np.unravel_index(first, rise.shape)
            demands, mids = (
                np.append(demands, at + part.start),
                np.append(mids, mid.astype(np.int32)),
            )
            savings = np.append(savings, -rise[at, mid])
        order = np.argsort(-savings, kind="stable")[:count]
        order = order[np.isfinite(savings[order])]
        return demands[order], mids[order]

    def kept(self, source: IntArray, target: IntArray) -> BoolArray:
        """(n, N) the midpoints that no failure cuts off from one end of a demand whose ends it
        leaves connected.
        """
        kept = np.ones((len(source), self.nodes), dtype=bool)
        for passes in self.passes:
            reaches = passes.dag.reaches
            kept &= reaches[:, source].T & reaches[target] | ~reaches[target, source][:, None]
        return kept


class TransitScenarios(Scenarios):
    """Scenarios of policies that steer all traffic which crosses a router towards an endpoint.

    What crosses a router m towards t is V[m, t] under a failure, as long as no policy takes what
    another one steers. So lists of m whose last segment comes back to m under any failure are left
    out.  Of two policies of an endpoint neither router may be on the way of the other
    (:meth:`excluded`), and no list may lead over the router of another policy that would take it
    (:meth:`conflicting`), under any failure: bounds are those of such policies.

    Linear programs and bounds relax both: they know the first one along one way of every router
    alone, without failure by its first next hop, and the second one not at all.
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
        straight = 0.0
        for (failure, matrix), price in prices.items():
            value = self.passes[failure].segment_sum(price[None])[0][target, source]
            straight += float(demand[matrix] @ np.where(np.isfinite(value), value, 0.0))
        saving = np.zeros((self.nodes, self.nodes))
        saving[self.target, self.source] = np.maximum(0.0, direct - cost)
        return straight - most_saved(self.passes[0].dag.dags, self._parent, saving)

    @override
    def kept(self, source: IntArray, target: IntArray) -> BoolArray:
        kept, mids = super().kept(source, target), np.arange(self.nodes)
        for passes in self.passes:
            kept &= ~self._is_between(passes, mids, target[:, None], source[:, None])
        return kept

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
        places = np.array(entries, dtype=np.int64).reshape(-1, 2).T
        return sp.csr_array(
            (np.ones(len(entries)), (places[0], places[1])), shape=(len(columns), len(policy))
        )

    @override
    def excluded(self, policies: Int64Array) -> BoolArray:
        result = np.zeros(len(self.source), dtype=bool)
        for policy in policies.tolist():
            target, node = int(self.target[policy]), int(self.source[policy])
            same = np.flatnonzero(self.target == target)
            others = self.source[same]
            for passes in self.passes:
                is_before = self._is_between(passes, node, target, others)
                is_between = is_before | self._is_between(passes, others, target, node)
                result[same] |= is_between & (others != node)
        return result

    @override
    def conflicting(self, policy: Int64Array, mid: IntArray) -> BoolArray:
        result = np.zeros(len(policy), dtype=bool)
        begin, target = self.source[policy], self.target[policy]
        for q in np.unique(policy).tolist():
            router, endpoint = int(self.source[q]), int(self.target[q])
            for passes in self.passes:
                first = (mid == endpoint) & self._is_between(passes, begin, mid, router)
                last = (target == endpoint) & self._is_between(passes, mid, target, router)
                result |= (first | last) & (begin != router)
        return result

    @staticmethod
    def _is_between(
        passes: SegmentPasses, begin: AnyArray | int, end: AnyArray | int, node: AnyArray | int
    ) -> BoolArray:
        """Whether shortest paths from one node to another cross a third one; not without a path."""
        distance = passes.dag.dags.distance
        way = distance[end, begin]
        is_on_way = np.isfinite(way) & (distance[node, begin] + distance[end, node] == way)
        is_end = np.equal(node, begin) | np.equal(node, end)
        return np.asarray(is_on_way & (passes.dag.links.has_transit[node] | is_end))
