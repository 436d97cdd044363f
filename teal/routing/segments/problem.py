"""The program of :mod:`teal.routing.segments`, its loads and its bound; and loads and prices of several scenarios."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.network.shortest import shortest_trees
from teal.pathops.segment_passes import SegmentPasses
from teal.routing.segments.kernels import (
    OPERATIONS_PER_SLOT,
    cheapest_midpoints,
    first_segments,
    grouped,
    last_segments,
)
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import threads_for

UNIFORM_PARTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)  # of equal prices in a mixture, for the bound on any paths
MIN_SHARE = 1e-9  # of a demand, below which a list is dropped
TARGET_ROUNDING = 1e-6  # relative, by which a utilisation may exceed the one that was asked for


def require_target(target: float, value: float, bound: float, lists: str) -> None:
    """Raise InputError for a utilisation that no lists keep, or that the search has found none for.

    Args:
        target: utilisation that was asked for.
        value: least utilisation that was found.
        bound: bound on it.
        lists: lists that the bound is of, for the message.
    """
    if bound > target * (1 + TARGET_ROUNDING):
        expected = f"at least {bound:.6g}: {lists} load every link less"
        raise InputError("--target-utilisation", "", expected, target)
    if value > target * (1 + TARGET_ROUNDING):
        reached = math.ceil(value * 1e5) / 1e5
        expected = f"at least {reached:g}, which was reached (down to {bound:.6g} is not excluded)"
        raise InputError("--target-utilisation", "", expected, target)


def distinct(pairs: AnyArray) -> tuple[IntArray, IntArray, Int64Array]:
    """Source and target (P,) of the different pairs (D, 2), in ascending order, and the pair (D,) of each demand."""
    ends, of = np.unique(pairs, axis=0, return_inverse=True)
    source, target = (np.ascontiguousarray(ends[:, i], dtype=np.int32) for i in (0, 1))
    return source, target, of.reshape(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentProblem:
    """One matrix.

    Attributes:
        dag: shortest paths of the IGP.
        source: (D,) nodes, in ascending order.
        target: (D,) nodes, each with a path from its source.
        demand: (D,) Gbit/s, above 0.
        balances: whether theta is minimised; else the flow is maximised.
    """

    dag: EcmpDag
    source: IntArray
    target: IntArray
    demand: FloatArray
    balances: bool

    @classmethod
    def of(cls, dag: EcmpDag, pairs: IntArray, demand: FloatArray, *, balances: bool) -> SegmentProblem:
        """Check, sort, add up what is between the same nodes, and leave out what cannot be sent.

        Args:
            dag: shortest paths.
            pairs: (D, 2) source and target.
            demand: (D,) Gbit/s, at least 0; pairs without demand or without a path are left out.
            balances: see the class.

        Raises:
            InputError: nothing is left.
        """
        pairs = np.asarray(pairs)
        sends = (demand > 0) & dag.reaches[pairs[:, 1], pairs[:, 0]] & (pairs[:, 0] != pairs[:, 1])
        if not sends.any():
            raise InputError("segments", "demand", "a demand above 0 between nodes with a path", "none")
        kept = np.flatnonzero(sends)
        source, target, of = distinct(pairs[kept])
        return cls(dag, source, target, np.bincount(of, demand[kept]).astype(np.float64), balances)

    @cached_property
    def passes(self) -> SegmentPasses:
        """Sums and loads of segments."""
        return SegmentPasses(self.dag)

    @cached_property
    def capacity(self) -> FloatArray:
        """(E,) Gbit/s."""
        return np.asarray(self.dag.topology.capacity, dtype=np.float64)

    @cached_property
    def inverse_capacity(self) -> FloatArray:
        """(E,) 1 / (Gbit/s), 0 for failed links."""
        return np.where(self.capacity > 0, 1 / np.where(self.capacity > 0, self.capacity, 1), 0)

    @cached_property
    def by_source(self) -> tuple[IntArray, IntArray]:
        """Pointers (N + 1,) and demand numbers (D,), grouped by source."""
        return grouped(self.source, self.num_nodes)

    @cached_property
    def by_target(self) -> tuple[IntArray, IntArray]:
        """Pointers (N + 1,) and demand numbers (D,), grouped by target."""
        return grouped(self.target, self.num_nodes)

    @property
    def sense(self) -> float:
        """-1.0 where theta is minimised, 1.0 where flow is maximised."""
        return -1.0 if self.balances else 1.0

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.dag.topology.num_nodes

    def segment_prices(self, prices: FloatArray) -> FloatArray:
        """(N, N) pi, of link prices (E,)."""
        return np.asarray(self.passes.segment_sum(prices[None])[0])

    def volumes(self, mid: IntArray, share: FloatArray) -> FloatArray:
        """(N, N) Gbit/s of each segment."""
        nodes = self.num_nodes
        first, last = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
        with threads_for(OPERATIONS_PER_SLOT * mid.size):
            first_segments(*self.by_source, self.demand, mid, share, first)
            last_segments(*self.by_target, self.demand, mid, share, last)
        return np.asarray(last + first.T)

    def loads(self, mid: IntArray, share: FloatArray) -> FloatArray:
        """(E,) Gbit/s."""
        return np.asarray(self.passes.segment_load(self.volumes(mid, share)[None])[0])

    def cheapest(self, pi: FloatArray) -> tuple[IntArray, FloatArray]:
        """(D,) the midpoint of least cost, the target itself on a tie, and its cost."""
        with threads_for(len(self.demand) * self.num_nodes):
            best, cost = np.empty(len(self.demand), dtype=np.int32), np.empty(len(self.demand))
            cheapest_midpoints(pi, np.ascontiguousarray(pi.T), self.source, self.target, *self.by_source, best, cost)
        return best, cost

    def bound(self, prices: FloatArray, cost: FloatArray) -> float:
        """The bound of the package, of link prices (E,) and the least cost of each demand (D,)."""
        value = float((self.capacity * prices).sum())
        if self.balances:
            return float((self.demand * cost).sum()) / max(value, 1e-300)
        return value + float((self.demand * np.maximum(0, 1 - cost)).sum())

    def free_bound(self, prices: FloatArray) -> float:
        """A bound on routing over any paths: the costs are those of shortest paths.

        Links that no segment list can load have a price of 0, which any path may use; so mixtures with equal prices
        are tried too, and the best bound counts.
        """
        links, live = self.dag.links, self.capacity > 0
        nodes, roots = self.num_nodes, np.unique(self.source)
        uniform = float((self.capacity * prices).sum()) * self.inverse_capacity / max(1, int(live.sum()))
        bounds = []
        for part in UNIFORM_PARTS:
            mixed = (1 - part) * prices + part * uniform
            weight = np.where(live, mixed, np.inf)
            distance, _ = shortest_trees(nodes, links.tail, links.head, weight, roots.astype(np.int32))
            bounds.append(self.bound(mixed, distance[np.searchsorted(roots, self.source), self.target]))
        return max(bounds) if self.balances else min(bounds)

    def utilisation(self, load: FloatArray) -> float:
        """Largest load over capacity."""
        return float((load * self.inverse_capacity).max())

    def direct(self) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, 1) of no policies: all demands go straight to their targets."""
        return np.ascontiguousarray(self.target[:, None]), np.ones((len(self.target), 1))

    def steered(self, mid: IntArray, share: FloatArray) -> BoolArray:
        """(D,) the demands that have a policy: some list of theirs, of more than MIN_SHARE, has a midpoint."""
        return ((share > MIN_SHARE) & (mid >= 0) & (mid != self.target[:, None])).any(1)

    def policies(self, mid: IntArray, share: FloatArray) -> SegmentPolicies:
        """The lists of demands that do not go straight to their targets; shares of a demand sum to 1."""
        lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
        is_used = (share > MIN_SHARE) & (mid >= 0)
        steered = self.steered(mid, share)
        for d in np.flatnonzero(steered).tolist():
            s, t = int(self.source[d]), int(self.target[d])
            parts: dict[tuple[int, ...], float] = {}
            for k in np.flatnonzero(is_used[d]).tolist():
                stops = () if mid[d, k] in (s, t) else (int(mid[d, k]),)
                parts[stops] = parts.get(stops, 0.0) + float(share[d, k])
            total = sum(parts.values())
            if set(parts) != {()}:
                lists[s, t] = tuple(SegmentList(part / total, stops) for stops, part in sorted(parts.items()))
        return SegmentPolicies(lists)


