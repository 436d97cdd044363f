"""What an allocation is worth: value, certified gap, utilisation, violations.  The same for every scheme."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.allocation import Allocation, Status
from teal.bounds import gap, scaled_dual_bound
from teal.feasibility import TOLERANCE, violations
from teal.problem import Problem


@dataclasses.dataclass(frozen=True, eq=False)
class Assessment:
    """(B,) each, float64; NaN where there is no allocation that one may install.

    Attributes:
        status: of the scheme, or infeasible where the validator says so.
        value: the objective: Gbit/s of value, or the largest link utilisation.
        satisfied_demand: share of all demand that is carried (1 if there is none).
        bound: certified bound on the optimum from the scheme's own prices.
        gap: (bound - value) / bound, or (theta - bound) / theta.
        max_link_utilisation: largest load / capacity.
        max_violation: largest of all violations (see :mod:`teal.feasibility`), of infeasible ones too.
    """

    status: tuple[Status, ...]
    value: Tensor
    satisfied_demand: Tensor
    bound: Tensor
    gap: Tensor
    max_link_utilisation: Tensor
    max_violation: Tensor

    def figures(self, row: int) -> dict[str, float]:
        """All but the status, of one matrix."""
        own = (field.name for field in dataclasses.fields(self) if field.name != "status")
        return {name: float(getattr(self, name)[row]) for name in own}


def assess(problem: Problem, allocation: Allocation) -> Assessment:
    """Measure ``allocation`` in float64, independently of whoever made it.

    Without prices the bound is the trivial one: all routable demand at its best value, or theta >= 0.
    An allocation that breaks a rule by more than 1e-6, or holds NaN, is infeasible whatever it claims.
    One over paths of its own is measured, and bounded, over those.
    """
    problem = problem.to(torch.float64)
    if allocation.paths is not None:
        problem = problem.with_paths(allocation.paths)
    splits = allocation.splits.to(problem.demand)
    unreadable = splits.isnan().flatten(1).any(1)
    splits = splits.nan_to_num(nan=0.0)
    prices = torch.zeros_like(problem.capacity) if allocation.prices is None else allocation.prices
    broken = torch.where(unreadable, torch.inf, violations(problem, splits).largest)
    status = tuple(
        Status.INFEASIBLE if claimed.usable and worst > TOLERANCE else claimed
        for claimed, worst in zip(allocation.status, broken.tolist(), strict=True)
    )
    usable = torch.tensor([s.usable for s in status], device=splits.device)
    claimed = torch.tensor([s.usable for s in allocation.status], device=splits.device)

    def shown(values: Tensor) -> Tensor:
        return torch.where(usable, values, torch.nan)

    total, carried = problem.demand.sum(1), problem.flows(splits).sum((1, 2))
    value, bound = problem.value(splits), scaled_dual_bound(problem, prices)
    return Assessment(
        status=status,
        value=shown(value),
        satisfied_demand=shown(torch.where(total > 0, carried / total.clamp(min=1e-300), 1)),
        bound=shown(bound),
        gap=shown(gap(problem, value, bound)),
        max_link_utilisation=shown(problem.utilisation(splits).amax(1)),
        max_violation=torch.where(claimed, broken, torch.nan),
    )
