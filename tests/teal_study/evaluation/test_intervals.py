"""Confidence intervals: they cover as often as they say, also where matrices that follow each other
are alike."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from teal_study.evaluation.intervals import difference_rows, mean_rows
from teal_study.evaluation.rows import Row
from teal_study.evaluation.table import difference_tables, summarise
from tests.teal_study.evaluation.test_report import PLAIN


def _rows(values: np.ndarray, repeats: int = 1) -> list[Row]:
    return [
        dataclasses.replace(PLAIN, index=index, satisfied_demand=float(value))
        for index, value in enumerate(values)
        for _ in range(repeats)
    ]


def test_intervals_hold_the_true_mean_about_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        (found,) = [
            one
            for one in mean_rows(_rows(rng.uniform(0, 1, 25)))
            if one.measure == "satisfied_demand"
        ]
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
    """Ten matrices with ten cases of 1 each, and ten with one case of 0: the mean over cases is 100
    / 110."""
    rows = [*_rows(np.ones(10), repeats=10), *_rows(np.zeros(20))[10:]]
    (found,) = [one for one in mean_rows(rows) if one.measure == "satisfied_demand"]
    assert (found.cases, found.matrices) == (110, 20)
    assert found.mean == pytest.approx(100 / 110)
    assert 0.6 < found.low < found.mean < found.high < 1


def test_shares_of_the_optimum_have_means_intervals_and_the_worst_by_hand() -> None:
    """LP-all carries 10, 20 and 40; the other scheme 9, 19 and nothing, where it has failed."""
    optima = [
        dataclasses.replace(PLAIN, index=i, value=v) for i, v in enumerate((10.0, 20.0, 40.0))
    ]
    own = [
        dataclasses.replace(row, scheme="own", status="feasible", value=value)
        for row, value in zip(optima, (9.0, 19.0, 0.0), strict=True)
    ]
    own[2] = dataclasses.replace(own[2], status="failed", value=math.nan)
    rows = [*optima, *own]
    found = {one.scheme: one for one in mean_rows(rows) if one.measure == "of_optimum"}
    assert (found["lp-all"].mean, found["lp-all"].worst) == (1.0, 1.0)
    assert found["own"].mean == pytest.approx((0.9 + 0.95) / 3)
    assert found["own"].worst == 0.0
    assert found["own"].low < found["own"].mean < found["own"].high
    (difference,) = [one for one in difference_rows(rows) if one.measure == "of_optimum"]
    assert difference.mean == pytest.approx((0.1 + 0.05 + 1) / -3)
    (table,) = difference_tables(rows)
    labelled = table.labelled({difference.less: "LP"}).texts()
    assert labelled[0] == ["scheme", "less", "protocol", "difference (points)", "95%", "cases"]
    assert labelled[1][1] == "LP"
    assert table.with_columns(["cases"]).texts()[0] == ["scheme", "less", "cases"]
    assert labelled[1][3] == f"{100 * difference.mean:+.2f}"
    alone = [one for one in mean_rows(own) if one.measure == "of_optimum"]
    assert not alone, "there is no optimum to compare with"
    of_table = {one.scheme: one for one in summarise(rows)}["own"]
    assert of_table.compared == 3
    assert of_table.of_optimum == pytest.approx(found["own"].mean)
    assert (of_table.of_optimum_low, of_table.of_optimum_high) == (
        found["own"].low,
        found["own"].high,
    )


def _other(rows: list[Row]) -> list[Row]:
    return [dataclasses.replace(row, scheme="other") for row in rows]


def test_two_and_three_matrices_have_an_interval() -> None:
    for count in (2, 3):
        (found,) = [
            one
            for one in mean_rows(_rows(np.arange(count) / 4))
            if one.measure == "satisfied_demand"
        ]
        assert found.low < found.mean < found.high


def _walk(rng: np.random.Generator, count: int, memory: float = 0.7) -> np.ndarray:
    """A series of mean 0 in which each number is ``memory`` of the one before, and noise."""
    values = [rng.normal() / np.sqrt(1 - memory**2)]
    for _ in range(count - 1):
        values.append(memory * values[-1] + rng.normal())
    return np.array(values)


@pytest.mark.slow
def test_consecutive_matrices_that_are_alike_widen_the_interval() -> None:
    """Single matrices, drawn independently, would give intervals that hold the mean in 55% of such
    series."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        (found,) = [
            one for one in mean_rows(_rows(_walk(rng, 216))) if one.measure == "satisfied_demand"
        ]
        held += found.low <= 0.0 <= found.high
    assert held / 200 >= 0.75


def test_differences_are_of_the_same_cases_and_narrower_than_those_of_the_means() -> None:
    """Two schemes whose difference is 0.01 in every matrix, on matrices that differ by far more."""
    values = np.random.default_rng(2).uniform(0, 1, 30)
    better = [
        dataclasses.replace(row, scheme="better", satisfied_demand=row.satisfied_demand + 0.01)
        for row in _rows(values)
    ]
    rows = [*_rows(values), *better[:20]]
    (found,) = [one for one in difference_rows(rows) if one.measure == "satisfied_demand"]
    assert (found.scheme, found.less, found.cases, found.matrices) == ("better", "lp-all", 20, 20)
    assert (found.low, found.mean, found.high) == pytest.approx((0.01, 0.01, 0.01))


def test_a_scheme_that_fails_on_half_of_the_matrices_carries_half() -> None:
    rows = [
        dataclasses.replace(row, status="failed", satisfied_demand=np.nan, value=np.nan, gap=np.nan)
        if row.index % 2
        else row
        for row in _rows(np.ones(10))
    ]
    by_measure = {one.measure: one for one in mean_rows(rows)}
    assert by_measure["satisfied_demand"].mean == pytest.approx(0.5)
    assert (by_measure["satisfied_demand"].cases, by_measure["satisfied_demand"].failed) == (10, 5)
    assert by_measure["gap"].mean == pytest.approx(0.5), "0 where it worked, 1 where it did not"
    (summary,) = summarise(rows)
    assert (summary.satisfied_demand, summary.value) == pytest.approx((0.5, 0.5))
    least = [dataclasses.replace(row, objective="max_link_utilisation") for row in rows]
    (summary,) = summarise(least)
    assert summary.value == np.inf
    assert not [one for one in mean_rows(least) if one.measure == "value"], (
        "a failed case leaves no mean"
    )
    assert not [one for one in difference_rows([*least, *_other(least)]) if one.measure == "value"]
    slow = [
        dataclasses.replace(row, note="left out after 700 s for one matrix")
        if row.index % 2
        else row
        for row in rows
    ]
    assert summarise(slow)[0].satisfied_demand == 1.0, (
        "matrices that a scheme was not run on are in no mean"
    )
    never = [
        dataclasses.replace(row, status="failed", satisfied_demand=np.nan, value=np.nan)
        for row in rows
    ]
    assert not list(mean_rows(never))
    assert np.isnan(summarise(never)[0].satisfied_demand), "a scheme that never worked has no mean"
