"""Integer split weights: a table of N entries for each demand, as switches have it (WCMP; Zhou et
al., EuroSys 2014).

Of the admitted part of a demand, path k carries the share w[d, k] / N, with whole numbers w that
sum to N.  The admitted rate is set by a rate limiter and may be any number.  So the paths of a
demand are cut by one factor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.solvers.projection import project

# share of a demand: splits that sum to less define no ratio, and the demand is not admitted
_MIN_TOTAL = 1e-9


def table_weights(splits: Tensor, entries: int) -> Tensor:
    """(B, D, K) whole numbers that sum to ``entries``, in the ratio of ``splits``, rounded by
    largest remainders.

    All 0 for a demand whose splits are all 0.

    Args:
        splits: (B, D, K).
        entries: N, of a demand's table.

    Raises:
        InputError: fewer than 1 entry.
    """
    if entries < 1:
        raise InputError("weights", "entries", "at least 1", entries)
    total = splits.sum(-1, keepdim=True)
    is_sent = total > _MIN_TOTAL
    exact = torch.where(is_sent, splits / total.clamp(min=_MIN_TOTAL), 0) * entries
    whole = exact.floor()
    missing = (entries - whole.sum(-1, keepdim=True)).round()
    rank = (exact - whole).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return torch.where(is_sent, whole + (rank < missing), 0).to(torch.int64)


def in_table(splits: Tensor, entries: int) -> Tensor:
    """(B, D, K) splits with the same sum a demand, in the ratios of :func:`table_weights`."""
    return table_weights(splits, entries) * (splits.sum(-1, keepdim=True).clamp(max=1) / entries)


def without_small(problem: Problem, splits: Tensor, least: float) -> Tensor:
    """A feasible allocation (B, D, K) without splits below ``least``; the other paths of a demand
    take up its share.

    Args:
        problem: B matrices.
        splits: (B, D, K), feasible.
        least: share of a demand, in [0, 1).
    """

    def dropped(shares: Tensor) -> Tensor:
        return torch.where(shares >= least, shares, 0)

    kept, total = dropped(splits), splits.sum(-1, keepdim=True)
    scaled = kept * (total / kept.sum(-1, keepdim=True).clamp(min=_MIN_TOTAL))
    if not problem.objective.may_shed:
        is_empty = (kept.sum(-1, keepdim=True) <= 0) & (
            total > 0
        )  # all were small: the largest takes everything
        largest = torch.zeros_like(splits).scatter_(-1, splits.argmax(-1, keepdim=True), 1.0)
        return torch.where(is_empty, largest * total, scaled)
    fitted = within_conditions(problem, project(problem, scaled))
    return dropped(fitted)  # what no longer fits is cut, which may leave a split below the least


def admit(problem: Problem, splits: Tensor, entries: int, refill: int = 6) -> Tensor:
    """A feasible allocation (B, D, K) whose splits are in the ratios of a table.

    Programs that may shed cut each demand by the worst over-utilisation on its paths, max(1, max
    load / c), and give the capacity that this leaves over back in ``refill`` rounds, as
    :func:`teal.solvers.projection.project` does path by path.  Under max_link_utilisation all
    demand is carried.

    Args:
        problem: B matrices.
        splits: (B, D, K) to round.
        entries: N, of a demand's table.
        refill: rounds.
    """
    weights = table_weights(torch.where(problem.path_mask, splits, 0), entries)
    ratio = weights.to(splits) / entries
    if not problem.objective.may_shed:
        even = problem.even_splits * (problem.demand > 0)[..., None]
        is_sent = weights.sum(-1, keepdim=True) > 0
        return torch.where(is_sent, ratio, table_weights(even, entries).to(splits) / entries)
    is_used, share = ratio > 0, splits.sum(-1).clamp(max=1)
    if problem.demand_set.carries_all:
        share = torch.full_like(share, 1.0) / problem.utilisation(ratio).amax(
            1, keepdim=True
        ).clamp(min=1)
    rate = _granted_rate(problem, ratio, is_used, problem.demand * share, problem.capacity)
    for _ in range(refill):
        unused = (problem.capacity - problem.ops.link_sum(rate[..., None] * ratio)).clamp(min=0)
        path_limit = -problem.ops.path_max(-unused)[0] / ratio.clamp(
            min=_MIN_TOTAL
        )  # rate that fills path k
        limit = torch.where(is_used, path_limit, torch.inf).amin(-1)
        request = torch.minimum(
            problem.demand - rate, torch.where(is_used.any(-1), limit, 0)
        ).clamp(min=0)
        rate = rate + _granted_rate(problem, ratio, is_used, request, unused)
    admitted = torch.where(problem.demand > 0, rate / problem.demand.clamp(min=1e-30), 0)
    return within_conditions(problem, ratio * admitted[..., None])


def within_conditions(problem: Problem, splits: Tensor) -> Tensor:
    """Splits (B, D, K) scaled down, a demand in the same ratios, to what the side conditions
    allow.
    """
    for condition in problem.conditions:
        splits = condition.scaled(problem.program, splits)
    return splits


def _granted_rate(
    problem: Problem, ratio: Tensor, is_used: Tensor, requested: Tensor, available: Tensor
) -> Tensor:
    """(B, D) Gbit/s: ``requested`` (B, D) divided by the worst max(1, load / available) of the
    links in use.

    Args:
        problem: for paths.
        ratio: (B, D, K) of the table.
        is_used: (B, D, K) true where the ratio is above 0.
        requested: (B, D) Gbit/s.
        available: (B, E) Gbit/s.
    """
    load = problem.ops.link_sum(requested[..., None] * ratio)
    link_ratio = torch.where(
        load > 0, load / available.clamp(min=torch.finfo(available.dtype).tiny), 0
    )
    worst = torch.where(is_used, problem.ops.path_max(link_ratio)[0], 0).amax(-1)
    return requested / worst.clamp(min=1)
