"""From any splits to an allocation that is exactly feasible."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem


def project(problem: Problem, splits: Tensor, refill: int = 4) -> Tensor:
    """The feasible allocation nearest at hand: (B, D, K).

    max_link_utilisation: the splits of each routable demand are scaled to sum to 1.

    max_concurrent_flow: the same, then all are divided by the utilisation where that is above 1, and
    what capacity is left is given away as in step 3.

    Value maximisation, in three steps:

    1. splits below 0, NaN and on missing paths go to 0; a sum above 1 is scaled to 1;
    2. every path is divided by the worst over-utilisation along it, max(1, max_e load[e] / c[e]),
       after which no link can be over capacity;
    3. that wastes capacity wherever a path was cut at another link; so ``refill`` times the unserved
       part of each demand asks for the room that was left on its paths a round before, and gets as
       much as everyone can have by step 2 on the residual capacities.  Feasible after every round.
    """
    splits = torch.where(problem.path_mask, splits, 0).nan_to_num(nan=0.0, posinf=1.0).clamp(min=0)
    total = splits.sum(-1, keepdim=True)
    if problem.objective.is_balanced:
        splits = torch.where(total > 1e-12, splits / total.clamp(min=1e-12), problem.even_splits)
        if not problem.objective.may_shed:
            return splits
        splits = splits / problem.utilisation(splits).amax(1).clamp(min=1)[:, None, None]
    flow = problem.flows(splits / splits.sum(-1, keepdim=True).clamp(min=1))
    load = problem.ops.link_sum(flow)
    left = (problem.capacity - load).clamp(min=0)
    flow = flow * granted(problem, load, problem.capacity)
    for _ in range(refill):
        load = problem.ops.link_sum(flow)
        ask = _wish(problem, flow, left)
        asked = problem.ops.link_sum(ask)
        residual = (problem.capacity - load).clamp(min=0)
        flow = flow + ask * granted(problem, asked, residual)
        left = (residual - asked).clamp(min=0)
    return torch.where(problem.demand[..., None] > 0, flow / problem.demand[..., None].clamp(min=1e-30), 0)


def granted(problem: Problem, asked: Tensor, had: Tensor) -> Tensor:
    """(B, D, K) factor of each path, 1 / max(1, max asked / had along it); where nothing is asked, 1."""
    least = torch.finfo(had.dtype).tiny  # of the type: a gradient through 0 / 0 would be NaN, even unasked for
    crowding = torch.where(asked > 0, asked / had.clamp(min=least), 0)
    return 1 / problem.ops.path_max(crowding)[0].clamp(min=1)


def _wish(problem: Problem, flow: Tensor, left: Tensor) -> Tensor:
    """(B, D, K) what unserved demand asks for, shared among its paths by the room (B, E) ``left`` along them."""
    room = torch.where(problem.path_mask, -problem.ops.path_max(-left)[0], 0)  # least along the path
    unserved = (problem.demand - flow.sum(-1)).clamp(min=0)[..., None]
    return room * (unserved / room.sum(-1, keepdim=True).clamp(min=1e-30)).clamp(max=1)
