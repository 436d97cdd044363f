"""Deadline of a search: a timer sets the flag that its kernel reads before each iteration."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from teal.runtime.arrays import BoolArray
from teal.runtime.interruptible import Deadline


@contextlib.contextmanager
def ends_at(deadline: Deadline, stop: BoolArray) -> Iterator[None]:
    """Set the flag ``stop`` (1,) at the deadline, if it comes while the ``with`` block runs.

    Kernels release the interpreter lock, so that the timer's thread runs beside them.

    Args:
        deadline: time at which to set the flag; an endless one never does.
        stop: (1,) flag that the kernel reads before each iteration (written).
    """
    if deadline.is_over:
        stop[0] = True
    # No timer if the deadline is over, or further away than a timer can wait.
    if stop[0] or deadline.remaining_s > threading.TIMEOUT_MAX:
        yield
        return
    # The timer calls stop.fill(True).
    timer = threading.Timer(deadline.remaining_s, stop.fill, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
