"""Settings of `teal simulate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import NetworkConfig, require
from teal.config.growth import GrowthConfig
from teal.config.igp import IgpConfig
from teal.config.option import OVERWRITE


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateConfig(GrowthConfig, IgpConfig, NetworkConfig):
    """Loads of today's routing: shortest paths of the IGP with ECMP, and segment lists if any are installed.

    For every matrix, without failure and under every failure that is asked for; nothing is optimised.  With
    --growth-per-year, the month in which each link is full if the routing stays.  With --out, a page with a map, and
    tables.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "routing": ("metric", "set_metric", "ucmp", "policies"),
        "failures": ("fail", "failures", "groups", "repair"),
        "matrices": ("index", "limit"),
        "growth": ("growth", "growth_per_year", "horizon", "max_utilisation"),
        "output": ("worst", "out", "counters", "counter_error", "json", "overwrite"),
    }

    policies: Path | None = None
    """Installed segment lists, a .json file written by teal solve --routing segments --out."""
    failures: tuple[Literal["cables", "links", "nodes", "pairs"], ...] = ()
    """What fails: cables (all links between two nodes, both directions), links (each pair of directions of one link
    alone, so that a parallel one is left), nodes, or pairs of cables; repeat for more kinds."""
    groups: Path | None = None
    """Groups of cables that fail together: a .csv (group,source,target), .json or .graphml file."""
    repair: bool = False
    """For each failure also the loads while backup paths are in use (TI-LFA fast reroute), before the other routers
    have converged, and the traffic that may run into a micro-loop meanwhile."""
    index: int = -1
    """Number of one matrix, counted from 0; -1 for all."""
    limit: int = 0
    """Number of matrices, at most, the first ones in time order; 0 for all."""
    worst: int = 10
    """Number of failures and links to list."""
    out: Path | None = None
    """Folder for simulate.html, links.csv, failures.csv, forecast.csv and manifest.json."""
    counters: Path | None = None
    """Write what the byte counters of all interfaces would read, to this .npz file, which teal estimate and teal check
    take: to try them, or to know what to expect."""
    counter_error: float = 0.01
    """Standard deviation of these counters, as a share of each."""
    json: bool = False
    """Print one JSON object instead of text."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        self.check_growth()
        require(self, "index", "a whole number of at least -1", self.index >= -1)
        require(self, "limit", "a whole number of at least 0", self.limit >= 0)
        require(self, "worst", "a whole number of at least 1", self.worst >= 1)
        require(self, "counter_error", "a number in [0, 1)", 0 <= self.counter_error < 1)
        needs = bool(self.failures or self.groups)
        require(self, "repair", "together with --failures or --groups", needs or not self.repair)
