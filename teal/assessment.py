"""What an allocation is worth: value, certified gap, utilisation, violations.  The same for every scheme."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.allocation import Allocation
from teal.bounds import gap, scaled_dual_bound
from teal.feasibility import violations
from teal.problem import Problem


@dataclasses.dataclass(frozen=True, eq=False)
class Assessment:
    """(B,) each, float64; NaN where the status carries no allocation.

    Attributes:
        value: the objective: Gbit/s of value, or the largest link utilisation.
        satisfied_demand: share of all demand that is carried (1 if there is none).
        bound: certified bound on the optimum from the scheme's own prices.
        gap: (bound - value) / bound, or (theta - bound) / theta.
        max_link_utilisation: largest load / capacity.
        max_violation: largest of all violations (see :mod:`teal.feasibility`).
    """

    value: Tensor
    satisfied_demand: Tensor
    bound: Tensor
    gap: Tensor
    max_link_utilisation: Tensor
    max_violation: Tensor


def assess(problem: Problem, allocation: Allocation) -> Assessment:
    """Measure ``allocation`` in float64, independently of whoever made it.

    Without prices the bound is the trivial one: all routable demand at its best value, or theta >= 0.
    """
    problem = problem.to(torch.float64)
    splits = allocation.splits.to(problem.demand)
    prices = torch.zeros_like(problem.capacity) if allocation.prices is None else allocation.prices
    total = problem.demand.sum(1)
    carried = problem.flows(splits).sum((1, 2))
    value, bound = problem.value(splits), scaled_dual_bound(problem, prices)
    measured = Assessment(
        value=value,
        satisfied_demand=torch.where(total > 0, carried / total.clamp(min=1e-300), 1),
        bound=bound,
        gap=gap(problem, value, bound),
        max_link_utilisation=problem.utilisation(splits).amax(1),
        max_violation=violations(problem, splits).largest,
    )
    usable = torch.tensor([s.usable for s in allocation.status], device=value.device)
    cleared = {f.name: torch.where(usable, getattr(measured, f.name), torch.nan) for f in dataclasses.fields(measured)}
    return Assessment(**cleared)
