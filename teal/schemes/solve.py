"""``teal.solve``: the solve pipeline, with the model that comes with Teal where it saves time."""

from __future__ import annotations

import math
from typing import Literal

import torch

from teal.deprecated import with_old_keywords
from teal.errors import InputError
from teal.problem import Problem
from teal.schemes.default_model import default_model
from teal.solvers import pipeline
from teal.solvers.result import ProgressCallback, SolveResult, Starter

_EXPECTED = "a model such as teal.load_model(FOLDER), auto or None"


@with_old_keywords
def solve(
    problem: Problem,
    *,
    gap: float = 1e-2,
    deadline: float = math.inf,
    max_iterations: int = 10_000,
    warm_start: pipeline.WarmStart | None = None,
    model: Starter | Literal["auto"] | None = "auto",
    engine: str = "auto",
    dtype: torch.dtype | None = None,
    report: ProgressCallback | None = None,
) -> SolveResult:
    """Solve each matrix to a certified ``gap``, within a deadline and an iteration limit.

    Returns the incumbent in every case: the best feasible allocation and the best dual prices.

    Args:
        problem: B matrices, solved MAX_LANES at a time (by the CUDA engine as many as fit in
            memory).
        gap: target: (bound - value) / bound, or (value - bound) / value for a minimum.  For
            max_concurrent_flow the iteration stops on the gap of the equivalent largest
            utilisation.
        deadline: seconds from now.  Set-up and one gap check (two after a warm start) always run,
            for each part of the batch.
        max_iterations: iteration limit of each program; priority and max_min solve several.
        warm_start: an earlier result or its state, or splits (B, D, K) and prices (B, E) from any
            source: the previous matrix, the same matrix before a failure, a model.  Under priority
            the last program starts from it; a result under priority or max_min also contributes the
            prices of all its programs as dual bounds.
        model: model that predicts splits and prices.  "auto" asks the PriceGNN that comes with Teal
            where it is predicted to save time: on networks of some 40 nodes and more, where a
            linear value is maximised over paths without side conditions, on a CPU and without a
            warm start.  It is loaded once a process.  A model
            such as ``teal.load_model(FOLDER)`` takes its place; None asks no model.
            :func:`teal.solvers.pipeline.solve` says where it is used.
        engine: interior, simplex, fused, plain, the name of an engine that a package announces, or
            auto, which selects by predicted time (:func:`teal.solvers.pipeline.solve`).
        dtype: type of the splits during the iteration; None for float32, or float64 where ``gap``
            is below 1e-5 and, with auto, where float32 stalls.
        report: called after each full gap check between iterations, and under priority and max_min
            after each program; the gap is infinite until it is known.

    Raises:
        InputError: options out of range, a warm start of another shape, a warm start, model or
            engine that does not apply to this program, or too little memory for one matrix.
    """
    # Model that predicts the start: the default one, that of the caller, or none.
    starter: Starter | None = None
    if isinstance(model, str):
        if model != "auto":
            raise InputError(
                "solve",
                "model",
                "a model such as teal.load_model(FOLDER), auto or None",
                repr(model),
            )
        # A warm start takes the place of the default model.
        if warm_start is None:
            starter = default_model(problem, gap, engine)
    elif model is not None:
        if not isinstance(model, Starter):
            raise InputError("solve", "model", _EXPECTED, type(model).__name__)
        if not pipeline.takes_starter(problem):
            raise InputError.invalid(
                "solve",
                "model",
                f"{problem.objective.name} is not solved as one program, which a model could start",
                "omit model",
            )
        starter = model
    return pipeline.solve(
        problem,
        gap=gap,
        deadline=deadline,
        max_iterations=max_iterations,
        warm_start=warm_start,
        starter=starter,
        engine=engine,
        dtype=dtype,
        report=report,
    )
