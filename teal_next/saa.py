"""The hedge ``saa``: least mean (or tail mean) of the largest utilisation over the last matrices.

Sample average approximation: the matrices of a window are the scenarios of
:func:`teal.solvers.pdhg.scenarios.solver.solve_scenarios`; on large networks fewer of them, evenly
spread over the window.  Each interval starts from the splits and prices of the one before.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.schemes.past import Past
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.spec import Spec

# Iterations x scenarios x (trie nodes + paths), at most: a quarter second on two cores.  Each
# interval goes on from the one before, so that what is left of the gap is small.
_MAX_WORK = 300_000_000
_MIN_ITERATIONS = 40
# Of scenario programs of dropped flow, in torch: 1 to 4 ms an iteration.
_MAX_FLOW_ITERATIONS = 200
_FLOW_GAP = 2e-2


class SampleAverage:
    """The hedge ``saa`` (equations in the module).

    Args:
        window: number of matrices.
        tail: 0 for the mean, towards 1 for the worst matrices (see :func:`solve_scenarios`).
        decay: matrices after which a weight has fallen to 1/e; 0 for equal weights.
        gap: certified gap at which the solver stops.
        iterations: iterations of the solver, at most; fewer on large networks.
        deadline: seconds of the solver, at most.
    """

    def __init__(
        self,
        window: int = 12,
        *,
        tail: float = 0.0,
        decay: float = 0.0,
        gap: float = 3e-3,
        iterations: int = 1500,
        deadline: float = math.inf,
    ) -> None:
        self._window, self._tail, self._decay, self._gap = window, tail, decay, gap
        self._iterations, self._deadline = iterations, deadline
        self._start: tuple[Tensor, Tensor] | None = None

    def allocate(self, past: Past) -> Tensor:
        """Splits for the next interval, as in :meth:`Hedge.allocate`."""
        return self.of(past.scenarios(self._window, past.most(self._window)))

    def of(self, problem: Problem) -> Tensor:
        """Splits (D, K) for scenarios, from those of the call before; the newest scenario last."""
        work = problem.batch * problem.paths.scan_size
        iterations = min(self._iterations, max(_MIN_ITERATIONS, _MAX_WORK // work))
        gap = self._gap
        if (
            not problem.demand_set.carries_all
        ):  # the gap is of what is lost, a tenth of the traffic or less
            iterations, gap = min(iterations, _MAX_FLOW_ITERATIONS), max(gap, _FLOW_GAP)
        weights = (
            np.exp((np.arange(problem.batch) - (problem.batch - 1)) / self._decay)
            if self._decay
            else None
        )
        result = solve_scenarios(
            problem,
            weights=weights,
            tail=self._tail,
            gap=gap,
            max_iterations=iterations,
            deadline=self._deadline,
            warm_start=self._moved(problem.batch),
        )
        self._start = result.splits, result.prices
        return result.splits

    def _moved(self, scenarios: int) -> tuple[Tensor, Tensor] | None:
        """The last result as a start: the window has moved by one matrix, or grown by it."""
        if self._start is None:
            return None
        splits, prices = self._start
        prices = torch.cat([prices, prices[-1:]])[-scenarios:]
        if len(prices) < scenarios:  # matrices without demand have left the window
            prices = torch.cat([prices[:1].expand(scenarios - len(prices), -1), prices])
        return splits, prices


def make(spec: Spec, model: Path | None) -> SampleAverage:
    """``saa[:window=12,tail=0,decay=0,gap=0.003,iterations=1500,deadline=0]``."""
    options = spec.parse_options(
        window=12, tail=0.0, decay=0.0, gap=3e-3, iterations=1500, deadline=0.0
    )
    for name, expected, good in (
        ("window", "at least 1 matrix", int(options["window"]) >= 1),
        ("tail", "a number in [0, 1]", 0 <= float(options["tail"]) <= 1),
        ("decay", "a number >= 0", float(options["decay"]) >= 0),
        ("gap", "a number > 0", float(options["gap"]) > 0),
        ("iterations", "at least 1", int(options["iterations"]) >= 1),
        ("deadline", "seconds, or 0 for none", float(options["deadline"]) >= 0),
    ):
        if not good:
            raise InputError(spec.text, name, expected, options[name])
    return SampleAverage(
        int(options["window"]),
        tail=float(options["tail"]),
        decay=float(options["decay"]),
        gap=float(options["gap"]),
        iterations=int(options["iterations"]),
        deadline=float(options["deadline"]) or math.inf,
    )
