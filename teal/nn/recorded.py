"""Passes of models on a GPU, recorded once for programs of a shape and replayed.

A pass is some hundred small launches, between which the GPU would wait for the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

import teal.runtime.cuda as cuda
from teal.problem import Problem
from teal.problem.fixed import FixedProgram, ProgramShape
from teal.runtime.lru_cache import LruCache

_MOST_SHAPES = 4  # for which a pass is kept, over one set of paths
Pass = Callable[[Problem], tuple[Tensor, Tensor]]


class RecordedPasses:
    """The recorded passes of models, by paths, shape and what else distinguishes them.

    Weights may change in their places, as an optimiser changes them; weights that were moved are
    others.  A copy of this object has nothing recorded.
    """

    def __init__(self) -> None:
        self._by_backend: weakref.WeakKeyDictionary[Any, LruCache[Hashable, _Recorded]] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[type[RecordedPasses], tuple[()]]:
        """Graphs cannot be copied to another process."""
        return RecordedPasses, ()

    def run(
        self,
        model: nn.Module,
        forward: Pass,
        problem: Problem,
        *form: Hashable,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``forward(problem)`` without gradients: recorded on a GPU with numba-cuda.

        Args:
            model: the model, where the problem is.
            forward: its pass, which waits for nothing: (B, D, K) and (B, E).
            problem: B matrices.
            form: options that change what the pass does.
            dtype: type in which the pass is given the problem; None for the model's.
        """
        weights = list(model.parameters())
        dtype = dtype or weights[0].dtype
        if torch.is_grad_enabled() or not FixedProgram.accepts(problem):
            return forward(problem.to(dtype))
        shape = ProgramShape.of(problem)
        latest = self._by_backend.setdefault(problem.ops.backend, LruCache(_MOST_SHAPES))
        key = shape, dtype, form, tuple(weight.data_ptr() for weight in weights)
        recorded = latest.take(key) or _Recorded(FixedProgram(problem, shape, dtype))
        results = recorded.run(forward, problem)
        latest.keep(key, recorded)
        return results


class _Recorded:
    """One pass.

    Args:
        program: place of the program.
    """

    def __init__(self, program: FixedProgram) -> None:
        self._program = program
        self._graph = cuda.LaunchGraph(program.device)
        self._results: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, forward: Pass, problem: Problem) -> tuple[Tensor, Tensor]:
        """The results for a program of the shape."""

        def work() -> None:
            self._results = forward(self._program.problem())

        self._program.take(problem)
        self._graph.run(work)
        assert self._results is not None
        first, second = self._results
        return first.clone(), second.clone()
