"""PDHG under a limit on churn (see :mod:`teal.problem.churn`), in torch, for any device.

Every path stands twice: a share a <= w0 that stays and a share b that moves,

    max sum v (a + b) demand  s.t.  load[e](a + b) <= c[e],  sum demand b <= budget,  sum_k a + b <= 1,
    0 <= a <= w0,  b >= 0,

so that the limit is one more row of the program, with a dual variable of its own.  The iteration is that of the plain
engine; each variable has a step size of its own, since the budget is much smaller than capacities are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.churn import best_profit
from teal.solvers.pdhg.dense import DenseEngine, Point, scaling, trial_primal_weight
from teal.solvers.pdhg.engine import PdhgState
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.projection import granted_share, project

_TINY = 1e-30  # instead of 0 as a divisor
_MOST_NUMBERS = 20_000_000  # that a projection holds at once, 160 MB
_REFILL = 3  # rounds in which what stays on its path takes up unused capacity


class ChurnEngine(PlainEngine):
    """See :class:`teal.solvers.pdhg.engine.PdhgEngine`.  Splits of an iterate are (B, D, 2 K), duals (B, E + 1).

    Args:
        problem: value maximisation with a limit on churn.
        state: splits (B, D, K) and prices (B, E) to start from; None for the splits in force and no prices.
        dtype: not used: all is float64, because the budget is a difference of large numbers.
    """

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        problem = problem.to(torch.float64)
        self._problem, self._scale = problem, scaling(problem)
        DenseEngine.__init__(self, problem, self._scale.price_scale)
        self._stay, self._budget = problem.kept_splits, problem.churn_budget
        may_move = problem.path_mask & (self._budget > 0)[:, None, None]
        self._limit = torch.cat([self._stay, may_move.to(self._stay)], -1)  # (B, D, 2 K) upper bounds
        self._inverse_budget = torch.where(self._budget > 0, 1 / self._budget.clamp(min=_TINY), 0)[:, None]
        per_path = problem.ops.path_sum(problem.inverse_capacity)
        size = torch.cat([per_path, per_path + self._inverse_budget[..., None]], -1)
        self._size = torch.where(size > 0, size, 1)  # (B, D, 2 K) 1/(Gbit/s)
        full = 2 * self._scale.full_path_utilisation
        moving = (problem.flows(may_move.to(self._stay)).sum((1, 2)))[:, None] * self._inverse_budget
        self._row_size = torch.cat([full, moving], 1).clamp(min=_TINY)  # (B, E + 1)
        splits, dual = torch.cat([self._stay, torch.zeros_like(self._stay)], -1), torch.zeros_like(self._row_size)
        if state is not None:
            given = torch.where(problem.path_mask, state.splits.to(self._stay).clamp(min=0), 0)
            given = given / given.sum(-1, keepdim=True).clamp(min=1)
            stays = torch.minimum(given, self._stay)
            splits = torch.minimum(torch.cat([stays, given - stays], -1), self._limit)
            dual[:, :-1] = state.prices.to(dual).clamp(min=0) * problem.capacity / self._scale.objective_scale
        self._begin(Point(splits, dual), trial_primal_weight(problem, self._scale))

    def _joined(self, both: Tensor) -> Tensor:
        """(B, D, K) what stays plus what moves."""
        stays, moves = both.chunk(2, -1)
        return stays + moves

    def _use(self, both: Tensor) -> Tensor:
        """(B, E + 1) use of each row over its right-hand side."""
        moves = self._problem.flows(both.chunk(2, -1)[1]).sum((1, 2))[:, None]
        load = self._problem.loads(self._joined(both)) * self._problem.inverse_capacity
        return torch.cat([load, moves * self._inverse_budget], 1)

    def _step(self, point: Point, primal_weight: Tensor) -> Point:
        problem, weight = self._problem, primal_weight[:, None]
        price = problem.ops.path_sum(point.dual[:, :-1] * problem.inverse_capacity)
        profit = problem.path_value / self._scale.objective_scale[..., None] - price
        moving = profit - (point.dual[:, -1:] * self._inverse_budget)[..., None]
        step = 1 / (weight[..., None] * self._size)
        moved = point.splits + step * torch.cat([profit, moving], -1)
        splits = project_box(moved, self._limit, 1 / self._size)
        dual = point.dual + weight / self._row_size * (self._use(2 * splits - point.splits) - 1)
        live = torch.cat([problem.capacity > 0, (self._budget > 0)[:, None]], 1)
        return Point(splits, torch.where(live, dual.clamp(min=0), 0))

    def _distances(self, a: Point, b: Point) -> tuple[Tensor, Tensor, Tensor]:
        moved, dual = a.splits - b.splits, a.dual - b.dual
        splits = (self._problem.demand[..., None] * self._size * moved.square()).sum((1, 2))
        return splits, (self._row_size * dual.square()).sum(1), 2 * (dual * self._use(moved)).sum(1)

    def _bound(self, dual: Tensor) -> Tensor:
        problem, prices = self._exact, self._prices(dual)
        moving = (self._scale.objective_scale * dual[:, -1:] * self._inverse_budget)[:, 0]
        moving = torch.where(self._budget > 0, moving, problem.path_value.amax())  # nothing is worth moving at this
        profit = torch.where(problem.path_mask, problem.path_value - problem.ops.path_sum(prices), -torch.inf)
        best, _ = best_profit(profit, self._stay, moving)
        return problem.capacity_value(prices) + moving * self._budget + (problem.demand * best).sum(1)

    def _prices(self, dual: Tensor) -> Tensor:
        return super()._prices(dual[:, : self._exact.topology.num_links])

    def check(self, refill: int = 0, enough: float = math.inf) -> tuple[Tensor, Tensor]:
        """See PdhgEngine."""
        stays, moves = self._stepped.splits.chunk(2, -1)
        self._checked_splits = within_budget(self._exact, stays, moves)
        return self._exact.value(self._checked_splits), self._bound(self._stepped.dual)


def within_budget(problem: Problem, stays: Tensor, moves: Tensor) -> Tensor:
    """A feasible allocation (B, D, K): ``moves`` is scaled to the budget, links are relieved, what stays is refilled.

    Args:
        problem: with a limit on churn.
        stays: (B, D, K), at most the splits in force.
        moves: (B, D, K).
    """
    moved = problem.flows(moves).sum((1, 2))
    scale = torch.where(moved > problem.churn_budget, problem.churn_budget / moved.clamp(min=_TINY), 1)
    splits = project(problem, stays + scale[:, None, None] * moves, refill=0)
    for _ in range(_REFILL):
        room = (problem.kept_splits - splits).clamp(min=0)
        unserved = (1 - splits.sum(-1, keepdim=True)).clamp(min=0)
        request = problem.flows(room * (unserved / room.sum(-1, keepdim=True).clamp(min=_TINY)).clamp(max=1))
        residual = (problem.capacity - problem.loads(splits)).clamp(min=0)
        granted = request * granted_share(problem, problem.ops.link_sum(request), residual)
        demand = problem.demand[..., None]
        splits = splits + torch.where(demand > 0, granted / torch.where(demand > 0, demand, 1), 0)
    return splits


def project_box(point: Tensor, limit: Tensor, slope: Tensor) -> Tensor:
    """Nearest w of {0 <= w <= limit, sum w <= 1} for each demand, in the metric diag(1 / slope): (B, D, n).

    w = clip(point - t slope, 0, limit) with the least t >= 0 for which the sum is at most 1.  The sum is linear between
    the 2 n values of t at which an entry reaches a bound, so that its values there give t.

    Args:
        point: (B, D, n).
        limit: (B, D, n) upper bounds.
        slope: (B, D, n) positive.
    """
    at_once = max(1, _MOST_NUMBERS // max(1, 2 * len(point) * point.shape[-1] ** 2))
    parts = zip(point.split(at_once, 1), limit.split(at_once, 1), slope.split(at_once, 1), strict=True)
    return torch.cat([_project_box(*part) for part in parts], 1)


def _project_box(point: Tensor, limit: Tensor, slope: Tensor) -> Tensor:
    def at(t: Tensor) -> Tensor:
        return torch.minimum((point - t * slope).clamp(min=0), limit)

    breaks = torch.cat([(point - limit) / slope, point / slope], -1).clamp(min=0)  # (B, D, 2 n)
    moved = point[..., None, :] - breaks[..., None] * slope[..., None, :]
    is_over = torch.minimum(moved.clamp(min=0), limit[..., None, :]).sum(-1) > 1
    low = torch.where(is_over, breaks, 0).amax(-1, keepdim=True)
    high = torch.where(is_over, torch.inf, breaks).amin(-1, keepdim=True)  # at the largest value all entries are 0
    at_low, at_high = at(low), at(high)
    excess = at_low.sum(-1, keepdim=True) - 1
    fall = (at_low - at_high).sum(-1, keepdim=True)
    t = low + (high - low) * torch.where(fall > 0, excess / torch.where(fall > 0, fall, 1), 0).clamp(0, 1)
    return torch.where(at(torch.zeros_like(low)).sum(-1, keepdim=True) > 1, at(t), at(torch.zeros_like(low)))
