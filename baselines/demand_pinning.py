"""Demand pinning: small demands on their first paths, then the LP for the rest on what is left.

Namyar et al., "Finding Adversarial Inputs for Heuristics using Multi-level Optimization", NSDI 2024, section 2.

The mirror image of LP-top, as run in production: what is small is not worth optimising, and goes first.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from baselines.greedy import all_on_first, place
from baselines.linear_program import Solver, solve_program, solver_options
from baselines.lp_top import largest
from baselines.matrix import Answer, Matrix, as_part, only, per_matrix
from baselines.path_program import KNOWN, path_program
from teal.allocation import Allocation
from teal.errors import InputError
from teal.problem import Problem
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class DemandPinning:
    """Demand pinning.

    Attributes:
        alpha: share of the demands that are optimised, the largest ones, as in LP-top; the others are pinned.
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
        only("demand-pinning", problem.objective, *KNOWN)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> Answer:
        free = largest(matrix.demand, self.alpha)
        residual = matrix.capacity.copy()
        if matrix.network.objective.maximises_value:
            pinned = place(matrix, np.flatnonzero(~free), residual, whole=False, first_only=True)
            paths = path_program(matrix, free, residual)
        else:
            pinned = np.where(free[:, None], 0, all_on_first(matrix))
            paths = path_program(matrix, free, matrix.capacity, matrix.loads(pinned))
        found = solve_program(paths.program, self.how)
        return Answer(pinned + paths.flow(found), status=as_part(found.status), build_s=paths.build_s)


def make(spec: Spec, model: Path | None) -> DemandPinning:
    """``demand-pinning[:alpha=0.1,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    options, how = solver_options(spec, alpha=0.1)
    if not 0 <= options["alpha"] <= 1:
        raise InputError(spec.text, "alpha", "a share in [0, 1]", options["alpha"])
    return DemandPinning(options["alpha"], how)
