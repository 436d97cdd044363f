"""Interruptible computations: generators that pause after each iteration, with deadlines.

A computation is a generator that yields where it may pause and returns its result (:data:`Steps`).
:func:`complete` runs it to its end; :class:`Run` runs it in time slices.  It checks a
:class:`Deadline`, which its caller may expire early: the computation then returns its incumbent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from teal.deprecated import with_old_attributes
from teal.runtime.parallel import quiet_torch

_T = TypeVar("_T")
Steps = Generator[None, None, _T]


@with_old_attributes
class Deadline:
    """Time limit of a computation or of a part of it, which may be expired early.

    Args:
        end: time of the deadline by ``time.perf_counter()``; infinite for none.
        outer: deadline of the enclosing computation, which also limits this one; None for none.
    """

    def __init__(self, end: float = math.inf, outer: Deadline | None = None) -> None:
        self._end = end
        self._outer = outer

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return a deadline ``seconds`` from now."""
        return cls(time.perf_counter() + seconds)

    @property
    def end(self) -> float:
        """Time of the deadline on the clock of ``time.perf_counter()``, the earlier one of this
        deadline and its outer ones; infinite for none.
        """
        return self._end if self._outer is None else min(self._end, self._outer.end)

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.end - time.perf_counter()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, for use as a time limit; 0 after it."""
        return max(0.0, self.remaining_s)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed or was expired early."""
        return self.remaining_s <= 0

    def share(self, fraction: float) -> Deadline:
        """Return the deadline of a part of this computation that may use this fraction of the
        remaining time; it expires with this deadline.
        """
        return Deadline(time.perf_counter() + fraction * self.remaining_s, self)

    def expire(self) -> None:
        """Make this deadline pass now, and with it the deadlines of all parts."""
        self._end = -math.inf


def complete(steps: Steps[_T]) -> _T:
    """Run a computation to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def with_single_threaded_torch(steps: Steps[_T], num_entries: int) -> Steps[_T]:
    """Return a computation that runs another one with torch limited to one thread, unless its
    tensors are large; the limit is lifted while the computation pauses.

    Args:
        steps: the computation.
        num_entries: number of entries of its largest tensors.
    """
    while True:
        with quiet_torch(num_entries):
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value
        yield


class Run(Generic[_T]):
    """Computation in time slices.  Use it from one thread at a time.

    Args:
        steps: the computation.
        deadline: its deadline.

    Attributes:
        seconds: computing time, without pauses.
        first_step_s: seconds until the first possible pause.
    """

    def __init__(self, steps: Steps[_T], deadline: Deadline) -> None:
        self._steps = steps
        self._deadline = deadline
        # The result as the only entry; empty while the computation runs.
        self._result: list[_T] = []
        self.seconds = self.first_step_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the computation has returned its result."""
        return bool(self._result)

    @property
    def result(self) -> _T:
        """Result of the computation; only valid once :attr:`is_done` is true."""
        return self._result[0]

    def advance(
        self, seconds: float = math.inf, should_pause: Callable[[], bool] = lambda: False
    ) -> bool:
        """Continue until the result is available, ``seconds`` have passed, or a pause is requested;
        return whether the result is available.

        Args:
            seconds: time slice; at least one iteration is run.
            should_pause: polled after every iteration.
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
        """Expire the deadline, continue until the computation returns its incumbent, and return
        that.
        """
        self._deadline.expire()
        self.advance()
        return self.result
