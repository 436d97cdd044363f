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
from teal.solvers import pdhg
from teal.solvers.sequences.priority import residual_tasks
from teal.solvers.sequences.task import run_tasks
from teal.spec import Spec


@dataclass(frozen=True)
class Pdhg:
    """PDHG after a cold start.

    Attributes:
        gap: certified gap at which it stops.
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
        """Solve all matrices together; the time is divided evenly among them."""
        return self.solve_from(problem, None)

    def solve_from(self, problem: Problem, start: pdhg.PdhgResult | None) -> Allocation:
        """Solve all matrices from the result of other ones; None for a cold start."""
        begin = time.perf_counter()
        if self.form == "residual":
            if problem.objective.name != ObjectiveName.PRIORITY:
                raise InputError(
                    "pdhg", "form=residual", "the objective priority", problem.objective.name
                )
            tasks = residual_tasks(problem, self.gap)
            residual = complete(run_tasks(tasks, pdhg.solving, max_iterations=self.iterations))
            return Allocation.of_batch(residual.splits, None, time.perf_counter() - begin)
        result = self.search(problem, start)
        return Allocation.of_batch(
            result.splits, result.prices, time.perf_counter() - begin, result.program_prices
        )

    def search(self, problem: Problem, start: pdhg.PdhgResult | None = None) -> pdhg.PdhgResult:
        """Return PDHG's result within these limits; ``start`` None for a cold start."""
        return pdhg.solve(
            problem,
            gap=self.gap,
            deadline=self.deadline or math.inf,
            max_iterations=self.iterations,
            warm_start=start,
        )


@dataclass
class WarmPdhg:
    """PDHG from the state after the previous interval, as a controller would keep it; a cold start
    in the first interval.

    Attributes:
        pdhg: limits of the search.
    """

    pdhg: Pdhg

    def __post_init__(self) -> None:
        self._previous: pdhg.PdhgResult | None = None

    def follow(self, before: Problem | None) -> None:
        """Solve the previous interval after a cold start, and store the result."""
        self._previous = None if before is None else self.pdhg.search(before)

    def solve(self, problem: Problem) -> Allocation:
        """Solve all matrices from the state after the previous interval."""
        return self.pdhg.solve_from(problem, self._previous)


def make(spec: Spec, model: Path | None) -> Pdhg | WarmPdhg:
    """``pdhg[:gap=0.001,deadline=0,iterations=10000,warm=false,form=joint|residual]``."""
    options: Any = spec.parse_options(
        gap=1e-3, deadline=0.0, iterations=10_000, warm=False, form="joint"
    )
    warm = options.pop("warm")
    scheme = Pdhg(**options)
    if scheme.form not in ("joint", "residual"):
        raise InputError(spec.text, "form", "joint or residual", repr(scheme.form))
    for option in ("gap", "deadline", "iterations"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return WarmPdhg(scheme) if warm else scheme
