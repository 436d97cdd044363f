"""Settings of `teal paths compute` and `teal paths improve`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from teal.config.base import InstanceConfig, PathConfig, TopologyFileConfig, require, require_one_program
from teal.config.option import OVERWRITE


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathsConfig(PathConfig, TopologyFileConfig):
    """Compute the candidate paths of a network, store them in the cache, and describe them."""

    topology: str
    """As in train."""
    traffic: str | None = None
    """As in train: paths only for the pairs that it has, chosen for its training matrices.  Default: all pairs, chosen
    for generated matrices.  Chosen are paths of the least largest link utilisation."""
    out: Path | None = None
    """Write the paths, node by node, to this .csv file."""
    overwrite: Annotated[bool, OVERWRITE] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImproveConfig(InstanceConfig):
    """Add candidate paths until the optimum over them is within a target gap of that over all paths.

    Column generation: each round allocates some training matrices over the paths so far, and adds for
    each demand the path of best reduced profit under the link prices.
    """

    num_paths: int = 4
    """K, largest number of candidate paths of a demand before any are added."""
    matrices: int = 4
    """Number of training matrices to find paths for, evenly spread; 1 to 16."""
    gap: float = 0.01
    """Certified gap to the optimum over all paths of the network, at which to stop, for every matrix."""
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
        require(self, "rounds", "a whole number of at least 1", self.rounds >= 1)
