"""Settings of `teal certify`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from teal.config.base import InstanceConfig, require, require_linear, require_one_program, seconds
from teal.config.option import GAP, OVERWRITE
from teal.objectives import Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertifyConfig(InstanceConfig):
    """Write the proof of an allocation, Teal's or anybody's, which a file without Teal checks in whole numbers.

    The rule that the allocation breaks is printed if there is one, with the link or the demand.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "matrix": ("index", "fail"),
        "proof": ("allocation", "prices", "gap", "deadline", "over_all_paths", "repair"),
        "output": ("out", "compressed", "json", "overwrite"),
        "for experts": ("epsilon", "device"),
    }

    allocation: Path
    """The flows: a .json file of teal solve --out; or a .csv or .parquet table with a row for each path (source,
    target, links, flow) or for each link of a demand (source, target, link, flow), in Gbit/s.  Links are named A->B,
    or numbered from 0; several of them have semicolons between them."""
    prices: Path | None = None
    """A .csv file of link prices (link, price), such as duals of a solver, which prove the bound.  Default: PDHG finds
    prices for the same matrix."""
    index: int = 0
    """Number of the matrix, counted from 0."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more."""
    gap: Annotated[float, GAP] = 1e-4
    """Certified gap at which the search for prices stops."""
    deadline: str = ""
    """Time after which it stops: 500ms, 5s, 1m.  Default: none."""
    over_all_paths: bool = False
    """Prove a bound over all paths of the network, not only over the candidate paths and those of the allocation."""
    repair: bool = False
    """Where links are overloaded or demands exceeded, scale the flows down until they fit, and prove what is left."""
    out: Path
    """Write network.csv, matrix.csv, proof.txt and the checker check.py to this folder."""
    compressed: bool = False
    """Write proof.txt.gz in the place of proof.txt."""
    json: bool = False
    """Print one JSON object instead of text."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that do not go together."""
        super().__post_init__()
        require(self, "index", "a whole number of at least 0", self.index >= 0)
        if self.deadline:
            seconds(self.deadline, "--deadline")
        if self.over_all_paths:
            require_one_program(self, "with --over-all-paths")
            require(self, "over_all_paths", "no --latency-limits", not self.latency_limits)
        require_linear(self, "for a proof", or_in_pieces=True)
        is_sequence = Objective(self.objective).rules.is_sequence
        require(self, "prices", "one program, without classes and levels", self.prices is None or not is_sequence)
