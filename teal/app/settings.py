"""Settings that several commands share: network, traffic, paths, objective; and checks of
settings.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Annotated, NamedTuple

from teal.errors import InputError
from teal.network.path_options import FIRST_PATHS, USUAL_MOST_PATHS, PathMethod, PathWeight
from teal.objectives import Objective, ObjectiveName
from teal.option import DEVICE, TOPOLOGY, check_options
from teal.spec import parse_spec

# Maximum number of paths of a demand.
_MAX_PATHS = 255


class PathChoice(NamedTuple):
    """Options of column generation, in which paths are added for some training matrices
    (``--num-paths auto:gap=...,most=...``).

    Attributes:
        gap: certified relative gap to the optimum over all paths at which it stops.
        max_paths: maximum number of paths of a demand; of the added paths, those with the largest
            flow in some training matrix remain.
    """

    gap: float
    max_paths: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathConfig:
    """Settings of the candidate paths: their number, method and weight."""

    num_paths: int | str = "auto"
    """K, maximum number of candidate paths of a demand; or auto:gap=0.01,most=8: starting with 4
    paths of each demand, column generation adds paths for some training matrices until the
    certified gap to the optimum over all paths is at most GAP; a demand keeps the MOST paths with
    the largest flows."""
    path_method: PathMethod = PathMethod.DISJOINT
    """edge-disjoint (a shortest path, then one without the links of the first, ...), yen (K
    shortest loopless), survivable (paths of which some survive the failure of any one cable or
    group, wherever the network allows it), or maximally-disjoint (edge-disjoint paths, then further
    ones that share as few cables as possible)."""
    path_weight: PathWeight = PathWeight.HOPS
    """Measure that shortest paths minimise: hops, latency or inverse-capacity."""
    path_groups: Path | None = None
    """For survivable and maximally-disjoint: groups of cables that fail together, a table (group,
    source, target), .json or .graphml file.  Default: each cable fails alone."""

    def __post_init__(self) -> None:
        """Raise InputError for an option out of range."""
        check_options(self)
        _ = self.choice

    @property
    def choice(self) -> PathChoice | None:
        """Options of column generation from ``num_paths``; None for a fixed number of paths.

        Raises:
            InputError: neither a number nor auto with its options.
        """
        if isinstance(self.num_paths, int):
            return None
        spec = parse_spec(self.num_paths)
        if spec.name != "auto":
            expected = "an integer, or auto:gap=0.01,most=8"
            raise InputError("--num-paths", "", expected, self.num_paths)
        options = spec.parse_options(gap=0.01, most=USUAL_MOST_PATHS)
        gap = float(options["gap"])
        max_paths = int(options["most"])
        if not 0 < gap < 1:
            raise InputError("--num-paths", "gap", "a number in (0, 1)", gap)
        if not 1 <= max_paths <= _MAX_PATHS:
            raise InputError("--num-paths", "most", f"an integer from 1 to {_MAX_PATHS}", max_paths)
        return PathChoice(gap, max_paths)

    @property
    def first_paths(self) -> int:
        """Number of candidate paths of a demand before column generation adds any."""
        return self.num_paths if isinstance(self.num_paths, int) else FIRST_PATHS


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateConfig(PathConfig):
    """Settings of candidate paths that are computed, or read from a file."""

    paths: Path | None = None
    """A .npz file of candidate paths, written by teal paths improve; --num-paths, --path-method,
    --path-weight and --path-groups are then ignored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """Settings of the objective and of its weights."""

    objective: str = ObjectiveName.TOTAL_FLOW
    """total_flow, weighted_flow, latency_penalised_flow:epsilon=0.5 (a Gbit/s on a path has the
    value 1 - epsilon * latency / largest latency of all candidate paths), max_link_utilisation,
    max_concurrent_flow, least_cost:cost=latency|metric|te_metric|hops|cost,max_utilisation=0.8 (all
    demand within this share of each capacity, over the cheapest paths), priority (the flow of the
    highest class first, then that of the next one), max_min (fair: no demand's rate can be raised
    without lowering another one that is not larger), proportional_fair,
    alpha_fair:alpha=2,weight=demand|1|given (a concave utility of each demand's share),
    bandwidth_functions (--functions), or one that was registered."""
    weights: str = ""
    """For weighted_flow, max_min, and fair objectives with weight=given: a CSV file with columns
    source,target,weight; random:seed=N (each demand's weight is drawn from 1, 2 and 4); or a weight
    for each class of demands, gold=4,bronze=1.  Default: random:seed=0, but 1 each for max_min."""

    def __post_init__(self) -> None:
        """Raise InputError for an unknown objective."""
        object.__setattr__(self, "objective", Objective(self.objective).spec)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibratedConfig:
    """Setting that scales the demands."""

    calibrate: float | None = None
    """Share in (0, 1): multiply all demands by one factor so that the optimal total flow serves
    this share of the demand in the median training matrix.  Default: demands are not scaled."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassConfig:
    """Settings of the priority classes of the demands, and of their latency limits."""

    classes: str = ""
    """Priority classes, the highest first: gold,silver,bronze names those of the traffic's column
    class in their order (default: by number, or by name); gold=0.1,silver=0.3,bronze=0.6 divides
    every demand among them."""
    latency_limits: str = ""
    """Maximum latency of a path for demands of a class, ms: gold=30,silver=80.  Candidate paths
    above it are not used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramConfig(ObjectiveConfig, CalibratedConfig, ClassConfig, CandidateConfig):
    """Settings of the program to solve, and of the device that solves it."""

    functions: Path | None = None
    """For bandwidth_functions: the value of each demand as a piecewise linear, concave function of
    its rate.  A .csv file with a row for each point (source and target, or class; rate in Gbit/s,
    or share of the demand; value), or .json."""
    protect: str = ""
    """For total_flow and weighted_flow: cables, or a file of groups of cables (.csv with
    group,source,target, .json or .graphml).  Flows are then promises that survive the failure of
    any one cable or group, if each router only sends over its surviving paths."""
    device: Annotated[str, DEVICE] = "auto"

    @property
    def cpu_alone(self) -> str:
        """Text for messages that names the part of the program which needs the CPU; "" if the
        program can run on a GPU.
        """
        is_on_cpu = Objective(self.objective).rules.may_be_infeasible
        return f"the objective {self.objective}" if is_on_cpu else ""

    @property
    def prefers_gpu(self) -> bool:
        """Whether ``--device auto`` selects an available GPU also for small networks; false unless
        a subclass overrides it.
        """
        return False

    @property
    def chooses_paths(self) -> bool:
        """Whether column generation may add paths for the traffic before it is solved; true unless
        a subclass overrides it.
        """
        return True

    def __post_init__(self) -> None:
        """Raise InputError for an unknown objective, or an option out of range."""
        CandidateConfig.__post_init__(self)
        ObjectiveConfig.__post_init__(self)
        needs_functions = Objective(self.objective).rules.needs_functions
        expected = (
            "a file, for the objective bandwidth_functions"
            if needs_functions
            else "no file, since only the objective bandwidth_functions uses it"
        )
        require(self, "functions", expected, needs_functions == (self.functions is not None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyFileConfig:
    """Settings for reading the file of a network."""

    default_capacity: float | None = None
    """Capacity of links without a capacity in the file, Gbit/s; default: such a file is refused."""
    attributes: str = ""
    """Names of link attributes in a .json or .graphml file, or of the columns of a table, if they
    differ from capacity (Gbit/s), latency (ms), source, target, metric, metric_back, status and
    members: capacity=bandwidth,latency=delay,capacity_unit=Mbit/s.  A format without such an
    attribute refuses it.  Or an inventory, a table (.csv, .xlsx) with source, target, and any of
    capacity, latency and cost, for a file without them, such as an IS-IS database."""
    bidirectional: bool = False
    """Add the reverse link, with the same capacity, latency and metric, of every link without
    one."""
    routers: Path | None = None
    """Table (.csv or .xlsx) of routers: name, aliases (also router_id, fqdn, system_id), loopback,
    sid (sid_128 of an algorithm), srgb, site, vendor, overload (yes: no transit traffic).  Nodes
    get the names of this table; other files may use any of their aliases."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficFileConfig(TopologyFileConfig):
    """Settings for reading the files of a network and its traffic."""

    traffic_unit: str = ""
    """Unit of the rates in a .csv, .parquet or .npz file, such as Mbit/s; Gbit/s by default."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig(TrafficFileConfig):
    """Settings that name a network and its traffic."""

    topology: Annotated[str, TOPOLOGY]
    traffic: str
    """An SNDlib archive (.tgz or folder), a .npz, .csv, .parquet or Repetita .demands file (or a
    quoted pattern of those, "net.*.demands", a matrix each), or gravity:seed=0,count=200,load=4:
    COUNT generated matrices whose mean demand is LOAD times that with which shortest paths just
    fill the busiest link."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramFileConfig(ProgramConfig, TrafficFileConfig):
    """Settings of the program, and for reading the files of a network and its traffic."""


# Dataclass fields begin with those of the last base, so that --help begins with the required ones.
@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceConfig(ProgramFileConfig, NetworkConfig):
    """Settings of a network, its traffic, and the program to solve."""


def assignments(text: str, option: str) -> dict[str, float]:
    """Parse ``name=number,name=number`` into numbers by name, in this order; {} for "".

    Args:
        text: value of the option.
        option: name of the command-line option, for the message.

    Raises:
        InputError: any other text.
    """
    numbers: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            raise InputError(option, "", "pairs such as gold=1,silver=2", repr(text)) from None
        if not equals or not name.strip():
            raise InputError(option, "", "pairs such as gold=1,silver=2", repr(text))
    return numbers


def require(config: object, field: str, expected: str, good: bool) -> None:
    """Raise InputError about an option unless ``good``.

    Args:
        config: the settings.
        field: field of the option; the message has its value.
        expected: description of the accepted values, for the message.
        good: whether the value is accepted.
    """
    if not good:
        raise InputError(f"--{field.replace('_', '-')}", "", expected, getattr(config, field))


def require_one_program(config: ProgramConfig, where: str) -> None:
    """Raise InputError for objectives that are sequences of programs (priority, max_min), and for
    ``--protect``.

    Args:
        config: the settings.
        where: use that does not support them, such as "with --race", for the message.
    """
    if Objective(config.objective).rules.is_sequence:
        raise InputError.invalid(
            "--objective",
            "",
            f"{config.objective} needs a sequence of linear programs, which cannot be used {where}",
            "use an objective with a single program, such as total_flow",
        )
    if config.protect:
        raise InputError.invalid(
            "--protect", "", f"protection cannot be used {where}", "drop the option"
        )


def require_linear(config: ProgramConfig, where: str, *, or_in_pieces: bool = False) -> None:
    """Raise InputError for objectives that are not linear in the flows: fair objectives and
    bandwidth functions.

    Args:
        config: the settings.
        where: use that does not support them, such as "with --prove", for the message.
        or_in_pieces: whether bandwidth functions, which are piecewise linear, are supported.
    """
    rules = Objective(config.objective).rules
    is_supported = rules.is_linear or (or_in_pieces and rules.needs_functions)
    if not is_supported:
        raise InputError.invalid(
            "--objective",
            "",
            f"{config.objective} is not linear in the flows and cannot be used {where}; use a "
            "linear objective such as total_flow",
        )


def require_exact_splits(config: ProgramConfig, entries: int, min_split: float) -> None:
    """Raise InputError for ``--protect`` with rounded splits, since rounding changes the surviving
    flow of a failure.

    Args:
        config: the settings.
        entries: entries of a split table; 0 for exact splits.
        min_split: smallest split ratio; 0 for no limit.
    """
    if config.protect and (entries or min_split):
        raise InputError.invalid(
            "--protect",
            "",
            "protection cannot be used with rounded splits",
            "drop --entries and --min-split",
        )


def share(text: str, option: str) -> float:
    """Parse a share such as ``1%`` or ``0.01`` into a fraction.

    Args:
        text: the share.
        option: name of the command-line option, for the message.

    Raises:
        InputError: any other text, or a share below 0.
    """
    number, unit = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        raise InputError(option, "", "a share such as 1% or 0.01", repr(text)) from None
    if not 0 <= value < math.inf:
        raise InputError(option, "", "a share such as 1% or 0.01", repr(text))
    return value


_SECONDS_PER_UNIT = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str, option: str = "--time-budget") -> float:
    """Parse a duration such as ``500ms``, ``90s``, ``10m`` or ``1h30m`` into seconds; a number
    without a unit is in seconds.

    Args:
        text: the duration.
        option: name of the command-line option, for the message.

    Raises:
        InputError: any other text.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|[smh]))+", text):
        raise InputError(option, "", "a duration such as 500ms, 90s, 10m or 1h30m", repr(text))
    return sum(
        float(number) * _SECONDS_PER_UNIT[unit]
        for number, _, unit in re.findall(r"(\d+(\.\d+)?)(ms|[smh])", text)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmUpConfig:
    """Compile all kernels for this machine, once; it takes a minute or two, and later commands
    start without delay.

    Otherwise a command compiles the kernels that it needs when it first runs.  Compiled kernels are
    stored in Teal's cache folder, or in the folder NUMBA_CACHE_DIR.
    """

    workers: int = 0
    """Number of processes; 0 for one per core."""
    calibrate: bool = False
    """Then measure the engines on public networks, about five minutes on an otherwise idle machine,
    and correct their predicted times, by which `teal solve` chooses one."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "workers", "an integer >= 0", self.workers >= 0)
