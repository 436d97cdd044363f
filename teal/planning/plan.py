"""A planner's sweep: every failure of a network under every matrix, solved by PDHG.

Failures are those of :mod:`teal.network.failures`.  Matrices
are taken in blocks of as many as PDHG solves together; for each failure a block is solved at once,
from its state without the failure.  All failures have the same candidate paths, among which is one
for every demand that the network still connects (:meth:`teal.app.instance.Instance.surviving`): a
failure strands the demands that it cuts off.

What a failure costs is known up to the gaps of two solutions.  With values V, and bounds B over all
paths of the network, before (0) and after (1), the loss against the optimum before, relative to it,
lies between 1 - B1 / V0 and 1 - V1 / B0 (where less is better, between their negatives).  Cases
whose interval leaves open whether anything is lost, or is wide for what it says, are solved
further: to a smaller gap, or with the paths that they miss.  They are few.  Under limits of latency
no paths are added, and bounds are those over paths of any latency.  Under protection, and for an
objective that is a sequence of programs, bounds are those over the candidate paths.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from teal.app.instance import Instance
from teal.network import Topology, TrafficMatrices
from teal.network.failures import Failure
from teal.objectives import Objective
from teal.problem import Figures, Problem, Status, all_paths_bound, assess
from teal.problem.bounds import gap as certified_gap
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import complete
from teal.solvers import pdhg
from teal.solvers.columns import improving

# Matrices that are solved together.
BLOCK_MATRICES = 16
# Share of the value up to which a loss counts as nothing.
_NOTHING = 1e-3
# Width of an interval, as a share of its upper end, from which on it is narrow enough.
_NARROW = 0.1
# Divisor of the gap where an interval is too wide.
_FINER = 10.0
# Difference up to which utilisations count as equal.
_SAME_UTILISATION = 1e-9
# Certified gap below which nothing is solved further.
_MIN_GAP = 1e-5
# Maximum rounds of adding paths that a case misses.
_MAX_ROUNDS = 12
# path slots of the matrices that are given further paths together: larger ones take minutes
_MAX_SLOTS = 4_000_000


class SweepPart(NamedTuple):
    """A part that is solved at once: a block of matrices under one failure.

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
        bound_all_paths: bound over all paths of the network; over the candidate paths where no
            other is known.
        value_before: value without the failure, to the same gap.
        bound_before: bound on the value without the failure, over all paths of the network
            likewise.
        stranded: share of all demand that the failure cuts off: the network has no path for it.
        status: feasible, or infeasible (the validator's verdict).
    """

    index: int
    timestamp: str
    failure: str
    kind: str
    bound_all_paths: float
    value_before: float
    bound_before: float
    stranded: float
    status: str

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "index",
        "timestamp",
        "failure",
        "kind",
        "value",
        "satisfied_demand",
        "bound",
        "gap",
        "bound_all_paths",
        "value_before",
        "bound_before",
        "stranded",
        "max_link_utilisation",
        "max_violation",
        "status",
    )
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
        """Take over what is larger: number of a link to its utilisation and the row of the
        matrix.
        """
        for link, (utilisation, index) in ((int(name), values) for name, values in peaks.items()):
            if utilisation > self.utilisation[link]:
                self.utilisation[link] = utilisation
                self.failure[link] = failure
                self.index[link] = int(index)

    def larger(self, failure: str, peaks: LinkPeaks) -> dict[str, list[float]]:
        """The entries that :meth:`add` would take over, so that a journal need not hold every link
        of every part.

        Without failure it is every link, since those peaks are reported by themselves too.
        """
        rises = np.flatnonzero(
            peaks.utilisation > (self.utilisation + _SAME_UTILISATION if failure else -1)
        ).tolist()
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
        # A path that a case misses may be longer than the limit of a class.
        before = _Solved.of(
            problem, pdhg.solve(problem, gap=gap), may_add_paths=instance.max_latency is None
        )
        before = before.finer(torch.arange(len(block), device=problem.demand.device), gap)
        for part, failure in zip(parts, failures, strict=True):
            if part in done:
                continue
            if not failure.links:
                yield part, *_outages_of(instance, block, before, before, failure)
                continue
            capacity = topology.with_failed_links(list(failure.links)).capacity
            failed = problem.with_capacity(torch.from_numpy(capacity))
            result = pdhg.solve(failed, gap=gap, warm_start=before.result)
            after = _Solved.of(failed, result, may_add_paths=before.may_add_paths)
            # Other failures start from ``before``, so that no result depends on which parts were
            # done earlier.
            yield part, *_outages_of(instance, block, *_decided(before, after, gap), failure)


@dataclasses.dataclass(frozen=True, eq=False)
class _Solved:
    """The matrices of a block, solved.

    Attributes:
        problem: the block.
        result: over its paths.
        bound: (B,) over all paths of the network, where one is known.
        may_add_paths: whether any path of the network may be used: not under limits of latency.
        wider: solutions of some matrices over further paths, with the rows that they are of; later
            ones count.
    """

    problem: Problem
    result: pdhg.PdhgResult
    bound: torch.Tensor
    may_add_paths: bool
    wider: tuple[tuple[torch.Tensor, Problem, pdhg.PdhgResult], ...] = ()

    @classmethod
    def of(cls, problem: Problem, result: pdhg.PdhgResult, *, may_add_paths: bool) -> _Solved:
        """With the bound over all paths that the prices of ``result`` prove."""
        if problem.objective.rules.is_sequence or problem.conditions:
            return cls(problem, result, result.bound, may_add_paths)
        bound = all_paths_bound(problem, result.prices) + 0.0  # 0 has no sign then
        return cls(problem, result, bound, may_add_paths)

    @property
    def value(self) -> torch.Tensor:
        """(B,) over the paths of each matrix."""
        value = self.result.value.clone()
        for rows, _, result in self.wider:
            value[rows] = result.value
        return value

    def finer(self, rows: torch.Tensor, target: float) -> _Solved:
        """Some matrices solved to a smaller gap: over more paths where some are missing, else from
        their last state.
        """
        gap = certified_gap(self.problem, self.value, self.bound)
        lacks_paths = (gap > 2 * self.result.gap) & self.may_add_paths
        return self._over_more_paths(rows[(lacks_paths & (gap > target))[rows]], target)._to_gap(
            rows[(~lacks_paths & (self.result.gap > target))[rows]], target
        )

    def _to_gap(self, rows: torch.Tensor, target: float) -> _Solved:
        if not len(rows):
            return self
        part = _rows(self.problem, rows)
        result = pdhg.solve(part, gap=target, warm_start=self.result.state.rows(rows))
        finer = _Solved.of(part, result, may_add_paths=self.may_add_paths)
        better = self._with_bound(rows, finer.bound)
        return dataclasses.replace(better, result=self.result.replaced(rows, finer.result))

    def _over_more_paths(self, rows: torch.Tensor, target: float) -> _Solved:
        if not len(rows) or len(rows) * self.problem.paths.leaf.size > _MAX_SLOTS:
            return self
        # Paths that were found before are kept.
        known_paths = self.wider[-1][1].paths if self.wider else self.problem.paths
        part = _rows(self.problem.with_paths(known_paths), rows)
        last = complete(improving(part, target=target, max_rounds=_MAX_ROUNDS))
        wider = rows, part.with_paths(last.paths), last.result
        return dataclasses.replace(
            self._with_bound(rows, last.bound_all_paths), wider=(*self.wider, wider)
        )

    def _with_bound(self, rows: torch.Tensor, bound: torch.Tensor) -> _Solved:
        """With the better of the known bound and another one for some matrices."""
        better = torch.minimum if self.problem.objective.rules.sense > 0 else torch.maximum
        return dataclasses.replace(
            self, bound=self.bound.index_copy(0, rows, better(self.bound[rows], bound))
        )


def _rows(problem: Problem, rows: torch.Tensor) -> Problem:
    return dataclasses.replace(
        problem, demand=problem.demand[rows], capacity=problem.capacity[rows]
    )


def _decided(before: _Solved, after: _Solved, gap: float) -> tuple[_Solved, _Solved]:
    """Both solutions, further solved for the matrices whose loss is not known well enough."""
    target = gap
    while target > _MIN_GAP and len(rows := _open_rows(before, after)):
        target = max(target / _FINER, _MIN_GAP)
        before = before.finer(rows, target)
        after = after.finer(rows, target)
    return before, after


def _open_rows(before: _Solved, after: _Solved) -> torch.Tensor:
    """The matrices whose interval leaves open whether anything is lost, or is wide for what it
    says.
    """
    if before.problem.objective.rules.is_sequence:
        return torch.zeros(0, dtype=torch.int64)
    sense = before.problem.objective.rules.sense
    low, high = loss_interval(before.value, before.bound, after.value, after.bound, sense)
    is_wide = ~(high - low <= torch.clamp(_NARROW * high, min=_NOTHING)) | high.isinf()
    return torch.nonzero(~(high <= _NOTHING) & is_wide & (before.value > 0))[:, 0]


def loss_interval(
    value_before: torch.Tensor,
    bound_before: torch.Tensor,
    value: torch.Tensor,
    bound: torch.Tensor,
    sense: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) least and largest share of the optimum before that a failure may cost; NaN where there
    is none.
    """
    return sense * (1 - bound / value_before), sense * (1 - value / bound_before)


def _outages_of(
    instance: Instance, block: Int64Array, before: _Solved, after: _Solved, failure: Failure
) -> tuple[list[Outage], LinkPeaks]:
    # Measure the solutions, also those of matrices with more paths.
    everything = torch.arange(len(block))
    figures_by_case: dict[int, tuple[Figures, Status]] = {}
    utilisation = np.zeros((len(block), instance.topology.num_links))
    for rows, problem, result in ((everything, after.problem, after.result), *after.wider):
        assessment = assess(problem, result)
        utilisation[rows.cpu().numpy()] = np.nan_to_num(assessment.utilisation.cpu().numpy())
        for b, row in enumerate(rows.tolist()):
            figures_by_case[row] = assessment.figures(b), assessment.status[b]
    # One outage for each matrix.
    problem = after.problem
    stranded = (problem.demand * ~problem.routable).sum(1) / problem.demand.sum(1).clamp(min=1e-300)
    value_before = before.value
    results = [
        Outage(
            index=index,
            timestamp=str(instance.traffic.timestamps[index]),
            failure=failure.name,
            kind=failure.kind,
            bound_all_paths=float(after.bound[b]),
            value_before=float(value_before[b]),
            bound_before=float(before.bound[b]),
            stranded=float(stranded[b]),
            status=figures_by_case[b][1].value,
            **vars(figures_by_case[b][0]),
        )
        for b, index in enumerate(block.tolist())
    ]
    return results, LinkPeaks(utilisation.max(0), block[utilisation.argmax(0)])


def loss(outage: Outage, objective: Objective) -> float:
    """Share of the value that the failure certainly costs, or by which the largest utilisation
    certainly rises.

    Below 0 where the value certainly rises (the utilisation falls), NaN if nothing is known.
    """
    low, high = loss_limits(outage, objective)
    return math.nan if math.isnan(low + high) else max(low, min(high, 0.0))


def loss_limits(outage: Outage, objective: Objective) -> tuple[float, float]:
    """Least and largest share of the optimum before that the failure may cost; NaN if nothing is
    known.
    """
    if outage.value_before <= 0 or outage.bound_before <= 0:
        lost = 0.0 if outage.value == outage.value_before else float("nan")
        return lost, lost
    sense = objective.rules.sense
    low = sense * (1 - outage.bound_all_paths / outage.value_before)
    return low, sense * (1 - outage.value / outage.bound_before)


def severity(outage: Outage, objective: Objective) -> tuple[float, float]:
    """Sort key of outages, larger is worse: an unusable solution is worst, then the loss counts.

    Programs that must carry all demand leave stranded demand out, so that there it counts before
    the loss.
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


@dataclasses.dataclass(frozen=True)
class PlannedLink:
    """One link over all failures and matrices, as the solutions load it.

    Attributes:
        link: its name.
        capacity: Gbit/s.
        utilisation: largest without failure.
        failed_utilisation: largest of all.
        failure: under which that is reached; ``""`` for none.
        timestamp: time of the matrix with which it is reached.
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
        objective: objective that values belong to.
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
                name,
                float(self.topology.capacity[e]),
                max(0.0, float(self.normal.utilisation[e])),
                max(0.0, float(self.fullest.utilisation[e])),
                self.fullest.failure[e],
                ""
                if self.fullest.index[e] < 0
                else str(self.traffic.timestamps[self.fullest.index[e]]),
            )
            for e, name in enumerate(self.topology.link_names())
        ]
        return sorted(rows, key=lambda row: -row.failed_utilisation)
