"""The model alone: what its splits carry when they are cut to fit, and the gap that its own prices certify.

Repair hides what a model has learnt: on small networks random weights come next to the optimum after it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.bounds import gap, scaled_dual_bound
from teal.solvers.projection import project


class CutOnly(NamedTuple):
    """Figures of B matrices, float64.

    Attributes:
        satisfied_demand: (B,) share of the demand that is carried; 1 where there is none.
        gap: (B,) certified, by the best multiple of the model's prices; under priority that of the weighted sum.
    """

    satisfied_demand: Tensor
    gap: Tensor


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
    return CutOnly(share, gap(problem, problem.value(cut), scaled_dual_bound(problem, prices)))
