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

# Default learning rates for random initial weights and for an initial model.  Higher rates first
# degrade an initial model.
_NEW_MODEL_RATES = {"flow": 3e-3, "price": 1e-3}
_INITIAL_MODEL_RATES = {"flow": 1e-3, "price": 3e-4}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(ProgramFileConfig):
    """Settings of a training run on one network: model, budget, validation, output folder."""

    out: Path
    """Folder for the checkpoint, the state to resume from, and the TensorBoard log."""
    model: Literal["flow", "price"] = "flow"
    """flow: FlowGNN with Teal's policy, for the run's objective (scheme teal).  price: PriceGNN,
    for every objective (scheme price-gnn)."""
    learner: str = "direct"
    """direct (gradient of the feasible-flow surrogate), coma (COMA*, the paper's multi-agent policy
    gradient; coma:std=0.2,samples=5,episodes=4: standard deviation of the policy, counterfactual
    actions per agent, joint actions per matrix), or a registered learner."""
    time_budget: str = "10m"
    """Training time, such as 90s, 10m or 1h30m, including the time before a resume."""
    max_steps: int = 0
    """Maximum number of optimiser steps; 0 for no limit."""
    seed: int = 0
    """Seed of the initial weights, the order of the matrices, and the exploration."""
    batch_size: int = 0
    """Traffic matrices per optimiser step; 0 for the default: 20, or 4 with sampled demands."""
    micro_batch: int = 0
    """Matrices in memory at a time, with accumulated gradients; 0 for as many as take 1 GiB of
    activations."""
    augment: float = 0.2
    """Standard deviation of the log-normal noise that multiplies each demand of a training matrix;
    0 for no noise."""
    learning_rate: float = 0.0
    """Largest learning rate of Adam, reached after a tenth of the budget and decreasing along half
    a cosine; 0 for the default: 0.003 for random initial weights and 0.001 for an initial model,
    with --model price 0.001 and 0.0003.  The paper's release uses 1e-4 and trains for hours."""
    from_: str = ""
    """Initial model: a folder, or none for random weights; for FlowGNN also with form and shape,
    none:form=universal,layers=6,width=16 (form published as in the paper's release, or a registered
    form).  Default: the model for any network that comes with Teal, flow, or universal with --model
    price."""
    sample: int = -1
    """Number of demands of a training matrix sampled per step, larger demands with a higher
    probability; 0 for all demands, -1 for 12,000 if there are more than 30,000.  Memory and time of
    a step are proportional to it."""
    select: Literal["carried", "gap"] = "carried"
    """Criterion for the best weights on the validation matrices.  carried: largest carried share of
    the splits alone, scaled down to the capacities, then smallest certified gap.  gap: smallest
    certified gap.  The weights of an initial model are kept unless others are significantly better
    on at least 4 validation matrices."""
    validate_every: int = 50
    """Maximum number of optimiser steps between validations; there is also one after each tenth of
    the budget."""
    validation_matrices: int = 64
    """Number of matrices per validation, evenly spread over the validation part."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    @property
    def start(self) -> str:
        """Initial model: ``from_``, or the default model of Teal; ``none`` for random weights."""
        if self.from_.partition(":")[0] == "none":
            return "none"
        return self.from_ or {"flow": "flow", "price": "universal"}[self.model]

    @property
    def new_model_shape(self) -> Mapping[str, Any]:
        """Form, layers and width of a model with random weights; ``""`` and 0 for the defaults.

        Empty for an initial model.

        Raises:
            InputError: an unknown option of ``from_``, or an invalid value.
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
        """Largest learning rate: ``learning_rate``, or the default of the model."""
        rates = _NEW_MODEL_RATES if self.start == "none" else _INITIAL_MODEL_RATES
        return self.learning_rate or rates[self.model]

    @property
    def scheme(self) -> str:
        """Name of the scheme that uses the trained model."""
        return {"flow": "teal", "price": "price-gnn"}[self.model]

    @property
    def prefers_gpu(self) -> bool:
        """Whether the device auto prefers a GPU: training makes many passes."""
        return True

    def __post_init__(self) -> None:
        """Raise InputError for an invalid value, or an objective without training."""
        super().__post_init__()
        require(
            self,
            "objective",
            "an objective other than max_min",
            self.objective != ObjectiveName.MAX_MIN,
        )
        require_linear(self, "in training")
        require(self, "protect", "no bandwidth guarantees in training", not self.protect)
        seconds(self.time_budget)
        is_price = self.model == "price"
        require(
            self, "learner", "direct with --model price", not is_price or self.learner == "direct"
        )
        if is_price and any(self.new_model_shape.values()):
            raise InputError.invalid(
                "--from", "", "--model price has no form, layers or width", "use --from none"
            )
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
    """Train a model on the first 70% of the matrices; select the best weights on the next 10%."""

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
    """Number of Ray processes that share every batch, on this machine or the cluster of
    RAY_ADDRESS; all machines need OUT and the inputs under the same paths.  0: this process alone,
    without Ray."""

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
    """price: PriceGNN, a recurrent network of link prices.  flow: FlowGNN, message passing between
    links and paths with a policy for every demand.  hedge:histories=480,workers=0: the hedge
    learned, on random histories of these networks (workers: processes that compute them; 0 for one
    per core).  Packages may add further kinds with options."""
    time_budget: str = "30m"
    """Training time, such as 90s, 10m or 1h30m, including the time before a resume."""
    max_steps: int = 0
    """Maximum number of optimiser steps, including those before a resume; 0 for no limit."""
    seed: int = 0
    """Seed of the initial weights and of all random draws."""
    num_paths: int = 4
    """K, number of edge-disjoint paths of each demand in training; the model takes any K."""
    aim: Literal["allocation", "start"] = "allocation"
    """allocation: any network and load.  start: warm starts of PDHG for problems with many
    iterations: congested networks, nearly half of them planar, mostly value maximisation; matrices
    with a smaller gap have a larger weight (except in the coma loss)."""
    hidden: int = 32
    """H, size of each link's recurrent state (GRU)."""
    rounds: int = 0
    """Default number of message-passing rounds for the allocation; 0 for that of the model of
    --from, or 8.  Each training step uses a random number between 1/4 and 5/4 of it, so that the
    model also works with other numbers."""
    bound_rounds: int = 0
    """Default number of rounds for the dual bound, randomised like --rounds."""
    layers: int = 6
    """Number of layers of FlowGNN."""
    width: int = 16
    """Size of a path state in FlowGNN: 4, 8, 16 or 32; a link state has twice the size."""
    learning_rate: float = 2e-3
    """Largest learning rate of Adam; it decreases along half a cosine over the time budget or the
    steps."""
    from_: str = "none"
    """Initial model of the same kind: a folder, or universal or flow, the models that come with
    Teal; none for random weights."""
    learner: Literal["direct", "coma"] = "direct"
    """direct: gradients of differentiable surrogates of the objective.  coma: COMA* (policy
    gradient with a counterfactual baseline) on the last splits; with PriceGNN in addition to the
    surrogates, with FlowGNN instead of that of the last splits."""
    entries: int = 0
    """Entries of a router's split table, 1 to 255 (weights are stored as bytes): splits are rounded
    to multiples of 1 / ENTRIES; 0 for no rounding.  Needs --learner coma, since rounding has no
    gradient."""
    std: float = 0.3
    """Standard deviation of the Gaussian exploration noise of coma on the logits of the splits."""
    device: Annotated[str, DEVICE] = "auto"
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for an invalid value or combination of options."""
        for field in ("num_paths", "hidden", "layers"):
            if getattr(self, field) < 1:
                raise InputError(
                    f"--{field.replace('_', '-')}", "", "an integer >= 1", getattr(self, field)
                )
        for field in ("rounds", "bound_rounds"):
            require(self, field, "an integer >= 0", getattr(self, field) >= 0)
        for field in ("learning_rate", "std"):
            require(self, field, "a number above 0", 0 < getattr(self, field) < math.inf)
        require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        if self.aim == "start" and self.model != "price":
            raise InputError.invalid("--aim", "", "the aim start needs --model price")
        if self.entries and self.learner != "coma":
            raise InputError.invalid(
                "--learner",
                "",
                "--entries rounds the splits, and rounding has no gradient",
                "use --learner coma",
            )
