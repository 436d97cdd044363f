"""Bounds as text, rounded so that they stay true: upper bounds up, lower bounds down.

A number is rounded to the nearest text where that differs from it by less than the rounding of the
sums that made it (:data:`_EXACT`), so that a bound of 20.000000000000004 is printed as 20.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

_EXACT = Decimal("1e-12")  # relative: differences below it are those of floating-point sums
_MAX_DECIMALS = 12  # of a share just below 100%
_SMALL_GAP = 5e-9  # gaps below it are rounding


def at_most(value: float, digits: int = 6) -> str:
    """An upper bound with so many significant digits, rounded up: 1.23457 for 1.2345612."""
    return _significant(value, digits, ROUND_CEILING)


def at_least(value: float, digits: int = 6) -> str:
    """A lower bound with so many significant digits, rounded down: 1.23456 for 1.2345678."""
    return _significant(value, digits, ROUND_FLOOR)


def bound_text(value: float, sense: float, digits: int = 6) -> str:
    """The bound on an optimum: an upper one of a maximum (``sense`` 1), a lower one of a minimum
    (-1).
    """
    return at_most(value, digits) if sense > 0 else at_least(value, digits)


def percent_at_most(share: float, decimals: int = 4) -> str:
    """An upper bound on a share: 33.3334% for 1/3.  A share below 1 is never printed as 100%."""
    return _percent(share, decimals, ROUND_CEILING)


def percent_at_least(share: float, decimals: int = 4) -> str:
    """A lower bound on a share: 33.3333% for 1/3.  A share below 1 is never printed as 100%."""
    return _percent(share, decimals, ROUND_FLOOR)


def gap_text(gap: float) -> str:
    """A certified gap, rounded up: 0.124% for 0.0012345, 0.00012% for 0.00000115."""
    if not math.isfinite(gap):
        return "-"
    if abs(gap) < _SMALL_GAP:
        return "0.000%"
    if abs(gap) < 5e-6:
        return f"{_significant(100 * gap, 2, ROUND_CEILING)}%"
    return _percent(gap, 3, ROUND_CEILING)


def _significant(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return "-" if math.isnan(value) else f"{value:g}"
    exact = Decimal(value)
    if not exact:
        return "0"
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return f"{float(_rounded(exact, unit, rounding)):.{digits}g}"


def _percent(share: float, decimals: int, rounding: str) -> str:
    if not math.isfinite(share):
        return "-"
    exact = 100 * Decimal(share)
    for places in range(decimals, _MAX_DECIMALS + 1):
        rounded = _rounded(exact, Decimal(1).scaleb(-places), rounding)
        is_whole = abs(exact - 100) <= 100 * _EXACT
        if is_whole or rounded != 100:
            break
    return f"{rounded if rounded else abs(rounded):.{places}f}%"


def _rounded(exact: Decimal, unit: Decimal, rounding: str) -> Decimal:
    """A number as a multiple of a unit: the nearest one where it is equal but for rounding."""
    nearest = (exact / unit).quantize(Decimal(1), ROUND_HALF_EVEN) * unit
    if abs(nearest - exact) <= _EXACT * abs(exact):
        return nearest
    return (exact / unit).quantize(Decimal(1), rounding) * unit
