"""The bound under a limit on churn, against linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.errors import InputError
from teal.problem.churn import best_profit
from teal.testing import random_problem


def _limited(seed: int, share: float, objective: teal.ObjectiveName = teal.ObjectiveName.TOTAL_FLOW) -> teal.Problem:
    problem = random_problem(seed, objective=objective, batch=2, failed=1)
    rng = np.random.default_rng(seed)
    previous = torch.from_numpy(rng.dirichlet([0.4] * problem.paths.num_paths, problem.path_mask.shape[:2]))
    return problem.with_churn_limit(previous * rng.random(), share)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.02, 0.1, 1.0]))
def test_no_prices_prove_less_than_the_optimum_and_the_lps_prices_prove_it(seed: int, share: float) -> None:
    problem = _limited(seed, share, teal.ObjectiveName.WEIGHTED_FLOW)
    exact = teal.make_scheme("lp-all").solve(problem)
    assert exact.prices is not None
    optimum = problem.value(exact.splits)
    np.testing.assert_allclose(teal.dual_bound(problem, exact.prices), optimum, rtol=1e-5, atol=1e-6)
    rng = np.random.default_rng(seed)
    any_prices = torch.from_numpy(rng.exponential(1.0, tuple(problem.capacity.shape)))
    assert bool((teal.dual_bound(problem, any_prices) >= optimum * (1 - 1e-7) - 1e-7).all())
    assert bool((teal.scaled_dual_bound(problem, torch.zeros_like(any_prices)) >= optimum * (1 - 1e-7) - 1e-7).all())
    assert bool((teal.violations(problem, exact.splits).largest <= 1e-6).all())


def test_the_best_profit_of_a_demand_by_hand() -> None:
    """Profits 3, 2, 1; 0.5 is in force on the second path and 0.2 on the third; moving costs 1.5."""
    profit = torch.tensor([[[3.0, 2.0, 1.0]]], dtype=torch.float64)
    kept = torch.tensor([[[0.0, 0.5, 0.2]]], dtype=torch.float64)
    best, moved = best_profit(profit, kept, torch.tensor([1.5], dtype=torch.float64))
    # In the order of profits: 0.5 stays for 2, 0.5 moves to the first path for 1.5; the 0.2 at 1 find no room.
    assert float(best) == pytest.approx(0.5 * 2 + 0.5 * 1.5)
    assert float(moved) == pytest.approx(0.5)


def test_what_moves_is_what_exceeds_the_splits_in_force_on_live_paths() -> None:
    problem = _limited(3, 0.1)
    kept = problem.kept_splits
    assert bool((kept[~problem.path_mask] == 0).all())
    np.testing.assert_allclose(problem.moved(kept), 0)
    np.testing.assert_allclose(problem.moved(kept * 0), 0)
    even = problem.even_splits
    expected = (problem.demand[..., None] * (even - kept).clamp(min=0)).sum((1, 2))
    np.testing.assert_allclose(problem.moved(even), expected)
    over = teal.violations(problem, even).churn * problem.routable_demand.sum(1)
    np.testing.assert_allclose(over, (expected - problem.churn_budget).clamp(min=0))
    rows = problem.row(1)
    np.testing.assert_allclose(rows.moved(even[1:]), expected[1:])


def test_limits_are_checked() -> None:
    problem = random_problem(1)
    with pytest.raises(InputError, match="share"):
        problem.with_churn_limit(problem.even_splits, 1.5)
    with pytest.raises(InputError, match="previous"):
        problem.with_churn_limit(problem.even_splits[:, :2], 0.1)
    balanced = random_problem(1, objective=teal.ObjectiveName.MAX_LINK_UTILISATION)
    with pytest.raises(InputError, match="objective"):
        balanced.with_churn_limit(balanced.even_splits, 0.1)
