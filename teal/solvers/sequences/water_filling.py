"""Max-min fair rates of one matrix, level by level: water-filling by programs of the largest link utilisation.

The rates of all demands rise together; a demand stays where it is carried whole or where it cannot rise any more.  The
level of a round is the largest t at which every open demand can have min(t w[d], demand[d]) beside the rates that are
fixed.  It is found by Dinkelbach's iteration: a max_link_utilisation program with the rates of a t that is too large
has prices which bound t (:mod:`teal.problem.fair_levels`); the bound is the next t, until the rates fit.  A demand
whose cheapest path has a price there cannot rise beyond the level: its row has a positive dual variable.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.fair_levels import HELD_PRICE_SHARE, WHOLE_SHARE, growth_bound
from teal.runtime.shapes import Bool, Float
from teal.solvers.result import PdhgState
from teal.solvers.sequences.task import PartOfTasks, Progress, Solve, TimeShare

_FIRST_LEVEL_FACTOR = 1.02  # x the guess of a level: the first t
_MOST_TRIAL_RISE = 1.5  # x t at most, after a t at which all rates fit
_MOST_PROGRAMS = 40  # of a level; Dinkelbach's iteration takes a few
_PROGRAM_ITERATIONS = 1000  # of a program, at most: its bound is then used as it is


@dataclasses.dataclass(frozen=True, eq=False)
class HeldLevel:
    """A level that was found.

    Attributes:
        held: (D,) demands that stay there.
        prices: (E,) that bound it.
    """

    held: Bool[Tensor, " D"]
    prices: Float[Tensor, " E"]


class Filling:
    """Water-filling of one matrix.

    Args:
        problem: B = 1, under total_flow, in float64.
        weight: (D,) w.
        guess: (D,) Gbit/s, rates near the fair ones.
        gap: of each program.
        time: in which levels are looked for.

    Attributes:
        rate: (D,) Gbit/s, after :meth:`tasks`.
        levels: that hold demands, ascending.
        is_late: whether levels were left for want of time.
    """

    def __init__(self, problem: Problem, weight: Tensor, guess: Tensor, gap: float, time: TimeShare) -> None:
        self._problem, self._weight, self._gap, self._demand = problem, weight, gap, problem.demand[0]
        self._guess, self._time, self.is_late = guess, time, False
        self.rate = torch.zeros_like(self._demand)
        self._is_open = problem.routable[0] & (self._demand > 0)
        self._level = 0.0
        self._state: PdhgState | None = None  # where the last program ended
        self.levels: list[HeldLevel] = []

    def tasks(self) -> PartOfTasks:
        """Find all levels, or those for which there is time; the gap of fair rates is not known before the end."""
        while bool(self._is_open.any()):  # each round closes a demand at least
            rises = self._is_open & (self._guess < WHOLE_SHARE * self._demand)
            start = float((self._guess / self._weight)[rises].min()) if bool(rises.any()) else self._highest
            prices = yield from self._raise(max(start, self._level))
            if self.is_late:
                self.rate = torch.where(self._is_open, torch.minimum(self._guess, self._demand), self.rate)
                return
            if prices is None:
                self.rate = torch.where(self._is_open, self._demand, self.rate)
                return
            self._close(prices)
            yield Progress(math.inf)

    def _close(self, prices: Tensor) -> None:
        """Fix the rates of the demands that the level stops."""
        granted = self._level * self._weight
        price = self._problem.cheapest_path_cost(self._problem.ops.path_sum(prices))[0]
        is_whole = self._is_open & (self._demand <= granted)
        is_held = self._is_open & ~is_whole & (price > HELD_PRICE_SHARE * price[self._is_open].max())
        if not bool((is_whole | is_held).any()):
            is_held = self._is_open
        self.rate = torch.where(is_whole, self._demand, torch.where(is_held, granted, self.rate))
        self._is_open = self._is_open & ~(is_whole | is_held)
        if bool(is_held.any()):
            self.levels.append(HeldLevel(is_held, prices[0]))

    @property
    def _highest(self) -> float:
        """Level at which all open demands are carried whole."""
        return float((self._demand / self._weight)[self._is_open].max())

    def _raise(self, start: float) -> PartOfTasks:
        """Find the next level, from a guess; the prices (1, E) that bound it, or None if all demands fit whole."""
        highest, slack = self._highest, 1 + 2 * self._gap
        t, bound, best = (
            min(max(_FIRST_LEVEL_FACTOR * start, 1e-300), highest),
            math.inf,
            torch.zeros_like(self._problem.capacity),
        )
        utilisation, solved_t = 1.0, t
        for _ in range(_MOST_PROGRAMS):
            rates = torch.where(self._is_open, torch.minimum(t * self._weight, self._demand), self.rate)
            balanced = self._problem.balanced(ObjectiveName.MAX_LINK_UTILISATION, rates[None])
            result = yield Solve(balanced, self._gap, self._state, self._time, True, _PROGRAM_ITERATIONS)
            self.is_late = result is None
            if self.is_late:
                break
            self._state, utilisation, solved_t = result.state, float(result.value), t
            fits = utilisation <= slack
            limit = t * growth_bound(self._problem, self.rate, self._is_open, t * self._weight, result.prices)
            if fits and limit < t / slack:  # rounding: what fits cannot be impossible
                limit = math.inf
            limit = max(limit, self._level)  # levels do not fall
            if limit < bound:
                bound, best = limit, result.prices
            if fits and t >= highest:
                return None
            if fits and bound <= t * slack:
                break
            if not fits and bound >= t * (1 - self._gap / 2):
                break
            after = bound if math.isfinite(bound) else t / utilisation
            t = min(_MOST_TRIAL_RISE * t, bound, highest) if fits else after
        self._level = max(self._level, min(bound, solved_t * slack) / max(1.0, utilisation))
        return best
