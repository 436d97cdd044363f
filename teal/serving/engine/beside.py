"""Work beside the event loop: what takes longer than other requests should wait for it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LARGE = 4_000  # bytes, or numbers, from which on work may take a few milliseconds: 20 numbers are a demand by name
_BINARY = 20  # of Arrow's arrays so many bytes take the time of one byte of JSON
# Threads for such work: Python runs one at a time anyway, and each that waits for its turn delays the event loop.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="beside")


async def beside(size: int, work: Any, *arguments: Any, is_binary: bool = False) -> Any:
    """The result of ``work``, in a thread if its ``size`` is large; of binary bodies if it is twenty times as large."""
    if size <= (_BINARY * LARGE if is_binary else LARGE):
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)
