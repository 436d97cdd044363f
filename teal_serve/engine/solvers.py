"""Solver selection: model alone, PDHG warm-started from the model, or PDHG alone.

- ``model``: splits of the model, after one projection onto the capacities; its prices, or tighter
  ones of earlier matrices, certify the gap.
- ``model-pdhg``: PDHG warm-started from the model's splits and prices, until gap or deadline.
- ``pdhg``: PDHG warm-started from the last allocation of the network; cold without one.
- ``auto``: ``model-pdhg`` where the model saves time, else ``pdhg``. The model does not save time
  if the last allocation is near the optimum, or if such requests have been faster without it. On
  networks so large that PDHG starts with sampled demands, the model solves the first sample unless
  the last allocation is near the optimum.

Answers name the solver that was used: ``model``, ``model-pdhg`` or ``pdhg``. Entry point:
:func:`solve_steps`.
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
from teal.solvers import pipeline
from teal.solvers.result import (
    SolveResult,
    SolveState,
    Starter,
    rounds_for,
    start_for,
    start_of_sample,
)
from teal_serve.engine.errors import ServiceError, invalid_request

SOLVERS = AUTO, MODEL, MODEL_PDHG, PDHG = "auto", "model", "model-pdhg", "pdhg"
# Name of the solver of allocations for the next interval.
HEDGE = "hedge"


@dataclasses.dataclass(eq=False)
class _RecordingStarter:
    """Proxy of a model that records whether the solver requested a warm start from it.

    Attributes:
        model: model that predicts the warm starts.
        was_used: whether a warm start was requested.
    """

    model: Starter
    was_used: bool = False

    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """Return splits (B, D, K) and link prices (B, E) to warm-start the solver."""
        self.was_used = True
        return self.model.start(problem)

    def start_sample(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        """Return splits and link prices to warm-start a problem with a sample of the demands."""
        self.was_used = True
        return start_of_sample(self.model, problem)

    def start_for(self, problem: Problem, iterations: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return splits and link prices to warm-start the solver, within a cost budget.

        Args:
            problem: B matrices.
            iterations: budget, as a number of PDHG iterations of equal cost.
        """
        self.was_used = True
        return start_for(self.model, problem, iterations)

    def rounds_for(self, iterations: float) -> int:
        """Return the number of rounds of the model that cost as much as ``iterations`` of PDHG."""
        return rounds_for(self.model, iterations)


def solve_steps(
    problem: Problem,
    solver: str,
    model: Starter | None,
    pdhg_solver: SuccessivePdhg,
    gap: float,
    deadline: Deadline,
    start: SolveState | None,
    *,
    prefer_model: bool = True,
) -> Steps[tuple[SolveResult, str]]:
    """Solve B matrices as an interruptible computation.

    Args:
        problem: B matrices.
        solver: requested solver: auto, model, model-pdhg or pdhg.
        model: model of the service; None for none.
        pdhg_solver: PDHG of the network with its warm-start state.
        gap: target of the certified gap.
        deadline: time limit; afterwards the incumbent is returned.
        start: state of an earlier run of the same request, used instead of the model; None for
            none.
        prefer_model: whether ``auto`` may use the model.

    Yields:
        nothing, at points where the computation can pause.

    Returns:
        result of the solve, and name of the used solver (model, model-pdhg or pdhg).

    Raises:
        ServiceError: the request needs a model, and the service has none for its problem.
    """
    # The requested solver needs the model: its prediction is the starting point.
    if solver in (MODEL, MODEL_PDHG):
        model = _require_model(problem, model)
        if start is None or solver == MODEL:
            start = SolveState(*model.start(problem), is_predicted=True)
        if solver == MODEL:
            # Model alone: one projection without iterations. It bypasses the PDHG
            # solver, whose warm-start state, nearer to the optimum, thus stays. Prices of earlier
            # matrices may prove a tighter bound than those of the model.
            result = yield from pipeline.solving(
                problem, gap=gap, deadline=deadline, max_iterations=0, warm_start=start
            )
            return pdhg_solver.tightened(problem, result, gap), MODEL
        result = yield from pdhg_solver.solving(problem, gap=gap, deadline=deadline, start=start)
        return result, MODEL_PDHG
    # PDHG; auto passes the model to the solver, which decides whether it uses it.
    recording_model = None
    if solver == AUTO and prefer_model and model is not None and helps(model, problem):
        recording_model = _RecordingStarter(model)
    result = yield from pdhg_solver.solving(
        problem, gap=gap, deadline=deadline, starter=recording_model, start=start
    )
    return result, MODEL_PDHG if recording_model is not None and recording_model.was_used else PDHG


def model_supports(problem: Problem, model: Starter | None) -> bool:
    """Return whether the service has a model that supports a problem.

    Args:
        problem: problem of a request.
        model: model of the service; None for none.
    """
    try:
        _require_model(problem, model)
    except ServiceError:
        return False
    return True


def _require_model(problem: Problem, model: Starter | None) -> Starter:
    """Return the model if it supports a problem.

    Args:
        problem: problem of a request.
        model: model of the service; None for none.

    Raises:
        ServiceError: there is no model, or it does not support classes, objective or conditions.
    """
    # Without a model, or for a problem that no model supports.
    if model is None:
        raise invalid_request(
            "solver: this service has no model; use auto or pdhg, or start it with --model"
        )
    if problem.classes is not None or not pipeline.takes_starter(problem):
        raise invalid_request(
            "solver: models do not support demand classes and max_min; use auto or pdhg"
        )
    # The model may not support the objective or the side conditions.
    if not serves(model, problem.objective):
        raise invalid_request(
            "solver: the model of this service does not support the objective "
            f"{problem.objective.name}; use auto or pdhg"
        )
    try:
        check_model_knows("solver", problem)
    except InputError as error:
        raise invalid_request(str(error)) from None
    return model


# Input size, in bytes or numbers, from which work may take a few milliseconds; a demand by name
# counts as 20 numbers.
OFFLOAD_SIZE = 4_000
# Bytes of an Arrow body that take as long to decode as one byte of JSON.
_BINARY_SPEEDUP = 20
# Two threads suffice: Python runs one at a time, and each waiting thread delays the event loop.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="beside")


async def offload_if_large(size: int, work: Any, *arguments: Any, is_binary: bool = False) -> Any:
    """Call a function in a worker thread if its input is large, else here; return its result.

    A long call on the event loop would delay all other requests.

    Args:
        size: size of the input, bytes or numbers.
        work: function to call.
        arguments: arguments of the function.
        is_binary: whether the input is binary, which is about 20 times faster to decode than JSON.
    """
    if size <= (_BINARY_SPEEDUP * OFFLOAD_SIZE if is_binary else OFFLOAD_SIZE):
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)
