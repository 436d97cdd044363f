"""Steering of traffic by installed segment lists on one set of shortest paths.

:class:`DemandSteering` handles policies of single demands,
:class:`teal_ip.routing.transit_policies.TransitSteering` policies of transit traffic.  Entry point:
:func:`steering_of`.
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
    """Policies on one set of shortest paths; a list ends at its first unusable segment."""

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Return the traffic of matrices on segments and adjacencies.

        Args:
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.
        """
        ...

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Sum values (L, D) along the lists of each demand, weighted by shares, up to the first
        unusable segment.

        Args:
            pairs: (D, 2) source and target of each demand.
            value: (L, N, N) values of shortest paths, destination first.
            link_value: (L, E) values of adjacency links.
        """
        ...

    def loses(self, pairs: IntArray) -> BoolArray:
        """Whether each demand (D,) loses traffic: without a path, at an unusable segment, or in a
        forwarding loop.
        """
        ...


def steering_of(dag: EcmpDag, policies: SegmentPolicies) -> Steering:
    """Return the steering of policies on shortest paths."""
    return (TransitSteering if policies.is_transit else DemandSteering)(dag, policies)


class DemandSteering:
    """Policies of single demands, a :class:`Steering`; demands without one follow shortest paths.

    Args:
        dag: shortest paths.
        policies: segment lists of some demands.
    """

    def __init__(self, dag: EcmpDag, policies: SegmentPolicies) -> None:
        self._dag = dag
        self._policy_index = {pair: p for p, pair in enumerate(policies.lists)}
        self._steps = steps = policies.steps(list(policies.lists), dag.topology.link_source)
        is_usable = steps.works(dag)
        step_index = np.arange(len(steps.share))
        first = np.maximum.accumulate(np.where(steps.is_first, step_index, 0))
        # Number of unusable segments that precede each one.
        num_unusable = np.append(0, np.cumsum(~is_usable))[:-1]
        # 0 behind an unusable segment.
        self._weight: FloatArray = np.where(num_unusable == num_unusable[first], steps.share, 0.0)
        self._arriving = np.where(is_usable, self._weight, 0.0)
        self._is_cut = np.zeros(len(policies.lists), dtype=bool)
        self._is_cut[steps.policy[~is_usable & (self._weight > 0)]] = True

    def _policy_indices(self, pairs: IntArray) -> tuple[Int64Array, Int64Array]:
        """Indices of the demands that have a policy, and of their policies."""
        policy = np.array(
            [self._policy_index.get((s, t), -1) for s, t in pairs.tolist()], dtype=np.int64
        )
        return np.flatnonzero(policy >= 0), policy[policy >= 0]

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Traffic of demands (see :meth:`Steering.traffic`)."""
        demands, policy = self._policy_indices(pairs)
        unsteered = demand.copy()
        unsteered[:, demands] = 0.0
        volume = volumes(pairs, unsteered, self._dag.topology.num_nodes)
        adjacency = np.zeros((len(demand), self._dag.topology.num_links))
        policy_traffic = np.array(
            [np.bincount(policy, row, len(self._policy_index)) for row in demand[:, demands]]
        )
        self._steps.add_traffic(
            volume, adjacency, self._weight * policy_traffic[:, self._steps.policy]
        )
        return SteeredTraffic(volume, adjacency, np.zeros(len(demand)))

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Sums of values along the lists of demands (see :meth:`Steering.values`)."""
        result = value[:, pairs[:, 1], pairs[:, 0]]
        demands, policy = self._policy_indices(pairs)
        step_values = self._steps.values(value, link_value)
        reached_values = np.multiply(
            self._arriving, step_values, out=np.zeros_like(step_values), where=self._arriving > 0
        )
        for row, row_values in zip(result, reached_values, strict=True):
            row[demands] = np.bincount(self._steps.policy, row_values, len(self._policy_index))[
                policy
            ]
        return np.asarray(result)

    def loses(self, pairs: IntArray) -> BoolArray:
        """Whether each demand (D,) loses traffic (see :meth:`Steering.loses`)."""
        demands, policy = self._policy_indices(pairs)
        result = ~self._dag.reaches[pairs[:, 1], pairs[:, 0]]
        result[demands] = self._is_cut[policy]
        return result
