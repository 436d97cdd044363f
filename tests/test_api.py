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
import pytest

import teal
import teal_ip
import teal_next
from teal.cli import main
from teal.errors import InputError
from teal.network import path_file
from teal.planning.settings import PlanOptions
from teal_ip.routing.settings import SimulateOptions
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


@pytest.mark.slow
def test_failures_loads_and_schemes_as_frames(tmp_path: Path) -> None:
    failures = teal.plan("b4", "gravity:seed=0,count=2,load=3")
    frame = failures.to_frame()
    assert len(frame) == 19
    assert frame.worst.is_monotonic_decreasing or frame.stranded.max() > 0
    failures.plot(tmp_path / "failures.png")
    assert (tmp_path / "failures.png").stat().st_size > 1000
    loads = teal_ip.simulate("b4", TRAFFIC, failures=("cables",)).to_json()
    assert loads
    rows = teal.evaluate("b4", TRAFFIC, scheme=("pdhg", "shortest-path"), split="all", limit=1)
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


def test_functions_over_objects_open_no_file(tmp_path: Path) -> None:
    """But for the cache, in which candidate paths and kernels are."""
    global _watched
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(TRAFFIC, topology).part(0, 1)

    def call() -> None:
        teal.plan(topology, traffic, num_paths=2)
        teal_ip.simulate(topology, traffic, failures=("cables",))
        teal_ip.upgrade(topology, traffic, matrices=1, failures="none", num_paths=2)

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
    for function, options in ((teal.plan, PlanOptions), (teal_ip.simulate, SimulateOptions)):
        names = list(inspect.signature(function).parameters)
        assert names[:2] == ["topology", "traffic"]
        assert set(names[2:]) == {field.name for field in dataclasses.fields(options)}


def test_settings_may_be_texts(tmp_path: Path) -> None:
    """A path, a name of an enumeration, and one value where several are taken."""
    out = tmp_path / "plan"
    written = teal.plan(
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
    rows = teal.evaluate(
        "b4", TRAFFIC, scheme="shortest-path", split="all", limit=1, num_paths="auto"
    )
    assert rows.scheme.tolist() == ["shortest-path"]
    with pytest.raises(InputError, match="total_flow"):
        teal.plan("b4", TRAFFIC, objective="best_flow")
    with pytest.raises(InputError, match="path-method"):
        teal.plan("b4", TRAFFIC, path_method="fastest")  # type: ignore[arg-type]


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
    out = teal.train(
        "b4", "gravity:seed=0,count=12,load=2", tmp_path / "model", max_steps=2, validate_every=1
    )
    assert teal.make_scheme("teal", out)
    frame = teal_next.next_interval(
        "b4",
        "gravity:seed=0,count=12,load=0.8",
        scheme=("last",),
        split="all",
        limit=3,
        lead=1,
        objective="max_link_utilisation",
    )
    assert frame.scheme.tolist() == ["last"]
    assert frame["mean"].iloc[0] >= 1


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
    rows = teal.evaluate(
        "b4", TRAFFIC, scheme=("mine_of_test:make:part=0.25", "pdhg"), split="all", limit=1
    )
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
