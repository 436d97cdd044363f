"""Settings of ``teal estimate`` and ``teal check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import TopologyFileConfig, require
from teal.errors import InputError
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
    """Settings by which files of interface byte counters are interpreted."""

    interfaces: Path | None = None
    """Table (.csv or .parquet) that maps interfaces to links: columns router, interface, neighbour
    (empty for external interfaces) and, for parallel links, number, counted from 1 as in the names
    of links.  Interfaces of one link are summed.  Default: an interface named like a neighbour (b,
    or b#2 for the second of parallel links) is the link to it, any other one is external."""
    ignore_interfaces: str = ""
    """Regular expression for names of interfaces to ignore, such as 'lo\\d*|.*\\.\\d+'; for single
    interfaces, use a column ignore (yes) in the table of interfaces."""
    counter_unit: str = ""
    """Unit of the column rate, such as Mbit/s; Gbit/s by default."""
    labels: Literal["end", "start"] = "end"
    """Timestamps of matrices, read or written: start or end of the interval.  Timestamps of counter
    readings are always the end."""
    interval: float = 0.0
    """Length of an interval, seconds; 0 for the median time between two readings."""
    counter_error: float = 0.01
    """Relative standard deviation of a counter."""
    policies: Path | None = None
    """Installed segment lists, a .json file written by teal segments --out; demands without a list
    follow the IGP's shortest paths."""
    traffic_unit: str = ""
    """Unit of the rates in traffic files, such as Mbit/s; Gbit/s by default."""

    def __post_init__(self) -> None:
        """Raise InputError for a counter error outside (0, 1), or an interval below 0."""
        require(self, "counter_error", "a number in (0, 1)", 0 < self.counter_error < 1)
        require(self, "interval", "a number of at least 0", self.interval >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterConfig(CounterOptions):
    """Settings of a network and the byte counters of its interfaces."""

    topology: Annotated[str, TOPOLOGY]
    counters: Path
    """Readings of interface counters: a .csv or .parquet table with the columns time, router,
    interface or neighbour, direction (in or out), and bytes (a cumulative counter) or rate; or a
    .npz file of teal simulate --counters.  The time of a rate is the end of its interval, or its
    start in a column start instead of time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateOptions(CounterOptions):
    """Settings of the estimation of traffic matrices: additional input, and parameters."""

    TRAFFIC_OPTIONS: ClassVar[tuple[str, ...]] = ("history", "flows", "truth")

    history: str = ""
    """Past traffic matrices, a file as for teal solve: a week of them halves the errors, and
    enables prediction intervals.
    """
    flows: str = ""
    """Measured demands (from flow records or tunnel counters): a .csv, .parquet or .npz file of
    traffic.  Demands and times that it lacks are estimated."""
    prefixes: Path | None = None
    """Table (.csv: prefix, router) that maps addresses to routers; --flows is then a file of flow
    records: nfdump's .csv or .json, or pmacct's .json."""
    sampling: float = 1.0
    """Packets per sampled packet, for flow records without a sampling rate."""
    exporters: tuple[str, ...] = ()
    """Router that exported the flow records; repeat for more routers.  Default: all routers where a
    record enters the network."""
    no_repair: bool = False
    """Use the counters without repair."""
    tracking: float = 0.1
    """Weight (0 to 1) of each estimate in the prior of the next interval."""
    level: float = 0.9
    """Probability of the prediction interval of each demand."""
    truth: str = ""
    """True traffic matrices of the same times, to report the error of the estimates and the
    coverage of the intervals.
    """

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options of flow records without
        --flows.
        """
        super().__post_init__()
        require(self, "sampling", "a number of at least 1", self.sampling >= 1)
        if self.prefixes is not None and not self.flows:
            raise InputError.invalid("--prefixes", "", "no flow records are given", "add --flows")
        if self.exporters and self.prefixes is None:
            raise InputError.invalid(
                "--exporters", "", "no flow records with prefixes are given", "add --prefixes"
            )
        require(self, "tracking", "a number in [0, 1]", 0 <= self.tracking <= 1)
        require(self, "level", "a number in (0, 1)", 0 < self.level < 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimateConfig(EstimateOptions, CounterConfig):
    """Estimate traffic matrices from the byte counters of interfaces.

    Counters that contradict the others are repaired.  The matrix of an interval explains the
    counters with the smallest distance (Kullback-Leibler) from a prior: from past matrices if
    given, else from gravity and previous estimates.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "counters": (*_COUNTER_OPTIONS, "no_repair"),
        "routing": ("metric", "set_metric", "ucmp", "fail", "policies"),
        "additional input": (
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
    """Settings of the consistency check: trusted matrices, and the alarm."""

    history: str = ""
    """Past trusted traffic matrices, to calibrate the alarm; default: those of --traffic."""
    window: int = 1
    """Number of intervals over which the statistic is averaged: a longer window detects smaller
    persistent faults, but later."""
    seed: int = 0
    """Seed of the calibration."""

    def __post_init__(self) -> None:
        """Raise InputError for a window below 1, or a setting of the counters out of its range."""
        super().__post_init__()
        require(self, "window", "a positive integer", self.window >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckConfig(CheckOptions, CounterConfig):
    """Check counters, traffic matrix and topology for consistency.

    Counters that contradict the others are reported and repaired.  An interval raises an alarm if
    its matrix does not explain the counters; the limit is calibrated on past matrices.  The exit
    code is 4 if any interval raises an alarm.
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
