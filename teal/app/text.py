"""Formatting of numbers in tables and pages."""

from __future__ import annotations

import math
from collections.abc import Callable


def percent(share: float) -> str:
    """Return a fraction in per cent with two decimals, ``12.34%``; ``-`` if it is not finite."""
    # + 0.0 turns -0.0 into 0.0.
    return "-" if not math.isfinite(share) else f"{round(100 * share, 2) + 0.0:.2f}%"


def digits(count: int) -> Callable[[float], str]:
    """Return a function from a number to its text with ``count`` significant digits; NaN becomes
    ``-``.
    """
    return lambda value: "-" if math.isnan(value) else f"{value:.{count}g}"


def ratio_text(ratio: float) -> str:
    """Return a ratio near 1 as text with four decimals, ``0.9987``; NaN becomes ``-``."""
    return "-" if math.isnan(ratio) else f"{ratio:.4f}"


def milliseconds(value: float) -> str:
    """Return a latency in ms as text with three significant digits, ``12.3 ms``; NaN becomes
    ``-``.
    """
    return "-" if math.isnan(value) else f"{value:.3g} ms"


def time_text(seconds: float) -> str:
    """Return a duration in seconds as text, ``1.2 ms`` below a second, else ``3.40 s``; NaN becomes
    ``-``.
    """
    if math.isnan(seconds):
        return "-"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
