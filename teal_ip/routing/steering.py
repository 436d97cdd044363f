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
    """Traffic of demands under segment-list policies on one set of shortest paths.

    A list loses its traffic at its first unusable segment: one without a path, or over a failed
    adjacency.
    """

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Return the traffic of M matrices on shortest-path segments and adjacencies.

        Args:
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.

        Returns:
            volumes (M, N, N) from node u to node t at [m, t, u], loads (M, E) of adjacency
            segments, and traffic (M,) in forwarding loops, Gbit/s.
        """
        ...

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Return the sum of values (L, D) along the lists of each demand, weighted by split ratios,
        up to the first unusable segment.

        Args:
            pairs: (D, 2) source and target of each demand.
            value: (L, N, N) values of the shortest paths from node u to node t, at [l, t, u].
            link_value: (L, E) values of adjacency links.
        """
        ...

    def loses(self, pairs: IntArray) -> BoolArray:
        """Return whether each demand (D,) loses traffic: without a path, at an unusable segment, or
        in a forwarding loop.

        Args:
            pairs: (D, 2) source and target of each demand.
        """
        ...


def steering_of(dag: EcmpDag, policies: SegmentPolicies) -> Steering:
    """Return the steering of traffic on shortest paths by segment-list policies, which are policies
    of transit traffic or of single demands.
    """
    return (TransitSteering if policies.is_transit else DemandSteering)(dag, policies)


class DemandSteering:
    """Segment lists of single demands; demands without a list follow shortest paths.

    Args:
        dag: shortest paths.
        policies: segment lists of some demands.
    """

    def __init__(self, dag: EcmpDag, policies: SegmentPolicies) -> None:
        # Index of the policy of each pair of nodes, and the segments ("steps") of all lists in
        # sequence.
        self._dag = dag
        self._policy_index = {pair: p for p, pair in enumerate(policies.lists)}
        self._steps = steps = policies.steps(list(policies.lists), dag.topology.link_source)
        is_usable = steps.works(dag)
        # (S,) index of the first segment of the list to which each segment belongs.
        step_index = np.arange(len(steps.share))
        first_step = np.maximum.accumulate(np.where(steps.is_first, step_index, 0))
        # (S,) number of unusable segments before each of the S segments of all lists.
        num_unusable_before = np.append(0, np.cumsum(~is_usable))[:-1]
        # (S,) split ratio of the list on segments that its traffic reaches, else 0: segments behind
        # an unusable one are not reached.  ``_arriving_share`` is also 0 on the unusable segment
        # itself.
        self._step_share: FloatArray = np.where(
            num_unusable_before == num_unusable_before[first_step], steps.share, 0.0
        )
        self._arriving_share = np.where(is_usable, self._step_share, 0.0)
        self._loses_traffic = np.zeros(len(policies.lists), dtype=bool)
        self._loses_traffic[steps.policy[~is_usable & (self._step_share > 0)]] = True

    def _policy_indices(self, pairs: IntArray) -> tuple[Int64Array, Int64Array]:
        """Return the indices of the demands with a policy, and the index of the policy of each of
        them.

        Args:
            pairs: (D, 2) source and target of each demand.
        """
        policy_index = np.array(
            [self._policy_index.get((s, t), -1) for s, t in pairs.tolist()], dtype=np.int64
        )
        return np.flatnonzero(policy_index >= 0), policy_index[policy_index >= 0]

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Return the traffic of M matrices on shortest-path segments and adjacencies.

        Args:
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.

        Returns:
            volumes (M, N, N) from node u to node t at [m, t, u], loads (M, E) of adjacency
            segments, and 0 (M,), since lists of single demands do not loop, Gbit/s.
        """
        # Demands without a policy follow the shortest paths; the others the segments of their
        # lists.
        steered_demands, policy_index = self._policy_indices(pairs)
        unsteered_demand = demand.copy()
        unsteered_demand[:, steered_demands] = 0.0
        volume = volumes(pairs, unsteered_demand, self._dag.topology.num_nodes)
        adjacency = np.zeros((len(demand), self._dag.topology.num_links))
        policy_traffic = np.array(
            [
                np.bincount(policy_index, matrix_demand, len(self._policy_index))
                for matrix_demand in demand[:, steered_demands]
            ]
        )
        self._steps.add_traffic(
            volume, adjacency, self._step_share * policy_traffic[:, self._steps.policy]
        )
        return SteeredTraffic(volume, adjacency, np.zeros(len(demand)))

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Return the sum of values along the paths of each demand, weighted by split ratios, up to
        the first unusable segment.

        Args:
            pairs: (D, 2) source and target of each demand.
            value: (L, N, N) values of the shortest paths from node u to node t, at [l, t, u].
            link_value: (L, E) values of adjacency links.

        Returns:
            (L, D) sums.
        """
        # Shortest paths; then replace the demands with a policy.  Segments that no traffic passes
        # count as 0, since their values may be infinite.
        result = value[:, pairs[:, 1], pairs[:, 0]]
        steered_demands, policy_index = self._policy_indices(pairs)
        step_values = self._steps.values(value, link_value)
        weighted_values = np.multiply(
            self._arriving_share,
            step_values,
            out=np.zeros_like(step_values),
            where=self._arriving_share > 0,
        )
        for row, row_values in zip(result, weighted_values, strict=True):
            row[steered_demands] = np.bincount(
                self._steps.policy, row_values, len(self._policy_index)
            )[policy_index]
        return np.asarray(result)

    def loses(self, pairs: IntArray) -> BoolArray:
        """Return whether each demand (D,) loses traffic: it has neither path nor list, or its list
        has an unusable segment.

        Args:
            pairs: (D, 2) source and target of each demand.
        """
        steered_demands, policy_index = self._policy_indices(pairs)
        result = ~self._dag.reaches[pairs[:, 1], pairs[:, 0]]
        result[steered_demands] = self._loses_traffic[policy_index]
        return result
