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
from teal.objectives import Objective
from teal.option import ENTRIES, GAP, MAX_ITERATIONS, MIN_SPLIT, OVERWRITE, PREFER, RESUME, TOPOLOGY


@dataclasses.dataclass(frozen=True, kw_only=True)
class SolveConfig(InstanceConfig):
    """Allocate one traffic matrix to a certified optimality gap, without an LP solver."""

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "matrix": ("index", "fail"),
        "calm": ("previous", "max_churn", "keep_within"),
        "when to stop": ("gap", "over_all_paths", "deadline", "max_iterations"),
        "large networks": ("carrying", "shards", "workers"),
        "output": ("out", "prove", "prefer", "entries", "min_split", "overwrite"),
        "for experts": ("model", "engine", "device"),
    }

    index: int = 0
    """Number of the matrix, counted from 0."""
    gap: Annotated[float, GAP] = 0.01
    over_all_paths: bool = False
    """Add candidate paths, from the present prices, until the gap to the optimum over all paths of
    the network is at most --gap.  The paths are added for this matrix alone."""
    deadline: str = ""
    """Time after which to stop with the best so far, from when network and traffic are read: 500ms,
    5s, 1m.  The choice of candidate paths takes half of it at most.  Default: none."""
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000
    model: str = "auto"
    """Model whose prediction PDHG starts from: the one of either kind that teal train or teal
    pretrain wrote to this folder, one that comes with Teal (universal, flow), or none; auto is
    universal on networks of middle size (50,000 paths and more, but too small for a start from a
    sample of the demands), else none.  With --engine auto, balanced programs and concave utilities
    do without, since a model takes longer than it saves there."""
    engine: Literal["auto", "interior", "fused", "plain", "equilibrated"] = "auto"
    """interior: interior points, exact on small networks.  fused, plain, equilibrated: forms of
    PDHG.  auto: what is expected to reach the gap first."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  A demand without a
    candidate path that is left gets one, where the network still connects it."""
    previous: Path | None = None
    """The allocation in force, a .json file of an earlier --out; with --max-churn, --keep-within or
    both."""
    max_churn: float | None = None
    """Share of the volume, 0 to 1, that may move onto other paths than those of --previous."""
    keep_within: float = 0.0
    """Demands of which at most this share, 0 to 1, would change paths keep the splits of
    --previous, unless that overloads a link.  What that costs is printed."""
    carrying: bool = False
    """Compute paths only for the pairs that have demand in this matrix: less memory, but useless
    for other matrices."""
    shards: int = 1
    """Keep the paths in this many parts on disk, by source node, of which one at a time is in
    memory: for networks whose paths do not fit.  Paths are found once and kept for the next
    matrix."""
    workers: int = 0
    """Ray processes that share the parts (on the cluster of RAY_ADDRESS, or here); 0: this process
    alone."""
    out: Path | None = None
    """Write the allocation to this file: .json, for each ingress router what to install; .parquet
    or .csv, a row for each path.  With --shards or --workers to Parquet files in this folder."""
    prove: Path | None = None
    """Write a proof of value and bound to this folder, with a checker of one file that needs
    nothing but Python."""
    prefer: Annotated[Literal["latency", "hops", "none"], PREFER] = "latency"
    entries: Annotated[int, ENTRIES] = 0
    min_split: Annotated[float, MIN_SPLIT] = 0.0
    overwrite: Annotated[bool, OVERWRITE] = False

    @property
    def chooses_paths(self) -> bool:
        """Whether paths may be chosen before; column generation adds those that are missing."""
        return not self.over_all_paths

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        super().__post_init__()
        require(self, "index", "an integer >= 0", self.index >= 0)
        require(
            self,
            "carrying",
            "no --calibrate, which needs all pairs",
            not (self.carrying and self.calibrate),
        )
        # Options that exclude each other.
        self._check_churn_options()
        if self.over_all_paths:
            self._check_column_generation_options()
        require_exact_splits(self, self.entries, self.min_split)
        for field in ("entries", "min_split"):
            require(
                self, field, "0 with --previous", self.previous is None or not getattr(self, field)
            )
        require(
            self,
            "previous",
            "nothing with --shards and --workers",
            self.previous is None or not self.is_sharded,
        )
        require(self, "shards", "an integer >= 1", self.shards >= 1)
        require(self, "workers", "an integer >= 0", self.workers >= 0)
        if self.is_sharded:
            self._check_shard_options()
        if self.deadline:
            seconds(self.deadline, "--deadline")

    def _check_churn_options(self) -> None:
        """Check the options that limit changes, and those that exclude them."""
        require(
            self,
            "max_churn",
            "a number in [0, 1]",
            self.max_churn is None or 0 <= self.max_churn <= 1,
        )
        limits_changes = self.max_churn is not None or self.keep_within > 0
        require(self, "keep_within", "a number in [0, 1]", 0 <= self.keep_within <= 1)
        require(
            self,
            "previous",
            "together with --max-churn or --keep-within",
            (self.previous is not None) == limits_changes,
        )
        require(
            self, "prove", "nothing with --max-churn", self.prove is None or self.max_churn is None
        )
        if self.prove is not None:
            require_linear(self, "with --prove", or_in_pieces=True)
        require(
            self, "max_churn", "nothing with --protect", self.max_churn is None or not self.protect
        )
        require(self, "keep_within", "0 with --protect", not (self.keep_within and self.protect))

    def _check_column_generation_options(self) -> None:
        """Check the options that exclude ``--over-all-paths``."""
        require_one_program(self, "with --over-all-paths")
        require(self, "over_all_paths", "no --previous", self.previous is None)
        require(self, "over_all_paths", "no --latency-limits", not self.latency_limits)
        require(self, "over_all_paths", "no --shards and --workers", not self.is_sharded)
        require(self, "engine", "auto with --over-all-paths", self.engine == "auto")

    def _check_shard_options(self) -> None:
        """Check the options that exclude ``--shards`` and ``--workers``."""
        require_one_program(self, "with --shards and --workers")
        require(self, "entries", "0 with --shards and --workers", not self.entries)
        require(self, "min_split", "0 with --shards and --workers", not self.min_split)
        require(self, "calibrate", "nothing with --shards and --workers", self.calibrate is None)
        require(
            self,
            "paths",
            "nothing with --shards and --workers, which find their own",
            self.paths is None,
        )
        require(self, "engine", "auto with --shards and --workers", self.engine == "auto")
        require(self, "model", "none with --shards and --workers", self.model in ("auto", "none"))
        require(self, "prove", "nothing with --shards and --workers", self.prove is None)
        require(self, "device", "cpu with --shards and --workers", self.device in ("auto", "cpu"))

    @property
    def is_sharded(self) -> bool:
        """Whether the paths are in several parts."""
        return self.shards > 1 or self.workers > 0


