"""The plain engine: one step in torch over the path operations, on any device; the reference of faster ones."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.bounds import dual_bound
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.solvers.pdhg.engine import (
    LONG,
    NECESSARY,
    OMEGA_RANGE,
    SUFFICIENT,
    PdhgState,
    first_omega,
    price_guess,
)  # fmt: skip
from teal.solvers.projection import project
from teal.solvers.prox import project_splits, weighted_simplex


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """What depends on the program alone.

    Attributes:
        scale: (B, 1) S: value of all demand; of a balanced program, utilisation under an even split.
        along: (B, D, 1) h.
        through: (B, E) m, over S for a balanced program.
    """

    scale: Tensor
    along: Tensor
    through: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """Splits (B, D, K) and scaled prices y (B, E)."""

    splits: Tensor
    dual: Tensor

    def plus(self, other: Point, weight: Tensor) -> Point:
        """Self + weight (other - self), weight (B,)."""
        w = weight[:, None]
        return Point(
            self.splits + w[..., None] * (other.splits - self.splits), self.dual + w * (other.dual - self.dual)
        )

    def where(self, rows: Tensor, other: Point) -> Point:
        """Self in the ``rows`` (B,), else other."""
        r = rows[:, None]
        return Point(torch.where(r[..., None], self.splits, other.splits), torch.where(r, self.dual, other.dual))


def scaling(problem: Problem) -> Scaling:
    """Precompute."""
    mask = problem.path_mask
    if problem.objective.maximises_value:
        scale = (problem.demand * (problem.path_value * mask).amax(-1)).sum(1, keepdim=True)
    else:
        scale = problem.utilisation(problem.even_splits).amax(1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1)
    through = problem.pressure if problem.objective.maximises_value else problem.pressure / scale
    along = problem.ops.path_sum(problem.inverse_capacity).amax(-1, keepdim=True)
    return Scaling(scale, torch.where(along > 0, along, 1), torch.where(through > 0, through, 1e-30))


def start(problem: Problem, scale: Scaling, state: PdhgState | None) -> Point:
    """Where to begin: at ``state``, made feasible, or at no flow (a balanced program: even splits) and no price."""
    balanced, live = problem.objective.is_balanced, problem.capacity > 0
    splits, dual = torch.zeros_like(problem.even_splits), torch.zeros_like(problem.capacity)
    if state is not None:
        splits = torch.where(problem.path_mask & (problem.demand > 0)[..., None], state.splits.to(splits), 0)
        dual = state.prices.to(dual).clamp(min=0) * problem.capacity
    total = splits.sum(-1, keepdim=True)
    if not balanced:
        return Point(splits / total.clamp(min=1), dual / scale.scale)
    splits = torch.where(total > 1e-12, splits / total.clamp(min=1e-12), problem.even_splits)
    dual = torch.where(dual.sum(1, keepdim=True) > 0, dual, live.to(dual))
    return Point(splits, dual / dual.sum(1, keepdim=True).clamp(min=1e-300))


def step(problem: Problem, scale: Scaling, point: Point, omega: Tensor) -> Point:
    """One PDHG step T with primal weight ``omega`` (B,).  Pure."""
    inverse, sheds, omega = problem.inverse_capacity, problem.objective.maximises_value, omega[:, None]
    pull = problem.ops.path_sum(point.dual * inverse)
    push = problem.path_value / scale.scale[..., None]
    moved = point.splits + (push - pull) / (omega[..., None] * scale.along)
    splits = project_splits(moved, problem.path_mask, may_shed=sheds)
    load = problem.loads(2 * splits - point.splits) * inverse
    slope, live = omega / scale.through, problem.capacity > 0
    if sheds:
        dual = torch.where(live, (point.dual + slope * (load - 1)).clamp(min=0), 0)
    else:
        dual = weighted_simplex(point.dual + slope * load / scale.scale, slope, 1.0, live)
    return Point(splits, dual)


def distances(problem: Problem, scale: Scaling, a: Point, b: Point) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) squares of the way between two points, in splits and in prices, and twice their coupling."""
    unit = 1 if problem.objective.maximises_value else scale.scale
    far = problem.demand[..., None] * scale.along
    splits = (far * (a.splits - b.splits).square()).sum((1, 2)) / torch.as_tensor(unit).squeeze(-1)
    dual = (scale.through * (a.dual - b.dual).square()).sum(1)
    load = problem.loads(a.splits - b.splits) * problem.inverse_capacity / unit
    return splits, dual, 2 * ((a.dual - b.dual) * load).sum(1)


