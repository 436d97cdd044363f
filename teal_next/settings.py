"""Settings of ``teal next-interval``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from teal.app.settings import require, require_linear, require_one_program
from teal.option import RESUME
from teal_study.evaluation.settings import StudyConfig, StudyOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextIntervalOptions(StudyOptions):
    """Hedges to evaluate, intervals, and the information that hedges have."""

    scheme: tuple[str, ...] = ()
    """A hedge: mixture, last, saa36, peak12, static, residual36, learned, or any other scheme,
    which then allocates for the last matrix; repeat for more.  Default: mixture, last, peak, saa12,
    saa36, saa144 and static."""
    limit: int = 0
    """Maximum number of matrices, the first ones of the split; 0 for all."""
    known: str = ""
    """Matrices that schemes see instead of those of --traffic, of the same times: estimates from
    counters, for example (matrices.npz of teal estimate).  The splits still carry the matrices of
    --traffic."""
    lead: int = 1
    """Intervals from the newest known matrix to the allocated one; 0, with --known, for the same
    interval."""
    lookback: int = 0
    """Number of newest matrices that schemes see; 0 for all known ones."""
    warm_up: int = 100
    """Intervals before the evaluated ones in which schemes allocate too, so that they have a past
    of their own, and limits have ratios."""

    @property
    def cpu_alone(self) -> str:
        """Name of the part that runs on CPUs only, for messages."""
        return "hedges"

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or an unsupported objective."""
        super().__post_init__()
        require(
            self,
            "lead",
            "an integer >= 1 (0 with --known)",
            self.lead >= (0 if self.known else 1),
        )
        require(self, "lookback", "an integer >= 0", self.lookback >= 0)
        require(self, "warm_up", "an integer >= 0", self.warm_up >= 0)
        # Objectives that are one linear program; the texts end the messages "... cannot be used".
        require_one_program(self, "for the next interval")
        require_linear(self, "for the next interval, whose delivered traffic is satisfied demand")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextIntervalConfig(NextIntervalOptions, StudyConfig):
    """Evaluate hedges: allocations for the next interval, whose traffic matrix is unknown.

    A scheme sees the matrices before an interval, and its splits carry the matrix of the interval.
    Use with --objective max_link_utilisation.  Consecutive matrices are evaluated, the first
    --limit of the split.  An interrupted run continues with --resume; schemes then warm up again
    before the first missing interval.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "schemes": ("scheme", "model"),
        "matrices": ("split", "limit", "known", "lead", "lookback", "warm_up"),
        "output": ("out", "wide", "resume", "overwrite"),
        "for experts": ("device",),
    }

    out: Path
    """Folder for report.html, next_interval.csv, next_interval_summary.csv, manifest.json and
    next_interval.png."""
    resume: Annotated[bool, RESUME] = False

    def __post_init__(self) -> None:
        """Raise InputError for options that exclude each other."""
        super().__post_init__()
        require(self, "known", "a single topology", not self.known or len(self.topology) == 1)
