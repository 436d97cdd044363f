"""Solvers as functions from a problem of one matrix to its allocation, for :mod:`timing`."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import scipy.sparse as sp
import torch
from timing import Solve

import teal
from baselines.matrix import Matrix, MatrixResult, per_matrix
from baselines.path_program import path_program
from teal.problem.allocation import Allocation, Status
from teal.solvers.projection import project


def teal_cold(gap: float, limit: float) -> Solve:
    """Return ``teal.solve`` from a cold start; the allocation counts as stopped if its gap is
    wider.

    Args:
        gap: relative gap to reach.
        limit: time limit, s.
    """

    def solve(problem: teal.Problem) -> Allocation:
        return _allocation(teal.solve(problem, gap=gap, deadline=limit), gap)

    return solve


def teal_warm(gap: float, limit: float) -> Solve:
    """Return ``teal.solve``, warm-started from its result for the previous problem.

    Args:
        gap: relative gap to reach.
        limit: time limit, s.
    """
    last: list[teal.SolveResult] = []

    def solve(problem: teal.Problem) -> Allocation:
        start = last[-1] if last else None
        result = teal.solve(problem, gap=gap, deadline=limit, warm_start=start)
        last[:] = [result]
        return _allocation(result, gap)

    return solve


def _allocation(result: teal.SolveResult, gap: float) -> Allocation:
    """Return the allocation of a result, with the status TIME_LIMIT if its gap is wider than
    ``gap``.
    """
    allocation = result.allocation
    if float(result.gap) <= gap:
        return allocation
    return dataclasses.replace(allocation, status=(Status.TIME_LIMIT,))


def setting(method: str, presolve: bool, crossover: bool) -> str:
    """Return options of the scheme ``lp-all`` as text; presolve and crossover are named if off."""
    words = [f"method={method}"]
    if not presolve:
        words.append("presolve=false")
    if not crossover:
        words.append("crossover=false")
    return ",".join(words)


def of_scheme(name: str) -> Solve:
    """Return the solve function of a scheme; a scheme with state starts from the
    previous problem.
    """
    return teal.make_scheme(name).solve


def pdlp(accuracy: float, threads: int, limit: float) -> Solve:
    """Return the solve function of the scheme ``pdlp``; its allocation has the status TIME_LIMIT if
    the time limit ended it.

    Args:
        accuracy: relative tolerance.
        threads: number of threads.
        limit: time limit, s.
    """
    scheme = teal.make_scheme(f"pdlp:accuracy={accuracy:g},threads={threads},time_limit={limit:g}")

    def solve(problem: teal.Problem) -> Allocation:
        allocation = scheme.solve(problem)
        if float(allocation.solve_s[0]) < limit:
            return allocation
        return dataclasses.replace(allocation, status=(Status.TIME_LIMIT,))

    return solve


def clarabel(tolerance: float, limit: float) -> Solve:
    """Return a solve function of Clarabel (Goulart, Chen 2024), an interior-point solver of cone
    programs.

    Its solution meets the capacities to the tolerance only, and is therefore projected onto them.

    Args:
        tolerance: tolerance of the gap, relative and absolute.
        limit: time limit, s.
    """
    import clarabel as solver

    def solve_matrix(matrix: Matrix) -> MatrixResult:
        """Build the scaled path-form LP of a matrix, solve it, and scale the solution back."""
        begin = time.perf_counter()
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        size = lp.program.size
        assert size is not None
        program, units, row_units = lp.program.scaled(size)
        count = len(program.cost)
        rows = sp.csc_matrix(sp.vstack([program.a_ub, -sp.eye_array(count)], format="csc"))
        limits = np.concatenate([program.b_ub, np.zeros(count)])
        # Clarabel's form: rows x + s = limits with s >= 0, of which the last are x >= 0.
        settings = solver.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_rel = tolerance
        settings.tol_gap_abs = tolerance
        settings.time_limit = limit
        built = time.perf_counter()
        clarabel_solver = solver.DefaultSolver(
            sp.csc_matrix((count, count)),
            program.cost,
            rows,
            limits,
            [solver.NonnegativeConeT(len(limits))],
            settings,
        )
        solution = clarabel_solver.solve()
        solved = time.perf_counter()
        is_solved = str(solution.status) in ("Solved", "AlmostSolved")
        # Flows of the paths, and dual prices of the links, in the units of the matrix.
        flow = np.zeros(matrix.mask.shape)
        flow.reshape(-1)[lp.path] = np.maximum(solution.x, 0) * units
        dual = np.maximum(solution.z[: len(row_units)], 0)
        prices = np.zeros(len(matrix.capacity))
        row_prices = dual * lp.program.cost_unit(units) / row_units
        prices[lp.links] = row_prices[: len(lp.links)]
        status = Status.FEASIBLE if is_solved else Status.TIME_LIMIT
        return MatrixResult(flow, prices, status, built - begin, solved - built)

    def solve(problem: teal.Problem) -> Allocation:
        allocation = per_matrix(problem, solve_matrix)
        splits = project(problem.to(torch.float64), allocation.splits, refill=0)
        return dataclasses.replace(allocation, splits=splits)

    return solve
