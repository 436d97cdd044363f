"""`teal upgrade` from files to files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from teal.cli import main
from teal.formats import load_topology

B4 = ["--topology", "b4", "--traffic", "gravity:seed=0,count=6,load=0.8", "--path-method", "survivable"]


def test_a_plan_is_certified_and_its_network_carries_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    assert main(["upgrade", *B4, "--growth", "1.5", "--matrices", "3", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 0 < said["bound"] <= said["cost"]
    assert said["gap"] <= 0.01
    assert said["largest_utilisation"] <= 1 + 1e-9
    with (out / "purchases.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(said["cost"])
    before, after = load_topology("b4"), load_topology(str(out / "topology.json"))
    bought = (after.capacity - before.capacity).sum()
    assert bought == pytest.approx(2 * sum(float(row["bought"]) for row in rows)), "both directions"
    assert "<html" in (out / "upgrade.html").read_text()
    modules = ["--modules", "100,400=300", "--failures", "none"]
    assert main(["upgrade", *B4, "--growth", "3", "--matrices", "2", *modules]) == 0
    assert "in any amounts" in capsys.readouterr().out


def test_costs_of_a_file_and_of_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, path = load_topology("b4"), tmp_path / "cost.csv"
    names = topology.node_names
    ends = [(names[topology.link_source[c[0]]], names[topology.link_target[c[0]]]) for c in topology.cables()]
    path.write_text("source,target,cost\n" + "".join(f"{a},{b},{n + 1}\n" for n, (a, b) in enumerate(ends)))
    assert main(["upgrade", *B4, "--growth", "2", "--matrices", "1", "--cost", str(path)]) == 0
    assert main(["upgrade", *B4, "--growth", "2", "--matrices", "1", "--cost", "length"]) == 0
    capsys.readouterr()
    path.write_text("source,target,cost\n" + f"{ends[0][0]},{ends[0][1]},-1\n")
    assert main(["upgrade", *B4, "--cost", str(path)]) == 2
    assert "above 0" in capsys.readouterr().err
    path.write_text("source,target,cost\n" + f"{ends[0][0]},{ends[0][1]},1\n")
    assert main(["upgrade", *B4, "--cost", str(path)]) == 2
    assert "every cable" in capsys.readouterr().err
    assert main(["upgrade", *B4, "--modules", "big"]) == 2
    assert main(["upgrade", *B4, "--growth", "0"]) == 2
