"""Settings of `teal audit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import InstanceConfig, require, require_linear, seconds
from teal.config.option import OVERWRITE


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig(InstanceConfig):
    """Search for the demands under which a scheme loses most against the optimum.

    The demands stay near the matrices that are given.  Each loss that is found is proven: the scheme's allocation and a
    better one exist.  Ctrl-C ends the search with the worst so far.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "search": ("scheme", "model", "box", "up_to", "hose", "measure", "time_budget", "seed"),
        "output": ("out", "json", "overwrite"),
        "for experts": ("epsilon", "device"),
    }

    scheme: tuple[str, ...]
    """The scheme, with its options, as in evaluate; repeat for the mean of several, such as one with several seeds."""
    model: Path | None = None
    """Folder of a trained model, for schemes that take one."""
    box: float = 0.5
    """Demands lie between (1 - BOX) times their least and (1 + BOX) times their largest rate in the matrices."""
    up_to: float = 0.0
    """Demands lie between 0 and this share of the mean capacity of a link, whatever the matrices; 0: see --box."""
    hose: bool = False
    """Also keep what each node sends and receives in total within the largest sums of the matrices."""
    measure: Literal["optimum", "capacity"] = "optimum"
    """What a loss is a share of: the optimum, or the sum of all capacities."""
    time_budget: str = "1m"
    """Length of the search: 90s, 10m, 1h."""
    seed: int = 0
    """Seed of the search."""
    out: Path
    """Folder for worst.csv (a traffic matrix, as evaluate and solve read it), losses.csv, losses.png, manifest.json."""
    json: bool = False
    """Print one JSON object instead of text."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require_linear(self, "for an audit, which measures flow")
        require(self, "box", "a number of at least 0", self.box >= 0)
        require(self, "scheme", "at least one", bool(self.scheme))
        require(self, "up_to", "a number of at least 0", self.up_to >= 0)
        require(self, "seed", "a whole number of at least 0", self.seed >= 0)
        seconds(self.time_budget, "--time-budget")
