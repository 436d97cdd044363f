"""Programs of one matrix by HiGHS: small ones where no kernel has been compiled, and priority
classes beyond a first-order method's accuracy.

A first-order method solves the weighted program of :mod:`teal.solvers.sequences.priority` to an
accuracy relative to all of its value, of which a class of a millionth of the volume is a millionth.
The program of class c here has that class alone as its objective, and each higher class keeps its
flow V_j as a constraint, as in :mod:`teal.problem.priority`:

    max sum of x over class c  s.t.  the rows of the program,  sum_j x[d, j] <= demand[d],
                                     sum of x over class j >= V_j (1 - 1e-9) for every higher class j.

Its dual variables of the rows are the prices that prove the bound of the class.  Solvers have
absolute tolerances, so that variables are shares of what a demand can have, and rows shares of
their right-hand sides.
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

MAX_COLUMNS = 20_000  # of all classes, up to which this is tried; HiGHS then takes seconds
# Share of V_j by which later programs may fall short of it, so that rounding makes none infeasible.
_PROMISE_SLACK = 1e-9


def exact_program(program: Program, seconds: float) -> tuple[Tensor, Tensor] | None:
    """Shares (1, D, J) and prices (1, R) of the optimum of one program; None if it was not solved
    in time.

    Args:
        program: B = 1, in float64: of values, of the largest utilisation, or of the least cost.
        seconds: time that HiGHS may take.
    """
    if program.price_set.on_simplex:
        return _exact_balance(program, seconds)
    if program.demand_set.carries_all:
        return _exact_cost(program, seconds)
    lps = _ExactLps(program, np.zeros(program.demand.shape[1], int))
    solved = lps.solve(0, seconds)
    if solved is None:
        return None
    return lps.shares(solved[0]), torch.from_numpy(solved[1])[None].to(program.demand)


def exact_classes(
    program: Program, classes: DemandClasses, end: Deadline
) -> tuple[Tensor, Tensor] | None:
    """Shares (1, D, J) of all classes and prices (1, C, R) of each program; None if one was not
    solved in time.

    Args:
        program: B = 1, in float64.
        classes: classes of its demands.
        end: deadline of all programs.
    """
    lps = _ExactLps(program, classes.of_demand, is_ordered=True)
    prices, flows = np.zeros((len(classes), len(lps.limit))), np.zeros(len(lps.column))
    for number in range(len(classes)):
        solved = None if end.is_over else lps.solve(number, end.left)
        if solved is None:
            return None
        flows, prices[number] = solved
    return lps.shares(flows), torch.from_numpy(prices)[None].to(program.demand)


class _CarryingAll(NamedTuple):
    """The rows and columns of a program that carries all routable demand.

    Attributes:
        column: (n,) numbers d J + j of the columns that demands above 0 may use.
        rate: (n,) Gbit/s of the demand of each.
        links: (m,) rows with a limit above 0.
        load: (m, n) what a whole demand on a column puts on a row, over its limit.
        served: (demands, n) 1 where a column belongs to a demand.
    """

    column: Int64Array
    rate: FloatArray
    links: Int64Array
    load: sp.csr_array
    served: sp.csr_array

    @classmethod
    def of(cls, program: Program) -> _CarryingAll:
        """The rows and columns of one matrix."""
        limit, demand = program.limit[0].cpu().numpy(), program.routable_demand[0].cpu().numpy()
        live = program.live[0].cpu().numpy() & (demand > 0)[:, None]
        column = np.flatnonzero(live.reshape(-1))
        demand_of, carried = column // live.shape[1], np.flatnonzero(live.any(1))
        links = np.flatnonzero(limit > 0)
        rows = sp.csr_array(program.columns.incidence(len(limit)))[links][:, column]
        rate = demand[demand_of]
        row_of = np.searchsorted(carried, demand_of)
        return cls(
            column,
            rate,
            links,
            sp.csr_array(sp.diags_array(1 / limit[links]) @ rows @ sp.diags_array(rate)),
            sp.csr_array((np.ones(len(column)), (row_of, np.arange(len(column))))),
        )

    def found(
        self, program: Program, share: FloatArray, price: FloatArray
    ) -> tuple[Tensor, Tensor]:
        """Shares (1, D, J) and prices (1, R) of the program.

        Args:
            program: the program.
            share: (n,) of each column.
            price: (m,) of each row, times its limit.
        """
        limit = program.limit[0].cpu().numpy()
        shares, prices = np.zeros(tuple(program.live.shape[1:])), np.zeros(len(limit))
        shares.reshape(-1)[self.column] = np.maximum(share, 0)
        prices[self.links] = price / limit[self.links]
        return torch.from_numpy(shares)[None].to(program.demand), torch.from_numpy(prices)[None].to(
            program.demand
        )


def _exact_balance(program: Program, seconds: float) -> tuple[Tensor, Tensor] | None:
    """:func:`exact_program` of the largest utilisation: min theta s.t. load[r] <= theta limit[r],
    all demand carried.

    The dual variables of the rows, shares of utilisation that sum to 1, are the prices times the
    limits.
    """
    if not bool((program.routable_demand > 0).any()):
        return torch.zeros_like(program.live.to(program.demand)), torch.zeros_like(program.limit)
    of = _CarryingAll.of(program)
    count, links = len(of.served.indptr) - 1, len(of.links)
    solution = solve_lp(
        np.append(np.zeros(len(of.column)), 1),
        (sp.hstack([of.load, -np.ones((links, 1))], format="csr"), np.zeros(links)),
        (sp.hstack([of.served, sp.csr_array((count, 1))], format="csr"), np.ones(count)),
        seconds=seconds,
    )
    if solution.x is None or not solution.is_solved:
        return None
    return of.found(program, solution.x[:-1], solution.duals)


def _exact_cost(program: Program, seconds: float) -> tuple[Tensor, Tensor] | None:
    """:func:`exact_program` of the least cost: min cost' x s.t. load[r] <= limit[r], all demand
    carried.
    """
    if not bool((program.routable_demand > 0).any()):
        return torch.zeros_like(program.live.to(program.demand)), torch.zeros_like(program.limit)
    of = _CarryingAll.of(program)
    value = program.value.expand(program.live.shape[1:]).cpu().numpy().reshape(-1)
    cost = -value[of.column] * of.rate
    unit = float(cost.max(initial=0.0)) or 1.0
    solution = solve_lp(
        cost / unit,
        (of.load, np.ones(len(of.links))),
        (of.served, np.ones(len(of.served.indptr) - 1)),
        seconds=seconds,
    )
    if solution.x is None or not solution.is_solved:
        return None
    return of.found(program, solution.x, solution.duals * unit)


class _ExactLps:
    """The linear program of one matrix, or those of all classes, which share rows and columns.

    Args:
        program: B = 1, in float64.
        class_of_demand: (D,) number of the class of each demand.
        is_ordered: whether flow counts instead of value, and higher classes keep theirs.

    Attributes:
        limit: (R,) of the rows, Gbit/s.
        column: (n,) numbers d J + j of the columns that demands above 0 may use.
        demand_of: (n,) demand of each.
    """

    def __init__(
        self, program: Program, class_of_demand: IntArray, *, is_ordered: bool = False
    ) -> None:
        self._program = program
        self.limit, demand = program.limit[0].cpu().numpy(), program.demand[0].cpu().numpy()
        live = program.live[0].cpu().numpy()
        bottleneck = -program.columns.path_max(-program.limit)[0][0].cpu().numpy()
        carried = np.where(live, bottleneck, 0)
        largest = np.full(
            live.shape, np.inf
        )  # Gbit/s; a bound that a row implies would take the row's dual variable
        if isinstance(program.demand_set, Capped):
            largest = demand[:, None] * program.demand_set.max_share[0].cpu().numpy()
            carried = np.minimum(carried, largest)
        unit = np.minimum(demand, carried.sum(1))  # Gbit/s that a demand can have
        self.column = np.flatnonzero((live & (unit > 0)[:, None]).reshape(-1))
        self.demand_of = self.column // live.shape[1]
        self._size = unit[self.demand_of]
        self._upper = largest.reshape(-1)[self.column] / self._size
        self._class_of = class_of_demand[self.demand_of]
        value = program.value.expand(live.shape).cpu().numpy().reshape(-1)[self.column]
        self._value = np.ones(len(self.column)) if is_ordered else value
        self._inverse = np.where(self.limit > 0, 1 / np.where(self.limit > 0, self.limit, 1), 0)
        rows = program.columns.incidence(len(self.limit))[:, self.column]
        scaled = sp.csr_array(sp.diags_array(self._inverse) @ rows @ sp.diags_array(self._size))
        # The row of a demand with one column is a bound, and the row of a link that all flows
        # together do not fill is none: a tenth of the time on UsCarrier.
        most = np.where(
            unit > 0, demand / np.where(unit > 0, unit, 1), 1
        )  # of each demand, in shares of its unit
        columns_of = np.bincount(self.demand_of, minlength=len(demand))
        is_alone = columns_of[self.demand_of] == 1
        self._upper = np.where(is_alone, np.minimum(self._upper, most[self.demand_of]), self._upper)
        self._link_rows = np.flatnonzero(scaled @ np.minimum(self._upper, most[self.demand_of]) > 1)
        several = np.flatnonzero(columns_of > 1)
        row_of = np.zeros(len(demand), int)
        row_of[several] = np.arange(len(several))
        shared = np.flatnonzero(~is_alone)
        served = sp.csr_array(
            (np.ones(len(shared)), (row_of[self.demand_of[shared]], shared)),
            shape=(len(several), len(self.column)),
        )
        self._rows = [scaled[self._link_rows], served]
        self._right = [np.ones(len(self._link_rows)), most[several]]

    def shares(self, flows: FloatArray) -> Tensor:
        """(1, D, J) of flows (n,), Gbit/s."""
        demand, shares = (
            self._program.demand[0].cpu().numpy(),
            np.zeros(tuple(self._program.live.shape[1:])),
        )
        shares.reshape(-1)[self.column] = flows / demand[self.demand_of]
        return torch.from_numpy(shares)[None].to(self._program.demand)

    def solve(self, number: int, seconds: float = math.inf) -> tuple[FloatArray, FloatArray] | None:
        """Flows (n,), Gbit/s, and prices (R,) of the program of a class, after those of the higher
        ones.

        None if it was not solved, or not in so many seconds.
        """
        is_own = self._class_of == number
        volume = max(float(self._size[is_own].sum()), np.finfo(float).tiny)
        if not len(self.column):
            return np.zeros(0), np.zeros(len(self.limit))
        solution = solve_lp(
            -np.where(is_own, self._size * self._value / volume, 0),
            (sp.vstack(self._rows, format="csr"), np.concatenate(self._right)),
            high=np.where(self._class_of <= number, self._upper, 0),
            seconds=seconds,
        )
        if solution.x is None or not solution.is_solved:
            return None
        flows = np.maximum(solution.x, 0) * self._size
        reached = float(flows[is_own].sum())
        if reached > 0:
            self._rows.append(sp.csr_array(-np.where(is_own, self._size / reached, 0)[None]))
            self._right.append(np.array([_PROMISE_SLACK - 1]))
        prices, links = np.zeros(len(self.limit)), self._link_rows
        prices[links] = solution.duals[: len(links)] * volume * self._inverse[links]
        return flows, prices
