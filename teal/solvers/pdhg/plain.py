"""The plain engine: the iteration in torch over the path operations, on any device; the reference
of the others.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.problem import Problem
from teal.solvers.pdhg.dense import DenseEngine, Point, Scaling, scaling, start, trial_primal_weight
from teal.solvers.pdhg.engine import (
    MAX_CHANGE_OF_SHARE,
    MAX_WEIGHT_CHANGE,
    MIN_SHARE,
    MIN_SQUARED_DISTANCE,
    RESTART_ARTIFICIAL,
    RESTART_NECESSARY,
    RESTART_SUFFICIENT,
)
from teal.solvers.result import PdhgState


def step(problem: Problem, scale: Scaling, point: Point, primal_weight: Tensor) -> Point:
    """One PDHG step T with primal weight omega (B,).  Pure."""
    inverse, primal_weight = problem.inverse_capacity, primal_weight[:, None]
    scaled_price = problem.ops.path_sum(point.dual * inverse)
    scaled_value = problem.path_value / scale.objective_scale[..., None]
    primal_step = 1 / (primal_weight[..., None] * scale.inverse_capacity_sum)
    moved = point.splits + (scaled_value - scaled_price) * primal_step
    slope = 1 / scale.inverse_capacity_sum if scale.inverse_capacity_sum.shape[-1] > 1 else None
    unit_step = primal_step / scale.objective_scale[..., None]
    splits = problem.demand_set.project(moved, problem.path_mask, slope, unit_step)
    utilisation = problem.loads(2 * splits - point.splits) * inverse
    dual_step, live = primal_weight / scale.full_path_utilisation, problem.capacity > 0
    return Point(
        splits,
        problem.price_set.project(point.dual, utilisation / scale.load_scale, dual_step, live),
    )


def distances(
    problem: Problem, scale: Scaling, a: Point, b: Point
) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) squared distances between two points in splits and in dual variables, and twice their
    coupling.

    The squares are sum of demand h (w_a - w_b)^2 and sum of m (y_a - y_b)^2, the coupling is
    sum of (y_a - y_b) (load_a - load_b) / c; the first and the last are over S for a balanced
    program.
    """
    metric = problem.demand[..., None] * scale.inverse_capacity_sum
    splits = (metric * (a.splits - b.splits).square()).sum((1, 2)) / scale.load_scale[:, 0]
    dual = (scale.full_path_utilisation * (a.dual - b.dual).square()).sum(1)
    utilisation = problem.loads(a.splits - b.splits) * problem.inverse_capacity / scale.load_scale
    return splits, dual, 2 * ((a.dual - b.dual) * utilisation).sum(1)


