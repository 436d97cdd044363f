"""LP-top: an LP for the largest demands, then the others on their first paths, up to the residual
capacity (Teal: Xu et al., SIGCOMM 2023, section 5.1).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from baselines.greedy import first_path_flow, place_demands
from baselines.largest import ByLargest
from baselines.lp_solver import solve_program
from baselines.matrix import Matrix, MatrixResult, heuristic_status
from baselines.path_program import path_program
from teal.spec import Spec


class LpTop(ByLargest):
    """LP-top: an LP for the largest demands, then the others on their first paths."""

    name = "lp-top"

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Solve the LP of the large demands of one matrix, then place the small ones.

        If demands may be shed, small demands take at most the residual capacity; otherwise they are
        placed in full.
        """
        optimised = self.optimised(matrix)
        lp = path_program(matrix, optimised, matrix.capacity)
        solution = solve_program(lp.program, self.settings)
        flow = lp.flow(solution)
        if matrix.network.objective.maximises_value:
            residual = np.maximum(matrix.capacity - matrix.loads(flow), 0)
            flow = flow + place_demands(
                matrix, np.flatnonzero(~optimised), residual, unsplittable=False, first_only=True
            )
        else:
            flow = flow + np.where(optimised[:, None], 0, first_path_flow(matrix))
        return MatrixResult(flow, status=heuristic_status(solution.status), build_s=lp.build_s)


def make(spec: Spec, model: Path | None) -> LpTop:
    """Build the scheme from its specification; the options and their defaults are
    ``lp-top[:alpha=0.1,threshold=0,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``.
    """
    return LpTop.from_spec(spec)
