"""Reference engine of PDHG, in torch over the path operations, on any device.

:class:`PlainEngine` runs restarted, reflected Halpern PDHG (Lu & Yang 2024) as in the formulas of
:mod:`teal.solvers.pdhg`, whose table has the symbols; other engines are tested against it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.problem import Problem
from teal.solvers.pdhg.dense import DenseEngine, Point, Scaling, scaling, start, trial_primal_weight
from teal.solvers.pdhg.engine import (
    MAX_SHARE_CHANGE,
    MAX_WEIGHT_CHANGE,
    MIN_SHARE,
    MIN_SQUARED_DISTANCE,
    RESTART_ARTIFICIAL,
    RESTART_NECESSARY,
    RESTART_SUFFICIENT,
)
from teal.solvers.result import SolveState


def step(problem: Problem, scale: Scaling, point: Point, primal_weight: Tensor) -> Point:
    """Compute one PDHG step T(z) = (w', y').

        w' = Proj(w + tau (v / S - pathsum(y / c))),          tau = 1 / (omega h),
        y' = Proj(y + omega / m (load(2 w' - w) / c - 1)),

    with values v of a Gbit/s, capacities c, and Proj onto the demand sets and the price set; in a
    min-max program loads are divided by S, and the 1 is missing.

    Args:
        problem: B matrices.
        scale: scale S of the objective (B, 1); ``inverse_capacity_sum`` h (B, D, 1 or K) and
            ``full_path_utilisation`` m (B, E), to which step sizes are inversely proportional.
        point: iterate z: splits w (B, D, K) and dual variables y (B, E).
        primal_weight: (B,) omega, the factor of dual step sizes.
    """
    inverse_capacity = problem.inverse_capacity
    primal_weight = primal_weight[:, None]
    # Primal step: a gradient step, then projection onto the demand sets.
    scaled_price = problem.ops.path_sum(point.dual * inverse_capacity)
    scaled_value = problem.path_value / scale.objective_scale[..., None]
    primal_step = 1 / (primal_weight[..., None] * scale.inverse_capacity_sum)
    unprojected = point.splits + (scaled_value - scaled_price) * primal_step
    # For the projection: the metric diag(1 / slope), None for one step size per demand; and the
    # step of a split for each unit of value per Gbit/s (utilities are part of the prox).
    slope = 1 / scale.inverse_capacity_sum if scale.inverse_capacity_sum.shape[-1] > 1 else None
    value_step = primal_step / scale.objective_scale[..., None]
    splits = problem.demand_set.project(unprojected, problem.path_mask, slope, value_step)
    # Dual step at the extrapolated splits.
    utilisation = problem.loads(2 * splits - point.splits) * inverse_capacity
    dual_step = primal_weight / scale.full_path_utilisation
    live = problem.capacity > 0
    return Point(
        splits,
        problem.price_set.project(point.dual, utilisation / scale.load_scale, dual_step, live),
    )


def distances(
    problem: Problem, scale: Scaling, a: Point, b: Point
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B,) squared primal and dual distances between two points, and twice their coupling.

    The squares are sum of demand h (w_a - w_b)^2 and sum of m (y_a - y_b)^2, the coupling is sum of
    (y_a - y_b) (load_a - load_b) / c; the first and the last are over S for a min-max program.

    Args:
        problem: B matrices.
        scale: step sizes h and m of the program.
        a, b: points: splits (B, D, K) and dual variables (B, E).
    """
    # Splits in the norm sum of demand h w^2.
    primal_metric = problem.demand[..., None] * scale.inverse_capacity_sum
    squared_primal = (primal_metric * (a.splits - b.splits).square()).sum(
        (1, 2)
    ) / scale.load_scale[:, 0]
    # Dual variables in the norm sum of m y^2; their coupling with the utilisations.
    squared_dual = (scale.full_path_utilisation * (a.dual - b.dual).square()).sum(1)
    utilisation = problem.loads(a.splits - b.splits) * problem.inverse_capacity / scale.load_scale
    return squared_primal, squared_dual, 2 * ((a.dual - b.dual) * utilisation).sum(1)


