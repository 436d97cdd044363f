"""Counters that are sent to the service: what matrix they say, and whether they agree with one sent beside them.

One object a network.  Matrices that were measured themselves are its history; without any, estimates begin with
gravity. An interval whose counters contradict each other, or the matrix that was sent with them, raises an alarm: it is
answered, and the matrix is not kept, so that the last good one stays in force.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.network.counters import without_own_traffic
from teal.network.ecmp import EcmpDag, igp_metric
from teal.pathops.measurements import ecmp_measurements, path_measurements
from teal.runtime.arrays import FloatArray
from teal.serving.engine.errors import wrong
from teal.serving.engine.next_interval import NextAllocation
from teal.serving.engine.requests import CounterReadings
from teal.serving.engine.served import Served
from teal.solvers.estimation.check import Checker
from teal.solvers.estimation.estimator import Estimator
from teal.solvers.estimation.repair import STALE_WEIGHT, repair

_LEAST_HISTORY = 20  # measured matrices, from which on they are a history
_MOST_UNEXPLAINED = 0.1  # share of what was counted that no matrix explains, above which there is an alarm
_MOST_BLAMED = 0.3  # share of the counters that repair replaces or the estimate doubts, likewise
_MOST_NAMES = 8  # suspects in an answer


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
    """The estimates of one network.  For several threads.

    Args:
        served: network and paths.
        history: (T, D) matrices that were measured before, Gbit/s.
    """

    def __init__(self, served: Served, history: FloatArray) -> None:
        self._served, self._lock = served, threading.Lock()
        self._pairs, self._nodes = served.paths.pairs, served.topology.num_nodes
        self._matrices = list(history)
        self._estimator: Estimator | None = None
        self._checker: Checker | None = None
        self._expected: FloatArray | None = None  # (D,) the estimate before
        self._igp: tuple[bytes, sp.csr_array] | None = None  # working links, and F

    def observe(self, rates: FloatArray) -> None:
        """Learn matrices (B, D) that were measured themselves."""
        with self._lock:
            self._matrices += list(rates)
            if self._estimator is not None:
                for row in rates:
                    self._estimator.observe(row)

    def take(self, readings: CounterReadings, matrix: FloatArray | None, latest: NextAllocation | None) -> Counted:
        """The matrix of an interval, and the verdict on it.

        Args:
            readings: of the counters.
            matrix: (1, D) Gbit/s that was sent beside them; None to estimate it.
            latest: allocation that was in force meanwhile, if readings.routing says so.

        Raises:
            ServiceError: links or nodes that the network does not have, nothing that enters or leaves, or no
                allocation.
        """
        with self._lock:
            return self._take(readings, matrix, latest)

    def _take(self, readings: CounterReadings, matrix: FloatArray | None, latest: NextAllocation | None) -> Counted:
        sent, received, ingress, egress = self._arrays(readings)
        measurements = self._measurements(readings, latest)
        topology = self._served.topology
        if matrix is not None:
            return self._checked(sent, received, ingress, egress, measurements, matrix)
        expected = None if self._expected is None else measurements @ self._expected
        fixed = repair(topology, sent, received, ingress, egress, expected, readings.counter_error, STALE_WEIGHT)
        both = np.stack([sent, received])
        known = np.isfinite(both).sum(0)
        links = np.where(known > 0, np.nansum(both, 0) / np.maximum(known, 1), np.nan)
        values = np.concatenate([links, ingress, egress])
        blamed = np.concatenate([fixed.blamed_sent | fixed.blamed_received, fixed.blamed_external])
        values = np.where(blamed & np.isfinite(values), fixed.values, values)
        estimator = self._estimating(measurements, readings.counter_error)
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
            self._checker = Checker(self._served.topology, self._pairs, measurements)
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
            self._estimator = Estimator(self._pairs, self._nodes, history=history, relative=relative)
        self._estimator.route(measurements)
        return self._estimator

    def _measurements(self, readings: CounterReadings, latest: NextAllocation | None) -> sp.csr_array:
        if readings.routing == "allocation":
            if latest is None:
                raise wrong("counters.routing: allocation: none has been made for the next interval yet")
            paths = self._served.paths
            splits = latest.splits.numpy()
            splits = np.pad(splits, ((0, 0), (0, paths.num_paths - splits.shape[1])))
            return path_measurements(paths, splits, self._nodes)
        capacity = self._served.capacity
        key = (capacity > 0).tobytes()
        if self._igp is None or self._igp[0] != key:
            topology = dataclasses.replace(self._served.topology, capacity=capacity)
            self._igp = key, ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), self._pairs)
        return self._igp[1]

    def _arrays(self, readings: CounterReadings) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        topology, index = self._served.topology, self._served.topology.node_index()
        sent, received = np.full(topology.num_links, np.nan), np.full(topology.num_links, np.nan)
        ingress, egress = np.full(self._nodes, np.nan), np.full(self._nodes, np.nan)
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
        inner = without_own_traffic(topology.with_capacity(self._served.capacity), unnamed, sent[None], received[None])
        ingress[inner] = egress[inner] = 0.0
        return sent, received, ingress, egress
