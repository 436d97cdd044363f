"""How Numba kernels are compiled: kept on disk, without the GIL, over a thread-safe threading
layer.

Numba's ``workqueue`` layer breaks when two threads start kernels at once, so it comes last.
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

from teal.runtime.collection import without_collection
from teal.runtime.kernel_cache import KernelCache, is_interpreting
from teal.runtime.openmp import waits_of_torch_are_long

numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]


def _load_own_openmp() -> None:
    """Let Numba's threads use the OpenMP library that Numba names, and not the copy that torch has
    loaded before.

    torch makes its copy's functions visible to all libraries that are loaded later; the copy has
    read its settings before Teal could make them (see :mod:`teal.runtime.openmp`).
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:  # a build of Numba without it
        pass
    finally:
        sys.setdlopenflags(flags)


if waits_of_torch_are_long() and hasattr(os, "RTLD_DEEPBIND"):  # Linux with glibc
    _load_own_openmp()

prange = numba.prange
# For what a kernel hands to another one: the index of a prange loop is unsigned, and constants and
# lengths of tuples have a type each, so that the other kernel would be compiled again for each of
# them.
as_int64 = cast(Callable[[int], int], np.int64)
_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")


_state = threading.local()  # of this thread: see threads_for, on_all_threads, _torch_threads
# Scalar operations of a kernel from which on a second thread is worth waking, about 0.15 ms of
# work.  Measured on two cores, time with two threads over time with one: 1.5 at 70,000 and 140,000
# operations, 1.1 at 280,000, 0.9 at 330,000.
_MIN_PARALLEL_OPERATIONS = 300_000
# Operations of a call of a partitioned kernel for each of its threads, at least, about 0.25 ms of
# work: measured, a helper wakes in 0.1 to 0.3 ms.
_OPERATIONS_OF_HELPER = 500_000
_LOOK_EVERY_S = 0.02  # between two looks at the machine's load, each of about 10 us
_MIN_TORCH_NUMBERS = (
    1_000_000  # numbers in a tensor from which on torch's operations gain from a second thread
)


@contextlib.contextmanager
def threads_for(
    operations: int, *, torch_too: bool = False, least: int = _MIN_PARALLEL_OPERATIONS
) -> Iterator[None]:
    """Run the parallel kernels of the block on the calling thread alone if each has few operations.

    Waking a team of threads costs more than a kernel of microseconds, and where other processes
    hold the cores each such kernel waits for the scheduler: measured beside a training run,
    inference on B4 took 1 s in place of 8 ms.  Large kernels too run on one thread while others
    hold all cores: a team waits at the end of each loop for the thread that the scheduler serves
    last.

    Args:
        operations: scalar operations of one kernel call, approximately.
        torch_too: hold torch to one thread as well.  That setting belongs to the whole process, so
            use it only around work that no other thread interleaves with.
        least: operations from which on all threads are used; more for what is called seldom, since
            the form of a kernel that runs on all threads takes seconds to compile.
    """
    uses_all = is_large(operations, least) or getattr(_state, "is_rehearsing", False)
    numba_threads = numba.get_num_threads()
    keeps_form = getattr(_state, "keeps_form", False)
    before = _operations()
    _state.operations = operations
    has_all = uses_all and (numba_threads == 1 or not _cores_are_taken())
    is_inside = numba_threads == 1 and keeps_form == uses_all and not torch_too  # a block like this
    is_held = not (has_all or is_inside)
    if is_held:
        numba.set_num_threads(1)
        # The form for all threads on one: the other form may not have been compiled.
        _state.keeps_form = uses_all
    try:
        with _torch_on_one_thread() if is_held and torch_too else contextlib.nullcontext():
            yield
    finally:
        _state.operations = before
        if is_held:
            _state.keeps_form = keeps_form
            numba.set_num_threads(numba_threads)


def _operations() -> float:
    """Scalar operations of the kernels of the innermost :func:`threads_for`; infinite outside."""
    return float(getattr(_state, "operations", math.inf))


@contextlib.contextmanager
def quiet_torch(numbers: int) -> Iterator[None]:
    """Run torch on one thread in the block, unless its tensors are large.

    Its operations on smaller ones take less time than a second thread needs to wake, the more so
    where other processes use the cores (``benchmarks/busy_machine.py``).

    Args:
        numbers: entries of the largest tensors that the block works on.
    """
    if numbers >= _MIN_TORCH_NUMBERS:
        _torch_threads()  # mends the number of a thread that begins with this block
        yield
        return
    with _torch_on_one_thread():
        yield


