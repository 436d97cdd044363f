"""Lists for several matrices and failures against the whole linear program, over reference shares
of each failure."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.testing import make_topology, random_topology
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.segments import few as few_module
from teal_ip.segments.few import Few
from teal_ip.segments.static_lists import static_lists
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares

NODES = 6


def _program(
    dag: EcmpDag, failures: list[list[int]], pairs: Int64Array, demand: FloatArray
) -> tuple[list[tuple[int, int]], FloatArray]:
    """All lists with one midpoint that no failure cuts off, as (demand, midpoint), and rows of
    utilisation by them."""
    topology, metric = dag.topology, dag.links.metric
    after = {}
    for number, failed in enumerate([[], *failures]):
        own = metric.copy()
        own[failed] = np.inf
        after[number] = own, segment_shares(topology, own)

    def loses(d: int, m: int) -> bool:
        s, t = pairs[d].tolist()
        return any(
            np.isnan(one[m, s] + one[t, m])[0] and not np.isnan(one[t, s])[0]
            for _, one in after.values()
        )

    nodes = range(topology.num_nodes)
    columns = [
        (d, m)
        for d, (s, _) in enumerate(pairs.tolist())
        for m in nodes
        if m != s and not loses(d, m)
    ]
    rows = []
    for own, shares in after.values():
        live = np.isfinite(own) & (topology.capacity > 0)
        for matrix in demand:
            entries = np.zeros((len(columns), topology.num_links))
            for n, (d, m) in enumerate(columns):
                s, t = pairs[d].tolist()
                parts = [shares[t, s]] if m == t else [shares[m, s], shares[t, m]]
                if np.isnan(
                    shares[t, s]
                ).any():  # s and t are cut off: the list leads to its midpoint at most
                    parts = [] if m == t or np.isnan(shares[m, s]).any() else [shares[m, s]]
                entries[n] = matrix[d] * np.sum([np.zeros(topology.num_links), *parts], axis=0)
            rows.append((entries / np.where(live, topology.capacity, 1.0))[:, live].T)
    return columns, np.vstack(rows)


def _whole(dag: EcmpDag, failures: list[list[int]], pairs: Int64Array, demand: FloatArray) -> float:
    """The least utilisation, all rows and columns at once."""
    columns, rows = _program(dag, failures, pairs, demand)
    upper = np.hstack([rows, -np.ones((len(rows), 1))])
    sums = np.zeros((len(pairs), len(columns) + 1))
    sums[[d for d, _ in columns], np.arange(len(columns))] = 1
    return float(
        linprog(
            np.append(np.zeros(len(columns)), 1),
            upper,
            np.zeros(len(upper)),
            sums,
            np.ones(len(pairs)),
        ).fun
    )


def _few(
    dag: EcmpDag,
    failures: list[list[int]],
    pairs: Int64Array,
    demand: FloatArray,
    utilisation: float | None = None,
    policies: int | None = None,
) -> float:
    """Fewest policies within a utilisation, or the least utilisation of so many: shares, policies
    (0 or 1), theta."""
    columns, rows = _program(dag, failures, pairs, demand)
    n, count, zero = len(columns), len(pairs), np.zeros((len(rows), len(pairs)))
    sums, moves = np.zeros((count, n + count + 1)), np.zeros((count, n + count + 1))
    for c, (d, m) in enumerate(columns):
        sums[d, c] = 1
        moves[d, c] = m != pairs[d, 1]
        moves[d, n + d] = -1
    number = np.concatenate([np.zeros(n), np.ones(count), [0.0]])
    theta = np.append(np.zeros(n + count), 1.0)
    limits = [
        LinearConstraint(sums, 1, 1),
        LinearConstraint(moves, -np.inf, 0),
        LinearConstraint(np.hstack([rows, zero, -np.ones((len(rows), 1))]), -np.inf, 0),
    ]
    if utilisation is not None:
        limits.append(LinearConstraint(theta[None], -np.inf, utilisation))
    if policies is not None:
        limits.append(LinearConstraint(number[None], -np.inf, policies))
    cost = number if policies is None else theta
    high = np.concatenate([np.ones(n + count), [np.inf]])
    return float(milp(cost, constraints=limits, integrality=number, bounds=Bounds(0, high)).fun)


def _random_case(
    seed: int, density: float
) -> tuple[EcmpDag, list[EcmpDag], list[list[int]], Int64Array, FloatArray]:
    topology = random_topology(seed, NODES, density)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    pairs = np.array(
        [p for p in itertools.permutations(range(NODES), 2) if dag.reaches[p[1], p[0]]]
    )
    demand = np.random.default_rng(seed).exponential(size=(2, len(pairs)))
    failures = [list(links) for links in topology.cables()[:5]]
    return (
        dag,
        [dag, *(dag.without(np.array(links)) for links in failures)],
        failures,
        pairs,
        demand,
    )


@pytest.mark.parametrize("seed", [0, 1, 2, 10, 24, 27])
def test_few_policies_against_whole_numbers(seed: int) -> None:
    dag, dags, failures, pairs, demand = _random_case(seed, 0.5)
    best = static_lists(dags, pairs, demand, gap=1e-5)
    within = static_lists(dags, pairs, demand, gap=1e-5, few=Few(within=0.05))
    fewest = _few(dag, failures, pairs, demand, utilisation=best.value * 1.05)
    assert within.policies_bound <= fewest + 1e-6
    assert fewest - 1e-6 <= len(within.policies.lists) <= fewest + 3, "a dive is near the fewest"
    assert within.value <= best.value * 1.05 * (1 + 1e-6)
    for most in (1, 3):
        found = static_lists(dags, pairs, demand, gap=1e-5, few=Few(at_most=most))
        least = _few(dag, failures, pairs, demand, policies=most)
        assert len(found.policies.lists) <= most
        assert found.bound <= least * (1 + 1e-6)
        assert least * (1 - 1e-6) <= found.value <= least * 1.25
        simulated = IgpFailures.of_demands(
            dag, pairs.astype(np.int32), demand, found.policies
        ).under([[], *failures])
        np.testing.assert_allclose(simulated.utilisation.T, found.utilisation, rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_list_each_is_near_the_best_choice_of_midpoints(seed: int) -> None:
    """Against integers: each of the demands takes one of all lists."""
    dag, dags, failures, pairs, demand = _random_case(seed, 0.5)
    columns, rows = _program(dag, failures, pairs, demand)
    sums = np.zeros((len(pairs), len(columns) + 1))
    sums[[d for d, _ in columns], np.arange(len(columns))] = 1
    limits = [
        LinearConstraint(sums, 1, 1),
        LinearConstraint(np.hstack([rows, -np.ones((len(rows), 1))]), -np.inf, 0),
    ]
    whole, cost = np.append(np.ones(len(columns)), 0), np.append(np.zeros(len(columns)), 1.0)
    high = np.append(np.ones(len(columns)), np.inf)
    least = float(milp(cost, constraints=limits, integrality=whole, bounds=Bounds(0, high)).fun)
    found = static_lists(dags, pairs, demand, gap=1e-5, one_list=True)
    assert found.bound <= least * (1 + 1e-6)
    assert least * (1 - 1e-6) <= found.value <= 1.15 * least
    assert found.fractional <= least * (1 + 1e-6)
    assert all(len(lists) == 1 for lists in found.policies.lists.values())
    simulated = IgpFailures.of_demands(dag, pairs.astype(np.int32), demand, found.policies).under(
        [[], *failures]
    )
    np.testing.assert_allclose(simulated.utilisation.T, found.utilisation, rtol=1e-6)
    few = static_lists(dags, pairs, demand, gap=1e-5, few=Few(at_most=2), one_list=True)
    assert len(few.policies.lists) <= 2
    assert all(len(lists) == 1 for lists in few.policies.lists.values())


def test_a_target_that_no_lists_keep_is_refused_and_one_that_shortest_paths_keep_needs_no_policy() -> (
    None
):
    _, dags, _, pairs, demand = _random_case(0, 0.5)
    best = static_lists(dags, pairs, demand, gap=1e-5)
    with pytest.raises(InputError, match="with lists with one midpoint"):
        static_lists(dags, pairs, demand, gap=1e-5, few=Few(target=0.9 * best.bound))
    found = static_lists(dags, pairs, demand, gap=1e-5, few=Few(target=1.01 * best.straight))
    assert (len(found.policies.lists), found.policies_bound) == (0, 0)
    assert found.value == pytest.approx(best.straight)


@pytest.mark.parametrize(
    ("seed", "density", "load"),
    [(0, 0.6, 1.0), (1, 0.6, 1.0), (2, 0.4, 1.0), (3, 0.3, 1.0), (4, 0.3, 1e-9)],
)
def test_value_and_bound_enclose_the_optimum_over_all_scenarios(
    seed: int, density: float, load: float
) -> None:
    topology = random_topology(seed, NODES, density)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    pairs = np.array(
        [p for p in itertools.permutations(range(NODES), 2) if dag.reaches[p[1], p[0]]]
    )
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
    # the installed lists lose nothing but what is between nodes without a path, and load the links
    # as simulated
    simulated = IgpFailures.of_demands(dag, pairs, demand, found.policies).under([[], *failures])
    plain = IgpFailures.of_demands(dag, pairs, demand, SegmentPolicies.none()).under(
        [[], *failures]
    )
    np.testing.assert_allclose(simulated.lost, plain.lost, rtol=1e-9)
    np.testing.assert_allclose(simulated.utilisation.T, found.utilisation, rtol=1e-6)


def test_no_list_goes_over_a_leaf_that_a_failure_cuts_off() -> None:
    # Ways from 0 to 1 by 5, 3 and 4, the shortest first; node 2 is a leaf of 4, over which a list
    # would lead as well. Of 15 Gbit/s half has to go by 4 when the way by 5 is cut.
    ends = [
        (0, 5, 100.0),
        (5, 1, 100.0),
        (0, 3, 10.0),
        (3, 1, 10.0),
        (0, 4, 10.0),
        (4, 1, 10.0),
        (4, 2, 10.0),
    ]
    topology = make_topology(ends, both=True)
    dag = EcmpDag.of(topology, np.array([1.0, 1, 2, 2, 3, 3, 1] * 2))
    pairs, demand, failures = np.array([[0, 1]]), np.array([[15.0]]), [[0, 7], [6, 13]]
    found = static_lists([dag, *map(dag.without, failures)], pairs, demand, gap=1e-6)
    assert (found.value, found.bound) == pytest.approx((0.75, 0.75))
    results = IgpFailures.of_demands(dag, pairs, demand, found.policies).under(failures)
    assert results.lost[:, 0].tolist() == [0, 0]
    assert results.utilisation[:, 0] == pytest.approx([0.75, 0.75])


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8, 12])
def test_demands_that_a_failure_cuts_off_load_links_as_far_as_their_midpoints(seed: int) -> None:
    """On networks with one-way and parallel links, where failures cut demands off."""
    topology = network_with_parallels(seed)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    nodes = range(topology.num_nodes)
    pairs = np.array([p for p in itertools.permutations(nodes, 2) if dag.reaches[p[1], p[0]]])
    demand = np.random.default_rng(seed).exponential(size=(2, len(pairs)))
    failures = [list(links) for links in topology.cables()]
    dags = [dag, *(dag.without(np.array(links)) for links in failures)]
    assert any(not one.reaches[pairs[:, 1], pairs[:, 0]].all() for one in dags)
    found = static_lists(dags, pairs, demand, gap=1e-4)
    optimum = _whole(dag, failures, pairs, demand)
    assert optimum * (1 - 1e-6) <= found.value <= optimum * (1 + 1e-3)
    assert found.bound <= optimum * (1 + 1e-6)
    simulated = IgpFailures.of_demands(dag, pairs.astype(np.int32), demand, found.policies).under(
        [[], *failures]
    )
    np.testing.assert_allclose(simulated.utilisation.T, found.utilisation, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("tiny", [1e-3, 1e-9, 1e-12])
def test_a_tiny_link_on_the_shortest_path_leaves_the_bound(tiny: float) -> None:
    """8 Gbit/s from 0 to 1: nearly all go over 2 and 3, half each, over links of 10 Gbit/s."""
    topology = make_topology(
        [(0, 1, tiny), (0, 2, 10.0), (2, 1, 10.0), (0, 3, 10.0), (3, 1, 10.0)], both=True
    )
    dag = EcmpDag.of(topology, np.array([1.0, 2, 2, 2, 2] * 2))
    found = static_lists([dag], np.array([[0, 1]]), np.array([[8.0]]), gap=1e-6)
    assert found.straight == pytest.approx(8 / tiny)
    assert (found.value, found.bound) == pytest.approx((0.4, 0.4), rel=1e-3)
    assert found.reached


def test_demands_between_the_same_nodes_have_one_policy_together() -> None:
    _, dags, _, pairs, demand = _random_case(1, 0.5)
    once = static_lists(dags, pairs, demand, gap=1e-6)
    halves = np.concatenate([0.25 * demand, 0.75 * demand], axis=1)
    twice = static_lists(dags, np.concatenate([pairs, pairs]), halves, gap=1e-6)
    assert (twice.value, twice.bound) == pytest.approx((once.value, once.bound), rel=1e-6)
    assert twice.straight == pytest.approx(once.straight)


def test_time_that_is_over_leaves_the_policies_that_were_found() -> None:
    _, dags, _, pairs, demand = _random_case(2, 0.5)
    any_number = static_lists(dags, pairs, demand, gap=1e-5)
    most = len(any_number.policies.lists)
    found = static_lists(dags, pairs, demand, gap=1e-5, few=Few(at_most=most))
    assert found.value <= any_number.value * (1 + 1e-9)
    assert found.bound >= any_number.bound * (1 - 1e-9)
    at_once = static_lists(
        dags, pairs, demand, gap=1e-5, few=Few(at_most=2), deadline=Deadline.after(0.0)
    )
    assert len(at_once.policies.lists) <= 2


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"within": 0.1, "at_most": 2},
        {"at_most": -1},
        {"target": -0.5},
        {"within": 0.1, "target": 0.5},
    ],
)
def test_few_policies_have_one_limit(limits: dict[str, float]) -> None:
    with pytest.raises(InputError, match="one of within, target and at_most"):
        Few(**limits)  # type: ignore[arg-type]


def test_no_demand_is_refused() -> None:
    topology = random_topology(0, NODES)
    dag = EcmpDag.of(topology, np.ones(topology.num_links))
    with pytest.raises(InputError, match="demand"):
        static_lists([dag], np.array([[0, 1]]), np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("bound", "least"), [(3.0000001, 3), (2.9999999, 3), (3.001, 4), (-1e-9, 0)]
)
def test_rounding_of_the_bound_asks_for_no_further_policy(
    monkeypatch: pytest.MonkeyPatch, bound: float, least: int
) -> None:
    """A linear program whose optimum is 3 may give 3.0000001."""
    monkeypatch.setattr(few_module, "optimum", lambda *_: (None, bound, 1))
    master: Any = SimpleNamespace(num_demands=1, scenarios=SimpleNamespace(is_transit=False))
    assert few_module.fewest(master, 1.0, 0.0, Deadline()) == ([], least, 1)
