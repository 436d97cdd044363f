"""The program that engines solve in place of the one that was asked for, and the way back.

Equal programs in other numbers: demand and capacity that nothing can use are left out
(:attr:`teal.problem.Problem.usable`); where magnitudes are far from 1, the unit of Gbit/s (for each
matrix) and the unit of value are multiplied by a power of two, which changes no digit; in value
maximisation links so narrow that nothing they carry counts are closed, at a price at which no path
over them is worth using.

The engine for programs whose magnitudes span many decades: the plain engine with step sizes of
their own for paths.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.  The step sizes of the other engines are
one a demand, set by its narrowest path: where one path of a demand is a million times narrower than
another, the wide one fills a million times too slowly.  Here the diagonal preconditioner of Pock &
Chambolle (2011, lemma 2) is applied after scaling each variable by the magnitude that it can have
in an optimum:

    a[d, k] = min(1, S b[d, k] / demand[d])      largest share that a path can carry, b its bottleneck (S = 1 for value
                                                 maximisation: the utilisation of a link is at most 1);
    r[e]    = c[e] V / S for value maximisation: y if the price is V, the largest value of a Gbit/s;
              min(c[e], load[e] / S), over the largest of them, for a balanced program, load with all shares at a;
    h[d, k] = sum of r / c along the path / a[d, k],        m[e] = sum of demand a / c over the paths / r[e].

S of a balanced program is the largest utilisation if each demand is split in proportion to the
bottlenecks of its paths.  The primal weight starts at 1, since all magnitudes are 1 after scaling.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.problem import Problem, dual_bound
from teal.problem.bounds import gap, usable_prices
from teal.solvers.pdhg.dense import DenseEngine, Point, Scaling, start, total_value
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, Stop

MAX_CAPACITY_RATIO = 1e4  # largest over smallest capacity, and demand over smallest capacity
_MIN_DIVISOR = 1e-300  # instead of 0 as a divisor


def spans_decades(problem: Problem) -> Tensor:
    """(B,) bool: whether the magnitudes of a matrix differ by more than the other engines' step
    sizes can follow.
    """
    live = problem.capacity > 0
    largest = torch.where(live, problem.capacity, 0).amax(1)
    smallest = torch.where(live, problem.capacity, torch.inf).amin(1)
    if not problem.demand.shape[1]:
        return largest > MAX_CAPACITY_RATIO * smallest
    return (largest > MAX_CAPACITY_RATIO * smallest) | (
        problem.demand.amax(1) > MAX_CAPACITY_RATIO * smallest
    )


def equilibrated_scaling(problem: Problem) -> Scaling:
    """The constants above, for a program in float64."""
    demand, bottleneck = problem.demand[..., None], problem.bottleneck
    on_simplex = problem.price_set.on_simplex
    total = (
        problem.utilisation(_in_proportion(bottleneck)).amax(1)
        if on_simplex
        else total_value(problem)
    )
    scale = torch.where(total > 0, total, 1)[:, None]
    load_scale = scale if on_simplex else torch.ones_like(scale)
    if not on_simplex:
        flow = torch.minimum(demand, bottleneck)
        if problem.largest_share is not None:
            flow = torch.minimum(flow, demand * problem.largest_share)
        dual_size = problem.capacity * problem.path_value.amax() / scale
    else:
        flow = torch.minimum(demand, scale[..., None] * bottleneck)
        carried = torch.minimum(problem.capacity, problem.ops.link_sum(flow) / scale)
        dual_size = (carried / carried.amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)).clamp(
            min=1e-30
        )
    largest_share = torch.where(
        demand > 0, flow / demand.clamp(min=_MIN_DIVISOR), problem.path_mask.to(demand)
    )
    inverse_sum = problem.ops.path_sum(dual_size * problem.inverse_capacity) / largest_share.clamp(
        min=_MIN_DIVISOR
    )
    full = (
        problem.ops.link_sum(problem.flows(largest_share))
        * problem.inverse_capacity
        / dual_size.clamp(min=_MIN_DIVISOR)
    )
    full = full / load_scale
    return Scaling(
        objective_scale=scale,
        inverse_capacity_sum=torch.where(problem.path_mask & (inverse_sum > 0), inverse_sum, 1),
        full_path_utilisation=torch.where(full > 0, full, 1e-30),
        load_scale=load_scale,
        largest_share=largest_share,
        dual_size=dual_size,
    )


def _in_proportion(shares: Tensor) -> Tensor:
    """(B, D, K) ``shares`` scaled to a sum of 1 for each demand; 0 where all are 0."""
    return shares / shares.sum(-1, keepdim=True).clamp(min=_MIN_DIVISOR)


class EquilibratedEngine(PlainEngine):
    """PDHG with step sizes for each path: a :class:`teal.solvers.pdhg.engine.PdhgEngine`; always in
    float64.
    """

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        self._problem = exact = problem.solved.to(torch.float64)
        self._scale = scale = equilibrated_scaling(exact)
        DenseEngine.__init__(self, exact, scale.price_scale)
        self._begin(self._first_point(state), torch.ones_like(exact.capacity[:, 0]))

    def _first_point(self, state: PdhgState | None) -> Point:
        """``state`` with shares that the paths can carry; without one, in a balanced program,
        shares in proportion.
        """
        exact, largest_share = self._problem, self._scale.largest_share
        point = start(exact, self._scale, state)
        splits = torch.minimum(point.splits, largest_share)
        if exact.demand_set.carries_all:
            has_splits = splits.sum(-1, keepdim=True) > 0
            shares = (
                torch.where(has_splits, splits, exact.bottleneck)
                if state is not None
                else exact.bottleneck
            )
            splits = _in_proportion(shares)
        return Point(splits, point.dual)


_ORDINARY_MAGNITUDES = (
    2.0**-20,
    2.0**40,
)  # largest capacity (Gbit/s) and value of a Gbit/s between which units stay as they are
# Capacity over the largest one below which a link is closed: 2^-80 is 1e-24, far below every gap
# that float64 can certify, and keeps 1 / capacity within the range of the engines.
_CLOSED_CAPACITY_RATIO = 2.0**-80
_PRICE_ROUNDING = 1e-14  # of a sum of prices along a path, over the largest value of a Gbit/s
_GAP_ROUNDING = 1e-6  # of a target gap, for the rounding of value and bound
# rounds of the projection to the original program, which also hand out the capacity of closed links
_REFILL_ROUNDS = 3


def has_ordinary_numbers(problem: Problem) -> bool:
    """Whether capacities of links that have not failed and demands lie within four decades of the
    smallest such capacity, and units are ordinary.
    """
    if problem.is_empty:
        return False
    numbers = problem.extremes
    low, high = _ORDINARY_MAGNITUDES
    smallest = numbers.smallest_live_capacity
    largest = max(numbers.largest_capacity, numbers.largest_demand)
    return (
        low <= smallest < math.inf
        and largest <= min(high, MAX_CAPACITY_RATIO * smallest)
        and (problem.price_set.on_simplex or low <= numbers.largest_value <= high)
    )


def is_ordinary(problem: Problem) -> bool:
    """Whether a few sums show that there is nothing to reduce, nor any need of the equilibrated
    engine.

    Numbers are ordinary, and no link is wider than the sum of a matrix's demands; of those that
    have a path left, where a link has failed.  On small networks all else would take a tenth of a
    solve.
    """
    if not has_ordinary_numbers(problem):
        return False
    numbers = problem.extremes
    return numbers.largest_capacity <= numbers.least_total and (
        numbers.smallest_capacity > 0
        or numbers.largest_capacity <= float(problem.routable_demand.sum(1).min())
    )


class Reduction:
    """The reduced program of ``original``, and what leads back.

    Attributes:
        original: the program that was asked for.
        problem: the reduced one; ``original`` itself where there is nothing to reduce.
    """

    def __init__(self, original: Problem) -> None:
        self.original = original
        self.problem = usable = original.usable
        largest = usable.capacity.amax(1) if usable.topology.num_links else torch.ones(usable.batch)
        value = usable.demand_value.amax() if len(usable.demand_value) else torch.ones(())
        self._unit, self._value_unit = _unit(largest)[:, None], _unit(value)
        demand_unit = (
            self._unit
        )  # of a balanced program, whose utilisations may have any scale, chosen separately
        if usable.price_set.on_simplex and usable.demand.shape[1]:
            demand_unit = _unit(usable.demand.amax(1))[:, None]
        closing = (usable.capacity > 0) & (
            usable.capacity < _CLOSED_CAPACITY_RATIO * largest[:, None]
        )
        # In a balanced program such a link may be the only way of a demand, and then decides the
        # optimum. Under a utility every demand with a path must have a share.
        self._closed = closing & (not usable.demand_set.carries_all and usable.utility is None)
        if (
            bool((self._unit != 1).any())
            or bool((demand_unit != 1).any())
            or bool(self._value_unit != 1)
            or bool(self._closed.any())
        ):
            exact = usable.to(torch.float64)
            self.problem = dataclasses.replace(
                exact,
                demand=exact.demand / demand_unit,
                capacity=torch.where(self._closed, 0, exact.capacity) / self._unit,
                demand_value=exact.demand_value / self._value_unit,
                link_cost=exact.link_cost / self._value_unit,
            )
        # If capacities alone were reduced, what fits the reduced program fits the original one too.
        self._only_capacity = self.problem is usable and usable.demand is original.demand

    def reduced(self, state: PdhgState | None) -> PdhgState | None:
        """A starting point of the original program as one of the reduced program."""
        if state is None or self.problem is self.original:
            return state
        return PdhgState(state.splits / self._share(), state.prices / self._price_unit())

    def result(self, reduced: PdhgResult, target_gap: float) -> PdhgResult:
        """A result of the reduced program as one of the original program, measured there."""
        if self.problem is self.original:  # also where `usable` had nothing to leave out
            return reduced
        exact = self.original.to(torch.float64)
        if self._only_capacity:
            splits, last_splits = reduced.splits, reduced.state.splits
        else:
            share = self._share()
            splits, last_splits = (
                project(exact, reduced.splits * share, _REFILL_ROUNDS),
                reduced.state.splits * share,
            )
        prices = reduced.prices * self._price_unit()
        if not exact.price_set.on_simplex:
            # A link that was closed gets the price at which no path over it is worth using.
            prices = torch.where(self._closed, exact.demand_value.amax(), prices)
            # Then prices that also prove something of demand and capacity that were left out; no
            # price above the largest value (the 1.0) proves more.
            prices = _prices_of_all(exact, usable_prices(exact, prices, most=1.0))
        prices = usable_prices(exact, prices)  # whose sums are finite
        value, bound = exact.value(splits), dual_bound(exact, prices)
        state = PdhgState(last_splits, reduced.state.prices * self._price_unit())
        gaps = gap(exact, value, bound)
        # A gap that was reached in the reduced program and not here is lost to rounding.
        stopped_by = tuple(
            Stop.ROUNDING
            if stop is Stop.GAP and not gap_here <= target_gap * (1 + _GAP_ROUNDING)
            else stop
            for stop, gap_here in zip(reduced.stopped_by, gaps.tolist(), strict=True)
        )
        return dataclasses.replace(
            reduced,
            splits=splits,
            prices=prices,
            value=value,
            bound=bound,
            gap=gaps,
            state=state,
            stopped_by=stopped_by,
        )

    def _share(self) -> Tensor:
        """(B, D, 1) usable share of each demand."""
        demand, usable = (
            self.original.demand.to(torch.float64),
            self.original.usable.demand.to(torch.float64),
        )
        return torch.where(demand > 0, usable / demand, 1)[..., None]

    def _price_unit(self) -> Tensor:
        """(B, 1) price of the original program over that of the reduced one."""
        return (
            1 / self._unit
            if self.problem.price_set.on_simplex
            else self._value_unit.expand_as(self._unit)
        )


def _prices_of_all(problem: Problem, prices: Tensor) -> Tensor:
    """(B, E) prices that prove for all demand and capacity at least what ``prices`` prove for the
    usable ones.

    A link wider than the sum of all usable demands becomes free: that raises profits by at most
    demand times price, in sum no more than the value of its usable capacity.  Of a demand larger
    than its paths can carry, the price of each path's bottleneck rises by the path's profit, which
    adds bottleneck times profit for each path and takes away demand times the largest profit.
    Where values fall in steps, that is the profit in the step of the last usable Gbit/s: later
    steps have none then, and what earlier ones have beyond it stays.
    """
    prices = torch.where(problem.capacity > problem.usable.capacity, 0, prices)
    if problem.demand is problem.usable.demand:  # no demand was limited: the first step is all
        return prices
    exceeds = (problem.demand > problem.bottleneck.sum(-1)) & problem.routable
    value = problem.path_value
    if (steps := problem.usable.steps) is not None:
        value = value - (problem.demand_value * (1 - steps.last_level().to(prices)))[..., None]
    profit = torch.where(problem.path_mask, value - problem.ops.path_sum(prices), 0)
    profit = torch.where(exceeds[..., None], profit.clamp(min=0), 0).flatten(1)
    link = problem.ops.path_max(-problem.capacity)[1].clamp(min=0).flatten(1)
    # Twice the rounding of a sum of prices, so that the new profit is 0 and not just above it.
    rise = profit + torch.where(profit > 0, _PRICE_ROUNDING * problem.demand_value.amax(), 0)
    return prices + torch.zeros_like(prices).scatter_reduce(1, link, rise, "amax")


def _unit(largest: Tensor) -> Tensor:
    """The power of two next to each entry; 1 for entries of an ordinary size, and for 0."""
    lowest, highest = _ORDINARY_MAGNITUDES
    exponent = torch.frexp(largest.to(torch.float64)).exponent.clamp(-1000, 1000)
    is_ordinary = ((largest >= lowest) & (largest <= highest)) | (largest <= 0)
    return torch.where(
        is_ordinary, 1.0, torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)
    )
