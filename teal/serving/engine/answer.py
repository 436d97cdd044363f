"""The answer to the matrices of a request."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.runtime.arrays import FloatArray
from teal.serving.engine.solvers import MODEL_PDHG

FIGURES = ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation")


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """The results of the matrices of a request.

    Attributes:
        value, bound, gap, satisfied_demand, max_link_utilisation: (B,), certified.
        utilisation: (B, E).
        splits: (B, D, K) float32; weights: (B, D, K) whole numbers instead, if they were asked for.
        status: "gap" where it was reached; else what ended the search with the best so far:
            "deadline", "iterations" "rounding" or "model"; or "next", see
            :mod:`teal.serving.engine.parts`.
        lines: for each matrix the certified figures of its classes or levels, by ``classes`` or
            ``levels`` (see :class:`responses.ClassAnswer`, :class:`responses.LevelAnswer`).
        of_conditions: (B,) figures of side conditions, by name (see
            :meth:`teal.problem.condition.Condition.figures`).
        words: words of the options that asked for conditions.
        prices: (B, E) that prove the bounds; (0, 0) of an answer from elsewhere than an engine.
        queue_ms, solve_ms: time waited and computed; batch: matrices that were solved together.
        solver: model, model-pdhg, pdhg or hedge (:mod:`teal.serving.engine.solvers`).
    """

    value: FloatArray
    bound: FloatArray
    gap: FloatArray
    satisfied_demand: FloatArray
    max_link_utilisation: FloatArray
    utilisation: FloatArray
    splits: npt.NDArray[np.float32]
    weights: npt.NDArray[np.uint8] | None
    status: tuple[str, ...]
    queue_ms: float
    solve_ms: float
    batch: int
    solver: str
    lines: dict[str, tuple[list[dict[str, Any]], ...]] = dataclasses.field(default_factory=dict)
    of_conditions: dict[str, FloatArray] = dataclasses.field(default_factory=dict)
    words: dict[str, str] = dataclasses.field(default_factory=dict)
    prices: FloatArray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def cost(self) -> dict[str, Any]:
        """Time waited and computed, by what, and the matrices solved together, by their names in
        responses.
        """
        return {
            "queue_ms": self.queue_ms,
            "solve_ms": self.solve_ms,
            "solver": self.solver,
            "batch": self.batch,
        }

    @property
    def admitted_share(self) -> npt.NDArray[np.float32]:
        """(B, D) share of each demand that may be sent; the weights say how that is divided."""
        return np.minimum(1, self.splits.sum(-1, dtype=np.float64)).astype(np.float32)

    @property
    def shares(self) -> tuple[str, npt.NDArray[Any]]:
        """Weights if they were asked for, else splits, with their name in responses."""
        return ("splits", self.splits) if self.weights is None else ("weights", self.weights)

    def further(self, row: int) -> dict[str, Any]:
        """Figures of a matrix that only some programs have."""
        figures: dict[str, Any] = {
            name: plain(of_rows[row]) for name, of_rows in self.of_conditions.items()
        }
        return figures | {parts: of_rows[row] for parts, of_rows in self.lines.items()}

    def summary(self) -> dict[str, Any]:
        """The cost and the result: widest gap, mean satisfied demand; of the last matrix
        utilisation and lines.
        """
        further: dict[str, Any] = {
            name: plain(of_rows[-1]) for name, of_rows in self.of_conditions.items()
        }
        further |= {parts: of_rows[-1] for parts, of_rows in self.lines.items()} | self.words
        others = [status for status in self.status if status != "gap"]
        return {
            **further,
            **self.cost,
            "matrices": len(self.value),
            "gap": plain(self.gap.max()),
            "satisfied_demand": plain(self.satisfied_demand.mean()),
            "max_link_utilisation": plain(self.max_link_utilisation[-1]),
            "status": others[0] if others else "gap",
        }


def joined(parts: dict[int, Answer]) -> Answer:
    """The answer of a request, of those of its chunks."""
    answers = [parts[first] for first in sorted(parts)]
    if len(answers) == 1:
        return answers[0]
    arrays = (*FIGURES, "utilisation", "splits", "prices")
    weights = [answer.weights for answer in answers if answer.weights is not None]
    return Answer(
        **{name: np.concatenate([getattr(answer, name) for answer in answers]) for name in arrays},
        weights=np.concatenate(weights) if weights else None,
        status=tuple(status for answer in answers for status in answer.status),
        queue_ms=answers[0].queue_ms,
        solve_ms=sum(answer.solve_ms for answer in answers),
        batch=max(answer.batch for answer in answers),
        solver=MODEL_PDHG
        if any(answer.solver == MODEL_PDHG for answer in answers)
        else answers[0].solver,
        lines={
            parts: tuple(row for answer in answers for row in answer.lines[parts])
            for parts in answers[0].lines
        },
        of_conditions={
            name: np.concatenate([answer.of_conditions[name] for answer in answers])
            for name in answers[0].of_conditions
        },
        words=answers[0].words,
    )


def plain(x: Any) -> float | None:
    """A number for JSON, which has none that is infinite or NaN."""
    number = float(x)
    return number if math.isfinite(number) else None
