"""The scheme ``pdhg``: PDHG to a certified gap, after a cold start or from the previous interval.

It needs no model and no LP solver.  Entry point: :func:`make`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Allocation, Problem
from teal.runtime.interruptible import complete
from teal.solvers import pipeline
from teal.solvers.result import SolveResult
from teal.solvers.sequences.priority import residual_tasks
from teal.solvers.sequences.task import run_tasks
from teal.spec import Spec


@dataclass(frozen=True)
class Pdhg:
    """Scheme that runs PDHG after a cold start to a certified gap.

    Attributes:
        gap: certified gap at which the search stops.
        deadline: seconds per batch; 0 for no limit.
        iterations: iteration limit.
        form: under priority, joint (classes may be rerouted for lower ones) or residual (each class
            on the residual capacity of the higher ones).
    """

    gap: float = 1e-3
    deadline: float = 0.0
    iterations: int = 10_000
    form: str = "joint"

    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices, solved together after a cold start.

        Each matrix gets an equal part of the time.
        """
        return self.solve_from(problem, None)

    def solve_from(self, problem: Problem, start: SolveResult | None) -> Allocation:
        """Return the allocation of all matrices, warm-started from the result of other matrices.

        Args:
            problem: B matrices.
            start: result whose splits and prices are the start; None for a cold start.  The
                residual form does not use it.

        Raises:
            InputError: the residual form under another objective than priority.
        """
        begin = time.perf_counter()
        if self.form == "residual":
            if problem.objective.name != ObjectiveName.PRIORITY:
                raise InputError(
                    "pdhg", "form=residual", "the objective priority", problem.objective.name
                )
            # One program per class, on the capacity that the higher classes leave.  No prices:
            # those of one class certify nothing about the whole.
            tasks = residual_tasks(problem, self.gap)
            residual = complete(run_tasks(tasks, pipeline.solving, max_iterations=self.iterations))
            return Allocation.of_batch(residual.splits, None, time.perf_counter() - begin)
        # All classes together.  Program prices: one set for each program of a sequence.
        result = self.search(problem, start)
        return Allocation.of_batch(
            result.splits, result.prices, time.perf_counter() - begin, result.program_prices
        )

    def search(self, problem: Problem, start: SolveResult | None = None) -> SolveResult:
        """Return the result of PDHG within the limits of this scheme.

        Args:
            problem: B matrices.
            start: result whose splits and prices are the start; None for a cold start.
        """
        return pipeline.solve(
            problem,
            gap=self.gap,
            deadline=self.deadline or math.inf,
            max_iterations=self.iterations,
            warm_start=start,
        )


@dataclass
class WarmPdhg:
    """Scheme that runs PDHG from its state after the previous interval, as a controller would.

    The first interval has a cold start.

    Attributes:
        pdhg: limits of the search.
    """

    pdhg: Pdhg

    def __post_init__(self) -> None:
        self._previous: SolveResult | None = None

    def follow(self, before: Problem | None) -> None:
        """Solve the previous interval after a cold start, and store the result as the next start.

        Args:
            before: problem of the previous interval; None to start cold.
        """
        self._previous = None if before is None else self.pdhg.search(before)

    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices, from the state after the previous interval."""
        return self.pdhg.solve_from(problem, self._previous)


def make(spec: Spec, model: Path | None) -> Pdhg | WarmPdhg:
    """Create the scheme of a specification ``pdhg[:OPTION=VALUE,...]``.

    The options are ``gap=0.001``, ``deadline=0``, ``iterations=10000``, ``is_warm_started=false``
    and ``form=joint|residual``.

    Args:
        spec: name and options of the scheme.
        model: not used; the scheme has no model.

    Raises:
        InputError: an unknown option, or an invalid value.
    """
    options: Any = spec.parse_options(
        gap=1e-3, deadline=0.0, iterations=10_000, warm=False, form="joint"
    )
    is_warm_started = options.pop("warm")
    scheme = Pdhg(**options)
    if scheme.form not in ("joint", "residual"):
        raise InputError(spec.text, "form", "joint or residual", repr(scheme.form))
    for option in ("gap", "deadline", "iterations"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return WarmPdhg(scheme) if is_warm_started else scheme
