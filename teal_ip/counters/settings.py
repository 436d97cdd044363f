"""Settings of ``teal estimate`` and ``teal check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import TopologyFileConfig, require
from teal.option import OVERWRITE, TOPOLOGY
from teal_ip.routing.settings import IgpConfig

# Options of both commands, in the order of --help.
_COUNTER_OPTIONS = (
    "counters",
    "interfaces",
    "ignore_interfaces",
    "counter_unit",
    "labels",
    "interval",
    "counter_error",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterOptions(IgpConfig, TopologyFileConfig):
    """Interpretation of interface byte counters and files."""

    interfaces: Path | None = None
    """Table (.csv or .parquet) that maps interfaces to links: router, interface, neighbour (empty:
    external) and, for parallel links, number, counted from 1 as in the names of links.  Interfaces
    of one link are summed.  Default: an interface named like a neighbour (b, or b#2 for the second
    of parallel links) is the link to it, and any other one is external."""
    ignore_interfaces: str = ""
    """Regular expression of names of interfaces to ignore, such as 'lo\\d*|.*\\.\\d+'; a column
    ignore (yes) of the table of interfaces does the same for single ones."""
    counter_unit: str = ""
    """Unit of the column rate, such as Mbit/s; Gbit/s by default."""
    labels: Literal["end", "start"] = "end"
    """Whether timestamps of matrices, read or written, are the start or the end of the interval;
    timestamps of counter readings are always the end."""
    interval: float = 0.0
    """Length of an interval, seconds; 0 for the median time between two readings."""
    counter_error: float = 0.01
    """Relative standard deviation of a counter."""
    policies: Path | None = None
    """Installed segment lists, a .json file of teal segments; all other demands follow the IGP's
    shortest paths."""
    traffic_unit: str = ""
    """Unit of the rates in traffic files, such as Mbit/s; Gbit/s by default."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "counter_error", "a number in (0, 1)", 0 < self.counter_error < 1)
        require(self, "interval", "a number of at least 0", self.interval >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterConfig(CounterOptions):
    """A network and the byte counters of its interfaces."""

    topology: Annotated[str, TOPOLOGY]
    counters: Path
    """Readings of interface counters: a .csv or .parquet table with the columns time, router,
    interface or neighbour, direction (in or out), and bytes (a cumulative counter) or rate; or a
    .npz file of teal simulate --counters.  The time of a rate is the end of its interval, or its
    start in a column start instead of time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateOptions(CounterOptions):
    """Additional knowledge for the estimation, and its parameters."""

    TRAFFIC_OPTIONS: ClassVar[tuple[str, ...]] = ("history", "flows", "truth")

    history: str = ""
    """Past traffic matrices, a file as for teal solve: a week of them halves the errors, and gives
    demands prediction intervals."""
    flows: str = ""
    """Measured demands (flow records, tunnel counters): a .csv, .parquet or .npz file of traffic;
    its demands, and only those, count as measured in the intervals of its times."""
    prefixes: Path | None = None
    """Table (.csv: prefix, router) that locates addresses; --flows is then a file of flow records:
    nfdump's .csv or .json, or pmacct's .json."""
    sampling: float = 1.0
    """Packets per sampled packet, for flow records without a sampling rate."""
    exporters: tuple[str, ...] = ()
    """Router that exported the flow records; repeat for more.  Default: all at which some record
    enters."""
    no_repair: bool = False
    """Do not repair the counters."""
    tracking: float = 0.1
    """Weight, 0 to 1, of each estimate in the prior of the next interval."""
    level: float = 0.9
    """Probability of the prediction interval of each demand."""
    truth: str = ""
    """True traffic matrices of the same times, to report the error of the estimates and the
    coverage of the intervals.
    """

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "sampling", "a number of at least 1", self.sampling >= 1)
        require(
            self, "prefixes", "together with --flows", bool(self.flows) or self.prefixes is None
        )
        require(
            self,
            "exporters",
            "together with --prefixes",
            self.prefixes is not None or not self.exporters,
        )
        require(self, "tracking", "a number in [0, 1]", 0 <= self.tracking <= 1)
        require(self, "level", "a number in (0, 1)", 0 < self.level < 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateConfig(EstimateOptions, CounterConfig):
    """Estimate traffic matrices from the byte counters of interfaces.

    Each interval's matrix is the one nearest to its prior (from past matrices if there are any,
    else from gravity and previous estimates) that explains the counters, after repair of counters
    that contradict the others.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "counters": (*_COUNTER_OPTIONS, "no_repair"),
        "routing": ("metric", "set_metric", "ucmp", "fail", "policies"),
        "what is known besides": (
            "history",
            "flows",
            "prefixes",
            "sampling",
            "exporters",
            "traffic_unit",
            "tracking",
            "level",
        ),
        "output": ("out", "truth", "overwrite"),
    }

    out: Path | None = None
    """Folder for matrices.npz (which --traffic reads), intervals.npz, estimate.csv, estimate.html
    and manifest.json, written every ten seconds and when the run is interrupted."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(CounterOptions):
    """Trusted matrices, and the alarm."""

    history: str = ""
    """Past trusted traffic matrices, to calibrate the alarm; default: those of --traffic."""
    window: int = 1
    """Number of intervals over which the statistic is averaged: more detect smaller persistent
    faults, but later."""
    seed: int = 0
    """Seed of the calibration."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "window", "a positive integer", self.window >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckConfig(CheckOptions, CounterConfig):
    """Check counters, traffic matrix and topology for consistency.

    Counters that contradict all others are named and repaired; an alarm says that the matrix does
    not explain the counters, at a level that is calibrated on past matrices.  The exit code is 4 if
    any interval raises an alarm.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "counters": _COUNTER_OPTIONS,
        "routing": ("metric", "set_metric", "ucmp", "fail", "policies"),
        "matrices": ("traffic", "history", "traffic_unit"),
        "alarm": ("window", "seed"),
        "output": ("out", "overwrite"),
    }

    traffic: str
    """Traffic matrices to check: one per timestamp of the counters, or a single one for all."""
    out: Path | None = None
    """Write a row for each interval to this .csv file."""
    overwrite: Annotated[bool, OVERWRITE] = False
