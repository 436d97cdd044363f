"""The scheme ``interior``: interior points to an exact optimum, from a PriceGNN where it saves
time.

A start from a model skips the first iterations; the last ones converge fast.  No LP solver is
needed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.schemes.models import Model, named_model
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT
from teal.solvers import cost_model, pipeline
from teal.solvers.interior import engine
from teal.spec import Spec


@dataclass(frozen=True)
class Interior:
    """Scheme that solves programs by interior points, from a PriceGNN where it saves time.

    Programs that interior points do not support, such as those with side conditions and sequences,
    are solved by the engine that :func:`teal.solve` selects.

    Attributes:
        gap: certified gap at which a solve stops.
        model: model that predicts the start; None for no model.
        always: whether to use the model on networks of any size.
    """

    gap: float = 1e-6
    model: Model | None = None
    always: bool = False

    @torch.no_grad()
    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of every matrix; each gets an equal part of the time."""
        begin = time.perf_counter()
        # Use the model if the program can start from it, and it saves time or is always wanted.
        is_supported = engine.accepts(problem)
        may_use_model = is_supported and pipeline.takes_starter(problem)
        uses_model = may_use_model and (self.always or saves_time_from_model(problem, self.gap))
        result = pipeline.solve(
            problem,
            gap=self.gap,
            engine="interior" if is_supported else "auto",
            starter=self.model if uses_model else None,
        )
        return Allocation.of_batch(
            result.splits, result.prices, time.perf_counter() - begin, result.program_prices
        )


def saves_time_from_model(problem: Problem, gap: float) -> bool:
    """Return whether a start from a PriceGNN saves interior points more time than it takes.

    Args:
        problem: B matrices of a program that interior points support.
        gap: target gap.
    """
    if not cost_model.may_benefit_from_model(problem):
        return False
    size = engine.FirstMatrixProgram(problem).size
    return cost_model.saves_time_from_model(cost_model.features_of(problem, size, gap))


def make(spec: Spec, model: Path | None) -> Interior:
    """Create the scheme of a specification ``interior[:gap=1e-6,start=auto|model|none]``.

    ``start`` says whether a PriceGNN predicts the start: where it saves time, always, or never.

    Args:
        spec: name and options of the scheme.
        model: folder or name of the model; None for the PriceGNN that comes with Teal.

    Raises:
        InputError: an unknown option or value, or no such model.
    """
    options: Any = spec.parse_options(gap=1e-6, start="auto")
    if options["start"] not in ("auto", "model", "none"):
        raise InputError(spec.text, "start", "auto, model or none", repr(options["start"]))
    if not 0 <= options["gap"] < 1:
        raise InputError(spec.text, "gap", "a number in [0, 1)", options["gap"])
    # The start uses the model where it saves time (auto), always (model) or never (none).
    is_none = options["start"] == "none"
    starter = None if is_none else named_model(str(model or DEFAULT_CHECKPOINT))
    return Interior(options["gap"], starter, always=options["start"] == "model")
