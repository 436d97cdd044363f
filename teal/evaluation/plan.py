"""A planner's sweep: every failure of a network under every matrix, solved by PDHG.

Failures are those of :mod:`teal.evaluation.failures`.  Matrices
are taken in blocks of as many as PDHG solves together; for each failure a block is solved at once, from its state
without the failure.  Paths stay as they are: a failure strands a demand whose live paths all use failed links.

What a failure costs is known up to the gaps of two solutions.  With values V and bounds B before (0) and after (1),
the loss against the optimum before, relative to it, lies between 1 - B1 / V0 and 1 - V1 / B0 (where less is better,
between their negatives).  Cases whose interval leaves open whether anything is lost, or is wide for what it says, are
solved further: they are few.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from teal.evaluation.failures import Failure
from teal.evaluation.instance import Instance
from teal.objectives import Objective
from teal.problem import Allocation, Figures, Problem, assess
from teal.runtime.arrays import FloatArray, Int64Array
from teal.solvers import pdhg

BLOCK_MATRICES = 16  # matrices
_NOTHING = 1e-3  # share of the value, up to which a loss counts as nothing
_NARROW = 0.1  # width of an interval, as a share of its high end, from which on it is narrow enough
_FINER = 10.0  # by which the gap is divided where an interval is too wide
_SAME_UTILISATION = 1e-9  # difference of utilisations that is none
_LEAST_GAP = 1e-5  # certified, below which nothing is solved further


class SweepPart(NamedTuple):
    """What is solved at once: a block of matrices under one failure.

    Attributes:
        first: row of the block's first matrix.
        failure: its name; ``""`` for none.
    """

    first: int
    failure: str


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
        bound_before: bound on the value without the failure.
        stranded: share of all demand that has no live path.
        status: feasible, or infeasible (the validator's verdict).
    """

    index: int
    timestamp: str
    failure: str
    kind: str
    value_before: float
    bound_before: float
    stranded: float
    status: str

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "index", "timestamp", "failure", "kind", "value", "satisfied_demand", "bound", "gap", "value_before",
        "bound_before", "stranded", "max_link_utilisation", "max_violation", "status",
    )  # fmt: skip
    """Columns of a file of rows, in this order."""


class LinkPeaks(NamedTuple):
    """The largest utilisation of each link over the matrices of a part.

    Attributes:
        utilisation: (E,) load / capacity; 0 for a link that has failed.
        row: (E,) row of the matrix in the traffic.
    """

    utilisation: FloatArray
    row: Int64Array


@dataclasses.dataclass
class FullestLinks:
    """The largest utilisation of each link over all parts so far, and when it is reached.

    Attributes:
        utilisation: (E,) load / capacity; -1 where no part has been taken.
        failure: (E) name of the failure; ``""`` for none.
        index: (E,) row of the matrix.
    """

    utilisation: FloatArray
    failure: list[str]
    index: Int64Array

    @classmethod
    def none(cls, links: int) -> FullestLinks:
        """Before the first part."""
        return cls(np.full(links, -1.0), [""] * links, np.full(links, -1))

    def add(self, failure: str, peaks: Mapping[str, Sequence[float]]) -> None:
        """Take over what is larger: number of a link to its utilisation and the row of the matrix."""
        for link, (utilisation, index) in ((int(name), values) for name, values in peaks.items()):
            if utilisation > self.utilisation[link]:
                self.utilisation[link], self.failure[link], self.index[link] = utilisation, failure, int(index)

    def larger(self, failure: str, peaks: LinkPeaks) -> dict[str, list[float]]:
        """What :meth:`add` would take over, so that a journal need not hold every link of every part.

        Without failure it is every link, since those peaks are reported by themselves too.
        """
        rises = np.flatnonzero(peaks.utilisation > (self.utilisation + _SAME_UTILISATION if failure else -1)).tolist()
        return {str(link): [float(peaks.utilisation[link]), int(peaks.row[link])] for link in rises}


def outages(
    instance: Instance,
    rows: Int64Array,
    gap: float,
    failures: Sequence[Failure],
    done: Collection[SweepPart] = (),
) -> Iterator[tuple[SweepPart, list[Outage], LinkPeaks]]:
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
            if not failure.links:
                yield part, *_outages_of(instance, block, problem, before, before, failure)
                continue
            capacity = topology.with_failed_links(list(failure.links)).capacity
            failed = problem.with_capacity(torch.from_numpy(capacity))
            finer, result = before, pdhg.solve(failed, gap=gap, warm_start=before)
            if not failed.objective.rules.is_sequence:
                finer, result = _decided(problem, failed, before, result, gap)
            # Other failures start from ``before``, so that no result depends on which parts were done earlier.
            yield part, *_outages_of(instance, block, failed, result, finer, failure)


