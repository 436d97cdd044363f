"""Samples of demands against the equations of their draw, and the response against its formula in
torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.problem import Problem
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.samples import sample
from teal.solvers.pdhg.solver import starts_from_samples
from teal.solvers.pipeline import solve
from teal.testing import random_problem, with_random_steps


@given(
    seed=st.integers(0, 10_000), size=st.integers(1, 60), spread=st.sampled_from([0.0, 1.0, 4.0])
)
def test_the_expected_number_of_drawn_demands_is_the_asked_one(
    seed: int, size: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.lognormal(0, spread, 80) * (rng.random(80) > 0.2)
    factor = sample._factor(demand, size)
    expected = np.minimum(1, factor * demand[demand > 0]).sum()
    assert expected == pytest.approx(min(size, (demand > 0).sum()), rel=1e-3)


def test_every_demand_is_drawn_with_its_probability() -> None:
    """Over evenly spaced random numbers the shares of draws are the probabilities, since draws are
    systematic."""
    demand = np.array([0.0, 5.0, 0.1, 0.2, 0.3, 0.05, 3.0, 0.4, 0.15])
    factor = sample._factor(demand, 4)
    draws = np.mean(
        [sample._select(demand, factor, offset) for offset in (np.arange(2000) + 0.5) / 2000],
        axis=0,
    )
    np.testing.assert_allclose(draws, np.minimum(1, factor * demand), atol=2e-3)


def test_draws_repeat_and_differ_between_matrices() -> None:
    problem = random_problem(3, nodes=12, batch=3, idle=0.0)
    problem = problem.with_demand(problem.demand[:1].expand(2, -1))
    first, second, other = (sample.draw(problem, 20, row).demands for row in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert first.tolist() != other.tolist()


def test_the_rates_of_a_sample_sum_to_all_demand_on_average() -> None:
    problem = random_problem(3, nodes=12, batch=1, idle=0.0)
    repeated = problem.with_demand(problem.demand.expand(400, -1))
    totals = [float(sample.draw(repeated, 30, row).problem.demand.sum()) for row in range(400)]
    assert np.mean(totals) == pytest.approx(float(problem.demand.sum()), rel=0.01)


def _response(problem: Problem, prices: torch.Tensor, sharpness: float) -> torch.Tensor:
    """(D, K) the formula of the module, B = 1."""
    cost = problem.ops.path_sum(prices[None])[0] - problem.path_value
    exponents = torch.where(problem.path_mask[0], -sharpness * cost, -torch.inf)
    if problem.objective.maximises_value and problem.steps is not None:
        total = torch.zeros_like(exponents)
        start = torch.zeros_like(exponents[:, 0])
        for level, end in zip(problem.steps.level.T, problem.steps.end[0].unbind(-1), strict=True):
            rejected = sharpness * problem.demand_value * (1 - level)
            own = torch.cat([rejected[:, None], exponents], 1).softmax(1)[:, 1:]
            total = total + (end - start)[:, None] * own
            start = end
        return total
    if problem.objective.maximises_value:
        exponents = torch.cat([torch.zeros(len(cost), 1, dtype=torch.float64), exponents], 1)
        return exponents.softmax(1)[:, 1:]
    return torch.where(problem.routable[0, :, None], exponents.softmax(1), 0)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 2]),
    lanes=st.sampled_from([1, 2]),
    has_steps=st.booleans(),
)
def test_the_response_equals_its_formula(
    seed: int, objective: ObjectiveName, failed: int, lanes: int, has_steps: bool
) -> None:
    problem = random_problem(seed, objective=objective, nodes=8, batch=lanes, failed=failed)
    if has_steps and problem.objective.maximises_value:
        problem = with_random_steps(problem, seed)
    rng = np.random.default_rng(seed)
    engine = FusedEngine(problem, None, torch.float64)
    kept = np.flatnonzero(rng.random(problem.paths.num_demands) < 0.1)
    kept_splits = np.where(problem.ops.mask.numpy()[kept], 0.125, 0.0)
    prices = rng.random((lanes, problem.topology.num_links))
    answers = [sample.SampleAnswer(prices[lane], 3.0, kept, kept_splits) for lane in range(lanes)]
    engine.respond(answers)
    actual = engine.state().splits
    has_demand = (problem.demand > 0) & problem.routable
    for lane in range(lanes):
        row = problem.row(lane)
        expected = _response(row, torch.from_numpy(prices[lane]), 3.0)
        expected[kept] = torch.where(row.path_mask[0][kept], torch.from_numpy(kept_splits), 0)
        if objective in (ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.MAX_CONCURRENT_FLOW):
            expected = expected / expected.sum(1, keepdim=True).clamp(min=1e-12)
        is_used = has_demand[lane, :, None] & row.path_mask[0]
        torch.testing.assert_close(actual[lane] * is_used, expected * is_used, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "spec", ["proportional_fair", "alpha_fair:alpha=0.5", "alpha_fair:alpha=4"]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_response_of_a_utility_is_its_best_share_over_the_cheapest_paths(
    spec: str, seed: int
) -> None:
    base = random_problem(seed, nodes=8, batch=3, failed=seed % 3)
    problem = Problem.create(
        base.topology, base.paths, spec, base.demand.numpy(), capacity=base.capacity.numpy()
    )
    engine = FusedEngine(problem, None, torch.float64)
    prices = np.random.default_rng(seed).exponential(3, (3, problem.topology.num_links))
    sharpness = 3.0
    nothing = np.zeros(0, np.int64), np.zeros((0, problem.paths.num_paths))
    engine.respond([sample.SampleAnswer(prices[lane], sharpness, *nothing) for lane in range(3)])
    assert problem.utility is not None
    cost = torch.where(problem.path_mask, problem.ops.path_sum(torch.from_numpy(prices)), torch.inf)
    least = cost.amin(-1)
    share = problem.utility.curve.best_share(least / problem.utility.unit_value.clamp(min=1e-300))
    mix = torch.where(
        problem.path_mask, -sharpness * (cost - least[..., None]), -torch.inf
    ).softmax(-1)
    is_used = ((problem.demand > 0) & problem.routable)[..., None] & problem.path_mask
    actual = torch.where(is_used, engine.state().splits, 0)
    expected = torch.where(is_used, share[..., None] * mix, 0)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_the_elasticity_of_a_utility_is_that_of_its_loads() -> None:
    base = random_problem(4, nodes=8, batch=1, idle=0.0)
    problem = Problem.create(base.topology, base.paths, "alpha_fair:alpha=2", base.demand.numpy())
    engine = FusedEngine(problem, None, torch.float64)
    rng = np.random.default_rng(4)
    sharpness = 0.5
    step = 1e-3
    prices = 5 + rng.random(problem.topology.num_links)  # every share is below 1
    nothing = np.zeros(0, np.int64), np.zeros((0, problem.paths.num_paths))

    def load(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return engine._respond(sample.SampleAnswer(at, sharpness, *nothing), 0, is_summing=True)

    # Of each demand the kernel counts the cheapest path's price alone, so that sums over links are
    # near and not equal.
    _, elasticity = load(prices)
    for link in range(0, len(prices), 5):
        moved = np.zeros(len(prices))
        moved[link] = step
        measured = (load(prices - moved)[0][link] - load(prices + moved)[0][link]) / (2 * step)
        assert 0.4 * measured <= elasticity[link] <= 2.5 * measured + 1e-3


def test_only_utilities_by_demand_start_from_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    base = random_problem(4, nodes=8, batch=1)
    monkeypatch.setattr("teal.solvers.pdhg.solver.is_faster", lambda paths, gap: True)
    for spec, starts in (
        ("proportional_fair", True),
        ("proportional_fair:weight=1", False),
        ("total_flow", True),
    ):
        problem = Problem.create(base.topology, base.paths, spec, base.demand.numpy())
        assert starts_from_samples(problem, 1e-2, "auto") == starts


def test_a_search_from_samples_of_a_utility_reaches_its_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = random_problem(4, nodes=12, batch=1, idle=0.0)
    problem = Problem.create(
        base.topology, base.paths, "proportional_fair", 5 * base.demand.numpy()
    )
    plain = solve(problem, gap=1e-6)
    monkeypatch.setattr("teal.solvers.pdhg.solver.is_faster", lambda paths, gap: True)
    monkeypatch.setattr("teal.solvers.pdhg.samples.start.MAX_SHARE", 1.0)
    monkeypatch.setattr("teal.solvers.pdhg.samples.start.first_size", lambda paths, gap: 30)
    sampled = solve(problem, gap=1e-3)
    assert float(sampled.gap[0]) <= 1e-3
    assert float(sampled.value[0]) <= float(plain.bound[0]) * (1 + 1e-9)
    assert float(sampled.bound[0]) >= float(plain.value[0]) * (1 - 1e-9)
