"""The figures of `teal solve --shards` against those of one process for the same splits, and its
files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import teal
from teal.allocation.settings import SolveConfig
from teal.allocation.sharded import solve_sharded
from teal.cli import main
from teal.errors import InputError
from teal.objectives import SINGLE_PROGRAMS
from teal.problem import Allocation, Status, all_paths_bound, assess
from teal.problem.bounds import gap as certified_gap
from teal.solvers.pdhg.shards import sharded

SETTINGS = [
    "--topology",
    "b4",
    "--traffic",
    "gravity:seed=0,count=2,load=4",
    "--index",
    "1",
    "--gap",
    "0.001",
]


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
@pytest.mark.parametrize("fail", [(), ("1,2",)])
def test_figures_are_those_of_the_splits_in_the_files(
    objective: teal.ObjectiveName,
    fail: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prices = []
    solve = sharded.ShardedProblem.solve

    def kept(self: sharded.ShardedProblem, **options: object) -> sharded.ShardedResult:
        result = solve(self, **options)  # type: ignore[arg-type]
        prices.append(torch.from_numpy(result.prices)[None])
        return result

    monkeypatch.setattr(sharded.ShardedProblem, "solve", kept)
    config = SolveConfig(
        topology="b4",
        traffic=SETTINGS[3],
        index=1,
        gap=1e-3,
        shards=3,
        objective=objective,
        out=tmp_path,
        fail=fail,
    )
    report = solve_sharded(config)
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(SETTINGS[3], topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    weight = np.random.default_rng(0).integers(3, size=topology.num_nodes**2, dtype=np.int8)
    weight = np.array([1.0, 2.0, 4.0])[
        weight[paths.pairs[:, 0] * topology.num_nodes + paths.pairs[:, 1]]
    ]
    capacity = topology.with_failed_links(topology.find_links("1", "2")).capacity if fail else None
    problem = teal.Problem.create(
        topology,
        paths,
        teal.Objective(objective),
        traffic.read([1]),
        weight=weight,
        capacity=capacity,
    )
    number = {
        (topology.node_names[s], topology.node_names[t]): d for d, (s, t) in enumerate(paths.pairs)
    }
    splits = torch.zeros(1, *paths.leaf.shape, dtype=torch.float64)
    files = sorted(tmp_path.iterdir())
    assert len(files) == report.shards == 3
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(rows) == report.rows
    for row in rows:
        demand = number[row["source"], row["target"]]
        links = [topology.link_name(link) for link in paths.links_of(demand, row["k"])]
        assert links == [f"{a}->{b}" for a, b in zip(row["nodes"], row["nodes"][1:], strict=False)]
        splits[0, demand, row["k"]] = row["split"]
        assert row["flow"] == pytest.approx(row["split"] * float(problem.demand[0, demand]))
    expected = assess(
        problem, Allocation(splits, prices[0], (Status.FEASIBLE,), (0.0,), (0.0,))
    ).metrics(0)
    for name in ("value", "satisfied_demand", "max_link_utilisation"):
        assert getattr(report, name) == pytest.approx(getattr(expected, name), rel=1e-9), name
    assert report.max_violation == pytest.approx(expected.max_violation, abs=1e-12)
    assert report.status == "feasible"
    # One process also tries multiples of the prices.
    assert (
        (report.bound >= expected.bound - 1e-9)
        if objective.value != "max_link_utilisation"
        else True
    )
    all_paths = float(
        certified_gap(
            problem,
            torch.tensor([report.value], dtype=torch.float64),
            all_paths_bound(problem, prices[0]),
        )
    )
    expected_gap = all_paths if all_paths < 1 else math.nan  # a gap of 1 proves nothing
    assert report.gap_all_paths == pytest.approx(expected_gap, rel=1e-6, abs=1e-9, nan_ok=True)
    assert report.reached == (report.gap <= 1e-3)


def test_the_command_prints_figures_and_replaces_files_only_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "parts"
    command = ["solve", *SETTINGS, "--shards", "2", "--out", str(out)]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["gap"] <= 1e-3
    assert (printed["shards"], printed["sent_bytes"]) == (2, 0)
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "file.parquet")]) == 2
    assert "a folder" in capsys.readouterr().err
    assert main([*command[:-4], "--shards", "5", "--out", str(out), "--overwrite"]) == 0
    assert len(list(out.iterdir())) == 5, "files of fewer shards are gone"


def test_settings_that_shards_do_not_have_are_refused() -> None:
    common = {"topology": "b4", "traffic": "gravity"}
    for wrong in (
        {"calibrate": 0.9},
        {"paths": Path("p.npz")},
        {"model": "universal"},
        {"device": "cuda"},
    ):
        with pytest.raises(InputError, match=f"--{next(iter(wrong))}"):
            SolveConfig(**common, shards=2, **wrong)  # type: ignore[arg-type]
    for number in ({"shards": 0}, {"workers": -1}):
        with pytest.raises(InputError, match=f"--{next(iter(number))}"):
            SolveConfig(**common, **number)  # type: ignore[arg-type]
