"""The CVaR of the largest loss, against the whole program over every state of small networks, and
its bound against anything that could be handed to it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability import tail_loss
from teal_availability.components import components_of
from teal_availability.guarantees import demands_without_path
from teal_availability.states import most_probable_states
from teal_availability.survival import survival_probabilities
from teal_availability.tail_loss import (
    MergedStates,
    divide,
    guarantee_min_cvar,
    merge_states,
    tail_loss_bound,
)
from tests.explicit import explicit_paths
from tests.teal_availability.brute import every_state, random_case, works

_SEEDS = st.integers(0, 10_000)


def _least_cvar(problem: Problem, components, beta: float, left_out: np.ndarray) -> float:  # type: ignore[no-untyped-def]
    """The optimum of the program with a row for every state and demand."""
    use, of_demand = explicit_paths(problem)
    demand = problem.demand[0].numpy()
    counts = np.flatnonzero((demand > 0) & ~left_out)
    times, alive = [], []
    for time, down in every_state(components.unavailability):
        times.append(time)
        alive.append(use[~works(components, down, problem.topology.num_links)].sum(0) == 0)
    paths, states = use.shape[1], len(times)
    rows = [np.hstack([use, np.zeros((len(use), 1 + states))])]
    right = [problem.topology.capacity]
    for s in range(states):
        excess = np.zeros((len(counts), states))
        excess[:, s] = -1
        arrives = (of_demand * alive[s])[counts] / demand[counts, None]
        rows.append(np.hstack([-arrives, -np.ones((len(counts), 1)), excess]))
        right.append(-np.ones(len(counts)))
    cost = np.concatenate([np.zeros(paths), [1.0], np.array(times) / (1 - beta)])
    found = linprog(cost, np.vstack(rows), np.concatenate(right))
    assert found.status == 0
    return float(found.fun)


@given(seed=_SEEDS, beta=st.sampled_from([0.5, 0.8, 0.95]))
@settings(max_examples=25, deadline=None)
def test_the_share_that_all_keep_is_that_of_the_program_over_all_states(
    seed: int, beta: float
) -> None:
    problem, components = random_case(seed, nodes=4, count=6)
    patterns = survival_probabilities(problem, components)
    demand = problem.demand[0].numpy()
    left_out = demands_without_path(patterns, demand, beta)
    if not ((demand > 0) & ~left_out).any():
        return
    effects = merge_states(
        problem, components, most_probable_states(components.unavailability, 0.0)
    )
    found = guarantee_min_cvar(problem, patterns, effects, beta, gap=1e-9)
    least = _least_cvar(problem, components, beta, left_out)
    assert 1 - found.value == pytest.approx(least, abs=2e-6)
    assert 1 - found.bound <= least + 1e-9
    assert found.bound - found.value <= 2e-6
    use, _ = explicit_paths(problem)
    load = use @ found.rates[problem.path_mask[0].numpy()]
    assert (load <= problem.topology.capacity * (1 + 1e-9)).all()


def test_multiples_of_the_weights_and_prices_of_an_optimum_give_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers next to the best ones, whose bound is above 0 and would be too large without the
    limits of a state, of a path and of the sum."""
    used: list[tuple[np.ndarray, sp.csr_array]] = []

    def noted(
        problem: Problem,
        effects: MergedStates,
        beta: float,
        prices: np.ndarray,
        weights: sp.csr_array,
    ) -> float:
        used.append((prices, weights))
        return tail_loss_bound(problem, effects, beta, prices, weights)

    monkeypatch.setattr(tail_loss, "tail_loss_bound", noted)
    positive = cases = 0
    for seed in range(40):
        problem, components = random_case(seed, nodes=4, count=5)
        demand, beta = problem.demand[0].numpy(), (0.5, 0.8, 0.95)[seed % 3]
        patterns = survival_probabilities(problem, components)
        left_out = demands_without_path(patterns, demand, beta)
        if not ((demand > 0) & ~left_out).any():
            continue
        effects = merge_states(
            problem, components, most_probable_states(components.unavailability, 0.0)
        )
        guarantee_min_cvar(problem, patterns, effects, beta, gap=1e-9)
        least = _least_cvar(problem, components, beta, left_out)
        prices, weights = used[-1]
        for more_weight in (0.5, 1.0, 3.0):
            for more_price in (0.0, 0.5, 1.0, 2.0):
                numbers = more_price * prices, sp.csr_array(more_weight * weights)
                bound = tail_loss_bound(problem, effects, beta, *numbers)
                assert bound <= least + 1e-9
                positive += bound > 1e-3
                cases += 1
    assert positive > cases / 4 > 50


