"""Parts of training loops: the loop with interrupts, time and step budgets, learning-rate schedule,
and read-ahead of batches.
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
# Share of the full learning rate at the first step.
_MIN_RATE_SHARE = 0.01


class Stopwatch:
    """Training time over all sessions of a run.

    Args:
        earlier_s: seconds of earlier sessions.
    """

    def __init__(self, earlier_s: float) -> None:
        self._begin = time.perf_counter() - earlier_s

    def elapsed_s(self) -> float:
        """Return the seconds of all sessions until now."""
        return time.perf_counter() - self._begin


class ReadAhead(Generic[T]):
    """Reads the inputs of the next step in a thread while the current step is computed.

    Args:
        read: bound method that reads the inputs of a step, given its index; held weakly, so that
            its object may own the ReadAhead.
    """

    def __init__(self, read: Callable[[int], T]) -> None:
        self._read_method = WeakMethod(read)
        self._thread = ThreadPoolExecutor(1, "read-ahead")
        # The read in progress by step, at most one.
        self._pending_reads: dict[int, Future[T]] = {}

    def _read(self, step: int) -> T:
        """Return the inputs of a step, read in the calling thread."""
        read: Any = self._read_method()
        return read(step)

    def get(self, step: int) -> T:
        """Return the inputs of a step, and start to read those of the next one.

        Raises:
            Exception: any exception of the read.
        """
        pending_read = self._pending_reads.get(step) or self._thread.submit(self._read, step)
        # After a failed read, too, so that another call reads again.
        self._pending_reads.clear()
        batch = pending_read.result()
        self._pending_reads[step + 1] = self._thread.submit(self._read, step + 1)
        return batch


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a training run.

    Attributes:
        time_s: seconds of training, over all sessions.
        max_steps: number of steps; 0 for no limit.
    """

    time_s: float
    max_steps: int

    def is_used_up(self, step: int, elapsed_s: float) -> bool:
        """Whether a run with ``step`` steps and ``elapsed_s`` seconds has reached a limit."""
        return elapsed_s >= self.time_s or bool(self.max_steps and step >= self.max_steps)

    def share_used(self, step: int, elapsed_s: float) -> float:
        """Return the used share in [0, 1]: of the steps if they are limited, else of the time."""
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
    """Set the learning rate of a step: linear warm-up times half a cosine over the whole run.

        rate = full_rate min(1, (step + 1) / warm_up_steps) (f + (1 - f) (1 + cos(pi u)) / 2)

    with f = ``final_share`` and u = ``share_used``.

    Args:
        optimiser: optimiser (its ``rate`` is set).
        full_rate: largest learning rate.
        step: index of the step, from 0.
        share_used: used share of the run's budget, in [0, 1].
        warm_up_steps: number of steps of the warm-up.
        warm_up_share: share of the budget in which the rate rises, if that is longer.
        final_share: share of the full rate at the end of the cosine.
    """
    rate_share = min(1.0, (step + 1) / warm_up_steps)
    if warm_up_share:
        rate_share = min(rate_share, max(share_used / warm_up_share, _MIN_RATE_SHARE))
    rate_share *= final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * share_used))
    optimiser.rate = full_rate * rate_share


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
    """Make training steps until ``is_finished``, then save.

    Args:
        is_finished: checked before every step.
        step: makes one step; gets the progress bar.
        save: saves the state for a resume.
        steps_done: number of steps of earlier sessions.
        max_steps: number of steps of the run; 0 for no limit.
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
