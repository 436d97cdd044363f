"""Settings of ``teal simulate``, and of routing and growth for other commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import NetworkConfig, TrafficFileConfig, require
from teal.errors import InputError
from teal.option import GROWTH, GROWTH_PER_YEAR, MAX_UTILISATION, OVERWRITE, check_options

# Largest horizon, years.
_MAX_YEARS = 30.0
# Years per unit of a horizon.
_YEARS_BY_UNIT = {"y": 1.0, "q": 0.25, "m": 1 / 12}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """Settings of the growth of demands, and of the utilisation limit of links."""

    growth: Annotated[float, GROWTH] = 1.0
    growth_per_year: Annotated[str, GROWTH_PER_YEAR] = ""
    horizon: str = ""
    """With --growth-per-year: planning horizon after the last matrix, such as 2y, 6q or 18m."""
    max_utilisation: Annotated[float, MAX_UTILISATION] = 1.0

    def check_growth(self) -> None:
        """Raise InputError for a number out of its range, or a horizon without growth."""
        check_options(self)
        if self.horizon and not self.growth_per_year:
            raise InputError.invalid(
                "--horizon", "", "a horizon needs growth of traffic", "add --growth-per-year"
            )
        # Reading these properties validates the texts.
        _ = self.rate, self.horizon_years

    @property
    def rate(self) -> float | None:
        """Growth rate per year, 0.3 for 30%; None if it is to be fitted, or not given.

        Raises:
            InputError: neither a number above -1 nor ``fit``.
        """
        if self.growth_per_year in ("", "fit"):
            return None
        text = repr(self.growth_per_year)
        try:
            rate = float(self.growth_per_year)
        except ValueError:
            raise InputError(
                "--growth-per-year", "", "a growth rate such as 0.3 (30% per year), or fit", text
            ) from None
        GROWTH_PER_YEAR.check(rate, text)
        return rate

    @property
    def horizon_years(self) -> float:
        """Planning horizon in years after the last matrix; 0 for no horizon.

        Raises:
            InputError: not a number with a unit, or not within 30 years.
        """
        if not self.horizon:
            return 0.0
        number = self.horizon[:-1]
        unit = self.horizon[-1]
        try:
            years = float(number) * _YEARS_BY_UNIT[unit]
        except (ValueError, KeyError):
            years = 0.0
        if not 0 < years <= _MAX_YEARS:
            raise InputError(
                "--horizon",
                "",
                f"a time of at most {_MAX_YEARS:g} years, such as 2y, 6q or 18m",
                repr(self.horizon),
            )
        return years


@dataclasses.dataclass(frozen=True, kw_only=True)
class IgpConfig:
    """Settings of the IGP's shortest-path computation."""

    metric: Literal["file", "hops", "latency", "inverse-capacity"] = "file"
    """IGP metrics of the links: those of the topology's file (1 each if it has none), or hops (1
    each), latency (units of 0.01 ms), inverse-capacity (10,000 Gbit/s over the capacity); rounded
    to integers of at least 1."""
    set_metric: tuple[str, ...] = ()
    """Metric of the links between two nodes, A,B=20, or only from A to B, A>B=20; repeat for more
    links."""
    ucmp: bool = False
    """Split traffic over equal-cost next hops in proportion to their capacities (UCMP), not evenly
    (ECMP)."""
    fail: tuple[str, ...] = ()
    """Link A,B (node names; both directions) that is out of service throughout; repeat for more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutedConfig(IgpConfig, NetworkConfig):
    """Settings of a network, its traffic and its IGP."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateOptions(GrowthConfig, IgpConfig, TrafficFileConfig):
    """Settings of a simulation: the installed routing, and the failures and matrices."""

    policies: Path | None = None
    """Installed segment lists, a .json file written by teal segments --out."""
    allocation: Path | None = None
    """Installed explicit paths with split ratios, such as RSVP-TE tunnels: a .json file written by
    teal solve --out. A failure takes down the tunnels over its links, and the live tunnels carry
    the whole demand; a demand without a live tunnel follows the IGP.
    """
    flex_algo: tuple[str, ...] = ()
    """Flexible algorithm (RFC 9350), such as 128:metric=delay,exclude=red+blue: its metric (igp,
    delay or te), and exclude, include-any, include-all with names of affinities; repeat for more
    algorithms."""
    algorithm_of: Path | None = None
    """Assignment of demands to algorithms: a .csv file with columns source, target (* for any node)
    and algorithm (0 for the IGP itself). The first matching row decides; demands without a match
    follow the IGP."""
    failures: tuple[Literal["cables", "links", "nodes", "pairs"], ...] = ()
    """Failures to simulate: cables (all links between two nodes), links (one link in both
    directions; parallel links stay up), nodes, or pairs of cables; repeat for more kinds.
    """
    groups: Path | None = None
    """Shared-risk groups of cables that fail together: a .csv (group,source,target), .json or
    .graphml file."""
    repair: bool = False
    """For each failure also simulate TI-LFA fast reroute: loads on backup paths before the IGP has
    converged, and the traffic at risk of micro-loops."""
    index: int = -1
    """Index of one matrix, counted from 0; -1 for all."""
    limit: int = 0
    """Maximum number of matrices, the first ones in time order; 0 for all."""
    worst: int = 10
    """Number of failures and of links in the tables, the worst first."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        self.check_growth()
        require(self, "index", "an integer >= -1", self.index >= -1)
        require(self, "limit", "an integer >= 0", self.limit >= 0)
        require(self, "worst", "a positive integer", self.worst >= 1)
        # Options that exclude each other, or need each other.
        has_failures = bool(self.failures or self.groups)
        exclusive = (
            ("--allocation", self.allocation, "--policies", self.policies),
            ("--allocation", self.allocation, "--flex-algo", self.flex_algo),
            ("--allocation", self.allocation, "--algorithm-of", self.algorithm_of),
            ("--flex-algo", self.flex_algo, "--ucmp", self.ucmp),
        )
        for option, value, other_option, other_value in exclusive:
            if value and other_value:
                raise InputError.invalid(
                    option, "", f"cannot be combined with {other_option}; drop one of them"
                )
        if self.allocation is not None and self.repair:
            raise InputError.invalid(
                "--allocation", "", "fast reroute of tunnels is not modelled", "drop --repair"
            )
        if self.repair and not has_failures:
            raise InputError.invalid(
                "--repair", "", "no failure is simulated", "add --failures or --groups"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateConfig(SimulateOptions, RoutedConfig):
    """Simulate the installed routing: link loads on the IGP's shortest paths with ECMP, and on
    installed segment lists or tunnels.

    Loads are computed for every matrix, without failure and under every requested failure; nothing
    is optimised.  --growth-per-year adds a forecast: the month in which each link is full under the
    current routing.  --out writes a page with a map, and tables.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "routing": (
            "metric",
            "set_metric",
            "ucmp",
            "policies",
            "allocation",
            "flex_algo",
            "algorithm_of",
        ),
        "failures": ("fail", "failures", "groups", "repair"),
        "matrices": ("index", "limit"),
        "growth": ("growth", "growth_per_year", "horizon", "max_utilisation"),
        "output": ("worst", "out", "counters", "counter_error", "overwrite"),
    }

    out: Path | None = None
    """Folder for simulate.html, links.csv, failures.csv, forecast.csv and manifest.json."""
    counters: Path | None = None
    """Write synthetic byte counters of all interfaces to this .npz file, for tests of teal estimate
    and teal check with known traffic."""
    counter_error: float = 0.01
    """Relative standard deviation of the errors of synthetic counters."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        super().__post_init__()
        require(self, "counter_error", "a number in [0, 1)", 0 <= self.counter_error < 1)
