"""PDHG as an engine of the solve pipeline: form of the kernels, parts of the batch, and start.

:class:`Pdhg` selects the compiled kernels that support a program, else the reference engine; solves
as many matrices at once as that engine takes; and starts from sampled demands or from a model where
that saves time (:mod:`teal.solvers.pdhg.samples`, :mod:`teal.solvers.pdhg.model_start`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.interruptible import Steps
from teal.solvers import cost_model
from teal.solvers.contract import Limits, Origin, Start
from teal.solvers.interior.engine import FirstMatrixProgram
from teal.solvers.pdhg.engine import PdhgEngine
from teal.solvers.pdhg.fused.engine import MAX_LANES, FusedEngine, lanes_of
from teal.solvers.pdhg.model_start import ModelStart, may_start_from_model
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.pdhg.samples.start import SampledStart, is_faster
from teal.solvers.pdhg.search import Search
from teal.solvers.result import SolveResult, merged

_FLOAT64_BELOW_GAP = 1e-5  # target gap below which float32 splits are too coarse


def iteration_dtype(problem: Problem, gap: float, dtype: torch.dtype | None) -> torch.dtype:
    """Return the floating-point type of the splits in the iteration.

    float64 under a utility; else ``dtype``, or if it is None float64 for target gaps below 1e-5 and
    float32 for others.
    """
    # float32 would round small shares to 0, where the utility is undefined.
    if problem.utility is not None:
        return torch.float64
    return dtype or (torch.float64 if gap < _FLOAT64_BELOW_GAP else torch.float32)


def starts_from_samples(problem: Problem, gap: float, engine: str) -> bool:
    """Whether the search for one program without side conditions starts from sampled demands.

    Args:
        problem: B matrices.
        gap: target gap.
        engine: "auto", or the name of an engine; only "auto" samples.
    """
    # Samples are drawn in proportion to rates, so they represent demands of equal weight poorly.
    is_weighted_by_demand = problem.utility is None or problem.objective.rules.weight_by == "demand"
    may_sample = engine == "auto" and problem.max_share is None and is_weighted_by_demand
    may_sample = may_sample and FusedEngine.accepts(problem)
    return may_sample and is_faster(problem.paths, gap)


class Pdhg:
    """PDHG on the fastest kernels that support a program.

    Args:
        form: "fused" (compiled), "plain" (reference), or "auto" for the fastest.
        dtype: type of the splits in the iteration; None to choose by the target gap.
        first: presolved program of the first matrix, for the prediction; None to presolve it there.
        may_stall: whether a search stops where the gap no longer shrinks.
        may_replace_start: whether sampled demands or a model may replace the start.

    Attributes:
        detail: start of the last solve; several where parts of the batch differ.
    """

    def __init__(
        self,
        form: str = "auto",
        dtype: torch.dtype | None = None,
        first: FirstMatrixProgram | None = None,
        *,
        may_stall: bool = False,
        may_replace_start: bool = True,
    ) -> None:
        self._kernel_kind = form
        self._dtype = dtype
        self._first_program = first
        self._may_stall = may_stall
        self._may_replace_start = may_replace_start
        self.detail = ""

    @property
    def name(self) -> str:
        """The name of the form; "pdhg" for "auto"."""
        return "pdhg" if self._kernel_kind == "auto" else self._kernel_kind

    def accepts(self, problem: Problem) -> bool:
        """Return whether the form supports a program; the reference engine supports all."""
        if self._kernel_kind != "fused" or FusedEngine.accepts(problem):
            return True
        return _accepted_by_cuda(problem)

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return the predicted time of the compiled CPU engine to the target gap, s.

        It is infinite for a program that this engine does not support.

        Args:
            problem: B matrices, the first of which stands for all.
            start: start of the search; a model is not counted.
            gap: target gap.
        """
        if not FusedEngine.accepts(problem):
            return math.inf
        features = (self._first_program or FirstMatrixProgram(problem)).features(gap)
        return cost_model.seconds("pdhg", features, is_warm=start.state is not None)

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve every matrix, in parts of the batch of the size that the kernels solve at once.

        Args:
            problem: B matrices of one program without side conditions.
            start: start of the search.
            limits: target and limits.

        Raises:
            InputError: no kernels of the requested form support the program.
        """
        dtype = iteration_dtype(problem, limits.gap, self._dtype)
        engine_class, max_batch = self._engine_class(problem, dtype)
        results: list[SolveResult] = []
        origins: list[Origin] = []
        for first_row in range(0, problem.batch, max_batch):
            rows = slice(first_row, first_row + max_batch)
            batch_part = problem if max_batch >= problem.batch else problem.rows(rows)
            state = None if start.state is None else start.state.rows(rows)
            # Each part gets time in proportion to its number of matrices.
            begin = time.perf_counter()
            deadline = limits.deadline.share(batch_part.batch / (problem.batch - first_row))
            engine = engine_class(batch_part, state, dtype)
            # Start that may replace ``state``: sampled demands, or a model.
            sampled = None
            model = None
            if self._may_replace_start and isinstance(engine, FusedEngine):
                if starts_from_samples(batch_part, limits.gap, self._kernel_kind):
                    sampled = SampledStart(batch_part, engine, limits.gap, start.model)
                elif start.model is not None and may_start_from_model(
                    batch_part, self._kernel_kind
                ):
                    is_warm = state is not None
                    model = ModelStart(batch_part, engine, limits.gap, start.model, is_warm=is_warm)
            # Search to the target gap.
            search = Search(
                batch_part,
                engine,
                limits.gap,
                limits.max_iterations,
                limits.report,
                begin=begin,
                may_stall=self._may_stall,
                sampled=sampled,
                model=model,
            )
            results.append((yield from search.run_steps(deadline, warm=state is not None)))
            # Start that the search has used.
            origin = start.origin
            if sampled is not None and sampled.was_used:
                origin = Origin.SAMPLE
            elif model is not None and model.was_used:
                origin = Origin.MODEL
            origins.append(origin)
            # Free the memory for the next part.
            del search, sampled, model, engine
        # Each kind of start once, in the order of the parts.
        self.detail = ", ".join(dict.fromkeys(origins))
        return results[0] if len(results) == 1 else merged(results)

    def _engine_class(
        self, problem: Problem, dtype: torch.dtype
    ) -> tuple[Callable[..., PdhgEngine], int]:
        """Return the engine's class, and the number of matrices that it solves at once.

        Args:
            problem: B matrices.
            dtype: type of the splits in the iteration.

        Raises:
            InputError: the form does not support the program.
        """
        # Compiled engines: on the CPU, then on a GPU.
        if self._kernel_kind != "plain":
            if FusedEngine.accepts(problem):
                return FusedEngine, lanes_of(dtype)[-1]
            if _accepted_by_cuda(problem):
                from teal.solvers.pdhg.cuda.engine import CudaEngine, lanes

                return CudaEngine, lanes(problem, dtype)
            if self._kernel_kind == "fused":
                raise InputError.invalid(
                    "solve",
                    "engine",
                    "no compiled engine of PDHG supports this program",
                    "use engine auto or plain",
                )
        # The reference engine supports every program.
        return PlainEngine, MAX_LANES


def _accepted_by_cuda(problem: Problem) -> bool:
    """Return whether the engine of CUDA kernels supports a program."""
    if problem.ops.backend.name != "cuda":
        return False
    from teal.solvers.pdhg.cuda.engine import CudaEngine

    return CudaEngine.accepts(problem)
