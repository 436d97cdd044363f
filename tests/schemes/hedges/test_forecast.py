"""Forecasts against series whose next matrix is known."""

from __future__ import annotations

import numpy as np
import pytest

from teal.schemes.hedges.forecast import Forecast, _of_days
from tests.schemes.hedges.series import make_past


def test_ewma_is_the_weighted_mean() -> None:
    demand = np.random.default_rng(0).lognormal(0, 1, (9, 3))
    weights = np.exp(-3 * np.arange(6)[::-1] / 6)
    expected = (weights[:, None] * demand[3:]).sum(0) / weights.sum()
    np.testing.assert_allclose(Forecast("ewma", 6)._ewma(make_past(demand)), expected)


@pytest.mark.parametrize("lead", [1, 3])
def test_ridge_finds_a_linear_recursion(lead: int) -> None:
    """x[t] = 1.6 x[t - 1] - 0.8 x[t - 2] + constant, a damped oscillation, is a linear function of four lags."""
    x = np.zeros((60, 3))
    x[0], x[1] = [10.0, 20.0, 30.0], [14.0, 21.0, 36.0]
    for t in range(2, 60):
        x[t] = 1.6 * x[t - 1] - 0.8 * x[t - 2] + 0.2 * np.array([10.0, 20.0, 30.0])
    forecast = Forecast("ridge", 30)._ridge(make_past(x[: 40 - lead + 1], lead))
    assert forecast == pytest.approx(x[40], rel=0.02)


def test_the_same_time_of_earlier_days() -> None:
    per_day = 288
    demand = np.outer(1 + np.arange(3 * per_day) % per_day, np.ones(3)) + np.repeat([0.0, 10.0, 20.0], per_day)[:, None]
    past = make_past(demand[: 2 * per_day + 5])
    np.testing.assert_allclose(_of_days(past), 1 + 5 + np.mean([0.0, 10.0]))
    np.testing.assert_allclose(_of_days(make_past(demand[:5])), demand[4])
    demand[5] = 0  # a gap at the same time of the first day
    np.testing.assert_allclose(_of_days(make_past(demand[: 2 * per_day + 5])), 1 + 5 + 10.0)
    demand[per_day + 5] = 0
    np.testing.assert_allclose(_of_days(make_past(demand[: 2 * per_day + 5])), demand[2 * per_day + 4])
