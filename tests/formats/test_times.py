"""Times as texts and numbers of several units, against the datetime module."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from teal.errors import InputError
from teal.formats.times import seconds_of, seconds_of_numbers, seconds_of_texts

MOMENT = datetime(2026, 1, 1, 0, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("per_second", [1, 1e3, 1e6, 1e9])
def test_numbers_are_read_in_the_unit_that_makes_them_times_of_our_days(per_second: float) -> None:
    numbers = (MOMENT + np.array([0.0, 300.0])) * per_second
    np.testing.assert_allclose(
        seconds_of_numbers(numbers, "t", "time"), [MOMENT, MOMENT + 300], rtol=0, atol=1e-3
    )
    np.testing.assert_allclose(
        seconds_of_texts(pd.Series(numbers).map(repr), "t", "time")[0], MOMENT, atol=1e-3
    )


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T00:05:00Z",
        "2026-01-01 00:05:00",
        "2026-01-01T01:05:00+01:00",
        "2026-01-01T00:05:00.000Z",
    ],
)
def test_iso_8601_with_a_zone_and_without(text: str) -> None:
    assert seconds_of(text, "t", "time") == MOMENT
    assert seconds_of_texts(pd.Series([text, text]), "t", "time").tolist() == [MOMENT, MOMENT]


@pytest.mark.parametrize(
    "value", ["1989-12-31T23:59:59Z", "2101-01-01", "0", "29453760", "yesterday", "5e18"]
)
def test_other_times_are_refused(value: str) -> None:
    """Minutes since 1970 (29453760) are in 1970 as seconds: the unit of a measurement is wrong, and
    so all rates."""
    with pytest.raises(InputError, match="from 1990 to 2100"):
        seconds_of(value, "t", "time")
    with pytest.raises(InputError, match="from 1990 to 2100"):
        seconds_of_texts(
            pd.Series(["2026-01-01T00:00:00Z" if "-" in value else str(MOMENT), value]), "t", "time"
        )


def test_times_of_two_units_are_refused() -> None:
    with pytest.raises(InputError, match="different units"):
        seconds_of_numbers(np.array([MOMENT, MOMENT * 1000]), "t", "time")


def test_times_without_a_zone_are_in_utc_whatever_zone_the_machine_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert seconds_of("2026-01-01 00:05:00", "t", "time") == MOMENT
        assert seconds_of_texts(pd.Series(["2026-01-01 00:05:00"]), "t", "time").tolist() == [
            MOMENT
        ]
    finally:
        monkeypatch.undo()
        time.tzset()
