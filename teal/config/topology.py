"""Settings of `teal topology`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyListConfig:
    """List the networks that can be used by name, of the package topohub and those that come with Teal."""

    match: str = ""
    """Only names that contain this text, such as sndlib or geant."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyConfig:
    """Describe a network: nodes, links, capacities, and what was assumed when it was read."""

    topology: str
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4."""
    default_capacity: float | None = None
    """Capacity of links whose file gives none, Gbit/s."""
    attributes: str = ""
    """Names of the attributes of links in a .json or .graphml file, where they are others than capacity (Gbit/s) and
    latency (ms): capacity=bandwidth,latency=delay,capacity_unit=Mbit/s."""
