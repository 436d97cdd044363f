"""Settings of `teal topology`."""

from __future__ import annotations

import dataclasses

from teal.config.base import TopologyFileConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyListConfig:
    """List the networks that can be used by name, of the package topohub and those that come with Teal."""

    match: str = ""
    """Only names that contain this text, such as sndlib or geant."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopologyConfig(TopologyFileConfig):
    """Describe a network: nodes, links, capacities, and what was assumed when it was read."""

    topology: str
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4."""
    json: bool = False
    """Print one JSON object instead of text."""
