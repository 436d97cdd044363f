"""Settings of `teal plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import InstanceConfig, ProgramFileConfig, require, require_linear
from teal.errors import InputError
from teal.option import GAP, OVERWRITE, RESUME


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions(ProgramFileConfig):
    """Failures, matrices and target gap of a failure study."""

    failures: tuple[Literal["cables", "links", "nodes"], ...] = ()
    """Failures, one at a time: cables (default); links (each of parallel links alone, in both
    directions); nodes (all links of a node, which strands its traffic).  May be repeated."""
    groups: Path | None = None
    """File of groups of cables that fail together, such as a shared conduit, to fail as well: .csv
    with group,source,target; .json {"conduit 3": [["a", "b"], ["c", "d"]]}; or .graphml whose
    edges have the attribute srlg (names, separated by ;).  A target b#2 is the second of parallel
    cables alone, * all links of the source."""
    pairs: bool = False
    """Also fail every pair of cables."""
    max_pairs: int = 2000
    """Largest number of pairs, those with the largest losses of single cables; 0 for all.  The
    command prints the share that is solved."""
    split: Literal["train", "validation", "test", "all"] = "all"
    """Part of the matrices in time order: train (first 70%), validation (next 10%), test (last 20%)
    or all."""
    limit: int = 0
    """Largest number of matrices, the first in time order; 0 for all."""
    gap: Annotated[float, GAP] = 0.01

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require_linear(self, "since demands without a path have no utility")
        require(self, "max_pairs", "an integer >= 0", self.max_pairs >= 0)
        has_cables = not self.failures or "cables" in self.failures
        if self.pairs and not has_cables:
            raise InputError.invalid(
                "--pairs",
                "",
                "pairs are ranked by the traffic that single cables lose: --failures needs cables",
                "add --failures cables",
            )
        require(self, "limit", "an integer >= 0", self.limit >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(PlanOptions, InstanceConfig):
    """Compute the loss of every failure under every matrix, with splits optimised again, to a
    certified gap.

    A cable is all links between two nodes, in both directions; its members, nodes, groups of cables
    and pairs of cables can fail too.  PDHG solves sixteen matrices at a time, each from its state
    without the failure; no LP solver is needed.  The result, also as a page, lists the failures
    with the largest losses and their times, and the largest utilisation of each link.
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
    """Number of failures to list."""
    out: Path
    """Output folder for report.html, failures.csv and .parquet, links.csv, manifest.json and
    failures.png."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "worst", "an integer >= 1", self.worst >= 1)
