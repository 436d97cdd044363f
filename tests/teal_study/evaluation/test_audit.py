"""The search for worst demands, against linear programs and a scheme whose worst case is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import teal
from teal.app.instance import Instance
from teal.cli import main
from teal.formats.rows import read_csv
from teal.network.rates import ArrayRates
from teal.testing import make_topology
from teal_study.evaluation.audit import (
    AllowedDemands,
    Generation,
    _groups,
    _patterns,
    audit,
    demand_set,
)


def _instance(count: int = 6) -> Instance:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic(f"gravity:seed=0,count={count},load=2", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    return Instance(
        topology, traffic, paths, teal.Objective(), None, traffic.split(), torch.device("cpu")
    )


class _Forgetful:
    """Carries nothing of the demand with the given number, and all else optimally."""

    def __init__(self, forgotten: int) -> None:
        self._forgotten = forgotten

    def solve(self, problem: teal.Problem) -> teal.Allocation:
        demand = problem.demand.clone()
        demand[:, self._forgotten] = 0
        splits = teal.solve(problem.with_demand(demand), gap=1e-4).splits.clone()
        splits[:, self._forgotten] = 0
        return teal.Allocation.of_batch(splits, None, 0.0)


@pytest.mark.system
def test_the_demand_that_a_scheme_forgets_is_found_and_the_loss_is_that_of_the_lp() -> None:
    instance = _instance()
    allowed = demand_set(instance, 0.8, hose=False)
    forgotten, seen = 17, list[Generation]()
    found = audit(
        instance, [_Forgetful(forgotten)], allowed, math.inf, max_matrices=800, report=seen.append
    )
    assert tuple(seen) == found.generations
    losses = [one.loss for one in found.generations]
    assert losses == sorted(losses)
    assert losses[-1] > 1.3 * losses[0] > 0
    assert found.demand[forgotten] / allowed.high[forgotten] > 0.6
    assert (found.demand >= allowed.low * (1 - 1e-12)).all()
    assert (found.demand <= allowed.high * (1 + 1e-12)).all()
    problem = instance.problem(found.demand)
    exact = float(problem.value(teal.make_scheme("lp-all").solve(problem).splits)[0])
    own = float(problem.value(_Forgetful(forgotten).solve(problem).splits)[0])
    assert losses[-1] <= 1 - own / exact + 1e-6, "what is proven is no more than what is true"
    assert losses[-1] >= 1 - own / exact - 2e-3


@pytest.mark.system
def test_the_optimum_loses_no_more_than_its_gap() -> None:
    allowed = demand_set(_instance(2), 1.0, hose=True)
    found = audit(
        _instance(2), [teal.make_scheme("pdhg:gap=0.005")], allowed, math.inf, max_matrices=200
    )
    assert found.generations[-1].loss <= 0.005 + 1e-6


def test_points_are_within_box_and_hose() -> None:
    instance, rng = _instance(), np.random.default_rng(0)
    allowed = demand_set(instance, 0.5, hose=True)
    rates = instance.traffic.read(slice(None))
    np.testing.assert_allclose(allowed.high, 1.5 * rates.max(0))
    np.testing.assert_allclose(allowed.low, 0.5 * rates.min(0))
    assert allowed.sends is not None
    for own in rates:
        assert (np.bincount(instance.traffic.pairs[:, 0], own) <= allowed.sends * (1 + 1e-12)).all()
    free = AllowedDemands(
        0 * allowed.low, allowed.high, allowed.pairs, allowed.sends, allowed.receives
    )
    for _ in range(20):
        point = free.within(allowed.high * rng.random(len(allowed.high)) * 3)
        assert (point <= allowed.high * (1 + 1e-12)).all()
        for side, limit in ((0, free.sends), (1, free.receives)):
            assert limit is not None
            assert (
                np.bincount(free.pairs[:, side], point, minlength=len(limit)) <= limit * (1 + 1e-9)
            ).all()


def _pinning() -> Instance:
    """Figure 1 of the MetaOpt paper: 0 to 2 over 1 (two links of 100) or over 3 and 4 (three links
    of 50)."""
    links = [(0, 1, 100.0), (1, 2, 100.0), (0, 3, 50.0), (3, 4, 50.0), (4, 2, 50.0)]
    topology = make_topology(links)
    pairs = np.array([[0, 1], [0, 2], [1, 2]], np.int32)
    traffic = teal.TrafficMatrices(
        "given",
        pairs,
        np.array(["2024-01-01"], "datetime64[s]"),
        ArrayRates(np.array([[10.0, 10.0, 10.0]])),
        0,
    )
    paths = teal.compute_paths(topology, pairs, cache=False)
    return Instance(
        topology, traffic, paths, teal.Objective(), None, traffic.split(), torch.device("cpu")
    )


def test_the_worst_demands_of_pinning_by_hand() -> None:
    """50 Gbit/s are pinned to the short path and displace 100: 150 of 250, where all capacity is
    350."""
    instance, threshold = _pinning(), 50 / 70
    allowed = demand_set(instance, 0.0, hose=False, up_to=100 / 70)
    assert allowed.high.tolist() == pytest.approx([100.0] * 3)
    scheme = teal.make_scheme(f"demand-pinning:threshold={threshold * (1 + 1e-9)}")
    for of_capacity, worst in ((False, 100 / 250), (True, 100 / 350)):
        found = audit(
            instance, [scheme], allowed, math.inf, max_matrices=48, of_capacity=of_capacity
        )
        assert 0.97 * worst <= found.generations[-1].loss <= worst * (1 + 1e-6)
        assert found.demand.tolist() == pytest.approx([100, 50, 100], rel=0.05)
    lossless = teal.make_scheme("lp-all")
    mean = audit(instance, [scheme, lossless], allowed, math.inf, max_matrices=48)
    assert 0.97 * 0.2 <= mean.generations[-1].loss <= 0.2 * (1 + 1e-6), "the mean of 100 and 0 lost"


def test_the_first_patterns_set_near_and_distant_demands_apart() -> None:
    instance = _instance(1)
    allowed = demand_set(instance, 0.5, hose=False)
    found, hops = _patterns(instance, allowed), instance.paths.hops[:, 0]
    assert len(found) > 10
    span = allowed.high - allowed.low
    shares = (found - allowed.low) / span
    assert ((shares > -1e-9) & (shares < 1 + 1e-9)).all()
    np.testing.assert_allclose(shares[:, hops == 1], 1)
    for own in shares:
        levels = np.unique(own[hops > 1].round(9))
        assert len(levels) <= 2, "a share from some distance on, and nothing between"


def test_where_all_nodes_are_neighbours_there_are_no_distances() -> None:
    topology = make_topology([(a, b, 9.0) for a in range(3) for b in range(3) if a != b])
    traffic = teal.load_traffic("gravity:seed=0,count=2,load=8", topology)
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=1, cache=False)
    instance = Instance(
        topology, traffic, paths, teal.Objective(), None, traffic.split(), torch.device("cpu")
    )
    allowed = demand_set(instance, 0.5, hose=False)
    assert _patterns(instance, allowed).shape == (0, 6)
    assert audit(
        instance, [teal.make_scheme("ecmp")], allowed, math.inf, max_matrices=40
    ).generations


def test_groups_are_of_one_source_target_distance_or_link() -> None:
    instance = _instance(1)
    pairs, paths = instance.traffic.pairs, instance.paths
    for group in _groups(instance):
        first = [set(paths.links_of(d, 0)) for d in group.tolist()]
        kinds = [set(pairs[group, 0]), set(pairs[group, 1]), {len(own) for own in first}]
        assert len(group) > 1
        assert any(len(kind) == 1 for kind in kinds) or set.intersection(*first)


@pytest.mark.slow
def test_the_command_writes_a_matrix_that_other_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = ["--topology", "b4", "--traffic", "gravity:seed=0,count=4,load=2"]
    out = tmp_path / "audit"
    command = [
        "audit",
        *network,
        "--scheme",
        "ecmp",
        "--box",
        "1",
        "--time-budget",
        "1s",
        "--out",
        str(out),
    ]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "ecmp loses at least" in said
    generations = read_csv(out / "losses.csv", Generation)
    assert (out / "losses.png").read_bytes().startswith(b"\x89PNG")
    again = ["evaluate", "--topology", "b4", "--traffic", str(out / "worst.csv")]
    again += ["--scheme", "ecmp", "--scheme", "lp-all"]
    assert main([*again, "--out", str(tmp_path / "check")]) == 0
    with (tmp_path / "check" / "results.csv").open() as stream:
        assert generations[-1].loss > 0.2
        assert len(stream.readlines()) == 3
    assert main(command) == 2
    assert main([*command, "--overwrite", "--objective", "max_link_utilisation"]) == 2
    more = ["--scheme", "pop:seed=1", "--up-to", "0.5", "--measure", "capacity", "--overwrite"]
    assert main([*command, *more]) == 0
    assert "of the sum of all capacities" in capsys.readouterr().out


def test_a_scheme_without_any_allocation_is_an_error() -> None:
    instance = _instance(1)

    class Overloads:
        def solve(self, problem: teal.Problem) -> teal.Allocation:
            return teal.Allocation.of_batch(problem.first_path_splits * 5, None, 0.0)

    with pytest.raises(teal.SolverError, match="no usable allocation"):
        audit(instance, [Overloads()], demand_set(instance, 0.1, hose=False), 1.0)
