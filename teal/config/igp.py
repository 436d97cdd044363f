"""Settings that commands about shortest-path routing share."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class IgpConfig:
    """How routers find shortest paths."""

    metric: Literal["file", "hops", "latency", "inverse-capacity"] = "file"
    """IGP metrics of the links: those of the topology's file (1 each where it has none), or hops (1 each), latency
    (units of 0.01 ms), inverse-capacity (10,000 Gbit/s over the capacity); rounded to whole numbers of at least 1."""
    set_metric: tuple[str, ...] = ()
    """Another metric for the links between two nodes, A,B=20, or from A to B alone, A>B=20; repeat for more."""
    ucmp: bool = False
    """Next hops of equal cost share traffic in proportion to their capacities (UCMP), not evenly (ECMP)."""
    fail: tuple[str, ...] = ()
    """A link A,B (node names; both directions) that is out of service throughout; repeat for more."""
