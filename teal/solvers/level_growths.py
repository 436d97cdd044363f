"""Certified growth of the rate levels of any allocation (:mod:`teal.problem.fair_levels`).

The certificate of a level are the prices of a max_link_utilisation program at rates scaled by a
slightly too large theta: they lie on the links that limit this level, not on links of lower levels.
Entry point: :func:`level_growths`.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.fair_levels import WHOLE_SHARE, LevelGrowth, growth_bound, has_level
from teal.solvers import pipeline
from teal.solvers.sequences.fairness import weights_of

# Values of theta in the order of trial, until one exceeds its bound.
_GROWTH_FACTORS = (
    1.02,
    1.1,
    1.3,
    2.0,
    4.0,
    16.0,
)
_SAME_LEVEL_RATIO = 1.02  # largest ratio of levels in one group
# Target gap of the programs; wider gaps only loosen the bounds.
_PROGRAM_GAP = 1e-3
_PROGRAM_ITERATIONS = 2000


def level_growths(
    problem: Problem,
    splits: Tensor,
    weight: Tensor | None = None,
    *,
    levels: int = 8,
    min_rate: float = 0.0,
) -> list[LevelGrowth]:
    """Certify how far some rate levels could grow, in ascending order of the level.

    A level t is a rate per weight w.  No allocation raises the rates of all demands at the level t
    or above it beyond theta t w (at most the demand) while the other demands keep their rates;
    theta is the certified growth.

    Args:
        problem: B = 1.
        splits: (1, D, K) feasible splits.
        weight: (D,) positive weights w; None for 1 each.
        levels: largest number of levels, those with the most flow.
        min_rate: smallest level to consider.
    """
    # Rates (D,) in Gbit/s and levels (D,) without classes, value steps and side conditions.
    problem = dataclasses.replace(
        problem.to(torch.float64), classes=None, steps=None, conditions=()
    )
    rate = problem.flows(splits.to(problem.demand)).sum(-1)[0]
    demand = problem.demand[0]
    weight = weights_of(problem, weight)[0]
    level = rate / weight
    # Open demands have a path and are not fully served.
    is_open = (rate < WHOLE_SHARE * demand) & problem.routable[0]
    is_selected = is_open & (level > min_rate)
    growths = []
    for lowest_level in _largest_levels(level[is_selected], rate[is_selected], levels):
        is_in_level = has_level(level, lowest_level, is_open)
        growth = _growth(problem, rate, is_in_level, lowest_level * weight)
        growths.append(LevelGrowth(lowest_level, int((is_in_level & is_open).sum()), growth))
    return growths


def _largest_levels(level: Tensor, rate: Tensor, num_groups: int) -> list[float]:
    """Group levels of demands, and return the lowest level of the groups with the most flow.

    Levels within 2% of the lowest one of a group belong to the group; the result ascends.

    Args:
        level: (n,) rate per weight of each demand.
        rate: (n,) flow of each demand, Gbit/s.
        num_groups: largest number of groups.
    """
    sorted_levels, order = level.sort()
    # Flow and lowest level of each group.
    groups: list[tuple[float, float]] = []
    for entry, flow in zip(sorted_levels.tolist(), rate[order].tolist(), strict=True):
        if groups and entry <= groups[-1][1] * _SAME_LEVEL_RATIO:
            groups[-1] = groups[-1][0] + flow, groups[-1][1]
        else:
            groups.append((flow, entry))
    return sorted(lowest for _, lowest in sorted(groups, reverse=True)[:num_groups])


def _growth(problem: Problem, rate: Tensor, is_in_level: Tensor, level_rate: Tensor) -> float:
    """Return the tightest bound found on the growth factor theta of a level.

    Tries increasing theta until the prices of max_link_utilisation at the grown rates prove a bound
    of at most theta.

    Args:
        problem: B = 1.
        rate: (D,) rates, Gbit/s.
        is_in_level: (D,) bool, demands whose rates grow; the others keep theirs.
        level_rate: (D,) rate of each demand at the level, level times weight, Gbit/s.
    """
    best_bound = math.inf
    for growth_factor in _GROWTH_FACTORS:
        grown_rates = torch.where(
            is_in_level, torch.minimum(growth_factor * level_rate, problem.demand[0]), rate
        )
        # Smallest largest utilisation at these rates; its prices bound the growth.
        mlu_problem = problem.as_min_max_program(
            ObjectiveName.MAX_LINK_UTILISATION, grown_rates[None]
        )
        prices = pipeline.solve(
            mlu_problem, gap=_PROGRAM_GAP, max_iterations=_PROGRAM_ITERATIONS
        ).prices
        best_bound = min(best_bound, growth_bound(problem, rate, is_in_level, level_rate, prices))
        if best_bound <= growth_factor:
            break
    return best_bound
