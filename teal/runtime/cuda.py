"""Compilation and launch of CUDA kernels: numba-cuda over torch's tensors and streams.

With ``NUMBA_ENABLE_CUDASIM=1`` in the environment before the first import, numba-cuda runs the same
kernels on the CPU, thread by thread in Python, over CPU tensors: slow, but sufficient to test every
line without a GPU.

Numba's kernels were chosen over Triton, whose blocks cannot scan a tree in shared memory, and over
CUDA C++ through CuPy, which needs a GPU to run.  Entry points: :func:`cuda_kernel`,
:func:`launch`, :class:`LaunchGraph`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.runtime.collection import without_collection
from teal.runtime.kernel_fingerprint import fingerprint

SIMULATED = bool(numba.config.ENABLE_CUDASIM)
# Threads of a block, a power of 2; few in the simulator, where each is a Python thread.
THREADS = 4 if SIMULATED else 128
# Threads of a block of the kernels over links: more, because a single block runs the last step of
# an iteration.
LINK_THREADS = 4 if SIMULATED else 512
# Maximum registers of a thread, so that _BLOCKS_PER_PROCESSOR blocks fit on one multiprocessor.
_MAX_REGISTERS = 64
# Shared memory of a block that every GPU supports.
SHARED_BYTES = 48 << 10
# Part of SHARED_BYTES for the kernels' fixed-size arrays.
RESERVED_BYTES = 4 << 10
# Maximum number of blocks of a grid.
MAX_BLOCKS = 3 if SIMULATED else 2**31 - 1
# Blocks of THREADS threads that one multiprocessor holds at once.
_BLOCKS_PER_PROCESSOR = 8

_F = TypeVar("_F", bound=Callable[..., Any])


def missing() -> str | None:
    """Return the requirement of CUDA kernels that this machine lacks; None if it has all."""
    try:
        from numba import cuda
    except ImportError as error:
        return f"numba.cuda ({error}); pip install 'teal-te[cuda]'"
    if SIMULATED:
        return None
    # The package, then GPU and driver, then a kernel as a test.
    if not _compiler_version():
        return (
            "numba-cuda (Numba's built-in CUDA target does not suffice); pip install "
            "'teal-te[cuda]'"
        )
    if not torch.cuda.is_available():
        return "a GPU that torch sees (torch.cuda.is_available() is false)"
    try:
        if not cuda.is_available():
            return (
                "a CUDA driver and toolkit (libNVVM) that numba finds (numba.cuda.is_available() "
                "is false)"
            )
        cuda.current_context()
        _compile_empty_kernel()
    except Exception as error:
        # numba-cuda raises errors of several packages.
        return f"a CUDA driver and toolkit that numba can use ({type(error).__name__}: {error})"
    return None


@functools.cache
def _compile_empty_kernel() -> None:
    """Compile an empty kernel, which fails if numba-cuda is incompatible with NumPy."""
    from numba import cuda

    cuda.jit("void()")(_empty_kernel)


# Compiled to test the compiler.
def _empty_kernel() -> None:
    return None


def require() -> None:
    """Raise InputError if CUDA kernels cannot run on this machine."""
    requirement = missing()
    if requirement is not None:
        raise InputError.invalid("CUDA kernels", "", f"this machine lacks {requirement}")


def cuda_kernel(function: _F) -> Any:
    """Return a GPU kernel that is compiled at its first launch, and cached on disk by numba-cuda
    under Teal's fingerprint of it.
    """
    from numba import cuda

    _without_occupancy_warnings()
    kernel = cuda.jit(**({} if SIMULATED else {"cache": True, "max_registers": _MAX_REGISTERS}))(
        function
    )
    # Replace the access to numba-cuda's index of cached files; the simulator has none.
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if file is not None:
        for name in ("_load_index", "_save_index"):
            setattr(
                file,
                name,
                functools.partial(_with_fingerprint, file, getattr(file, name), function),
            )
    return kernel


@functools.cache
def _without_occupancy_warnings() -> None:
    """Disable numba-cuda's warnings of small grids, which are intended for small networks."""
    # numba-cuda has settings of its own; Numba's simulator has no warnings.
    with contextlib.suppress(ImportError):
        from numba.cuda.core import config

        config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


@functools.cache
def _compiler_version() -> str:
    """Return the version of the package numba-cuda; "" if it is not installed."""
    try:
        return importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _with_fingerprint(
    cache_file: Any, index_access: Callable[..., Any], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function of numba-cuda's disk cache after replacing the stamp of the source by Teal's
    fingerprint, since numba-cuda's stamp covers one source file only.

    Args:
        cache_file: numba-cuda's object of the cache files of a kernel.
        index_access: function that loads or saves their index.
        function: the kernel's Python function.
        arguments: arguments of ``index_access``.
    """
    cache_file._source_stamp = fingerprint(function, (_compiler_version(), _MAX_REGISTERS))
    return index_access(*arguments)


def device_function(function: _F) -> _F:
    """Decorate a function: compile it as a device function, which CUDA kernels call or inline."""
    from numba import cuda

    return cast(_F, cuda.jit(device=True)(function))


def array(tensor: Tensor, unsigned: bool = False) -> Any:
    """Return a flat view of a contiguous tensor, as a kernel argument.

    Args:
        tensor: tensor of any shape.
        unsigned: view integers as unsigned, which torch hardly supports.

    Raises:
        ValueError: the tensor is not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} is not contiguous: call contiguous() before "
            "passing it to a kernel"
        )
    flat: Any = tensor.detach().view(-1)
    if SIMULATED:
        flat = flat.numpy()
    else:
        from numba import cuda

        # launch() uses torch's stream.
        flat = cuda.as_cuda_array(flat, sync=False)
    return flat.view(_UNSIGNED[tensor.dtype]) if unsigned else flat


