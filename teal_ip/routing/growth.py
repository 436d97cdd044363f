r"""Traffic growth, and the months in which links are full.

Growth is estimated from the daily means of all traffic: linear least squares on their logarithms,
with a level for each day of the week,

    log(traffic on day t) = a_weekday(t) + r t,    growth in a year e^r - 1.

The standard error of r is enlarged by the root of f = (1 + rho) / (1 - rho), for autocorrelation;
rho is the correlation of neighbouring residuals, corrected for its bias of about -(2 + 4 rho) / n
in a line through n days.  The interval uses the quantile of Student's t for n / f independent days.
Histories of less than eight weeks are rejected: their intervals are mostly too wide for planning,
and the others contain the growth too rarely.

A link whose largest load is utilisation x today is full, at the limit u, after log(u / x) / r
years.  Entry points: :func:`growth_of`, :func:`link_forecasts`.
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
_MIN_FREEDOM = 10
# Maximum width of the interval, log growth per year: ends that differ 16 times are useless.
_MAX_WIDTH = math.log(16.0)
# Month of a link that is above the limit today.
ALREADY = "already"
# Years beyond which a link counts as never full.
_MAX_YEARS = 30.0
# Relative rounding error of a sum of demands at the limit.
_ROUNDING = 1e-9
# Quantile of Student's t, for a two-sided interval of 90%.
_QUANTILE = 0.95
# Cap of the correlation of neighbouring residuals.
_MAX_CORRELATION = 0.95
# Matrices in memory at a time.
_BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class Growth:
    """Growth of all traffic.

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
    def given(cls, per_year: float) -> Growth:
        """Growth of ``per_year``, as a share, without uncertainty."""
        rate = math.log1p(per_year)
        return cls(rate, rate, rate, False)

    def factor(self, years: float) -> float:
        """Factor of all demands after this time."""
        return math.exp(self.rate * years)

    def __str__(self) -> str:
        if not self.fitted:
            return f"growth of {100 * math.expm1(self.rate):.3g}% a year"
        percentages = [
            100 * math.expm1(min(rate, 50.0)) for rate in (self.rate, self.low, self.high)
        ]
        return "growth of {:.3g}% a year, fitted (90%: {:.3g}% to {:.3g}%)".format(*percentages)


def growth_of(
    config: GrowthConfig, traffic: TrafficMatrices, notify: Callable[[str], None]
) -> Growth:
    """Return the growth of the settings, or fitted to the traffic.

    Raises:
        InputError: see :func:`fitted_growth`.
    """
    growth = fitted_growth(traffic) if config.rate is None else Growth.given(config.rate)
    notify(str(growth))
    return growth


def fitted_growth(traffic: TrafficMatrices) -> Growth:
    """Fit the growth of a history (module docstring).

    Raises:
        InputError: a history of less than eight weeks, a day without traffic, or an interval too
            wide for planning.
    """
    day_index, means, degrees_of_freedom = _daily_means(traffic)
    # Least squares with weekday levels.
    _, weekday = np.unique(day_index % 7, return_inverse=True)
    years = day_index * _DAY_S / _YEAR_S
    logs = np.log(means)
    levels = np.bincount(weekday)
    centred = years - (np.bincount(weekday, years) / levels)[weekday]
    rate = float(centred @ logs / (centred @ centred))
    residual = logs - (np.bincount(weekday, logs) / levels)[weekday] - rate * centred
    # Confidence interval.
    width = _half_width(residual, centred, degrees_of_freedom)
    growth = Growth(rate, rate - width, rate + width, True)
    if growth.high - growth.low > _MAX_WIDTH:
        raise InputError(
            "--growth-per-year",
            "fit",
            "traffic with a clearer trend, or a number such as 0.3",
            f"{len(day_index)} days, {growth}",
        )
    return growth


