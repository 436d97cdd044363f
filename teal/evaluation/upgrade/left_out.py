"""Matrices that a plan is not made for: they are replayed on it, and those that do not fit are planned for too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from teal.evaluation.upgrade.igp import igp_loads
from teal.evaluation.upgrade.question import Question
from teal.evaluation.upgrade.result import Replayed
from teal.runtime.arrays import FloatArray, Int64Array
from teal.solvers.upgrade import Scenarios
from teal.solvers.upgrade.testing import FITS, Tester

_MOST_SCENARIOS = 4096  # scenarios (a matrix under a failure) that are replayed at a time
_MOST_NUMBERS = 25_000_000  # demands and loads in memory at a time, and again kept between rounds: 8 bytes each, 200 MB
_MOST_ADDED = 8  # matrices that a round adds to those planned for, so that the next search stays small
_GAP = 1e-4  # relative, certified, of the least largest utilisation in a replay


class LeftOut:
    """The matrices of a question that are not planned for at first.

    Attributes:
        rows: (n,) their numbers.
    """

    def __init__(self, question: Question) -> None:
        self.rows = np.setdiff1d(np.arange(question.num_matrices), question.rows)
        self._tests: dict[tuple[int, int], Tester] = {}

    def replay(
        self, question: Question, scenarios: Scenarios, plans: Sequence[tuple[float, FloatArray]],
        cut_off: dict[int, list[int]],
    ) -> tuple[Replayed, Int64Array]:  # fmt: skip
        """Replay the matrices under every failure; return the result and the numbers of the matrices to add.

        The matrices to add are those whose utilisation passes the limit by most.

        Args:
            question: with the matrices that are planned for.
            scenarios: of these; for the paths.
            plans: a factor of all demands, and the purchase (C,) for it, each.
            cut_off: for each failure the demands that it cuts off; those of the matrices replayed are added.
        """
        over, fits, done = np.zeros(len(self.rows)), np.ones(len(self.rows), dtype=bool), 0
        per_matrix, width = 1 + len(question.failures), scenarios.demand.shape[1] + len(scenarios.cable)
        count = max(1, min(_MOST_SCENARIOS, _MOST_NUMBERS // width) // per_matrix)
        while done < len(self.rows) and not question.deadline.is_over:
            part = slice(done, done + count)
            demand = question.config.growth * question.instance.traffic.read(self.rows[part])
            more, cut = question.scenarios(demand, question.failures)
            for failure, demands in cut.items():
                cut_off[failure] = sorted({*cut_off.get(failure, []), *demands})
            for number, (factor, bought) in enumerate(plans):
                now = more.with_paths(scenarios.problem.paths).scaled(factor)
                used = self._utilisation(question, now, bought, (done, number)).reshape(-1, per_matrix).max(1)
                over[part] = np.maximum(over[part], used)
                fits[part] &= used <= scenarios.limit * (1 + FITS)
            done = min(done + count, len(self.rows))
            if done < len(self.rows):
                question.notify(f"{done:,} of {len(self.rows):,} matrices that were left out are replayed")
        if len(plans) * len(self.rows) * per_matrix * width > _MOST_NUMBERS:
            self._tests.clear()
        is_left = ~np.isin(self.rows, question.rows)
        is_left[done:] = False
        missed = np.flatnonzero(is_left & ~fits)
        found = Replayed(
            matrices=question.num_matrices, planned=len(question.rows), replayed=int(is_left.sum()),
            added=len(question.rows) - question.num_matrices + len(self.rows), overloaded=len(missed),
            utilisation=float(over[is_left].max(initial=0.0)),
        )  # fmt: skip
        return found, self.rows[missed[np.argsort(-over[missed])[:_MOST_ADDED]]]

    def _utilisation(
        self, question: Question, scenarios: Scenarios, bought: FloatArray, key: tuple[int, int]
    ) -> FloatArray:
        """(S,) largest of a link in each scenario; ``key`` names the test whose splits are tried first."""
        if question.config.routing == "ecmp":
            return scenarios.utilisation(igp_loads(question, scenarios, bought), bought)
        test = self._tests.setdefault(key, Tester(scenarios))
        test.scenarios = scenarios
        rows = np.arange(scenarios.num_scenarios)
        return test.test(bought, rows, question.deadline, finest=_GAP, until_cut=False).utilisation
