"""Numbers with decimal points and decimal commas: what a column certainly says, against values by
hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.errors import InputError
from teal.formats.numerals import plain_numbers


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["2,5", "10", "1,25"], ["2.5", "10", "1.25"]),
        (["0,622"], ["0.622"]),
        (["1.000,5"], ["1000.5"]),
        (["1.000.000"], ["1000000"]),
        (["2,5", "10.000"], ["2.5", "10000"]),
        (["2.5", "10,000"], ["2.5", "10000"]),
        (["1,000.5", "1,000"], ["1000.5", "1000"]),
        (["2x2,5G", "100 GbE"], ["2x2.5G", "100 GbE"]),
        (["10 000", "1'500"], ["10000", "1500"]),
        (["16.000.000-23.999.999"], ["16000000-23999999"]),
        (["1,5e3", "2e-3"], ["1.5e3", "2e-3"]),
        (["10.0 Mbit/s", ""], ["10.0 Mbit/s", ""]),
    ],
)
def test_a_column_is_read_as_its_numbers_certainly_say(
    cells: list[str], expected: list[str]
) -> None:
    for separator in (";", "\t", ""):
        assert plain_numbers(cells, "t", "column capacity", separator) == expected


@pytest.mark.parametrize(
    "cells", [["10.000"], ["10,000", "7"], ["10.000 Mbit/s"], ["1.500", "2.500"]]
)
def test_a_number_of_two_readings_is_refused_with_both(cells: list[str]) -> None:
    with pytest.raises(InputError, match=r"ambiguous: 1(0|\.5) or 1(0000|500)"):
        plain_numbers(cells, "t", "column capacity", ";")


def test_bare_numbers_between_commas_have_decimal_points() -> None:
    """A decimal comma would end the column; a number beside a unit was written by a person, who may
    mean thousands."""
    assert plain_numbers(["10.000", "2.500"], "t", "column capacity", ",") == ["10.000", "2.500"]
    with pytest.raises(InputError, match="ambiguous: 10 or 10000"):
        plain_numbers(["10.000 Mbit/s"], "t", "column capacity", ",")


def test_both_signs_in_a_column_are_refused() -> None:
    with pytest.raises(InputError, match=r"'2\.5' has a decimal point, but '3,5'"):
        plain_numbers(["2.5", "3,5"], "t", "column capacity", ";")


@given(st.lists(st.integers(0, 10**9), min_size=1), st.booleans(), st.sampled_from([";", "\t", ""]))
def test_a_column_of_one_country_is_read_or_refused_never_changed(
    thousandths: list[int], has_comma: bool, separator: str
) -> None:
    """Numbers with thousands separators and three decimals, as spreadsheets of two countries write
    them."""
    texts = [f"{number / 1000:,.3f}" for number in thousandths]
    cells = [text.translate(str.maketrans(",.", ".,")) for text in texts] if has_comma else texts
    try:
        found = plain_numbers(cells, "t", "column rate", separator)
    except InputError:
        assert all(1000 <= number < 1_000_000 for number in thousandths), (
            "each may be read in two ways"
        )
    else:
        assert [round(float(text) * 1000) for text in found] == thousandths
