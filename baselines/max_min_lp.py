"""Max-min fairness by linear programs: exact, by water-filling, and in one program with geometric
bins.

Exact (Danna et al., "Upward max-min fairness", 2012, section 2): with A the demands that may still
grow, maximise t such that f[d] >= min(t w[d], demand[d]) for d in A and f[d] >= rate[d] for the
others; a demand of A whose row has a positive dual variable has the rate t w[d] in every optimum,
and leaves A.  Weights w are those of the objective max_min, 1 each under another one.  Which
demands are carried whole at a level is found by bisection, so that a level costs some LPs, and not
one for each demand.

Geometric bins (GB; Namyar et al., NSDI 2024, section 3.2; after SWAN, Hong et al., SIGCOMM 2013):
the rate of a demand is a sum over bins of the sizes U, U (a - 1), U (a - 1) a, ..., and a Gbit/s in
a bin has 1 / e times the value of one in the next bin, so that low rates come first: rates are
within a factor a of max-min fair ones for small e.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from baselines.linear_program import LinearProgram, LpSettings, LpSolution, solver_options
from baselines.lp_solver import solve_program
from baselines.matrix import Array, Matrix, MatrixResult, heuristic_status, per_matrix
from baselines.path_program import PathProgram, path_program
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Allocation, Problem, ProgramPrices, Status
from teal.solvers.sequences.fairness import require_shedding
from teal.spec import Spec

# Minimum dual variable of a demand that limits the level; these variables sum to 1.
_POSITIVE_DUAL = 1e-7
# Relative amount by which a rate may be below its level in an optimal allocation.
_MISSED = 1e-3
# Relative tolerance of levels in later programs, so that rounding makes none infeasible.
_SLACK = 1e-9


# For each matrix a list of (level, Gbit/s a weight; prices (E,)).
_Levels = list[list[tuple[float, torch.Tensor]]]


@dataclasses.dataclass(frozen=True)
class ExactMaxMin:
    """Water-filling by linear programs.

    Attributes:
        settings: of the LP solver.
    """

    settings: LpSettings

    def solve(self, problem: Problem) -> Allocation:
        """Max-min fair rates of every matrix, with the prices of every level."""
        require_shedding("max-min-lp", problem.objective)
        levels: _Levels = []
        weight = (
            problem.demand_value.double().cpu().numpy()
            if problem.objective.name == ObjectiveName.MAX_MIN
            else None
        )
        allocation = per_matrix(problem, lambda matrix: self._solve(matrix, weight, levels))
        prices = ProgramPrices.of_levels(levels, problem.topology.num_links)
        return dataclasses.replace(allocation, program_prices=prices)

    def _solve(
        self, matrix: Matrix, weight: Array | None, levels: list[list[tuple[float, torch.Tensor]]]
    ) -> MatrixResult:
        """Solve one matrix, level by level.

        Args:
            matrix: demands, live paths and capacities.
            weight: (D,) weights of the demands; None for 1 each.
            levels: receives the list of levels of this matrix.
        """
        levels.append([])
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        rows, demands = _by_demand(lp, matrix)
        demand = matrix.demand[demands]
        growing = _Growing(
            lp, rows, demand, np.ones(len(demand)) if weight is None else weight[demands]
        )
        # Rates of the demands that are not open.
        rate = np.zeros(len(demands))
        is_open = demand > 0
        flow = np.zeros(matrix.mask.shape)
        status = Status.OPTIMAL
        seconds = 0.0
        # Raise the open demands to the next level, and fix those that cannot grow beyond it.
        while is_open.any():
            solution, grows, spent = self._next_level(growing, is_open, rate)
            seconds += spent
            if not solution.status.usable:
                return MatrixResult(flow, status=solution.status)
            flow = lp.flow(solution)
            level = float(solution.x[-1])
            is_whole = is_open & (~grows | (demand <= level * growing.weight * (1 + _SLACK)))
            is_held = _held_demands(solution, grows, len(lp.program.b_ub))
            # Only rounding can be the reason: all that are open stay at this level.
            if not (is_held | is_whole).any():
                is_held = grows
            if is_held.any():
                levels[-1].append((level * matrix.unit, torch.from_numpy(lp.prices(solution))))
            rate[is_held] = level * growing.weight[is_held]
            rate[is_whole] = demand[is_whole]
            is_open &= ~(is_held | is_whole)
        # Rates below the solver's absolute tolerance may miss their level.
        if (rows @ flow.reshape(-1)[lp.path] < rate * (1 - _MISSED)).any():
            status = Status.FEASIBLE
        return MatrixResult(flow, status=status, build_s=lp.build_s, solve_s=seconds)

    def _next_level(
        self, growing: _Growing, is_open: Array, rate: Array
    ) -> tuple[LpSolution, Array, float]:
        """The largest t such that every open demand can have min(t w, demand), by bisection on who
        is carried whole.

        If the i open demands with the smallest demand per weight are carried whole, the others
        reach a common level t(i).  It is the level if it lies between the i-th demand per weight
        and the next one; i is too small if t(i) reaches the next one, and too large if t(i) is
        below the i-th, or if the program is infeasible.

        Returns:
            the solution for the level, true for the demands that grow in its program, and s of all
            programs.
        """
        whole_at = growing.demand / growing.weight
        ends = np.unique(whole_at[is_open])
        # Bounds of the index that may be right.
        low = 0
        high = len(ends)
        seconds = 0.0
        best: tuple[LpSolution, Array] | None = None
        while low <= high:
            count = (low + high) // 2
            grows = is_open & (whole_at > (ends[count - 1] if count else 0.0))
            max_rate = ends[count] if count < len(ends) else 0.0
            solution = growing.raised(
                grows, np.where(is_open & ~grows, growing.demand, rate), max_rate, self.settings
            )
            seconds = seconds + solution.seconds
            level = float(solution.x[-1])
            if not solution.status.usable:
                high = count - 1
            elif 0 < count < len(ends) and level < ends[count - 1] * (1 - _SLACK):
                low = max(low, int(np.searchsorted(ends, level * (1 - _SLACK))))
                high = count - 1
            else:
                best = (solution, grows)
                low = count + 1
                if level < max_rate * (1 - _SLACK):
                    break
        return *(best or (solution, grows)), seconds


def _held_demands(solution: LpSolution, grows: Array, num_base_rows: int) -> Array:
    """(n,) true for the growing demands that cannot exceed the level: their row has a positive dual
    variable.

    Args:
        solution: solution for the level.
        grows: (n,) true for the demands that grow in the program.
        num_base_rows: number of rows before those of the growing demands.
    """
    is_held = np.zeros(len(grows), bool)
    is_held[grows] = solution.dual[num_base_rows:][: int(grows.sum())] > _POSITIVE_DUAL
    return is_held


@dataclasses.dataclass(frozen=True, eq=False)
class _Growing:
    """The program of a level: n demands, of which some grow together.

    Attributes:
        lp: path-form LP of their paths.
        rows: (n, paths) 1 where a path belongs to a demand.
        demand: (n,) units.
        weight: (n,) w.
    """

    lp: PathProgram
    rows: sp.csr_array
    demand: Array
    weight: Array

    def raised(
        self, grows: Array, rate: Array, max_rate: float, settings: LpSettings
    ) -> LpSolution:
        """Maximise the common level t of the demands that grow, at most ``max_rate``; the others
        keep their rates.
        """
        base = self.lp.program
        width = len(self.lp.path)
        a_open = sp.hstack([-self.rows[grows], sp.csr_array(self.weight[grows][:, None])])
        a_held = sp.hstack([-self.rows[~grows], sp.csr_array((int((~grows).sum()), 1))])
        a_ub = sp.vstack(
            [sp.hstack([base.a_ub, sp.csr_array((base.a_ub.shape[0], 1))]), a_open, a_held],
            format="csr",
        )
        b_ub = np.concatenate([base.b_ub, np.zeros(a_open.shape[0]), -rate[~grows] * (1 - _SLACK)])
        upper = np.append(np.full(width, np.inf), max_rate)
        program = LinearProgram(
            np.append(np.zeros(width), -1.0), sp.csr_array(a_ub), b_ub, upper=upper
        )
        return solve_program(program, settings)


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
        count = len(demand)
        width = len(lp.path)
        # sum over the bins of a demand = sum over its paths
        linked = sp.hstack([-rows, sp.kron(np.ones((1, bins)), sp.eye_array(count))], format="csr")
        a_ub = sp.hstack(
            [lp.program.a_ub, sp.csr_array((lp.program.a_ub.shape[0], bins * count))], format="csr"
        )
        cost = np.concatenate([np.zeros(width), -np.repeat(self.decay ** np.arange(bins), count)])
        upper = np.concatenate([np.full(width, np.inf), np.repeat(sizes, count)])
        program = LinearProgram(cost, a_ub, lp.program.b_ub, linked, np.zeros(count), upper)
        solution = solve_program(program, self.settings)
        return MatrixResult(
            lp.flow(solution),
            status=heuristic_status(solution.status),
            build_s=lp.build_s,
            solve_s=solution.seconds,
        )


def _by_demand(lp: PathProgram, matrix: Matrix) -> tuple[sp.csr_array, Array]:
    """Rows (m, n) that sum the paths of each demand in the program, and the numbers of these
    demands.
    """
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
        raise InputError(spec.text, "bins", "an integer >= 1", options["bins"])
    if not 0 < options["decay"] < 1:
        raise InputError(spec.text, "decay", "a number in (0, 1)", options["decay"])
    return GeometricBinner(settings, **options)
