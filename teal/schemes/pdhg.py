"""The scheme ``pdhg``: PDHG to a certified gap, cold (from nothing) or warm (from the interval
before).

It needs no model and no LP solver.
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
    """PDHG from nothing.

    Attributes:
        gap: certified gap at which it stops.
        deadline: seconds a batch; 0 for none.
        iterations: number of iterations, at most.
        form: under priority, joint (classes may be rerouted for lower ones) or residual (each class
            on what is left).
    """

    gap: float = 1e-3
    deadline: float = 0.0
    iterations: int = 10_000
    form: str = "joint"

    def solve(self, problem: Problem) -> Allocation:
        """Solve all matrices together; the time is divided evenly among them."""
        return self.solve_from(problem, None)

    def solve_from(self, problem: Problem, start: pdhg.PdhgResult | None) -> Allocation:
        """Solve from the result of another matrix."""
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
        """The result of the search within these limits."""
        return pdhg.solve(
            problem,
            gap=self.gap,
            deadline=self.deadline or math.inf,
            max_iterations=self.iterations,
            warm_start=start,
        )


@dataclass
class WarmPdhg:
    """PDHG from the state after the interval before, as a controller would keep it; from nothing
    where there is none.

    Attributes:
        pdhg: the limits, for the interval before too.
    """

    pdhg: Pdhg

    def __post_init__(self) -> None:
        self._before: pdhg.PdhgResult | None = None

    def follow(self, before: Problem | None) -> None:
        """Solve the interval before, from nothing."""
        self._before = None if before is None else self.pdhg.search(before)

    def solve(self, problem: Problem) -> Allocation:
        """Solve all matrices together, from the state after the interval before."""
        return self.pdhg.solve_from(problem, self._before)


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
