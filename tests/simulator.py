"""Threads of numba-cuda's simulator as greenlets: from one barrier to the next each runs alone.

The simulator starts a thread of the operating system for each thread of a block, and polls them
until all wait at a barrier.  Greenlets need no polling, and their order is known: in every other
block forwards to the first barrier, backwards to the next one and so on, in the others the other
way round.  A kernel without a barrier that it needs is wrong in one of the two orders.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import greenlet
import numba
import numpy as np
import pytest
from numba.cuda.simulator import kernel, kernelapi
from numba.np import numpy_support


class _Thread:
    """A thread of a block, under the names by which kernels ask the simulator for the current one."""

    def __init__(self, work: Callable[[], None], block: _Block, place: tuple[int, ...]) -> None:
        self.blockIdx, self.threadIdx = block.place, kernelapi.Dim3(*place)
        self.thread_id = int(np.ravel_multi_index(place[::-1], block.shape[::-1]))
        self._block = block
        self._greenlet = greenlet.greenlet(work)

    def advance(self) -> bool:
        """Run to the next barrier; whether there is one."""
        self._greenlet.switch()
        return not self._greenlet.dead

    def syncthreads(self) -> None:
        """Let the other threads run to this barrier."""
        runner = self._greenlet.parent
        assert runner is not None
        runner.switch()


class _Block:
    """In the place of the simulator's manager of a block.

    Attributes:
        current: the thread that runs.
        shape: threads of a block in each dimension.
        place: of the block in the grid.
    """

    current: _Thread

    def __init__(self, work: Callable[..., None], _: Any, shape: tuple[int, ...], __: bool) -> None:
        self.shape = shape
        self._work = work

    def run(self, place: tuple[int, ...], *arguments: Any) -> None:
        """Run all threads of a block to their ends."""
        self.place = kernelapi.Dim3(*place)
        live = [
            _Thread(lambda: self._work(*arguments), self, thread)
            for thread in np.ndindex(self.shape)
        ]
        if sum(place) % 2:
            live.reverse()
        while live:
            waiting = []
            for thread in live:
                _Block.current = thread
                if thread.advance():
                    waiting.append(thread)
            live = waiting[::-1]


def _shared_array(shared: Any, shape: Any, dtype: Any, alignment: Any = None) -> Any:
    """An array that the threads of a block share, by the line that asks for it.

    The simulator's own method reads the whole stack for it.
    """
    dtype = numpy_support.as_dtype(dtype) if isinstance(dtype, numba.types.Type) else dtype
    if shape == 0:  # dynamic memory
        size = shared._dynshared_size // np.dtype(dtype).itemsize
        return np.frombuffer(shared._dynshared.data, dtype, size)
    frame = sys._getframe(1)
    place = frame.f_code.co_filename, frame.f_lineno
    if place not in shared._allocations:
        shared._allocations[place] = np.empty(shape, dtype)
    return shared._allocations[place]


@contextmanager
def greenlets_as_threads() -> Iterator[None]:
    """Let the simulator run blocks in this way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BlockManager", _Block)
        patch.setattr(kernelapi.FakeCUDAShared, "array", _shared_array)
        known = SimpleNamespace(current_thread=lambda: _Block.current, Lock=threading.Lock)
        patch.setattr(kernelapi, "threading", known)
        yield
