"""A planner's sweep: every failure of a network under every matrix, solved by PDHG.

A failure is a cable (all links between two nodes), a group of cables that share a risk, or a pair of cables.  Matrices
are taken in blocks of as many as PDHG solves together; for each failure a block is solved at once, from its state
without the failure.  Paths stay as they are: a failure strands a demand whose live paths all use failed links.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from teal.evaluation.instance import Instance
from teal.network import Topology
from teal.objectives import Objective
from teal.problem import Allocation, Figures, Problem, assess
from teal.runtime.arrays import Int64Array
from teal.solvers import pdhg

BLOCK_MATRICES = 16  # matrices


class SweepPart(NamedTuple):
    """What is solved at once: a block of matrices under one failure.

    Attributes:
        first: row of the block's first matrix.
        failure: its name; ``""`` for none.
    """

    first: int
    failure: str


class Failure(NamedTuple):
    """Links that fail together.

    Attributes:
        name: such as ``a - b``; ``""`` for no failure.
        kind: cable, group, pair, or none.
        links: their numbers.
    """

    name: str
    kind: str
    links: tuple[int, ...]


NO_FAILURE = Failure("", "none", ())


def cable_failures(topology: Topology) -> list[Failure]:
    """One failure for each cable."""
    names, ends = topology.node_names, (topology.link_source, topology.link_target)
    return [
        Failure(" - ".join(names[end[cable[0]]] for end in ends), "cable", tuple(cable)) for cable in topology.cables()
    ]


def group_failures(groups: Mapping[str, Sequence[int]]) -> list[Failure]:
    """One failure for each group of links, by its name."""
    return [Failure(name, "group", tuple(links)) for name, links in groups.items()]


def pair_failures(cables: Sequence[Failure], cost: Mapping[str, float], limit: int) -> list[Failure]:
    """Failures of two cables at once, those first whose cables cost most alone.

    Args:
        cables: the single failures.
        cost: of each, by its name; pairs are ranked by the sum.
        limit: number of pairs, at most; 0 for all.
    """
    ranked = sorted(itertools.combinations(cables, 2), key=lambda pair: -sum(cost[one.name] for one in pair))
    return [
        Failure(f"{a.name} + {b.name}", "pair", (*a.links, *b.links)) for a, b in (ranked[:limit] if limit else ranked)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outage(Figures):
    """One matrix under one failure, or under none.

    With its figures (see :class:`teal.problem.assessment.Figures`).

    Attributes:
        index: row of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        failure: name of what is down, in both directions; ``""`` for nothing.
        kind: cable, group, pair, or none.
        value_before: value without the failure, to the same gap.
        stranded: share of all demand that has no live path.
        status: feasible, or infeasible (the validator's verdict).
    """

    index: int
    timestamp: str
    failure: str
    kind: str
    value_before: float
    stranded: float
    status: str

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "index", "timestamp", "failure", "kind", "value", "satisfied_demand", "bound", "gap", "value_before",
        "stranded", "max_link_utilisation", "max_violation", "status",
    )  # fmt: skip
    """Columns of a file of rows, in this order."""


def outages(
    instance: Instance,
    rows: Int64Array,
    gap: float,
    failures: Sequence[Failure],
    done: Collection[SweepPart] = (),
) -> Iterator[tuple[SweepPart, list[Outage]]]:
    """Solve every part that is not ``done``: blocks in order, in each the failures in order.

    Args:
        instance: network, paths, traffic.
        rows: matrices.
        gap: certified gap of every solution.
        failures: what fails; NO_FAILURE may be among them.
        done: parts of an earlier run.
    """
    topology = instance.topology
    for begin in range(0, len(rows), BLOCK_MATRICES):
        block = rows[begin : begin + BLOCK_MATRICES]
        parts = [SweepPart(int(block[0]), failure.name) for failure in failures]
        if all(part in done for part in parts):
            continue
        problem = instance.problem(instance.traffic.read(block))
        before = pdhg.solve(problem, gap=gap)
        for part, failure in zip(parts, failures, strict=True):
            if part in done:
                continue
            failed, result = problem, before
            if failure.links:
                capacity = topology.with_failed_links(list(failure.links)).capacity
                failed = problem.with_capacity(torch.from_numpy(capacity))
                result = pdhg.solve(failed, gap=gap, warm_start=before if pdhg.takes_warm_start(failed) else None)
            yield part, list(_outages_of(instance, block, failed, result, before.value, failure))


def _outages_of(
    instance: Instance,
    block: Int64Array,
    problem: Problem,
    result: pdhg.PdhgResult,
    value_before: torch.Tensor,
    failure: Failure,
) -> Iterator[Outage]:
    allocation = Allocation.of_batch(result.splits, result.prices, result.solve_s, result.program_prices)
    assessment = assess(problem, allocation)
    total = problem.demand.sum(1)
    stranded = (problem.demand * ~problem.routable).sum(1) / total.clamp(min=1e-300)
    for b, index in enumerate(block.tolist()):
        yield Outage(
            index=index,
            timestamp=str(instance.traffic.timestamps[index]),
            failure=failure.name,
            kind=failure.kind,
            value_before=float(value_before[b]),
            stranded=float(stranded[b]),
            status=assessment.status[b].value,
            **vars(assessment.figures(b)),
        )


def loss(outage: Outage, objective: Objective) -> float:
    """Share of the value that the failure costs, or by which the largest utilisation rises; NaN if unknown."""
    if outage.value_before <= 0:
        return 0.0 if outage.value == outage.value_before else float("nan")
    return objective.rules.sense * (1 - outage.value / outage.value_before)


def severity(outage: Outage, objective: Objective) -> tuple[float, float]:
    """Sort key of outages, larger is worse: an unusable solution is worst, then the loss counts.

    Programs that must carry all demand leave stranded demand out, so that there it counts before the loss.
    """
    lost = loss(outage, objective)
    if math.isnan(lost):
        return math.inf, 0.0
    return (0.0 if objective.may_shed else outage.stranded), lost


@dataclasses.dataclass(frozen=True)
class FailureLoss:
    """One failure over all matrices.

    Attributes:
        failure: its name.
        kind: cable, group or pair.
        mean: mean loss.
        worst: largest loss.
        worst_at: time of the matrix with the largest loss.
        stranded: mean share of the demand that is stranded.
    """

    failure: str
    kind: str
    mean: float
    worst: float
    worst_at: str
    stranded: float


def by_failure(outages: Sequence[Outage], objective: Objective) -> list[FailureLoss]:
    """One record a failure, the worst first."""
    groups: dict[str, list[Outage]] = {}
    for outage in outages:
        if outage.failure:
            groups.setdefault(outage.failure, []).append(outage)
    failures = []
    for name, group in groups.items():
        worst = max(group, key=lambda o: severity(o, objective))
        losses = [loss(o, objective) for o in group]
        record = FailureLoss(
            failure=name,
            kind=worst.kind,
            mean=float(np.mean(losses)),
            worst=loss(worst, objective),
            worst_at=worst.timestamp,
            stranded=float(np.mean([o.stranded for o in group])),
        )
        failures.append((severity(worst, objective), record))
    return [record for _, record in sorted(failures, key=lambda item: item[0], reverse=True)]
