"""Compilation of Numba kernels, cached on disk and without the GIL, and their threads.

Decorators: :func:`kernel`, :func:`inner_kernel`, and for kernels over independent parts
:func:`parallel_kernel` (on Numba's thread team) and :func:`partitioned_kernel` (on a thread pool).
:func:`threads_for` decides whether kernels in a block use one or all threads.  Numba's
``workqueue`` threading layer breaks when two threads start kernels at once, so it comes last.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import math
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numba
import numpy as np

from teal.deprecated import with_old_keywords
from teal.runtime.collection import without_collection
from teal.runtime.kernel_cache import KernelCache, is_interpreting
from teal.runtime.openmp import torch_spins_long
from teal.runtime.thread_team import parallel_for, start_team

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def _load_own_openmp() -> None:
    """Make Numba load its own OpenMP library instead of the copy that torch has loaded.

    torch exports the functions of its copy to all libraries that are loaded later.  That copy has
    read the environment before Teal could set a short spin time, so that its idle threads would
    occupy the cores for milliseconds.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        # A build of Numba without it.
        pass
    finally:
        sys.setdlopenflags(flags)


# Linux with glibc.
if torch_spins_long() and hasattr(os, "RTLD_DEEPBIND"):
    _load_own_openmp()

# Converts arguments that a kernel passes to another one: constants and tuple lengths have literal
# types, each of which would compile the other kernel once more.
as_int64 = cast(Callable[[int], int], np.int64)
_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")


# Thread-local state of threads_for and _torch_threads.
_state = threading.local()
# Minimum number of scalar operations of a kernel for a second thread, about 0.15 ms of work.
# Measured on two cores, time with two threads over time with one: 1.5 at 70,000 and 140,000
# operations, 1.1 at 280,000, 0.9 at 330,000.
_MIN_PARALLEL_OPERATIONS = 300_000
# Minimum number of operations per thread of a partitioned kernel, about 0.25 ms of work: a helper
# wakes in 0.1 to 0.3 ms (measured).
_MIN_OPERATIONS_PER_HELPER = 500_000
# Interval between two samples of the machine's load, each of which takes about 10 us.
_LOAD_SAMPLE_INTERVAL_S = 0.02
# Minimum number of entries of a tensor for which torch gains from a second thread.
_MIN_TORCH_ENTRIES = 1_000_000


@with_old_keywords
@contextlib.contextmanager
def threads_for(
    operations: int, *, torch_too: bool = False, min_operations: int = _MIN_PARALLEL_OPERATIONS
) -> Iterator[None]:
    """Run the parallel kernels of the block on one thread if each has few operations, or if other
    processes use all cores.

    Waking a thread team takes longer than a kernel of microseconds, and while other processes use
    the cores each wake-up waits for the scheduler: beside a training run, inference on B4 took 1 s
    instead of 8 ms.  Large kernels are slower then, too, since a team waits at the end of each loop
    for its last thread.

    Args:
        operations: approximate number of scalar operations of one kernel call.
        torch_too: also limit torch to one thread.  That setting is process-wide, so use it only
            while no other thread calls torch.
        min_operations: minimum number of operations for all threads; larger for rare calls.
    """
    numba_threads = numba.get_num_threads()
    previous_operations = _operations()
    _state.operations = operations
    # A large kernel uses all threads, unless other processes use all cores.  With one thread there
    # is nothing to limit, so the load is not sampled.
    may_use_all = is_large(operations, min_operations) and (
        numba_threads == 1 or not _cores_are_taken()
    )
    # A nested block on one thread already has this setting.
    is_nested = numba_threads == 1 and not torch_too
    is_limited = not (may_use_all or is_nested)
    if is_limited:
        numba.set_num_threads(1)
    try:
        with _torch_on_one_thread() if is_limited and torch_too else contextlib.nullcontext():
            yield
    finally:
        _state.operations = previous_operations
        if is_limited:
            numba.set_num_threads(numba_threads)


def _operations() -> float:
    """Return ``operations`` of the innermost enclosing :func:`threads_for` block; infinity outside
    any.
    """
    return float(getattr(_state, "operations", math.inf))


