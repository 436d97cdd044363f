"""`teal certify` and `--prove` as a user runs them, on allocations of Teal and of a linear
programming solver."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from teal.cli import main
from teal.formats import load_topology, load_traffic

_NETWORK = ["--topology", "b4", "--traffic", "gravity:seed=0,load=6,count=1"]


def _checked(folder: Path) -> str:
    command = [sys.executable, "-I", "check.py", "network.csv", "matrix.csv", "proof.txt"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_solve_is_proved_and_certified_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocation, first, second = tmp_path / "a.json", tmp_path / "first", tmp_path / "second"
    assert (
        main(["solve", *_NETWORK, "--out", str(allocation), "--prove", str(first), "--json"]) == 0
    )
    value = json.loads(capsys.readouterr().out)["value"]
    proved = re.search(r"the optimum is from ([\d.]+) ", _checked(first))
    assert proved is not None
    assert float(proved[1]) == pytest.approx(value, rel=1e-9)
    assert (
        main(
            ["certify", *_NETWORK, "--allocation", str(allocation), "--out", str(second), "--json"]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["proved"] == _checked(second).splitlines()
    assert main(["certify", *_NETWORK, "--allocation", str(allocation), "--out", str(second)]) == 2
    assert "--overwrite" in capsys.readouterr().err


def _edge_flows(file: Path, prices: Path) -> float:
    """The optimum of B4 over all paths by HiGHS, with a variable for each source and link; written
    by demand and link.

    Only the busiest 30 demands, so that the program is small.
    """
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,load=6,count=1", topology)
    matrix, pairs = traffic.read([0])[0], traffic.pairs
    busiest = np.argsort(-matrix)[:30]
    links, nodes = topology.num_links, topology.num_nodes
    size = len(busiest) * links
    equal, room = np.zeros((len(busiest) * (nodes - 1), size)), np.zeros((links, size))
    gain, most = np.zeros(size), np.zeros((len(busiest), size))
    row = 0
    for i, d in enumerate(busiest):
        source, target = pairs[d]
        for link in range(links):
            column = i * links + link
            room[link, column] = 1
            tail, head = topology.link_source[link], topology.link_target[link]
            out = float(tail == source) - float(head == source)
            gain[column], most[i, column] = -out, out
        for node in range(nodes):
            if node not in (source, target):
                for link in range(links):
                    equal[row, i * links + link] = float(
                        topology.link_source[link] == node
                    ) - float(topology.link_target[link] == node)
                row += 1
    solved = linprog(
        gain,
        A_ub=np.vstack([room, most]),
        b_ub=np.concatenate([topology.capacity, matrix[busiest]]),
        A_eq=equal[:row],
        b_eq=np.zeros(row),
        method="highs",
    )
    names = topology.link_names()
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["source", "target", "link", "flow"])
        for i, d in enumerate(busiest):
            ends = [topology.node_names[node] for node in pairs[d]]
            for link in range(links):
                if (flow := solved.x[i * links + link]) > 0:
                    writer.writerow([*ends, names[link], repr(float(flow))])
    with prices.open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [
                ("link", "price"),
                *zip(names, np.maximum(0, -solved.ineqlin.marginals[:links]), strict=True),
            ]
        )
    traffic_file = file.with_name("traffic.csv")
    with traffic_file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["source", "target", "rate"])
        for d in busiest:
            writer.writerow(
                [*(topology.node_names[node] for node in pairs[d]), repr(float(matrix[d]))]
            )
    return float(-solved.fun)


def test_flows_and_duals_of_highs_are_proved_over_all_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flows, prices, out = tmp_path / "flows.csv", tmp_path / "prices.csv", tmp_path / "proof"
    optimum = _edge_flows(flows, prices)
    command = [
        "certify",
        "--topology",
        "b4",
        "--traffic",
        str(tmp_path / "traffic.csv"),
        "--allocation",
        str(flows),
    ]
    assert main([*command, "--prices", str(prices), "--over-all-paths", "--out", str(out)]) == 0, (
        capsys.readouterr().err
    )
    sentence = _checked(out)
    low, _, rest = sentence.partition("from ")[2].partition(" to ")
    high = rest.partition(",")[0]
    assert sentence.startswith("proved over all paths")
    assert float(low) == pytest.approx(optimum, rel=1e-9)
    assert float(high) == pytest.approx(optimum, rel=1e-6)
    # Of the prices of several matrices the tightest ones are used, wherever they are in the table.
    links = [line.partition(",") for line in prices.read_text().splitlines()[1:]]
    table = ["matrix,link,price"]
    for matrix, factor in (("11:50", 0.3), ("12:00", 1.0), ("12:10", 4.0)):
        table += [f"{matrix},{link},{factor * float(price)!r}" for link, _, price in links]
    prices.write_text("\n".join(table) + "\n")
    for further in (["--over-all-paths"], []):
        again = [*command, "--prices", str(prices), *further, "--out", str(out), "--overwrite"]
        assert main(again) == 0
        assert "link prices of matrix 12:00: the tightest of 3" in capsys.readouterr().err
        bounds = _checked(out).partition("from ")[2].partition(" to ")
        assert float(bounds[2].partition(",")[0]) == pytest.approx(optimum, rel=1e-6)


def test_an_overload_is_named_and_repaired_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flows = tmp_path / "flows.csv"
    topology = load_topology("b4")
    source, target = (
        topology.node_names[int(end[0])] for end in (topology.link_source, topology.link_target)
    )
    name, capacity = topology.link_names()[0], float(topology.capacity[0])
    (tmp_path / "traffic.csv").write_text(f"source,target,rate\n{source},{target},{3 * capacity}\n")
    flows.write_text(f"source,target,links,flow\n{source},{target},{name},{2 * capacity}\n")
    command = [
        "certify",
        "--topology",
        "b4",
        "--traffic",
        str(tmp_path / "traffic.csv"),
        "--allocation",
        str(flows),
    ]
    assert main([*command, "--out", str(tmp_path / "proof")]) == 2
    assert (
        f"link {name}: expected a load of at most {capacity!r} Gbit/s, found {2 * capacity}"
        in capsys.readouterr().err
    )
    assert main([*command, "--repair", "--out", str(tmp_path / "proof")]) == 0
    carried = float(_checked(tmp_path / "proof").partition("from ")[2].partition(" to ")[0])
    assert carried == pytest.approx(capacity, rel=1e-11)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--allocation", "nowhere.json"], "--allocation: no file nowhere.json"),
        (["--allocation", "flows.csv", "--index", "7"], "--index: expected a matrix from 0"),
        (["--allocation", "flows.csv", "--prices", "prices.csv"], "prices.csv, line 2: link"),
        (
            ["--allocation", "flows.csv", "--prices", "flows.csv", "--objective", "max_min"],
            "--prices",
        ),
        (
            ["--allocation", "flows.csv", "--objective", "max_min", "--over-all-paths"],
            "over-all-paths",
        ),
        (
            ["--allocation", "flows.csv", "--objective", "alpha_fair:alpha=2"],
            "not linear in the flows and cannot be used for a proof",
        ),
    ],
)
def test_wrong_settings_are_refused(
    more: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows.csv").write_text("source,target,links,flow\n")
    (tmp_path / "prices.csv").write_text("link,price\nnothing,1\n")
    traffic = ["--topology", "b4", "--traffic", "gravity:seed=0,load=6,count=2"]
    assert main(["certify", *traffic, *more, "--out", "proof"]) == 2
    assert words in capsys.readouterr().err


def test_every_row_of_an_evaluation_is_proved(tmp_path: Path) -> None:
    pytest.importorskip("teal_study", reason="needs the package teal_study")
    command = [
        "evaluate",
        *_NETWORK,
        "--split",
        "all",
        "--limit",
        "1",
        "--scheme",
        "pdhg",
        "--scheme",
        "shortest-path",
    ]
    assert (
        main(
            [*command, "--scheme", "ecmp", "--scheme", "lp-all", "--prove", "--out", str(tmp_path)]
        )
        == 0
    )
    with (tmp_path / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["scheme"] for row in rows] == ["pdhg", "shortest-path", "ecmp", "lp-all"]
    assert (
        rows[2]["note"]
        == "not proved: proof: paths: proofs do not support segment lists; use candidate paths"
    )
    for row in (rows[0], rows[1], rows[3]):
        assert not row["note"]
        assert float(row["proved_gap"]) == pytest.approx(float(row["gap"]), rel=1e-4, abs=2e-8)
