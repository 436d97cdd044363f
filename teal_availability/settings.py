"""Settings of `teal availability`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal import ObjectiveName
from teal.app.settings import (
    InstanceConfig,
    ProgramFileConfig,
    TopologyFileConfig,
    TrafficFileConfig,
    require,
    seconds,
)
from teal.network.path_options import PathMethod
from teal.option import OVERWRITE, TOPOLOGY
from teal_availability.tolerances import check_availability

LEAST_LOSS, COMMON_SHARE, TAIL_LOSS = "least-loss", "common-share", "tail-loss"
FAILURES = (  # options of what fails, a group of --help
    "components",
    "groups",
    "cable_availability",
    "node_availability",
    "group_availability",
)
PROMISED = LEAST_LOSS, COMMON_SHARE, TAIL_LOSS  # ways of routing by reserved rates
DEFAULT_ROUTINGS = ("igp", "tunnels", "solved", LEAST_LOSS, COMMON_SHARE)
ROUTINGS = (*DEFAULT_ROUTINGS, TAIL_LOSS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """The components that fail, and how often."""

    components: Path | None = None
    """Table (.csv, .xlsx) of availabilities: source,target or node or group; availability, or mtbf
    and mttr (2000h, 90d)."""
    groups: Path | None = None
    """Groups of cables that also fail together, such as those in one conduit: a .csv file of
    group,source,target, or a .json or .graphml file as in teal plan."""
    cable_availability: float = 0.999
    """Availability of a cable that --components does not name."""
    node_availability: float = 1.0
    """The same of a node."""
    group_availability: float = 1.0
    """The same of a group."""

    def check_failures(self) -> None:
        """Raise InputError for groups of which none fails."""
        fail = self.group_availability < 1 or self.components is not None
        expected = "--group-availability below 1, or --components: no group fails"
        require(self, "groups", expected, self.groups is None or fail)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AvailabilityOptions(FailureConfig, ProgramFileConfig):
    """The components that fail, the ways of routing that are measured, and the matrices."""

    routing: tuple[str, ...] = ()
    """A way of routing; repeat for more.  igp:metric=hops: shortest paths after the failure, with
    segment lists of some demands (lists=FILE of teal segments).  tunnels:scheme=auto,moves=true:
    splits of a scheme, chosen before the failure (auto: the least largest utilisation where all
    fits, else the largest flow), or file=FILE of teal solve; the ingress moves the traffic of
    failed paths to the others, or it is lost.  solved:gap=0.001: splits solved anew.  least-loss,
    and common-share at --availability: rates reserved on paths beforehand, certified.
    tail-loss:cut=true: the same with the smallest CVaR of the largest loss of all demands (TEAVAR),
    of those without a path too, or not.  With --classes, upper classes are served first.  Default:
    all but tail-loss, and with --classes but least-loss."""
    path_method: PathMethod = PathMethod.MAXIMALLY_DISJOINT
    """edge-disjoint, yen, survivable, or maximally-disjoint: edge-disjoint paths, then further ones
    that share as few cables as possible, so that a failure behind a shared cable leaves others."""
    availability: float = 0.999
    """Share of the time for which common-share promises a share of every demand; tail-loss looks at
    the worst states of the rest."""
    rest: float = 1e-6
    """Share of the time in states that are not looked at, at most, if --most-states allows; it
    counts as lost in lower bounds and as carried in upper ones."""
    most_down: int = 0
    """Components that are down at once in the states that are looked at, at most; 0 for no
    limit."""
    most_states: int = 20_000
    """Number of states that are looked at, the most probable ones."""
    split: Literal["train", "validation", "test", "all"] = "all"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 1
    """Number of matrices, evenly spread, each with an equal share of the time; 1 for the one with
    the most traffic, 0 for all."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        self.check_failures()
        is_total_flow = self.objective == ObjectiveName.TOTAL_FLOW
        require(self, "objective", "total_flow: availability is that of traffic", is_total_flow)
        require(self, "protect", "none", not self.protect)
        check_availability(self.availability, "--availability")
        require(self, "rest", "a share of the time in [0, 1)", 0 <= self.rest < 1)
        for field in ("most_down", "limit"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "most_states", "a whole number of at least 1", self.most_states >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AvailabilityConfig(AvailabilityOptions, InstanceConfig):
    """Say for how much of the time how much of the traffic arrives, and what can be promised.

    Cables, nodes and groups of cables fail independently of each other.  Every figure has a lower
    and an upper bound; promises are certified by prices.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "routing": ("routing", "availability"),
        "failures": FAILURES,
        "states": ("rest", "most_down", "most_states"),
        "matrices": ("split", "limit"),
        "output": ("out", "worst", "overwrite"),
        "for experts": ("device",),
    }

    worst: int = 10
    """Number of components and demands to list."""
    out: Path
    """Folder for report.html, summary.csv, demands.csv, components.csv, promises.csv,
    availability.png and manifest.json."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "worst", "a whole number of at least 1", self.worst >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReservationOptions(FailureConfig, TopologyFileConfig):
    """The components that fail, the candidate paths, and how long ways are searched for."""

    num_paths: int = 4
    """K, number of maximally disjoint candidate paths of two nodes, at most: edge-disjoint ones,
    then others that share as few cables as possible."""
    deadline: str = "30s"
    """Length of the search by whole numbers, approximately, once the relaxed program is solved."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        self.check_failures()
        require(self, "num_paths", "1 to 8", 1 <= self.num_paths <= 8)
        seconds(self.deadline, "--deadline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmitOptions(ReservationOptions):
    """The components that fail, the candidate paths, and how long ways are searched for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmitConfig(AdmitOptions):
    """Say which promises of a rate for a share of the time a network can keep, and at which price.

    A promise is kept by rates that are reserved on one or several paths, exactly for its share of
    the time; sold promises are kept in any case.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "failures": FAILURES,
        "output": ("out", "overwrite"),
    }

    topology: Annotated[str, TOPOLOGY]
    promises: Path
    """Table (.csv, .xlsx) of promises: source, target, rate (Gbit/s), availability; value (by
    default the rate), sold (yes: must be kept)."""
    out: Path | None = None
    """File for the answers: admission.csv."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpandOptions(ReservationOptions):
    """The components that fail, the candidate paths, and what a Gbit/s costs."""

    cost: Literal["capacity", "length"] = "capacity"
    """Cost of a Gbit/s in both directions of a cable: 1 on every cable, or its latency in ms."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpandConfig(ExpandOptions, TrafficFileConfig):
    """Find the least capacity to buy with which every promise of a rate for a share of the time is
    kept.

    Promises come from a table, or are the peaks of the traffic at one availability.  Each is kept
    by rates that are reserved on one or several paths, exactly for its share of the time; no
    purchase for such reservations costs less than the printed bound.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "promises": ("promises", "traffic", "availability"),
        "failures": FAILURES,
        "output": ("out", "overwrite"),
    }

    topology: Annotated[str, TOPOLOGY]
    promises: Path | None = None
    """Table (.csv, .xlsx) of promises: source, target, rate (Gbit/s), availability."""
    traffic: str = ""
    """In the place of --promises: traffic, of which the largest rate of each pair of nodes is
    promised; files and names as in teal evaluate."""
    availability: float | None = None
    """With --traffic: share of the time for which each rate is promised.  Default: 0.999."""
    out: Path
    """Folder for purchases.csv, promises.csv, topology.json (the network with the purchase) and
    manifest.json."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        is_one = (self.promises is None) != (not self.traffic)
        require(self, "promises", "either --promises or --traffic", is_one)
        for field in ("availability", "traffic_unit"):
            expected = "nothing with --promises, whose table has it"
            require(self, field, expected, not (self.promises and getattr(self, field)))
        if self.availability is not None:
            check_availability(self.availability, "--availability")
