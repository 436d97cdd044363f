"""The page and the figures of next-interval results against the rows they show."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from teal.app.run_files import JOURNAL
from teal.cli import main
from teal.formats.rows import read_csv, write_csv
from teal.schemes.past import Past
from teal_next.command import charts_of, interval_table, write_next_interval_report
from teal_next.evaluation import NextRow, summarise


@pytest.fixture(scope="module")
def rows() -> list[NextRow]:
    return [
        NextRow(
            scheme=scheme,
            topology="b4",
            traffic="t",
            index=index,
            timestamp=f"2024-01-01T00:{index:02}:00",
            objective="max_link_utilisation",
            optimum=0.5,
            realised=0.5 * ratio,
            ratio=ratio,
            limit=1.5 if index else math.inf,
            churn=0.1 if index else math.nan,
            solve_s=0.01,
        )
        for index in range(5)
        for scheme, ratio in (("mixture", 1.1), ("last", 1.1 + 0.1 * index))
    ]


def test_the_charts_show_ratios_distributions_limits_and_churn(rows: list[NextRow]) -> None:
    charts = {chart.name: chart for chart in charts_of(rows)}
    assert list(charts) == ["ratio-over-time", "ratio", "limit", "churn"]
    last = charts["ratio-over-time"].series[1]
    assert last.scheme == "last"
    assert last.y == pytest.approx([1.1, 1.2, 1.3, 1.4, 1.5])
    steps = charts["ratio"].series[1]
    assert steps.y[-1] == 100
    assert [series.scheme for series in charts["limit"].series] == ["mixture", "stated limit"], (
        "the best scheme's"
    )
    assert charts["limit"].series[1].y[0] is None, (
        "no limit is stated before there are enough intervals"
    )
    assert charts["churn"].series[0].y == [None, *[pytest.approx(10.0)] * 4]


def test_the_page_has_a_line_a_scheme_and_says_what_was_measured(
    rows: list[NextRow], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_next_interval_report(page, rows, {"b4": "5 of 60 matrices: the test split, consecutive"})
    text = page.read_text()
    assert "5 of 60 matrices: the test split, consecutive" in text
    assert re.findall(r'<th scope="row">(.*?)</th>', text) == ["mixture", "last"], "the best first"
    figures = json.loads(re.findall(r'id="figures">(.*?)</script>', text, re.S)[0])
    assert len(figures) == 4


@pytest.mark.slow
def test_the_command_makes_page_and_figures(
    rows: list[NextRow], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "run").mkdir()
    write_csv(tmp_path / "run" / "next_interval.csv", rows)
    command = ["report", "--results", str(tmp_path / "run"), "--figures", str(tmp_path / "figures")]
    assert main([*command, "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").is_file()
    charts = ("ratio-over-time", "ratio", "limit", "churn")
    names = {f"b4-{name}{ending}" for name in charts for ending in (".svg", ".pdf")}
    assert {file.name for file in (tmp_path / "figures").iterdir()} == names | {
        "tables.csv",
        "tables.md",
        "tables.tex",
    }
    assert main(command) == 2, "figures are not replaced unasked"
    assert "name another folder, or use --overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert main(["report", "--results", str(tmp_path / "run")]) == 2
    assert "--figures" in capsys.readouterr().err


def test_under_total_flow_the_scheme_whose_ratio_is_nearest_to_1_is_the_best(
    rows: list[NextRow], tmp_path: Path
) -> None:
    ratios = {"mixture": 0.7, "last": 0.95}
    flows = [
        dataclasses.replace(row, objective="total_flow", ratio=ratios[row.scheme]) for row in rows
    ]
    charts = {chart.name: chart for chart in charts_of(flows)}
    assert charts["limit"].series[0].scheme == "last"
    write_next_interval_report(tmp_path / "report.html", flows, {})
    assert re.findall(r'<th scope="row">(.*?)</th>', (tmp_path / "report.html").read_text()) == [
        "last",
        "mixture",
    ]
    assert [row[0] for row in interval_table(summarise(flows), wide=True).texts()] == [
        "scheme",
        "last",
        "mixture",
    ]


class _Even:
    """Even splits; Ctrl-C comes in its call of a number."""

    def __init__(self, interrupted_at: int = 0) -> None:
        self.targets = list[int]()
        self._interrupted_at = interrupted_at

    def allocate(self, past: Past) -> torch.Tensor:
        self.targets.append(past.traffic_row)
        if len(self.targets) == self._interrupted_at:
            raise KeyboardInterrupt
        return past.network.even_splits[0]


def test_an_interrupted_run_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["next-interval", "--topology", "b4", "--traffic", "gravity:count=40,load=2"]
    command += ["--objective", "max_link_utilisation", "--num-paths", "2", "--split", "all"]
    command += ["--limit", "20", "--warm-up", "3"]

    def run(folder: str, hedge: _Even, *more: str) -> int:
        monkeypatch.setattr("teal_next.command.hedges_of", lambda *_: {"even": hedge})
        return main([*command, "--out", str(tmp_path / folder), *more])

    whole = _Even()
    assert run("whole", whole) == 0
    assert whole.targets == list(range(1, 20))
    # The models are looked at before anything slow, by hedges that are never asked.
    first = _Even(interrupted_at=12)
    assert run("parts", first) == 130
    assert (tmp_path / "parts" / JOURNAL).is_file()
    done = read_csv(tmp_path / "parts" / "next_interval.csv", NextRow)
    assert [row.index for row in done] == list(range(1, 12))
    assert run("parts", _Even()) == 2, "results are not replaced unasked"
    assert "--resume" in capfd.readouterr().err
    second = _Even()
    assert run("parts", second, "--resume") == 0
    assert second.targets == list(range(9, 20)), "three intervals to warm up"
    assert not (tmp_path / "parts" / JOURNAL).exists()
    rows = read_csv(tmp_path / "parts" / "next_interval.csv", NextRow)
    expected = read_csv(tmp_path / "whole" / "next_interval.csv", NextRow)
    assert [row.index for row in rows] == [row.index for row in expected]
    np.testing.assert_allclose(
        [row.ratio for row in rows], [row.ratio for row in expected], rtol=1e-3
    )
    assert run("parts", _Even(), "--resume") == 2, "there is nothing to resume"


def test_two_networks_of_one_name_are_both_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hedge = _Even()
    monkeypatch.setattr("teal_next.command.hedges_of", lambda *_: {"even": hedge})
    network = ["--topology", "b4", "--traffic", "gravity:count=20,load=2"]
    command = ["next-interval", *network, *network, "--objective", "max_link_utilisation"]
    command += ["--num-paths", "2", "--split", "all", "--limit", "4", "--out", str(tmp_path)]
    assert main([*command, "--overwrite"]) == 0
    assert hedge.targets == [1, 2, 3, 1, 2, 3]
