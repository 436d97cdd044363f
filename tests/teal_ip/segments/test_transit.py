"""Few transit policies against every choice of one or two of them, and against simulated loads
under failures."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from teal.errors import InputError
from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag
from teal.runtime.arrays import FloatArray
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.segments.few import Few
from teal_ip.segments.kernels import first_next_hops, max_antichain_saving
from teal_ip.segments.scenarios import TransitScenarios
from teal_ip.segments.static_lists import static_lists
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares

Choice = tuple[int, int]  # router and endpoint


class Reference:
    """Loads of transit policies from the shares of shortest paths, under failures.

    Args:
        topology: the network.
        metric: (E,).
        failures: links of each; none is the first one.
        demand: (N, N) Gbit/s, by source and target.
    """

    def __init__(
        self, topology: Topology, metric: FloatArray, failures: list[list[int]], demand: FloatArray
    ) -> None:
        self.nodes, self.capacity = topology.num_nodes, topology.capacity
        networks = [topology.with_failed_links(links) if links else topology for links in failures]
        self.shares = [np.nan_to_num(segment_shares(network, metric)) for network in networks]
        self.live = [network.capacity > 0 for network in networks]
        leaves = np.stack([topology.link_source == n for n in range(self.nodes)], 1)  # (E, N)
        self.crosses = [shares @ leaves for shares in self.shares]  # (t, a, m)
        self.straight = [np.einsum("st,tse->e", demand, shares) for shares in self.shares]
        self.volume = [np.einsum("st,tsm->mt", demand, crosses) for crosses in self.crosses]

    def can_stand_together(self, choices: tuple[Choice, ...]) -> bool:
        """Whether no router is on the way of another one to the same endpoint, under no failure."""
        return not any(
            a[1] == b[1]
            and any(c[a[1], a[0], b[0]] > 0 or c[a[1], b[0], a[0]] > 0 for c in self.crosses)
            for a, b in itertools.combinations(choices, 2)
        )

    def mids(self, choice: Choice, others: tuple[Choice, ...]) -> list[int]:
        """The midpoints of lists that no policy takes, under no failure."""
        m, t = choice
        kept = []
        for w in range(self.nodes):
            taken = any(c[t, w, m] > 0 for c in self.crosses)
            for router, endpoint in others:
                taken |= (
                    endpoint == w and router != m and any(c[w, m, router] > 0 for c in self.crosses)
                )
                taken |= (
                    endpoint == t and router != m and any(c[t, w, router] > 0 for c in self.crosses)
                )
            reached = all(
                (s[w, m].any() and s[t, w].any()) or not s[t, m].any() for s in self.shares
            )
            kept += [w] if w not in choice and not taken and reached else []
        return kept

    def least(self, choices: tuple[Choice, ...]) -> float:
        """Least utilisation with policies of these routers and endpoints, whatever their lists."""
        columns = [
            (c, w) for c in choices for w in self.mids(c, tuple(o for o in choices if o != c))
        ]
        rows, right = [], []
        for shares, live, straight, volume in zip(
            self.shares, self.live, self.straight, self.volume, strict=True
        ):
            changes = (
                np.array(
                    [
                        volume[m, t] * (shares[w, m] + shares[t, w] - shares[t, m])
                        for (m, t), w in columns
                    ]
                )
                .reshape(len(columns), len(self.capacity))
                .T
            )
            rows.append(np.hstack([changes, -self.capacity[:, None]])[live])
            right.append(-straight[live])
        sums = np.array([[float(c == choice) for c, _ in columns] + [0.0] for choice in choices])
        found = linprog(
            np.append(np.zeros(len(columns)), 1.0),
            np.vstack([*rows, sums]),
            np.concatenate([*right, np.ones(len(choices))]),
        )
        return float(found.fun)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_one_and_two_policies_are_near_the_best_of_all_and_bounds_hold(
    seed: int, fails: bool
) -> None:
    topology = network_with_parallels(seed, 5)
    metric, nodes = random_metrics(topology, seed), topology.num_nodes
    failures = [[], *([list(links) for links in topology.cables()[:2]] if fails else [])]
    demand = np.random.default_rng(seed).exponential(size=(nodes, nodes)) * (1 - np.eye(nodes))
    reference, pairs = (
        Reference(topology, metric, failures, demand),
        all_pairs(topology).astype(np.int64),
    )
    dag = EcmpDag.of(topology, metric)
    dags = [dag, *(dag.without(links) for links in failures[1:])]
    rates = demand[pairs[:, 0], pairs[:, 1]][None]
    choices = list(itertools.permutations(range(nodes), 2))
    straight = static_lists(dags, pairs, rates, few=Few(at_most=1), transit=True).straight
    best = {0: straight}
    for most in (1, 2):
        sets = [s for s in itertools.combinations(choices, most) if reference.can_stand_together(s)]
        best[most] = min(best[most - 1], *(reference.least(s) for s in sets))
        found = static_lists(dags, pairs, rates, gap=1e-5, few=Few(at_most=most), transit=True)
        assert len(found.policies.lists) <= most
        assert found.policies.is_transit
        assert found.bound <= best[most] * (1 + 1e-6)
        assert best[most] * (1 - 1e-6) <= found.value <= 1.15 * best[most] + 1e-9
        loads = IgpFailures.of_demands(dag, pairs.astype(np.int32), rates, found.policies).under(
            failures, loads=True
        )
        simulated = (loads.load[:, 0] / topology.capacity).max()
        assert found.value == pytest.approx(simulated, rel=1e-9)
    for target in ((best[0] + best[1]) / 2, (best[1] + best[2]) / 2):
        if not best[2] < target < best[0]:
            continue
        fewest = static_lists(dags, pairs, rates, gap=1e-5, few=Few(target=target), transit=True)
        needed = 1 if best[1] <= target else 2
        assert fewest.policies_bound <= needed <= len(fewest.policies.lists) <= needed + 2
        assert fewest.value <= target * (1 + 1e-6)


def test_any_number_of_transit_policies_is_refused() -> None:
    topology = network_with_parallels(0, 5)
    dag, pairs = (
        EcmpDag.of(topology, np.ones(topology.num_links)),
        all_pairs(topology).astype(np.int64),
    )
    with pytest.raises(InputError, match="need a limit on their number"):
        static_lists([dag], pairs, np.ones((1, len(pairs))), transit=True)


@pytest.mark.parametrize("seed", range(6))
def test_policies_exclude_each_other_where_one_router_is_on_the_way_of_the_other(seed: int) -> None:
    topology = network_with_parallels(seed, 7)
    metric, nodes = (
        random_metrics(topology, seed, 2),
        topology.num_nodes,
    )  # few metrics: many equal ways
    failures = [[], *(list(links) for links in topology.cables()[:2])]
    dag, pairs = EcmpDag.of(topology, metric), all_pairs(topology).astype(np.int32)
    dags = [dag, *(dag.without(links) for links in failures[1:])]
    reference = Reference(topology, metric, failures, np.ones((nodes, nodes)) - np.eye(nodes))
    scenarios = TransitScenarios(dags, pairs[:, 0], pairs[:, 1], np.ones((1, len(pairs))))
    choices = list(zip(scenarios.source.tolist(), scenarios.target.tolist(), strict=True))
    for d, choice in enumerate(choices):
        excluded = scenarios.excluded(np.array([d]))
        expected = [
            not reference.can_stand_together((choice, other)) and other != choice
            for other in choices
        ]
        np.testing.assert_array_equal(excluded, expected)


@pytest.mark.parametrize("seed", range(6))
def test_most_is_saved_by_the_best_nodes_of_which_none_is_on_the_way_of_another(seed: int) -> None:
    topology = network_with_parallels(seed, 6)
    dag, nodes = EcmpDag.of(topology, random_metrics(topology, seed, 2)), topology.num_nodes
    parent = np.full((nodes, nodes), -1, dtype=np.int32)
    first_next_hops(dag.links.head, dag.dags, parent)
    saving, best = np.random.default_rng(seed).exponential(size=(nodes, nodes)), 0.0

    def way(target: int, node: int) -> set[int]:
        return set() if node == target else {node} | way(target, int(parent[target, node]))

    for target in range(nodes):
        others = [n for n in range(nodes) if n != target and dag.reaches[target, n]]
        sets = itertools.chain.from_iterable(
            itertools.combinations(others, k) for k in range(len(others) + 1)
        )
        best += max(
            sum(saving[target, n] for n in chosen)
            for chosen in sets
            if not any(a in way(target, b) for a, b in itertools.permutations(chosen, 2))
        )
    assert max_antichain_saving(dag.dags, parent, saving) == pytest.approx(best)
