"""The outline that all training loops share: step until finished, stop between steps on Ctrl-C, save at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from teal.runtime.interrupts import Interrupted, interrupts_wait


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
        max_steps: of the run; 0 for no limit.
        show: whether to show the progress bar.
        prepare: called with the progress bar before the first step.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the current step is done and the state is saved.
    """
    bar = tqdm(total=max_steps or None, initial=steps_done, desc="training", unit="step", disable=not show)
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
