"""Says on the terminal what a command compiles: that it does, what, and for how long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from teal.runtime.kernel_cache import Announcer, announcing, folder

_QUIET_S = 1.0  # compilation of a command before it says so: a kernel or two go unnoticed
_EVERY_S = 5.0  # between two messages


class _Report(Announcer):
    """Messages of one command; kernels that another kernel calls count as parts of it."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify, self._lock = notify, threading.RLock()
        self._depth, self._kernels, self._seconds, self._begin, self._last = 0, 0, 0.0, 0.0, 0.0

    def begins(self, name: str) -> None:
        """See Announcer."""
        with self._lock:
            if not self._depth:
                self._begin = time.perf_counter()
            self._depth += 1
            spent = self._seconds + time.perf_counter() - self._begin
            if spent > _QUIET_S and (not self._last or time.perf_counter() - self._last > _EVERY_S):
                where = folder()
                kept = "and kept nowhere: no folder can be written" if where is None else f"once; kept in {where}"
                so_far = f" ({self._kernels} in {spent:.0f} s so far)" if self._last else f" for this machine, {kept}"
                self._notify(f"compiling {name}{so_far}")
                self._last = time.perf_counter()

    def ends(self, name: str, seconds: float) -> None:
        """See Announcer."""
        with self._lock:
            self._depth -= 1
            self._kernels += 1
            if not self._depth:
                self._seconds += time.perf_counter() - self._begin

    def close(self) -> None:
        """The last message, if there was one before."""
        if self._last:
            self._notify(f"compiled {self._kernels} kernels in {self._seconds:.1f} s")


@contextlib.contextmanager
def announced(notify: Callable[[str], None]) -> Iterator[None]:
    """Say what is compiled in the block, if it takes more than a second."""
    report = _Report(notify)
    try:
        with announcing(report):
            yield
    finally:
        report.close()
