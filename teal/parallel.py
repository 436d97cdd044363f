"""How Numba kernels are compiled here, in one place: cached on disk, no GIL, a thread-safe layer.

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


_SMALL = 200_000  # scalar operations, about 0.1 ms: waking a second thread is not worth it


@contextlib.contextmanager
def threads_for(operations: int, *, torch_too: bool = False) -> Iterator[None]:
    """Run parallel kernels of so few operations on the calling thread alone.

    A team that is woken for microseconds costs more than it does, and where other processes hold the
    cores each such kernel waits for the scheduler: measured beside a training run, inference on B4
    took 1 s in place of 8 ms.

    Args:
        operations: of one kernel, about.
        torch_too: hold torch to one thread as well; a setting of the whole process, so only around
            work that is done as one piece.
    """
    if operations >= _SMALL:
        yield
        return
    before, torch_before = numba.get_num_threads(), 0
    numba.set_num_threads(1)
    if torch_too:
        import torch

        torch_before = torch.get_num_threads()
        torch.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(before)
        if torch_before:
            torch.set_num_threads(torch_before)


def limit_threads(count: int) -> None:
    """Let kernels and torch use no more than so many threads, where several processes share the cores."""
    import torch

    torch.set_num_threads(max(1, count))
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))


def kernel(function: _F) -> _F:
    """Compile a kernel that runs on one thread."""
    return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined_kernel(function: _F) -> _F:
    """Compile into whoever calls it: for a few lines that take many arrays, whose passing would cost more."""
    return cast(_F, numba.njit(inline="always", error_model="numpy")(function))


def parallel_kernel(function: _F) -> _F:
    """Compile a kernel whose ``prange`` loops run on all threads; it must not be reentered from itself."""
    return cast(_F, numba.njit(cache=True, nogil=True, parallel=True, error_model="numpy")(function))
