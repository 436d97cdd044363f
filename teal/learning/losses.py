"""Losses of the learners: a surrogate of the objective, and the certified bound."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.problem import mean_value
from teal.solvers.projection import granted_share

_VALUE_FLOOR = 1e-2  # share of the value that all links could carry: losses are divided by no less
MAXIMUM_SHARPNESS = 20.0  # s of the soft maximum of the utilisations


def reward(problem: Problem, splits: Tensor, *, cut_demands_whole: bool = False) -> Tensor:
    """The reward that all agents share: (B,), differentiable in ``splits``; larger is better.

    Value maximisation: the feasible-flow surrogate, each path's flow over its worst
    over-utilisation, as a share of the value of all demand.  The balanced programs: minus a soft
    maximum of the utilisations u, (u_max / s) log sum exp(s u / u_max) with s = 20: at least u_max,
    at most 1 + log(E) / s times it, and sensitive to every link that is nearly the worst.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        cut_demands_whole: cut all paths of a demand by the worst over-utilisation on any path that
            it uses, instead of each path by its own.
    """
    flow = problem.flows(splits)
    load = problem.ops.link_sum(flow)
    if problem.objective.maximises_value:
        share = granted_share(problem, load, problem.capacity)
        if cut_demands_whole:
            share = torch.where(splits > 0, share, 1).amin(-1, keepdim=True)
        feasible_flow = flow * share
        return (feasible_flow * problem.path_value).sum((1, 2)) / total_demand_value(problem)
    utilisation = load * problem.inverse_capacity
    largest = utilisation.amax(1, keepdim=True).clamp(min=1e-30)
    return -(
        largest.squeeze(1)
        * torch.logsumexp(MAXIMUM_SHARPNESS * utilisation / largest, 1)
        / MAXIMUM_SHARPNESS
    )


def bound_loss(problem: Problem, prices: Tensor) -> Tensor:
    """(B,) what the price head minimises: the certified bound of :mod:`teal.problem.bounds`,
    differentiable.

    As a share of the value of all demand; for the balanced programs minus the bound of
    max_link_utilisation.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s, not negative.
    """
    capacity_value = problem.capacity_value(prices)
    path_price = problem.ops.path_sum(prices)
    if problem.objective.maximises_value:
        profit = torch.where(problem.path_mask, problem.path_value - path_price, 0)
        bound = capacity_value + (problem.demand * profit.amax(-1).clamp(min=0)).sum(1)
        return bound / total_demand_value(problem)
    cheapest = problem.cheapest_path_cost(path_price)
    return -(problem.demand * cheapest).sum(1) / capacity_value.clamp(min=1e-30)


def total_demand_value(problem: Problem) -> Tensor:
    """(B,) value of all demand, each on its best path; at least a hundredth of what all links could
    carry.

    The lower limit keeps the losses of a matrix with little or no demand, and their gradients, of
    order 1.
    """
    floor = _VALUE_FLOOR * problem.capacity.sum(1) * mean_value(problem)
    return torch.maximum((problem.demand * problem.path_value.amax(-1)).sum(1), floor).clamp(
        min=1e-30
    )


def reward_scale(problem: Problem) -> Tensor | float:
    """(B,) by which the rewards of the balanced programs are divided: the utilisation of even
    splits; else 1.
    """
    if not problem.demand_set.carries_all:
        return 1.0
    return problem.utilisation(problem.even_splits).amax(1).clamp(min=1e-9)


def has_demand(problem: Problem) -> Tensor:
    """(B,) whether a matrix has any demand to learn from."""
    return problem.demand.sum(1) > 0
