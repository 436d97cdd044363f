"""PDLP: the general first-order LP solver of OR-Tools (Applegate et al., NeurIPS 2021).

It solves the path-form LP to a relative accuracy, with variables scaled to shares of demands and
rows to shares of capacities.  Its solution can violate constraints slightly, so it is projected.
``solve_s`` is the time of the solver, without scaling and projection.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from baselines import pdlp_worker
from baselines.matrix import Array, Matrix, MatrixResult, per_matrix, require_objective
from baselines.path_program import SUPPORTED_OBJECTIVES, path_program
from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.solvers.projection import project
from teal.spec import Spec

# Programs with up to this number of variables take longer with more threads: that of B4 a hundred
# times as long with two (benchmarks/engine.py).
MAX_VARIABLES_ONE_THREAD = 200_000


class ScaledProgram(NamedTuple):
    """The program min cost x s.t. a_ub x <= b_ub, a_eq x = b_eq, x >= 0, with entries near 1.

    Attributes:
        cost: (n,) coefficients of the objective.
        a_ub: (m, n) matrix of the inequalities.
        b_ub: (m,) right-hand sides of the inequalities.
        a_eq: (q, n) matrix of the equations, or None.
        b_eq: (q,) right-hand sides of the equations, or None.
    """

    cost: Array
    a_ub: Any
    b_ub: Array
    a_eq: Any
    b_eq: Array | None


class Solved(NamedTuple):
    """Primal and dual solution of a scaled program, with the reason why the solver stopped.

    Attributes:
        x: (n,) variables.
        dual: (m,) multipliers of the inequalities, not negative.
        termination: reason why the solver stopped; ``failed`` if x is unusable.
        seconds: time of the solver.
    """

    x: Array
    dual: Array
    termination: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Pdlp:
    """PDLP of OR-Tools on the path-form LP, with its solution projected onto the capacities.

    Attributes:
        accuracy: relative and absolute tolerance at which the solver stops.
        time_limit: time limit for each matrix, s; 0 for none.  The iterate at the limit is used as
            the solution.
        threads: number of threads of the solver; 0 for one on programs of up to 200,000 variables,
            where more take longer, and all cores on larger ones.
    """

    accuracy: float = 1e-4
    time_limit: float = 0.0
    threads: int = 0

    def solve(self, problem: Problem) -> Allocation:
        """Return feasible splits and link prices of every matrix, near-optimal to ``accuracy``.

        Raises:
            InputError: the objective is max_concurrent_flow, which is not supported.
            SolverError: OR-Tools is not installed.
        """
        require_objective("pdlp", problem.objective, *SUPPORTED_OBJECTIVES)
        self.check()
        allocation = per_matrix(problem, self._solve)
        return dataclasses.replace(
            allocation, splits=project(problem.to(torch.float64), allocation.splits, refill=0)
        )

    def check(self) -> None:
        """Raise SolverError if OR-Tools is not installed."""
        if importlib.util.find_spec("ortools") is None:
            raise SolverError(
                "pdlp: OR-Tools is not installed; run pip install 'teal-te[benchmarks]'"
            )

    def run(self, program: ScaledProgram) -> Solved:
        """Solve a scaled program in the separate process of OR-Tools."""
        threads = self.threads or default_threads(len(program.cost))
        task = _process().submit(
            pdlp_worker.solve, *program, self.accuracy, self.time_limit, threads
        )
        return Solved(*task.result())

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Build, scale and solve the LP of one matrix; return flows and prices in its unit."""
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        program = lp.program
        num_paths = len(lp.path)
        if not num_paths:
            return MatrixResult(
                np.zeros(matrix.mask.shape), np.zeros(len(matrix.capacity)), build_s=lp.build_s
            )
        # Scaling: variables become shares of demands, rows are divided by their limits, and the
        # objective by its largest coefficient, so that all coefficients are near 1.
        variable_units = np.append(
            matrix.demand[lp.path // matrix.mask.shape[1]], np.ones(len(program.cost) - num_paths)
        )
        num_link_rows = len(lp.links)
        row_units = np.concatenate(
            [matrix.capacity[lp.links], np.abs(program.b_ub[num_link_rows:])]
        )
        row_units = np.where(row_units > 0, row_units, 1.0)
        cost_unit = float(np.abs(program.cost * variable_units).max()) or 1.0
        a_ub = sp.diags_array(1 / row_units) @ program.a_ub @ sp.diags_array(variable_units)
        a_eq = None
        b_eq = None
        if program.a_eq is not None and program.b_eq is not None:
            a_eq = sp.diags_array(1 / program.b_eq) @ program.a_eq @ sp.diags_array(variable_units)
            b_eq = np.ones(len(program.b_eq))
        # Solve, and convert shares and duals back to the unit of the matrix.
        x, dual, termination, seconds = self.run(
            ScaledProgram(
                program.cost * variable_units / cost_unit,
                a_ub,
                program.b_ub / row_units,
                a_eq,
                b_eq,
            )
        )
        flow = np.zeros(matrix.mask.shape)
        prices = np.zeros(len(matrix.capacity))
        flow.reshape(-1)[lp.path] = np.maximum(x[:num_paths], 0) * variable_units[:num_paths]
        prices[lp.links] = (
            np.maximum(dual[:num_link_rows], 0) * cost_unit / row_units[:num_link_rows]
        )
        status = Status.FAILED if termination == "failed" else Status.FEASIBLE
        return MatrixResult(flow, prices, status, lp.build_s, seconds)


def default_threads(num_variables: int) -> int:
    """Return the number of threads with which PDLP is the fastest for
    ``num_variables`` variables.
    """
    return 1 if num_variables <= MAX_VARIABLES_ONE_THREAD else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _process() -> ProcessPoolExecutor:
    """Return the pool of one process in which OR-Tools runs; the first call starts it."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def make(spec: Spec, model: Path | None) -> Pdlp:
    """Build the scheme from its specification; the options and their defaults are
    ``pdlp[:accuracy=0.0001,time_limit=0,threads=0]``.
    """
    options: Any = spec.parse_options(accuracy=1e-4, time_limit=0.0, threads=0)
    scheme = Pdlp(**options)
    for option, valid, expected in (
        ("accuracy", scheme.accuracy > 0, "a number > 0"),
        ("time_limit", scheme.time_limit >= 0, "a number >= 0"),
        ("threads", scheme.threads >= 0, "a number >= 0"),
    ):
        if not valid:
            raise InputError(spec.text, option, expected, getattr(scheme, option))
    return scheme
