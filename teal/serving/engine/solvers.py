"""Solver selection: model alone, PDHG warm-started from the model, or PDHG alone.

- ``model``: splits and prices of the model, after one projection onto the capacities; the prices
  certify the gap.
- ``model-pdhg``: PDHG warm-started from the model's splits and prices, until gap or deadline.
- ``pdhg``: PDHG warm-started from the last allocation of the network; cold without one.
- ``auto``: ``model-pdhg`` where the model saves time, else ``pdhg``. The model does not save time
  if the last allocation is near the optimum, or if such requests have been faster without it. On
  networks so large that PDHG starts with sampled demands, the model solves the first sample unless
  the last allocation is near the optimum.

Answers name one of the first three. Entry point: :func:`solve_steps`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps
from teal.schemes.models import helps, serves
from teal.schemes.repair import check_model_knows
from teal.schemes.successive import SuccessivePdhg
from teal.serving.engine.errors import ServiceError, wrong
from teal.solvers import pdhg
from teal.solvers.result import rounds_for, start_for, start_of_sample

SOLVERS = AUTO, MODEL, MODEL_PDHG, PDHG = "auto", "model", "model-pdhg", "pdhg"
# Solver of allocations for the next interval.
HEDGE = "hedge"


@dataclasses.dataclass(eq=False)
class _RecordingStarter:
    """Model that records whether the solver asked it for a warm start."""

    model: pdhg.Starter
    was_used: bool = False

    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """Warm start of a problem."""
        self.was_used = True
        return self.model.start(problem)

    def start_sample(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """Warm start of a problem of sampled demands."""
        self.was_used = True
        return start_of_sample(self.model, problem)

    def start_for(self, problem: Problem, iterations: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Warm start with a budget of PDHG iterations."""
        self.was_used = True
        return start_for(self.model, problem, iterations)

    def rounds_for(self, iterations: float) -> int:
        """Number of model rounds that a budget of PDHG iterations allows."""
        return rounds_for(self.model, iterations)


def solve_steps(
    problem: Problem,
    solver: str,
    model: pdhg.Starter | None,
    engine: SuccessivePdhg,
    gap: float,
    deadline: Deadline,
    start: pdhg.PdhgState | None,
    *,
    prefer_model: bool = True,
) -> Steps[tuple[pdhg.PdhgResult, str]]:
    """Solve B matrices as an interruptible computation; return result and solver name.

    Args:
        problem: B matrices.
        solver: one of ``SOLVERS``.
        model: model of the service; None for none.
        engine: PDHG of the network with its warm-start state.
        gap: target of the certified gap.
        deadline: time limit; afterwards the incumbent is returned.
        start: state of an earlier run of the same request, used instead of the model; None for
            none.
        prefer_model: whether ``auto`` may use the model.

    Raises:
        ServiceError: the request names a model, and the service has none for its problem.
    """
    # The request names a model.
    if solver in (MODEL, MODEL_PDHG):
        model = _require_model(problem, model)
        if start is None or solver == MODEL:
            start = pdhg.PdhgState(*model.start(problem))
        if solver == MODEL:
            # Keep the warm-start state of the network: it is nearer to the optimum than the model.
            steps = pdhg.solving(
                problem, gap=gap, deadline=deadline, max_iterations=0, warm_start=start
            )
            return (yield from steps), MODEL
        result = yield from engine.solving(problem, gap=gap, deadline=deadline, start=start)
        return result, MODEL_PDHG
    # PDHG, with the model as starter if it may save time.
    recorder = None
    if solver == AUTO and prefer_model and model is not None and helps(model, problem):
        recorder = _RecordingStarter(model)
    result = yield from engine.solving(
        problem, gap=gap, deadline=deadline, starter=recorder, start=start
    )
    return result, MODEL_PDHG if recorder is not None and recorder.was_used else PDHG


def model_supports(problem: Problem, model: pdhg.Starter | None) -> bool:
    """Whether the service has a model for a problem."""
    try:
        _require_model(problem, model)
    except ServiceError:
        return False
    return True


def _require_model(problem: Problem, model: pdhg.Starter | None) -> pdhg.Starter:
    """Model for a problem; ServiceError if there is none."""
    if model is None:
        raise wrong("solver: this service has no model; use auto or pdhg, or start it with --model")
    if problem.classes is not None or not pdhg.takes_starter(problem):
        raise wrong("solver: no model knows demand classes or max_min; use auto or pdhg")
    if not serves(model, problem.objective):
        raise wrong(
            "solver: the model of this service is for another objective than "
            f"{problem.objective.name}"
        )
    try:
        check_model_knows("solver", problem)
    except InputError as error:
        raise wrong(str(error)) from None
    return model


# Bytes or numbers above which work may take a few milliseconds; a demand by name has 20 numbers.
OFFLOAD_SIZE = 4_000
# An Arrow body of this many bytes takes the time of one byte of JSON.
_BINARY_SPEEDUP = 20
# Few threads: Python runs one at a time, and each waiting thread delays the event loop.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="beside")


async def offload_if_large(size: int, work: Any, *arguments: Any, is_binary: bool = False) -> Any:
    """Run ``work`` in a worker thread if its input is large, else on the event loop.

    Args:
        size: size of the input, bytes or numbers.
        work: function to call.
        arguments: arguments of the function.
        is_binary: whether the input is binary, which is about 20 times faster than JSON.
    """
    if size <= (_BINARY_SPEEDUP * OFFLOAD_SIZE if is_binary else OFFLOAD_SIZE):
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)
