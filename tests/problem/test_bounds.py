"""Dual bounds against LP-all optima, LP duals and a hand-solved network."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baselines.lp_all import LpAll
from teal.network import compute_paths
from teal.network.path_changes import select_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import all_paths_bound, dual_bound, gap, relative_gap, scaled_dual_bound
from teal.testing import make_topology, random_problem


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.integers(0, 3),
    price_scale=st.sampled_from([0.0, 0.01, 0.3, 5.0]),
)
def test_dual_bounds_of_any_prices_hold_for_the_lp_optimum(
    seed: int, objective: ObjectiveName, failed: int, price_scale: float
) -> None:
    """Random prices, against the optimum of HiGHS."""
    problem = random_problem(seed, objective=objective, failed=failed)
    optimum = assess(problem, LpAll().solve(problem)).value
    prices = (
        price_scale
        * torch.rand(problem.capacity.shape, generator=torch.Generator().manual_seed(seed)).double()
        ** 3
    )
    sign = problem.objective.rules.sense
    for bound in (dual_bound(problem, prices), scaled_dual_bound(problem, prices)):
        assert (sign * (bound - optimum) >= -1e-6 * (1 + optimum)).all()
    assert (
        sign * (dual_bound(problem, prices) - scaled_dual_bound(problem, prices))
        >= -1e-9 * (1 + optimum)
    ).all()


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.integers(0, 3),
)
def test_lp_duals_certify_the_lp_optimum(seed: int, objective: ObjectiveName, failed: int) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    measured = assess(problem, LpAll().solve(problem))
    torch.testing.assert_close(measured.bound, measured.value, rtol=1e-5, atol=1e-6)
    assert measured.gap.abs().max() < 1e-5


def test_dual_bounds_of_one_link_equal_values_computed_by_hand() -> None:
    """Demand 10 over one link of capacity 4: price p gives the bound 4 p + 10 max(0, 1 - p)."""
    topology = make_topology([(0, 1, 4.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([10.0]))
    for price, bound in [(0.0, 10.0), (0.5, 7.0), (1.0, 4.0), (2.0, 8.0)]:
        assert dual_bound(problem, torch.tensor([[price]])).item() == pytest.approx(bound)
    assert scaled_dual_bound(problem, torch.tensor([[2.0]])).item() == pytest.approx(4.0)
    assert dual_bound(problem, torch.tensor([[float("nan")]])).item() == 10.0, "NaN counts as 0"
    assert gap(problem, torch.tensor([3.0]), torch.tensor([4.0])).item() == pytest.approx(0.25)
    utilisation_problem = Problem.create(
        topology, paths, Objective(ObjectiveName.MAX_LINK_UTILISATION), np.array([10.0])
    )
    assert dual_bound(utilisation_problem, torch.tensor([[0.7]])).item() == pytest.approx(2.5)


@given(seed=st.integers(0, 10_000), failed=st.integers(0, 3))
def test_dual_bounds_without_link_costs_equal_those_of_the_general_case(
    seed: int, failed: int
) -> None:
    """Without link costs one cheapest path per demand serves all scales; a negligible cost forces
    the general case."""
    problem = random_problem(seed, failed=failed)
    prices = torch.rand(
        problem.capacity.shape, generator=torch.Generator().manual_seed(seed)
    ).double()
    assert not problem.has_link_cost
    costly = dataclasses.replace(problem, link_cost=problem.link_cost + 1e-300)
    assert costly.has_link_cost
    for bound in (dual_bound, scaled_dual_bound):
        assert torch.equal(bound(problem, prices), bound(costly, prices))


@pytest.mark.parametrize("price", [1e3, 1e5])
def test_prices_that_are_far_too_large_prove_the_value_of_all_routable_demand(price: float) -> None:
    problem = random_problem(0, failed=2)
    everything = (problem.routable_demand * problem.demand_value).sum(1)
    bound = scaled_dual_bound(problem, torch.full_like(problem.capacity, price))
    torch.testing.assert_close(bound, everything)


def test_over_all_paths_a_balanced_program_includes_what_the_allocation_includes() -> None:
    """0 -> 2 has one candidate path, over 1, which fails; the network has the direct link, which is
    no candidate."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (0, 2, 4.0)])
    pairs = np.array([[0, 1], [0, 2]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    kept = [
        [k for k in range(2) if paths.mask[d, k] and len(paths.links_of(d, k)) == 1 + d]
        for d in range(2)
    ]
    paths = select_paths(paths, np.array(kept, np.int32))
    problem = Problem.create(
        topology,
        paths,
        Objective(ObjectiveName.MAX_LINK_UTILISATION),
        np.array([5.0, 8.0]),
        capacity=np.array([10.0, 0.0, 4.0]),
    )
    assert problem.routable.tolist() == [[True, False]]
    optimum = 0.5  # 5 on the link of 10 alone
    for seed in range(5):
        prices = torch.rand(
            problem.capacity.shape, generator=torch.Generator().manual_seed(seed)
        ).double()
        assert all_paths_bound(problem, prices).item() <= optimum + 1e-12
    only_first = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert all_paths_bound(problem, only_first).item() == pytest.approx(optimum)


def test_the_gap_of_negative_values_is_that_of_the_losses() -> None:
    """To maximise -L is to minimise L; the numbers are computed by hand."""
    loss, bound = np.array([0.5, 3.0, 0.2, 0.0]), np.array([0.2, 3.0, 0.0, 0.0])
    expected = [0.6, 0.0, 1.0, 0.0]
    assert relative_gap(loss, bound, -1.0) == pytest.approx(expected)
    assert relative_gap(-loss, -bound, 1.0) == pytest.approx(expected)
    assert relative_gap(-bound, -loss, -1.0) == pytest.approx(expected)
    assert relative_gap(np.array([-2.0]), np.array([3.0]), 1.0) >= 1, (
        "nothing is proven of a value below 0"
    )
    assert np.isnan(relative_gap(np.array([1.0]), np.array([np.nan]), 1.0))


def test_a_value_beyond_its_bound_has_gap_0_where_rounding_explains_it_and_a_negative_one_elsewhere() -> (
    None
):
    values = np.array([1 + 1e-13, 1 + 1e-8, 1 + 1e-3])
    gaps = relative_gap(values, np.ones(3), 1.0)
    assert f"{gaps[0]:.3f}" == "0.000", "without a minus sign"
    assert gaps[1:] == pytest.approx([-1e-8, -1e-3], rel=1e-3)
    np.testing.assert_array_equal(relative_gap(np.ones(3), values, -1.0), gaps)
