"""Numerical tolerances of this package, each defined once.

Floating-point sums are exact to some units in the last place. Every module compares such sums with
the same tolerance, so that a network expanded by one command is accepted by another.
"""

from __future__ import annotations

from teal import InputError

# Relative excess of reserved rates over a capacity.
CAPACITY_TOLERANCE = 1e-9
# Relative excess of the downtime of a guarantee over 1 - availability.
TIME_TOLERANCE = 1e-9
# Absolute rounding error of sums of probabilities, which are of the order of 1.
PROBABILITY_ROUNDING = 1e-15
# Smallest 1 - availability: ten times PROBABILITY_ROUNDING, so that rounding decides nothing.
MIN_MISSED_TIME = 1e-14


def max_missed_time(availability: float) -> float:
    """Return the largest share of the time in which a guarantee may fail: 1 - availability,
    increased by the tolerances for rounding errors.

    Args:
        availability: availability of the guarantee.
    """
    return (1 - availability) * (1 + TIME_TOLERANCE) + PROBABILITY_ROUNDING


def check_availability(availability: float, location: str) -> None:
    """Raise InputError unless the number is an availability in (0, 1 - 1e-14].

    Args:
        availability: the number.
        location: option or place in a file, for the message.
    """
    if 0 < availability <= 1 - MIN_MISSED_TIME:
        return
    hint = ""
    if 1 < availability < 100:
        hint = f"; {availability:.12g}% is {availability / 100:.14g}"
    elif 1 - MIN_MISSED_TIME < availability < 1:
        hint = " (the limit of floating-point probabilities)"
    expected = f"a share of the time in (0, 1 - {MIN_MISSED_TIME:g}]{hint}"
    raise InputError(location, "availability", expected, repr(availability))
