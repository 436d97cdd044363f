"""Lines of responses, with a different number in each field."""

from __future__ import annotations

import pytest

pytest.importorskip("httpx", reason="needs the service's packages: pip install '.[serve]'")
pytest.importorskip("pyarrow", reason="needs the service's packages: pip install '.[serve]'")

from teal_serve.client import ClassResult, LevelResult


def test_lines_of_classes_and_levels_are_read_field_by_field() -> None:
    of_class = {"class": "gold", "demand": 8.0, "value": 6.0, "bound": 7.0, "gap": 0.125}
    assert ClassResult.of(of_class) == ClassResult(
        name="gold", demand=8.0, value=6.0, bound=7.0, gap=0.125
    )
    level = {
        "level": 2.0,
        "demands": 3,
        "growth": None,
        "demand": 9.0,
        "value": 6.0,
        "bound": 7.0,
        "gap": 0.125,
    }
    expected = LevelResult(
        level=2.0, demands=3, growth=None, demand=9.0, value=6.0, bound=7.0, gap=0.125
    )
    assert LevelResult.of({**level, "of_a_later_version": 1}) == expected
