r"""How traffic grows, and when links are full.

The growth of a history is that of its daily means of all traffic: a straight line through their
logarithms by least squares, with a level for each day of the week,

    log(traffic on day t) = a_weekday(t) + r t,    growth in a year e^r - 1.

The standard error of r is enlarged by the root of f = (1 + rho) / (1 - rho), since days resemble
the days before; rho is the correlation of neighbouring residuals, less its bias of some -(2 + 4
rho) / n in a line through n days.  The interval has the quantile of Student's t for n / f
independent days.  Histories of less than eight weeks are refused: the intervals that they allow are
mostly too wide for any plan, and those that are not hold the growth too seldom.

A link whose largest load is utilisation x today is full, at the limit u, after log(u / x) / r
years.
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
from teal.runtime.arrays import FloatArray
from teal_ip.routing.settings import GrowthConfig

_DAY_S, _YEAR_S = 86_400.0, 365.25 * 86_400.0
_MIN_DAYS = 56  # days from the first mean to the last
_MIN_FREEDOM = (
    10  # degrees of freedom: daily means less the fitted slope and the level of each weekday
)
_MAX_WIDTH = math.log(
    16.0
)  # log growth per year: an interval whose ends differ 16 times says nothing of the future
ALREADY = "already"  # in the place of the month of a link that is above the limit today
_MAX_YEARS = 30.0  # years, beyond which a link counts as never full
_ROUNDING = 1e-9  # relative, of a sum of demands at the limit
_QUANTILE = 0.95  # of Student's t, at the upper end of a two-sided interval of 90%
_MAX_CORRELATION = 0.95  # of neighbouring residuals
_BLOCK = 1024  # matrices in memory at a time


@dataclasses.dataclass(frozen=True)
class Growth:
    """Growth of all traffic.

    Attributes:
        rate: in a year, continuous: demands after t years are e^(rate t) times those of today.
        low: low end of the interval that holds 90%.
        high: high end of that interval.
        fitted: whether it was fitted to the traffic.
    """

    rate: float
    low: float
    high: float
    fitted: bool

    @classmethod
    def given(cls, per_year: float) -> Growth:
        """The growth ``per_year``, as a share, without uncertainty."""
        rate = math.log1p(per_year)
        return cls(rate, rate, rate, False)

    def factor(self, years: float) -> float:
        """Factor of all demands after a time."""
        return math.exp(self.rate * years)

    def __str__(self) -> str:
        if not self.fitted:
            return f"growth of {100 * math.expm1(self.rate):.3g}% a year"
        numbers = [100 * math.expm1(min(rate, 50.0)) for rate in (self.rate, self.low, self.high)]
        return "growth of {:.3g}% a year, fitted (90%: {:.3g}% to {:.3g}%)".format(*numbers)


def growth_of(
    config: GrowthConfig, traffic: TrafficMatrices, notify: Callable[[str], None]
) -> Growth:
    """The growth that the settings give, or fitted to the traffic.

    Raises:
        InputError: see :func:`fitted_growth`.
    """
    growth = fitted_growth(traffic) if config.rate is None else Growth.given(config.rate)
    notify(str(growth))
    return growth


def fitted_growth(traffic: TrafficMatrices) -> Growth:
    """The growth of a history.

    Raises:
        InputError: a history of less than eight weeks, a day of no traffic, or an interval too wide
            for any plan.
    """
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
    full = counts >= 0.9 * counts.max()  # the first and the last day may be parts of one
    number = np.flatnonzero(full)
    weekdays, weekday = np.unique(number % 7, return_inverse=True)
    free = len(number) - len(weekdays) - 1
    span = int(number[-1] - number[0]) + 1
    if span < _MIN_DAYS or free < _MIN_FREEDOM:
        raise InputError(
            "--growth-per-year",
            "fit",
            f"traffic of at least {_MIN_DAYS} days, or a number such as 0.3",
            f"{len(number)} full days in {span}",
        )
    means = np.bincount(day, totals)[full] / counts[full]
    if not (means > 0).all():
        raise InputError("--growth-per-year", "fit", "traffic in every day", "a day without any")
    years, logs = number * _DAY_S / _YEAR_S, np.log(means)
    levels = np.bincount(weekday)
    centred = years - (np.bincount(weekday, years) / levels)[weekday]
    rate = float(centred @ logs / (centred @ centred))
    residual = logs - (np.bincount(weekday, logs) / levels)[weekday] - rate * centred
    size, count = float(residual @ residual), len(logs)
    variance = size / free / float(centred @ centred)
    rho = float(residual[1:] @ residual[:-1]) / size if size > 0 else 0.0
    rho = float(np.clip((count * rho + 2) / (count - 4), 0.0, _MAX_CORRELATION))
    fewer = (1 + rho) / (1 - rho)
    error = math.sqrt(variance * fewer)
    width = float(student_t.ppf(_QUANTILE, max(1.0, (free + 1) / fewer - 1))) * error
    growth = Growth(rate, rate - width, rate + width, True)
    if growth.high - growth.low > _MAX_WIDTH:
        raise InputError(
            "--growth-per-year",
            "fit",
            "traffic from which a growth can be told, or a number such as 0.3",
            f"{len(number)} days, {growth}",
        )
    return growth


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkForecast:
    """When a link is full.

    Attributes:
        link: its name.
        capacity: Gbit/s.
        utilisation: largest, without failure, today.
        failed_utilisation: largest under the worst failure, today.
        worst_failure: its name.
        full: month from which it passes the limit without failure; ``already`` where it does
            today, "" beyond 30 years, or never.
        full_under_failure: the same under the worst failure.
        earliest: month of ``full_under_failure`` at the high end of the growth's interval.
        latest: at its low end.
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
    """When each link is full.

    Args:
        forecasts: links.
        title: title in the terminal.
        routing: name of the routing of today's loads, for the heading.
        fitted: whether the growth has an interval.
        shown: number of links that a terminal shows; None for all.
    """
    interval = (Column("earliest", "earliest"), Column("latest", "latest")) if fitted else ()
    columns = (
        Column("link", "link"),
        Column(f"today, {routing}", "utilisation", percent, most_is_best=True),
        Column("full from", lambda one: one.full or "-"),
        Column("under its worst failure", "failed_utilisation", percent, most_is_best=True),
        Column("full under failure from", lambda one: one.full_under_failure or "-"),
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
    """When each link with a capacity is full under a routing that does not change, the fullest
    under failure first.

    Args:
        topology: gives the names of the links.
        capacity: (E,) Gbit/s.
        load: (F, E) Gbit/s today, the largest of all matrices, without failure and then under each
            failure.
        failures: F names, of which the first stands for no failure.
        limit: utilisation above which a link is full.
        growth: growth of all demands, to which loads are in proportion.
        today: time of the traffic.
    """
    found = []
    for link, name in enumerate(topology.link_names()):
        if capacity[link] <= 0:
            continue
        utilisation = load[:, link] / capacity[link]
        worst = int(np.argmax(utilisation))
        times = [
            month_when_full(float(utilisation[which]), limit, rate, today)
            for which, rate in (
                (0, growth.rate),
                (worst, growth.rate),
                (worst, growth.high),
                (worst, growth.low),
            )
        ]
        found.append(
            LinkForecast(
                link=name,
                capacity=float(capacity[link]),
                utilisation=float(utilisation[0]),
                failed_utilisation=float(utilisation[worst]),
                worst_failure=failures[worst],
                full=times[0],
                full_under_failure=times[1],
                earliest=times[2],
                latest=times[3],
            )
        )
    return sorted(found, key=lambda one: -one.failed_utilisation)


def month_when_full(utilisation: float, limit: float, rate: float, today: np.datetime64) -> str:
    """The month in which a link passes the limit: ``already`` for one that is above it today; ""
    for never, or after more than 30 years.

    Args:
        utilisation: today.
        limit: largest utilisation.
        rate: rate of growth, continuous, in a year.
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
    """Whether a link whose month is that of :func:`month_when_full` is full by a month.

    Args:
        month: its month.
        horizon: the other month; "" for no end.
    """
    return month == ALREADY or (month != "" and (not horizon or month <= horizon))


def month_order(month: str) -> str:
    """Sort key of a month of :func:`month_when_full`: already comes first, never last."""
    return "" if month == ALREADY else month or "9999"


def when(month: str) -> str:
    """A month in a sentence: ``in 2027-03``, or ``already``."""
    return month if month == ALREADY else f"in {month}"


def month_after(today: np.datetime64, years: float) -> str:
    """The month some years after a time, such as 2027-03."""
    moment = today.astype("datetime64[s]") + np.timedelta64(round(years * _YEAR_S), "s")
    return str(moment.astype("datetime64[M]"))


def quarters(growth: Growth, years: float) -> tuple[FloatArray, FloatArray]:
    """Ends of the quarters up to the horizon, in years from today, and the factor of demands at
    each.
    """
    ends = np.arange(1, math.ceil(years * 4 - 1e-9) + 1) / 4
    ends[-1] = min(ends[-1], years)
    return ends, np.array([growth.factor(float(end)) for end in ends])
