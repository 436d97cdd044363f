"""Max-min fairness by linear programs: exact, by water-filling, and in one program with geometric bins.

Exact (Danna et al., "Upward max-min fairness", 2012, section 2): with A the demands that may still grow, maximise t
such that f[d] >= min(t, demand[d]) for d in A and f[d] >= level[d] for the others; a demand of A whose row has a
positive dual variable has the rate t in every optimum, and leaves A.  One LP a level, hundreds on GEANT.

Geometric bins (GB; Namyar et al., NSDI 2024, section 3.2; after SWAN, Hong et al., SIGCOMM 2013): the rate of a demand
is a sum over bins of the sizes U, U (a - 1), U (a - 1) a, ..., and a Gbit/s in a bin has 1 / e times the value of one
in the next bin, so that low rates come first: rates are within a factor a of max-min fair ones for small e.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSettings, solve_program, solver_options
from baselines.matrix import Array, Matrix, MatrixResult, heuristic_status, per_matrix
from baselines.path_program import PathProgram, path_program
from teal.errors import InputError
from teal.problem import Allocation, Problem, Status
from teal.solvers.fairness import require_shedding
from teal.spec import Spec

_POSITIVE_DUAL = 1e-7  # a demand's dual variable from which it holds the level down; they sum to 1
_SLACK = 1e-9  # relative, by which levels may be missed in later programs, so that rounding makes none infeasible


@dataclasses.dataclass(frozen=True)
class ExactMaxMin:
    """Water-filling by linear programs; small networks only.

    Attributes:
        settings: of the LP solver.
    """

    settings: LpSettings

    def solve(self, problem: Problem) -> Allocation:
        """The max-min fair rates of every matrix."""
        require_shedding("max-min-lp", problem.objective)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        rows, demands = _by_demand(lp, matrix)
        demand, level = matrix.demand[demands], np.zeros(len(demands))
        is_open, flow, status = demand > 0, np.zeros(matrix.mask.shape), Status.OPTIMAL
        while is_open.any():
            least = demand[is_open].min()
            solution = self._raise(lp, rows, is_open, level, least)
            if not solution.status.usable:
                return MatrixResult(flow, status=solution.status)
            flow, rate = lp.flow(solution), float(solution.x[-1])
            duals = solution.dual[len(lp.program.b_ub) :][: int(is_open.sum())]
            is_held = duals > _POSITIVE_DUAL
            if rate >= least * (1 - _SLACK):
                is_held |= demand[is_open] <= least * (1 + _SLACK)
            if not is_held.any():  # only rounding can be the reason: all that are open stay at this level
                is_held[:] = True
            held = np.flatnonzero(is_open)[is_held]
            level[held], is_open[held] = np.minimum(rate, demand[held]), False
        return MatrixResult(flow, status=status)

    def _raise(self, lp: PathProgram, rows: sp.csr_array, is_open: Array, level: Array, least: float) -> Any:
        """Maximise the rate t of the open demands, at most ``least``."""
        base, width = lp.program, len(lp.path)
        a_open = sp.hstack([-rows[is_open], sp.csr_array(np.ones((int(is_open.sum()), 1)))])
        a_held = sp.hstack([-rows[~is_open], sp.csr_array((int((~is_open).sum()), 1))])
        a_ub = sp.vstack([sp.hstack([base.a_ub, sp.csr_array((base.a_ub.shape[0], 1))]), a_open, a_held], format="csr")
        b_ub = np.concatenate([base.b_ub, np.zeros(a_open.shape[0]), -level[~is_open] * (1 - _SLACK)])
        upper = np.append(np.full(width, np.inf), least)
        program = LinearProgram(np.append(np.zeros(width), -1.0), sp.csr_array(a_ub), b_ub, upper=upper)
        return solve_program(program, self.settings)


@dataclasses.dataclass(frozen=True)
class GeometricBinner:
    """One linear program with geometric bins.

    Attributes:
        settings: of the LP solver.
        ratio: a, of the sizes of bins, above 1.
        bins: number of bins; the last one ends at the largest demand.
        decay: e, value of a bin over that of the one before, in (0, 1).
    """

    settings: LpSettings
    ratio: float = 2.0
    bins: int = 12
    decay: float = 0.25

    def solve(self, problem: Problem) -> Allocation:
        """Nearly max-min fair rates of every matrix."""
        require_shedding("geometric-binner", problem.objective)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        rows, demands = _by_demand(lp, matrix)
        demand = matrix.demand[demands]
        if not len(demand):
            return MatrixResult(np.zeros(matrix.mask.shape))
        bins = self.bins
        sizes = np.diff(float(demand.max()) * self.ratio ** np.arange(1.0 - bins, 1.0), prepend=0.0)
        count, width = len(demand), len(lp.path)
        # sum over the bins of a demand = sum over its paths
        linked = sp.hstack([-rows, sp.kron(np.ones((1, bins)), sp.eye_array(count))], format="csr")
        a_ub = sp.hstack([lp.program.a_ub, sp.csr_array((lp.program.a_ub.shape[0], bins * count))], format="csr")
        cost = np.concatenate([np.zeros(width), -np.repeat(self.decay ** np.arange(bins), count)])
        upper = np.concatenate([np.full(width, np.inf), np.repeat(sizes, count)])
        program = LinearProgram(cost, a_ub, lp.program.b_ub, linked, np.zeros(count), upper)
        solution = solve_program(program, self.settings)
        return MatrixResult(
            lp.flow(solution), status=heuristic_status(solution.status), build_s=lp.build_s, solve_s=solution.seconds
        )


def _by_demand(lp: PathProgram, matrix: Matrix) -> tuple[sp.csr_array, Array]:
    """Rows (m, n) that sum the paths of each demand in the program, and the numbers of these demands."""
    of_variable = lp.path // matrix.mask.shape[1]
    demands, row = np.unique(of_variable, return_inverse=True)
    ones = np.ones(len(row))
    return sp.csr_array((ones, (row, np.arange(len(row)))), shape=(len(demands), len(row))), demands


def make_exact(spec: Spec, model: Path | None) -> ExactMaxMin:
    """``max-min-lp[:solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    _, settings = solver_options(spec)
    return ExactMaxMin(settings)


def make_binner(spec: Spec, model: Path | None) -> GeometricBinner:
    """``geometric-binner[:ratio=2,bins=12,decay=0.25,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    options, settings = solver_options(spec, ratio=2.0, bins=12, decay=0.25)
    if not options["ratio"] > 1:
        raise InputError(spec.text, "ratio", "a number above 1", options["ratio"])
    if options["bins"] < 1:
        raise InputError(spec.text, "bins", "a whole number of at least 1", options["bins"])
    if not 0 < options["decay"] < 1:
        raise InputError(spec.text, "decay", "a number in (0, 1)", options["decay"])
    return GeometricBinner(settings, **options)
