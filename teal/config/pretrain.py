"""Settings of `teal pretrain`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import require
from teal.config.option import DEVICE, OVERWRITE, RESUME
from teal.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Train a model for any network, on the networks of topohub that are not held out.

    `--model price` is PriceGNN (scheme price-gnn), `--model flow` FlowGNN with Teal's policy (scheme teal).
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "training": ("model", "learner", "time_budget", "max_steps", "seed", "from_", "learning_rate", "num_paths"),
        "the model price": ("hidden", "rounds", "bound_rounds"),
        "the model flow": ("layers", "width"),
        "coma": ("entries", "std"),
    }

    out: Path
    """Folder for the checkpoint and the state to resume from."""
    model: Literal["price", "flow"] = "price"
    """price: PriceGNN, a recurrent price a link.  flow: FlowGNN, states of links and paths and a policy for every
    demand."""
    time_budget: str = "30m"
    """Time after which training stops: 90s, 10m, 1h30m.  After a resume the time of the earlier runs is included."""
    max_steps: int = 0
    """Largest number of optimiser steps; 0 for no limit.  After a resume the earlier steps are included."""
    seed: int = 0
    """Seed of the initial weights and of all random draws."""
    num_paths: int = 4
    """K, edge-disjoint paths of each demand in training; the model takes any K."""
    hidden: int = 32
    """H, size of each link's recurrent state (GRU)."""
    rounds: int = 8
    """Default number of message-passing rounds that compute the allocation.  Each step of training uses a random number
    between 1/4 and 5/4 of it, so that the model also works with other numbers."""
    bound_rounds: int = 8
    """Default number of rounds that compute the bound, used like --rounds."""
    layers: int = 6
    """Layers of FlowGNN."""
    width: int = 16
    """Numbers of the state of a path in FlowGNN, 4, 8, 16 or 32; that of a link has twice as many."""
    learning_rate: float = 2e-3
    """Largest learning rate of Adam; it falls along half a cosine over the time budget or the steps."""
    from_: str = "none"
    """Folder of a model of the same kind whose weights are the initial ones, or universal or flow, the models that Teal
    brings; none for random weights."""
    learner: Literal["direct", "coma"] = "direct"
    """direct: gradients of differentiable losses that stand for the objective.  coma: COMA* (a policy gradient with a
    counterfactual baseline) on the last splits; of PriceGNN in addition to the others, of FlowGNN in place of them."""
    entries: int = 0
    """Entries of a router's split table: splits are rounded to multiples of 1 / ENTRIES, 1 to 255 (weights are stored
    as bytes); 0 for no rounding.  Needs --learner coma, because rounding has no gradient."""
    std: float = 0.3
    """Standard deviation of the Gaussian noise that coma adds to the logits of the splits."""
    device: Annotated[str, DEVICE] = "auto"
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or --entries without --learner coma."""
        for field in ("num_paths", "hidden", "rounds", "bound_rounds", "layers"):
            if getattr(self, field) < 1:
                raise InputError(f"--{field.replace('_', '-')}", "", "at least 1", getattr(self, field))
        for field in ("learning_rate", "std"):
            require(self, field, "a number above 0", 0 < getattr(self, field) < math.inf)
        require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        if self.entries and self.learner != "coma":
            raise InputError("--learner", "", "coma if --entries is above 0 (rounding has no gradient)", self.learner)