@contextlib.contextmanager
def quiet_torch(numbers: int) -> Iterator[None]:
    """Limit torch to one thread in the block, unless its tensors are large.

    Operations on smaller tensors take less time than waking a second thread, especially where other
    processes use the cores (``benchmarks/busy_machine.py``).

    Args:
        numbers: number of entries of the largest tensors in the block.
    """
    if numbers >= _MIN_TORCH_ENTRIES:
        # Restore the full number of threads, in case that a limit was inherited.
        _torch_threads()
        yield
        return
    with _torch_on_one_thread():
        yield


@contextlib.contextmanager
def _torch_on_one_thread() -> Iterator[None]:
    """Limit torch to one thread in the block; afterwards it has as many as before."""
    import torch

    threads = _torch_threads()
    if threads == 1:
        yield
        return
    with _single_threaded_torch.lock:
        _single_threaded_torch.num_blocks += 1
        _single_threaded_torch.threads_before = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        with _single_threaded_torch.lock:
            _single_threaded_torch.num_blocks -= 1


def _torch_threads() -> int:
    """Return the number of torch's threads for operations of this thread.

    A new thread inherits the number that any thread set last, which is 1 while another thread has
    limited it.  At its first call this thread then restores the number before that limit.
    """
    import torch

    if not getattr(_state, "has_torch_threads", False):
        with _single_threaded_torch.lock:
            _state.has_torch_threads = True
            if _single_threaded_torch.num_blocks and torch.get_num_threads() == 1:
                torch.set_num_threads(_single_threaded_torch.threads_before)
    return torch.get_num_threads()


class _SingleThreadedTorch:
    """State shared by the threads in :func:`_torch_on_one_thread`.

    Attributes:
        lock: lock of the other attributes.
        num_blocks: number of active blocks.
        threads_before: number of torch's threads before the latest block.
    """

    lock = threading.Lock()
    num_blocks = 0
    threads_before = 1


_single_threaded_torch = _SingleThreadedTorch()


def is_large(operations: int, min_operations: int = _MIN_PARALLEL_OPERATIONS) -> bool:
    """Return whether a kernel with this number of scalar operations gains from a second thread."""
    return operations >= min_operations


def _cores_are_taken() -> bool:
    """Return whether other runnable threads use all cores; false where the load is unknown."""
    now = time.monotonic()
    if now > _load_sample.until:
        _load_sample.until = now + _LOAD_SAMPLE_INTERVAL_S
        _load_sample.is_taken = _running_threads() - 1 >= (os.cpu_count() or 1)
    return _load_sample.is_taken


def _running_threads() -> int:
    """Return the number of runnable threads of the machine, including this one; 0 if unknown."""
    try:
        # The fourth field is RUNNING/ALL.
        with open("/proc/loadavg", encoding="ascii") as file:
            return int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0


class _LoadSample:
    """Last sample of the machine's load.

    Attributes:
        until: time of the next sample by ``time.monotonic()``.
        is_taken: whether other threads used all cores.
    """

    until = -math.inf
    is_taken = False


_load_sample = _LoadSample()


def limit_threads(count: int) -> None:
    """Limit the kernels and torch of this process to ``count`` threads, or to 1 if that is more,
    for processes that share the cores.
    """
    import torch

    torch.set_num_threads(max(1, count))
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))


def kernel(function: _F) -> _F:
    """Decorate a function: compile it as a kernel that runs on the calling thread."""
    return cast(_F, _compile(function))


def inner_kernel(function: _F) -> _F:
    """Decorate a function: compile it as a kernel that only kernels call.  Omitting the wrapper for
    Python saves a fifth of the compilation.
    """
    return cast(_F, _compile(function, no_cpython_wrapper=True))


