"""Counters that are sent to the service: what matrix they say, and whether they agree with one sent beside them.

One object a network, in the process of :mod:`teal.serving.engine.counting`.  Matrices that were measured themselves are
its history; without any, estimates begin with gravity.  An interval whose counters contradict each other, or the matrix
that was sent with them, raises an alarm: it is answered, and the matrix is not kept, so that the last good one stays in
force.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.network import PathSet, Topology
from teal.network.counters import without_own_traffic
from teal.network.ecmp import EcmpDag, igp_metric
from teal.pathops.measurements import ecmp_measurements, path_measurements
from teal.runtime.arrays import FloatArray
from teal.serving.engine.errors import wrong
from teal.serving.engine.measured import MOST_KEPT_MATRICES
from teal.serving.engine.requests import CounterReadings
from teal.solvers.estimation.check import Checker
from teal.solvers.estimation.estimator import Estimator
from teal.solvers.estimation.repair import STALE_WEIGHT, repair

_LEAST_HISTORY = 20  # measured matrices, from which on they are a history
_MOST_UNEXPLAINED = 0.1  # share of what was counted that no matrix explains, above which there is an alarm
_MOST_BLAMED = 0.3  # share of the counters that repair replaces or the estimate doubts, likewise
_MOST_NAMES = 8  # suspects in an answer


class Interval(NamedTuple):
    """The counters of an interval, as rates in Gbit/s, NaN where nothing was read, and what was in force meanwhile.

    Attributes:
        sent, received: (E,) by the routers at the start and at the end of each link.
        ingress, egress: (N,) what enters and leaves the network at each node.
        error: standard deviation of a counter, as a share of it.
        capacity: (E,) in force, of whose working links the IGP has its paths.
        splits: (D, K) that were in force; None for the IGP.
        matrix: (1, D) that was sent beside the counters; None to estimate it.
    """

    sent: FloatArray
    received: FloatArray
    ingress: FloatArray
    egress: FloatArray
    error: float
    capacity: FloatArray
    splits: FloatArray | None
    matrix: FloatArray | None


def interval_of(
    readings: CounterReadings, topology: Topology, capacity: FloatArray, splits: FloatArray | None,
    matrix: FloatArray | None,
) -> Interval:  # fmt: skip
    """The counters of an interval; arguments as of :class:`Interval`.

    Raises:
        ServiceError: links or nodes that the network does not have, or nothing that enters or leaves.
    """
    index, nodes = topology.node_index(), topology.num_nodes
    sent, received = np.full(topology.num_links, np.nan), np.full(topology.num_links, np.nan)
    ingress, egress = np.full(nodes, np.nan), np.full(nodes, np.nan)
    links: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)):
        links.setdefault(ends, []).append(link)
    for one in readings.links:
        found = links.get((index.get(one.source, -1), index.get(one.target, -1)), [])
        if one.number >= len(found):
            raise wrong(f"counters.links: there is no link {one.number} from {one.source!r} to {one.target!r}")
        link = found[one.number]
        sent[link] = np.nan if one.sent is None else one.sent
        received[link] = np.nan if one.received is None else one.received
    for border in readings.nodes:
        if border.node not in index:
            raise wrong(f"counters.nodes: there is no node {border.node!r}")
        node = index[border.node]
        ingress[node] = np.nan if border.ingress is None else border.ingress
        egress[node] = np.nan if border.egress is None else border.egress
    if np.isnan(ingress).all() and np.isnan(egress).all():
        raise wrong("counters.nodes: what enters or leaves the network at some node")
    unnamed = ~np.isin(topology.node_names, [border.node for border in readings.nodes])
    inner = without_own_traffic(topology.with_capacity(capacity), unnamed, sent[None], received[None])
    ingress[inner] = egress[inner] = 0.0
    return Interval(sent, received, ingress, egress, readings.counter_error, capacity, splits, matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
    """What the counters of an interval say.

    Attributes:
        rates: (1, D) Gbit/s, the matrix to keep: the estimate, or what was sent.
        figures: :class:`teal.serving.engine.responses.CountedInfo`.
    """

    rates: FloatArray
    figures: dict[str, Any]

    @property
    def alarm(self) -> bool:
        """Whether the matrix must not be acted on."""
        return bool(self.figures["alarm"])


class CountedTraffic:
    """The estimates of one network.

    Args:
        topology: the network.
        paths: its candidate paths, of all pairs of nodes.
        history: (T, D) matrices that were measured before, Gbit/s.

    Attributes:
        paths: as the argument; others may be added behind them.
    """

    def __init__(self, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        self._topology, self.paths, self._pairs = topology, paths, paths.pairs
        self._matrices = list(history)
        self._estimator: Estimator | None = None
        self._checker: Checker | None = None
        self._expected: FloatArray | None = None  # (D,) the estimate before
        self._igp: tuple[bytes, sp.csr_array] | None = None  # working links, and F

    def observe(self, rates: FloatArray) -> None:
        """Learn matrices (B, D) that were measured themselves."""
        self._matrices = [*self._matrices, *rates][-MOST_KEPT_MATRICES:]
        if self._estimator is not None:
            for row in rates:
                self._estimator.observe(row)

    def take(self, interval: Interval) -> Counted:
        """The matrix of an interval, and the verdict on it.

        Raises:
            ServiceError: a matrix to be checked before enough are known, or counters of which no matrix can be made.
        """
        sent, received, ingress, egress = interval[:4]
        measurements = self._measurements(interval)
        topology = self._topology
        if interval.matrix is not None:
            return self._checked(sent, received, ingress, egress, measurements, interval.matrix)
        expected = None if self._expected is None else measurements @ self._expected
        fixed = repair(topology, sent, received, ingress, egress, expected, interval.error, STALE_WEIGHT)
        both = np.stack([sent, received])
        known = np.isfinite(both).sum(0)
        links = np.where(known > 0, np.nansum(both, 0) / np.maximum(known, 1), np.nan)
        values = np.concatenate([links, ingress, egress])
        blamed = np.concatenate([fixed.blamed_sent | fixed.blamed_received, fixed.blamed_external])
        values = np.where(blamed & np.isfinite(values), fixed.values, values)
        estimator = self._estimating(measurements, interval.error)
        try:
            one = estimator.estimate(values, robust=True)
        except InputError as error:
            raise wrong(f"counters: {error}") from None
        counted = int(np.isfinite(both).sum() + np.isfinite(ingress).sum() + np.isfinite(egress).sum())
        share = (fixed.num_blamed + one.doubted) / max(1, counted)
        alarm = one.unexplained > _MOST_UNEXPLAINED or share > _MOST_BLAMED
        if not alarm:
            self._expected = one.matrix
        return Counted(one.matrix[None], {
            "found_by": one.prior, "total_gbps": float(one.matrix.sum()), "unexplained": one.unexplained,
            "alarm": alarm, "replaced": fixed.num_blamed, "suspects": fixed.blamed_names(topology)[:_MOST_NAMES],
        })  # fmt: skip

    def _checked(  # type: ignore[no-untyped-def]
        self, sent, received, ingress, egress, measurements, matrix
    ) -> Counted:
        """The verdict on a matrix that was sent, by a checker that is calibrated on the matrices before."""
        if self._checker is None:
            if len(self._matrices) < _LEAST_HISTORY:
                raise wrong(
                    f"counters: a matrix is checked against them once {_LEAST_HISTORY} matrices are known, not after "
                    f"{len(self._matrices)}"
                )
            self._checker = Checker(self._topology, self._pairs, measurements)
            self._checker.calibrate(np.array(self._matrices))
        self._checker.route(measurements)
        found = self._checker.check(sent, received, ingress, egress, matrix[0])
        predicted = measurements @ matrix[0]
        total = max(float(found.repaired.values.sum()), 1e-300)
        return Counted(matrix, {
            "found_by": "sent", "total_gbps": float(matrix.sum()),
            "unexplained": float(np.abs(predicted - found.repaired.values).sum()) / total, "alarm": found.alarm,
            "replaced": found.repaired.num_blamed,
            "suspects": [*([found.unit] if found.unit else []), *found.suspects][:_MOST_NAMES],
        })  # fmt: skip

    def _estimating(self, measurements: sp.csr_array, relative: float) -> Estimator:
        if self._estimator is None:
            enough = len(self._matrices) >= _LEAST_HISTORY
            history = np.array(self._matrices) if enough else None
            self._estimator = Estimator(self._pairs, self._topology.num_nodes, history=history, relative=relative)
        self._estimator.route(measurements)
        return self._estimator

    def _measurements(self, interval: Interval) -> sp.csr_array:
        if interval.splits is not None:
            splits = np.pad(interval.splits, ((0, 0), (0, self.paths.num_paths - interval.splits.shape[1])))
            return path_measurements(self.paths, splits, self._topology.num_nodes)
        key = (interval.capacity > 0).tobytes()
        if self._igp is None or self._igp[0] != key:
            topology = dataclasses.replace(self._topology, capacity=interval.capacity)
            self._igp = key, ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), self._pairs)
        return self._igp[1]
