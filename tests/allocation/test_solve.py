"""`teal solve` and `teal evaluate` with priority classes, and with a limit on what moves."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest

import teal
from baselines import arc_form
from teal.cli import main
from teal.cli.commands import COMMANDS
from teal.formats.rows import read_csv
from teal.objectives import SINGLE_PROGRAMS


def test_solve_and_evaluate_say_what_each_class_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = [
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,load=8,count=5",
        "--objective",
        "priority",
    ]
    classes = ["--classes", "gold=0.1,silver=0.3,bronze=0.6", "--latency-limits", "gold=20"]
    out = tmp_path / "a.json"
    assert main(["solve", *traffic, *classes, "--json", "--out", str(out)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [one["class"] for one in figures["classes"]] == ["gold", "silver", "bronze"]
    demands = [
        demand for router in json.loads(out.read_text())["routers"].values() for demand in router
    ]
    for one in figures["classes"]:
        admitted = sum(demand["admitted"] for demand in demands if demand["class"] == one["class"])
        assert admitted == pytest.approx(one["value"], rel=1e-9)
        assert one["gap"] <= 0.01
    assert main(["solve", *traffic, *classes]) == 0
    assert "  silver  " in capsys.readouterr().out
    results = tmp_path / "results"
    schemes = [
        "--scheme",
        "pdhg",
        "--scheme",
        "lp-all",
        "--scheme",
        "ecmp:over=candidates",
        "--limit",
        "2",
    ]
    pytest.importorskip("teal_study", reason="needs the package teal_study")
    assert main(["evaluate", *traffic, *classes, *schemes, "--out", str(results)]) == 0
    with (results / "results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        parts = json.loads(row["classes"])
        assert sum(part["value"] for part in parts) == pytest.approx(float(row["value"]))
        assert float(row["gap_known"]) <= float(row["gap"]) + 1e-12
        assert (float(row["gap_known"]) > 0.1) == (row["scheme"] == "ecmp:over=candidates")
    assert main(["solve", *traffic]) == 2
    assert main(["solve", *traffic, "--classes", "gold=0.5"]) == 2
    assert main(["solve", *traffic, *classes, "--shards", "2"]) == 2


@pytest.mark.system
def test_solve_moves_no_more_than_it_may(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = ["--topology", "b4", "--traffic", "gravity:seed=0,load=8,count=4"]
    before = tmp_path / "before.json"
    assert main(["solve", *traffic, "--index", "0", "--out", str(before)]) == 0
    capsys.readouterr()
    calm = ["--previous", str(before), "--max-churn"]
    assert main(["solve", *traffic, "--index", "1", *calm, "0.01", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["moved_share"] <= 0.01 + 1e-9
    assert main(["solve", *traffic, "--index", "0", *calm, "0", "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["value"] >= 0.99 * json.loads(before.read_text())["figures"]["value"], (
        "what is in force stays in force"
    )
    keep = ["--previous", str(before), "--keep-within"]
    assert main(["solve", *traffic, "--index", "1", *keep, "0.3", "--json"]) in (0, 3)
    steady = json.loads(capsys.readouterr().out)
    assert main(["solve", *traffic, "--index", "1", *keep, "1e-9", "--json"]) == 0
    free = json.loads(capsys.readouterr().out)
    assert steady["changed"] < free["changed"]
    assert steady["moved_share"] < free["moved_share"]
    assert steady["max_violation"] <= 1e-9
    wrong_objective = ["--objective", "max_link_utilisation"]
    for wrong in (
        [*calm, "2"],
        ["--max-churn", "0.1"],
        [*calm, "0.1", "--entries", "16"],
        ["--keep-within", "0.1"],
        [*keep, "2"],
        [*keep, "0.1", *wrong_objective],
    ):
        assert main(["solve", *traffic, *wrong]) == 2
    results = tmp_path / "results"
    schemes = ["--scheme", "pdhg", "--scheme", "lp-all", "--split", "all", "--churn", "0.5,2%"]
    pytest.importorskip("teal_study", reason="needs the package teal_study")
    assert main(["evaluate", *traffic, *schemes, "--out", str(results)]) == 0
    from teal_study.evaluation.rows import Row

    rows = read_csv(results / "results.csv", Row)
    assert sum(row.protocol == "churn" for row in rows) == 2 * 2 * 3  # not the first matrix
    value = {(row.scheme, row.index, row.level): row.value for row in rows}
    for index in (1, 2, 3):
        for scheme in ("pdhg", "lp-all"):
            of_level = [value[scheme, index, level] for level in ("0.5%", "2%", "")]
            assert all(low <= high * 1.001 for low, high in itertools.pairwise(of_level)), (
                "each to a gap of 0.1%"
            )


def test_solve_over_all_paths_reaches_the_optimum_of_the_arc_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One path a demand to begin with, whose own optimum is far below."""
    topology = teal.load_topology("b4")
    demand = teal.load_traffic("gravity:seed=0,load=8,count=1", topology).read([0])
    for objective in SINGLE_PROGRAMS:
        command = [
            "solve",
            "--topology",
            "b4",
            "--traffic",
            "gravity:seed=0,load=8",
            "--objective",
            objective.value,
        ]
        command += ["--weights", "random:seed=1"] if objective == "weighted_flow" else []
        figures = []
        for further in ([], ["--over-all-paths"]):
            assert main([*command, "--num-paths", "1", "--gap", "0.002", "--json", *further]) == 0
            figures.append(json.loads(capsys.readouterr().out))
        few, over_all = figures
        assert over_all["gap_all_paths"] <= 0.002
        assert few["gap_all_paths"] is None or few["gap_all_paths"] > 0.01
        if objective in ("weighted_flow", "latency_penalised_flow"):
            # the weights, and the longest path that a penalty counts from, are the command's own
            continue
        paths = teal.compute_paths(topology, num_paths=1)
        optimum = arc_form.optimum(
            teal.Problem.create(topology, paths, teal.Objective(objective), demand)
        )
        assert over_all["value"] == pytest.approx(optimum, rel=2.1e-3)


