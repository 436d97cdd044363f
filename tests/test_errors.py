"""Texts of input errors, and what survives a change of location or of process."""

from __future__ import annotations

import pickle

import pytest

from teal.errors import InputError

COMPARISON = InputError("rates.csv", "row 3", "a finite rate >= 0", -1)
FAULT = InputError.invalid("rates.csv", "", "all rates are 0", "check the column names")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (COMPARISON, "rates.csv: row 3: expected a finite rate >= 0, found -1"),
        (FAULT, "rates.csv: all rates are 0; check the column names"),
        (InputError.invalid("--gap", "", "0 is no gap"), "--gap: 0 is no gap"),
        (COMPARISON.relocated("b.csv"), "b.csv: expected a finite rate >= 0, found -1"),
        (FAULT.relocated("b.csv", "x"), "b.csv: x: all rates are 0; check the column names"),
    ],
)
def test_text_names_location_fault_and_remedy(error: InputError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", [COMPARISON, FAULT])
def test_pickled_error_keeps_its_text_and_can_be_relocated(error: InputError) -> None:
    restored = pickle.loads(pickle.dumps(error))
    assert (str(restored), restored.where, restored.field) == (str(error), error.where, error.field)
    assert str(restored.relocated("x")) == str(error.relocated("x"))
