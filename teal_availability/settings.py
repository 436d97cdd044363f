"""Settings of the commands `teal availability`, `teal admit` and `teal expand`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal import InputError, ObjectiveName
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

LEAST_LOSS = "least-loss"
COMMON_SHARE = "common-share"
TAIL_LOSS = "tail-loss"
# Options of the failing components, a group of --help.
FAILURES = (
    "components",
    "groups",
    "cable_availability",
    "node_availability",
    "group_availability",
)
# Routing schemes with reserved rates.
RESERVED_RATE_ROUTINGS = LEAST_LOSS, COMMON_SHARE, TAIL_LOSS
DEFAULT_ROUTINGS = ("igp", "tunnels", "solved", LEAST_LOSS, COMMON_SHARE)
ROUTINGS = (*DEFAULT_ROUTINGS, TAIL_LOSS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """Failing components and their availability."""

    components: Path | None = None
    """Table (.csv, .xlsx) of availabilities: source,target or node or group; availability, or mtbf
    and mttr (2000h, 90d)."""
    groups: Path | None = None
    """Groups of cables that also fail together, such as those in one conduit: a .csv file of
    group,source,target, or a .json or .graphml file as in teal plan."""
    cable_availability: float = 0.999
    """Availability of cables that --components does not list, a share of the time."""
    node_availability: float = 1.0
    """Availability of nodes that --components does not list, a share of the time."""
    group_availability: float = 1.0
    """Availability of groups that --components does not list, a share of the time."""

    def check_failures(self) -> None:
        """Raise InputError if groups are given, but no setting lets any of them fail."""
        groups_may_fail = self.group_availability < 1 or self.components is not None
        if self.groups is not None and not groups_may_fail:
            raise InputError.invalid(
                "--groups",
                "",
                "no group fails: the availability of groups is 1",
                "set --group-availability below 1, or --components",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AvailabilityOptions(FailureConfig, ProgramFileConfig):
    """Failing components, routing schemes to measure, network states and traffic matrices."""

    routing: tuple[str, ...] = ()
    """Routing scheme; repeat for more.  igp:metric=hops: shortest paths after the failure, with
    segment lists of some demands (lists=FILE of teal segments).  tunnels:scheme=auto,moves=true:
    splits of a scheme, chosen before the failure (auto: least largest utilisation where all demand
    fits, else largest flow), or file=FILE of teal solve; moves=true: the ingress moves the traffic
    of failed paths to surviving paths, else it is lost.  solved:gap=0.001: splits reoptimised after
    each failure.  least-loss, and common-share at --availability: rates reserved on paths before
    any failure, certified.  tail-loss:cut=true: reserved rates with the smallest CVaR of the
    largest loss over all demands (TEAVAR); cut=true includes demands without a surviving path.
    With --classes, upper classes are served first.  Default: all but tail-loss, and with --classes
    also without least-loss."""
    path_method: PathMethod = PathMethod.MAXIMALLY_DISJOINT
    """edge-disjoint, yen, survivable, or maximally-disjoint: edge-disjoint paths, then further ones
    that share as few cables as possible, so that a failure behind a shared cable leaves others."""
    availability: float = 0.999
    """Availability target of common-share, a share of the time; tail-loss averages over the worst
    remaining share of the time."""
    max_unlisted_probability: float = 1e-6
    """Network states are listed until the others have at most this total probability, or
    --max-states is reached; unlisted states count as lost in lower bounds, as delivered in upper
    bounds."""
    max_failed_components: int = 0
    """Maximum number of components down at once in the listed states; 0 for no limit."""
    max_states: int = 20_000
    """Maximum number of listed network states; the most probable are listed."""
    split: Literal["train", "validation", "test", "all"] = "all"
    """Traffic matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 1
    """Number of matrices, evenly spread, each with an equal share of the time; 1 for the one with
    the most traffic, 0 for all."""

    def __post_init__(self) -> None:
        """Raise InputError for an option out of its range."""
        super().__post_init__()
        self.check_failures()
        is_total_flow = self.objective == ObjectiveName.TOTAL_FLOW
        require(self, "objective", "total_flow", is_total_flow)
        require(self, "protect", "none", not self.protect)
        check_availability(self.availability, "--availability")
        require(
            self,
            "max_unlisted_probability",
            "a share of the time in [0, 1)",
            0 <= self.max_unlisted_probability < 1,
        )
        for field in ("max_failed_components", "limit"):
            require(self, field, "an integer of at least 0", getattr(self, field) >= 0)
        require(self, "max_states", "an integer of at least 1", self.max_states >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AvailabilityConfig(AvailabilityOptions, InstanceConfig):
    """Measure the share of the time in which traffic arrives, and compute bandwidth guarantees.

    Cables, nodes and groups of cables fail independently. Every figure has a lower and an upper
    bound; guarantees are certified by link prices.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "routing": ("routing", "availability"),
        "failures": FAILURES,
        "states": ("max_unlisted_probability", "max_failed_components", "max_states"),
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
        """Raise InputError for an option out of its range."""
        super().__post_init__()
        require(self, "worst", "an integer of at least 1", self.worst >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReservationOptions(FailureConfig, TopologyFileConfig):
    """Failing components, candidate paths, and the time limit of the integer program."""

    num_paths: int = 4
    """K, largest number of candidate paths of a node pair, maximally disjoint: edge-disjoint paths,
    then paths that share as few cables as possible."""
    deadline: str = "30s"
    """Approximate time limit of the integer program, after the linear relaxation."""

    def __post_init__(self) -> None:
        """Raise InputError for an option out of its range."""
        self.check_failures()
        require(self, "num_paths", "1 to 8", 1 <= self.num_paths <= 8)
        seconds(self.deadline, "--deadline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmitOptions(ReservationOptions):
    """Failing components, candidate paths, and the time limit of the integer program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdmitConfig(AdmitOptions):
    """Select the bandwidth guarantees that a network can grant, and price each of them.

    A guarantee (a promise of a rate for a share of the time) is met by rates reserved on one or
    several paths, with an exact availability; sold promises are always kept.
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
    """Failing components, candidate paths, and the cost of capacity."""

    cost: Literal["capacity", "length"] = "capacity"
    """Cost of a Gbit/s in both directions of a cable: 1 on every cable, or its latency in ms."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpandConfig(ExpandOptions, TrafficFileConfig):
    """Find the least capacity to buy so that a network meets all bandwidth guarantees.

    Promises of a rate for a share of the time come from a table, or are the traffic peaks at one
    availability. Each is met by rates reserved on one or several paths, with an exact availability;
    no purchase for such reservations costs less than the printed bound.
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
    """Instead of --promises: traffic whose peak rate of each node pair is promised; files and names
    as in teal evaluate."""
    availability: float | None = None
    """With --traffic: availability of each promise, a share of the time.  Default: 0.999."""
    out: Path
    """Folder for purchases.csv, promises.csv, topology.json (the network with the purchase) and
    manifest.json."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for an option out of its range."""
        super().__post_init__()
        has_one_source = (self.promises is None) != (not self.traffic)
        if not has_one_source:
            raise InputError.invalid("--promises", "", "set either --promises or --traffic")
        for field in ("availability", "traffic_unit"):
            if self.promises and getattr(self, field):
                raise InputError.invalid(
                    f"--{field.replace('_', '-')}",
                    "",
                    "the option has no effect with --promises, whose table has this column",
                    "drop the option",
                )
        if self.availability is not None:
            check_availability(self.availability, "--availability")
