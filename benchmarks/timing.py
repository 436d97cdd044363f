"""The clock of all benchmarks that compare solvers, and medians of repeated calls."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

import torch
from torch import Tensor

import teal
from teal.problem.allocation import Allocation
from teal.problem.assessment import assess

LONG_CALL_S = 5.0  # a call that takes longer is timed once

Solve = Callable[[teal.Problem], Allocation]


class State(StrEnum):
    """How the calls of a solver ended."""

    SOLVED = "solved"
    STOPPED = "stopped"  # no allocation within the limit
    NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True)
class Timing:
    """Calls of one solver, one for each of a series of matrices.

    Attributes:
        seconds: median of the whole calls, from the problem to the allocation; infinite unless
            solved.
        solver_s: median of the solver alone, without building its model; ``seconds`` for a solver
            that has no model to build.
        gap: largest certified gap of the allocations, by their own prices.
        calls: number of timed calls.
        state: how they ended.
    """

    seconds: float
    solver_s: float
    gap: float
    calls: int
    state: State


NOT_RUN = Timing(math.inf, math.inf, math.inf, 0, State.NOT_RUN)


def time_series(
    solve: Solve,
    problems: Sequence[teal.Problem],
    *,
    clock: Callable[[], float] = time.perf_counter,
    long_call_s: float = LONG_CALL_S,
) -> Timing:
    """Time one call for each matrix of a series but the first, which is the warm-up.

    The warm-up compiles kernels, imports modules and starts threads; a solver that keeps its state
    has solved the matrix before each timed one.  All solvers are timed by this function, on the
    same problems.  Where the warm-up takes longer than ``long_call_s``, one call is timed.

    Args:
        solve: the solver: from a problem of one matrix to its allocation.
        problems: of one matrix each, at least two.
        clock: s.
        long_call_s: s.
    """
    begin = clock()
    allocation = solve(problems[0])
    warm_up_s = clock() - begin
    if not allocation.status[0].usable:
        return Timing(math.inf, math.inf, math.inf, 0, State.STOPPED)
    timed = problems[1:] if warm_up_s <= long_call_s else problems[1:2]
    seconds = []
    solver_s = []
    gaps = []
    for problem in timed:
        # Properties that all solvers use, and that are computed once.
        _ = problem.path_mask, problem.path_value, problem.inverse_capacity
        begin = clock()
        allocation = solve(problem)
        seconds.append(clock() - begin)
        if not allocation.status[0].usable:
            return Timing(math.inf, math.inf, math.inf, len(seconds), State.STOPPED)
        has_model = float(allocation.build_s[0]) > 0
        solver_s.append(float(allocation.solve_s[0]) if has_model else seconds[-1])
        gaps.append(float(assess(problem, allocation).gap))
    return Timing(
        statistics.median(seconds),
        statistics.median(solver_s),
        max(gaps),
        len(timed),
        State.SOLVED,
    )


def median_s(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, s; without a call before the first that counts if ``repeats`` is 1."""
    if repeats > 1:
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def matrix_by_matrix(scheme: str, problem: teal.Problem) -> tuple[Tensor, float]:
    """(B, D, K) splits of a scheme that gets one matrix at a time, and the median time of a matrix,
    s.
    """
    allocator = teal.make_scheme(scheme)
    seconds = []
    splits = []
    allocator.solve(problem.row(0))  # compilation
    for row in range(problem.batch):
        begin = time.perf_counter()
        splits.append(allocator.solve(problem.row(row)).splits)
        seconds.append(time.perf_counter() - begin)
    return torch.cat(splits), statistics.median(seconds)
