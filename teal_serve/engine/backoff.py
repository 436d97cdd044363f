"""Retry with exponential backoff.

Retry libraries call a function until it succeeds; the loops here also end when their network is
removed or its links change, so that they need the pauses alone.
"""

from __future__ import annotations

from collections.abc import Iterator


def backoff(first_s: float, max_s: float) -> Iterator[float]:
    """Yield the seconds to wait after each attempt: doubled each time, up to a maximum."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, max_s)
