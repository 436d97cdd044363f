"""Demand pinning: small demands on their first paths, then an LP for the large demands.

Namyar et al., "Finding Adversarial Inputs for Heuristics using Multi-level Optimization", NSDI
2024, section 2.

The small demands, which are not optimised, are placed first; the LP uses the residual capacity
(LP-top has the opposite order).  In the paper a demand is small up to 5% of the mean capacity of
the live links (``threshold``).  Small demands are placed in the order of their indices, each on its
first live path up to the residual capacity; the rest is shed.
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


class DemandPinning(ByLargest):
    """Demand pinning: small demands on their first paths, then an LP for the large demands."""

    name = "demand-pinning"

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Place the small demands of one matrix, then solve the LP of the large ones.

        If demands may be shed, small demands take at most the residual capacity, and the LP uses
        the rest of it; otherwise they are placed in full, as a background load of the LP.
        """
        optimised = self.optimised(matrix)
        residual = matrix.capacity.copy()
        if matrix.network.objective.maximises_value:
            pinned = place_demands(
                matrix, np.flatnonzero(~optimised), residual, unsplittable=False, first_only=True
            )
            lp = path_program(matrix, optimised, residual)
        else:
            pinned = np.where(optimised[:, None], 0, first_path_flow(matrix))
            lp = path_program(matrix, optimised, matrix.capacity, matrix.loads(pinned))
        solution = solve_program(lp.program, self.settings)
        flow = pinned + lp.flow(solution)
        return MatrixResult(flow, status=heuristic_status(solution.status), build_s=lp.build_s)


def make(spec: Spec, model: Path | None) -> DemandPinning:
    """Build the scheme from its specification; the options and their defaults are
    ``demand-pinning[:alpha=0.1,threshold=0,solver=highs|gurobi,method=auto|simplex|ipm,
    time_limit=0]``.
    """
    return DemandPinning.from_spec(spec)
