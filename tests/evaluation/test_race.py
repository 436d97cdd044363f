"""The race of engines against situations and standings worked out by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from baselines.lp_all import LpAll
from teal.cli import main
from teal.errors import SolverError
from teal.evaluation.instance import Instance
from teal.evaluation.race import (
    COLD,
    CROWD,
    FAILURES,
    FIRST,
    NEXT,
    SITUATIONS,
    WARM,
    RaceRun,
    race,
    situations,
    timed,
    times_to_gap,
)
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.reports.race import plot_race, render_times_to_gap
from teal.schemes.registry import Scheme


@pytest.fixture(scope="module")
def b4() -> Instance:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,count=4,load=3", topology)
    paths = compute_paths(topology, traffic.pairs, cache=False)
    return Instance(topology, traffic, paths, Objective(), None, traffic.split(), torch.device("cpu"))


def test_situations_are_what_they_are_called(b4: Instance) -> None:
    found = {name: (problem, known) for name, problem, known in situations(b4, 1, seed=0)}
    assert tuple(found) == SITUATIONS
    plain = found[NEXT][0]
    assert found[NEXT][1] is not None
    assert found[FIRST][1] is None
    assert torch.equal(found[FIRST][0].demand, plain.demand)
    ratio = (found[CROWD][0].demand / plain.demand)[plain.demand > 0]
    assert set(ratio.round(decimals=9).tolist()) == {1.0, 10.0}
    assert 0.03 < float((ratio > 5).double().mean()) < 0.2
    capacity = found[FAILURES][0].capacity[0].numpy()
    ends = b4.topology.link_source[capacity == 0].tolist(), b4.topology.link_target[capacity == 0].tolist()
    dead = set(zip(*ends, strict=True))
    assert dead
    assert dead == {(t, s) for s, t in dead}, "a cable fails in both directions"
    again = [problem.demand for _, problem, _ in situations(b4, 1, seed=0)]
    assert all(torch.equal(a, found[name][0].demand) for a, name in zip(again, SITUATIONS, strict=True))


class _Broken:
    def solve(self, problem: Problem) -> Allocation:
        raise SolverError("out of order")


class _Start:
    """Starts PDHG from nothing, and answers with nothing."""

    def solve(self, problem: Problem) -> Allocation:
        return LpAll().solve(problem)

    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1, *problem.paths.leaf.shape), torch.zeros(1, problem.topology.num_links)


def test_the_race(b4: Instance, tmp_path: Path) -> None:
    said: list[str] = []
    schemes: dict[str, Scheme] = {"lp-all": LpAll(), "broken": _Broken(), "own": _Start()}
    laps = race(b4, schemes, [1, 2], targets=(0.05, 0.002), notify=said.append)
    assert said == ["out of order"], "and it does not start again"
    assert {lap.scheme for lap in laps} == {"lp-all", "own", COLD, WARM, "own + pdhg"}
    for lap in laps:
        assert lap.gap <= (1e-6 if math.isnan(lap.target) else lap.target)
        assert lap.status in ("optimal", "feasible")
        assert lap.seconds > 0
    assert not [lap for lap in laps if lap.situation == FIRST and lap.scheme == WARM]
    assert sum(lap.scheme == WARM for lap in laps) == 2 * 3 * 2, "rows, situations with a past, targets"
    plot_race(tmp_path / "race.png", laps)
    assert (tmp_path / "race.png").stat().st_size > 20_000


def _lap(scheme: str, seconds: float, gap: float, index: int = 0) -> RaceRun:
    return RaceRun("net", "traffic", index, CROWD, scheme, gap, seconds, 1, gap, 1.0, "feasible")


def test_standings_of_a_race_worked_out_by_hand() -> None:
    laps = [
        _lap(COLD, 4.0, 0.009), _lap(COLD, 2.0, 0.02), _lap(COLD, 5.0, 0.001), _lap(WARM, 3.0, 0.01),
        _lap("fast", 1.0, 0.004), _lap("never", 0.1, 0.05), _lap("broken", 0.1, math.nan),
        _lap(COLD, 8.0, 0.01, 1), _lap(WARM, 9.0, 0.01, 1), _lap("fast", 4.0, 0.01, 1), _lap("never", 0.1, 0.01, 1),
    ]  # fmt: skip
    found = {s.scheme: (s.seconds, s.speedup) for s in times_to_gap(laps, 0.01)}
    assert found[COLD] == (6.0, 0.875)
    assert found["fast"] == (2.5, 2.5), "3 / 1 and 8 / 4"
    assert found["never"][0] == math.inf, "reached on one matrix only"
    assert found["broken"] == (math.inf, 0.0)
    table = render_times_to_gap(times_to_gap(laps, 0.01), 0.01)
    assert table.columns[1 + SITUATIONS.index(CROWD)]._cells[2:] == ["2.50 s (2.5x)", "not reached", "not reached"]


def test_a_first_call_that_compiles_does_not_count() -> None:
    calls: list[int] = []

    def run() -> int:
        calls.append(1)
        if len(calls) == 1:
            np.linalg.eig(np.random.default_rng(0).random((150, 150)))
        return len(calls)

    result, seconds = timed(run)
    assert result == len(calls) == 6
    assert seconds < 1e-3


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "race"
    arguments = ["evaluate", "--race", "--topology", "b4", "--traffic", "gravity:seed=0,count=10,load=3"]
    assert main([*arguments, "--limit", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "price-gnn + pdhg" in printed
    assert "lp-all" in printed
    with (out / "race.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["situation"] for row in rows} == set(SITUATIONS)
    assert {row["index"] for row in rows} == {"8"}
    assert json.loads((out / "manifest.json").read_text())["settings"]["race"] is True
    assert (out / "race.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--out", str(tmp_path / "x"), "--fail", "1,2"]) == 2
