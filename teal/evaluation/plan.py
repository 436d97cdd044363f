"""A planner's sweep: every single cable of a network down, under every matrix, solved by PDHG.

Matrices are taken in blocks of as many as PDHG solves together; for each cable a block is solved at once, from its
state without the failure.  Paths stay as they are: a failure strands a demand whose live paths all use the cable.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from teal.evaluation.instance import Instance
from teal.problem import Allocation, Figures, Problem, assess
from teal.runtime.arrays import Int64Array
from teal.solvers import pdhg

BLOCK = 16  # matrices


class SweepPart(NamedTuple):
    """What is solved at once: a block of matrices with one cable down.

    Attributes:
        first: row of the block's first matrix.
        cable: number of the cable from 1; 0 for none.
    """

    first: int
    cable: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outage(Figures):
    """One matrix with one cable down, or with none.

    With its figures (see :class:`teal.problem.assessment.Figures`).

    Attributes:
        index: row of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        a: one end of the cable, whose links are down in both directions; ``""`` for no cable.
        b: its other end.
        value_before: value without the failure, to the same gap.
        stranded: share of all demand that has no live path.
        status: feasible, or infeasible (the validator's verdict).
    """

    index: int
    timestamp: str
    a: str
    b: str
    value_before: float
    stranded: float
    status: str

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "index", "timestamp", "a", "b", "value", "satisfied_demand", "bound", "gap", "value_before", "stranded",
        "max_link_utilisation", "max_violation", "status",
    )  # fmt: skip
    """Columns of a file of rows, in this order."""


def outages(
    instance: Instance, rows: Int64Array, gap: float, done: Collection[SweepPart] = ()
) -> Iterator[tuple[SweepPart, list[Outage]]]:
    """Solve every part that is not ``done``: blocks in order, each without a failure first, then with each cable down.

    Args:
        instance: network, paths, traffic.
        rows: matrices.
        gap: certified gap of every solution.
        done: parts of an earlier run.
    """
    topology = instance.topology
    cables: list[list[int]] = [[], *topology.cables()]
    for begin in range(0, len(rows), BLOCK):
        block = rows[begin : begin + BLOCK]
        parts = [SweepPart(int(block[0]), number) for number in range(len(cables))]
        if all(part in done for part in parts):
            continue
        problem = instance.problem(instance.traffic.read(block))
        before = pdhg.solve(problem, gap=gap)
        for part, cable in zip(parts, cables, strict=True):
            if part in done:
                continue
            if not cable:
                yield part, list(_outages_of(instance, block, problem, before, before.value, ("", "")))
                continue
            failed = problem.with_capacity(torch.from_numpy(topology.with_failed_links(cable).capacity))
            result = pdhg.solve(failed, gap=gap, warm_start=before)
            ends = tuple(topology.node_names[end[cable[0]]] for end in (topology.link_source, topology.link_target))
            yield part, list(_outages_of(instance, block, failed, result, before.value, (ends[0], ends[1])))


def _outages_of(
    instance: Instance,
    block: Int64Array,
    problem: Problem,
    result: pdhg.PdhgResult,
    value_before: torch.Tensor,
    ends: tuple[str, str],
) -> Iterator[Outage]:
    assessment = assess(problem, Allocation.of_batch(result.splits, result.prices, result.solve_s))
    total = problem.demand.sum(1)
    stranded = (problem.demand * ~problem.routable).sum(1) / total.clamp(min=1e-300)
    for b, index in enumerate(block.tolist()):
        yield Outage(
            index=index,
            timestamp=str(instance.traffic.timestamps[index]),
            a=ends[0],
            b=ends[1],
            value_before=float(value_before[b]),
            stranded=float(stranded[b]),
            status=assessment.status[b].value,
            **vars(assessment.figures(b)),
        )


def loss(outage: Outage, *, higher_is_better: bool) -> float:
    """Share of the value that the failure costs, or by which the largest utilisation rises; NaN if unknown."""
    if outage.value_before <= 0:
        return 0.0 if outage.value == outage.value_before else float("nan")
    change = outage.value / outage.value_before - 1
    return -change if higher_is_better else change


def severity(outage: Outage, higher_is_better: bool) -> tuple[float, float]:
    """Sort key of outages, larger is worse: an unusable solution is worst, then the loss counts.

    Programs that must carry all demand leave stranded demand out, so that there it counts before the loss.
    """
    lost = loss(outage, higher_is_better=higher_is_better)
    if math.isnan(lost):
        return math.inf, 0.0
    return (lost, 0.0) if higher_is_better else (outage.stranded, lost)


@dataclasses.dataclass(frozen=True)
class CableLoss:
    """One cable over all matrices.

    Attributes:
        a: one end.
        b: the other end.
        mean: mean loss.
        worst: largest loss.
        worst_at: time of the matrix with the largest loss.
        stranded: mean share of the demand that is stranded.
    """

    a: str
    b: str
    mean: float
    worst: float
    worst_at: str
    stranded: float


def by_cable(outages: Sequence[Outage], *, higher_is_better: bool) -> list[CableLoss]:
    """One record a cable, the worst first."""
    groups: dict[tuple[str, str], list[Outage]] = {}
    for outage in outages:
        if outage.a:
            groups.setdefault((outage.a, outage.b), []).append(outage)
    cables = []
    for (a, b), group in groups.items():
        worst = max(group, key=lambda o: severity(o, higher_is_better))
        losses = [loss(o, higher_is_better=higher_is_better) for o in group]
        cable = CableLoss(
            a=a,
            b=b,
            mean=float(np.mean(losses)),
            worst=loss(worst, higher_is_better=higher_is_better),
            worst_at=worst.timestamp,
            stranded=float(np.mean([o.stranded for o in group])),
        )
        cables.append((severity(worst, higher_is_better), cable))
    return [cable for _, cable in sorted(cables, key=lambda item: item[0], reverse=True)]
