"""Generalised Kullback-Leibler projection of a prior onto counters, by Newton's method on the dual.

With a dual price lambda_r of each counter, the minimiser of the package's program is x_d = p_d
exp(phi (F' lambda)_d), and

    gradient = F x + s^2 lambda - y,        Hessian = F diag(phi x) F' + diag(s^2),

of the convex dual function  sum_d x_d / phi + 1/2 sum_r s_r^2 lambda_r^2 - y' lambda.  Steps are
limited so that no exponent changes by more than 5, and halved until the dual function decreases
sufficiently (Armijo rule).  Five to fifteen steps are usual.

The cost of the Hessian grows with the squares of the columns' lengths.  Up to 1,500 counters it is
factored (Cholesky), above that conjugate gradients use its products.  A counter that is NaN is
ignored.  Entry point: :meth:`Projection.project`.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, cg

from teal.errors import InputError
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.parallel import kernel, quiet_torch

_MAX_STEPS = 100
# Maximum change of an exponent in a step.
_LARGEST_CHANGE = 5.0
# Share of the predicted decrease that a step must reach (Armijo rule).
_ARMIJO = 1e-4
# Step length below which the line search ends.
_MIN_STEP = 1e-10
# Tolerance of the gradient, in shares of the largest counter.
_ACCURACY = 1e-9
# Floor of every demand's prior, as a share of the mean prior: smaller ones take many Newton steps.
_MIN_PRIOR = 1e-4
# Maximum number of counters whose Hessian is factored.
_MAX_FACTORISED = 1500
# Relative tolerance of a Newton direction by conjugate gradients.
_CG_ACCURACY = 1e-6
# Floor of the deviation of a counter, as that of this share of the largest counter.
_RELATIVE_FLOOR = 1e-3


@kernel
def _exponents(ptr, row, value, price, phi, result) -> None:  # type: ignore[no-untyped-def]
    """Compute phi (F' lambda)_d of every demand."""
    for d in range(len(result)):
        total = 0.0
        for i in range(ptr[d], ptr[d + 1]):
            total += value[i] * price[row[i]]
        result[d] = phi * total


@kernel
def _curvature(ptr, row, value, weight, result) -> None:  # type: ignore[no-untyped-def]
    """Compute the lower triangle of F diag(weight) F'; rows of a column must ascend."""
    result[:] = 0.0
    for d in range(len(weight)):
        if weight[d] == 0.0:
            continue
        for i in range(ptr[d], ptr[d + 1]):
            scaled = weight[d] * value[i]
            target_row = result[row[i]]
            for j in range(ptr[d], i + 1):
                target_row[row[j]] += scaled * value[j]


def solve_definite(matrix: FloatArray, rhs: FloatArray) -> FloatArray:
    """Solve matrix x = rhs by the Cholesky factor of the lower triangle of a definite matrix (R,
    R).

    torch respects its thread limit; threads of SciPy's OpenBLAS wait for each other in loops:
    beside one other process, the factor of 312 rows took 20 to 150 ms instead of 1.
    """
    import torch

    with quiet_torch(matrix.size):
        factor = torch.linalg.cholesky(torch.from_numpy(matrix))
        return np.asarray(
            torch.cholesky_solve(torch.from_numpy(rhs)[:, None], factor)[:, 0].numpy()
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Projected:
    """Result of a projection.

    Attributes:
        matrix: (D,) Gbit/s.
        prices: (R,) dual prices lambda; 0 for missing counters.
        residual: (R,) y - F x, Gbit/s; NaN for missing counters.
        steps: number of Newton steps.
        converged: whether the gradient is almost 0.
    """

    matrix: FloatArray
    prices: FloatArray
    residual: FloatArray
    steps: int
    converged: bool


class _Program(NamedTuple):
    """Projection program.

    Attributes:
        y: (R,) Gbit/s; 0 for missing counters.
        variance: (R,) s^2; 1 for missing counters.
        prior: (D,) p, Gbit/s, above 0.
        phi: dispersion, Gbit/s.
    """

    y: FloatArray
    variance: FloatArray
    prior: FloatArray
    phi: float

    def dual(self, x: FloatArray, price: FloatArray) -> float:
        """Value of the dual function at prices (R,) with the matrix (D,) that they imply."""
        penalty = 0.5 * (self.variance * price * price).sum()
        return float(x.sum() / self.phi + penalty - self.y @ price)


class _Point(NamedTuple):
    """Point of the dual program.

    Attributes:
        price: (R,) dual prices.
        exponent: (D,) phi F' price.
        x: (D,) matrix p exp(exponent), Gbit/s.
    """

    price: FloatArray
    exponent: FloatArray
    x: FloatArray


class Projection:
    """Projections under one measurement matrix.

    Args:
        measurements: (R, D) measurement matrix F, entries of at least 0.
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
        """Standard deviations s (..., R) of counters (..., R) with this relative error."""
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
        max_steps: int = _MAX_STEPS,
    ) -> Projected:
        """Project a prior onto counters.

        Args:
            counters: (R,) y, Gbit/s; NaN for missing ones.
            deviation: (R,) s > 0, Gbit/s.
            prior: (D,) p, Gbit/s.
            phi: dispersion, Gbit/s, above 0.
            max_steps: maximum number of Newton steps; the current point is returned after them.

        Raises:
            InputError: no counter, or a prior without traffic although the counters have some.
        """
        is_known = np.isfinite(counters)
        if not is_known.any():
            raise InputError("estimate", "counters", "at least one measured counter", "none")
        y = np.where(is_known, counters, 0.0)
        variance = np.where(is_known, deviation, 1.0) ** 2
        scale = max(float(y.max()), 1e-300)
        prior = np.maximum(prior, 0.0)
        total = float(prior.sum())
        if total <= 0:
            if scale > 1e-300 and y.any():
                raise InputError("estimate", "prior", "traffic of some demand", "none")
            return Projected(
                np.zeros_like(prior),
                np.zeros_like(y),
                np.where(is_known, counters, np.nan),
                0,
                True,
            )
        prior = np.maximum(prior, _MIN_PRIOR * total / len(prior))
        program = _Program(y, variance, prior, phi)
        # Start at prices 0: those of the interval before belong to another prior (30 steps instead
        # of 10).
        point = _Point(np.zeros_like(y), np.zeros(len(prior)), prior.copy())
        steps = 0
        converged = False
        while steps < max_steps:
            steps += 1
            # Gradient, and convergence test.
            gradient = np.where(
                is_known, self.measurements @ point.x + variance * point.price - y, 0.0
            )
            if (
                float(np.abs(gradient / np.sqrt(variance)).max()) <= 1e-6
                or float(np.abs(gradient).max()) <= _ACCURACY * scale
            ):
                converged = True
                break
            # Newton direction, and line search.
            direction = -self._solve(phi * point.x, variance, is_known, gradient)
            new_point = self._line_search(program, point, direction, float(gradient @ direction))
            if new_point is None:
                # Rounding prevents any further decrease.
                converged = True
                break
            point = new_point
        residual = np.where(is_known, y - self.measurements @ point.x, np.nan)
        return Projected(point.x, point.price, residual, steps, converged)

    def _line_search(
        self, program: _Program, point: _Point, direction: FloatArray, slope: float
    ) -> _Point | None:
        """Return the first point along a direction that satisfies the Armijo rule; None if no step
        above the smallest one does.

        Args:
            program: the program.
            point: the current point.
            direction: (R,) Newton direction of the prices.
            slope: directional derivative of the dual function, below 0.
        """
        change = np.empty(len(program.prior))
        _exponents(self._ptr, self._row, self._value, direction, program.phi, change)
        step = min(1.0, _LARGEST_CHANGE / max(float(np.abs(change).max()), 1e-300))
        dual_before = program.dual(point.x, point.price)
        while step > _MIN_STEP:
            x = program.prior * np.exp(point.exponent + step * change)
            price = point.price + step * direction
            if program.dual(x, price) <= dual_before + _ARMIJO * step * slope:
                return _Point(price, point.exponent + step * change, x)
            step /= 2
        return None

    def _solve(
        self, weight: FloatArray, variance: FloatArray, is_known: BoolArray, rhs: FloatArray
    ) -> FloatArray:
        """Solve (F diag(weight) F' + diag(variance)) z = rhs over the known counters; 0 for the
        others.
        """
        # Cholesky factorisation of small systems.
        num_counters = len(rhs)
        if num_counters <= _MAX_FACTORISED:
            hessian = np.empty((num_counters, num_counters))
            _curvature(self._ptr, self._row, self._value, weight, hessian)
            hessian[np.diag_indices(num_counters)] += variance
            if not is_known.all():
                hessian[~is_known] = 0.0
                hessian[:, ~is_known] = 0.0
                hessian[~is_known, ~is_known] = 1.0
            return solve_definite(hessian, rhs)
        # Conjugate gradients with a diagonal preconditioner for large ones.
        squares = self.measurements.multiply(self.measurements)
        diagonal = np.where(is_known, squares @ weight + variance, 1.0)

        def hessian_product(z: FloatArray) -> FloatArray:
            z = np.where(is_known, z.reshape(-1), 0.0)
            return np.where(
                is_known, self.measurements @ (weight * (self.measurements.T @ z)) + variance * z, z
            )

        operator = LinearOperator(
            (num_counters, num_counters), matvec=hessian_product, dtype=np.float64
        )
        preconditioner = LinearOperator(
            (num_counters, num_counters),
            matvec=lambda z: z.reshape(-1) / diagonal,
            dtype=np.float64,
        )
        solution, _ = cg(operator, rhs, rtol=_CG_ACCURACY, M=preconditioner, maxiter=500)
        return np.asarray(solution)
