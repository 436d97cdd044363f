"""The race: its situations against their definitions, its times to a gap against values computed by
hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from baselines.lp_all import LpAll
from teal.app.instance import Instance
from teal.cli import main
from teal.errors import SolverError
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.schemes.registry import Scheme, make_scheme
from teal_study.evaluation.race import (
    COLD,
    CROWD,
    FAILURES,
    FIRST,
    NEXT,
    SITUATIONS,
    WARM,
    RaceRun,
    plot_race,
    race,
    situations,
    time_table,
    timed,
    times_to_gap,
)


@pytest.fixture(scope="module")
def b4() -> Instance:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,count=4,load=3", topology)
    paths = compute_paths(topology, traffic.pairs, cache=False)
    return Instance(
        topology, traffic, paths, Objective(), None, traffic.split(), torch.device("cpu")
    )


def test_situations_of_the_race_match_their_definitions(b4: Instance) -> None:
    cases = {name: (problem, earlier) for name, problem, earlier in situations(b4, 1, seed=0)}
    assert tuple(cases) == SITUATIONS
    unchanged = cases[NEXT][0]
    earlier = cases[FAILURES][1]
    assert earlier is not None
    assert torch.equal(earlier.problem.demand, b4.problem(b4.traffic.read([0])).demand)
    assert bool((earlier.problem.capacity > 0).all()), "the failure is not there yet"
    assert cases[NEXT][1] is not None
    assert cases[FIRST][1] is None
    assert torch.equal(cases[FIRST][0].demand, unchanged.demand)
    ratio = (cases[CROWD][0].demand / unchanged.demand)[unchanged.demand > 0]
    assert set(ratio.round(decimals=9).tolist()) == {1.0, 10.0}
    assert 0.03 < float((ratio > 5).double().mean()) < 0.2
    capacity = cases[FAILURES][0].capacity[0].numpy()
    ends = (
        b4.topology.link_source[capacity == 0].tolist(),
        b4.topology.link_target[capacity == 0].tolist(),
    )
    failed_pairs = set(zip(*ends, strict=True))
    assert failed_pairs
    assert failed_pairs == {(t, s) for s, t in failed_pairs}, "a cable fails in both directions"
    repeated_demands = [problem.demand for _, problem, _ in situations(b4, 1, seed=0)]
    assert all(
        torch.equal(demand, cases[name][0].demand)
        for demand, name in zip(repeated_demands, SITUATIONS, strict=True)
    )


class _FailingScheme:
    def solve(self, problem: Problem) -> Allocation:
        raise SolverError("out of order")


class _ZeroStartScheme:
    """Allocates as LP-all does; its starts of PDHG are zero splits and prices."""

    def solve(self, problem: Problem) -> Allocation:
        return LpAll().solve(problem)

    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1, *problem.paths.leaf.shape), torch.zeros(1, problem.topology.num_links)


@pytest.mark.slow
def test_race_reaches_every_target_and_excludes_a_failing_scheme(
    b4: Instance, tmp_path: Path
) -> None:
    notices: list[str] = []
    schemes: dict[str, Scheme] = {
        "lp-all": LpAll(),
        "failing": _FailingScheme(),
        "starter": _ZeroStartScheme(),
        "lp-all:warm=true": make_scheme("lp-all:warm=true"),
    }
    runs = race(b4, schemes, [1, 2], targets=(0.05, 0.002), notify=notices.append)
    assert notices == ["out of order"], "a scheme that fails at first is not called again"
    assert {run.scheme for run in runs} == {
        "lp-all",
        "lp-all:warm=true",
        "starter",
        COLD,
        WARM,
        "starter + pdhg",
    }
    for run in runs:
        assert run.gap <= (1e-6 if math.isnan(run.target) else run.target)
        assert run.status in ("optimal", "feasible")
        assert run.seconds > 0
    assert not [run for run in runs if run.situation == FIRST and run.scheme == WARM]
    assert sum(run.scheme == WARM for run in runs) == 2 * 3 * 2, (
        "2 matrices, 3 situations with an earlier state, 2 targets"
    )
    plot_race(tmp_path / "race.png", runs)
    assert (tmp_path / "race.png").stat().st_size > 20_000


def _race_run(scheme: str, seconds: float, gap: float, index: int = 0) -> RaceRun:
    return RaceRun("net", "traffic", index, CROWD, scheme, gap, seconds, 1, gap, 1.0, "feasible")


def test_times_to_gap_of_a_race_equal_values_computed_by_hand() -> None:
    runs = [
        _race_run(COLD, 4.0, 0.009),
        _race_run(COLD, 2.0, 0.02),
        _race_run(COLD, 5.0, 0.001),
        _race_run(WARM, 3.0, 0.01),
        _race_run("fast", 1.0, 0.004),
        _race_run("never", 0.1, 0.05),
        _race_run("broken", 0.1, math.nan),
        _race_run(COLD, 8.0, 0.01, 1),
        _race_run(WARM, 9.0, 0.01, 1),
        _race_run("fast", 4.0, 0.01, 1),
        _race_run("never", 0.1, 0.01, 1),
    ]
    standings = {s.scheme: (s.seconds, s.speedup) for s in times_to_gap(runs, 0.01)}
    assert standings[COLD] == (6.0, 0.875)
    assert standings["fast"] == (2.5, 2.5), "speedups 3 / 1 and 8 / 4"
    assert standings["never"][0] == math.inf, "it reaches the gap on one matrix only"
    assert standings["broken"] == (math.inf, 0.0)
    _, *lines = time_table(times_to_gap(runs, 0.01), 0.01).texts()
    assert [line[1 + SITUATIONS.index(CROWD)] for line in lines[2:]] == [
        "2.50 s (2.5x)",
        "not reached",
        "not reached",
    ]


def test_timed_ignores_a_slow_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls of 10, 0.1, 0.3, 0.2, 0.5 and 0.4 s the median of the last five."""
    took, clock = [10.0, 0.1, 0.3, 0.2, 0.5, 0.4], SimpleNamespace(now=0.0)
    calls: list[int] = []
    prepared: list[int] = []
    monkeypatch.setattr(
        "teal_study.evaluation.race.time", SimpleNamespace(perf_counter=lambda: clock.now)
    )

    def run() -> int:
        clock.now += took[len(calls)]
        calls.append(1)
        return len(calls)

    def prepare() -> None:
        clock.now += 100.0
        prepared.append(len(calls))

    result, seconds = timed(run, prepare)
    assert result == len(calls) == 6
    assert seconds == pytest.approx(0.3)
    assert prepared == list(range(6)), "before each run, and outside of its time"


@pytest.mark.system
def test_race_command_writes_its_rows_manifest_and_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "race"
    arguments = [
        "evaluate",
        "--race",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=10,load=3",
    ]
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


def test_a_scheme_that_reaches_a_gap_that_pdhg_misses_has_no_factor() -> None:
    runs = [_race_run(COLD, 9.0, 0.05), _race_run(WARM, 9.0, 0.05), _race_run("fast", 1.0, 0.01)]
    (row,) = [
        line for line in time_table(times_to_gap(runs, 0.01), 0.01).texts() if line[0] == "fast"
    ]
    assert "1.00 s (PDHG: not reached)" in row
