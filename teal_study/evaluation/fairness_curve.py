"""Price of fairness: total and smallest share of the demands for alpha-fair utilities, from total
flow to max-min.
"""

from __future__ import annotations

import dataclasses

import torch

from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers.pipeline import solve
from teal.solvers.projection import project

OBJECTIVES = (
    *(f"alpha_fair:alpha={alpha:g}" for alpha in (0, 0.5, 1, 2, 4, 8, 16)),
    "max_concurrent_flow",
)
# Gap to which each alpha is solved; smaller differences are invisible in a chart.
_GAP = 1e-3
# Time limit of one alpha, seconds; then its incumbent counts.
_DEADLINE_S = 5.0
_MAX_ITERATIONS = 5000
# Number of rounds that distribute residual capacity, since for a large alpha the utility of shares
# above the smallest ones is negligible.
_REFILL_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class FairnessPoint:
    """Result of one objective on one matrix.

    Attributes:
        objective: one of :data:`OBJECTIVES`; max_concurrent_flow has the largest possible least
            share.
        total_share: served share of all demand.
        least_share: smallest served share of a demand that has a live path.
        gap: certified gap of the allocation.
    """

    objective: str
    total_share: float
    least_share: float
    gap: float


def fairness_curve(problem: Problem) -> list[FairnessPoint]:
    """Return the results of one matrix under each of :data:`OBJECTIVES`; [] if no demand has a live
    path.

    Args:
        problem: B = 1; its demands, paths and capacities are used, its objective is not.
    """
    if not bool((problem.routable & (problem.demand > 0)).any()):
        return []
    # Solve each objective, and let the splits use residual capacity.
    points = []
    for spec in OBJECTIVES:
        objective_problem = Problem.create(
            problem.topology,
            problem.paths,
            Objective(spec),
            problem.demand,
            capacity=problem.capacity.cpu().numpy(),
            device=problem.demand.device,
        )
        result = solve(
            objective_problem, gap=_GAP, deadline=_DEADLINE_S, max_iterations=_MAX_ITERATIONS
        )
        splits = project(objective_problem, result.splits, refill=_REFILL_ROUNDS)
        points.append(
            FairnessPoint(
                spec,
                total_share(objective_problem, splits),
                least_share(objective_problem, splits),
                float(result.gap[0]),
            )
        )
    return points


def total_share(problem: Problem, splits: torch.Tensor) -> float:
    """Return the served share of the total demand of one matrix, between 0 and 1.

    Args:
        problem: B = 1.
        splits: (1, D, K) split ratios.
    """
    demand = problem.demand[0]
    return float((splits[0].to(demand).sum(-1) * demand).sum() / demand.sum().clamp(min=1e-300))


def least_share(problem: Problem, splits: torch.Tensor) -> float:
    """Return the smallest served share of a demand above 0 that has a live path; NaN if there is no
    such demand.

    Args:
        problem: B = 1.
        splits: (1, D, K) split ratios.
    """
    is_counted = (problem.routable & (problem.demand > 0))[0]
    shares = splits[0].sum(-1)[is_counted]
    return float(shares.min()) if len(shares) else float("nan")
