"""Certified results: project splits onto the capacities, and bound the optimum by dual prices.

:func:`certified_result` turns splits and prices from any source into a result, without any of the
arithmetic of the engine that found them.  :class:`WarmStart` is the engine that does only this: a
warm start that certifies the target gap needs no iteration.  :class:`Certified` is an engine of a
package, whose value and bound are computed here.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from teal.problem import Problem, dual_bound, small
from teal.problem.bounds import from_score, usable_prices
from teal.problem.bounds import gap as certified_gap
from teal.runtime.interruptible import Steps
from teal.solvers.contract import Engine, Limits, Start
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, Stop

# The dual bound is computed at the prices times this factor.
_UNSCALED = np.ones(1)


def certified_result(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    gap: float,
    *,
    iterations: int = 0,
    stop_reasons: tuple[Stop, ...] | Stop = Stop.ITERATIONS,
) -> SolveResult:
    """Return the result of splits that may be infeasible, and of dual prices.

    The splits are projected onto the capacities, without rounds that allocate unused capacity;
    the bound is the Lagrangian bound of the prices.

    Args:
        problem: B matrices of one program, in float64.
        splits: (B, D, K) splits, float64.
        prices: (B, E) dual prices, float64.
        gap: target gap.
        iterations: number of iterations that the search took.
        stop_reasons: stopping criterion of the matrices above the target gap, or one of each
            matrix.
    """
    # Small problems have compiled kernels for projection and bound.
    if small.is_small(problem):
        feasible = small.projected(problem, splits.reshape(problem.batch, -1).numpy())
        metrics = small.measured(problem, feasible, prices, _UNSCALED)
        value = torch.from_numpy(metrics.value)
        bound = from_score(problem, torch.from_numpy(metrics.score), prices)
    else:
        feasible = project(problem, splits, refill=0)
        value = problem.value(feasible)
        bound = dual_bound(problem, prices)
    gaps = certified_gap(problem, value, bound)
    stop_reason_by_matrix = (
        stop_reasons if isinstance(stop_reasons, tuple) else (stop_reasons,) * problem.batch
    )
    return SolveResult(
        splits=feasible,
        prices=prices,
        value=value,
        bound=bound,
        gap=gaps,
        iterations=iterations,
        solve_s=0.0,
        state=SolveState(feasible, prices),
        stopped_by=tuple(
            Stop.GAP if matrix_gap <= gap else stop
            for matrix_gap, stop in zip(gaps.tolist(), stop_reason_by_matrix, strict=True)
        ),
    )


def tightened(problem: Problem, result: SolveResult, prices: Tensor, gap: float) -> SolveResult:
    """Return a result with the tighter bound of each matrix: its own, or that of other dual prices.

    The state for a warm start stays as it is.

    Args:
        problem: B matrices.
        result: their result.
        prices: (B, E) dual prices from any source.
        gap: target gap; a matrix that reaches it by the new bound was stopped by it.
    """
    sense = problem.objective.rules.sense
    prices = prices.to(problem.demand.device)
    other_bound = dual_bound(problem, prices).to(result.bound)
    # The smaller bound is tighter for a maximum (sense 1), the larger one for a minimum (-1).
    is_tighter = sense * other_bound < sense * result.bound
    if not bool(is_tighter.any()):
        return result
    bound = torch.where(is_tighter, other_bound, result.bound)
    gaps = certified_gap(problem, result.value, bound)
    reaches_gap = is_tighter & (gaps.to(is_tighter.device) <= gap)
    stops = zip(reaches_gap.tolist(), result.stopped_by, strict=True)
    return dataclasses.replace(
        result,
        prices=torch.where(is_tighter[:, None], prices.to(result.prices), result.prices),
        bound=bound,
        gap=gaps,
        stopped_by=tuple(Stop.GAP if has_reached else stop for has_reached, stop in stops),
    )


class WarmStart:
    """Engine that certifies a warm start and does not iterate."""

    name = "warm start"

    def accepts(self, problem: Problem) -> bool:
        """Return true: every program has a projection and a bound."""
        del problem
        return True

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return 0: it is far shorter than a solve."""
        del problem, start, gap
        return 0.0

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Certify the splits and prices of the start.

        Args:
            problem: B matrices of one program.
            start: a warm start.
            limits: target gap.
        """
        assert start.state is not None, "a warm start"
        problem64 = problem.to(torch.float64)
        yield
        splits = start.state.splits.to(torch.float64)
        prices = start.state.prices.to(torch.float64)
        result = certified_result(problem64, splits, prices, limits.gap)
        return result.in_dtype(problem.demand.dtype)


class Certified:
    """Engine of a package: only its splits and prices count, whatever value and gap it states.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self._engine.name

    def accepts(self, problem: Problem) -> bool:
        """Return whether the engine can solve a program."""
        return self._engine.accepts(problem)

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return the time to the target gap that the engine predicts, s."""
        return self._engine.predict_seconds(problem, start, gap)

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve every matrix by the engine; project its splits, and bound the optimum by its
        prices.

        Args:
            problem: B matrices of one program.
            start: start of the search.
            limits: target and limits.
        """
        result = yield from self._engine.solve(problem, start, limits)
        problem64 = problem.to(torch.float64)
        # A matrix that does not have the target gap by these sums has not reached it.
        stop_reasons = tuple(
            Stop.ITERATIONS if stop is Stop.GAP else stop for stop in result.stopped_by
        )
        certified = certified_result(
            problem64,
            result.splits.to(torch.float64),
            usable_prices(problem64, result.prices, max_ratio=1.0),
            limits.gap,
            iterations=result.iterations,
            stop_reasons=stop_reasons,
        )
        return certified.in_dtype(problem.demand.dtype)
