"""What a matrix is expected to be before its counters are read: shares of the traffic, from a history or without one.

Without history:

- *gravity*: ingress of the source times egress of the target;
- *tracked*: m <- (1 - a) m + a x / sum x after every estimate x, beginning with gravity.

With a history of shares h_1, ..., h_T of matrices (each sums to 1), whose counters under the present routing are F h_t:

- *analogues*: the mean of the 20 shares whose counters, as shares of their sum, are nearest to the present ones;
- *Gaussian*: mu + C F' (F C F' + R)^-1 (y - F mu), the linear estimate of least mean square error with the mean mu and
  the covariance C = (1 - b) cov + b (trace(cov) / sum mu) diag(mu), b = 0.6, of shares winsorised at 2 and 98% demand
  by demand; diag(mu) is the metric of the KL projection, so that b = 1 would be next to projecting the mean.

The average of the last two is the prior (:func:`History.prior`): no single method is best on every network.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.solvers.estimation.projection import solve_definite

_ANALOGUES = 20  # intervals
_WINSORISED = 0.02  # share of the values at either end that count as the quantile there
_SHRINKAGE = 0.6  # b of the module
_MOST_ENTRIES = 300_000_000  # numbers of a history in memory, 2.4 GB; the newest matrices are kept
_LEAST_SHARE = 1e-12  # of the traffic, that every demand has at least in a prior


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
    """(D,) Gbit/s: the shares (D,), scaled so that the known counters (R,) have the sum that was measured."""
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
        """Of matrices (T, D), Gbit/s; those without traffic are left out, and the oldest ones of very many.

        Raises:
            InputError: no matrix with traffic.
        """
        total = matrices.sum(1)
        kept = np.flatnonzero(total > 0)[-max(1, _MOST_ENTRIES // max(1, matrices.shape[1])) :]
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
        """One matrix (D,) more, and the newest ``most`` of all."""
        total = float(matrix.sum())
        if total <= 0:
            return self
        return History(np.concatenate([self.shares[-(most - 1) :] if most > 1 else self.shares[:0], [matrix / total]]))


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
        # Counters of shares: with the total that the mean of the history would need for the known counters.
        total = float(counters[known].sum()) / max(float(self._counter_mean[known].sum()), 1e-300)
        shares = counters / max(total, 1e-300)
        return (self.analogues(shares, known) + self.gaussian(shares, known)) / 2

    def analogues(self, shares: FloatArray, known: BoolArray) -> FloatArray:
        """(D,) mean of the nearest past matrices; arguments (R,) as of :meth:`gaussian`."""
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
        noise = (self._relative * np.maximum(np.abs(y), 1e-3 * np.abs(y).max(initial=0.0))) ** 2 + 1e-18
        matrix = self._covariance[np.ix_(known, known)] + np.diag(noise)
        difference = y - self._counter_mean[known]
        weights = solve_definite(matrix, difference)
        return np.maximum(self._mean + weights @ self._gain[known], _LEAST_SHARE)
