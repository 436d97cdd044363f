"""Plans for a few matrices replayed on all of them, by linear programs over all paths, without the
engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import teal_ip
from teal.network import Topology, TrafficMatrices, all_pairs
from teal.network.rates import ArrayRates
from teal.testing import make_topology
from teal_ip.purchases.benders import expand_capacity
from tests.free_routing import least_utilisation

_ENDS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)]


def _history(matrices: int) -> tuple[Topology, TrafficMatrices]:
    topology = make_topology([(a, b, 10.0) for a, b in _ENDS], both=True)
    pairs = all_pairs(topology)
    rates = np.random.default_rng(3).exponential(1.0, (matrices, len(pairs)))
    times = np.datetime64("2026-01-01T00:00:00", "s") + 3600 * np.arange(matrices)
    return topology, TrafficMatrices(
        "history", pairs, times, ArrayRates(rates), 3600, key="left out"
    )


@pytest.mark.parametrize(
    "options", [{}, {"growth_per_year": "0.5", "horizon": "2q"}, {"modules": "3"}]
)
def test_a_plan_for_two_matrices_carries_all_of_them_under_every_failure(
    options: dict[str, str],
) -> None:
    topology, traffic = _history(12)
    common: dict[str, Any] = {
        "growth": 3.0,
        "path_method": "survivable",
        "max_utilisation": 0.9,
        **options,
    }
    plan = teal_ip.upgrade(topology, traffic, matrices=2, **common)
    last = plan.quarters[-1].growth if plan.quarters else 1.0
    for failed in [[], *topology.cables()]:
        for matrix in traffic.read(np.arange(12)):
            fullest = least_utilisation(plan.upgraded, traffic.pairs, 3.0 * last * matrix, failed)
            assert fullest <= 0.9 * (1 + 2e-4)
    assert plan.upgrade.reached
    found = plan.replayed
    assert found is not None
    assert (found.matrices, found.overloaded, found.planned) == (12, 0, 2 + found.added)
    assert found.added > 0
    assert found.replayed == 12 - found.planned
    everything = teal_ip.upgrade(topology, traffic, matrices=0, **common)
    assert everything.upgrade.bound <= plan.upgrade.cost * (1 + 1e-9)
    assert plan.upgrade.bound <= everything.upgrade.cost * (1 + 1e-9)


def test_loads_of_the_igp_are_replayed_too() -> None:
    topology, traffic = _history(12)
    few, every = (
        teal_ip.upgrade(topology, traffic, growth=3.0, routing="ecmp", matrices=count)
        for count in (2, 0)
    )
    assert few.upgrade.cost == pytest.approx(every.upgrade.cost, rel=1e-6), "exact for all matrices"
    assert few.replayed is not None
    assert few.replayed.is_complete


def test_matrices_that_time_did_not_suffice_for_are_named() -> None:
    topology, traffic = _history(12)
    plan = teal_ip.upgrade(topology, traffic, growth=3.0, matrices=2, deadline="0.000001s")
    assert plan.replayed is not None
    assert (plan.replayed.matrices, plan.replayed.planned, plan.replayed.replayed) == (12, 2, 0)
    assert not plan.upgrade.reached
    assert "made for 2 of 12 matrices; 0 of the others were evaluated in time" in plan.describe()


def test_rounds_and_time_are_those_of_all_searches_of_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology, traffic = _history(12)
    searches = []

    def counted(*arguments: Any, **options: Any) -> Any:
        searches.append(expand_capacity(*arguments, **options))
        return searches[-1]

    monkeypatch.setattr("teal_ip.purchases.search.expand_capacity", counted)
    plan = teal_ip.upgrade(topology, traffic, growth=3.0, matrices=2)
    assert len(searches) > 1
    assert plan.upgrade.rounds == sum(upgrade.rounds for upgrade, _ in searches)
    assert plan.upgrade.solve_s >= sum(upgrade.solve_s for upgrade, _ in searches)
