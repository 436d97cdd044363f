"""LP-all under side conditions: the linear program of :mod:`teal.problem.program`, over its columns
and rows.

    max sum v[d, j] x[d, j]  s.t.  sum a[r, d, j] x[d, j] <= limit[r],  sum_j x[d, j] <= demand[d],
    0 <= x[d, j] <= demand[d] largest[d, j],

under priority one such program a class, as in :mod:`baselines.lp_priority`.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp
import torch

from baselines.linear_program import LinearProgram, LpSettings, LpSolution
from baselines.lp_solver import solve_program
from baselines.matrix import Array, power_of_two
from teal.problem import Allocation, Problem, ProgramPrices, Status
from teal.problem.program import Program
from teal.problem.sets import Capped

# Relative tolerance of the flow of a higher class in the next LPs, for rounding.
_SLACK = 1e-9


def solve_under_conditions(problem: Problem, settings: LpSettings) -> Allocation:
    """Optimum of every matrix, with prices of links; under priority with those of the LP of every
    class.

    Args:
        problem: problem with side conditions, in float64.
        settings: settings of the LP solver.
    """
    count = 1 if problem.classes is None else len(problem.classes)
    prices = np.zeros((problem.batch, count, problem.topology.num_links))
    splits = torch.zeros_like(problem.even_splits)
    statuses = []
    build_s = []
    solve_s = []
    for b in range(problem.batch):
        begin = time.perf_counter()
        row = problem.row(b)
        # Solve the LPs of the classes in turn.
        lps = _Lps(
            row.rewritten.program,
            np.zeros(problem.paths.num_demands, int)
            if problem.classes is None
            else problem.classes.of_demand,
            is_ordered=problem.classes is not None,
        )
        status = lps.solve(prices[b], settings)
        if status.usable:
            splits[b] = row.rewritten.splits(lps.shares())[0]
        statuses.append(status)
        solve_s.append(lps.seconds)
        build_s.append(time.perf_counter() - begin - lps.seconds)
    # Gather the results of all matrices.
    of_programs = torch.from_numpy(prices).to(problem.demand)
    return Allocation(
        splits,
        of_programs[:, -1],
        tuple(statuses),
        tuple(build_s),
        tuple(solve_s),
        program_prices=None if problem.classes is None else ProgramPrices(of_programs),
    )


class _Lps:
    """The LPs of one matrix, one for each class of demands.

    Args:
        program: program of one matrix, Gbit/s.
        of_demand: (D,) class of each demand.
        is_ordered: whether flow counts instead of value, and higher classes keep theirs.

    Attributes:
        seconds: time of the solver so far.
    """

    def __init__(self, program: Program, of_demand: Array, *, is_ordered: bool) -> None:
        self._program = program
        self._is_ordered = is_ordered
        self._limit = program.limit[0].cpu().numpy()
        demand = program.demand[0].cpu().numpy()
        live = program.live[0].cpu().numpy()
        self._unit = (
            float(power_of_two(self._limit[self._limit > 0].mean()))
            if (self._limit > 0).any()
            else 1.0
        )
        # Columns of live paths with demand, and the demand and class of each.
        self._column = np.flatnonzero((live & (demand > 0)[:, None]).reshape(-1))
        self._demand_of = self._column // live.shape[1]
        self._class_of = of_demand[self._demand_of]
        # Rows of the program, then of the demands.
        rows = program.columns.incidence(len(self._limit))[:, self._column]
        demand_rows = sp.csr_array(
            (np.ones(len(self._column)), (self._demand_of, np.arange(len(self._column)))),
            shape=(len(demand), len(self._column)),
        )
        self._rows = sp.vstack([rows, demand_rows], format="csr")
        self._rhs = np.concatenate([self._limit, demand]) / self._unit
        # Values and upper bounds of the columns.
        self._value = program.value.expand(live.shape).cpu().numpy().reshape(-1)[self._column]
        largest = np.ones(len(self._column))
        if isinstance(program.demand_set, Capped):
            largest = program.demand_set.max_share[0].cpu().numpy().reshape(-1)[self._column]
        self._upper = largest * demand[self._demand_of] / self._unit
        # Flow of the last solution, and of each solved class.
        self._reached: list[float] = []
        self._flow = np.zeros(len(self._column))
        self.seconds = 0.0

    def solve(self, prices: Array, settings: LpSettings) -> Status:
        """Solve the LPs of all classes, until one has no usable solution; return the last status.

        Args:
            prices: (classes, E) receives the prices of the links.
            settings: settings of the LP solver.
        """
        status = Status.OPTIMAL
        for class_index in range(len(prices)):
            solution = solve_program(self.program(class_index), settings)
            self.take(class_index, solution)
            status = solution.status
            if not status.usable:
                break
            prices[class_index] = self.prices(solution)[: prices.shape[1]]
        return status

    def program(self, class_index: int) -> LinearProgram:
        """LP of a class, after those of the higher ones."""
        value = (self._class_of == class_index).astype(float) if self._is_ordered else self._value
        constraints = [
            sp.csr_array(-(self._class_of == higher_class).astype(float)[None])
            for higher_class in range(class_index)
        ]
        upper = np.where(self._class_of <= class_index, self._upper, 0.0)
        return LinearProgram(
            -value,
            sp.csr_array(sp.vstack([self._rows, *constraints])),
            np.concatenate([self._rhs, [-flow * (1 - _SLACK) for flow in self._reached]]),
            upper=upper,
            size=self._upper,
        )

    def take(self, class_index: int, solution: LpSolution) -> None:
        """Store the solution of a class's program."""
        self._flow = np.maximum(solution.x, 0)
        self.seconds = self.seconds + solution.seconds
        self._reached.append(float(self._flow[self._class_of == class_index].sum()))

    def prices(self, solution: LpSolution) -> Array:
        """(R,) dual prices of all rows."""
        return solution.dual[: len(self._limit)]

    def shares(self) -> torch.Tensor:
        """(1, D, J) shares of the last program."""
        demand = self._program.demand[0].cpu().numpy()
        shares = np.zeros(self._program.live[0].shape)
        shares.reshape(-1)[self._column] = self._flow * self._unit / demand[self._demand_of]
        return torch.from_numpy(shares)[None].to(self._program.demand)
