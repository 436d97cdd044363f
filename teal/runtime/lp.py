"""Linear and mixed-integer programs, solved by HiGHS through SciPy: the only place in ``teal/``
that calls it.

    minimise cost' x   s.t.   A x <= b,   E x = f,   low <= x <= high
        (x whole numbers where asked)

Callers keep their own scaling: a program whose numbers are of equal size is solved best, and only
they know its units.
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

_SOLVED, _INFEASIBLE = 0, 2  # of SciPy's ``status``
_MAX_SECONDS = 1e6  # longer limits of time are none
Rows = Any  # a matrix, dense or sparse
Limited = tuple[Rows, FloatArray]  # rows and their right sides


class Between(NamedTuple):
    """Rows of a program with whole numbers.

    Attributes:
        rows: (R, n).
        low: least values of rows times x, (R,) or one for all.
        high: largest ones.
    """

    rows: Rows
    low: FloatArray | float = -math.inf
    high: FloatArray | float = math.inf


@dataclasses.dataclass(frozen=True)
class LpResult:
    """The result of a program.

    Attributes:
        x: (n,) the solution, or the best whole numbers that were found; None if there are none.
        value: cost' x; infinite without x.
        duals: (R,) of ``at_most``, at least 0: by how much the value falls if a right side rises by
            1; () for whole numbers.
        bound: lower bound on the value, of whole numbers as HiGHS proved it; minus infinity if it
            proved none.
        is_solved: whether x is an optimum.
        is_infeasible: whether HiGHS proved that there is no x.
        message: HiGHS's reason.
    """

    x: FloatArray | None
    value: float
    duals: FloatArray
    bound: float
    is_solved: bool
    is_infeasible: bool
    message: str

    def solution(self, purpose: str) -> FloatArray:
        """(n,) the optimum.

        Args:
            purpose: purpose of the program, for the message.

        Raises:
            SolverError: HiGHS found none.
        """
        if self.x is None or not self.is_solved:
            raise SolverError(f"{purpose}: HiGHS: {self.message}")
        return self.x


def solve_lp(
    cost: FloatArray,
    at_most: Limited,
    equal: Limited | None = None,
    *,
    low: FloatArray | float = 0.0,
    high: FloatArray | float = math.inf,
    seconds: float = math.inf,
    by_interior_points: bool = False,
) -> LpResult:
    """Solve a linear program.

    Args:
        cost: (n,).
        at_most: A (R, n) and b (R,).
        equal: E (Q, n) and f (Q,); None for no such rows.
        low: (n,) or one number for all.
        high: (n,) or one number for all.
        seconds: time limit.
        by_interior_points: by interior points and a crossover, in place of the method that HiGHS
            chooses.
    """
    from scipy.optimize import (
        linprog,
    )  # where it is used: many commands solve no program, and it takes 0.3 s

    bounds = np.column_stack(
        [np.broadcast_to(low, np.shape(cost)), np.broadcast_to(high, np.shape(cost))]
    )
    equal_rows, equal_right = (None, None) if equal is None else equal
    found = linprog(
        cost,
        *at_most,
        equal_rows,
        equal_right,
        bounds=bounds,
        method="highs-ipm" if by_interior_points else "highs",
        options={"time_limit": seconds} if seconds < _MAX_SECONDS else {},
    )
    is_solved = found.status == _SOLVED
    duals = np.maximum(-found.ineqlin.marginals, 0.0) if is_solved else np.zeros(0)
    value = float(found.fun) if is_solved else math.inf
    return LpResult(
        found.x,
        value,
        duals,
        value if is_solved else -math.inf,
        is_solved,
        found.status == _INFEASIBLE,
        found.message,
    )


def solve_milp(
    cost: FloatArray,
    rows: Sequence[Between],
    is_whole: AnyArray,
    *,
    high: AnyArray | float = math.inf,
    seconds: float = math.inf,
    relative_gap: float,
) -> LpResult:
    """Solve a program some of whose variables are whole numbers.

    Args:
        cost: (n,).
        rows: blocks of rows.
        is_whole: (n,) 1 where a variable is a whole number, else 0.
        high: (n,) largest values, or one number for all; the least ones are 0.
        seconds: time limit.
        relative_gap: between value and bound at which the search ends.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    with _no_output():
        found = milp(
            cost,
            constraints=[
                LinearConstraint(csr_array(one.rows), lb=one.low, ub=one.high) for one in rows
            ],
            integrality=is_whole,
            bounds=Bounds(0, high),
            options={"mip_rel_gap": relative_gap}
            | ({"time_limit": seconds} if seconds < _MAX_SECONDS else {}),
        )
    bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
    value = math.inf if found.x is None else float(found.fun)
    is_infeasible = found.status == _INFEASIBLE
    return LpResult(
        found.x, value, np.zeros(0), bound, found.status == _SOLVED, is_infeasible, found.message
    )


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    """Drop what HiGHS prints to standard output whatever its options say, which would end up
    between lines of JSON.
    """
    if os.name != "posix":
        yield
        return
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C still holds
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
