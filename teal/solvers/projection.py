"""From any splits to an allocation that is exactly feasible.

The model alone: what its splits carry when they are cut to fit, and the gap that its own prices
certify.

Repair hides what a model has learnt: on small networks random weights come next to the optimum
after it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.bounds import gap, scaled_dual_bound
from teal.problem.feasibility import check_shape

MIN_SPLIT_SUM = 1e-12  # share of a demand; splits with a smaller sum count as none


def project(problem: Problem, splits: Tensor, refill: int = 4) -> Tensor:
    """A feasible allocation near ``splits``: (B, D, K).

    max_link_utilisation: the splits of each routable demand are scaled to sum to 1.

    max_concurrent_flow: the same, then all splits are divided by the largest utilisation where that
    is above 1, and unserved demand takes up unused capacity as in step 3.

    Value maximisation, in three steps:

    1. splits that are negative, NaN or on paths that are not live go to 0, those above the largest
       share of their path to that; a sum above 1 is scaled to 1;
    2. every path is divided by the worst over-utilisation along it, max(1, max_e load[e] / c[e]),
       after which no link is over capacity;
    3. step 2 wastes capacity wherever a path was cut at another link.  So in each of ``refill``
       rounds the unserved part of each demand requests the capacity that its paths had left a round
       before, and gets the share that step 2 grants on the residual capacities.  The allocation is
       feasible after every round.

    Args:
        problem: B matrices.
        splits: (B, D, K), any numbers.
        refill: number of rounds of step 3.

    Raises:
        ValueError: splits of another shape than (B, D, K).
    """
    check_shape(problem, splits)
    splits = torch.where(problem.path_mask, splits, 0).nan_to_num(nan=0.0, posinf=1.0).clamp(min=0)
    if problem.largest_share is not None:
        splits = torch.minimum(splits, problem.largest_share.to(splits))
    if problem.demand_set.carries_all:
        splits = scaled_to_one(problem, splits)
        if not problem.objective.may_shed:
            return splits
        splits = splits / problem.utilisation(splits).amax(1).clamp(min=1)[:, None, None]
    flow = problem.flows(splits / splits.sum(-1, keepdim=True).clamp(min=1))
    load = problem.ops.link_sum(flow)
    unused = (problem.capacity - load).clamp(min=0)
    flow = flow * granted_share(problem, load, problem.capacity)
    for _ in range(refill):
        load = problem.ops.link_sum(flow)
        request = _requested_flow(problem, flow, unused)
        requested_load = problem.ops.link_sum(request)
        residual = (problem.capacity - load).clamp(min=0)
        flow = flow + request * granted_share(problem, requested_load, residual)
        unused = (residual - requested_load).clamp(min=0)
    demand = problem.demand[..., None]
    return torch.where(demand > 0, flow / torch.where(demand > 0, demand, 1), 0)


def scaled_to_one(problem: Problem, splits: Tensor) -> Tensor:
    """(B, D, K) splits >= 0 of live paths, scaled to a sum of 1 for each demand; even splits where
    all are 0.
    """
    total = splits.sum(-1, keepdim=True)
    return torch.where(
        total > MIN_SPLIT_SUM, splits / total.clamp(min=MIN_SPLIT_SUM), problem.even_splits
    )


def granted_share(problem: Problem, requested: Tensor, available: Tensor) -> Tensor:
    """(B, D, K) share of its requested flow that each path gets: 1 / max(1, max requested /
    available along it).

    Args:
        problem: for paths.
        requested: (B, E) load if every request were granted; where it is 0 the link cuts no path.
        available: (B, E) capacity that may be used.
    """
    smallest = torch.finfo(
        available.dtype
    ).tiny  # positive in this type: the gradient of 0 / 0 would be NaN
    ratio = torch.where(requested > 0, requested / available.clamp(min=smallest), 0)
    return 1 / problem.ops.path_max(ratio)[0].clamp(min=1)


def _requested_flow(problem: Problem, flow: Tensor, unused: Tensor) -> Tensor:
    """(B, D, K) Gbit/s that unserved demand requests, divided among its paths by the unused
    capacity along them.

    Args:
        problem: B matrices.
        flow: (B, D, K) that is allocated.
        unused: (B, E) capacity.
    """
    path_unused = torch.where(
        problem.path_mask, -problem.ops.path_max(-unused)[0], 0
    )  # least along the path
    if problem.largest_share is not None:
        path_unused = torch.minimum(
            path_unused, (problem.flows(problem.largest_share) - flow).clamp(min=0)
        )
    unserved = (problem.demand - flow.sum(-1)).clamp(min=0)[..., None]
    return path_unused * (unserved / path_unused.sum(-1, keepdim=True).clamp(min=1e-30)).clamp(
        max=1
    )


class CutOnly(NamedTuple):
    """Figures of B matrices, float64.

    Attributes:
        satisfied_demand: (B,) share of the demand that is carried; 1 where there is none.
        gap: (B,) certified, by the best multiple of the model's prices; under priority that of the
            weighted sum.
        share: (B,) see :func:`share_of_value`.
    """

    satisfied_demand: Tensor
    gap: Tensor
    share: Tensor


def share_of_value(problem: Problem, value: Tensor) -> Tensor:
    """(B,) a value as a number that is larger the better the allocation is.

    Its share of the value of all demand, each Gbit/s on its best path, 1 without demand; the least
    share of a demand under max_concurrent_flow; 1 / utilisation where the value is a utilisation.

    Args:
        problem: B matrices.
        value: (B,) of the objective.
    """
    if problem.objective.rules.sense < 0:
        return 1 / value.clamp(min=1e-30)
    if problem.objective.rules.balances:
        return value
    most = (problem.demand * problem.path_value.amax(-1)).sum(1)
    return torch.where(most > 0, value / most.clamp(min=1e-300), 1.0)


def cut_only(problem: Problem, splits: Tensor, prices: Tensor) -> CutOnly:
    """Cut splits in proportion until they are feasible, and measure them.

    Args:
        problem: B matrices.
        splits: (B, D, K) of a model.
        prices: (B, E) of the model.
    """
    problem = problem.to(torch.float64)
    cut = project(problem, splits.to(problem.demand), refill=0)
    total, carried = problem.demand.sum(1), problem.flows(cut).sum((1, 2))
    share = torch.where(total > 0, carried / total.clamp(min=1e-300), 1.0)
    value = problem.value(cut)
    bound = scaled_dual_bound(problem, prices)
    return CutOnly(share, gap(problem, value, bound), share_of_value(problem, value))
