"""Long computations that pause at the end of each of their iterations, and go on, or end early, as
their caller says.

A computation is a generator that yields where it may pause and returns its result (:data:`Steps`).
:func:`complete` runs it to its end; :class:`Run` runs it in slices of time.  Whatever it looks at
the clock for, it asks a :class:`Deadline`, which its caller may bring forward: a computation that
was told to end returns the best it has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from teal.runtime.parallel import quiet_torch

_T = TypeVar("_T")
Steps = Generator[None, None, _T]


class Deadline:
    """A moment by which a computation, or a part of one, should return its result.

    Args:
        end: by ``time.perf_counter()``; infinite for none.
        whole: the deadline of the computation that this one is a part of, which ends the part too;
            None for none.
    """

    def __init__(self, end: float = math.inf, whole: Deadline | None = None) -> None:
        self._end, self._whole = end, whole

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline ``seconds`` from now."""
        return cls(time.perf_counter() + seconds)

    @property
    def end(self) -> float:
        """By ``time.perf_counter()``."""
        return self._end if self._whole is None else min(self._end, self._whole.end)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.end - time.perf_counter()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 after it, for what takes no negative ones."""
        return max(0.0, self.left)

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self.left <= 0

    def share(self, fraction: float) -> Deadline:
        """The deadline of a part that may take this fraction of the time that is left."""
        return Deadline(time.perf_counter() + fraction * self.left, self)

    def expire(self) -> None:
        """Let it pass now, for all parts too."""
        self._end = -math.inf


def complete(steps: Steps[_T]) -> _T:
    """Run a computation to its end; its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def quietly(steps: Steps[_T], numbers: int) -> Steps[_T]:
    """Compute under :func:`teal.runtime.parallel.quiet_torch`, except while the computation pauses.

    Args:
        steps: the computation.
        numbers: entries of its largest tensors.
    """
    while True:
        with quiet_torch(numbers):
            try:
                next(steps)
            except StopIteration as end:
                return end.value
        yield


class Run(Generic[_T]):
    """A computation in slices of time.  Use it from one thread at a time.

    Args:
        steps: the computation.
        deadline: deadline that it asks.

    Attributes:
        seconds: time in which it has computed, without pauses.
        first_step_s: seconds until it could first pause.
    """

    def __init__(self, steps: Steps[_T], deadline: Deadline) -> None:
        self._steps, self._deadline = steps, deadline
        self._result: list[_T] = []  # empty until it is there
        self.seconds = self.first_step_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the result is there."""
        return bool(self._result)

    @property
    def result(self) -> _T:
        """The result, once :attr:`is_done`."""
        return self._result[0]

    def advance(
        self, seconds: float = math.inf, should_pause: Callable[[], bool] = lambda: False
    ) -> bool:
        """Go on until the result is there, ``seconds`` have passed, or something asks for a pause;
        whether it is there.

        Args:
            seconds: after which to pause, at the end of an iteration; one iteration is done in any
                case.
            should_pause: asked after every iteration.
        """
        begin = time.perf_counter()
        try:
            while not self._result:
                try:
                    next(self._steps)
                except StopIteration as finished:
                    self._result.append(finished.value)
                now = time.perf_counter()
                self.first_step_s = self.first_step_s or now - begin
                if now >= begin + seconds or should_pause():
                    break
        finally:
            self.seconds += time.perf_counter() - begin
        return self.is_done

    def finish(self) -> _T:
        """End early, with the best result so far."""
        self._deadline.expire()
        self.advance()
        return self.result
