"""Do counters, matrix and topology agree?  A statistic, an alarm of a known level, and suspects by
name.

With the repaired values u (:mod:`teal_ip.counters.repair`) and what the matrix puts there, F x,

    z = (F x - u) / (2% u),    T = mean over all links, ingress and egress of min(z^2, 9).

The alarm is raised above a + b d, where d is the share of links whose two ends disagree by more
than 6%: corrupted counters alone raise T, by an amount that depends on how many there are.  a and b
come from matrices that are believed (:meth:`Checker.calibrate`), whose counters are corrupted on
purpose, 0 to 30% of them.  T and d may be averaged over the last intervals
(:attr:`Checker.window`): a mean of several varies less, so that its limit is lower, and smaller
faults are found where they persist.

Suspects are sources or targets whose demands of the history explain the deviation best, |g'z| / |g|
with g the load of one router's demands (it must come from the history: of demands that are missing
the present matrix knows nothing), counters that repair blames, and links that carry nothing though
they are said to be up.
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

# of a value, in which deviations are measured: the error that demands are expected to have
_UNIT = 0.02
_MAX_Z2 = 9.0  # of one value, in the mean
_DISAGREE = 0.06  # relative difference of the two ends of a link
_MIN_VALUE_SHARE = 1e-3  # share of the mean value that a value counts as at least
_CORRUPTED = (0.0, 0.05, 0.1, 0.2, 0.3)  # shares of counters that calibration corrupts
_DEMAND_ERROR = 0.02  # standard deviation of demands that are believed, in calibration
# of the alarm limit over the largest statistic of calibration, which has seen some hundred
# intervals
_MARGIN = 1.3
_SUSPECTS = 3  # routers that are named, at most
_UNIT_RATIOS = {
    8.0: "bits in the place of bytes",
    1 / 8: "bytes in the place of bits",
    1000.0: "a prefix (k, M, G) too small",
    1 / 1000: "a prefix (k, M, G) too large",
}
_RATIO_TOLERANCE = 0.1  # relative, of a ratio that is recognised


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """The verdict on one interval.

    Attributes:
        repaired: what the counters say.
        statistic: T of this interval.
        mean_statistic: T, mean over the window.
        limit: a + b d, with d the mean over the window, above which that is an alarm; infinite
            without calibration.
        alarm: whether it is above.
        disagreeing: share of links whose ends disagree.
        suspects: names of counters, routers and links, the most suspicious first.
        unit: what the ratio of matrix and counters looks like, such as bits in the place of bytes;
            "" for nothing.
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
    """Checks consecutive intervals of one network under one routing.

    Args:
        topology: the network.
        pairs: (D, 2) source and target of the demands.
        measurements: (E + 2 N, D) F.
        relative: standard deviation of a counter, as a share of it.
        window: intervals whose statistics are averaged.

    Attributes:
        slope: b of the module; NaN before calibration.
        offset: a of the module.
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
            raise InputError("check", "window", "a whole number of at least 1", window)
        self._topology, self._pairs, self._measurements = topology, pairs, measurements
        self._relative, self.window = relative, window
        self.offset, self.slope = math.inf, 0.0
        self._mean: FloatArray | None = None
        self._past: deque[tuple[float, float]] = deque(maxlen=window)  # T and d

    def route(self, measurements: sp.csr_array) -> None:
        """Set F (E + 2 N, D) from the next interval on; the alarm's limit stays."""
        self._measurements = measurements

    def calibrate(self, matrices: FloatArray, *, snapshots: int = 300, seed: int = 0) -> None:
        """Set the limit from believed matrices (T, D), Gbit/s, under corrupted counters.

        The limit is the line a + b d above the statistics of all ``snapshots`` by a margin of 30%;
        with a window above the means of as many statistics, drawn among those with the same share
        of corrupted counters.

        Raises:
            InputError: no matrix with traffic.
        """
        matrices = matrices[matrices.sum(1) > 0]
        if not len(matrices):
            raise InputError("check", "history", "at least one matrix with traffic", "none")
        self._mean = matrices.mean(0)
        rng, points = np.random.default_rng(seed), []
        for number in range(snapshots):
            truth, other = (
                matrices[rng.integers(len(matrices))],
                matrices[rng.integers(len(matrices))],
            )
            share = _CORRUPTED[number % len(_CORRUPTED)]
            counters = self.corrupted_counters(truth, other, share, rng)
            believed = truth * np.maximum(0.0, 1 + _DEMAND_ERROR * rng.normal(size=len(truth)))
            statistic, disagreeing, _, _ = self._statistic(counters, believed)
            points.append((disagreeing, statistic))
        d, t = np.array(points).T
        self.slope = max(0.0, float(np.polyfit(d, t, 1)[0])) if np.ptp(d) > 0 else 0.0
        above = t - self.slope * d
        if self.window > 1:
            kinds = [above[kind :: len(_CORRUPTED)] for kind in range(len(_CORRUPTED))]
            above = np.concatenate(
                [rng.choice(kind, (snapshots, self.window)).mean(1) for kind in kinds if len(kind)]
            )
        self.offset = _MARGIN * float(above.max())

    def corrupted_counters(
        self, truth: FloatArray, other: FloatArray, share: float, rng: np.random.Generator
    ) -> Readings:
        """The counters of a matrix; a share is wrong: zero, another matrix's, scaled, random.

        Args:
            truth: (D,) Gbit/s.
            other: (D,) of which counters that are stuck read.
            share: share of the counters.
            rng: generator of all draws.
        """
        links, nodes = self._topology.num_links, self._topology.num_nodes
        values, old = self._measurements @ truth, self._measurements @ other
        clean, stuck = (np.concatenate([part[:links], part]) for part in (values, old))
        noisy = clean * (1 + self._relative * rng.normal(size=len(clean)))
        kind = rng.integers(0, 4, len(clean))
        factor = np.where(
            rng.random(len(clean)) < 0.5,
            rng.uniform(0.25, 0.75, len(clean)),
            rng.uniform(1.3, 3, len(clean)),
        )
        wrong = np.select(
            [kind == 0, kind == 1, kind == 2],
            [np.zeros(len(clean)), stuck, noisy * factor],
            rng.uniform(0, 2 * clean.mean(), len(clean)),
        )
        counters = np.maximum(np.where(rng.random(len(clean)) < share, wrong, noisy), 0.0)
        return Readings(*np.split(counters, np.cumsum([links, links, nodes])))

    def _statistic(
        self, readings: Readings, matrix: FloatArray
    ) -> tuple[float, float, FloatArray, Repaired]:
        """T, d, z (E + 2 N,), and the repaired counters."""
        predicted = self._measurements @ matrix
        repaired = repair(self._topology, readings, predicted, self._relative)
        u = repaired.values
        scale = np.maximum(u, _MIN_VALUE_SHARE * max(float(u.mean()), 1e-300))
        z = (predicted - u) / (_UNIT * scale)
        sent, received = readings.sent, readings.received
        both = np.isfinite(sent) & np.isfinite(received)
        larger = np.maximum(np.maximum(sent, received), 1e-300)
        disagrees = np.abs(sent - received)[both] > _DISAGREE * larger[both]
        return (
            float(np.minimum(z * z, _MAX_Z2).mean()),
            float(disagrees.mean()) if both.any() else 0.0,
            z,
            repaired,
        )

    def check(self, readings: Readings, matrix: FloatArray) -> Check:
        """The verdict on the next interval.

        Args:
            readings: the counters.
            matrix: (D,) Gbit/s, that is to be acted on.
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
        """The unit that the ratio of matrix and counters (E + 2 N,) suggests; not for repaired
        counters, which know the matrix.
        """
        known = np.nan_to_num(counters) > 0
        ratio = (
            float(np.median((self._measurements @ matrix)[known] / counters[known]))
            if known.any()
            else 1.0
        )
        for factor, name in _UNIT_RATIOS.items():
            if abs(ratio / factor - 1) < _RATIO_TOLERANCE:
                return f"the matrix is {factor:g} times what the counters say: {name}?"
        return ""

    def _suspects(
        self, z: FloatArray, readings: Readings, repaired: Repaired, matrix: FloatArray, alarm: bool
    ) -> list[str]:
        names, topology, links = [], self._topology, self._topology.link_names()
        expected = (self._measurements @ matrix)[: topology.num_links]
        least = _MIN_VALUE_SHARE * max(float(expected.mean()), 1e-300)
        silent = (np.nan_to_num(np.fmax(readings.sent, readings.received), nan=np.inf) <= least) & (
            expected > 10 * least
        )
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
        found = []
        for end, name in ((0, "from"), (1, "to")):
            for node in range(self._topology.num_nodes):
                own = np.where(self._pairs[:, end] == node, self._mean, 0.0)
                g = np.minimum((self._measurements @ own) / scale, math.sqrt(_MAX_Z2))
                length = float(np.linalg.norm(g))
                if length > 0:
                    found.append(
                        (
                            abs(float(g @ clipped)) / length,
                            f"demands {name} {self._topology.node_names[node]}",
                        )
                    )
        return [name for _, name in sorted(found, reverse=True)[:_SUSPECTS]]
