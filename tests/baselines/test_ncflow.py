"""NCFlow against networks whose optimum is known and against the LP over all paths, which it can
never exceed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from baselines import arc_form
from baselines.clusters import METHODS, partition
from baselines.matrix import matrices
from baselines.ncflow import NcFlow, _join_segments
from teal.errors import InputError
from teal.formats import load_topology, load_traffic
from teal.network import Topology, compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.problem.assessment import assess
from teal.testing import assert_feasible, make_topology, random_problem, random_topology


def _problem(name: str, load: float = 4.0) -> Problem:
    topology = load_topology(name)
    traffic = load_traffic(f"gravity:seed=0,count=2,load={load}", topology)
    return Problem.create(
        topology,
        compute_paths(topology, traffic.pairs, cache=False),
        Objective(),
        traffic.read([0]),
    )


def _flow(problem: Problem, allocation: Allocation) -> float:
    assert_feasible(problem, allocation)
    return float(assess(problem, allocation).value)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 9))
def test_every_cluster_is_strongly_connected(method: str, seed: int, count: int) -> None:
    topology = random_topology(seed, nodes=12, density=0.25)
    owner = partition(topology, count, method, seed)
    assert sorted(set(owner.tolist())) == list(range(int(owner.max()) + 1))
    for number in range(int(owner.max()) + 1):
        nodes = np.flatnonzero(owner == number)
        graph = np.zeros((12, 12))
        graph[topology.link_source, topology.link_target] = 1
        pieces, _ = connected_components(
            graph[np.ix_(nodes, nodes)], directed=True, connection="strong"
        )
        assert pieces == 1


def _two_cliques() -> Topology:
    links = [
        (i, j, 10.0)
        for side in (0, 4)
        for i in range(side, side + 4)
        for j in range(side, side + 4)
        if i < j
    ]
    return make_topology([*links, (0, 4, 1.0)], both=True)


@pytest.mark.parametrize("method", METHODS[:2])
def test_two_cliques_over_a_bridge_are_two_clusters(method: str) -> None:
    owner = partition(_two_cliques(), 2, method)
    assert len(set(owner[:4].tolist())) == len(set(owner[4:].tolist())) == 1
    assert owner[0] != owner[4]


def test_ncflow_over_a_bridge_is_optimal() -> None:
    """One demand in each direction over a bridge of capacity 1, and ample capacity inside the
    cliques.

    With several demands over the bridge the two clusters may prefer different ones.
    """
    topology = _two_cliques()
    pairs = np.array([[1, 2], [1, 5], [5, 2]], np.int32)
    rates = np.array([3.0, 1.5, 2.0])
    problem = Problem.create(
        topology, compute_paths(topology, pairs, cache=False), Objective(), rates
    )
    allocation = NcFlow(clusters=2, workers=1).solve(problem)
    assert _flow(problem, allocation) == pytest.approx(3.0 + 1.0 + 1.0)
    assert arc_form.optimum(problem) == pytest.approx(5.0)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000), method=st.sampled_from(METHODS), failed=st.sampled_from([0, 2, 99])
)
def test_ncflow_is_never_above_the_optimum_over_all_paths(
    seed: int, method: str, failed: int
) -> None:
    problem = random_problem(seed, nodes=9, density=0.3, failed=failed, batch=1)
    allocation = NcFlow(method=method, clusters=4, workers=1).solve(problem)
    assert _flow(problem, allocation) <= arc_form.optimum(problem) * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize(
    ("name", "min_share"),
    [("b4", 0.9), ("topohub:sndlib/abilene", 0.85), ("topohub:sndlib/geant", 0.8)],
)
def test_ncflow_is_near_the_optimum_on_small_networks(name: str, min_share: float) -> None:
    problem = _problem(name)
    allocation = NcFlow(workers=1).solve(problem)
    share = _flow(problem, allocation) / arc_form.optimum(problem)
    assert min_share < share <= 1 + 1e-6
    assert allocation.parallel_s[0] is not None
    assert allocation.parallel_s[0] <= allocation.build_s[0] + allocation.solve_s[0]


def test_ncflow_with_one_cluster_is_the_whole_lp() -> None:
    problem = _problem("topohub:sndlib/abilene")
    from baselines.lp_all import LpAll

    allocation = NcFlow(clusters=1, iterations=1, workers=1).solve(problem)
    assert _flow(problem, allocation) == pytest.approx(
        _flow(problem, LpAll().solve(problem)), rel=2e-3
    )


def test_more_iterations_of_ncflow_carry_more_flow() -> None:
    problem = _problem("topohub:sndlib/geant", load=8.0)
    values = [
        _flow(problem, NcFlow(iterations=count, workers=1).solve(problem)) for count in (1, 2, 6)
    ]
    assert values[0] < values[1] <= values[2]


def test_bundles_take_another_route_in_each_iteration() -> None:
    """A ring of six single-node clusters: two routes for each pair, clockwise and
    counter-clockwise."""
    topology = make_topology([(i, (i + 1) % 6, 1.0) for i in range(6)], both=True)
    paths = compute_paths(topology, np.array([[0, 3]], np.int32), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([2.0]))
    contraction = NcFlow(clusters=6, workers=1).contraction(next(iter(matrices(problem))))
    assert len(contraction.clusters) == 6
    for (source, target), routes in contraction.routes.items():
        assert len(routes) == 2
        assert all((route[0], route[-1]) == (source, target) for route in routes)
        crossed = [set(itertools.pairwise(route)) for route in routes]
        assert not crossed[0] & crossed[1]
    one, two = (
        _flow(problem, NcFlow(clusters=6, iterations=count, workers=1).solve(problem))
        for count in (1, 2)
    )
    assert (one, two) == pytest.approx((1.0, 2.0)), (
        "the second iteration takes the route that the first one left"
    )


def test_joined_paths_use_every_alternative_in_its_share() -> None:
    parts: list[list[tuple[tuple[int, ...], float]]] = [
        [((1,), 0.5), ((2,), 0.5)],
        [((3,), 0.2), ((4,), 0.3), ((5,), 0.5)],
        [((6,), 1.0)],
    ]
    joined = _join_segments(parts)
    assert sum(share for _, share in joined) == pytest.approx(1.0)
    for alternatives in parts:
        for part_links, share in alternatives:
            assert sum(
                joined_share for links, joined_share in joined if part_links[0] in links
            ) == pytest.approx(share)
    assert len(joined) <= 4


def test_ncflow_does_not_depend_on_batches_and_processes() -> None:
    problem = random_problem(5, nodes=9, density=0.3)
    batch_allocation = NcFlow(workers=2).solve(problem)
    for b in range(problem.batch):
        allocation = NcFlow(workers=1).solve(problem.row(b))
        assert _flow(problem.row(b), allocation) == pytest.approx(
            float(assess(problem, batch_allocation).value[b]), rel=1e-6
        )


def test_ncflow_refuses_other_objectives_and_allocates_nothing_without_demand() -> None:
    with pytest.raises(InputError, match="total_flow"):
        NcFlow().solve(random_problem(0, objective=ObjectiveName.WEIGHTED_FLOW))
    idle = random_problem(1, idle=1.0)
    assert torch.equal(assess(idle, NcFlow(workers=1).solve(idle)).value, torch.zeros(3).double())


@pytest.mark.parametrize(("nodes", "clusters"), [(9, 9), (12, 9), (15, 9), (16, 12), (20, 12)])
def test_ncflow_has_three_times_the_whole_root_of_the_nodes_as_clusters(
    nodes: int, clusters: int
) -> None:
    topology = make_topology([(i, (i + 1) % nodes, 10.0) for i in range(nodes)], both=True)
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), cache=False)
    (matrix,) = matrices(Problem.create(topology, paths, Objective(), np.array([1.0])))
    assert len(NcFlow().contraction(matrix).clusters) == clusters
