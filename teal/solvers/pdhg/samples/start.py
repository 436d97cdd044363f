"""Start of the CPU engine from growing samples of the demands.

:class:`SampledStart` draws and solves a sample (:mod:`teal.solvers.pdhg.samples.sample`) and
restarts the engine at the response of all demands; :func:`is_faster` decides by the size of the
network.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from teal.network import AnyPaths
from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.samples import sample
from teal.solvers.pdhg.search import LARGE_WORK, Search
from teal.solvers.result import Starter, start_of_sample, usable_start

# Expected size of the first sample over the number of links, for a target gap of _COARSEST_GAP;
# measured on Kdl, ASN and world (docs/engine.md).  Sizes scale as the inverse square root of the
# target, as the error of an average does.
_DEMANDS_PER_LINK = 4
# Range of target gaps in which the sample's size depends on the target.
_FINEST_GAP = 1e-3
_COARSEST_GAP = 1e-2
SAMPLE_GROWTH = 8  # size ratio of consecutive samples: a third of the error of an average
MAX_SHARE = 0.25  # largest sample as a share of all demands; a larger one saves too little
SAMPLE_GAP = 0.5  # gap of the sample's solution, as a multiple of the target gap
# Smallest target gap for which a starter solves the first sample instead of iterations: a model's
# prices are accurate to some tenths of a per cent, so that smaller targets need iterations anyway
# (docs/engine.md).
_MIN_MODEL_GAP = 5e-3
# Smallest share of all demands in a first sample for a starter.  For smaller samples (world: 0.3%;
# ASN and Kdl: 1.1 and 1.3%) iterations on the sample take less time than a response of all demands
# that proves too coarse.
_MIN_MODEL_SHARE = 0.005
# Iteration limit of a sample; harder programs continue with a larger sample from its prices.
MAX_ITERATIONS = 200


class SampledStart:
    """Growing samples for the matrices of one problem.

    Args:
        problem: B matrices, on the CPU.
        engine: engine of these matrices.
        gap: target gap of the search.
        starter: model that solves the first sample instead of iterations, where ``gap`` and the
            objective permit; None for iterations.
        draw: function that draws a sample of a size for a matrix; None for :func:`sample.draw`.
        num_demands: D; None for the demands of ``problem``.
    """

    def __init__(
        self,
        problem: Problem,
        engine: FusedEngine,
        gap: float,
        starter: Starter | None = None,
        draw: Callable[[int, int], sample.Sample] | None = None,
        num_demands: int | None = None,
    ) -> None:
        self._problem = problem
        self._engine = engine
        self._gap = max(gap, _FINEST_GAP)
        self._draw = draw or functools.partial(sample.draw, problem)
        self._num_demands = problem.paths.num_demands if num_demands is None else num_demands
        self._size = first_size(problem.paths, gap)
        # A model replaces iterations where its accuracy suffices and the sample is not tiny, and
        # under the objectives that it supports: demand may be rejected, and values are linear.
        model_saves_time = (
            gap >= _MIN_MODEL_GAP and self._size >= _MIN_MODEL_SHARE * self._num_demands
        )
        model_is_applicable = not problem.demand_set.carries_all and problem.utility is None
        self._starter = starter if model_saves_time and model_is_applicable else None
        self._answers: list[sample.SampleAnswer] = []

    @property
    def was_used(self) -> bool:
        """Whether the engine has restarted from a sample."""
        return bool(self._answers)

    def respond(self, unfinished: Tensor, deadline: Deadline) -> Steps[bool]:
        """Restart the engine at the response of all demands to the next, larger sample's prices.

        Args:
            unfinished: (B,) bool, matrices that need a new sample; the others keep their answers.
            deadline: deadline of all samples together.

        Returns:
            Whether the engine restarted: False, without effect, if the sample would have more than
            a quarter of the demands (``MAX_SHARE``).
        """
        problem = self._problem
        sample_size = self._size
        if sample_size > MAX_SHARE * self._num_demands:
            return False
        self._size = SAMPLE_GROWTH * sample_size
        # Draw and solve one sample per matrix; unfinished matrices share the remaining time.
        answers: list[sample.SampleAnswer] = []
        for row in range(problem.batch):
            if self._answers and not bool(unfinished[row]):
                answers.append(self._answers[row])
                continue
            row_deadline = deadline.share(1 / (problem.batch - row))
            drawn_sample = self._draw(sample_size, row)
            if not len(drawn_sample.demands):
                answers.append(sample.zero_answer(problem))
            elif self._starter is not None and not self._answers:
                # The model's splits and prices replace iterations on the first sample.
                model_start = usable_start(
                    drawn_sample.problem, functools.partial(start_of_sample, self._starter)
                )
                answers.append(sample.answer(drawn_sample, model_start.splits, model_start.prices))
            else:
                # The prices of the last sample warm-start this one.
                last_answer = self._answers[row] if self._answers else None
                answers.append((yield from self._solve(drawn_sample, last_answer, row_deadline)))
        self._answers = answers
        self._engine.respond(answers)
        return True

    def _solve(
        self,
        drawn_sample: sample.Sample,
        last_answer: sample.SampleAnswer | None,
        deadline: Deadline,
    ) -> Steps[sample.SampleAnswer]:
        """Solve a sample of one matrix; return its prices and fixed splits.

        Args:
            drawn_sample: the sample.
            last_answer: answer of the last, smaller sample, whose prices warm-start this one; None
                for a cold start.
            deadline: deadline of the search.
        """
        begin = time.perf_counter()
        engine = FusedEngine(
            drawn_sample.problem,
            None,
            torch.float32 if drawn_sample.problem.utility is None else torch.float64,
        )
        if last_answer is not None:
            # Only the prices apply: demand indices of the last sample are different.
            engine.respond(
                [
                    dataclasses.replace(
                        last_answer,
                        fixed_demands=last_answer.fixed_demands[:0],
                        fixed_splits=last_answer.fixed_splits[:0],
                    )
                ]
            )
        sample_gap = SAMPLE_GAP * self._gap
        search = Search(
            drawn_sample.problem,
            engine,
            sample_gap,
            MAX_ITERATIONS,
            None,
            begin=begin,
            may_stall=False,
        )
        result = yield from search.run_steps(deadline, warm=last_answer is not None)
        return sample.answer(drawn_sample, result.splits, result.prices)

    def correct(self) -> bool:
        """Restart the engine at the response to the last prices after a Newton step.

        Returns:
            Whether the engine restarted: False, without effect, in a min-max program.
        """
        if self._problem.demand_set.carries_all:
            return False
        self._engine.respond(self._answers, corrections=1)
        return True


def first_size(paths: AnyPaths, gap: float) -> int:
    """Return the expected number of demands in the first sample for a target ``gap``."""
    clamped_gap = min(max(gap, _FINEST_GAP), _COARSEST_GAP)
    return int(_DEMANDS_PER_LINK * paths.num_links * math.sqrt(_COARSEST_GAP / clamped_gap))


def is_faster(paths: AnyPaths, gap: float = _COARSEST_GAP) -> bool:
    """Whether a start from samples takes less time than iterations with all demands.

    It does on large networks whose first sample for the target ``gap`` has at most a quarter of the
    demands.
    """
    is_large = paths.scan_size > LARGE_WORK
    return is_large and first_size(paths, gap) <= MAX_SHARE * paths.num_demands
