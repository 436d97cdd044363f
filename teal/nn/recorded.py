"""Passes of models on a GPU, recorded once for programs of a shape and replayed.

A pass is some hundred small launches, between which the GPU would wait for the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

import teal.runtime.cuda as cuda
from teal.problem import Problem
from teal.problem.fixed import FixedProgram, ProgramShape

_MOST_SHAPES = 4  # for which a pass is kept, over one set of paths
Pass = Callable[[Problem], tuple[Tensor, Tensor]]


class RecordedPasses:
    """The recorded passes of one model, by paths, shape and what else distinguishes them.

    The weights may change in their places, as an optimiser changes them.
    """

    def __init__(self) -> None:
        self._by_backend: weakref.WeakKeyDictionary[Any, dict[Hashable, _Recorded]] = (
            weakref.WeakKeyDictionary()
        )

    def run(
        self, forward: Pass, problem: Problem, dtype: torch.dtype, *form: Hashable
    ) -> tuple[Tensor, Tensor]:
        """``forward(problem)`` in a type, without gradients: recorded on a GPU with numba-cuda.

        Args:
            forward: the pass, which waits for nothing: (B, D, K) and (B, E).
            problem: B matrices.
            dtype: type of the model.
            form: options that change what the pass does.
        """
        if not _can_be_recorded(problem):
            return forward(problem.to(dtype))
        shape = ProgramShape.of(problem)
        recorded = self._by_backend.setdefault(problem.ops.backend, {})
        key = shape, dtype, form
        found = recorded.pop(key, None) or _Recorded(forward, FixedProgram(problem, shape, dtype))
        recorded[key] = found  # the last one
        while len(recorded) > _MOST_SHAPES:
            del recorded[next(iter(recorded))]
        return found.run(problem)


def _can_be_recorded(problem: Problem) -> bool:
    """Whether a pass reads no numbers of the program but its tensors."""
    if torch.is_grad_enabled() or problem.conditions or not problem.is_linear:
        return False
    if not problem.ops.is_over_paths or problem.ops.backend.name != "cuda":
        return False
    return bool(problem.demand.numel() and problem.capacity.numel())


class _Recorded:
    """One pass.

    Args:
        forward: the pass.
        program: place of the program.
    """

    def __init__(self, forward: Pass, program: FixedProgram) -> None:
        self._forward, self._program = forward, program
        self._graph: cuda.LaunchGraph | None = None
        self._results: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The results for a program of the shape."""
        self._program.take(problem)
        if self._graph is None:
            self._graph = cuda.LaunchGraph(self._pass, problem.demand.device)
        self._graph.replay()
        assert self._results is not None
        first, second = self._results
        return first.clone(), second.clone()

    def _pass(self) -> None:
        self._results = self._forward(self._program.problem())
