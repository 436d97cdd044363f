"""Installed routing: interfaces of a routing and of its link loads, and the IGP with segment lists.

Entry points: :class:`IgpRouting`, :func:`loads_under`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp

from teal.network.ecmp import EcmpDag
from teal.network.failures import Failure
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses
from teal.runtime.arrays import FloatArray, IntArray
from teal_ip.routing.igp_failures import FailureResults, IgpFailures
from teal_ip.routing.measurements import policy_measurements
from teal_ip.routing.steering import steering_of


class Loads(Protocol):
    """Link loads of M matrices under an installed routing.

    Attributes:
        load: (M, E) link loads without failure, Gbit/s.
        lost: (M,) Gbit/s lost without failure: no path, an unusable segment, or a forwarding loop.
    """

    load: FloatArray
    lost: FloatArray

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Return loads and lost traffic under each failure of a set of links.

        Args:
            failures: link indices of each failure.
            repairing: loads during fast reroute instead of after convergence, and traffic at risk.
            loads: also return the loads of all links.
        """
        ...


class InstalledRouting(Protocol):
    """Interface of the installed routing of D demands.

    Attributes:
        dag: network, and shortest paths of the IGP.
        is_igp_alone: whether all demands follow the shortest paths of the IGP.
    """

    dag: EcmpDag
    is_igp_alone: bool

    def loads(self, demand: FloatArray) -> Loads:
        """Return the link loads of M matrices, given their demands (M, D), Gbit/s."""
        ...

    def latency(self) -> FloatArray:
        """Return the mean latency (D,) of each demand over its paths, ms; infinite if it loses
        traffic.
        """
        ...

    def measurements(self) -> sp.csr_array:
        """Return the measurement matrix F (E + 2 N, D): counters = F @ demands.

        The rows are the E links, then ingress and egress of each of the N nodes.
        """
        ...


class IgpRouting:
    """Installed routing on shortest paths with ECMP, and on segment lists for some demands.

    Args:
        dag: network and shortest paths.
        pairs: (D, 2) source and target of each demand.
        policies: segment lists of some demands; None for none.
    """

    def __init__(
        self, dag: EcmpDag, pairs: IntArray, policies: SegmentPolicies | None = None
    ) -> None:
        self.dag = dag
        self._pairs = pairs
        self._policies = SegmentPolicies.none() if policies is None else policies
        self.is_igp_alone = not self._policies.lists

    def loads(self, demand: FloatArray) -> IgpFailures:
        """Return the link loads of M matrices, given their demands (M, D), Gbit/s."""
        return IgpFailures.of_demands(self.dag, self._pairs, demand, self._policies)

    @cached_property
    def _latency(self) -> FloatArray:
        """Mean latency (D,) of each demand over its paths, ms; infinite if it loses traffic."""
        topology = self.dag.topology
        # (N, N) mean latency of the shortest paths from node u to node t, at [t, u].
        path_latency = SegmentPasses(self.dag).segment_sum(topology.latency[None])[0]
        steering = steering_of(self.dag, self._policies)
        latency = steering.values(self._pairs, path_latency[None], topology.latency[None])[0]
        return np.where(steering.loses(self._pairs), np.inf, latency)

    def latency(self) -> FloatArray:
        """Return the mean latency (D,) of each demand over its paths, ms; infinite if it loses
        traffic.
        """
        return self._latency

    def measurements(self) -> sp.csr_array:
        """Return the measurement matrix F (E + 2 N, D): counters = F @ demands.

        The rows are the E links, then ingress and egress of each of the N nodes.
        """
        return policy_measurements(self.dag, self._pairs, self._policies)


# Maximum number of loads by failure, matrix and link in memory at a time: 256 MiB.
_MAX_CHUNK_LOADS = 2**25


def in_chunks(
    failures: list[list[int]], num_loads: int, evaluate: Callable[[list[list[int]]], FailureResults]
) -> FailureResults:
    """Return the results of all failures, evaluated in chunks that fit into memory.

    Args:
        failures: link indices of each failure.
        num_loads: number of loads under one failure: matrices times links.
        evaluate: function from a list of failures, each a list of link indices, to their results.
    """
    # Without failures, one empty chunk gives arrays of the right shapes.
    chunk_size = max(1, _MAX_CHUNK_LOADS // max(1, num_loads))
    results = [
        evaluate(failures[first : first + chunk_size])
        for first in range(0, max(1, len(failures)), chunk_size)
    ]
    return FailureResults(*(np.concatenate(arrays) for arrays in zip(*results, strict=True)))


def loads_under(
    routing: InstalledRouting,
    pairs: IntArray,
    demand: FloatArray,
    failures: Sequence[Failure],
    *,
    repairing: bool = False,
    loads: bool = False,
) -> FailureResults:
    """Return link loads and lost traffic of M matrices under each failure.

    Demand from or to a failed node is lost at its source and loads no link; a segment list alone
    would forward it as far as its last live midpoint.

    Args:
        routing: routing of the demands.
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        failures: failures, each alone.
        repairing: loads during fast reroute instead of after convergence, and traffic at risk.
        loads: also return the loads of all links.
    """
    results = routing.loads(demand).under(
        [list(failure.links) for failure in failures], repairing=repairing, loads=loads
    )
    # On shortest paths, demand from or to a failed node has no path: it is lost at its source.
    if routing.is_igp_alone:
        return results
    node_index = routing.dag.topology.node_index()
    for failure_index, failure in enumerate(failures):
        if failure.kind != "node":
            continue
        is_endpoint = (pairs == node_index[failure.name]).any(1)
        # Evaluate a node failure again without the demands from and to the node, and add these to
        # the lost traffic.
        if demand[:, is_endpoint].any():
            other_loads = routing.loads(np.where(is_endpoint, 0.0, demand))
            other_results = other_loads.under(
                [list(failure.links)], repairing=repairing, loads=loads
            )
            # Replace the results of the failure in each array; that of the link loads has no rows
            # unless they are requested.
            for result_array, other_array in zip(results, other_results, strict=True):
                result_array[failure_index : failure_index + 1] = other_array
            results.lost[failure_index] += demand[:, is_endpoint].sum(1)
    return results


def igp_loads(routing: InstalledRouting, pairs: IntArray, demand: FloatArray) -> FloatArray:
    """Return the loads (M, E), Gbit/s, if all demands followed the IGP's shortest paths.

    Args:
        routing: routing with the network and its shortest paths.
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
    """
    return IgpFailures.of_demands(routing.dag, pairs, demand, SegmentPolicies.none()).load


def results_of(
    load: FloatArray, lost: FloatArray, at_risk: FloatArray, capacity: FloatArray, *, loads: bool
) -> FailureResults:
    """Return the results of S failures, with utilisation and overload, from their link loads.

    Args:
        load: (S, M, E) Gbit/s under each failure; 0 on failed links.
        lost: (S, M) Gbit/s that is not delivered.
        at_risk: (S, M) Gbit/s from nodes that can reach a micro-loop.
        capacity: (E,) Gbit/s.
        loads: whether the results include ``load``.
    """
    # Links without capacity count as unused; -1 stands for no busiest link.
    utilisation = load * np.where(capacity > 0, 1 / np.where(capacity > 0, capacity, 1), 0)
    busiest = np.where(utilisation.max(2) > 0, utilisation.argmax(2), -1)
    overload = np.maximum(0, load - capacity).sum(2)
    return FailureResults(
        utilisation.max(2), busiest, overload, lost, at_risk, load if loads else load[:0].copy()
    )
