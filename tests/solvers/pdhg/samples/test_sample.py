"""Samples of demands against the equations of their draw, and the response against its formula in torch."""

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
from teal.testing import random_problem, with_random_steps


@given(seed=st.integers(0, 10_000), size=st.integers(1, 60), spread=st.sampled_from([0.0, 1.0, 4.0]))
def test_the_expected_number_of_drawn_demands_is_the_asked_one(seed: int, size: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.lognormal(0, spread, 80) * (rng.random(80) > 0.2)
    factor = sample._factor(demand, size)
    expected = np.minimum(1, factor * demand[demand > 0]).sum()
    assert expected == pytest.approx(min(size, (demand > 0).sum()), rel=1e-3)


def test_every_demand_is_drawn_with_its_probability() -> None:
    """Over evenly spaced random numbers the shares of draws are the probabilities, since draws are systematic."""
    demand = np.array([0.0, 5.0, 0.1, 0.2, 0.3, 0.05, 3.0, 0.4, 0.15])
    factor = sample._factor(demand, 4)
    draws = np.mean([sample._select(demand, factor, offset) for offset in (np.arange(2000) + 0.5) / 2000], axis=0)
    np.testing.assert_allclose(draws, np.minimum(1, factor * demand), atol=2e-3)


def test_draws_repeat_and_differ_between_matrices() -> None:
    problem = random_problem(3, nodes=12, batch=2, idle=0.0)
    problem = problem.with_demand(problem.demand[:1].expand(2, -1))
    first, again, other = (sample.draw(problem, 20, row).demands for row in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
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
        total, start = torch.zeros_like(exponents), torch.zeros_like(exponents[:, 0])
        for level, end in zip(problem.steps.level.T, problem.steps.end[0].unbind(-1), strict=True):
            rejected = sharpness * problem.demand_value * (1 - level)
            own = torch.cat([rejected[:, None], exponents], 1).softmax(1)[:, 1:]
            total, start = total + (end - start)[:, None] * own, end
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
