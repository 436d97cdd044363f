"""Shortest path: every demand on the first of its paths that works; what exceeds a link is dropped."""

from __future__ import annotations

from pathlib import Path

from baselines.greedy import all_on_first, cut
from baselines.matrix import Answer, Matrix, per_matrix
from teal.allocation import Allocation
from teal.problem import Problem
from teal.spec import Spec


class ShortestPath:
    """See the module."""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix."""
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> Answer:
        return Answer(cut(matrix, all_on_first(matrix)))


def make(spec: Spec, model: Path | None) -> ShortestPath:
    """``shortest-path``."""
    spec.take()
    return ShortestPath()