@given(seed=_SEEDS, beta=st.sampled_from([0.5, 0.9]))
@settings(max_examples=25, deadline=None)
def test_any_numbers_give_a_bound(seed: int, beta: float) -> None:
    problem, components = random_case(seed, nodes=4, count=5)
    rng = np.random.default_rng(seed)
    demand = problem.demand[0].numpy()
    patterns = survival_probabilities(problem, components)
    left_out = demands_without_path(patterns, demand, beta)
    counts = (demand > 0) & ~left_out
    if not counts.any():
        return
    effects = merge_states(
        problem, components, most_probable_states(components.unavailability, 0.0)
    )
    weights = rng.normal(0.2, 1, effects.path_set.shape) * counts
    prices = rng.normal(0.2, 1, problem.topology.num_links) / problem.topology.capacity.max()
    bound = tail_loss_bound(problem, effects, beta, prices, sp.csr_array(weights))
    assert bound <= _least_cvar(problem, components, beta, left_out) + 1e-9


@given(seed=_SEEDS)
@settings(max_examples=40, deadline=None)
def test_weights_are_divided_as_far_as_any_division_goes(seed: int) -> None:
    """The sum of all parts is that of a linear program; where it is less than the weights, the
    states that limit it carry no more, and rows whose weight is left have no others."""
    rng = np.random.default_rng(seed)
    rows, states = int(rng.integers(1, 8)), int(rng.integers(1, 9))
    limit = rng.choice([0.02, 0.1, 0.3, 1.5], states) * rng.random(states)
    members = [
        np.flatnonzero(rng.random(states) < 0.4) if rng.random() < 0.8 else np.array([0])
        for _ in range(rows)
    ]
    members = [one if len(one) else np.array([states - 1]) for one in members]
    weight = rng.random(rows) / rows
    found = divide(weight, members, limit)
    assert all(s in members[r] for r, s in zip(found.row, found.state, strict=True))
    assert (np.bincount(found.row, found.weight, rows) <= weight + 1e-9).all()
    assert (np.bincount(found.state, found.weight, states) <= limit + 1e-8).all()
    arcs = [(r, s) for r in range(rows) for s in members[r]]
    of_row, of_state = (np.array(ends) for ends in zip(*arcs, strict=True))
    within = np.vstack(
        [np.arange(rows)[:, None] == of_row, np.arange(states)[:, None] == of_state]
    ).astype(float)
    best = linprog(-np.ones(len(arcs)), within, np.concatenate([weight, limit]))
    assert found.weight.sum() == pytest.approx(-best.fun, abs=1e-7)
    left = weight - np.bincount(found.row, found.weight, rows)
    if weight.sum() + best.fun > 1e-6:
        used = np.bincount(found.state, found.weight, states)[found.limiting]
        np.testing.assert_allclose(used, limit[found.limiting], atol=1e-8)
        for row in np.flatnonzero(left > 1e-6).tolist():
            assert found.limiting[members[row]].all()
    else:
        assert not found.limiting.any()


