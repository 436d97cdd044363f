"""A plan beside the whole program over all paths of a small network, by HiGHS: flows of each source on links."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog

import teal
from teal.network import Topology, TrafficMatrices, all_pairs
from teal.network.rates import ArrayRates
from teal.runtime.arrays import FloatArray, IntArray
from teal.testing import make_topology


def _least_cost(topology: Topology, pairs: IntArray, matrix: FloatArray) -> float:
    """The cheapest purchase, at 1 for a Gbit/s, with which a matrix fits without failure and under each of a cable."""
    nodes, links, cables = topology.num_nodes, topology.num_links, topology.cables()
    balance, sent = np.zeros((nodes, links)), np.zeros((nodes, nodes))
    balance[topology.link_target, np.arange(links)] = 1
    balance[topology.link_source, np.arange(links)] = -1
    for (source, target), rate in zip(pairs, matrix, strict=True):
        sent[source, target] += rate
        sent[source, source] -= rate
    bought = np.zeros((links, len(cables)))
    for number, one in enumerate(cables):
        bought[one, number] = -1.0
    scenarios = [[], *cables]
    block = sp.kron(sp.eye_array(len(scenarios)), np.tile(np.eye(links), nodes))
    within = sp.hstack([np.vstack([bought] * len(scenarios)), block])
    right = np.concatenate([topology.capacity] * len(scenarios))
    upper = np.full((len(scenarios), nodes, links), np.inf)
    for s, failed in enumerate(scenarios):
        upper[s, :, failed] = 0
    kept = sp.hstack([
        sp.csr_array((len(scenarios) * nodes * nodes, len(cables))),
        sp.kron(sp.eye_array(len(scenarios) * nodes), balance),
    ])  # fmt: skip
    cost = np.concatenate([np.ones(len(cables)), np.zeros(upper.size)])
    bounds = np.column_stack([np.zeros(len(cost)), np.concatenate([np.full(len(cables), np.inf), upper.reshape(-1)])])
    result = linprog(cost, within, right, kept, np.tile(sent.reshape(-1), len(scenarios)), bounds=bounds)
    return float(result.fun)


@pytest.mark.parametrize("options", [{}, {"growth_per_year": "0", "horizon": "2q"}, {"modules": "0.5"}])
def test_bounds_over_all_paths_are_within_the_gap_without_being_asked_for(options: dict[str, str]) -> None:
    ends = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (1, 4), (2, 5)]
    topology = make_topology([(a, b, 10.0) for a, b in ends], both=True)
    pairs = all_pairs(topology)
    matrix = np.random.default_rng(2).exponential(3.0, len(pairs))
    traffic = TrafficMatrices(
        "one", pairs, np.array(["2026-01-01"], dtype="datetime64[s]"), ArrayRates(matrix[None]), 3600, key="one"
    )
    least = _least_cost(topology, pairs, matrix)
    plan = teal.upgrade(topology, traffic, num_paths=2, path_method="survivable", **options)
    cost = plan.continuous if "modules" in options else plan.upgrade.cost
    assert least > 1
    assert plan.bound_all_paths <= least * (1 + 1e-6) <= cost * (1 + 2e-6)
    assert cost - plan.bound_all_paths <= 0.01 * cost
    assert plan.upgrade.reached
