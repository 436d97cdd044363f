"""How Numba kernels are compiled: cached on disk, without the GIL, over a thread-safe threading layer.

Numba's ``workqueue`` layer breaks when two threads start kernels at once, so it comes last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numba

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

prange = numba.prange
_F = TypeVar("_F", bound=Callable[..., Any])


_MIN_PARALLEL_OPERATIONS = 200_000  # scalar operations, about 0.1 ms: less work is not worth waking a second thread


@contextlib.contextmanager
def threads_for(operations: int, *, torch_too: bool = False) -> Iterator[None]:
    """Run the parallel kernels of the block on the calling thread alone if each has few operations.

    Waking a team of threads costs more than a kernel of microseconds, and where other processes hold the
    cores each such kernel waits for the scheduler: measured beside a training run, inference on B4
    took 1 s in place of 8 ms.

    Args:
        operations: scalar operations of one kernel call, approximately.
        torch_too: hold torch to one thread as well.  That setting belongs to the whole process, so use it only
            around work that no other thread interleaves with.
    """
    if operations >= _MIN_PARALLEL_OPERATIONS:
        yield
        return
    numba_threads, torch_threads = numba.get_num_threads(), 0
    numba.set_num_threads(1)
    if torch_too:
        import torch

        torch_threads = torch.get_num_threads()
        torch.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(numba_threads)
        if torch_threads:
            torch.set_num_threads(torch_threads)


def limit_threads(count: int) -> None:
    """Let kernels and torch use at most ``count`` threads: for processes that share the cores with others."""
    import torch

    torch.set_num_threads(max(1, count))
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))


def kernel(function: _F) -> _F:
    """Compile a kernel that runs on one thread."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined_kernel(function: _F) -> _F:
    """Compile into each caller: for a few lines that take many arrays, whose passing would cost more than they do."""
    return cast(_F, numba.njit(inline="always", error_model="numpy")(function))


def parallel_kernel(function: _F) -> _F:
    """Compile a kernel whose ``prange`` loops run on all threads; it must not call itself."""
    return cast(_F, numba.njit(cache=True, nogil=True, parallel=True, error_model="numpy")(function))
