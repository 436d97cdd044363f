"""Typical numbers of a problem, in which models and solvers measure all others."""

from __future__ import annotations

from torch import Tensor

from teal.problem.problem import Problem
from teal.runtime.shapes import Float


def mean_value(problem: Problem) -> Float[Tensor, ""]:
    """() mean of v[d, k] over the paths that exist; 0 for max_link_utilisation and max_concurrent_flow."""
    count = problem.ops.path_count
    total = problem.path_value.sum() if problem.has_link_cost else (problem.demand_value * count).sum()
    return total / count.sum().clamp(min=1)


def mean_capacity(problem: Problem) -> Float[Tensor, "B 1"]:
    """(B, 1) mean capacity of the links that have not failed, Gbit/s."""
    live = (problem.capacity > 0).sum(1, keepdim=True).clamp(min=1)
    return problem.capacity.sum(1, keepdim=True) / live
