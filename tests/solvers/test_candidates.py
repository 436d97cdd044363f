"""Chosen candidate paths against the LP over all paths in arc form, and what every choice must
keep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from baselines import arc_form
from teal.allocation.settings import SolveConfig
from teal.app import path_sets
from teal.app.instance import load_instance
from teal.errors import InputError
from teal.network import PathSet, compute_paths
from teal.network.path_changes import first_paths_of_each, select_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.solvers.candidates import choose_paths, representative_matrices
from teal.solvers.columns import generating_columns
from teal.testing import make_topology, random_topology

# Two demands from 0 to 3; one path of each length: 0-3, 0-1-3, 0-1-2-3.
_LINKS = [(0, 3, 1.0), (0, 1, 3.0), (1, 3, 1.0), (1, 2, 1.0), (2, 3, 1.0)]


def _path_lists(paths: PathSet) -> list[list[list[int]]]:
    return [
        [paths.links_of(d, k) for k in np.flatnonzero(paths.mask[d]).tolist()]
        for d in range(paths.num_demands)
    ]


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), objective=st.sampled_from(SINGLE_PROGRAMS))
def test_a_choice_is_within_its_gap_of_the_optimum_over_all_paths(
    seed: int, objective: ObjectiveName
) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(seed)
    first = compute_paths(topology, num_paths=1, cache=False)
    demand = rng.exponential(3.0, (2, first.num_demands)) * (
        rng.random((2, first.num_demands)) < 0.5
    )
    weight = rng.choice([1.0, 2.0], first.num_demands)
    program = Objective(objective)
    chosen = choose_paths(
        topology,
        demand,
        paths=first,
        objective=program,
        weight=weight,
        gap=0.02,
        max_paths=50,
        cache=False,
    )
    problem = Problem.create(topology, first, program, demand, weight=weight)
    over_chosen = problem.with_paths(chosen.paths)
    sense = program.rules.sense
    value = teal.solve(over_chosen, gap=1e-4).value
    for row in range(2):
        if not demand[row].any():
            continue
        optimum = arc_form.optimum(problem.row(row))
        assert float(chosen.gaps[row]) <= 0.02
        assert sense * (optimum - float(value[row])) >= -1e-6 * (1 + optimum), (
            "nothing is better than all paths"
        )
        assert sense * (optimum - float(value[row])) <= 0.0202 * max(optimum, float(value[row]))
    assert chosen.limited == 0
    for before, after in zip(_path_lists(first), _path_lists(chosen.paths), strict=True):
        assert all(path in after for path in before), "paths of the first set stay"


def test_a_hand_solved_network_gets_the_missing_paths_the_best_ones_first() -> None:
    topology = make_topology(_LINKS)
    pair = np.array([[0, 3]], np.int32)
    first = compute_paths(topology, pair, num_paths=1, cache=False)
    chosen = choose_paths(topology, np.array([[2.9]]), paths=first, gap=1e-3, cache=False)
    assert sorted(_path_lists(chosen.paths)[0], key=len) == [[0], [1, 2], [1, 3, 4]]
    assert float(chosen.gaps) <= 1e-3
    few = choose_paths(topology, np.array([[2.9]]), paths=first, gap=1e-3, max_paths=2, cache=False)
    assert few.paths.num_paths == 2
    assert few.limited == 1
    assert float(few.gaps) == pytest.approx(0.9 / 2.9, abs=2e-3), (
        "two of three paths carry 2 of 2.9"
    )
    enough = choose_paths(topology, np.array([[0.5]]), paths=first, cache=False)
    assert _path_lists(enough.paths) == [[[0]]], "nothing is added where nothing is missing"


@given(seed=st.integers(0, 10_000))
def test_paths_are_sorted_by_what_they_carry_and_equal_arguments_give_equal_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(seed)
    first = compute_paths(topology, num_paths=2, cache=False)
    demand = rng.exponential(4.0, (1, first.num_demands))
    one, two = (
        choose_paths(topology, demand, paths=first, max_paths=3, cache=False) for _ in range(2)
    )
    np.testing.assert_array_equal(one.paths.leaf, two.paths.leaf)
    assert one.paths.key == two.paths.key
    assert one.paths.num_paths <= 3
    without = np.setdiff1d(np.flatnonzero(first.mask.any(1)), np.flatnonzero(one.paths.mask[:, 0]))
    assert not len(without), "every demand that had a path has one"
    for paths in _path_lists(one.paths):
        assert len({tuple(path) for path in paths}) == len(paths), "no path twice"


def test_a_choice_from_survivable_paths_survives_what_they_survive() -> None:
    topology = teal.load_topology("topohub:sndlib/geant")
    demand = teal.load_traffic("gravity:seed=0,count=2,load=8", topology).read(slice(None))
    first = compute_paths(topology, method="survivable", num_paths=4)
    chosen = choose_paths(topology, demand, paths=first, max_paths=5).paths
    assert chosen.mask.sum() > first.mask.sum()
    for cable in topology.cables():
        for before, after in zip(_path_lists(first), _path_lists(chosen), strict=True):
            survives = [
                any(not set(path) & set(cable) for path in paths) for paths in (before, after)
            ]
            assert survives[1] >= survives[0]


def test_a_choice_is_kept_on_disk_with_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path))
    topology = teal.load_topology("b4")
    demand = np.full((1, 132), 8.0)
    computed = choose_paths(topology, demand, objective=Objective("max_link_utilisation"))
    monkeypatch.setattr(
        "teal.solvers.candidates.generating_columns", lambda *_, **__: pytest.fail("chosen again")
    )
    read = choose_paths(topology, demand, objective="max_link_utilisation")
    np.testing.assert_array_equal(read.paths.leaf, computed.paths.leaf)
    assert (read.gaps.tolist(), read.limited) == (computed.gaps.tolist(), computed.limited)


def test_a_deadline_ends_with_the_best_so_far() -> None:
    topology = teal.load_topology("topohub:sndlib/geant")
    demand = teal.load_traffic("gravity:seed=0,count=1,load=8", topology).read([0])
    first = compute_paths(topology, num_paths=1)
    hurried = choose_paths(topology, demand, paths=first, gap=1e-4, deadline=0.0, cache=False)
    at_ease = choose_paths(topology, demand, paths=first, gap=1e-2, cache=False)
    assert float(at_ease.gaps) <= 1e-2 < float(hurried.gaps)


@pytest.mark.parametrize(
    "options", [{"gap": 0.0}, {"gap": math.nan}, {"max_paths": 0}, {"max_paths": 256}]
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        choose_paths(make_topology(_LINKS), np.ones(1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", [ObjectiveName.MAX_MIN, ObjectiveName.PRIORITY])
def test_sequences_of_programs_get_the_paths_of_a_single_program(objective: ObjectiveName) -> None:
    topology = teal.load_topology("b4")
    demand = np.full((1, 132), 8.0)
    name = {ObjectiveName.MAX_MIN: "max_link_utilisation", ObjectiveName.PRIORITY: "total_flow"}[
        objective
    ]
    chosen = choose_paths(topology, demand, objective=Objective(objective))
    expected = choose_paths(topology, demand, objective=Objective(name))
    np.testing.assert_array_equal(chosen.paths.leaf, expected.paths.leaf)


@given(seed=st.integers(0, 10_000))
def test_with_columns_keeps_the_paths_that_it_is_told_in_their_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    paths = compute_paths(random_topology(seed), num_paths=4, cache=False)
    count = np.array([rng.integers(0, n + 1) for n in paths.mask.sum(1)])
    order = np.argsort(np.where(paths.mask, rng.random(paths.leaf.shape), 2.0), axis=1)
    columns = np.where(np.arange(4) < count[:, None], order, -1)
    kept = select_paths(paths, columns)
    all_paths = _path_lists(paths)
    expected = [[all_paths[d][k] for k in columns[d] if k >= 0] for d in range(paths.num_demands)]
    assert _path_lists(kept) == expected
    assert kept.trie.num_nodes == len(
        {
            (int(paths.pairs[d, 0]), *path[: i + 1])
            for d, rows in enumerate(expected)
            for path in rows
            for i in range(len(path))
        }
    ), "no node that no path uses"
    load = torch.rand(1, paths.num_demands, 4, dtype=torch.float64)
    np.testing.assert_allclose(
        teal.make_path_ops(kept)
        .link_sum(torch.where(torch.from_numpy(columns >= 0), load, 0))
        .numpy()[0],
        np.bincount(
            np.array(
                [link for d, rows in enumerate(expected) for path in rows for link in path],
                np.int64,
            ),
            np.array(
                [
                    float(load[0, d, k])
                    for d, rows in enumerate(expected)
                    for k, path in enumerate(rows)
                    for _ in path
                ]
            ),
            minlength=kept.num_links,
        ),
        atol=1e-12,
    )
    for width in (2, 6):
        assert _path_lists(first_paths_of_each(paths, width)) == [
            rows[:width] for rows in all_paths
        ]
        assert first_paths_of_each(paths, width).num_paths == width


def test_few_matrices_are_taken_for_large_networks_and_none_for_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = compute_paths(teal.load_topology("b4"))  # 132 demands x 4
    assert representative_matrices(paths) == 4
    monkeypatch.setattr("teal.solvers.candidates._MAX_SLOTS", 3 * paths.leaf.size)
    assert representative_matrices(paths) == 3
    monkeypatch.setattr("teal.solvers.candidates._MAX_SLOTS", 0)
    assert representative_matrices(paths) == 1
    monkeypatch.setattr("teal.solvers.candidates._MAX_CHOSEN_SLOTS", paths.leaf.size - 1)
    assert representative_matrices(paths) == 0
    lines: list[str] = []
    config = SolveConfig(topology="b4", traffic="gravity:seed=0,load=8")
    assert load_instance(config, lines.append).paths.num_paths == 4
    assert any("no column generation" in line for line in lines)


def test_the_choice_of_paths_takes_a_part_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[float]()

    def choose(*arguments: Any, **options: Any) -> Any:
        given.append(options["deadline"])
        return choose_paths(*arguments, **options)

    monkeypatch.setattr(path_sets, "choose_paths", choose)
    config = SolveConfig(topology="b4", traffic="gravity:count=2,load=4")
    assert load_instance(config, deadline=90.0).end.remaining_s <= 90
    assert load_instance(config).end.remaining_s == math.inf
    assert given == [32.0, 300.0]


def test_a_choice_that_the_deadline_ended_is_no_longer_taken_once_there_is_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path))
    topology = make_topology([(0, 3, 1.0), (0, 1, 3.0), (1, 3, 1.0), (1, 2, 1.0), (2, 3, 1.0)])
    first = compute_paths(topology, np.array([[0, 3]]), num_paths=1, cache=False)
    counts = [
        int(choose_paths(topology, np.array([3.0]), paths=first, deadline=seconds).paths.mask.sum())
        for seconds in (0.0, 0.0, math.inf, 0.0)
    ]
    assert counts == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("objective", "engine"), [("max_link_utilisation", "pdhg"), ("total_flow", "auto")]
)
def test_paths_of_a_small_network_are_chosen_by_prices_of_all_busy_links(
    objective: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        asked.append(options["engine"])
        return generating_columns(*arguments, **options)

    monkeypatch.setattr("teal.solvers.candidates.generating_columns", noted)
    topology = teal.load_topology("b4")
    demand = teal.load_traffic("gravity:seed=0,count=2,load=4", topology).read([0, 1])
    chosen = choose_paths(topology, demand, objective=objective, cache=False)
    assert asked == [engine] * 2
    assert max(chosen.gaps) <= 0.01
