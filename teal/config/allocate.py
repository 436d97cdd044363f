"""Settings of `teal allocate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import InstanceConfig, require, require_exact_splits, require_linear
from teal.config.option import ENTRIES, GAP, MAX_ITERATIONS, MIN_SPLIT, OVERWRITE, PREFER, RESUME

Each = Literal["none", "json", "parquet", "csv"]  # suffixes of a file of one matrix


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocateConfig(InstanceConfig):
    """Allocate every matrix of a history to a certified gap, and write the allocations.

    The history is divided into parts, which are computed in as many processes as there are CPUs (Ray Data); memory
    does not grow with the history.  An interrupted run continues with --resume.
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
            "json",
            "resume",
            "overwrite",
        ),
        "for experts": ("model", "epsilon", "device"),
    }

    out: Path
    """Folder for the parts (Parquet, one row a matrix), the candidate paths that splits are over, and the figures."""
    gap: Annotated[float, GAP] = 0.01
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000
    model: str = "auto"
    """As in solve."""
    prefer: Annotated[Literal["latency", "hops", "none"], PREFER] = "latency"
    entries: Annotated[int, ENTRIES] = 0
    min_split: Annotated[float, MIN_SPLIT] = 0.0
    each: Each = "none"
    """Also write every matrix to a file of its own in OUT/matrices, as `teal solve --out` writes it; json says for each
    ingress router what to install, and is what `teal export` reads."""
    prove: bool = False
    """Also write a proof of value and bound of every matrix to a folder of its own in OUT/proofs, with the checker."""
    figures_only: bool = False
    """Write value, bound, gap and the other figures of each matrix, but no splits."""
    part: int = 96
    """Matrices in a part; they are solved in order, each from the state after the ones before."""
    limit: int = 0
    """Number of matrices, at most, the first ones; 0 for all."""
    workers: int | None = None
    """Number of processes of Ray Data, on this machine or the cluster of RAY_ADDRESS; all of its machines need OUT and
    the inputs under the same paths.  Default: one for each CPU.  0: this process alone, without Ray."""
    max_churn: float | None = None
    """Largest share of the demand that a matrix may move onto other paths, against the matrix before it in its part;
    the first matrix of a part moves freely."""
    json: bool = False
    """Print one JSON object instead of text."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        if self.max_churn is not None:
            require(self, "max_churn", "a number in [0, 1]", 0 <= self.max_churn <= 1)
            expected = "0 with --max-churn: rounding moves traffic"
            for field in ("entries", "min_split"):
                require(self, field, expected, not getattr(self, field))
        require_exact_splits(self, self.entries, self.min_split)
        require(self, "prove", "nothing with --max-churn", not self.prove or self.max_churn is None)
        if self.prove:
            require_linear(self, "with --prove", or_in_pieces=True)
        require(self, "each", "none with --figures-only", self.each == "none" or not self.figures_only)
        for field in ("max_iterations", "limit"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "part", "a whole number of at least 1", self.part >= 1)
        require(self, "workers", "a whole number of at least 0", self.workers is None or self.workers >= 0)
