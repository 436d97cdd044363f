"""Lists for several matrices and failures against the whole linear program, over reference shares of each failure."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import segment_traffic
from teal.pathops.igp_failures import IgpFailures
from teal.runtime.arrays import FloatArray
from teal.solvers.segments.static_lists import static_lists
from teal.testing import random_topology
from tests.igp_reference import random_metrics, segment_shares

NODES = 6


def _whole(dag: EcmpDag, failures: list[list[int]], pairs: FloatArray, demand: FloatArray) -> float:
    """The optimum over all lists with one midpoint, all rows and columns at once."""
    topology, metric = dag.topology, dag.links.metric
    columns = [(d, m) for d, (s, _) in enumerate(pairs.tolist()) for m in range(NODES) if m != s]
    rows = []
    for failed in [[], *failures]:
        own = metric.copy()
        own[failed] = np.inf
        shares = segment_shares(topology, own)
        live = np.isfinite(own) & (topology.capacity > 0)
        for matrix in demand:
            entries = np.zeros((len(columns), topology.num_links))
            for n, (d, m) in enumerate(columns):
                s, t = pairs[d].tolist()
                if np.isnan(shares[t, s]).any():
                    continue
                over = shares[t, s] if m == t else shares[m, s] + shares[t, m]
                entries[n] = matrix[d] * (shares[t, s] if np.isnan(over).any() else over)
            rows.append((entries / np.where(live, topology.capacity, 1.0))[:, live].T)
    upper = np.vstack(rows)
    upper = np.hstack([upper, -np.ones((len(upper), 1))])
    sums = np.zeros((len(pairs), len(columns) + 1))
    sums[[d for d, _ in columns], np.arange(len(columns))] = 1
    return float(
        linprog(np.append(np.zeros(len(columns)), 1), upper, np.zeros(len(upper)), sums, np.ones(len(pairs))).fun
    )


@pytest.mark.parametrize("seed", range(4))
def test_value_and_bound_enclose_the_optimum_over_all_scenarios(seed: int) -> None:
    topology = random_topology(seed, NODES, 0.6)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    pairs = np.array([p for p in itertools.permutations(range(NODES), 2) if dag.reaches[p[1], p[0]]])
    demand = np.random.default_rng(seed).exponential(size=(2, len(pairs)))
    failures = topology.cables()[:4]
    dags = [dag, *(dag.without(np.array(links)) for links in failures)]
    found = static_lists(dags, pairs, demand, gap=1e-3)
    optimum = _whole(dag, failures, pairs, demand)
    assert found.reached
    assert found.bound <= optimum * (1 + 1e-7)
    assert found.value >= optimum * (1 - 1e-7)
    assert found.gap <= 1e-3
    assert found.value <= found.straight * (1 + 1e-9)
    assert found.utilisation.shape == (2, 5)
    # without failure the installed lists are loaded as the simulation says
    traffic = segment_traffic(pairs, demand, found.policies, NODES, topology.link_source)
    load = IgpFailures(dag, *traffic).load
    simulated = np.where(topology.capacity > 0, load / np.where(topology.capacity > 0, topology.capacity, 1), 0).max(1)
    np.testing.assert_allclose(simulated, found.utilisation[:, 0], rtol=1e-6)


def test_no_demand_is_refused() -> None:
    topology = random_topology(0, NODES)
    dag = EcmpDag.of(topology, np.ones(topology.num_links))
    with pytest.raises(InputError, match="demand"):
        static_lists([dag], np.array([[0, 1]]), np.zeros((1, 1)))
