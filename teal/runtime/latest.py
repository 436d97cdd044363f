"""The values that were used last."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Latest(Generic[_K, _V]):
    """At most so many values by key; the one that was used longest ago goes first.

    Threads may share it.  A value that one of them takes is with that one alone until it is kept
    again.

    Args:
        most: number of values, at least 1.  None of them is None.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[_K, _V] = {}
        # Reentrant: the garbage collector may call `keep` in the middle of another call.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Number of values."""
        return len(self._kept)

    def find(self, key: _K) -> _V | None:
        """A value, which is the newest one from now on; None where there is none."""
        with self._lock:
            value = self._kept.pop(key, None)
            if value is not None:
                self._kept[key] = value
            return value

    def take(self, key: _K) -> _V | None:
        """Remove a value and return it; None where there is none."""
        with self._lock:
            return self._kept.pop(key, None)

    def keep(self, key: _K, value: _V) -> None:
        """Keep a value as the newest one, in the place of another one of its key."""
        with self._lock:
            # Freed after the lock, since a value may take long to be freed.
            dropped = [self._kept.pop(key, None)]
            self._kept[key] = value
            dropped += [self._kept.pop(oldest, None) for oldest in list(self._kept)[: -self._most]]
        dropped.clear()

    def values(self) -> list[_V]:
        """All values, the newest last."""
        with self._lock:
            return list(self._kept.values())

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._kept.clear()
