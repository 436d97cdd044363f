"""Hedge ``saa``: sample average approximation of the largest utilisation, mean or tail mean (CVaR).

The matrices of a window are the scenarios of
:func:`teal.solvers.pdhg.scenarios.solver.solve_scenarios`; on large networks fewer of them, evenly
spread over the window.  Each interval is warm-started from the splits and prices of the one before.
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

# Maximum of iterations x scenarios x (trie nodes + paths): a quarter second on two cores.  Each
# interval continues from the one before, so the remaining gap is small.
_MAX_WORK = 300_000_000
_MIN_ITERATIONS = 40
# Limits of scenario programs of dropped flow, in torch: 1 to 4 ms an iteration.
_MAX_FLOW_ITERATIONS = 200
_FLOW_GAP = 2e-2


class SampleAverage:
    """Hedge ``saa``: splits with the least mean or tail-mean (CVaR) loss over the last matrices.

    A hedge allocates for an interval whose traffic matrix is unknown.

    Args:
        window: number of matrices.
        tail: level of the CVaR in [0, 1]: 0 is the mean over all matrices; towards 1, only the
            matrices with the largest losses count.
        decay: number of matrices after which a weight has fallen to 1/e; 0 for equal weights.
        gap: certified gap at which the solver stops.
        iterations: maximum number of iterations; fewer on large networks.
        deadline: time limit of the solver, seconds.
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
        self._window = window
        self._tail = tail
        self._decay = decay
        self._gap = gap
        self._iterations = iterations
        self._deadline = deadline
        self._last_solution: tuple[Tensor, Tensor] | None = None

    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval.

        Args:
            past: network, and the matrices measured so far.
        """
        return self.allocate_for_scenarios(
            past.scenarios(self._window, past.window_length(self._window))
        )

    def allocate_for_scenarios(self, problem: Problem) -> Tensor:
        """Return split ratios (D, K) with the least loss over scenarios, warm-started from the last
        call.

        Args:
            problem: one matrix per scenario, the newest last.
        """
        # Limit the work: iterations x scenarios x (trie nodes + paths).
        work_per_iteration = problem.batch * problem.paths.scan_size
        iterations = min(self._iterations, max(_MIN_ITERATIONS, _MAX_WORK // work_per_iteration))
        gap = self._gap
        # The gap is relative to the lost traffic, a tenth of all traffic or less.
        if not problem.demand_set.carries_all:
            iterations = min(iterations, _MAX_FLOW_ITERATIONS)
            gap = max(gap, _FLOW_GAP)
        # Weights (scenarios,) that fall exponentially with age; None for equal ones.
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
            warm_start=self._warm_start(problem.batch),
        )
        self._last_solution = result.splits, result.prices
        return result.splits

    def _warm_start(self, num_scenarios: int) -> tuple[Tensor, Tensor] | None:
        """Return splits (D, K) and prices (S, E) of the last call as a warm start; None at the
        first call.

        The window has moved or grown by one matrix: the prices move by one scenario, and those of
        the newest scenario are repeated.

        Args:
            num_scenarios: S, number of scenarios of this call.
        """
        if self._last_solution is None:
            return None
        splits, prices = self._last_solution
        # Repeat the newest prices for the new scenario, and drop the oldest ones beyond S.
        prices = torch.cat([prices, prices[-1:]])[-num_scenarios:]
        # The window has grown by more than one: repeat the oldest prices, too.
        if len(prices) < num_scenarios:
            prices = torch.cat([prices[:1].expand(num_scenarios - len(prices), -1), prices])
        return splits, prices


def make(spec: Spec, model: Path | None) -> SampleAverage:
    """Make the hedge of a specification such as
    ``saa[:window=12,tail=0,decay=0,gap=0.003,iterations=1500,deadline=0]``.

    Args:
        spec: the specification.
        model: ignored; the hedge has no model.
    """
    options = spec.parse_options(
        window=12, tail=0.0, decay=0.0, gap=3e-3, iterations=1500, deadline=0.0
    )
    # Check the options.
    for name, expected, is_valid in (
        ("window", "at least 1 matrix", int(options["window"]) >= 1),
        ("tail", "a number in [0, 1]", 0 <= float(options["tail"]) <= 1),
        ("decay", "a number >= 0", float(options["decay"]) >= 0),
        ("gap", "a number > 0", float(options["gap"]) > 0),
        ("iterations", "at least 1", int(options["iterations"]) >= 1),
        ("deadline", "seconds, or 0 for none", float(options["deadline"]) >= 0),
    ):
        if not is_valid:
            raise InputError(spec.text, name, expected, options[name])
    return SampleAverage(
        int(options["window"]),
        tail=float(options["tail"]),
        decay=float(options["decay"]),
        gap=float(options["gap"]),
        iterations=int(options["iterations"]),
        deadline=float(options["deadline"]) or math.inf,
    )
