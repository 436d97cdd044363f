"""Generalised Kullback-Leibler projection of a prior onto counters, by Newton's method on the dual.

The projection x (D,) is a matrix near a prior p (D,) that explains the counters y (R,), with
standard deviations s (R,), under the measurement matrix F (R, D).  It solves

    min over x >= 0 of  sum_d KL(x_d || p_d) / phi + 1/2 sum_r ((y_r - (F x)_r) / s_r)^2,

with the dispersion phi, the variance over mean of the prior's error.  With a dual price lambda_r of
each counter, the minimiser is x_d = p_d exp(phi (F' lambda)_d), and

    gradient = F x + s^2 lambda - y,        Hessian = F diag(phi x) F' + diag(s^2),

of the convex dual function  sum_d x_d / phi + 1/2 sum_r s_r^2 lambda_r^2 - y' lambda.  Steps are
limited so that no exponent changes by more than 5, and halved until the dual function decreases
sufficiently (Armijo rule).  Five to fifteen steps are usual.

Newton systems of up to 1,500 counters are solved by Cholesky factorisation, larger ones by
conjugate gradients.  A counter that is NaN is ignored.  Entry point: :meth:`Projection.project`.
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

# Maximum number of Newton steps.
_MAX_STEPS = 100
# Maximum change of an exponent in a step.
_MAX_EXPONENT_CHANGE = 5.0
# Share of the predicted decrease that a step must reach (Armijo rule).
_ARMIJO = 1e-4
# Step length below which the line search ends.
_MIN_STEP = 1e-10
# Convergence tolerance of the gradient, as a share of the largest counter.
_GRADIENT_TOLERANCE = 1e-9
# Floor of a demand's prior, as a share of the mean prior: smaller values need many Newton steps.
_MIN_PRIOR = 1e-4
# Maximum number of counters whose Hessian is factored.
_MAX_FACTORISED = 1500
# Relative tolerance of a Newton direction by conjugate gradients.
_CG_TOLERANCE = 1e-6
# Floor of a counter in its standard deviation, as a share of the largest counter.
_MIN_COUNTER_SHARE = 1e-3


@kernel
def _compute_exponents(col_ptr, entry_counter, entry_value, price, phi, exponent) -> None:  # type: ignore[no-untyped-def]
    """Compute the exponents phi F' lambda of all demands.

    Args:
        col_ptr: (D + 1,) F in CSC form: column d has the entries col_ptr[d]:col_ptr[d + 1].
        entry_counter: row of F, a counter, of each entry.
        entry_value: value of each entry.
        price: (R,) dual prices lambda.
        phi: dispersion, variance over mean of the prior's error, Gbit/s.
        exponent: (D,) exponents (written).
    """
    for d in range(len(exponent)):
        total = 0.0
        for i in range(col_ptr[d], col_ptr[d + 1]):
            total += entry_value[i] * price[entry_counter[i]]
        exponent[d] = phi * total


@kernel
def _compute_hessian(col_ptr, entry_counter, entry_value, weight, hessian) -> None:  # type: ignore[no-untyped-def]
    """Compute the lower triangle of F diag(weight) F'.

    Args:
        col_ptr: (D + 1,) F in CSC form: column d has the entries col_ptr[d]:col_ptr[d + 1].
        entry_counter: row of F, a counter, of each entry; ascending within a column.
        entry_value: value of each entry.
        weight: (D,) weight of each demand.
        hessian: (R, R) lower triangle (written); the upper one is 0.
    """
    hessian[:] = 0.0
    for d in range(len(weight)):
        if weight[d] == 0.0:
            continue
        for i in range(col_ptr[d], col_ptr[d + 1]):
            scaled_entry = weight[d] * entry_value[i]
            hessian_row = hessian[entry_counter[i]]
            # Rows ascend within a column, so entries up to i are in the lower triangle.
            for j in range(col_ptr[d], i + 1):
                hessian_row[entry_counter[j]] += scaled_entry * entry_value[j]


def solve_definite(matrix: FloatArray, rhs: FloatArray) -> FloatArray:
    """Return the solution x (R,) of matrix x = rhs, by Cholesky factorisation.

    Uses torch, since SciPy's OpenBLAS threads busy-wait for each other: with one other process
    running, factoring 312 rows took 20 to 150 ms instead of 1.

    Args:
        matrix: (R, R) positive definite; only the lower triangle is read.
        rhs: (R,) right-hand side.
    """
    import torch

    with quiet_torch(matrix.size):
        factor = torch.linalg.cholesky(torch.from_numpy(matrix))
        return np.asarray(
            torch.cholesky_solve(torch.from_numpy(rhs)[:, None], factor)[:, 0].numpy()
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Projected:
    """Projection of a prior onto counters.

    Attributes:
        matrix: (D,) projected traffic matrix x, Gbit/s.
        prices: (R,) dual prices lambda; 0 for missing counters.
        residual: (R,) counters minus loads, y - F x, Gbit/s; NaN for missing counters.
        steps: number of Newton steps.
        converged: whether the gradient is within its tolerance.
    """

    matrix: FloatArray
    prices: FloatArray
    residual: FloatArray
    steps: int
    converged: bool


class _Program(NamedTuple):
    """Data of the projection of a prior onto counters.

    Attributes:
        y: (R,) counters, Gbit/s; 0 for missing ones.
        variance: (R,) variances s^2 of the counters; 1 for missing ones.
        prior: (D,) prior p, Gbit/s, above 0.
        phi: dispersion, variance over mean of the prior's error, Gbit/s.
    """

    y: FloatArray
    variance: FloatArray
    prior: FloatArray
    phi: float

    def dual(self, x: FloatArray, price: FloatArray) -> float:
        """Return the value of the dual function sum(x) / phi + 1/2 sum(s^2 price^2) - y' price.

        Args:
            x: (D,) matrix p exp(phi F' price), Gbit/s.
            price: (R,) dual prices lambda.
        """
        penalty = 0.5 * (self.variance * price * price).sum()
        return float(x.sum() / self.phi + penalty - self.y @ price)


class _Point(NamedTuple):
    """Point of the dual program, with the traffic matrix that belongs to it.

    Attributes:
        price: (R,) dual prices lambda.
        exponent: (D,) phi F' price.
        x: (D,) matrix p exp(exponent), Gbit/s.
    """

    price: FloatArray
    exponent: FloatArray
    x: FloatArray


class Projection:
    """Projections of priors onto counters under one measurement matrix.

    Args:
        measurements: (R, D) measurement matrix F, entries of at least 0: the R counters of D
            demands x are F x.
    """

    def __init__(self, measurements: sp.csr_array) -> None:
        self.measurements = sp.csr_array(measurements)
        if (self.measurements.data < 0).any():
            raise InputError(
                "estimate",
                "measurements",
                "a matrix with entries of at least 0",
                float(self.measurements.data.min()),
            )
        # F by columns: the counters of each demand, in ascending order, and their entries.
        columns = sp.csc_array(self.measurements)
        columns.sort_indices()
        self._col_ptr = columns.indptr.astype(np.int64)
        self._entry_counter: IntArray = columns.indices.astype(np.int32)
        self._entry_value: FloatArray = columns.data.astype(np.float64)

    def deviations(self, counters: FloatArray, counter_error: float) -> FloatArray:
        """Return the standard deviations of counters: relative error times counter.

        Small and missing counters count as 0.1% of the largest one.

        Args:
            counters: (..., R) Gbit/s; NaN for missing ones.
            counter_error: relative standard deviation of a counter.

        Returns:
            (..., R) Gbit/s.
        """
        largest = np.nanmax(np.where(np.isfinite(counters), counters, 0.0), axis=-1, keepdims=True)
        return counter_error * np.maximum(
            np.nan_to_num(counters), _MIN_COUNTER_SHARE * np.maximum(largest, 1e-300)
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

        Minimises sum_d KL(x_d || p_d) / phi + 1/2 sum_r ((y_r - (F x)_r) / s_r)^2 over x >= 0, by
        Newton's method on the dual.

        Args:
            counters: (R,) counters y, Gbit/s; NaN for missing ones.
            deviation: (R,) standard deviations s > 0 of the counters, Gbit/s.
            prior: (D,) prior p, Gbit/s.
            phi: dispersion, Gbit/s, above 0.
            max_steps: maximum number of Newton steps, after which the current point is returned.

        Raises:
            InputError: no counter, or a prior without traffic although the counters have some.
        """
        # Missing counters have y = 0, variance 1 and, throughout, price 0.
        is_known = np.isfinite(counters)
        if not is_known.any():
            raise InputError.invalid("estimate", "counters", "no counter was measured")
        y = np.where(is_known, counters, 0.0)
        variance = np.where(is_known, deviation, 1.0) ** 2
        largest_counter = max(float(y.max()), 1e-300)
        prior = np.maximum(prior, 0.0)
        prior_total = float(prior.sum())
        # A prior without traffic fits counters without traffic only.
        if prior_total <= 0:
            if largest_counter > 1e-300 and y.any():
                raise InputError.invalid(
                    "estimate", "prior", "the prior has no traffic, but the counters do"
                )
            return Projected(
                np.zeros_like(prior),
                np.zeros_like(y),
                np.where(is_known, counters, np.nan),
                0,
                True,
            )
        prior = np.maximum(prior, _MIN_PRIOR * prior_total / len(prior))
        program = _Program(y, variance, prior, phi)
        # Start at prices 0.  Prices of the previous interval belong to another prior, and take 30
        # Newton steps instead of 10.
        point = _Point(np.zeros_like(y), np.zeros(len(prior)), prior.copy())
        num_steps = 0
        converged = False
        while num_steps < max_steps:
            num_steps += 1
            # Gradient F x + s^2 lambda - y.  It converges below 1e-6 standard deviations, or below
            # 1e-9 of the largest counter.
            gradient = np.where(
                is_known, self.measurements @ point.x + variance * point.price - y, 0.0
            )
            if (
                float(np.abs(gradient / np.sqrt(variance)).max()) <= 1e-6
                or float(np.abs(gradient).max()) <= _GRADIENT_TOLERANCE * largest_counter
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
        return Projected(point.x, point.price, residual, num_steps, converged)

    def _line_search(
        self, program: _Program, point: _Point, direction: FloatArray, slope: float
    ) -> _Point | None:
        """Return a point along a direction with sufficient decrease of the dual function (Armijo
        rule).

        Step lengths start at 1, or at a smaller value that limits the change of exponents, and are
        halved until the rule holds; None if it does not hold above the minimum step length.

        Args:
            program: data of the projection.
            point: the current point.
            direction: (R,) Newton direction of the prices.
            slope: directional derivative of the dual function, below 0.
        """
        # Change of the exponents at step length 1, which limits the first step.
        exponent_change = np.empty(len(program.prior))
        _compute_exponents(
            self._col_ptr,
            self._entry_counter,
            self._entry_value,
            direction,
            program.phi,
            exponent_change,
        )
        step_length = min(
            1.0, _MAX_EXPONENT_CHANGE / max(float(np.abs(exponent_change).max()), 1e-300)
        )
        dual_before = program.dual(point.x, point.price)
        # Halve the step until the decrease is at least 1e-4 of that which the slope predicts.
        while step_length > _MIN_STEP:
            x = program.prior * np.exp(point.exponent + step_length * exponent_change)
            price = point.price + step_length * direction
            if program.dual(x, price) <= dual_before + _ARMIJO * step_length * slope:
                return _Point(price, point.exponent + step_length * exponent_change, x)
            step_length /= 2
        return None

    def _solve(
        self, demand_weight: FloatArray, variance: FloatArray, is_known: BoolArray, rhs: FloatArray
    ) -> FloatArray:
        """Solve the Newton system (F diag(demand_weight) F' + diag(variance)) z = rhs for z (R,).

        F is the measurement matrix (R, D), the share of each demand that each counter counts.

        Args:
            demand_weight: (D,) relative prior variance phi of each demand times its rate x.
            variance: (R,) variances of the counters.
            is_known: (R,) whether each counter was measured; z is 0 for the others.
            rhs: (R,) right-hand side, 0 for missing counters.
        """
        # Cholesky factorisation of small systems; missing counters get rows of the identity matrix.
        num_counters = len(rhs)
        if num_counters <= _MAX_FACTORISED:
            hessian = np.empty((num_counters, num_counters))
            _compute_hessian(
                self._col_ptr, self._entry_counter, self._entry_value, demand_weight, hessian
            )
            hessian[np.diag_indices(num_counters)] += variance
            if not is_known.all():
                hessian[~is_known] = 0.0
                hessian[:, ~is_known] = 0.0
                hessian[~is_known, ~is_known] = 1.0
            return solve_definite(hessian, rhs)
        # Conjugate gradients with a diagonal preconditioner for large ones.
        squared_measurements = self.measurements.multiply(self.measurements)
        diagonal = np.where(is_known, squared_measurements @ demand_weight + variance, 1.0)

        def hessian_product(z: FloatArray) -> FloatArray:
            """Return the product of the system matrix and z (R,); 0 for missing counters."""
            z = np.where(is_known, z.reshape(-1), 0.0)
            return np.where(
                is_known,
                self.measurements @ (demand_weight * (self.measurements.T @ z)) + variance * z,
                z,
            )

        operator = LinearOperator(
            (num_counters, num_counters), matvec=hessian_product, dtype=np.float64
        )
        preconditioner = LinearOperator(
            (num_counters, num_counters),
            matvec=lambda z: z.reshape(-1) / diagonal,
            dtype=np.float64,
        )
        solution, _ = cg(operator, rhs, rtol=_CG_TOLERANCE, M=preconditioner, maxiter=500)
        return np.asarray(solution)
