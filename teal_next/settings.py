"""Settings of `teal next-interval` and `pretrain-hedge`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from teal.app.settings import require, require_linear, require_one_program, seconds
from teal.evaluation.settings import StudyConfig, StudyOptions
from teal.option import OVERWRITE, RESUME


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextIntervalOptions(StudyOptions):
    """Which hedges are measured, on which intervals, and what they know."""

    scheme: tuple[str, ...] = ()
    """A hedge: mixture, last, saa36, peak12, static, residual36, learned, or any other scheme,
    which then acts on the last matrix; repeat for more.  Default: mixture, last, peak, saa12,
    saa36, saa144 and static."""
    limit: int = 0
    """Number of matrices, at most, the first ones of the split; 0 for all."""
    known: str = ""
    """Matrices that schemes know, in the place of those of --traffic: estimates from counters
    (matrices.npz of teal estimate), say, of the same times.  The splits still carry the matrices of
    --traffic."""
    lead: int = 1
    """Intervals from the newest known matrix to the one that is allocated for; 0, with --known, for
    the same interval."""
    lookback: int = 0
    """Matrices that schemes are given, the newest ones; 0 for all that are known."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or an objective that does not suit."""
        super().__post_init__()
        require(
            self,
            "lead",
            "a whole number of at least 1 (0 with --known)",
            self.lead >= (0 if self.known else 1),
        )
        require(self, "lookback", "a whole number of at least 0", self.lookback >= 0)
        require_one_program(self, "for the next interval")
        require_linear(self, "for the next interval: what arrives is measured as satisfied demand")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextIntervalConfig(NextIntervalOptions, StudyConfig):
    """Measure allocations for matrices that nobody knows yet: hedges for the next interval.

    A scheme is given the matrices before an interval, and its splits carry the matrix of the
    interval.  Use with --objective max_link_utilisation.  Consecutive matrices are measured, the
    first --limit of the split.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "schemes": ("scheme", "model"),
        "matrices": ("split", "limit", "known", "lead", "lookback"),
        "output": ("out", "wide", "overwrite"),
        "for experts": ("epsilon", "device"),
    }

    out: Path
    """Folder for report.html, next_interval.csv, next_interval_summary.csv, manifest.json and
    next_interval.png."""

    def __post_init__(self) -> None:
        """Raise InputError for settings that do not go together."""
        super().__post_init__()
        require(self, "known", "a single topology", not self.known or len(self.topology) == 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHedgeConfig:
    """Train the hedge learned, for the next interval of any network, on random histories.

    Histories are drawn on networks of topohub that are not held out.  The default mixture runs over
    all of them first, a few seconds each; what it decides is kept in OUT, so that an interrupted
    run goes on.
    """

    out: Path
    """Folder for the histories, the checkpoint and the state to resume from."""
    histories: int = 480
    """Number of histories; each eighth is for validation."""
    time_budget: str = "10m"
    """Time of training, after the histories are there: 90s, 10m, 1h30m.  Time before a resume
    counts."""
    max_steps: int = 0
    """Number of optimiser steps, at most; 0 for no limit."""
    seed: int = 0
    """Seed of the histories, the initial weights and the order of the intervals."""
    num_paths: int = 4
    """K, edge-disjoint paths of each demand; the model takes any K."""
    hidden: int = 32
    """Width of the two perceptrons."""
    learning_rate: float = 2e-3
    """Largest learning rate of Adam; it falls along half a cosine."""
    workers: int = 0
    """Processes that compute histories; 0 for one per core."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        seconds(self.time_budget)
        require(self, "histories", "at least 8", self.histories >= 8)
        for field in ("num_paths", "hidden"):
            require(self, field, "a whole number of at least 1", getattr(self, field) >= 1)
        for field in ("max_steps", "seed", "workers"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "learning_rate", "a number > 0", 0 < self.learning_rate < math.inf)
