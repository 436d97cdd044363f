"""The generalised KL projection of a prior onto counters, by Newton steps on its dual.

With a price lambda_r of each counter the minimiser of the package's program is x_d = p_d exp(phi
(F' lambda)_d), and

    gradient = F x + s^2 lambda - y,        Hessian = F diag(phi x) F' + diag(s^2),

of the convex dual function  sum_d x_d / phi + 1/2 sum_r s_r^2 lambda_r^2 - y' lambda.  Steps are
limited so that no exponent changes by more than 5, and halved until the dual falls (Armijo).  Five
to fifteen steps are usual.

The Hessian costs the squares of the columns' lengths, whatever the number of demands between; up to
1,500 counters it is factorised, above that conjugate gradients take its products.  A counter that
is NaN is left out.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, cg

from teal.errors import InputError
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.parallel import kernel, quiet_torch

_MAX_STEPS = 100
_LARGEST_CHANGE = 5.0  # of an exponent in a step
_ARMIJO = 1e-4  # share of the predicted decrease that a step must reach
_MIN_STEP = 1e-10  # below which the search along a direction ends
_ACCURACY = 1e-9  # of the gradient, in standard deviations and shares of the largest counter
# share of the mean prior, that every demand has at least: smaller ones take Newton many steps
_MIN_PRIOR = 1e-4
_MAX_FACTORISED = 1500  # counters whose Hessian is factorised
_CG_ACCURACY = 1e-6  # relative, of a Newton direction by conjugate gradients
_RELATIVE_FLOOR = (
    1e-3  # share of the largest counter, below which the deviation of a counter does not fall
)


@kernel
def _exponents(ptr, row, value, price, phi, result) -> None:  # type: ignore[no-untyped-def]
    """Phi (F' lambda)_d of every demand."""
    for d in range(len(result)):
        total = 0.0
        for i in range(ptr[d], ptr[d + 1]):
            total += value[i] * price[row[i]]
        result[d] = phi * total


@kernel
def _curvature(ptr, row, value, weight, result) -> None:  # type: ignore[no-untyped-def]
    """F diag(weight) F', the lower triangle, where rows of a column ascend."""
    result[:] = 0.0
    for d in range(len(weight)):
        w = weight[d]
        if w == 0.0:
            continue
        for i in range(ptr[d], ptr[d + 1]):
            scaled = w * value[i]
            to = result[row[i]]
            for j in range(ptr[d], i + 1):
                to[row[j]] += scaled * value[j]


def solve_definite(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """The solution x of matrix x = right, by Cholesky's factor of the lower triangle of a definite
    matrix (R, R).

    torch runs on as many threads as it is told to: those of SciPy's OpenBLAS wait for each other in
    loops, and beside one other process the factor of 312 rows took them 20 to 150 ms in place of 1.
    """
    import torch

    with quiet_torch(matrix.size):
        factor = torch.linalg.cholesky(torch.from_numpy(matrix))
        return np.asarray(
            torch.cholesky_solve(torch.from_numpy(right)[:, None], factor)[:, 0].numpy()
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Projected:
    """A projection.

    Attributes:
        matrix: (D,) Gbit/s.
        prices: (R,) lambda; 0 for counters that are missing.
        residual: (R,) y - F x, Gbit/s; NaN for those.
        steps: steps of Newton's method.
        converged: whether the gradient is next to 0.
    """

    matrix: FloatArray
    prices: FloatArray
    residual: FloatArray
    steps: int
    converged: bool


class Projection:
    """Projections under one measurement matrix.

    Args:
        measurements: (R, D) F, entries of at least 0.
    """

    def __init__(self, measurements: sp.csr_array) -> None:
        self.measurements = sp.csr_array(measurements)
        if (self.measurements.data < 0).any():
            raise InputError(
                "estimate",
                "measurements",
                "shares of at least 0",
                float(self.measurements.data.min()),
            )
        columns = sp.csc_array(self.measurements)
        columns.sort_indices()
        self._ptr = columns.indptr.astype(np.int64)
        self._row: IntArray = columns.indices.astype(np.int32)
        self._value: FloatArray = columns.data.astype(np.float64)

    def deviations(self, counters: FloatArray, relative: float) -> FloatArray:
        """(..., R) s, the standard deviations of counters (..., R) with so much relative error."""
        largest = np.nanmax(np.where(np.isfinite(counters), counters, 0.0), axis=-1, keepdims=True)
        return relative * np.maximum(
            np.nan_to_num(counters), _RELATIVE_FLOOR * np.maximum(largest, 1e-300)
        )

    def project(
        self,
        counters: FloatArray,
        deviation: FloatArray,
        prior: FloatArray,
        phi: float,
        most_steps: int = _MAX_STEPS,
    ) -> Projected:
        """The estimate nearest to a prior.

        Args:
            counters: (R,) y, Gbit/s; NaN for missing ones.
            deviation: (R,) s > 0, Gbit/s.
            prior: (D,) p, Gbit/s.
            phi: dispersion, Gbit/s, above 0.
            most_steps: steps of Newton's method, after which the prices so far are taken.

        Raises:
            InputError: no counter, or a prior without traffic where the counters have some.
        """
        known = np.isfinite(counters)
        if not known.any():
            raise InputError("estimate", "counters", "at least one that was measured", "none")
        y, variance = np.where(known, counters, 0.0), np.where(known, deviation, 1.0) ** 2
        scale = max(float(y.max()), 1e-300)
        prior = np.maximum(prior, 0.0)
        total = float(prior.sum())
        if total <= 0:
            if scale > 1e-300 and y.any():
                raise InputError("estimate", "prior", "traffic of some demand", "none")
            return Projected(
                np.zeros_like(prior), np.zeros_like(y), np.where(known, counters, np.nan), 0, True
            )
        prior = np.maximum(prior, _MIN_PRIOR * total / len(prior))
        # Prices of the interval before are no start: they belong to another prior (30 steps where 0
        # takes 10).
        price, exponent, change = np.zeros_like(y), np.zeros(len(prior)), np.empty(len(prior))
        x = prior.copy()
        steps, converged = 0, False
        while steps < most_steps:
            steps += 1
            gradient = np.where(known, self.measurements @ x + variance * price - y, 0.0)
            if (
                float(np.abs(gradient / np.sqrt(variance)).max()) <= 1e-6
                or float(np.abs(gradient).max()) <= _ACCURACY * scale
            ):
                converged = True
                break
            direction = -self._solve(phi * x, variance, known, gradient)
            slope = float(gradient @ direction)
            self._fill(change, direction, phi)
            step = min(1.0, _LARGEST_CHANGE / max(float(np.abs(change).max()), 1e-300))
            before = self._dual(x, price, y, variance, phi)
            while step > _MIN_STEP:
                tried = prior * np.exp(exponent + step * change)
                if (
                    self._dual(tried, price + step * direction, y, variance, phi)
                    <= before + _ARMIJO * step * slope
                ):
                    break
                step /= 2
            else:
                converged = True  # rounding forbids any further decrease
                break
            price, exponent, x = price + step * direction, exponent + step * change, tried
        return Projected(
            x, price, np.where(known, y - self.measurements @ x, np.nan), steps, converged
        )

    def _fill(self, result: FloatArray, price: FloatArray, phi: float) -> None:
        _exponents(self._ptr, self._row, self._value, price, phi, result)

    @staticmethod
    def _dual(
        x: FloatArray, price: FloatArray, y: FloatArray, variance: FloatArray, phi: float
    ) -> float:
        return float(x.sum() / phi + 0.5 * (variance * price * price).sum() - y @ price)

    def _solve(
        self, weight: FloatArray, variance: FloatArray, known: BoolArray, right: FloatArray
    ) -> FloatArray:
        """The solution of (F diag(weight) F' + diag(variance)) z = right over the known counters; 0
        for the others.
        """
        counters = len(right)
        if counters <= _MAX_FACTORISED:
            hessian = np.empty((counters, counters))
            _curvature(self._ptr, self._row, self._value, weight, hessian)
            hessian[np.diag_indices(counters)] += variance
            if not known.all():
                hessian[~known], hessian[:, ~known] = 0.0, 0.0
                hessian[~known, ~known] = 1.0
            return solve_definite(hessian, right)
        squares = self.measurements.multiply(self.measurements)
        diagonal = np.where(known, squares @ weight + variance, 1.0)

        def product(z: FloatArray) -> FloatArray:
            z = np.where(known, z.reshape(-1), 0.0)
            return np.where(
                known, self.measurements @ (weight * (self.measurements.T @ z)) + variance * z, z
            )

        operator = LinearOperator((counters, counters), matvec=product, dtype=np.float64)
        inverse = LinearOperator(
            (counters, counters), matvec=lambda z: z.reshape(-1) / diagonal, dtype=np.float64
        )
        solution, _ = cg(operator, right, rtol=_CG_ACCURACY, M=inverse, maxiter=500)
        return np.asarray(solution)
