"""Two-segment routing against the whole linear program, by HiGHS, over references of the shares."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from teal.errors import InputError
from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal.testing import make_topology
from teal_ip.segments import one_list as one_list_module
from teal_ip.segments.columns import finish
from teal_ip.segments.one_list import one_list
from teal_ip.segments.problem import SegmentProblem
from teal_ip.segments.search import solve
from teal_ip.segments.static_lists import fewest_policies, least_utilisation, unsplit
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares


def _problem(
    seed: int, *, minimises_utilisation: bool, load: float = 1.0
) -> tuple[SegmentProblem, FloatArray]:
    topology = network_with_parallels(seed)
    metric = random_metrics(topology, seed)
    nodes = topology.num_nodes
    pairs = np.array(
        [pair for pair in itertools.product(range(nodes), repeat=2) if pair[0] != pair[1]]
    )
    rng = np.random.default_rng(seed)
    demand = load * rng.exponential(size=len(pairs)) * (rng.random(len(pairs)) < 0.7)
    problem = SegmentProblem.of(
        EcmpDag.of(topology, metric), pairs, demand, minimises_utilisation=minimises_utilisation
    )
    return problem, segment_shares(topology, metric)


def _columns(
    problem: SegmentProblem, shares: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Loads (E, C) of a whole demand on each list, demand of each (C,), and whether it is the
    direct way (C,)."""
    entries, of, direct = [], [], []
    for d, (s, t) in enumerate(zip(problem.source, problem.target, strict=True)):
        for m in range(problem.num_nodes):
            if m == s:
                continue
            row = shares[m, s] + (0 if m == t else shares[t, m])
            if not np.isnan(row).any():
                entries.append(problem.demand[d] * row)
                of.append(d)
                direct.append(m == t)
    return np.array(entries).T, np.array(of), np.array(direct)


def _whole_lp(problem: SegmentProblem, shares: FloatArray) -> float:
    entries, of, _ = _columns(problem, shares)
    each = (of[None] == np.arange(len(problem.demand))[:, None]).astype(float)
    if problem.minimises_utilisation:
        rows = np.hstack([entries, -problem.capacity[:, None]])
        cost = np.append(np.zeros(len(of)), 1.0)
        sums = np.hstack([each, np.zeros((len(each), 1))])
        result = linprog(cost, rows, np.zeros(len(rows)), sums, np.ones(len(each)), method="highs")
        return float(result.fun)
    limits = np.concatenate([problem.capacity, np.ones(len(each))])
    return -float(
        linprog(-problem.demand[of], np.vstack([entries, each]), limits, method="highs").fun
    )


