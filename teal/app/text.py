"""Formatting of numbers in tables and pages."""

from __future__ import annotations

import math
from collections.abc import Callable


def percent(share: float) -> str:
    """Format a fraction as ``12.34%``, or ``-`` if it is not finite."""
    # + 0.0 turns -0.0 into 0.0.
    return "-" if not math.isfinite(share) else f"{round(100 * share, 2) + 0.0:.2f}%"


def digits(count: int) -> Callable[[float], str]:
    """Return a function that formats a number with ``count`` significant digits, NaN as ``-``."""
    return lambda value: "-" if math.isnan(value) else f"{value:.{count}g}"


def ratio_text(ratio: float) -> str:
    """Format a ratio near 1 as ``0.9987``, NaN as ``-``."""
    return "-" if math.isnan(ratio) else f"{ratio:.4f}"


def milliseconds(value: float) -> str:
    """Format a latency in ms as ``12.3 ms``, NaN as ``-``."""
    return "-" if math.isnan(value) else f"{value:.3g} ms"


def time_text(seconds: float) -> str:
    """Format a duration in seconds as ``1.2 ms`` or ``3.40 s``, NaN as ``-``."""
    if math.isnan(seconds):
        return "-"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
