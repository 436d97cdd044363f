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

# Programs of up to so many variables take longer with more threads: that of B4 a hundred times as
# long with two (benchmarks/engine.py).
MAX_VARIABLES_ONE_THREAD = 200_000


class ScaledProgram(NamedTuple):
    """The program min cost x s.t. a_ub x <= b_ub, a_eq x = b_eq, x >= 0, whose coefficients are of
    order 1.

    Attributes:
        cost: (n,) costs.
        a_ub: (m, n) matrix of the inequalities.
        b_ub: (m,) their limits.
        a_eq: matrix of the equations, or None.
        b_eq: their right-hand side, or None.
    """

    cost: Array
    a_ub: Any
    b_ub: Array
    a_eq: Any
    b_eq: Array | None


class Solved(NamedTuple):
    """A solution.

    Attributes:
        x: (n,) variables.
        dual: (m,) prices of the inequalities, not negative.
        termination: reason why the solver stopped; ``failed`` where x is of no use.
        seconds: time of the solver.
    """

    x: Array
    dual: Array
    termination: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Pdlp:
    """PDLP, as described in the module.

    Attributes:
        accuracy: at which the solver stops, relative and absolute.
        time_limit: s for each matrix; 0 for none.  The iterate at the limit is used as the
            solution.
        threads: of the solver; 0 for one on programs of up to 200,000 variables, where more take
            longer, and all cores on larger ones.
    """

    accuracy: float = 1e-4
    time_limit: float = 0.0
    threads: int = 0

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

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
        """Check that the solver is there.

        Raises:
            SolverError: it is not.
        """
        if importlib.util.find_spec("ortools") is None:
            raise SolverError("pdlp: OR-Tools is not installed: pip install 'teal-te[benchmarks]'")

    def run(self, program: ScaledProgram) -> Solved:
        """The solution of a program."""
        threads = self.threads or default_threads(len(program.cost))
        task = _process().submit(
            pdlp_worker.solve, *program, self.accuracy, self.time_limit, threads
        )
        return Solved(*task.result())

    def _solve(self, matrix: Matrix) -> MatrixResult:
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        program = lp.program
        width = len(lp.path)
        if not width:
            return MatrixResult(
                np.zeros(matrix.mask.shape), np.zeros(len(matrix.capacity)), build_s=lp.build_s
            )
        # Variables become shares of demands, rows are divided by their limits: all coefficients are
        # of order 1.
        rates = np.append(
            matrix.demand[lp.path // matrix.mask.shape[1]], np.ones(len(program.cost) - width)
        )
        num_link_rows = len(lp.links)
        limits = np.concatenate([matrix.capacity[lp.links], np.abs(program.b_ub[num_link_rows:])])
        limits = np.where(limits > 0, limits, 1.0)
        scale = float(np.abs(program.cost * rates).max()) or 1.0
        a_ub = sp.diags_array(1 / limits) @ program.a_ub @ sp.diags_array(rates)
        a_eq = None
        b_eq = None
        if program.a_eq is not None and program.b_eq is not None:
            a_eq = sp.diags_array(1 / program.b_eq) @ program.a_eq @ sp.diags_array(rates)
            b_eq = np.ones(len(program.b_eq))
        x, dual, termination, seconds = self.run(
            ScaledProgram(program.cost * rates / scale, a_ub, program.b_ub / limits, a_eq, b_eq)
        )
        flow = np.zeros(matrix.mask.shape)
        prices = np.zeros(len(matrix.capacity))
        flow.reshape(-1)[lp.path] = np.maximum(x[:width], 0) * rates[:width]
        prices[lp.links] = np.maximum(dual[:num_link_rows], 0) * scale / limits[:num_link_rows]
        status = Status.FAILED if termination == "failed" else Status.FEASIBLE
        return MatrixResult(flow, prices, status, lp.build_s, seconds)


def default_threads(num_variables: int) -> int:
    """Number of threads with which the solver is the fastest."""
    return 1 if num_variables <= MAX_VARIABLES_ONE_THREAD else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _process() -> ProcessPoolExecutor:
    """The process in which OR-Tools runs, see :mod:`baselines.pdlp_worker`; started once."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def make(spec: Spec, model: Path | None) -> Pdlp:
    """``pdlp[:accuracy=0.0001,time_limit=0,threads=0]``."""
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
