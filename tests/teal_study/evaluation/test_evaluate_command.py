"""Whole evaluations: interrupted runs against an uninterrupted one, reports against results, faulty
settings."""

from __future__ import annotations

import csv
import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from teal.cli import main
from teal.formats.rows import read_csv
from teal_study.evaluation.record import Record
from teal_study.evaluation.rows import Row
from tests.gate import OPEN, PATIENCE_S, Gate
from tests.processes import running

B4 = ["--topology", "b4", "--traffic", "gravity:seed=0,count=60,load=3"]
SCHEMES = [
    "--scheme",
    "price-gnn",
    "--scheme",
    "lp-all",
    "--scheme",
    "lp-all:solver=gurobi",
    "--scheme",
    "ecmp",
]
MORE = [
    "--online",
    "--failures",
    "1,10%",
    "--noise",
    "5",
    "--spatial",
    "40%",
    "--scale",
    "2",
    "--split",
    "all",
]
TIMES = ("build_s", "solve_s", "parallel_s", "wall_s")


def _comparable(rows: list[Row]) -> list[dict[str, Any]]:
    """Without what a clock says: online values hang on it a little."""
    plain = []
    for row in rows:
        found = {
            field: value for field, value in dataclasses.asdict(row).items() if field not in TIMES
        }
        if row.protocol == "online":
            found = {
                field: round(v, 3) if isinstance(v, float) else v for field, v in found.items()
            }
            found.pop("value")
        plain.append({field: repr(value) for field, value in found.items()})
    return plain


def _command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "teal",
        "evaluate",
        *B4,
        *SCHEMES,
        *MORE,
        "--limit",
        "12",
        "--out",
        str(out),
        *more,
    ]


@pytest.mark.system
def test_a_killed_run_continues_and_ends_with_the_same_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(_command(whole)[3:]) == 0
    journal = broken / "journal.jsonl"
    # The run is interrupted where it writes a certain entry of its journal.
    gate = Gate(tmp_path / "gate", "teal.app.run_files", "Journal", "add", 20)
    with running(_command(broken), gate.environment, output=subprocess.DEVNULL) as process:
        killed = gate.wait_for(1, process)
        assert killed == {process.pid}
        process.send_signal(signal.SIGKILL)
    assert journal.read_bytes().count(b"\n") == 1 + 20
    with journal.open("ab") as stream:
        stream.write(b'{"case": {"network": 0, "key": "cut of')  # as if killed while writing
    assert not (broken / "results.csv").exists()

    gate.allow(12)
    with running(_command(broken, "--resume"), gate.environment, output=subprocess.PIPE) as process:
        assert gate.wait_for(1, process, earlier=killed) == {process.pid}
        process.send_signal(signal.SIGINT)
        gate.allow(OPEN)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, errors
    assert "--resume" in errors
    partial = read_csv(broken / "results.csv", Row)
    assert partial

    evaluate = _command(broken)[3:]
    assert main(evaluate) == 2, "neither resumed nor overwritten"
    assert main([*evaluate, "--resume", "--seed", "1"]) == 2
    assert "--seed" in capsys.readouterr().err
    assert main([*evaluate, "--resume"]) == 0

    rows = read_csv(broken / "results.csv", Row)
    assert _comparable(rows) == _comparable(read_csv(whole / "results.csv", Row))
    assert [repr(row) for row in rows[: len(partial)]] == [repr(row) for row in partial], (
        "to the last digit"
    )
    assert len(rows) == 12 * 4 * (2 + 2 + 1 + 1 + 1)
    assert not journal.exists()
    manifest = json.loads((broken / "manifest.json").read_text())
    assert len(manifest["resumed"]) == 2
    assert manifest["settings"]["failures"] == "1,10%"
    assert manifest["versions"]["torch"]
    assert main([*evaluate, "--resume"]) == 2, "there is nothing left to resume"


