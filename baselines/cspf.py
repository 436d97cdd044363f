"""CSPF: demands one after the other, each whole on the first of its paths that has room for it (RFC 2702).

Largest first; one that fits nowhere is rejected, as an RSVP-TE tunnel is not set up.  ``partial=1`` gives it instead
what its shortest path with any room can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.greedy import place
from baselines.matrix import Matrix, MatrixResult, only, per_matrix
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.spec import Spec

FLOWS = (ObjectiveName.TOTAL_FLOW, ObjectiveName.WEIGHTED_FLOW, ObjectiveName.LATENCY_PENALISED_FLOW)


@dataclass(frozen=True)
class Cspf:
    """See the module."""

    partial: bool = False

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: a program that does not maximise flow.
        """
        only("cspf", problem.objective, *FLOWS)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        order, residual = np.argsort(-matrix.demand, kind="stable"), matrix.capacity.copy()
        flow = place(matrix, order, residual, whole=True, first_only=False)
        if self.partial:
            rejected = order[flow[order].sum(1) == 0]
            flow += place(matrix, rejected, residual, whole=False, first_only=False)
        return MatrixResult(flow)


def make(spec: Spec, model: Path | None) -> Cspf:
    """``cspf[:partial=0]``."""
    options: Any = spec.parse_options(partial=0)
    return Cspf(bool(options["partial"]))
