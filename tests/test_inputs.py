"""What is said of networks and traffic, and in which form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import teal
from teal.cli import main


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "net.json"
    path.write_text(json.dumps({
        "directed": True, "nodes": [{"id": name} for name in ("a", "b", "c", "alone")],
        "links": [
            {"source": "a", "target": "b", "capacity": 10}, {"source": "b", "target": "a", "capacity": 10},
            {"source": "b", "target": "c", "capacity": 5},
        ],
    }))  # fmt: skip
    return str(path)


def test_one_way_links_and_isolated_nodes_are_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "info", "--topology", file]) == 0
    printed = capsys.readouterr().out
    assert "nodes without a link: alone" in printed
    assert "without one in the other direction: b->c" in printed
    assert main(["topology", "info", "--topology", file, "--bidirectional", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["links"] == 4
    assert found["one_way_links"] == []
    assert found["isolated_nodes"] == ["alone"]


def test_generated_traffic_gives_isolated_nodes_nothing(file: str) -> None:
    topology = teal.load_topology(file, bidirectional=True)
    traffic = teal.load_traffic("gravity:seed=0,count=2,load=1", topology)
    alone = (traffic.pairs == topology.node_names.index("alone")).any(1)
    rates = traffic.read(slice(None))
    assert (rates[:, alone] == 0).all()
    assert (rates[:, ~alone] > 0).all()


def test_the_total_demand_of_a_matrix_is_summed_over_its_demands(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three matrices of 3, 8 and 10 Gbit/s; each demand over time sums to 9 or 12."""
    table = tmp_path / "traffic.csv"
    rates = [(1, 2), (4, 4), (4, 6)]
    rows = [f"{300 * t},a,b,{first}\n{300 * t},b,a,{second}" for t, (first, second) in enumerate(rates)]
    table.write_text("\n".join(["timestamp,source,target,rate", *rows]))
    assert main(["traffic", "info", "--topology", file, "--traffic", str(table)]) == 0
    assert "total demand of a matrix: 3 to 10 Gbit/s, median 8\n" in capsys.readouterr().out


def test_quiet_says_nothing_but_the_result_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "--quiet", "--topology", "b4", "--traffic", "gravity"]) == 0
    said = capsys.readouterr()
    assert "total_flow" in said.out
    assert not said.err
    assert main(["solve", "--quiet", "--topology", "b5", "--traffic", "gravity"]) == 2
    assert "b5" in capsys.readouterr().err


def test_quiet_keeps_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, traffic = tmp_path / "links.csv", tmp_path / "traffic.csv"
    network.write_text("source,target,capacity\na,b,10\nb,a,10\nb,c,10\n")
    traffic.write_text("source,target,rate\na,c,1\n")
    assert main(["simulate", "--quiet", "--topology", str(network), "--traffic", str(traffic)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("Warning: ") for line in said] == [True]
    assert "line 4 (b -> c)" in said[0]


def test_commands_that_compute_print_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = ["--topology", "b4", "--traffic", "gravity:seed=0,count=12,load=2", "--quiet", "--json"]
    out = str(tmp_path)
    for command, key in (
        (["evaluate", "--scheme", "pdhg", "--limit", "1", "--out", f"{out}/evaluate"], "results"),
        (["train", "--max-steps", "1", "--out", f"{out}/train"], "best"),
        (["audit", "--scheme", "shortest-path", "--time-budget", "1s", "--out", f"{out}/audit"], "loss"),
    ):
        assert main([command[0], *network, *command[1:]]) == 0
        assert key in json.loads(capsys.readouterr().out)
