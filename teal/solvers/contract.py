"""Contract of the solvers: an engine takes a program and returns a certified result.

:mod:`teal.solvers.pipeline` rewrites and presolves a problem, and calls the engines that
:mod:`teal.solvers.engine_choice` selects.  An engine returns a
:class:`~teal.solvers.result.SolveResult`: feasible splits, dual prices, the value and the dual
bound of each matrix, and why its search ended.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Protocol, runtime_checkable

from torch import Tensor

from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.result import ProgressCallback, SolveResult, SolveState, Starter


@dataclasses.dataclass(frozen=True)
class Limits:
    """Target and limits of a solve.

    Attributes:
        gap: target gap of every matrix, relative.
        deadline: end of the solve.
        max_iterations: iteration limit.
        report: progress callback, called with iterations and widest gap; None for no calls.
    """

    gap: float
    deadline: Deadline
    max_iterations: int
    report: ProgressCallback | None = None


class Origin(StrEnum):
    """Where a search began, in the trace of a solve."""

    COLD = "cold start"
    WARM = "warm start"
    MODEL = "start from the model"
    SAMPLE = "start from sampled demands"
    INTERIOR = "start from interior points"


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Where a search begins.

    Attributes:
        state: warm start, splits and prices of a similar problem; None for a cold start.
        model: model that predicts splits and prices; the engine uses it where that saves time.
    """

    state: SolveState | None = None
    model: Starter | None = None

    @property
    def origin(self) -> Origin:
        """Where a search begins unless it asks the model."""
        if self.state is None:
            return Origin.COLD
        return Origin.MODEL if self.state.is_predicted else Origin.WARM

    def rows(self, rows: Tensor) -> Start:
        """Return the start of the matrices at these indices (n,), in this order."""
        state = None if self.state is None else self.state.rows(rows)
        return dataclasses.replace(self, state=state)


@runtime_checkable
class Engine(Protocol):
    """Solver of one program: B matrices without side conditions, over paths or columns.

    An engine object belongs to one solve, and may keep what :meth:`predict_seconds` has computed
    for :meth:`solve`.
    """

    @property
    def name(self) -> str:
        """Name in options and in the trace of a solve."""
        ...

    def accepts(self, problem: Problem) -> bool:
        """Return whether the engine can solve a program."""
        ...

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return the predicted time to the target gap, s.

        Args:
            problem: B matrices of a program that :meth:`accepts` allows.
            start: start of the search.
            gap: target gap.
        """
        ...

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve every matrix to the target gap, or until a limit; pause between iterations.

        Args:
            problem: B matrices of a program that :meth:`accepts` allows.
            start: start of the search.
            limits: target and limits.

        Returns:
            Feasible splits and dual prices of each matrix, with value, bound and gap.
        """
        ...
