"""PDLP: a first-order solver of linear programs in general, that of OR-Tools (Applegate et al., NeurIPS 2021).

On the path form, shares of demands as variables and rows over capacities, to a relative accuracy.  Its answer is a
little outside of what is feasible; it is projected.  Its time is the solver's own, without scaling and projection.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from baselines import pdlp_worker
from baselines.matrix import Matrix, MatrixResult, only, per_matrix
from baselines.path_program import KNOWN, path_program
from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.solvers.projection import project
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class Pdlp:
    """PDLP.

    Attributes:
        accuracy: at which it stops, relative.
        time_limit: seconds a matrix; 0 for none.  What it has then is taken.
        threads: 0 for all cores.
    """

    accuracy: float = 1e-4
    time_limit: float = 0.0
    threads: int = 0

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: max_concurrent_flow, which it does not know.
            SolverError: OR-Tools is not installed.
        """
        only("pdlp", problem.objective, *KNOWN)
        if importlib.util.find_spec("ortools") is None:
            raise SolverError("pdlp: OR-Tools is not installed: pip install 'teal-te[benchmarks]'")
        found = per_matrix(problem, self._solve)
        return dataclasses.replace(found, splits=project(problem.to(torch.float64), found.splits, refill=0))

    def _solve(self, matrix: Matrix) -> MatrixResult:
        paths = path_program(matrix, matrix.routable, matrix.capacity)
        program, width = paths.program, len(paths.columns)
        if not width:
            return MatrixResult(np.zeros(matrix.mask.shape), np.zeros(len(matrix.capacity)), build_s=paths.build_s)
        # Shares in place of rates, rows over their limits: everything of order 1.
        rates = np.append(matrix.demand[paths.columns // matrix.mask.shape[1]], np.ones(len(program.cost) - width))
        own = len(paths.links)
        limits = np.concatenate([matrix.capacity[paths.links], np.abs(program.b_ub[own:])])
        limits = np.where(limits > 0, limits, 1.0)
        scale = float(np.abs(program.cost * rates).max()) or 1.0
        a_ub = sp.diags_array(1 / limits) @ program.a_ub @ sp.diags_array(rates)
        a_eq, b_eq = None, None
        if program.a_eq is not None and program.b_eq is not None:
            a_eq = sp.diags_array(1 / program.b_eq) @ program.a_eq @ sp.diags_array(rates)
            b_eq = np.ones(len(program.b_eq))
        task = _process().submit(
            pdlp_worker.solve, program.cost * rates / scale, a_ub, program.b_ub / limits, a_eq, b_eq,
            self.accuracy, self.time_limit, self.threads or os.cpu_count() or 1,
        )  # fmt: skip
        x, dual, ended, seconds = task.result()
        flow, prices = np.zeros(matrix.mask.shape), np.zeros(len(matrix.capacity))
        flow.reshape(-1)[paths.columns] = np.maximum(x[:width], 0) * rates[:width]
        prices[paths.links] = np.maximum(dual[:own], 0) * scale / limits[:own]
        status = Status.FAILED if ended == "failed" else Status.FEASIBLE
        return MatrixResult(flow, prices, status, paths.build_s, seconds)


@lru_cache(maxsize=1)
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def make(spec: Spec, model: Path | None) -> Pdlp:
    """``pdlp[:accuracy=0.0001,time_limit=0,threads=0]``."""
    options: Any = spec.parse_options(accuracy=1e-4, time_limit=0.0, threads=0)
    scheme = Pdlp(**options)
    for option, good in (
        ("accuracy", scheme.accuracy > 0),
        ("time_limit", scheme.time_limit >= 0),
        ("threads", scheme.threads >= 0),
    ):
        if not good:
            raise InputError(spec.text, option, "a larger number", getattr(scheme, option))
    return scheme