def _decided(
    problem: Problem, failed: Problem, before: pdhg.PdhgResult, after: pdhg.PdhgResult, gap: float
) -> tuple[pdhg.PdhgResult, pdhg.PdhgResult]:
    """Both solutions, further solved for the matrices whose loss is not known well enough."""
    sense = problem.objective.rules.sense
    while gap > _LEAST_GAP:
        low, high = loss_interval(before.value, before.bound, after.value, after.bound, sense)
        is_open = (high > _NOTHING) & (high - low > torch.clamp(_NARROW * high, min=_NOTHING))
        if not is_open.any():
            break
        gap = max(gap / _FINER, _LEAST_GAP)
        rows = torch.nonzero(is_open)[:, 0]
        improved = []
        for one, result in ((problem, before), (failed, after)):
            wide = rows[result.gap[rows] > gap]
            if len(wide):
                part = dataclasses.replace(one, demand=one.demand[wide], capacity=one.capacity[wide])
                finer = pdhg.solve(part, gap=gap, warm_start=result.state.rows(wide))
                result = result.replaced(wide, finer)
            improved.append(result)
        before, after = improved
    return before, after


def loss_interval(
    value_before: torch.Tensor, bound_before: torch.Tensor, value: torch.Tensor, bound: torch.Tensor, sense: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) least and largest share of the optimum before that a failure may cost; NaN where there is none."""
    return sense * (1 - bound / value_before), sense * (1 - value / bound_before)


def _outages_of(
    instance: Instance,
    block: Int64Array,
    problem: Problem,
    result: pdhg.PdhgResult,
    before: pdhg.PdhgResult,
    failure: Failure,
) -> tuple[list[Outage], LinkPeaks]:
    allocation = Allocation.of_batch(result.splits, result.prices, result.solve_s, result.program_prices)
    assessment = assess(problem, allocation)
    total = problem.demand.sum(1)
    stranded = (problem.demand * ~problem.routable).sum(1) / total.clamp(min=1e-300)
    results = [
        Outage(
            index=index,
            timestamp=str(instance.traffic.timestamps[index]),
            failure=failure.name,
            kind=failure.kind,
            value_before=float(before.value[b]),
            bound_before=float(before.bound[b]),
            stranded=float(stranded[b]),
            status=assessment.status[b].value,
            **vars(assessment.figures(b)),
        )
        for b, index in enumerate(block.tolist())
    ]
    utilisation = np.nan_to_num(assessment.utilisation.cpu().numpy())
    return results, LinkPeaks(utilisation.max(0), block[utilisation.argmax(0)])


def loss(outage: Outage, objective: Objective) -> float:
    """Share of the value that the failure certainly costs, or by which the largest utilisation certainly rises.

    Below 0 where the value certainly rises (the utilisation falls), NaN if nothing is known.
    """
    low, high = loss_limits(outage, objective)
    return math.nan if math.isnan(low + high) else max(low, min(high, 0.0))


def loss_limits(outage: Outage, objective: Objective) -> tuple[float, float]:
    """Least and largest share of the optimum before that the failure may cost; NaN if nothing is known."""
    if outage.value_before <= 0 or outage.bound_before <= 0:
        lost = 0.0 if outage.value == outage.value_before else float("nan")
        return lost, lost
    sense = objective.rules.sense
    return sense * (1 - outage.bound / outage.value_before), sense * (1 - outage.value / outage.bound_before)


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
        mean: mean of the certain loss.
        worst: largest certain loss.
        worst_at_most: largest loss that there may be in the same case.
        worst_at: time of the matrix with the largest certain loss.
        stranded: mean share of the demand that is stranded.
    """

    failure: str
    kind: str
    mean: float
    worst: float
    worst_at_most: float
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
            worst_at_most=loss_limits(worst, objective)[1],
            worst_at=worst.timestamp,
            stranded=float(np.mean([o.stranded for o in group])),
        )
        failures.append((severity(worst, objective), record))
    return [record for _, record in sorted(failures, key=lambda item: item[0], reverse=True)]
