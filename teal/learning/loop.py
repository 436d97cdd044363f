"""Training loops: step until finished, stop between steps on Ctrl-C, save at the end; budgets, and
what is read ahead.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar
from weakref import WeakMethod

from teal.nn.adam import Adam
from teal.runtime.interrupts import Interrupted, interrupts_wait
from teal.runtime.progress import progress_bar

T = TypeVar("T")
_LEAST_RATE = 0.01  # share of the full rate at the first step


class Stopwatch:
    """Seconds of training, over all sessions of a run.

    Args:
        earlier_s: seconds of the sessions before.
    """

    def __init__(self, earlier_s: float) -> None:
        self._begin = time.perf_counter() - earlier_s

    def elapsed_s(self) -> float:
        """Seconds until now."""
        return time.perf_counter() - self._begin


class ReadAhead(Generic[T]):
    """Reads the inputs of the next step while the present one is computed.

    Args:
        read: method that reads the inputs of a step, by its number; called by one thread.  Its
            object may own this one, and is not kept alive by it.
    """

    def __init__(self, read: Callable[[int], T]) -> None:
        self._method = WeakMethod(read)
        self._thread = ThreadPoolExecutor(1, "read-ahead")
        self._ahead: dict[int, Future[T]] = {}  # by step, at most one

    def _read(self, step: int) -> T:
        read: Any = self._method()
        return read(step)

    def get(self, step: int) -> T:
        """The inputs of a step.

        Raises:
            Exception: what reading it has raised.
        """
        reading = self._ahead.get(step) or self._thread.submit(self._read, step)
        self._ahead.clear()  # also where reading fails: then it is tried again
        batch = reading.result()
        self._ahead[step + 1] = self._thread.submit(self._read, step + 1)
        return batch


@dataclasses.dataclass(frozen=True)
class Budget:
    """The steps and the time that a run may use up.

    Attributes:
        time_s: seconds of training, over all sessions.
        max_steps: 0 for no limit.
    """

    time_s: float
    max_steps: int

    def is_used_up(self, step: int, elapsed_s: float) -> bool:
        """Whether the run is finished after so many steps and seconds."""
        return elapsed_s >= self.time_s or bool(self.max_steps and step >= self.max_steps)

    def share_used(self, step: int, elapsed_s: float) -> float:
        """In [0, 1]: of the steps if these are limited, else of the time."""
        return min(1.0, step / self.max_steps if self.max_steps else elapsed_s / self.time_s)


def set_cosine_rate(
    optimiser: Adam,
    full_rate: float,
    step: int,
    share_used: float,
    *,
    warm_up_steps: int,
    warm_up_share: float = 0.0,
    final_share: float = 0.0,
) -> None:
    """Set the learning rate of a step: it rises linearly to the full rate, times a cosine over the
    whole run.

    Args:
        optimiser: optimiser whose rate is set.
        full_rate: the largest learning rate.
        step: number of the step, from 0.
        share_used: share of the run's budget, in [0, 1].
        warm_up_steps: steps in which the rate rises.
        warm_up_share: share of the budget in which it rises, if that is longer.
        final_share: share of the full rate, at the end of the cosine.
    """
    share = min(1.0, (step + 1) / warm_up_steps)
    if warm_up_share:
        share = min(share, max(share_used / warm_up_share, _LEAST_RATE))
    share *= final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * share_used))
    optimiser.rate = full_rate * share


def train_until(
    is_finished: Callable[[], bool],
    step: Callable[[Any], None],
    save: Callable[[], None],
    *,
    steps_done: int,
    max_steps: int,
    show: bool,
    prepare: Callable[[Any], None] = lambda _: None,
) -> None:
    """Make steps until ``is_finished``, then save.

    Args:
        is_finished: asked before every step.
        step: makes one step; may write to the progress bar that it is given.
        save: writes the state to resume from.
        steps_done: by earlier sessions.
        max_steps: steps of the run; 0 for no limit.
        show: whether to show the progress bar.
        prepare: called with the progress bar before the first step.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the current step is done and the state is
            saved.
    """
    bar = progress_bar(
        total=max_steps or None, initial=steps_done, desc="training", unit="step", disable=not show
    )
    with interrupts_wait() as stop_if_requested, bar:
        prepare(bar)
        try:
            while not is_finished():
                stop_if_requested()
                step(bar)
                bar.update()
        except Interrupted:
            save()
            raise
        save()
