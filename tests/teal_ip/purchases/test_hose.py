"""Demands of a hose: worst matrices against all vertices on four nodes, purchases replayed on
random matrices."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import teal
from teal.errors import InputError
from teal.network import all_pairs
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.testing import make_topology, random_topology
from teal_ip.purchases.benders import expand_capacity
from teal_ip.purchases.hose import (
    Hose,
    expand_for_hose,
    matrix_above,
    pipe,
    static_limit,
    worst_matrices,
)
from teal_ip.purchases.scenarios import live_links, scenarios_of
from teal_ip.purchases.worst_case import worst_demands


def _network(seed: int, nodes: int, **options: object) -> tuple[Problem, Hose]:
    topology = random_topology(seed, nodes)
    pairs = all_pairs(topology)
    paths = teal.compute_paths(topology, pairs, num_paths=3, method="survivable", cache=False)
    rng = np.random.default_rng(seed)
    matrices = rng.exponential(float(topology.capacity.mean()) / (2 * nodes), (5, len(pairs)))
    problem = Problem.create(topology, paths, Objective("max_link_utilisation"), matrices[:1])
    return problem, Hose.of_history(pairs, matrices, nodes)


def _vertices(hose: Hose) -> list[FloatArray]:
    """All vertices of {x >= 0, R x <= l}: every choice of D tight ones among its D + 2 N
    inequalities."""
    rows, limits, count = hose.rows.toarray(), hose.limits, len(hose.pairs)
    inequalities = np.vstack([rows, -np.eye(count)])
    right = np.concatenate([limits, np.zeros(count)])
    found = []
    for tight in itertools.combinations(range(len(right)), count):
        matrix = inequalities[list(tight)]
        if abs(np.linalg.det(matrix)) < 1e-9:
            continue
        point = np.linalg.solve(matrix, right[list(tight)])
        if (inequalities @ point <= right + 1e-9).all():
            found.append(point)
    return found


@pytest.mark.slow
def test_the_worst_matrix_is_that_of_the_worst_vertex_of_the_hose() -> None:
    # A square of four nodes; six demands, so that the 14 inequalities have 3003 choices of six.
    topology = make_topology([(0, 1, 10), (1, 2, 6), (2, 3, 10), (3, 0, 6), (0, 2, 4)], both=True)
    pairs = np.array([[0, 1], [0, 2], [1, 2], [1, 3], [2, 0], [3, 1]], dtype=np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=3, cache=False)
    problem = Problem.create(topology, paths, Objective("max_link_utilisation"), np.ones((1, 6)))
    hose = Hose(pairs, np.array([7.0, 5.0, 4.0, 6.0]), np.array([5.0, 8.0, 6.0, 3.0]))
    vertices = np.stack(_vertices(hose))
    assert len(vertices) > 20
    every = problem.with_demand(vertices)
    worst = float(teal.solve(every, gap=1e-5).value.max())
    found = worst_matrices(problem, hose)
    assert hose.excess(found.matrix[0]) <= 1e-9
    assert found.utilisation[0] == pytest.approx(worst, rel=5e-3)
    exact, proven = matrix_above(problem, hose, 0.9 * worst, 60)
    assert exact is not None
    assert hose.excess(exact) <= 1e-6
    assert float(teal.solve(problem.with_demand(exact[None]), gap=1e-5).value[0]) == pytest.approx(
        worst, rel=1e-3
    )
    assert proven == pytest.approx(worst, rel=1e-3)
    assert matrix_above(problem, hose, 1.01 * worst, 60) == (None, 1.01 * worst)
    limit, splits = static_limit(problem, hose)
    assert limit >= worst * (1 - 1e-6)
    # The limit is that of its splits: of all vertices, the worst load of fixed splits.
    fixed = every.utilisation_of(
        every.loads(torch.from_numpy(splits).expand(len(vertices), -1, -1))
    )
    assert float(fixed.max()) == pytest.approx(limit, rel=1e-6)
    both = worst_demands(problem, hose, seconds=20)
    assert both.value <= both.limit * (1 + 1e-9)
    assert both.value == pytest.approx(worst, rel=5e-3)
    wide = Hose(pairs, 2 * hose.out, 2 * hose.into)
    flow = dataclasses.replace(
        problem.with_demand(2 * vertices),
        objective=Objective("total_flow"),
        demand_value=torch.ones(6, dtype=torch.float64),
    )
    dropped = float((flow.demand.sum(1) - teal.solve(flow, gap=1e-6).value).max())
    assert dropped > 1
    lost = worst_demands(problem, wide, measure="dropped", seconds=20)
    assert lost.value <= dropped * (1 + 1e-4)
    assert lost.limit >= dropped * (1 - 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_purchase_for_a_hose_serves_random_matrices_of_it_and_costs_less_than_for_all_peaks(
    seed: int,
) -> None:
    problem, hose = _network(seed, 6)
    failures = problem.topology.cables()
    live = live_links(problem, failures)
    rng = np.random.default_rng(seed)
    first = hose.max_weight_matrix(np.ones(len(hose.pairs)))
    start, _ = scenarios_of(problem, first[None], failures, np.ones(len(failures)), 0.9)
    plan = expand_for_hose(start, live, hose, gap=5e-3, exact_seconds=0.0)
    upgrade, scenarios = plan.upgrade, plan.scenarios
    assert upgrade.reached
    assert plan.worst.max() <= 0.9 * 1.01
    # Any matrix of the hose that was not searched for: vertices in random directions, under every
    # failure.
    random = np.stack([hose.max_weight_matrix(rng.normal(size=len(hose.pairs))) for _ in range(12)])
    replayed = scenarios.select(
        np.repeat(random, len(live), axis=0), np.tile(live, (len(random), 1))
    )
    value = teal.solve(
        replayed.batch(np.arange(replayed.num_scenarios), upgrade.bought), gap=1e-3
    ).value
    assert float(value.max()) <= 0.9 * 1.02
    peaks = np.array([min(hose.out[s], hose.into[t]) for s, t in hose.pairs])
    by_pairs, _ = scenarios_of(
        problem, pipe(peaks[None])[None], failures, np.ones(len(failures)), 0.9
    )
    assert upgrade.bound <= expand_capacity(by_pairs, gap=5e-3)[0].cost


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(), ((0.5, 0.5),)])
def test_on_a_small_network_no_vertex_passes_what_a_purchase_certifies(
    sizes: tuple[tuple[float, float], ...],
) -> None:
    topology = make_topology([(0, 1, 4), (1, 2, 3), (2, 3, 4), (3, 0, 3), (0, 2, 2)], both=True)
    pairs = np.array([[0, 1], [0, 2], [1, 2], [1, 3], [2, 0], [3, 1]], dtype=np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=3, method="survivable", cache=False)
    problem = Problem.create(topology, paths, Objective("max_link_utilisation"), np.ones((1, 6)))
    hose = Hose(pairs, np.array([7.0, 5.0, 4.0, 6.0]), np.array([5.0, 8.0, 6.0, 3.0]))
    failures = topology.cables()
    live, vertices = live_links(problem, failures), np.stack(_vertices(hose))
    start, _ = scenarios_of(problem, vertices[:1], failures, np.ones(5), 0.9)
    plan = expand_for_hose(start, live, hose, gap=5e-3)
    if sizes:
        continuous = plan.upgrade.cost
        plan = expand_for_hose(plan.scenarios, live, hose, sizes=sizes, cuts=plan.cuts)
        np.testing.assert_allclose(
            plan.upgrade.bought / 0.5, np.round(plan.upgrade.bought / 0.5), atol=1e-9
        )
        assert plan.upgrade.cost >= continuous * 0.99
    assert plan.upgrade.reached
    for row, one in enumerate(live):
        every = plan.scenarios.select(vertices, np.tile(one, (len(vertices), 1)))
        worst = float(
            teal.solve(
                every.batch(np.arange(len(vertices)), plan.upgrade.bought), gap=1e-5
            ).value.max()
        )
        assert worst * (1 - 1e-4) <= plan.limit[row] <= 0.9 * 1.01 * (1 + 1e-9)
        assert plan.worst[row] <= worst * (1 + 1e-6)


def test_limits_that_are_no_limits_are_refused() -> None:
    with pytest.raises(InputError, match="out"):
        Hose(np.array([[0, 1]], dtype=np.int32), np.array([-1.0, 0.0]), np.zeros(2))


def test_a_history_limits_each_node_by_the_peaks_of_what_it_sent_and_received() -> None:
    pairs = np.array([[0, 1], [0, 2]])
    hose = Hose.of_history(pairs, np.array([[1.0, 2.0], [3.0, 1.0]]), 3)
    assert hose.out.tolist() == [4.0, 0.0, 0.0]
    assert hose.into.tolist() == [0.0, 3.0, 2.0]
