"""Ctrl-C between the steps of long work, not in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal that waited for a place where the work may stop; whatever the work keeps is whole."""


@contextlib.contextmanager
def interrupts_wait() -> Iterator[Callable[[], None]]:
    """Hold SIGINT and SIGTERM back; the callable that this yields raises Interrupted if one came.

    Call it where the work may stop.  A second signal does not wait: a plain KeyboardInterrupt.
    Outside the main thread, where Python delivers no signals, nothing is held back.
    """
    pending: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(number)

    def stop_here() -> None:
        if pending:
            raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield stop_here
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_here
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
