"""Settings of ``teal metrics``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import require, seconds
from teal.errors import InputError
from teal.option import OVERWRITE
from teal_ip.routing.settings import IgpConfig, RoutedConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsOptions(IgpConfig):
    """Settings of the metric search: failures and matrices to optimise for, and limits."""

    failures: Literal["none", "cables", "nodes"] = "none"
    """Failures under which the largest utilisation also counts: none, or each single cable or node.
    Traffic from and to a failed node is not routed."""
    groups: Path | None = None
    """Shared-risk groups of cables that also count as failures: a .csv (group,source,target), .json
    or .graphml file."""
    max_metric: int = 0
    """Upper bound on metrics; 0 for 100, or the largest current metric if that is larger."""
    max_changes: int = 0
    """Maximum number of links whose metrics may change; 0 for all."""
    with_policies: bool = False
    """Also compute the number of segment lists needed to come within 1% of the optimum, with the
    current and with the new metrics; keep the metrics that need fewer lists."""
    start: Path | None = None
    """Continue from the output of an earlier search (--out, .json or .csv).  Changes are still
    counted from the current metrics."""
    deadline: str = "10s"
    """Time limit of the search, with the order of the changes and --with-policies: 500ms, 10s, 5m.
    """
    seed: int = 0
    """Random seed."""
    index: int = -1
    """Index of one matrix, counted from 0; -1 to minimise the worst case over all matrices."""
    limit: int = 0
    """Maximum number of matrices, the first ones in time order; 0 for all."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, an invalid time limit, or --ucmp."""
        require(self, "index", "an integer >= -1", self.index >= -1)
        for field in ("limit", "max_metric", "max_changes", "seed"):
            require(self, field, "an integer >= 0", getattr(self, field) >= 0)
        if self.ucmp:
            raise InputError.invalid(
                "--ucmp",
                "",
                "the metric search assumes an even split over next hops",
                "drop --ucmp",
            )
        seconds(self.deadline, "--deadline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsConfig(MetricsOptions, RoutedConfig):
    """Optimise IGP metrics: minimise the largest link utilisation of shortest paths with ECMP.

    Simulated annealing from the current metrics, from dual prices of the certified optimum over
    segment lists, and from random metrics.  Ctrl-C ends the search with the best so far.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "routing": ("metric", "set_metric", "ucmp", "fail"),
        "matrices": ("index", "limit"),
        "search": (
            "failures",
            "groups",
            "max_metric",
            "max_changes",
            "with_policies",
            "start",
            "deadline",
            "seed",
        ),
        "output": ("out", "overwrite"),
    }

    out: Path | None = None
    """Write the changes, in a safe order for single changes, to this .json or .csv file, which teal
    export turns into configuration."""
    overwrite: Annotated[bool, OVERWRITE] = False
