"""Hedge ``static``: splits with the least mean loss over the whole past, computed once."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from teal.errors import InputError
from teal.schemes.past import Past
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.spec import Spec


class Static:
    """Hedge ``static``: splits with the least mean loss over the past, computed at the first call
    only.

    A hedge allocates for an interval whose traffic matrix is unknown.

    Args:
        window: maximum number of past matrices, evenly spread.
    """

    def __init__(self, window: int = 48) -> None:
        self._window = window
        self._splits: Tensor | None = None

    def allocate(self, past: Past) -> Tensor:
        """Return the constant split ratios (D, K), which the first call computes.

        Args:
            past: network, and the matrices measured so far; only those of the first call count.
        """
        if self._splits is None:
            problem = past.scenarios(past.num_known, past.window_length(self._window))
            self._splits = solve_scenarios(problem, gap=3e-3, max_iterations=3000).splits
        return self._splits


def make(spec: Spec, model: Path | None) -> Static:
    """Make the hedge of a specification such as ``static[:window=48]``.

    Args:
        spec: the specification.
        model: ignored; the hedge has no model.
    """
    window = int(spec.parse_options(window=48)["window"])
    if window < 1:
        raise InputError(spec.text, "window", "at least 1 matrix", window)
    return Static(window)
