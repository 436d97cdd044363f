"""Integer split weights: a table of N entries a demand, as switches have it (WCMP; Zhou et al., EuroSys 2014).

Of what a demand is admitted, w[d, k] / N goes over path k, with whole numbers w that add up to N; how much is admitted
is a rate limiter's and any number.  So the paths of a demand are cut together, or not at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem

_NOTHING = 1e-9  # splits that add up to less have no ratio


def table_weights(splits: Tensor, entries: int) -> Tensor:
    """(B, D, K) whole numbers that add up to ``entries``, in the ratio of ``splits`` by largest remainders.

    All 0 for a demand that sends nothing.

    Raises:
        InputError: fewer than 1 entry.
    """
    if entries < 1:
        raise InputError("weights", "entries", "at least 1", entries)
    total = splits.sum(-1, keepdim=True)
    some = total > _NOTHING
    exact = torch.where(some, splits / total.clamp(min=_NOTHING), 0) * entries
    whole = exact.floor()
    missing = (entries - whole.sum(-1, keepdim=True)).round()
    rank = (exact - whole).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return torch.where(some, whole + (rank < missing), 0).to(torch.int64)


def in_table(splits: Tensor, entries: int) -> Tensor:
    """(B, D, K) splits of the same sums in the ratios of :func:`table_weights`."""
    return table_weights(splits, entries) * (splits.sum(-1, keepdim=True).clamp(max=1) / entries)


def admit(problem: Problem, splits: Tensor, entries: int, refill: int = 6) -> Tensor:
    """The feasible allocation (B, D, K) whose splits stand in ratios of a table.

    Programs that shed cut each demand by the worst over-utilisation on its paths, max(1, max load / c), and give back
    in ``refill`` rounds what capacity that leaves, as :func:`teal.solvers.projection.project` does path by path.
    Under max_link_utilisation all demand is carried.
    """
    weights = table_weights(torch.where(problem.path_mask, splits, 0), entries)
    ratio = weights.to(splits) / entries
    if not problem.objective.may_shed:
        spread = problem.even_splits * (problem.demand > 0)[..., None]
        return torch.where(
            weights.sum(-1, keepdim=True) > 0, ratio, table_weights(spread, entries).to(splits) / entries
        )
    used, sent = ratio > 0, splits.sum(-1).clamp(max=1)
    if problem.objective.is_balanced:
        sent = torch.full_like(sent, 1.0) / problem.utilisation(ratio).amax(1, keepdim=True).clamp(min=1)
    rate = _granted(problem, ratio, used, problem.demand * sent, problem.capacity)
    for _ in range(refill):
        left = (problem.capacity - problem.ops.link_sum(rate[..., None] * ratio)).clamp(min=0)
        room = torch.where(used, -problem.ops.path_max(-left)[0] / ratio.clamp(min=_NOTHING), torch.inf).amin(-1)
        wish = torch.minimum(problem.demand - rate, torch.where(used.any(-1), room, 0)).clamp(min=0)
        rate = rate + _granted(problem, ratio, used, wish, left)
    admitted = torch.where(problem.demand > 0, rate / problem.demand.clamp(min=1e-30), 0)
    return ratio * admitted[..., None]


def _granted(problem: Problem, ratio: Tensor, used: Tensor, asked: Tensor, had: Tensor) -> Tensor:
    """(B, D) rates: those ``asked`` for over the worst crowding, max(1, asked / had), of the links in use."""
    load = problem.ops.link_sum(asked[..., None] * ratio)
    crowding = torch.where(load > 0, load / had.clamp(min=torch.finfo(had.dtype).tiny), 0)
    worst = torch.where(used, problem.ops.path_max(crowding)[0], 0).amax(-1)
    return asked / worst.clamp(min=1)
