"""The engine's kernels while they are being compiled: the service listens before, and refuses what
needs them.
"""

from __future__ import annotations

import asyncio
import math
import time

from teal.serving.engine.errors import ServiceError

_AGAIN_S = 5.0  # after which a request may come again, where nothing is known of the time
_MOST_AGAIN_S = 60.0


class Kernels:
    """Whether all kernels have been compiled, and how far that is.

    Attributes:
        parts: number of parts that are compiled; 0 where nothing is missing.
        done: number of those that are done.
        fault: why they cannot be prepared; "" if nothing is wrong.
    """

    def __init__(self) -> None:
        self.parts = self.done = 0
        self.fault = ""
        self._began = time.monotonic()
        self._are_there = asyncio.Event()

    @classmethod
    def compiled(cls) -> Kernels:
        """Kernels that are there."""
        kernels = cls()
        kernels.finish()
        return kernels

    def begin(self, parts: int) -> None:
        """Some parts are compiled from now on."""
        self.parts, self.done, self._began = parts, 0, time.monotonic()
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
        message = f"compiling for this machine, once: {self.done} of {self.parts} parts are done"
        left = self._left_s
        if math.isfinite(left):
            message += f", about {math.ceil(left)} s are left"
        again = min(_MOST_AGAIN_S, max(1.0, left if math.isfinite(left) else _AGAIN_S))
        return ServiceError(503, "not_ready", message, again)

    @property
    def _left_s(self) -> float:
        """Seconds that the parts that are missing will take, by those that are done; infinite
        before the first.
        """
        if not self.done:
            return math.inf
        each = (time.monotonic() - self._began) / self.done
        return each * (self.parts - self.done)
