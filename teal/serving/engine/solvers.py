"""Solvers of an allocation: the model alone, the model and then PDHG, or PDHG alone.

- ``model``: splits and prices of the model, cut to fit and refilled by one projection; the prices
  certify the gap.
- ``model-pdhg``: PDHG from splits and prices of the model, until gap or deadline.
- ``pdhg``: PDHG from the last allocation of the network, and from nothing where there is none.
- ``auto``: ``model-pdhg`` where the model saves time, which is not where the last allocation is
  near the target, nor where requests of this kind have been answered sooner without it; else
  ``pdhg``.  On networks so large that PDHG begins with samples of the demands, the model solves the
  first sample wherever the last allocation is far from the target.

Answers say which of the first three it was.
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
HEDGE = "hedge"  # computes allocations for the next interval


@dataclasses.dataclass(eq=False)
class _Asked:
    """A model, and whether it was asked for a start."""

    model: pdhg.Starter
    was_asked: bool = False

    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        self.was_asked = True
        return self.model.start(problem)

    def start_sample(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        self.was_asked = True
        return start_of_sample(self.model, problem)

    def start_for(self, problem: Problem, iterations: float) -> tuple[torch.Tensor, torch.Tensor]:
        self.was_asked = True
        return start_for(self.model, problem, iterations)

    def rounds_for(self, iterations: float) -> int:
        return rounds_for(self.model, iterations)


def solving(
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
    """Solve B matrices; the result, and which solver it is from: model, model-pdhg or pdhg.

    Args:
        problem: B matrices.
        solver: one of ``SOLVERS``.
        model: model of the service; None for none.
        engine: PDHG of the network, which knows the last allocation.
        gap: certified, to stop at.
        deadline: after which the best allocation is returned.
        start: state in which an earlier run of the same request has ended, in place of the model;
            None for none.
        prefer_model: whether ``auto`` may ask the model.

    Raises:
        ServiceError: the request names a model that the service does not have, or that does not
            know the problem.
    """
    if solver in (MODEL, MODEL_PDHG):
        model = _checked(problem, model)
        if start is None or solver == MODEL:
            start = pdhg.PdhgState(*model.start(problem))
        if solver == MODEL:
            # The engine's last allocation stays: it is closer to the optimum than that of a model.
            alone = pdhg.solving(
                problem, gap=gap, deadline=deadline, max_iterations=0, warm_start=start
            )
            return (yield from alone), MODEL
        result = yield from engine.solving(problem, gap=gap, deadline=deadline, start=start)
        return result, MODEL_PDHG
    asked = None
    if solver == AUTO and prefer_model and model is not None and helps(model, problem):
        asked = _Asked(model)
    result = yield from engine.solving(
        problem, gap=gap, deadline=deadline, starter=asked, start=start
    )
    return result, MODEL_PDHG if asked is not None and asked.was_asked else PDHG


def knows(problem: Problem, model: pdhg.Starter | None) -> bool:
    """Whether the service has a model, and it knows the problem."""
    try:
        _checked(problem, model)
    except ServiceError:
        return False
    return True


def _checked(problem: Problem, model: pdhg.Starter | None) -> pdhg.Starter:
    """The model that a request asks for."""
    if model is None:
        raise wrong("solver: this service has no model (teal serve --model); auto or pdhg")
    if problem.classes is not None or not pdhg.takes_starter(problem):
        raise wrong("solver: no model knows classes of demands or max_min; auto or pdhg")
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


# bytes, or numbers, from which on work may take a few milliseconds: 20 numbers are a demand by name
LARGE = 4_000
_BINARY = 20  # of Arrow's arrays so many bytes take the time of one byte of JSON
# Threads for such work: Python runs one at a time anyway, and each that waits for its turn delays
# the event loop.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="beside")


async def beside(size: int, work: Any, *arguments: Any, is_binary: bool = False) -> Any:
    """The result of ``work``, in a thread if its ``size`` is large; of binary bodies if it is
    twenty times as large.
    """
    if size <= (_BINARY * LARGE if is_binary else LARGE):
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)
