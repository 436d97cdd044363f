"""Work beside the event loop: what takes longer than other requests should wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

LARGE = 100_000  # bytes, or numbers, from which on work takes a few milliseconds


async def beside(size: int, work: Any, *arguments: Any) -> Any:
    """The result of ``work``, in a thread if its ``size`` is large."""
    return await asyncio.to_thread(work, *arguments) if size > LARGE else work(*arguments)
