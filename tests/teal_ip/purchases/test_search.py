"""Plans beside the whole program over all paths of small networks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import teal_ip
from teal.network import PathMethod, TrafficMatrices, all_pairs
from teal.network.classes import DemandClasses
from teal.network.rates import ArrayRates
from teal.testing import make_topology
from tests.free_routing import least_cost


@pytest.mark.parametrize(
    "options", [{}, {"growth_per_year": "0", "horizon": "2q"}, {"modules": "0.5"}]
)
def test_bounds_over_all_paths_are_within_the_gap_without_being_asked_for(
    options: dict[str, Any],
) -> None:
    ends = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (1, 4), (2, 5)]
    topology = make_topology([(a, b, 10.0) for a, b in ends], both=True)
    pairs = all_pairs(topology)
    matrix = np.random.default_rng(2).exponential(3.0, len(pairs))
    traffic = TrafficMatrices(
        "one",
        pairs,
        np.array(["2026-01-01"], dtype="datetime64[s]"),
        ArrayRates(matrix[None]),
        3600,
        key="one",
    )
    cables = topology.cables()
    least = least_cost(topology, pairs, matrix[None], cables, np.ones(len(cables)), 1.0)
    plan = teal_ip.upgrade(
        topology, traffic, num_paths=2, path_method=PathMethod.SURVIVABLE, **options
    )
    cost = plan.continuous if "modules" in options else plan.upgrade.cost
    assert least > 1
    assert plan.bound_all_paths <= least * (1 + 1e-6) <= cost * (1 + 2e-6)
    assert cost - plan.bound_all_paths <= 0.01 * cost
    assert plan.upgrade.reached


def test_no_path_beyond_a_limit_of_latency_saves_a_purchase() -> None:
    """Ten Gbit/s of which five fit on the only path within the limit; a longer way has room for
    all."""
    topology = make_topology([(0, 1, 5.0), (0, 2, 20.0), (2, 1, 20.0)])
    topology = dataclasses.replace(topology, latency=np.array([1.0, 20.0, 20.0]))
    pairs, times = np.array([[0, 1]], np.int32), np.array(["2026-01-01"], "datetime64[s]")
    classes = DemandClasses(("gold",), np.array([0, 1]))
    traffic = TrafficMatrices(
        "one", pairs, times, ArrayRates(np.array([[10.0]])), 3600, key="l", classes=classes
    )
    for limits, cost in (("gold=5", 5.0), ("", 0.0)):
        plan = teal_ip.upgrade(
            topology, traffic, latency_limits=limits, failures="none", num_paths=1
        )
        assert plan.upgrade.cost == pytest.approx(cost, abs=1e-2)
        assert plan.bound_all_paths <= cost + 1e-6
