"""ECMP: every demand in equal parts over those of its candidate paths that have the fewest links and work.

Routers split hop by hop, over all shortest paths of the network; here over those among the candidates.  What exceeds a
link is dropped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from baselines.greedy import cut
from baselines.matrix import Answer, Matrix, per_matrix
from teal.allocation import Allocation
from teal.problem import Problem
from teal.spec import Spec


class Ecmp:
    """See the module."""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix."""
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> Answer:
        hops = np.where(matrix.mask, matrix.network.hops, np.iinfo(np.int32).max)
        equal = matrix.mask & (hops == hops.min(1, keepdims=True))
        return Answer(cut(matrix, equal * (matrix.demand / np.maximum(1, equal.sum(1)))[:, None]))


def make(spec: Spec, model: Path | None) -> Ecmp:
    """``ecmp``."""
    spec.take()
    return Ecmp()
