"""Python's garbage collector, which waits while work is done that it would slow down or break."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# Reentrant: a collection may begin while the lock is held, and run what needs it.
_lock = threading.RLock()
_blocks = 0  # blocks of all threads that are under way
_is_enabled = True  # whether it was before the first of them


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage in the block, nor in blocks of other threads that began in it."""
    global _blocks, _is_enabled
    with _lock:
        if _blocks == 0:
            _is_enabled = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and _is_enabled:
                gc.enable()
