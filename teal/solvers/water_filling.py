"""Max-min fair rates level by level: every level certified, by programs of the largest link utilisation.

As in water-filling by linear programs, the rates of all demands rise together; a demand stays where it is carried whole
or where it cannot rise any more.  The level of a round is the largest t at which every open demand can have
min(t w[d], demand[d]) beside the rates that are fixed.  It is found by Dinkelbach's iteration: a
max_link_utilisation program with the rates of a t that is too large has prices which bound t
(:mod:`teal.solvers.fair_levels`); the bound is the next t, until the rates fit.  A demand whose cheapest path has a
price there cannot rise beyond the level: its row has a positive dual variable.

All levels together are routed by a max_concurrent_flow program, which removes what the gaps of the rounds add up to.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.solvers import pdhg
from teal.solvers.fair_levels import growth_bound
from teal.solvers.fairness import FairAllocation, fair_flows, routed, weights_of

_GUESS_ITERATIONS = 50  # over levels of links (see :mod:`fairness`), whose rates are a first guess of the levels
_WHOLE = 0.99  # share of a demand from which that guess counts as carried whole
_ABOVE = 1.02  # x the guess of a level: the first t
_RAISED = 1.5  # x t where all rates fit and nothing bounds them
_HELD = 1e-2  # of the dearest demand's price: a demand with a higher price than this is held at the level
_MOST_PROGRAMS, _ITERATIONS = 40, 1000  # of a level; of a program


def water_filling(problem: Problem, weight: Tensor | None = None, *, gap: float = 1e-3) -> FairAllocation:
    """A max-min fair allocation.

    Args:
        problem: B matrices; the objective is not used.
        weight: (D,) or (B, D) w, above 0; None for 1 each.
        gap: of each program.
    """
    problem = dataclasses.replace(problem.to(torch.float64), objective=Objective(), churn=None, classes=None)
    weight = weights_of(problem, weight)
    rates = [_Filling(problem.row(row), weight[row], gap).rates() for row in range(problem.batch)]
    return routed(problem, torch.stack(rates), None, gap)


class _Filling:
    """Water-filling of one matrix.

    Args:
        problem: B = 1.
        weight: (D,) w.
        gap: of each program.
    """

    def __init__(self, problem: Problem, weight: Tensor, gap: float) -> None:
        self._problem, self._weight, self._gap, self._demand = problem, weight, gap, problem.demand[0]
        self._rate = torch.zeros_like(self._demand)  # of demands that are not open
        self._is_open = problem.routable[0] & (self._demand > 0)
        self._level = 0.0
        self._state: pdhg.PdhgState | None = None  # where the last program ended

    def rates(self) -> Tensor:
        """(D,) Gbit/s."""
        guess = fair_flows(self._problem, self._weight, _GUESS_ITERATIONS).sum(-1)[0]
        while bool(self._is_open.any()):  # each round closes a demand at least
            rises = self._is_open & (guess < _WHOLE * self._demand)
            start = float((guess / self._weight)[rises].min()) if bool(rises.any()) else self._highest
            prices = self._raise(max(start, self._level))
            if prices is None:
                return torch.where(self._is_open, self._demand, self._rate)
            granted = self._level * self._weight
            price = self._problem.cheapest_path_cost(self._problem.ops.path_sum(prices))[0]
            is_whole = self._is_open & (self._demand <= granted)
            is_held = self._is_open & ~is_whole & (price > _HELD * price[self._is_open].max())
            if not bool((is_whole | is_held).any()):
                is_held = self._is_open
            self._rate = torch.where(is_whole, self._demand, torch.where(is_held, granted, self._rate))
            self._is_open = self._is_open & ~(is_whole | is_held)
        return self._rate

    @property
    def _highest(self) -> float:
        """Level at which all open demands are carried whole."""
        return float((self._demand / self._weight)[self._is_open].max())

    def _raise(self, start: float) -> Tensor | None:
        """Find the next level, from a guess; the prices (1, E) that bound it, or None if all demands fit whole."""
        highest, slack = self._highest, 1 + 2 * self._gap
        t, bound, best = min(max(_ABOVE * start, 1e-300), highest), math.inf, torch.zeros_like(self._problem.capacity)
        utilisation = 1.0
        for _ in range(_MOST_PROGRAMS):
            rates = torch.where(self._is_open, torch.minimum(t * self._weight, self._demand), self._rate)
            balanced = self._problem.balanced(ObjectiveName.MAX_LINK_UTILISATION, rates[None])
            result = pdhg.solve(balanced, gap=self._gap, max_iterations=_ITERATIONS, warm_start=self._state)
            self._state, utilisation = result.state, float(result.value)
            fits = utilisation <= slack
            own = t * growth_bound(self._problem, self._rate, self._is_open, t * self._weight, result.prices)
            if fits and own < t / slack:  # rounding: what fits cannot be impossible
                own = math.inf
            own = max(own, self._level)  # levels do not fall
            if own < bound:
                bound, best = own, result.prices
            if fits and t >= highest:
                return None
            if fits and bound <= t * slack:
                break
            if not fits and bound >= t * (1 - self._gap / 2):
                break
            after = bound if math.isfinite(bound) else t / utilisation
            t = min(_RAISED * t, bound, highest) if fits else after
        self._level = max(self._level, min(bound, t * slack) / max(1.0, utilisation))
        return best