@pytest.mark.slow
def test_several_networks_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    two = [
        "--topology",
        "b4",
        "--topology",
        "topohub:sndlib/abilene",
        "--traffic",
        "gravity:seed=0,count=10,load=3",
    ]
    schemes = ["--scheme", "teal", "--scheme", "lp-all", "--scheme", "lp-all:solver=gurobi"]
    arguments = ["evaluate", *two, "--model", "b4", "--model", "none", *schemes, "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "b4, gravity" in printed
    assert "sndlib-abilene, gravity" in printed
    rows = read_csv(out / "results.csv", Row)
    assert all(row.usable for row in rows), (
        "without a model of its own a network has the one for any network"
    )
    assert len(rows) == 2 * 3 * 2
    # Parquet says the same, and every usable row has its links.
    table = pq.read_table(out / "results.parquet").to_pylist()
    assert [repr(Row(**line)) for line in table] == [repr(row) for row in rows]
    record = Record.load([out])
    assert len(record.utilisation) == sum(row.usable for row in rows)
    assert [len(n.source) for n in record.networks] == [38, 30]
    for place, shares in record.utilisation.items():
        (row,) = [
            r
            for r in rows
            if (r.topology, r.scheme, r.index) == (place.topology, place.scheme, place.index)
        ]
        assert shares.max() == pytest.approx(row.max_link_utilisation, abs=1e-4)
    # Two evaluations make one report; a scheme that comes twice counts once.
    other = tmp_path / "other"
    assert (
        main(["evaluate", *two[2:], "--scheme", "lp-all", "--scheme", "ecmp", "--out", str(other)])
        == 0
    )
    both = Record.load([out, other])
    assert len(both.rows) == len(rows) + 2
    page = tmp_path / "both.html"
    report = ["report", "--results", str(out), "--results", str(other), "--out", str(page)]
    assert main(report) == 0
    assert main(report) == 2, "not replaced unasked"
    assert "ecmp" in page.read_text()
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2
    # What was evaluated otherwise is no matter for one table.
    calibrated = ["--calibrate", "0.8", "--out", str(tmp_path / "calibrated")]
    assert main(["evaluate", *two[2:], "--scheme", "ecmp", *calibrated]) == 0
    mixed = [
        "report",
        "--results",
        str(out),
        "--results",
        str(tmp_path / "calibrated"),
        "--out",
        str(tmp_path / "y.html"),
    ]
    capsys.readouterr()
    assert main(mixed) == 2
    assert "cannot be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--topology", "b4", "--topology", "b4"], "occurs twice"),
        (["--topology", "b4", "--topology", "b4", "--traffic", "gravity:count=2"], None),
        (
            ["--topology", "b4", "--topology", "b4", "--topology", "b4"],
            "--traffic: expected one value, or one for each",
        ),
        (["--topology", "b4", "--failures", "1.5"], "--failures: expected numbers such as 1,2,5%"),
        (
            ["--topology", "b4", "--failures", "20"],
            "--failures: expected at most the 19 cables",
        ),
        (["--topology", "b4", "--online", "--objective", "max_link_utilisation"], "--online"),
        (["--topology", "b4", "--race", "--noise", "2"], "--noise: cannot be combined with --race"),
        (["--topology", "b4", "--interval", "0"], "--interval: expected a duration above 0"),
        (["--topology", "b4", "--scale", "50%"], "--scale: expected numbers such as 0.5,1,2"),
        (["--topology", "b4", "--topology", "typo.json"], "typo.json: topology"),
        (
            ["--topology", "b4", "--topology", "topohub:sndlib/polska", "--failures", "19"],
            "18 cables of sndlib-polska",
        ),
        (["--topology", "b4", "--resume"], "resume: the folder has no interrupted run"),
        (["--topology", "b4", "--draws", "0"], "--draws"),
        (["--topology", "b4", "--interval", "soon"], "--interval"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str | None
) -> None:
    traffic = ["--traffic", "gravity:count=3"]
    if words and "one for each" in words:
        traffic *= 2
    out = tmp_path / "out"
    code = main(["evaluate", *more, *traffic, "--scheme", "ecmp", "--out", str(out)])
    error = capsys.readouterr().err
    if words is None:
        assert code == 0, error
    else:
        assert code == 2
        assert words in error
        assert not out.exists(), "nothing is written before everything is known to be right"


def test_a_resumed_run_with_changed_input_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic, out = tmp_path / "t.csv", tmp_path / "out"
    lines = [
        "timestamp,source,target,rate",
        *(f"{1_767_225_600 + 300 * i},1,2,{i + 1}" for i in range(4)),
    ]
    traffic.write_text("\n".join(lines) + "\n")
    arguments = [
        "evaluate",
        "--topology",
        "b4",
        "--traffic",
        str(traffic),
        "--scheme",
        "ecmp",
        "--split",
        "all",
    ]
    assert main([*arguments, "--out", str(out)]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    header = {"settings": manifest["settings"], "inputs": manifest["inputs"], "machine": {}}
    journal: list[dict[str, Any]] = [header]
    journal += [{"network": {"network": 0, "content": "another", "topology": "b4", "traffic": "t"}}]
    (out / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in journal))
    assert main([*arguments, "--out", str(out), "--resume"]) == 2
    assert "of the interrupted run" in capsys.readouterr().err
    (out / "journal.jsonl").write_text("rubbish\n")
    assert main([*arguments, "--out", str(out), "--resume"]) == 2
    assert "the journal of an interrupted run" in capsys.readouterr().err


def test_failed_links_have_no_utilisation(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        main(
            [
                "evaluate",
                *B4,
                "--scheme",
                "ecmp",
                "--fail",
                "1,2",
                "--limit",
                "1",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    (shares,) = Record.load([out]).utilisation.values()
    assert int(np.isnan(shares).sum()) == 2
    with (out / "results.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 1