def summing_kernel(function: _F) -> _F:
    """Decorate a function: compile it as an inner kernel whose sums may be reordered, so that they
    are vectorised.
    """
    return cast(_F, _compile(function, no_cpython_wrapper=True, fastmath={"reassoc"}))


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    """Return Numba's dispatcher of a function, which compiles it at the first call with new
    argument types and caches the machine code on disk (:mod:`teal.runtime.kernel_cache`).

    Args:
        function: Python function of the kernel.
        options: options of ``numba.njit`` beside the usual ones.
    """
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options}
    dispatcher = numba.njit(**options)(function)
    # With NUMBA_DISABLE_JIT it is a Python function without a cache.
    if hasattr(dispatcher, "_cache"):
        dispatcher._cache = KernelCache(function, sorted(options.items()))
        dispatcher._compile_for_args = functools.partial(
            _select_function, dispatcher, dispatcher._compile_for_args
        )
    return dispatcher


def _select_function(dispatcher: Any, compile_for: Callable[..., Any], *arguments: Any) -> Any:
    """Return the function to call for arguments of new types: compiled code, or, within a block of
    :func:`interpreting`, the Python function.

    Args:
        dispatcher: Numba's dispatcher of the kernel.
        compile_for: Numba's function that compiles for arguments of these types and returns the
            compiled code.
        arguments: arguments of the call.
    """
    if is_interpreting() and dispatcher._cache.is_better_interpreted(
        tuple(map(dispatcher.typeof_pyval, arguments))
    ):
        return _as_python(dispatcher.py_func)
    start_team()
    # A compilation creates millions of objects that live until its end; garbage collection would
    # take a tenth of its time.
    with without_collection():
        return compile_for(*arguments)


@functools.cache
def _as_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function of a kernel, in which called kernels are replaced by their Python
    functions.

    An inner kernel that is already compiled in this process has no wrapper for Python: calling it
    from Python would crash.
    """
    # A copy of the function with its own globals, in which callees are replaced.
    python_function = types.FunctionType(
        function.__code__,
        dict(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    # Replace the kernels among the globals that the function reads; loops over parts run serially.
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        # Only kernels have a Python function ``py_func``.
        callee = getattr(value, "py_func", None)
        if value is parallel_for:
            python_function.__globals__[name] = _run_serially
        elif callee is not None:
            python_function.__globals__[name] = (
                python_function if callee is function else _as_python(callee)
            )
    return python_function


def inlined_kernel(function: _F) -> _F:
    """Decorate a function: compile it as a kernel that is inlined into each kernel that calls it.
    Suits a few lines with many array arguments, whose passing would take longer than the lines.
    """
    return cast(_F, numba.njit(inline="always", error_model="numpy")(function))


def _run_serially(function: Any, count: int, arguments: tuple[Any, ...]) -> None:
    """Call a kernel of one part for all parts in Python, in place of
    :func:`teal.runtime.thread_team.parallel_for`.

    Args:
        function: compiled kernel of one part.
        count: number of parts.
        arguments: arguments of the kernel after the part.
    """
    part_function = _as_python(function.py_func)
    for part in range(count):
        part_function(part, *arguments)


class _ParallelKernel:
    """Kernel of independent parts, divided equally among the threads of Numba's team.

    Args:
        function: Python function of one part: ``function(part, *arguments)``.
        counted: name of the argument that determines the number of parts.
        count: function from that argument to the number of parts.

    Attributes:
        part: compiled kernel of one part, which other kernels pass to ``parallel_for``.
    """

    def __init__(
        self, function: Callable[..., Any], counted: str, count: Callable[[Any], int]
    ) -> None:
        self.py_func = function
        self.part = inner_kernel(function)
        self._count_parts = count
        # Position among the arguments of a call, which omit the part.
        self._counted_position = _position_of(counted, function) - 1
        self._dispatcher = kernel(_on_team(self.part, function))
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> None:
        """Compute all parts; ``arguments`` are those after the part."""
        self._dispatcher(self._count_parts(arguments[self._counted_position]), arguments)

    @property
    def dispatchers(self) -> tuple[Any]:
        """Tuple of the only Numba dispatcher of this kernel."""
        return (self._dispatcher,)


def _position_of(argument: str, function: Callable[..., Any]) -> int:
    """Return the position of an argument, from 0, among the parameters of a function."""
    return list(inspect.signature(function).parameters).index(argument)


def _on_team(part_kernel: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function ``run(count, arguments)`` that runs all parts of a kernel on the thread
    team.

    Args:
        part_kernel: compiled kernel of one part.
        function: its Python function; ``run`` gets its module and name, by which the disk cache
            identifies kernels.
    """

    def run(count: int, arguments: tuple[Any, ...]) -> None:
        parallel_for(part_kernel, count, arguments)

    run.__module__ = function.__module__
    run.__qualname__ = f"{function.__qualname__}_on_team"
    return run


