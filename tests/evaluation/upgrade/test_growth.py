"""Growth fitted to series with a known one, and the month in which a link is full by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from teal.errors import InputError
from teal.evaluation.upgrade.growth import Growth, fitted_growth, month_when_full, quarters
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates


def _series(days: int, rate: float, noise: float, seed: int = 0) -> TrafficMatrices:
    """Hourly matrices of two demands with a daily rhythm and a growth, continuous in a year."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    total = np.exp(rate * hours / (24 * 365.25)) * (1 + 0.5 * np.sin(2 * np.pi * hours / 24))
    total *= np.exp(noise * rng.normal(size=len(hours)))
    rates = np.stack([total, 2 * total], axis=1)
    times = np.datetime64("2026-01-01T00:00:00", "s") + 3600 * hours
    pairs = np.array([[0, 1], [1, 0]], dtype=np.int32)
    return TrafficMatrices("series", pairs, times, ArrayRates(rates), 3600, key="growth")


def test_intervals_of_fitted_growths_hold_the_true_one() -> None:
    inside = 0
    for seed in range(40):
        growth = fitted_growth(_series(400, 0.3, 0.3, seed))
        inside += growth.low <= 0.3 <= growth.high
        assert growth.rate == pytest.approx(0.3, abs=0.15)
    assert inside >= 31, "90% of 40 are 36; fewer than 31 have a probability below 1%"


def test_a_history_from_which_nothing_follows_is_refused() -> None:
    with pytest.raises(InputError, match="growth can be told"):
        fitted_growth(_series(10, 0.3, 0.5))
    with pytest.raises(InputError, match="at least 3"):
        fitted_growth(_series(1, 0.3, 0.1).part(0, 2))


def test_months_and_quarters_by_hand() -> None:
    today = np.datetime64("2026-01-15T00:00:00", "s")
    rate = math.log(1.5)  # 50% a year
    assert month_when_full(0.8 / 1.5, 0.8, rate, today) == "2027-01"
    assert month_when_full(0.9, 0.8, rate, today) == "2026-01"
    assert month_when_full(0.5, 0.8, 0.0, today) == ""
    assert month_when_full(1e-9, 0.8, rate, today) == "", "more than 30 years"
    ends, factors = quarters(Growth.given(0.5), 0.6)
    assert ends.tolist() == [0.25, 0.5, 0.6]
    assert factors[1] == pytest.approx(math.sqrt(1.5))


def test_the_interval_is_wider_where_days_resemble_the_days_before() -> None:
    """The error of least squares, times the root of (1 + rho) / (1 - rho) of its residuals, against numpy."""
    days = np.arange(100)
    wave = 0.01 * np.sin(2 * np.pi * days / 16)
    logs = 0.3 * days / 365.25 + wave
    times = np.datetime64("2026-01-01T00:00:00", "s") + 86400 * days
    pairs = np.array([[0, 1]], dtype=np.int32)
    growth = fitted_growth(TrafficMatrices("wave", pairs, times, ArrayRates(np.exp(logs)[:, None]), 86400, key="wave"))
    (rate, level), covariance = np.polyfit(days / 365.25, logs, 1, cov=True)
    residual = logs - level - rate * days / 365.25
    rho = residual[1:] @ residual[:-1] / (residual @ residual)
    assert 0.8 < rho < 0.95, "a wave of 16 days"
    width = 1.6449 * math.sqrt(covariance[0, 0] * (1 + rho) / (1 - rho))
    assert growth.rate == pytest.approx(rate)
    assert (growth.low, growth.high) == pytest.approx((rate - width, rate + width), rel=1e-3)