@contextlib.contextmanager
def _torch_on_one_thread() -> Iterator[None]:
    """Run torch on one thread in the block."""
    import torch

    threads = _torch_threads()
    if threads == 1:
        yield
        return
    with _quiet.lock:
        _quiet.blocks += 1
        _quiet.threads_before = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        with _quiet.lock:
            _quiet.blocks -= 1


def _torch_threads() -> int:
    """Number of torch's threads for operations of this thread.

    A thread begins with the number that any thread set last.  That is 1 while another one is in
    :func:`_torch_on_one_thread`: it then gets the number that the other one had before.
    """
    import torch

    if not getattr(_state, "has_torch_threads", False):
        with _quiet.lock:
            _state.has_torch_threads = True
            if _quiet.blocks and torch.get_num_threads() == 1:
                torch.set_num_threads(_quiet.threads_before)
    return torch.get_num_threads()


class _Quiet:
    """The threads that are in :func:`_torch_on_one_thread`.

    Attributes:
        lock: lock of the others.
        blocks: number of these threads.
        threads_before: number of torch's threads before the latest of the blocks.
    """

    lock = threading.Lock()
    blocks = 0
    threads_before = 1


_quiet = _Quiet()


def is_large(operations: int, least: int = _MIN_PARALLEL_OPERATIONS) -> bool:
    """Whether so many operations run on all threads."""
    return operations >= least


@contextlib.contextmanager
def on_all_threads(enabled: bool = True) -> Iterator[None]:
    """Run the form of kernels that uses all threads however little there is to do: to have it
    compiled.

    Args:
        enabled: false to leave the choice of the form as it is.
    """
    before = getattr(_state, "is_rehearsing", False)
    _state.is_rehearsing = before or enabled
    try:
        yield
    finally:
        _state.is_rehearsing = before


def is_alone() -> bool:
    """Whether kernels run in the form for the calling thread alone."""
    return bool(numba.get_num_threads() == 1) and not getattr(_state, "keeps_form", False)


def _cores_are_taken() -> bool:
    """Whether at least as many other threads run or wait for a core as there are cores; false where
    none can tell.
    """
    now = time.monotonic()
    if now > _seen.until:
        _seen.until, _seen.is_taken = (
            now + _LOOK_EVERY_S,
            _running_threads() - 1 >= (os.cpu_count() or 1),
        )
    return _seen.is_taken


def _running_threads() -> int:
    """Number of threads of the machine that run or wait for a core, this one among them; 0 if
    nothing says so.
    """
    try:
        with open("/proc/loadavg", encoding="ascii") as file:  # its fourth field: RUNNING/ALL
            return int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0


class _Seen:
    """Result of the last look at the machine's load.

    Attributes:
        until: time of the next look.
        is_taken: whether others held all cores.
    """

    until, is_taken = -math.inf, False


_seen = _Seen()


def limit_threads(count: int) -> None:
    """Let kernels and torch use at most ``count`` threads: for processes that share the cores with
    others.
    """
    import torch

    torch.set_num_threads(max(1, count))
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))


def kernel(function: _F) -> _F:
    """Compile a kernel that runs on one thread."""
    return cast(_F, _compiled(function))


def inner_kernel(function: _F) -> _F:
    """Compile a kernel that kernels alone call, never Python: without the wrapper, a fifth of a
    compilation's time.
    """
    return cast(_F, _compiled(function, no_cpython_wrapper=True))


def summing_kernel(function: _F) -> _F:
    """Compile a kernel that kernels alone call, and whose sums may be added in another order, so
    that they run on vector units.
    """
    return cast(_F, _compiled(function, no_cpython_wrapper=True, fastmath={"reassoc"}))


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Numba's function, kept on disk (:mod:`teal.runtime.kernel_cache`)."""
    options = {"nogil": True, "error_model": "numpy", **options}
    dispatcher = numba.njit(**options)(function)
    if hasattr(dispatcher, "_cache"):  # not where NUMBA_DISABLE_JIT leaves Python functions
        dispatcher._cache = KernelCache(function, sorted(options.items()))
        dispatcher._compile_for_args = functools.partial(
            _form_for, dispatcher, dispatcher._compile_for_args
        )
    return dispatcher


