"""The bound under a limit on churn, against linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.errors import InputError
from teal.problem.churn import ChurnLimit, live_part
from teal.problem.sets import Capped
from teal.testing import random_problem


def _limited(
    seed: int, share: float, objective: teal.ObjectiveName = teal.ObjectiveName.TOTAL_FLOW
) -> teal.Problem:
    problem = random_problem(seed, objective=objective, batch=3, failed=1)
    rng = np.random.default_rng(seed)
    previous = torch.from_numpy(
        rng.dirichlet([0.4] * problem.paths.num_paths, problem.path_mask.shape[:2])
    )
    return problem.with_churn_limit(previous * rng.random(), share)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.02, 0.1, 1.0]))
def test_no_prices_prove_less_than_the_optimum_and_the_lps_prices_prove_it(
    seed: int, share: float
) -> None:
    problem = _limited(seed, share, teal.ObjectiveName.WEIGHTED_FLOW)
    exact = teal.make_scheme("lp-all").solve(problem)
    assert exact.prices is not None
    optimum = problem.value(exact.splits)
    np.testing.assert_allclose(
        teal.dual_bound(problem, exact.prices), optimum, rtol=1e-5, atol=1e-6
    )
    rng = np.random.default_rng(seed)
    any_prices = torch.from_numpy(rng.exponential(1.0, tuple(problem.capacity.shape)))
    assert bool((teal.dual_bound(problem, any_prices) >= optimum * (1 - 1e-7) - 1e-7).all())
    assert bool(
        (
            teal.scaled_dual_bound(problem, torch.zeros_like(any_prices))
            >= optimum * (1 - 1e-7) - 1e-7
        ).all()
    )
    assert bool((teal.violations(problem, exact.splits).largest <= 1e-6).all())


def test_the_best_profit_of_a_demand_by_hand() -> None:
    """Profits 3, 2, 1; 0.5 is in force on the second path and 0.2 on the third; moving costs
    1.5."""
    profit = torch.tensor([[[3.0, 2.0, 1.0, 1.5, 0.5, -0.5]]], dtype=torch.float64)
    largest = torch.tensor([[[0.0, 0.5, 0.2, 1.0, 1.0, 1.0]]], dtype=torch.float64)
    best = Capped(largest).support(profit, torch.ones_like(profit, dtype=torch.bool))
    # In the order of profits: 0.5 stays for 2, 0.5 moves to the first path for 1.5; the 0.2 at 1
    # find no room.
    assert float(best) == pytest.approx(0.5 * 2 + 0.5 * 1.5)


def test_what_moves_is_what_exceeds_the_splits_in_force_on_live_paths() -> None:
    problem = _limited(3, 0.1)
    limit, program = problem.condition(ChurnLimit), problem.program
    assert limit is not None
    kept = limit.installed_shares(program)
    assert bool((kept[~problem.path_mask] == 0).all())
    np.testing.assert_allclose(limit.moved(program, kept), 0)
    np.testing.assert_allclose(limit.moved(program, kept * 0), 0)
    even = problem.even_splits
    expected = (problem.demand[..., None] * (even - kept).clamp(min=0)).sum((1, 2))
    np.testing.assert_allclose(limit.moved(program, even), expected)
    over = teal.violations(problem, even).conditions["churn"] * problem.routable_demand.sum(1)
    np.testing.assert_allclose(over, (expected - limit.budget(program)).clamp(min=0))
    row = limit.rows(slice(1, 2)).moved(problem.row(1).program, even[1:2])
    np.testing.assert_allclose(row, expected[1:2])


def test_limits_are_checked() -> None:
    problem = random_problem(1)
    with pytest.raises(InputError, match="share"):
        problem.with_churn_limit(problem.even_splits, 1.5)
    with pytest.raises(InputError, match="previous"):
        problem.with_churn_limit(problem.even_splits[:, :2], 0.1)
    balanced = random_problem(1, objective=teal.ObjectiveName.MAX_LINK_UTILISATION)
    with pytest.raises(InputError, match="an objective"):
        balanced.with_churn_limit(balanced.even_splits, 0.1)


@pytest.mark.parametrize(("name", "load"), [("b4", 8.0), ("topohub:sndlib/geant", 8.0)])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 1.0])
def test_the_value_is_within_the_gap_of_the_lps_optimum(
    name: str, load: float, share: float
) -> None:
    topology = teal.load_topology(name)
    traffic = teal.load_traffic(f"gravity:seed=0,count=3,load={load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0, 1, 2]))
    before = teal.solve(problem.rows(slice(0, 2)), gap=1e-3)
    limited = problem.rows(slice(1, 3)).with_churn_limit(before.splits, share)
    found = teal.solve(limited, gap=1e-3)
    optimum = limited.value(teal.make_scheme("lp-all").solve(limited).splits)
    assert bool((found.gap <= 1e-3).all())
    assert bool((found.value <= optimum * (1 + 1e-6)).all())
    assert bool((found.bound >= optimum * (1 - 1e-6)).all())
    assert bool((teal.violations(limited, found.splits).largest <= 1e-9).all())
    np.testing.assert_allclose(teal.dual_bound(limited, found.prices), found.bound, rtol=1e-3)
    warm = teal.solve(limited, gap=1e-3, warm_start=found)
    assert warm.iterations <= found.iterations


@pytest.mark.parametrize("seed", range(6))
def test_engines_find_the_same_optimum_under_a_limit(seed: int) -> None:
    problem = _limited(seed, 0.05)
    fused, plain = (teal.solve(problem, gap=1e-4, engine=engine) for engine in ("fused", "plain"))
    for result in (fused, plain):
        assert bool((teal.violations(problem, result.splits).largest <= 1e-9).all())
        assert bool((result.gap <= 1e-4).all())
    assert bool((fused.value <= plain.bound * (1 + 1e-9)).all())
    assert bool((plain.value <= fused.bound * (1 + 1e-9)).all())
    with pytest.raises(InputError, match="no compiled engine"):
        teal.solve(random_problem(seed).with_protection(), engine="fused")


def test_splits_in_force_that_sum_above_one_count_as_scaled_to_one() -> None:
    problem = random_problem(3, batch=1)
    twice = 2 * problem.even_splits
    np.testing.assert_allclose(live_part(problem.program, twice), problem.even_splits)
    limited, scaled = (
        problem.with_churn_limit(twice, 0.05),
        problem.with_churn_limit(problem.even_splits, 0.05),
    )
    first = torch.zeros_like(twice)
    first[..., 0] = 1.0
    expected = teal.violations(scaled, first).conditions["churn"]
    assert float(expected) > 0.1
    np.testing.assert_allclose(teal.violations(limited, first).conditions["churn"], expected)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.0, 0.02, 0.1, 0.5]))
def test_splits_are_scaled_down_to_the_limit_as_little_as_an_lp_finds(
    seed: int, share: float
) -> None:
    """The LP: largest flow over a factor f of each demand, moved[d, k] >= f flow[d, k] - kept[d,
    k], sum of moved."""
    from scipy.optimize import linprog

    problem = _limited(seed, share)
    rng = np.random.default_rng(seed)
    splits = torch.from_numpy(
        rng.dirichlet(np.full(problem.paths.num_paths, 0.5), problem.demand.shape)
    )
    splits = torch.where(problem.path_mask, splits, 0).to(torch.float64)
    (limit,) = problem.conditions
    assert isinstance(limit, ChurnLimit)
    scaled = limit.scaled(problem.program, splits)
    assert float(limit.violation(problem.program, scaled).max()) < 1e-9
    torch.testing.assert_close(
        scaled * splits.sum(-1, keepdim=True), splits * scaled.sum(-1, keepdim=True)
    )
    for b in range(problem.batch):
        flow = problem.program.flows(splits)[b].numpy()
        kept = problem.program.flows(limit.installed_shares(problem.program))[b].numpy()
        demands, paths = flow.shape
        moves = np.eye(demands * paths)
        upper = np.vstack(
            [
                np.hstack([np.repeat(np.eye(demands), paths, 0) * flow.reshape(-1, 1), -moves]),
                np.hstack([np.zeros((1, demands)), np.ones((1, demands * paths))]),
            ]
        )
        best = linprog(
            np.concatenate([-flow.sum(1), np.zeros(demands * paths)]),
            A_ub=upper,
            b_ub=np.append(kept.reshape(-1), float(limit.budget(problem.program)[b])),
            bounds=[(0, 1)] * demands + [(0, None)] * (demands * paths),
        )
        assert float(problem.program.flows(scaled)[b].sum()) == pytest.approx(
            -best.fun, rel=1e-6, abs=1e-9
        )
