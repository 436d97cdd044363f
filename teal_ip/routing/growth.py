r"""Traffic growth, and the months in which links are full.

Growth is estimated from the daily means of all traffic: linear least squares on their logarithms,
with a separate level for each day of the week,

    log(traffic on day t) = a_weekday(t) + r t,    growth in a year e^r - 1.

Daily residuals are autocorrelated: the standard error of r is multiplied by sqrt(f), with
f = (1 + rho) / (1 - rho) and rho the lag-1 autocorrelation of the residuals, corrected for its bias
of about -(2 + 4 rho) / n in a line through n days.  The interval uses the quantile of Student's t
for n / f independent days.  Histories of less than eight weeks are rejected: most of their
intervals are too wide for planning, and the others contain the true growth too rarely.

A link with utilisation x today reaches the limit u after log(u / x) / r years.  Entry points:
:func:`growth_of`, :func:`link_forecasts`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import t as student_t

from teal.app.table import Column, Table
from teal.app.text import percent
from teal.errors import InputError
from teal.network import Topology, TrafficMatrices
from teal.runtime.arrays import FloatArray, Int64Array
from teal_ip.routing.settings import GrowthConfig

_DAY_S = 86_400.0
_YEAR_S = 365.25 * 86_400.0
# Minimum number of days from the first mean to the last.
_MIN_DAYS = 56
# Minimum degrees of freedom: daily means less the fitted slope and the level of each weekday.
_MIN_DEGREES_OF_FREEDOM = 10
# Maximum width of the interval of r: its ends differ by at most a factor of 16 a year.
_MAX_INTERVAL_WIDTH = math.log(16.0)
# Text in place of a month for links that exceed the limit today.
ALREADY = "already"
# Years beyond which a link counts as never full.
_MAX_YEARS = 30.0
# Relative tolerance of the limit, for rounding errors of loads.
_ROUNDING = 1e-9
# Quantile of Student's t, for a two-sided interval of 90%.
_QUANTILE = 0.95
# Upper bound on the lag-1 autocorrelation of residuals.
_MAX_CORRELATION = 0.95
# Matrices in memory at a time.
_BLOCK_MATRICES = 1024


@dataclasses.dataclass(frozen=True)
class Growth:
    """Exponential growth of all traffic.

    Attributes:
        rate: continuous rate per year: demands after t years are e^(rate t) times today's.
        low: lower end of the 90% confidence interval.
        high: upper end of the 90% confidence interval.
        fitted: whether the rate was fitted to traffic.
    """

    rate: float
    low: float
    high: float
    fitted: bool

    @classmethod
    def from_rate(cls, per_year: float) -> Growth:
        """Return growth at a known rate per year, without uncertainty; 0.3 is 30%."""
        rate = math.log1p(per_year)
        return cls(rate, rate, rate, False)

    def factor(self, years: float) -> float:
        """Return the factor by which demands grow within a number of years."""
        return math.exp(self.rate * years)

    def __str__(self) -> str:
        """Return the growth in percent a year, with the confidence interval if it was fitted."""
        if not self.fitted:
            return f"growth of {100 * math.expm1(self.rate):.3g}% a year"
        percentages = [
            100 * math.expm1(min(rate, 50.0)) for rate in (self.rate, self.low, self.high)
        ]
        return "growth of {:.3g}% a year, fitted (90%: {:.3g}% to {:.3g}%)".format(*percentages)


def growth_of(
    config: GrowthConfig, traffic: TrafficMatrices, notify: Callable[[str], None]
) -> Growth:
    """Return the growth: the rate of the settings, or else the rate fitted to the traffic.

    Args:
        config: settings of the growth.
        traffic: matrices to which the rate is fitted.
        notify: called with a description of the growth.

    Raises:
        InputError: traffic to which no growth can be fitted.
    """
    growth = fitted_growth(traffic) if config.rate is None else Growth.from_rate(config.rate)
    notify(str(growth))
    return growth


def fitted_growth(traffic: TrafficMatrices) -> Growth:
    """Fit exponential growth to a history of at least eight weeks.

    Least squares for log(daily mean) = a_weekday + r t, with the time t in years and a level a of
    each weekday; the 90% confidence interval of the rate r allows for autocorrelated residuals.

    Raises:
        InputError: a history of less than eight weeks, a day without traffic, or an interval too
            wide for planning.
    """
    day_index, daily_means, degrees_of_freedom = _daily_means(traffic)
    # Least squares for the slope r: times and logarithms are centred by the mean of their weekday,
    # which eliminates the levels a_weekday.
    _, weekday = np.unique(day_index % 7, return_inverse=True)
    years = day_index * _DAY_S / _YEAR_S
    logs = np.log(daily_means)
    days_per_weekday = np.bincount(weekday)
    centred_years = years - (np.bincount(weekday, years) / days_per_weekday)[weekday]
    rate = float(centred_years @ logs / (centred_years @ centred_years))
    residual = (
        logs - (np.bincount(weekday, logs) / days_per_weekday)[weekday] - rate * centred_years
    )
    # 90% confidence interval of r; the growth is marked as fitted.
    half_width = _interval_half_width(residual, centred_years, degrees_of_freedom)
    growth = Growth(rate, rate - half_width, rate + half_width, True)
    if growth.high - growth.low > _MAX_INTERVAL_WIDTH:
        raise InputError.invalid(
            "--growth-per-year",
            "fit",
            f"the interval is too wide for planning: {growth}, from {len(day_index)} days",
            "use a longer history, or give a number such as 0.3",
        )
    return growth


def _daily_means(traffic: TrafficMatrices) -> tuple[Int64Array, FloatArray, int]:
    """Return the daily means of total traffic.

    Days with less than 90% of the largest number of matrices in a day are dropped.

    Returns:
        (n,) indices of the other days, counted from the first day; (n,) mean total traffic of each,
        Gbit/s; and degrees of freedom of a fit with a trend and a level of each weekday.

    Raises:
        InputError: too few days, or a day without traffic.
    """
    # Total traffic of each matrix, read in blocks.
    totals = np.concatenate(
        [
            traffic.read(np.arange(first, min(first + _BLOCK_MATRICES, traffic.num_matrices))).sum(
                1
            )
            for first in range(0, traffic.num_matrices, _BLOCK_MATRICES)
        ]
    )
    # Day of each matrix, counted from the first matrix, and number of matrices of each day.
    elapsed_s = (
        (traffic.timestamps - traffic.timestamps[0]).astype("timedelta64[s]").astype(np.float64)
    )
    day_of_matrix = (elapsed_s // _DAY_S).astype(np.int64)
    matrices_per_day = np.bincount(day_of_matrix)
    # Drop incomplete days, such as the first and the last one.  The fit has a slope, and a level of
    # each weekday that occurs.
    is_complete = matrices_per_day >= 0.9 * matrices_per_day.max()
    day_index = np.flatnonzero(is_complete)
    degrees_of_freedom = len(day_index) - len(np.unique(day_index % 7)) - 1
    span_days = int(day_index[-1] - day_index[0]) + 1
    if span_days < _MIN_DAYS or degrees_of_freedom < _MIN_DEGREES_OF_FREEDOM:
        raise InputError.invalid(
            "--growth-per-year",
            "fit",
            f"only {len(day_index)} full days in {span_days} days of history, too few for a fit",
            f"use traffic of at least {_MIN_DAYS} days, or give a number such as 0.3",
        )
    # Mean total traffic of each of these days.
    daily_means = np.bincount(day_of_matrix, totals)[is_complete] / matrices_per_day[is_complete]
    if not (daily_means > 0).all():
        raise InputError.invalid(
            "--growth-per-year",
            "fit",
            "a day of the history has no traffic",
            "remove it, or give a number such as 0.3",
        )
    return day_index, daily_means, degrees_of_freedom


def _interval_half_width(
    residual: FloatArray, centred_years: FloatArray, degrees_of_freedom: int
) -> float:
    """Return the half width of the 90% confidence interval of a slope, with autocorrelated
    residuals.

    It is t_q sqrt(f s^2 / sum(centred^2)), with the residual variance s^2, the inflation
    f = (1 + rho) / (1 - rho) by the lag-1 autocorrelation rho, and the 95% quantile t_q of
    Student's t.

    Args:
        residual: (n,) residuals of the logarithms of daily means.
        centred_years: (n,) time of each day, years, less the mean of its weekday.
        degrees_of_freedom: degrees of freedom of the fit.
    """
    sum_of_squares = float(residual @ residual)
    num_days = len(residual)
    slope_variance = sum_of_squares / degrees_of_freedom / float(centred_years @ centred_years)
    # Sample lag-1 autocorrelation r_1, then its bias is removed: E[r_1] = rho - (2 + 4 rho) / n,
    # solved for rho.
    rho = float(residual[1:] @ residual[:-1]) / sum_of_squares if sum_of_squares > 0 else 0.0
    rho = float(np.clip((num_days * rho + 2) / (num_days - 4), 0.0, _MAX_CORRELATION))
    # Autocorrelated residuals inflate the variance of the slope; the inflation also divides the
    # number of independent days, and so reduces the degrees of freedom.
    inflation = (1 + rho) / (1 - rho)
    standard_error = math.sqrt(slope_variance * inflation)
    effective_degrees_of_freedom = max(1.0, (degrees_of_freedom + 1) / inflation - 1)
    return float(student_t.ppf(_QUANTILE, effective_degrees_of_freedom)) * standard_error


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkForecast:
    """Months in which a link exceeds the utilisation limit.

    A month is such as 2027-03; ``already`` if the limit is exceeded today, "" for never or after
    more than 30 years.

    Attributes:
        link: name of the link.
        capacity: Gbit/s.
        utilisation: largest utilisation today, without failure.
        failed_utilisation: largest utilisation today, under the worst failure.
        worst_failure: name of the worst failure.
        full: first month above the limit without failure.
        full_under_failure: first month above the limit under the worst failure.
        earliest: month of ``full_under_failure`` at the upper end of the growth's interval.
        latest: month of ``full_under_failure`` at the lower end of the growth's interval.
    """

    link: str
    capacity: float
    utilisation: float
    failed_utilisation: float
    worst_failure: str
    full: str
    full_under_failure: str
    earliest: str
    latest: str


def forecast_table(
    forecasts: Sequence[LinkForecast],
    title: str,
    *,
    routing: str,
    fitted: bool,
    shown: int | None = None,
) -> Table:
    """Return the table of the months in which links are full.

    Args:
        forecasts: one row per link.
        title: title in the terminal.
        routing: name of the routing of today's loads, for the heading.
        fitted: whether the growth has a confidence interval: adds two columns.
        shown: number of links shown in a terminal; None for all.
    """
    interval = (Column("earliest", "earliest"), Column("latest", "latest")) if fitted else ()
    columns = (
        Column("link", "link"),
        Column(f"today, {routing}", "utilisation", percent, most_is_best=True),
        Column("full from", lambda row: row.full or "-"),
        Column("under its worst failure", "failed_utilisation", percent, most_is_best=True),
        Column("full under failure from", lambda row: row.full_under_failure or "-"),
        *interval,
        Column("worst failure", "worst_failure"),
    )
    return Table(title, columns, forecasts, shown)


def link_forecasts(
    topology: Topology,
    capacity: FloatArray,
    load: FloatArray,
    failure_names: Sequence[str],
    limit: float,
    growth: Growth,
    today: np.datetime64,
) -> list[LinkForecast]:
    """Forecast the months in which links exceed a utilisation limit, with fixed routing.

    Links without capacity are omitted; the most utilised link under failure comes first.

    Args:
        topology: supplies the names of the links.
        capacity: (E,) Gbit/s.
        load: (F, E) largest load of each link today, Gbit/s; row 0 without failure.
        failure_names: names of the F rows of ``load``.
        limit: utilisation above which a link is full.
        growth: growth of all demands; loads grow in proportion.
        today: time of the last matrix.
    """
    forecasts = []
    for link, name in enumerate(topology.link_names()):
        if capacity[link] <= 0:
            continue
        utilisation_by_failure = load[:, link] / capacity[link]
        # Months without failure, under the worst failure, and at both ends of the growth's
        # interval.
        worst_failure = int(np.argmax(utilisation_by_failure))
        months = [
            month_when_full(float(utilisation_by_failure[failure_index]), limit, rate, today)
            for failure_index, rate in (
                (0, growth.rate),
                (worst_failure, growth.rate),
                (worst_failure, growth.high),
                (worst_failure, growth.low),
            )
        ]
        forecasts.append(
            LinkForecast(
                link=name,
                capacity=float(capacity[link]),
                utilisation=float(utilisation_by_failure[0]),
                failed_utilisation=float(utilisation_by_failure[worst_failure]),
                worst_failure=failure_names[worst_failure],
                full=months[0],
                full_under_failure=months[1],
                earliest=months[2],
                latest=months[3],
            )
        )
    return sorted(forecasts, key=lambda forecast: -forecast.failed_utilisation)


def month_when_full(utilisation: float, limit: float, rate: float, today: np.datetime64) -> str:
    """Return the first month in which a link exceeds the limit, such as 2027-03.

    The result is ``already`` if the link exceeds it today, and "" if it never does, or only after
    more than 30 years.

    Args:
        utilisation: utilisation today.
        limit: largest allowed utilisation.
        rate: continuous growth rate per year.
        today: time of the last matrix.
    """
    if utilisation <= 0:
        return ""
    if utilisation > limit * (1 + _ROUNDING):
        return ALREADY
    if rate <= 0:
        return ""
    years = max(0.0, math.log(limit / utilisation) / rate)
    if years > _MAX_YEARS:
        return ""
    return month_after(today, years)


def is_full_by(month: str, horizon: str) -> bool:
    """Return whether a link is full by the horizon.

    Args:
        month: first month in which the link exceeds the limit: such as 2027-03, ``already``, or ""
            for never.
        horizon: last month that counts; "" for no end.
    """
    return month == ALREADY or (month != "" and (not horizon or month <= horizon))


def month_order(month: str) -> str:
    """Return the sort key of a month such as 2027-03: ``already`` first, "" (never) last."""
    # "9999" sorts behind the month of any year.
    return "" if month == ALREADY else month or "9999"


def month_phrase(month: str) -> str:
    """Return a phrase for a month: ``in 2027-03``, or ``already``."""
    return month if month == ALREADY else f"in {month}"


def month_after(today: np.datetime64, years: float) -> str:
    """Return the month, such as 2027-03, that is a number of years after a time."""
    time = today.astype("datetime64[s]") + np.timedelta64(round(years * _YEAR_S), "s")
    return str(time.astype("datetime64[M]"))


def quarters(growth: Growth, years: float) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the quarters up to a horizon, and the growth of demands until each.

    Args:
        growth: growth of all demands.
        years: horizon in years from today; the last quarter ends there, even if it is shorter.

    Returns:
        (Q,) ends of the quarters, years from today; and (Q,) factors by which demands have grown.
    """
    # 1e-9 allows for rounding errors: a horizon of whole quarters gets no further one.
    ends = np.arange(1, math.ceil(years * 4 - 1e-9) + 1) / 4
    ends[-1] = min(ends[-1], years)
    return ends, np.array([growth.factor(float(end)) for end in ends])
