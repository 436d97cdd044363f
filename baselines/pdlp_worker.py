"""OR-Tools' PDLP, in a process of its own: OR-Tools and the HiGHS of others do not load into one process.

Imports nothing that loads HiGHS.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

Array = Any


def solve(
    cost: Array, a_ub: Any, b_ub: Array, a_eq: Any, b_eq: Array | None, accuracy: float, limit: float, threads: int
) -> tuple[Array, Array, str, float]:
    """x, multipliers of the rows of a_ub, why it ended, seconds.

    Args:
        accuracy: relative and absolute, of optimality.
        limit: seconds; 0 for none.
    """
    from ortools.pdlp import solve_log_pb2, solvers_pb2
    from ortools.pdlp.python import pdlp

    rows = [sp.csc_matrix(a) for a in (a_ub, a_eq) if a is not None]
    program = pdlp.QuadraticProgram()
    program.constraint_matrix = sp.vstack(rows).tocsc()
    equal = np.zeros(0) if b_eq is None else b_eq
    program.constraint_lower_bounds = np.append(np.full(len(b_ub), -math.inf), equal)
    program.constraint_upper_bounds = np.append(b_ub, equal)
    program.variable_lower_bounds = np.zeros(len(cost))
    program.variable_upper_bounds = np.full(len(cost), math.inf)
    program.objective_vector = cost
    settings = solvers_pb2.PrimalDualHybridGradientParams()
    criteria = settings.termination_criteria
    criteria.simple_optimality_criteria.eps_optimal_relative = accuracy
    criteria.simple_optimality_criteria.eps_optimal_absolute = accuracy
    if limit:
        criteria.time_sec_limit = limit
    settings.num_threads = threads
    begin = time.perf_counter()
    found = pdlp.primal_dual_hybrid_gradient(program, settings)
    seconds = time.perf_counter() - begin
    reason = found.solve_log.termination_reason
    ended = {
        solve_log_pb2.TERMINATION_REASON_OPTIMAL: "optimal",
        solve_log_pb2.TERMINATION_REASON_TIME_LIMIT: "time_limit",
    }.get(reason, "failed")
    return np.array(found.primal_solution), -np.array(found.dual_solution)[: len(b_ub)], ended, seconds
