"""Specifications and durations against strings, right and wrong."""

from __future__ import annotations

import pytest

from teal.config import seconds
from teal.errors import InputError
from teal.spec import parse_spec


def test_names_and_options() -> None:
    spec = parse_spec("teal:repair=admm,iterations=5,quick-start=true")
    assert spec.name == "teal"
    assert spec.parse_options(repair="none", iterations=2, rho=0.5, quick_start=False) == {
        "repair": "admm",
        "iterations": 5,
        "rho": 0.5,
        "quick_start": True,
    }
    assert parse_spec("topohub:a/b,capacity=4", prefix="topohub:").options == {"capacity": "4"}
    assert parse_spec("b4").options == {}


@pytest.mark.parametrize("text", ["x:a", "x:=1", "x:a=", "x:a=1,b"])
def test_malformed_options(text: str) -> None:
    with pytest.raises(InputError, match="key=value"):
        parse_spec(text)


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5s", 0.5)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "10x", "m", "-5s"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(InputError, match="a duration"):
        seconds(text)
