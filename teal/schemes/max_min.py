"""The scheme ``max-min``: max-min fair rates, by :mod:`teal.solvers.sequences.max_min`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Allocation, Problem
from teal.runtime.interruptible import complete
from teal.solvers import pipeline
from teal.solvers.sequences import max_min
from teal.solvers.sequences.fairness import require_may_shed
from teal.solvers.sequences.task import run_tasks
from teal.spec import Spec


@dataclass(frozen=True)
class MaxMin:
    """Scheme that allocates max-min fair rates.

    Attributes:
        by: ``rate`` for equal weights; ``demand`` for weights in proportion to the demands, which
            makes served fractions equal.
        form: ``levels`` for the iteration over link levels; ``filling`` for water-filling, which is
            slower and nearly exact.
        iterations: iterations over link levels; 0 for the default of the network.
        gap: target gap of the program that routes the rates of ``levels``; certified gap of
            ``filling``.
    """

    by: str = "rate"
    form: str = "levels"
    iterations: int = 0
    gap: float = 5e-3

    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices; the solve time is divided equally among them.

        Raises:
            InputError: an objective that must carry all demand, or ``by=demand`` under max_min.
        """
        require_may_shed("max-min", problem.objective)
        if self.by == "demand" and problem.objective.name == ObjectiveName.MAX_MIN:
            raise InputError.invalid(
                "max-min",
                "by=demand",
                "the objective max_min sets the weights",
                "drop by=demand, or use another objective",
            )
        begin = time.perf_counter()
        # Weights (B, D), at least a tiny positive number; None for equal ones.
        weight = problem.demand.clamp(min=1e-30) if self.by == "demand" else None
        # Iteration over link levels, or water-filling, which is slower and certified.
        if self.form == "levels":
            tasks = max_min.level_tasks(problem, self.gap, weight, self.iterations)
        else:
            tasks = max_min.tasks(problem, self.gap, weight=weight)
        # Solve the programs one after the other; each has its own dual prices.
        result = complete(run_tasks(tasks, pipeline.solving))
        return Allocation.of_batch(
            result.splits, None, time.perf_counter() - begin, result.program_prices
        )


def make(spec: Spec, model: Path | None) -> MaxMin:
    """Create the scheme of a specification ``max-min[:OPTION=VALUE,...]``.

    The options are ``by=rate|demand``, ``form=levels|filling``, ``iterations=0`` and ``gap=0.005``.

    Args:
        spec: name and options of the scheme.
        model: not used; the scheme has no model.

    Raises:
        InputError: an unknown option, or an invalid value.
    """
    options: Any = spec.parse_options(by="rate", form="levels", iterations=0, gap=5e-3)
    scheme = MaxMin(**options)
    if scheme.by not in ("rate", "demand"):
        raise InputError(spec.text, "by", "rate or demand", repr(scheme.by))
    if scheme.form not in ("levels", "filling"):
        raise InputError(spec.text, "form", "levels or filling", repr(scheme.form))
    if scheme.iterations < 0:
        raise InputError(spec.text, "iterations", "an integer >= 0", scheme.iterations)
    if not 0 < scheme.gap < 1:
        raise InputError(spec.text, "gap", "a number in (0, 1)", scheme.gap)
    return scheme
