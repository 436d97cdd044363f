"""The values that were used last, also where threads share them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from teal.runtime.lru_cache import LruCache


@pytest.fixture
def _many_switches() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_value_that_was_kept_longest_ago_goes_first() -> None:
    latest = LruCache[str, int](2)
    latest.keep("a", 1)
    latest.keep("b", 2)
    assert latest.take("a") == 1
    assert latest.take("a") is None, "whoever takes a value has it alone"
    latest.keep("a", 1)
    latest.keep("c", 3)
    assert latest.values() == [1, 3]
    assert latest.take("b") is None
    assert latest.find("a") == 1
    assert latest.values() == [3, 1], "the value that was found is the newest"
    assert latest.find("b") is None


def test_a_value_of_the_same_key_takes_the_place_of_the_first() -> None:
    latest = LruCache[str, int](2)
    for value in range(5):
        latest.keep("a", value)
    assert latest.values() == [4]
    latest.clear()
    assert len(latest) == 0


class _Key:
    """Compares itself in Python, where another thread may have its turn."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number % 4

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.number == other.number


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_take_and_keep_at_the_same_time_never_share_a_value() -> None:
    latest = LruCache[_Key, list[int]](3)
    faults: list[BaseException | str] = []

    def work(thread: int) -> None:
        try:
            for step in range(3_000):
                key = _Key((step * (thread + 1)) % 7)
                users = latest.take(key) or []
                users.append(thread)
                if users != [thread]:
                    faults.append(f"{users} use a value at the same time")
                users.clear()
                latest.keep(key, users)
                latest.find(_Key(step % 5))
                latest.values()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert 1 <= len(latest) <= 3
