"""LP-top and demand pinning: an LP for the largest demands, first paths for the others."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from baselines.linear_program import LpSettings, solver_options
from baselines.matrix import Array, Matrix, MatrixResult, per_matrix, require_objective
from baselines.path_program import SUPPORTED_OBJECTIVES
from teal.errors import InputError
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.spec import Spec

# Relative rounding error of the quantile.
_ROUNDING = 1e-9
# Smallest demand in the quantile, Gbit/s; smaller demands would distort it.
_MIN_RANKED_DEMAND = 1e-3


@dataclasses.dataclass(frozen=True)
class ByLargest:
    """Base class of schemes that optimise only the largest demands by an LP.

    The set of these demands differs from matrix to matrix, so the time to build the LP is part of
    the time of a matrix.

    Attributes:
        name: name of the scheme, for messages.
        alpha: share of the demands that are optimised: those at or above the (1 - alpha) quantile
            of the demands above 0.001 Gbit/s.
        threshold: share of the mean capacity of a live link above which a demand is optimised, in
            place of ``alpha``; 0 for ``alpha``.
        settings: settings of the LP solver.
    """

    name: ClassVar[str]
    alpha: float = 0.1
    threshold: float = 0.0
    settings: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix: the largest demands by an LP, the others by their first paths.

        Raises:
            InputError: the objective is max_concurrent_flow, which is not supported.
            SolverError: the LP solver cannot run.
        """
        require_objective(self.name, problem.objective, *SUPPORTED_OBJECTIVES)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Return path flows and status of one matrix; subclasses implement it."""
        raise NotImplementedError

    def optimised(self, matrix: Matrix) -> Array:
        """Return for each demand (D,) whether it is optimised."""
        if not self.threshold:
            return largest(matrix.demand * matrix.unit, self.alpha)
        live = matrix.capacity[matrix.capacity > 0]
        return np.asarray(matrix.demand > self.threshold * (live.mean() if len(live) else 0.0))

    @classmethod
    def from_spec(cls, spec: Spec) -> Self:
        """Build the scheme from its specification; the options and their defaults are
        ``NAME[:alpha=0.1,threshold=0,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``.
        """
        options, settings = solver_options(spec, alpha=0.1, threshold=0.0)
        if not 0 <= options["alpha"] <= 1:
            raise InputError(spec.text, "alpha", "a share in [0, 1]", options["alpha"])
        if not options["threshold"] >= 0:
            raise InputError(spec.text, "threshold", "a number >= 0", options["threshold"])
        return cls(options["alpha"], options["threshold"], settings)


def largest(demand: Array, alpha: float) -> Array:
    """Return for each demand (D,) whether it is at or above the (1 - alpha) quantile of the demands
    above 0.001 Gbit/s.

    Args:
        demand: (D,) rate of each demand, Gbit/s.
        alpha: share of the demands to select, in [0, 1].
    """
    ranked = demand[demand > _MIN_RANKED_DEMAND]
    if alpha >= 1 or not len(ranked):
        return np.ones(len(demand), bool) if alpha >= 1 else np.zeros(len(demand), bool)
    # 1 - alpha is rounded: without the tolerance the quantile may be slightly above a demand that
    # should be included.
    return demand >= np.quantile(ranked, 1 - alpha) * (1 - _ROUNDING)
