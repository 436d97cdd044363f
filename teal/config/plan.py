"""Settings of `teal plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import InstanceConfig, require
from teal.config.option import GAP, OVERWRITE, RESUME


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(InstanceConfig):
    """What if a cable fails?  Solve every failure under every matrix to a certified gap.

    A cable is all links between two nodes, in both directions; groups of cables and pairs of cables can fail too.  PDHG
    solves sixteen matrices at a time, each from its state without the failure; no LP solver is needed.  The result
    lists which failures cost most, and at which times.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "failures": ("groups", "pairs", "max_pairs"),
        "matrices": ("split", "limit"),
        "output": ("out", "worst", "resume", "overwrite"),
        "for experts": ("gap", "epsilon", "device"),
    }

    groups: Path | None = None
    """Also fail groups of cables that share a risk, such as a conduit: a .csv file of group,source,target, a .json file
    {"conduit 3": [["a", "b"], ["c", "d"]]}, or a .graphml file whose edges have the attribute srlg (names, separated
    by ;)."""
    pairs: bool = False
    """Also fail every pair of cables."""
    max_pairs: int = 2000
    """Number of pairs, at most: those whose cables cost most alone; 0 for all.  The share covered is printed."""

    split: Literal["train", "validation", "test", "all"] = "all"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Number of matrices, at most, the first ones in time order; 0 for all."""
    gap: Annotated[float, GAP] = 0.01
    worst: int = 20
    """Number of cases to list."""
    out: Path
    """Folder for failures.csv and .parquet, manifest.json and failures.png."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "max_pairs", "a whole number of at least 0", self.max_pairs >= 0)
        require(self, "limit", "a whole number of at least 0", self.limit >= 0)
        require(self, "worst", "a whole number of at least 1", self.worst >= 1)
