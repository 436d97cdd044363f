"""PDHG, the first-order engine, to a certified gap: cold, from nothing, or warm, from where the interval before ended.

No model, no LP solver.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teal.allocation import Allocation
from teal.errors import InputError
from teal.problem import Problem
from teal.solvers import pdhg
from teal.spec import Spec


@dataclass(frozen=True)
class Pdhg:
    """PDHG cold.

    Attributes:
        gap: certified gap to stop at.
        deadline: seconds a batch; 0 for none.
        iterations: most iterations.
    """

    gap: float = 1e-3
    deadline: float = 0.0
    iterations: int = 10_000

    def solve(self, problem: Problem) -> Allocation:
        """Solve all matrices together; times are the batch's, divided evenly."""
        return self.solve_from(problem, None)

    def solve_from(self, problem: Problem, start: pdhg.PdhgResult | None) -> Allocation:
        """The same from where another matrix ended."""
        begin = time.perf_counter()
        found = self.search(problem, start)
        return Allocation.of_batch(found.splits, found.prices, time.perf_counter() - begin)

    def search(self, problem: Problem, start: pdhg.PdhgResult | None = None) -> pdhg.PdhgResult:
        """What the engine finds, as far as it is let."""
        return pdhg.solve(
            problem,
            gap=self.gap,
            deadline=self.deadline or math.inf,
            max_iterations=self.iterations,
            warm_start=start,
        )


@dataclass
class WarmPdhg:
    """PDHG from the state of the interval before, as a controller would keep it; cold where there is none.

    Attributes:
        pdhg: how far it goes, before too.
    """

    pdhg: Pdhg

    def __post_init__(self) -> None:
        self._before: pdhg.PdhgResult | None = None

    def follow(self, before: Problem | None) -> None:
        """Solve the interval before, cold."""
        self._before = None if before is None else self.pdhg.search(before)

    def solve(self, problem: Problem) -> Allocation:
        """Solve all matrices together, from the state of the interval before."""
        return self.pdhg.solve_from(problem, self._before)


def make(spec: Spec, model: Path | None) -> Pdhg | WarmPdhg:
    """``pdhg[:gap=0.001,deadline=0,iterations=10000,warm=false]``."""
    options: Any = spec.take(gap=1e-3, deadline=0.0, iterations=10_000, warm=False)
    warm = options.pop("warm")
    scheme = Pdhg(**options)
    for option in ("gap", "deadline", "iterations"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return WarmPdhg(scheme) if warm else scheme
