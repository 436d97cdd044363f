"""Numbers as text, against the texts that tables must have."""

from __future__ import annotations

import math

import pytest

from teal.app.text import digits, milliseconds, percent, ratio_text, time_text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.12345, "12.35%"),
        (0.0, "0.00%"),
        (-0.0, "0.00%"),
        (-1e-9, "0.00%"),
        (1.0, "100.00%"),
        (-0.0123, "-1.23%"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_shares_are_per_cent_without_a_negative_zero(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.2 ms"),
        (0.9994, "999.4 ms"),
        (1.0, "1.00 s"),
        (75.5, "75.50 s"),
        (math.nan, "-"),
    ],
)
def test_times_change_their_unit_at_a_second(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_numbers_have_significant_digits() -> None:
    assert [digits(3)(value) for value in (12.345, 0.0012345, 1e6)] == ["12.3", "0.00123", "1e+06"]
    assert ratio_text(0.99874) == "0.9987"
    assert milliseconds(12.345) == "12.3 ms"
    assert [form(math.nan) for form in (digits(3), ratio_text, milliseconds)] == ["-"] * 3
