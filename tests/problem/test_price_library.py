"""Libraries of dual prices: a hand-solved network, validity against the optima of HiGHS after
changes of demands, capacities, paths and values, and which vectors a full library keeps."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import teal
from baselines.lp_all import LpAll
from teal.network.path_links import path_links_of
from teal.problem.bounds import dual_bound
from teal.problem.price_library import PriceLibrary
from teal.testing import make_topology, random_problem

OBJECTIVES = (
    "total_flow",
    "weighted_flow",
    "latency_penalised_flow",
    "max_link_utilisation",
    "max_concurrent_flow",
)
MAXIMA = {"total_flow", "weighted_flow", "latency_penalised_flow", "max_concurrent_flow"}


def optimum_of(problem: teal.Problem) -> torch.Tensor:
    """Return the optimal values (B,) that HiGHS finds."""
    return teal.assess(problem, LpAll().solve(problem)).value


def other_matrices(problem: teal.Problem, seed: int, *, failed: int) -> teal.Problem:
    """Return a problem with five other matrices, and failed links in each of them."""
    random = np.random.default_rng(seed)
    demand = problem.demand[:1].numpy() * random.gamma(2.0, 1.0, (5, problem.demand.shape[1]))
    capacity = np.repeat(problem.capacity[:1].numpy(), 5, axis=0)
    for row in capacity:
        row[random.choice(len(row), failed, replace=False)] = 0
    return dataclasses.replace(
        problem, demand=torch.from_numpy(demand), capacity=torch.from_numpy(capacity)
    )


def test_two_vectors_bound_a_hand_solved_network() -> None:
    """Two links in series, of 4 (last: of unlimited) and 6 Gbit/s, a demand over both and one over
    each.

    The price vectors are unit vectors of the links: (1, 0) proves 4 + d[2], (0, 1) proves 6 + d[0].
    """
    topology = make_topology([(0, 1, 4.0), (1, 2, 6.0)])
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    paths = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    demand = np.array([[1.0, 9.0, 0.5], [0.5, 9.0, 5.0], [1.0, 1.0, 1.0], [1.0, 9.0, 1.0]])
    capacity = np.array([[4.0, 6.0], [4.0, 6.0], [4.0, 6.0], [1e12, 6.0]])
    problem = teal.Problem.create(topology, paths, "total_flow", demand, capacity=capacity)
    library = PriceLibrary()
    assert library.prices(problem) is None
    assert library.bound(problem).tolist() == [math.inf] * 4
    assert library.add(problem.rows(slice(0, 2)), torch.eye(2, dtype=torch.float64)) == 2
    # Third: 4 + 1 and 6 + 1 (all demand is 3).  Capacity counts up to all demand of 3 or 11.
    bounds = [min(4 + 0.5, 6 + 1.0), min(4 + 5.0, 6 + 0.5), min(3 + 1.0, 3 + 1.0), 6 + 1.0]
    assert library.bound(problem).tolist() == bounds
    prices = library.prices(problem)
    assert prices is not None
    assert prices[[0, 1, 3]].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]


def test_bounds_of_the_largest_utilisation_in_exact_fractions() -> None:
    """A demand of 3 Gbit/s over links of 2 and of 4 Gbit/s: prices (1, 1) prove a utilisation of
    3 / 6."""
    topology = make_topology([(0, 1, 2.0), (0, 1, 4.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1]]), num_paths=2, cache=False)
    demand = np.array([[3.0], [6.0], [3.0]])
    capacity = np.array([[2.0, 4.0], [2.0, 4.0], [2.0, 0.0]])
    problem = teal.Problem.create(
        topology, paths, "max_link_utilisation", demand, capacity=capacity
    )
    library = PriceLibrary()
    assert library.bound(problem).tolist() == [0, 0, 0]
    library.add(problem.row(0), torch.ones((1, 2), dtype=torch.float64))
    expected = [Fraction(3, 6), Fraction(6, 6), Fraction(3, 2)]
    assert library.bound(problem).tolist() == [float(bound) for bound in expected]


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(OBJECTIVES),
    failed=st.integers(0, 2),
)
def test_bounds_hold_for_other_matrices_and_failures(
    seed: int, objective: str, failed: int
) -> None:
    base = random_problem(seed, objective=teal.ObjectiveName(objective), batch=4)
    library = PriceLibrary()
    result = teal.solve(base, gap=1e-6)
    library.add(base, result.prices)
    others = other_matrices(base, seed, failed=failed)
    optimum = optimum_of(others)
    sense = 1 if objective in MAXIMA else -1
    bound = library.bound(others)
    assert (sense * (bound - optimum) >= -1e-6 * (1 + optimum.abs())).all()
    # The vector that is returned proves at least as much over live paths.
    prices = library.prices(others)
    if prices is not None:
        exact = dual_bound(others, prices)
        assert (sense * (bound - exact) >= -1e-9 * (1 + exact.abs())).all()
        assert (sense * (exact - optimum) >= -1e-6 * (1 + optimum.abs())).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_library_knows_the_optima_of_its_own_matrices(objective: str) -> None:
    """Within the gap of their solves, and the bounds of other matrices are close to the optimum."""
    is_close = []
    for seed in range(12):
        base = random_problem(seed, objective=teal.ObjectiveName(objective), batch=6)
        library = PriceLibrary()
        library.add(base, teal.solve(base, gap=1e-6).prices)
        optimum = optimum_of(base)
        # A vector is left out if the others come within 1e-4.
        torch.testing.assert_close(library.bound(base), optimum, rtol=2e-4, atol=1e-6)
        others = other_matrices(base, seed, failed=0)
        optimum = optimum_of(others)
        slack = (library.bound(others) - optimum).abs() / optimum.abs().clamp(min=1e-9)
        is_close.append(slack < 0.5)
    assert torch.cat(is_close).float().mean() > 0.7


def test_changed_paths_and_values_get_new_factors() -> None:
    """A path that is added, or a larger weight, raises the bound that a stored vector proves."""
    topology = make_topology([(0, 1, 1.0), (0, 1, 5.0)])
    pairs = np.array([[0, 1]])
    demand = np.array([[8.0]])
    both = teal.compute_paths(topology, pairs, num_paths=2, cache=False)
    one = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    first_link = int(path_links_of(one).link[0])
    prices = torch.zeros((1, 2), dtype=torch.float64)
    prices[0, first_link] = 1.0
    library = PriceLibrary()
    few = teal.Problem.create(topology, one, "total_flow", demand)
    library.add(few, prices)
    capacity = float(few.capacity[0, first_link])
    assert library.bound(few).tolist() == [capacity]
    many = teal.Problem.create(topology, both, "total_flow", demand)
    # The other path is free at these prices, so that all demand may be carried.
    assert library.bound(many).tolist() == [capacity + 8.0]
    assert library.bound(few).tolist() == [capacity]
    weighted = teal.Problem.create(topology, one, "weighted_flow", demand, weight=np.array([3.0]))
    assert library.bound(weighted).tolist() == [capacity + 2 * 8.0]


def test_a_full_library_drops_the_vector_that_was_used_least_recently() -> None:
    """Three links in series; the vector of a link is the tightest one where that link is scarce."""
    topology = make_topology([(0, 1, 9.0), (1, 2, 9.0), (2, 3, 9.0)])
    paths = teal.compute_paths(topology, np.array([[0, 3]]), num_paths=1, cache=False)
    capacity = np.array([[1.0, 9, 9], [9, 2.0, 9], [9, 9, 3.0]])
    problem = teal.Problem.create(
        topology, paths, "total_flow", np.full((3, 1), 20.0), capacity=capacity
    )
    library = PriceLibrary(size=2)
    units = torch.eye(3, dtype=torch.float64)
    library.add(problem.row(0), units[:1])
    library.add(problem.row(1), units[1:2])
    # The first vector is used again, so that the second one leaves.
    assert library.bound(problem.row(0)).tolist() == [1.0]
    assert library.add(problem.row(2), units[2:]) == 1
    assert len(library) == 2
    assert library.bound(problem).tolist() == [1.0, 9.0, 3.0]
    # A vector that tightens no bound is not added.
    assert library.add(problem.row(0), units[:1]) == 0


def test_the_same_prices_are_added_once() -> None:
    """With failed links, too, over which the library counts paths."""
    for seed in range(6):
        problem = random_problem(seed, batch=3, failed=1)
        prices = teal.solve(problem, gap=1e-6).prices
        library = PriceLibrary()
        counts = [library.add(problem, prices) for _ in range(4)]
        assert counts[1:] == [0, 0, 0]
        assert len(library) == counts[0] <= 3


def test_prices_with_a_gradient_are_stored_without_it() -> None:
    problem = random_problem(1, batch=3)
    prices = teal.solve(problem, gap=1e-6).prices.clone().requires_grad_()
    library = PriceLibrary()
    library.add(problem, prices)
    assert not library.bound(problem).requires_grad


def test_bounds_of_float32_problems_are_those_of_float64() -> None:
    for seed in range(8):
        objective = teal.ObjectiveName("latency_penalised_flow")
        problem = random_problem(seed, objective=objective, batch=3)
        prices = teal.solve(problem, gap=1e-6).prices
        bounds = []
        for dtype in (torch.float32, torch.float64):
            library = PriceLibrary()
            same = problem.to(torch.float32).to(dtype)
            library.add(same, prices)
            bounds.append(library.bound(same))
        torch.testing.assert_close(*bounds, rtol=1e-12, atol=0)


def test_prices_that_are_no_numbers_prove_nothing_false() -> None:
    problem = random_problem(3, batch=3)
    prices = torch.full_like(problem.capacity, math.nan)
    prices[1] = math.inf
    prices[2] = -5.0
    library = PriceLibrary()
    library.add(problem, prices)
    assert (library.bound(problem) >= optimum_of(problem) * (1 - 1e-9)).all()


def test_another_network_is_refused() -> None:
    library = PriceLibrary()
    problem = random_problem(0, batch=3)
    library.add(problem, teal.solve(problem, gap=1e-4).prices)
    topology = make_topology([(0, 1, 1.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1]]), num_paths=1, cache=False)
    other = teal.Problem.create(topology, paths, "total_flow", np.ones((1, 1)))
    with pytest.raises(ValueError, match="another network"):
        library.bound(other)


def test_programs_that_are_not_linear_are_not_accepted() -> None:
    assert PriceLibrary.accepts(random_problem(0))
    for objective in ("proportional_fair", "max_min", "least_cost"):
        problem = random_problem(0, objective=teal.ObjectiveName(objective))
        assert not PriceLibrary.accepts(problem)
