"""Linear and mixed-integer programs, solved by HiGHS through SciPy, the only caller in ``teal/``.

    minimise cost' x   s.t.   A x <= b,   E x = f,   low <= x <= high
        (some x integer)

Callers scale their programs, since HiGHS works best with coefficients of similar magnitude and only
callers know the units.  Entry points: :func:`solve_lp`, :func:`solve_milp`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from teal.errors import SolverError
from teal.runtime.arrays import AnyArray, FloatArray

# Values of SciPy's ``status``.
_STATUS_OPTIMAL = 0
_STATUS_INFEASIBLE = 2
# Longer time limits count as none.
_MAX_TIME_LIMIT_S = 1e6
# A dense or sparse matrix.
Rows = Any
# Constraint rows and their right-hand sides.
Constraints = tuple[Rows, FloatArray]


class RangeConstraint(NamedTuple):
    """Constraint rows of a mixed-integer program: low <= rows x <= high.

    Attributes:
        rows: (R, n) coefficients.
        low: lower limits, (R,) or one number for all.
        high: upper limits, (R,) or one number for all.
    """

    rows: Rows
    low: FloatArray | float = -math.inf
    high: FloatArray | float = math.inf


@dataclasses.dataclass(frozen=True)
class LpResult:
    """Result of a linear or mixed-integer program with n variables and R inequalities A x <= b.

    Attributes:
        x: (n,) optimum, or incumbent of an integer program; None if there is none.
        value: cost' x; infinite without x.
        duals: (R,) dual values >= 0 of A x <= b: decrease of the optimal value per unit of b; empty
            for integer programs, and without an optimum.
        bound: lower bound on the value, for integer programs the bound of HiGHS; minus infinity
            for none.
        is_solved: whether x is optimal.
        is_infeasible: whether HiGHS proved infeasibility.
        message: termination message of HiGHS.
    """

    x: FloatArray | None
    value: float
    duals: FloatArray
    bound: float
    is_solved: bool
    is_infeasible: bool
    message: str

    def solution(self, purpose: str) -> FloatArray:
        """Return the optimum x, (n,).

        Args:
            purpose: name of the program, the beginning of the message.

        Raises:
            SolverError: HiGHS has no optimum.
        """
        if self.x is None or not self.is_solved:
            raise SolverError(f"{purpose}: HiGHS found no optimum: {self.message}")
        return self.x


def solve_lp(
    cost: FloatArray,
    at_most: Constraints,
    equal: Constraints | None = None,
    *,
    low: FloatArray | float = 0.0,
    high: FloatArray | float = math.inf,
    seconds: float = math.inf,
    by_interior_points: bool = False,
) -> LpResult:
    """Solve a linear program: minimise cost' x s.t. A x <= b, E x = f, low <= x <= high.

    Args:
        cost: (n,) objective coefficients.
        at_most: inequality constraints, A (R, n) and b (R,).
        equal: equality constraints, E (Q, n) and f (Q,); None for none.
        low: lower bounds, (n,) or one number for all.
        high: upper bounds, (n,) or one number for all.
        seconds: time limit.
        by_interior_points: use HiGHS's interior-point method with crossover, instead of the method
            that HiGHS chooses.
    """
    # Imported here: it takes 0.3 s, and many commands solve no program.
    from scipy.optimize import linprog

    # (n, 2) lower and upper bound of each variable.
    bounds = np.column_stack(
        [np.broadcast_to(low, np.shape(cost)), np.broadcast_to(high, np.shape(cost))]
    )
    equal_rows, equal_rhs = (None, None) if equal is None else equal
    result = linprog(
        cost,
        *at_most,
        equal_rows,
        equal_rhs,
        bounds=bounds,
        method="highs-ipm" if by_interior_points else "highs",
        options={"time_limit": seconds} if seconds < _MAX_TIME_LIMIT_S else {},
    )
    is_solved = result.status == _STATUS_OPTIMAL
    # SciPy's marginals are d(value)/db <= 0; the dual values are their negatives, up to rounding.
    duals = np.maximum(-result.ineqlin.marginals, 0.0) if is_solved else np.zeros(0)
    value = float(result.fun) if is_solved else math.inf
    return LpResult(
        result.x,
        value,
        duals,
        value if is_solved else -math.inf,
        is_solved,
        result.status == _STATUS_INFEASIBLE,
        result.message,
    )


def solve_milp(
    cost: FloatArray,
    rows: Sequence[RangeConstraint],
    is_integer: AnyArray,
    *,
    high: AnyArray | float = math.inf,
    seconds: float = math.inf,
    relative_gap: float,
) -> LpResult:
    """Solve a mixed-integer linear program by branch and bound:
    minimise cost' x s.t. low_i <= A_i x <= high_i for each block i, 0 <= x <= high, some x integer.

    Args:
        cost: (n,) objective coefficients.
        rows: blocks of constraint rows A_i, (R_i, n), with their limits low_i and high_i.
        is_integer: (n,) 1 if a variable is an integer, else 0.
        high: upper bounds of x, (n,) or one number for all.
        seconds: time limit.
        relative_gap: (value - bound) / |value| at which the search stops.
    """
    # Imported here, since many commands solve no program.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    with _silence_stdout():
        result = milp(
            cost,
            constraints=[
                LinearConstraint(csr_array(block.rows), lb=block.low, ub=block.high)
                for block in rows
            ],
            integrality=is_integer,
            bounds=Bounds(0, high),
            options={"mip_rel_gap": relative_gap}
            | ({"time_limit": seconds} if seconds < _MAX_TIME_LIMIT_S else {}),
        )
    # HiGHS may have a bound or an incumbent without having reached the gap.
    bound = -math.inf if result.mip_dual_bound is None else float(result.mip_dual_bound)
    value = math.inf if result.x is None else float(result.fun)
    is_infeasible = result.status == _STATUS_INFEASIBLE
    return LpResult(
        result.x,
        value,
        np.zeros(0),
        bound,
        result.status == _STATUS_OPTIMAL,
        is_infeasible,
        result.message,
    )


@contextlib.contextmanager
def _silence_stdout() -> Iterator[None]:
    """Discard what HiGHS prints to standard output despite its options, which would corrupt JSON
    output.
    """
    if os.name != "posix":
        yield
        return
    # HiGHS writes to file descriptor 1, which Python's sys.stdout does not control.
    sys.stdout.flush()
    saved_stdout = os.dup(1)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    try:
        yield
    finally:
        # Flush the buffers of the C library.
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)
        os.close(devnull)
