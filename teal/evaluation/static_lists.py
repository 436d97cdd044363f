"""Segment lists for several matrices and failures: `teal solve --routing segments --matrices 24 --survive cables`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from teal.config import SolveConfig
from teal.evaluation.failures import cable_failures
from teal.formats.allocations import finite_only
from teal.network import Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.runtime.interruptible import Deadline
from teal.solvers.segments.static_lists import StaticLists, static_lists

_REPORT_EVERY_S = 2.0  # seconds between two progress messages


@dataclasses.dataclass(frozen=True, eq=False)
class StaticReport:
    """What was found.

    Attributes:
        topology: the network, with the metrics in force.
        lists: shares, value and bound.
        worst: name of the failure under which the fullest link is fullest; "" for none.
        failures: number of failures.
        reached: whether the target gap was reached.
        stopped_by: what ended the search.
    """

    topology: Topology
    lists: StaticLists
    worst: str
    failures: int
    reached: bool
    stopped_by: str

    @property
    def policies(self) -> SegmentPolicies:
        """The lists of demands that do not go straight to their targets."""
        return self.lists.policies

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        one = self.lists
        return finite_only({
            "value": one.value, "bound": one.bound, "gap": one.gap, "straight": one.straight, "worst": self.worst,
            "without_failure": float(one.utilisation[:, 0].max()), "matrices": len(one.utilisation),
            "failures": self.failures, "policies": len(self.policies.lists), "rounds": one.rounds,
            "solve_s": one.solve_s, "reached": self.reached,
        })  # fmt: skip

    def describe(self) -> str:
        """The same in a few lines."""
        one = self.lists
        where = f" when {self.worst} fails" if self.worst else " without failure"
        return "\n".join([
            f"max_link_utilisation over {len(one.utilisation)} matrices, {self.failures} failures and none: "
            f"{one.value:.6g}, bound {one.bound:.6g}, gap {100 * one.gap:.3f}%",
            f"fullest{where}; without failure {one.utilisation[:, 0].max():.6g}; shortest paths alone "
            f"{one.straight:.6g}",
            f"{len(self.policies.lists):,} demands have a policy; {one.rounds} rounds, {one.solve_s:.3g} s",
        ])  # fmt: skip


def is_static(config: SolveConfig) -> bool:
    """Whether the lists have to serve more than one scenario."""
    return config.matrices != 1 or config.survive != "none"


def solve_static(
    config: SolveConfig, dag: EcmpDag, traffic: TrafficMatrices, deadline: Deadline, notify: Callable[[str], None]
) -> StaticReport:
    """The lists.

    Args:
        config: the settings.
        dag: shortest paths without failure.
        traffic: the matrices.
        deadline: after which to stop with the best so far.
        notify: called with the progress.
    """
    last, count = time.perf_counter(), traffic.num_matrices
    rows = np.array([config.index])
    if config.matrices != 1:
        rows = np.unique(np.linspace(0, count - 1, min(count, config.matrices or count)).astype(int))
    live = dag.topology.capacity > 0
    failures = [one for one in cable_failures(dag.topology) if live[list(one.links)].any()]
    failures = failures if config.survive == "cables" else []
    dags = [dag, *(dag.without(list(one.links)) for one in failures)]

    def report(number: int, value: float, bound: float) -> None:
        nonlocal last
        if time.perf_counter() - last > _REPORT_EVERY_S:
            last = time.perf_counter()
            notify(f"round {number}: {value:.6g}, bound {bound:.6g}")

    pairs = np.asarray(traffic.pairs, dtype=np.int64)
    found = static_lists(dags, pairs, traffic.read(rows), gap=config.gap, deadline=deadline, report=report)
    worst = int(found.utilisation.max(0).argmax())
    return StaticReport(
        dag.topology, found, failures[worst - 1].name if worst else "", len(failures), found.reached,
        "gap" if found.reached else "deadline" if config.deadline else "rounds",
    )  # fmt: skip
