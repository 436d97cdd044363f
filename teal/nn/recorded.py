"""Forward passes of models on a GPU, recorded once per problem shape as a CUDA graph and replayed.

A pass is some hundred small launches, between which the GPU would wait for the host.
Entry point: :meth:`RecordedPasses.run`.
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

# Maximum number of recordings over one set of paths.
_MAX_RECORDINGS = 4
Pass = Callable[[Problem], tuple[Tensor, Tensor]]


class RecordedPasses:
    """Cache of recorded forward passes, by paths, problem shape, type, options and weights.

    An optimiser may change the weights in place; weights at another address need a new recording.
    A pickled copy of this object is empty.
    """

    def __init__(self) -> None:
        self._recordings_by_backend: weakref.WeakKeyDictionary[
            Any, LruCache[Hashable, _PassRecording]
        ] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[RecordedPasses], tuple[()]]:
        """Pickle as an empty cache: CUDA graphs cannot be copied to another process."""
        return RecordedPasses, ()

    def run(
        self,
        model: nn.Module,
        forward: Pass,
        problem: Problem,
        *options: Hashable,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return ``forward(problem)``, recorded and replayed where possible.

        The pass is recorded on a GPU with numba-cuda and without gradients, else called directly.

        Args:
            model: model with the weights of the pass, on the device of the problem.
            forward: pass of the model, without waiting for the GPU: returns splits (B, D, K) and
                prices (B, E).
            problem: B matrices.
            options: options that change the work of the pass.
            dtype: type of the problem that the pass gets; None for the model's type.
        """
        weights = list(model.parameters())
        dtype = dtype or weights[0].dtype
        if torch.is_grad_enabled() or not FixedProgram.accepts(problem):
            return forward(problem.to(dtype))
        # A recording serves one shape, type, set of options and addresses of the weights.  It is
        # taken out of the cache while it runs, so that no other thread uses it.
        shape = ProgramShape.of(problem)
        recordings = self._recordings_by_backend.setdefault(
            problem.ops.backend, LruCache(_MAX_RECORDINGS)
        )
        key = shape, dtype, options, tuple(weight.data_ptr() for weight in weights)
        recording = recordings.take(key) or _PassRecording(FixedProgram(problem, shape, dtype))
        results = recording.run(forward, problem)
        recordings.keep(key, recording)
        return results


class _PassRecording:
    """CUDA graph of one forward pass, with fixed memory for its problem.

    Args:
        program: GPU memory of the problem, which is overwritten before each replay.
    """

    def __init__(self, program: FixedProgram) -> None:
        self._program = program
        self._graph = cuda.LaunchGraph(program.device)
        self._results: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def run(self, forward: Pass, problem: Problem) -> tuple[Tensor, Tensor]:
        """Copy a problem of the same shape to the fixed memory, and run the pass.

        Returns copies of the splits (B, D, K) and prices (B, E).

        Args:
            forward: the pass, which a replay of the graph does not call.
            problem: B matrices.
        """

        def run_forward() -> None:
            self._results = forward(self._program.problem())

        self._program.take(problem)
        self._graph.run(run_forward)
        assert self._results is not None
        splits, prices = self._results
        return splits.clone(), prices.clone()
