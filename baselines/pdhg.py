"""PDHG cold: the first-order engine from nothing, to a certified gap.  No model, no LP solver."""

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
    """PDHG as a scheme.

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
        begin = time.perf_counter()
        found = pdhg.solve(problem, gap=self.gap, deadline=self.deadline or math.inf, max_iterations=self.iterations)
        return Allocation.of_batch(found.splits, found.prices, time.perf_counter() - begin)


def make(spec: Spec, model: Path | None) -> Pdhg:
    """``pdhg[:gap=0.001,deadline=0,iterations=10000]``."""
    options: Any = spec.take(gap=1e-3, deadline=0.0, iterations=10_000)
    scheme = Pdhg(**options)
    for option in ("gap", "deadline", "iterations"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return scheme
