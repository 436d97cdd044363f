"""GPU engine of PDHG: replays recorded launches.

:class:`CudaEngine` adapts :class:`teal.solvers.pdhg.cuda.recorded.Recorded` to the engine
interface; :func:`lanes` gives the batch size that fits the memory.
"""

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
from teal.solvers.result import SolveState

_REMEDY = "use fewer paths per demand (--num-paths), or only the pairs with traffic"


class CudaEngine:
    """PDHG on a GPU; computes the same iteration as :class:`teal.solvers.pdhg.plain.PlainEngine`.

    Implements :class:`teal.solvers.pdhg.engine.PdhgEngine`.  Iterations, set-up, gap checks and the
    incumbent are recorded GPU launches (:class:`teal.solvers.pdhg.cuda.recorded.Recorded`).
    :func:`teal.solvers.pdhg.dense.bytes_needed` estimates the memory.

    Args:
        problem: B matrices.
        state: start of the iteration; None for zero flow and prices.
        dtype: type of arrays over paths.
    """

    @staticmethod
    def accepts(problem: Problem) -> bool:
        """Whether the kernels support the program: linear, over paths without caps, on a GPU with
        numba-cuda.
        """
        if not problem.is_linear or problem.is_empty:
            return False
        return (
            problem.ops.is_over_paths
            and problem.max_share is None
            and problem.ops.backend.name == "cuda"
        )

    def __init__(self, problem: Problem, state: SolveState | None, dtype: torch.dtype) -> None:
        program = problem.solved
        backend = cast(CudaBackend, problem.ops.backend)
        shape = SearchShape.of(program, dtype)
        # Reuse the recording of an earlier solve of this shape, and hand it on after this one.
        recorded = backend.spare_buffers.take(shape) or Recorded(program, backend, shape)
        self._recorded = recorded
        weakref.finalize(self, backend.spare_buffers.keep, shape, recorded)
        recorded.begin(program, state)
        self._trivial_bound = recorded.trivial_bound()

    def advance(self, num_iterations: int) -> Tensor:
        """Run iterations; return (B,) dual bounds before the last one, with rounding errors."""
        self._recorded.buffers.advance(num_iterations)
        return self._recorded.buffers.control[kernels.BOUND].cpu()

    def trivial_bound(self) -> Tensor:
        """Return the (B,) certified dual bounds at zero prices."""
        return self._trivial_bound

    def certify(self) -> Tensor:
        """Return (B,) certified dual bounds at the prices of the last PDHG step."""
        return self._recorded.certify()

    def check(self, refill: int = 0, sufficient_ratio: float = math.inf) -> tuple[Tensor, Tensor]:
        """Run a gap check; return (B,) values and (B,) certified dual bounds.

        They are those of the last PDHG step, with its splits projected to feasible ones.

        Args:
            refill: number of rounds that allocate unused capacity to unserved demand.
            sufficient_ratio: unused; recorded rounds do not end early.
        """
        return self._recorded.check(refill)

    def keep(self, has_new_allocation: Tensor, has_new_prices: Tensor) -> None:
        """Replace the incumbent of some matrices by results of the last check.

        Args:
            has_new_allocation: (B,) bool, matrices with a new incumbent allocation.
            has_new_prices: (B,) bool, matrices with new incumbent prices.
        """
        self._recorded.keep(has_new_allocation, has_new_prices)

    def incumbent(self) -> tuple[Tensor, Tensor]:
        """Return the incumbent splits (B, D, K) and prices (B, E)."""
        return self._recorded.incumbent()

    def state(self) -> SolveState:
        """Return splits (B, D, K) and prices (B, E) of the last PDHG step, feasible or not."""
        return self._recorded.state()


def lanes(problem: Problem, dtype: torch.dtype) -> int:
    """Return the number of matrices of ``problem`` that fit in GPU memory at once.

    Raises:
        InputError: a single matrix exceeds the memory.
    """
    paths = problem.paths
    device = problem.ops.device
    backend = cast(CudaBackend, problem.ops.backend)
    # Memory of one matrix; the path set is already on the GPU.
    matrix_bytes = bytes_needed(paths, dtype)
    # float64 results of all parts, and again when joined.
    result_bytes = 2 * 8 * paths.leaf.size * problem.batch
    # Buffers of unused CUDA graphs count as available, but only graphs can use them: free them.
    if 2 * matrix_bytes * problem.batch > available_on(device):
        backend.spare_buffers.clear()
    return max_batch(
        "solve", matrix_bytes, problem.batch, device, _REMEDY, fixed_bytes=result_bytes
    )
