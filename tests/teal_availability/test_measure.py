"""Measured availability, against all states of small networks one by one, and at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from teal.network import compute_paths
from teal.network.classes import DemandClasses
from teal.network.ecmp import igp_metric
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability.components import Components, components_of
from teal_availability.measure import LEVELS, Bounds, measure
from teal_availability.routing import (
    Delivery,
    Igp,
    PathSplits,
    Reserved,
    Routing,
    Solved,
    Tunnels,
)
from teal_availability.states import most_probable_states
from tests.explicit import explicit_paths
from tests.igp_reference import segment_shares
from tests.teal_availability.brute import every_state, over_all_paths, random_case, works


def _random_splits(problem: Problem, seed: int) -> torch.Tensor:
    splits = torch.from_numpy(np.random.default_rng(seed).random(problem.path_mask[0].shape))
    splits = splits * problem.path_mask[0]
    return splits / splits.sum(-1, keepdim=True).clamp(min=1e-9)


def _tunnels(
    problem: Problem, splits: torch.Tensor, state: np.ndarray, *, moves: bool
) -> np.ndarray:
    """(D,) share that arrives: what survives is cut by the fullest link of each path."""
    use, of_demand = explicit_paths(problem)
    demand = problem.demand[0].numpy()
    flow = splits.numpy()[problem.path_mask[0].numpy()] * (of_demand.T @ demand)
    alive = use[~state].sum(0) == 0
    before, flow = of_demand @ flow, flow * alive
    if moves:
        left = of_demand @ flow
        flow *= of_demand.T @ np.divide(before, left, out=np.zeros_like(left), where=left > 0)
    excess = np.maximum(1, use @ flow / np.maximum(problem.topology.capacity, 1e-12))
    flow /= np.where(use > 0, excess[:, None], 1).max(0)
    return np.divide(of_demand @ flow, demand, out=np.ones_like(demand), where=demand > 0)


def _igp(problem: Problem, state: np.ndarray) -> np.ndarray:
    """(D,) share that arrives over shortest paths of whose links each passes what it carries."""
    topology = problem.topology
    metric = np.where(state, igp_metric(topology, "hops"), np.inf)
    shares = segment_shares(topology, metric)
    demand, pairs = problem.demand[0].numpy(), problem.paths.pairs.tolist()
    load = sum(
        rate * np.nan_to_num(shares[t, s]) for rate, (s, t) in zip(demand, pairs, strict=True)
    )
    passes = np.minimum(1, topology.capacity / np.maximum(load, 1e-12))
    arrives = np.ones_like(demand)
    for d, (s, t) in enumerate(pairs):
        if demand[d] > 0:
            arrives[d] = _along(topology, metric, shares, passes, s, t)
    return arrives


def _along(topology, metric, shares, passes, node: int, target: int) -> float:  # type: ignore[no-untyped-def]
    """Share that arrives at the target of what is at a node, hop by hop."""
    if node == target:
        return 1.0
    if np.isnan(shares[target, node]).all():
        return 0.0
    total = 0.0
    for link in np.flatnonzero(shares[target, node] > 0):
        if topology.link_source[link] == node:
            after = _along(
                topology, metric, shares, passes, int(topology.link_target[link]), target
            )
            total += shares[target, node, link] * passes[link] * after
    return total


def _optimum(problem: Problem, state: np.ndarray) -> float:
    """Share of all traffic that the best splits carry."""
    use, of_demand = explicit_paths(problem)
    demand = problem.demand[0].numpy()
    capacity = np.where(state, problem.topology.capacity, 0)
    best = linprog(
        -np.ones(use.shape[1]), np.vstack([use, of_demand]), np.concatenate([capacity, demand])
    )
    return float(-best.fun / demand.sum())


@given(seed=st.integers(0, 10_000), scheme=st.sampled_from(["igp", "moved", "lost", "reserved"]))
@settings(max_examples=30, deadline=None)
def test_every_figure_is_the_sum_over_all_states(seed: int, scheme: str) -> None:
    problem, components = random_case(seed, nodes=4, count=6)
    demand = problem.demand[0].numpy()
    if not demand.sum() > 0:
        return
    splits = _random_splits(problem, seed)
    rates = 0.3 * splits.numpy() * demand[:, None]
    schemes: dict[str, Callable[[], Routing]] = {
        "igp": lambda: Igp(problem, "hops"),
        "moved": lambda: Tunnels(problem, PathSplits.from_candidate_paths(problem.paths, splits)),
        "lost": lambda: Tunnels(
            problem, PathSplits.from_candidate_paths(problem.paths, splits), moves=False
        ),
        "reserved": lambda: Reserved(problem, rates),
    }
    routing = schemes[scheme]()
    all_states = list(every_state(components.unavailability))
    shares = []
    use, of_demand = explicit_paths(problem)
    for _, down in all_states:
        state = works(components, down, problem.topology.num_links)
        if scheme == "igp":
            shares.append(_igp(problem, state))
        elif scheme == "reserved":
            alive = use[~state].sum(0) == 0
            arriving = of_demand @ (rates[problem.path_mask[0].numpy()] * alive)
            share = np.divide(arriving, demand, out=np.ones_like(demand), where=demand > 0)
            shares.append(np.minimum(1, share))
        else:
            shares.append(_tunnels(problem, splits, state, moves=scheme == "moved"))
    share, times = np.array(shares), np.array([time for time, _ in all_states])
    total = share @ demand / demand.sum()
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    found = measure(scheme, [routing], [problem], components, states)
    np.testing.assert_allclose(found.demand_mean_share.low, times @ share, atol=1e-9)
    assert float(found.mean.low) == pytest.approx(times @ total, abs=1e-9)
    for number, level in enumerate(LEVELS):
        near = (np.abs(share - level) < 3e-6).any()  # where rounding decides
        if not near:
            np.testing.assert_allclose(
                found.demand_time_at_levels.low[:, number], times @ (share >= level), atol=1e-9
            )
            assert found.all_demands_time.low[number] == pytest.approx(
                times @ (share >= level).all(1), abs=1e-9
            )
    for c in range(len(components)):
        never = np.array(
            [
                total[[down for _, down in all_states].index(tuple(o for o in down if o != c))]
                for _, down in all_states
            ]
        )
        assert found.gained_without_failures[c] == pytest.approx(
            times @ never - times @ total, abs=1e-9
        )
        while_down = np.array([c in down for _, down in all_states])
        assert found.lost_while_down[c] == pytest.approx(
            (times * while_down) @ (1 - total), abs=1e-9
        )


@given(seed=st.integers(0, 10_000), count=st.integers(1, 20))
@settings(max_examples=15, deadline=None)
def test_bounds_hold_whatever_is_left_out(seed: int, count: int) -> None:
    problem, components = random_case(seed)
    routing = Tunnels(
        problem, PathSplits.from_candidate_paths(problem.paths, _random_splits(problem, seed))
    )
    every = most_probable_states(components.unavailability, max_unlisted_probability=0)
    truth = measure("all", [routing], [problem], components, every)
    some = most_probable_states(
        components.unavailability, max_unlisted_probability=0, max_states=count
    )
    found = measure("some", [routing], [problem], components, some)
    for name in (
        "mean",
        "demand_mean_share",
        "demand_time_at_levels",
        "all_demands_time",
        "total_traffic_time",
    ):
        low, high = getattr(found, name)
        exact, above = getattr(truth, name)
        assert (low <= exact + 1e-12).all(), name
        assert (exact <= high + 1e-12).all(), name
        np.testing.assert_allclose(above, exact, atol=1e-12)
    rest = 1 - some.probability.sum()
    np.testing.assert_allclose(found.mean.high - found.mean.low, rest, atol=1e-12)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_splits_solved_anew_are_between_their_bounds_and_optimal(seed: int) -> None:
    problem, components = random_case(seed, nodes=4, count=4)
    demand = problem.demand[0].numpy()
    if not demand.sum() > 0:
        return
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    found = measure("solved", [Solved(problem, 1e-4)], [problem], components, states)
    all_states = list(every_state(components.unavailability))
    times = np.array([time for time, _ in all_states])
    everything = over_all_paths(problem)
    optimum = np.array(
        [
            _optimum(everything, works(components, down, problem.topology.num_links))
            for _, down in all_states
        ]
    )
    truth = float(times @ optimum)
    assert found.all_demands_time.high[0] >= times @ (optimum >= 1 - 1e-9) - 1e-9
    assert found.mean.low <= truth + 1e-9
    assert truth <= found.mean.high + 1e-9
    assert (found.all_demands_time.low <= found.all_demands_time.high + 1e-12).all()
    # With all paths as candidates both bounds are near the optimum.
    exact = measure("solved", [Solved(everything, 1e-4)], [everything], components, states)
    assert exact.mean.low <= truth + 1e-9 <= exact.mean.high + 2e-9
    assert exact.mean.high - exact.mean.low <= 2e-4


def test_what_shortest_paths_carry_is_within_the_bounds_of_splits_solved_anew() -> None:
    """A stub behind one cable: edge-disjoint candidates have a single path, and the IGP has two."""
    topology = make_topology(
        [(0, 1, 10.0), (1, 3, 10.0), (0, 2, 10.0), (2, 3, 10.0), (3, 4, 10.0)], both=True
    )
    pairs = np.array([[0, 4]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = Problem.create(topology, paths, "total_flow", np.array([[10.0]]))
    components = components_of(topology, cable_availability=0.9)
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    igp = measure("igp", [Igp(problem, "hops")], [problem], components, states)
    solved = measure("solved", [Solved(problem)], [problem], components, states)
    expected = (1 - 0.19**2) * 0.9
    assert float(igp.mean.low) == pytest.approx(expected, abs=1e-12)
    assert float(solved.mean.low) == pytest.approx(expected, abs=1e-9)
    assert float(solved.mean.high) == pytest.approx(expected, abs=1e-9)


def test_the_mean_is_that_of_a_million_drawn_states() -> None:
    """Within four standard deviations of the mean over 10^6 independent draws."""
    problem, components = random_case(5, nodes=5, count=7)
    splits = _random_splits(problem, 5)
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    found = measure(
        "tunnels",
        [Tunnels(problem, PathSplits.from_candidate_paths(problem.paths, splits))],
        [problem],
        components,
        states,
    )
    rng, draws = np.random.default_rng(0), 1_000_000
    down = rng.random((draws, len(components))) < components.unavailability
    kinds, counts = np.unique(down, axis=0, return_counts=True)
    demand = problem.demand[0].numpy()
    total = np.array(
        [
            _tunnels(problem, splits, ~(kind @ components.links).astype(bool), moves=True)
            @ demand
            / demand.sum()
            for kind in kinds
        ]
    )
    mean = counts @ total / draws
    deviation = np.sqrt(counts @ (total - mean) ** 2 / draws**2)
    assert abs(float(found.mean.low) - mean) <= 4 * deviation


def test_several_matrices_have_equal_shares_of_the_time() -> None:
    problem, components = random_case(3)
    splits = _random_splits(problem, 3)
    ninefold = problem.with_demand(9 * problem.demand)
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    alone = [
        measure(
            "one",
            [Tunnels(one, PathSplits.from_candidate_paths(one.paths, splits))],
            [one],
            components,
            states,
        )
        for one in (problem, ninefold)
    ]
    both = measure(
        "both",
        [
            Tunnels(problem, PathSplits.from_candidate_paths(problem.paths, splits)),
            Tunnels(ninefold, PathSplits.from_candidate_paths(ninefold.paths, splits)),
        ],
        [problem, ninefold],
        components,
        states,
    )
    # The second matrix has nine tenths of the traffic.
    for figure in ("mean", "demand_time_at_levels", "lost_while_down", "gained_without_failures"):
        first, second = (_low(getattr(one, figure)) for one in alone)
        by_time, by_traffic = (first + second) / 2, (first + 9 * second) / 10
        expected = by_time if figure == "demand_time_at_levels" else by_traffic
        assert np.abs(by_time - by_traffic).max() > 1e-4, figure
        np.testing.assert_allclose(_low(getattr(both, figure)), expected, atol=1e-12)
    times = [one.demand_time_at_levels.low for one in alone]
    np.testing.assert_allclose(both.demand_time_at_levels.low, np.mean(times, axis=0), atol=1e-12)


def _low(figure: Bounds | np.ndarray) -> np.ndarray:
    return figure.low if isinstance(figure, Bounds) else figure


class _Near:
    """A search that ended near its optimum in the first of two states and at it in the second."""

    batch_size = 2

    def delivery(self, works: np.ndarray) -> Delivery:
        assert len(works) == 2
        share = np.array([[0.5, 0.95], [0.92, 0.2]])
        return Delivery(share, np.array([0.95, np.nan]))


def test_of_a_search_near_its_optimum_the_bound_on_all_traffic_alone_is_known() -> None:
    """Two links of 1 and 3 Gbit/s; the state in which the first one is down takes 1/4 of the time."""
    topology = make_topology([(0, 1, 1.0), (0, 2, 3.0)])
    pairs = np.array([[0, 1], [0, 2]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    classes = DemandClasses(("gold", "bronze"), np.array([0, 1, 2]))
    problem = Problem.create(topology, paths, "priority", np.array([[1.0, 3.0]]), classes=classes)
    links = np.array([[True, False]])
    components = Components(("n0-n1",), ("cable",), links, np.array([0.25]))
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    assert states.probability.tolist() == [0.75, 0.25]
    found = measure("near", [_Near()], [problem], components, states)
    # At levels of 100, 99 and 90%.  In the first state each demand may keep all, and all traffic
    # 95% at most.
    np.testing.assert_allclose(found.demand_time_at_levels.low, [[0, 0, 0.25], [0, 0, 0.75]])
    np.testing.assert_allclose(
        found.demand_time_at_levels.high, [[0.75, 0.75, 1], [0.75, 0.75, 0.75]]
    )
    np.testing.assert_allclose(found.demand_mean_share.low, [0.605, 0.7625])
    np.testing.assert_allclose(found.demand_mean_share.high, [0.98, 0.8])
    every, gold, bronze = found.totals
    np.testing.assert_allclose(every.total_traffic_time.low, [0, 0, 0])
    np.testing.assert_allclose(every.total_traffic_time.high, [0, 0, 0.75])
    np.testing.assert_allclose(every.all_demands_time.high, [0, 0, 0.75])
    np.testing.assert_allclose(every.mean.high, 0.75 * 0.95 + 0.25 * 1.52 / 4)
    np.testing.assert_allclose(gold.mean.low, 0.605)
    np.testing.assert_allclose(gold.mean.high, 0.98)
    np.testing.assert_allclose(gold.total_traffic_time.high, [0.75, 0.75, 1])
    np.testing.assert_allclose(gold.all_demands_time.high, [0.75, 0.75, 1])
    np.testing.assert_allclose(bronze.mean.high, 0.8)
    np.testing.assert_allclose(bronze.all_demands_time.low, [0, 0, 0.75])


def test_all_traffic_of_a_demand_without_a_path_is_lost_also_where_it_pauses() -> None:
    problem, components = random_case(3)
    demand = np.zeros((2, problem.paths.num_demands))
    demand[0, 0] = 5.0  # in the first matrix only
    matrices = [problem.with_demand(torch.from_numpy(row[None])) for row in demand]
    none = torch.zeros(problem.path_mask[0].shape, dtype=torch.float64)
    states = most_probable_states(components.unavailability, max_unlisted_probability=0)
    schemes = [Tunnels(one, PathSplits.from_candidate_paths(one.paths, none)) for one in matrices]
    found = measure("none", schemes, matrices, components, states)
    assert float(found.mean.high) == pytest.approx(0, abs=1e-9)
    assert found.demand_mean_share.high[0] == pytest.approx(0, abs=1e-9)
    assert found.demand_time_at_levels.low[0, 0] == pytest.approx(0.5)
