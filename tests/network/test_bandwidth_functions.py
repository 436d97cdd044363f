"""Bandwidth functions: values, bounds and optima against an LP of their pieces, and hand-solved
networks."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from baselines.lp_all import LpAll
from teal.app.instance import instance_key, load_instance
from teal.app.settings import InstanceConfig
from teal.cli import main
from teal.errors import InputError
from teal.formats.bandwidth_functions import read_bandwidth_functions
from teal.network import DemandClasses, compute_paths
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.problem import Problem, dual_bound
from teal.problem.assessment import assess
from teal.solvers.columns import generate_columns
from teal.solvers.pipeline import solve
from teal.testing import make_topology, random_problem
from tests.bounds import Cases

_BY_HAND = [
    [(2.0, 20.0), (6.0, 24.0)],
    [(3.0, 15.0), (9.0, 21.0)],
]  # 10, then 1 a Gbit/s; 5, then 1


def _random_points(seed: int, demands: int) -> list[list[tuple[float, float]]]:
    """Concave functions of one to four pieces, some of which end with a flat piece."""
    rng, functions = np.random.default_rng(seed), []
    for _ in range(demands):
        count = int(rng.integers(1, 5))
        rates, slopes = (
            rng.uniform(0.1, 2, count).cumsum(),
            np.sort(rng.uniform(0.1, 9, count))[::-1],
        )
        slopes[-1] *= rng.random() < 0.7 or count == 1
        values = (slopes * np.diff(rates, prepend=0.0)).cumsum()
        functions.append(list(zip(rates.tolist(), values.tolist(), strict=True)))
    return functions


def _random(seed: int, failed: int = 0) -> tuple[Problem, list[list[tuple[float, float]]]]:
    base = random_problem(seed, batch=1, failed=failed)
    functions = _random_points(seed, base.demand.shape[1])
    chosen = BandwidthFunctions.of_points(functions, range(len(functions)))
    problem = Problem.create(
        base.topology,
        base.paths,
        "bandwidth_functions",
        base.demand.numpy(),
        capacity=base.capacity.numpy(),
        functions=chosen,
    )
    return problem, functions


def _value(functions: list[list[tuple[float, float]]], rate: np.ndarray) -> float:
    """The sum of the values of rates (D,), by numpy's interpolation."""
    return sum(
        float(np.interp(x, [0.0, *(r for r, _ in points)], [0.0, *(v for _, v in points)]))
        for points, x in zip(functions, rate.tolist(), strict=True)
    )


def _optimum(problem: Problem, functions: list[list[tuple[float, float]]]) -> float:
    """By an LP that knows tangents alone: u[d] <= value of each piece's line at the rate of d."""
    live = problem.path_mask[0].numpy()
    demands, paths = live.shape
    flows, total = demands * paths, demands * paths + demands
    path, link = problem.paths.incidences()
    use = np.zeros((problem.topology.num_links, total))
    use[link, path] = 1
    of_demand = np.kron(np.eye(demands), np.ones((1, paths)))
    rows, limits = (
        [use, np.hstack([of_demand, np.zeros((demands, demands))])],
        [problem.capacity[0].numpy(), problem.demand[0].numpy()],
    )
    for d, points in enumerate(functions):
        along = [(0.0, 0.0), *points]
        lines = [
            ((v2 - v1) / (r2 - r1), r1, v1) for (r1, v1), (r2, v2) in itertools.pairwise(along)
        ]
        for slope, rate, value in [*lines, (0.0, *points[-1])]:
            row = np.zeros((1, total))
            row[0, :flows] = -slope * of_demand[d]
            row[0, flows + d] = 1
            rows.append(row)
            limits.append(np.array([value - slope * rate]))
    bounds = [(0, None) if alive else (0, 0) for alive in live.ravel().tolist()] + [
        (None, None)
    ] * demands
    cost = np.concatenate([np.zeros(flows), -np.ones(demands)])
    return -float(linprog(cost, np.vstack(rows), np.concatenate(limits), bounds=bounds).fun)


@given(seed=st.integers(0, 10_000), failed=st.sampled_from([0, 2]))
def test_value_is_that_of_the_functions(seed: int, failed: int) -> None:
    problem, functions = _random(seed, failed)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(problem.path_mask.shape[-1] + 1), problem.demand.shape[1])[
        :, :-1
    ]
    splits = torch.where(problem.path_mask, torch.from_numpy(shares), 0)
    rate = (splits.sum(-1) * problem.demand)[0].numpy()
    assert float(problem.value(splits)[0]) == pytest.approx(
        _value(functions, rate), rel=1e-9, abs=1e-9
    )


