"""Certified max-min fairness: a bound on the growth of each level of rates, from any link prices.

A demand's level is its rate per weight, x[d] = f[d] / w[d]. Let t be a level and A the demands that
have at least that level (fully served demands only if they have more). The growth of the level is
the largest theta for which an allocation exists that gives every demand of A min(theta t w[d],
demand[d]), and every other demand its rate f[d]. A growth of 1 proves that the level is exact. By
weak duality, with capacities c[e], for any prices p[e] >= 0, with price(d) the least sum of p along
a live path,

    sum over A of min(theta t w[d], demand[d]) price(d) + sum over the others of f[d] price(d)
        <= sum_e c[e] p[e],

which bounds theta. A demand of A with price(d) > 0 is *held* by the level (bottlenecked): not all
of these demands can have more than theta t w[d], and a demand that has more has it at the cost of
the others. An allocation is max-min fair if each demand is fully served or held by a level of
growth 1.

A single demand can have at most

    (sum_e c[e] p[e] - sum over the others of min(f, x[d] w) price) / price(d),

while no other demand falls below its rate or level x[d], by the definition of max-min fairness:
larger rates may be lowered down to the demand's own level.

Under max_min the limit of a demand is the least of theta t w[d] of the level that holds it, its
unilateral limits by the prices of any level, and the demand itself; value and bound are the sums of
the rates and of the limits. Entry point: :func:`fair_certificates`.
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
from teal.problem.part_certificates import PartCertificate
from teal.problem.problem import Problem
from teal.runtime.shapes import Float

# Share of a demand from which it counts as fully served.
WHOLE_SHARE = 0.99
# Price above which a demand is held by a level, relative to the highest price of a demand of A; a
# lower price may be rounding.
HELD_PRICE_SHARE = 1e-2
# Relative tolerance of rates below a level, for rounding; a larger one would include lower levels.
_LEVEL_TOLERANCE_BELOW = 1e-3
# Relative tolerance of a held rate above theta t, for residual capacity.
_HELD_TOLERANCE_ABOVE = 0.05
# Bisection steps for theta.
_GROWTH_HALVINGS = 60
# Rounding of sums, relative to the value of all capacity: it must not prove a growth below 1.
_SUM_ROUNDING = 1e-9
# Smallest divisor, instead of 0.
_MIN_DIVISOR = 1e-300
# Largest number of levels whose path prices are in memory at once.
_MAX_LEVELS_PER_CHUNK = 16
# Largest number of levels of a matrix in tables: those with most flow.
_MAX_SHOWN_LEVELS = 8


@dataclasses.dataclass(frozen=True)
class LevelGrowth:
    """Level of fair rates, with its certified growth.

    Attributes:
        level: rate per weight; Gbit/s where weights are 1.
        demands: number of demands that the level holds; in the results of
            :func:`teal.solvers.level_growths.level_growths`, number of all demands with at least
            that level.
        growth: certified bound on theta, the factor by which the level can grow while no lower
            demand loses flow; 1 proves that it is exact, infinite proves nothing.
        held: (n,) indices of the demands that it holds; None where they are only counted.
    """

    level: float
    demands: int
    growth: float
    held: Tensor | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, eq=False)
class FairCertificates:
    """Max-min fairness of B allocations, certified by link prices.

    Attributes:
        limit: (B, D) upper bound in Gbit/s on the rate of each demand: by the level that holds it,
            or the demand.
        levels: for each matrix the 8 levels that hold most flow, ascending.
        held: (B,) number of open demands that a level holds (bottlenecked at that level), or whose
            rate could rise by at most 5% if it alone were raised.
        open: (B,) number of open demands: routable demands that are not fully served.
        demand: (B, D) demands, Gbit/s.
        rate: (B, D) carried rate, Gbit/s.
    """

    limit: Float[Tensor, "B D"]
    levels: tuple[tuple[LevelGrowth, ...], ...]
    held: tuple[int, ...]
    open: tuple[int, ...]
    demand: Float[Tensor, "B D"]
    rate: Float[Tensor, "B D"]
    part_kind: ClassVar[str] = "level"
    parts_key: ClassVar[str] = "levels"

    @classmethod
    def joined(cls, batches: Sequence[FairCertificates]) -> FairCertificates:
        """Concatenate the results of several batches of matrices."""
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            field_values = [getattr(part, field.name) for part in batches]
            is_tensor = isinstance(field_values[0], Tensor)
            joined[field.name] = (
                torch.cat(field_values)
                if is_tensor
                else tuple(value for part in field_values for value in part)
            )
        return cls(**joined)

    def rows(self, rows: Tensor) -> FairCertificates:
        """Return the figures of some of the matrices, by their indices."""
        indices = rows.tolist()
        return FairCertificates(
            self.limit[rows],
            tuple(self.levels[row] for row in indices),
            tuple(self.held[row] for row in indices),
            tuple(self.open[row] for row in indices),
            self.demand[rows],
            self.rate[rows],
        )

    def of_matrix(self, row: int) -> tuple[PartCertificate, ...]:
        """Return the certificate of each level of one matrix, summed over the demands that the
        level holds: demand, flow, bound and gap, with rate, number of demands and growth of the
        level.
        """
        certificates = []
        for level in self.levels[row]:
            assert level.held is not None
            # Sums over the demands that the level holds, Gbit/s.
            demand, value, bound = (
                float(amounts[row, level.held].sum())
                for amounts in (self.demand, self.rate, self.limit)
            )
            more_metrics = {
                "level": level.level,
                "demands": level.demands,
                "growth": level.growth,
            }
            gap = (bound - value) / bound if bound > 0 else 0.0
            certificates.append(
                PartCertificate(f"{level.level:.6g}", demand, value, bound, gap, more_metrics)
            )
        return tuple(certificates)

    def counts(self, row: int) -> dict[str, int]:
        """Return the numbers of held and of open demands of one matrix."""
        return {"held": self.held[row], "open": self.open[row]}

    def headline(self, row: int) -> str:
        """Return a sentence with the number of demands of one matrix that are not fully served, and
        the number of those that a level holds.
        """
        if not self.open[row]:
            return "every demand is fully served"
        held_text = f"{self.held[row]:,} of them are held by a level" + (
            " (Gbit/s):" if self.levels[row] else ""
        )
        return f"{self.open[row]:,} demands are not fully served; {held_text}"


def fair_certificates(
    problem: Problem,
    splits: Tensor,
    level_prices: ProgramPrices | None,
    weight: Tensor | None = None,
) -> FairCertificates:
    """Certify the max-min fairness of an allocation, in float64.

    Without levels the limit of a demand is the capacity of its paths, or the demand.

    Args:
        problem: problem of B matrices.
        splits: (B, D, K) share of each demand on each path.
        level_prices: levels and the dual prices of their programs; None for none.
        weight: (D,) or (B, D) weight w of each demand; None for ``demand_value``, the weights under
            max_min.
    """
    problem = problem.to(torch.float64)
    rates = problem.flows(splits.to(problem.demand)).sum(-1)
    weight = (problem.demand_value if weight is None else weight).to(rates).expand_as(rates)
    rows = [
        _MatrixFairness(
            problem.row(row),
            rates[row],
            weight[row],
            None if level_prices is None else level_prices.rows(slice(row, row + 1)),
        )
        for row in range(problem.batch)
    ]
    return FairCertificates(
        torch.stack([row.limit for row in rows]),
        tuple(row.shown for row in rows),
        tuple(int(row.is_held.sum()) for row in rows),
        tuple(int(row.is_open.sum()) for row in rows),
        problem.demand,
        rates,
    )


class _MatrixFairness:
    """Max-min fairness of the allocation of one matrix.

    Args:
        problem: problem with B = 1.
        rate: (D,) carried rate of each demand, Gbit/s.
        weight: (D,) weight w of each demand.
        level_prices: levels and their dual prices; None for none.

    Attributes:
        is_open: (D,) demands that are not fully served.
        is_held: (D,) demands that a level holds.
        limit: (D,) upper bound on each rate, Gbit/s.
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
        # For each level, the flow of the demands that it holds in Gbit/s, and the level.
        self._levels: list[tuple[float, LevelGrowth]] = []
        if level_prices is None or level_prices.level is None:
            return
        for chunk in level_prices.level[0].isfinite().nonzero()[:, 0].split(_MAX_LEVELS_PER_CHUNK):
            prices = finite_prices(level_prices.prices[0, chunk]).to(problem.capacity.device)
            # (levels, E) prices, normalised so that sums stay finite; bounds do not depend on the
            # scale.
            prices = prices / prices.amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)
            # (levels, D) price of each demand's cheapest path; (levels,) value of all capacity.
            path_prices = problem.cheapest_path_cost(problem.ops.path_sum(prices))
            capacity_value = (problem.capacity * prices).sum(1)
            for level_price_value in zip(
                level_prices.level[0, chunk].tolist(),
                path_prices,
                capacity_value.tolist(),
                strict=True,
            ):
                self._add_level(*level_price_value)

    def _add_level(self, level: float, path_prices: Tensor, capacity_value: float) -> None:
        """Update the limits of the demands by the prices of one level.

        Only demands whose paths have a positive price are affected: few, since few links have
        prices.

        Args:
            level: t, rate per weight.
            path_prices: (D,) price of the cheapest path of each demand.
            capacity_value: sum over the links of capacity times price.
        """
        priced_demands = (path_prices > 0).nonzero()[:, 0]
        if not len(priced_demands):
            return
        price = path_prices[priced_demands]
        rate = self._rate[priced_demands]
        weight = self._weight[priced_demands]
        demand = self._demand[priced_demands]
        is_open = self.is_open[priced_demands]
        limit = self.limit[priced_demands]
        # Largest rate of each demand alone, while the others keep their rates or its level.
        unilateral_limit = _unilateral_limit(price, capacity_value, rate, weight)
        limit = torch.maximum(torch.minimum(limit, unilateral_limit), rate)
        is_held = is_open & (unilateral_limit <= (1 + _HELD_TOLERANCE_ABOVE) * rate)
        # Growth of the level, and the demands that it holds: open, with a significant price, and
        # not far above the largest rate of the level.
        level_rate = level * weight
        is_in_level = has_level(rate / weight, level, is_open, _LEVEL_TOLERANCE_BELOW)
        may_grow = is_in_level & is_open
        if bool(may_grow.any()):
            growth = growth_from(price, capacity_value, rate, is_in_level, level_rate, demand)
            max_rate = growth * level_rate
            is_bottlenecked = may_grow & (price > HELD_PRICE_SHARE * price[may_grow].max())
            is_bottlenecked = is_bottlenecked & (rate <= (1 + _HELD_TOLERANCE_ABOVE) * max_rate)
            limit = torch.where(
                is_bottlenecked, torch.maximum(torch.minimum(limit, max_rate), rate), limit
            )
            is_held |= is_bottlenecked
            self._levels.append(
                (
                    float(rate[is_bottlenecked].sum()),
                    LevelGrowth(
                        level, int(is_bottlenecked.sum()), growth, priced_demands[is_bottlenecked]
                    ),
                )
            )
        # Write the limits of the affected demands.
        self.limit[priced_demands] = limit
        self.is_held[priced_demands] |= is_held

    @property
    def shown(self) -> tuple[LevelGrowth, ...]:
        """The 8 levels that hold most flow, in ascending order of the level."""
        largest_levels = sorted(self._levels, key=lambda flow_and_level: -flow_and_level[0])[
            :_MAX_SHOWN_LEVELS
        ]
        return tuple(sorted((level for _, level in largest_levels), key=lambda level: level.level))


