"""Of train and pretrain."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Literal

from teal.config.base import InstanceConfig, require, seconds
from teal.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(InstanceConfig):
    """Train a model on the first 70% of the matrices; the next 10% decide which weights are kept."""

    out: Path
    """Folder for the checkpoint, the state to resume from, and the TensorBoard log."""
    learner: Literal["direct", "coma"] = "direct"
    """direct (gradient of the feasible-flow surrogate) or coma (COMA*, the paper's multi-agent policy gradient)."""
    time_budget: str = "10m"
    """Stop training after so long: 90s, 10m, 1h30m.  Time spent before a resume counts."""
    max_steps: int = 0
    """Stop after so many optimiser steps; 0 for no limit."""
    seed: int = 0
    """Of the initial weights, the order of the matrices, and the exploration."""
    batch_size: int = 20
    """Traffic matrices an optimiser step."""
    micro_batch: int = 0
    """Matrices in memory at a time, gradients accumulated; 0 to fit about 1 GiB of activations."""
    augment: float = 0.2
    """Multiply each demand of a training matrix by log-normal noise of this standard deviation; 0 for none."""
    learning_rate: float = 3e-3
    """Adam's.  The paper's release has 1e-4 and trains for hours."""
    width: int = 8
    """Features of a node in FlowGNN."""
    layers: int = 6
    """Layers of FlowGNN."""
    form: Literal["published", "scaled", "nonlinear", "feedback"] = "feedback"
    """FlowGNN as in the paper's release (raw inputs, no nonlinearity, widths 1 to 6); with scaled inputs; with
    nonlinearity and normalisation too; with the loads of tentative allocations fed back as well."""
    std: float = 0.2
    """Of the Gaussian policy of coma; 1 in the paper."""
    samples: int = 5
    """Of each agent's counterfactual actions in coma."""
    episodes: int = 4
    """Joint actions that coma tries for each matrix of a batch; the paper's release has 1."""
    validate_every: int = 50
    """Optimiser steps from one validation to the next."""
    validation_matrices: int = 64
    """Matrices of the validation part that are looked at, evenly spread."""
    patience: int = 40
    """Stop after so many validations without a better one."""
    decay_after: int = 8
    """Halve the learning rate after every so many validations without a better one."""
    workers: int = 0
    """Divide every batch over so many processes with Ray Train, on this machine or the cluster of RAY_ADDRESS, which
    all must see OUT and the inputs under the same names; 0 for this process alone, without Ray."""
    resume: bool = False
    """Go on with the run in OUT, as if it had never stopped."""
    overwrite: bool = False
    """Replace the run in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        seconds(self.time_budget)
        counts = ("batch_size", "width", "layers", "samples", "episodes", "validate_every", "validation_matrices")
        for field in (*counts, "patience", "decay_after"):
            require(self, field, "a whole number of at least 1", getattr(self, field) >= 1)
        for field in ("max_steps", "micro_batch", "seed", "workers"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        for field in ("learning_rate", "std"):
            require(self, field, "a number > 0", 0 < getattr(self, field) < math.inf)
        require(self, "augment", "a number >= 0", 0 <= self.augment < math.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Train a PriceGNN, a model for any network, on the networks of topohub that are not held out."""

    out: Path
    """Folder for the checkpoint and the state to resume from."""
    time_budget: str = "30m"
    """Stop after so long: 90s, 10m, 1h30m.  Time spent before a resume counts."""
    max_steps: int = 0
    """Stop after so many optimiser steps; 0 for no limit."""
    seed: int = 0
    """Of the initial weights and of everything that is drawn."""
    num_paths: int = 4
    """Edge-disjoint paths of each demand while learning; the model takes any number."""
    hidden: int = 32
    """Numbers that a link remembers."""
    rounds: int = 8
    """Price updates of the pass that allocates, unless asked for others; training draws a quarter to 5/4 of them."""
    bound_rounds: int = 8
    """Likewise of the pass that bounds."""
    learning_rate: float = 2e-3
    """Adam's, at most; it falls along a cosine."""
    init: str = ""
    """Start from the weights of this PriceGNN: a folder, or universal."""
    learner: Literal["direct", "coma"] = "direct"
    """direct (gradients of surrogates), or coma (COMA* on the last round's answer beside them)."""
    entries: int = 0
    """Entries of the split table that each demand's answer is rounded to, 1 to 255; 0 for none.  Needs coma, because
    rounding has no gradient."""
    std: float = 0.3
    """Of the Gaussian policy of coma."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu or cuda."""
    resume: bool = False
    """Go on with the run in OUT."""
    overwrite: bool = False
    """Replace the run in OUT."""

    def __post_init__(self) -> None:
        for field in ("num_paths", "hidden", "rounds", "bound_rounds"):
            if getattr(self, field) < 1:
                raise InputError(f"--{field.replace('_', '-')}", "", "at least 1", getattr(self, field))
        for field in ("learning_rate", "std"):
            require(self, field, "a number above 0", 0 < getattr(self, field) < math.inf)
        require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        if self.entries and self.learner != "coma":
            raise InputError("--entries", "", "--learner coma: rounding has no gradient", self.learner)
