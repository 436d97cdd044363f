"""Traffic matrix estimation for consecutive intervals: prior, projection onto the counters,
prediction intervals, and online updates.

The prior is a vector of traffic shares.  Without a history:

- *gravity*: ingress of the source times egress of the target;
- *tracked*: m <- (1 - a) m + a x / sum x after every estimate x, starting with gravity.

With a history of shares h_1, ..., h_T of matrices (each sums to 1), whose counters under the
current routing are F h_t, the prior is the mean of three: tracked shares and

- *analogues*: the mean of the 20 shares whose counters, as shares of their sum, are nearest to the
  current ones;
- *Gaussian*: mu + C F' (F C F' + R)^-1 (y - F mu), the linear minimum mean square error (MMSE)
  estimate with the mean mu and the covariance C = (1 - b) cov + b (trace(cov) / sum mu) diag(mu),
  b = 0.6, of shares winsorised at 2 and 98% demand by demand; diag(mu) is the metric of the KL
  projection, so b = 1 would be close to projecting the mean.

:func:`HistoryPrior.prior` averages the last two: no single method is best on every network.  The
dispersion is

    phi = 0.3 sum (x - p)^2 / sum p      over the history, p its mean scaled to each matrix;
                                         without history total / D.

Prediction intervals are conformal (split conformal prediction): the residuals |x - estimate| /
total of the second half of the history, estimated from the first half, give each demand a quantile,
mixed with that of all demands if there are few residuals; a demand above its mean share has a wider
interval.  The prior's residual at the counters, averaged over the last intervals, shows when the
history is off: demands x that differ from the prior by independent shares of standard deviation
sigma leave residuals b with

    E sum_r b_r^2 = sigma^2 sum_r sum_d F_rd^2 x_d^2,

which gives sigma.  The half width w becomes sqrt(w^2 + (u z sigma x)^2), with the normal quantile z
of the level.  The factor u is the median of |x - estimate| / |sigma x|, norms over all demands, in
calibration: counters do not show most of a change, and the prior has followed in part what they
show.  Large demands gain most, whose intervals else hold less often by volume than by count.
Matrices that arrive later (:meth:`Estimator.observe`) join the history.  Entry point:
:class:`Estimator`.
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

# Number of nearest past intervals whose mean is the analogue.
_ANALOGUES = 20
# Share of the values at either end that is replaced by the quantile there.
_WINSORISED = 0.02
# Shrinkage b of the module docstring.
_SHRINKAGE = 0.6
# Maximum number of entries of a history in memory, 2.4 GB; the newest matrices are kept.
_MAX_ENTRIES = 300_000_000
# Minimum share of the traffic of every demand in a prior.
_MIN_SHARE = 1e-12


def gravity(ingress: FloatArray, egress: FloatArray, pairs: IntArray) -> FloatArray:
    """Gravity model: shares (D,) proportional to ingress of the source times egress of the target.

    Args:
        ingress: (N,) Gbit/s; NaN counts as the mean of the others.
        egress: (N,) Gbit/s; NaN counts as the mean of the others.
        pairs: (D, 2) source and target.
    """
    volumes = []
    for side in (ingress, egress):
        is_known = np.isfinite(side)
        volumes.append(np.where(is_known, side, side[is_known].mean() if is_known.any() else 1.0))
    product = volumes[0][pairs[:, 0]] * volumes[1][pairs[:, 1]]
    total = float(product.sum())
    return np.asarray(product / total) if total > 0 else np.full(len(pairs), 1 / max(1, len(pairs)))


def scaled_to(counters: FloatArray, measurements: sp.csr_array, shares: FloatArray) -> FloatArray:
    """Scale shares (D,) to Gbit/s such that the known counters (R,) have the measured sum."""
    is_known = np.isfinite(counters)
    expected = float((measurements @ shares)[is_known].sum())
    return np.asarray(
        shares * (float(counters[is_known].sum()) / expected if expected > 0 else 0.0)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Shares of past matrices, the newest last.

    Attributes:
        shares: (T, D), each row sums to 1.
    """

    shares: FloatArray

    @classmethod
    def of(cls, matrices: FloatArray) -> History:
        """Build a history from matrices (T, D), Gbit/s, without those that have no traffic; only
        the newest are kept if there are very many.

        Raises:
            InputError: no matrix with traffic.
        """
        totals = matrices.sum(1)
        nonzero = np.flatnonzero(totals > 0)[-max(1, _MAX_ENTRIES // max(1, matrices.shape[1])) :]
        if not len(nonzero):
            raise InputError("estimate", "history", "at least one matrix with traffic", "none")
        return cls(matrices[nonzero] / totals[nonzero, None])

    @property
    def num_matrices(self) -> int:
        """Number of matrices, T."""
        return len(self.shares)

    @cached_property
    def mean(self) -> FloatArray:
        """Mean shares (D,)."""
        return np.asarray(self.shares.mean(0))

    @cached_property
    def winsorised(self) -> FloatArray:
        """Shares (T, D), each demand's clipped to its quantiles at 2 and 98% (winsorised)."""
        low, high = np.quantile(self.shares, [_WINSORISED, 1 - _WINSORISED], axis=0)
        return np.clip(self.shares, low, high)

    def with_matrix(self, matrix: FloatArray, max_matrices: int) -> History:
        """Return the history with another matrix (D,), limited to the newest ``max_matrices``
        matrices.
        """
        total = float(matrix.sum())
        if total <= 0:
            return self
        return History(
            np.concatenate(
                [
                    self.shares[-(max_matrices - 1) :] if max_matrices > 1 else self.shares[:0],
                    [matrix / total],
                ]
            )
        )


class HistoryPrior:
    """Priors from a history under one routing.

    Args:
        history: past matrices.
        measurements: (R, D) measurement matrix F.
        relative: relative standard deviation of a counter.
    """

    def __init__(self, history: History, measurements: sp.csr_array, relative: float) -> None:
        self._history = history
        self._measurements = measurements
        self._relative = relative
        # Counters of the history's shares, (T, R).
        self._counters = np.asarray((measurements @ history.shares.T).T)
        values = history.winsorised
        self._mean = values.mean(0)
        centred = values - self._mean
        count = max(1, len(values) - 1)
        # (T, R)
        centred_counters = centred @ measurements.T
        trace = float((centred * centred).sum()) / count
        scale_of_mean = trace / max(float(self._mean.sum()), 1e-300)
        # F C and F C F' without the D x D covariance.
        self._gain: FloatArray = (1 - _SHRINKAGE) * (centred_counters.T @ centred) / count
        self._gain += _SHRINKAGE * scale_of_mean * (measurements * self._mean).toarray()
        self._counter_mean = measurements @ self._mean
        self._covariance = np.asarray(self._measurements @ self._gain.T)

    def prior(self, counters: FloatArray) -> FloatArray:
        """Return prior shares (D,), at least 0: the mean of analogues and Gaussian; they sum to
        nearly 1.

        Args:
            counters: (R,) Gbit/s; NaN for missing ones.
        """
        is_known = np.isfinite(counters)
        # Divide by the total that the history's mean would need for the known counters.
        total = float(counters[is_known].sum()) / max(
            float(self._counter_mean[is_known].sum()), 1e-300
        )
        shares = counters / max(total, 1e-300)
        return (self.analogues(shares, is_known) + self.gaussian(shares, is_known)) / 2

    def analogues(self, shares: FloatArray, is_known: BoolArray) -> FloatArray:
        """Mean (D,) of the nearest past matrices; arguments (R,) as in :meth:`gaussian`."""
        past_counters = self._counters[:, is_known]
        scale = past_counters.sum(1, keepdims=True)
        current = shares[is_known] / max(float(shares[is_known].sum()), 1e-300)
        distance = ((past_counters / np.where(scale > 0, scale, 1) - current) ** 2).sum(1)
        count = min(_ANALOGUES, len(distance))
        nearest = np.argpartition(distance, count - 1)[:count]
        return np.asarray(self._history.shares[nearest].mean(0))

    def gaussian(self, shares: FloatArray, is_known: BoolArray) -> FloatArray:
        """Linear MMSE estimate of the shares (D,), at least 0.

        Args:
            shares: (R,) counters over the total traffic.
            is_known: (R,) whether each counter was measured.
        """
        y = shares[is_known]
        noise = (
            self._relative * np.maximum(np.abs(y), 1e-3 * np.abs(y).max(initial=0.0))
        ) ** 2 + 1e-18
        matrix = self._covariance[np.ix_(is_known, is_known)] + np.diag(noise)
        difference = y - self._counter_mean[is_known]
        weights = solve_definite(matrix, difference)
        return np.maximum(self._mean + weights @ self._gain[is_known], _MIN_SHARE)


# Share of the last estimate in tracked shares; 0.3 drifts under fixed routing (error 0.29 instead
# of 0.26 on Abilene).
_TRACKING = 0.1
# Maximum number of matrices in the history, two weeks of 5 minutes; the oldest are dropped.
_MAX_HISTORY = 4032
# Maximum number of matrices of the second half of a history in calibration, evenly spaced.
_CALIBRATED_ON = 200
# Minimum number of matrices in each half for prediction intervals.
_MIN_CALIBRATION = 10
# Number of residuals of a demand that weigh as much as the quantile of all demands.
_POOLED_WEIGHT = 30
# Floor of a demand's mean share of the traffic, in widths.
_MIN_MEAN = 1e-9
# Share of the dispersion about the mean that remains about the prior: as accurate as all of it, in
# half the Newton steps.
_PRIOR_DISPERSION = 0.3
# Cap of a demand's growth over its mean share, in widening its interval.
_MAX_GROWTH = 10.0
# Residual, in standard deviations, above which a robust estimate doubts a counter.
_CONTRADICTED = 3.0
# Standard deviation of a doubted counter, in units of its residual.
_DOUBT = 3.0
# Maximum Newton steps of a projection: five to fifteen suffice where counters agree, up to 100
# where they do not.
_MAX_STEPS = 20
# Newton steps of an interval after which no further projection begins.
_MAX_STEPS_OF_ALL = 60
# Rounds of doubting and re-estimating; with 2 the error is 0.01 larger at 30% wrong counters.
_ROBUST_ROUNDS = 4
# Weight of the current interval in the average of the prior's residual at the counters.
_BIAS_WEIGHT = 0.02
# Cap of u in the module docstring, which is 1.1 to 3.4 on Abilene, GEANT and Germany50.
_MAX_UNSEEN = 5.0
# Relative standard deviation of a measured demand.
_FLOW_ERROR = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated matrix of one interval.

    Attributes:
        matrix: (D,) Gbit/s.
        lower: (D,) lower end of each demand's prediction interval at the level, Gbit/s; NaN without
            enough history.
        upper: (D,) upper end of each demand's prediction interval, Gbit/s.
        residual: (R,) counted less explained traffic, Gbit/s; NaN for missing counters.
        dispersion: phi, Gbit/s.
        prior: source of the prior: history, tracked or gravity.
        steps: Newton steps of all projections.
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
    """A projection and its inputs.

    Attributes:
        projected: the last projection; its residual has rows of measured demands after those of the
            counters.
        prior: (D,) Gbit/s.
        dispersion: phi, Gbit/s.
        kind: source of the prior.
        steps: Newton steps of all projections.
        is_contradicted: (R,) whether each counter is doubted.
    """

    projected: Projected
    prior: FloatArray
    dispersion: float
    kind: str
    steps: int
    is_contradicted: BoolArray


class Estimator:
    """Traffic matrix estimator for consecutive intervals of one network.

    Args:
        pairs: (D, 2) source and target of the demands.
        nodes: number of nodes, N.
        history: (T, D) past matrices, Gbit/s, the newest last; None for none.
        relative: relative standard deviation of a counter.
        level: probability of the prediction intervals.
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
        self._pairs = pairs
        self._nodes = nodes
        self._relative = relative
        self._level = level
        self._matrices: FloatArray | None = None if history is None else history[history.sum(1) > 0]
        self._history = None if history is None else History.of(history)
        self._tracking = _TRACKING if tracking is None else tracking
        self._tracked: FloatArray | None = None if self._history is None else self._history.mean
        self._projection: Projection | None = None
        self._history_prior: HistoryPrior | None = None
        # Calibration residuals (C, D), as shares of the total.
        self._residuals: FloatArray | None = None
        # Half widths of the intervals and means, as shares of the total.
        self._widths = self._mean = np.zeros(len(pairs))
        # Weight of each demand's own quantile, and the factor u.
        self._own_weight = 1.0
        self._unseen = 0.0
        self._phi_share = self._dispersion_of(self._matrices)
        self._bias = _Bias(sp.csr_array((0, len(pairs))))
        self._state_before = self._tracked, self._bias

    @staticmethod
    def _dispersion_of(matrices: FloatArray | None) -> float:
        """Phi over the mean total of the history; 0 without history."""
        if matrices is None or len(matrices) < 2:
            return 0.0
        total = matrices.sum(1, keepdims=True)
        expected = total * (matrices / total).mean(0)
        dispersion = float(((matrices - expected) ** 2).sum()) / float(expected.sum())
        return dispersion / float(total.mean())

    def route(self, measurements: sp.csr_array) -> None:
        """Set the measurement matrix F (R, D) for the following intervals; an unchanged one is
        ignored.

        R = E + 2 N, as in :mod:`teal_ip.routing.measurements`.
        """
        if self._projection is not None and _is_same_matrix(
            self._projection.measurements, measurements
        ):
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
        """Estimate the matrix of the next interval, and update tracked shares and bias.

        Args:
            counters: (R,) Gbit/s of links, ingress and egress; NaN for missing ones.
            flows: (D,) Gbit/s of demands that were measured themselves; NaN for the others.
            deviation: (R,) standard deviations, Gbit/s; None for the relative error.
            robust: increase the standard deviation of counters that the estimate contradicts by
                more than 3, and estimate again; for counters some of which are wrong.

        Raises:
            InputError: no routing, no measured counter, or traffic that the prior rules out.
        """
        fit = self._fit(counters, flows, deviation, robust)
        self._state_before = self._tracked, self._bias.copy()
        matrix = fit.projected.matrix
        assert self._projection is not None
        residual = fit.projected.residual[: len(counters)]
        total = float(fit.prior.sum())
        # Tracked shares.
        if self._tracked is None and total > 0:
            self._tracked = fit.prior / total
        if self._tracked is not None and float(matrix.sum()) > 0:
            self._tracked = (
                1 - self._tracking
            ) * self._tracked + self._tracking * matrix / matrix.sum()
        # Residual of the prior at the counters.
        if total > 0:
            prior_residual = counters - self._projection.measurements @ fit.prior
            self._bias.add(np.where(fit.is_contradicted, np.nan, prior_residual) / total)
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
        """Undo the updates of the last estimate, whose interval turned out to be unreliable."""
        self._tracked, self._bias = self._state_before

    @property
    def knows_traffic(self) -> bool:
        """Whether a history or an estimate gives a better prior than gravity."""
        return self._tracked is not None

    @property
    def is_used(self) -> BoolArray:
        """Whether some demand adds to each counter (R,) under the current routing."""
        assert self._projection is not None
        return np.asarray(self._projection.measurements.sum(1)).reshape(-1) > 0

    def explained(self, counters: FloatArray, is_firm: BoolArray | None = None) -> FloatArray:
        """Loads (R,), Gbit/s, of a robust estimate from these counters, without any update.

        Rates of links with missing counters (NaN) are predicted from all others.

        Args:
            counters: (R,) as in :meth:`estimate`, which raises the same errors.
            is_firm: (R,) counters that are never doubted, however much the others contradict them;
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
        """Project the current prior onto the counters; arguments as in :meth:`estimate` and
        :meth:`explained`.
        """
        if self._projection is None:
            raise InputError(
                "estimate", "routing", "a measurement matrix: call Estimator.route first", "none"
            )
        projection = self._projection
        if counters.shape != (projection.measurements.shape[0],):
            expected = f"{projection.measurements.shape[0]} rates"
            raise InputError("estimate", "counters", expected, counters.shape)
        # Prior and dispersion.
        shares, kind = self._shares(counters)
        prior = scaled_to(counters, projection.measurements, shares)
        total = float(prior.sum())
        phi = _PRIOR_DISPERSION * self._phi_share * total or total / max(1, len(prior)) or 1.0
        deviation = (
            projection.deviations(counters, self._relative) if deviation is None else deviation
        )
        # Project; in robust estimates increase the deviations of contradicted counters and repeat.
        projected, num_rows = self._project(counters, deviation, prior, phi, flows, _MAX_STEPS)
        is_contradicted = np.zeros(len(counters), dtype=bool)
        steps = projected.steps
        for _ in range(_ROBUST_ROUNDS if robust else 0):
            residual = np.abs(np.nan_to_num(projected.residual[:num_rows]))
            is_contradicted = residual > _CONTRADICTED * deviation
            if is_firm is not None:
                is_contradicted &= ~is_firm
            if not is_contradicted.any() or steps >= _MAX_STEPS_OF_ALL:
                break
            increased_deviation = np.where(is_contradicted, _DOUBT * residual, deviation)
            projected, num_rows = self._project(
                counters, increased_deviation, prior, phi, flows, _MAX_STEPS
            )
            steps += projected.steps
        return _Fit(projected, prior, phi, kind, steps, is_contradicted)

    def _shares(self, counters: FloatArray) -> tuple[FloatArray, str]:
        if self._tracked is None:
            links = len(counters) - 2 * self._nodes
            ingress = counters[links : links + self._nodes]
            egress = counters[links + self._nodes :]
            return gravity(ingress, egress, self._pairs), "gravity"
        if self._history_prior is None:
            return self._tracked, "tracked"
        history_shares = self._history_prior.prior(counters)
        return (
            2 * history_shares / max(float(history_shares.sum()), 1e-300) + self._tracked
        ) / 3, "history"

    def _project(
        self,
        counters: FloatArray,
        deviation: FloatArray,
        prior: FloatArray,
        phi: float,
        flows: FloatArray | None,
        max_steps: int,
    ) -> tuple[Projected, int]:
        """Project the prior, with an additional row for each measured demand; return the number of
        counter rows, too.
        """
        assert self._projection is not None
        num_rows = len(counters)
        measured_demands = (
            np.zeros(0, dtype=int) if flows is None else np.flatnonzero(np.isfinite(flows))
        )
        if not len(measured_demands):
            return self._projection.project(counters, deviation, prior, phi, max_steps), num_rows
        assert flows is not None
        units = sp.csr_array(
            (np.ones(len(measured_demands)), (np.arange(len(measured_demands)), measured_demands)),
            shape=(len(measured_demands), len(prior)),
        )
        extended = Projection(sp.csr_array(sp.vstack([self._projection.measurements, units])))
        prior = prior.copy()
        prior[measured_demands] = flows[measured_demands]
        flow_deviation = _FLOW_ERROR * np.maximum(
            flows[measured_demands], 1e-3 * float(prior.max(initial=0.0)) + 1e-300
        )
        return extended.project(
            np.concatenate([counters, flows[measured_demands]]),
            np.concatenate([deviation, flow_deviation]),
            prior,
            phi,
            max_steps,
        ), num_rows

    def observe(self, matrix: FloatArray) -> None:
        """Learn a matrix (D,), Gbit/s, that became known after its estimate; NaN entries are
        demands without a measurement.

        If some are NaN, the measured demands only update the tracked shares, by the tracking share.
        """
        # Some demands.
        if np.isnan(matrix).any():
            is_known = np.isfinite(matrix)
            if self._tracked is not None and is_known.any():
                expected = float(self._tracked[is_known].sum())
                measured = matrix[is_known] / max(float(matrix[is_known].sum()), 1e-300) * expected
                self._tracked = self._tracked.copy()
                self._tracked[is_known] += self._tracking * (measured - self._tracked[is_known])
            return
        # All demands: extend the history.
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
        """Calibrate the prediction intervals: estimate the second half of the history from the
        first one; requires a routing.
        """
        matrices = self._matrices
        if self._projection is None or matrices is None or len(matrices) < 2 * _MIN_CALIBRATION:
            return
        # Estimator that knows the first half of the history.
        half = len(matrices) // 2
        half_estimator = Estimator(
            self._pairs,
            self._nodes,
            history=matrices[:half],
            relative=self._relative,
            level=self._level,
            tracking=self._tracking,
        )
        half_estimator.route(self._projection.measurements)
        # Errors of its estimates of the second half, from counters with noise.
        rng = np.random.default_rng(0)
        residuals = []
        bias_deviations = []
        for row in np.unique(np.linspace(half, len(matrices) - 1, _CALIBRATED_ON).astype(int)):
            truth = matrices[row]
            counters = self._projection.measurements @ truth
            counters = counters * (1 + self._relative * rng.normal(size=len(counters)))
            half_estimate = half_estimator.estimate(np.maximum(counters, 0.0))
            residuals.append((truth - half_estimate.matrix) / truth.sum())
            bias_deviations.append(
                half_estimator._bias.deviation(half_estimate.matrix)
                * half_estimate.matrix
                / truth.sum()
            )
        self._residuals = np.array(residuals)
        # Ratio of the errors to those that the bias explains, and widths of the intervals.
        bias_norm = np.linalg.norm(bias_deviations, axis=1)
        error_norm = np.linalg.norm(self._residuals, axis=1)
        self._unseen = float(
            np.median(np.minimum(error_norm / np.maximum(bias_norm, 1e-300), _MAX_UNSEEN))
        )
        self._mean = np.maximum((matrices / matrices.sum(1, keepdims=True)).mean(0), _MIN_MEAN)
        self._widths, self._own_weight = _widths(np.abs(self._residuals), self._mean, self._level)

    @property
    def residuals(self) -> FloatArray | None:
        """Calibration residuals (C, D) of each demand, as shares of the total; None without
        calibration.
        """
        return self._residuals

    def scenarios(self, matrix: FloatArray, count: int, seed: int = 0) -> FloatArray:
        """Sample matrices (count, D) consistent with an estimate: itself, and it plus calibration
        residuals.

        For :func:`teal.solve_scenarios`: splits that suit all of them lose less to the estimation
        error.

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
        width = self._widths * total * growth ** (1 - self._own_weight)
        drift = (
            self._unseen
            * NormalDist().inv_cdf((1 + self._level) / 2)
            * self._bias.deviation(matrix)
        )
        width = np.hypot(width, drift * matrix)
        return np.maximum(0.0, matrix - width), matrix + width


class _Bias:
    """Average of the priors' residuals at the counters under one routing.

    Args:
        measurements: (R, D) measurement matrix F.
    """

    def __init__(self, measurements: sp.csr_array) -> None:
        self._measurements = measurements
        self._sum = np.zeros(measurements.shape[0])
        self._weight = np.zeros(measurements.shape[0])

    @cached_property
    def _squares(self) -> sp.csr_array:
        return self._measurements.multiply(self._measurements).tocsr()

    def copy(self) -> _Bias:
        """Return an independent copy."""
        copied = _Bias(self._measurements)
        copied._sum = self._sum.copy()
        copied._weight = self._weight.copy()
        return copied

    def add(self, residual: FloatArray) -> None:
        """Add the prior's residual of an interval, (R,) shares of the total; NaN for missing
        counters.
        """
        is_known = np.isfinite(residual)
        self._sum += is_known * _BIAS_WEIGHT * (np.nan_to_num(residual) - self._sum)
        self._weight += is_known * _BIAS_WEIGHT * (1 - self._weight)

    def deviation(self, matrix: FloatArray) -> float:
        """Sigma of the module docstring, for demands like those of a matrix (D,); 0 before the
        first interval.
        """
        is_known = self._weight > 0
        total = float(matrix.sum())
        expected = (
            float((self._squares @ (matrix / total) ** 2)[is_known].sum()) if total > 0 else 0.0
        )
        bias_square = float(((self._sum[is_known] / self._weight[is_known]) ** 2).sum())
        return math.sqrt(bias_square / expected) if expected > 0 else 0.0


def _widths(residual: FloatArray, mean: FloatArray, level: float) -> tuple[FloatArray, float]:
    """Return half widths (D,) as shares of the total, and the weight n / (n + 30) of each demand's
    own quantile.

    Few residuals say little about the tail of one demand.  So its quantile is mixed with that of
    all demands together, whose residuals are in units of the square root of the demand's mean.

    Args:
        residual: (n, D) magnitudes, shares of the total.
        mean: (D,) mean shares, above 0.
        level: probability.
    """
    count = len(residual)
    quantile = min(1.0, math.ceil((count + 1) * level) / count)
    own_quantile = np.quantile(residual, quantile, axis=0)
    scale = np.sqrt(mean * float(mean.mean()))
    pooled_quantile = float(np.quantile(residual / scale, quantile)) * scale
    weight = count / (count + _POOLED_WEIGHT)
    return weight * own_quantile + (1 - weight) * np.maximum(own_quantile, pooled_quantile), weight


def _is_same_matrix(a: sp.csr_array, b: sp.csr_array) -> bool:
    if a is b:
        return True
    return a.shape == b.shape and a.nnz == b.nnz and not (a != b).nnz
