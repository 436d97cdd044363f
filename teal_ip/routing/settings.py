"""Settings of `teal simulate`, and of the routing and growth that other commands share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import NetworkConfig, TrafficFileConfig, require
from teal.errors import InputError
from teal.option import GROWTH, GROWTH_PER_YEAR, MAX_UTILISATION, OVERWRITE, check_options

_MAX_YEARS = 30.0  # of a horizon
_YEARS = {"y": 1.0, "q": 0.25, "m": 1 / 12}  # years of each unit of a horizon


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """How demands grow, and how full a link may be."""

    growth: Annotated[float, GROWTH] = 1.0
    growth_per_year: Annotated[str, GROWTH_PER_YEAR] = ""
    horizon: str = ""
    """With --growth-per-year: how far to look, such as 2y, 6q or 18m from the last matrix."""
    max_utilisation: Annotated[float, MAX_UTILISATION] = 1.0

    def check_growth(self) -> None:
        """Raise InputError for a number out of its range, or a horizon without a growth."""
        check_options(self)
        require(
            self, "horizon", "--growth-per-year too", not self.horizon or bool(self.growth_per_year)
        )
        _ = self.rate, self.horizon_years

    @property
    def rate(self) -> float | None:
        """Growth in a year, as a share; None where it is fitted or not asked for.

        Raises:
            InputError: no number above -1 and not ``fit``.
        """
        if self.growth_per_year in ("", "fit"):
            return None
        text = repr(self.growth_per_year)
        try:
            rate = float(self.growth_per_year)
        except ValueError:
            raise InputError("--growth-per-year", "", "a share such as 0.3, or fit", text) from None
        GROWTH_PER_YEAR.check(rate, text)
        return rate

    @property
    def horizon_years(self) -> float:
        """Years from the last matrix to the horizon; 0 for none.

        Raises:
            InputError: no number above 0 with a unit.
        """
        if not self.horizon:
            return 0.0
        number, unit = self.horizon[:-1], self.horizon[-1]
        try:
            years = float(number) * _YEARS[unit]
        except (ValueError, KeyError):
            years = 0.0
        if not 0 < years <= _MAX_YEARS:
            raise InputError(
                "--horizon",
                "",
                "a time after the traffic, such as 2y, 6q or 18m",
                repr(self.horizon),
            )
        return years


@dataclasses.dataclass(frozen=True, kw_only=True)
class IgpConfig:
    """How routers find shortest paths."""

    metric: Literal["file", "hops", "latency", "inverse-capacity"] = "file"
    """IGP metrics of the links: those of the topology's file (1 each where it has none), or hops (1
    each), latency (units of 0.01 ms), inverse-capacity (10,000 Gbit/s over the capacity); rounded
    to whole numbers of at least 1."""
    set_metric: tuple[str, ...] = ()
    """Another metric for the links between two nodes, A,B=20, or from A to B alone, A>B=20; repeat
    for more."""
    ucmp: bool = False
    """Next hops of equal cost share traffic in proportion to their capacities (UCMP), not evenly
    (ECMP)."""
    fail: tuple[str, ...] = ()
    """A link A,B (node names; both directions) that is out of service throughout; repeat for
    more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutedConfig(IgpConfig, NetworkConfig):
    """A network, its traffic, and how routers find shortest paths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateOptions(GrowthConfig, IgpConfig, TrafficFileConfig):
    """The routing that is installed, and the failures and matrices to look at."""

    policies: Path | None = None
    """Installed segment lists, a .json file written by teal segments --out."""
    allocation: Path | None = None
    """Installed explicit paths with their shares, such as RSVP-TE tunnels: a .json file as teal
    solve --out writes it. Tunnels over failed links are taken down, the others carry their demand;
    one without any follows the IGP."""
    flex_algo: tuple[str, ...] = ()
    """A flexible algorithm (RFC 9350), such as 128:metric=delay,exclude=red+blue: its metric (igp,
    delay or te), and exclude, include-any, include-all with names of affinities; repeat for more
    algorithms."""
    algorithm_of: Path | None = None
    """Which demands use which algorithm: a .csv file of source, target (* for any) and algorithm (0
    for the IGP's own); the first row that fits decides, and without one a demand stays with the
    IGP."""
    failures: tuple[Literal["cables", "links", "nodes", "pairs"], ...] = ()
    """Failures: cables (all links between two nodes, both directions), links (each pair of
    directions of one link alone, so that a parallel one is left), nodes, or pairs of cables; repeat
    for more kinds."""
    groups: Path | None = None
    """Groups of cables that fail together: a .csv (group,source,target), .json or .graphml file."""
    repair: bool = False
    """For each failure also the loads while backup paths are in use (TI-LFA fast reroute), before
    the other routers have converged, and the traffic that may run into a micro-loop meanwhile."""
    index: int = -1
    """Number of one matrix, counted from 0; -1 for all."""
    limit: int = 0
    """Number of matrices, at most, the first ones in time order; 0 for all."""
    worst: int = 10
    """Number of failures and links to list."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that do not go together."""
        self.check_growth()
        require(self, "index", "a whole number of at least -1", self.index >= -1)
        require(self, "limit", "a whole number of at least 0", self.limit >= 0)
        require(self, "worst", "a whole number of at least 1", self.worst >= 1)
        needs = bool(self.failures or self.groups)
        require(
            self,
            "allocation",
            "no --policies beside it",
            self.allocation is None or self.policies is None,
        )
        require(
            self,
            "allocation",
            "no --repair: tunnels have another one",
            self.allocation is None or not self.repair,
        )
        require(
            self,
            "flex_algo",
            "no --allocation beside it",
            not self.flex_algo or self.allocation is None,
        )
        is_known = self.algorithm_of is None or self.allocation is None
        require(self, "algorithm_of", "no --allocation beside it", is_known)
        require(self, "flex_algo", "no --ucmp beside it", not (self.flex_algo and self.ucmp))
        require(self, "repair", "together with --failures or --groups", needs or not self.repair)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateConfig(SimulateOptions, RoutedConfig):
    """Loads of today's routing: shortest paths of the IGP with ECMP, and segment lists or tunnels
    that are installed.

    For every matrix, without failure and under every failure that is asked for; nothing is
    optimised.  With --growth-per-year, the month in which each link is full if the routing stays.
    With --out, a page with a map, and tables.
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
    """Write what the byte counters of all interfaces would read, to this .npz file, which teal
    estimate and teal check take: to try them, or to know what to expect."""
    counter_error: float = 0.01
    """Standard deviation of these counters, as a share of each."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that do not go together."""
        super().__post_init__()
        require(self, "counter_error", "a number in [0, 1)", 0 <= self.counter_error < 1)
