"""Settings of `teal plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import InstanceConfig, ProgramFileConfig, require, require_linear
from teal.option import GAP, OVERWRITE, RESUME


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions(ProgramFileConfig):
    """Which failures are solved under which matrices, and how well."""

    failures: tuple[Literal["cables", "links", "nodes"], ...] = ()
    """Failures, one at a time: cables (default); links (each member of parallel links alone, in
    both directions); nodes (all links of a node: what it sends and receives is then stranded).  May
    be repeated."""
    groups: Path | None = None
    """Also fail groups of cables that share a risk, such as a conduit, or are out of service
    together: a .csv file of group,source,target, a .json file {"conduit 3": [["a", "b"], ["c",
    "d"]]}, or a .graphml file whose edges have the attribute srlg (names, separated by ;).  A
    target b#2 is the second of parallel cables alone, * all links of the source."""
    pairs: bool = False
    """Also fail every pair of cables."""
    max_pairs: int = 2000
    """Number of pairs, at most: those whose cables cost most alone; 0 for all.  The share covered
    is printed."""
    split: Literal["train", "validation", "test", "all"] = "all"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Number of matrices, at most, the first ones in time order; 0 for all."""
    gap: Annotated[float, GAP] = 0.01

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require_linear(self, "for a plan: demands that a failure cuts off would leave the utility")
        require(self, "max_pairs", "an integer >= 0", self.max_pairs >= 0)
        has_cables = not self.failures or "cables" in self.failures
        require(
            self,
            "pairs",
            "--failures cables, which say which pairs cost most",
            not self.pairs or has_cables,
        )
        require(self, "limit", "an integer >= 0", self.limit >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(PlanOptions, InstanceConfig):
    """Say what failures cost where splits are free: solve every failure under every matrix to a
    certified gap.

    A cable is all links between two nodes, in both directions; its members, nodes, groups of cables
    and pairs of cables can fail too.  PDHG solves sixteen matrices at a time, each from its state
    without the failure; no LP solver is needed.  The result, also as a page, lists which failures
    cost most and when, and how full each link can become.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "failures": ("failures", "groups", "pairs", "max_pairs"),
        "matrices": ("split", "limit"),
        "output": ("out", "worst", "resume", "overwrite"),
        "for experts": (
            "gap",
            "device",
        ),
    }

    worst: int = 20
    """Number of cases to list."""
    out: Path
    """Folder for report.html, failures.csv and .parquet, links.csv, manifest.json and
    failures.png."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "worst", "an integer >= 1", self.worst >= 1)