def test_a_gap_over_all_paths_that_proves_nothing_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [
        "solve",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0",
        "--objective",
        "max_link_utilisation",
    ]
    assert main([*command, "--num-paths", "1"]) == 0
    assert "all paths unknown" in capsys.readouterr().out
    assert main([*command, "--num-paths", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gap_all_paths"] is None
    assert main([*command, "--gap", "0.001"]) == 0
    assert "unknown" not in capsys.readouterr().out, (
        "chosen paths leave prices that prove something"
    )


@pytest.mark.parametrize(
    "options", [["--over-all-paths", "--min-split", "0.9"], ["--keep-within", "1"]]
)
def test_the_gap_over_all_paths_is_of_the_splits_given_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Rounded splits carry far less than the program's optimum over all paths, which the arc form
    gives."""
    out, topology = tmp_path / "a.json", teal.load_topology("b4")
    command = [
        "solve",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,load=8,count=2",
        "--out",
        str(out),
    ]
    if "--keep-within" in options:
        assert main(command) == 0
        options = [*options, "--index", "1", "--previous", str(out), "--overwrite"]
    capsys.readouterr()
    assert main([*command, "--gap", "0.001", "--json", *options]) == 3
    figures = json.loads(capsys.readouterr().out)
    demand = teal.load_traffic("gravity:seed=0,load=8,count=2", topology).read(
        [int("--index" in options)]
    )
    optimum = arc_form.optimum(
        teal.Problem.create(topology, teal.compute_paths(topology), "total_flow", demand)
    )
    carried = _satisfied(out) * demand.sum()
    assert figures["gap_all_paths"] >= 1 - carried / optimum - 1e-9 > 0.001
    assert not figures["reached"]


@pytest.mark.parametrize(
    "options",
    [
        ["--over-all-paths", "--objective", "max_min"],
        ["--over-all-paths", "--shards", "2"],
        ["--num-paths", "many"],
        ["--num-paths", "0"],
        ["--num-paths", "auto:gap=0"],
        ["--num-paths", "auto:most=0"],
        ["--num-paths", "auto:paths=3"],
    ],
)
def test_paths_that_cannot_be_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code: object = None
    try:
        code = main(["solve", "--topology", "b4", "--traffic", "gravity", *options])
    except SystemExit as error:  # of the parser
        code = error.code
    assert code == 2
    assert capsys.readouterr().err


def test_paths_in_force_stay_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An allocation over paths that the next call would not compute: nothing moves unless it
    must."""
    before = tmp_path / "before.json"
    command = ["solve", "--topology", "b4", "--traffic", "gravity:seed=0,load=8"]
    assert (
        main(
            [
                *command,
                "--num-paths",
                "4",
                "--over-all-paths",
                "--gap",
                "0.001",
                "--out",
                str(before),
            ]
        )
        == 0
    )
    capsys.readouterr()
    steady = [
        "--num-paths",
        "1",
        "--previous",
        str(before),
        "--max-churn",
        "0",
        "--gap",
        "0.005",
        "--json",
    ]
    assert main([*command, *steady]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["moved_share"] == pytest.approx(0, abs=1e-9)
    assert figures["satisfied_demand"] > 0.99 * _satisfied(before)


def _satisfied(file: Path) -> float:
    demands = [
        demand for router in json.loads(file.read_text())["routers"].values() for demand in router
    ]
    return sum(demand["admitted"] for demand in demands) / sum(
        demand["demand"] for demand in demands
    )


@pytest.mark.parametrize(
    "objective", ["total_flow", "max_link_utilisation", "max_concurrent_flow", "max_min"]
)
def test_demands_without_a_path_are_named(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two parts of a network, a - b and c - d, and a demand of 4 of 12 Gbit/s between them."""
    (tmp_path / "net.csv").write_text("source,target,capacity\na,b,10\nb,a,10\nc,d,10\nd,c,10\n")
    (tmp_path / "d.csv").write_text("source,target,rate\na,b,3\na,c,4\nc,d,5\n")
    files = [
        "--topology",
        str(tmp_path / "net.csv"),
        "--traffic",
        str(tmp_path / "d.csv"),
        "--quiet",
    ]
    expected = {"demands": 1, "rate": 4.0, "pairs": ["a->c"]}
    for command in (["solve", *files, "--objective", objective], ["simulate", *files]):
        if command[0] not in COMMANDS:
            continue  # without the package teal_ip
        assert main(command) == 0
        assert "1 demand without a path, 4 Gbit/s: a->c" in capsys.readouterr().out
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["without_path"] == expected


def test_the_least_cost_is_said_proved_and_refused_where_not_all_can_be_carried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = ["--topology", "b4", "--objective", "least_cost:max_utilisation=0.9"]
    out, proof = tmp_path / "a.json", tmp_path / "proof"
    light = [*problem, "--traffic", "gravity:seed=0,load=1.2"]
    assert main(["solve", *light, "--json", "--out", str(out), "--prove", str(proof)]) == 0
    said = capsys.readouterr()
    figures = json.loads(said.out)
    assert figures["satisfied_demand"] == pytest.approx(1, abs=1e-12)
    assert figures["max_link_utilisation"] <= 0.9 * (1 + 1e-9)
    assert figures["value"] == pytest.approx(figures["latency_mean"] * _volume(out), rel=1e-9)
    assert "proved over the listed paths: cost 0.99999999999" in said.err
    assert main(["certify", *light, "--allocation", str(out), "--out", str(tmp_path / "p")]) == 0
    assert "the cost is from" in capsys.readouterr().out
    heavy = [*problem, "--traffic", "gravity:seed=0,load=6"]
    for more in ([], ["--over-all-paths"]):
        assert main(["solve", *heavy, *more]) == 1
        said = capsys.readouterr()
        assert "infeasible, not all demand can be carried\nof every demand at most" in said.out
        assert main(["solve", *heavy, *more, "--json"]) == 1
        figures = json.loads(capsys.readouterr().out)
        assert figures["status"] == "infeasible"
        assert figures["value"] is None
        assert 0 < figures["largest_share"] <= figures["largest_share_bound"] + 1e-9 < 1
    rounded = tmp_path / "rounded.json"
    assert main(["solve", *heavy, "--entries", "16", "--out", str(rounded)]) == 1
    routers = json.loads(rounded.read_text())["routers"].values()
    admitted = [demand["admitted"] / demand["demand"] for one in routers for demand in one]
    assert admitted == pytest.approx([figures["largest_share"]] * len(admitted), rel=1e-2)


def _volume(file: Path) -> float:
    """Gbit/s of all demands of an allocation."""
    routers = json.loads(file.read_text())["routers"].values()
    return float(sum(demand["demand"] for router in routers for demand in router))


def test_a_problem_of_commalab_is_solved_over_all_paths(
    public_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(public_data / "mcf" / "planar30")
    problem = ["--topology", file, "--traffic", file, "--objective", "least_cost"]
    assert main(["solve", *problem, "--over-all-paths", "--gap", "1e-6", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["value"] == pytest.approx(44350624, rel=1e-6)
    assert "candidate paths:" not in said.err, "column generation needs no choice before it"
