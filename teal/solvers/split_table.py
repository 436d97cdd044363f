"""Integer split weights for switch tables of N entries (WCMP; Zhou et al., EuroSys 2014).

Path k carries the share w[d, k] / N of the admitted rate of a demand, with integers w that sum to
N. A rate limiter sets the admitted rate, so that all paths of a demand scale by one factor.  Entry
points: :func:`table_weights` (rounding), :func:`admit` (feasible allocation).
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.solvers.projection import project

# Share of a demand: splits with a smaller sum define no ratio, and the demand is not admitted.
_MIN_SPLIT_SUM = 1e-9


def table_weights(splits: Tensor, entries: int) -> Tensor:
    """Round splits to integers (B, D, K) that sum to ``entries``, by largest remainders.

    A demand whose splits are all 0 gets weights of 0.

    Args:
        splits: (B, D, K) splits.
        entries: number of entries of a demand's table.

    Raises:
        InputError: fewer than 1 entry.
    """
    if entries < 1:
        raise InputError("weights", "entries", "an integer of at least 1", entries)
    split_sum = splits.sum(-1, keepdim=True)
    has_flow = split_sum > _MIN_SPLIT_SUM
    # Floor of the exact weights; the largest remainders get the missing entries.
    exact_weight = torch.where(has_flow, splits / split_sum.clamp(min=_MIN_SPLIT_SUM), 0) * entries
    floor = exact_weight.floor()
    num_missing = (entries - floor.sum(-1, keepdim=True)).round()
    # Rank of each remainder in its demand, 0 for the largest.
    remainder_rank = (
        (exact_weight - floor).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    )
    return torch.where(has_flow, floor + (remainder_rank < num_missing), 0).to(torch.int64)


def in_table(splits: Tensor, entries: int) -> Tensor:
    """Round splits (B, D, K) to multiples of 1 / ``entries`` of their sum for each demand.

    The sum (at most 1) stays the same.
    """
    return table_weights(splits, entries) * (splits.sum(-1, keepdim=True).clamp(max=1) / entries)


def without_small(problem: Problem, splits: Tensor, min_share: float) -> Tensor:
    """Return a feasible allocation (B, D, K) without splits below ``min_share``.

    The other paths of a demand carry the flow of the removed splits.

    Args:
        problem: B matrices.
        splits: (B, D, K) feasible splits.
        min_share: smallest share of a demand, in [0, 1).
    """

    def remove_small(shares: Tensor) -> Tensor:
        return torch.where(shares >= min_share, shares, 0)

    # Scale the large splits of each demand to the sum of all its splits.
    large_splits = remove_small(splits)
    split_sum = splits.sum(-1, keepdim=True)
    scaled_splits = large_splits * (
        split_sum / large_splits.sum(-1, keepdim=True).clamp(min=_MIN_SPLIT_SUM)
    )
    if not problem.objective.may_shed:
        # A demand whose splits are all small keeps its largest one, for all of its flow.
        has_only_small = (large_splits.sum(-1, keepdim=True) <= 0) & (split_sum > 0)
        largest_path = torch.zeros_like(splits).scatter_(-1, splits.argmax(-1, keepdim=True), 1.0)
        return torch.where(has_only_small, largest_path * split_sum, scaled_splits)
    feasible_splits = within_conditions(problem, project(problem, scaled_splits))
    # The projection may scale a split below the limit: remove such splits, too.
    return remove_small(feasible_splits)


def feasible_tables(problem: Problem, splits: Tensor, entries: int, refill: int = 6) -> Tensor:
    """Return a feasible allocation (B, D, K) with splits in the ratios of split tables.

    Where demand may be shed, the rate of each demand is divided by the worst over-utilisation on
    its paths, max(1, largest load / capacity), and rates are then raised into unused capacity.
    Under max_link_utilisation all demand is served.

    Args:
        problem: B matrices.
        splits: (B, D, K) splits to round.
        entries: number of entries of a demand's table.
        refill: number of rounds that raise rates into unused capacity.
    """
    # Ratios of the tables; demands without flow get even splits if all demand must be served.
    weights = table_weights(torch.where(problem.path_mask, splits, 0), entries)
    ratio = weights.to(splits) / entries
    if not problem.objective.may_shed:
        even_shares = problem.even_splits * (problem.demand > 0)[..., None]
        has_flow = weights.sum(-1, keepdim=True) > 0
        return torch.where(
            has_flow, ratio, table_weights(even_shares, entries).to(splits) / entries
        )
    # (B, D) admitted rate of each demand, Gbit/s, scaled down to the capacities; under
    # max_concurrent_flow all demands first get the same served share.
    is_used = ratio > 0
    served_share = splits.sum(-1).clamp(max=1)
    if problem.demand_set.carries_all:
        served_share = torch.full_like(served_share, 1.0) / problem.utilisation(ratio).amax(
            1, keepdim=True
        ).clamp(min=1)
    rate = _granted_rate(problem, ratio, is_used, problem.demand * served_share, problem.capacity)
    # Refill: each demand requests the largest further rate that its most loaded path allows.
    for _ in range(refill):
        residual = (problem.capacity - problem.ops.link_sum(rate[..., None] * ratio)).clamp(min=0)
        # Further rate of the demand at which each path is full, and its minimum over used paths.
        path_further_rate = -problem.ops.path_max(-residual)[0] / ratio.clamp(min=_MIN_SPLIT_SUM)
        further_rate = torch.where(is_used, path_further_rate, torch.inf).amin(-1)
        requested_rate = torch.minimum(
            problem.demand - rate, torch.where(is_used.any(-1), further_rate, 0)
        ).clamp(min=0)
        rate = rate + _granted_rate(problem, ratio, is_used, requested_rate, residual)
    admitted_share = torch.where(problem.demand > 0, rate / problem.demand.clamp(min=1e-30), 0)
    return within_conditions(problem, ratio * admitted_share[..., None])


def within_conditions(problem: Problem, splits: Tensor) -> Tensor:
    """Return splits (B, D, K) scaled down until the side conditions hold, one factor per demand."""
    for condition in problem.conditions:
        splits = condition.scaled(problem.program, splits)
    return splits


def _granted_rate(
    problem: Problem,
    ratio: Tensor,
    is_used: Tensor,
    requested_rate: Tensor,
    available_capacity: Tensor,
) -> Tensor:
    """Return (B, D) the granted part of requested rates, Gbit/s.

    It is requested / max(1, largest load / available of the links that the demand uses).

    Args:
        problem: B matrices, for their paths.
        ratio: (B, D, K) ratios of the table.
        is_used: (B, D, K) whether the ratio is positive.
        requested_rate: (B, D) requested rates, Gbit/s.
        available_capacity: (B, E) available capacity, Gbit/s.
    """
    load = problem.ops.link_sum(requested_rate[..., None] * ratio)
    requested_utilisation = torch.where(
        load > 0, load / available_capacity.clamp(min=torch.finfo(available_capacity.dtype).tiny), 0
    )
    worst_utilisation = torch.where(
        is_used, problem.ops.path_max(requested_utilisation)[0], 0
    ).amax(-1)
    return requested_rate / worst_utilisation.clamp(min=1)
