"""The engine's kernels while they are being compiled: the service listens before, and refuses what
needs them.

The remaining time that a refusal names is measured: the time so far for each finished part, times
the parts that remain.  Loading the compiled kernels is the last part, so that some time remains
until requests are answered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from teal.serving.engine.errors import ServiceError

_AGAIN_S = 5.0  # after which a request may come again, where nothing is known of the time
_MOST_AGAIN_S = 60.0
_LOADING_PARTS = 1  # loading all kernels counts as so many parts: it takes seconds, as one of them
_COARSEST_S = 50.0  # estimates below are said to be less than a minute


class Kernels:
    """Whether all kernels have been compiled, and how far that is.

    Args:
        clock: seconds that only grow.

    Attributes:
        parts: number of parts that are compiled; 0 where nothing is missing.
        done: number of those that are done.
        fault: why they cannot be prepared; "" if nothing is wrong.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.parts = self.done = 0
        self.fault = ""
        self._clock = clock
        self._began = clock()
        self._are_there = asyncio.Event()

    @classmethod
    def compiled(cls) -> Kernels:
        """Kernels that are there."""
        kernels = cls()
        kernels.finish()
        return kernels

    def begin(self, parts: int) -> None:
        """Some parts are compiled from now on."""
        self.parts = parts
        self.done = 0
        self._began = self._clock()
        self.fault = ""

    def finish(self) -> None:
        """All kernels are there."""
        self._are_there.set()

    @property
    def are_there(self) -> bool:
        """Whether all kernels are there."""
        return self._are_there.is_set()

    async def there(self) -> None:
        """Return when all kernels are there."""
        await self._are_there.wait()

    async def wait(self, patience_s: float) -> None:
        """Return when all kernels are there, after some patience.

        Raises:
            ServiceError: they are not there by then; it says how many parts are missing, and when
                to come again.
        """
        if self.are_there:
            return
        try:
            await asyncio.wait_for(self._are_there.wait(), max(0.0, patience_s))
        except TimeoutError:
            raise self.missing() from None

    def check(self) -> None:
        """Raise ServiceError unless all kernels are there."""
        if not self.are_there:
            raise self.missing()

    def missing(self) -> ServiceError:
        """The fault that kernels are not there."""
        if self.fault:
            return ServiceError(
                503, "unavailable", f"the kernels cannot be prepared: {self.fault}", _MOST_AGAIN_S
            )
        if not self.parts:
            return ServiceError(503, "not_ready", "the kernels are being loaded", 1.0)
        left = self._left_s
        message = f"compiling for this machine, once: {self.done} of {self.parts} parts are done"
        if self.done >= self.parts:
            message = f"all {self.parts} parts are compiled, and are being loaded"
        again = min(_MOST_AGAIN_S, max(1.0, left if math.isfinite(left) else _AGAIN_S))
        return ServiceError(503, "not_ready", f"{message}, {_remaining(left)}", again)

    @property
    def _left_s(self) -> float:
        """Estimated seconds until all kernels are there, by the time that the finished parts took;
        infinite before the first.
        """
        if not self.done:
            return math.inf
        each = (self._clock() - self._began) / self.done
        return each * (self.parts - self.done + _LOADING_PARTS)


def _remaining(seconds: float) -> str:
    """An estimate in words, as coarse as it is certain."""
    if not math.isfinite(seconds):
        return "remaining time unknown until the first part is done"
    if seconds < _COARSEST_S:
        return "less than a minute left"
    return f"about {math.ceil(seconds / 60)} min left"
