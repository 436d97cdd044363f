"""Validated answer to the matrices of a request: :class:`Answer`, before it is encoded.

Axes: B matrices, D demands, K candidate paths of a demand, E links.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.runtime.arrays import FloatArray
from teal_serve.engine.solvers import MODEL_PDHG

# Certified figures of a matrix that every answer has.
METRICS = ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation")


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """Allocation and certified figures of the B matrices of a request.

    Attributes:
        value: (B,) value of the objective.
        bound: (B,) certified bound on the optimum.
        gap: (B,) certified relative gap between value and bound.
        satisfied_demand: (B,) served fraction of the demand.
        max_link_utilisation: (B,) largest link utilisation.
        utilisation: (B, E) link utilisation.
        splits: (B, D, K) fraction of each demand on each of its paths.
        weights: (B, D, K) integer weights of the paths; None unless split tables were requested.
        status: (B,) "gap" if the requested gap was reached; else the reason why the search ended
            with the incumbent: "deadline", "iterations", "rounding" or "model"; "infeasible" or
            another fault of an unusable allocation; "next" for the next interval, with figures on
            the newest measured matrix.
        queue_ms: time in the queue, ms.
        solve_ms: time in the solver, ms.
        batch: number of matrices solved together.
        solver: model, model-pdhg, pdhg or hedge.
        lines: ``classes`` or ``levels`` -> for each matrix the list of the certified figures of its
            classes or levels, as fields of the response; empty for a single program.
        condition_figures: (B,) figures of the side conditions, by their names in responses.
        condition_words: option -> word, for side conditions that were requested by a word.
        prices: (B, E) link prices that prove the bounds; (0, 0) if not from a solver.
        trace: turns of the engines that solved the batch: name, iterations, start, and selected
            columns; empty if not from a solver.
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
    condition_figures: dict[str, FloatArray] = dataclasses.field(default_factory=dict)
    condition_words: dict[str, str] = dataclasses.field(default_factory=dict)
    prices: FloatArray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    trace: tuple[str, ...] = ()

    @property
    def cost(self) -> dict[str, Any]:
        """Queue and solve time, solver, batch size and trace, by their names in responses."""
        return {
            "queue_ms": self.queue_ms,
            "solve_ms": self.solve_ms,
            "solver": self.solver,
            "batch": self.batch,
            "trace": list(self.trace),
        }

    @property
    def admitted_share(self) -> npt.NDArray[np.float32]:
        """(B, D) served fraction of each demand: min(1, sum of its splits)."""
        return np.minimum(1, self.splits.sum(-1, dtype=np.float64)).astype(np.float32)

    @property
    def splits_or_weights(self) -> tuple[str, npt.NDArray[Any]]:
        """Name in responses, and array (B, D, K), of the weights if requested, else the splits."""
        return ("splits", self.splits) if self.weights is None else ("weights", self.weights)

    def further_figures(self, row: int) -> dict[str, Any]:
        """Return the figures of one matrix that only some programs have, as JSON values.

        These are the figures of side conditions, and the lists of classes or levels.

        Args:
            row: index of the matrix.
        """
        figures: dict[str, Any] = {
            name: plain(values[row]) for name, values in self.condition_figures.items()
        }
        return figures | {parts: values[row] for parts, values in self.lines.items()}

    def summary(self) -> dict[str, Any]:
        """Return a summary of the request for log, metrics and cache, as JSON values.

        It has the largest gap, the mean satisfied demand, times and solver, and of the last matrix
        the largest utilisation and the figures of side conditions, classes and levels. The status
        is that of the first matrix whose status is not "gap", or "gap" if there is none.
        """
        # Figures of side conditions, classes and levels, and words that requested conditions.
        extra_figures: dict[str, Any] = {
            name: plain(values[-1]) for name, values in self.condition_figures.items()
        }
        extra_figures |= {
            parts: values[-1] for parts, values in self.lines.items()
        } | self.condition_words
        unmet_statuses = [status for status in self.status if status != "gap"]
        return {
            **extra_figures,
            **self.cost,
            "matrices": len(self.value),
            "gap": plain(self.gap.max()),
            "satisfied_demand": plain(self.satisfied_demand.mean()),
            "max_link_utilisation": plain(self.max_link_utilisation[-1]),
            "status": unmet_statuses[0] if unmet_statuses else "gap",
        }


def merge_answers(answers_by_row: dict[int, Answer]) -> Answer:
    """Concatenate the answers of a request's chunks.

    Args:
        answers_by_row: answer of each chunk, by the index of its first matrix.
    """
    answers = [answers_by_row[first] for first in sorted(answers_by_row)]
    if len(answers) == 1:
        return answers[0]
    # Concatenate all arrays by matrix. Solve times are added up, the batch is the largest one, the
    # queue time is that of the first chunk, and the solver is model-pdhg if any chunk used it.
    arrays = (*METRICS, "utilisation", "splits", "prices")
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
            part: tuple(row for answer in answers for row in answer.lines[part])
            for part in answers[0].lines
        },
        condition_figures={
            name: np.concatenate([answer.condition_figures[name] for answer in answers])
            for name in answers[0].condition_figures
        },
        condition_words=answers[0].condition_words,
        trace=tuple(dict.fromkeys(turn for answer in answers for turn in answer.trace)),
    )


def plain(x: Any) -> float | None:
    """Convert a number to a JSON value; None if it is infinite or NaN."""
    value = float(x)
    return value if math.isfinite(value) else None