def parallel_kernel(
    counted: str, count: Callable[[Any], int] = len
) -> Callable[[Callable[Concatenate[int, _P], None]], Callable[_P, None]]:
    """Compile a kernel of one of many independent parts; a call computes all parts.

    The function's first argument is the part; callers omit it.  It must be a module-level function
    without recursion and exceptions, called with positional arguments.  Other kernels call
    ``parallel_for(function.part, count, arguments)``.

    Args:
        counted: name of the argument that determines the number of parts.
        count: function from that argument to the number of parts.
    """
    return lambda function: cast(Callable[_P, None], _ParallelKernel(function, counted, count))


class _PartitionedKernel:
    """Kernel over a range of independent parts, compiled once, on a thread pool.

    A call divides the parts into equal ranges: the calling thread computes the first one, threads
    of the pool the others.  These wake more slowly than the threads of Numba's team, so this suits
    long or rare calls.  An exception in a part is raised in the calling thread.

    Args:
        function: Python function of a range: ``function(begin, end, *arguments)``.
        counted: name of the argument that determines the number of parts.
        count: function from that argument to the number of parts.
    """

    def __init__(
        self, function: Callable[..., Any], counted: str, count: Callable[[Any], int]
    ) -> None:
        self.py_func = function
        self._count_parts = count
        # Position among the arguments of a call, which omit the two ends of the range.
        self._counted_position = _position_of(counted, function) - 2
        self._dispatcher = kernel(function)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> None:
        """Compute all parts; ``arguments`` are those of the function after ``begin, end``."""
        # A thread for every 500,000 operations, up to one per part.
        num_parts = self._count_parts(arguments[self._counted_position])
        # Infinite outside a block of threads_for, where the number of operations is unknown.
        max_useful_threads = _operations() / _MIN_OPERATIONS_PER_HELPER
        num_threads = int(min(numba.get_num_threads(), num_parts, max_useful_threads))
        if num_threads <= 1:
            self._dispatcher(0, num_parts, *arguments)
            return
        # Thread i computes the parts bounds[i] .. bounds[i + 1] - 1.
        bounds = [num_parts * i // num_threads for i in range(num_threads + 1)]
        helpers = _helpers()
        futures = [
            helpers.submit(self._dispatcher, begin, end, *arguments)
            for begin, end in itertools.pairwise(bounds[1:])
        ]
        try:
            self._dispatcher(bounds[0], bounds[1], *arguments)
        finally:
            # No thread may use the caller's arrays after this call.
            wait(futures)
        for future in futures:
            future.result()

    @property
    def dispatchers(self) -> tuple[Any]:
        """Tuple of the only Numba dispatcher of this kernel."""
        return (self._dispatcher,)


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Return the thread pool for the parts of partitioned kernels beyond the calling thread's."""
    return ThreadPoolExecutor(max(1, numba.config.NUMBA_NUM_THREADS - 1), "kernels")


# Threads do not survive a fork.
os.register_at_fork(after_in_child=_helpers.cache_clear)


def partitioned_kernel(
    counted: str, count: Callable[[Any], int] = len
) -> Callable[[Callable[Concatenate[int, int, _P], None]], Callable[_P, None]]:
    """Compile a kernel over a range of independent parts, such as blocks, sources or rows; a call
    computes all parts on a thread pool.

    The kernel's first two arguments are the first part of a range and its end; callers omit them.
    It must be a module-level function, called with positional arguments.

    Args:
        counted: name of the argument that determines the number of parts.
        count: function from that argument to the number of parts.
    """
    return lambda function: cast(Callable[_P, None], _PartitionedKernel(function, counted, count))
