"""Scenarios of the residual hedge against their definition, and what they become for known
series."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from teal_next.residual import Residual


@given(seed=st.integers(0, 1000), count=st.integers(3, 30), lead=st.integers(1, 2))
def test_scenarios_are_the_forecast_and_past_errors(seed: int, count: int, lead: int) -> None:
    demand = np.random.default_rng(seed).lognormal(0, 1, (count, 4))
    window = 10
    actual = Residual(window, 30).scenarios(demand, lead)
    mean = demand.mean(0)
    squares = [sum((demand[t, d] - mean[d]) ** 2 for t in range(count - lead)) for d in range(4)]
    products = [
        sum((demand[t, d] - mean[d]) * (demand[t + lead, d] - mean[d]) for t in range(count - lead))
        for d in range(4)
    ]
    shared, prior = sum(products) / sum(squares), 8 / count
    phi = [
        min(1, max(0, (p + prior * shared * s) / ((1 + prior) * s)))
        for p, s in zip(products, squares, strict=True)
    ]
    expected = []
    for t in range(max(lead, count - window), count):
        error = [
            demand[t, d] - mean[d] - phi[d] * (demand[t - lead, d] - mean[d]) for d in range(4)
        ]
        expected.append(
            [max(0, mean[d] + phi[d] * (demand[-1, d] - mean[d]) + error[d]) for d in range(4)]
        )
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def test_independent_matrices_are_their_own_scenarios_and_a_walk_starts_at_the_newest() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(10, 1, (2000, 3))
    scenarios = Residual(50, 2000).scenarios(noise, 1)
    np.testing.assert_allclose(scenarios, noise[-50:], atol=0.35)
    walk = 1000 + np.cumsum(rng.normal(0, 1, (2000, 3)), 0)
    scenarios = Residual(50, 2000).scenarios(walk, 1)
    np.testing.assert_allclose(scenarios.mean(0), walk[-1], atol=1.0)
    assert scenarios.std(0).max() < 2, "the spread of one step, not that of the walk"


def test_a_constant_series_has_one_scenario_again_and_again() -> None:
    scenarios = Residual().scenarios(np.full((6, 2), 3.0), 1)
    np.testing.assert_allclose(scenarios, 3.0)
