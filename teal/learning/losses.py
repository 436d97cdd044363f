"""What the learners optimise: the surrogate of the objective, and the bound."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem
from teal.solvers.projection import granted

_FLOOR = 1e-2
_SHARPNESS = 20.0  # of the soft maximum under max_link_utilisation


def reward(problem: Problem, splits: Tensor, *, together: bool = False) -> Tensor:
    """The shared, central reward: (B,), differentiable in ``splits``; larger is better.

    Value maximisation: the feasible-flow surrogate, each path's flow over its worst
    over-utilisation, as a share of the value of all demand.  The balanced programs: minus a soft
    maximum of the utilisations u, (u_max / s) log sum exp(s u / u_max) with s = 20: at least u_max, at
    most 1 + log(E) / s times it, and sensitive to every link that is nearly the worst.

    Args:
        together: a demand's paths are cut alike, by the worst over-utilisation on any that it uses.
    """
    flow = problem.flows(splits)
    load = problem.ops.link_sum(flow)
    if problem.objective.maximises_value:
        grant = granted(problem, load, problem.capacity)
        if together:
            grant = torch.where(splits > 0, grant, 1).amin(-1, keepdim=True)
        kept = flow * grant
        return (kept * problem.path_value).sum((1, 2)) / demand_value(problem)
    use = load * problem.inverse_capacity
    top = use.amax(1, keepdim=True).clamp(min=1e-30)
    return -(top.squeeze(1) * torch.logsumexp(_SHARPNESS * use / top, 1) / _SHARPNESS)


def bound_loss(problem: Problem, prices: Tensor) -> Tensor:
    """(B,) what the price head minimises: the certified bound of :mod:`teal.bounds`, differentiable.

    As a share of the value of all demand; for the balanced programs minus that of max_link_utilisation.
    """
    worth = (problem.capacity * prices).sum(1)
    path_price = problem.ops.path_sum(prices)
    if problem.objective.maximises_value:
        profit = torch.where(problem.path_mask, problem.path_value - path_price, 0)
        bound = worth + (problem.demand * profit.amax(-1).clamp(min=0)).sum(1)
        return bound / demand_value(problem)
    cheapest = torch.where(problem.path_mask, path_price, torch.inf).amin(-1)
    cheapest = torch.where(problem.routable, cheapest, 0)
    return -(problem.demand * cheapest).sum(1) / worth.clamp(min=1e-30)


def demand_value(problem: Problem) -> Tensor:
    """(B,) value of all demand, each on its best path; at least a hundredth of what all links could carry.

    The floor keeps the losses of an empty or nearly empty matrix, and their gradients, of order 1.
    """
    floor = _FLOOR * problem.capacity.sum(1) * problem.mean_value
    return torch.maximum((problem.demand * problem.path_value.amax(-1)).sum(1), floor).clamp(min=1e-30)


def has_demand(problem: Problem) -> Tensor:
    """(B,) whether there is anything to learn from."""
    return problem.demand.sum(1) > 0