class PlainEngine(DenseEngine):
    """PDHG in torch, the reference :class:`teal.solvers.pdhg.engine.PdhgEngine`.

    Args:
        problem: B matrices.
        state: start of the iteration; None for zero flow and prices.
        dtype: type of the iteration.
    """

    # (B, D, 1) scale of the step sizes under a utility (share metric); None without a utility.
    _share_scale: Tensor | None = None

    def __init__(self, problem: Problem, state: SolveState | None, dtype: torch.dtype) -> None:
        exact = problem.solved.to(torch.float64)
        self._problem = problem = exact.to(dtype)
        self._scale = scale = scaling(problem)
        super().__init__(exact, scale.price_scale)
        self._initial_inverse_capacity_sum = scale.inverse_capacity_sum
        if problem.utility is not None:
            self._share_scale = torch.ones_like(self._initial_inverse_capacity_sum)
        self._init_iterates(start(problem, scale, state), trial_primal_weight(problem, scale))

    def _init_iterates(self, point: Point, primal_weight: Tensor) -> None:
        """Set the first iterate and the first primal weight (B,)."""
        self._stepped = self._current = self._anchor = point
        self._primal_weight = self._initial_primal_weight = primal_weight
        zero = torch.zeros_like(primal_weight)
        self._cycle_iterations = zero
        self._total_iterations = zero
        self._is_restart_due = zero.bool()
        # Fixed-point errors of this cycle: the first (-1 before it is known) and the last one.
        self._first_error = zero - 1
        self._last_error = zero

    def _step(self, point: Point, primal_weight: Tensor) -> Point:
        """Return T(z), the result of a PDHG step from an iterate z, for primal weights (B,)."""
        return step(self._problem, self._scale, point, primal_weight)

    def _distances(self, a: Point, b: Point) -> tuple[Tensor, Tensor, Tensor]:
        """Return (B,) squared primal and dual distances of two points in the norms of the step
        sizes, and twice their coupling.
        """
        return distances(self._problem, self._scale, a, b)

    def _last_step(self) -> Point:
        """Return T(z), the splits and dual variables of the last PDHG step."""
        return self._stepped

    def advance(self, num_iterations: int) -> Tensor:
        """Run iterations; return (B,) dual bounds before the last one, with rounding errors."""
        last_iterate = self._current
        for _ in range(num_iterations):
            last_iterate = self._current
            self._iterate_once()
        return self._bound(last_iterate.dual)

    def _update_share_scale(self, is_restart: Tensor, old_scale: Tensor) -> None:
        """Update the step sizes to the served shares, at a restart under a utility.

        scale <- sqrt(scale * share), changed by at most a factor of 3; the primal step sizes grow
        with the scale, and the dual ones follow from flows demand * scale on all paths.

        Args:
            is_restart: (B,) bool, matrices that restart.
            old_scale: (B, D, 1) present scale.
        """
        problem = self._problem
        # Geometric mean of scale and served share, with a limited change.
        share = self._current.splits.sum(-1, keepdim=True).clamp(MIN_SHARE, 1)
        new_scale = (old_scale * share).sqrt()
        new_scale = torch.minimum(
            torch.maximum(new_scale, old_scale / MAX_SHARE_CHANGE), old_scale * MAX_SHARE_CHANGE
        )
        self._share_scale = updated_scale = torch.where(
            is_restart[:, None, None], new_scale, old_scale
        )
        # Failed paths are included: a larger m is still a valid step size.
        flow = problem.ops.mask * updated_scale * problem.routable_demand[..., None]
        utilisation = problem.ops.link_sum(flow) * problem.inverse_capacity
        # h and m of the new step sizes.
        self._scale = dataclasses.replace(
            self._scale,
            inverse_capacity_sum=self._initial_inverse_capacity_sum / updated_scale,
            full_path_utilisation=torch.where(utilisation > 0, utilisation, 1e-30),
        )

    def _iterate_once(self) -> None:
        """Run one iteration of restarted Halpern PDHG with reflection.

        z <- (n + 1) / (n + 2) (2 T(z) - z) + 1 / (n + 2) z_0, n iterations after a restart, for the
        iterate z of splits w and dual variables y, its step T(z) and the anchor z_0, with y clamped
        to >= 0.  At a restart, z and z_0 become T(z), and the primal weight omega moves towards the
        ratio of the distances of y and w from z_0.  The fixed-point error ||T(z) - z|| decides
        about the next restart.
        """
        # (B,) decided by the last iteration.
        is_restart = self._is_restart_due
        if self._share_scale is not None and bool(is_restart.any()):
            self._update_share_scale(is_restart, self._share_scale)
        current = self._current
        anchor = self._anchor
        self._stepped = stepped = self._step(current, self._primal_weight)
        # Fixed-point error in the norm of the step sizes.
        primal_distance, dual_distance, coupling = self._distances(stepped, current)
        fixed_point_error = (
            (self._primal_weight * primal_distance - coupling + dual_distance / self._primal_weight)
            .clamp(min=0)
            .sqrt()
        )
        # Halpern's average of the anchor and the reflected step (Lu & Yang 2024).
        halpern_weight = (self._cycle_iterations + 1) / (self._cycle_iterations + 2)
        averaged_point = anchor.towards(
            current.towards(stepped, torch.full_like(halpern_weight, 2.0)), halpern_weight
        )
        averaged_point = Point(averaged_point.splits, averaged_point.dual.clamp(min=0))
        # Primal weight for the next restart: towards the ratio of the distances moved.
        squared_primal_distance, squared_dual_distance, _ = self._distances(stepped, anchor)
        has_moved = (squared_primal_distance > MIN_SQUARED_DISTANCE) & (
            squared_dual_distance > MIN_SQUARED_DISTANCE
        )
        distance_ratio = (squared_dual_distance / squared_primal_distance.clamp(min=1e-300)).sqrt()
        new_primal_weight = torch.where(
            has_moved, (self._primal_weight * distance_ratio).sqrt(), self._primal_weight
        )
        # PDLP's restart criteria, not in the first iteration of a cycle: sufficient decrease of the
        # error; necessary decrease while it grows; or a long cycle.
        self._total_iterations = self._total_iterations + 1
        cycle_iterations = torch.where(is_restart, 0, self._cycle_iterations + 1)
        is_first_iteration = self._first_error < 0
        is_restart_next = ~is_restart & ~is_first_iteration
        is_restart_next &= (
            (fixed_point_error <= RESTART_SUFFICIENT * self._first_error)
            | (
                (fixed_point_error <= RESTART_NECESSARY * self._first_error)
                & (fixed_point_error > self._last_error)
            )
            | (cycle_iterations >= RESTART_ARTIFICIAL * self._total_iterations)
        )
        # First error of the cycle; -1 from a restart until it is measured.
        self._first_error = torch.where(
            is_restart, -1, torch.where(is_first_iteration, fixed_point_error, self._first_error)
        )
        # The primal weight changes only at restarts, and within limits.
        min_weight = self._initial_primal_weight / MAX_WEIGHT_CHANGE
        max_weight = self._initial_primal_weight * MAX_WEIGHT_CHANGE
        new_primal_weight = torch.minimum(torch.maximum(new_primal_weight, min_weight), max_weight)
        self._primal_weight = torch.where(is_restart, new_primal_weight, self._primal_weight)
        # At a restart, continue from T(z) as the new anchor.
        self._current = stepped.where(is_restart, averaged_point)
        self._anchor = stepped.where(is_restart, anchor)
        self._cycle_iterations = cycle_iterations
        self._is_restart_due = is_restart_next
        self._last_error = fixed_point_error
