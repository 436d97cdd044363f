"""Demand pinning: small demands on their first paths, then the LP for the rest on what is left.

Namyar et al., "Finding Adversarial Inputs for Heuristics using Multi-level Optimization", NSDI 2024, section 2.

The mirror image of LP-top, as run in production: what is small is not worth optimising, and goes first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from baselines.greedy import all_on_first, place
from baselines.largest import ByLargest, largest
from baselines.linear_program import solve_program
from baselines.matrix import Matrix, MatrixResult, as_part
from baselines.path_program import path_program
from teal.spec import Spec


class DemandPinning(ByLargest):
    """Demand pinning."""

    name = "demand-pinning"

    def _solve(self, matrix: Matrix) -> MatrixResult:
        free = largest(matrix.demand, self.alpha)
        residual = matrix.capacity.copy()
        if matrix.network.objective.maximises_value:
            pinned = place(matrix, np.flatnonzero(~free), residual, whole=False, first_only=True)
            paths = path_program(matrix, free, residual)
        else:
            pinned = np.where(free[:, None], 0, all_on_first(matrix))
            paths = path_program(matrix, free, matrix.capacity, matrix.loads(pinned))
        found = solve_program(paths.program, self.how)
        return MatrixResult(pinned + paths.flow(found), status=as_part(found.status), build_s=paths.build_s)


def make(spec: Spec, model: Path | None) -> DemandPinning:
    """``demand-pinning[:alpha=0.1,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    return DemandPinning.from_spec(spec)
