"""Certified growth of the levels of any allocation (see :mod:`teal.problem.fair_levels`), whatever
made it.

The prices are those of a max_link_utilisation program with the rates of a theta that is slightly
too large: they lie on the links that stop the level, and not on those that stop lower ones.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.fair_levels import WHOLE_SHARE, LevelGrowth, growth_bound, members
from teal.solvers import pdhg
from teal.solvers.sequences.fairness import weights_of

_GROWTH_FACTORS = (
    1.02,
    1.1,
    1.3,
    2.0,
    4.0,
    16.0,
)  # theta of the programs whose prices are tried, until one is large enough
_SAME_LEVEL_RATIO = 1.02  # levels up to so many times the least of a group are one level
# Of the programs; wider gaps only give looser bounds.
_PROGRAM_GAP = 1e-3
_PROGRAM_ITERATIONS = 2000


def level_growths(
    problem: Problem,
    splits: Tensor,
    weight: Tensor | None = None,
    *,
    levels: int = 8,
    least: float = 0.0,
) -> list[LevelGrowth]:
    """Certified growth of some levels, the lowest first.

    Args:
        problem: B = 1.
        splits: (1, D, K) feasible.
        weight: (D,) w, above 0; None for 1 each.
        levels: number of them at most; those at which most flow stops.
        least: levels below it are left out.
    """
    problem = dataclasses.replace(
        problem.to(torch.float64), classes=None, steps=None, conditions=()
    )
    rate, demand = problem.flows(splits.to(problem.demand)).sum(-1)[0], problem.demand[0]
    weight = weights_of(problem, weight)[0]
    level = rate / weight
    is_open = (rate < WHOLE_SHARE * demand) & problem.routable[0]
    counts = is_open & (level > least)
    growths = []
    for start in _levels(level[counts], rate[counts], levels):
        above = members(level, start, is_open)
        growth = _growth(problem, rate, above, start * weight)
        growths.append(LevelGrowth(start, int((above & is_open).sum()), growth))
    return growths


def _levels(level: Tensor, rate: Tensor, count: int) -> list[float]:
    """The least entry of each of the ``count`` groups of nearly equal levels that have most flow,
    ascending.
    """
    ordered, order = level.sort()
    groups: list[tuple[float, float]] = []  # flow, level
    for level_here, flow in zip(ordered.tolist(), rate[order].tolist(), strict=True):
        if groups and level_here <= groups[-1][1] * _SAME_LEVEL_RATIO:
            groups[-1] = groups[-1][0] + flow, groups[-1][1]
        else:
            groups.append((flow, level_here))
    return sorted(start for _, start in sorted(groups, reverse=True)[:count])


def _growth(problem: Problem, rate: Tensor, grows: Tensor, granted: Tensor) -> float:
    """The least bound on theta that was found.

    Args:
        problem: B = 1.
        rate: (D,) Gbit/s.
        grows: (D,) true for A.
        granted: (D,) t w, Gbit/s.
    """
    least = math.inf
    for target in _GROWTH_FACTORS:
        rates = torch.where(grows, torch.minimum(target * granted, problem.demand[0]), rate)
        balanced = problem.balanced(ObjectiveName.MAX_LINK_UTILISATION, rates[None])
        prices = pdhg.solve(balanced, gap=_PROGRAM_GAP, max_iterations=_PROGRAM_ITERATIONS).prices
        least = min(least, growth_bound(problem, rate, grows, granted, prices))
        if least <= target:
            break
    return least
