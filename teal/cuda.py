"""How CUDA kernels are compiled and launched here, in one place: numba-cuda, over torch's tensors and streams.

Imported only where a GPU is used.  With ``NUMBA_ENABLE_CUDASIM=1`` in the environment before the first import,
numba-cuda runs the same kernels on the CPU, thread by thread in Python, over CPU tensors: slow, and enough to
test every line of them without a GPU.

Numba's kernels were chosen over Triton, whose blocks cannot scan a tree in shared memory, and over CUDA C++
through CuPy, which nothing but a GPU can run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError

SIMULATED = bool(numba.config.ENABLE_CUDASIM)
THREADS = 4 if SIMULATED else 128  # of a block, a power of 2; the simulator starts a Python thread for each
_REGISTERS = 64  # of a thread at most: eight blocks then fit a processor, and levels of a trie are narrow
SHARED_BYTES = 48 << 10  # that any GPU grants a block
RESERVED_BYTES = 4 << 10  # of it, for what kernels hold besides
MOST_BLOCKS = 3 if SIMULATED else 2**31 - 1  # of a grid
_BLOCKS_PER_PROCESSOR = 8

numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small networks make small grids
_F = TypeVar("_F", bound=Callable[..., Any])


def missing() -> str | None:
    """What keeps kernels from running here, or None."""
    try:
        from numba import cuda
    except ImportError as error:
        return f"numba.cuda ({error}); pip install 'teal-te[cuda]'"
    if SIMULATED:
        return None
    if not torch.cuda.is_available():
        return "a GPU that torch sees (torch.cuda.is_available() is false)"
    try:
        if not cuda.is_available():
            return "a CUDA driver that numba finds (numba.cuda.is_available() is false)"
        cuda.current_context()
    except Exception as error:  # numba-cuda raises many kinds, of several packages
        return f"a CUDA driver and toolkit that numba can use ({type(error).__name__}: {error})"
    return None


def require() -> None:
    """Raise InputError where kernels cannot run."""
    reason = missing()
    if reason is not None:
        raise InputError("CUDA kernels", "", "numba-cuda, a CUDA driver and a GPU", f"no {reason}")


def cuda_kernel(function: _F) -> Any:
    """Compile for the GPU, at the first launch; cached on disk."""
    from numba import cuda

    return cuda.jit(**({} if SIMULATED else {"cache": True, "max_registers": _REGISTERS}))(function)


def device_function(function: _F) -> _F:
    """Compile into the kernels that call it."""
    from numba import cuda

    return cast(_F, cuda.jit(device=True)(function))


def array(tensor: Tensor, unsigned: bool = False) -> Any:
    """A flat view of a contiguous tensor, as kernels take it.

    Args:
        unsigned: read integers as unsigned; torch's support of those is thin.
    """
    if not tensor.is_contiguous():
        raise ValueError("kernels take contiguous tensors")
    flat: Any = tensor.detach().view(-1)
    if SIMULATED:
        flat = flat.numpy()
    else:
        from numba import cuda

        flat = cuda.as_cuda_array(flat, sync=False)  # one stream for both: see launch
    return flat.view(_UNSIGNED[tensor.dtype]) if unsigned else flat


def upload(values: Any, device: torch.device) -> Tensor:
    """An integer array as a tensor of as many bits."""
    signed = values.view(values.dtype.str.replace("u", "i")) if values.dtype.itemsize > 1 else values
    return torch.from_numpy(np.ascontiguousarray(signed)).to(device)


_UNSIGNED = {torch.int16: np.uint16, torch.int32: np.uint32, torch.uint8: np.uint8}


def launch(kernel: Any, device: torch.device, blocks: int | tuple[int, int], shared: int, *arguments: Any) -> None:
    """Start ``kernel`` on torch's current stream.

    Args:
        blocks: in the grid, of :data:`THREADS` threads each.
        shared: bytes of dynamic shared memory.
    """
    if SIMULATED:
        kernel[blocks, THREADS, 0, shared](*arguments)
        return
    from numba import cuda

    with torch.cuda.device(device):
        handle = torch.cuda.current_stream(device).cuda_stream
        stream = cuda.external_stream(handle) if handle else cuda.default_stream()
        kernel[blocks, THREADS, stream, shared](*arguments)


def resident_blocks(device: torch.device) -> int:
    """About how many blocks a device works on at once: what scratch in global memory is needed for."""
    if SIMULATED:
        return MOST_BLOCKS
    return _BLOCKS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


class Graph:
    """A sequence of launches, recorded once and replayed without the host in between."""

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        """Record ``work``, which launches on the current stream and must not synchronise.

        It runs once before that, so that everything is compiled and loaded.  Where the driver refuses to record,
        replays are plain calls.
        """
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        if SIMULATED:
            return
        work()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            # Not torch.cuda.graph(): it collects garbage and empties torch's cache, which takes longer than a solve.
            with torch.cuda.device(device), torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
            self._graph = graph
        except RuntimeError as error:
            warnings.warn(f"the driver records no launches, each one is made anew ({error})", stacklevel=2)
        torch.cuda.current_stream(device).wait_stream(side)

    def replay(self) -> None:
        """Once more."""
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()
