"""Signals while work is going on: the first one is acted on, the second one ends it."""

from __future__ import annotations

import os
import signal

import pytest

from teal.runtime.interruptible import Deadline
from teal.runtime.interrupts import Interrupted, interrupts_wait, on_interrupt


def test_the_first_signal_is_acted_on_and_the_second_one_ends() -> None:
    deadline = Deadline()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), on_interrupt(deadline.expire):  # noqa: PT012, the second signal ends the block
        os.kill(os.getpid(), signal.SIGINT)
        assert deadline.is_over
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_waiting_work_stops_where_it_may() -> None:
    with interrupts_wait() as stop_if_requested:
        stop_if_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            stop_if_requested()
