"""Thread-safe cache that evicts the least recently used value.

The caches of functools and cachetools have no operation that takes a value out while one thread
uses it; those of cachetools need a lock around every call.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Least-recently-used cache with a fixed capacity, safe to share between threads.

    :meth:`take` removes a value, so that only one thread uses it until :meth:`keep` inserts it
    again.

    Args:
        capacity: maximum number of values, at least 1; values must not be None.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: dict[_K, _V] = {}
        # Reentrant: the garbage collector may call `keep` during another call.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Return the number of stored values."""
        return len(self._values)

    def find(self, key: _K) -> _V | None:
        """Return the value of a key and mark it as most recently used; None if there is none."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def take(self, key: _K) -> _V | None:
        """Remove the value of a key and return it; None if there is none."""
        with self._lock:
            return self._values.pop(key, None)

    def keep(self, key: _K, value: _V) -> None:
        """Insert or replace a value as the most recently used one, and evict the least recently
        used values beyond the capacity.
        """
        with self._lock:
            # Evicted values are freed after the lock is released, since that may take long.
            evicted = [self._values.pop(key, None)]
            self._values[key] = value
            evicted += [
                self._values.pop(oldest, None) for oldest in list(self._values)[: -self._capacity]
            ]
        evicted.clear()

    def values(self) -> list[_V]:
        """Return all values, the most recently used last."""
        with self._lock:
            return list(self._values.values())

    def clear(self) -> None:
        """Remove all values from the cache."""
        with self._lock:
            self._values.clear()
