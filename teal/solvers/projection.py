"""From any splits to an allocation that is exactly feasible."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem


def project(problem: Problem, splits: Tensor, refill: int = 4) -> Tensor:
    """The feasible allocation nearest at hand: (B, D, K).

    max_link_utilisation: the splits of each routable demand are scaled to sum to 1.

    Value maximisation, in three steps:

    1. splits below 0, NaN and on missing paths go to 0; a sum above 1 is scaled to 1;
    2. every path is divided by the worst over-utilisation along it, max(1, max_e load[e] / c[e]),
       after which no link can be over capacity;
    3. that wastes capacity wherever a path was cut at another link; so ``refill`` times the
       unserved part of each demand asks for the room left on its paths, and gets as much as
       everyone can have by step 2 on the residual capacities.  Feasible after every round.
    """
    splits = torch.where(problem.path_mask, splits, 0).nan_to_num(nan=0.0, posinf=1.0).clamp(min=0)
    total = splits.sum(-1, keepdim=True)
    if not problem.objective.may_shed:
        return torch.where(total > 1e-12, splits / total.clamp(min=1e-12), problem.even_splits)
    flow = problem.flows(splits / total.clamp(min=1))
    flow = flow * cut(problem, problem.ops.link_sum(flow), problem.capacity)
    for _ in range(refill):
        flow = flow + _refill(problem, flow)
    return torch.where(problem.demand[..., None] > 0, flow / problem.demand[..., None].clamp(min=1e-30), 0)


def cut(problem: Problem, load: Tensor, capacity: Tensor) -> Tensor:
    """(B, D, K) factor of each path, 1 / max(1, max load / capacity along it); where nothing is loaded, 1."""
    over = torch.where(capacity > 0, load / capacity.clamp(min=1e-30), torch.where(load > 0, torch.inf, 0))
    return 1 / problem.ops.path_max(over)[0].clamp(min=1)


def _refill(problem: Problem, flow: Tensor) -> Tensor:
    """(B, D, K) flow that can be added to ``flow``."""
    left = (problem.capacity - problem.ops.link_sum(flow)).clamp(min=0)  # (B, E)
    room = -problem.ops.path_max(-left)[0]  # (B, D, K) the least residual along the path
    room = torch.where(problem.path_mask, room, 0)
    unserved = (problem.demand - flow.sum(-1)).clamp(min=0)[..., None]
    weight = room * problem.path_value
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    ask = torch.minimum(unserved * share, room)
    return ask * cut(problem, problem.ops.link_sum(ask), left)
