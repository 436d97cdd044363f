"""Pauses between attempts at what may fail for a while."""

from __future__ import annotations

from collections.abc import Iterator


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """Seconds to wait after each attempt: each pause is twice as long as the one before, up to the
    longest.
    """
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)
