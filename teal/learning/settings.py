"""Settings of `teal train` and `teal pretrain`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from teal.app.settings import (
    InstanceConfig,
    ProgramFileConfig,
    require,
    require_linear,
    seconds,
)
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.option import DEVICE, OVERWRITE, RESUME
from teal.spec import parse_spec

# Learning rates from random weights, and from a model, which becomes worse before it becomes better
# where the rate is higher.
_FIRST_RATES = {"flow": 3e-3, "price": 1e-3}
_FURTHER_RATES = {"flow": 1e-3, "price": 3e-4}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(ProgramFileConfig):
    """The model to train, how long, and the folder for it."""

    out: Path
    """Folder for the checkpoint, the state to resume from, and the TensorBoard log."""
    model: Literal["flow", "price"] = "flow"
    """flow: FlowGNN with Teal's policy, for the run's objective (scheme teal).  price: PriceGNN,
    for every objective (scheme price-gnn)."""
    learner: str = "direct"
    """direct (gradient of the feasible-flow surrogate), coma (COMA*, the paper's multi-agent policy
    gradient; coma:std=0.2,samples=5,episodes=4: standard deviation of the policy, counterfactual
    actions of an agent, joint actions a matrix), or one that was registered."""
    time_budget: str = "10m"
    """Time after which training stops: 90s, 10m, 1h30m.  Time before a resume counts."""
    max_steps: int = 0
    """Number of optimiser steps, at most; 0 for no limit."""
    seed: int = 0
    """Seed of the initial weights, the order of the matrices, and the exploration."""
    batch_size: int = 0
    """Traffic matrices in an optimiser step; 0 for 20, or for 4 where samples of the demands are
    drawn."""
    micro_batch: int = 0
    """Matrices in memory at a time, whose gradients are accumulated; 0 for as many as take 1 GiB of
    activations."""
    augment: float = 0.2
    """Multiply each demand of a training matrix by log-normal noise of this standard deviation; 0
    for none."""
    learning_rate: float = 0.0
    """Largest learning rate of Adam, which is reached after a tenth of the budget and falls along
    half a cosine; 0 for 0.003 from random weights and 0.001 from a model, with --model price 0.001
    and 0.0003.  The paper's release has 1e-4 and trains for hours."""
    from_: str = ""
    """Model that training starts from: a folder, or none for random weights; of FlowGNN with its
    shape, none:form=universal,layers=6,width=16 (form published: as in the paper's release; or a
    form that was registered).  By default the model for any network that comes with Teal: flow, or
    with --model price universal."""
    sample: int = -1
    """Demands of a training matrix that are drawn for a step, larger ones more often; 0 for all, -1
    for 12,000 where there are more than 30,000.  Memory and time of a step follow it."""
    select: Literal["carried", "gap"] = "carried"
    """Which weights are kept.  carried: those whose splits alone, cut to fit, carry most on the
    validation matrices, the narrower certified gap among equals.  gap: those with the narrowest
    certified gap.  The weights of a model that training starts from are kept unless others are
    significantly better on at least 4 validation matrices."""
    validate_every: int = 50
    """Optimiser steps from one validation to the next, at most; sooner after each tenth of the
    budget."""
    validation_matrices: int = 64
    """Number of matrices in a validation, evenly spread over the validation part."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    @property
    def start(self) -> str:
        """The model that training starts from: ``from_``, or the one that comes with Teal; none for
        random weights.
        """
        if self.from_.partition(":")[0] == "none":
            return "none"
        return self.from_ or {"flow": "flow", "price": "universal"}[self.model]

    @property
    def first_shape(self) -> Mapping[str, Any]:
        """Form, layers and width of the model with random weights; 0 and "" for the usual ones.

        Raises:
            InputError: an option that there is not, or another value.
        """
        if self.start != "none":
            return {}
        shape = parse_spec(self.from_).parse_options(form="", layers=0, width=0)
        for name in ("layers", "width"):
            if int(shape[name]) < 0:
                expected = "an integer >= 0"
                raise InputError("--from", name, expected, shape[name])
        return shape

    @property
    def rate(self) -> float:
        """The largest learning rate: ``learning_rate``, or the usual one of the model."""
        rates = _FIRST_RATES if self.start == "none" else _FURTHER_RATES
        return self.learning_rate or rates[self.model]

    @property
    def scheme(self) -> str:
        """Name of the scheme that allocates by the trained model."""
        return {"flow": "teal", "price": "price-gnn"}[self.model]

    @property
    def prefers_gpu(self) -> bool:
        """Training takes many passes, of whatever network."""
        return True

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(
            self, "objective", "one that a model can learn", self.objective != ObjectiveName.MAX_MIN
        )
        require_linear(self, "for a model to learn")
        require(self, "protect", "nothing: models know no promises", not self.protect)
        seconds(self.time_budget)
        is_price = self.model == "price"
        require(
            self, "learner", "direct with --model price", not is_price or self.learner == "direct"
        )
        if is_price and any(self.first_shape.values()):
            raise InputError("--from", "", "none alone with --model price", self.from_)
        require(self, "sample", "an integer >= -1", self.sample >= -1)
        for field in ("validate_every", "validation_matrices"):
            require(self, field, "an integer >= 1", getattr(self, field) >= 1)
        for field in (
            "max_steps",
            "batch_size",
            "micro_batch",
            "seed",
        ):
            require(self, field, "an integer >= 0", getattr(self, field) >= 0)
        require(self, "learning_rate", "a number >= 0", 0 <= self.learning_rate < math.inf)
        require(self, "augment", "a number >= 0", 0 <= self.augment < math.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(TrainOptions, InstanceConfig):
    """Train a model on the first 70% of the matrices; the next 10% decide which weights are
    kept.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "training": (
            "model",
            "learner",
            "time_budget",
            "max_steps",
            "seed",
            "batch_size",
            "learning_rate",
            "augment",
            "from_",
            "sample",
            "workers",
        ),
        "validation": ("select", "validate_every", "validation_matrices"),
        "for experts": (
            "micro_batch",
            "device",
        ),
    }

    workers: int = 0
    """Number of processes that share every batch, through Ray, on this machine or the cluster of
    RAY_ADDRESS; all of its machines need OUT and the inputs under the same paths.  0: this process
    alone, without Ray."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "workers", "an integer >= 0", self.workers >= 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Train a model for any network, on the networks of topohub that are not held out.

    `--model price` is PriceGNN (scheme price-gnn), `--model flow` FlowGNN with Teal's policy
    (scheme teal).
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "training": (
            "model",
            "learner",
            "time_budget",
            "max_steps",
            "seed",
            "from_",
            "learning_rate",
            "num_paths",
        ),
        "the model price": ("aim", "hidden", "rounds", "bound_rounds"),
        "the model flow": ("layers", "width"),
        "coma": ("entries", "std"),
    }

    out: Path
    """Folder for the checkpoint and the state to resume from."""
    model: str = "price"
    """price: PriceGNN, a recurrent price a link.  flow: FlowGNN, states of links and paths and a
    policy for every demand.  hedge:histories=480,workers=0: the hedge learned, on random histories
    of these networks (workers: processes that compute them; 0 for one per core); or another kind
    that a package announces, with its options."""
    time_budget: str = "30m"
    """Time after which training stops: 90s, 10m, 1h30m.  After a resume the time of the earlier
    runs is included."""
    max_steps: int = 0
    """Largest number of optimiser steps; 0 for no limit.  After a resume the earlier steps are
    included."""
    seed: int = 0
    """Seed of the initial weights and of all random draws."""
    num_paths: int = 4
    """K, edge-disjoint paths of each demand in training; the model takes any K."""
    aim: Literal["allocation", "start"] = "allocation"
    """allocation: any network and load.  start: a start of PDHG, where that needs many iterations:
    congested networks, nearly half of them planar, mostly to maximise a value, and matrices weigh
    more the closer they are to the optimum (not in the part of coma)."""
    hidden: int = 32
    """H, size of each link's recurrent state (GRU)."""
    rounds: int = 0
    """Default number of message-passing rounds that compute the allocation; 0 for that of the model
    of --from, or 8. Each step of training uses a random number between 1/4 and 5/4 of it, so that
    the model also works with others."""
    bound_rounds: int = 0
    """Default number of rounds that compute the bound, used like --rounds."""
    layers: int = 6
    """Layers of FlowGNN."""
    width: int = 16
    """Numbers of the state of a path in FlowGNN, 4, 8, 16 or 32; that of a link has twice as
    many."""
    learning_rate: float = 2e-3
    """Largest learning rate of Adam; it falls along half a cosine over the time budget or the
    steps."""
    from_: str = "none"
    """Folder of a model of the same kind whose weights are the initial ones, or universal or flow,
    the models that Teal brings; none for random weights."""
    learner: Literal["direct", "coma"] = "direct"
    """direct: gradients of differentiable losses that stand for the objective.  coma: COMA* (a
    policy gradient with a counterfactual baseline) on the last splits; of PriceGNN in addition to
    the others, of FlowGNN in place of them."""
    entries: int = 0
    """Entries of a router's split table: splits are rounded to multiples of 1 / ENTRIES, 1 to 255
    (weights are stored as bytes); 0 for no rounding.  Needs --learner coma, because rounding has no
    gradient."""
    std: float = 0.3
    """Standard deviation of the Gaussian noise that coma adds to the logits of the splits."""
    device: Annotated[str, DEVICE] = "auto"
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or --entries without --learner coma."""
        for field in ("num_paths", "hidden", "layers"):
            if getattr(self, field) < 1:
                raise InputError(
                    f"--{field.replace('_', '-')}", "", "at least 1", getattr(self, field)
                )
        for field in ("rounds", "bound_rounds"):
            require(self, field, "an integer >= 0", getattr(self, field) >= 0)
        for field in ("learning_rate", "std"):
            require(self, field, "a number above 0", 0 < getattr(self, field) < math.inf)
        require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        if self.aim == "start" and self.model != "price":
            raise InputError("--aim", "", "allocation without --model price", self.aim)
        if self.entries and self.learner != "coma":
            raise InputError(
                "--learner",
                "",
                "coma if --entries is above 0 (rounding has no gradient)",
                self.learner,
            )