_BLOCK_NUMBERS = 1 << 23  # demands times midpoints that are priced at once

Key = tuple[int, int, int]  # failure, matrix, link


class Scenarios:
    """Loads and prices of all matrices under all failures.

    Where a failure cuts the ends of a demand off from each other, its lists take it as far as their midpoints.

    Args:
        dags: shortest paths without failure, then under each.
        source, target: (D,) ends of the demands, in ascending order.
        demand: (M, D) Gbit/s.
    """

    def __init__(self, dags: Sequence[EcmpDag], source: IntArray, target: IntArray, demand: FloatArray) -> None:
        self.passes, self.source, self.target = [SegmentPasses(dag) for dag in dags], source, target
        self.nodes, self._by_source = dags[0].topology.num_nodes, grouped(source, dags[0].topology.num_nodes)
        self.capacity = np.array([np.where(np.isfinite(dag.links.metric), dag.topology.capacity, 0.0) for dag in dags])
        self.demand = demand
        self.connected = np.array([dag.reaches[target, source] for dag in dags])  # (F, D)

    def utilisation(self, demand: Int64Array, mid: IntArray, share: FloatArray) -> FloatArray:
        """(F, M, E) of columns (n,); the rest of each demand goes straight."""
        rest = 1 - np.bincount(demand, share, minlength=len(self.source))
        of = np.concatenate([np.arange(len(self.source)), demand])
        stop, part = np.concatenate([self.target, mid]), np.concatenate([rest, share])
        result, nodes, source, target = [], self.nodes, self.source[of], self.target[of]
        for failure, passes in enumerate(self.passes):
            volume = np.zeros((len(self.demand), nodes * nodes))
            arrives = passes.dag.reaches[stop, source], self.connected[failure][of]  # at the end of each segment
            for (end, begin), does in zip(((stop, source), (target, stop)), arrives, strict=True):
                used = (end != begin) & does
                place = end[used].astype(np.int64) * nodes + begin[used]
                for matrix, offered in enumerate(self.demand):
                    volume[matrix] += np.bincount(place, (offered[of] * part)[used], minlength=nodes * nodes)
            load = passes.segment_load(volume.reshape(-1, nodes, nodes))
            capacity = self.capacity[failure]
            result.append(np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1.0), 0.0))
        return np.array(result)

    def row(self, key: Key, demand: Int64Array, mid: IntArray) -> FloatArray:
        """(n,) by how much the utilisation of a link rises if whole demands go by midpoints and not straight."""
        failure, matrix, link = key
        unit = np.zeros((1, self.capacity.shape[1]))
        unit[0, link] = 1.0 / self.capacity[failure, link]
        value = self.passes[failure].segment_sum(unit)[0]
        value[~np.isfinite(value)] = 0.0  # between nodes that are cut off from each other
        np.fill_diagonal(value, 0.0)
        source, target = self.source[demand], self.target[demand]
        after = self.connected[failure, demand] * (value[target, mid] - value[target, source])
        return np.asarray(self.demand[matrix, demand] * (value[mid, source] + after))

    def cheapest(self, prices: dict[tuple[int, int], FloatArray]) -> tuple[IntArray, FloatArray, FloatArray]:
        """The cheapest midpoint of each demand (D,), its cost (D,) and that of the direct way (D,), of whole demands.

        Args:
            prices: (E,) of links, by failure and matrix.
        """
        values = {key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()}
        best, cost = self.target.copy(), np.empty(len(self.source))
        if len(self.passes) == 1 and len(self.demand) == 1:
            pi = next(iter(values.values()), np.zeros((self.nodes, self.nodes)))
            with threads_for(len(self.source) * self.nodes):
                cheapest_midpoints(
                    pi, np.ascontiguousarray(pi.T), self.source, self.target, *self._by_source, best, cost
                )  # fmt: skip
            return best, self.demand[0] * cost, self.demand[0] * pi[self.target, self.source]
        direct = np.zeros(len(self.source))
        for part, total in self._costs(values):
            at = np.arange(len(total))
            best[part] = total.argmin(1)
            cost[part], direct[part] = total[at, best[part]], total[at, self.target[part]]
        return best, cost, direct

    def _costs(self, values: dict[tuple[int, int], FloatArray]) -> Iterator[tuple[slice, FloatArray]]:
        """Some demands, and the cost of each over each midpoint (n, N), at sums of prices (N, N) of segments."""
        for value in values.values():
            value[~np.isfinite(value)] = 0.0
            np.fill_diagonal(value, 0.0)
        size = max(1, _BLOCK_NUMBERS // self.nodes)
        for begin in range(0, len(self.source), size):
            part = slice(begin, begin + size)
            source, target = self.source[part], self.target[part]
            total = np.where(self.kept(source, target), 0.0, np.inf)
            for (failure, matrix), value in values.items():
                after = self.connected[failure, part, None] * value[target]
                total += self.demand[matrix, part, None] * (value[:, source].T + after)
            yield part, total

    def promising(self, prices: dict[tuple[int, int], FloatArray], count: int) -> tuple[Int64Array, IntArray]:
        """The ``count`` columns, demands (n,) and midpoints (n,), that save most at prices of links."""
        values = {key: self.passes[key[0]].segment_sum(price[None])[0] for key, price in prices.items()}
        demands, mids, savings = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros(0)
        for part, total in self._costs(values):
            rise = total - total[np.arange(len(total)), self.target[part]][:, None]
            for end in (self.source[part], self.target[part]):
                rise[np.arange(len(rise)), end] = np.inf
            first = np.argpartition(rise, min(count, rise.size - 1), axis=None)[:count]
            at, mid = np.unravel_index(first, rise.shape)
            demands, mids = np.append(demands, at + part.start), np.append(mids, mid.astype(np.int32))
            savings = np.append(savings, -rise[at, mid])
        order = np.argsort(-savings, kind="stable")[:count]
        order = order[np.isfinite(savings[order])]
        return demands[order], mids[order]

    def kept(self, source: IntArray, target: IntArray) -> FloatArray:
        """(n, N) the midpoints that no failure cuts off from one end of a demand whose ends it leaves connected."""
        kept = np.ones((len(source), self.nodes), dtype=bool)
        for passes in self.passes:
            reaches = passes.dag.reaches
            kept &= reaches[:, source].T & reaches[target] | ~reaches[target, source][:, None]
        return kept
