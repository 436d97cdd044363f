"""The program of :mod:`teal_ip.segments`, its loads and its bound."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property

import numpy as np

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.network.shortest import shortest_trees
from teal.pathops.segment_passes import SegmentPasses
from teal.runtime import rounding
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import threads_for
from teal_ip.segments.kernels import (
    OPERATIONS_PER_SLOT,
    cheapest_midpoints,
    first_segments,
    grouped,
    last_segments,
)

UNIFORM_PARTS = (
    0.0,
    0.003,
    0.01,
    0.03,
    0.1,
    0.3,
)  # of equal prices in a mixture, for the bound on any paths
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
        expected = f"at least {rounding.at_least(bound)}: {lists} load every link less"
        raise InputError("--target-utilisation", "", expected, target)
    if value > target * (1 + TARGET_ROUNDING):
        reached = math.ceil(value * 1e5) / 1e5
        open_range = f"down to {rounding.at_least(bound)} is not excluded"
        expected = f"at least {reached:g}, which was reached ({open_range})"
        raise InputError("--target-utilisation", "", expected, target)


def distinct(pairs: AnyArray) -> tuple[IntArray, IntArray, Int64Array]:
    """Source and target (P,) of the different pairs (D, 2), in ascending order, and the pair (D,)
    of each demand.
    """
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
    def of(
        cls, dag: EcmpDag, pairs: IntArray, demand: FloatArray, *, balances: bool
    ) -> SegmentProblem:
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
            raise InputError(
                "segments", "demand", "a demand above 0 between nodes with a path", "none"
            )
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
            cheapest_midpoints(
                pi,
                np.ascontiguousarray(pi.T),
                self.source,
                self.target,
                *self.by_source,
                best,
                cost,
            )
        return best, cost

    def bound(self, prices: FloatArray, cost: FloatArray) -> float:
        """The bound of the package, of link prices (E,) and the least cost of each demand (D,)."""
        value = float((self.capacity * prices).sum())
        if self.balances:
            return float((self.demand * cost).sum()) / max(value, 1e-300)
        return value + float((self.demand * np.maximum(0, 1 - cost)).sum())

    def free_bound(self, prices: FloatArray) -> float:
        """A bound on routing over any paths: the costs are those of shortest paths.

        Links that no segment list can load have a price of 0, which any path may use; so mixtures
        with equal prices are tried too, and the best bound counts.
        """
        links, live = self.dag.links, self.capacity > 0
        nodes, roots = self.num_nodes, np.unique(self.source)
        uniform = (
            float((self.capacity * prices).sum()) * self.inverse_capacity / max(1, int(live.sum()))
        )
        bounds = []
        for part in UNIFORM_PARTS:
            mixed = (1 - part) * prices + part * uniform
            weight = np.where(live, mixed, np.inf)
            distance, _ = shortest_trees(
                nodes, links.tail, links.head, weight, roots.astype(np.int32)
            )
            bounds.append(
                self.bound(mixed, distance[np.searchsorted(roots, self.source), self.target])
            )
        return max(bounds) if self.balances else min(bounds)

    def utilisation(self, load: FloatArray) -> float:
        """Largest load over capacity."""
        return float((load * self.inverse_capacity).max())

    def direct(self) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, 1) of no policies: all demands go straight to their targets."""
        return np.ascontiguousarray(self.target[:, None]), np.ones((len(self.target), 1))

    def steered(self, mid: IntArray, share: FloatArray) -> BoolArray:
        """(D,) the demands that have a policy: some list of theirs, of more than MIN_SHARE, has a
        midpoint.
        """
        return ((share > MIN_SHARE) & (mid >= 0) & (mid != self.target[:, None])).any(1)

    def policies(self, mid: IntArray, share: FloatArray) -> SegmentPolicies:
        """The lists of demands that do not go straight to their targets; shares of a demand sum to
        1.
        """
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
                lists[s, t] = tuple(
                    SegmentList(part / total, stops) for stops, part in sorted(parts.items())
                )
        return SegmentPolicies(lists)
