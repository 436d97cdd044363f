"""How CUDA kernels are compiled and launched: numba-cuda over torch's tensors and streams.

With ``NUMBA_ENABLE_CUDASIM=1`` in the environment before the first import, numba-cuda runs the same
kernels on the CPU, thread by thread in Python, over CPU tensors: slow, and enough to test every
line of them without a GPU.

Numba's kernels were chosen over Triton, whose blocks cannot scan a tree in shared memory, and over
CUDA C++ through CuPy, which nothing but a GPU can run.
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
from teal.runtime.kernel_stamp import stamp

SIMULATED = bool(numba.config.ENABLE_CUDASIM)
# Threads of a block, a power of 2.  In the simulator each is a Python thread, so there are few.
THREADS = 4 if SIMULATED else 128
# Threads of a block that works on links: more, because the last step of an iteration is done by one
# block alone.
LINK_THREADS = 4 if SIMULATED else 512
_MAX_REGISTERS = 64  # per thread, so that _BLOCKS_PER_PROCESSOR blocks fit one processor of the GPU
SHARED_BYTES = 48 << 10  # bytes of shared memory that every GPU grants a block
RESERVED_BYTES = 4 << 10  # bytes of SHARED_BYTES for the kernels' fixed-size arrays
MAX_BLOCKS = 3 if SIMULATED else 2**31 - 1  # blocks of a grid
_BLOCKS_PER_PROCESSOR = 8  # blocks of THREADS threads that one processor holds at once

_F = TypeVar("_F", bound=Callable[..., Any])


def missing() -> str | None:
    """The reason why kernels do not run on this machine, or None."""
    try:
        from numba import cuda
    except ImportError as error:
        return f"numba.cuda ({error}); pip install 'teal-te[cuda]'"
    if SIMULATED:
        return None
    if not _compiler():
        return (
            "numba-cuda, in whose place Numba's own CUDA is not enough; pip install 'teal-te[cuda]'"
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
        _compile_one()
    except Exception as error:  # numba-cuda raises errors of several packages
        return f"a CUDA driver and toolkit that numba can use ({type(error).__name__}: {error})"
    return None


@functools.cache
def _compile_one() -> None:
    """Compile a kernel that does nothing: a numba-cuda that does not fit NumPy fails here, with its
    own error.
    """
    from numba import cuda

    cuda.jit("void()")(_nothing)


def _nothing() -> None:
    return None


def require() -> None:
    """Raise InputError where kernels cannot run."""
    reason = missing()
    if reason is not None:
        raise InputError("CUDA kernels", "", "numba-cuda, a CUDA driver and a GPU", f"no {reason}")


def cuda_kernel(function: _F) -> Any:
    """Compile for the GPU, at the first launch; kept on disk by numba-cuda, under a stamp of all it
    depends on.
    """
    from numba import cuda

    _without_occupancy_warnings()
    kernel = cuda.jit(**({} if SIMULATED else {"cache": True, "max_registers": _MAX_REGISTERS}))(
        function
    )
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if file is not None:
        for name in ("_load_index", "_save_index"):
            setattr(file, name, functools.partial(_stamped, file, getattr(file, name), function))
    return kernel


@functools.cache
def _without_occupancy_warnings() -> None:
    """Switch off numba-cuda's warnings of small grids: those of small networks are small on
    purpose.
    """
    with contextlib.suppress(
        ImportError
    ):  # numba-cuda has settings of its own; Numba's simulator has no warnings
        from numba.cuda.core import config

        config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


@functools.cache
def _compiler() -> str:
    """Version of numba-cuda; "" without it, where nothing is launched."""
    try:
        return importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _stamped(
    file: Any, access: Callable[..., Any], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Access the index of a kernel's files, whose own stamp is that of one source file."""
    file._source_stamp = stamp(function, (_compiler(), _MAX_REGISTERS))
    return access(*arguments)


def device_function(function: _F) -> _F:
    """Compile into the kernels that call it."""
    from numba import cuda

    return cast(_F, cuda.jit(device=True)(function))


