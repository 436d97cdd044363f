"""The two-segment program of one matrix (:mod:`teal_ip.segments`): loads, prices and dual bounds.

Axis letters: D demands, K slots (midpoints of a demand in memory), E links, N nodes.  A segment
(t, u) carries traffic from node u to node t on the IGP's shortest paths; arrays (N, N) of segments
have the destination t first.  :class:`SegmentProblem` is the entry point;
:meth:`SegmentProblem.of` validates the demands.
"""

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

# Weights w of the convex combinations (1 - w) prices + w uniform prices at which the bound over any
# paths is computed; the best bound counts.
UNIFORM_WEIGHTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
# Split ratio below which a segment list is dropped.
MIN_SHARE = 1e-9
# Relative excess of a utilisation over its target that counts as rounding.
TARGET_ROUNDING = 1e-6


def require_target(target: float, value: float, bound: float, lists: str) -> None:
    """Raise InputError if a target utilisation is infeasible, or if the search did not reach it.

    Args:
        target: target utilisation.
        value: utilisation of the incumbent.
        bound: lower bound on the utilisation.
        lists: kind of segment lists for which the bound holds, for the message.
    """
    if bound > target * (1 + TARGET_ROUNDING):
        problem = (
            f"{target:g} is infeasible: with {lists} the largest link utilisation is at least "
            f"{rounding.at_least(bound)}"
        )
        raise InputError.invalid("--target-utilisation", "", problem, "raise the target")
    if value > target * (1 + TARGET_ROUNDING):
        # Rounded up, so that the utilisation in the message is really reached.
        reached_utilisation = math.ceil(value * 1e5) / 1e5
        problem = (
            f"{target:g} was not reached: the best utilisation is {reached_utilisation:g}, the "
            f"lower bound {rounding.at_least(bound)}"
        )
        remedy = "raise the target, or the time limit (--deadline)"
        raise InputError.invalid("--target-utilisation", "", problem, remedy)


