"""Presolve of programs with extreme magnitudes.

:class:`Reduction` presolves a program and translates results back: unusable demand and capacity are
removed (:attr:`teal.problem.Problem.usable`); where magnitudes are far from 1, the units of Gbit/s
(per matrix) and of value are scaled by powers of two, which are exact; in value maximisation links
of negligible capacity are closed, at a price at which no path over them is profitable.

:func:`spans_decades` finds programs whose magnitudes are too far apart for PDHG, which has one step
size per demand, set by its narrowest path: a path a million times wider then fills a million times
too slowly.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.problem import Problem, dual_bound
from teal.problem.bounds import gap, usable_prices
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, Stop

# Largest capacity, and largest demand, over the smallest capacity that step sizes per demand
# follow.
MAX_CAPACITY_RATIO = 1e4


def spans_decades(problem: Problem) -> Tensor:
    """Return (B,) whether a matrix has magnitudes too far apart for one step size per demand.

    The largest capacity or demand then exceeds 10,000 times the smallest live capacity.
    """
    live = problem.capacity > 0
    largest_capacity = torch.where(live, problem.capacity, 0).amax(1)
    smallest_capacity = torch.where(live, problem.capacity, torch.inf).amin(1)
    if not problem.demand.shape[1]:
        return largest_capacity > MAX_CAPACITY_RATIO * smallest_capacity
    return (largest_capacity > MAX_CAPACITY_RATIO * smallest_capacity) | (
        problem.demand.amax(1) > MAX_CAPACITY_RATIO * smallest_capacity
    )


# Range of the largest capacity (Gbit/s) and of the value per Gbit/s in which units stay unchanged.
_ORDINARY_MAGNITUDES = (
    2.0**-20,
    2.0**40,
)
# Capacity over the largest one below which a link is closed: 2^-80 is 1e-24, far below every gap
# that float64 can certify, and keeps 1 / capacity within the range of the engines.
_CLOSED_CAPACITY_RATIO = 2.0**-80
# Rounding of a sum of prices along a path, over the largest value per Gbit/s.
_PRICE_ROUNDING = 1e-14
# Tolerance on the target gap for the rounding of value and bound, as a share of the target.
_GAP_ROUNDING = 1e-6
# Rounds of the projection to the original program that allocate unused capacity to unserved demand;
# they also use the capacity of closed links.
_REFILL_ROUNDS = 3


def has_ordinary_numbers(problem: Problem) -> bool:
    """Whether live capacities and demands lie within four decades of the smallest live capacity,
    and units are ordinary.
    """
    if problem.is_empty:
        return False
    extremes = problem.extremes
    min_magnitude, max_magnitude = _ORDINARY_MAGNITUDES
    smallest_capacity = extremes.smallest_live_capacity
    largest_magnitude = max(extremes.largest_capacity, extremes.largest_demand)
    # Capacities and demands within the range and four decades; values within the range, except in a
    # min-max program, which has none.
    return (
        min_magnitude <= smallest_capacity < math.inf
        and largest_magnitude <= min(max_magnitude, MAX_CAPACITY_RATIO * smallest_capacity)
        and (
            problem.price_set.on_simplex or min_magnitude <= extremes.largest_value <= max_magnitude
        )
    )


def is_ordinary(problem: Problem) -> bool:
    """Whether a few sums show that a program needs no presolve and has ordinary magnitudes.

    Numbers are ordinary, and no link is wider than the sum of a matrix's demands (where a link has
    failed, of the demands with a path). This shortcut matters: on small networks the full test
    would take a tenth of a solve.
    """
    if not has_ordinary_numbers(problem):
        return False
    extremes = problem.extremes
    return extremes.largest_capacity <= extremes.least_total and (
        extremes.smallest_capacity > 0
        or extremes.largest_capacity <= float(problem.routable_demand.sum(1).min())
    )


class Reduction:
    """Presolved program, with the translation of states and results.

    Unusable demand and capacity are removed, units scaled by powers of two, and links of negligible
    capacity closed.

    Args:
        original: B matrices.

    Attributes:
        original: the original program.
        problem: the presolved program; ``original`` itself where presolve changes nothing.
    """

    def __init__(self, original: Problem) -> None:
        # Largest capacity (B,) and value per Gbit/s give the units.
        self.original = original
        self.problem = usable_problem = original.usable
        largest_capacity = (
            usable_problem.capacity.amax(1)
            if usable_problem.topology.num_links
            else torch.ones(usable_problem.batch)
        )
        largest_value = (
            usable_problem.demand_value.amax()
            if len(usable_problem.demand_value)
            else torch.ones(())
        )
        self._capacity_unit = _power_of_two_unit(largest_capacity)[:, None]
        self._value_unit = _power_of_two_unit(largest_value)
        # Units are powers of two per matrix.  A min-max program has a separate unit of demand,
        # since its utilisations may have any scale.
        demand_unit = self._capacity_unit
        if usable_problem.price_set.on_simplex and usable_problem.demand.shape[1]:
            demand_unit = _power_of_two_unit(usable_problem.demand.amax(1))[:, None]
        is_negligible = (usable_problem.capacity > 0) & (
            usable_problem.capacity < _CLOSED_CAPACITY_RATIO * largest_capacity[:, None]
        )
        # Close links of negligible capacity.  Not in a min-max program, where such a link may be
        # the only path of a demand and decide the optimum; nor under a utility, where every demand
        # with a path must have a share.
        self._closed = is_negligible & (
            not usable_problem.demand_set.carries_all and usable_problem.utility is None
        )
        if (
            bool((self._capacity_unit != 1).any())
            or bool((demand_unit != 1).any())
            or bool(self._value_unit != 1)
            or bool(self._closed.any())
        ):
            # Scale units and close links.
            float64_problem = usable_problem.to(torch.float64)
            self.problem = dataclasses.replace(
                float64_problem,
                demand=float64_problem.demand / demand_unit,
                capacity=torch.where(self._closed, 0, float64_problem.capacity)
                / self._capacity_unit,
                demand_value=float64_problem.demand_value / self._value_unit,
                link_cost=float64_problem.link_cost / self._value_unit,
            )
        # If presolve changed capacities only, feasible splits stay feasible.
        self._only_capacity_changed = (
            self.problem is usable_problem and usable_problem.demand is original.demand
        )

    def reduced(self, state: SolveState | None) -> SolveState | None:
        """Translate a warm start of the original program to the presolved program."""
        if state is None or self.problem is self.original:
            return state
        # Splits as shares of the usable demand; prices in the units of the presolved program.
        return SolveState(
            state.splits / self._usable_share(),
            state.prices / self._price_unit(),
            is_predicted=state.is_predicted,
        )

    def result(self, reduced_result: SolveResult, target_gap: float) -> SolveResult:
        """Translate a result of the presolved program to the original one, and certify it there.

        Args:
            reduced_result: result of the presolved program.
            target_gap: target gap; a matrix that reaches it in the presolved program only is
                reported as stopped by rounding (``Stop.ROUNDING``).
        """
        # Includes programs whose demand and capacity are all usable.
        if self.problem is self.original:
            return reduced_result
        float64_original = self.original.to(torch.float64)
        # Splits as shares of the original demand, feasible there, and those of the last step.
        if self._only_capacity_changed:
            splits = reduced_result.splits
            last_splits = reduced_result.state.splits
        else:
            usable_share = self._usable_share()
            splits = project(float64_original, reduced_result.splits * usable_share, _REFILL_ROUNDS)
            last_splits = reduced_result.state.splits * usable_share
        prices = reduced_result.prices * self._price_unit()
        if not float64_original.price_set.on_simplex:
            # A closed link gets the price at which no path over it is profitable.
            prices = torch.where(self._closed, float64_original.demand_value.amax(), prices)
            # Extend the bound to removed demand and capacity; prices above the largest value (the
            # 1.0) tighten no bound.
            prices = _extended_prices(
                float64_original, usable_prices(float64_original, prices, max_ratio=1.0)
            )
        # Value, bound and gap of the original program, at prices with finite sums.
        prices = usable_prices(float64_original, prices)
        value = float64_original.value(splits)
        bound = dual_bound(float64_original, prices)
        state = SolveState(last_splits, reduced_result.state.prices * self._price_unit())
        gaps = gap(float64_original, value, bound)
        # A target gap that only the presolved program reaches was missed by rounding.
        stopped_by = tuple(
            Stop.ROUNDING
            if stop is Stop.GAP and not original_gap <= target_gap * (1 + _GAP_ROUNDING)
            else stop
            for stop, original_gap in zip(reduced_result.stopped_by, gaps.tolist(), strict=True)
        )
        return dataclasses.replace(
            reduced_result,
            splits=splits,
            prices=prices,
            value=value,
            bound=bound,
            gap=gaps,
            state=state,
            stopped_by=stopped_by,
        )

    def _usable_share(self) -> Tensor:
        """Return (B, D, 1) the usable share of each demand; 1 for a demand of 0."""
        demand = self.original.demand.to(torch.float64)
        usable_demand = self.original.usable.demand.to(torch.float64)
        return torch.where(demand > 0, usable_demand / demand, 1)[..., None]

    def _price_unit(self) -> Tensor:
        """Return (B, 1) the price in the original program over the price in the presolved one."""
        return (
            1 / self._capacity_unit
            if self.problem.price_set.on_simplex
            else self._value_unit.expand_as(self._capacity_unit)
        )


def _extended_prices(problem: Problem, prices: Tensor) -> Tensor:
    """Return (B, E) prices whose bound for all demand and capacity is at least as tight as the
    bound of ``prices`` for the usable part.

    A link wider than the sum of all usable demands becomes free: that raises profits by at most
    demand times price, in sum no more than the value of its usable capacity.  For a demand larger
    than the capacity of its paths, the price of each path's bottleneck rises by the path's profit,
    which adds bottleneck times profit for each path and removes demand times the largest profit.
    Under piecewise constant marginal values, the profit is that in the step of the last usable
    Gbit/s: later steps then have no profit, and earlier ones keep the excess over it.

    Args:
        problem: the original program.
        prices: (B, E) value per Gbit/s, from the presolved program.
    """
    # Links wider than all usable demand become free.
    prices = torch.where(problem.capacity > problem.usable.capacity, 0, prices)
    # All demand is usable.
    if problem.demand is problem.usable.demand:
        return prices
    # (B, D) demands larger than the capacity of their paths; (B, D * K) profit of their paths and
    # bottleneck link of each path.
    exceeds_capacity = (problem.demand > problem.bottleneck.sum(-1)) & problem.routable
    marginal_value = problem.path_value
    # Under value steps: value in the step of the last usable Gbit/s.
    if (steps := problem.usable.steps) is not None:
        marginal_value = (
            marginal_value - (problem.demand_value * (1 - steps.last_level().to(prices)))[..., None]
        )
    # Profits that the price increases remove: those of demands larger than their paths' capacity.
    profit = torch.where(problem.path_mask, marginal_value - problem.ops.path_sum(prices), 0)
    profit = torch.where(exceeds_capacity[..., None], profit.clamp(min=0), 0).flatten(1)
    bottleneck_link = problem.ops.path_max(-problem.capacity)[1].clamp(min=0).flatten(1)
    # Twice the rounding of a sum of prices, so that the new profit is 0 and not just above it.
    price_increase = profit + torch.where(
        profit > 0, _PRICE_ROUNDING * problem.demand_value.amax(), 0
    )
    # The price of a link rises by the largest profit of the paths that it limits.
    return prices + torch.zeros_like(prices).scatter_reduce(
        1, bottleneck_link, price_increase, "amax"
    )


def _power_of_two_unit(magnitude: Tensor) -> Tensor:
    """Return the unit by which quantities are divided, without rounding: the smallest power of two
    above the largest of them; 1 if that is 0 or within _ORDINARY_MAGNITUDES.
    """
    min_magnitude, max_magnitude = _ORDINARY_MAGNITUDES
    # x = m 2^exponent with 0.5 <= m < 1; the clamp keeps 2^exponent finite and normal.
    exponent = torch.frexp(magnitude.to(torch.float64)).exponent.clamp(-1000, 1000)
    is_ordinary = ((magnitude >= min_magnitude) & (magnitude <= max_magnitude)) | (magnitude <= 0)
    return torch.where(
        is_ordinary, 1.0, torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)
    )
