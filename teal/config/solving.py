"""Of solve and paths."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from teal.config.base import InstanceConfig, PathConfig, require, seconds


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
        require(self, "index", "a whole number of at least 0", self.index >= 0)
        require(self, "gap", "a number in [0, 1)", 0 <= self.gap < 1)
        require(self, "max_iterations", "a whole number of at least 0", self.max_iterations >= 0)
        require(self, "carrying", "no --calibrate, which needs all pairs", not (self.carrying and self.calibrate))
        if self.deadline:
            seconds(self.deadline, "--deadline")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocateConfig(InstanceConfig):
    """Allocate every matrix of a history to a certified gap, and keep the allocations.

    Part by part, in as many processes as there are CPUs (Ray Data); memory does not grow with the history.  What is
    done stays done: a run that broke off goes on with --resume.
    """

    out: Path
    """Folder for the parts (Parquet, a row a matrix), the candidate paths that splits are over, and the figures."""
    gap: float = 0.01
    """Certified gap at which to stop: (bound - value) / bound."""
    max_iterations: int = 10_000
    """Stop after so many iterations, whatever has been reached."""
    model: str = "auto"
    """As in solve."""
    entries: int = 0
    """Whole-number weights out of so many in place of splits, as switches have them, 1 to 255; 0 for splits."""
    figures_only: bool = False
    """Keep value, bound, gap and the like of each matrix, no splits."""
    part: int = 96
    """Matrices a part, solved in order, each from where the one before ended."""
    limit: int = 0
    """Only the first so many matrices; 0 for all."""
    workers: int | None = None
    """Processes of Ray Data, on this machine or the cluster of RAY_ADDRESS, which all must see OUT and the inputs under
    the same names; by default one for each CPU; 0 for this process alone, without Ray."""
    resume: bool = False
    """Go on with the run in OUT."""
    overwrite: bool = False
    """Replace the run in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "gap", "a number in [0, 1)", 0 <= self.gap < 1)
        require(self, "entries", "0 to 255", 0 <= self.entries <= 255)
        for field in ("max_iterations", "limit"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "part", "a whole number of at least 1", self.part >= 1)
        require(self, "workers", "a whole number of at least 0", self.workers is None or self.workers >= 0)


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
        require(self, "matrices", "1 to 16", 1 <= self.matrices <= 16)
        require(self, "gap", "a number in (0, 1)", 0 < self.gap < 1)
        require(self, "rounds", "a whole number of at least 1", self.rounds >= 1)


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
