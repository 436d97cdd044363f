"""Bounds as text: never on the wrong side of the number, whatever it is."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from teal.runtime.rounding import (
    at_least,
    at_most,
    bound_text,
    gap_text,
    percent_at_least,
    percent_at_most,
)

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)
SHARES = st.floats(0, 2, allow_nan=False)
ROUNDING = Fraction(1, 10**12)  # relative, of sums in floating point


@example(5e-324, 6)
@example(-5e-324, 6)
@given(NUMBERS, st.integers(2, 12))
def test_a_bound_is_on_its_side_and_near(number: float, digits: int) -> None:
    exact = Fraction(number)
    places = math.floor(math.log10(abs(number))) + 1 - digits if number else 0
    unit = Fraction(10**places) if places >= 0 else Fraction(1, 10**-places)
    above, below = Fraction(at_most(number, digits)), Fraction(at_least(number, digits))
    assert above >= exact - ROUNDING * abs(exact)
    assert below <= exact + ROUNDING * abs(exact)
    most = Fraction(1001, 1000) * unit
    assert above - exact <= most
    assert exact - below <= most


@given(SHARES)
def test_a_share_in_per_cent_is_on_its_side(share: float) -> None:
    exact = 100 * Fraction(share)
    above = Fraction(percent_at_most(share).removesuffix("%"))
    below = Fraction(percent_at_least(share).removesuffix("%"))
    allowed = 200 * ROUNDING
    assert above >= exact - allowed
    assert below <= exact + allowed


@given(st.floats(0, 1, allow_nan=False))
def test_a_gap_is_not_printed_smaller_than_it_is(gap: float) -> None:
    assert Fraction(gap_text(gap).removesuffix("%")) / 100 >= Fraction(gap) - Fraction(1, 10**8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent_at_most(1 / 3), "33.3334%"),
        (percent_at_least(1 / 3), "33.3333%"),
        (percent_at_most(20 / 20.00001), "99.99995%"),
        (percent_at_most(1.0), "100.0000%"),
        (percent_at_most(0.999), "99.9000%"),
        (at_least(1.2345678), "1.23456"),
        (at_most(1.2345678), "1.23457"),
        (at_most(0.1 + 0.2), "0.3"),
        (at_most(0.0), "0"),
        (at_most(math.inf), "inf"),
        (at_most(math.nan), "-"),
        (bound_text(1.2345678, 1.0), "1.23457"),
        (bound_text(1.2345678, -1.0), "1.23456"),
        (gap_text(0.0), "0.000%"),
        (gap_text(1e-12), "0.000%"),
        (gap_text(1.15e-6), "0.00012%"),
        (gap_text(0.0012345), "0.124%"),
        (gap_text(math.inf), "-"),
    ],
)
def test_texts_by_hand(text: str, expected: str) -> None:
    assert text == expected
