"""Installed routing: protocols of a routing and its loads, without failure and under failures, and
the IGP with segment lists.

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
    """Loads of M matrices.

    Attributes:
        load: (M, E) Gbit/s without failure.
        lost: (M,) Gbit/s between nodes that have no path even without failure.
    """

    load: FloatArray
    lost: FloatArray

    def under(
        self, failures: list[list[int]], *, repairing: bool = False, loads: bool = False
    ) -> FailureResults:
        """Loads after all links of each set have failed; arguments as in ``IgpFailures.under``."""
        ...


class InstalledRouting(Protocol):
    """A routing of D demands.

    Attributes:
        dag: network, and shortest paths of the IGP.
        is_igp_alone: whether all demands follow these paths.
    """

    dag: EcmpDag
    is_igp_alone: bool

    def loads(self, demand: FloatArray) -> Loads:
        """Loads of matrices (M, D), Gbit/s."""
        ...

    def latency(self) -> FloatArray:
        """Mean latency (D,) over the paths of each demand, ms; infinite without a path."""
        ...

    def measurements(self) -> sp.csr_array:
        """Measurement matrix F (E + 2 N, D) of :mod:`teal_ip.routing.measurements`."""
        ...


class IgpRouting:
    """Shortest paths with ECMP, and segment lists of some demands: an :class:`InstalledRouting`.

    Args:
        dag: network and shortest paths.
        pairs: (D, 2) source and target of each demand.
        policies: segment lists.
    """

    def __init__(
        self, dag: EcmpDag, pairs: IntArray, policies: SegmentPolicies | None = None
    ) -> None:
        self.dag = dag
        self._pairs = pairs
        self._policies = SegmentPolicies.none() if policies is None else policies
        self.is_igp_alone = not self._policies.lists

    def loads(self, demand: FloatArray) -> IgpFailures:
        """Loads (:meth:`InstalledRouting.loads`)."""
        return IgpFailures.of_demands(self.dag, self._pairs, demand, self._policies)

    @cached_property
    def _latency(self) -> FloatArray:
        topology = self.dag.topology
        between = SegmentPasses(self.dag).segment_sum(topology.latency[None])[0]
        steering = steering_of(self.dag, self._policies)
        latency = steering.values(self._pairs, between[None], topology.latency[None])[0]
        return np.where(steering.loses(self._pairs), np.inf, latency)

    def latency(self) -> FloatArray:
        """Latencies (:meth:`InstalledRouting.latency`)."""
        return self._latency

    def measurements(self) -> sp.csr_array:
        """Measurements (:meth:`InstalledRouting.measurements`)."""
        return policy_measurements(self.dag, self._pairs, self._policies)


# Entries of loads by failure, matrix and link that are in memory at a time, 256 MiB.
_CHUNK_NUMBERS = 2**25


def in_chunks(
    failures: list[list[int]], size: int, under: Callable[[list[list[int]]], FailureResults]
) -> FailureResults:
    """Evaluate all failures, in chunks that fit in memory.

    Args:
        failures: link indices of each failure.
        size: number of loads (M E) under a failure.
        under: evaluates some of the failures.
    """
    chunk_size = max(1, _CHUNK_NUMBERS // max(1, size))
    results = [
        under(failures[first : first + chunk_size])
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
    """Loads of matrices under failures; traffic of a failed node itself is lost at its source.

    A policy would send it as far as the last live midpoint.

    Args:
        routing: routing of the demands.
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        failures: failures, one at a time.
        repairing: see ``IgpFailures.under``.
        loads: see ``IgpFailures.under``.
    """
    results = routing.loads(demand).under(
        [list(failure.links) for failure in failures], repairing=repairing, loads=loads
    )
    if routing.is_igp_alone:
        return results
    index = routing.dag.topology.node_index()
    for failure_index, failure in enumerate(failures):
        if failure.kind != "node":
            continue
        is_own = (pairs == index[failure.name]).any(1)
        if demand[:, is_own].any():
            other_loads = routing.loads(np.where(is_own, 0.0, demand))
            other_results = other_loads.under(
                [list(failure.links)], repairing=repairing, loads=loads
            )
            for result, row in zip(results, other_results, strict=True):
                result[failure_index : failure_index + 1] = row
            results.lost[failure_index] += demand[:, is_own].sum(1)
    return results


def igp_loads(routing: InstalledRouting, pairs: IntArray, demand: FloatArray) -> FloatArray:
    """Loads (M, E), Gbit/s, if all demands followed the IGP's shortest paths."""
    return IgpFailures.of_demands(routing.dag, pairs, demand, SegmentPolicies.none()).load


def results_of(
    load: FloatArray, lost: FloatArray, at_risk: FloatArray, capacity: FloatArray, *, loads: bool
) -> FailureResults:
    """Compute failure results from known loads.

    Args:
        load: (S, M, E) Gbit/s under each failure; 0 on failed links.
        lost: (S, M) Gbit/s.
        at_risk: (S, M) Gbit/s.
        capacity: (E,) Gbit/s.
        loads: whether the results include ``load``.
    """
    utilisation = load * np.where(capacity > 0, 1 / np.where(capacity > 0, capacity, 1), 0)
    busiest = np.where(load.max(2) > 0, utilisation.argmax(2), -1)
    overload = np.maximum(0, load - capacity).sum(2)
    return FailureResults(
        utilisation.max(2), busiest, overload, lost, at_risk, load if loads else load[:0].copy()
    )
