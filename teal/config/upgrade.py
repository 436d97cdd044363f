"""Settings of `teal upgrade`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import InstanceConfig, require, seconds
from teal.config.option import GAP, OVERWRITE
from teal.errors import InputError
from teal.objectives import ObjectiveName


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeConfig(InstanceConfig):
    """What to buy: the least capacity with which all traffic fits, without failure and under each.

    In every scenario (a matrix, and what has failed) the controller chooses splits anew.  The cost is certified from
    below, over the candidate paths (--path-method survivable is best here).
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "scenarios": ("matrices", "growth", "failures", "groups"),
        "what is bought": ("max_utilisation", "cost", "modules"),
        "when to stop": ("gap", "deadline"),
        "output": ("out", "json", "overwrite"),
        "for experts": ("epsilon", "device"),
    }

    objective: ObjectiveName = ObjectiveName.MAX_LINK_UTILISATION
    """Always max_link_utilisation."""
    matrices: int = 24
    """Number of matrices, evenly spread over the traffic; 0 for all."""
    growth: float = 1.0
    """Factor of all demands: 1.4 for next year's traffic, if it grows by 40%."""
    failures: Literal["none", "cables"] = "cables"
    """none, or cables: every single cable (all links between two nodes, both directions) fails in turn."""
    groups: Path | None = None
    """Also fail groups of cables that share a risk: a .csv (group,source,target), .json or .graphml file."""
    max_utilisation: float = 1.0
    """Largest utilisation of a link in any scenario, such as 0.8."""
    cost: str = "capacity"
    """What a Gbit/s costs: capacity (1 on every cable), length (its latency in ms), or a .csv file with the columns
    source, target, cost for every cable."""
    modules: str = ""
    """Sizes that can be bought, Gbit/s, such as 100, or with what each costs, 100=1,400=3 (in units of 1 Gbit/s times
    --cost: 100=100 is the price of single Gbit/s).  Default: any amount."""
    gap: Annotated[float, GAP] = 0.01
    deadline: str = ""
    """Time after which to stop with the best so far: 30s, 5m.  Default: none."""
    out: Path | None = None
    """Folder for upgrade.html, purchases.csv, scenarios.csv, topology.json (with what is bought) and manifest.json."""
    json: bool = False
    """Print one JSON object instead of text."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        is_utilisation = self.objective == ObjectiveName.MAX_LINK_UTILISATION
        require(self, "objective", "max_link_utilisation, which is the default", is_utilisation)
        require(self, "matrices", "a whole number of at least 0", self.matrices >= 0)
        require(self, "growth", "a number above 0", self.growth > 0)
        require(self, "max_utilisation", "a number above 0", self.max_utilisation > 0)
        require(self, "protect", "nothing: failures are given by --failures", not self.protect)
        require(self, "class_shares", "no classes", not self.class_shares)
        _ = self.sizes
        if self.deadline:
            seconds(self.deadline, "--deadline")

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Gbit/s and price of each module; () for any amount.

        Raises:
            InputError: anything else, or a number that is not above 0.
        """
        sizes = []
        for part in filter(None, (part.strip() for part in self.modules.split(","))):
            size, _, price = part.partition("=")
            try:
                pair = float(size), float(price or size)
            except ValueError:
                raise InputError("--modules", "", "sizes such as 100 or 100=1,400=3", repr(part)) from None
            if not all(0 < number < float("inf") for number in pair):
                raise InputError("--modules", "", "sizes and prices above 0", repr(part))
            sizes.append(pair)
        return sizes
