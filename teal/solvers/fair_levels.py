r"""What max-min fair rates are worth, certified: how much each of their levels could grow at most.

Let t be a level, rate per weight, and A the demands that are not carried whole and have at least that level.  The
growth of the level is the largest theta for which an allocation exists that gives every demand of A min(theta t w[d],
demand[d]), and every other demand what it has; water-filling has found the level exactly if the growth is 1.  By weak
duality, for any prices p[e] >= 0, with price(d) the least sum of p along a live path,

    sum over A of min(theta t w[d], demand[d]) price(d) + sum over the others of f[d] price(d) <= sum_e c[e] p[e],

which bounds theta.  The prices are those of a max_link_utilisation program with the rates of a theta that is slightly
too large: they lie on the links that stop the level, and not on those that stop lower ones.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.solvers import pdhg
from teal.solvers.fairness import weights_of

_TARGETS = (1.02, 1.1, 1.3, 2.0, 4.0, 16.0)  # theta of the programs whose prices are tried, until one is large enough
_WHOLE = 0.99  # share of a demand from which it counts as carried whole
_SAME = 1.02  # levels up to so many times the least of a group are one level
_GAP, _ITERATIONS = 1e-3, 2000  # of the programs; wider gaps only give looser bounds
_HALVINGS = 60  # of an interval for theta
_ROUNDING = 1e-9  # of the value of all capacity, by which sums may be wrong: rounding must not prove a growth below 1


@dataclasses.dataclass(frozen=True)
class LevelGrowth:
    """A level of fair rates.

    Attributes:
        level: rate per weight.
        demands: number that have at least this level and are not carried whole.
        growth: certified bound on theta; infinite if none was found.
    """

    level: float
    demands: int
    growth: float


def level_growths(
    problem: Problem, splits: Tensor, weight: Tensor | None = None, *, levels: int = 8, least: float = 0.0
) -> list[LevelGrowth]:
    """Certified growth of some levels, the lowest first.

    Args:
        problem: B = 1.
        splits: (1, D, K) feasible.
        weight: (D,) w, above 0; None for 1 each.
        levels: number of them at most; those at which most flow stops.
        least: levels below it are left out.
    """
    problem = dataclasses.replace(problem.to(torch.float64), churn=None, classes=None, steps=None)
    rate, demand = problem.flows(splits.to(problem.demand)).sum(-1)[0], problem.demand[0]
    weight = weights_of(problem, weight)[0]
    level = rate / weight
    is_open = (rate < _WHOLE * demand) & problem.routable[0] & (level > least)
    return [
        LevelGrowth(
            start, int((grows := is_open & (level >= start)).sum()), _growth(problem, rate, grows, start * weight)
        )
        for start in _levels(level[is_open], rate[is_open], levels)
    ]


def _levels(level: Tensor, rate: Tensor, count: int) -> list[float]:
    """The least entry of each of the ``count`` groups of nearly equal levels that have most flow, ascending."""
    ordered, order = level.sort()
    groups: list[tuple[float, float]] = []  # flow, level
    for own, flow in zip(ordered.tolist(), rate[order].tolist(), strict=True):
        if groups and own <= groups[-1][1] * _SAME:
            groups[-1] = groups[-1][0] + flow, groups[-1][1]
        else:
            groups.append((flow, own))
    return sorted(start for _, start in sorted(groups, reverse=True)[:count])


def _growth(problem: Problem, rate: Tensor, grows: Tensor, granted: Tensor) -> float:
    """The least bound on theta that was found.

    Args:
        problem: B = 1.
        rate: (D,) Gbit/s.
        grows: (D,) true for A.
        granted: (D,) t w, Gbit/s.
    """
    found = math.inf
    for target in _TARGETS:
        rates = torch.where(grows, torch.minimum(target * granted, problem.demand[0]), rate)
        balanced = problem.balanced(ObjectiveName.MAX_LINK_UTILISATION, rates[None])
        prices = pdhg.solve(balanced, gap=_GAP, max_iterations=_ITERATIONS).prices
        found = min(found, growth_bound(problem, rate, grows, granted, prices))
        if found <= target:
            break
    return found


def growth_bound(problem: Problem, rate: Tensor, grows: Tensor, granted: Tensor, prices: Tensor) -> float:
    """The bound of the module on theta, for any prices (1, E); infinite if they prove nothing.

    Args:
        problem: B = 1.
        rate: (D,) f, Gbit/s.
        grows: (D,) true for A.
        granted: (D,) t w, Gbit/s.
        prices: at least 0.
    """
    price = problem.cheapest_path_cost(problem.ops.path_sum(prices))[0]
    value = problem.capacity_value(prices)[0]
    room = float(value * (1 + _ROUNDING) - torch.where(grows, 0, rate * price).sum())
    price, granted, demand = price[grows], granted[grows], problem.demand[0][grows]

    def cost(theta: float) -> float:
        return float((torch.minimum(theta * granted, demand) * price).sum())

    low, high = 0.0, float((demand / granted).max()) if len(granted) else 0.0
    if cost(high) <= room:
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= room else (low, middle)
    return high