def test_no_prices_prove_less_than_the_optimum() -> None:
    """Those of the optimum, from a half to twice as high, and with random ones added."""
    cases = Cases()

    @given(
        seed=st.integers(0, 10_000),
        failed=st.sampled_from([0, 2]),
        factor=st.sampled_from([0.5, 1.0, 2.0]),
        noise=st.sampled_from([0.0, 0.2, 2.0]),
    )
    def check(seed: int, failed: int, factor: float, noise: float) -> None:
        problem, functions = _random(seed, failed)
        random = np.random.default_rng(seed).exponential(1.0, (1, problem.topology.num_links))
        prices = factor * solve(problem, gap=1e-3).prices + noise * torch.from_numpy(random)
        bound = float(dual_bound(problem, prices)[0])
        assert bound >= _optimum(problem, functions) * (1 - 1e-9)
        cases.add(bound < 0.999 * float(dual_bound(problem, 0 * prices)[0]))

    check()
    cases.require_most()


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_that_of_the_tangents(seed: int) -> None:
    problem, functions = _random(seed, failed=2 * (seed % 2))
    optimum = _optimum(problem, functions)
    result = solve(problem, gap=1e-6, max_iterations=50_000)
    assert float(result.gap[0]) <= 1e-6
    assert float(result.value[0]) <= optimum * (1 + 1e-8)
    assert float(result.bound[0]) >= optimum * (1 - 1e-8)
    reference = assess(problem, LpAll().solve(problem))
    assert float(reference.value[0]) == pytest.approx(optimum, rel=1e-6)
    assert float(reference.gap[0]) <= 1e-6


