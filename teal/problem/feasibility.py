"""The validator: how far an allocation breaks the rules.  It uses no solver and is never switched
off.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.problem.condition import VALIDATOR_RULES
from teal.problem.problem import Problem

TOLERANCE = 1e-6  # share of a capacity or a demand by which a rule may be broken, for rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Violations:
    """How far each of B allocations breaks each rule; 0 where it does not.

    Attributes:
        capacity: (B,) largest (load - c) / c over the links, load over the largest capacity for a
            failed link.  Under max_link_utilisation only failed links are bound.
        demand: (B,) largest excess of a demand's splits over 1, as a share of the demand; where
            all must be carried also the largest shortfall of a demand that has a path.
        sign: (B,) largest negative split, sign reversed.
        mask: (B,) largest share sent over a path that is not live.
        conditions: (B,) by each side condition, by its name.
    """

    capacity: Tensor
    demand: Tensor
    sign: Tensor
    mask: Tensor
    conditions: dict[str, Tensor]

    @property
    def largest(self) -> Tensor:
        """(B,) the largest of all rules."""
        return torch.stack(list(self.by_rule.values())).amax(0)

    @property
    def by_rule(self) -> dict[str, Tensor]:
        """(B,) by each rule, by its name."""
        return {rule: getattr(self, rule) for rule in VALIDATOR_RULES} | self.conditions


def check_shape(problem: Problem, splits: Tensor) -> None:
    """Raise ValueError for splits of another shape than (B, D, K)."""
    if splits.shape != problem.path_mask.shape:
        raise ValueError(
            f"splits must be {tuple(problem.path_mask.shape)}, are {tuple(splits.shape)}"
        )


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
    program, total = problem.program, splits.sum(-1)
    demand_error = total - 1
    if not problem.objective.may_shed:
        demand_error = torch.where(
            problem.routable & (problem.demand > 0), demand_error.abs(), total
        )
    return Violations(
        capacity=overload(problem, problem.loads(splits) if loads is None else loads),
        demand=demand_error.amax(1).clamp(min=0),
        sign=(-splits).amax((1, 2)).clamp(min=0),
        mask=torch.where(problem.path_mask, 0, splits.abs()).amax((1, 2)),
        conditions={one.name: one.violation(program, splits) for one in problem.conditions},
    )


def overload(problem: Problem, loads: Tensor) -> Tensor:
    """(B,) the violation of capacities (see :class:`Violations`) by loads (B, E), Gbit/s."""
    excess = problem.program.overload(loads)
    if not problem.objective.rules.holds_capacity:
        excess = torch.where(problem.capacity <= 0, excess, 0)
    return excess.amax(1).clamp(min=0)
