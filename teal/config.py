"""Every setting of every command: frozen dataclasses, documented field by field.

The command line is made from these, so a field's docstring is its ``--help``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Literal

from teal.errors import InputError
from teal.network.paths import PathMethod, PathWeight
from teal.objectives import ObjectiveName


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathConfig:
    """Candidate paths."""

    num_paths: int = 4
    """K, candidate paths a demand at most."""
    path_method: PathMethod = PathMethod.DISJOINT
    """edge-disjoint (a shortest path, then another without its links, ...) or yen (K shortest loopless)."""
    path_weight: PathWeight = PathWeight.HOPS
    """What a short path has least of: hops, latency or inverse-capacity."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateConfig(PathConfig):
    """Candidate paths, computed or read."""

    paths: Path | None = None
    """A .npz file of candidate paths, as teal paths improve writes it, in place of the three settings above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceConfig(CandidateConfig):
    """A network, its traffic, and what to optimise."""

    topology: str
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4."""
    traffic: str
    """An SNDlib archive (.tgz or folder), a .npz, .csv or .parquet file, or gravity:seed=0,count=200,load=4."""
    objective: ObjectiveName = ObjectiveName.TOTAL_FLOW
    """total_flow, weighted_flow, latency_penalised_flow, max_link_utilisation or max_concurrent_flow."""
    epsilon: float = 0.5
    """Of latency_penalised_flow: what the path of largest latency loses of its value, in [0, 1)."""
    weights: str = "random:seed=0"
    """Of weighted_flow: a CSV file of source,target,weight, or random:seed=0 (priorities 1, 2 and 4 by lot)."""
    calibrate: float | None = None
    """Scale all demands so that the optimal total flow satisfies this share of the median training matrix."""
    default_capacity: float | None = None
    """Gbit/s for links whose file gives no capacity; without it such a file is refused."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu or cuda."""


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
    resume: bool = False
    """Go on with the run in OUT, as if it had never stopped."""
    overwrite: bool = False
    """Replace the run in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        seconds(self.time_budget)
        counts = ("batch_size", "width", "layers", "samples", "episodes", "validate_every", "validation_matrices")
        for field in (*counts, "patience", "decay_after"):
            _require(self, field, "a whole number of at least 1", getattr(self, field) >= 1)
        for field in ("max_steps", "micro_batch", "seed"):
            _require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        for field in ("learning_rate", "std"):
            _require(self, field, "a number > 0", 0 < getattr(self, field) < math.inf)
        _require(self, "augment", "a number >= 0", 0 <= self.augment < math.inf)


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
            _require(self, field, "a number above 0", 0 < getattr(self, field) < math.inf)
        _require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        if self.entries and self.learner != "coma":
            raise InputError("--entries", "", "--learner coma: rounding has no gradient", self.learner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(InstanceConfig):
    """Run schemes on the same matrices, and set them side by side."""

    scheme: tuple[str, ...] = ()
    """A scheme with its options, teal:repair=admm,iterations=5 or lp-all:solver=highs; repeat for
    more.  Without it: price-gnn, lp-all and, with the --model of one network, teal."""
    model: Path | None = None
    """Folder of a trained model, or one that comes with Teal: b4 (for teal), universal (for price-gnn, its default)."""
    split: Literal["train", "validation", "test", "all"] = "test"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Look at no more than so many matrices, evenly spread over the split; 0 for all."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  Paths and models stay as they are."""
    race: bool = False
    """Measure time to certified gaps instead: PDHG from nothing and from the matrix before, each scheme, and PDHG
    from each model; for the next interval, a flash crowd, failed links, and no earlier state.  --limit 0 means 3."""
    seed: int = 0
    """Of the crowds and failures of --race."""
    out: Path
    """Folder for results.csv, manifest.json and the plots; of --race, race.csv and race.png."""
    overwrite: bool = False
    """Replace the results in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        for field in ("limit", "seed"):
            _require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        if self.race and self.fail:
            raise InputError("--fail", "", "nothing: --race draws its own failures", ", ".join(self.fail))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolveConfig(InstanceConfig):
    """Allocate one traffic matrix to a certified optimality gap, without an LP solver."""

    index: int = 0
    """Which matrix, counted from 0."""
    gap: float = 0.01
    """Certified gap at which to stop: (bound - value) / bound."""
    deadline: str = ""
    """Stop after so long, whatever has been reached: 500ms, 5s, 1m.  Without it: none."""
    max_iterations: int = 10_000
    """Stop after so many iterations."""
    model: str = "auto"
    """Where PDHG starts: from the universal PriceGNN (universal), from nothing (none), or from the PriceGNN in this
    folder; auto is universal on large networks, where that is sooner."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  Paths stay as they are."""
    carrying: bool = False
    """Compute paths only for the pairs that have demand in this matrix: less memory, no use for the next one."""
    out: Path | None = None
    """Write splits and flows per path to this .parquet or .csv file."""
    json: bool = False
    """Print one JSON object in place of the lines."""
    overwrite: bool = False
    """Replace OUT if it exists."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        _require(self, "index", "a whole number of at least 0", self.index >= 0)
        _require(self, "gap", "a number in [0, 1)", 0 <= self.gap < 1)
        _require(self, "max_iterations", "a whole number of at least 0", self.max_iterations >= 0)
        _require(self, "carrying", "no --calibrate, which needs all pairs", not (self.carrying and self.calibrate))
        if self.deadline:
            seconds(self.deadline, "--deadline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImproveConfig(InstanceConfig):
    """Add the paths that the candidates lack, until they cost no more than a target gap.

    Column generation: each round allocates some training matrices over the paths so far, and adds for
    each demand the path of best reduced profit under the link prices.
    """

    matrices: int = 4
    """Training matrices to find paths for, evenly spread; 1 to 16."""
    gap: float = 0.01
    """Stop when every matrix is so close to the optimum over all paths that there are, certified."""
    rounds: int = 30
    """Most rounds."""
    out: Path
    """Write the paths to this .npz file, for --paths of the other commands."""
    overwrite: bool = False
    """Replace OUT if it exists."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        _require(self, "matrices", "1 to 16", 1 <= self.matrices <= 16)
        _require(self, "gap", "a number in (0, 1)", 0 < self.gap < 1)
        _require(self, "rounds", "a whole number of at least 1", self.rounds >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathsConfig(PathConfig):
    """Compute the candidate paths of a network, keep them in the cache, and describe them."""

    topology: str
    """As in train."""
    traffic: str | None = None
    """As in train: only the pairs that it has.  Without it all pairs."""
    default_capacity: float | None = None
    """Gbit/s for links whose file gives no capacity."""
    out: Path | None = None
    """Write the paths, node by node, to this .csv file."""
    overwrite: bool = False
    """Replace OUT if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficConfig:
    """Traffic matrices of a network."""

    topology: str
    """As in train."""
    traffic: str
    """As in train."""
    default_capacity: float | None = None
    """Gbit/s for links whose file gives no capacity."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficConvertConfig(TrafficConfig):
    """Write traffic matrices to another format."""

    out: Path
    """A .npz (fastest to train from), .csv or .parquet file."""
    overwrite: bool = False
    """Replace OUT if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficGenerateConfig(TrafficConvertConfig):
    """Generate traffic matrices into a file.

    gravity:seed=0,count=200,load=4,interval=300,top=0.88,noise=0.3,correlation=0.9 where load is the
    largest link utilisation of the mean matrix under shortest-path routing, interval the seconds from
    one matrix to the next, and top the share of the volume that the largest tenth of the demands has.
    """

    traffic: str = "gravity:seed=0,count=200,load=4"
    """The generator's options, all of which have a default."""


def _require(config: object, field: str, expected: str, good: bool) -> None:
    if not good:
        raise InputError(f"--{field.replace('_', '-')}", "", expected, getattr(config, field))


_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str, option: str = "--time-budget") -> float:
    """Seconds in a duration such as ``500ms``, ``90s``, ``10m``, ``1h30m`` or ``90``.

    Raises:
        InputError: anything else, or nothing.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|[smh]))+", text):
        raise InputError(option, "", "a duration such as 500ms, 90s, 10m or 1h30m", repr(text))
    return sum(float(number) * _UNITS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)(ms|[smh])", text))
