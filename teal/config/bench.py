"""Settings of `teal bench make`, `teal bench run` and `teal bench rank`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from teal.config.base import require
from teal.config.option import OVERWRITE


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchMakeConfig:
    """Make the frozen set of problems: networks, matrices, failures, and certified optima.

    Everything is generated from networks that come with Teal and fixed seeds, in seconds; a content key says whether
    the set is the one that others have.  Four tracks: known (a matrix, as much flow as possible), failures (a cable
    down), next (the matrix after those that are known, least utilisation), unsplittable (one path a demand).
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {"output": ("out", "network", "overwrite")}

    out: Path
    """Folder for set.json and each network's topology (.json) and matrices (.npz)."""
    network: tuple[str, ...] = ()
    """Only this network of the set (b4, geant, germany50, south-america); may be repeated.  Default: all."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchRunConfig:
    """Run a scheme on the set, and write its results as any program would."""

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "problems and scheme": ("set", "scheme", "model"), "output": ("out", "overwrite"),
    }  # fmt: skip

    set: Path
    """Folder of the set (teal bench make)."""
    scheme: str
    """Scheme or hedge with its options, as in evaluate; package.module:factory for one of your own."""
    model: Path | None = None
    """Folder of a trained model, for schemes that take one."""
    out: Path
    """File for the results (.csv: case,source,target,path,share); a file beside it has the seconds of each case."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchRankConfig:
    """Check results of any programs, and rank them.

    A result file has rows case,source,target,path,share, a path as names of nodes joined by |.  The check is plain
    arithmetic: loads, capacities, shares.  A case that is missing or not valid scores 0.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "problems and results": ("set", "results"), "output": ("out", "prove", "json", "overwrite"),
    }  # fmt: skip

    set: Path
    """Folder of the set (teal bench make)."""
    results: tuple[Path, ...]
    """Result file, whose name without .csv is that of the program; repeat for several."""
    out: Path | None = None
    """Folder for scores.csv and report.html."""
    prove: bool = False
    """Also write a proof of every valid result to OUT/proofs: what it reaches, and a bound on what any program can,
    with a checker of 200 lines that needs nothing but Python."""
    json: bool = False
    """Print one JSON object instead of a table."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError without a result file."""
        require(self, "results", "at least one file", bool(self.results))
        require(self, "prove", "--out beside it", self.out is not None or not self.prove)
