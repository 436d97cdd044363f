"""Settings of `teal pretrain-hedge`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

from teal.app.settings import require, seconds
from teal.option import OVERWRITE, RESUME


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHedgeConfig:
    """Train the hedge learned, for the next interval of any network, on random histories.

    Histories are drawn on networks of topohub that are not held out.  The default mixture runs over all of them first,
    a few seconds each; what it decides is kept in OUT, so that an interrupted run goes on.
    """

    out: Path
    """Folder for the histories, the checkpoint and the state to resume from."""
    histories: int = 480
    """Number of histories; each eighth is for validation."""
    time_budget: str = "10m"
    """Time of training, after the histories are there: 90s, 10m, 1h30m.  Time before a resume counts."""
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
