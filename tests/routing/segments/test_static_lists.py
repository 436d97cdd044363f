"""Lists for several matrices and failures against the whole linear program, over reference shares of each failure."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.igp_failures import IgpFailures
from teal.routing.segments.static_lists import static_lists
from teal.runtime.arrays import FloatArray
from teal.testing import make_topology, random_topology
from tests.igp_reference import random_metrics, segment_shares

NODES = 6


def _whole(dag: EcmpDag, failures: list[list[int]], pairs: FloatArray, demand: FloatArray) -> float:
    """The optimum over all lists with one midpoint that no failure cuts off, all rows and columns at once."""
    topology, metric = dag.topology, dag.links.metric
    after = {}
    for number, failed in enumerate([[], *failures]):
        own = metric.copy()
        own[failed] = np.inf
        after[number] = own, segment_shares(topology, own)

    def loses(d: int, m: int) -> bool:
        s, t = pairs[d].tolist()
        return any(np.isnan(one[m, s] + one[t, m])[0] and not np.isnan(one[t, s])[0] for _, one in after.values())

    columns = [(d, m) for d, (s, _) in enumerate(pairs.tolist()) for m in range(NODES) if m != s and not loses(d, m)]
    rows = []
    for own, shares in after.values():
        live = np.isfinite(own) & (topology.capacity > 0)
        for matrix in demand:
            entries = np.zeros((len(columns), topology.num_links))
            for n, (d, m) in enumerate(columns):
                s, t = pairs[d].tolist()
                if np.isnan(shares[t, s]).any():
                    continue
                entries[n] = matrix[d] * (shares[t, s] if m == t else shares[m, s] + shares[t, m])
            rows.append((entries / np.where(live, topology.capacity, 1.0))[:, live].T)
    upper = np.vstack(rows)
    upper = np.hstack([upper, -np.ones((len(upper), 1))])
    sums = np.zeros((len(pairs), len(columns) + 1))
    sums[[d for d, _ in columns], np.arange(len(columns))] = 1
    return float(
        linprog(np.append(np.zeros(len(columns)), 1), upper, np.zeros(len(upper)), sums, np.ones(len(pairs))).fun
    )


@pytest.mark.parametrize(
    ("seed", "density", "load"), [(0, 0.6, 1.0), (1, 0.6, 1.0), (2, 0.4, 1.0), (3, 0.3, 1.0), (4, 0.3, 1e-9)]
)
def test_value_and_bound_enclose_the_optimum_over_all_scenarios(seed: int, density: float, load: float) -> None:
    topology = random_topology(seed, NODES, density)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    pairs = np.array([p for p in itertools.permutations(range(NODES), 2) if dag.reaches[p[1], p[0]]])
    demand = load * np.random.default_rng(seed).exponential(size=(2, len(pairs)))
    failures = topology.cables()[:8]
    dags = [dag, *(dag.without(np.array(links)) for links in failures)]
    found = static_lists(dags, pairs, demand, gap=1e-3)
    optimum = load * _whole(dag, failures, pairs, demand / load)
    assert found.reached
    assert found.bound <= optimum * (1 + 1e-7)
    assert found.value >= optimum * (1 - 1e-7)
    assert found.gap <= 1e-3
    assert found.value <= found.straight * (1 + 1e-9)
    assert found.utilisation.shape == (2, 1 + len(failures))
    # the installed lists lose nothing but what is between nodes without a path, and load the links as simulated
    simulated = IgpFailures.of_demands(dag, pairs, demand, found.policies).under([[], *failures])
    plain = IgpFailures.of_demands(dag, pairs, demand, SegmentPolicies.none()).under([[], *failures])
    np.testing.assert_allclose(simulated.lost, plain.lost, rtol=1e-9)
    np.testing.assert_allclose(simulated.utilisation.T, found.utilisation, rtol=1e-6)


def test_no_list_goes_over_a_leaf_that_a_failure_cuts_off() -> None:
    # Ways from 0 to 1 by 5, 3 and 4, the shortest first; node 2 is a leaf of 4, over which a list would lead as well.
    # Of 15 Gbit/s half has to go by 4 when the way by 5 is cut.
    ends = [(0, 5, 100.0), (5, 1, 100.0), (0, 3, 10.0), (3, 1, 10.0), (0, 4, 10.0), (4, 1, 10.0), (4, 2, 10.0)]
    topology = make_topology(ends, both=True)
    dag = EcmpDag.of(topology, np.array([1.0, 1, 2, 2, 3, 3, 1] * 2))
    pairs, demand, failures = np.array([[0, 1]]), np.array([[15.0]]), [[0, 7], [6, 13]]
    found = static_lists([dag, *map(dag.without, failures)], pairs, demand, gap=1e-6)
    assert (found.value, found.bound) == pytest.approx((0.75, 0.75))
    results = IgpFailures.of_demands(dag, pairs, demand, found.policies).under(failures)
    assert results.lost[:, 0].tolist() == [0, 0]
    assert results.utilisation[:, 0] == pytest.approx([0.75, 0.75])


def test_no_demand_is_refused() -> None:
    topology = random_topology(0, NODES)
    dag = EcmpDag.of(topology, np.ones(topology.num_links))
    with pytest.raises(InputError, match="demand"):
        static_lists([dag], np.array([[0, 1]]), np.zeros((1, 1)))