def unique_pairs(pairs: AnyArray) -> tuple[IntArray, IntArray, Int64Array]:
    """Return the distinct (source, target) pairs of demands, in ascending order.

    Args:
        pairs: (D, 2) source and target of each demand.

    Returns:
        sources (P,), targets (P,), and the index (D,) of each demand's pair among them.
    """
    unique, pair_index = np.unique(pairs, axis=0, return_inverse=True)
    source, target = (np.ascontiguousarray(unique[:, i], dtype=np.int32) for i in (0, 1))
    return source, target, pair_index.reshape(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentProblem:
    """Two-segment program of one traffic matrix.

    Attributes:
        dag: shortest paths of the IGP.
        source: (D,) source of each demand, in ascending order.
        target: (D,) target of each demand, which has a path from the source.
        demand: (D,) Gbit/s, above 0.
        minimises_utilisation: whether theta (the largest utilisation) is minimised; else the total
            flow is maximised.
    """

    dag: EcmpDag
    source: IntArray
    target: IntArray
    demand: FloatArray
    minimises_utilisation: bool

    @classmethod
    def of(
        cls, dag: EcmpDag, pairs: IntArray, demand: FloatArray, *, minimises_utilisation: bool
    ) -> SegmentProblem:
        """Build the program: sort the pairs, merge demands of equal pairs, drop unroutable ones.

        Args:
            dag: shortest paths of the IGP.
            pairs: (D, 2) source and target.
            demand: (D,) Gbit/s, at least 0; pairs without demand or without a path are dropped.
            minimises_utilisation: whether the largest utilisation is minimised; else the total flow
                is maximised.

        Raises:
            InputError: no routable demand.
        """
        pairs = np.asarray(pairs)
        is_routable = (
            (demand > 0) & dag.reaches[pairs[:, 1], pairs[:, 0]] & (pairs[:, 0] != pairs[:, 1])
        )
        if not is_routable.any():
            raise InputError.invalid(
                "segments", "demand", "the matrix has no demand above 0 between connected nodes"
            )
        routable = np.flatnonzero(is_routable)
        source, target, pair_index = unique_pairs(pairs[routable])
        return cls(
            dag,
            source,
            target,
            np.bincount(pair_index, demand[routable]).astype(np.float64),
            minimises_utilisation,
        )

    @cached_property
    def passes(self) -> SegmentPasses:
        """Kernels that sum prices over segments and load segments onto links."""
        return SegmentPasses(self.dag)

    @cached_property
    def capacity(self) -> FloatArray:
        """Link capacities (E,), Gbit/s."""
        return np.asarray(self.dag.topology.capacity, dtype=np.float64)

    @cached_property
    def inverse_capacity(self) -> FloatArray:
        """Reciprocals (E,) of the link capacities, 1 / (Gbit/s); 0 for failed links."""
        return np.where(self.capacity > 0, 1 / np.where(self.capacity > 0, self.capacity, 1), 0)

    @cached_property
    def by_source(self) -> tuple[IntArray, IntArray]:
        """Demands grouped by source, as (ptr, order): the demands of source n are
        order[ptr[n]:ptr[n + 1]], with ptr (N + 1,) and order (D,).
        """
        return grouped(self.source, self.num_nodes)

    @cached_property
    def by_target(self) -> tuple[IntArray, IntArray]:
        """Demands grouped by target, as (ptr, order): the demands of target n are
        order[ptr[n]:ptr[n + 1]], with ptr (N + 1,) and order (D,).
        """
        return grouped(self.target, self.num_nodes)

    @property
    def sense(self) -> float:
        """Sense of the objective: -1.0 if the largest utilisation is minimised, 1.0 if the total
        flow is maximised.
        """
        return -1.0 if self.minimises_utilisation else 1.0

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the network, N."""
        return self.dag.topology.num_nodes

    def segment_prices(self, prices: FloatArray) -> FloatArray:
        """Return the prices of all segments (N, N), destination first: sums of ECMP share times
        link price.

        Args:
            prices: (E,) link prices per Gbit/s.
        """
        return np.asarray(self.passes.segment_sum(prices[None])[0])

    def volumes(self, mid: IntArray, share: FloatArray) -> FloatArray:
        """Return the traffic of each segment (N, N), destination first, Gbit/s.

        Args:
            mid: (D, K) midpoint of each slot; -1 for an empty slot.
            share: (D, K) split ratio of each slot.
        """
        # First segments have their begin first, the source; last segments have their end first.
        nodes = self.num_nodes
        first_volume, last_volume = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
        with threads_for(OPERATIONS_PER_SLOT * mid.size):
            first_segments(*self.by_source, self.demand, mid, share, first_volume)
            last_segments(*self.by_target, self.demand, mid, share, last_volume)
        return np.asarray(last_volume + first_volume.T)

    def loads(self, mid: IntArray, share: FloatArray) -> FloatArray:
        """Return the link loads (E,), Gbit/s.

        Args:
            mid: (D, K) midpoint of each slot; -1 for an empty slot.
            share: (D, K) split ratio of each slot.
        """
        return np.asarray(self.passes.segment_load(self.volumes(mid, share)[None])[0])

    def cheapest(self, segment_price: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the cheapest midpoint of each demand (D,), and the cost of its list (D,).

        The midpoint is the target itself (the shortest paths) on a tie.

        Args:
            segment_price: (N, N) prices of segments, destination first.
        """
        with threads_for(len(self.demand) * self.num_nodes):
            cheapest_mid, cost = (
                np.empty(len(self.demand), dtype=np.int32),
                np.empty(len(self.demand)),
            )
            cheapest_midpoints(
                segment_price,
                np.ascontiguousarray(segment_price.T),
                self.source,
                self.target,
                *self.by_source,
                cheapest_mid,
                cost,
            )
        return cheapest_mid, cost

    def bound(self, prices: FloatArray, cost: FloatArray) -> float:
        """Return the bound on the optimum that link prices p prove, with link capacities c:

            theta >= sum_d demand[d] cost[d] / sum_e c[e] p[e]    (largest utilisation)
            flow  <= sum_e c[e] p[e] + sum_d demand[d] max(0, 1 - cost[d])    (total flow)

        Args:
            prices: (E,) link prices per Gbit/s.
            cost: (D,) cost of the cheapest list, or path, of each demand.
        """
        # Value of the whole capacity under the prices.
        capacity_value = float((self.capacity * prices).sum())
        if self.minimises_utilisation:
            return float((self.demand * cost).sum()) / max(capacity_value, 1e-300)
        return capacity_value + float((self.demand * np.maximum(0, 1 - cost)).sum())

    def free_bound(self, prices: FloatArray) -> float:
        """Return the best dual bound for routing over any paths, from shortest paths under link
        prices.

        A link that no segment list can load has a price of 0, and a path over it costs nothing.
        Therefore the bound is also computed at convex combinations with uniform prices, which are
        proportional to 1 / capacity.

        Args:
            prices: (E,) link prices per Gbit/s.
        """
        links, is_live = self.dag.links, self.capacity > 0
        nodes, sources = self.num_nodes, np.unique(self.source)
        # Uniform prices: proportional to 1 / c, with the same total value of capacity.
        uniform_prices = (
            float((self.capacity * prices).sum())
            * self.inverse_capacity
            / max(1, int(is_live.sum()))
        )
        bounds = []
        for uniform_weight in UNIFORM_WEIGHTS:
            mixed_prices = (1 - uniform_weight) * prices + uniform_weight * uniform_prices
            # Dijkstra from each source; (sources, N) distances.
            weight = np.where(is_live, mixed_prices, np.inf)
            distance, _ = shortest_trees(
                nodes, links.tail, links.head, weight, sources.astype(np.int32)
            )
            bounds.append(
                self.bound(
                    mixed_prices, distance[np.searchsorted(sources, self.source), self.target]
                )
            )
        return max(bounds) if self.minimises_utilisation else min(bounds)

    def utilisation(self, load: FloatArray) -> float:
        """Return the largest utilisation under link loads (E,), Gbit/s."""
        return float((load * self.inverse_capacity).max())

    def direct(self) -> tuple[IntArray, FloatArray]:
        """Return midpoints and split ratios (D, 1) of the shortest paths: no demand has a
        policy.
        """
        return np.ascontiguousarray(self.target[:, None]), np.ones((len(self.target), 1))

    def steered(self, mid: IntArray, share: FloatArray) -> BoolArray:
        """Whether each demand (D,) has a policy: a midpoint with a split ratio above MIN_SHARE.

        Args:
            mid: (D, K) midpoint of each slot; the target itself for the shortest paths, -1 if
                empty.
            share: (D, K) split ratio of each slot.
        """
        return ((share > MIN_SHARE) & (mid >= 0) & (mid != self.target[:, None])).any(1)

    def policies(self, mid: IntArray, share: FloatArray) -> SegmentPolicies:
        """Return the segment lists of the demands with a policy; the split ratios of a demand sum
        to 1.

        Args:
            mid: (D, K) midpoint of each slot; the target itself for the shortest paths, -1 if
                empty.
            share: (D, K) split ratio of each slot.
        """
        lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
        is_used = (share > MIN_SHARE) & (mid >= 0)
        steered = self.steered(mid, share)
        for d in np.flatnonzero(steered).tolist():
            s, t = int(self.source[d]), int(self.target[d])
            # Slots with the same stops are merged; a midpoint at an end of the demand is no stop.
            share_by_stops: dict[tuple[int, ...], float] = {}
            for k in np.flatnonzero(is_used[d]).tolist():
                stops = () if mid[d, k] in (s, t) else (int(mid[d, k]),)
                share_by_stops[stops] = share_by_stops.get(stops, 0.0) + float(share[d, k])
            total = sum(share_by_stops.values())
            # Without any stop the demand follows its shortest paths: no policy.
            if set(share_by_stops) != {()}:
                lists[s, t] = tuple(
                    SegmentList(list_share / total, stops)
                    for stops, list_share in sorted(share_by_stops.items())
                )
        return SegmentPolicies(lists)
