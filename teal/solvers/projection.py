"""Projection of arbitrary splits to a feasible allocation, and a model's figures without refill.

:func:`project` scales flows down to the capacities and refills unused capacity.  :func:`cut_only`
measures a model alone: its splits scaled down, without refill, and the gap at its own prices;
refill would hide the model's quality (with it, random weights come close to the optimum on small
networks).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.bounds import gap, scaled_dual_bound
from teal.problem.feasibility import check_shape

MIN_SPLIT_SUM = 1e-12  # share of a demand; splits with a smaller sum count as zero


def project(problem: Problem, splits: Tensor, refill: int = 4) -> Tensor:
    """Project ``splits`` to a feasible allocation (B, D, K).

    Under max_link_utilisation the splits of each routable demand are scaled to a sum of 1.

    Under max_concurrent_flow splits are scaled to a sum of 1 and divided by the largest utilisation
    if that is above 1; then step 3 below allocates unused capacity.

    Where a value is maximised, the projection has three steps:

    1. clamp: splits that are negative, NaN or on dead paths become 0, others are at most the
       largest share of their path; a sum above 1 is scaled to 1;
    2. scale down: every path is divided by the worst over-utilisation along it,
       max(1, max_e load[e] / c[e]), after which no link is over capacity;
    3. refill: step 2 wastes capacity wherever a path was limited by another link.  In each of
       ``refill`` rounds unserved demand requests the unused capacity of its paths, and step 2
       grants shares on the residual capacities.  The allocation is feasible after every round.

    Args:
        problem: B matrices.
        splits: (B, D, K), any values.
        refill: number of rounds of step 3.

    Raises:
        ValueError: splits of another shape than (B, D, K).
    """
    check_shape(problem, splits)
    # Step 1: clamp.
    splits = torch.where(problem.path_mask, splits, 0).nan_to_num(nan=0.0, posinf=1.0).clamp(min=0)
    if problem.max_share is not None:
        splits = torch.minimum(splits, problem.max_share.to(splits))
    if problem.demand_set.carries_all:
        splits = scaled_to_one(problem, splits)
        if not problem.objective.may_shed:
            return splits
        # Under max_concurrent_flow: divide by the largest utilisation if it is above 1.
        splits = splits / problem.utilisation(splits).amax(1).clamp(min=1)[:, None, None]
    # Step 2: scale down.
    flow = problem.flows(splits / splits.sum(-1, keepdim=True).clamp(min=1))
    load = problem.ops.link_sum(flow)
    # Unused capacity before the scaling, which determines the requests of the first refill round.
    unused = (problem.capacity - load).clamp(min=0)
    flow = flow * granted_share(problem, load, problem.capacity)
    # Step 3: refill.
    for _ in range(refill):
        # Requests of unserved demand, and the share that the residual capacities grant.
        load = problem.ops.link_sum(flow)
        requested_flow = _requested_flow(problem, flow, unused)
        requested_load = problem.ops.link_sum(requested_flow)
        residual = (problem.capacity - load).clamp(min=0)
        flow = flow + requested_flow * granted_share(problem, requested_load, residual)
        unused = (residual - requested_load).clamp(min=0)
    # Flows as shares of the demand.
    demand = problem.demand[..., None]
    return torch.where(demand > 0, flow / torch.where(demand > 0, demand, 1), 0)


def scaled_to_one(problem: Problem, splits: Tensor) -> Tensor:
    """Scale splits (B, D, K) >= 0 of live paths to a sum of 1 per demand.

    Demands whose splits are all 0 get even splits.
    """
    split_sum = splits.sum(-1, keepdim=True)
    return torch.where(
        split_sum > MIN_SPLIT_SUM, splits / split_sum.clamp(min=MIN_SPLIT_SUM), problem.even_splits
    )


def granted_share(problem: Problem, requested_load: Tensor, available_capacity: Tensor) -> Tensor:
    """Return (B, D, K) the share of a request for capacity that each path is granted.

    It is 1 / max(1, largest requested / available of a link along the path).

    Args:
        problem: B matrices, for their paths.
        requested_load: (B, E) load of all requests, Gbit/s; links without requests limit no path.
        available_capacity: (B, E) capacity available to requests, Gbit/s.
    """
    # Positive in this type: the gradient of 0 / 0 would be NaN.
    smallest = torch.finfo(available_capacity.dtype).tiny
    requested_utilisation = torch.where(
        requested_load > 0, requested_load / available_capacity.clamp(min=smallest), 0
    )
    return 1 / problem.ops.path_max(requested_utilisation)[0].clamp(min=1)


def _requested_flow(problem: Problem, flow: Tensor, unused: Tensor) -> Tensor:
    """Return (B, D, K) the flow that unserved demand requests on each path, Gbit/s.

    Requests are in proportion to the unused capacity of the demand's paths.  A demand requests at
    most the unused capacity of each path, and at most its unserved flow in total.

    Args:
        problem: B matrices.
        flow: (B, D, K) allocated flow, Gbit/s.
        unused: (B, E) unused capacity, Gbit/s.
    """
    # Smallest unused capacity along each path, and at most the rest of its largest share.
    path_residual = torch.where(problem.path_mask, -problem.ops.path_max(-unused)[0], 0)
    if problem.max_share is not None:
        path_residual = torch.minimum(
            path_residual, (problem.flows(problem.max_share) - flow).clamp(min=0)
        )
    unserved_flow = (problem.demand - flow.sum(-1)).clamp(min=0)[..., None]
    return path_residual * (
        unserved_flow / path_residual.sum(-1, keepdim=True).clamp(min=1e-30)
    ).clamp(max=1)


class CutOnly(NamedTuple):
    """Metrics of a model's splits that were scaled down without refill, for B matrices, float64.

    Attributes:
        satisfied_demand: (B,) served fraction of all demand; 1 without demand.
        gap: (B,) certified gap, by the best multiple of the model's prices; under priority of the
            weighted sum.
        share: (B,) value over the value of all demand; the smallest served fraction under
            max_concurrent_flow; 1 / utilisation under max_link_utilisation.
    """

    satisfied_demand: Tensor
    gap: Tensor
    share: Tensor


def share_of_value(problem: Problem, value: Tensor) -> Tensor:
    """Return (B,) objective values as shares of the best conceivable value, larger for better ones.

    It is the value over the value of all demand with each Gbit/s on its best path, and 1 without
    demand; under max_concurrent_flow the smallest served fraction, and under max_link_utilisation
    1 / utilisation.

    Args:
        problem: B matrices.
        value: (B,) objective value.
    """
    # A minimum, such as max_link_utilisation; then max_concurrent_flow; then the sums of value.
    if problem.objective.rules.sense < 0:
        return 1 / value.clamp(min=1e-30)
    if problem.objective.rules.minimises_utilisation:
        return value
    max_value = (problem.demand * problem.path_value.amax(-1)).sum(1)
    return torch.where(max_value > 0, value / max_value.clamp(min=1e-300), 1.0)


def cut_only(problem: Problem, splits: Tensor, prices: Tensor) -> CutOnly:
    """Scale a model's splits down until they are feasible, without refill, and return their
    metrics.

    Args:
        problem: B matrices.
        splits: (B, D, K) splits of a model.
        prices: (B, E) link prices of the model.
    """
    problem = problem.to(torch.float64)
    feasible_splits = project(problem, splits.to(problem.demand), refill=0)
    total_demand = problem.demand.sum(1)
    served_flow = problem.flows(feasible_splits).sum((1, 2))
    served_fraction = torch.where(
        total_demand > 0, served_flow / total_demand.clamp(min=1e-300), 1.0
    )
    value = problem.value(feasible_splits)
    bound = scaled_dual_bound(problem, prices)
    return CutOnly(served_fraction, gap(problem, value, bound), share_of_value(problem, value))
