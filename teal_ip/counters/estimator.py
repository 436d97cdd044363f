"""Matrices from counters, one interval after the other: prior, projection, intervals, and what is
learnt meanwhile.

The shares of the prior are the average of analogues, Gaussian (both below) and of
tracked shares; without history they are the tracked ones, which begin with gravity.  The dispersion
is

    phi = 0.3 sum (x - p)^2 / sum p      over the history, p its mean scaled to each matrix;
                                         without history total / D.

Intervals are conformal: the residuals |x - estimate| / total of the second half of the history,
estimated from the first half, give each demand a quantile, mixed with that of all demands where
there are few; a demand above its mean share has a wider one.  What the prior leaves of the
counters, averaged over the last intervals, says when the history is off: demands x that differ from
it by independent shares of standard deviation sigma leave b with

    E sum_r b_r^2 = sigma^2 sum_r sum_d F_rd^2 x_d^2,

which gives sigma.  The half width w becomes sqrt(w^2 + (u z sigma x)^2), with the normal quantile z
of the level.  The factor u is the median of |x - estimate| / |sigma x|, norms over all demands, in
calibration: counters do not show most of a change, and what they show the prior has followed in
part.  Large demands gain most, whose intervals else hold less often by volume than by count.
Matrices that arrive later (:meth:`Estimator.observe`) join the history.

What a matrix is expected to be before its counters are read: shares of the traffic, from a history
or without one.

Without history:

- *gravity*: ingress of the source times egress of the target;
- *tracked*: m <- (1 - a) m + a x / sum x after every estimate x, beginning with gravity.

With a history of shares h_1, ..., h_T of matrices (each sums to 1), whose counters under the
present routing are F h_t:

- *analogues*: the mean of the 20 shares whose counters, as shares of their sum, are nearest to the
  present ones;
- *Gaussian*: mu + C F' (F C F' + R)^-1 (y - F mu), the linear estimate of least mean square error
  with the mean mu and the covariance C = (1 - b) cov + b (trace(cov) / sum mu) diag(mu), b = 0.6,
  of shares winsorised at 2 and 98% demand by demand; diag(mu) is the metric of the KL projection,
  so that b = 1 would be next to projecting the mean.

The average of the last two is the prior (:func:`History.prior`): no single method is best on every
network.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal_ip.counters.projection import Projected, Projection, solve_definite

_ANALOGUES = 20  # intervals
_WINSORISED = 0.02  # share of the values at either end that count as the quantile there
_SHRINKAGE = 0.6  # b of the module
_MAX_ENTRIES = 300_000_000  # numbers of a history in memory, 2.4 GB; the newest matrices are kept
_MIN_SHARE = 1e-12  # of the traffic, that every demand has at least in a prior


def gravity(ingress: FloatArray, egress: FloatArray, pairs: IntArray) -> FloatArray:
    """(D,) shares of the traffic in proportion to ingress of the source times egress of the target.

    Args:
        ingress: (N,) Gbit/s; NaN counts as the mean of the others.
        egress: (N,) likewise.
        pairs: (D, 2).
    """
    sides = []
    for side in (ingress, egress):
        known = np.isfinite(side)
        sides.append(np.where(known, side, side[known].mean() if known.any() else 1.0))
    product = sides[0][pairs[:, 0]] * sides[1][pairs[:, 1]]
    total = float(product.sum())
    return np.asarray(product / total) if total > 0 else np.full(len(pairs), 1 / max(1, len(pairs)))


def scaled_to(counters: FloatArray, measurements: sp.csr_array, shares: FloatArray) -> FloatArray:
    """(D,) Gbit/s: the shares (D,), scaled so that the known counters (R,) have the sum that was
    measured.
    """
    known = np.isfinite(counters)
    expected = float((measurements @ shares)[known].sum())
    return np.asarray(shares * (float(counters[known].sum()) / expected if expected > 0 else 0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Past matrices, the newest last.

    Attributes:
        shares: (T, D), each row sums to 1.
    """

    shares: FloatArray

    @classmethod
    def of(cls, matrices: FloatArray) -> History:
        """The history of matrices (T, D), Gbit/s; those without traffic are left out, and the
        oldest ones of very many.

        Raises:
            InputError: no matrix with traffic.
        """
        total = matrices.sum(1)
        kept = np.flatnonzero(total > 0)[-max(1, _MAX_ENTRIES // max(1, matrices.shape[1])) :]
        if not len(kept):
            raise InputError("estimate", "history", "at least one matrix with traffic", "none")
        return cls(matrices[kept] / total[kept, None])

    @property
    def num_matrices(self) -> int:
        """T."""
        return len(self.shares)

    @cached_property
    def mean(self) -> FloatArray:
        """(D,)."""
        return np.asarray(self.shares.mean(0))

    @cached_property
    def winsorised(self) -> FloatArray:
        """(T, D) shares, each demand's between its quantiles at 2 and 98%."""
        low, high = np.quantile(self.shares, [_WINSORISED, 1 - _WINSORISED], axis=0)
        return np.clip(self.shares, low, high)

    def with_matrix(self, matrix: FloatArray, most: int) -> History:
        """The history with a further matrix (D,), limited to the newest ``most`` matrices."""
        total = float(matrix.sum())
        if total <= 0:
            return self
        return History(
            np.concatenate(
                [self.shares[-(most - 1) :] if most > 1 else self.shares[:0], [matrix / total]]
            )
        )


class HistoryPrior:
    """Priors from a history under one routing.

    Args:
        history: past matrices.
        measurements: (R, D) F.
        relative: standard deviation of a counter, as a share of it.
    """

    def __init__(self, history: History, measurements: sp.csr_array, relative: float) -> None:
        self._history, self._measurements, self._relative = history, measurements, relative
        self._counters = np.asarray((measurements @ history.shares.T).T)  # (T, R)
        values = history.winsorised
        self._mean = values.mean(0)
        centred = values - self._mean
        count = max(1, len(values) - 1)
        across = centred @ measurements.T  # (T, R)
        trace = float((centred * centred).sum()) / count
        spread = trace / max(float(self._mean.sum()), 1e-300)
        # F C and F C F' without the D x D covariance
        self._gain: FloatArray = (1 - _SHRINKAGE) * (across.T @ centred) / count
        self._gain += _SHRINKAGE * spread * (measurements * self._mean).toarray()
        self._counter_mean = measurements @ self._mean
        self._covariance = np.asarray(self._measurements @ self._gain.T)

    def prior(self, counters: FloatArray) -> FloatArray:
        """(D,) shares, at least 0: the average of analogues and Gaussian; they sum to nearly 1.

        Args:
            counters: (R,) Gbit/s; NaN for missing ones.
        """
        known = np.isfinite(counters)
        # Counters of shares: with the total that the mean of the history would need for the known
        # counters.
        total = float(counters[known].sum()) / max(float(self._counter_mean[known].sum()), 1e-300)
        shares = counters / max(total, 1e-300)
        return (self.analogues(shares, known) + self.gaussian(shares, known)) / 2

    def analogues(self, shares: FloatArray, known: BoolArray) -> FloatArray:
        """(D,) mean of the nearest past matrices; arguments (R,) as in :meth:`gaussian`."""
        past = self._counters[:, known]
        scale = past.sum(1, keepdims=True)
        now = shares[known] / max(float(shares[known].sum()), 1e-300)
        distance = ((past / np.where(scale > 0, scale, 1) - now) ** 2).sum(1)
        count = min(_ANALOGUES, len(distance))
        nearest = np.argpartition(distance, count - 1)[:count]
        return np.asarray(self._history.shares[nearest].mean(0))

    def gaussian(self, shares: FloatArray, known: BoolArray) -> FloatArray:
        """(D,) the linear estimate, at least 0.

        Args:
            shares: (R,) counters over the total traffic.
            known: (R,) which were measured.
        """
        y = shares[known]
        noise = (
            self._relative * np.maximum(np.abs(y), 1e-3 * np.abs(y).max(initial=0.0))
        ) ** 2 + 1e-18
        matrix = self._covariance[np.ix_(known, known)] + np.diag(noise)
        difference = y - self._counter_mean[known]
        weights = solve_definite(matrix, difference)
        return np.maximum(self._mean + weights @ self._gain[known], _MIN_SHARE)


# share of the last estimate in tracked shares; 0.3 drifts under fixed routing (Abilene 0.29 for
# 0.26)
_TRACKING = 0.1
_MAX_HISTORY = (
    4032  # matrices, two weeks of 5 minutes; older ones are dropped when new ones are observed
)
_CALIBRATED_ON = 200  # matrices of the second half of a history, at most, evenly spaced
_MIN_CALIBRATION = 10  # matrices, below which there are no intervals
_WORTH_OF_ALL = 30  # residuals of a demand that count as much as the quantile of all demands
_MIN_MEAN = 1e-9  # share of the traffic that a demand counts as at least, in widths
# Of the dispersion about the mean, what the prior leaves: as accurate as all of it, in half the
# steps of Newton.
_LEFT_BY_PRIOR = 0.3
_MAX_GROWTH = 10.0  # of a demand over its mean share, by which its interval widens
_CONTRADICTED = 3.0  # standard deviations of a counter, beyond which a robust estimate doubts it
_DOUBT = 3.0  # standard deviation of a counter that is doubted, in units of its residual
# of Newton's method in a projection: five to fifteen where counters agree, up to 100 where not
_MAX_STEPS = 20
_MAX_STEPS_OF_ALL = 60  # of all projections of an interval, after which no other one begins
_ROBUST_ROUNDS = (
    4  # of doubting and estimating again; with 2 the error is 0.01 larger at 30% wrong counters
)
_BIAS_WEIGHT = (
    0.02  # of the present interval in the average of what the prior leaves of the counters
)
_MAX_UNSEEN = 5.0  # u of the module: 1.1 to 3.4 on Abilene, GEANT and Germany50
_FLOW_ERROR = 0.01  # standard deviation of a measured demand, as a share of it


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """The matrix of one interval.

    Attributes:
        matrix: (D,) Gbit/s.
        lower: (D,) Gbit/s, end of the interval that holds each demand with the level's probability;
            NaN without enough history.
        upper: (D,) likewise.
        residual: (R,) what was counted less what the matrix puts there, Gbit/s; NaN for missing
            counters.
        dispersion: phi, Gbit/s.
        prior: what the prior was made of: history, tracked or gravity.
        steps: steps of Newton's method, in all projections.
        unexplained: sum of the residuals' magnitudes over the sum of the counters.
        doubted: number of counters that a robust estimate doubts.
    """

    matrix: FloatArray
    lower: FloatArray
    upper: FloatArray
    residual: FloatArray
    dispersion: float
    prior: str
    steps: int
    unexplained: float
    doubted: int = 0


class _Fit(NamedTuple):
    """A projection and what it began with.

    Attributes:
        projected: the last projection; its residual has rows of measured demands after those of the
            counters.
        prior: (D,) Gbit/s.
        dispersion: phi, Gbit/s.
        kind: what the prior was made of.
        steps: steps of Newton's method, in all projections.
        is_contradicted: (R,) counters that are doubted.
    """

    projected: Projected
    prior: FloatArray
    dispersion: float
    kind: str
    steps: int
    is_contradicted: BoolArray


class Estimator:
    """Estimates for consecutive intervals of one network.

    Args:
        pairs: (D, 2) source and target of the demands.
        nodes: N.
        history: (T, D) past matrices, Gbit/s, the newest last; None for none.
        relative: standard deviation of a counter, as a share of it.
        level: probability of the intervals.
        tracking: share of the last estimate in tracked shares; None for 0.1.
    """

    def __init__(
        self,
        pairs: IntArray,
        nodes: int,
        *,
        history: FloatArray | None = None,
        relative: float = 0.01,
        level: float = 0.9,
        tracking: float | None = None,
    ) -> None:
        if not 0 < relative < 1:
            raise InputError(
                "estimate", "relative error of a counter", "a number in (0, 1)", relative
            )
        if not 0 < level < 1:
            raise InputError("estimate", "level", "a number in (0, 1)", level)
        if history is not None and (history.ndim != 2 or history.shape[1] != len(pairs)):
            raise InputError(
                "estimate", "history", f"matrices of {len(pairs)} demands", history.shape
            )
        self._pairs, self._nodes, self._relative, self._level = pairs, nodes, relative, level
        self._matrices: FloatArray | None = None if history is None else history[history.sum(1) > 0]
        self._history = None if history is None else History.of(history)
        self._tracking = _TRACKING if tracking is None else tracking
        self._tracked: FloatArray | None = None if self._history is None else self._history.mean
        self._projection: Projection | None = None
        self._history_prior: HistoryPrior | None = None
        self._residuals: FloatArray | None = None  # (C, D) shares of the total
        self._widths = self._mean = np.zeros(
            len(pairs)
        )  # half widths of the intervals, mean: shares of the total
        self._own, self._unseen = 1.0, 0.0
        self._phi_share = self._dispersion_of(self._matrices)
        self._bias = _Bias(sp.csr_array((0, len(pairs))))
        self._before = self._tracked, self._bias

    @staticmethod
    def _dispersion_of(matrices: FloatArray | None) -> float:
        """Phi over the mean total of the history; 0 without."""
        if matrices is None or len(matrices) < 2:
            return 0.0
        total = matrices.sum(1, keepdims=True)
        expected = total * (matrices / total).mean(0)
        spread = float(((matrices - expected) ** 2).sum()) / float(expected.sum())
        return spread / float(total.mean())

    def route(self, measurements: sp.csr_array) -> None:
        """Set the measurement matrix F (R, D) from the next interval on; nothing happens if it is
        the present one.

        R = E + 2 N, as in :mod:`teal_ip.routing.measurements`.
        """
        if self._projection is not None and _same(self._projection.measurements, measurements):
            return
        if measurements.shape[1] != len(self._pairs):
            expected = f"columns of {len(self._pairs)} demands"
            raise InputError("estimate", "measurements", expected, measurements.shape)
        self._projection = Projection(measurements)
        self._bias = _Bias(measurements)
        if self._history is not None:
            self._history_prior = HistoryPrior(
                self._history, self._projection.measurements, self._relative
            )

    def estimate(
        self,
        counters: FloatArray,
        *,
        flows: FloatArray | None = None,
        deviation: FloatArray | None = None,
        robust: bool = False,
    ) -> Estimate:
        """The matrix of the next interval.

        Args:
            counters: (R,) Gbit/s of links, ingress and egress; NaN for those that are missing.
            flows: (D,) Gbit/s of demands that were measured themselves; NaN for the others.
            deviation: (R,) standard deviations, Gbit/s; None for the relative error.
            robust: give counters that the estimate contradicts by more than 3 standard deviations a
                larger one, and estimate again: for counters of which some are wrong.

        Raises:
            InputError: no routing was set, nothing was measured, or traffic that the prior rules
                out.
        """
        fit = self._fit(counters, flows, deviation, robust)
        self._before = self._tracked, self._bias.copy()
        matrix = fit.projected.matrix
        assert self._projection is not None
        residual, total = fit.projected.residual[: len(counters)], float(fit.prior.sum())
        if self._tracked is None and total > 0:
            self._tracked = fit.prior / total
        if self._tracked is not None and float(matrix.sum()) > 0:
            self._tracked = (
                1 - self._tracking
            ) * self._tracked + self._tracking * matrix / matrix.sum()
        if total > 0:
            left = counters - self._projection.measurements @ fit.prior
            self._bias.add(np.where(fit.is_contradicted, np.nan, left) / total)
        counted = float(np.nansum(counters))
        lower, upper = self._interval(matrix)
        return Estimate(
            matrix,
            lower,
            upper,
            residual,
            fit.dispersion,
            fit.kind,
            fit.steps,
            float(np.nansum(np.abs(residual))) / counted if counted > 0 else 0.0,
            int(fit.is_contradicted.sum()),
        )

    def forget_last(self) -> None:
        """Unlearn the last estimate, whose interval turned out not to be trusted."""
        self._tracked, self._bias = self._before

    @property
    def knows_traffic(self) -> bool:
        """Whether a history or an estimate says more of the traffic than gravity."""
        return self._tracked is not None

    @property
    def is_used(self) -> BoolArray:
        """(R,) the counters to which some demand adds under the routing that was set."""
        assert self._projection is not None
        return np.asarray(self._projection.measurements.sum(1)).reshape(-1) > 0

    def explained(self, counters: FloatArray, is_firm: BoolArray | None = None) -> FloatArray:
        """(R,) Gbit/s: what a robust estimate for these counters puts on every link and router;
        nothing is learnt.

        Rates of links whose counters are left out (NaN) are predicted by all others.

        Args:
            counters: (R,) as in :meth:`estimate`, which raises the same errors.
            is_firm: (R,) counters that are not doubted, however much the others contradict them;
                None for none.
        """
        matrix = self._fit(counters, None, None, robust=True, is_firm=is_firm).projected.matrix
        assert self._projection is not None
        return np.asarray(self._projection.measurements @ matrix)

    def _fit(
        self,
        counters: FloatArray,
        flows: FloatArray | None,
        deviation: FloatArray | None,
        robust: bool,
        is_firm: BoolArray | None = None,
    ) -> _Fit:
        """The projection of the present prior onto counters; arguments as in :meth:`estimate` and
        :meth:`explained`.
        """
        if self._projection is None:
            raise InputError(
                "estimate", "routing", "a measurement matrix (Estimator.route) first", "none"
            )
        projection = self._projection
        if counters.shape != (projection.measurements.shape[0],):
            expected = f"{projection.measurements.shape[0]} rates"
            raise InputError("estimate", "counters", expected, counters.shape)
        shares, kind = self._shares(counters)
        prior = scaled_to(counters, projection.measurements, shares)
        total = float(prior.sum())
        phi = _LEFT_BY_PRIOR * self._phi_share * total or total / max(1, len(prior)) or 1.0
        deviation = (
            projection.deviations(counters, self._relative) if deviation is None else deviation
        )
        found, rows = self._project(counters, deviation, prior, phi, flows, _MAX_STEPS)
        is_contradicted, steps = np.zeros(len(counters), dtype=bool), found.steps
        for _ in range(_ROBUST_ROUNDS if robust else 0):
            residual = np.abs(np.nan_to_num(found.residual[:rows]))
            is_contradicted = residual > _CONTRADICTED * deviation
            if is_firm is not None:
                is_contradicted &= ~is_firm
            if not is_contradicted.any() or steps >= _MAX_STEPS_OF_ALL:
                break
            doubted = np.where(is_contradicted, _DOUBT * residual, deviation)
            found, rows = self._project(counters, doubted, prior, phi, flows, _MAX_STEPS)
            steps += found.steps
        return _Fit(found, prior, phi, kind, steps, is_contradicted)

    def _shares(self, counters: FloatArray) -> tuple[FloatArray, str]:
        if self._tracked is None:
            links = len(counters) - 2 * self._nodes
            ingress, egress = counters[links : links + self._nodes], counters[links + self._nodes :]
            return gravity(ingress, egress, self._pairs), "gravity"
        if self._history_prior is None:
            return self._tracked, "tracked"
        known = self._history_prior.prior(counters)
        return (2 * known / max(float(known.sum()), 1e-300) + self._tracked) / 3, "history"

    def _project(
        self,
        counters: FloatArray,
        deviation: FloatArray,
        prior: FloatArray,
        phi: float,
        flows: FloatArray | None,
        most_steps: int,
    ) -> tuple[Projected, int]:
        """The projection, with a row more for each measured demand, and the number of rows of the
        counters.
        """
        assert self._projection is not None
        rows = len(counters)
        measured = np.zeros(0, dtype=int) if flows is None else np.flatnonzero(np.isfinite(flows))
        if not len(measured):
            return self._projection.project(counters, deviation, prior, phi, most_steps), rows
        assert flows is not None
        units = sp.csr_array(
            (np.ones(len(measured)), (np.arange(len(measured)), measured)),
            shape=(len(measured), len(prior)),
        )
        more = Projection(sp.csr_array(sp.vstack([self._projection.measurements, units])))
        prior = prior.copy()
        prior[measured] = flows[measured]
        least = _FLOW_ERROR * np.maximum(
            flows[measured], 1e-3 * float(prior.max(initial=0.0)) + 1e-300
        )
        return more.project(
            np.concatenate([counters, flows[measured]]),
            np.concatenate([deviation, least]),
            prior,
            phi,
            most_steps,
        ), rows

    def observe(self, matrix: FloatArray) -> None:
        """Learn a matrix (D,), Gbit/s, that became known after its estimate; NaN entries are
        demands not measured.

        Demands that were measured alone change the tracked shares, by the tracking share.
        """
        if np.isnan(matrix).any():
            known = np.isfinite(matrix)
            if self._tracked is not None and known.any():
                expected = float(self._tracked[known].sum())
                measured = matrix[known] / max(float(matrix[known].sum()), 1e-300) * expected
                self._tracked = self._tracked.copy()
                self._tracked[known] += self._tracking * (measured - self._tracked[known])
            return
        if not matrix.sum() > 0:
            return
        old = np.zeros((0, len(matrix))) if self._matrices is None else self._matrices
        self._matrices = np.concatenate([old[-(_MAX_HISTORY - 1) :], matrix[None]])
        self._history = (
            History.of(matrix[None])
            if self._history is None
            else self._history.with_matrix(matrix, _MAX_HISTORY)
        )
        self._phi_share = self._dispersion_of(self._matrices)
        if self._projection is not None:
            self._history_prior = HistoryPrior(
                self._history, self._projection.measurements, self._relative
            )

    def calibrate(self) -> None:
        """Estimate the second half of the history from the first one, for the intervals; needs a
        routing.
        """
        matrices = self._matrices
        if self._projection is None or matrices is None or len(matrices) < 2 * _MIN_CALIBRATION:
            return
        half = len(matrices) // 2
        first = Estimator(
            self._pairs,
            self._nodes,
            history=matrices[:half],
            relative=self._relative,
            level=self._level,
            tracking=self._tracking,
        )
        first.route(self._projection.measurements)
        rng, residuals, left = np.random.default_rng(0), [], []
        for row in np.unique(np.linspace(half, len(matrices) - 1, _CALIBRATED_ON).astype(int)):
            truth = matrices[row]
            counters = self._projection.measurements @ truth
            counters = counters * (1 + self._relative * rng.normal(size=len(counters)))
            found = first.estimate(np.maximum(counters, 0.0))
            residuals.append((truth - found.matrix) / truth.sum())
            left.append(first._bias.deviation(found.matrix) * found.matrix / truth.sum())
        self._residuals = np.array(residuals)
        seen, size = np.linalg.norm(left, axis=1), np.linalg.norm(self._residuals, axis=1)
        self._unseen = float(np.median(np.minimum(size / np.maximum(seen, 1e-300), _MAX_UNSEEN)))
        self._mean = np.maximum((matrices / matrices.sum(1, keepdims=True)).mean(0), _MIN_MEAN)
        self._widths, self._own = _widths(np.abs(self._residuals), self._mean, self._level)

    @property
    def residuals(self) -> FloatArray | None:
        """(C, D) what calibration left unexplained of each demand, as shares of the total; None
        without.
        """
        return self._residuals

    def scenarios(self, matrix: FloatArray, count: int, seed: int = 0) -> FloatArray:
        """(count, D) matrices that may be behind an estimate: itself, and it with residuals of
        calibration added.

        For :func:`teal.solve_scenarios`: splits that are good for all of them lose less to what is
        not known exactly.

        Args:
            matrix: (D,) the estimate, Gbit/s.
            count: number of matrices.
            seed: seed of the draw of residuals.

        Raises:
            InputError: no calibration.
        """
        if self._residuals is None:
            raise InputError("estimate", "scenarios", "a history, and Estimator.calibrate", "none")
        rows = np.random.default_rng(seed).integers(0, len(self._residuals), max(0, count - 1))
        return np.concatenate(
            [matrix[None], np.maximum(0.0, matrix + float(matrix.sum()) * self._residuals[rows])]
        )

    def _interval(self, matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
        if self._residuals is None:
            unknown = np.full_like(matrix, math.nan)
            return unknown, unknown
        total = float(matrix.sum())
        growth = np.clip(matrix / max(total, 1e-300) / self._mean, 1.0, _MAX_GROWTH)
        width = self._widths * total * growth ** (1 - self._own)
        off = (
            self._unseen
            * NormalDist().inv_cdf((1 + self._level) / 2)
            * self._bias.deviation(matrix)
        )
        width = np.hypot(width, off * matrix)
        return np.maximum(0.0, matrix - width), matrix + width


class _Bias:
    """The average of what priors leave of the counters under one routing.

    Args:
        measurements: (R, D) F.
    """

    def __init__(self, measurements: sp.csr_array) -> None:
        self._measurements = measurements
        self._sum = np.zeros(measurements.shape[0])
        self._weight = np.zeros(measurements.shape[0])

    @cached_property
    def _squares(self) -> sp.csr_array:
        return self._measurements.multiply(self._measurements).tocsr()

    def copy(self) -> _Bias:
        """A copy that does not learn with this average."""
        same = _Bias(self._measurements)
        same._sum, same._weight = self._sum.copy(), self._weight.copy()
        return same

    def add(self, left: FloatArray) -> None:
        """Learn what the prior of an interval left, (R,) shares of the total; NaN for counters
        without a reading.
        """
        known = np.isfinite(left)
        self._sum += known * _BIAS_WEIGHT * (np.nan_to_num(left) - self._sum)
        self._weight += known * _BIAS_WEIGHT * (1 - self._weight)

    def deviation(self, matrix: FloatArray) -> float:
        """Sigma of the module, for demands like those of a matrix (D,); 0 before the first
        interval.
        """
        known, total = self._weight > 0, float(matrix.sum())
        expected = float((self._squares @ (matrix / total) ** 2)[known].sum()) if total > 0 else 0.0
        seen = float(((self._sum[known] / self._weight[known]) ** 2).sum())
        return math.sqrt(seen / expected) if expected > 0 else 0.0


def _widths(residual: FloatArray, mean: FloatArray, level: float) -> tuple[FloatArray, float]:
    """Half widths (D,) as shares of the total, and the weight n / (n + 30) of each demand's own
    quantile.

    Few residuals say little about the tail of one demand.  So its quantile is mixed with that of
    all demands together, whose residuals are taken in units of the square root of the demand's
    mean.

    Args:
        residual: (n, D) magnitudes, shares of the total.
        mean: (D,) shares, above 0.
        level: probability.
    """
    count = len(residual)
    quantile = min(1.0, math.ceil((count + 1) * level) / count)
    own = np.quantile(residual, quantile, axis=0)
    scale = np.sqrt(mean * float(mean.mean()))
    of_all = float(np.quantile(residual / scale, quantile)) * scale
    weight = count / (count + _WORTH_OF_ALL)
    return weight * own + (1 - weight) * np.maximum(own, of_all), weight


def _same(a: sp.csr_array, b: sp.csr_array) -> bool:
    if a is b:
        return True
    return a.shape == b.shape and a.nnz == b.nnz and not (a != b).nnz
