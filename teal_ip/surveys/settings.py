"""Settings of ``teal survey``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from teal.app.settings import TrafficFileConfig, require, seconds
from teal.errors import InputError
from teal.option import OVERWRITE, RESUME, TOPOLOGY
from teal_ip.routing.settings import GrowthConfig, IgpConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyOptions(GrowthConfig, IgpConfig, TrafficFileConfig):
    """Installed routing, failures, growth, and time limits of the searches."""

    groups: Path | None = None
    """Shared-risk groups of cables that fail together, besides every single cable: a .csv
    (group,source,target), .json or .graphml file."""
    changes: int = 5
    """Maximum number of links whose metrics may change."""
    deadline: str = "1m"
    """Time limit of each search, for metrics, policies and expansion: 30s, 5m."""

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or for --ucmp."""
        self.check_growth()
        require(self, "changes", "an integer >= 1", self.changes >= 1)
        if self.ucmp:
            problem = "not supported by a survey: the search for metrics splits traffic evenly"
            raise InputError.invalid("--ucmp", "", problem, "drop --ucmp")
        require(
            self, "deadline", "a duration of at least 1s", seconds(self.deadline, "--deadline") >= 1
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyConfig(SurveyOptions):
    """Survey a network: from its files to answers on one page, with one command.

    Reads the network and its counters or matrices, and reports the input and doubts about it; the
    traffic; the loads now and under each failure; the months in which links are full; few metric
    changes or policies that reduce overload most; capacity expansion.  The page begins with the
    answers, and each section names the command with more detail.  An interrupted run continues with
    --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "traffic": (
            "counters",
            "interfaces",
            "ignore_interfaces",
            "counter_error",
            "counter_unit",
            "history",
            "traffic",
            "traffic_unit",
        ),
        "routing": ("metric", "set_metric", "ucmp", "fail"),
        "failures": ("groups",),
        "growth": ("growth", "growth_per_year", "horizon", "max_utilisation"),
        "search": ("changes", "deadline"),
        "output": ("out", "resume", "overwrite"),
    }

    topology: Annotated[str, TOPOLOGY]
    out: Path
    """Folder for survey.html, and for the results of each command that is run."""
    counters: Path | None = None
    """Readings of interface counters, as for teal estimate; alternative to --traffic."""
    interfaces: Path | None = None
    """With --counters: table that maps interfaces to links, as for teal estimate."""
    ignore_interfaces: str = ""
    """With --counters: regular expression of names of interfaces to ignore."""
    counter_error: float = 0.01
    """With --counters: relative standard deviation of a counter; 0.02 if polls are missing or not
    simultaneous."""
    counter_unit: str = ""
    """Unit of the column rate of counters, such as Mbit/s; Gbit/s by default."""
    history: str = ""
    """With --counters: past traffic matrices."""
    traffic: str = ""
    """Traffic matrices, as for teal solve; alternative to --counters."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a value out of range, or unless traffic has exactly one source."""
        super().__post_init__()
        is_one = (self.counters is None) == bool(self.traffic)
        if not is_one:
            problem = "exactly one of --traffic and --counters is required; add or drop one"
            raise InputError.invalid("--traffic", "", problem)
        for field in ("interfaces", "ignore_interfaces", "history", "counter_unit"):
            if self.counters is None and getattr(self, field):
                option = f"--{field.replace('_', '-')}"
                raise InputError.invalid(option, "", "works only with --counters; drop it")
        require(self, "counter_error", "a number in (0, 1)", 0 < self.counter_error < 1)