def test_two_demands_on_one_link() -> None:
    """Each 10 Gbit/s; the link has 8: 2 at a worth of 10, 3 at 5, and the rest, 3, at 1."""
    topology = make_topology([(0, 1, 8.0), (1, 2, 99.0)])
    pairs = np.array([[0, 1], [0, 2]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    functions = BandwidthFunctions.of_points(_BY_HAND, [0, 1])
    problem = Problem.create(
        topology, paths, "bandwidth_functions", np.full((1, 2), 10.0), functions=functions
    )
    assert float(solve(problem, gap=1e-9).value[0]) == pytest.approx(38, rel=1e-8)
    # Twice the link: 2, 3, then both to their ends at 6 and 9, beyond which more is worth nothing.
    wide = problem.with_capacity(2 * problem.capacity)
    assert float(solve(wide, gap=1e-9).value[0]) == pytest.approx(45, rel=1e-8)
    # Half of the demand: the functions are of rates and stay where they are.
    small = problem.with_demand(problem.demand / 4)
    assert float(solve(small, gap=1e-9).value[0]) == pytest.approx(20 + 0.5 + 12.5, rel=1e-8)


def test_functions_of_shares_grow_with_the_demand() -> None:
    topology = make_topology([(0, 1, 8.0)])
    paths = compute_paths(topology, np.array([[0, 1]], dtype=np.int32), num_paths=1, cache=False)
    functions = BandwidthFunctions.of_points([[(0.5, 2.0), (1.0, 2.5)]], [0], by_share=True)
    problem = Problem.create(
        topology, paths, "bandwidth_functions", np.array([[4.0]]), functions=functions
    )
    for demand, value in ((4.0, 10.0), (8.0, 20.0), (16.0, 32.0)):
        result = solve(problem.with_demand(np.array([[demand]])), gap=1e-9)
        assert float(result.value[0]) == pytest.approx(value, rel=1e-8)


def test_bounds_hold_over_all_paths() -> None:
    problem, functions = _random(3)
    every = compute_paths(
        problem.topology, problem.paths.pairs, num_paths=30, method="yen", cache=False
    )
    found = generate_columns(problem, target=1e-4)
    optimum = _optimum(problem.with_paths(every), functions)
    assert float(found.bound_all_paths[0]) >= optimum * (1 - 1e-9)
    assert float(found.result.value[0]) <= optimum * (1 + 1e-9)
    assert float(found.gap_all_paths[0]) <= 1e-4


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(2.0, 1.0), (1.0, 2.0)], "increasing finite rates"),
        ([(1.0, 0.0)], "above 0 at the first point"),
        ([(1.0, 1.0), (2.0, 3.0)], "concave"),
        ([(1.0, 1.0), (2.0, 0.5)], "concave"),
        ([(1.0, float("nan"))], "finite"),
        ([], "finite"),
    ],
)
def test_other_functions_are_refused(points: list[tuple[float, float]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        BandwidthFunctions.of_points([points], [0])


_TOPOLOGY = make_topology([(0, 1, 8.0), (1, 2, 8.0)])


def _file(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_files_name_nodes_classes_or_all_demands(tmp_path: Path) -> None:
    pairs = np.array([[0, 1], [0, 2], [0, 1]], dtype=np.int32)
    classes = DemandClasses(("gold", "bronze"), np.array([0, 2, 3]))
    text = "source,target,class,rate,value\n,,,1,1\nn0,n2,,1,2\nn0,n2,,2,3\n,,bronze,1,4\n"
    found = read_bandwidth_functions(_file(tmp_path, "f.csv", text), _TOPOLOGY, pairs, classes)
    assert found.slope[:, 0].tolist() == [1, 2, 4]
    assert found.end[1, :2].tolist() == [1, 2]
    same = [
        {"points": [[1, 1]]},
        {"source": "n0", "target": "n2", "points": [[1, 2], [2, 3]]},
        {"class": "bronze", "points": [[1, 4]]},
    ]
    again = read_bandwidth_functions(
        _file(tmp_path, "f.json", json.dumps(same)), _TOPOLOGY, pairs, classes
    )
    np.testing.assert_array_equal(found.slope, again.slope)
    np.testing.assert_array_equal(found.end, again.end)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("f.txt", "", "a .json file"),
        ("f.csv", "source,target,value\nn0,n1,1\n", "columns: expected rate or share"),
        ("f.csv", "rate,value\n", "functions: the file has no points"),
        ("f.csv", "rate,value\n1,x\n", "line 2: value: expected a number"),
        ("f.csv", "source,target,rate,value\nn0,nowhere,1,1\n", "line 2: source and target"),
        ("f.csv", "source,target,rate,value\nn0,,1,1\n", "only the source is given"),
        (
            "f.csv",
            "source,target,rate,value\nn0,n1,1,1\n",
            "no function for the demand from n0 to n2",
        ),
        ("f.csv", "class,rate,value\ngold,1,1\n", "class: the traffic has no classes"),
        (
            "f.csv",
            "rate,value\n1,1\n2,3\n",
            "line 2: values: expected a concave, non-decreasing function",
        ),
        ("f.json", "{", "JSON"),
        ("f.json", "{}", "a list of objects"),
        ("f.json", '[{"points": [1]}]', r"a list of \[rate, value\]"),
        (
            "f.json",
            '[{"points": [[1, 1]]}, {"class": "", "shares": [[1, 1]]}]',
            "some points are by rate",
        ),
    ],
)
def test_wrong_files_are_refused_with_their_place(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    pairs = np.array([[0, 1], [0, 2]], dtype=np.int32)
    with pytest.raises(InputError, match=words):
        read_bandwidth_functions(_file(tmp_path, name, text), _TOPOLOGY, pairs, None)


def test_commands_take_a_file_of_functions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = _file(tmp_path, "f.csv", "share,value\n0.25,2\n0.5,3\n1,3.5\n")
    network = [
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,load=6,count=3",
        "--objective",
        "bandwidth_functions",
    ]
    with_file = [*network, "--functions", str(functions)]
    assert main(["solve", *with_file, "--gap", "0.001", "--json"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert solved["gap"] <= 1e-3
    schemes = [
        "--scheme",
        "pdhg:gap=0.0001",
        "--scheme",
        "lp-all",
        "--split",
        "all",
        "--limit",
        "1",
    ]
    pytest.importorskip("teal_study", reason="needs the package teal_study")
    assert main(["evaluate", *with_file, *schemes, "--out", str(tmp_path / "runs")]) == 0
    with (tmp_path / "runs" / "results.csv").open(newline="") as stream:
        by_scheme = {row["scheme"]: float(row["value"]) for row in csv.DictReader(stream)}
    assert by_scheme["pdhg:gap=0.0001"] == pytest.approx(by_scheme["lp-all"], rel=2e-4)
    assert solved["value"] <= by_scheme["lp-all"] * (1 + 1e-9) <= solved["bound"] * (1 + 2e-9)
    capsys.readouterr()
    assert main(["solve", *network]) == 2
    assert "--functions: expected a file" in capsys.readouterr().err
    assert main(["solve", *with_file[:4], "--functions", str(functions)]) == 2
    assert "only the objective bandwidth_functions uses it" in capsys.readouterr().err


def test_results_of_other_functions_have_another_key(tmp_path: Path) -> None:
    """A run is not resumed with a file of functions that has changed."""
    keys = []
    for text in ("share,value\n1,2\n", "share,value\n1,3\n"):
        functions = _file(tmp_path, "f.csv", text)
        config = InstanceConfig(
            topology="b4",
            traffic="gravity:seed=0,count=2",
            objective="bandwidth_functions",
            functions=functions,
        )
        keys.append(instance_key(load_instance(config)))
    assert keys[0] != keys[1]
