"""Certified max-min fairness: a bound on the growth of each level of rates, from any link prices.

A demand's level is its rate per weight, x[d] = f[d] / w[d]. Let t be a level and A the demands that
have at least that level (fully served demands only if they have more). The growth of the level is
the largest theta for which an allocation exists that gives every demand of A min(theta t w[d],
demand[d]), and every other demand its rate; water-filling has found the level exactly if the growth
is 1. By weak duality, for any prices p[e] >= 0, with price(d) the least sum of p along a live path,

    sum over A of min(theta t w[d], demand[d]) price(d) + sum over the others of f[d] price(d)
        <= sum_e c[e] p[e],

which bounds theta. A demand of A with price(d) > 0 is *held* by the level (bottlenecked): all of
them together cannot exceed theta t w[d] (a demand with more has it at the cost of the others). An
allocation is max-min fair if each demand is fully served or held by a level of growth 1.

A single demand can have at most

    (sum_e c[e] p[e] - sum over the others of min(f, x[d] w) price) / price(d),

while no other demand falls below its rate or level x[d], by the definition of max-min fairness:
larger rates may be lowered down to the demand's own level.

Under max_min the limit of a demand is the least of theta t w[d] of the level that holds it, its
unilateral limits by the prices of any level, and the demand itself; value and bound are the sums of
the rates and of the limits. Entry point: :func:`fair_figures`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from teal.problem.allocation import ProgramPrices
from teal.problem.bounds import finite_prices
from teal.problem.lines import Line
from teal.problem.problem import Problem
from teal.runtime.shapes import Float

# Share of a demand from which it counts as fully served.
WHOLE_SHARE = 0.99
# Price, relative to the highest price of a demand of A, above which a demand is held; less may be
# rounding.
HELD_PRICE_SHARE = 1e-2
# Relative tolerance of rates below a level, for rounding; more would include lower levels.
_LEVEL_TOLERANCE_BELOW = 1e-3
# Relative tolerance of a held rate above theta t, for residual capacity.
_HELD_TOLERANCE_ABOVE = 0.05
# Bisection steps for theta.
_GROWTH_HALVINGS = 60
# Rounding of sums, relative to the value of all capacity: it must not prove a growth below 1.
_SUM_ROUNDING = 1e-9
# Smallest divisor, instead of 0.
_MIN_DIVISOR = 1e-300
# Levels whose path prices are in memory at once.
_MAX_LEVELS_PER_CHUNK = 16
# Levels of a matrix in tables, those with most flow.
_MAX_SHOWN_LEVELS = 8


@dataclasses.dataclass(frozen=True)
class LevelGrowth:
    """Level of fair rates, with its certified growth.

    Attributes:
        level: rate per weight; Gbit/s where weights are 1.
        demands: number of demands that it holds; in
            :func:`teal.solvers.level_growths.level_growths`, of all in A.
        growth: certified bound on theta; infinite without one.
        held: (n,) indices of the demands that it holds; None where they are only counted.
    """

    level: float
    demands: int
    growth: float
    held: Tensor | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, eq=False)
class FairFigures:
    """Figures of max-min fairness of B matrices.

    Attributes:
        limit: (B, D) upper bound in Gbit/s on the rate of each demand: by the level that holds it,
            or the demand.
        levels: levels of each matrix that hold most flow, ascending.
        held: (B,) number of open demands that a level holds, or whose unilateral limit is at most
            5% above the rate.
        open: (B,) number of routable demands that are not fully served.
        demand: (B, D) Gbit/s.
        rate: (B, D) carried rate, Gbit/s.
    """

    limit: Float[Tensor, "B D"]
    levels: tuple[tuple[LevelGrowth, ...], ...]
    held: tuple[int, ...]
    open: tuple[int, ...]
    demand: Float[Tensor, "B D"]
    rate: Float[Tensor, "B D"]
    part: ClassVar[str] = "level"
    parts: ClassVar[str] = "levels"

    @classmethod
    def joined(cls, parts: Sequence[FairFigures]) -> FairFigures:
        """Concatenate the figures of several batches."""
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            field_values = [getattr(part, field.name) for part in parts]
            is_tensor = isinstance(field_values[0], Tensor)
            joined[field.name] = (
                torch.cat(field_values)
                if is_tensor
                else tuple(value for part in field_values for value in part)
            )
        return cls(**joined)

    def rows(self, rows: Tensor) -> FairFigures:
        """Return the figures of some of the matrices, by their indices."""
        indices = rows.tolist()
        return FairFigures(
            self.limit[rows],
            tuple(self.levels[row] for row in indices),
            tuple(self.held[row] for row in indices),
            tuple(self.open[row] for row in indices),
            self.demand[rows],
            self.rate[rows],
        )

    def lines(self, row: int) -> tuple[Line, ...]:
        """Return a line for the demands that each level holds, with their number and growth
        (:meth:`Lines.lines`).
        """
        lines = []
        for level in self.levels[row]:
            assert level.held is not None
            # Sums over the held demands.
            demand, value, bound = (
                float(figures[row, level.held].sum())
                for figures in (self.demand, self.rate, self.limit)
            )
            further_figures = {
                "level": level.level,
                "demands": level.demands,
                "growth": level.growth,
            }
            gap = (bound - value) / bound if bound > 0 else 0.0
            lines.append(Line(f"{level.level:.6g}", demand, value, bound, gap, further_figures))
        return tuple(lines)

    def counts(self, row: int) -> dict[str, int]:
        """Return numbers of demands (:meth:`Lines.counts`)."""
        return {"held": self.held[row], "open": self.open[row]}

    def headline(self, row: int) -> str:
        """Return a sentence about all levels (:meth:`Lines.headline`)."""
        if not self.open[row]:
            return "every demand is fully served"
        held_text = f"{self.held[row]:,} of them are held by a level" + (
            " (Gbit/s):" if self.levels[row] else ""
        )
        return f"{self.open[row]:,} demands are not fully served; {held_text}"


def fair_figures(
    problem: Problem,
    splits: Tensor,
    level_prices: ProgramPrices | None,
    weight: Tensor | None = None,
) -> FairFigures:
    """Measure the max-min fairness of an allocation, in float64.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        level_prices: levels and their prices; None for none.
        weight: (D,) or (B, D) w; None for ``demand_value``, the weights under max_min.
    """
    problem = problem.to(torch.float64)
    rates = problem.flows(splits.to(problem.demand)).sum(-1)
    weight = (problem.demand_value if weight is None else weight).to(rates).expand_as(rates)
    rows = [
        _MatrixFigures(
            problem.row(row),
            rates[row],
            weight[row],
            None if level_prices is None else level_prices.rows(slice(row, row + 1)),
        )
        for row in range(problem.batch)
    ]
    return FairFigures(
        torch.stack([row.limit for row in rows]),
        tuple(row.shown for row in rows),
        tuple(int(row.is_held.sum()) for row in rows),
        tuple(int(row.is_open.sum()) for row in rows),
        problem.demand,
        rates,
    )


class _MatrixFigures:
    """Fairness figures of one matrix.

    Args:
        problem: B = 1.
        rate: (D,) Gbit/s.
        weight: (D,) w.
        level_prices: levels and their prices; None for none.
    """

    def __init__(
        self, problem: Problem, rate: Tensor, weight: Tensor, level_prices: ProgramPrices | None
    ) -> None:
        self._problem = problem
        self._rate = rate
        self._weight = weight
        # Limit each demand to the capacity of its paths, which needs no prices.
        self._demand = torch.minimum(problem.routable_demand, problem.usable.demand)[0]
        self.is_open = rate < WHOLE_SHARE * self._demand
        self.is_held = torch.zeros_like(self.is_open)
        self.limit = torch.maximum(self._demand, rate)
        # Flow of the held demands, and the level.
        self._levels: list[tuple[float, LevelGrowth]] = []
        if level_prices is None or level_prices.level is None:
            return
        for level_indices in (
            level_prices.level[0].isfinite().nonzero()[:, 0].split(_MAX_LEVELS_PER_CHUNK)
        ):
            prices = finite_prices(level_prices.prices[0, level_indices]).to(
                problem.capacity.device
            )
            # Normalise, so that sums stay finite; bounds do not depend on the scale.
            prices = prices / prices.amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)
            cost = problem.cheapest_path_cost(problem.ops.path_sum(prices))
            value = (problem.capacity * prices).sum(1)
            for level_figures in zip(
                level_prices.level[0, level_indices].tolist(), cost, value.tolist(), strict=True
            ):
                self._add_level(*level_figures)

    def _add_level(self, level: float, prices: Tensor, value: float) -> None:
        """Update limits by a level. Only demands with a positive price are affected: few, where few
        links have prices.

        Args:
            level: t.
            prices: (D,) of the cheapest path of each demand.
            value: value of all capacity.
        """
        priced = (prices > 0).nonzero()[:, 0]
        if not len(priced):
            return
        price = prices[priced]
        rate = self._rate[priced]
        weight = self._weight[priced]
        demand = self._demand[priced]
        is_open = self.is_open[priced]
        limit = self.limit[priced]
        # Limit of each demand alone.
        unilateral = _unilateral_limit(price, value, rate, weight)
        limit = torch.maximum(torch.minimum(limit, unilateral), rate)
        is_held = is_open & (unilateral <= (1 + _HELD_TOLERANCE_ABOVE) * rate)
        # Growth of the level, and the demands that it holds.
        level_rate = level * weight
        is_member = members(rate / weight, level, is_open, _LEVEL_TOLERANCE_BELOW)
        grows = is_member & is_open
        if bool(grows.any()):
            growth = growth_from(price, value, rate, is_member, level_rate, demand)
            max_rate = growth * level_rate
            is_bottlenecked = grows & (price > HELD_PRICE_SHARE * price[grows].max())
            is_bottlenecked = is_bottlenecked & (rate <= (1 + _HELD_TOLERANCE_ABOVE) * max_rate)
            limit = torch.where(
                is_bottlenecked, torch.maximum(torch.minimum(limit, max_rate), rate), limit
            )
            is_held |= is_bottlenecked
            self._levels.append(
                (
                    float(rate[is_bottlenecked].sum()),
                    LevelGrowth(level, int(is_bottlenecked.sum()), growth, priced[is_bottlenecked]),
                )
            )
        # Write the limits of the affected demands.
        self.limit[priced] = limit
        self.is_held[priced] |= is_held

    @property
    def shown(self) -> tuple[LevelGrowth, ...]:
        """The levels that hold most flow, ascending."""
        largest_levels = sorted(self._levels, key=lambda figures: -figures[0])[:_MAX_SHOWN_LEVELS]
        return tuple(sorted((level for _, level in largest_levels), key=lambda level: level.level))


def _unilateral_limit(price: Tensor, value: float, rate: Tensor, weight: Tensor) -> Tensor:
    """Return the rate (n,) in Gbit/s that each demand can have alone, at least its present rate.

    Args:
        price: (n,) of the cheapest path of each demand with a price, above 0.
        value: value of all capacity.
        rate: (n,) f, Gbit/s.
        weight: (n,) w.
    """
    # Cost of the others: lower levels keep their rates, higher ones the demand's level.
    level, order = (rate / weight).sort()
    cost = (rate * price)[order]
    weighted_cost = (weight * price)[order]
    cost_below = cost.cumsum(0)
    cost_above = weighted_cost.sum() - weighted_cost.cumsum(0)
    others_cost = torch.empty_like(cost_below)
    others_cost[order] = cost_below - cost + level * cost_above
    return torch.maximum((value * (1 + _SUM_ROUNDING) - others_cost) / price, rate)


def members(level: Tensor, start: float, is_open: Tensor, below: float = 0.0) -> Tensor:
    """Return (D,) true for the demands of A (module docstring).

    Args:
        level: (D,) x.
        start: t.
        is_open: (D,) true for demands that are not fully served.
        below: relative tolerance of levels of open demands below t.
    """
    return (is_open & (level >= (1 - below) * start)) | (~is_open & (level > start))


def growth_bound(
    problem: Problem, rate: Tensor, grows: Tensor, granted: Tensor, prices: Tensor
) -> float:
    """Return the bound on theta for any prices (1, E); infinite if they prove nothing.

    Args:
        problem: B = 1.
        rate: (D,) f, Gbit/s.
        grows: (D,) true for A.
        granted: (D,) t w, Gbit/s.
        prices: at least 0.
    """
    price = problem.cheapest_path_cost(problem.ops.path_sum(prices))[0]
    return growth_from(
        price, float(problem.capacity_value(prices)[0]), rate, grows, granted, problem.demand[0]
    )


def growth_from(
    price: Tensor, value: float, rate: Tensor, grows: Tensor, granted: Tensor, demand: Tensor
) -> float:
    """Return the bound on theta, from path prices and the value of capacity.

    Args:
        price: (D,) of the cheapest live path of each demand; 0 without one.
        value: value of all capacity.
        rate, grows, granted: as in :func:`growth_bound`.
        demand: (D,) Gbit/s.
    """
    remaining_value = value * (1 + _SUM_ROUNDING) - float(torch.where(grows, 0, rate * price).sum())
    grows = grows & (price > 0)
    price = price[grows]
    granted = granted[grows]
    demand = demand[grows]

    def cost(theta: float) -> float:
        return float((torch.minimum(theta * granted, demand) * price).sum())

    # Largest theta at which the cost fits, by bisection.
    low = 0.0
    high = float((demand / granted).max()) if len(granted) else 0.0
    if cost(high) <= remaining_value:
        return math.inf
    for _ in range(_GROWTH_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= remaining_value else (low, middle)
    return high
