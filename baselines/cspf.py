"""CSPF (RFC 2702): each demand on its first path with enough residual capacity, the largest first.

Demands are not split.  A demand that fits on none of its paths is rejected, like an RSVP-TE tunnel
that cannot be set up.  With ``partial=1``, rejected demands are then placed in part: each on its
first path with any residual capacity, as much as fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.greedy import place_demands
from baselines.matrix import Matrix, MatrixResult, per_matrix, require_objective
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.spec import Spec

SUPPORTED_OBJECTIVES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
)


@dataclass(frozen=True)
class Cspf:
    """CSPF: places each demand on its first path with enough residual capacity, the largest first.

    Attributes:
        partial: whether rejected demands are then placed in part, on one path each.
    """

    partial: bool = False

    def solve(self, problem: Problem) -> Allocation:
        """Return unsplit allocations of every matrix: each demand is on one path, or rejected.

        Raises:
            InputError: the objective is not value maximisation.
        """
        require_objective("cspf", problem.objective, *SUPPORTED_OBJECTIVES)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Place the demands of one matrix in descending order of rate."""
        order = np.argsort(-matrix.demand, kind="stable")
        residual = matrix.capacity.copy()
        flow = place_demands(matrix, order, residual, unsplittable=True, first_only=False)
        if self.partial:
            rejected = order[flow[order].sum(1) == 0]
            flow += place_demands(matrix, rejected, residual, unsplittable=False, first_only=False)
        return MatrixResult(flow)


def make(spec: Spec, model: Path | None) -> Cspf:
    """Build the scheme from its specification; the options and their defaults are
    ``cspf[:partial=0]``.
    """
    options: Any = spec.parse_options(partial=0)
    return Cspf(bool(options["partial"]))
