"""Timing functions of all benchmarks that compare solvers: one call per matrix of a series, and
medians of repeated calls.
"""

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
    """Times and gap of one solver on a series of matrices, with one call for each matrix.

    Attributes:
        seconds: median time of a call, from the problem to the allocation, s; infinite unless
            solved.
        solver_s: median time of the solver alone, without building its model, s; ``seconds`` for a
            solver that has no model to build.
        gap: largest certified gap of the allocations, by their own prices.
        calls: number of timed calls.
        state: whether all calls were solved, one was stopped, or none was run.
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
    starts each timed call from the previous matrix.  If the warm-up takes longer than
    ``long_call_s``, only one call is timed.

    Args:
        solve: returns the allocation of a problem of one matrix.
        problems: problems of one matrix each, at least two.
        clock: returns the present time, s.
        long_call_s: time of the warm-up above which only one call is timed, s.
    """
    begin = clock()
    allocation = solve(problems[0])
    warm_up_s = clock() - begin
    if not allocation.status[0].usable:
        return Timing(math.inf, math.inf, math.inf, 0, State.STOPPED)
    timed_problems = problems[1:] if warm_up_s <= long_call_s else problems[1:2]
    seconds = []
    solver_s = []
    gaps = []
    for problem in timed_problems:
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
        len(timed_problems),
        State.SOLVED,
    )


def median_s(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of ``repeats`` calls, s, after a warm-up call if there are several."""
    if repeats > 1:
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def matrix_by_matrix(scheme: str, problem: teal.Problem) -> tuple[Tensor, float]:
    """Solve the matrices of a problem one at a time by a scheme.

    Args:
        scheme: specification of the scheme.
        problem: problem of B matrices.

    Returns:
        splits (B, D, K), and the median time of a matrix, s.
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
