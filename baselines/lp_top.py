"""LP-top: the LP for the largest demands, the rest on their first paths as far as there is room (Teal, section 5.1)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from baselines.greedy import all_on_first, place
from baselines.linear_program import Solver, solve_program, solver_options
from baselines.matrix import Answer, Array, Matrix, as_part, only, per_matrix
from baselines.path_program import KNOWN, path_program
from teal.allocation import Allocation
from teal.errors import InputError
from teal.problem import Problem
from teal.spec import Spec

_COUNTS = 1e-3  # demands of less Gbit/s are not ranked


@dataclasses.dataclass(frozen=True)
class LpTop:
    """LP-top.

    Attributes:
        alpha: share of the demands that are optimised, the largest ones: those at or above the (1 - alpha)
            quantile of the ones above 0.001 Gbit/s.  The set changes with every matrix, so building counts.
        how: the solver.
    """

    alpha: float = 0.1
    how: Solver = dataclasses.field(default_factory=Solver)

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: max_concurrent_flow, which it does not know.
            SolverError: of the solver.
        """
        only("lp-top", problem.objective, *KNOWN)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> Answer:
        top = largest(matrix.demand, self.alpha)
        paths = path_program(matrix, top, matrix.capacity)
        found = solve_program(paths.program, self.how)
        flow = paths.flow(found)
        if matrix.network.objective.maximises_value:
            left = np.maximum(matrix.capacity - matrix.loads(flow), 0)
            flow = flow + place(matrix, np.flatnonzero(~top), left, whole=False, first_only=True)
        else:
            flow = flow + np.where(top[:, None], 0, all_on_first(matrix))
        return Answer(flow, status=as_part(found.status), build_s=paths.build_s)


def largest(demand: Array, alpha: float) -> Array:
    """(D,) whether a demand is at or above the (1 - alpha) quantile of those above 0.001 Gbit/s."""
    ranked = demand[demand > _COUNTS]
    if alpha >= 1 or not len(ranked):
        return np.ones(len(demand), bool) if alpha >= 1 else np.zeros(len(demand), bool)
    return demand >= np.quantile(ranked, 1 - alpha)


def make(spec: Spec, model: Path | None) -> LpTop:
    """``lp-top[:alpha=0.1,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    options, how = solver_options(spec, alpha=0.1)
    if not 0 <= options["alpha"] <= 1:
        raise InputError(spec.text, "alpha", "a share in [0, 1]", options["alpha"])
    return LpTop(options["alpha"], how)
