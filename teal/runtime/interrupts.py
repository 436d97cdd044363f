"""Deferred handling of Ctrl-C and SIGTERM: they take effect between the steps of long work."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A deferred signal took effect at a point where files and state are consistent."""


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this process, since its parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[Callable[[], None]]:
    """Defer SIGINT and SIGTERM in the block; yield a function that raises Interrupted if one has
    arrived, which the block calls wherever its work may stop.

    A second signal is not deferred: it raises KeyboardInterrupt at once.  Outside the main thread,
    where Python delivers no signals, nothing is deferred.
    """
    pending: list[bool] = []

    def stop_if_requested() -> None:
        if pending:
            raise Interrupted

    with on_interrupt(lambda: pending.append(True)):
        yield stop_if_requested


@contextlib.contextmanager
def on_interrupt(callback: Callable[[], object]) -> Iterator[None]:
    """Call ``callback`` on SIGINT or SIGTERM instead of terminating; a second signal raises
    KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, nothing happens.
    """
    received_signals: list[int] = []

    def handle_signal(signal_number: int, _: FrameType | None) -> None:
        if received_signals:
            raise KeyboardInterrupt
        received_signals.append(signal_number)
        callback()

    # Only the main thread may set handlers; restore the previous ones afterwards.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {
        signal_number: signal.signal(signal_number, handle_signal)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
