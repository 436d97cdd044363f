"""Consistency check of counters, traffic matrix and topology: a test statistic, an alarm with a
calibrated limit, and suspects by name.

With the repaired values u (:mod:`teal_ip.counters.repair`) and the matrix's loads F x,

    z = (F x - u) / (2% u),    T = mean over all links, ingress and egress of min(z^2, 9).

The alarm is raised if T exceeds a + b d, with d the share of links whose two ends differ by more
than 6%: corrupted counters raise T even if the matrix is right.  a and b are calibrated on trusted
matrices (:meth:`Checker.calibrate`) with 0 to 30% corrupted counters.  T and d may be averaged over
the last intervals (:attr:`Checker.window`): the mean varies less, so its limit is lower and smaller
persistent faults are detected.

Suspects are counters that repair blames, links without traffic that are reported up, and routers
whose demands explain the deviation best: by |g'z| / |g|, with g the load of one router's demands
from the history (demands missing from the current matrix leave no trace there).  Entry point:
:class:`Checker`.
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

# Expected relative error of a value: the unit of the deviations z.
_DEVIATION_UNIT = 0.02
# Upper bound on z^2 of one value in the mean.
_MAX_Z2 = 9.0
# Relative difference above which the two counters of a link disagree.
_DISAGREEMENT = 0.06
# Floor of a value when deviations are computed, as a share of the mean value.
_MIN_VALUE_SHARE = 1e-3
# Shares of corrupted counters in calibration.
_CORRUPTED_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3)
# Relative error of demands in calibration.
_DEMAND_ERROR = 0.02
# Alarm limit over the largest statistic of the intervals sampled in calibration.
_LIMIT_MARGIN = 1.3
# Maximum number of routers among the suspects.
_MAX_SUSPECT_ROUTERS = 3
# Typical ratios of matrix to counters under a mistaken unit.
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
        statistic: T, mean of min(z^2, 9) over all links, ingress and egress, with the relative
            difference z of matrix and repaired counter, in units of 2%.
        mean_statistic: mean of T over the window.
        limit: alarm limit a + b d of the mean statistic, with the calibrated a and b, and d the
            mean of ``disagreeing`` over the window; infinite without calibration.
        alarm: whether the mean statistic exceeds the limit.
        disagreeing: share of links whose two counters differ by more than 6%.
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
        window: number of intervals over which statistics are averaged.
        slope: b of the alarm limit a + b d, with d the share of links whose two counters disagree;
            0 before calibration.
        offset: a of the alarm limit; infinite before calibration.
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
        self._counter_error = relative
        self.window = window
        self.offset = math.inf
        self.slope = 0.0
        # (D,) mean of the trusted matrices, Gbit/s; None before calibration.
        self._mean_demands: FloatArray | None = None
        # Statistic, and share of links whose counters disagree, of each interval in the window.
        self._window_statistics: deque[tuple[float, float]] = deque(maxlen=window)

    def route(self, measurements: sp.csr_array) -> None:
        """Set the measurement matrix F (E + 2 N, D) for the following intervals; the alarm limit
        stays.
        """
        self._measurements = measurements

    def calibrate(self, matrices: FloatArray, *, snapshots: int = 300, seed: int = 0) -> None:
        """Calibrate the alarm limit a + b d on trusted matrices with corrupted counters.

        T is the statistic, and d the share of links whose two counters disagree.  b is the slope of
        the regression line of T on d over simulated intervals, a is 1.3 times the largest T - b d.
        With a window, T - b d is first averaged over that number of intervals with the same share
        of corrupted counters.

        Args:
            matrices: (M, D) trusted matrices, Gbit/s.
            snapshots: number of simulated intervals.
            seed: random seed.

        Raises:
            InputError: no matrix with traffic.
        """
        matrices = matrices[matrices.sum(1) > 0]
        if not len(matrices):
            raise InputError.invalid("check", "history", "no trusted matrix has traffic")
        self._mean_demands = matrices.mean(0)
        # Simulate intervals: d and T of a matrix with errors of 2%, against counters of the true
        # matrix of which 0 to 30% are corrupted.
        rng = np.random.default_rng(seed)
        statistic_pairs = []
        for index in range(snapshots):
            # A random true matrix, and a random one at which counters may be stuck.
            truth = matrices[rng.integers(len(matrices))]
            stuck_matrix = matrices[rng.integers(len(matrices))]
            corrupted_share = _CORRUPTED_SHARES[index % len(_CORRUPTED_SHARES)]
            counters = self.corrupted_counters(truth, stuck_matrix, corrupted_share, rng)
            matrix = truth * np.maximum(0.0, 1 + _DEMAND_ERROR * rng.normal(size=len(truth)))
            statistic, disagreeing_share, _, _ = self._statistic(counters, matrix)
            statistic_pairs.append((disagreeing_share, statistic))
        # Slope b of the regression line, and excess T - b d of each simulated interval over it.
        disagreements, statistics = np.array(statistic_pairs).T
        self.slope = (
            max(0.0, float(np.polyfit(disagreements, statistics, 1)[0]))
            if np.ptp(disagreements) > 0
            else 0.0
        )
        excess = statistics - self.slope * disagreements
        # With a window: means over random intervals with the same share of corrupted counters.
        if self.window > 1:
            excess_by_share = [
                excess[group :: len(_CORRUPTED_SHARES)] for group in range(len(_CORRUPTED_SHARES))
            ]
            excess = np.concatenate(
                [
                    rng.choice(group, (snapshots, self.window)).mean(1)
                    for group in excess_by_share
                    if len(group)
                ]
            )
        self.offset = _LIMIT_MARGIN * float(excess.max())

    def corrupted_counters(
        self, truth: FloatArray, stuck_matrix: FloatArray, share: float, rng: np.random.Generator
    ) -> Readings:
        """Return simulated counters of a matrix, some of them wrong: zero, stuck, scaled or random.

        Args:
            truth: (D,) Gbit/s.
            stuck_matrix: (D,) matrix that stuck counters still show, Gbit/s.
            share: share of wrong counters.
            rng: random generator.
        """
        num_links = self._topology.num_links
        num_nodes = self._topology.num_nodes
        # Exact and stuck counters: sent, received, ingress, egress.
        true_rates = self._measurements @ truth
        stuck_rates = self._measurements @ stuck_matrix
        clean_values, stuck_values = (
            np.concatenate([rates[:num_links], rates]) for rates in (true_rates, stuck_rates)
        )
        # Noise of all counters.  A wrong counter is zero, stuck at another interval, scaled by 0.25
        # to 0.75 or 1.3 to 3, or random, each with the same probability.
        noisy_values = clean_values * (1 + self._counter_error * rng.normal(size=len(clean_values)))
        fault_kind = rng.integers(0, 4, len(clean_values))
        scale_factor = np.where(
            rng.random(len(clean_values)) < 0.5,
            rng.uniform(0.25, 0.75, len(clean_values)),
            rng.uniform(1.3, 3, len(clean_values)),
        )
        wrong_values = np.select(
            [fault_kind == 0, fault_kind == 1, fault_kind == 2],
            [np.zeros(len(clean_values)), stuck_values, noisy_values * scale_factor],
            rng.uniform(0, 2 * clean_values.mean(), len(clean_values)),
        )
        counters = np.maximum(
            np.where(rng.random(len(clean_values)) < share, wrong_values, noisy_values), 0.0
        )
        return Readings(*np.split(counters, np.cumsum([num_links, num_links, num_nodes])))

    def _statistic(
        self, readings: Readings, matrix: FloatArray
    ) -> tuple[float, float, FloatArray, Repaired]:
        """Return the test statistic of an interval.

        Args:
            readings: the counters.
            matrix: (D,) traffic matrix, Gbit/s.

        Returns:
            statistic, the mean of min(z^2, 9); share of links whose two counters disagree; z
            (E + 2 N,), relative deviations of the matrix's loads from the repaired values, in units
            of 2%; and the repaired counters.
        """
        # Deviations z of the matrix from the repaired counters, in units of 2%; a small value
        # counts as 0.1% of the mean value.
        matrix_loads = self._measurements @ matrix
        repaired = repair(self._topology, readings, matrix_loads, self._counter_error)
        repaired_values = repaired.values
        floored_values = np.maximum(
            repaired_values, _MIN_VALUE_SHARE * max(float(repaired_values.mean()), 1e-300)
        )
        z = (matrix_loads - repaired_values) / (_DEVIATION_UNIT * floored_values)
        # Links whose two counters differ by more than 6% of the larger one.
        sent_rates = readings.sent
        received_rates = readings.received
        is_measured = np.isfinite(sent_rates) & np.isfinite(received_rates)
        larger_rate = np.maximum(np.maximum(sent_rates, received_rates), 1e-300)
        disagrees = (
            np.abs(sent_rates - received_rates)[is_measured]
            > _DISAGREEMENT * larger_rate[is_measured]
        )
        return (
            float(np.minimum(z * z, _MAX_Z2).mean()),
            float(disagrees.mean()) if is_measured.any() else 0.0,
            z,
            repaired,
        )

    def check(self, readings: Readings, matrix: FloatArray) -> Check:
        """Check the counters of the next interval against a matrix, and add it to the window.

        Args:
            readings: the counters.
            matrix: (D,) traffic matrix to check, Gbit/s.
        """
        statistic, disagreeing_share, z, repaired = self._statistic(readings, matrix)
        self._window_statistics.append((statistic, disagreeing_share))
        # Means over the window, and alarm limit a + b d.
        mean_statistic, mean_disagreeing = np.mean(self._window_statistics, axis=0).tolist()
        limit = self.offset + self.slope * mean_disagreeing
        alarm = mean_statistic > limit
        return Check(
            repaired,
            statistic,
            mean_statistic,
            limit,
            alarm,
            disagreeing_share,
            tuple(self._suspects(z, readings, repaired, matrix, alarm)),
            self._unit_hint(readings.values, matrix),
        )

    def _unit_hint(self, counters: FloatArray, matrix: FloatArray) -> str:
        """Return a sentence if the ratio of matrix to counters suggests a mistaken unit, else "".

        Args:
            counters: (E + 2 N,) counters before repair, Gbit/s: repaired ones depend on the matrix.
            matrix: (D,) Gbit/s.
        """
        # Median ratio of load to counter; 1 without counted traffic.
        is_counted = np.nan_to_num(counters) > 0
        ratio = (
            float(np.median((self._measurements @ matrix)[is_counted] / counters[is_counted]))
            if is_counted.any()
            else 1.0
        )
        # A typical ratio within 10% of it tells the mistaken unit.
        for factor, mistaken_unit in _UNIT_RATIOS.items():
            if abs(ratio / factor - 1) < _RATIO_TOLERANCE:
                return f"the matrix is {factor:g} times the counters: {mistaken_unit}?"
        return ""

    def _suspects(
        self, z: FloatArray, readings: Readings, repaired: Repaired, matrix: FloatArray, alarm: bool
    ) -> list[str]:
        """Return the names of suspects: links without traffic, routers if an alarm is raised, and
        counters that the repair found wrong.

        Args:
            z: (E + 2 N,) relative deviations of the matrix from the repaired values, in units of
                2%.
            readings: the counters.
            repaired: repaired counters.
            matrix: (D,) traffic matrix, Gbit/s.
            alarm: whether the alarm is raised.
        """
        # Links with an expected load above 10 times the floor, but no counter above the floor.
        # Links without any counter are not among them.
        suspect_names = []
        topology = self._topology
        link_names = self._topology.link_names()
        expected_loads = (self._measurements @ matrix)[: topology.num_links]
        min_value = _MIN_VALUE_SHARE * max(float(expected_loads.mean()), 1e-300)
        is_silent = (
            np.nan_to_num(np.fmax(readings.sent, readings.received), nan=np.inf) <= min_value
        ) & (expected_loads > 10 * min_value)
        silent_links = np.flatnonzero(is_silent & (topology.capacity > 0)).tolist()
        suspect_names += [f"link {link_names[e]}: carries nothing" for e in silent_links]
        # Routers, then the other blamed counters.
        if alarm:
            suspect_names += self._suspect_routers(z, repaired)
        # Counters of a silent link are named by the link already.
        silent_counters = {
            f"counter {side} of {link_names[e]}"
            for e in silent_links
            for side in ("sent", "received")
        }
        return suspect_names + [
            name for name in repaired.blamed_names(topology) if name not in silent_counters
        ]

    def _suspect_routers(self, z: FloatArray, repaired: Repaired) -> list[str]:
        """Return the three sources or targets whose demands explain the deviations z best, as texts
        such as ``demands from a``.

        The score of a router is |g'z| / |g|, with g (E + 2 N,) the load of its mean demands in
        units of 2% of the repaired values.  Elements of g and z are clipped at 3.

        Args:
            z: (E + 2 N,) relative deviations of the matrix from the repaired values, in units of
                2%.
            repaired: repaired counters.
        """
        if self._mean_demands is None:
            return []
        # Unit of the deviations, 2% of the repaired values; deviations clipped at 3.
        deviation_unit = _DEVIATION_UNIT * np.maximum(
            repaired.values, _MIN_VALUE_SHARE * max(float(repaired.values.mean()), 1e-300)
        )
        clipped_z = np.clip(z, -math.sqrt(_MAX_Z2), math.sqrt(_MAX_Z2))
        # Demands from each source, then to each target.
        scored_names = []
        for pair_end, label in ((0, "from"), (1, "to")):
            for node in range(self._topology.num_nodes):
                # Load g of the mean demands of this router, and its score |g'z| / |g|.
                router_demand = np.where(self._pairs[:, pair_end] == node, self._mean_demands, 0.0)
                router_load = np.minimum(
                    (self._measurements @ router_demand) / deviation_unit, math.sqrt(_MAX_Z2)
                )
                load_norm = float(np.linalg.norm(router_load))
                if load_norm > 0:
                    scored_names.append(
                        (
                            abs(float(router_load @ clipped_z)) / load_norm,
                            f"demands {label} {self._topology.node_names[node]}",
                        )
                    )
        return [label for _, label in sorted(scored_names, reverse=True)[:_MAX_SUSPECT_ROUTERS]]
