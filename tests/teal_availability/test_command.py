"""`teal availability`: files, the first sentence of the page, Python, and wrong input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import teal_availability
from teal.cli import main

_COMMAND = ["availability", "--topology", "b4", "--traffic", "gravity:seed=0,count=3,load=1"]


def test_tables_page_and_files_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = [*_COMMAND, "--max-failed-components", "1", "--out", str(out), "--json", "--quiet"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in out.iterdir()) == [
        "availability.png",
        "components.csv",
        "demands.csv",
        "manifest.json",
        "promises.csv",
        "report.html",
        "summary.csv",
    ]
    assert said["answer"] in (out / "report.html").read_text(encoding="utf-8")
    with (out / "summary.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["routing"] for row in rows] == [
        "igp",
        "tunnels",
        "solved",
        "least-loss",
        "common-share",
    ]
    for row, one in zip(rows, said["summary"], strict=True):
        assert float(row["mean"]) == one["mean"]
        assert 0 <= one["lost_minutes"] <= one["lost_minutes_at_most"]
    assert all(row["gap"] <= 1e-5 for row in said["promises"])
    assert main([*command[:-2], "--quiet"]) == 2  # there are results

    report = teal_availability.availability(
        "b4", "gravity:seed=0,count=3,load=1", max_failed_components=1, routing=("tunnels",)
    )
    (own,) = report.summary
    assert own.mean == pytest.approx(float(rows[1]["mean"]), abs=1e-12)
    assert report.answer in repr(report)
    report = teal_availability.availability(
        "b4",
        "gravity:seed=0,count=3,load=1",
        max_failed_components=2,
        routing=("tail-loss", "common-share"),
    )
    at_once, by_demand = report.promises
    assert at_once.share <= by_demand.share + 1e-6, "all at once is harder than each by itself"
    assert 0 < at_once.share <= at_once.share_at_most <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cable-availability", "1.2"], "an availability in"),
        (["--cable-availability", "0.6"], "all components work at once"),
        (["--routing", "ospf"], "one of: igp"),
        (["--routing", "tail-loss:cuts=true"], "did you mean cut"),
        (["--routing", "tunnels:schema=pdhg"], "did you mean scheme"),
        (["--availability", "99.9"], "a share of the time"),
        (["--objective", "max_link_utilisation"], "total_flow"),
        (["--components", "none.csv"], "a .csv, .tsv or .xlsx file"),
        (["--max-unlisted-probability", "-1"], "a share of the time"),
        (["--cable-availability", "1"], "every availability is 1"),
        (["--routing", "igp", "--routing", "igp"], "a routing scheme repeats"),
        (["--routing", "igp:metric=foo"], "inverse-capacity"),
        (["--groups", "x.csv"], "no group fails"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main([*_COMMAND, *options, "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert words in errors[-1]


def test_traffic_without_demand_is_refused_and_a_single_link_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = {
        "directed": True,
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [{"source": "a", "target": "b", "capacity": 2}],
    }
    (tmp_path / "two.json").write_text(json.dumps(network))
    for rate, code in ((0, 2), (1, 0)):
        (tmp_path / "t.csv").write_text(f"source,target,rate\na,b,{rate}\n")
        command = ["--topology", str(tmp_path / "two.json"), "--traffic", str(tmp_path / "t.csv")]
        out = ["--out", str(tmp_path / str(rate)), "--quiet"]
        assert main(["availability", *command, "--cable-availability", "0.99", *out]) == code
    printed = capsys.readouterr()
    assert "no matrix has a demand above 0" in printed.err
    # Whichever way: the only cable is down in 1% of the time.
    assert "5,259 to 5,260 minutes" in printed.out
    assert "99.0000% to 99.0000%" in printed.out
