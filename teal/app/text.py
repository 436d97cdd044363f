"""Numbers as text in tables and pages."""

from __future__ import annotations

import math
from collections.abc import Callable


def percent(share: float) -> str:
    """A share as text: ``12.34%``, or ``-`` where it is unknown or infinite."""
    # + 0.0 turns -0.0 into 0.0.
    return "-" if not math.isfinite(share) else f"{round(100 * share, 2) + 0.0:.2f}%"


def digits(count: int) -> Callable[[float], str]:
    """The function from a number to its text with so many significant digits: ``12.3``, or ``-``
    for NaN.
    """
    return lambda value: "-" if math.isnan(value) else f"{value:.{count}g}"


def ratio_text(ratio: float) -> str:
    """A ratio near 1 as text: ``0.9987``, or ``-`` for NaN."""
    return "-" if math.isnan(ratio) else f"{ratio:.4f}"


def milliseconds(value: float) -> str:
    """A latency as text: ``12.3 ms``, or ``-`` for NaN."""
    return "-" if math.isnan(value) else f"{value:.3g} ms"


def time_text(seconds: float) -> str:
    """A time as text: ``1.2 ms``, ``3.40 s``, or ``-`` for NaN."""
    if math.isnan(seconds):
        return "-"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
