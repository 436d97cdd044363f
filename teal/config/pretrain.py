"""Settings of `teal pretrain`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

from teal.config.base import require
from teal.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Train a PriceGNN, a model for any network, on the networks of topohub that are not held out."""

    out: Path
    """Folder for the checkpoint and the state to resume from."""
    time_budget: str = "30m"
    """Time after which training stops: 90s, 10m, 1h30m.  Time before a resume counts."""
    max_steps: int = 0
    """Number of optimiser steps, at most; 0 for no limit."""
    seed: int = 0
    """Seed of the initial weights and of all random draws."""
    num_paths: int = 4
    """K, edge-disjoint paths of each demand in training; the model takes any K."""
    hidden: int = 32
    """Numbers in a link's memory."""
    rounds: int = 8
    """Rounds of the allocating pass, unless a call asks for another number; training draws a quarter to 5/4 of them."""
    bound_rounds: int = 8
    """Rounds of the bounding pass, likewise."""
    learning_rate: float = 2e-3
    """Largest learning rate of Adam; it falls along a cosine."""
    init: str = ""
    """Start from the weights of this PriceGNN: a folder, or universal."""
    learner: Literal["direct", "coma"] = "direct"
    """direct (gradients of surrogates), or coma (these and COMA* on the last round's splits)."""
    entries: int = 0
    """Entries of the split table that each demand's splits are rounded to, 1 to 255; 0 for none.  Needs coma, because
    rounding has no gradient."""
    std: float = 0.3
    """Standard deviation of the Gaussian policy of coma."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu or cuda."""
    resume: bool = False
    """Continue the run in OUT."""
    overwrite: bool = False
    """Replace the run in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that exclude each other."""
        for field in ("num_paths", "hidden", "rounds", "bound_rounds"):
            if getattr(self, field) < 1:
                raise InputError(f"--{field.replace('_', '-')}", "", "at least 1", getattr(self, field))
        for field in ("learning_rate", "std"):
            require(self, field, "a number above 0", 0 < getattr(self, field) < math.inf)
        require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        if self.entries and self.learner != "coma":
            raise InputError("--entries", "", "--learner coma: rounding has no gradient", self.learner)
