"""Promises, against programs over every state of small networks, and their bounds against anything
that could be handed to them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from teal.errors import InputError
from teal.network import DemandClasses, all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability import guarantees
from teal_availability.certificates import (
    common_share_bound,
    expected_share,
    expected_share_bound,
    quantile_shares,
    tail_mean_shares,
)
from teal_availability.components import components_of
from teal_availability.guarantees import (
    common_quantile,
    guarantee_common_fraction,
    guarantee_common_fractions,
    guarantee_min_loss,
)
from teal_availability.survival import SurvivalStates, survival_probabilities
from tests.bounds import Cases
from tests.explicit import explicit_paths
from tests.teal_availability.brute import every_state, random_case, works

_SEEDS = st.integers(0, 10_000)


def _states(problem: Problem, components) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """Times of all states, and (S, n) which of the explicit paths survive."""
    use, _ = explicit_paths(problem)
    times, alive = [], []
    for time, down in every_state(components.unavailability):
        state = works(components, down, problem.topology.num_links)
        times.append(time)
        alive.append(use[~state].sum(0) == 0)
    return np.array(times), np.array(alive)


def _within_capacity(problem: Problem, rates: np.ndarray) -> bool:
    use, _ = explicit_paths(problem)
    load = use @ rates[problem.path_mask[0].numpy()]
    return bool((load <= problem.topology.capacity * (1 + 1e-9)).all()) and bool((rates >= 0).all())


@given(seed=_SEEDS)
@settings(max_examples=15, deadline=None)
def test_the_least_loss_is_that_of_the_program_over_all_states(seed: int) -> None:
    problem, components = random_case(seed, nodes=4, count=6)
    demand = problem.demand[0].numpy()
    if not demand.sum() > 0:
        return
    use, of_demand = explicit_paths(problem)
    times, alive = _states(problem, components)
    paths, demands, states = use.shape[1], len(demand), len(times)
    rows, right = (
        [np.hstack([use, np.zeros((len(use), states * demands))])],
        [problem.topology.capacity],
    )
    for s in range(states):
        arrives = np.zeros((demands, states * demands))
        arrives[:, s * demands : (s + 1) * demands] = np.eye(demands)
        rows.append(np.hstack([-of_demand * alive[s], arrives]))
        right.append(np.zeros(demands))
    cost = np.concatenate([np.zeros(paths), -np.repeat(times, demands)])
    bounds = [(0, None)] * paths + [(0, rate) for rate in np.tile(demand, states)]
    best = linprog(cost, np.vstack(rows), np.concatenate(right), bounds=bounds)
    patterns = survival_probabilities(problem, components)
    found = guarantee_min_loss(problem, patterns)
    assert found.value == pytest.approx(-best.fun / demand.sum(), rel=1e-6)
    assert found.bound >= found.value * (1 - 1e-12)
    assert found.gap <= 1e-6
    assert _within_capacity(problem, found.rates)


def _tails(share: np.ndarray, times: np.ndarray, tail: float) -> float:
    """Mean of the worst part of the time."""
    total, left = 0.0, tail
    for s in np.argsort(share):
        part = min(left, times[s])
        total += part * share[s]
        left -= part
    return total / tail


@given(seed=_SEEDS, availability=st.sampled_from([0.6, 0.8, 0.9, 0.95, 0.99]))
@settings(max_examples=20, deadline=None)
def test_a_common_share_is_kept_in_all_states_and_is_the_best_of_the_program(
    seed: int, availability: float
) -> None:
    """What rates keep is measured over all states; the program too has a row for each of them."""
    problem, components = random_case(seed, nodes=4, count=6)
    demand, tail = problem.demand[0].numpy(), 1 - availability
    patterns = survival_probabilities(problem, components)
    found = guarantee_common_fraction(problem, patterns, availability)
    takes = (demand > 0) & ~found.is_excluded
    if not takes.any():
        return
    _use, of_demand = explicit_paths(problem)
    times, alive = _states(problem, components)
    flat = found.rates[problem.path_mask[0].numpy()]
    kept = np.array(
        [np.minimum(1, (of_demand * one) @ flat / np.maximum(demand, 1e-9)) for one in alive]
    )
    own = [_tails(kept[:, d], times, tail) for d in np.flatnonzero(takes)]
    assert found.value == pytest.approx(min(own), abs=1e-9)
    assert _within_capacity(problem, found.rates)
    for d in np.flatnonzero(takes):
        assert times[kept[:, d] >= found.value - 1e-9].sum() >= availability - 1e-9
    best = _largest_share(problem, times, alive, tail, takes, np.full(len(demand), np.nan))
    assert found.value == pytest.approx(best, abs=2e-6)
    assert found.bound >= found.value - 1e-12
    assert found.bound <= best + 1e-6


def _largest_share(
    problem: Problem,
    times: np.ndarray,
    alive: np.ndarray,
    tail: float,
    takes: np.ndarray,
    kept: np.ndarray,
) -> float:
    """The largest common share of those that take part and keep no share of their own, by a program
    over all states: its variables are rates, levels, shortfalls of every demand in every state, and
    the share."""
    use, of_demand = explicit_paths(problem)
    demand = problem.demand[0].numpy()
    numbers = np.flatnonzero(takes)
    paths, demands, states = use.shape[1], len(numbers), len(times)
    width = paths + demands + demands * states + 1
    rows = [np.hstack([use, np.zeros((len(use), width - paths))])]
    right = [problem.topology.capacity]
    for i, d in enumerate(numbers):
        below = np.zeros((states, width))
        below[:, :paths] = -(of_demand[d] * alive) / demand[d]
        below[:, paths + i] = 1
        first = paths + demands + i * states
        below[:, first : first + states] = -np.eye(states)
        rows.append(below)
        right.append(np.zeros(states))
        mean = np.zeros((1, width))
        mean[0, -1], mean[0, paths + i] = np.isnan(kept[d]), -1
        mean[0, first : first + states] = times / tail
        rows.append(mean)
        right.append(-np.nan_to_num(kept[[d]]))
    cost = np.zeros(width)
    cost[-1] = -1
    bounds = [(0, None)] * paths + [(None, 1)] * demands + [(0, None)] * (demands * states)
    best = linprog(cost, np.vstack(rows), np.concatenate(right), bounds=[*bounds, (None, 1)])
    return float(-best.fun)


@given(seed=_SEEDS, availability=st.sampled_from([0.6, 0.8, 0.9, 0.95]))
@settings(max_examples=20, deadline=None)
def test_each_class_has_the_largest_share_beside_those_of_the_upper_ones(
    seed: int, availability: float
) -> None:
    """By the program over all states, in which the upper classes keep what is promised to them."""
    problem, components = random_case(seed, nodes=4, count=5)
    demand = problem.demand[0].numpy()
    classes = DemandClasses(("gold", "silver"), np.array([0, len(demand) // 2, len(demand)]))
    problem = Problem.create(
        problem.topology,
        problem.paths,
        "total_flow",
        demand[None],
        capacity=problem.capacity.numpy(),
        classes=classes,
    )
    patterns = survival_probabilities(problem, components)
    found = guarantee_common_fractions(problem, patterns, availability)
    times, alive = _states(problem, components)
    assert _within_capacity(problem, found[1].rates)
    np.testing.assert_array_equal(found[0].rates, found[1].rates)
    shares = tail_mean_shares(patterns, demand, found[1].rates, availability)
    kept = np.full(len(demand), np.nan)
    takes = np.zeros(len(demand), dtype=bool)
    for number, promise in enumerate(found):
        own = classes.of_demand == number
        own_takes = own & (demand > 0) & ~promise.is_excluded
        if not own_takes.any():
            continue
        takes |= own_takes
        assert promise.value == pytest.approx(shares[own_takes].min(), abs=1e-12)
        best = _largest_share(problem, times, alive, 1 - availability, takes, kept)
        assert promise.value == pytest.approx(best, abs=3e-5)
        assert promise.value - 1e-12 <= promise.bound <= best + 1e-5
        kept[own] = promise.value - 1e-9
    # Any numbers bound the share of silver from above.
    rng = np.random.default_rng(seed)
    silver = found[1]
    prices = rng.random(silver.prices.shape) / problem.topology.capacity.max()
    weights = rng.random(silver.weights.shape)
    of_demand = np.where(takes, rng.random(len(demand)), 0.0)
    limits = np.where(classes.of_demand == 0, kept, np.nan)
    bound = common_share_bound(problem, patterns, availability, prices, weights, of_demand, limits)
    assert bound >= silver.value - 1e-6


def test_no_prices_whatever_prove_less_than_can_be_reached() -> None:
    of_loss, of_share = Cases(), Cases()

    @given(seed=_SEEDS)
    @settings(max_examples=40, deadline=None)
    def check(seed: int) -> None:
        _check_prices(seed, of_loss, of_share)

    check()
    of_loss.require_most()
    of_share.require_most()


def _check_prices(seed: int, of_loss: Cases, of_share: Cases) -> None:
    """Numbers near those that prove an optimum, and far from them."""
    problem, components = random_case(seed)
    patterns = survival_probabilities(problem, components)
    demand = problem.demand[0].numpy()
    loss = guarantee_min_loss(problem, patterns)
    share = guarantee_common_fraction(problem, patterns, 0.9)
    rng = np.random.default_rng(seed)
    for spread in (0.0, 0.01, 0.1, 3.0):

        def noisy(values: np.ndarray, spread: float = spread) -> np.ndarray:
            noise = rng.lognormal(0, 1, values.shape) - 1
            return values * (1 + spread * noise) + spread * rng.normal(0, 0.1, values.shape)

        bound = expected_share_bound(problem, patterns, noisy(loss.prices), noisy(loss.weights))
        assert bound >= loss.value - 1e-12
        trivial = expected_share_bound(problem, patterns, 0 * loss.prices, 0 * loss.weights)
        of_loss.add(trivial < loss.value + 1e-9 or bound < trivial - 1e-6)
        of_demand = np.where((demand > 0) & ~share.is_excluded, rng.random(len(demand)), 0.0)
        # The weight of a demand is at least that of its patterns.
        near = np.where((demand > 0) & ~share.is_excluded, share.weights.sum(1), 0.0)
        prices, weights = noisy(share.prices), noisy(share.weights)
        alone = np.eye(len(demand))[near > 0]
        bounds = [
            common_share_bound(problem, patterns, 0.9, prices, weights, each)
            for each in (of_demand, noisy(near), *alone)
        ]
        assert min(bounds) >= share.value - 1e-12
        if (near > 0).any():  # else no demand has a part in the share
            of_share.add(share.value > 1 - 1e-6 or min(bounds) < 1 - 1e-6)


@given(seed=_SEEDS, availability=st.sampled_from([0.7, 0.9, 0.97]))
@settings(max_examples=40, deadline=None)
def test_the_share_by_cvar_is_never_above_the_true_quantile(seed: int, availability: float) -> None:
    problem, components = random_case(seed)
    patterns = survival_probabilities(problem, components)
    share = guarantee_common_fraction(problem, patterns, availability)
    truth = common_quantile(problem, patterns, availability)
    if truth is None or not (share.rates > 0).any():
        return
    assert truth.value <= truth.bound + 1e-6
    assert share.value <= truth.bound + 1e-6
    demand = problem.demand[0].numpy()
    takes = (demand > 0) & ~share.is_excluded
    kept = quantile_shares(patterns, demand, share.rates, availability)[takes]
    tails = tail_mean_shares(patterns, demand, share.rates, availability)[takes]
    assert (kept >= tails - 1e-9).all()


def test_a_demand_over_two_cables_by_hand() -> None:
    """Two cables of 1 Gbit/s, each down in 10% of the time, and a demand of 1 Gbit/s: reserved on
    both, it is lost in 1% of the time; nothing can be kept in 99.5% of it."""
    topology = make_topology([(0, 1, 1.0), (1, 0, 1.0), (0, 2, 1.0), (2, 1, 1.0)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=2, cache=False)
    demand = np.zeros((1, paths.num_demands))
    demand[0, [tuple(pair) for pair in paths.pairs.tolist()].index((0, 1))] = 1.0
    problem = Problem.create(topology, paths, Objective(), demand)
    whole = components_of(topology, cable_availability=0.9)
    # The second path has one cable that fails: 0 - 2.
    components = type(whole)(
        whole.names[:2], whole.kinds[:2], whole.links[:2], whole.unavailability[:2]
    )
    patterns = survival_probabilities(problem, components)
    loss = guarantee_min_loss(problem, patterns)
    assert loss.value == pytest.approx(0.99)
    assert guarantee_common_fraction(problem, patterns, 0.9).value == pytest.approx(0.9)
    assert guarantee_common_fraction(problem, patterns, 0.995).is_excluded.sum() == 1
    assert expected_share(patterns, demand[0], np.zeros_like(loss.rates)) == 0
    with pytest.raises(InputError, match="a share of the time"):
        guarantee_common_fraction(problem, patterns, 1.0)


@given(seed=_SEEDS)
@settings(max_examples=25, deadline=None)
def test_networks_out_of_reach_get_rates_near_the_best_and_a_bound_that_holds(seed: int) -> None:
    """Small networks for which the linear program is declared out of reach."""
    problem, components = random_case(seed)
    patterns = survival_probabilities(problem, components)
    if not problem.demand.sum() > 0:
        return
    best = guarantee_min_loss(problem, patterns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarantees, "_MAX_ROWS", 0)
        found = guarantee_min_loss(problem, patterns)
        with pytest.raises(InputError, match="survival states"):
            guarantee_common_fraction(problem, patterns, 0.9)
    assert _within_capacity(problem, found.rates)
    assert found.value <= best.value + 1e-9
    assert best.value <= found.bound + 1e-9


def _star(demands: dict[tuple[int, int], float]) -> tuple[Problem, SurvivalStates]:
    """A triangle of 10 Gbit/s, node 3 at 0 by one cable of 1 Gbit/s, and node 4 behind a dead
    link; every cable is up in 99.9% of the time."""
    both = [(0, 1, 10.0), (0, 2, 10.0), (1, 2, 10.0), (0, 3, 1.0), (3, 4, 0.0)]
    topology = make_topology([*both, *((b, a, capacity) for a, b, capacity in both)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=2, cache=False)
    rates = [demands.get((s, t), 0.0) for s, t in paths.pairs.tolist()]
    problem = Problem.create(topology, paths, Objective(), np.array([rates]))
    return problem, survival_probabilities(problem, components_of(topology))


def test_share_and_quantile_leave_out_the_same_demands_also_at_a_tie() -> None:
    """The demand to node 3 is without a path for exactly 1 - availability of the time."""
    problem, patterns = _star({(0, 1): 1.0, (0, 3): 10.0})
    share = guarantee_common_fraction(problem, patterns, 0.999)
    quantile = common_quantile(problem, patterns, 0.999, share)
    assert quantile is not None
    assert share.is_excluded.sum() == 1
    assert share.value <= quantile.value + 1e-9


@pytest.mark.parametrize("availability", [0.9, 0.99, 0.999, 0.9999])
def test_the_quantile_counts_what_is_kept_for_exactly_that_time(availability: float) -> None:
    """One path, up for the availability asked for: its complement rounds to either side."""
    patterns = SurvivalStates(np.array([[1 - availability, availability]]))
    demand, rates = np.array([5.0]), np.array([[5.0]])
    assert quantile_shares(patterns, demand, rates, availability).tolist() == [1.0]
    rounded = SurvivalStates(np.array([[round(1 - availability, 6), availability]]))
    assert quantile_shares(rounded, demand, rates, availability).tolist() == [1.0]
    higher = availability + 0.1 * (1 - availability)
    assert quantile_shares(patterns, demand, rates, higher).tolist() == [0.0]


def test_a_demand_behind_a_dead_link_takes_no_share_from_others() -> None:
    alone = guarantee_common_fraction(*_star({(0, 1): 5.0}), 0.99)
    both = guarantee_common_fraction(*_star({(0, 1): 5.0, (0, 4): 1.0}), 0.99)
    assert both.is_excluded.sum() == 1
    assert both.value == pytest.approx(alone.value, abs=1e-9) != 0


@pytest.mark.parametrize("tiny", [1e-12, 1e-30])
def test_tiny_demands_disturb_no_program(tiny: float) -> None:
    problem, patterns = _star({(0, 1): 5.0, (1, 2): tiny})
    share = guarantee_common_fraction(problem, patterns, 0.99)
    assert share.value == pytest.approx(
        guarantee_common_fraction(*_star({(0, 1): 5.0}), 0.99).value
    )
    assert share.gap <= 1e-5
    assert guarantee_min_loss(problem, patterns).gap <= 1e-9


def test_nothing_can_be_promised_of_nothing() -> None:
    for demands, share in (({}, 1.0), ({(0, 4): 1.0}, 0.0)):
        problem, patterns = _star(demands)
        assert guarantee_min_loss(problem, patterns).value == share
        assert guarantee_common_fraction(problem, patterns, 0.99).value == share


@given(seed=_SEEDS)
@settings(max_examples=25, deadline=None)
def test_at_six_nines_quantiles_are_no_less_than_shares(seed: int) -> None:
    """Tails below the tolerances of solvers."""
    problem, components = random_case(seed)
    components = dataclasses.replace(components, unavailability=np.full(len(components), 1e-6))
    patterns = survival_probabilities(problem, components)
    for availability in (0.999998, 0.9999989):
        share = guarantee_common_fraction(problem, patterns, availability)
        truth = common_quantile(problem, patterns, availability, share)
        if truth is not None and (share.rates > 0).any():
            assert share.value <= truth.value + 1e-6
            assert share.value <= share.bound + 1e-12


@pytest.mark.parametrize("missed", [1e-9, 1e-12, 1e-13])
def test_demands_are_left_out_by_their_own_time_without_a_path(missed: float) -> None:
    """A cable that is down for a tenth of the time allowed leaves nobody out; ten times it does."""
    topology = make_topology([(0, 1, 10.0)], both=True)
    pairs = np.array([[0, 1]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = Problem.create(topology, paths, "total_flow", np.array([[5.0]]))
    for down, expected in ((missed / 10, False), (10 * missed, True)):
        components = components_of(topology, cable_availability=1 - down)
        patterns = survival_probabilities(problem, components)
        promise = guarantee_common_fraction(problem, patterns, 1 - missed)
        assert promise.is_excluded.tolist() == [expected]
        if not expected:
            assert promise.value == pytest.approx(0.9, abs=2e-3)  # lost in a tenth of the tail
            assert promise.bound >= promise.value - 1e-12
