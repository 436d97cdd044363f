"""Max-min fairness by linear programs: exact by water-filling, or one with geometric bins.

Exact (Danna et al., "Upward max-min fairness", 2012, section 2): with A the demands that may still
grow, maximise t such that f[d] >= min(t w[d], demand[d]) for d in A and f[d] >= rate[d] for the
others; a demand of A whose row has a positive dual variable has the rate t w[d] in every optimum,
and leaves A.  Weights w are those of the objective max_min, 1 each under another one.  Bisection
finds the demands that are fully served at a level, so that a level costs a few LPs, and not one for
each demand.

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
from teal.solvers.sequences.fairness import require_may_shed
from teal.spec import Spec

# Smallest dual variable of a demand that limits the level; these variables sum to 1.
_POSITIVE_DUAL = 1e-7
# A rate below its level by more than this share makes an allocation feasible instead of optimal.
_RATE_TOLERANCE = 1e-3
# Relative tolerance of levels in later programs, so that rounding makes none infeasible.
_SLACK = 1e-9


# For each matrix the levels that were found: pairs of a level (rate per weight, Gbit/s) and the
# link prices (E,) of its program.
_Levels = list[list[tuple[float, torch.Tensor]]]


@dataclasses.dataclass(frozen=True)
class ExactMaxMin:
    """Exact max-min fairness by water-filling, in which every level is found by a few LPs.

    Attributes:
        settings: settings of the LP solver.
    """

    settings: LpSettings

    def solve(self, problem: Problem) -> Allocation:
        """Allocate max-min fair rates for every matrix; the result has the prices of
        every level.
        """
        require_may_shed("max-min-lp", problem.objective)
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
        demand_incidence, demand_index = _demand_incidence(lp, matrix)
        demand = matrix.demand[demand_index]
        level_program = _LevelProgram(
            lp,
            demand_incidence,
            demand,
            np.ones(len(demand)) if weight is None else weight[demand_index],
        )
        # Rates of the demands whose rate is fixed; the others are open.
        rate = np.zeros(len(demand_index))
        is_open = demand > 0
        flow = np.zeros(matrix.mask.shape)
        status = Status.OPTIMAL
        seconds = 0.0
        # Raise the open demands to the next level, and fix those that cannot grow beyond it.
        while is_open.any():
            solution, grows, program_s = self._next_level(level_program, is_open, rate)
            seconds += program_s
            if not solution.status.usable:
                return MatrixResult(flow, status=solution.status)
            flow = lp.flow(solution)
            level = float(solution.x[-1])
            is_fully_served = is_open & (
                ~grows | (demand <= level * level_program.weight * (1 + _SLACK))
            )
            is_held = _held_demands(solution, grows, len(lp.program.b_ub))
            # No positive dual, because of rounding: fix all growing demands at this level.
            if not (is_held | is_fully_served).any():
                is_held = grows
            if is_held.any():
                levels[-1].append((level * matrix.unit, torch.from_numpy(lp.prices(solution))))
            rate[is_held] = level * level_program.weight[is_held]
            rate[is_fully_served] = demand[is_fully_served]
            is_open &= ~(is_held | is_fully_served)
        # Rates below the solver's absolute tolerance may miss their level.
        if (demand_incidence @ flow.reshape(-1)[lp.path] < rate * (1 - _RATE_TOLERANCE)).any():
            status = Status.FEASIBLE
        return MatrixResult(flow, status=status, build_s=lp.build_s, solve_s=seconds)

    def _next_level(
        self, level_program: _LevelProgram, is_open: Array, rate: Array
    ) -> tuple[LpSolution, Array, float]:
        """Return the largest level t at which every open demand can have min(t w, demand).

        By bisection: if the i open demands with the smallest demand per weight are fully served,
        the others reach a common level t(i).  It is the level if it lies between the i-th demand
        per weight and the next one; i is too small if t(i) reaches the next one, and too large if
        t(i) is below the i-th, or if the program is infeasible.

        Args:
            level_program: program of a level.
            is_open: (n,) demands whose rate is not fixed.
            rate: (n,) fixed rates of the others.

        Returns:
            the solution for the level, (n,) true for the demands that grow in its program, and the
            seconds of all programs.
        """
        full_level = level_program.demand / level_program.weight
        distinct_levels = np.unique(full_level[is_open])
        # Bisection on i, the number of levels at which demands are fully served.
        low = 0
        high = len(distinct_levels)
        seconds = 0.0
        best_solution: tuple[LpSolution, Array] | None = None
        while low <= high:
            num_full_levels = (low + high) // 2
            # Demands up to the i-th level are served in full; those above it grow, at most to the
            # next level.
            grows = is_open & (
                full_level > (distinct_levels[num_full_levels - 1] if num_full_levels else 0.0)
            )
            max_rate = (
                distinct_levels[num_full_levels] if num_full_levels < len(distinct_levels) else 0.0
            )
            solution = level_program.solve_level(
                grows,
                np.where(is_open & ~grows, level_program.demand, rate),
                max_rate,
                self.settings,
            )
            # Infeasible, or a common level below the i-th: i is too large.  At the next level: i is
            # too small.  Between them: the level is found.
            seconds = seconds + solution.seconds
            level = float(solution.x[-1])
            if not solution.status.usable:
                high = num_full_levels - 1
            elif 0 < num_full_levels < len(distinct_levels) and level < distinct_levels[
                num_full_levels - 1
            ] * (1 - _SLACK):
                low = max(low, int(np.searchsorted(distinct_levels, level * (1 - _SLACK))))
                high = num_full_levels - 1
            else:
                best_solution = (solution, grows)
                low = num_full_levels + 1
                if level < max_rate * (1 - _SLACK):
                    break
        return *(best_solution or (solution, grows)), seconds


def _held_demands(solution: LpSolution, grows: Array, num_base_rows: int) -> Array:
    """Return for each demand (n,) whether it grows but cannot exceed the level: its row has a
    positive dual variable.

    Args:
        solution: solution for the level.
        grows: (n,) true for the demands that grow in the program.
        num_base_rows: number of rows before those of the growing demands.
    """
    is_held = np.zeros(len(grows), bool)
    is_held[grows] = solution.dual[num_base_rows:][: int(grows.sum())] > _POSITIVE_DUAL
    return is_held


@dataclasses.dataclass(frozen=True, eq=False)
class _LevelProgram:
    """The program of a level: some of n demands grow together, the others keep their rates.

    Attributes:
        lp: path-form LP of their paths.
        demand_incidence: (n, paths) 1 where a path belongs to a demand.
        demand: (n,) rate of each demand, in the unit of the matrix.
        weight: (n,) weight w of each demand.
    """

    lp: PathProgram
    demand_incidence: sp.csr_array
    demand: Array
    weight: Array

    def solve_level(
        self, grows: Array, rate: Array, max_rate: float, settings: LpSettings
    ) -> LpSolution:
        """Maximise the common level t of the demands that grow; the others keep their rates.

        Args:
            grows: (n,) demands that grow: f >= t w.
            rate: (n,) rates of the others: f >= rate.
            max_rate: largest t.
            settings: settings of the LP solver.
        """
        base_program = self.lp.program
        num_paths = len(self.lp.path)
        # Rows: capacities and demands, t w - f <= 0 of growing demands, -f <= -rate of the others.
        growing_rows = sp.hstack(
            [-self.demand_incidence[grows], sp.csr_array(self.weight[grows][:, None])]
        )
        fixed_rows = sp.hstack(
            [-self.demand_incidence[~grows], sp.csr_array((int((~grows).sum()), 1))]
        )
        a_ub = sp.vstack(
            [
                sp.hstack([base_program.a_ub, sp.csr_array((base_program.a_ub.shape[0], 1))]),
                growing_rows,
                fixed_rows,
            ],
            format="csr",
        )
        b_ub = np.concatenate(
            [base_program.b_ub, np.zeros(growing_rows.shape[0]), -rate[~grows] * (1 - _SLACK)]
        )
        upper = np.append(np.full(num_paths, np.inf), max_rate)
        program = LinearProgram(
            np.append(np.zeros(num_paths), -1.0), sp.csr_array(a_ub), b_ub, upper=upper
        )
        return solve_program(program, settings)


@dataclasses.dataclass(frozen=True)
class GeometricBinner:
    """Approximate max-min fairness by one LP, which fills the bins of all demands from the lowest
    on.

    Attributes:
        settings: settings of the LP solver.
        ratio: ratio a of the end of a bin to the end of the previous one, above 1.
        bins: number of bins; the last one ends at the largest demand.
        decay: value e of a Gbit/s in a bin over that in the previous bin, in (0, 1).
    """

    settings: LpSettings
    ratio: float = 2.0
    bins: int = 12
    decay: float = 0.25

    def solve(self, problem: Problem) -> Allocation:
        """Allocate nearly max-min fair rates for every matrix."""
        require_may_shed("geometric-binner", problem.objective)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Solve the LP of one matrix, over the flows of the paths and the parts of the demands in
        the bins.
        """
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        demand_incidence, demand_index = _demand_incidence(lp, matrix)
        demand = matrix.demand[demand_index]
        if not len(demand):
            return MatrixResult(np.zeros(matrix.mask.shape))
        # Bin b of n ends at the largest demand times ratio^(b - n + 1); its size is the difference
        # to the end of the bin before.
        num_bins = self.bins
        bin_size = np.diff(
            float(demand.max()) * self.ratio ** np.arange(1.0 - num_bins, 1.0), prepend=0.0
        )
        num_demands = len(demand)
        num_paths = len(lp.path)
        # Columns: flow of each path, then bin by bin the rate of each demand in the bin.
        # Rows: the sum over the bins of a demand is the sum over its paths.
        bin_rows = sp.hstack(
            [-demand_incidence, sp.kron(np.ones((1, num_bins)), sp.eye_array(num_demands))],
            format="csr",
        )
        a_ub = sp.hstack(
            [lp.program.a_ub, sp.csr_array((lp.program.a_ub.shape[0], num_bins * num_demands))],
            format="csr",
        )
        # Maximise: a Gbit/s in bin b has the value decay^b; each bin holds at most its size.
        cost = np.concatenate(
            [np.zeros(num_paths), -np.repeat(self.decay ** np.arange(num_bins), num_demands)]
        )
        upper = np.concatenate([np.full(num_paths, np.inf), np.repeat(bin_size, num_demands)])
        program = LinearProgram(cost, a_ub, lp.program.b_ub, bin_rows, np.zeros(num_demands), upper)
        solution = solve_program(program, self.settings)
        return MatrixResult(
            lp.flow(solution),
            status=heuristic_status(solution.status),
            build_s=lp.build_s,
            solve_s=solution.seconds,
        )


