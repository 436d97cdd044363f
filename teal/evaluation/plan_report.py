"""What a sweep over failures found: rows of failures and links."""

from __future__ import annotations

import dataclasses

from teal.evaluation.plan import FailureLoss, FullestLinks, Outage, by_failure
from teal.network import Topology, TrafficMatrices
from teal.objectives import Objective


@dataclasses.dataclass(frozen=True)
class PlannedLink:
    """One link over all failures and matrices, as the solutions load it.

    Attributes:
        link: its name.
        capacity: Gbit/s.
        utilisation: largest without failure.
        failed_utilisation: largest of all.
        failure: under which that is reached; ``""`` for none.
        timestamp: of the matrix with which it is reached.
    """

    link: str
    capacity: float
    utilisation: float
    failed_utilisation: float
    failure: str
    timestamp: str


@dataclasses.dataclass(frozen=True, eq=False)
class PlanReport:
    """The result of `teal plan`.

    Attributes:
        topology: the network.
        traffic: its matrices.
        objective: that values are of.
        outages: every failure under every matrix, and every matrix without one.
        normal: the largest utilisation of links without failure.
        fullest: the largest utilisation of links over everything.
    """

    topology: Topology
    traffic: TrafficMatrices
    objective: Objective
    outages: tuple[Outage, ...]
    normal: FullestLinks
    fullest: FullestLinks

    def by_failure(self) -> list[FailureLoss]:
        """A record for each failure, the worst first."""
        return by_failure(self.outages, self.objective)

    def links(self) -> list[PlannedLink]:
        """A record for each link, the fullest first."""
        rows = [
            PlannedLink(
                name, float(self.topology.capacity[e]), max(0.0, float(self.normal.utilisation[e])),
                max(0.0, float(self.fullest.utilisation[e])), self.fullest.failure[e],
                "" if self.fullest.index[e] < 0 else str(self.traffic.timestamps[self.fullest.index[e]]),
            )
            for e, name in enumerate(self.topology.link_names())
        ]  # fmt: skip
        return sorted(rows, key=lambda row: -row.failed_utilisation)
