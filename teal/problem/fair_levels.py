r"""The worth of max-min fair rates, certified: how far each of their levels could grow, from any
link prices.

A demand's level is its rate per weight, x[d] = f[d] / w[d].  Let t be a level and A the demands
that have at least that level, those that are carried whole only if they have more.  The growth of
the level is the largest theta for which an allocation exists that gives every demand of A min(theta
t w[d], demand[d]), and every other demand what it has; water-filling has found the level exactly if
the growth is 1.  By weak duality, for any prices p[e] >= 0, with price(d) the least sum of p along
a live path,

    sum over A of min(theta t w[d], demand[d]) price(d) + sum over the others of f[d] price(d)
        <= sum_e c[e] p[e],

which bounds theta.  A demand of A with price(d) > 0 is *held* by the level: all of them together
cannot exceed theta t w[d] (one that has more has it at the cost of the others).  An allocation is
max-min fair if each demand is carried whole or held by a level of growth 1.

A demand alone, while no other one has less than before or than level x[d], can have no more than

    (sum_e c[e] p[e] - sum over the others of min(f, x[d] w) price) / price(d),

which is the definition of max-min fairness: rates that are larger may be lowered, as far as the
demand's own level.

Under max_min the limit of a demand is the least of theta t w[d] by the level that holds it, of what
it can have alone by the prices of any level, and of the demand itself; value and bound are the sums
of the rates and of the limits.
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

WHOLE_SHARE = 0.99  # share of a demand from which it counts as carried whole
# Share of the highest price of a demand of A above which a demand is held: less may be rounding.
HELD_PRICE_SHARE = 1e-2
# Relative, by which rates of a level may be below it, for rounding; more would take in lower
# levels.
_LEVEL_TOLERANCE_BELOW = 1e-3
# Relative, by which a held rate may exceed theta t, where it was given capacity that was left over.
_HELD_TOLERANCE_ABOVE = 0.05
_GROWTH_HALVINGS = 60  # of an interval for theta
# Of the value of all capacity, by which sums may be wrong: rounding must not prove a growth below
# 1.
_SUM_ROUNDING = 1e-9
_MIN_DIVISOR = 1e-300  # instead of 0 as a divisor
_AT_ONCE = 16  # levels whose path prices are in memory at once
_MAX_SHOWN_LEVELS = 8  # levels of a matrix in tables, those that hold most flow


@dataclasses.dataclass(frozen=True)
class LevelGrowth:
    """A level of fair rates.

    Attributes:
        level: rate per weight; Gbit/s where weights are 1.
        demands: number of demands that it holds; of
            :func:`teal.solvers.level_growths.level_growths`, of all in A.
        growth: certified bound on theta; infinite if none was found.
        held: (n,) numbers of the demands that it holds; None where they are only counted.
    """

    level: float
    demands: int
    growth: float
    held: Tensor | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, eq=False)
class FairFigures:
    """Figures of max-min fairness of B matrices.

    Attributes:
        limit: (B, D) Gbit/s that each demand could have at most: by the level that holds it, or its
            demand.
        levels: levels of each matrix that hold most flow, ascending.
        held: (B,) number of open demands that a level holds, or that could have at most 5% more
            alone.
        open: (B,) number of routable demands that are not carried whole.
        demand: (B, D) Gbit/s.
        rate: (B, D) Gbit/s that are carried.
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
        """The figures of several batches as those of one."""
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            of_parts = [getattr(part, field.name) for part in parts]
            is_tensor = isinstance(of_parts[0], Tensor)
            joined[field.name] = (
                torch.cat(of_parts) if is_tensor else tuple(x for part in of_parts for x in part)
            )
        return cls(**joined)

    def rows(self, rows: Tensor) -> FairFigures:
        """The figures of some of the matrices, by their numbers."""
        numbers = rows.tolist()
        return FairFigures(
            self.limit[rows],
            tuple(self.levels[row] for row in numbers),
            tuple(self.held[row] for row in numbers),
            tuple(self.open[row] for row in numbers),
            self.demand[rows],
            self.rate[rows],
        )

    def lines(self, row: int) -> tuple[Line, ...]:
        """A line for the demands that each level holds, with their number and growth
        (:meth:`Lines.lines`).
        """
        lines = []
        for one in self.levels[row]:
            assert one.held is not None
            demand, value, bound = (
                float(of[row, one.held].sum()) for of in (self.demand, self.rate, self.limit)
            )
            more = {"level": one.level, "demands": one.demands, "growth": one.growth}
            gap = (bound - value) / bound if bound > 0 else 0.0
            lines.append(Line(f"{one.level:.6g}", demand, value, bound, gap, more))
        return tuple(lines)

    def counts(self, row: int) -> dict[str, int]:
        """Numbers of demands (:meth:`Lines.counts`)."""
        return {"held": self.held[row], "open": self.open[row]}

    def headline(self, row: int) -> str:
        """The sentence about all levels (:meth:`Lines.headline`)."""
        if not self.open[row]:
            return "every demand is carried whole"
        held = f"{self.held[row]:,} of them are held by a level" + (
            " (Gbit/s):" if self.levels[row] else ""
        )
        return f"{self.open[row]:,} demands are not carried whole; {held}"