class PlainEngine(DenseEngine):
    """PDHG in torch, the reference: a :class:`teal.solvers.pdhg.engine.PdhgEngine`."""

    _unit: Tensor | None = None  # (B, D, 1) r of a utility

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        exact = problem.solved.to(torch.float64)
        self._problem = problem = exact.to(dtype)
        self._scale = scale = scaling(problem)
        super().__init__(exact, scale.price_scale)
        self._first_h = scale.inverse_capacity_sum
        if problem.utility is not None:
            self._unit = torch.ones_like(self._first_h)
        self._begin(start(problem, scale, state), trial_primal_weight(problem, scale))

    def _begin(self, point: Point, primal_weight: Tensor) -> None:
        """Set the first iterate and the first primal weight (B,)."""
        self._stepped = self._current = self._anchor = point
        self._primal_weight = self._first_primal_weight = primal_weight
        zero = torch.zeros_like(primal_weight)
        self._cycle_iterations, self._total_iterations, self._restart_due = zero, zero, zero.bool()
        self._first_error, self._last_error = zero - 1, zero  # of this cycle; -1: it has none yet

    def _step(self, point: Point, primal_weight: Tensor) -> Point:
        """T."""
        return step(self._problem, self._scale, point, primal_weight)

    def _distances(self, a: Point, b: Point) -> tuple[Tensor, Tensor, Tensor]:
        return distances(self._problem, self._scale, a, b)

    def _last_step(self) -> Point:
        return self._stepped

    def advance(self, count: int) -> Tensor:
        """Iterate, as in :meth:`PdhgEngine.advance`."""
        before = self._current
        for _ in range(count):
            before = self._current
            self._iterate()
        return self._bound(before.dual)

    def _follow_shares(self, restart: Tensor, old: Tensor) -> None:
        """Step sizes in units of the shares, so far ``old``; see
        :mod:`teal.solvers.pdhg.fused.share_metric`.
        """
        problem = self._problem
        share = self._current.splits.sum(-1, keepdim=True).clamp(MIN_SHARE, 1)
        new = (old * share).sqrt()
        new = torch.minimum(
            torch.maximum(new, old / MAX_CHANGE_OF_SHARE), old * MAX_CHANGE_OF_SHARE
        )
        self._unit = unit = torch.where(restart[:, None, None], new, old)
        rates = (
            problem.ops.mask * unit * problem.routable_demand[..., None]
        )  # of failed paths too: m may be larger
        load = problem.ops.link_sum(rates) * problem.inverse_capacity
        self._scale = dataclasses.replace(
            self._scale,
            inverse_capacity_sum=self._first_h / unit,
            full_path_utilisation=torch.where(load > 0, load, 1e-30),
        )

    def _iterate(self) -> None:
        restart = self._restart_due  # (B,) decided by the iteration before
        if self._unit is not None and bool(restart.any()):
            self._follow_shares(restart, self._unit)
        current, anchor = self._current, self._anchor
        self._stepped = stepped = self._step(current, self._primal_weight)
        splits, dual, coupling = self._distances(stepped, current)
        error = (
            (self._primal_weight * splits - coupling + dual / self._primal_weight)
            .clamp(min=0)
            .sqrt()
        )
        # Halpern's average of the anchor and the reflected step (Lu & Yang 2024).
        share = (self._cycle_iterations + 1) / (self._cycle_iterations + 2)
        average = anchor.towards(current.towards(stepped, torch.full_like(share, 2.0)), share)
        average = Point(average.splits, average.dual.clamp(min=0))
        squared_primal_distance, squared_dual_distance, _ = self._distances(stepped, anchor)
        has_moved = (squared_primal_distance > MIN_SQUARED_DISTANCE) & (
            squared_dual_distance > MIN_SQUARED_DISTANCE
        )
        ratio = (squared_dual_distance / squared_primal_distance.clamp(min=1e-300)).sqrt()
        weight = torch.where(has_moved, (self._primal_weight * ratio).sqrt(), self._primal_weight)
        self._total_iterations = self._total_iterations + 1
        cycle_iterations = torch.where(restart, 0, self._cycle_iterations + 1)
        is_first = self._first_error < 0
        next_restart = ~restart & ~is_first
        next_restart &= (
            (error <= RESTART_SUFFICIENT * self._first_error)
            | ((error <= RESTART_NECESSARY * self._first_error) & (error > self._last_error))
            | (cycle_iterations >= RESTART_ARTIFICIAL * self._total_iterations)
        )
        self._first_error = torch.where(
            restart, -1, torch.where(is_first, error, self._first_error)
        )
        lowest, highest = (
            self._first_primal_weight / MAX_WEIGHT_CHANGE,
            self._first_primal_weight * MAX_WEIGHT_CHANGE,
        )
        weight = torch.minimum(torch.maximum(weight, lowest), highest)
        self._primal_weight = torch.where(restart, weight, self._primal_weight)
        self._current, self._anchor = (
            stepped.where(restart, average),
            stepped.where(restart, anchor),
        )
        self._cycle_iterations, self._restart_due, self._last_error = (
            cycle_iterations,
            next_restart,
            error,
        )
