"""Summaries of priority classes, against means by hand, and the tables that show them."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from teal_study.evaluation.rows import Row
from teal_study.evaluation.table import class_text, summarise, summary_tables
from tests.teal_study.evaluation.test_report import PLAIN


def _with_classes(gold: float) -> Row:
    lines = [
        {"class": "gold", "demand": 10.0, "value": gold, "bound": 10.0, "gap": 1 - gold / 10},
        {"class": "bronze", "demand": 0.0, "value": 0.0, "bound": 0.0, "gap": 0.0},
    ]
    return dataclasses.replace(PLAIN, classes=json.dumps(lines), objective="priority")


def test_classes_have_the_mean_of_what_is_carried_and_the_widest_gap() -> None:
    rows = [_with_classes(10.0), _with_classes(8.0)]
    (summary,) = summarise(rows)
    gold, bronze = summary.classes
    assert [one.name for one in summary.classes] == ["gold", "bronze"]
    assert [gold.satisfied_demand, gold.gap] == pytest.approx([0.9, 0.2])
    assert (bronze.satisfied_demand, bronze.gap) == (1.0, 0.0)
    assert class_text(summary, "gold") == "90.00% (20.00%)"
    assert class_text(summary, "silver") == "-"
    for wide in (False, True):
        console = Console(width=400, file=io.StringIO(), record=True)
        for table in summary_tables(rows, wide=wide):
            console.print(table.of_terminal())
        assert "90.00% (20.00%)" in console.export_text()
    assert not summarise([PLAIN])[0].classes


def test_a_scheme_that_failed_has_no_fairness() -> None:
    fair = dataclasses.replace(PLAIN, objective="max_min", fairness=0.98765)
    failed = dataclasses.replace(PLAIN, objective="max_min", scheme="other")
    for wide in (False, True):
        console = Console(width=400, file=io.StringIO(), record=True)
        for table in summary_tables([fair, failed], wide=wide):
            console.print(table.of_terminal())
        text = console.export_text()
        assert "0.9877" in text
        assert "nan" not in text


@pytest.mark.parametrize(
    ("objective", "worst"), [("total_flow", 0.5), ("max_link_utilisation", 1.5)]
)
def test_the_worst_share_of_the_optimum_is_that_of_the_matrix_with_the_poorest_result(
    objective: str, worst: float
) -> None:
    values = {"total_flow": (9.0, 5.0, 8.0), "max_link_utilisation": (11.0, 15.0, 12.0)}[objective]
    plain = dataclasses.replace(PLAIN, objective=objective, value=10.0)
    rows = [dataclasses.replace(plain, index=index) for index in range(3)]
    rows += [
        dataclasses.replace(plain, scheme="ecmp", status="feasible", index=index, value=value)
        for index, value in enumerate(values)
    ]
    _, ecmp = summarise(rows)
    assert ecmp.worst == pytest.approx(worst)
    assert ecmp.of_optimum == pytest.approx(sum(values) / 30)