def fair_figures(
    problem: Problem,
    splits: Tensor,
    level_prices: ProgramPrices | None,
    weight: Tensor | None = None,
) -> FairFigures:
    """The figures of an allocation, in float64.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        level_prices: levels and their prices; None for none.
        weight: (D,) or (B, D) w; None for ``demand_value``, where max_min has them.
    """
    problem = problem.to(torch.float64)
    rates = problem.flows(splits.to(problem.demand)).sum(-1)
    weight = (problem.demand_value if weight is None else weight).to(rates).expand_as(rates)
    rows = [
        _Row(
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


class _Row:
    """One matrix.

    Args:
        problem: B = 1.
        rate: (D,) Gbit/s.
        weight: (D,) w.
        level_prices: levels and their prices; None for none.
    """

    def __init__(
        self, problem: Problem, rate: Tensor, weight: Tensor, level_prices: ProgramPrices | None
    ) -> None:
        self._problem, self._rate, self._weight = problem, rate, weight
        # What paths can carry: a limit that needs no prices.
        self._demand = torch.minimum(problem.routable_demand, problem.usable.demand)[0]
        self.is_open = rate < WHOLE_SHARE * self._demand
        self.is_held = torch.zeros_like(self.is_open)
        self.limit = torch.maximum(self._demand, rate)
        self._levels: list[
            tuple[float, LevelGrowth]
        ] = []  # flow that the level holds, and the level
        if level_prices is None or level_prices.level is None:
            return
        for numbers in level_prices.level[0].isfinite().nonzero()[:, 0].split(_AT_ONCE):
            prices = finite_prices(level_prices.prices[0, numbers]).to(problem.capacity.device)
            prices = prices / prices.amax(1, keepdim=True).clamp(
                min=_MIN_DIVISOR
            )  # sums stay finite; bounds know no scale
            cost = problem.cheapest_path_cost(problem.ops.path_sum(prices))
            value = (problem.capacity * prices).sum(1)
            for figures in zip(
                level_prices.level[0, numbers].tolist(), cost, value.tolist(), strict=True
            ):
                self._take(*figures)

    def _take(self, level: float, prices: Tensor, value: float) -> None:
        """Take a level into account, which concerns the demands with a price alone: few, where
        prices are of few links.

        Args:
            level: t.
            prices: (D,) of the cheapest path of each demand.
            value: value of all capacity.
        """
        priced = (prices > 0).nonzero()[:, 0]
        if not len(priced):
            return
        price, rate, weight = prices[priced], self._rate[priced], self._weight[priced]
        demand, is_open, limit = self._demand[priced], self.is_open[priced], self.limit[priced]
        alone = _alone(price, value, rate, weight)
        limit = torch.maximum(torch.minimum(limit, alone), rate)
        is_held = is_open & (alone <= (1 + _HELD_TOLERANCE_ABOVE) * rate)
        granted = level * weight
        at_least = members(rate / weight, level, is_open, _LEVEL_TOLERANCE_BELOW)
        grows = at_least & is_open
        if bool(grows.any()):
            growth = growth_from(price, value, rate, at_least, granted, demand)
            most = growth * granted
            holds = grows & (price > HELD_PRICE_SHARE * price[grows].max())
            holds = holds & (rate <= (1 + _HELD_TOLERANCE_ABOVE) * most)
            limit = torch.where(holds, torch.maximum(torch.minimum(limit, most), rate), limit)
            is_held |= holds
            self._levels.append(
                (
                    float(rate[holds].sum()),
                    LevelGrowth(level, int(holds.sum()), growth, priced[holds]),
                )
            )
        self.limit[priced] = limit
        self.is_held[priced] |= is_held

    @property
    def shown(self) -> tuple[LevelGrowth, ...]:
        """The levels that hold most flow, ascending."""
        most = sorted(self._levels, key=lambda figures: -figures[0])[:_MAX_SHOWN_LEVELS]
        return tuple(sorted((level for _, level in most), key=lambda level: level.level))


def _alone(price: Tensor, value: float, rate: Tensor, weight: Tensor) -> Tensor:
    """(n,) Gbit/s that each demand can have alone, at least its rate.

    Args:
        price: (n,) of the cheapest path of each demand that has a price, above 0.
        value: value of all capacity.
        rate: (n,) f, Gbit/s.
        weight: (n,) w.
    """
    level, order = (rate / weight).sort()
    paid, weighted = (rate * price)[order], (weight * price)[order]
    below = paid.cumsum(0)
    above = weighted.sum() - weighted.cumsum(0)
    kept = torch.empty_like(below)
    kept[order] = below - paid + level * above  # of the others
    return torch.maximum((value * (1 + _SUM_ROUNDING) - kept) / price, rate)


def members(level: Tensor, start: float, is_open: Tensor, below: float = 0.0) -> Tensor:
    """(D,) true for A of the module.

    Args:
        level: (D,) x.
        start: t.
        is_open: (D,) true for the demands that are not carried whole.
        below: relative, by which levels of these may be below t.
    """
    return (is_open & (level >= (1 - below) * start)) | (~is_open & (level > start))


def growth_bound(
    problem: Problem, rate: Tensor, grows: Tensor, granted: Tensor, prices: Tensor
) -> float:
    """The bound of the module on theta, for any prices (1, E); infinite if they prove nothing.

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
    """The growths, from what the prices make of demands and links.

    Args:
        price: (D,) of the cheapest live path of each demand; 0 without one.
        value: value of all capacity.
        rate, grows, granted: as in :func:`growth_bound`.
        demand: (D,) Gbit/s.
    """
    room = value * (1 + _SUM_ROUNDING) - float(torch.where(grows, 0, rate * price).sum())
    grows = grows & (price > 0)
    price, granted, demand = price[grows], granted[grows], demand[grows]

    def cost(theta: float) -> float:
        return float((torch.minimum(theta * granted, demand) * price).sum())

    low, high = 0.0, float((demand / granted).max()) if len(granted) else 0.0
    if cost(high) <= room:
        return math.inf
    for _ in range(_GROWTH_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= room else (low, middle)
    return high
