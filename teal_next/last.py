"""Hedge ``last``: the optimum of the newest matrix, warm-started from the previous splits.

PDHG changes the previous splits no more than necessary, which hedges better than a vertex of the
program.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from teal.schemes.past import Past
from teal.solvers import pipeline
from teal.solvers.result import SolveState
from teal.spec import Spec


class Last:
    """Hedge ``last``: optimal splits for the newest matrix, warm-started from the previous splits.

    A hedge allocates for an interval whose traffic matrix is unknown.

    Args:
        gap: certified gap at which PDHG stops.
    """

    def __init__(self, gap: float = 3e-3) -> None:
        self._gap = gap
        self._state: SolveState | None = None

    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval.

        Args:
            past: network, and the matrices measured so far.
        """
        return self.allocate_for(past.last(1).demand, past)

    def allocate_for(self, demand: Tensor, past: Past) -> Tensor:
        """Return optimal split ratios (D, K) for one matrix, warm-started from the result of the
        last call.

        Args:
            demand: (1, D) Gbit/s.
            past: known matrices, which give the network and its paths.
        """
        problem = past.last(1).with_demand(demand)
        result = pipeline.solve(problem, gap=self._gap, warm_start=self._state)
        self._state = result.state
        return result.splits[0]


def make(spec: Spec, model: Path | None) -> Last:
    """Make the hedge of a specification such as ``last[:gap=0.003]``.

    Args:
        spec: the specification.
        model: ignored; the hedge has no model.
    """
    options = spec.parse_options(gap=3e-3)
    return Last(float(options["gap"]))
