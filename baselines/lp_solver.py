"""Solve a linear program by HiGHS or Gurobi, with scaled variables and rows."""

from __future__ import annotations

import time

import numpy as np

from baselines.gurobi import solve_by_gurobi
from baselines.highs import solve_by_highs
from baselines.linear_program import LinearProgram, LpSettings, LpSolution, import_solver
from teal.problem.allocation import Status


def solve_program(program: LinearProgram, settings: LpSettings) -> LpSolution:
    """Solve a linear program by the solver of the settings.

    If there is no optimum, the status says why, and x and the multipliers are 0.  A program with
    expected magnitudes of its variables (``size``) is scaled first.

    Raises:
        SolverError: the solver is not installed, or its licence does not cover the program.
    """
    if not len(program.cost):
        return LpSolution(np.zeros(0), np.zeros(len(program.b_ub)), Status.OPTIMAL, 0.0)
    # The import of the solver is not a part of its time.
    is_gurobi = settings.solver == "gurobi"
    import_solver("gurobipy" if is_gurobi else "highspy")
    solve = solve_by_gurobi if is_gurobi else solve_by_highs
    begin = time.perf_counter()
    if program.size is None:
        scaling_end = begin
        x, dual, status = solve(program, settings)
        solver_end = time.perf_counter()
    else:
        # Solve the scaled program, and convert x and the multipliers back.
        scaled, units, row_units = program.scaled(program.size)
        scaling_end = time.perf_counter()
        x, dual, status = solve(scaled, settings)
        solver_end = time.perf_counter()
        x = x * units
        dual = dual * program.cost_unit(units) / row_units
    end = time.perf_counter()
    return LpSolution(x, dual, status, end - begin, solver_end - scaling_end)
