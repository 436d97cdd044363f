"""What LP-top and demand pinning share: the LP for the largest demands, first paths for the rest."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from baselines.linear_program import LpSettings, solver_options
from baselines.matrix import Array, Matrix, MatrixResult, only, per_matrix
from baselines.path_program import KNOWN
from teal.errors import InputError
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.spec import Spec

_COUNTS = 1e-3  # demands of less Gbit/s are not ranked


@dataclasses.dataclass(frozen=True)
class ByLargest:
    """A scheme that optimises the largest demands alone.

    Attributes:
        alpha: share of the demands that are optimised, the largest ones: those at or above the (1 - alpha)
            quantile of the ones above 0.001 Gbit/s.  The set changes with every matrix, so building counts.
        how: the solver.
    """

    name: ClassVar[str]
    alpha: float = 0.1
    how: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: max_concurrent_flow, which it does not know.
            SolverError: of the solver.
        """
        only(self.name, problem.objective, *KNOWN)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        raise NotImplementedError

    @classmethod
    def from_spec(cls, spec: Spec) -> Self:
        """``NAME[:alpha=0.1,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
        options, how = solver_options(spec, alpha=0.1)
        if not 0 <= options["alpha"] <= 1:
            raise InputError(spec.text, "alpha", "a share in [0, 1]", options["alpha"])
        return cls(options["alpha"], how)


def largest(demand: Array, alpha: float) -> Array:
    """(D,) whether a demand is at or above the (1 - alpha) quantile of those above 0.001 Gbit/s."""
    ranked = demand[demand > _COUNTS]
    if alpha >= 1 or not len(ranked):
        return np.ones(len(demand), bool) if alpha >= 1 else np.zeros(len(demand), bool)
    return demand >= np.quantile(ranked, 1 - alpha)
