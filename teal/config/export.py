"""Settings of `teal export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from teal.config.base import TopologyFileConfig, require
from teal.config.option import OVERWRITE
from teal.network.path_options import PathWeight


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(TopologyFileConfig):
    """Write an allocation in the form in which routers take it: SR policies, or WCMP next-hop groups.

    What could not be expressed is counted and named, and what that costs is printed.
    """

    allocation: Path
    """A .json file of teal solve --out."""
    topology: str
    """The network of the allocation, as in solve."""
    format: Literal["sr-policy", "wcmp"] = "sr-policy"
    """sr-policy: for each demand, segment lists with weights that lead exactly along its paths.  wcmp: for each node
    and target, links with weights (destination-based forwarding)."""
    igp: PathWeight = PathWeight.HOPS
    """For sr-policy: the metric of the IGP's shortest paths: hops, latency or inverse-capacity."""
    msd: int = 10
    """For sr-policy: maximum SID depth, the most segments of a list."""
    max_lists: int = 16
    """For sr-policy: most segment lists of a policy."""
    out: Path
    """Write to this .json file."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        for field in ("msd", "max_lists"):
            require(self, field, "a whole number of at least 1", getattr(self, field) >= 1)