def upload(values: Any, device: torch.device) -> Tensor:
    """Copy a NumPy array of integers to ``device`` as a tensor of the same shape; wider integers
    than a byte become signed, with the same bits.
    """
    # Replace u by i in a type such as u2: the signed type of the same width.
    signed = (
        values.view(values.dtype.str.replace("u", "i")) if values.dtype.itemsize > 1 else values
    )
    return torch.from_numpy(np.ascontiguousarray(signed)).to(device)


_UNSIGNED = {torch.int16: np.uint16, torch.int32: np.uint32, torch.uint8: np.uint8}


def launch(
    kernel: Any,
    device: torch.device,
    blocks: int,
    shared: int,
    *arguments: Any,
    threads: int = THREADS,
) -> None:
    """Launch ``kernel`` on torch's current stream.

    Args:
        kernel: kernel of :func:`cuda_kernel`.
        device: the GPU.
        blocks: number of blocks of the grid.
        shared: bytes of dynamic shared memory per block.
        arguments: arguments of the kernel.
        threads: number of threads per block.
    """
    if SIMULATED:
        kernel[blocks, threads, 0, shared](*arguments)
        return
    with torch.cuda.device(device):
        stream = _stream(torch.cuda.current_stream(device).cuda_stream, device.index or 0)
        kernel[blocks, threads, stream, shared](*arguments)


@functools.lru_cache(maxsize=64)
def _stream(handle: int, device: int) -> Any:
    """Return Numba's object for a CUDA stream of torch; handle 0 is the default stream."""
    # The device only distinguishes equal handles of several GPUs in the cache.
    from numba import cuda

    return cuda.external_stream(handle) if handle else 0


def resident_blocks(device: torch.device) -> int:
    """Return the approximate number of blocks that a GPU runs at once, each of which needs scratch
    space.
    """
    if SIMULATED:
        return MAX_BLOCKS
    return _BLOCKS_PER_PROCESSOR * int(
        torch.cuda.get_device_properties(device).multi_processor_count
    )


# Whether graphs are recorded; false after the first failure.
_can_record = os.environ.get("TEAL_CUDA_GRAPHS") != "0"


class LaunchGraph:
    """CUDA graph of a sequence of kernel launches, of Numba and torch, replayed without the host.

    Args:
        device: the GPU; on the CPU nothing is recorded.
        pool: memory pool of :func:`memory_pool`, shared by graphs that are never replayed at the
            same time; None for a private pool.
    """

    def __init__(self, device: torch.device, pool: Any | None = None) -> None:
        self._device = device
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._has_run = False

    def run(self, work: Callable[[], object]) -> None:
        """Run ``work``: directly the first time (which compiles and loads the kernels), recorded
        the second time, and replayed afterwards.

        After the driver has failed to record once, or with ``TEAL_CUDA_GRAPHS=0`` in the
        environment, nothing is recorded and each call runs the work.

        Args:
            work: function that launches the same kernels on the current stream in each call.  Its
                tensors stay at the same addresses, it does not synchronise, it keeps a reference to
                each new tensor that is read later, and it builds no autograd graph.  Its Python
                scalars keep the values of the recording.  The graph keeps no reference to ``work``,
                since a reference cycle would keep GPU memory alive.
        """
        if SIMULATED or not _can_record or self._device.type == "cpu":
            work()
            return
        if not self._has_run:
            # Use the recording stream already now, since torch remembers the streams of gradients.
            with _on_side_stream(self._device):
                work()
            self._has_run = True
            return
        if self._graph is None:
            # Freeing GPU memory during a recording would break it.
            with without_collection():
                self._record(work)
        if self._graph is None:
            work()
        else:
            self._graph.replay()

    def _record(self, work: Callable[[], object]) -> None:
        """Record the launches of ``work`` as a CUDA graph; on failure disable recording, with a
        warning.
        """
        global _can_record
        graph = torch.cuda.CUDAGraph()
        try:
            # torch.cuda.graph() would also collect garbage and empty torch's cache, which takes
            # longer than a solve.
            with _on_side_stream(self._device):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
            self._graph = graph
        except Exception as error:
            # torch, the driver and Numba raise different errors.  Recording stays disabled, since
            # torch may regard a failed recording as still active.
            _can_record = False
            _warn_no_graphs(str(error))


@contextlib.contextmanager
def _on_side_stream(device: torch.device) -> Iterator[None]:
    """Launch the kernels of the block on the recording stream, after earlier and before later work
    of the current stream.
    """
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.device(device), torch.cuda.stream(side):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(side)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which graphs are recorded: torch reuses a pool's memory on one stream
    only.
    """
    return torch.cuda.Stream(device)


def memory_pool() -> Any | None:
    """Return a GPU memory pool that several CUDA graphs share; None in the simulator."""
    return None if SIMULATED else torch.cuda.graph_pool_handle()


@functools.cache
def _warn_no_graphs(reason: str) -> None:
    """Warn that CUDA graphs cannot be recorded; a repeated reason warns no second time."""
    warnings.warn(
        f"CUDA graphs cannot be recorded ({reason}): kernels are launched one by one, which is "
        "slower; TEAL_CUDA_GRAPHS=0 disables recording and this warning",
        stacklevel=3,
    )
