"""A planner's sweep: every single cable of a network down, under every matrix, all through the first-order engine.

Matrices go in blocks of as many as the engine has lanes; for each cable a block is solved at once, from where it ended
without the failure.  Paths stay as they are: a demand whose candidate paths all lead over a cable is stranded by it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from teal.allocation import Allocation
from teal.assessment import assess
from teal.instance import Instance
from teal.network.traffic import Rows
from teal.problem import Problem
from teal.solvers import pdhg

BLOCK = 16


class Part(NamedTuple):
    """What is solved at once: a block, by its first row, with one cable down, by its number; 0 for none."""

    first: int
    cable: int


@dataclasses.dataclass(frozen=True)
class Outage:
    """One matrix with one cable down, or, with no name, none.

    Attributes:
        index: row of the matrix in the traffic; timestamp: its time, ISO 8601.
        a, b: the nodes between which all links are down, both directions; "" where nothing is.
        value: the objective; satisfied_demand: share of all demand that is carried.
        bound, gap: certified.
        value_before: without the failure, the same gap certified.
        stranded: share of all demand that has no candidate path left.
        max_link_utilisation: largest load / capacity.
        status: what the validator says.
    """

    index: int
    timestamp: str
    a: str
    b: str
    value: float
    satisfied_demand: float
    bound: float
    gap: float
    value_before: float
    stranded: float
    max_link_utilisation: float
    status: str


def outages(
    instance: Instance, rows: Rows, gap: float, done: Collection[Part] = ()
) -> Iterator[tuple[Part, list[Outage]]]:
    """What comes of each part that is not ``done``: a block of matrices with one cable down, or none, first."""
    topology = instance.topology
    cables: list[list[int]] = [[], *topology.cables()]
    for begin in range(0, len(rows), BLOCK):
        block = rows[begin : begin + BLOCK]
        parts = [Part(int(block[0]), number) for number in range(len(cables))]
        if all(part in done for part in parts):
            continue
        problem = instance.problem(instance.traffic.read(block))
        before = pdhg.solve(problem, gap=gap)
        for part, cable in zip(parts, cables, strict=True):
            if part in done:
                continue
            if not cable:
                yield part, list(_measured(instance, block, problem, before, before.value, ("", "")))
                continue
            failed = problem.with_capacity(torch.from_numpy(topology.with_failed_links(cable).capacity))
            result = pdhg.solve(failed, gap=gap, warm_start=before)
            ends = tuple(topology.node_names[end[cable[0]]] for end in (topology.link_source, topology.link_target))
            yield part, list(_measured(instance, block, failed, result, before.value, (ends[0], ends[1])))


def _measured(
    instance: Instance,
    block: Rows,
    problem: Problem,
    result: pdhg.PdhgResult,
    before: torch.Tensor,
    ends: tuple[str, str],
) -> Iterator[Outage]:
    measured = assess(problem, Allocation.of_batch(result.splits, result.prices, result.solve_s))
    total = problem.demand.sum(1)
    stranded = (problem.demand * ~problem.routable).sum(1) / total.clamp(min=1e-300)
    for b, index in enumerate(block.tolist()):
        yield Outage(
            index=index,
            timestamp=str(instance.traffic.timestamps[index]),
            a=ends[0],
            b=ends[1],
            value=float(measured.value[b]),
            satisfied_demand=float(measured.satisfied_demand[b]),
            bound=float(measured.bound[b]),
            gap=float(measured.gap[b]),
            value_before=float(before[b]),
            stranded=float(stranded[b]),
            max_link_utilisation=float(measured.max_link_utilisation[b]),
            status=measured.status[b].value,
        )


def loss(outage: Outage, *, higher_is_better: bool) -> float:
    """Share of the value that the failure costs, or by which the largest utilisation rises; NaN if unknown."""
    if outage.value_before <= 0:
        return 0.0 if outage.value == outage.value_before else float("nan")
    change = outage.value / outage.value_before - 1
    return -change if higher_is_better else change


def severity(outage: Outage, higher_is_better: bool) -> tuple[float, float]:
    """What outages are sorted by: an answer that cannot be used is worst, then what is lost.

    Programs that must carry all demand leave out what is stranded, so there it counts before the loss.
    """
    lost = loss(outage, higher_is_better=higher_is_better)
    if math.isnan(lost):
        return math.inf, 0.0
    return (lost, 0.0) if higher_is_better else (outage.stranded, lost)


@dataclasses.dataclass(frozen=True)
class CableLoss:
    """One cable over all matrices: mean and worst loss, when it is worst, and the mean share stranded."""

    a: str
    b: str
    mean: float
    worst: float
    worst_at: str
    stranded: float


def by_cable(found: Sequence[Outage], *, higher_is_better: bool) -> list[CableLoss]:
    """The cables, the worst first."""
    groups: dict[tuple[str, str], list[Outage]] = {}
    for outage in found:
        if outage.a:
            groups.setdefault((outage.a, outage.b), []).append(outage)
    cables = []
    for (a, b), own in groups.items():
        worst = max(own, key=lambda o: severity(o, higher_is_better))
        lost = [loss(o, higher_is_better=higher_is_better) for o in own]
        stranded = float(np.mean([o.stranded for o in own]))
        at = loss(worst, higher_is_better=higher_is_better), worst.timestamp
        cables.append((severity(worst, higher_is_better), CableLoss(a, b, float(np.mean(lost)), *at, stranded)))
    return [cable for _, cable in sorted(cables, key=lambda item: item[0], reverse=True)]
