"""Confidence intervals: they cover as often as they say, and repeats of one matrix do not narrow them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from teal.evaluation import Row
from teal.reports.intervals import mean_rows
from tests.reports.test_report import PLAIN


def _rows(values: np.ndarray, repeats: int = 1) -> list[Row]:
    return [
        dataclasses.replace(PLAIN, index=index, satisfied_demand=float(value))
        for index, value in enumerate(values) for _ in range(repeats)
    ]  # fmt: skip


def test_intervals_hold_the_true_mean_about_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        (found,) = [one for one in mean_rows(_rows(rng.uniform(0, 1, 25))) if one.measure == "satisfied_demand"]
        assert found.low <= found.mean <= found.high
        held += found.low <= 0.5 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_repeats_of_a_matrix_do_not_narrow_the_interval() -> None:
    values = np.random.default_rng(1).uniform(0, 1, 10)
    once, often = (
        next(one for one in mean_rows(_rows(values, repeats)) if one.measure == "satisfied_demand")
        for repeats in (1, 5)
    )
    assert (once.low, once.high) == pytest.approx((often.low, often.high))
    assert often.cases == 5 * once.cases == 50
    assert often.matrices == once.matrices == 10


def test_the_interval_holds_the_mean_where_matrices_have_different_numbers_of_cases() -> None:
    """Ten matrices with ten cases of 1 each, and ten with one case of 0: the mean over cases is 100 / 110."""
    rows = [*_rows(np.ones(10), repeats=10), *_rows(np.zeros(20))[10:]]
    (found,) = [one for one in mean_rows(rows) if one.measure == "satisfied_demand"]
    assert (found.cases, found.matrices) == (110, 20)
    assert found.mean == pytest.approx(100 / 110)
    assert 0.7 < found.low < found.mean < found.high < 1
