"""Dual bounds against the LP optimum, LP duals and a hand-solved network."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baselines.lp_all import LpAll
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import dual_bound, gap, scaled_dual_bound
from teal.testing import make_topology, random_problem


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(ObjectiveName),
    failed=st.integers(0, 3),
    size=st.sampled_from([0.0, 0.01, 0.3, 5.0]),
)
def test_no_prices_bound_below_the_optimum(seed: int, objective: ObjectiveName, failed: int, size: float) -> None:
    """Against HiGHS, for prices that nobody chose well."""
    problem = random_problem(seed, objective=objective, failed=failed)
    optimum = assess(problem, LpAll().solve(problem)).value
    prices = size * torch.rand(problem.capacity.shape, generator=torch.Generator().manual_seed(seed)).double() ** 3
    sign = 1 if problem.objective.higher_is_better else -1
    for bound in (dual_bound(problem, prices), scaled_dual_bound(problem, prices)):
        assert (sign * (bound - optimum) >= -1e-6 * (1 + optimum)).all()
    assert (sign * (dual_bound(problem, prices) - scaled_dual_bound(problem, prices)) >= -1e-9 * (1 + optimum)).all()


@given(seed=st.integers(0, 10_000), objective=st.sampled_from(ObjectiveName), failed=st.integers(0, 3))
def test_the_duals_of_the_lp_certify_it(seed: int, objective: ObjectiveName, failed: int) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    measured = assess(problem, LpAll().solve(problem))
    torch.testing.assert_close(measured.bound, measured.value, rtol=1e-5, atol=1e-6)
    assert measured.gap.abs().max() < 1e-5


def test_a_hand_solved_network() -> None:
    """Demand 10 over one link of capacity 4: price p bounds by 4 p + 10 max(0, 1 - p)."""
    topology = make_topology([(0, 1, 4.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([10.0]))
    for price, bound in [(0.0, 10.0), (0.5, 7.0), (1.0, 4.0), (2.0, 8.0)]:
        assert dual_bound(problem, torch.tensor([[price]])).item() == pytest.approx(bound)
    assert scaled_dual_bound(problem, torch.tensor([[2.0]])).item() == pytest.approx(4.0)
    assert dual_bound(problem, torch.tensor([[float("nan")]])).item() == 10.0, "NaN counts as 0"
    assert gap(problem, torch.tensor([3.0]), torch.tensor([4.0])).item() == pytest.approx(0.25)
    least = Problem.create(topology, paths, Objective(ObjectiveName.MAX_LINK_UTILISATION), np.array([10.0]))
    assert dual_bound(least, torch.tensor([[0.7]])).item() == pytest.approx(2.5)


@given(seed=st.integers(0, 10_000), failed=st.integers(0, 3))
def test_equal_values_give_the_same_bound_by_the_short_way(seed: int, failed: int) -> None:
    """Where no link has a cost the cheapest path of a demand serves all scales; a tiny cost forbids it."""
    problem = random_problem(seed, failed=failed)
    prices = torch.rand(problem.capacity.shape, generator=torch.Generator().manual_seed(seed)).double()
    assert not problem.has_link_cost
    costly = dataclasses.replace(problem, link_cost=problem.link_cost + 1e-300)
    assert costly.has_link_cost
    for bound in (dual_bound, scaled_dual_bound):
        assert torch.equal(bound(problem, prices), bound(costly, prices))