# Suffixes of a file of one matrix.
Each = Literal["none", "json", "parquet", "csv"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocateOptions(ProgramFileConfig):
    """When the allocation of a matrix is good enough, and what can be installed."""

    gap: Annotated[float, GAP] = 0.01
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000
    model: str = "auto"
    """As in solve."""
    prefer: Annotated[Literal["latency", "hops", "none"], PREFER] = "latency"
    entries: Annotated[int, ENTRIES] = 0
    min_split: Annotated[float, MIN_SPLIT] = 0.0
    part: int = 96
    """Matrices in a part; they are solved in order, each from the state after the ones before."""
    limit: int = 0
    """Number of matrices, at most, the first ones; 0 for all."""
    max_churn: float | None = None
    """Largest share of the demand that a matrix may move onto other paths, against the matrix
    before it in its part; the first matrix of a part moves freely."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        if self.max_churn is not None:
            require(self, "max_churn", "a number in [0, 1]", 0 <= self.max_churn <= 1)
            expected = "0 with --max-churn: rounding moves traffic"
            for field in ("entries", "min_split"):
                require(self, field, expected, not getattr(self, field))
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
    """Folder for the parts (Parquet, one row a matrix), the candidate paths that splits are over,
    and the figures."""
    each: Each = "none"
    """Also write every matrix to a file of its own in OUT/matrices, as `teal solve --out` writes
    it; json says for each ingress router what to install, and is what `teal export` reads."""
    prove: bool = False
    """Also write a proof of value and bound of every matrix to a folder of its own in OUT/proofs,
    with the checker."""
    figures_only: bool = False
    """Write value, bound, gap and the other figures of each matrix, but no splits."""
    workers: int | None = None
    """Number of processes, through Ray, on this machine or the cluster of RAY_ADDRESS, at most one
    for each CPU; all of its machines need OUT and the inputs under the same paths.  Default: one
    for each CPU.  0: this process alone, without Ray."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "prove", "nothing with --max-churn", not self.prove or self.max_churn is None)
        if self.prove:
            require_linear(self, "with --prove", or_in_pieces=True)
        require(
            self, "each", "none with --figures-only", self.each == "none" or not self.figures_only
        )
        require(
            self,
            "workers",
            "an integer >= 0",
            self.workers is None or self.workers >= 0,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertifyConfig(InstanceConfig):
    """Write the proof of an allocation, Teal's or anybody's, which a file without Teal checks in
    integers.

    The rule that the allocation breaks is printed if there is one, with the link or the demand.
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
    Gbit/s.  Links are named A->B, or numbered from 0; several of them have semicolons between
    them."""
    prices: Path | None = None
    """A .csv file of link prices (link, price), such as duals of a solver, which prove the bound.
    Default: PDHG finds prices for the same matrix."""
    index: int = 0
    """Number of the matrix, counted from 0."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more."""
    gap: Annotated[float, GAP] = 1e-4
    """Certified gap at which the search for prices stops."""
    deadline: str = ""
    """Time after which it stops: 500ms, 5s, 1m.  Default: none."""
    over_all_paths: bool = False
    """Prove a bound over all paths of the network, not only over the candidate paths and those of
    the allocation."""
    repair: bool = False
    """Where links are overloaded or demands exceeded, scale the flows down until they fit, and
    prove what is left."""
    out: Path
    """Write network.csv, matrix.csv, proof.txt and the checker check.py to this folder."""
    compressed: bool = False
    """Write proof.txt.gz in the place of proof.txt."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that do not go together."""
        super().__post_init__()
        require(self, "index", "an integer >= 0", self.index >= 0)
        if self.deadline:
            seconds(self.deadline, "--deadline")
        if self.over_all_paths:
            require_one_program(self, "with --over-all-paths")
            require(self, "over_all_paths", "no --latency-limits", not self.latency_limits)
        require_linear(self, "for a proof", or_in_pieces=True)
        is_sequence = Objective(self.objective).rules.is_sequence
        require(
            self,
            "prices",
            "one program, without classes and levels",
            self.prices is None or not is_sequence,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig(TopologyFileConfig):
    """Plan the steps from one allocation to another, such that no link is ever above its capacity.

    Within a step, routers may change in any order: every combination of old and new flows fits.
    The fewest steps are found; where both allocations fill a link, something may have to be shed
    while the update lasts, and how much is printed.
    """

    before: Path
    """The allocation in force: a .json file of teal solve --out."""
    after: Path
    """The allocation to be installed, likewise."""
    topology: Annotated[str, TOPOLOGY]
    max_steps: int = 6
    """Most steps that are tried; more need less slack."""
    out: Path
    """Folder for step-1.json, step-2.json, ...: what is in force after each step, as teal solve
    --out writes it."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "max_steps", "an integer >= 1", self.max_steps >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathsConfig(PathConfig, TopologyFileConfig):
    """Compute the candidate paths of a network, store them in the cache, and describe them."""

    topology: Annotated[str, TOPOLOGY]
    traffic: str | None = None
    """As in train: paths only for the pairs that it has, chosen for its training matrices.
    Default: all pairs, chosen for generated matrices.  Chosen are paths of the least largest link
    utilisation."""
    out: Path | None = None
    """Write the paths, node by node, to this .csv file."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImproveConfig(InstanceConfig):
    """Add candidate paths until the optimum over them is within a target gap of that over all
    paths.

    Column generation: each round allocates some training matrices over the paths so far, and adds
    for each demand the path of best reduced profit under the link prices.
    """

    num_paths: int = 4
    """K, largest number of candidate paths of a demand before any are added."""
    matrices: int = 4
    """Number of training matrices to find paths for, evenly spread; 1 to 16."""
    gap: float = 0.01
    """Certified gap to the optimum over all paths of the network, at which to stop, for every
    matrix."""
    rounds: int = 30
    """Number of rounds, at most."""
    out: Path
    """Write the paths to this .npz file, for --paths of the other commands."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require_one_program(self, "for new paths")
        require(self, "matrices", "1 to 16", 1 <= self.matrices <= 16)
        require(self, "gap", "a number in (0, 1)", 0 < self.gap < 1)
        require(self, "rounds", "an integer >= 1", self.rounds >= 1)