def _unilateral_limit(price: Tensor, capacity_value: float, rate: Tensor, weight: Tensor) -> Tensor:
    """Return the largest rate (n,) in Gbit/s to which each demand can be raised by itself.

    It is (value of all capacity - cost of the other demands) / price, where each other demand keeps
    its rate, or falls to the level of this demand if it has more; at least the present rate.

    Args:
        price: (n,) price of the cheapest path of each demand, above 0.
        capacity_value: sum over the links of capacity times price.
        rate: (n,) present rate of each demand, Gbit/s.
        weight: (n,) weight of each demand.
    """
    # Cost of the others, by prefix sums in the order of rate / weight: demands of lower levels keep
    # their rates, those of higher levels fall to this level.
    level, order = (rate / weight).sort()
    demand_cost = (rate * price)[order]
    cost_per_level = (weight * price)[order]
    cumulative_cost = demand_cost.cumsum(0)
    higher_cost_per_level = cost_per_level.sum() - cost_per_level.cumsum(0)
    others_cost = torch.empty_like(cumulative_cost)
    others_cost[order] = cumulative_cost - demand_cost + level * higher_cost_per_level
    return torch.maximum((capacity_value * (1 + _SUM_ROUNDING) - others_cost) / price, rate)


def has_level(
    level: Tensor, threshold: float, is_open: Tensor, tolerance_below: float = 0.0
) -> Tensor:
    """Return for each demand (D,) whether it has at least a level; a fully served demand must have
    more than the level.

    Args:
        level: (D,) rate per weight of each demand.
        threshold: the level, a rate per weight.
        is_open: (D,) true for demands that are not fully served.
        tolerance_below: fraction of the level by which an open demand may be below it.
    """
    return (is_open & (level >= (1 - tolerance_below) * threshold)) | (
        ~is_open & (level > threshold)
    )


