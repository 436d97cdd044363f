"""Computations in slices: what they return, when they pause, and that they end early when told
to."""

from __future__ import annotations

import math

import pytest

from teal.runtime import interruptible
from teal.runtime.interruptible import Deadline, Run, Steps, complete


class _Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(interruptible, "time", clock)
    return clock


def _counting(clock: _Clock, deadline: Deadline, most: int = 10) -> Steps[int]:
    """One second an iteration."""
    done = 0
    while done < most and not deadline.is_over:
        clock.now += 1.0
        done += 1
        yield
    return done


def test_slices_add_up_to_the_whole(clock: _Clock) -> None:
    assert complete(_counting(clock, Deadline())) == 10
    run = Run(_counting(clock, Deadline()), Deadline())
    ends = []
    while not run.advance(2.5):
        ends.append(run.seconds)
        clock.now += 100.0  # pauses do not count
    assert ends == [3.0, 6.0, 9.0]
    assert run.result == 10
    assert run.seconds == 10.0
    assert run.first_step_s == 1.0
    assert run.advance(2.5), "what is done stays done"


def test_a_run_pauses_when_asked_and_ends_early_with_what_it_has(clock: _Clock) -> None:
    deadline = Deadline.after(1_000.0)
    run = Run(_counting(clock, deadline, 10**9), deadline)
    assert not run.advance(math.inf, lambda: clock.now >= 4)
    assert clock.now == 4
    assert run.finish() == 4


def test_deadlines_of_parts_end_with_the_whole(clock: _Clock) -> None:
    whole = Deadline.after(10.0)
    part = whole.share(0.5)
    part_of_part = part.share(0.5)
    assert (part.remaining_s, part_of_part.remaining_s) == (5.0, 2.5)
    clock.now = 3.0
    assert [deadline.is_over for deadline in (whole, part, part_of_part)] == [False, False, True]
    whole.expire()
    assert [deadline.is_over for deadline in (whole, part, part_of_part)] == [True, True, True]
    assert Deadline().remaining_s == Deadline().share(0.5).remaining_s == math.inf


def test_a_fault_ends_a_run(clock: _Clock) -> None:
    def failing() -> Steps[int]:
        yield
        raise ValueError("no number")

    run = Run(failing(), Deadline())
    assert not run.advance(0.0)
    with pytest.raises(ValueError, match="no number"):
        run.advance()
    assert not run.is_done