def _demand_incidence(lp: PathProgram, matrix: Matrix) -> tuple[sp.csr_array, Array]:
    """Return the incidence matrix of demands and paths, and the indices of the demands.

    Args:
        lp: path-form LP with n path variables.
        matrix: matrix of the LP.

    Returns:
        matrix (m, n) with 1 where a path belongs to a demand; indices (m,) of the m demands that
        have a path in the LP, ascending.
    """
    variable_demand = lp.path // matrix.mask.shape[1]
    demands, row = np.unique(variable_demand, return_inverse=True)
    ones = np.ones(len(row))
    return sp.csr_array((ones, (row, np.arange(len(row)))), shape=(len(demands), len(row))), demands


def make_exact(spec: Spec, model: Path | None) -> ExactMaxMin:
    """Build the scheme from its specification; the options and their defaults are
    ``max-min-lp[:solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``.
    """
    _, settings = solver_options(spec)
    return ExactMaxMin(settings)


def make_binner(spec: Spec, model: Path | None) -> GeometricBinner:
    """Build the scheme from its specification; the options and their defaults are
    ``geometric-binner[:ratio=2,bins=12,decay=0.25,solver=highs|gurobi,method=auto|simplex|ipm,
    time_limit=0]``.
    """
    options, settings = solver_options(spec, ratio=2.0, bins=12, decay=0.25)
    if not options["ratio"] > 1:
        raise InputError(spec.text, "ratio", "a number above 1", options["ratio"])
    if options["bins"] < 1:
        raise InputError(spec.text, "bins", "an integer >= 1", options["bins"])
    if not 0 < options["decay"] < 1:
        raise InputError(spec.text, "decay", "a number in (0, 1)", options["decay"])
    return GeometricBinner(settings, **options)