def growth_bound(
    problem: Problem, rate: Tensor, is_in_level: Tensor, level_rate: Tensor, prices: Tensor
) -> float:
    """Bound the factor theta by which a level can grow, by link prices; may be infinite.

    Args:
        problem: problem with B = 1.
        rate: (D,) carried rate of each demand, Gbit/s.
        is_in_level: (D,) whether a demand has at least the level.
        level_rate: (D,) rate of each demand at the level: level times weight, Gbit/s.
        prices: (1, E) dual price of each link, at least 0.
    """
    min_path_price = problem.cheapest_path_cost(problem.ops.path_sum(prices))[0]
    return growth_from(
        min_path_price,
        float(problem.capacity_value(prices)[0]),
        rate,
        is_in_level,
        level_rate,
        problem.demand[0],
    )


def growth_from(
    min_path_price: Tensor,
    capacity_value: float,
    rate: Tensor,
    is_in_level: Tensor,
    level_rate: Tensor,
    demand: Tensor,
) -> float:
    """Return the bound on the growth theta of a level, from path prices and the value of capacity.

    It is the largest theta for which

        sum over the level of min(theta * level_rate, demand) * price
            <= value of capacity - sum over the other demands of rate * price;

    infinite if every theta satisfies this.

    Args:
        min_path_price: (D,) price of the cheapest live path of each demand; 0 without one.
        capacity_value: value of all capacity: the sum over the links of capacity times price.
        rate: (D,) carried rate of each demand, Gbit/s.
        is_in_level: (D,) whether a demand has at least the level.
        level_rate: (D,) rate of each demand at the level: level times weight, Gbit/s.
        demand: (D,) demands, Gbit/s.
    """
    remaining_value = capacity_value * (1 + _SUM_ROUNDING) - float(
        torch.where(is_in_level, 0, rate * min_path_price).sum()
    )
    # Only demands with a price limit the growth.
    is_in_level = is_in_level & (min_path_price > 0)
    min_path_price = min_path_price[is_in_level]
    level_rate = level_rate[is_in_level]
    demand = demand[is_in_level]

    def cost(theta: float) -> float:
        return float((torch.minimum(theta * level_rate, demand) * min_path_price).sum())

    # Largest theta at which the cost fits, by bisection.
    theta_low = 0.0
    theta_high = float((demand / level_rate).max()) if len(level_rate) else 0.0
    if cost(theta_high) <= remaining_value:
        return math.inf
    for _ in range(_GROWTH_HALVINGS):
        theta_middle = (theta_low + theta_high) / 2
        theta_low, theta_high = (
            (theta_middle, theta_high)
            if cost(theta_middle) <= remaining_value
            else (theta_low, theta_middle)
        )
    return theta_high
