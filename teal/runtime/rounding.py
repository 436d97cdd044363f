"""Formatting of bounds with directed rounding: upper bounds up, lower bounds down.

A number is rounded to nearest if the difference is floating-point error
(:data:`_RELATIVE_ERROR`), so that an upper bound of 20.000000000000004 is printed as 20.
"""

from __future__ import annotations

import math
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

# Relative tolerance: smaller differences are rounding of floating-point sums.
_RELATIVE_ERROR = Decimal("1e-12")
# Maximum number of decimals of a fraction just below 100%.
_MAX_DECIMALS = 12
# Smaller gaps are floating-point error.
_ZERO_GAP = 5e-9


def at_most(value: float, digits: int = 6) -> str:
    """Format an upper bound with ``digits`` significant digits, rounded up: 1.23457 for
    1.2345612.
    """
    return _significant(value, digits, ROUND_CEILING)


def at_least(value: float, digits: int = 6) -> str:
    """Format a lower bound with ``digits`` significant digits, rounded down: 1.23456 for
    1.2345678.
    """
    return _significant(value, digits, ROUND_FLOOR)


def bound_text(value: float, sense: float, digits: int = 6) -> str:
    """Format the bound on an optimum so that it stays valid: an upper bound on a maximum is rounded
    up, a lower bound on a minimum down.

    Args:
        value: the bound.
        sense: 1 for a maximum, -1 for a minimum.
        digits: number of significant digits.
    """
    return at_most(value, digits) if sense > 0 else at_least(value, digits)


def percent_at_most(share: float, decimals: int = 4) -> str:
    """Format an upper bound on a fraction: 33.3334% for 1/3.  Values below 1 are never printed as
    100%.
    """
    return _percent(share, decimals, ROUND_CEILING)


def percent_at_least(share: float, decimals: int = 4) -> str:
    """Format a lower bound on a fraction: 33.3333% for 1/3.  Values below 1 are never printed as
    100%.
    """
    return _percent(share, decimals, ROUND_FLOOR)


def gap_text(gap: float) -> str:
    """Format a certified gap, rounded up: 0.124% for 0.0012345, 0.00012% for 0.00000115."""
    if not math.isfinite(gap):
        return "-"
    if abs(gap) < _ZERO_GAP:
        return "0.000%"
    if abs(gap) < 5e-6:
        return f"{_significant(100 * gap, 2, ROUND_CEILING)}%"
    return _percent(gap, 3, ROUND_CEILING)


def _significant(value: float, digits: int, rounding: str) -> str:
    """Return a number as text with ``digits`` significant digits, rounded up or down; NaN becomes
    ``-``.

    Args:
        value: the number.
        digits: number of significant digits.
        rounding: ROUND_CEILING or ROUND_FLOOR of the module decimal.
    """
    if not math.isfinite(value):
        return "-" if math.isnan(value) else f"{value:g}"
    exact = Decimal(value)
    if not exact:
        return "0"
    # Value of the last digit.
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    rounded = _rounded(exact, unit, rounding)
    if abs(value) < sys.float_info.min:
        # Converting to a subnormal float would lose digits, and thus the direction of rounding.
        return f"{rounded.normalize():e}"
    return f"{float(rounded):.{digits}g}"


def _percent(share: float, decimals: int, rounding: str) -> str:
    """Return a fraction as text in per cent, rounded up or down, with more decimals if it would
    otherwise be printed as 100% without being 1.

    Args:
        share: the fraction.
        decimals: minimum number of decimals.
        rounding: ROUND_CEILING or ROUND_FLOOR of the module decimal.
    """
    if not math.isfinite(share):
        return "-"
    exact = 100 * Decimal(share)
    for num_decimals in range(decimals, _MAX_DECIMALS + 1):
        rounded = _rounded(exact, Decimal(1).scaleb(-num_decimals), rounding)
        is_100_percent = abs(exact - 100) <= 100 * _RELATIVE_ERROR
        if is_100_percent or rounded != 100:
            break
    return f"{rounded if rounded else abs(rounded):.{num_decimals}f}%"


def _rounded(exact: Decimal, unit: Decimal, rounding: str) -> Decimal:
    """Round a number to a multiple of ``unit``: to nearest if the difference is floating-point
    error, else by ``rounding`` of the module decimal.
    """
    nearest = (exact / unit).quantize(Decimal(1), ROUND_HALF_EVEN) * unit
    if abs(nearest - exact) <= _RELATIVE_ERROR * abs(exact):
        return nearest
    return (exact / unit).quantize(Decimal(1), rounding) * unit