class PlainEngine:
    """See :class:`teal.solvers.pdhg.engine.Engine`."""

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        if problem.objective.is_balanced:
            problem = dataclasses.replace(problem, objective=Objective(ObjectiveName.MAX_LINK_UTILISATION))
        self._exact, self._problem = problem.to(torch.float64), problem.to(dtype)
        problem = self._problem
        self._scale = scale = scaling(problem)
        self._offer = self._point = self._anchor = start(problem, scale, state)
        self._omega = self._usual = self._first_omega()
        nothing = torch.zeros_like(problem.demand[:, 0])
        self._cycle, self._total, self._due = nothing, nothing, nothing.bool()
        self._first_error, self._last_error = nothing - 1, nothing
        self._looked: Tensor | None = None
        self._kept: tuple[Tensor, Tensor] | None = None

    def _first_omega(self) -> Tensor:
        problem, scale = self._problem, self._scale
        rate = torch.where(problem.routable, problem.demand, 0)
        effort = (rate * scale.along[..., 0]).sum(1)
        if problem.objective.is_balanced:
            guess = price_guess(problem.capacity, problem.loads(problem.even_splits), None)
            return first_omega(scale.through, guess, effort / scale.scale[:, 0])
        first = torch.zeros_like(problem.even_splits)
        first[..., 0] = 1
        total = rate.sum(1, keepdim=True)
        value = 1 / torch.where(total > 0, total, 1)
        trial = problem.loads(torch.where(problem.path_mask, first, 0))
        return first_omega(scale.through, price_guess(problem.capacity, trial, value), effort)

    def advance(self, count: int) -> Tensor:
        """See Engine."""
        before = self._point
        for _ in range(count):
            before = self._point
            self._once()
        return dual_bound(self._exact, self._prices(before))

    def _once(self) -> None:
        problem, scale, point, anchor, due = self._problem, self._scale, self._point, self._anchor, self._due
        self._offer = offer = step(problem, scale, point, self._omega)
        splits, dual, coupling = distances(problem, scale, offer, point)
        error = (self._omega * splits - coupling + dual / self._omega).clamp(min=0).sqrt()
        # Halpern's average of the anchor and the reflected step (Lu & Yang 2024).
        share = (self._cycle + 1) / (self._cycle + 2)
        average = anchor.plus(point.plus(offer, torch.full_like(share, 2.0)), share)
        average = Point(average.splits, average.dual.clamp(min=0))
        way, dual_way, _ = distances(problem, scale, offer, anchor)
        known = (way > 1e-20) & (dual_way > 1e-20)
        ratio = (dual_way / way.clamp(min=1e-300)).sqrt()
        weight = torch.where(known, (self._omega * ratio).sqrt(), self._omega)
        self._total, cycle = self._total + 1, torch.where(due, 0, self._cycle + 1)
        fresh = self._first_error < 0
        restart = ~due & ~fresh
        restart &= (
            (error <= SUFFICIENT * self._first_error)
            | ((error <= NECESSARY * self._first_error) & (error > self._last_error))
            | (cycle >= LONG * self._total)
        )
        self._first_error = torch.where(due, -1, torch.where(fresh, error, self._first_error))
        weight = torch.minimum(torch.maximum(weight, self._usual / OMEGA_RANGE), self._usual * OMEGA_RANGE)
        self._omega = torch.where(due, weight, self._omega)
        self._point, self._anchor = offer.where(due, average), offer.where(due, anchor)
        self._cycle, self._due, self._last_error = cycle, restart, error

    def _prices(self, point: Point) -> Tensor:
        """(B, E) value per Gbit/s: S y / c (of a balanced program y / c)."""
        unit = self._scale.scale if self._problem.objective.maximises_value else 1.0
        return (unit * point.dual * self._problem.inverse_capacity).to(torch.float64)

    def certify(self) -> Tensor:
        """See Engine."""
        return dual_bound(self._exact, self._prices(self._offer))

    def look(self, refill: int = 0) -> tuple[Tensor, Tensor]:
        """See Engine."""
        self._looked = project(self._exact, self._offer.splits.to(torch.float64), refill)
        return self._exact.value(self._looked), self.certify()

    def keep(self, allocations: Tensor, prices: Tensor) -> None:
        """See Engine."""
        offered = self._prices(self._offer)
        splits, known = (self._looked, offered) if self._kept is None else self._kept
        if self._looked is None or splits is None:
            raise RuntimeError("keep comes after look")
        splits = torch.where(allocations[:, None, None], self._looked, splits)
        self._kept = splits, torch.where(prices[:, None], offered, known)

    def best(self) -> tuple[Tensor, Tensor]:
        """See Engine."""
        if self._kept is None:
            raise RuntimeError("nothing was kept")
        return self._kept

    def state(self) -> PdhgState:
        """See Engine."""
        return PdhgState(self._offer.splits.to(torch.float64), self._prices(self._offer))
