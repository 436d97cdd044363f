"""The commands as functions: objects and names give what the command gives, and wrong settings are
named."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import teal
import teal_ip
import teal_next
import teal_study
from teal.allocation.settings import AllocateOptions
from teal.cli import main
from teal.errors import InputError
from teal.network import path_file
from teal.runtime import shipped_kernels
from teal_ip.counters.settings import EstimateOptions
from teal_ip.routing.settings import SimulateOptions
from teal_next.settings import NextIntervalOptions
from teal_study.evaluation.settings import EvaluateOptions
from teal_study.learning.settings import TrainOptions
from teal_study.planning.settings import PlanOptions
from tests.seams import check

TRAFFIC = "gravity:seed=0,count=4,load=0.8"


def test_a_purchase_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {
        "growth": 2.0,
        "matrices": 2,
        "path_method": "survivable",
        "num_paths": 4,
    }
    topology = teal.load_topology("b4")
    plan = teal_ip.upgrade(topology, teal.load_traffic(TRAFFIC, topology), **settings)
    options = [
        "--growth",
        "2",
        "--matrices",
        "2",
        "--path-method",
        "survivable",
        "--num-paths",
        "4",
        "--json",
    ]
    assert main(["upgrade", "--topology", "b4", "--traffic", TRAFFIC, *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert plan.upgrade.cost == pytest.approx(said["cost"], rel=1e-6)
    frame = plan.to_frame()
    assert frame.cost.sum() == pytest.approx(plan.upgrade.cost)
    assert list(frame.columns)[:2] == ["source", "target"]


def test_a_history_is_allocated_as_by_the_command(tmp_path: Path) -> None:
    """The same figures, and the same splits in the file."""
    history = teal.allocate("b4", TRAFFIC, gap=0.001, num_paths=4)
    out = ["--out", str(tmp_path / "command"), "--workers", "0", "--num-paths", "4", "--quiet"]
    assert main(["allocate", "--topology", "b4", "--traffic", TRAFFIC, "--gap", "0.001", *out]) == 0
    history.save(tmp_path / "python")
    with pytest.raises(InputError, match="overwrite"):
        history.save(tmp_path / "python")
    figures = [pd.read_csv(tmp_path / name / "figures.csv") for name in ("command", "python")]
    pd.testing.assert_frame_equal(*(one.drop(columns="solve_s") for one in figures))
    parts = [
        pd.read_parquet(tmp_path / name / "part-00000.parquet") for name in ("command", "python")
    ]
    first, second = (np.stack(part.splits.to_list()) for part in parts)
    np.testing.assert_array_equal(first, second)
    assert "4 matrices" in repr(history)
    assert history.to_frame().gap.max() <= 0.001


def test_counters_become_matrices_that_are_checked(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    counters = teal_ip.load_counters(_counters(tmp_path), topology)
    run = teal_ip.estimate(topology, counters, truth=teal.load_traffic(TRAFFIC, topology))  # type: ignore[arg-type]
    assert run.checked is not None
    assert len(run.checked.intervals) == len(run.to_frame()) == 4
    assert not run.checked.alarms
    assert "no alarm in 4 intervals" in repr(run)
    half = dataclasses.replace(counters, ingress=counters.ingress / 2, egress=counters.egress / 2)
    doubts = teal_ip.estimate(topology, half).checked
    assert doubts is not None
    assert doubts.alarms


@pytest.mark.slow
def test_failures_loads_and_schemes_as_frames(tmp_path: Path) -> None:
    failures = teal_study.plan("b4", "gravity:seed=0,count=2,load=3")
    frame = failures.to_frame()
    assert len(frame) == 19
    assert frame.worst.is_monotonic_decreasing or frame.stranded.max() > 0
    failures.plot(tmp_path / "failures.png")
    assert (tmp_path / "failures.png").stat().st_size > 1000
    loads = teal_ip.simulate("b4", TRAFFIC, failures=("cables",)).to_json()
    assert loads
    rows = teal_study.evaluate(
        "b4", TRAFFIC, scheme=("pdhg", "shortest-path"), split="all", limit=1
    ).to_frame()
    assert set(rows.scheme) == {"pdhg", "shortest-path"}
    assert (rows.value > 0).all()


def test_a_setting_that_a_command_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="growht"):
        teal_ip.upgrade("b4", TRAFFIC, growht=2.0)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"in \(0, 10\]"):
        teal_ip.upgrade("b4", TRAFFIC, growth=-2.0)


_watched: list[str] | None = None  # names of files that were opened; None while nobody looks


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched is not None and isinstance(arguments[0], str):
        _watched.append(arguments[0])


sys.addaudithook(_watch)


def _counters(folder: Path) -> Path:
    """A file of the counters of B4 under its traffic."""
    file = folder / "counters.npz"
    options = ["--counters", str(file), "--quiet"]
    assert main(["simulate", "--topology", "b4", "--traffic", TRAFFIC, *options]) == 0
    return file


def test_reports_save_what_the_commands_write(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(TRAFFIC, topology)
    counters = _counters(tmp_path)
    network = ["--topology", "b4", "--traffic", TRAFFIC]
    cases: dict[str, tuple[list[str], Any]] = {
        "simulate": (
            [*network, "--failures", "cables"],
            teal_ip.simulate(topology, traffic, failures=("cables",)),
        ),
        "upgrade": (
            [*network, "--matrices=1", "--failures=none", "--num-paths=2", "--growth=3"],
            teal_ip.upgrade(topology, traffic, matrices=1, failures="none", num_paths=2, growth=3),
        ),
        "estimate": (
            ["--topology", "b4", "--counters", str(counters)],
            teal_ip.estimate(topology, teal_ip.load_counters(counters, topology)),
        ),
    }
    for command, (words, report) in cases.items():
        by_command, by_python = tmp_path / command, tmp_path / f"{command}-python"
        assert main([command, *words, "--out", str(by_command), "--quiet"]) == 0
        report.save(by_python)
        with pytest.raises(teal.InputError, match="overwrite"):
            report.save(by_python)
        report.save(by_python, overwrite=True)
        names = {path.name for path in by_python.iterdir()}
        assert names == {path.name for path in by_command.iterdir()} - {"manifest.json"}
        for table in by_command.glob("*.csv"):
            assert (by_python / table.name).read_text() == table.read_text(), (command, table.name)
        assert len(report.to_frame())
        assert repr(report).count("\n") < 30


def test_functions_over_objects_open_no_file(tmp_path: Path) -> None:
    """But for the cache, in which candidate paths and kernels are."""
    global _watched
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(TRAFFIC, topology).part(0, 1)
    history = teal.load_traffic(TRAFFIC, topology)
    counters = teal_ip.load_counters(_counters(tmp_path), topology)

    def call() -> None:
        teal_study.evaluate(topology, traffic, scheme=("pdhg",), split="all", num_paths=2)
        teal.allocate(topology, traffic, num_paths=2, model="none")
        teal_next.next_interval(
            topology,
            history,
            scheme=("last",),
            split="all",
            objective="max_link_utilisation",
            num_paths=2,
        )
        teal_ip.estimate(topology, counters)
        teal_study.plan(topology, traffic, num_paths=2)
        teal_ip.simulate(topology, traffic, failures=("cables",))
        teal_ip.upgrade(topology, traffic, matrices=1, failures="none", num_paths=2)
        teal_ip.survey(topology, traffic, deadline="1s")

    call()  # loads modules
    before = sorted(tmp_path.rglob("*"))
    _watched = []
    try:
        call()
    finally:
        opened, _watched = _watched, None
    cached = (
        os.environ["TEAL_CACHE_DIR"],
        os.environ["NUMBA_CACHE_DIR"],
        str(shipped_kernels.FOLDER),
        sys.prefix,
        sys.base_prefix,
        "/proc",
        "/sys",
    )
    assert [
        name
        for name in opened
        if not name.startswith(cached) and not name.endswith((".py", ".pyc"))
    ] == []
    assert sorted(tmp_path.rglob("*")) == before


def test_an_editor_sees_every_option() -> None:
    for function, options in (
        (teal_study.plan, PlanOptions),
        (teal.allocate, AllocateOptions),
        (teal_study.evaluate, EvaluateOptions),
        (teal_study.train, TrainOptions),
        (teal_ip.simulate, SimulateOptions),
        (teal_ip.estimate, EstimateOptions),
        (teal_next.next_interval, NextIntervalOptions),
    ):
        names = list(inspect.signature(function).parameters)
        assert names[0] == "topology"
        assert names[1] in ("traffic", "counters")
        assert set(names[2:]) == {field.name for field in dataclasses.fields(options)}


def test_settings_may_be_texts(tmp_path: Path) -> None:
    """A path, a name of an enumeration, and one value where several are taken."""
    out = tmp_path / "plan"
    written = teal_study.plan(
        "b4",
        "gravity:seed=0,count=2,load=3",
        objective="weighted_flow",
        failures="nodes",  # type: ignore[arg-type]
        num_paths=2,
        path_method="survivable",  # type: ignore[arg-type]
    )
    written.save(str(out))
    assert (out / "report.html").is_file()
    with pytest.raises(InputError, match="overwrite"):
        written.save(out)
    assert len(written.to_frame()) == 12, "a failure for each router"
    rows = teal_study.evaluate(
        "b4", TRAFFIC, scheme=("shortest-path",), split="all", limit=1, num_paths="auto"
    ).to_frame()
    assert rows.scheme.tolist() == ["shortest-path"]
    with pytest.raises(InputError, match="total_flow"):
        teal_study.plan("b4", TRAFFIC, objective="best_flow")
    with pytest.raises(InputError, match="path-method"):
        teal_study.plan("b4", TRAFFIC, path_method="fastest")  # type: ignore[arg-type]


def test_files_and_folders_may_be_texts(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(TRAFFIC, topology)
    file = str(tmp_path / "traffic.npz")
    teal.save_traffic(file, traffic, topology)
    assert teal.load_traffic(file, topology).num_matrices == traffic.num_matrices
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    path_file.save_paths(str(tmp_path / "paths.npz"), paths)
    np.testing.assert_array_equal(
        path_file.load_paths(str(tmp_path / "paths.npz"), topology).leaf, paths.leaf
    )
    zero = np.zeros((2, topology.num_links)), np.zeros((2, topology.num_nodes))
    counters = teal_ip.Counters(
        np.arange(2).astype("datetime64[s]"), 1.0, zero[0], zero[0], zero[1], zero[1]
    )
    file = str(tmp_path / "counters.npz")
    teal_ip.save_counters(file, counters)
    assert teal_ip.load_counters(file, topology).sent.shape == counters.sent.shape
    assert teal.make_scheme("price-gnn", "universal")
    assert teal.make_hedge("learned", "hedge")


def test_training_and_hedges_as_functions(tmp_path: Path) -> None:
    history = "gravity:seed=0,count=12,load=2"
    with pytest.raises(InputError, match="--out"):
        teal_study.train("b4", history)  # type: ignore[call-arg]
    trained = teal_study.train("b4", history, out=tmp_path / "model", max_steps=2, validate_every=1)
    assert trained.state.step == 2
    assert "2 steps" in repr(trained)
    assert teal.make_scheme("teal", trained.folder)
    with pytest.raises(InputError, match="overwrite"):
        teal_study.train("b4", history, out=tmp_path / "model")
    measured = teal_next.next_interval(
        "b4",
        "gravity:seed=0,count=12,load=0.8",
        scheme=("last",),
        split="all",
        limit=3,
        lead=1,
        objective="max_link_utilisation",
    )
    assert measured.to_frame().scheme.tolist() == ["last"]
    assert "last" in repr(measured)
    measured.save(tmp_path / "next")
    assert (tmp_path / "next" / "report.html").is_file()
    assert measured.to_frame()["mean"].iloc[0] >= 1


def test_a_scheme_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_test.py").write_text(
        "import teal\n\n\n"
        "class Half:\n"
        "    def __init__(self, part):\n        self.part = part\n"
        "    def solve(self, problem):\n"
        "        splits = self.part * teal.project(problem, problem.even_splits)\n"
        "        return teal.Allocation.of_batch(splits, None, 0.0)\n\n\n"
        "def make(spec, model):\n    return Half(**spec.parse_options(part=0.5))\n"
    )
    monkeypatch.chdir(tmp_path)
    rows = teal_study.evaluate(
        "b4", TRAFFIC, scheme=("mine_of_test:make:part=0.25", "pdhg"), split="all", limit=1
    ).to_frame()
    carried = dict(zip(rows.scheme, rows.satisfied_demand, strict=True))
    assert carried["mine_of_test:make:part=0.25"] == pytest.approx(0.25, abs=0.05)
    assert carried["pdhg"] > 0.9
    with pytest.raises(InputError, match="a function other"):
        teal.make_scheme("mine_of_test:other")
    with pytest.raises(InputError, match="can be imported"):
        teal.make_scheme("no_such_module:make")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, 4, 6, 8, 13])
def test_what_is_certain_is_true_of_the_network(seed: int) -> None:
    """Parallel links, one-way links, parts: linear programs over free routing, networkx and plain
    shortest paths."""
    case = check(seed)
    assert len(case.count) >= 12, "every command was asked"
    assert not case.wrong


def test_rates_of_an_object_are_taken_as_they_are() -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(TRAFFIC, topology)
    simulation = teal_ip.simulate(topology, traffic)
    assert [one.demand for one in simulation.matrices] == [
        float(traffic.read([m])[0].sum()) for m in range(4)
    ]


def test_failed_links_of_an_object_are_as_if_they_were_not_there() -> None:
    whole = teal.load_topology("b4")
    traffic, down = (
        teal.load_traffic("gravity:seed=0,count=1,load=0.8", whole),
        whole.find_links("1", "2"),
    )
    failed, gone = (
        whole.with_failed_links(down),
        whole.with_links(np.setdiff1d(np.arange(whole.num_links), down)),
    )
    loads, expected = (
        teal_ip.simulate(topology, traffic, failures=("cables",)) for topology in (failed, gone)
    )
    assert np.delete(loads.largest_load, down) == pytest.approx(expected.largest_load)
    assert [one.utilisation for one in loads.failures] == pytest.approx(
        [one.utilisation for one in expected.failures]
    )
    plans = [
        teal_ip.upgrade(topology, traffic, growth=2.0, matrices=1, gap=1e-3)
        for topology in (failed, gone)
    ]
    assert plans[0].upgrade.cost == pytest.approx(plans[1].upgrade.cost, rel=2e-3)
