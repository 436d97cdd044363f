"""What a sweep over failures found, for readers: rows of failures and links, and sentences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from teal.evaluation.plan import FailureLoss, FullestLinks, Outage, by_failure
from teal.formats.allocations import finite_only
from teal.network import Topology, TrafficMatrices
from teal.objectives import Objective

_STRANDS = 1e-9  # share of the demand, from which on a failure strands some


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

    def to_json(self) -> dict[str, Any]:
        """Findings, failures and links; numbers that JSON cannot hold become null."""
        return {
            "findings": self.findings(),
            "failures": [finite_only(dataclasses.asdict(one)) for one in self.by_failure()],
            "links": [finite_only(dataclasses.asdict(one)) for one in self.links()],
        }

    def findings(self) -> list[str]:
        """Sentences: how many failures cost something, the worst, what is stranded, the fullest link, what is open."""
        ranked = self.by_failure()
        matrices = _count(len({outage.index for outage in self.outages}), "matrix", "matrices")
        if not ranked:
            return [f"No failure was tried, over {matrices}."]
        label = self.objective.rules.loss_label
        costly = [one for one in ranked if one.worst > 0 or one.stranded > _STRANDS]
        said = [
            f"{len(costly):,} of {len(ranked):,} failures certainly cost something, over {matrices}."
            if costly else f"No failure certainly costs anything, over {matrices}."
        ]  # fmt: skip
        worst = max(ranked, key=lambda one: one.worst)
        if worst.worst > 0:
            said.append(
                f"The worst is that of {worst.failure} ({worst.kind}), at {_time(worst.worst_at)}: {label} "
                f"{_percent(worst.worst)} certainly and {_percent(worst.worst_at_most)} at most."
            )
        stranding = max(ranked, key=lambda one: one.stranded)
        said.append(
            f"{stranding.failure} leaves {_percent(stranding.stranded)} of the demand without a path, on average; "
            f"{_count(sum(one.stranded > _STRANDS for one in ranked), 'failure leaves', 'failures leave')} some."
            if stranding.stranded > _STRANDS else "Every demand keeps a path under every failure."
        )  # fmt: skip
        first = self.links()[0]
        if self.objective.may_shed:
            full = int(np.count_nonzero(self.fullest.utilisation >= 1 - 1e-6))
            said.append(
                f"{_count(full, 'link is', 'links are')} full in some case: this program fills links before it leaves "
                "demand out."
            )
        else:
            under = f"when {first.failure} fails" if first.failure else "without failure"
            said.append(
                f"The fullest link is {first.link}: {_percent(first.failed_utilisation)} {under}, at "
                f"{_time(first.timestamp)} ({_percent(first.utilisation)} at most without failure)."
            )
        open_cases = sum(one.worst <= 0 < one.worst_at_most - 1e-3 for one in ranked)
        if open_cases:
            said.append(
                f"Of {_count(open_cases, 'failure', 'failures')} it is not known whether they cost anything: a smaller "
                "--gap says."
            )
        return said


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _percent(share: float) -> str:
    return f"{round(100 * share, 2) + 0.0:.2f}%"


def _time(timestamp: str) -> str:
    return timestamp.replace("T", " ")
