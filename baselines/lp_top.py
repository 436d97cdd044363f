"""LP-top: the LP for the largest demands, the rest on their first paths as far as there is room (Teal, section 5.1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from baselines.greedy import all_on_first, place
from baselines.largest import ByLargest, largest
from baselines.linear_program import solve_program
from baselines.matrix import Matrix, MatrixResult, as_part
from baselines.path_program import path_program
from teal.spec import Spec


class LpTop(ByLargest):
    """LP-top."""

    name = "lp-top"

    def _solve(self, matrix: Matrix) -> MatrixResult:
        top = largest(matrix.demand, self.alpha)
        paths = path_program(matrix, top, matrix.capacity)
        found = solve_program(paths.program, self.how)
        flow = paths.flow(found)
        if matrix.network.objective.maximises_value:
            left = np.maximum(matrix.capacity - matrix.loads(flow), 0)
            flow = flow + place(matrix, np.flatnonzero(~top), left, whole=False, first_only=True)
        else:
            flow = flow + np.where(top[:, None], 0, all_on_first(matrix))
        return MatrixResult(flow, status=as_part(found.status), build_s=paths.build_s)


def make(spec: Spec, model: Path | None) -> LpTop:
    """``lp-top[:alpha=0.1,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    return LpTop.from_spec(spec)
