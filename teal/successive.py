"""PDHG over matrices of one network that come one after another: each starts where the one before ended."""

from __future__ import annotations

import math
import time

from teal.problem import Problem
from teal.schemes import Starter
from teal.solvers import pdhg


class Successive:
    """The engine and where it last ended.  Not for several threads at once."""

    def __init__(self) -> None:
        self._state: pdhg.PdhgState | None = None

    def solve(
        self,
        problem: Problem,
        *,
        gap: float,
        deadline: float = math.inf,
        max_iterations: int = 10_000,
        starter: Starter | None = None,
    ) -> pdhg.PdhgResult:
        """Solve B matrices at once, from where the last one of those before ended.

        Args:
            problem: of the same paths and objective as those before.
            gap, deadline, max_iterations: of :func:`teal.solvers.pdhg.solve`.
            starter: gives a start where nothing came before.
        """
        begin, start = time.perf_counter(), None
        if self._state is not None:
            start = self._state.splits.expand(problem.batch, -1, -1), self._state.prices.expand(problem.batch, -1)
        elif starter is not None:
            start = starter.start(problem)
        left = max(0.0, deadline + begin - time.perf_counter())
        found = pdhg.solve(problem, gap=gap, deadline=left, max_iterations=max_iterations, warm_start=start)
        self._state = found.state.rows(slice(problem.batch - 1, problem.batch))
        return found
