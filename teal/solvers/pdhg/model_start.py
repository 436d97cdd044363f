"""Starts the CPU engine from a model where iterations alone would take longer than the model and
what is left.

A program that is solved in a few iterations is not worth a model, and whether it is one shows in
its first gap check: after 6 iterations from nothing its gap g foretells the number of iterations to
a target t,

    n(g, t) = 6 + 4 g / max(t, 1%) max(1, 1% / t)^0.3,

which is within a factor of two of 51 of 54 programs to 1% and of 41 of 56 to 0.1%, and else up to 5
times too many or too few: networks of 12 to 104 nodes at loads from light to hopeless.

From an earlier allocation with gap g there are twice as many, without the 6, and no model is asked
where g is at most four times the target.

A model that can be given more or less work (:class:`teal.solvers.result.Starter`) gets it by n.
With r rounds it takes as long as

    m = 3 + 220,000 / (1,400 + scan) + r (0.67 + 11 E / (1,400 + scan))

iterations for each matrix, with E links and as many trie nodes and path slots as ``scan``: in each
round a pass over the paths, which is most of an iteration, and a pass over the links, and before
them 0.5 ms of calls.  It is asked where it saves more than that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.bounds import usable_prices
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.search import FIRST_CHECK
from teal.solvers.result import PdhgState, Starter, rounds_for, start_for

# Constants of m above, from 12 cases on each of seven networks of 40 to 125 nodes; those of calls
# from GEANT.
_START, _CALLS, _PASS, _LINK, _CHECKS = 3.0, 220_000.0, 0.67, 11.0, 1_400.0
_NEAR = 4.0  # x the target: a warm start with such a gap goes on by itself
# Share of the iterations that a model is taken to save: it saves more in the median, and is seldom
# asked in vain.
_SAVED = 0.5
_FORETOLD_GAP = 0.01  # target to which iterations are foretold best
# Factor on the first primal weight, which is chosen for a start from nothing.  A model's prices are
# closer to the optimum than its splits are; of 1, 2, 3 and 4 the best to 1% and to 0.1%.
_WEIGHT_FACTOR = 2.0
# Iterations that count as done, so that the first cycles are long enough to gain on a start that is
# near the optimum: of 0, 6, 24, 40, 60 and 100 among the best to 1% and to 0.1%.
_ITERATIONS_DONE = 60


class ModelStart:
    """The start of an engine from a model.

    Args:
        problem: matrices under a program that :func:`foretells_work` accepts.
        engine: their engine, which has started from nothing.
        gap: target of the search.
        starter: the model.
        is_warm: whether the engine has started from an earlier allocation, and not from nothing.
    """

    def __init__(
        self,
        problem: Problem,
        engine: FusedEngine,
        gap: float,
        starter: Starter,
        *,
        is_warm: bool = False,
    ) -> None:
        self._problem, self._engine, self._gap, self._starter = problem, engine, gap, starter
        self._is_warm = is_warm

    def cost(self, gap: float) -> float:
        """Iterations that take as long as the model, m of the module, where ``gap`` is that of the
        first gap check.
        """
        rounds, paths = rounds_for(self._starter, self._expected(gap)), self._problem.paths
        size = _CHECKS + paths.scan_size
        # The iterations of several matrices share their reads of the paths, and a model's rounds do
        # not.
        return self._problem.batch * (
            _START + _CALLS / size + rounds * (_PASS + _LINK * paths.num_links / size)
        )

    def saves_time(self, gap: float) -> bool:
        """Whether the model saves more iterations than it takes, where ``gap`` is that of the first
        gap check.
        """
        if self._is_warm and gap <= _NEAR * self._gap:
            return False
        return _SAVED * self._expected(gap) > self.cost(gap)

    def start(self, gap: float) -> None:
        """Put the engine at the model's splits and prices, where ``gap`` is that of the first gap
        check.
        """
        start = functools.partial(start_for, self._starter, iterations=self._expected(gap))
        self._engine.restart(usable_start(self._problem, start), _WEIGHT_FACTOR, _ITERATIONS_DONE)

    def _expected(self, gap: float) -> float:
        """Number of iterations without the model."""
        return expected_iterations(gap, self._gap, is_warm=self._is_warm)


def expected_iterations(gap: float, target: float, *, is_warm: bool = False) -> float:
    """N (module): iterations to ``target`` from ``gap``, that after ``FIRST_CHECK`` of them or of a
    warm start.
    """
    finest = max(target, 1e-9)
    still = 4 * gap / max(finest, _FORETOLD_GAP) * max(1.0, _FORETOLD_GAP / finest) ** 0.3
    return 2 * still if is_warm else FIRST_CHECK + still


def usable_start(problem: Problem, start: Callable[[Problem], tuple[Tensor, Tensor]]) -> PdhgState:
    """Splits >= 0 with sums of at most 1, and finite prices, of a starter's method, which may give
    anything.
    """
    splits, prices = (of_model.to(torch.float64) for of_model in start(problem))
    splits = splits.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    return PdhgState(
        splits / splits.sum(-1, keepdim=True).clamp(min=1), usable_prices(problem, prices, most=1.0)
    )


def gains_from_start(problem: Problem) -> bool:
    """Whether a model's start can save time: in programs that maximise a linear value.

    Balanced programs and concave utilities take fewer iterations from a model, but the model takes
    longer than these: on networks of 50 to 158 nodes the whole took 0.9 to 20 times as long, to 1%
    and 0.1%.
    """
    return not problem.demand_set.carries_all and problem.utility is None


def foretells_work(problem: Problem, engine: str) -> bool:
    """Whether :class:`ModelStart` decides about the start of a program: of one that maximises a
    linear value.
    """
    is_linear_maximum = not problem.conditions and gains_from_start(problem)
    return is_linear_maximum and engine in ("auto", "fused") and FusedEngine.accepts(problem)