def test_two_paths_by_hand() -> None:
    """A demand of 2 over a link of 1, or over two links of 3; each is up in 90% of the time.

    With 1 and 2 reserved nothing is lost while the second path is up, and half while only the first
    is, in 0.9 (1 - 0.81) = 17.1% of the time; in 1.9% neither is.  The worst 27.1% are those in
    which not both are up.
    """
    topology = make_topology([(0, 1, 1.0), (0, 2, 3.0), (2, 1, 3.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=2, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([[2.0]]))
    components = components_of(topology, cable_availability=0.9)
    patterns = survival_probabilities(problem, components)
    states = most_probable_states(components.unavailability, 0.0)
    found = guarantee_min_cvar(problem, patterns, merge_states(problem, components, states), 0.729)
    assert 1 - found.value == pytest.approx((0.0855 + 0.019) / 0.271)
    assert found.bound == pytest.approx(found.value)
    uncut = guarantee_min_cvar(
        problem,
        patterns,
        merge_states(problem, components, states),
        0.729,
        counts_disconnected=False,
    )
    assert 1 - uncut.value == pytest.approx(0.0855 / 0.271)


def test_demands_without_a_path_for_long_enough_are_left_out() -> None:
    topology = make_topology([(0, 1, 1.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    components = components_of(topology, cable_availability=0.9)
    states = most_probable_states(components.unavailability, 0.0)
    for rate, share in ((1.0, 0.0), (0.0, 1.0)):
        problem = Problem.create(topology, paths, Objective(), np.array([[rate]]))
        patterns = survival_probabilities(problem, components)
        effects = merge_states(problem, components, states)
        found = guarantee_min_cvar(problem, patterns, effects, 0.95)
        assert (found.value, found.bound) == (share, share)


def test_states_that_are_not_listed_count_as_lost_in_the_value_and_as_carried_in_the_bound() -> (
    None
):
    problem, components = random_case(1, nodes=4, count=6)
    patterns, beta = survival_probabilities(problem, components), 0.5
    states = most_probable_states(components.unavailability, 0.0, max_failed_components=1)
    effects = merge_states(problem, components, states)
    assert effects.unlisted_probability == pytest.approx(states.unlisted_probability)
    found = guarantee_min_cvar(problem, patterns, effects, beta, gap=1e-9)
    least = _least_cvar(problem, components, beta, found.is_excluded)
    assert 1 - found.bound - 1e-9 <= least <= 1 - found.value + 1e-9


def test_wrong_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, components = random_case(1, nodes=4, count=5)
    states = most_probable_states(components.unavailability, 0.0)
    effects = merge_states(problem, components, states)
    with pytest.raises(InputError, match="a share of the time"):
        guarantee_min_cvar(problem, survival_probabilities(problem, components), effects, 1.0)
    few = merge_states(problem, components, most_probable_states(components.unavailability, 0.9))
    if few.unlisted_probability >= 0.01:
        with pytest.raises(InputError, match="listed states cover only"):
            guarantee_min_cvar(problem, survival_probabilities(problem, components), few, 0.99)
    monkeypatch.setattr(tail_loss, "_MAX_ENTRIES", 10)
    with pytest.raises(InputError, match="states times demands"):
        merge_states(problem, components, states)


def test_a_search_ends_within_its_gap() -> None:
    """Of cases of which some have a first program that is further from the optimum."""
    gap = 1e-2
    first_gaps = []
    for seed, nodes, count, beta in (
        (14, 4, 6, 0.5),
        (9, 5, 9, 0.8),
        (16, 5, 9, 0.8),
        (9, 5, 9, 0.9),
    ):
        problem, components = random_case(seed, nodes=nodes, count=count)
        patterns = survival_probabilities(problem, components)
        effects = merge_states(
            problem, components, most_probable_states(components.unavailability, 0.0)
        )
        first = guarantee_min_cvar(problem, patterns, effects, beta, gap=1.0)
        found = guarantee_min_cvar(problem, patterns, effects, beta, gap=gap)
        first_gaps.append(first.bound - first.value)
        assert found.bound - found.value <= gap + 1e-9
    assert max(first_gaps) > gap
