"""PDHG over matrices of one network that follow each other: each starts from the state after the
one before.
"""

from __future__ import annotations

import dataclasses
import math

from torch.nn.functional import pad

from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.solvers import pdhg


class SuccessivePdhg:
    """PDHG and the state after its last matrix.  Use it from one thread at a time."""

    def __init__(self) -> None:
        self._state: pdhg.PdhgState | None = None

    def resized(self, num_paths: int) -> SuccessivePdhg:
        """The state for a path set that has further paths behind those of each demand, or lacks
        the last of them; K = ``num_paths``.
        """
        state = self._state
        if state is None or state.splits.shape[-1] == num_paths:
            return self
        resized = SuccessivePdhg()
        num_added = num_paths - state.splits.shape[-1]
        resized._state = dataclasses.replace(state, splits=pad(state.splits, (0, num_added)))
        return resized

    def has_start(self, problem: Problem) -> bool:
        """Whether there is a state that a problem can start from: a network may have other classes
        than in the call before, and then other rows.
        """
        state = self._state
        return state is not None and state.splits.shape[1:] == problem.paths.mask.shape

    def solve(
        self,
        problem: Problem,
        *,
        gap: float,
        deadline: float = math.inf,
        max_iterations: int = 10_000,
        starter: pdhg.Starter | None = None,
        start: pdhg.PdhgState | None = None,
    ) -> pdhg.PdhgResult:
        """Solve B matrices together, from the state after the last matrix of the call before.

        Args:
            problem: with the paths and the objective of the calls before.
            gap: target (see :func:`teal.solvers.pdhg.solve`).
            deadline: seconds from now.
            max_iterations: number of iterations, at most.
            starter: see :func:`teal.solvers.pdhg.solve`.
            start: start of each matrix, in place of these.
        """
        steps = self.solving(
            problem,
            gap=gap,
            deadline=Deadline.after(deadline),
            max_iterations=max_iterations,
            starter=starter,
            start=start,
        )
        return complete(steps)

    def solving(
        self,
        problem: Problem,
        *,
        gap: float,
        deadline: Deadline,
        max_iterations: int = 10_000,
        starter: pdhg.Starter | None = None,
        start: pdhg.PdhgState | None = None,
    ) -> Steps[pdhg.PdhgResult]:
        """:meth:`solve` as a computation that pauses at the end of iterations; arguments as
        there.
        """
        warm = start
        if start is None and self._state is not None and self.has_start(problem):
            warm = self._state.repeated(problem.batch)
        result = yield from pdhg.solving(
            problem,
            gap=gap,
            deadline=deadline,
            max_iterations=max_iterations,
            warm_start=warm,
            starter=starter if pdhg.takes_starter(problem) else None,
        )
        self._state = result.state.rows(slice(problem.batch - 1, problem.batch))
        return result
