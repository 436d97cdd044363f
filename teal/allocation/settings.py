"""Settings of `teal solve`, `allocate`, `certify`, `update` and `paths`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import (
    InstanceConfig,
    PathConfig,
    ProgramFileConfig,
    TopologyFileConfig,
    require,
    require_exact_splits,
    require_linear,
    require_one_program,
    seconds,
)
from teal.errors import InputError
from teal.objectives import Objective
from teal.option import ENTRIES, GAP, MAX_ITERATIONS, MIN_SPLIT, OVERWRITE, PREFER, RESUME, TOPOLOGY


def _require_compatible(field: str, other_options: str, is_compatible: bool) -> None:
    """Raise InputError, ``--FIELD: cannot be combined with OTHER``, unless ``is_compatible``.

    Args:
        field: field of the settings; its option is named like it.
        other_options: options that exclude it, as text.
        is_compatible: whether the settings use at most one of them.
    """
    if not is_compatible:
        raise InputError.invalid(
            f"--{field.replace('_', '-')}",
            "",
            f"cannot be combined with {other_options}",
            "drop one of them",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolveConfig(InstanceConfig):
    """Allocate one traffic matrix to a certified optimality gap, without an LP solver."""

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "matrix": ("index", "fail"),
        "limiting changes": ("previous", "max_churn", "keep_within"),
        "when to stop": ("gap", "over_all_paths", "deadline", "max_iterations"),
        "large networks": ("carrying", "shards", "workers"),
        "output": ("out", "prove", "prefer", "entries", "min_split", "overwrite"),
        "for experts": ("model", "engine", "device"),
    }

    index: int = 0
    """Index of the matrix in the traffic, from 0."""
    gap: Annotated[float, GAP] = 0.01
    over_all_paths: bool = False
    """Column generation: add candidate paths by the current link prices until the gap to the
    optimum over all paths of the network is at most --gap.  The paths are added for this matrix
    alone."""
    deadline: str = ""
    """Time limit after network and traffic are read; the solve then returns the best allocation so
    far: 500ms, 5s, 1m.  The choice of candidate paths takes at most half of it.  Default: none."""
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000
    model: str = "auto"
    """Model whose prediction starts the search: a folder of teal train or teal pretrain, a model
    that comes with Teal (universal, flow), or none.  auto is universal where it is predicted to
    save more time than loading it takes, else none.  With --engine auto, min-max programs and
    concave utilities use no model, since its prediction takes longer than it saves."""
    engine: str = "auto"
    """Solver.  interior: interior-point method, exact on small networks.  simplex: dual simplex
    method from the basis of a similar matrix.  fused, plain: PDHG, compiled or in torch.  auto: the
    solver with the shortest predicted time to the gap.  Others: engines that packages announce.
    equilibrated is deprecated and means auto."""
    explain: bool = False
    """Print the stages of the solve with their times, the predicted time of each solver, and why
    the first one was chosen."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  A demand that loses all
    its candidate paths gets a new one if the network still connects it."""
    previous: Path | None = None
    """The installed allocation, a .json file of an earlier --out; with --max-churn, --keep-within
    or both."""
    max_churn: float | None = None
    """Largest share of the volume, 0 to 1, that may move to other paths than those of
    --previous."""
    keep_within: float = 0.0
    """Keep the splits of --previous for each demand of which at most this share, 0 to 1, would
    change paths, unless that overloads a link.  The loss of value is printed."""
    carrying: bool = False
    """Compute paths only for the pairs that have demand in this matrix: less memory, but useless
    for other matrices."""
    shards: int = 1
    """Divide the paths by source node into this many shards on disk, with one shard in memory at a
    time: for networks whose paths do not fit into memory.  The paths are cached for the next
    matrix."""
    workers: int = 0
    """Number of Ray processes that share the shards (on the cluster of RAY_ADDRESS, or on this
    machine); 0: this process alone."""
    out: Path | None = None
    """Write the allocation to this file: .json, the splits of each ingress router; .parquet or
    .csv, a row for each path.  With --shards or --workers: a folder for Parquet files."""
    prove: Path | None = None
    """Write a proof of value and bound to this folder, with a checker in a single file that needs
    only Python."""
    prefer: Annotated[Literal["latency", "hops", "none"], PREFER] = "latency"
    entries: Annotated[int, ENTRIES] = 0
    min_split: Annotated[float, MIN_SPLIT] = 0.0
    overwrite: Annotated[bool, OVERWRITE] = False

    @property
    def chooses_paths(self) -> bool:
        """Whether candidate paths are chosen before the solve; column generation adds its own."""
        return not self.over_all_paths

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        super().__post_init__()
        require(self, "index", "an integer >= 0", self.index >= 0)
        _require_compatible(
            "carrying",
            "--calibrate, which needs all pairs",
            not (self.carrying and self.calibrate),
        )
        # Options that exclude each other.
        self._check_churn_options()
        if self.over_all_paths:
            self._check_column_generation_options()
        require_exact_splits(self, self.entries, self.min_split)
        for field in ("entries", "min_split"):
            _require_compatible(
                field, "--previous", self.previous is None or not getattr(self, field)
            )
        _require_compatible(
            "previous", "--shards and --workers", self.previous is None or not self.is_sharded
        )
        require(self, "shards", "an integer >= 1", self.shards >= 1)
        require(self, "workers", "an integer >= 0", self.workers >= 0)
        if self.is_sharded:
            self._check_shard_options()
        if self.deadline:
            seconds(self.deadline, "--deadline")

    def _check_churn_options(self) -> None:
        """Raise InputError for wrong options that limit churn, or options that exclude them."""
        # Both limits are shares, and need the installed allocation.
        require(
            self,
            "max_churn",
            "a number in [0, 1]",
            self.max_churn is None or 0 <= self.max_churn <= 1,
        )
        limits_churn = self.max_churn is not None or self.keep_within > 0
        require(self, "keep_within", "a number in [0, 1]", 0 <= self.keep_within <= 1)
        if (self.previous is not None) != limits_churn:
            raise InputError.invalid(
                "--previous",
                "",
                "must be used together with --max-churn or --keep-within",
                "add the missing option, or drop the others",
            )
        # Options that exclude them; a proof needs a linear or piecewise linear objective.
        _require_compatible("prove", "--max-churn", self.prove is None or self.max_churn is None)
        if self.prove is not None:
            require_linear(self, "with --prove", or_in_pieces=True)
        _require_compatible("max_churn", "--protect", self.max_churn is None or not self.protect)
        _require_compatible("keep_within", "--protect", not (self.keep_within and self.protect))

    def _check_column_generation_options(self) -> None:
        """Raise InputError for an option that excludes ``--over-all-paths``."""
        require_one_program(self, "with --over-all-paths")
        _require_compatible("over_all_paths", "--previous", self.previous is None)
        _require_compatible("over_all_paths", "--latency-limits", not self.latency_limits)
        _require_compatible("over_all_paths", "--shards and --workers", not self.is_sharded)
        require(self, "engine", "auto with --over-all-paths", self.engine == "auto")

    def _check_shard_options(self) -> None:
        """Raise InputError for an option that excludes ``--shards`` and ``--workers``."""
        require_one_program(self, "with --shards and --workers")
        shard_options = "--shards and --workers"
        _require_compatible("entries", shard_options, not self.entries)
        _require_compatible("min_split", shard_options, not self.min_split)
        _require_compatible("calibrate", shard_options, self.calibrate is None)
        _require_compatible(
            "paths", f"{shard_options}, which compute their own paths", self.paths is None
        )
        require(self, "engine", f"auto with {shard_options}", self.engine == "auto")
        require(self, "model", f"none with {shard_options}", self.model in ("auto", "none"))
        _require_compatible("prove", shard_options, self.prove is None)
        require(self, "device", f"cpu with {shard_options}", self.device in ("auto", "cpu"))

    @property
    def is_sharded(self) -> bool:
        """Whether demands and paths are divided into shards, by ``--shards`` or ``--workers``."""
        return self.shards > 1 or self.workers > 0


# Format of the file of each matrix; none: no such files.
Each = Literal["none", "json", "parquet", "csv"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocateOptions(ProgramFileConfig):
    """Options of the allocation of a history: target gap, rounding of the splits, parts, churn."""

    gap: Annotated[float, GAP] = 0.01
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000
    model: str = "auto"
    """Model whose prediction starts the search: a folder of teal train or teal pretrain,
    universal, flow, none, or auto (universal where it is predicted to save time)."""
    prefer: Annotated[Literal["latency", "hops", "none"], PREFER] = "latency"
    entries: Annotated[int, ENTRIES] = 0
    min_split: Annotated[float, MIN_SPLIT] = 0.0
    part: int = 96
    """Number of matrices of a part; they are solved in order, each warm-started from the one
    before."""
    limit: int = 0
    """Largest number of matrices, from the first one; 0 for all."""
    max_churn: float | None = None
    """Largest share of the demand that may move to other paths from one matrix to the next of a
    part; the first matrix of a part has no limit."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        super().__post_init__()
        if self.max_churn is not None:
            require(self, "max_churn", "a number in [0, 1]", 0 <= self.max_churn <= 1)
            other_option = "--max-churn, since rounding moves traffic"
            for field in ("entries", "min_split"):
                _require_compatible(field, other_option, not getattr(self, field))
        require_exact_splits(self, self.entries, self.min_split)
        for field in ("max_iterations", "limit"):
            require(self, field, "an integer >= 0", getattr(self, field) >= 0)
        require(self, "part", "an integer >= 1", self.part >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocateConfig(AllocateOptions, InstanceConfig):
    """Allocate every matrix of a history to a certified gap, and write the allocations.

    The history is divided into parts, which are computed in as many processes as there are CPUs,
    through Ray; memory does not grow with the history.  An interrupted run continues with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "when to stop": ("gap", "max_iterations"),
        "history": ("limit", "part", "workers", "max_churn"),
        "output": (
            "out",
            "each",
            "prove",
            "prefer",
            "entries",
            "min_split",
            "figures_only",
            "resume",
            "overwrite",
        ),
        "for experts": (
            "model",
            "device",
        ),
    }

    out: Path
    """Folder for the splits of each part (Parquet, a row for each matrix), the candidate paths, and
    the figures."""
    each: Each = "none"
    """Also write every matrix to a separate file in OUT/matrices, in the format of `teal solve
    --out`; json has the splits of each ingress router, and is the input of `teal export`."""
    prove: bool = False
    """Also write a proof of value and bound of every matrix to a separate folder in OUT/proofs,
    with the checker."""
    figures_only: bool = False
    """Write value, bound, gap and the other figures of each matrix, but no splits."""
    workers: int | None = None
    """Number of Ray processes, on this machine or the cluster of RAY_ADDRESS, at most one for each
    CPU; all machines of the cluster need OUT and the inputs under the same paths.  Default: one for
    each CPU.  0: this process alone, without Ray."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        super().__post_init__()
        _require_compatible("prove", "--max-churn", not self.prove or self.max_churn is None)
        if self.prove:
            require_linear(self, "with --prove", or_in_pieces=True)
        _require_compatible("each", "--figures-only", self.each == "none" or not self.figures_only)
        require(
            self,
            "workers",
            "an integer >= 0",
            self.workers is None or self.workers >= 0,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertifyConfig(InstanceConfig):
    """Write a proof of value and bound of an allocation, from Teal or another tool.

    A checker in a single file, which needs only Python, checks the proof in integer arithmetic.  If
    the allocation violates a constraint, the message names it with the link or the demand.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "matrix": ("index", "fail"),
        "proof": ("allocation", "prices", "gap", "deadline", "over_all_paths", "repair"),
        "output": ("out", "compressed", "overwrite"),
        "for experts": ("device",),
    }

    allocation: Path
    """The flows: a .json file of teal solve --out; or a .csv or .parquet table with a row for each
    path (source, target, links, flow) or for each link of a demand (source, target, link, flow), in
    Gbit/s.  A link is its name A->B or its index from 0; a list of links is separated by
    semicolons."""
    prices: Path | None = None
    """A .csv file of link prices (link, price) that prove the bound, such as the duals of a solver.
    With a further column matrix it holds the prices of several matrices, of which the tightest ones
    are used.  Default: prices from a solve of the same matrix."""
    index: int = 0
    """Index of the matrix in the traffic, from 0."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more."""
    gap: Annotated[float, GAP] = 1e-4
    """Certified gap at which the search for prices stops."""
    deadline: str = ""
    """Time limit of the search for prices: 500ms, 5s, 1m.  Default: none."""
    over_all_paths: bool = False
    """Prove a bound over all paths of the network, not only over the candidate paths and those of
    the allocation."""
    repair: bool = False
    """If links are overloaded or demands exceeded, scale the flows down until they are feasible,
    and prove the repaired allocation."""
    out: Path
    """Write network.csv, matrix.csv, proof.txt and the checker check.py to this folder."""
    compressed: bool = False
    """Write proof.txt.gz instead of proof.txt."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        super().__post_init__()
        require(self, "index", "an integer >= 0", self.index >= 0)
        if self.deadline:
            seconds(self.deadline, "--deadline")
        if self.over_all_paths:
            require_one_program(self, "with --over-all-paths")
            _require_compatible("over_all_paths", "--latency-limits", not self.latency_limits)
        require_linear(self, "for a proof", or_in_pieces=True)
        is_sequence = Objective(self.objective).rules.is_sequence
        _require_compatible(
            "prices",
            f"--objective {self.objective}, whose bound needs prices of each class or level",
            self.prices is None or not is_sequence,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig(TopologyFileConfig):
    """Plan the steps from one allocation to another that never overload a link.

    Within a step, routers may change in any order: every combination of old and new flows fits into
    the capacities.  The plan has the fewest steps without loss.  If both allocations fill a link,
    demand may have to be shed during the update, and its largest share is printed.
    """

    before: Path
    """The installed allocation: a .json file of teal solve --out."""
    after: Path
    """The allocation to install: a .json file of teal solve --out."""
    topology: Annotated[str, TOPOLOGY]
    max_steps: int = 6
    """Largest number of steps; an update of more steps needs less free capacity."""
    out: Path
    """Folder for step-1.json, step-2.json, ...: the allocation after each step, in the format of
    teal solve --out."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "max_steps", "an integer >= 1", self.max_steps >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathsConfig(PathConfig, TopologyFileConfig):
    """Compute the candidate paths of a network, store them in the cache, and describe them."""

    topology: Annotated[str, TOPOLOGY]
    traffic: str | None = None
    """Traffic matrices, in the formats of teal train: paths are computed for their pairs only, and
    chosen for their training matrices.  Default: paths of all pairs, chosen for generated matrices.
    The choice minimises the largest link utilisation."""
    out: Path | None = None
    """Write the paths to this .csv file, each as the list of its nodes."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImproveConfig(InstanceConfig):
    """Add candidate paths until their optimum is within a target gap of the optimum over all paths.

    Column generation: each round allocates some training matrices over the paths so far, and adds
    for each demand the path of best reduced profit under the link prices.
    """

    num_paths: int = 4
    """K, largest number of candidate paths of a demand before column generation."""
    matrices: int = 4
    """Number of training matrices for which paths are added, evenly spread over time; 1 to 16."""
    gap: float = 0.01
    """Target of the certified gap to the optimum over all paths of the network, for every
    matrix."""
    rounds: int = 30
    """Largest number of rounds of column generation."""
    out: Path
    """Write the paths to this .npz file, for --paths of the other commands."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or an objective of several programs."""
        super().__post_init__()
        require_one_program(self, "for new paths")
        require(self, "matrices", "an integer from 1 to 16", 1 <= self.matrices <= 16)
        require(self, "gap", "a number in (0, 1)", 0 < self.gap < 1)
        require(self, "rounds", "an integer >= 1", self.rounds >= 1)
