"""The tolerances of this package, each stated once.

Sums of floating-point numbers are exact to some units in the last place.  A comparison of two such
sums allows the difference that is named here, in every module alike, so that what one command buys,
another one accepts.
"""

from __future__ import annotations

from teal import InputError

CAPACITY_TOLERANCE = 1e-9  # relative: by which reserved rates may exceed a capacity
TIME_TOLERANCE = 1e-9  # relative: by which the time of missed promises may exceed what is allowed
PROBABILITY_ROUNDING = 1e-15  # absolute: of sums of probabilities, which are of the order of 1
# Of 1 - availability: ten times PROBABILITY_ROUNDING, so that rounding decides nothing.
LEAST_MISSED_TIME = 1e-14


def missed_time(availability: float) -> float:
    """Share of the time for which a promise of this availability may be missed, with its
    tolerance.
    """
    return (1 - availability) * (1 + TIME_TOLERANCE) + PROBABILITY_ROUNDING


def check_availability(availability: float, where: str) -> None:
    """Raise InputError for a number that is no share of the time in (0, 1 - 1e-14].

    Args:
        availability: the number.
        where: option or place in a file, for the message.
    """
    if 0 < availability <= 1 - LEAST_MISSED_TIME:
        return
    hint = ""
    if 1 < availability < 100:
        hint = f"; {availability:.12g}% is {availability / 100:.14g}"
    elif 1 - LEAST_MISSED_TIME < availability < 1:
        hint = " (beyond, probabilities cannot be told apart in floating point)"
    expected = f"a share of the time in (0, 1 - {LEAST_MISSED_TIME:g}]{hint}"
    raise InputError(where, "availability", expected, repr(availability))
