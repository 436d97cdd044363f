"""Settings of `teal metrics`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import require, seconds
from teal.option import OVERWRITE
from teal_ip.routing.settings import IgpConfig, RoutedConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsOptions(IgpConfig):
    """The failures and matrices that count, and how long metrics are searched for."""

    failures: Literal["none", "cables", "nodes"] = "none"
    """none; cables, or nodes: the largest utilisation counts over the failure of every one of them
    too.  What a failed node sends and receives takes no link."""
    groups: Path | None = None
    """Groups of cables that fail together, which count too: a .csv (group,source,target), .json or
    .graphml file."""
    most: int = 0
    """Largest metric; 0 for 100, or the largest in force if that is more."""
    at_most: int = 0
    """Number of links whose metrics may change, at most; 0 for all."""
    with_policies: bool = False
    """Also say how few demands need a segment list to come within 1% of the optimum, with the
    metrics in force and with the new ones, and keep those which need fewer."""
    start: Path | None = None
    """Go on from what an earlier search wrote (--out, .json or .csv); changes still count from the
    metrics in force."""
    deadline: str = "10s"
    """Length of the search, with the order of the changes and --with-policies: 500ms, 10s, 5m."""
    seed: int = 0
    """Seed of all draws."""
    index: int = -1
    """Number of one matrix, counted from 0; -1 for all, of which the worst counts."""
    limit: int = 0
    """Number of matrices, at most, the first ones in time order; 0 for all."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "index", "a whole number of at least -1", self.index >= -1)
        for field in ("limit", "most", "at_most", "seed"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "ucmp", "nothing: the search divides evenly", not self.ucmp)
        seconds(self.deadline, "--deadline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsConfig(MetricsOptions, RoutedConfig):
    """Search for IGP metrics with which shortest paths and ECMP load the busiest link least.

    Simulated annealing from the metrics in force, from prices of the certified optimum over segment
    lists, and from random metrics.  Ctrl-C ends the search with the best so far.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "routing": ("metric", "set_metric", "ucmp", "fail"),
        "matrices": ("index", "limit"),
        "search": (
            "failures",
            "groups",
            "most",
            "at_most",
            "with_policies",
            "start",
            "deadline",
            "seed",
        ),
        "output": ("out", "overwrite"),
    }

    out: Path | None = None
    """Write the changes, in an order in which they can be made one by one, to this .json or .csv
    file, which teal export turns into configuration."""
    overwrite: Annotated[bool, OVERWRITE] = False
