"""Purchases over time, replayed in each period; and the bound over all paths against all simple
paths."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest

import teal
from teal.network import all_pairs
from teal.objectives import Objective
from teal.problem import Problem
from teal.testing import random_topology
from teal_ip.purchases.benders import expand_capacity, expand_for_loads, expand_in_modules
from teal_ip.purchases.scenarios import Scenarios, scenarios_of
from teal_ip.purchases.schedule import schedule
from teal_ip.purchases.search import bound_over_all_paths, with_missing_paths

_GROWTHS = [1.0, 1.2, 1.5]


def _scenarios(
    seed: int, num_paths: int = 3, nodes: int = 6, method: str = "survivable"
) -> Scenarios:
    topology = random_topology(seed, nodes)
    pairs = all_pairs(topology)
    paths = teal.compute_paths(topology, pairs, num_paths=num_paths, method=method, cache=False)
    rng = np.random.default_rng(seed)
    matrices = rng.exponential(float(topology.capacity.mean()) / (2 * nodes), (2, len(pairs)))
    problem = Problem.create(topology, paths, Objective("max_link_utilisation"), matrices[:1])
    cost = rng.uniform(1, 3, len(topology.cables()))
    return scenarios_of(problem, matrices, topology.cables(), cost, 0.9)[0]


@pytest.mark.parametrize("sizes", [(), ((5.0, 4.0), (20.0, 12.0))])
def test_periods_are_nested_and_each_fits_its_demands(
    sizes: tuple[tuple[float, float], ...],
) -> None:
    scenarios = _scenarios(1)
    periods, upgrade, _, _ = schedule(scenarios, _GROWTHS, gap=2e-3, sizes=sizes)
    assert [one.growth for one in periods] == _GROWTHS
    assert upgrade.reached
    for before, after in itertools.pairwise(periods):
        assert (before.bought <= after.bought + 1e-9).all(), "nothing is taken away"
    for one in periods:
        assert one.bound <= one.cost * (1 + 1e-9)
        grown = scenarios.scaled(one.growth)
        problem = grown.batch(np.arange(grown.num_scenarios), one.bought)
        assert float(teal.solve(problem, gap=1e-4).value.max()) <= 0.9 * (1 + 3e-4)
    if sizes:
        bought = np.unique(np.concatenate([one.bought for one in periods]))
        whole = {5 * a + 20 * b for a in range(40) for b in range(10)}
        assert all(min(abs(amount - one) for one in whole) < 1e-9 for amount in bought)
    last, _ = expand_capacity(scenarios.scaled(_GROWTHS[-1]), gap=2e-3)
    if not sizes:
        assert periods[-1].cost == pytest.approx(last.cost, rel=5e-3), (
            "the horizon costs what it costs alone"
        )


def test_the_bound_over_all_paths_is_that_of_all_simple_paths() -> None:
    few = _scenarios(2, num_paths=1, nodes=5, method="yen")
    graph = nx.MultiDiGraph()
    topology = few.problem.topology
    for link in range(topology.num_links):
        graph.add_edge(int(topology.link_source[link]), int(topology.link_target[link]), key=link)
    most = max(
        len(list(nx.all_simple_edge_paths(graph, int(s), int(t))))
        for s, t in few.problem.paths.pairs
    )
    paths = teal.compute_paths(
        topology, few.problem.paths.pairs, num_paths=min(most, 255), method="yen", cache=False
    )
    # The same scenarios: demands that the failure cuts off from their one path are in neither.
    every, _ = expand_capacity(few.with_paths(paths), gap=1e-4)
    upgrade, cuts = expand_capacity(few, gap=1e-4)
    assert upgrade.dual is not None
    assert bound_over_all_paths(few, cuts, upgrade.dual) <= every.cost * (1 + 1e-9)
    for _ in range(12):
        assert upgrade.dual is not None
        few = few.with_paths(with_missing_paths(few, cuts, upgrade.dual))
        cuts.over_paths(few)
        upgrade, cuts = expand_capacity(few, gap=1e-4, cuts=cuts)
        assert upgrade.dual is not None
        bound = bound_over_all_paths(few, cuts, upgrade.dual)
        if upgrade.cost - bound <= 1e-3 * upgrade.cost:
            break
    assert bound <= every.cost * (1 + 1e-9)
    assert upgrade.cost == pytest.approx(every.cost, rel=2e-3)


def test_fixed_loads_need_what_passes_the_limit() -> None:
    scenarios = _scenarios(3)
    load = np.zeros((scenarios.num_scenarios, len(scenarios.cable)))
    link = int(np.flatnonzero(scenarios.live[1])[0])
    cable = scenarios.cable[link]
    load[1, link] = 2 * scenarios.existing_capacity[link]
    upgrade = expand_for_loads(scenarios, load)
    missing = (2 / 0.9 - 1) * scenarios.existing_capacity[link]
    assert upgrade.bought[cable] == pytest.approx(missing)
    assert upgrade.cost == upgrade.bound == pytest.approx(missing * scenarios.cost[cable])
    modules = expand_for_loads(scenarios, load, [(missing / 2.5, 7.0)])
    assert modules.bought[cable] == pytest.approx(3 * missing / 2.5)
    assert modules.cost == pytest.approx(3 * 7 * scenarios.cost[cable]), (
        "three modules at their price"
    )


def test_no_period_is_said_to_need_more_than_it_costs_alone() -> None:
    """The first period may buy more of what the last one needs, but its bound holds for its own
    demands."""
    scenarios = _scenarios(1, nodes=5)
    (first, last), _, _, _ = schedule(scenarios, [1.0, 1.5], gap=2e-3)
    alone, _ = expand_capacity(scenarios, gap=2e-3)
    assert first.bound <= alone.cost * (1 + 1e-9)
    assert first.cost < 0.9 * last.cost


def test_cuts_of_later_searches_leave_the_bound_over_all_paths_as_it_was() -> None:
    """The duals of a purchase prove the same after others, and earlier quarters, have added cuts
    behind its own."""
    scenarios = _scenarios(4).scaled(1.5)
    upgrade, cuts = expand_capacity(scenarios, gap=1e-2)
    assert upgrade.dual is not None
    count, proven = len(cuts), bound_over_all_paths(scenarios, cuts, upgrade.dual)
    expand_in_modules(scenarios, cuts, [(10.0, 10.0)])
    cuts.add(cuts.select(np.arange(3)).scaled(0.9))
    assert len(cuts) >= count + 3
    again = bound_over_all_paths(scenarios, cuts, upgrade.dual)
    assert proven > 0
    assert again == pytest.approx(proven, rel=1e-12)
    _, last, grown, later = schedule(scenarios, _GROWTHS, gap=1e-2)
    assert last.dual is not None
    later.add(later.select(np.arange(3)).scaled(0.9))
    assert len(later) >= len(last.dual) + 3
    assert 0 < bound_over_all_paths(grown, later, last.dual) <= last.cost * (1 + 1e-9)


@pytest.mark.parametrize("sizes", [(), ((5.0, 4.0),)])
def test_where_demands_fall_every_period_keeps_the_limit_and_nothing_is_taken_away(
    sizes: tuple[tuple[float, float], ...],
) -> None:
    scenarios, growths = _scenarios(1, nodes=5), [1.2, 1.5, 1.0, 1.3]
    periods, upgrade, _, _ = schedule(scenarios, growths, gap=2e-3, sizes=sizes)
    assert [one.growth for one in periods] == growths
    for before, after in itertools.pairwise(periods):
        assert (before.bought <= after.bought + 1e-9).all()
    assert periods[0].cost < periods[1].cost == periods[-1].cost == upgrade.cost
    for one in periods:
        grown = scenarios.scaled(one.growth)
        problem = grown.batch(np.arange(grown.num_scenarios), one.bought)
        assert float(teal.solve(problem, gap=1e-4).value.max()) <= 0.9 * (1 + 3e-4)
        assert float(one.utilisation.max()) <= 0.9 * (1 + 2e-4)
        alone, cuts = expand_capacity(grown, gap=1e-3)
        if sizes:
            alone = expand_in_modules(grown, cuts, sizes)
        assert one.bound <= alone.cost * (1 + 1e-9)