def array(tensor: Tensor, unsigned: bool = False) -> Any:
    """A flat view of a contiguous tensor, as kernels take it.

    Args:
        tensor: tensor of any shape.
        unsigned: view its integers as unsigned ones, which torch hardly supports.

    Raises:
        ValueError: the tensor is not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError("kernels take contiguous tensors")
    flat: Any = tensor.detach().view(-1)
    if SIMULATED:
        flat = flat.numpy()
    else:
        from numba import cuda

        flat = cuda.as_cuda_array(flat, sync=False)  # launch() uses torch's stream
    return flat.view(_UNSIGNED[tensor.dtype]) if unsigned else flat


def upload(values: Any, device: torch.device) -> Tensor:
    """Copy an integer array to ``device`` as a tensor of signed integers of the same width."""
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
    """Start ``kernel`` on torch's current stream.

    Args:
        kernel: from :func:`cuda_kernel`.
        device: the GPU.
        blocks: number of blocks in the grid.
        shared: bytes of dynamic shared memory a block.
        arguments: arguments of the kernel.
        threads: number of threads a block.
    """
    if SIMULATED:
        kernel[blocks, threads, 0, shared](*arguments)
        return
    with torch.cuda.device(device):
        stream = _stream(torch.cuda.current_stream(device).cuda_stream, device.index or 0)
        kernel[blocks, threads, stream, shared](*arguments)


@functools.lru_cache(maxsize=64)
def _stream(handle: int, device: int) -> Any:
    """Numba's object for a stream of torch; the handle 0 is the default stream of both."""
    from numba import cuda

    return cuda.external_stream(handle) if handle else 0


def resident_blocks(device: torch.device) -> int:
    """Number of blocks that a GPU runs at once, approximately: so many need scratch space in global
    memory.
    """
    if SIMULATED:
        return MAX_BLOCKS
    return _BLOCKS_PER_PROCESSOR * int(
        torch.cuda.get_device_properties(device).multi_processor_count
    )


# Whether graphs are recorded; false from the first refusal on.
_records = os.environ.get("TEAL_CUDA_GRAPHS") != "0"


class LaunchGraph:
    """A sequence of kernel launches, of Numba and of torch, which is recorded as a CUDA graph and
    replayed without the host in between.

    Args:
        device: the GPU; on the CPU nothing is recorded.
        pool: from :func:`memory_pool`, memory that graphs share which are never replayed at the
            same time; None for memory of its own.
    """

    def __init__(self, device: torch.device, pool: Any | None = None) -> None:
        self._device, self._pool = device, pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._has_run = False

    def run(self, work: Callable[[], object]) -> None:
        """Do the work: launch by launch the first time, so that everything is compiled and loaded;
        recorded the second time, and replayed from then on.

        Args:
            work: launches kernels on the current stream, the same each time.  It reads and writes
                tensors whose memory stays where it is, waits for nothing, and keeps those of its
                new tensors that are read later, but no part of a graph of gradients.  Its Python
                numbers are those of the recording ever after.  No reference to it is kept, so that
                no cycle keeps memory of the GPU.

        Once the driver has refused to record, nothing is recorded any more, and with
        ``TEAL_CUDA_GRAPHS=0`` in the environment nothing ever is.
        """
        if SIMULATED or not _records or self._device.type == "cpu":
            work()
            return
        if not self._has_run:
            # On the stream of recordings too: torch remembers streams of gradients.
            with _on_side_stream(self._device):
                work()
            self._has_run = True
            return
        if self._graph is None:
            with without_collection():  # freeing GPU memory during a recording would break it
                self._record(work)
        if self._graph is None:
            work()
        else:
            self._graph.replay()

    def _record(self, work: Callable[[], object]) -> None:
        global _records
        graph = torch.cuda.CUDAGraph()
        try:
            # Not torch.cuda.graph(): it collects garbage and empties torch's cache, which takes
            # longer than a solve.
            with _on_side_stream(self._device):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
            self._graph = graph
        except Exception as error:  # errors of torch, the driver or Numba
            # torch may take a failed recording for one that is still under way.
            _records = False
            _warn_of_recording(str(error))


@contextlib.contextmanager
def _on_side_stream(device: torch.device) -> Iterator[None]:
    """Launch on the stream of recordings, after what was launched before and before what comes."""
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.device(device), torch.cuda.stream(side):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(side)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs are recorded: torch reuses memory of a pool on the same stream
    alone.
    """
    return torch.cuda.Stream(device)


def memory_pool() -> Any | None:
    """Memory that several graphs share; None in the simulator."""
    return None if SIMULATED else torch.cuda.graph_pool_handle()


@functools.cache
def _warn_of_recording(reason: str) -> None:
    """Warn once of each reason."""
    warnings.warn(
        f"CUDA graphs cannot be recorded, kernels are launched one by one ({reason}); "
        "TEAL_CUDA_GRAPHS=0 records none",
        stacklevel=3,
    )
