"""What commands compute from their settings, against hand-written files and networks by hand."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import teal
from baselines.lp_all import LpAll
from teal.allocation.settings import SolveConfig
from teal.app.instance import calibration_factor, load_instance
from teal.errors import InputError
from teal.network import TrafficMatrices, compute_paths
from teal.network.rates import ArrayRates
from teal.objectives import Objective
from teal.problem import Problem, assess
from teal.testing import make_topology

_LINKS = [("a", "b", 10.0), ("b", "a", 10.0), ("b", "c", 5.0), ("c", "b", 5.0), ("a", "c", 2.0)]


def _files(folder: Path, rates: dict[tuple[str, str], list[float]]) -> tuple[str, str]:
    """A network of three nodes, and traffic of some pairs, an interval a minute."""
    network, traffic = folder / "net.csv", folder / "traffic.csv"
    with network.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["source", "target", "capacity"])
        rows.writerows(_LINKS)
    with traffic.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["timestamp", "source", "target", "rate"])
        for minute in range(len(next(iter(rates.values())))):
            for (source, target), series in rates.items():
                rows.writerow([f"2026-01-01T00:{minute:02d}:00", source, target, series[minute]])
    return str(network), str(traffic)


def test_an_instance_has_the_network_the_traffic_and_paths_of_its_pairs(tmp_path: Path) -> None:
    network, traffic = _files(tmp_path, {("a", "c"): [3.0, 1.0, 2.0], ("c", "a"): [1.0, 4.0, 0.5]})
    instance = load_instance(SolveConfig(topology=network, traffic=traffic, num_paths=2))
    names = instance.topology.node_names
    pairs = [(names[s], names[t]) for s, t in instance.traffic.pairs.tolist()]
    assert sorted(pairs) == [("a", "c"), ("c", "a")]
    assert instance.paths.pairs.tolist() == instance.traffic.pairs.tolist()
    # From a to c there are two paths, from c to a one alone.
    assert sorted(instance.paths.mask.sum(1).tolist()) == [1, 2]
    demand = instance.traffic.read(slice(None))
    problem = instance.problem(demand)
    assert problem.batch == 3
    # 2 Gbit/s directly and 5 by way of b: all of a's demand fits; c's has 5.
    found = assess(problem, teal.solve(problem, gap=1e-6))
    assert found.value.tolist() == pytest.approx(demand.sum(1).tolist())
    scarce = instance.problem(3 * demand)
    value = assess(scarce, teal.solve(scarce, gap=1e-6)).value.tolist()
    expected = [min(7, 3 * a) + min(5, 3 * c) for a, c in ((3, 1), (1, 4), (2, 0.5))]
    assert value == pytest.approx(expected, rel=1e-6)


def test_a_demand_that_a_failure_leaves_without_a_candidate_gets_a_path(tmp_path: Path) -> None:
    network, traffic = _files(tmp_path, {("a", "c"): [1.0] * 3, ("c", "a"): [1.0] * 3})
    instance = load_instance(SolveConfig(topology=network, traffic=traffic, num_paths=1))
    direct = int(instance.topology.find_links("a", "c")[0])
    said: list[str] = []
    assert instance.surviving([()], said.append) is instance
    more = instance.surviving([[direct]], said.append)
    assert more.paths.mask.sum() == instance.paths.mask.sum() + 1
    assert len(said) == 1
    assert said[0].startswith("1 paths added")
    # The only way from c to a fails: the network does not connect them.
    only = int(instance.topology.find_links("c", "b")[0])
    assert more.surviving([[only]]) is more


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_a_calibrated_load_is_carried_to_its_share(share: float) -> None:
    """In the median over the matrices, by a linear program that has no part in the calibration."""
    topology = teal.load_topology("b4")
    drawn = teal.load_traffic("gravity:seed=3,count=7,load=1", topology)
    volume = np.array([0.5, 0.6, 0.7, 1.0, 4.0, 5.0, 6.0])[:, None]
    rates = ArrayRates(volume * drawn.read(slice(None)))
    traffic = dataclasses.replace(drawn, rates=rates)
    paths = compute_paths(topology, traffic.pairs)
    factor = calibration_factor(topology, paths, traffic, np.arange(7), share)
    demand = factor * traffic.read(slice(None))
    problem = Problem.create(topology, paths, Objective(), demand)
    carried = assess(problem, LpAll().solve(problem)).value / problem.demand.sum(1)
    assert float(carried.median()) == pytest.approx(share, abs=1.5e-3)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "between 0 and 1"), (1.0, "between 0 and 1"), (0.5, "less than 0.500")],
)
def test_shares_that_no_load_reaches_are_refused(share: float, words: str) -> None:
    """Half of the demand has no path."""
    topology = make_topology([(0, 1, 9.0)], min_nodes=3)
    pairs = np.array([[0, 1], [0, 2]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    stamps = np.datetime64("2026-01-01T00:00:00") + np.arange(3) * np.timedelta64(60, "s")
    traffic = TrafficMatrices("test", pairs, stamps, ArrayRates(np.ones((3, 2))), 60)
    with pytest.raises(InputError, match=words):
        calibration_factor(topology, paths, traffic, np.arange(3), share)
    factor = calibration_factor(topology, paths, traffic, np.arange(3), 0.45)
    assert 9.0 / (2 * factor) == pytest.approx(0.45, abs=1.5e-3)
