"""LP-all warm-started from the optimal basis of the previous matrix: ``lp-all:warm=true``.

Demands and capacities are right-hand sides of the path-form program (:mod:`baselines.lp_all`), and
a failed path has the upper bound 0.  Where only these change, the optimal basis stays dual
feasible, and dual simplex continues from it (Huangfu, Hall 2018).  Under max_link_utilisation
capacities are coefficients: where they change, a new program starts from the old basis.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import scipy.sparse as sp
import torch

from baselines.highs import HighsModel
from baselines.linear_program import LinearProgram, LpSettings
from baselines.matrix import (
    Array,
    Matrix,
    PathArrays,
    PathVariables,
    power_of_two,
    require_objective,
)
from baselines.path_program import SUPPORTED_OBJECTIVES, may_bind, without_overload
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status

_OBJECTIVES = (
    *SUPPORTED_OBJECTIVES,
    ObjectiveName.LEAST_COST,
    ObjectiveName.MAX_CONCURRENT_FLOW,
)


class WarmLp:
    """LP-all by HiGHS, which starts each matrix from the optimal basis of the previous one.

    Implements :class:`teal.schemes.registry.Follower`.

    Attributes:
        settings: settings of the LP solver, HiGHS; the method applies to the first matrix only.
    """

    def __init__(self, settings: LpSettings) -> None:
        self.settings = settings
        self._program: _NetworkProgram | None = None

    def follow(self, before: Problem | None) -> None:
        """Solve the problem of the previous interval, so that the next solve starts from its
        optimal basis; None discards the basis.
        """
        if before is None:
            self._program = None
        else:
            self.solve(before)

    def solve(self, problem: Problem) -> Allocation:
        """Solve the matrices one after the other, each from the optimal basis of the previous one.

        Args:
            problem: problem of B matrices, such as those of successive intervals.

        Raises:
            InputError: the objective is not one linear program, or has side conditions.
            SolverError: HiGHS is not installed.
        """
        require_objective("lp-all:warm=true", problem.objective, *_OBJECTIVES)
        if problem.conditions:
            name = problem.conditions[0].name
            raise InputError.invalid(
                "lp-all", "warm=true", f"the condition {name} is not supported", "use warm=false"
            )
        # Build the program of the network, or keep that of the last call with its basis.
        # max_concurrent_flow is solved as max_link_utilisation.
        original = problem.to(torch.float64)
        lp_problem = original.solved
        begin = time.perf_counter()
        if self._program is None or not self._program.fits(lp_problem):
            self._program = _NetworkProgram(lp_problem, self.settings)
        build_s = time.perf_counter() - begin
        # Solve the matrices in turn.
        demands = lp_problem.demand.cpu().numpy()
        capacities = lp_problem.capacity.cpu().numpy()
        masks = lp_problem.path_mask.cpu().numpy()
        flows = []
        prices = []
        statuses = []
        seconds = []
        for b in range(lp_problem.batch):
            begin = time.perf_counter()
            flow, price, status = self._program.solve(demands[b], capacities[b], masks[b])
            flows.append(flow)
            prices.append(price)
            statuses.append(status)
            seconds.append(time.perf_counter() - begin)
        # Convert flows to splits.
        flow = np.stack(flows)
        rates = demands[..., None]
        splits = np.divide(flow, rates, out=np.zeros_like(flow), where=rates > 0)
        allocation = Allocation(
            torch.from_numpy(splits).to(lp_problem.demand),
            torch.from_numpy(np.stack(prices)).to(lp_problem.demand),
            tuple(statuses),
            (build_s, *(0.0,) * (lp_problem.batch - 1)),
            tuple(seconds),
        )
        return allocation if original is lp_problem else without_overload(lp_problem, allocation)


class _NetworkProgram:
    """The path-form program of all demands and paths of a network, in HiGHS.

    Rates, capacities and live paths change from matrix to matrix.  The program has rows for the
    links that could bind for some matrix so far; a further link gets a new row, which is basic.

    Args:
        problem: network, paths and objective.
        settings: settings of HiGHS.
    """

    def __init__(self, problem: Problem, settings: LpSettings) -> None:
        self._problem = problem
        self._rules = problem.objective.rules
        # A basis exists after a crossover only.
        self._highs = HighsModel(dataclasses.replace(settings, crossover=True))
        arrays = PathArrays.of(problem)
        self._shape = arrays.hops.shape
        self._variables = _all_variables(arrays, problem)
        self._path = self._variables.path
        self._used_links = np.unique(self._variables.link)
        self._loads = self._variables.link_incidence(problem.topology.num_links)[self._used_links]
        self._demand_rows = self._variables.demand_incidence()
        # The solver's tolerances are absolute: scale rates so that the mean capacity is near 1.
        capacity = problem.capacity[0].cpu().numpy()
        mean = capacity[capacity > 0].mean() if (capacity > 0).any() else 1.0
        self._rate_unit = float(power_of_two(mean))
        self._has_row = np.zeros(len(self._used_links), bool)
        # Units of the variables, set by the first matrix; coefficients of theta in the link rows.
        self._variable_units: Array | None = None
        self._theta_coefficients = capacity[:0]

    def fits(self, problem: Problem) -> bool:
        """Return whether a problem has the paths, objective and values of this program."""
        known_problem = self._problem
        return (
            problem.paths is known_problem.paths
            and problem.objective == known_problem.objective
            and torch.equal(problem.path_value, known_problem.path_value)
        )

    def solve(self, demand: Array, capacity: Array, is_live: Array) -> tuple[Array, Array, Status]:
        """Solve one matrix; return the flows (D, K) in Gbit/s, the link prices (E,) and the status.

        Args:
            demand: (D,) Gbit/s.
            capacity: (E,) Gbit/s.
            is_live: (D, K) paths that have not failed.
        """
        variables = self._variables
        # Rates of demands that have a live path, and limits of links, in the program's unit.
        is_live_path = is_live.reshape(-1)[self._path]
        # (m,) number of live paths of each demand.
        num_live_paths = np.bincount(variables.demand_row, is_live_path, len(variables.demands))
        rate = np.where(num_live_paths > 0, demand[variables.demands], 0.0) / self._rate_unit
        limit = capacity[self._used_links] / self._rate_unit
        # Links that could bind: the demands that can use them exceed their capacity; or, for the
        # largest utilisation, a lower bound from demands with one live path.
        max_rate = rate[variables.demand_row] * is_live_path
        forced_rate = max_rate * (num_live_paths[variables.demand_row] == 1)
        # A failed link needs no row: its paths have the upper bound 0.
        may_be_full = may_bind(
            self._loads,
            max_rate,
            forced_rate,
            limit,
            np.zeros(len(limit)),
            self._rules.minimises_utilisation,
        )
        needs_row = may_be_full & (limit > 0)
        kept_rows = self._update_rows(rate, limit, needs_row)
        # Right-hand sides and bounds of this matrix.
        link_limit = limit[self._has_row]
        upper = np.where(is_live_path, np.inf, 0.0)
        if self._rules.minimises_utilisation:
            link_limit = np.zeros(len(link_limit))
            upper = np.append(upper, np.inf)
        # The stored program has right-hand sides of 1, which scaling has changed to row factors:
        # multiply them by the right-hand sides of this matrix.
        scaled_program = self._program
        b_ub = link_limit if self._rules.carries_all else np.concatenate([link_limit, rate])
        b_eq = None if scaled_program.b_eq is None else rate * scaled_program.b_eq
        program = dataclasses.replace(
            scaled_program, b_ub=b_ub * scaled_program.b_ub, b_eq=b_eq, upper=upper
        )
        x, dual, status = self._highs.solve(program, kept_rows)
        # Flows and prices in Gbit/s.
        flow = np.zeros(self._shape)
        flow.reshape(-1)[self._path] = (x * self._variable_units)[
            : len(self._path)
        ] * self._rate_unit
        prices = np.zeros(len(capacity))
        links = self._used_links[self._has_row]
        prices[links] = (dual * self._cost_unit / self._row_units)[: len(links)]
        return flow, prices, status

    def _update_rows(self, rate: Array, limit: Array, needs_row: Array) -> Array | None:
        """Rebuild the program if links need rows, or coefficients of theta have changed.

        Args:
            rate: (m,) rate of each routable demand, in the unit of the program.
            limit: (links,) capacity of each used link, in the unit of the program.
            needs_row: (links,) links that need a row.

        Returns:
            position of each row of the old program in the new one; None where no row is new.
        """
        is_first = self._variable_units is None
        has_new_rows = bool((needs_row & ~self._has_row).any())
        has_new_coefficients = self._rules.minimises_utilisation and not np.array_equal(
            limit, self._theta_coefficients
        )
        if not (is_first or has_new_rows or has_new_coefficients):
            return None
        old_rows = self._has_row
        self._has_row = old_rows | needs_row
        self._build(rate, limit)
        if is_first or not has_new_rows:
            return None
        # Position of each link row in the new program; the rows of the demands follow them.
        new_row = np.cumsum(self._has_row) - 1
        num_link_rows = int(self._has_row.sum())
        return np.concatenate([new_row[old_rows], num_link_rows + np.arange(len(rate))])

    def _build(self, rate: Array, limit: Array) -> None:
        """Build the program with right-hand sides of 1: rows of links, then of demands.

        Args:
            rate: (m,) rate of each demand, in the unit of the program.
            limit: (links,) capacity of each used link, in the unit of the program.
        """
        rules = self._rules
        loads = self._loads[np.flatnonzero(self._has_row)]
        demand_rows = self._demand_rows
        cost = -self._problem.path_value.cpu().numpy().reshape(-1)[self._path]
        size = rate[self._variables.demand_row]
        if rules.minimises_utilisation:
            # The last variable is theta.
            theta = sp.csr_array(-limit[self._has_row][:, None])
            loads = sp.hstack([loads, theta], format="csr")
            demand_rows = sp.hstack([demand_rows, sp.csr_array((len(rate), 1))], format="csr")
            cost = np.append(np.zeros(len(cost)), 1.0)
            size = np.append(size, 1.0)
        # Later programs keep the units of the first one.
        if self._variable_units is not None:
            size = self._variable_units
        a_ub = loads if rules.carries_all else sp.vstack([loads, demand_rows], format="csr")
        a_eq = demand_rows if rules.carries_all else None
        b_eq = None if a_eq is None else np.ones(len(rate))
        program = LinearProgram(cost, sp.csr_array(a_ub), np.ones(a_ub.shape[0]), a_eq, b_eq)
        self._program, self._variable_units, self._row_units = program.scaled(size)
        self._cost_unit = program.cost_unit(self._variable_units)
        self._theta_coefficients = limit


def _all_variables(arrays: PathArrays, problem: Problem) -> PathVariables:
    """Return all paths of a problem as variables, also failed paths and paths of demands of 0."""
    exists = problem.ops.mask.cpu().numpy()
    num_demands = len(exists)
    num_links = problem.topology.num_links
    matrix = Matrix(arrays, np.ones(num_demands), np.ones(num_links), exists)
    return matrix.path_variables(np.ones(num_demands, bool))
