"""The validator: how far an allocation breaks the rules.  It uses no solver and is never switched off."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.problem.problem import Problem

TOLERANCE = 1e-6  # share of a capacity or a demand by which a rule may be broken, for rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Violations:
    """How far each of B allocations breaks each rule; 0 where it does not.

    Attributes:
        capacity: (B,) largest (load - c) / c over the links, load over the largest capacity for a failed link.  Under
            max_link_utilisation only failed links are bound; under protection loads are those of the reservations.
        demand: (B,) largest excess of a demand's splits over 1, as a share of the demand; under
            max_link_utilisation also the largest shortfall of a demand that has a path.
        sign: (B,) largest negative split, sign reversed.
        mask: (B,) largest share sent over a path that is not live.
        churn: (B,) what moves beyond the limit, as a share of the routable demand.
        promise: (B,) largest share of a demand that is promised although some group leaves none of its used paths.
    """

    capacity: Tensor
    demand: Tensor
    sign: Tensor
    mask: Tensor
    churn: Tensor
    promise: Tensor

    @property
    def largest(self) -> Tensor:
        """(B,) the largest of all rules."""
        return torch.stack([getattr(self, field.name) for field in dataclasses.fields(self)]).amax(0)


def check_shape(problem: Problem, splits: Tensor) -> None:
    """Raise ValueError for splits of another shape than (B, D, K)."""
    if splits.shape != problem.path_mask.shape:
        raise ValueError(f"splits must be {tuple(problem.path_mask.shape)}, are {tuple(splits.shape)}")


def violations(problem: Problem, splits: Tensor, loads: Tensor | None = None) -> Violations:
    """Measure every rule in float64.  Demands of rate 0 may have any splits, because nothing flows.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        loads: (B, E) Gbit/s of these splits, if they are known; they take half of the time.

    Raises:
        ValueError: splits of another shape than (B, D, K), or NaN among them.
    """
    check_shape(problem, splits)
    if bool(splits.isnan().any()):
        raise ValueError("splits contain NaN")
    problem, splits = problem.to(torch.float64), splits.to(torch.float64)
    has_demand = (problem.demand > 0)[..., None]
    splits = torch.where(has_demand, splits, 0)
    promise = torch.zeros_like(problem.demand[:, 0])
    if problem.protection is not None:
        reserved, promise = _promises(problem, splits)
        loads = problem.loads(reserved)
    load, capacity = problem.loads(splits) if loads is None else loads, problem.capacity
    failed = capacity <= 0
    # Divided, not multiplied by inverse_capacity, which is limited where the capacity is next to 0.
    scale = torch.where(failed, capacity.amax(1, keepdim=True).clamp(min=1e-30), capacity)
    excess = torch.where(load > 0, (load - torch.where(failed, 0, capacity)) / scale, 0)
    total = splits.sum(-1)
    if problem.objective.may_shed:
        demand_error = total - 1
    else:
        excess = torch.where(failed, excess, 0)
        demand_error = torch.where(problem.routable & (problem.demand > 0), (total - 1).abs(), total)
    return Violations(
        capacity=excess.amax(1).clamp(min=0),
        demand=demand_error.amax(1).clamp(min=0),
        sign=(-splits).amax((1, 2)).clamp(min=0),
        mask=torch.where(problem.path_mask, 0, splits.abs()).amax((1, 2)),
        churn=_beyond_limit(problem, splits),
        promise=promise,
    )


def _beyond_limit(problem: Problem, splits: Tensor) -> Tensor:
    if problem.churn is None:
        return torch.zeros_like(problem.demand[:, 0])
    volume = problem.routable_demand.sum(1).clamp(min=1e-30)
    return ((problem.moved(splits) - problem.churn_budget) / volume).clamp(min=0)


def _promises(problem: Problem, splits: Tensor) -> tuple[Tensor, Tensor]:
    """(B, D, K) reservations, splits where a group leaves nothing to reserve; (B,) largest share promised there."""
    assert problem.protection is not None
    live = torch.where(problem.path_mask, splits, 0)
    left = problem.protection.left(live)
    is_lost = (live.sum(-1) > 0) & (left <= 0)
    reserved = torch.where(is_lost[..., None], splits, problem.protection.reserved(live, left))
    return reserved, torch.where(is_lost, splits.sum(-1), 0).amax(1)
