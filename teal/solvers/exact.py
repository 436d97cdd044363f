"""Exact linear programs of one matrix by HiGHS: small programs, and priority classes.

:func:`exact_program` solves a single program where kernels are not compiled, :func:`exact_classes`
the classes of priority beyond the accuracy of a first-order method: that solves the weighted
program of :mod:`teal.solvers.sequences.priority` to an accuracy relative to its total value, which
hides a class of a millionth of the volume.  Here the program of class c maximises that class alone,
and each higher class keeps its flow V_j as a constraint (:mod:`teal.problem.priority`):

    max sum of x over class c  s.t.  the rows of the program,  sum_j x[d, j] <= demand[d],
                                     sum of x over class j >= V_j (1 - 1e-9) for every higher class
                                     j.

The dual variables of the rows are the prices of the class's bound.  Since tolerances are absolute,
variables are shares of a demand's largest flow, and rows are divided by their right-hand sides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from teal.network import DemandClasses
from teal.problem.program import Program
from teal.problem.sets import Capped
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import solve_lp

MAX_COLUMNS = 20_000  # largest number of columns of all classes; HiGHS then takes seconds
# Relative slack of the constraints on V_j, so that rounding makes no program infeasible.
_CLASS_FLOW_SLACK = 1e-9


def exact_program(program: Program, seconds: float) -> tuple[Tensor, Tensor] | None:
    """Solve one program by HiGHS.

    Args:
        program: B = 1, in float64, with D demands of J columns and R rows: maximum value, smallest
            largest utilisation, or least cost.
        seconds: time limit of HiGHS.

    Returns:
        shares (1, D, J) of the columns and dual prices (1, R) of the rows; None if the time limit
        ended the solve.
    """
    if program.price_set.on_simplex:
        return _minimise_utilisation(program, seconds)
    if program.demand_set.carries_all:
        return _minimise_cost(program, seconds)
    # Value maximisation is the program of a single class that contains all demands.
    single_class_lp = _ClassPrograms(program, np.zeros(program.demand.shape[1], int))
    solution = single_class_lp.solve(0, seconds)
    if solution is None:
        return None
    return single_class_lp.shares(solution[0]), torch.from_numpy(solution[1])[None].to(
        program.demand
    )


def exact_classes(
    program: Program, classes: DemandClasses, deadline: Deadline
) -> tuple[Tensor, Tensor] | None:
    """Maximise the flow of each class in turn by HiGHS, with the flows of higher classes fixed.

    Args:
        program: B = 1, in float64, with D demands of J columns and R rows.
        classes: C classes of its demands.
        deadline: deadline of all programs.

    Returns:
        shares (1, D, J) of the columns, and prices (1, C, R) of the rows for each class; None after
        the deadline.
    """
    class_lps = _ClassPrograms(program, classes.of_demand, is_ordered=True)
    prices = np.zeros((len(classes), len(class_lps.limit)))
    flows = np.zeros(len(class_lps.column_index))
    for class_index in range(len(classes)):
        solution = None if deadline.is_over else class_lps.solve(class_index, deadline.remaining_s)
        if solution is None:
            return None
        flows, prices[class_index] = solution
    return class_lps.shares(flows), torch.from_numpy(prices)[None].to(program.demand)


class _CarryAllProgram(NamedTuple):
    """Sparse rows and columns of a program of one matrix that must carry all routable demand.

    Attributes:
        column_index: (n,) indices d J + j of the usable columns of positive demands.
        rate: (n,) demand of each column, Gbit/s.
        row_index: (m,) indices of the rows with a positive limit.
        relative_load: (m, n) load on each row if a column carries its whole demand, over the row's limit.
        demand_rows: (served demands, n) 1 where a column belongs to a demand.
    """

    column_index: Int64Array
    rate: FloatArray
    row_index: Int64Array
    relative_load: sp.csr_array
    demand_rows: sp.csr_array

    @classmethod
    def from_program(cls, program: Program) -> _CarryAllProgram:
        """Return the sparse rows and columns of a program of one matrix."""
        # Usable columns, their demands, and rows that can carry load.
        limit = program.limit[0].cpu().numpy()
        demand = program.routable_demand[0].cpu().numpy()
        is_usable = program.live[0].cpu().numpy() & (demand > 0)[:, None]
        column_index = np.flatnonzero(is_usable.reshape(-1))
        column_demand = column_index // is_usable.shape[1]
        served_demands = np.flatnonzero(is_usable.any(1))
        row_index = np.flatnonzero(limit > 0)
        # Coefficients of the usable rows and columns, and the position of each column's demand.
        coefficients = sp.csr_array(program.columns.incidence(len(limit)))[row_index][
            :, column_index
        ]
        rate = demand[column_demand]
        demand_row = np.searchsorted(served_demands, column_demand)
        return cls(
            column_index,
            rate,
            row_index,
            sp.csr_array(
                sp.diags_array(1 / limit[row_index]) @ coefficients @ sp.diags_array(rate)
            ),
            sp.csr_array((np.ones(len(column_index)), (demand_row, np.arange(len(column_index))))),
        )

    def expand_solution(
        self, program: Program, column_share: FloatArray, scaled_price: FloatArray
    ) -> tuple[Tensor, Tensor]:
        """Convert a solution to shares (1, D, J) of the columns and prices (1, R) of the rows.

        Args:
            program: the program.
            column_share: (n,) share of each usable column.
            scaled_price: (m,) price of each usable row, times its limit.
        """
        limit = program.limit[0].cpu().numpy()
        shares = np.zeros(tuple(program.live.shape[1:]))
        prices = np.zeros(len(limit))
        shares.reshape(-1)[self.column_index] = np.maximum(column_share, 0)
        prices[self.row_index] = scaled_price / limit[self.row_index]
        return torch.from_numpy(shares)[None].to(program.demand), torch.from_numpy(prices)[None].to(
            program.demand
        )


def _minimise_utilisation(program: Program, seconds: float) -> tuple[Tensor, Tensor] | None:
    """Minimise the largest utilisation theta of a program by HiGHS.

        min theta   s.t.   load[r] <= theta limit[r],   all demand served.

    The dual variables of the rows, which sum to 1, are prices times limits.

    Args:
        program: B = 1, in float64, with D demands of J columns and R rows.
        seconds: time limit of HiGHS.

    Returns:
        shares (1, D, J) and prices (1, R); None if the time limit ended the solve.
    """
    # Without routable demand the optimum is 0, without flow.
    if not bool((program.routable_demand > 0).any()):
        return torch.zeros_like(program.live.to(program.demand)), torch.zeros_like(program.limit)
    sparse_program = _CarryAllProgram.from_program(program)
    num_demands = len(sparse_program.demand_rows.indptr) - 1
    num_rows = len(sparse_program.row_index)
    # The last column is theta: minimise it under load - theta <= 0 and sum of shares = 1.
    solution = solve_lp(
        np.append(np.zeros(len(sparse_program.column_index)), 1),
        (
            sp.hstack([sparse_program.relative_load, -np.ones((num_rows, 1))], format="csr"),
            np.zeros(num_rows),
        ),
        (
            sp.hstack([sparse_program.demand_rows, sp.csr_array((num_demands, 1))], format="csr"),
            np.ones(num_demands),
        ),
        seconds=seconds,
    )
    if solution.x is None or not solution.is_solved:
        return None
    return sparse_program.expand_solution(program, solution.x[:-1], solution.duals)


def _minimise_cost(program: Program, seconds: float) -> tuple[Tensor, Tensor] | None:
    """Minimise the cost of serving all demand within the limits of the rows, by HiGHS.

        min cost' x   s.t.   load[r] <= limit[r],   all demand served.

    Args:
        program: B = 1, in float64, with D demands of J columns and R rows.
        seconds: time limit of HiGHS.

    Returns:
        shares (1, D, J) and prices (1, R); None if the time limit ended the solve.
    """
    # Without routable demand the optimum is 0, without flow.
    if not bool((program.routable_demand > 0).any()):
        return torch.zeros_like(program.live.to(program.demand)), torch.zeros_like(program.limit)
    sparse_program = _CarryAllProgram.from_program(program)
    column_value = program.value.expand(program.live.shape[1:]).cpu().numpy().reshape(-1)
    # Costs are scaled to at most 1 for HiGHS's absolute tolerances.
    cost = -column_value[sparse_program.column_index] * sparse_program.rate
    cost_unit = float(cost.max(initial=0.0)) or 1.0
    solution = solve_lp(
        cost / cost_unit,
        (sparse_program.relative_load, np.ones(len(sparse_program.row_index))),
        (sparse_program.demand_rows, np.ones(len(sparse_program.demand_rows.indptr) - 1)),
        seconds=seconds,
    )
    if solution.x is None or not solution.is_solved:
        return None
    return sparse_program.expand_solution(program, solution.x, solution.duals * cost_unit)


class _ClassPrograms:
    """Linear programs of one matrix, one per class, with common rows and columns.

    Variables are flows over the largest flow of their demand (its unit), rows are divided by their
    limits.

    Args:
        program: B = 1, in float64, with D demands of J columns and R rows.
        class_of_demand: (D,) index of the class of each demand.
        is_ordered: whether to maximise flow instead of value, with the flow of higher classes
            fixed.

    Attributes:
        limit: (R,) limits of the rows, Gbit/s.
        column_index: (n,) indices d J + j of the usable columns of positive demands.
        demand_of_column: (n,) demand index of each column.
    """

    def __init__(
        self, program: Program, class_of_demand: IntArray, *, is_ordered: bool = False
    ) -> None:
        self._program = program
        self.limit = program.limit[0].cpu().numpy()
        demand = program.demand[0].cpu().numpy()
        is_live = program.live[0].cpu().numpy()
        # (D, J) largest flow of each column, Gbit/s: smallest limit of its rows, 0 for dead columns.
        bottleneck = -program.columns.path_max(-program.limit)[0][0].cpu().numpy()
        path_capacity = np.where(is_live, bottleneck, 0)
        # Upper bounds of the columns, Gbit/s.  Infinite without caps: a bound that a row implies
        # would take over part of the row's dual variable.
        max_flow = np.full(is_live.shape, np.inf)
        if isinstance(program.demand_set, Capped):
            max_flow = demand[:, None] * program.demand_set.max_share[0].cpu().numpy()
            path_capacity = np.minimum(path_capacity, max_flow)
        # Unit of each demand: its largest flow, Gbit/s.
        demand_unit = np.minimum(demand, path_capacity.sum(1))
        # Usable columns, with unit, upper bound (over the unit) and class of their demand.
        self.column_index = np.flatnonzero((is_live & (demand_unit > 0)[:, None]).reshape(-1))
        self.demand_of_column = self.column_index // is_live.shape[1]
        self._column_unit = demand_unit[self.demand_of_column]
        self._upper_bound = max_flow.reshape(-1)[self.column_index] / self._column_unit
        self._class_of_column = class_of_demand[self.demand_of_column]
        # Objective (flow or value), and rows scaled to a right-hand side of 1.
        value = program.value.expand(is_live.shape).cpu().numpy().reshape(-1)[self.column_index]
        self._objective = np.ones(len(self.column_index)) if is_ordered else value
        self._reciprocal_limit = np.where(
            self.limit > 0, 1 / np.where(self.limit > 0, self.limit, 1), 0
        )
        coefficients = program.columns.incidence(len(self.limit))[:, self.column_index]
        scaled_rows = sp.csr_array(
            sp.diags_array(self._reciprocal_limit)
            @ coefficients
            @ sp.diags_array(self._column_unit)
        )
        # Right-hand side of each demand's row: the demand over its unit.  A demand with one column
        # gets an upper bound in place of a row, which takes a tenth of the time on UsCarrier.
        scaled_demand = np.where(
            demand_unit > 0, demand / np.where(demand_unit > 0, demand_unit, 1), 1
        )
        column_count = np.bincount(self.demand_of_column, minlength=len(demand))
        is_only_column = column_count[self.demand_of_column] == 1
        self._upper_bound = np.where(
            is_only_column,
            np.minimum(self._upper_bound, scaled_demand[self.demand_of_column]),
            self._upper_bound,
        )
        # Rows that all flows together cannot fill are dropped.
        self._fillable_rows = np.flatnonzero(
            scaled_rows @ np.minimum(self._upper_bound, scaled_demand[self.demand_of_column]) > 1
        )
        # A row for each demand with several columns.
        multi_column_demands = np.flatnonzero(column_count > 1)
        demand_row = np.zeros(len(demand), int)
        demand_row[multi_column_demands] = np.arange(len(multi_column_demands))
        demand_row_columns = np.flatnonzero(~is_only_column)
        demand_rows = sp.csr_array(
            (
                np.ones(len(demand_row_columns)),
                (demand_row[self.demand_of_column[demand_row_columns]], demand_row_columns),
            ),
            shape=(len(multi_column_demands), len(self.column_index)),
        )
        # Constraints rows @ x <= rhs; the solve of each class appends one.
        self._constraint_rows = [scaled_rows[self._fillable_rows], demand_rows]
        self._rhs = [np.ones(len(self._fillable_rows)), scaled_demand[multi_column_demands]]

    def shares(self, flows: FloatArray) -> Tensor:
        """Return the shares (1, D, J) of all columns for flows (n,) of the usable ones, Gbit/s."""
        demand = self._program.demand[0].cpu().numpy()
        shares = np.zeros(tuple(self._program.live.shape[1:]))
        shares.reshape(-1)[self.column_index] = flows / demand[self.demand_of_column]
        return torch.from_numpy(shares)[None].to(self._program.demand)

    def solve(
        self, class_index: int, seconds: float = math.inf
    ) -> tuple[FloatArray, FloatArray] | None:
        """Solve the program of a class, and fix its flow for the programs of lower classes.

        Args:
            class_index: index of the class; higher classes must be solved before.
            seconds: time limit of HiGHS.

        Returns:
            flows (n,) of the columns, Gbit/s, and prices (R,) of the rows; None if the time limit
            ended the solve.
        """
        # The objective is divided by the sum of the columns' units, so that it is about 1.
        is_in_class = self._class_of_column == class_index
        objective_unit = max(float(self._column_unit[is_in_class].sum()), np.finfo(float).tiny)
        if not len(self.column_index):
            return np.zeros(0), np.zeros(len(self.limit))
        # Columns of lower classes have the upper bound 0.
        solution = solve_lp(
            -np.where(is_in_class, self._column_unit, 0) / objective_unit * self._objective,
            (sp.vstack(self._constraint_rows, format="csr"), np.concatenate(self._rhs)),
            high=np.where(self._class_of_column <= class_index, self._upper_bound, 0),
            seconds=seconds,
        )
        if solution.x is None or not solution.is_solved:
            return None
        # Constrain the flow of this class in the next programs: at least V (1 - 1e-9).
        flows = np.maximum(solution.x, 0) * self._column_unit
        class_flow = float(flows[is_in_class].sum())
        if class_flow > 0:
            self._constraint_rows.append(
                sp.csr_array(-np.where(is_in_class, self._column_unit / class_flow, 0)[None])
            )
            self._rhs.append(np.array([_CLASS_FLOW_SLACK - 1]))
        # Prices: duals of the capacity rows, which come first, without the scaling of objective and
        # rows.
        prices = np.zeros(len(self.limit))
        row_index = self._fillable_rows
        prices[row_index] = (
            solution.duals[: len(row_index)] * objective_unit * self._reciprocal_limit[row_index]
        )
        return flows, prices
