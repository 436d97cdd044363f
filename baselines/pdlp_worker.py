"""Solve a linear program by OR-Tools' PDLP; this module runs in a separate process.

OR-Tools and the HiGHS of other packages cannot be loaded into one process.  This module must not
import anything that loads HiGHS.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

Array = Any


def solve(
    cost: Array,
    a_ub: Any,
    b_ub: Array,
    a_eq: Any,
    b_eq: Array | None,
    accuracy: float,
    time_limit: float,
    threads: int,
) -> tuple[Array, Array, str, float]:
    """Minimise cost x  subject to  a_ub x <= b_ub,  a_eq x = b_eq,  x >= 0.

    Args:
        cost: (n,) coefficients of the objective.
        a_ub: (m, n) rows of the inequalities.
        b_ub: (m,) right-hand sides of the inequalities.
        a_eq: (q, n) rows of the equations; None for no equations.
        b_eq: (q,) right-hand sides of the equations; None for no equations.
        accuracy: relative and absolute tolerance of optimality.
        time_limit: time limit, s; 0 for none.
        threads: number of threads of the solver.

    Returns:
        x (n,); multipliers (m,) of the inequalities; ``"optimal"``, ``"time_limit"`` or
        ``"failed"``; and the time of the solver, s.
    """
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp

    # Build the program.
    matrices = [sp.csc_matrix(matrix) for matrix in (a_ub, a_eq) if matrix is not None]
    program = pdlp.QuadraticProgram()
    program.constraint_matrix = sp.vstack(matrices).tocsc()
    equation_rhs = np.zeros(0) if b_eq is None else b_eq
    program.constraint_lower_bounds = np.append(np.full(len(b_ub), -math.inf), equation_rhs)
    program.constraint_upper_bounds = np.append(b_ub, equation_rhs)
    program.variable_lower_bounds = np.zeros(len(cost))
    program.variable_upper_bounds = np.full(len(cost), math.inf)
    program.objective_vector = cost
    # Set tolerances, time limit and threads, then solve.
    parameters = solvers_pb2.PrimalDualHybridGradientParams()
    criteria = parameters.termination_criteria
    criteria.simple_optimality_criteria.eps_optimal_relative = accuracy
    criteria.simple_optimality_criteria.eps_optimal_absolute = accuracy
    if time_limit:
        criteria.time_sec_limit = time_limit
    parameters.num_threads = threads
    begin = time.perf_counter()
    result = pdlp.primal_dual_hybrid_gradient(program, parameters)
    seconds = time.perf_counter() - begin
    # Read the result.
    reason = result.solve_log.termination_reason
    termination = {
        solve_log_pb2.TERMINATION_REASON_OPTIMAL: "optimal",
        solve_log_pb2.TERMINATION_REASON_TIME_LIMIT: "time_limit",
    }.get(reason, "failed")
    # PDLP gives the rows a_ub x <= b_ub multipliers of at most 0: change their sign.
    return (
        np.array(result.primal_solution),
        -np.array(result.dual_solution)[: len(b_ub)],
        termination,
        seconds,
    )
