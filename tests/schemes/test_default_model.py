"""The model that `teal.solve` uses where none is named: where it is asked, that it is loaded once,
and what switches it off."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import teal
from teal.errors import InputError
from teal.network import compute_paths
from teal.nn.checkpoint import PriceGnnCard, load_price_gnn
from teal.nn.price_gnn import PriceGNN
from teal.problem import Problem
from teal.schemes import default_model as module
from teal.schemes.default_model import DefaultModel, default_model
from teal.solvers import pipeline


def _problem(network: str, objective: str = "total_flow", load: float = 6.0) -> Problem:
    topology = teal.load_topology(network)
    traffic = teal.load_traffic(f"gravity:seed=2,count=3,load={load}", topology)
    paths = compute_paths(topology, traffic.pairs)
    return Problem.create(topology, paths, teal.Objective(objective), traffic.read([0]))


LARGE = "topohub:gabriel/50/6"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """An entry for each time that the model is loaded, from no model on."""
    count: list[int] = []

    def counted(folder: Path) -> tuple[PriceGNN, PriceGnnCard]:
        count.append(1)
        return load_price_gnn(folder)

    module._shipped_model.cache_clear()
    monkeypatch.setattr(module, "load_price_gnn", counted)
    yield count
    module._shipped_model.cache_clear()


def test_a_solve_with_nothing_named_is_the_one_with_the_model_named() -> None:
    problem = _problem(LARGE)
    default = teal.solve(problem, gap=1e-4)
    named = teal.solve(problem, gap=1e-4, model=teal.load_model("universal"))
    without = teal.solve(problem, gap=1e-4, model=None)
    torch.testing.assert_close(default.splits, named.splits, rtol=0, atol=0)
    assert default.iterations == named.iterations < without.iterations
    stage = default.trace[1]
    assert stage.predicted_s["interior, model"] < stage.predicted_s["interior, cold"]
    for result in (default, without):
        assert float(result.gap) <= 1e-4


def test_it_is_loaded_once_by_several_threads(loads: list[int]) -> None:
    """And all get what one thread gets alone."""
    problem = _problem(LARGE)
    model = DefaultModel()
    with ThreadPoolExecutor(4) as pool:
        starts = list(pool.map(lambda _: model.start(problem), range(8)))
    splits, prices = DefaultModel().start(problem)
    assert len(loads) == 1
    for other_splits, other_prices in starts:
        torch.testing.assert_close(other_splits, splits, rtol=0, atol=0)
        torch.testing.assert_close(other_prices, prices, rtol=0, atol=0)


def test_programs_that_gain_nothing_do_not_load_it(loads: list[int]) -> None:
    """Small networks, min-max programs, fair shares, sequences, warm starts, a named engine."""
    small = _problem("b4")
    assert small.paths.scan_size < module.MIN_SCAN
    teal.solve(small, gap=1e-4)
    for objective in ("max_link_utilisation", "proportional_fair"):
        teal.solve(_problem(LARGE, objective, 2.0), gap=0.05)
    assert default_model(_problem("b4", "max_min"), 1e-2) is None
    problem = _problem(LARGE)
    earlier = pipeline.solve(problem, gap=1e-2)
    teal.solve(problem, gap=1e-3, warm_start=earlier)
    teal.solve(problem, gap=1e-3, engine="interior")
    teal.solve(problem, gap=1e-3, model=None)
    assert not loads
    teal.solve(problem, gap=1e-3)
    assert len(loads) == 1


def test_a_single_solve_loads_it_only_where_it_saves_more_than_loading_takes(
    loads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _problem(LARGE)
    monkeypatch.setattr(module, "_predicted_saving_s", lambda *_: module.LOAD_S / 2)
    assert default_model(problem, 1e-4, counts_loading=True) is None
    assert default_model(problem, 1e-4) is not None
    monkeypatch.setattr(module, "_predicted_saving_s", lambda *_: module.LOAD_S * 2)
    model = default_model(problem, 1e-4, counts_loading=True)
    assert model is not None
    assert not loads
    # Once it is there, loading costs nothing.
    model.start(problem)
    monkeypatch.setattr(module, "_predicted_saving_s", lambda *_: 0.0)
    assert default_model(problem, 1e-4, counts_loading=True) is not None


def test_a_model_that_is_none_or_does_not_apply_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match=r"solve: model: .*teal\.load_model.*'universal'"):
        teal.solve(_problem("b4"), model="universal")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"solve: model: .*teal\.load_model.*Path"):
        teal.solve(_problem("b4"), model=Path("universal"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"solve: model: max_min is not solved as one program"):
        teal.solve(_problem("b4", "max_min"), model=DefaultModel())


def test_a_folder_of_the_same_name_changes_nothing(
    loads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "universal").mkdir()
    monkeypatch.chdir(tmp_path)
    assert float(teal.solve(_problem(LARGE), gap=1e-4).gap) <= 1e-4
    assert len(loads) == 1


def test_where_it_is_not_installed_no_model_is_asked(
    loads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "packaged", lambda name: tmp_path / name)
    assert float(teal.solve(_problem(LARGE), gap=1e-4).gap) <= 1e-4
    assert not loads


def test_programs_that_a_search_cannot_start_from_a_model_do_not_ask_it(loads: list[int]) -> None:
    """Side conditions, and an engine that has no start from a model."""
    problem = _problem(LARGE)
    limited = problem.with_churn_limit(problem.first_path_splits[0], 0.1)
    assert default_model(limited, 1e-2) is None
    assert default_model(problem, 1e-2, "plain") is None
    assert not loads


def test_the_old_name_of_the_argument_still_works() -> None:
    problem = _problem("b4")
    with pytest.warns(DeprecationWarning, match=r"solve\(starter=\) is deprecated: use model"):
        result = teal.solve(problem, gap=1e-3, starter=None)  # type: ignore[call-arg]
    assert float(result.gap) <= 1e-3
