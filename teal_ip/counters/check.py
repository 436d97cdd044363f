"""Consistency check of counters, traffic matrix and topology: a test statistic, an alarm with a
calibrated limit, and suspects by name.

With the repaired values u (:mod:`teal_ip.counters.repair`) and the matrix's loads F x,

    z = (F x - u) / (2% u),    T = mean over all links, ingress and egress of min(z^2, 9).

The alarm is raised if T exceeds a + b d, where d is the share of links whose two ends disagree by
more than 6%: corrupted counters alone raise T, by an amount that depends on their number.  a and b
are calibrated on trusted matrices (:meth:`Checker.calibrate`), 0 to 30% of whose counters are
corrupted on purpose.  T and d may be averaged over the last intervals (:attr:`Checker.window`): a
mean of several varies less, so its limit is lower and smaller persistent faults are detected.

Suspects are sources or targets whose demands in the history explain the deviation best, |g'z| / |g|
with g the load of one router's demands (from the history, since the current matrix has no trace of
missing demands), counters that repair blames, and links that carry nothing although they are
reported up.  Entry point: :class:`Checker`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray, IntArray
from teal_ip.counters.repair import Repaired, repair
from teal_ip.readings.readings import Readings

# Unit of deviations, as a share of a value: the error that demands are expected to have.
_UNIT = 0.02
# Cap of one value's z^2 in the mean.
_MAX_Z2 = 9.0
# Relative difference of a link's two ends above which they disagree.
_DISAGREE = 0.06
# Floor of a value in deviations, as a share of the mean value.
_MIN_VALUE_SHARE = 1e-3
# Shares of counters that calibration corrupts.
_CORRUPTED = (0.0, 0.05, 0.1, 0.2, 0.3)
# Standard deviation of trusted demands in calibration.
_DEMAND_ERROR = 0.02
# Alarm limit over the largest statistic of calibration, which samples some hundred intervals.
_MARGIN = 1.3
# Maximum number of routers among the suspects.
_SUSPECTS = 3
# Ratios of matrix to counters that a mistaken unit explains.
_UNIT_RATIOS = {
    8.0: "bits in the place of bytes",
    1 / 8: "bytes in the place of bits",
    1000.0: "a prefix (k, M, G) too small",
    1 / 1000: "a prefix (k, M, G) too large",
}
# Relative tolerance within which such a ratio is recognised.
_RATIO_TOLERANCE = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """Result of the consistency check of one interval.

    Attributes:
        repaired: repaired counters.
        statistic: T of this interval.
        mean_statistic: mean of T over the window.
        limit: alarm limit a + b d, with d the mean over the window; infinite without calibration.
        alarm: whether the mean statistic exceeds the limit.
        disagreeing: share of links whose ends disagree.
        suspects: names of counters, routers and links, the most suspicious first.
        unit: mistaken unit that the ratio of matrix and counters suggests, such as bits in place of
            bytes; "" for none.
    """

    repaired: Repaired
    statistic: float
    mean_statistic: float
    limit: float
    alarm: bool
    disagreeing: float
    suspects: tuple[str, ...]
    unit: str


class Checker:
    """Consistency checks of consecutive intervals of one network under one routing.

    Args:
        topology: the network.
        pairs: (D, 2) source and target of the demands.
        measurements: (E + 2 N, D) measurement matrix F.
        relative: relative standard deviation of a counter.
        window: number of intervals over which statistics are averaged.

    Attributes:
        slope: b of the module docstring; 0 before calibration.
        offset: a of the module docstring; infinite before calibration.
    """

    def __init__(
        self,
        topology: Topology,
        pairs: IntArray,
        measurements: sp.csr_array,
        *,
        relative: float = 0.01,
        window: int = 1,
    ) -> None:
        if window < 1:
            raise InputError("check", "window", "a positive integer", window)
        self._topology = topology
        self._pairs = pairs
        self._measurements = measurements
        self._relative = relative
        self.window = window
        self.offset = math.inf
        self.slope = 0.0
        self._mean: FloatArray | None = None
        # T and d of the last intervals.
        self._past: deque[tuple[float, float]] = deque(maxlen=window)

    def route(self, measurements: sp.csr_array) -> None:
        """Set F (E + 2 N, D) for the following intervals; the alarm limit stays."""
        self._measurements = measurements

    def calibrate(self, matrices: FloatArray, *, snapshots: int = 300, seed: int = 0) -> None:
        """Calibrate the alarm limit on trusted matrices (T, D), Gbit/s, with corrupted counters.

        The limit is a line a + b d, 30% above the statistics of all ``snapshots``; with a window,
        above means of as many statistics, drawn among those with the same share of corrupted
        counters.

        Raises:
            InputError: no matrix with traffic.
        """
        matrices = matrices[matrices.sum(1) > 0]
        if not len(matrices):
            raise InputError("check", "history", "at least one matrix with traffic", "none")
        self._mean = matrices.mean(0)
        # Statistics of matrices with corrupted counters.
        rng = np.random.default_rng(seed)
        points = []
        for index in range(snapshots):
            truth = matrices[rng.integers(len(matrices))]
            stuck_matrix = matrices[rng.integers(len(matrices))]
            share = _CORRUPTED[index % len(_CORRUPTED)]
            counters = self.corrupted_counters(truth, stuck_matrix, share, rng)
            matrix = truth * np.maximum(0.0, 1 + _DEMAND_ERROR * rng.normal(size=len(truth)))
            statistic, disagreeing, _, _ = self._statistic(counters, matrix)
            points.append((disagreeing, statistic))
        # A line above all of them, or above the means over a window.
        d, t = np.array(points).T
        self.slope = max(0.0, float(np.polyfit(d, t, 1)[0])) if np.ptp(d) > 0 else 0.0
        excess = t - self.slope * d
        if self.window > 1:
            excess_by_share = [excess[kind :: len(_CORRUPTED)] for kind in range(len(_CORRUPTED))]
            excess = np.concatenate(
                [
                    rng.choice(kind, (snapshots, self.window)).mean(1)
                    for kind in excess_by_share
                    if len(kind)
                ]
            )
        self.offset = _MARGIN * float(excess.max())

    def corrupted_counters(
        self, truth: FloatArray, stuck_matrix: FloatArray, share: float, rng: np.random.Generator
    ) -> Readings:
        """Return counters of a matrix, a share of which is wrong: zero, stuck, scaled or random.

        Args:
            truth: (D,) Gbit/s.
            stuck_matrix: (D,) matrix at the time of stuck counters, Gbit/s.
            share: share of wrong counters.
            rng: random generator.
        """
        num_links = self._topology.num_links
        num_nodes = self._topology.num_nodes
        values = self._measurements @ truth
        stuck_rates = self._measurements @ stuck_matrix
        clean_values, stuck_values = (
            np.concatenate([rates[:num_links], rates]) for rates in (values, stuck_rates)
        )
        noisy_values = clean_values * (1 + self._relative * rng.normal(size=len(clean_values)))
        fault_kind = rng.integers(0, 4, len(clean_values))
        factor = np.where(
            rng.random(len(clean_values)) < 0.5,
            rng.uniform(0.25, 0.75, len(clean_values)),
            rng.uniform(1.3, 3, len(clean_values)),
        )
        wrong_values = np.select(
            [fault_kind == 0, fault_kind == 1, fault_kind == 2],
            [np.zeros(len(clean_values)), stuck_values, noisy_values * factor],
            rng.uniform(0, 2 * clean_values.mean(), len(clean_values)),
        )
        counters = np.maximum(
            np.where(rng.random(len(clean_values)) < share, wrong_values, noisy_values), 0.0
        )
        return Readings(*np.split(counters, np.cumsum([num_links, num_links, num_nodes])))

    def _statistic(
        self, readings: Readings, matrix: FloatArray
    ) -> tuple[float, float, FloatArray, Repaired]:
        """Return T, d, z (E + 2 N,) and the repaired counters."""
        predicted = self._measurements @ matrix
        repaired = repair(self._topology, readings, predicted, self._relative)
        u = repaired.values
        scale = np.maximum(u, _MIN_VALUE_SHARE * max(float(u.mean()), 1e-300))
        z = (predicted - u) / (_UNIT * scale)
        sent = readings.sent
        received = readings.received
        is_measured = np.isfinite(sent) & np.isfinite(received)
        larger = np.maximum(np.maximum(sent, received), 1e-300)
        disagrees = np.abs(sent - received)[is_measured] > _DISAGREE * larger[is_measured]
        return (
            float(np.minimum(z * z, _MAX_Z2).mean()),
            float(disagrees.mean()) if is_measured.any() else 0.0,
            z,
            repaired,
        )

    def check(self, readings: Readings, matrix: FloatArray) -> Check:
        """Check the next interval.

        Args:
            readings: the counters.
            matrix: (D,) traffic matrix to check, Gbit/s.
        """
        statistic, disagreeing, z, repaired = self._statistic(readings, matrix)
        self._past.append((statistic, disagreeing))
        mean, mean_disagreeing = np.mean(self._past, axis=0).tolist()
        limit = self.offset + self.slope * mean_disagreeing
        alarm = mean > limit
        return Check(
            repaired,
            statistic,
            mean,
            limit,
            alarm,
            disagreeing,
            tuple(self._suspects(z, readings, repaired, matrix, alarm)),
            self._unit(readings.values, matrix),
        )

    def _unit(self, counters: FloatArray, matrix: FloatArray) -> str:
        """Return a message if the ratio of matrix and counters (E + 2 N,) suggests a mistaken unit,
        else ""; the counters are not repaired ones, which depend on the matrix.
        """
        is_counted = np.nan_to_num(counters) > 0
        ratio = (
            float(np.median((self._measurements @ matrix)[is_counted] / counters[is_counted]))
            if is_counted.any()
            else 1.0
        )
        for factor, name in _UNIT_RATIOS.items():
            if abs(ratio / factor - 1) < _RATIO_TOLERANCE:
                return f"the matrix is {factor:g} times what the counters say: {name}?"
        return ""

    def _suspects(
        self, z: FloatArray, readings: Readings, repaired: Repaired, matrix: FloatArray, alarm: bool
    ) -> list[str]:
        names = []
        topology = self._topology
        links = self._topology.link_names()
        expected = (self._measurements @ matrix)[: topology.num_links]
        min_value = _MIN_VALUE_SHARE * max(float(expected.mean()), 1e-300)
        silent = (
            np.nan_to_num(np.fmax(readings.sent, readings.received), nan=np.inf) <= min_value
        ) & (expected > 10 * min_value)
        down = np.flatnonzero(silent & (topology.capacity > 0)).tolist()
        names += [f"link {links[e]}: carries nothing" for e in down]
        if alarm:
            names += self._routers(z, repaired)
        return names + [
            name
            for name in repaired.blamed_names(topology)
            if not any(name.endswith(links[e]) for e in down)
        ]

    def _routers(self, z: FloatArray, repaired: Repaired) -> list[str]:
        if self._mean is None:
            return []
        scale = _UNIT * np.maximum(
            repaired.values, _MIN_VALUE_SHARE * max(float(repaired.values.mean()), 1e-300)
        )
        clipped = np.clip(z, -math.sqrt(_MAX_Z2), math.sqrt(_MAX_Z2))
        scored_names = []
        for end, name in ((0, "from"), (1, "to")):
            for node in range(self._topology.num_nodes):
                router_demand = np.where(self._pairs[:, end] == node, self._mean, 0.0)
                router_load = np.minimum(
                    (self._measurements @ router_demand) / scale, math.sqrt(_MAX_Z2)
                )
                norm = float(np.linalg.norm(router_load))
                if norm > 0:
                    scored_names.append(
                        (
                            abs(float(router_load @ clipped)) / norm,
                            f"demands {name} {self._topology.node_names[node]}",
                        )
                    )
        return [name for _, name in sorted(scored_names, reverse=True)[:_SUSPECTS]]