def _form_for(dispatcher: Any, compile_form: Callable[..., Any], *arguments: Any) -> Any:
    """Return the function that Numba then calls with arguments of new types: machine code, or the
    Python function.
    """
    if is_interpreting() and dispatcher._cache.is_better_interpreted(
        tuple(map(dispatcher.typeof_pyval, arguments))
    ):
        return _in_python(dispatcher.py_func)
    # A compilation makes millions of objects that live until its end: looking for garbage takes a
    # tenth.
    with without_collection():
        return compile_form(*arguments)


@functools.cache
def _in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the Python functions of all kernels that it calls in the place of the
    kernels.

    An inner kernel that another kernel has compiled in this process has machine code without a
    wrapper for Python: a call of it from Python would end the process.
    """
    in_python = types.FunctionType(
        function.__code__,
        dict(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    for name in function.__code__.co_names:
        called = getattr(function.__globals__.get(name), "py_func", None)
        if called is not None:
            in_python.__globals__[name] = in_python if called is function else _in_python(called)
    return in_python


def inlined_kernel(function: _F) -> _F:
    """Compile into each caller: for a few lines that take many arrays, whose passing would cost
    more than they do.
    """
    return cast(_F, numba.njit(inline="always", error_model="numpy")(function))


class _ParallelKernel:
    """A kernel with ``prange`` loops, compiled for all threads and for one; which of the two runs
    is decided by a call.

    Without threads a kernel compiles in half the time, and small networks need no other form.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._on_all = _compiled(function, parallel=True)
        self.alone = kernel(_renamed(function))
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return (self.alone if is_alone() else self._on_all)(*arguments)

    @property
    def dispatchers(self) -> tuple[Any, Any]:
        """Numba's two functions, for kernels that call this one, which must name one of them."""
        return self._on_all, self.alone


def _renamed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with a name of its own, since Numba's cache on disk knows functions by their names."""
    name = f"{function.__name__}_alone"
    copy = types.FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    copy.__qualname__, copy.__module__ = name, function.__module__
    return copy


def parallel_kernel(function: _F) -> _F:
    """Compile a kernel whose ``prange`` loops run on all threads, or alone (see
    :func:`threads_for`).

    It must be a function of a module, and must not call itself.
    """
    return cast(_F, _ParallelKernel(function))


class _PartitionedKernel:
    """A kernel over a range of parts that do not depend on each other, compiled once.

    A call with all threads gives each of them an equal share of the parts: the calling thread the
    first one, and helpers the others.  Helpers take longer to wake than the threads of a ``prange``
    loop: for calls with much to do, or few calls.
    """

    def __init__(
        self, function: Callable[..., Any], counted: str, count: Callable[[Any], int]
    ) -> None:
        self.py_func = function
        self._count = count
        self._counted = list(inspect.signature(function).parameters).index(counted) - 2
        self._form = kernel(function)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> None:
        count = self._count(arguments[self._counted])
        worth = _operations() / _OPERATIONS_OF_HELPER  # infinite where nobody said how much it is
        threads = int(min(numba.get_num_threads(), count, worth))
        if threads <= 1:
            self._form(0, count, *arguments)
            return
        bounds = [count * number // threads for number in range(threads + 1)]
        helpers = _helpers()
        others = [
            helpers.submit(self._form, first, last, *arguments)
            for first, last in itertools.pairwise(bounds[1:])
        ]
        try:
            self._form(bounds[0], bounds[1], *arguments)
        finally:  # the arrays are the caller's again
            wait(others)
        for other in others:
            other.result()

    @property
    def dispatchers(self) -> tuple[Any]:
        """Numba's function."""
        return (self._form,)


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads for the parts of partitioned kernels, of which the calling thread takes the first."""
    return ThreadPoolExecutor(max(1, numba.config.NUMBA_NUM_THREADS - 1), "kernels")


os.register_at_fork(after_in_child=_helpers.cache_clear)  # threads do not survive a fork


def partitioned_kernel(
    counted: str, count: Callable[[Any], int] = len
) -> Callable[[Callable[Concatenate[int, int, _P], None]], Callable[_P, None]]:
    """Compile a kernel over parts that do not depend on each other: blocks, sources or rows.

    The kernel's first two arguments are the first part and the one after the last; callers leave
    them out.  It must be a function of a module, called by position.

    Args:
        counted: name of the argument that tells the number of parts.
        count: number of parts, as that argument tells it.
    """
    return lambda function: cast(Callable[_P, None], _PartitionedKernel(function, counted, count))
