"""Losses of the learners: a surrogate of the objective, and the certified bound."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.problem import mean_value
from teal.solvers.projection import granted_share

# Smallest divisor of losses, as a share of the value that all links could carry.
_VALUE_FLOOR = 1e-2
# s of the soft maximum of the utilisations.
MAXIMUM_SHARPNESS = 20.0


def reward(problem: Problem, splits: Tensor, *, cut_demands_whole: bool = False) -> Tensor:
    """Return the reward shared by all agents, (B,), differentiable in ``splits``; larger is better.

    Value maximisation: the feasible-flow surrogate, sum of value * flow / max(1, largest
    utilisation along the path), as a share of the value of all demand.  Min-max programs: minus a
    soft maximum of the utilisations u, (u_max / s) log sum exp(s u / u_max) with s = 20: at least
    u_max, at most 1 + log(E) / s times it, and sensitive to every link close to the maximum.

    Args:
        problem: B matrices.
        splits: (B, D, K) share of each demand on each path.
        cut_demands_whole: whether to scale down all paths of a demand by the largest factor of a
            path with flow, instead of each path by a separate factor.
    """
    flow = problem.flows(splits)
    load = problem.ops.link_sum(flow)
    # Share of each path's flow that its most utilised link grants.
    if problem.objective.maximises_value:
        granted_path_share = granted_share(problem, load, problem.capacity)
        if cut_demands_whole:
            granted_path_share = torch.where(splits > 0, granted_path_share, 1).amin(
                -1, keepdim=True
            )
        feasible_flow = flow * granted_path_share
        return (feasible_flow * problem.path_value).sum((1, 2)) / total_demand_value(problem)
    utilisation = load * problem.inverse_capacity
    max_utilisation = utilisation.amax(1, keepdim=True).clamp(min=1e-30)
    return -(
        max_utilisation.squeeze(1)
        * torch.logsumexp(MAXIMUM_SHARPNESS * utilisation / max_utilisation, 1)
        / MAXIMUM_SHARPNESS
    )


def bound_loss(problem: Problem, prices: Tensor) -> Tensor:
    """Return the dual bound at link prices, (B,), differentiable: the loss of the price head.

    Value maximisation: (sum_e c p + sum_d demand max(0, max_k(value - path price))) over the value
    of all demand, with capacities c.  Min-max programs: -(sum_d demand * cheapest path price) /
    sum_e c p, the negative of the lower bound of max_link_utilisation.

    Args:
        problem: B matrices.
        prices: (B, E) p >= 0, value per Gbit/s.
    """
    capacity_value = problem.capacity_value(prices)
    path_price = problem.ops.path_sum(prices)
    if problem.objective.maximises_value:
        profit = torch.where(problem.path_mask, problem.path_value - path_price, 0)
        bound = capacity_value + (problem.demand * profit.amax(-1).clamp(min=0)).sum(1)
        return bound / total_demand_value(problem)
    cheapest_price = problem.cheapest_path_cost(path_price)
    return -(problem.demand * cheapest_price).sum(1) / capacity_value.clamp(min=1e-30)


def total_demand_value(problem: Problem) -> Tensor:
    """Return the value of all demand, (B,), each on its path with the largest value.

    At least a hundredth of the value that all links could carry: this limit keeps losses and
    gradients of a matrix with little or no demand of order 1.
    """
    min_value = _VALUE_FLOOR * problem.capacity.sum(1) * mean_value(problem)
    return torch.maximum((problem.demand * problem.path_value.amax(-1)).sum(1), min_value).clamp(
        min=1e-30
    )


def reward_scale(problem: Problem) -> Tensor | float:
    """Return the divisor of rewards: in a min-max program the largest utilisation of even splits,
    (B,), else 1.
    """
    if not problem.demand_set.carries_all:
        return 1.0
    return problem.utilisation(problem.even_splits).amax(1).clamp(min=1e-9)


def has_demand(problem: Problem) -> Tensor:
    """Return whether each matrix has a demand above 0, (B,)."""
    return problem.demand.sum(1) > 0
