"""Growth fitted to series with a known one, and the month in which a link is full by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from teal.errors import InputError
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.runtime.arrays import FloatArray
from teal.testing import make_topology
from teal_ip.routing.growth import Growth, fitted_growth, link_forecasts, month_when_full, quarters
from teal_ip.routing.simulate import CapacityForecast
from teal_ip.routing.simulate_command import forecast_sentence


def _series(days: float, rate: float, noise: float, seed: int = 0) -> TrafficMatrices:
    """Hourly matrices of two demands with a daily rhythm and a growth, continuous in a year."""
    rng = np.random.default_rng(seed)
    hours = np.arange(round(24 * days))
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


def _daily(logs: FloatArray) -> TrafficMatrices:
    """One matrix of one demand each day, of which the logarithms are given."""
    times = np.datetime64("2026-01-01T00:00:00", "s") + 86400 * np.arange(len(logs))
    pairs = np.array([[0, 1]], dtype=np.int32)
    return TrafficMatrices(
        "daily", pairs, times, ArrayRates(np.exp(logs)[:, None]), 86400, key="daily"
    )


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_intervals_of_the_shortest_histories_hold_the_growth_in_nine_of_ten(rho: float) -> None:
    """Eight weeks with quiet weekends, of which each day resembles the day before."""
    rng, days, inside = np.random.default_rng(1), np.arange(56), 0
    for _ in range(200):
        noise = rng.normal(size=len(days))
        for day in days[1:]:
            noise[day] = rho * noise[day - 1] + math.sqrt(1 - rho**2) * noise[day]
        quiet = -0.3 * ((days + rng.integers(7)) % 7 >= 5)
        growth = fitted_growth(_daily(0.3 * days / 365.25 + quiet + 0.02 * noise))
        inside += growth.low <= 0.3 <= growth.high
    assert inside >= 168, "90% of 200 are 180; fewer than 168 have a probability below 1%"


def test_a_history_from_which_nothing_follows_is_refused() -> None:
    with pytest.raises(InputError, match="too wide for planning"):
        fitted_growth(_daily(np.random.default_rng(0).normal(size=60)))
    for days in (
        1,
        7,
        55,
    ):  # however quiet they are: weekdays, chance and growth cannot be told apart
        with pytest.raises(InputError, match="at least 56 days"):
            fitted_growth(_series(days, 0.3, 0.0))


def test_months_and_quarters_by_hand() -> None:
    today = np.datetime64("2026-01-15T00:00:00", "s")
    rate = math.log(1.5)  # 50% a year
    assert month_when_full(0.8 / 1.5, 0.8, rate, today) == "2027-01"
    assert month_when_full(0.9, 0.8, rate, today) == "already"
    assert month_when_full(0.5, 0.8, 0.0, today) == ""
    assert month_when_full(1e-9, 0.8, rate, today) == "", "more than 30 years"
    ends, factors = quarters(Growth.from_rate(0.5), 0.6)
    assert ends.tolist() == [0.25, 0.5, 0.6]
    assert factors[1] == pytest.approx(math.sqrt(1.5))


def test_the_interval_is_wider_where_days_resemble_the_days_before() -> None:
    """Against the normal equations of line and weekdays, a wave of 10 days as residuals, and a
    table of Student's t."""
    days = np.arange(105)
    logs = 0.3 * days / 365.25 + 0.01 * np.sin(2 * np.pi * days / 10) + np.log(1 + days % 7)
    growth = fitted_growth(_daily(logs))
    columns = np.column_stack([days / 365.25, *(days % 7 == one for one in range(7))])
    inverse = np.linalg.inv(columns.T @ columns)
    fitted = inverse @ columns.T @ logs
    residual = logs - columns @ fitted
    rho = (105 * (residual[1:] @ residual[:-1]) / (residual @ residual) + 2) / 101
    factor = (1 + rho) / (1 - rho)
    independent = 98 / factor - 1
    assert 4 < independent < 8, "degrees of freedom"
    error = math.sqrt(inverse[0, 0] * (residual @ residual) / 97 * factor)
    quantile = np.interp(independent, [4, 5, 6, 7, 8], [2.132, 2.015, 1.943, 1.895, 1.860])
    assert growth.rate == pytest.approx(fitted[0])
    assert (growth.low, growth.high) == pytest.approx(
        (fitted[0] - quantile * error, fitted[0] + quantile * error), rel=1e-2
    )


def test_a_last_day_of_a_few_hours_is_no_day() -> None:
    """Half a day without the quiet hours is no sign of growth."""
    whole, more = (fitted_growth(_series(days, 0.3, 0.0)) for days in (60, 60.5))
    assert more == whole


def test_a_link_is_full_above_its_limit_but_for_rounding() -> None:
    today = np.datetime64("2026-01-15T00:00:00", "s")
    assert month_when_full(0.8004, 0.8, 0.0, today) == "already"
    assert month_when_full(0.8 * (1 + 1e-12), 0.8, 0.0, today) == ""


def test_the_earliest_month_is_that_of_the_highest_growth() -> None:
    """8 Gbit/s on 10 under failure, log(10 / 8) = 0.2231: full after 0.279, 0.558 and 2.231
    years."""
    topology = make_topology([(0, 1, 10.0)])
    load = np.array([[5.0], [8.0]])
    growth = Growth(rate=0.4, low=0.1, high=0.8, fitted=True)
    today = np.datetime64("2026-01-15T00:00:00", "s")
    one = link_forecasts(topology, topology.capacity, load, ["", "x"], 1.0, growth, today)[0]
    assert (one.full, one.full_under_failure, one.earliest, one.latest) == (
        "2027-10",
        "2026-08",
        "2026-04",
        "2028-04",
    )
    assert one.worst_failure == "x"


def test_a_link_that_is_full_already_comes_first_and_before_every_horizon() -> None:
    """11 of 10 Gbit/s under failure today: already, although a word is sorted behind all months."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0)])
    load = np.array([[5.0, 5.0], [11.0, 9.0]])
    today = np.datetime64("2026-01-15T00:00:00", "s")
    growth = Growth.from_rate(0.3)
    forecasts = link_forecasts(topology, topology.capacity, load, ["", "x"], 1.0, growth, today)
    forecast = CapacityForecast(growth, 1.0, "2026-01", forecasts)
    assert [one.link for one in forecast.full] == ["n0->n1"]
    assert forecast.full[0].full_under_failure == "already"
    everything = CapacityForecast(growth, 1.0, "", forecasts)
    assert [one.link for one in everything.full] == ["n0->n1", "n1->n2"]
    assert "first n0->n1 already, when x fails" in forecast_sentence(everything)
