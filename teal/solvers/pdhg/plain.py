"""The plain engine: one step in torch over the path operations, on any device; the reference of faster ones."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem
from teal.solvers.pdhg.dense import DenseEngine, Point, Scaling, guessed_omega, in_utilisations, scaling, start
from teal.solvers.pdhg.engine import LONG, NECESSARY, OMEGA_RANGE, SUFFICIENT, PdhgState
from teal.solvers.prox import project_splits, weighted_simplex


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


class PlainEngine(DenseEngine):
    """See :class:`teal.solvers.pdhg.engine.Engine`."""

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        exact = in_utilisations(problem.to(torch.float64))
        self._problem = problem = exact.to(dtype)
        self._scale = scale = scaling(problem)
        super().__init__(exact, scale.unit)
        self._offer = self._point = self._anchor = start(problem, scale, state)
        self._omega = self._usual = guessed_omega(problem, scale)
        nothing = torch.zeros_like(problem.demand[:, 0])
        self._cycle, self._total, self._due = nothing, nothing, nothing.bool()
        self._first_error, self._last_error = nothing - 1, nothing

    def _offered(self) -> Point:
        return self._offer

    def advance(self, count: int) -> Tensor:
        """See Engine."""
        before = self._point
        for _ in range(count):
            before = self._point
            self._once()
        return self._bound(before.dual)

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
