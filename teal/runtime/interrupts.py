"""Ctrl-C and SIGTERM take effect between the steps of long work, not in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal arrived and the work reached a place where it may stop; its files and state are
    consistent.
    """


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[Callable[[], None]]:
    """Delay SIGINT and SIGTERM; yields a callable that raises Interrupted if a signal has arrived.

    Call it wherever the work may stop.  A second signal is not delayed: it raises KeyboardInterrupt
    at once. Outside the main thread, where Python delivers no signals, nothing is delayed.
    """
    pending: list[bool] = []

    def stop_if_requested() -> None:
        if pending:
            raise Interrupted

    with on_interrupt(lambda: pending.append(True)):
        yield stop_if_requested


@contextlib.contextmanager
def on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` on SIGINT or SIGTERM in the place of ending; a second signal raises
    KeyboardInterrupt at once.

    Outside the main thread, where Python delivers no signals, nothing happens.
    """
    arrived: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        if arrived:
            raise KeyboardInterrupt
        arrived.append(number)
        act()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {
        number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
