"""How Numba kernels are compiled here, in one place: cached on disk, no GIL, a thread-safe layer.

Numba's ``workqueue`` layer breaks when two threads start kernels at once, so it comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

prange = numba.prange
_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(function: _F) -> _F:
    """Compile a kernel that runs on one thread."""
    return cast(_F, numba.njit(cache=True, nogil=True)(function))


def parallel_kernel(function: _F) -> _F:
    """Compile a kernel whose ``prange`` loops run on all threads; it must not be reentered from itself."""
    return cast(_F, numba.njit(cache=True, nogil=True, parallel=True)(function))
