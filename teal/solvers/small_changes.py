"""Small changes that are not made: demands whose splits hardly differ from those in force keep them.

Each change of a router carries a risk, and a change of a per cent of a demand is seldom worth it.  Where keeping would
overload a link, the demands that are kept on it change after all: with these, a link carries no more than in the new
allocation, so that at most D rounds end with a feasible one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.problem.churn import ChurnLimit, live_part

_EQUAL_SPLIT_TOLERANCE = 1e-9  # share of a demand: what differs by less is rounding
_CAPACITY_TOLERANCE = 1e-9  # of a link's capacity, by which the sum of kept flows may exceed it


def changes(problem: Problem, splits: Tensor, previous: Tensor) -> Tensor:
    """(B, D) true for demands above 0 whose splits differ from ``previous`` ones (see :func:`keep_within`)."""
    return ((splits - live_part(problem.program, previous)).abs().amax(-1) > _EQUAL_SPLIT_TOLERANCE) & (
        problem.demand > 0
    )


def keep_within(problem: Problem, splits: Tensor, previous: Tensor, share: float) -> Tensor:
    """Keep the splits in force of every demand that would change by at most ``share`` of its rate.

    Args:
        problem: B matrices, under an objective that maximises a value.
        splits: (B, D, K) feasible.
        previous: (B, D, K) or (D, K) in force; those on paths that are not live count as 0.
        share: in [0, 1]; a demand changes by what it sends onto paths, or takes off them, whichever is more.

    Returns:
        (B, D, K) splits.

    Raises:
        InputError: a side condition other than a limit on churn, which kept splits may break.
    """
    for condition in problem.conditions:
        if not isinstance(condition, ChurnLimit):
            raise InputError("keep_within", condition.name, "none", "a condition that splits in force need not keep")
    kept = live_part(problem.program, previous)
    difference = splits - kept
    change = torch.maximum(difference.clamp(min=0).sum(-1), (-difference).clamp(min=0).sum(-1))
    is_kept = change <= share
    while True:
        mixed = torch.where(is_kept[..., None], kept, splits)
        is_over = problem.loads(mixed.to(problem.demand)) > problem.capacity * (1 + _CAPACITY_TOLERANCE)
        on_full = problem.ops.path_max(is_over.to(problem.capacity))[0] > 0
        too_much = is_kept & (on_full & (kept > 0)).any(-1)
        if not bool(too_much.any()):
            return mixed
        is_kept = is_kept & ~too_much