@pytest.mark.parametrize("minimises_utilisation", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_value_and_bound_enclose_the_optimum_of_the_whole_program(
    seed: int, minimises_utilisation: bool
) -> None:
    problem, shares = _problem(seed, minimises_utilisation=minimises_utilisation, load=5.0)
    optimum = _whole_lp(problem, shares)
    result = solve(problem, gap=1e-3)
    if result.stopped_by != "gap":
        result = finish(problem, result, 1e-3, Deadline(math.inf))
    low, high = (
        (result.bound, result.value) if minimises_utilisation else (result.value, result.bound)
    )
    assert low <= optimum * (1 + 1e-7)
    assert high >= optimum * (1 - 1e-7)
    assert result.gap <= 1e-3
    # the value is that of the shares, by the reference's loads
    load = np.zeros(len(problem.capacity))
    for d, k in np.argwhere(result.mid >= 0):
        m, s, t = result.mid[d, k], problem.source[d], problem.target[d]
        load += (
            problem.demand[d]
            * result.share[d, k]
            * (shares[m, s] + (0 if m == t else shares[t, m]))
        )
    if minimises_utilisation:
        assert (load / problem.capacity).max() == pytest.approx(result.value, rel=1e-9)
    else:
        assert (load <= problem.capacity * (1 + 1e-9)).all()
        assert (problem.demand * result.share.sum(1)).sum() == pytest.approx(result.value, rel=1e-9)
    sign = 1 if minimises_utilisation else -1
    assert sign * result.free_bound <= sign * optimum * (1 + sign * 1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_column_generation_alone_reaches_the_optimum(seed: int) -> None:
    problem, shares = _problem(seed, minimises_utilisation=True)
    start = solve(problem, gap=0.0, max_iterations=0)
    result = finish(problem, start, 1e-6, Deadline(math.inf))
    assert result.value == pytest.approx(_whole_lp(problem, shares), rel=1e-5)
    assert result.gap <= 1e-6


@pytest.mark.parametrize(
    ("seed", "load"), [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (0, 1e-9), (1, 1e-9)]
)
def test_the_bound_on_policies_is_below_the_program_and_the_utilisation_is_kept(
    seed: int, load: float
) -> None:
    problem, shares = _problem(seed, minimises_utilisation=True, load=load)
    start = solve(problem, gap=1e-3)
    allowed = start.value * 1.05
    few = fewest_policies(problem, start, allowed, Deadline(math.inf), gap=0.0)
    assert few.utilisation <= allowed * (1 + 1e-6)
    entries, of, direct = _columns(problem, shares)
    each = (of[None] == np.arange(len(problem.demand))[:, None]).astype(float)
    limits = problem.capacity * allowed / load
    lp = linprog(1.0 - direct, entries / load, limits, each, np.ones(len(each)), method="highs").fun
    assert few.bound <= math.ceil(lp - 1e-6)
    assert few.bound >= math.ceil(lp * 0.99 - 1e-6)
    assert few.policies >= few.bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "most"), [(0, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (3, 2), (0, 1000)]
)
def test_the_utilisation_of_few_policies_is_between_its_bound_and_the_best_of_all_choices(
    seed: int, most: int
) -> None:
    """Against the linear program over every choice of so many demands."""
    problem, shares = _problem(seed, minimises_utilisation=True)
    start = solve(problem, gap=1e-4)
    few, bound = least_utilisation(problem, start, most, Deadline(math.inf))
    assert few.policies <= most
    assert problem.utilisation(problem.loads(few.mid, few.share)) == pytest.approx(
        few.utilisation, rel=1e-12
    )
    entries, of, direct = _columns(problem, shares)
    demands = len(problem.demand)
    if most >= demands:
        assert few.utilisation == pytest.approx(start.value, rel=1e-3)
        return
    best = math.inf
    for chosen in itertools.combinations(range(demands), most):
        kept = (direct > 0) | np.isin(of, chosen)
        rows = np.hstack([entries[:, kept], -problem.capacity[:, None]])
        each = (of[kept][None] == np.arange(demands)[:, None]).astype(float)
        sums = np.hstack([each, np.zeros((demands, 1))])
        cost = np.append(np.zeros(kept.sum()), 1.0)
        best = min(
            best,
            linprog(cost, rows, np.zeros(len(rows)), sums, np.ones(demands), method="highs").fun,
        )
    assert bound <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= few.utilisation <= 1.1 * best
    assert bound >= 0.8 * best


@pytest.mark.parametrize("seed", range(3))
def test_one_list_is_no_worse_than_rounding_and_near_the_best_of_all_lists(seed: int) -> None:
    problem, _ = _problem(seed, minimises_utilisation=True)
    start = solve(problem, gap=1e-3)
    few = fewest_policies(problem, start, start.value * 1.001, Deadline(math.inf))
    found = one_list(problem, few.mid, few.share, Deadline(math.inf))
    assert found.utilisation <= found.rounded * (1 + 1e-9)
    assert found.utilisation >= start.bound * (1 - 1e-9)
    ones = np.ones(found.mid.shape)
    assert problem.utilisation(problem.loads(found.mid, ones)) == pytest.approx(
        found.utilisation, rel=1e-12
    )


@pytest.mark.parametrize("seed", range(8))
def test_one_list_each_in_whole_numbers_is_the_best_of_all_choices(seed: int) -> None:
    """Four demands, and every choice of their midpoints."""
    rng, topology = np.random.default_rng(seed), network_with_parallels(seed)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    pairs = all_pairs(topology)
    pairs = pairs[dag.reaches[pairs[:, 1], pairs[:, 0]]]
    pairs = pairs[np.sort(rng.choice(len(pairs), 4, replace=False))]
    problem = SegmentProblem.of(dag, pairs, rng.uniform(1, 5, 4), minimises_utilisation=True)
    start, direct = solve(problem, gap=1e-3), problem.target[:, None]
    mid, value = unsplit(problem, start, direct, Deadline(math.inf))
    ones = np.ones((4, 1))
    assert value == pytest.approx(problem.utilisation(problem.loads(mid, ones)), rel=1e-12)
    best = math.inf
    for choice in itertools.product(range(topology.num_nodes), repeat=4):
        tried = np.array(choice, dtype=np.int32)[:, None]
        if (
            dag.reaches[tried[:, 0], problem.source] & dag.reaches[problem.target, tried[:, 0]]
        ).all():
            best = min(best, problem.utilisation(problem.loads(tried, ones)))
    assert value == pytest.approx(best, rel=2e-3)


def _fish() -> Topology:
    # 0 - 1 - 4 is the shortest way from 0 to 4, 0 - 2 - 3 - 4 the other one.
    return make_topology([(0, 1, 10), (1, 4, 10), (0, 2, 10), (2, 3, 10), (3, 4, 10)], both=True)


def test_a_demand_of_two_capacities_is_split_over_both_ways() -> None:
    topology = _fish()
    dag = EcmpDag.of(topology, np.ones(topology.num_links))
    problem = SegmentProblem.of(
        dag, np.array([[0, 4]]), np.array([20.0]), minimises_utilisation=True
    )
    result = solve(problem, gap=1e-3)
    assert result.value == pytest.approx(1.0, rel=2e-3)
    policies = problem.policies(result.mid, result.share)
    lists = policies.lists[0, 4]
    assert sum(one.share for one in lists) == pytest.approx(1)
    assert {one.midpoints for one in lists if one.share > 0.01} in (
        {(), (2,)},
        {(), (3,)},
        {(), (2,), (3,)},
    )


def test_demands_without_a_path_are_left_out_and_nothing_left_is_refused() -> None:
    topology = make_topology([(0, 1, 1.0), (1, 0, 1.0)], min_nodes=3)
    dag = EcmpDag.of(topology, np.ones(2))
    problem = SegmentProblem.of(
        dag, np.array([[0, 1], [0, 2]]), np.array([0.5, 0.5]), minimises_utilisation=True
    )
    assert problem.demand.tolist() == [0.5]
    with pytest.raises(InputError, match="demand"):
        SegmentProblem.of(dag, np.array([[0, 2]]), np.array([1.0]), minimises_utilisation=True)


def test_local_search_moves_a_demand_off_a_full_link() -> None:
    """Straight, 0 -> 4 and 1 -> 4 fill the link from 1 to 4 twice; 0 -> 4 has another way, by 2 and
    3."""
    topology = _fish()
    dag = EcmpDag.of(topology, np.ones(topology.num_links))
    problem = SegmentProblem.of(
        dag, np.array([[0, 4], [1, 4]]), np.array([10.0, 10.0]), minimises_utilisation=True
    )
    found = one_list(problem, problem.target[:, None], np.ones((2, 1)), Deadline(math.inf))
    assert found.rounded == pytest.approx(2.0)
    assert found.utilisation == pytest.approx(1.0)


def test_of_the_solution_before_and_of_few_policies_the_better_one_and_the_higher_bound_are_kept() -> (
    None
):
    """A search that ends at a gap of 50% finds worse lists and a lower bound than one that ends at
    0.01%."""
    problem, _ = _problem(0, minimises_utilisation=True)
    good, bad = solve(problem, gap=1e-4), solve(problem, gap=0.5)
    assert bad.value > 1.2 * good.value
    most = len(problem.demand)
    found, bound = least_utilisation(problem, good, most, Deadline(math.inf), gap=0.5)
    assert found.utilisation <= good.value * (1 + 1e-9)
    assert bound >= good.bound * (1 - 1e-12)
    found, _ = least_utilisation(problem, bad, most, Deadline(math.inf))
    assert found.utilisation == pytest.approx(good.value, rel=2e-3)


def test_the_best_lists_of_all_moves_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 Gbit/s from 0 to 1: 80% of the direct link, 20% by 2, 40% by 3; moves for a higher power go
    from 2 to 3."""
    links = [(0, 1, 10.0), (0, 2, 40.0), (2, 1, 40.0), (0, 3, 20.0), (3, 1, 20.0)]
    dag = EcmpDag.of(make_topology(links, both=True), np.ones(10))
    problem = SegmentProblem.of(
        dag, np.array([[0, 1]]), np.array([8.0]), minimises_utilisation=True
    )
    moves, one = iter((2, 3, 3, 3)), np.ones((1, 1))

    def improve(*arguments: Any) -> int:
        chosen, load = arguments[7:9]
        chosen[:] = next(moves)
        load[:] = problem.loads(chosen[:, None].copy(), one)
        return 1

    monkeypatch.setattr(one_list_module, "_improve", improve)
    found = one_list(problem, np.array([[1]], dtype=np.int32), one, Deadline(math.inf))
    assert (found.rounded, found.utilisation, found.mid.tolist()) == (0.8, 0.2, [[2]])