def _daily_means(traffic: TrafficMatrices) -> tuple[Int64Array, FloatArray, int]:
    """Return the full days of a history, their mean total traffic, and the degrees of freedom of a
    fit with a trend and a level of each weekday.

    Raises:
        InputError: too few days, or a day without traffic.
    """
    # Totals of all matrices, in blocks.
    totals = np.concatenate(
        [
            traffic.read(np.arange(first, min(first + _BLOCK, traffic.num_matrices))).sum(1)
            for first in range(0, traffic.num_matrices, _BLOCK)
        ]
    )
    seconds = (
        (traffic.timestamps - traffic.timestamps[0]).astype("timedelta64[s]").astype(np.float64)
    )
    day = (seconds // _DAY_S).astype(np.int64)
    counts = np.bincount(day)
    # The first and the last day may be incomplete.
    is_full = counts >= 0.9 * counts.max()
    day_index = np.flatnonzero(is_full)
    degrees_of_freedom = len(day_index) - len(np.unique(day_index % 7)) - 1
    span = int(day_index[-1] - day_index[0]) + 1
    if span < _MIN_DAYS or degrees_of_freedom < _MIN_FREEDOM:
        raise InputError(
            "--growth-per-year",
            "fit",
            f"traffic of at least {_MIN_DAYS} days, or a number such as 0.3",
            f"{len(day_index)} full days in {span}",
        )
    means = np.bincount(day, totals)[is_full] / counts[is_full]
    if not (means > 0).all():
        raise InputError("--growth-per-year", "fit", "traffic on every day", "a day without any")
    return day_index, means, degrees_of_freedom


def _half_width(residual: FloatArray, centred: FloatArray, degrees_of_freedom: int) -> float:
    """Half width of the confidence interval of a slope, with autocorrelated residuals.

    Args:
        residual: (n,) residuals of the days' logarithms.
        centred: (n,) years, less the mean of their weekday.
        degrees_of_freedom: degrees of freedom of the fit.
    """
    residual_square = float(residual @ residual)
    num_days = len(residual)
    variance = residual_square / degrees_of_freedom / float(centred @ centred)
    # Correlation of successive days, corrected for its bias.
    rho = float(residual[1:] @ residual[:-1]) / residual_square if residual_square > 0 else 0.0
    rho = float(np.clip((num_days * rho + 2) / (num_days - 4), 0.0, _MAX_CORRELATION))
    inflation = (1 + rho) / (1 - rho)
    standard_error = math.sqrt(variance * inflation)
    effective_freedom = max(1.0, (degrees_of_freedom + 1) / inflation - 1)
    return float(student_t.ppf(_QUANTILE, effective_freedom)) * standard_error


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkForecast:
    """Months in which a link is full.

    Attributes:
        link: name of the link.
        capacity: Gbit/s.
        utilisation: largest today, without failure.
        failed_utilisation: largest today, under the worst failure.
        worst_failure: name of the worst failure.
        full: month from which it exceeds the limit without failure; ``already`` if it does today,
            "" for never or beyond 30 years.
        full_under_failure: month from which it exceeds the limit under the worst failure.
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
    """Table of the months in which links are full.

    Args:
        forecasts: links.
        title: title in the terminal.
        routing: name of the routing of today's loads, for the heading.
        fitted: whether the growth has an interval.
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
    failures: Sequence[str],
    limit: float,
    growth: Growth,
    today: np.datetime64,
) -> list[LinkForecast]:
    """Forecast the months in which links with a capacity are full under a constant routing, the
    most utilised under failure first.

    Args:
        topology: supplies the names of the links.
        capacity: (E,) Gbit/s.
        load: (F, E) Gbit/s today, the largest of all matrices, without failure and then under each
            failure.
        failures: F names, the first for no failure.
        limit: utilisation above which a link is full.
        growth: growth of all demands; loads grow in proportion.
        today: time of the traffic.
    """
    forecasts = []
    for link, name in enumerate(topology.link_names()):
        if capacity[link] <= 0:
            continue
        utilisation = load[:, link] / capacity[link]
        worst = int(np.argmax(utilisation))
        months = [
            month_when_full(float(utilisation[failure_index]), limit, rate, today)
            for failure_index, rate in (
                (0, growth.rate),
                (worst, growth.rate),
                (worst, growth.high),
                (worst, growth.low),
            )
        ]
        forecasts.append(
            LinkForecast(
                link=name,
                capacity=float(capacity[link]),
                utilisation=float(utilisation[0]),
                failed_utilisation=float(utilisation[worst]),
                worst_failure=failures[worst],
                full=months[0],
                full_under_failure=months[1],
                earliest=months[2],
                latest=months[3],
            )
        )
    return sorted(forecasts, key=lambda forecast: -forecast.failed_utilisation)


def month_when_full(utilisation: float, limit: float, rate: float, today: np.datetime64) -> str:
    """Month in which a link exceeds the limit: ``already`` if it does today; "" for never, or after
    more than 30 years.

    Args:
        utilisation: utilisation today.
        limit: largest allowed utilisation.
        rate: continuous growth rate per year.
        today: time of the traffic.
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
    """Whether a link with this month of :func:`month_when_full` is full by the horizon.

    Args:
        month: month of the link.
        horizon: latest month; "" for no end.
    """
    return month == ALREADY or (month != "" and (not horizon or month <= horizon))


def month_order(month: str) -> str:
    """Sort key of a month of :func:`month_when_full`: "already" first, never last."""
    return "" if month == ALREADY else month or "9999"


def when(month: str) -> str:
    """Phrase for a month: ``in 2027-03``, or ``already``."""
    return month if month == ALREADY else f"in {month}"


def month_after(today: np.datetime64, years: float) -> str:
    """Month some years after a time, such as 2027-03."""
    time = today.astype("datetime64[s]") + np.timedelta64(round(years * _YEAR_S), "s")
    return str(time.astype("datetime64[M]"))


def quarters(growth: Growth, years: float) -> tuple[FloatArray, FloatArray]:
    """Ends of the quarters up to the horizon, years from today, and their demand factors."""
    ends = np.arange(1, math.ceil(years * 4 - 1e-9) + 1) / 4
    ends[-1] = min(ends[-1], years)
    return ends, np.array([growth.factor(float(end)) for end in ends])
