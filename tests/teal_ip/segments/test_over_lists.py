"""Any objective over segment lists against the whole program, all lists enumerated over reference
shares, by HiGHS."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import teal
from teal.errors import InputError
from teal.network import CandidateLists
from teal.network.ecmp import EcmpDag
from teal.problem import assess
from teal.runtime.arrays import FloatArray, IntArray
from teal.schemes.igp import ecmp_allocation
from teal.testing import make_topology
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.segments.over_lists import cheapest_lists, solve_over_lists
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares

NODES = 6
LENGTHS = [(1, False), (2, False), (2, True), (3, False), (3, True)]


def _case(seed: int) -> tuple[EcmpDag, FloatArray, IntArray, FloatArray]:
    """Shortest paths, reference shares (N, N, E), pairs and demand of a random network."""
    topology = network_with_parallels(seed, NODES)
    metric = random_metrics(topology, seed)
    pairs = np.array(
        [pair for pair in itertools.product(range(NODES), repeat=2) if pair[0] != pair[1]],
        dtype=np.int32,
    )
    demand = np.random.default_rng(seed).exponential(4.0, len(pairs))
    return EcmpDag.of(topology, metric), segment_shares(topology, metric), pairs, demand


def _every_list(  # type: ignore[no-untyped-def]
    dag: EcmpDag, shares: FloatArray, source: int, target: int, segments: int, adjacencies: bool
):
    """Loads (C, E) of a Gbit/s on every list of at most so many segments."""
    topology = dag.topology
    steps = {
        (u, v): [shares[v, u]]
        for u in range(NODES)
        for v in range(NODES)
        if u != v and not np.isnan(shares[v, u]).any()
    }
    if adjacencies:
        for e, ends in enumerate(
            zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
        ):
            steps.setdefault(ends, []).append(np.eye(topology.num_links)[e])
    found = []

    def go(node: int, load: FloatArray, left: int) -> None:
        if node == target:
            found.append(load)
        if left:
            for (u, v), rows in steps.items():
                if u == node:
                    for row in rows:
                        go(v, load + row, left - 1)

    go(source, np.zeros(topology.num_links), segments)
    return np.array(found).reshape(-1, topology.num_links)


@pytest.mark.parametrize(("segments", "adjacencies"), LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_the_cheapest_list_is_that_of_all_lists(
    seed: int, segments: int, adjacencies: bool
) -> None:
    dag, shares, pairs, _ = _case(seed)
    prices = np.random.default_rng(seed).exponential(size=dag.topology.num_links)
    stop, link, cost = cheapest_lists(dag, pairs, prices, segments, adjacencies=adjacencies)
    lists = CandidateLists.straight(dag, pairs, stop.shape[1]).with_lists(stop, link)
    problem = teal.Problem.create(dag.topology, lists, teal.Objective(), np.ones((1, len(pairs))))
    price = torch.where(
        problem.ops.mask, problem.ops.path_sum(torch.from_numpy(prices)[None])[0], torch.inf
    )
    for d, (s, t) in enumerate(pairs.tolist()):
        expected = (_every_list(dag, shares, s, t, segments, adjacencies) @ prices).min(
            initial=np.inf
        )
        assert cost[d] == pytest.approx(expected, rel=1e-6)
        assert float(price[d].min()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "objective", ["total_flow", "max_link_utilisation", "latency_penalised_flow"]
)
@pytest.mark.parametrize(("segments", "adjacencies"), LENGTHS)
def test_value_and_bound_enclose_the_optimum_over_all_lists(
    objective: str, segments: int, adjacencies: bool
) -> None:
    dag, shares, pairs, demand = _case(segments)
    topology = dag.topology
    lists = CandidateLists.straight(dag, pairs)
    problem = teal.Problem.create(topology, lists, teal.Objective(objective), demand[None])
    found = solve_over_lists(problem, dag, segments=segments, adjacencies=adjacencies, gap=2e-3)
    columns = [_every_list(dag, shares, s, t, segments, adjacencies) for s, t in pairs.tolist()]
    of = np.concatenate([np.full(len(rows), d) for d, rows in enumerate(columns)])
    entries = np.concatenate(columns).T
    each = (of[None] == np.arange(len(pairs))[:, None]).astype(float)
    if objective == "max_link_utilisation":
        rows, ones = (
            np.hstack([entries * demand[of], -topology.capacity[:, None]]),
            np.ones(len(pairs)),
        )
        sums, routable = np.hstack([each, np.zeros((len(each), 1))]), each.any(1)
        cost = np.append(np.zeros(len(of)), 1.0)
        optimum = linprog(cost, rows, np.zeros(len(rows)), sums[routable], ones[routable]).fun
    else:
        value = 1 - problem.link_cost.numpy() @ entries
        optimum = -linprog(
            -value, np.vstack([entries, each]), np.concatenate([topology.capacity, demand])
        ).fun
    value, bound = found.assessment.value.item(), found.assessment.bound.item()
    low, high = sorted((value, bound))
    assert low <= optimum * (1 + 1e-6)
    assert high >= optimum * (1 - 1e-6)
    assert found.reached
    assert (value <= bound) == (objective != "max_link_utilisation") or value == pytest.approx(
        bound, rel=1e-9
    )
    assert found.assessment.status[0].usable
    # the installed lists put the validator's loads on the links, also by the simulation of segment
    # lists
    share = found.allocation.splits[0].numpy()
    paths = found.allocation.paths
    assert isinstance(paths, CandidateLists)
    load = IgpFailures.of_demands(
        dag, pairs, (demand * share.sum(1))[None], paths.policies(share)
    ).load[0]
    np.testing.assert_allclose(
        load, found.problem.loads(found.allocation.splits)[0].numpy(), atol=1e-6
    )
    assert paths.policies(share).depth(topology.link_source) <= segments


def test_path_operations_are_the_sums_of_reference_shares_and_transposes() -> None:
    dag, shares, pairs, _ = _case(7)
    topology, rng = dag.topology, np.random.default_rng(0)
    lists = CandidateLists.straight(dag, pairs, 2)
    for seed in range(3):
        prices = np.random.default_rng(seed).exponential(size=topology.num_links)
        lists = lists.with_lists(*cheapest_lists(dag, pairs, prices, 2, adjacencies=True)[:2])
    ops = teal.Problem.create(topology, lists, teal.Objective(), np.ones((1, len(pairs)))).ops
    dense = np.zeros((*lists.mask.shape, topology.num_links))
    for d, k in np.argwhere(lists.mask).tolist():
        here = int(pairs[d, 0])
        for stop, link in [
            *zip(lists.stop[d, k].tolist(), lists.link[d, k].tolist(), strict=True),
            (pairs[d, 1], -1),
        ]:
            if stop >= 0:
                end = int(topology.link_source[link]) if link >= 0 else int(stop)
                dense[d, k] += shares[end, here] if end != here else 0
                dense[d, k] += np.eye(topology.num_links)[link] if link >= 0 else 0
                here = int(stop)
    x, f = rng.normal(size=(2, topology.num_links)), rng.normal(size=(2, *lists.mask.shape))
    np.testing.assert_allclose(
        ops.path_sum(torch.from_numpy(x)), np.einsum("dke,be->bdk", dense, x), atol=1e-9
    )
    masked = np.where(lists.mask, f, 0)
    np.testing.assert_allclose(
        ops.link_sum(torch.from_numpy(masked)), np.einsum("dke,bdk->be", dense, masked), atol=1e-9
    )
    largest = np.where(dense > 0, x[:, None, None], -np.inf).max(-1)
    value, link = ops.path_max(torch.from_numpy(x))
    np.testing.assert_allclose(value[:, lists.mask], largest[:, lists.mask])
    np.testing.assert_allclose(
        np.take_along_axis(x[:, None], link.numpy(), -1)[:, lists.mask], largest[:, lists.mask]
    )
    np.testing.assert_allclose(
        ops.incidence(topology.num_links).toarray(), dense.reshape(-1, topology.num_links).T
    )


def test_the_shortest_paths_are_found_again_where_links_have_failed() -> None:
    # 0 - 1 is direct; 0 - 2 - 1 the way around, of half the capacity.
    topology = make_topology([(0, 1, 10), (0, 2, 5), (2, 1, 5)], both=True)
    lists = CandidateLists.straight(EcmpDag.of(topology, np.ones(6)), np.array([[0, 1]]))
    problem = teal.Problem.create(
        topology, lists, teal.Objective("max_link_utilisation"), np.array([[4.0]])
    )
    scheme, cut = (
        teal.make_scheme("ecmp"),
        topology.with_failed_links(topology.find_links("n0", "n1")),
    )
    assert assess(problem, scheme.solve(problem)).value.tolist() == [0.4]
    after = problem.with_capacity(cut.capacity)
    assert assess(after, scheme.solve(after)).value.tolist() == [0.8]
    both = assess(problem, teal.make_scheme("segments:gap=0.0001").solve(problem))
    assert both.value.item() == pytest.approx(4 / 15, rel=1e-3)
    with pytest.raises(InputError, match="same failed links"):
        scheme.solve(
            teal.Problem.create(topology, lists, teal.Objective(), np.ones((2, 1))).with_capacity(
                np.stack([topology.capacity, cut.capacity])
            )
        )


def test_what_segment_lists_do_not_know_is_refused() -> None:
    dag, _, pairs, demand = _case(0)
    lists = CandidateLists.straight(dag, pairs)
    problem = teal.Problem.create(dag.topology, lists, teal.Objective(), demand[None])
    with pytest.raises(InputError, match="an integer >= 1"):
        solve_over_lists(problem, dag, segments=0)
    with pytest.raises(InputError, match="an integer >= 1"):
        teal.make_scheme("segments:segments=0")
    with pytest.raises(InputError, match="metric"):
        teal.make_scheme("ecmp:metric=none")
    with pytest.raises(InputError, match="over"):
        teal.make_scheme("ecmp:over=tunnels")


def test_what_moves_between_two_sets_of_lists() -> None:
    topology = make_topology([(0, 1, 10), (0, 2, 5), (2, 1, 5)], both=True)
    first = CandidateLists.straight(EcmpDag.of(topology, np.ones(6)), np.array([[0, 1]]))
    second = first.with_lists(np.array([[2]], dtype=np.int32), np.array([[-1]], dtype=np.int32))
    demand = np.array([8.0])
    assert second.moved(
        np.array([[0.75, 0.25]]), first, np.array([[1.0]]), demand
    ) == pytest.approx(2.0)
    assert second.moved(np.array([[0.75, 0.25]]), second, np.array([[0.75, 0.25]]), demand) == 0


def test_ecmp_sheds_no_more_than_its_overload() -> None:
    dag, _, pairs, demand = _case(1)
    lists = CandidateLists.straight(dag, pairs)
    problem = teal.Problem.create(dag.topology, lists, teal.Objective(), 5 * demand[None])
    allocation = ecmp_allocation(problem, dag)
    measured = assess(problem, allocation)
    assert measured.status[0].usable
    assert 0 < measured.value.item() < 5 * demand.sum()


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 2])
def test_fair_rates_over_lists_are_certified(segments: int) -> None:
    dag, _, pairs, demand = _case(segments)
    lists = CandidateLists.straight(dag, pairs)
    problem = teal.Problem.create(dag.topology, lists, teal.Objective("max_min"), 3 * demand[None])
    found = solve_over_lists(problem, dag, segments=segments, gap=1e-2)
    assert found.assessment.status[0].usable
    assert float(found.assessment.gap) <= 2e-2
