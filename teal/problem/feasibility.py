"""Validator: computes the violation of each rule by an allocation, without a solver.

Entry point: :func:`violations`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.problem.condition import VALIDATOR_RULES
from teal.problem.problem import Problem

# Accepted violation, relative to a capacity or a demand, for rounding.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Violations:
    """Violation of each rule by each of B allocations; 0 where a rule is kept.

    Attributes:
        capacity: (B,) largest (load - c) / c over the links; for a failed link load over the
            largest capacity. Under max_link_utilisation only failed links count. c is the capacity.
        demand: (B,) largest excess of a demand's splits over 1, as a share of the demand; where all
            demand must be carried, also the largest shortfall of a routable demand.
        sign: (B,) largest negative split, sign reversed.
        mask: (B,) largest share sent over a path that is not live.
        conditions: (B,) violation of each side condition, by name.
    """

    capacity: Tensor
    demand: Tensor
    sign: Tensor
    mask: Tensor
    conditions: dict[str, Tensor]

    @property
    def largest(self) -> Tensor:
        """Largest violation of all rules by each allocation, (B,)."""
        return torch.stack(list(self.by_rule.values())).amax(0)

    @property
    def by_rule(self) -> dict[str, Tensor]:
        """Violation of each rule by each allocation, (B,), by the name of the rule."""
        return {rule: getattr(self, rule) for rule in VALIDATOR_RULES} | self.conditions


def check_shape(problem: Problem, splits: Tensor) -> None:
    """Raise ValueError if the shape of the splits is not (B, D, K)."""
    if splits.shape != problem.path_mask.shape:
        shape = tuple(problem.path_mask.shape)
        raise ValueError(
            f"splits must be an array of shape {shape} (matrices, demands, paths), "
            f"not {tuple(splits.shape)}"
        )


def violations(problem: Problem, splits: Tensor, loads: Tensor | None = None) -> Violations:
    """Compute the violation of every rule in float64.

    Demands of rate 0 may have any splits.

    Args:
        problem: B matrices.
        splits: (B, D, K) share of each demand on each path.
        loads: (B, E) Gbit/s of these splits, if known; computing them takes half of the time.

    Raises:
        ValueError: splits of another shape than (B, D, K), or NaN among them.
    """
    check_shape(problem, splits)
    if bool(splits.isnan().any()):
        raise ValueError("splits contain NaN")
    problem = problem.to(torch.float64)
    splits = splits.to(torch.float64)
    has_demand = (problem.demand > 0)[..., None]
    splits = torch.where(has_demand, splits, 0)
    program = problem.program
    total_split = splits.sum(-1)
    # (B, D) excess of each demand's splits over 1; where none may be shed, also the shortfall.
    demand_error = total_split - 1
    if not problem.objective.may_shed:
        demand_error = torch.where(
            problem.routable & (problem.demand > 0), demand_error.abs(), total_split
        )
    return Violations(
        capacity=overload(problem, problem.loads(splits) if loads is None else loads),
        demand=demand_error.amax(1).clamp(min=0),
        sign=(-splits).amax((1, 2)).clamp(min=0),
        mask=torch.where(problem.path_mask, 0, splits.abs()).amax((1, 2)),
        conditions={
            condition.name: condition.violation(program, splits) for condition in problem.conditions
        },
    )


def overload(problem: Problem, loads: Tensor) -> Tensor:
    """Return the capacity violation (B,): the largest (load - capacity) / capacity over the links.

    For a failed link it is the load over the largest capacity; under max_link_utilisation only
    failed links count.

    Args:
        problem: B matrices.
        loads: (B, E) Gbit/s.
    """
    excess = problem.program.overload(loads)
    if not problem.objective.rules.holds_capacity:
        excess = torch.where(problem.capacity <= 0, excess, 0)
    return excess.amax(1).clamp(min=0)
