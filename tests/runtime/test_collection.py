"""The garbage collector is as it was after blocks of several threads."""

from __future__ import annotations

import gc
import threading

import pytest

from teal.runtime.collection import without_collection


def test_blocks_that_overlap_leave_the_collector_as_it_was() -> None:
    """The second block begins in the first, whose end comes before its own."""
    has_begun, may_end = threading.Event(), threading.Event()
    seen: list[bool] = []

    def second() -> None:
        with without_collection():
            has_begun.set()
            assert may_end.wait(60)
            seen.append(gc.isenabled())

    thread = threading.Thread(target=second)
    with without_collection():
        thread.start()
        assert has_begun.wait(60)
    assert not gc.isenabled(), "the second block is under way"
    may_end.set()
    thread.join()
    assert seen == [False]
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off_and_an_error_changes_nothing() -> None:
    def fail() -> None:
        with without_collection():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
