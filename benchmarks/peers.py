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
    """``teal.solve`` without an earlier result; stopped where it misses the gap."""

    def solve(problem: teal.Problem) -> Allocation:
        return _allocation(teal.solve(problem, gap=gap, deadline=limit), gap)

    return solve


def teal_warm(gap: float, limit: float) -> Solve:
    """``teal.solve`` from the result of the matrix before."""
    last: list[teal.PdhgResult] = []

    def solve(problem: teal.Problem) -> Allocation:
        start = last[-1] if last else None
        result = teal.solve(problem, gap=gap, deadline=limit, warm_start=start)
        last[:] = [result]
        return _allocation(result, gap)

    return solve


def _allocation(result: teal.PdhgResult, gap: float) -> Allocation:
    """The allocation of a result, marked as late where the gap is wider."""
    allocation = result.allocation
    if float(result.gap) <= gap:
        return allocation
    return dataclasses.replace(allocation, status=(Status.TIME_LIMIT,))


def setting(method: str, presolve: bool, crossover: bool) -> str:
    """Options of the scheme ``lp-all``."""
    words = [f"method={method}"]
    if not presolve:
        words.append("presolve=false")
    if not crossover:
        words.append("crossover=false")
    return ",".join(words)


def of_scheme(name: str) -> Solve:
    """A scheme by its name; one that keeps its state has solved the matrix before."""
    return teal.make_scheme(name).solve


def pdlp(accuracy: float, threads: int, limit: float) -> Solve:
    """The scheme ``pdlp``, marked as late where its limit ended it before its tolerance."""
    scheme = teal.make_scheme(f"pdlp:accuracy={accuracy:g},threads={threads},time_limit={limit:g}")

    def solve(problem: teal.Problem) -> Allocation:
        allocation = scheme.solve(problem)
        if float(allocation.solve_s[0]) < limit:
            return allocation
        return dataclasses.replace(allocation, status=(Status.TIME_LIMIT,))

    return solve


def clarabel(tolerance: float, limit: float) -> Solve:
    """Clarabel (Goulart, Chen 2024), an interior-point solver of cone programs, by its own
    interface.

    The solution of its homogeneous embedding keeps rows to the tolerance, and is projected.
    """
    import clarabel as solver

    def solve_matrix(matrix: Matrix) -> MatrixResult:
        begin = time.perf_counter()
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        size = lp.program.size
        assert size is not None
        program, units, row_units = lp.program.scaled(size)
        count = len(program.cost)
        rows = sp.csc_matrix(sp.vstack([program.a_ub, -sp.eye_array(count)], format="csc"))
        limits = np.concatenate([program.b_ub, np.zeros(count)])
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
        flow = np.zeros(matrix.mask.shape)
        flow.reshape(-1)[lp.path] = np.maximum(solution.x, 0) * units
        dual = np.maximum(solution.z[: len(row_units)], 0)
        prices = np.zeros(len(matrix.capacity))
        of_rows = dual * lp.program.cost_unit(units) / row_units
        prices[lp.links] = of_rows[: len(lp.links)]
        status = Status.FEASIBLE if is_solved else Status.TIME_LIMIT
        return MatrixResult(flow, prices, status, built - begin, solved - built)

    def solve(problem: teal.Problem) -> Allocation:
        allocation = per_matrix(problem, solve_matrix)
        splits = project(problem.to(torch.float64), allocation.splits, refill=0)
        return dataclasses.replace(allocation, splits=splits)

    return solve
