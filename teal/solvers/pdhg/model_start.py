"""Start of the CPU engine from a model, where the predicted saving exceeds the model's cost.

:class:`ModelStart` decides after the first gap check.  After 6 iterations of a cold start the gap g
predicts the number of iterations to a target t,

    n(g, t) = 6 + 4 g / max(t, 1%) max(1, 1% / t)^0.3,

within a factor of two for 51 of 54 programs to 1% and for 41 of 56 to 0.1%, and within a factor of
5 for the others (networks of 12 to 104 nodes, from light load to overload).

A warm start with gap g needs twice as many iterations, without the 6; it uses no model where g is
at most four times the target.

A model with adjustable work (:class:`teal.solvers.result.Starter`) sets it by n.  With r rounds it
takes as long as

    m = 3 + 220,000 / (1,400 + scan) + r (0.67 + 11 E / (1,400 + scan))

iterations for each matrix, with E links and ``scan`` trie nodes and path slots: each round is a
pass over the paths, which is most of an iteration, and a pass over the links; calls take 0.5 ms
before the first round.  The model is used where it saves more than m.
"""

from __future__ import annotations

import functools

from teal.problem import Problem
from teal.solvers import cost_model
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.search import FIRST_CHECK
from teal.solvers.result import Starter, rounds_for, start_for, usable_start

# Cost model m (module docstring), from 12 cases on each of seven networks of 40 to 125 nodes; the
# cost of calls is from GEANT.
_BASE_ITERATIONS = 3.0
_CALL_COST = 220_000.0
_PASS_COST = 0.67
_LINK_COST = 11.0
_SCAN_OFFSET = 1_400.0
# Multiple of the target gap up to which a warm start needs no model.
_NEAR_GAP_FACTOR = 4.0
# Share of the iterations that a model is assumed to save: it saves more in the median, and is
# seldom useless.
_SAVED_SHARE = 0.5
_REFERENCE_GAP = 0.01  # target gap of the most accurate prediction
# Factor on the first primal weight, which suits a cold start.  A model's prices are closer to the
# optimum than its splits; of 1, 2, 3 and 4 the best to 1% and to 0.1%.
_WEIGHT_FACTOR = 2.0
# Initial value of the engine's count of iterations, which limits the length of a restart cycle:
# the first cycles are then long enough to improve a start near the optimum.  Of 0, 6, 24, 40, 60
# and 100 among the best to 1% and to 0.1%.
_INITIAL_ITERATIONS = 60


class ModelStart:
    """Restart of an engine from a model after the first gap check.

    Args:
        problem: matrices that maximise a linear value.
        engine: the engine of these matrices, after its first iterations.
        gap: target gap of the search.
        starter: the model.
        is_warm: whether the engine was warm-started from an earlier allocation.

    Attributes:
        was_used: whether the engine restarted.
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
        self._problem = problem
        self._engine = engine
        self._target_gap = gap
        self._starter = starter
        self._is_warm = is_warm
        self.was_used = False

    def cost(self, gap: float) -> float:
        """Return the number of PDHG iterations that take as long as the model, for all matrices.

        B (3 + 220,000 / (1,400 + scan) + r (0.67 + 11 E / (1,400 + scan))) with r rounds of the
        model and ``scan`` trie nodes and path slots.

        Args:
            gap: gap of the first gap check.
        """
        num_rounds = rounds_for(self._starter, self._expected_iterations(gap))
        paths = self._problem.paths
        offset_scan_size = _SCAN_OFFSET + paths.scan_size
        # The iterations of several matrices share their reads of the paths; a model's rounds do
        # not.
        return self._problem.batch * (
            _BASE_ITERATIONS
            + _CALL_COST / offset_scan_size
            + num_rounds * (_PASS_COST + _LINK_COST * paths.num_links / offset_scan_size)
        )

    def saves_time(self, gap: float) -> bool:
        """Whether the model saves more iterations than it costs.

        Args:
            gap: gap of the first gap check.
        """
        # A warm start near the target needs few iterations.
        if self._is_warm and gap <= _NEAR_GAP_FACTOR * self._target_gap:
            return False
        return _SAVED_SHARE * self._expected_iterations(gap) > self.cost(gap)

    def start(self, gap: float) -> None:
        """Restart the engine from the model's splits and prices.

        Args:
            gap: gap of the first gap check.
        """
        start = functools.partial(
            start_for, self._starter, iterations=self._expected_iterations(gap)
        )
        self._engine.restart(
            usable_start(self._problem, start), _WEIGHT_FACTOR, _INITIAL_ITERATIONS
        )
        self.was_used = True

    def _expected_iterations(self, gap: float) -> float:
        """Predict the iterations without the model, from the ``gap`` of the first gap check."""
        return expected_iterations(gap, self._target_gap, is_warm=self._is_warm)


def expected_iterations(gap: float, target: float, *, is_warm: bool = False) -> float:
    """Predict the PDHG iterations from a gap g to a target t.

    After a cold start they are 6 + n, after a warm start 2 n, with
    n = 4 g / max(t, 1%) max(1, 1% / t)^0.3.

    Args:
        gap: gap after ``FIRST_CHECK`` iterations, or of a warm start.
        target: target gap.
        is_warm: whether ``gap`` is the gap of a warm start.
    """
    target_gap = max(target, 1e-9)
    iterations = (
        4 * gap / max(target_gap, _REFERENCE_GAP) * max(1.0, _REFERENCE_GAP / target_gap) ** 0.3
    )
    return 2 * iterations if is_warm else FIRST_CHECK + iterations


def may_start_from_model(problem: Problem, engine: str) -> bool:
    """Whether a model may start the program (:class:`ModelStart`): it maximises a linear value
    without side conditions, on the compiled CPU engine.
    """
    may_benefit = not problem.conditions and cost_model.may_benefit_from_model(problem)
    return may_benefit and engine in ("auto", "fused") and FusedEngine.accepts(problem)
