"""The GPU engine: what is launched was recorded once, and is replayed."""

from __future__ import annotations

import math
import weakref
from typing import cast

import torch
from torch import Tensor

from teal.pathops.cuda_backend import CudaBackend
from teal.problem import Problem
from teal.runtime.memory import available_on, max_batch
from teal.solvers.pdhg.cuda import kernels
from teal.solvers.pdhg.cuda.recorded import Recorded, SearchShape
from teal.solvers.pdhg.dense import bytes_needed
from teal.solvers.result import PdhgState

_REMEDY = "fewer paths a demand (--num-paths) or only the pairs that carry traffic take less"


class CudaEngine:
    """PDHG on a GPU: a :class:`teal.solvers.pdhg.engine.PdhgEngine`; computes the same as
    PlainEngine.

    Set-up, gap checks and keeping the best are torch over the path operations, recorded beside the
    iterations (:class:`teal.solvers.pdhg.cuda.recorded.Recorded`).  Memory: see
    :func:`dense.bytes_needed`.
    """

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Whether the kernels can solve the program: linear, over paths without caps, on a GPU with
        numba-cuda.
        """
        if not problem.is_linear or problem.is_empty:
            return False
        return (
            problem.ops.is_over_paths
            and problem.largest_share is None
            and problem.ops.backend.name == "cuda"
        )

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        program = problem.solved
        backend = cast(CudaBackend, problem.ops.backend)
        shape = SearchShape.of(program, dtype)
        recorded = backend.spare_buffers.take(shape) or Recorded(program, backend, shape)
        self._recorded = recorded
        weakref.finalize(self, backend.spare_buffers.keep, shape, recorded)
        recorded.begin(program, state)
        self._trivial_bound = recorded.trivial_bound()

    def advance(self, count: int) -> Tensor:
        """Iterate, as in :meth:`PdhgEngine.advance`."""
        self._recorded.buffers.advance(count)
        return self._recorded.buffers.control[kernels.BOUND].cpu()

    def trivial_bound(self) -> Tensor:
        """The bound at prices of 0 (:meth:`PdhgEngine.trivial_bound`)."""
        return self._trivial_bound

    def certify(self) -> Tensor:
        """Certify given prices (:meth:`PdhgEngine.certify`)."""
        return self._recorded.certify()

    def check(self, refill: int = 0, enough: float = math.inf) -> tuple[Tensor, Tensor]:
        """Certify the present point (:meth:`PdhgEngine.check`)."""
        return self._recorded.check(refill)

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """Keep the better results (:meth:`PdhgEngine.keep`)."""
        self._recorded.keep(is_best_allocation, is_best_prices)

    def best(self) -> tuple[Tensor, Tensor]:
        """The best results so far (:meth:`PdhgEngine.best`)."""
        return self._recorded.best()

    def state(self) -> PdhgState:
        """The state for a later start (:meth:`PdhgEngine.state`)."""
        return self._recorded.state()


def lanes(problem: Problem, dtype: torch.dtype) -> int:
    """How many of the matrices of ``problem`` fit the GPU at once.

    Raises:
        InputError: not even one.
    """
    paths, device, backend = (
        problem.paths,
        problem.ops.device,
        cast(CudaBackend, problem.ops.backend),
    )
    matrix_bytes = bytes_needed(paths, dtype)  # without the path set, which is there already
    result_bytes = (
        2 * 8 * paths.leaf.size * problem.batch
    )  # float64 results of all parts, and again when joined
    # Memory of recordings that are not used counts as available, but nothing else can have it.
    if 2 * matrix_bytes * problem.batch > available_on(device):
        backend.spare_buffers.clear()
    return max_batch(
        "solve", matrix_bytes, problem.batch, device, _REMEDY, fixed_bytes=result_bytes
    )
