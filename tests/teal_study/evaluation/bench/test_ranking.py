"""Scores against networks solved by hand; wrong results; the set and its files."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from teal.cli import main
from teal.errors import InputError
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.testing import make_topology
from teal_study.evaluation.bench.problems import KEY, BenchSet, Case, make_set, read_set, write_set
from teal_study.evaluation.bench.proofs import prove_scores
from teal_study.evaluation.bench.ranking import means, rank, read_results, score_of

HEADER = "case,source,target,path,share\n"


def _set() -> BenchSet:
    """A triangle: n0 to n1 directly (10 Gbit/s) or by n2 (5 Gbit/s); 12 Gbit/s from n0 to n1."""
    topology = dataclasses.replace(
        make_topology([(0, 1, 10.0), (0, 2, 5.0), (2, 1, 5.0)], both=True), name="tri"
    )
    times = np.array(["2024-01-01"], dtype="datetime64[s]")
    traffic = TrafficMatrices(
        "t", np.array([[0, 1]], dtype=np.int32), times, ArrayRates(np.array([[12.0]])), 300
    )
    cases = (
        Case("flow", "known", "tri", 0, (), 12.0, 12.0),
        Case("failed", "failures", "tri", 0, ("n0", "n1"), 5.0, 5.0),
        Case("load", "next", "tri", 0, (), 0.8, 0.8),
        Case("single", "unsplittable", "tri", 0, (), 0.8, 0.8),
    )
    return BenchSet({"tri": topology}, {"tri": traffic}, cases)


@pytest.mark.parametrize(
    ("case", "paths", "score", "fault"),
    [
        ("flow", {"n0|n1": 8 / 12, "n0|n2|n1": 4 / 12}, 1.0, ""),
        ("flow", {"n0|n1": 0.5}, 0.5, ""),
        ("flow", {"n0|n1": 1.0}, 0.0, "120.0000% of its capacity"),
        ("flow", {"n0|n1": 0.7, "n0|n2|n1": 0.4}, 0.0, "sum up to 1.1"),
        ("flow", {"n0|n1": -0.5}, 0.0, "share -0.5"),
        ("failed", {"n0|n2|n1": 5 / 12}, 1.0, ""),
        ("failed", {"n0|n1": 0.1}, 0.0, "failed link"),
        ("load", {"n0|n1": 8 / 12, "n0|n2|n1": 4 / 12}, 1.0, ""),
        ("load", {"n0|n1": 1.0}, 0.8 / 1.2, ""),
        ("load", {"n0|n1": 0.5}, 0.0, "50.0000% of the demand"),
        ("single", {"n0|n1": 1.0}, 0.8 / 1.2, ""),
        ("single", {"n0|n1": 0.5, "n0|n2|n1": 0.5}, 0.0, "several paths"),
    ],
)
def test_scores_by_hand(
    tmp_path: Path, case: str, paths: dict[str, float], score: float, fault: str
) -> None:
    bench, file = _set(), tmp_path / "mine.csv"
    file.write_text(
        HEADER + "".join(f"{case},n0,n1,{path},{share!r}\n" for path, share in paths.items())
    )
    results = read_results(file, bench)
    chosen = next(one for one in bench.cases if one.name == case)
    found = score_of(bench, chosen, "mine", results.get(case), 1.0)
    assert found.score == pytest.approx(score)
    assert fault in found.fault
    assert bool(found.fault) == bool(fault)
    others = [
        score_of(bench, one, "mine", results.get(one.name), 1.0)
        for one in bench.cases
        if one.name != case
    ]
    assert {one.fault for one in others} == {"no result"}
    assert means([found, *others])["mine"]["all"] == pytest.approx(score / 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("case,share\n", "line 1"),
        (HEADER + "other,n0,n1,n0|n1,1\n", "of a case of the set"),
        (HEADER + "flow,n0,n1,n0|n3|n1,1\n", "not a node"),
        (HEADER + "flow,n0,n1,n0|n1,much\n", "not a node"),
        (HEADER + "flow,n0,n1,n0|n2,1\n", "from source to target"),
    ],
)
def test_a_faulty_file_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_results(tmp_path / "mine.csv", _set())


@pytest.mark.slow
def test_the_set_is_the_frozen_one_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    bench = make_set()
    assert bench.key == KEY, "networks and matrices are those that others have"
    for case in bench.cases:
        sense = 1 if case.objective == "total_flow" else -1
        assert 0 <= sense * (case.bound - case.value) <= 1.1e-3 * case.bound
    small = dataclasses.replace(
        bench, networks={"b4": bench.networks["b4"]}, traffic={"b4": bench.traffic["b4"]}
    )
    small = dataclasses.replace(
        small, cases=tuple(case for case in bench.cases if case.network == "b4")
    )
    write_set(tmp_path, small)
    assert read_set(tmp_path).cases == small.cases
    content = json.loads((tmp_path / "b4.json").read_text())
    content["links"][0]["capacity"] *= 2
    (tmp_path / "b4.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="content key"):
        read_set(tmp_path)


def test_schemes_and_hedges_are_run_written_and_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "set")
    assert main(["bench", "--set", folder, "--network", "b4"]) == 0
    assert "--scheme" in capsys.readouterr().out
    own = ["bench", "--set", folder, "--scheme", "pdhg:gap=0.001", "--out", str(tmp_path / "own")]
    assert main(own) == 0
    assert main(own) == 2, "not replaced"
    capsys.readouterr()
    command = ["bench", "--set", folder, "--out", str(tmp_path / "rank"), "--json"]
    theirs = tmp_path / "pdhg.csv"
    (tmp_path / "own" / "pdhg-gap=0.001.csv").rename(theirs)
    command += ["--scheme", "last", "--results", str(theirs)]
    assert main(command) == 0
    ranking = json.loads(capsys.readouterr().out)
    assert list(ranking["means"]) == ["pdhg", "last"]
    assert ranking["means"]["pdhg"]["known"] > 0.98
    assert ranking["means"]["last"]["next"] > 0.8
    assert ranking["means"]["last"]["known"] == 0
    rows = (tmp_path / "rank" / "ranking.csv").read_text().splitlines()
    assert rows[0] == "program,measure,value"
    of_last = dict(row.split(",")[1:] for row in rows if row.startswith("last,"))
    assert float(of_last["next"]) == ranking["means"]["last"]["next"]
    assert float(of_last["not_valid"]) == sum(
        fault.startswith("last,") for fault in ranking["not_valid"]
    )
    assert "First: pdhg" in (tmp_path / "rank" / "report.html").read_text()
    assert main([*command, "--results", str(tmp_path / "nowhere.csv"), "--overwrite"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_every_valid_result_has_a_proof_that_needs_no_teal(tmp_path: Path) -> None:
    """Each case of the triangle, solved by hand; a case that is not valid has none."""
    bench, file = _set(), tmp_path / "mine.csv"
    rows = [
        ("flow", "n0|n1", 0.5),
        ("flow", "n0|n2|n1", 4 / 12),
        ("failed", "n0|n2|n1", 5 / 12),
        ("load", "n0|n1", 8 / 12),
        ("load", "n0|n2|n1", 4 / 12),
        ("single", "n0|n1", 0.5),
    ]
    file.write_text(
        HEADER + "".join(f"{case},n0,n1,{path},{share!r}\n" for case, path, share in rows)
    )
    results = {"mine": read_results(file, bench)}
    scores = {
        one.case: one
        for one in prove_scores(bench, results, rank(bench, results, {}), tmp_path / "proofs")
    }
    for case, reached, best in (("flow", 10.0, 12.0), ("failed", 5.0, 5.0), ("load", 0.8, 0.8)):
        folder = tmp_path / "proofs" / scores[case].proof
        command = [sys.executable, "-I", "check.py", "network.csv", "matrix.csv", "proof.txt.gz"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert "proved over all paths" in done.stdout
        low, high = (
            float(x) for x in done.stdout.partition("from ")[2].partition(",")[0].split(" to ")
        )
        bounds = (low, high) if case != "load" else (high, low)
        assert bounds[0] == pytest.approx(reached, rel=1e-6)
        assert bounds[1] == pytest.approx(best, rel=2e-3)
        assert scores[case].proved_gap == pytest.approx(1 - reached / best, abs=2e-3)
    assert scores["single"].fault
    assert scores["single"].proof == ""
