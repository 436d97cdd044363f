"""Compilation status of the solver kernels, and the error of requests while kernels are missing.

The service listens before its kernels are compiled. :class:`KernelStatus` estimates the remaining
time as the mean time of the finished parts times the number of remaining parts; loading the
compiled kernels counts as the last part.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from teal_serve.engine.errors import ServiceError

# Retry-After without an estimate of the remaining time, and its maximum, seconds.
_DEFAULT_RETRY_S = 5.0
_MAX_RETRY_S = 60.0
# Loading all kernels takes about as long as compiling one part: some seconds.
_LOADING_PARTS = 1
# Smaller estimates are shown as "less than a minute", seconds.
_MIN_SHOWN_S = 50.0


class KernelStatus:
    """Progress of the compilation of the kernels, until all of them are loaded.

    Args:
        clock: monotonic clock, seconds.

    Attributes:
        num_parts: number of parts to compile; 0 if none is missing.
        num_done: number of compiled parts.
        fault: reason why compilation failed; "" without failure.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_parts = self.num_done = 0
        self.fault = ""
        self._clock = clock
        self._begin_time = clock()
        self._ready_event = asyncio.Event()

    @classmethod
    def compiled(cls) -> KernelStatus:
        """Return the status of a service whose kernels are all compiled and loaded."""
        kernels = cls()
        kernels.finish()
        return kernels

    def begin(self, num_parts: int) -> None:
        """Record that the compilation of some parts starts now."""
        self.num_parts = num_parts
        self.num_done = 0
        self._begin_time = self._clock()
        self.fault = ""

    def finish(self) -> None:
        """Record that all kernels are loaded; this wakes waiting requests."""
        self._ready_event.set()

    @property
    def are_ready(self) -> bool:
        """Whether all kernels are loaded."""
        return self._ready_event.is_set()

    async def wait_until_ready(self) -> None:
        """Wait until all kernels are loaded."""
        await self._ready_event.wait()

    async def wait(self, patience_s: float) -> None:
        """Wait until all kernels are loaded, at most some seconds.

        Args:
            patience_s: maximum wait, seconds.

        Raises:
            ServiceError: the kernels are not loaded yet; the message has the progress.
        """
        if self.are_ready:
            return
        try:
            await asyncio.wait_for(self._ready_event.wait(), max(0.0, patience_s))
        except TimeoutError:
            raise self.not_ready_error() from None

    def check(self) -> None:
        """Raise ServiceError unless all kernels are loaded."""
        if not self.are_ready:
            raise self.not_ready_error()

    def not_ready_error(self) -> ServiceError:
        """Return error 503 for requests while kernels are missing, with the progress."""
        # The compilation has failed, or only the loading is left.
        if self.fault:
            return ServiceError(
                503, "unavailable", f"the kernels cannot be prepared: {self.fault}", _MAX_RETRY_S
            )
        if not self.num_parts:
            return ServiceError(503, "not_ready", "the kernels are being loaded", 1.0)
        # Kernels are being compiled: report the parts and the remaining time.
        remaining_s = self._remaining_s
        message = (
            "the kernels are compiled for this machine, once: "
            f"{self.num_done} of {self.num_parts} parts are done"
        )
        if self.num_done >= self.num_parts:
            message = f"all {self.num_parts} parts of the kernels are compiled and being loaded"
        retry_after_s = min(
            _MAX_RETRY_S, max(1.0, remaining_s if math.isfinite(remaining_s) else _DEFAULT_RETRY_S)
        )
        return ServiceError(
            503, "not_ready", f"{message}, {_remaining_text(remaining_s)}", retry_after_s
        )

    @property
    def _remaining_s(self) -> float:
        """Estimated seconds until all kernels are loaded; infinite before any part is done."""
        if not self.num_done:
            return math.inf
        part_s = (self._clock() - self._begin_time) / self.num_done
        return part_s * (self.num_parts - self.num_done + _LOADING_PARTS)


def _remaining_text(seconds: float) -> str:
    """Return a remaining time as text, in minutes."""
    if not math.isfinite(seconds):
        return "remaining time unknown until the first part is done"
    if seconds < _MIN_SHOWN_S:
        return "less than a minute left"
    return f"about {math.ceil(seconds / 60)} min left"
