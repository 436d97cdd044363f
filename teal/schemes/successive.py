"""PDHG over successive matrices of one network, each warm-started from the previous one."""

from __future__ import annotations

import dataclasses
import math

from torch.nn.functional import pad

from teal.problem import Problem
from teal.problem.price_library import PriceLibrary
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.solvers import pipeline
from teal.solvers.certified import tightened
from teal.solvers.result import SolveResult, SolveState, Starter

# Path slots up to which the prices of earlier matrices are kept: their bounds take milliseconds.
_MAX_PRICED_SLOTS = 1_000_000


def _keeps_prices(problem: Problem) -> bool:
    """Return whether prices of earlier matrices bound the optimum of a problem, in little time."""
    return problem.ops.mask.numel() <= _MAX_PRICED_SLOTS and PriceLibrary.accepts(problem)


class SuccessivePdhg:
    """PDHG that starts from the splits and prices of the last matrix it solved.

    If a limit leaves a matrix above the target gap, prices of earlier matrices may bound the optima
    more tightly (:class:`teal.PriceLibrary`).  An object serves one thread at a time.
    """

    def __init__(self) -> None:
        self._state: SolveState | None = None
        self._library = PriceLibrary()

    def resized(self, num_paths: int) -> SuccessivePdhg:
        """Return the same solver for a path set with another number of paths per demand.

        Added paths follow the present paths of each demand and get zero flow; removed paths are the
        last ones.

        Args:
            num_paths: number of paths per demand, K, of the new path set.
        """
        state = self._state
        if state is None or state.splits.shape[-1] == num_paths:
            return self
        resized = SuccessivePdhg()
        resized._library = self._library
        num_added = num_paths - state.splits.shape[-1]
        resized._state = dataclasses.replace(state, splits=pad(state.splits, (0, num_added)))
        return resized

    def has_start(self, problem: Problem) -> bool:
        """Return whether there is a stored state with the demands and paths of a problem.

        If the classes of a network have changed since the last call, it has other demands.
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
        starter: Starter | None = None,
        start: SolveState | None = None,
    ) -> SolveResult:
        """Solve B matrices together, from the state after the last matrix of the previous call.

        Args:
            problem: B matrices, with the paths and the objective of earlier calls.
            gap: target gap.
            deadline: time limit in seconds from now.
            max_iterations: iteration limit.
            starter: model that predicts a start, if the objective is a single program; None for no
                model.
            start: warm start of each matrix, instead of the stored state; None to use that state.
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
        starter: Starter | None = None,
        start: SolveState | None = None,
    ) -> Steps[SolveResult]:
        """Solve B matrices from the stored state, as a computation that pauses between iterations.

        Args:
            problem: B matrices, with the paths and the objective of earlier calls.
            gap: target gap.
            deadline: deadline of the last iteration.
            max_iterations: iteration limit.
            starter: model that predicts a start, if the objective is a single program; None for no
                model.
            start: warm start of each matrix, instead of the stored state; None to use that state.
        """
        # Warm start: the given one, else the stored state for each matrix.
        start_state = start
        if start is None and self._state is not None and self.has_start(problem):
            start_state = self._state.repeated(problem.batch)
        result = yield from pipeline.solving(
            problem,
            gap=gap,
            deadline=deadline,
            max_iterations=max_iterations,
            warm_start=start_state,
            starter=starter if pipeline.takes_starter(problem) else None,
        )
        # Store the state of the last matrix, and the prices.
        self._state = result.state.rows(slice(problem.batch - 1, problem.batch))
        tightened_result = self.tightened(problem, result, gap)
        if _keeps_prices(problem):
            self._library.add(problem, result.prices, result.bound)
        return tightened_result

    def tightened(self, problem: Problem, result: SolveResult, gap: float) -> SolveResult:
        """Return a result with the bounds of earlier prices, where these are tighter, if any matrix
        is above the target gap.

        Args:
            problem: B matrices, with the objective of earlier calls.
            result: their result.
            gap: target gap.
        """
        if bool((result.gap <= gap).all()) or not _keeps_prices(problem):
            return result
        prices = self._library.prices(problem)
        return result if prices is None else tightened(problem, result, prices, gap)
