"""Availability of priority classes, against all states of small networks one by one."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
import teal_availability
from teal import InputError
from teal.cli import main
from teal.formats.allocations import write_allocation
from teal.network import compute_paths
from teal.network.classes import DemandClasses
from teal.network.ecmp import igp_metric
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability.components import Components
from teal_availability.measure import measure
from teal_availability.routing import Igp, PathSplits, Routing, Solved, Tunnels
from teal_availability.states import most_probable_states
from tests.explicit import explicit_paths
from tests.igp_reference import segment_shares
from tests.teal_availability.brute import every_state, over_all_paths, random_case, works
from tests.teal_availability.test_measure import _along, _random_splits


def _case(seed: int) -> tuple[Problem, Components, np.ndarray]:
    """A random case whose first half of the demands is the upper class, and (D,) the classes."""
    problem, components = random_case(seed, nodes=4, count=5)
    count = problem.paths.num_demands
    classes = DemandClasses(("gold", "bronze"), np.array([0, count // 2, count]))
    of_classes = Problem.create(
        problem.topology,
        problem.paths,
        "total_flow",
        problem.demand.numpy(),
        capacity=problem.capacity.numpy(),
        classes=classes,
    )
    return of_classes, components, np.repeat([0, 1], np.diff(classes.ptr))


def _kept(load: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """(2, E) share that each link passes of each class, of loads (2, E): gold first."""
    kept = np.ones_like(load)
    for link, limit in enumerate(capacity):
        for c in (0, 1):
            left = max(0.0, limit - (load[0, link] if c else 0.0))
            if load[c, link] > left:
                kept[c, link] = left / load[c, link]
    return kept


def _tunnels(
    problem: Problem, class_of: np.ndarray, splits: torch.Tensor, state: np.ndarray
) -> np.ndarray:
    """(D,) share that arrives over the paths that survive, without a move."""
    use, of_demand = explicit_paths(problem)
    demand = problem.demand[0].numpy()
    flow = splits.numpy()[problem.path_mask[0].numpy()] * (of_demand.T @ demand)
    flow *= use[~state].sum(0) == 0
    of_path = of_demand.T @ class_of
    load = np.array([use @ (flow * (of_path == c)) for c in (0, 1)])
    kept = _kept(load, problem.topology.capacity)
    cut = np.array(
        [
            min([kept[int(of_path[path]), link] for link in np.flatnonzero(use[:, path])] or [1.0])
            for path in range(use.shape[1])
        ]
    )
    arriving = of_demand @ (flow * cut)
    return np.divide(arriving, demand, out=np.ones_like(demand), where=demand > 0)


Leg = tuple[int, int, int]  # start, end, and the link that is taken or -1 for shortest paths


def _igp(
    problem: Problem,
    class_of: np.ndarray,
    state: np.ndarray,
    lists: dict[tuple[int, int], list[tuple[float, list[Leg]]]],
) -> np.ndarray:
    """(D,) share that arrives over shortest paths, or over the legs of the lists of a pair."""
    topology = problem.topology
    metric = np.where(state, igp_metric(topology, "hops"), np.inf)
    shares = segment_shares(topology, metric)
    demand, pairs = problem.demand[0].numpy(), problem.paths.pairs.tolist()
    load = np.zeros((2, topology.num_links))

    def feasible_options(s: int, t: int) -> list[tuple[float, list[Leg]]]:
        return lists.get((s, t), [(1.0, [(s, t, -1)])])

    def goes(leg: Leg) -> bool:
        start, end, link = leg
        return bool(state[link]) if link >= 0 else not np.isnan(shares[end, start]).all()

    for d, (s, t) in enumerate(pairs):
        for share, legs in feasible_options(s, t):
            for leg in itertools.takewhile(goes, legs):
                start, end, link = leg
                on = np.eye(topology.num_links)[link] if link >= 0 else shares[end, start]
                load[class_of[d]] += share * demand[d] * on
    kept = _kept(load, topology.capacity)
    arrives = np.ones(len(pairs))
    for d, (s, t) in enumerate(pairs):
        of_class = kept[class_of[d]]
        total = 0.0
        for share, legs in feasible_options(s, t):
            for leg in legs:
                start, end, link = leg
                along = of_class[link] if link >= 0 else None
                if along is None:
                    along = _along(topology, metric, shares, of_class, start, end)
                share *= along if goes(leg) else 0.0
            total += share
        if demand[d] > 0:
            arrives[d] = total
    return arrives


def _random_lists(
    problem: Problem, seed: int
) -> tuple[SegmentPolicies, dict[tuple[int, int], list[tuple[float, list[Leg]]]]]:
    """Two lists for every other demand: over a node, and over a link whatever the metrics say."""
    rng = np.random.default_rng(seed)
    topology = problem.topology
    policies = dict[tuple[int, int], tuple[SegmentList, ...]]()
    legs = dict[tuple[int, int], list[tuple[float, list[Leg]]]]()
    for s, t in problem.paths.pairs.tolist()[::2]:
        midpoint = int(rng.integers(topology.num_nodes))
        link = int(rng.integers(topology.num_links))
        begin, end = int(topology.link_source[link]), int(topology.link_target[link])
        over_node = [(s, midpoint, -1), (midpoint, t, -1)]
        over_link = [(s, begin, -1), (begin, end, link), (end, t, -1)]
        policies[s, t] = SegmentList(0.6, (midpoint,)), SegmentList(0.4, (end,), (link,))
        legs[s, t] = [
            (share, [leg for leg in scheme if leg[2] >= 0 or leg[0] != leg[1]])
            for share, scheme in ((0.6, over_node), (0.4, over_link))
        ]
    return SegmentPolicies(policies), legs


@given(seed=st.integers(0, 10_000), scheme=st.sampled_from(["igp", "lists", "tunnels"]))
@settings(max_examples=30, deadline=None)
def test_lower_classes_get_what_the_upper_ones_leave(seed: int, scheme: str) -> None:
    problem, components, class_of = _case(seed)
    demand, splits = problem.demand[0].numpy(), _random_splits(problem, seed)
    policies, legs = _random_lists(problem, seed) if scheme == "lists" else (None, {})
    routing: Routing = Igp(problem, "hops", policies)
    if scheme == "tunnels":
        routing = Tunnels(
            problem, PathSplits.from_candidate_paths(problem.paths, splits), moves=False
        )
    shares, times = [], []
    for time, down in every_state(components.unavailability):
        state = works(components, down, problem.topology.num_links)
        of_tunnels = scheme == "tunnels"
        shares.append(
            _tunnels(problem, class_of, splits, state)
            if of_tunnels
            else _igp(problem, class_of, state, legs)
        )
        times.append(time)
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    found = measure(scheme, [routing], [problem], components, states)
    np.testing.assert_allclose(found.demand_mean_share.low, times @ np.array(shares), atol=1e-9)
    assert [one.class_name for one in found.totals] == ["", "gold", "bronze"]
    for number, one in enumerate(found.totals[1:]):
        own = class_of == number
        if demand[own].sum() > 0:
            carried = np.array(shares)[:, own] @ demand[own] / demand[own].sum()
            assert float(one.mean.low) == pytest.approx(times @ carried, abs=1e-9)


@given(seed=st.integers(0, 10_000), has_classes=st.booleans())
@settings(max_examples=20, deadline=None)
def test_splits_of_a_file_arrive_as_those_that_were_written(seed: int, has_classes: bool) -> None:
    problem, components, _ = _case(seed)
    if not has_classes:
        problem, components = random_case(seed, nodes=4, count=5)
    paths, splits = problem.paths, _random_splits(problem, seed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "splits.json"
        demand = problem.demand[0].numpy()
        arrays = demand, splits.numpy()
        classes = problem.classes
        if not write_allocation(file, problem.topology, paths, *arrays, classes=classes):
            with pytest.raises(InputError, match="no path for any demand"):
                PathSplits.from_allocation(file, problem)
            return
        stored = Tunnels(problem, PathSplits.from_allocation(file, problem))
    given = Tunnels(problem, PathSplits.from_candidate_paths(paths, splits))
    state = np.ones((len(components) + 1, problem.topology.num_links), dtype=bool)
    state[1:] = ~components.links
    np.testing.assert_allclose(stored.delivery(state).share, given.delivery(state).share, atol=1e-9)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=6, deadline=None)
def test_solved_anew_gold_has_what_it_would_have_alone(seed: int) -> None:
    problem, components, class_of = _case(seed)
    demand = np.where(class_of == 0, problem.demand[0].numpy(), 0.0)
    if not demand.sum() > 0:
        return

    def optimum(over: Problem) -> float:
        use, of_demand = explicit_paths(over)
        total = 0.0
        for time, down in every_state(components.unavailability):
            state = works(components, down, problem.topology.num_links)
            limits = np.concatenate([np.where(state, problem.topology.capacity, 0), demand])
            best = linprog(-np.ones(use.shape[1]), np.vstack([use, of_demand]), limits)
            total += time * float(-best.fun / demand.sum())
        return total

    truth = optimum(over_all_paths(problem))
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    found = measure("solved", [Solved(problem, 1e-4)], [problem], components, states)
    gold = found.totals[1]
    assert optimum(problem) - 1e-3 <= float(gold.mean.low) <= truth + 1e-9
    assert truth <= float(gold.mean.high) + 1e-9


def test_no_more_arrives_than_the_demands_that_have_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 Gbit/s over a link of 10 and 4 over one that has failed, with prices that prove nothing."""
    topology = make_topology([(0, 1, 10.0), (2, 3, 9.0)])
    pairs = np.array([[0, 1], [2, 3]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = Problem.create(topology, paths, "total_flow", np.array([[12.0, 4.0]]))
    solved = Solved(problem)
    works = np.array([[True, False], [True, True]])
    proven = solved.delivery(works).max_total_share
    assert proven is not None
    np.testing.assert_allclose(proven, [10 / 16, 14 / 16], rtol=1e-6)
    monkeypatch.setattr(Solved, "_max_total_flow", lambda *_: np.full(2, 99.0))
    most = solved.delivery(works).max_total_share
    assert most is not None
    np.testing.assert_allclose(most, [12 / 16, 1.0], rtol=1e-12)


def test_the_command_has_a_row_for_each_class_and_promises_for_gold_first(tmp_path: Path) -> None:
    command = ["availability", "--topology", "b4", "--traffic", "gravity:seed=0,count=1,load=3"]
    command += [
        "--max-failed-components",
        "1",
        "--classes",
        "gold=0.3,bronze=0.7",
        "--out",
        str(tmp_path),
    ]
    for scheme in ("igp", "tunnels", "common-share"):
        command += ["--routing", scheme]
    assert main(command) == 0
    with (tmp_path / "summary.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["of_class"] for row in rows] == ["", "gold", "bronze"] * 3
    for whole, gold, bronze in (rows[i : i + 3] for i in (0, 3, 6)):
        assert float(bronze["mean"]) <= float(whole["mean"]) <= float(gold["mean"])
        both = 0.3 * float(gold["mean"]) + 0.7 * float(bronze["mean"])
        assert float(whole["mean"]) == pytest.approx(both, abs=1e-9)
    with (tmp_path / "promises.csv").open() as stream:
        promises = list(csv.DictReader(stream))
    assert [row["of_class"] for row in promises] == ["gold", "bronze"]
    assert float(promises[0]["gap"]) < 1e-4
    assert float(promises[1]["gap"]) < 1e-4
    assert float(promises[1]["share"]) > 0.05, "gold reserves no more than its promise needs"
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=3", topology)
    alone = teal_availability.availability(
        topology,
        dataclasses.replace(traffic, scale=0.3 * traffic.scale),
        routing=("common-share",),
        max_failed_components=1,
    ).promises[0]
    assert float(promises[0]["share"]) == pytest.approx(alone.share, abs=1e-6)


B4_BUSY = ["--topology", "b4", "--traffic", "gravity:seed=0,count=1,load=3"]


def test_installed_splits_and_lists_are_measured_from_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A demand that the file of splits does not have is lost, and said to be."""
    splits, lists = tmp_path / "splits.json", tmp_path / "lists.json"
    assert main(["solve", *B4_BUSY, "--out", str(splits)]) == 0
    to = ["--objective", "max_link_utilisation", "--out", str(lists)]
    assert main(["segments", *B4_BUSY, *to]) == 0
    less = tmp_path / "less.json"
    document = json.loads(splits.read_text())
    router, demands = next(iter(document["routers"].items()))
    gone = demands.pop(0)
    less.write_text(json.dumps(document))
    schemes = [f"tunnels:file={splits}", f"tunnels:file={less}", "igp", f"igp:lists={lists}"]
    command = [
        "availability",
        *B4_BUSY,
        "--max-failed-components",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    command += [word for scheme in schemes for word in ("--routing", scheme)]
    capsys.readouterr()
    assert main(command) == 0
    assert "less.json: no tunnels for 1 of 132 demands" in capsys.readouterr().err
    with (tmp_path / "out" / "summary.csv").open() as stream:
        means = {row["routing"]: float(row["mean"]) for row in csv.DictReader(stream)}
    whole, partly, igp, segments = (means[scheme] for scheme in schemes)
    assert partly < whole
    assert segments > igp, "lists of the least utilisation carry more than shortest paths"
    with (tmp_path / "out" / "demands.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["routing"] == schemes[1]]
    lost = [(row["source"], row["target"]) for row in rows if float(row["mean_at_most"]) < 1e-3]
    assert lost == [(router, gone["target"])]


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("tunnels:file=none.json", "none.json"),
        ("tunnels:scheme=lp-all,file=splits.json", "a file and a scheme are given"),
        ("igp:lists=none.json", "none.json"),
        ("igp:lists=transit.json", "transit policies"),
        ("igp:lists=delay.json", "flexible algorithm"),
    ],
)
def test_files_that_are_no_routing_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scheme: str,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = {"format": 1, "policies": []}
    Path("transit.json").write_text(json.dumps({**empty, "transit": True}))
    Path("delay.json").write_text(json.dumps({**empty, "flex_algo": "128:metric=delay"}))
    assert main(["availability", *B4_BUSY, "--routing", scheme, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "Traceback" not in error


def test_a_scheme_with_paths_of_its_own_has_no_tunnels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["availability", "--topology", "b4", "--traffic", "gravity:seed=0,count=1,load=1"]
    command += ["--routing", "tunnels:scheme=ecmp", "--out", str(tmp_path)]
    assert main(command) == 2
    assert "does not split over the candidate paths" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["least-loss", "tail-loss"])
def test_promises_that_leave_nothing_to_lower_classes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    command = ["availability", "--topology", "b4", "--traffic", "gravity:seed=0,count=1,load=1"]
    command += ["--classes", "gold=0.3,bronze=0.7", "--routing", scheme, "--out", str(tmp_path)]
    assert main(command) == 2
    assert "upper classes would reserve" in capsys.readouterr().err
