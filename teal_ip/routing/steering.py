"""Where installed segment lists send traffic on one set of shortest paths, whatever kind of
policies they are.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SteeredTraffic, volumes
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal_ip.routing.transit_policies import TransitSteering


class Steering(Protocol):
    """Policies on one set of shortest paths; a list ends with the first segment that cannot be
    followed.
    """

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Traffic of matrices on segments.

        Args:
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.
        """
        ...

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """(L, D) sums of values along the lists of each demand, weighted by shares, up to a segment
        that is cut.

        Args:
            pairs: (D, 2) source and target of each demand.
            value: (L, N, N) of shortest paths, destination first.
            link_value: (L, E) of links that are adjacencies.
        """
        ...

    def loses(self, pairs: IntArray) -> BoolArray:
        """(D,) the demands of which a part is lost: without a path, at a list that is cut, or in a
        forwarding loop.
        """
        ...


def steering_of(dag: EcmpDag, policies: SegmentPolicies) -> Steering:
    """Steering of policies on shortest paths."""
    return (TransitSteering if policies.is_transit else DemandSteering)(dag, policies)


class DemandSteering:
    """Policies of single demands, a :class:`Steering`: those without a policy go straight.

    Args:
        dag: shortest paths.
        policies: lists of some demands.
    """

    def __init__(self, dag: EcmpDag, policies: SegmentPolicies) -> None:
        self._dag, self._place = dag, {pair: p for p, pair in enumerate(policies.lists)}
        self._steps = steps = policies.steps(list(policies.lists), dag.topology.link_source)
        works, numbers = steps.works(dag), np.arange(len(steps.share))
        first = np.maximum.accumulate(np.where(steps.is_first, numbers, 0))
        cuts = np.append(0, np.cumsum(~works))[
            :-1
        ]  # number of unusable segments that precede each one
        self._weight: FloatArray = np.where(
            cuts == cuts[first], steps.share, 0.0
        )  # 0 behind an unusable one
        self._arriving = np.where(works, self._weight, 0.0)
        self._is_cut = np.zeros(len(policies.lists), dtype=bool)
        self._is_cut[steps.policy[~works & (self._weight > 0)]] = True

    def _policy_of(self, pairs: IntArray) -> tuple[Int64Array, Int64Array]:
        """Numbers of the demands that have a policy, and of these policies."""
        policy = np.array([self._place.get((s, t), -1) for s, t in pairs.tolist()], dtype=np.int64)
        return np.flatnonzero(policy >= 0), policy[policy >= 0]

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Traffic of demands (:meth:`Steering.traffic`)."""
        of, policy = self._policy_of(pairs)
        straight = demand.copy()
        straight[:, of] = 0.0
        volume = volumes(pairs, straight, self._dag.topology.num_nodes)
        adjacency = np.zeros((len(demand), self._dag.topology.num_links))
        taken = np.array([np.bincount(policy, row, len(self._place)) for row in demand[:, of]])
        self._steps.add_traffic(volume, adjacency, self._weight * taken[:, self._steps.policy])
        return SteeredTraffic(volume, adjacency, np.zeros(len(demand)))

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Sums along the ways of demands (:meth:`Steering.values`)."""
        result, (of, policy) = value[:, pairs[:, 1], pairs[:, 0]], self._policy_of(pairs)
        along = self._steps.values(value, link_value)
        met = np.multiply(self._arriving, along, out=np.zeros_like(along), where=self._arriving > 0)
        for row, of_steps in zip(result, met, strict=True):
            row[of] = np.bincount(self._steps.policy, of_steps, len(self._place))[policy]
        return np.asarray(result)

    def loses(self, pairs: IntArray) -> BoolArray:
        """(D,) the demands of which a part is lost (:meth:`Steering.loses`)."""
        of, policy = self._policy_of(pairs)
        result = ~self._dag.reaches[pairs[:, 1], pairs[:, 0]]
        result[of] = self._is_cut[policy]
        return result
