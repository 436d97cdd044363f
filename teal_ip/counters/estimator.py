"""Traffic matrix estimation for consecutive intervals: prior, projection onto the counters,
prediction intervals, and online updates.

The prior is a vector of traffic shares.  Without a history:

- *gravity*: ingress of the source times egress of the target;
- *tracked*: exponential average m <- (1 - a) m + a x / sum x after every estimate x, starting with
  gravity.

With a history of shares h_1, ..., h_T of matrices (each sums to 1), whose counters under the
current routing are F h_t, the prior is the mean of three: tracked shares and

- *nearest neighbours*: the mean of the 20 shares whose counters, as shares of their sum, are
  nearest to the current ones;
- *Gaussian*: mu + C F' (F C F' + V)^-1 (y - F mu), the linear minimum mean square error (MMSE)
  estimate from the counters y with the covariance V of their errors, and the mean mu and the
  covariance C = (1 - b) cov + b (trace(cov) / sum mu) diag(mu), b = 0.6, of shares winsorised at 2
  and 98% demand by demand; diag(mu) is the metric of the KL projection, so b = 1 would be close to
  projecting the mean.

:meth:`HistoryPrior.prior` averages the last two: no single method is best on every network.  The
dispersion is

    phi = 0.3 sum (x - m)^2 / sum m      with a history of matrices x, m its mean shares scaled to
                                         the total of each matrix;
    phi = total / D                      without a history, for D demands.

Prediction intervals are conformal (split conformal prediction): the residuals |x - estimate| /
total of the second half of the history, estimated from the first half, give each demand a quantile,
which is averaged with the pooled quantile of all demands if there are few residuals; a demand above
its mean share has a wider interval.  The prior's residual b at the counters, averaged over the last
intervals, shows drift from the history: if demands x differ from the prior by independent relative
errors of standard deviation sigma, then

    E sum_r b_r^2 = sigma^2 sum_r sum_d F_rd^2 x_d^2,

which gives sigma.  The half width w becomes sqrt(w^2 + (u z sigma x)^2), with the normal quantile z
of the level.  The drift factor u is the median of |x - estimate| / |sigma x|, norms over all
demands, in calibration: counters show only part of a change.  The drift term widens the intervals
of large demands most.  Matrices that arrive later (:meth:`Estimator.observe`) join the history.
Entry point: :class:`Estimator`.
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

# Number of past intervals in the nearest-neighbour estimate.
_NUM_NEIGHBOURS = 20
# Share of values clipped at either end (winsorising).
_WINSOR_SHARE = 0.02
# Shrinkage b of the covariance towards a diagonal one.
_SHRINKAGE = 0.6
# Maximum number of entries of a history in memory, 2.4 GB; the newest matrices are kept.
_MAX_HISTORY_ENTRIES = 300_000_000
# Minimum share of the traffic of every demand in a prior.
_MIN_SHARE = 1e-12


def gravity(ingress: FloatArray, egress: FloatArray, pairs: IntArray) -> FloatArray:
    """Return traffic shares (D,) of the gravity model, which sum to 1.

    The share of a demand is proportional to the ingress of its source times the egress of its
    target.

    Args:
        ingress: (N,) Gbit/s; NaN is replaced by the mean of the other nodes.
        egress: (N,) Gbit/s; NaN is replaced by the mean of the other nodes.
        pairs: (D, 2) source and target of each demand.
    """
    # Rate of each node; the mean of the known ones if it is missing, 1 if none is known.
    filled_rates = []
    for node_rates in (ingress, egress):
        is_known = np.isfinite(node_rates)
        filled_rates.append(
            np.where(is_known, node_rates, node_rates[is_known].mean() if is_known.any() else 1.0)
        )
    # Product of source and target for each pair; equal shares if no pair has traffic.
    product = filled_rates[0][pairs[:, 0]] * filled_rates[1][pairs[:, 1]]
    total = float(product.sum())
    return np.asarray(product / total) if total > 0 else np.full(len(pairs), 1 / max(1, len(pairs)))


def scaled_to(counters: FloatArray, measurements: sp.csr_array, shares: FloatArray) -> FloatArray:
    """Scale traffic shares to Gbit/s, so that the expected counters sum to the measured ones.

    Args:
        counters: (R,) Gbit/s; NaN for missing ones, which are ignored.
        measurements: (R, D) measurement matrix F: the counters of demands x are F x.
        shares: (D,) share of each demand in the traffic.

    Returns:
        (D,) Gbit/s: shares * sum(counters) / sum(F shares), over the measured counters.
    """
    # Sums of the measured counters, and of those that the shares imply.
    is_known = np.isfinite(counters)
    expected_sum = float((measurements @ shares)[is_known].sum())
    return np.asarray(
        shares * (float(counters[is_known].sum()) / expected_sum if expected_sum > 0 else 0.0)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Traffic shares of T past matrices, the newest last.

    Attributes:
        shares: (T, D) share of each demand in the traffic; each row sums to 1.
    """

    shares: FloatArray

    @classmethod
    def of(cls, matrices: FloatArray) -> History:
        """Build a history from matrices (T, D), Gbit/s, in time order.

        Matrices without traffic are dropped; above the memory limit, so are the oldest ones.

        Raises:
            InputError: no matrix with traffic.
        """
        # Rows of the matrices with traffic; the newest ones that fit in memory.
        totals = matrices.sum(1)
        kept_rows = np.flatnonzero(totals > 0)[
            -max(1, _MAX_HISTORY_ENTRIES // max(1, matrices.shape[1])) :
        ]
        if not len(kept_rows):
            raise InputError.invalid(
                "estimate", "history", "no past matrix has traffic", "use matrices with traffic"
            )
        return cls(matrices[kept_rows] / totals[kept_rows, None])

    @property
    def num_matrices(self) -> int:
        """Number of past matrices with traffic, T."""
        return len(self.shares)

    @cached_property
    def mean(self) -> FloatArray:
        """Mean share of the traffic of each demand (D,) over the history."""
        return np.asarray(self.shares.mean(0))

    @cached_property
    def winsorised(self) -> FloatArray:
        """Shares (T, D), with each demand clipped to its quantiles at 2 and 98%."""
        low, high = np.quantile(self.shares, [_WINSOR_SHARE, 1 - _WINSOR_SHARE], axis=0)
        return np.clip(self.shares, low, high)

    def with_matrix(self, matrix: FloatArray, max_matrices: int) -> History:
        """Return the history extended by a matrix.

        Args:
            matrix: (D,) Gbit/s; ignored if it has no traffic.
            max_matrices: maximum number of matrices; the oldest are dropped.
        """
        total = float(matrix.sum())
        if total <= 0:
            return self
        # Drop the oldest matrices, so that the new one fits.
        return History(
            np.concatenate(
                [
                    self.shares[-(max_matrices - 1) :] if max_matrices > 1 else self.shares[:0],
                    [matrix / total],
                ]
            )
        )


class HistoryPrior:
    """Prior traffic shares from a history and the current counters, under one routing.

    With the mean mu and the covariance C of the past shares of D demands, and R counters:

    - ``_past_counters`` (T, R): counters F h_t of the past shares h_t;
    - ``_mean_shares`` (D,): mu, of winsorised shares;
    - ``_counter_mean`` (R,): F mu;
    - ``_cross_covariance`` (R, D): F C, without the D x D matrix C;
    - ``_counter_covariance`` (R, R): F C F'.

    Args:
        history: T past matrices.
        measurements: (R, D) measurement matrix F.
        counter_error: relative standard deviation of a counter.
    """

    def __init__(self, history: History, measurements: sp.csr_array, counter_error: float) -> None:
        self._history = history
        self._measurements = measurements
        self._counter_error = counter_error
        # (T, R) counters F h_t of the past shares.
        self._past_counters = np.asarray((measurements @ history.shares.T).T)
        # Mean mu (D,) of the winsorised shares, and deviations from it (T, D).
        winsorised_shares = history.winsorised
        self._mean_shares = winsorised_shares.mean(0)
        centred_shares = winsorised_shares - self._mean_shares
        degrees_of_freedom = max(1, len(winsorised_shares) - 1)
        # (T, R) F (h_t - mu).
        centred_counters = centred_shares @ measurements.T
        # trace(cov), and the scale of the diagonal part of C, trace(cov) / sum mu.
        covariance_trace = float((centred_shares * centred_shares).sum()) / degrees_of_freedom
        diagonal_scale = covariance_trace / max(float(self._mean_shares.sum()), 1e-300)
        # C = (1 - b) cov + b (trace(cov) / sum mu) diag(mu), multiplied by F from the left.
        self._cross_covariance: FloatArray = (
            (1 - _SHRINKAGE) * (centred_counters.T @ centred_shares) / degrees_of_freedom
        )
        self._cross_covariance += (
            _SHRINKAGE * diagonal_scale * (measurements * self._mean_shares).toarray()
        )
        # F mu and F C F'.
        self._counter_mean = measurements @ self._mean_shares
        self._counter_covariance = np.asarray(self._measurements @ self._cross_covariance.T)

    def prior(self, counters: FloatArray) -> FloatArray:
        """Return the prior share of the traffic of each demand (D,), at least 0.

        It is the mean of the nearest-neighbour estimate and the linear MMSE estimate; the shares
        sum to about 1.

        Args:
            counters: (R,) Gbit/s; NaN for missing ones.
        """
        is_known = np.isfinite(counters)
        # Estimate the total traffic: with it, the mean shares reproduce the sum of the counters.
        total = float(counters[is_known].sum()) / max(
            float(self._counter_mean[is_known].sum()), 1e-300
        )
        scaled_counters = counters / max(total, 1e-300)
        return (
            self.analogues(scaled_counters, is_known) + self.gaussian(scaled_counters, is_known)
        ) / 2

    def analogues(self, scaled_counters: FloatArray, is_known: BoolArray) -> FloatArray:
        """Return the nearest-neighbour estimate of the shares (D,).

        It is the mean of the 20 past intervals whose counters are nearest to the current ones.
        Counters are compared as shares of their sum, by Euclidean distance.

        Args:
            scaled_counters: (R,) counters divided by the total traffic.
            is_known: (R,) whether each counter was measured.
        """
        # Squared distance (T,) between past and current counters, as shares of their sums.
        past_counters = self._past_counters[:, is_known]
        past_total = past_counters.sum(1, keepdims=True)
        current_shares = scaled_counters[is_known] / max(
            float(scaled_counters[is_known].sum()), 1e-300
        )
        squared_distance = (
            (past_counters / np.where(past_total > 0, past_total, 1) - current_shares) ** 2
        ).sum(1)
        # Mean of the past shares in the nearest intervals.
        num_neighbours = min(_NUM_NEIGHBOURS, len(squared_distance))
        nearest_rows = np.argpartition(squared_distance, num_neighbours - 1)[:num_neighbours]
        return np.asarray(self._history.shares[nearest_rows].mean(0))

    def gaussian(self, scaled_counters: FloatArray, is_known: BoolArray) -> FloatArray:
        """Return the linear minimum mean square error estimate of the shares (D,), at least 0.

        mu + C F' (F C F' + V)^-1 (y - F mu) over the measured counters y, with the mean mu and the
        covariance C of the shares, the measurement matrix F, and the diagonal covariance V of the
        counters' errors.

        Args:
            scaled_counters: (R,) counters divided by the total traffic.
            is_known: (R,) whether each counter was measured.
        """
        # Variances V of the counters' errors: a small counter has the error of 0.1% of the largest
        # one.  The term 1e-18 keeps V positive if all counters are 0.
        known_counters = scaled_counters[is_known]
        error_variance = (
            self._counter_error
            * np.maximum(np.abs(known_counters), 1e-3 * np.abs(known_counters).max(initial=0.0))
        ) ** 2 + 1e-18
        # F C F' + V and y - F mu of the measured counters, and the solution of this system.
        innovation_covariance = self._counter_covariance[np.ix_(is_known, is_known)] + np.diag(
            error_variance
        )
        mean_residual = known_counters - self._counter_mean[is_known]
        weights = solve_definite(innovation_covariance, mean_residual)
        return np.maximum(
            self._mean_shares + weights @ self._cross_covariance[is_known], _MIN_SHARE
        )


# Weight of the last estimate in the exponential average of shares; 0.3 drifts under fixed routing
# (error 0.29 instead of 0.26 on Abilene).
_DEFAULT_TRACKING = 0.1
# Maximum number of matrices in the history, two weeks of 5 minutes; the oldest are dropped.
_MAX_HISTORY = 4032
# Maximum number of matrices in calibration, evenly spaced over the second half of the history.
_MAX_CALIBRATION_MATRICES = 200
# Minimum number of matrices in each half for prediction intervals.
_MIN_HALF_MATRICES = 10
# Number of residuals at which a demand's quantile and the pooled quantile have equal weights.
_POOLED_WEIGHT = 30
# Floor of a demand's mean share of the traffic, in interval widths.
_MIN_MEAN = 1e-9
# Dispersion about the prior over that about the mean: 0.3 is as accurate as 1, in half the Newton
# steps.
_PRIOR_DISPERSION = 0.3
# Upper bound on the growth of a demand over its mean share, which widens its interval.
_MAX_GROWTH = 10.0
# Residual, in standard deviations, above which a robust estimate treats a counter as an outlier.
_OUTLIER_DEVIATIONS = 3.0
# New standard deviation of an outlier, in units of its residual.
_OUTLIER_INFLATION = 3.0
# Maximum Newton steps of a projection: five to fifteen suffice where counters agree, up to 100
# where they do not.
_MAX_NEWTON_STEPS = 20
# Total Newton steps of an interval after which no further projection begins.
_MAX_TOTAL_STEPS = 60
# Rounds of reweighting outliers; with 2 the error is 0.01 larger at 30% wrong counters.
_ROBUST_ROUNDS = 4
# Weight of the current interval in the exponential average of the prior's residuals at counters.
_BIAS_WEIGHT = 0.02
# Upper bound on the drift factor u, which is 1.1 to 3.4 on Abilene, GEANT and Germany50.
_MAX_DRIFT_FACTOR = 5.0
# Relative standard deviation of a demand measured by flow records.
_FLOW_ERROR = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated matrix of one interval.

    Attributes:
        matrix: (D,) Gbit/s.
        lower: (D,) lower end of each demand's prediction interval at the level, Gbit/s; NaN without
            enough history.
        upper: (D,) upper end of each demand's prediction interval, Gbit/s.
        residual: (R,) counters minus loads of the matrix, Gbit/s; NaN for missing counters.
        dispersion: phi, variance over mean of the prior's error, Gbit/s.
        prior: source of the prior: history, tracked or gravity.
        steps: number of Newton steps of all projections.
        unexplained: sum of abs(residual) over the sum of the counters.
        doubted: number of outliers among the counters, in a robust estimate.
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
    """Estimate of one interval: the prior, and its projection onto the counters.

    Attributes:
        projected: the last projection; its residual has R rows for counters, then rows for
            measured demands.
        prior: (D,) Gbit/s.
        dispersion: phi, variance over mean of the prior's error, Gbit/s.
        prior_source: source of the prior: history, tracked or gravity.
        steps: number of Newton steps of all projections.
        is_outlier: (R,) whether each counter was treated as an outlier.
    """

    projected: Projected
    prior: FloatArray
    dispersion: float
    prior_source: str
    steps: int
    is_outlier: BoolArray


class Estimator:
    """Traffic matrix estimator for consecutive intervals of one network.

    Args:
        pairs: (D, 2) source and target of the demands.
        nodes: number of nodes, N.
        history: (T, D) past matrices, Gbit/s, the newest last; None for none.
        relative: relative standard deviation of a counter.
        level: probability of the prediction intervals.
        tracking: weight of the last estimate in the exponential average of shares; None for 0.1.
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
        # Check the settings.
        if not 0 < relative < 1:
            raise InputError(
                "estimate", "relative error of a counter", "a number in (0, 1)", relative
            )
        if not 0 < level < 1:
            raise InputError("estimate", "level", "a number in (0, 1)", level)
        if history is not None and (history.ndim != 2 or history.shape[1] != len(pairs)):
            raise InputError(
                "estimate", "history", f"an array of shape (T, {len(pairs)})", history.shape
            )
        # Settings, past matrices with traffic, and priors; (D,) exponential average of shares.
        self._pairs = pairs
        self._num_nodes = nodes
        self._counter_error = relative
        self._level = level
        self._history_matrices: FloatArray | None = (
            None if history is None else history[history.sum(1) > 0]
        )
        self._history = None if history is None else History.of(history)
        self._average_weight = _DEFAULT_TRACKING if tracking is None else tracking
        self._average_shares: FloatArray | None = (
            None if self._history is None else self._history.mean
        )
        self._projection: Projection | None = None
        self._history_prior: HistoryPrior | None = None
        # Calibration residuals (C, D) of C past matrices, as shares of the total traffic.
        self._residuals: FloatArray | None = None
        # Half widths of the intervals, and mean demands (D,), as shares of the total traffic.
        self._half_widths = self._mean = np.zeros(len(pairs))
        # Interval widths: weight of the quantile of a demand's own residuals (the quantile pooled
        # over all demands has the rest), and drift factor u (see the module).
        self._own_quantile_weight = 1.0
        self._drift_factor = 0.0
        # Dispersion of the history over its mean total traffic; 0 without a history.
        self._relative_dispersion = self._history_dispersion(self._history_matrices)
        # Average residual of the prior at the counters, and the state before the last estimate.
        self._bias = _Bias(sp.csr_array((0, len(pairs))))
        self._previous_state = self._average_shares, self._bias

    @staticmethod
    def _history_dispersion(matrices: FloatArray | None) -> float:
        """Return the dispersion phi of past matrices, divided by their mean total traffic.

        phi = sum (x - m)^2 / sum m over all matrices x, with m their mean shares scaled to the
        total of each matrix; 0 for fewer than two matrices.

        Args:
            matrices: (T, D) Gbit/s; None for none.
        """
        if matrices is None or len(matrices) < 2:
            return 0.0
        total = matrices.sum(1, keepdims=True)
        expected = total * (matrices / total).mean(0)
        dispersion = float(((matrices - expected) ** 2).sum()) / float(expected.sum())
        return dispersion / float(total.mean())

    def route(self, measurements: sp.csr_array) -> None:
        """Set the measurement matrix F for the following intervals.

        A change of routing resets the average of the prior's residuals.

        Args:
            measurements: (R, D) share of each demand at each of R = E + 2 N counters: links,
                ingress, egress.
        """
        # An unchanged routing keeps projection, averages and prior.
        if self._projection is not None and _is_same_matrix(
            self._projection.measurements, measurements
        ):
            return
        if measurements.shape[1] != len(self._pairs):
            expected = f"a matrix with {len(self._pairs)} columns, one for each demand"
            raise InputError("estimate", "measurements", expected, measurements.shape)
        # Projection, average of residuals, and prior from the history under the new routing.
        self._projection = Projection(measurements)
        self._bias = _Bias(measurements)
        if self._history is not None:
            self._history_prior = HistoryPrior(
                self._history, self._projection.measurements, self._counter_error
            )

    def estimate(
        self,
        counters: FloatArray,
        *,
        flows: FloatArray | None = None,
        deviation: FloatArray | None = None,
        robust: bool = False,
    ) -> Estimate:
        """Estimate the matrix of the next interval; update the exponential averages of the shares
        and of the prior's residuals.

        Args:
            counters: (R,) Gbit/s of links, ingress and egress; NaN for missing ones.
            flows: (D,) measured demands, Gbit/s; NaN for demands without a measurement; None for
                none.
            deviation: (R,) standard deviations of the counters, Gbit/s; None to compute them from
                the relative error.
            robust: treat counters with a residual above 3 standard deviations as outliers:
                increase their standard deviation, and estimate again.

        Raises:
            InputError: no routing, no measured counter, or traffic that the prior rules out.
        """
        # Project the prior onto the counters.
        fit = self._fit(counters, flows, deviation, robust)
        # The state before this estimate, for ``forget_last``.
        self._previous_state = self._average_shares, self._bias.copy()
        matrix = fit.projected.matrix
        assert self._projection is not None
        residual = fit.projected.residual[: len(counters)]
        prior_total = float(fit.prior.sum())
        # Exponential average of shares.
        if self._average_shares is None and prior_total > 0:
            self._average_shares = fit.prior / prior_total
        if self._average_shares is not None and float(matrix.sum()) > 0:
            self._average_shares = (
                1 - self._average_weight
            ) * self._average_shares + self._average_weight * matrix / matrix.sum()
        # Average of the prior's residuals at the counters, without outliers.
        if prior_total > 0:
            prior_residual = counters - self._projection.measurements @ fit.prior
            self._bias.add(np.where(fit.is_outlier, np.nan, prior_residual) / prior_total)
        # Prediction intervals, and unexplained share of the counters.
        counter_sum = float(np.nansum(counters))
        lower, upper = self._interval(matrix)
        return Estimate(
            matrix,
            lower,
            upper,
            residual,
            fit.dispersion,
            fit.prior_source,
            fit.steps,
            float(np.nansum(np.abs(residual))) / counter_sum if counter_sum > 0 else 0.0,
            int(fit.is_outlier.sum()),
        )

    def forget_last(self) -> None:
        """Restore the exponential averages to their values before the last estimate.

        Called if the counters of the last interval prove unreliable.
        """
        self._average_shares, self._bias = self._previous_state

    @property
    def knows_traffic(self) -> bool:
        """Whether the prior comes from a history or past estimates, not from gravity."""
        return self._average_shares is not None

    @property
    def is_used(self) -> BoolArray:
        """Whether each counter (R,) measures at least one demand under the current routing."""
        assert self._projection is not None
        return np.asarray(self._projection.measurements.sum(1)).reshape(-1) > 0

    def explained(self, counters: FloatArray, is_firm: BoolArray | None = None) -> FloatArray:
        """Return the counters (R,), Gbit/s, of the matrix that a robust estimate finds.

        Missing counters are predicted from the others.  The exponential averages do not change.

        Args:
            counters: (R,) Gbit/s of links, ingress and egress; NaN for missing ones.
            is_firm: (R,) whether a counter is never treated as an outlier; None if all may be.

        Raises:
            InputError: no routing, no measured counter, or traffic that the prior rules out.
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
        """Project the current prior onto the counters, without any change of the estimator.

        Args:
            counters: (R,) Gbit/s of links, ingress and egress; NaN for missing ones.
            flows: (D,) measured demands, Gbit/s; NaN for demands without a measurement; None for
                none.
            deviation: (R,) standard deviations of counters, Gbit/s; None to compute them from the
                relative error.
            robust: increase the standard deviation of outliers, and project again.
            is_firm: (R,) whether a counter is never treated as an outlier; None if all may be.

        Raises:
            InputError: no routing, a wrong number of counters, no measured counter, or traffic that
                the prior rules out.
        """
        # Check routing and shape of the counters.
        if self._projection is None:
            raise InputError.invalid(
                "estimate", "routing", "no measurement matrix is set", "call Estimator.route first"
            )
        projection = self._projection
        if counters.shape != (projection.measurements.shape[0],):
            expected = f"an array of shape ({projection.measurements.shape[0]},)"
            raise InputError("estimate", "counters", expected, counters.shape)
        # Prior (D,), Gbit/s, and its dispersion: from the history, else the mean demand, else 1.
        prior_shares, prior_source = self._prior_shares(counters)
        prior = scaled_to(counters, projection.measurements, prior_shares)
        prior_total = float(prior.sum())
        dispersion = (
            _PRIOR_DISPERSION * self._relative_dispersion * prior_total
            or prior_total / max(1, len(prior))
            or 1.0
        )
        deviation = (
            projection.deviations(counters, self._counter_error) if deviation is None else deviation
        )
        # Project.  If ``robust``: increase the standard deviations of outliers, and project again.
        projected, num_counters = self._project(
            counters, deviation, prior, dispersion, flows, _MAX_NEWTON_STEPS
        )
        is_outlier = np.zeros(len(counters), dtype=bool)
        num_steps = projected.steps
        for _ in range(_ROBUST_ROUNDS if robust else 0):
            residual_size = np.abs(np.nan_to_num(projected.residual[:num_counters]))
            is_outlier = residual_size > _OUTLIER_DEVIATIONS * deviation
            if is_firm is not None:
                is_outlier &= ~is_firm
            # Stop if no counter is an outlier, or after enough Newton steps in all.
            if not is_outlier.any() or num_steps >= _MAX_TOTAL_STEPS:
                break
            # Three times its residual becomes the standard deviation of an outlier.
            increased_deviation = np.where(
                is_outlier, _OUTLIER_INFLATION * residual_size, deviation
            )
            projected, num_counters = self._project(
                counters, increased_deviation, prior, dispersion, flows, _MAX_NEWTON_STEPS
            )
            num_steps += projected.steps
        return _Fit(projected, prior, dispersion, prior_source, num_steps, is_outlier)

    def _prior_shares(self, counters: FloatArray) -> tuple[FloatArray, str]:
        """Return the prior share (D,) of each demand, and its source: gravity, tracked or history.

        Without past traffic it is the gravity model, without a history the exponential average of
        past estimates.  With a history it is 1/3 of that average and 2/3 of the prior from the
        history.

        Args:
            counters: (R,) Gbit/s of links, ingress and egress; NaN for missing ones.
        """
        # Without past traffic: gravity.  Counters are those of links, ingress, then egress.
        if self._average_shares is None:
            num_links = len(counters) - 2 * self._num_nodes
            ingress = counters[num_links : num_links + self._num_nodes]
            egress = counters[num_links + self._num_nodes :]
            return gravity(ingress, egress, self._pairs), "gravity"
        # Without a history: the average of past estimates.
        if self._history_prior is None:
            return self._average_shares, "tracked"
        # With a history: two estimates from it (their mean, weight 2) and the average (weight 1).
        history_shares = self._history_prior.prior(counters)
        return (
            2 * history_shares / max(float(history_shares.sum()), 1e-300) + self._average_shares
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
        """Project a prior onto the counters and onto the measured demands.

        A measured demand replaces the prior, and adds a row to F with a standard deviation of 1%.

        Args:
            counters: (R,) Gbit/s; NaN for missing ones.
            deviation: (R,) standard deviations of counters, Gbit/s.
            prior: (D,) Gbit/s.
            phi: dispersion, variance over mean of the prior's error, Gbit/s.
            flows: (D,) measured demands, Gbit/s; NaN for demands without a measurement; None for
                none.
            max_steps: maximum number of Newton steps.

        Returns:
            projection, and the number of counters R; further rows of its residual are of measured
            demands.
        """
        # Without measured demands, project onto the counters only.
        assert self._projection is not None
        num_counters = len(counters)
        measured_indices = (
            np.zeros(0, dtype=int) if flows is None else np.flatnonzero(np.isfinite(flows))
        )
        if not len(measured_indices):
            return self._projection.project(
                counters, deviation, prior, phi, max_steps
            ), num_counters
        assert flows is not None
        # Else append a row to F for each measured demand.
        demand_rows = sp.csr_array(
            (np.ones(len(measured_indices)), (np.arange(len(measured_indices)), measured_indices)),
            shape=(len(measured_indices), len(prior)),
        )
        extended_projection = Projection(
            sp.csr_array(sp.vstack([self._projection.measurements, demand_rows]))
        )
        # Measured demands replace the prior; a small one has the error of 0.1% of the largest
        # prior.
        prior = prior.copy()
        prior[measured_indices] = flows[measured_indices]
        flow_deviation = _FLOW_ERROR * np.maximum(
            flows[measured_indices], 1e-3 * float(prior.max(initial=0.0)) + 1e-300
        )
        return extended_projection.project(
            np.concatenate([counters, flows[measured_indices]]),
            np.concatenate([deviation, flow_deviation]),
            prior,
            phi,
            max_steps,
        ), num_counters

    def observe(self, matrix: FloatArray) -> None:
        """Add a measured matrix to the history.

        If some demands are NaN, the measured ones update the exponential average of shares only.

        Args:
            matrix: (D,) Gbit/s; NaN for demands without a measurement.
        """
        # Partly measured: scale to the tracked share of these demands, and average.
        if np.isnan(matrix).any():
            is_known = np.isfinite(matrix)
            if self._average_shares is not None and is_known.any():
                tracked_share = float(self._average_shares[is_known].sum())
                measured_shares = (
                    matrix[is_known] / max(float(matrix[is_known].sum()), 1e-300) * tracked_share
                )
                self._average_shares = self._average_shares.copy()
                self._average_shares[is_known] += self._average_weight * (
                    measured_shares - self._average_shares[is_known]
                )
            return
        # Fully measured: extend the history, and update the priors.
        if not matrix.sum() > 0:
            return
        # Append to the matrices and to the shares; the oldest are dropped.
        past_matrices = (
            np.zeros((0, len(matrix))) if self._history_matrices is None else self._history_matrices
        )
        self._history_matrices = np.concatenate(
            [past_matrices[-(_MAX_HISTORY - 1) :], matrix[None]]
        )
        self._history = (
            History.of(matrix[None])
            if self._history is None
            else self._history.with_matrix(matrix, _MAX_HISTORY)
        )
        self._relative_dispersion = self._history_dispersion(self._history_matrices)
        if self._projection is not None:
            self._history_prior = HistoryPrior(
                self._history, self._projection.measurements, self._counter_error
            )

    def calibrate(self) -> None:
        """Calibrate the prediction intervals on the history (split conformal prediction).

        The second half of the history is estimated from its first half, with simulated counters;
        the residuals give the interval widths and the drift factor.  Nothing happens without a
        routing, or with fewer than 20 matrices.
        """
        matrices = self._history_matrices
        if self._projection is None or matrices is None or len(matrices) < 2 * _MIN_HALF_MATRICES:
            return
        # Train an estimator on the first half of the history.
        num_training = len(matrices) // 2
        half_estimator = Estimator(
            self._pairs,
            self._num_nodes,
            history=matrices[:num_training],
            relative=self._counter_error,
            level=self._level,
            tracking=self._average_weight,
        )
        half_estimator.route(self._projection.measurements)
        # Residuals of its estimates of the second half from noisy counters, and the standard
        # deviations that the bias of the prior predicts, as shares of the total.
        rng = np.random.default_rng(0)
        residuals = []
        predicted_deviations = []
        for row in np.unique(
            np.linspace(num_training, len(matrices) - 1, _MAX_CALIBRATION_MATRICES).astype(int)
        ):
            truth = matrices[row]
            counters = self._projection.measurements @ truth
            counters = counters * (1 + self._counter_error * rng.normal(size=len(counters)))
            half_estimate = half_estimator.estimate(np.maximum(counters, 0.0))
            residuals.append((truth - half_estimate.matrix) / truth.sum())
            predicted_deviations.append(
                half_estimator._bias.deviation(half_estimate.matrix)
                * half_estimate.matrix
                / truth.sum()
            )
        self._residuals = np.array(residuals)
        # Drift factor u: median ratio of errors to predicted deviations; then interval widths.
        predicted_norm = np.linalg.norm(predicted_deviations, axis=1)
        error_norm = np.linalg.norm(self._residuals, axis=1)
        self._drift_factor = float(
            np.median(
                np.minimum(error_norm / np.maximum(predicted_norm, 1e-300), _MAX_DRIFT_FACTOR)
            )
        )
        self._mean = np.maximum((matrices / matrices.sum(1, keepdims=True)).mean(0), _MIN_MEAN)
        self._half_widths, self._own_quantile_weight = _interval_widths(
            np.abs(self._residuals), self._mean, self._level
        )

    @property
    def residuals(self) -> FloatArray | None:
        """Residuals (true minus estimated demands) of C matrices in calibration (C, D), as shares
        of the total traffic; None before calibration.
        """
        return self._residuals

    def scenarios(self, matrix: FloatArray, count: int, seed: int = 0) -> FloatArray:
        """Sample matrices around an estimate: the estimate, then the estimate plus calibration
        residuals.

        Splits optimised for all of them (:func:`teal.solve_scenarios`) are robust to the estimation
        error.

        Args:
            matrix: (D,) estimate, Gbit/s.
            count: number of matrices.
            seed: random seed.

        Returns:
            (count, D) Gbit/s.

        Raises:
            InputError: no calibration.
        """
        if self._residuals is None:
            raise InputError.invalid(
                "estimate",
                "scenarios",
                "the estimator is not calibrated",
                "give a history of at least 20 matrices, and call Estimator.calibrate first",
            )
        # Add the residuals of random calibration matrices, scaled to the total of the estimate.
        rows = np.random.default_rng(seed).integers(0, len(self._residuals), max(0, count - 1))
        return np.concatenate(
            [matrix[None], np.maximum(0.0, matrix + float(matrix.sum()) * self._residuals[rows])]
        )

    def _interval(self, matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper ends (D,) of the prediction intervals of a matrix (D,),
        Gbit/s.

        The half width is sqrt(w^2 + (u z sigma x)^2), with the calibrated half width w, wider for
        demands above their mean share, the drift factor u, the normal quantile z, and the relative
        standard deviation sigma of demands x that the average residual of the prior indicates.  The
        ends are NaN before calibration.
        """
        if self._residuals is None:
            unknown_ends = np.full_like(matrix, math.nan)
            return unknown_ends, unknown_ends
        # Calibrated half widths, scaled to the total.  Those of demands above their mean share
        # grow, the more so the smaller the weight of their own quantile is.
        total = float(matrix.sum())
        demand_growth = np.clip(matrix / max(total, 1e-300) / self._mean, 1.0, _MAX_GROWTH)
        half_width = self._half_widths * total * demand_growth ** (1 - self._own_quantile_weight)
        # Drift from the history, as a share of each demand: u z sigma.
        relative_drift = (
            self._drift_factor
            * NormalDist().inv_cdf((1 + self._level) / 2)
            * self._bias.deviation(matrix)
        )
        half_width = np.hypot(half_width, relative_drift * matrix)
        return np.maximum(0.0, matrix - half_width), matrix + half_width


class _Bias:
    """Exponential average of the prior's residuals at the counters, under one routing.

    Args:
        measurements: (R, D) measurement matrix F.
    """

    def __init__(self, measurements: sp.csr_array) -> None:
        self._measurements = measurements
        # (R,) exponentially weighted sum of residuals, and sum of their weights.
        self._residual_sum = np.zeros(measurements.shape[0])
        self._weight_sum = np.zeros(measurements.shape[0])

    @cached_property
    def _squared_measurements(self) -> sp.csr_array:
        """Squared entries of the measurement matrix (R, D)."""
        return self._measurements.multiply(self._measurements).tocsr()

    def copy(self) -> _Bias:
        """Return a copy of the average that further intervals do not change."""
        copied = _Bias(self._measurements)
        copied._residual_sum = self._residual_sum.copy()
        copied._weight_sum = self._weight_sum.copy()
        return copied

    def add(self, residual: FloatArray) -> None:
        """Add an interval to the average.

        Args:
            residual: (R,) residual of the prior at each counter, as shares of the total traffic;
                NaN for missing counters.
        """
        is_known = np.isfinite(residual)
        # Missing counters keep their sum and weight.
        self._residual_sum += (
            is_known * _BIAS_WEIGHT * (np.nan_to_num(residual) - self._residual_sum)
        )
        self._weight_sum += is_known * _BIAS_WEIGHT * (1 - self._weight_sum)

    def deviation(self, matrix: FloatArray) -> float:
        """Return the relative standard deviation sigma of demands that explains the average
        residual.

        sigma^2 = sum_r b_r^2 / sum_r sum_d F_rd^2 x_d^2, with the average residual b_r of the prior
        at counter r, and the matrix x as shares of its total; 0 before the first interval.

        Args:
            matrix: (D,) Gbit/s.
        """
        # sum_r sum_d F_rd^2 x_d^2, over the counters r that were measured in some interval.
        is_known = self._weight_sum > 0
        total = float(matrix.sum())
        unit_residual_square = (
            float((self._squared_measurements @ (matrix / total) ** 2)[is_known].sum())
            if total > 0
            else 0.0
        )
        # sum_r b_r^2; an average residual is the weighted sum over the sum of weights.
        bias_square = float(
            ((self._residual_sum[is_known] / self._weight_sum[is_known]) ** 2).sum()
        )
        return math.sqrt(bias_square / unit_residual_square) if unit_residual_square > 0 else 0.0


def _interval_widths(
    residual: FloatArray, mean_shares: FloatArray, level: float
) -> tuple[FloatArray, float]:
    """Return the half widths of conformal prediction intervals.

    The half width of a demand is w q + (1 - w) max(q, p), with w = n / (n + 30): q is the quantile
    of its n residuals, and p the pooled quantile of all demands, whose residuals are in units of
    the square root of the demand's mean.  Few residuals say little about the tail of one demand.

    Args:
        residual: (n, D) magnitudes of residuals, as shares of the total traffic.
        mean_shares: (D,) mean shares, above 0.
        level: probability of the intervals.

    Returns:
        half widths (D,) as shares of the total traffic, and the weight w.
    """
    # Split conformal prediction: the quantile is slightly above the level, since n is finite.
    num_residuals = len(residual)
    conformal_level = min(1.0, math.ceil((num_residuals + 1) * level) / num_residuals)
    demand_quantile = np.quantile(residual, conformal_level, axis=0)
    # Unit of each demand's residuals in the pooled quantile.
    residual_unit = np.sqrt(mean_shares * float(mean_shares.mean()))
    pooled_quantile = float(np.quantile(residual / residual_unit, conformal_level)) * residual_unit
    # Weight of the demand's own quantile: it grows with the number of residuals.
    own_weight = num_residuals / (num_residuals + _POOLED_WEIGHT)
    return own_weight * demand_quantile + (1 - own_weight) * np.maximum(
        demand_quantile, pooled_quantile
    ), own_weight


def _is_same_matrix(a: sp.csr_array, b: sp.csr_array) -> bool:
    """Return whether two sparse matrices have the same shape and the same entries."""
    if a is b:
        return True
    return a.shape == b.shape and a.nnz == b.nnz and not (a != b).nnz
