"""Suspension of Python's garbage collector during work that it would slow down or break."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# Reentrant: a collection may begin while the lock is held, and run code that needs the lock.
_lock = threading.RLock()
# Number of active blocks of all threads.
_num_blocks = 0
# Whether collection was enabled before the first block.
_was_enabled = True


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection in the block and in nested blocks of other threads."""
    global _num_blocks, _was_enabled
    with _lock:
        if _num_blocks == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _num_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _num_blocks -= 1
            if _num_blocks == 0 and _was_enabled:
                gc.enable()
