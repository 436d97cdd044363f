"""Failure sweep of a planner: every failure of a network under every matrix, solved by PDHG.

Failures are those of :mod:`teal.network.failures`.  Matrices are solved in blocks of
``BLOCK_MATRICES``; each failure starts from the block's state without the failure.  All failures
share the candidate paths, which contain a path for every demand that the network still connects
(:meth:`teal.app.instance.Instance.surviving`): a failure strands the demands that it disconnects.

The loss of a failure is known up to the gaps of two solutions.  With values V, and bounds B over
all paths of the network, without the failure (0) and with it (1), the loss relative to the optimum
without the failure lies between 1 - B1 / V0 and 1 - V1 / B0 (between their negatives if smaller
values are better).  Few cases have an interval that is too wide; these are solved again, to a
smaller gap or over more paths.  Under latency limits no paths are added, and bounds are those over
paths of any latency.  Under protection, and for an objective that is a sequence of programs, bounds
are those over the candidate paths.  Entry point: :func:`outages`.
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
from teal.problem import Metrics, Problem, Status, all_paths_bound, assess
from teal.problem.bounds import gap as certified_gap
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import complete
from teal.solvers import pipeline
from teal.solvers.columns import generating_columns
from teal.solvers.result import SolveResult

BLOCK_MATRICES = 16  # number of matrices that are solved together
_NEGLIGIBLE_LOSS = 1e-3  # share of the value up to which a loss counts as 0
# Largest width of a loss interval that needs no further solve, as a share of its upper end.
_MAX_RELATIVE_WIDTH = 0.1
_GAP_DIVISOR = 10.0  # divisor of the target gap for each further solve
_UTILISATION_TOLERANCE = 1e-9  # difference up to which utilisations count as equal
_MIN_GAP = 1e-5  # smallest target gap of a further solve
_MAX_ROUNDS = 12  # limit of the rounds of column generation
# Largest number of path slots (matrices times D K) for column generation; more take minutes.
_MAX_SLOTS = 4_000_000


class SweepPart(NamedTuple):
    """Unit of work of a failure sweep: a block of matrices under one failure.

    Attributes:
        first: row of the block's first matrix in the traffic.
        failure: name of the failure; ``""`` for none.
    """

    first: int
    failure: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outage(Metrics):
    """One matrix under one failure, or without failure.

    Also has the metrics of :class:`teal.problem.assessment.Metrics`.

    Attributes:
        index: row of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        failure: name of the failed element; ``""`` for none.
        kind: cable, link, node, group, pair, or none.
        bound_all_paths: bound on the value over all paths of the network; over the candidate paths
            if no other is known.
        value_before: value without the failure, to the same gap.
        bound_before: bound on the value without the failure, over all paths of the network; over
            the candidate paths if no other is known.
        stranded: share of all demand that the failure disconnects.
        status: feasible or infeasible, as the validator finds.
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
    """Columns of a file of outages, in this order."""


class LinkPeaks(NamedTuple):
    """Largest utilisation of each link over the matrices of one part of a sweep.

    Attributes:
        utilisation: (E,) load / capacity; 0 for a link that has failed.
        row: (E,) row in the traffic of the matrix that causes this utilisation.
    """

    utilisation: FloatArray
    row: Int64Array


@dataclasses.dataclass
class FullestLinks:
    """Largest utilisation of each link over all parts of a sweep so far, with failure and matrix.

    Attributes:
        utilisation: (E,) load / capacity; -1 before the first part.
        failure: (E,) name of the failure; ``""`` for none.
        index: (E,) row of the matrix in the traffic.
    """

    utilisation: FloatArray
    failure: list[str]
    index: Int64Array

    @classmethod
    def none(cls, links: int) -> FullestLinks:
        """Return the state of ``links`` links before the first part of a sweep."""
        return cls(np.full(links, -1.0), [""] * links, np.full(links, -1))

    def add(self, failure: str, peaks: Mapping[str, Sequence[float]]) -> None:
        """Update the links whose utilisation is larger under a failure.

        Args:
            failure: name of the failure; ``""`` for none.
            peaks: utilisation and row of the matrix, by the decimal index of the link.
        """
        for link, (utilisation, matrix_index) in (
            (int(name), values) for name, values in peaks.items()
        ):
            if utilisation > self.utilisation[link]:
                self.utilisation[link] = utilisation
                self.failure[link] = failure
                self.index[link] = int(matrix_index)

    def increases(self, failure: str, peaks: LinkPeaks) -> dict[str, list[float]]:
        """Return the peaks of a part that exceed those of all parts so far.

        A journal stores these links only.  Without a failure all links are returned, since the
        report lists their utilisation separately.

        Args:
            failure: name of the failure; ``""`` for none.
            peaks: largest utilisation of each link in the part.

        Returns:
            utilisation and row of the matrix, by the decimal index of the link.
        """
        # Links whose utilisation exceeds the largest one so far; all links without a failure, since
        # every utilisation exceeds -1.
        rising_links = np.flatnonzero(
            peaks.utilisation > (self.utilisation + _UTILISATION_TOLERANCE if failure else -1)
        ).tolist()
        return {
            str(link): [float(peaks.utilisation[link]), int(peaks.row[link])]
            for link in rising_links
        }


def outages(
    instance: Instance,
    rows: Int64Array,
    gap: float,
    failures: Sequence[Failure],
    finished_parts: Collection[SweepPart] = (),
) -> Iterator[tuple[SweepPart, list[Outage], LinkPeaks]]:
    """Solve every part of a sweep that is not finished yet, block by block and failure by failure.

    Args:
        instance: network, paths, traffic.
        rows: (n,) rows of the matrices in the traffic.
        gap: target gap of every solution.
        failures: failures to solve; may contain NO_FAILURE.
        finished_parts: parts of an earlier run, which are skipped.

    Yields:
        the part, its outages (one for each matrix), and the largest utilisation of each link.
    """
    topology = instance.topology
    for begin in range(0, len(rows), BLOCK_MATRICES):
        block = rows[begin : begin + BLOCK_MATRICES]
        parts = [SweepPart(int(block[0]), failure.name) for failure in failures]
        if all(part in finished_parts for part in parts):
            continue
        problem = instance.problem(instance.traffic.read(block))
        # Solve without failure.  Under latency limits no paths are added: they may be too long.
        before = _SolvedBlock.of(
            problem, pipeline.solve(problem, gap=gap), may_add_paths=instance.max_latency is None
        )
        # Add paths to all matrices until the target gap holds over all paths of the network.
        before = before.refined(torch.arange(len(block), device=problem.demand.device), gap)
        # Solve each failure of the block.
        for part, failure in zip(parts, failures, strict=True):
            if part in finished_parts:
                continue
            if not failure.links:
                yield part, *_make_outages(instance, block, before, before, failure)
                continue
            # Solve with the failure, from the state without it.
            capacity = topology.with_failed_links(list(failure.links)).capacity
            failed_problem = problem.with_capacity(torch.from_numpy(capacity))
            result = pipeline.solve(failed_problem, gap=gap, warm_start=before.result)
            after = _SolvedBlock.of(failed_problem, result, may_add_paths=before.may_add_paths)
            # Refinements of ``before`` are not kept: every failure starts from the same state, so
            # that results do not depend on the parts of an earlier run.
            yield (
                part,
                *_make_outages(
                    instance, block, *_refine_until_decided(before, after, gap), failure
                ),
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _SolvedBlock:
    """Solutions of a block of B matrices under one failure, with bounds over all paths.

    Attributes:
        problem: the block, over the candidate paths.
        result: solutions over the candidate paths.
        bound: (B,) bound over all paths of the network if known, else over the candidate paths.
        may_add_paths: whether solutions may use other paths; false under latency limits.
        extended_solutions: solutions of some matrices over more paths, in the order of the solves;
            each has the indices of the matrices, their problem, and its result. Later solutions
            replace earlier ones.
    """

    problem: Problem
    result: SolveResult
    bound: torch.Tensor
    may_add_paths: bool
    extended_solutions: tuple[tuple[torch.Tensor, Problem, SolveResult], ...] = ()

    @classmethod
    def of(cls, problem: Problem, result: SolveResult, *, may_add_paths: bool) -> _SolvedBlock:
        """Return a block with a result, and the bound over all paths at the prices of the result.

        Sequences of programs and side conditions keep the bound over the candidate paths.
        """
        if problem.objective.rules.is_sequence or problem.conditions:
            return cls(problem, result, result.bound, may_add_paths)
        # Bound over all paths at the dual prices; adding 0.0 turns -0.0 into 0.0.
        bound = all_paths_bound(problem, result.prices) + 0.0
        return cls(problem, result, bound, may_add_paths)

    @property
    def value(self) -> torch.Tensor:
        """Values (B,) of the latest solution of each matrix."""
        value = self.result.value.clone()
        for matrix_indices, _, result in self.extended_solutions:
            value[matrix_indices] = result.value
        return value

    def refined(self, matrix_indices: torch.Tensor, target: float) -> _SolvedBlock:
        """Return the block with some matrices solved to a smaller gap.

        They are solved over more paths if the candidate paths cause the gap, else from their last
        state.

        Args:
            matrix_indices: indices of the matrices.
            target: target gap to the bound over all paths.
        """
        # Paths are missing if the gap to the bound over all paths is more than twice the gap to the
        # bound over the candidate paths.
        gap = certified_gap(self.problem, self.value, self.bound)
        lacks_paths = (gap > 2 * self.result.gap) & self.may_add_paths
        # Over more paths where paths are missing; else over the candidate paths, where their own
        # gap is too wide.
        return self._over_more_paths(
            matrix_indices[(lacks_paths & (gap > target))[matrix_indices]], target
        )._to_gap(
            matrix_indices[(~lacks_paths & (self.result.gap > target))[matrix_indices]], target
        )

    def _to_gap(self, matrix_indices: torch.Tensor, target: float) -> _SolvedBlock:
        """Return the block with some matrices solved to a smaller gap over the candidate paths.

        Each solve starts from the last state of its matrices.

        Args:
            matrix_indices: indices of the matrices.
            target: target gap.
        """
        if not len(matrix_indices):
            return self
        subproblem = _select_rows(self.problem, matrix_indices)
        result = pipeline.solve(
            subproblem, gap=target, warm_start=self.result.state.rows(matrix_indices)
        )
        refined_block = _SolvedBlock.of(subproblem, result, may_add_paths=self.may_add_paths)
        block_with_bound = self._with_bound(matrix_indices, refined_block.bound)
        return dataclasses.replace(
            block_with_bound, result=self.result.replaced(matrix_indices, refined_block.result)
        )

    def _over_more_paths(self, matrix_indices: torch.Tensor, target: float) -> _SolvedBlock:
        """Return the block with some matrices solved by column generation over all paths.

        The block is unchanged if these matrices are too large for column generation.

        Args:
            matrix_indices: indices of the matrices.
            target: target gap to the bound over all paths.
        """
        # Path slots of these matrices: their number times D K (``leaf`` is (D, K)).
        if (
            not len(matrix_indices)
            or len(matrix_indices) * self.problem.paths.leaf.size > _MAX_SLOTS
        ):
            return self
        # Start from the paths of the latest column generation, whose problem has them.
        known_paths = (
            self.extended_solutions[-1][1].paths if self.extended_solutions else self.problem.paths
        )
        subproblem = _select_rows(self.problem.with_paths(known_paths), matrix_indices)
        generation_result = complete(
            generating_columns(subproblem, target=target, max_rounds=_MAX_ROUNDS)
        )
        new_solution = (
            matrix_indices,
            subproblem.with_paths(generation_result.paths),
            generation_result.result,
        )
        return dataclasses.replace(
            self._with_bound(matrix_indices, generation_result.bound_all_paths),
            extended_solutions=(*self.extended_solutions, new_solution),
        )

    def _with_bound(self, matrix_indices: torch.Tensor, bound: torch.Tensor) -> _SolvedBlock:
        """Return the block with the tighter one of the known and the new bound of some matrices.

        Args:
            matrix_indices: (n,) indices of the matrices.
            bound: (n,) new bounds.
        """
        tighter_of = torch.minimum if self.problem.objective.rules.sense > 0 else torch.maximum
        return dataclasses.replace(
            self,
            bound=self.bound.index_copy(
                0, matrix_indices, tighter_of(self.bound[matrix_indices], bound)
            ),
        )


def _select_rows(problem: Problem, matrix_indices: torch.Tensor) -> Problem:
    """Return the problem of the matrices at the indices ``matrix_indices``."""
    return dataclasses.replace(
        problem, demand=problem.demand[matrix_indices], capacity=problem.capacity[matrix_indices]
    )


def _refine_until_decided(
    before: _SolvedBlock, after: _SolvedBlock, gap: float
) -> tuple[_SolvedBlock, _SolvedBlock]:
    """Refine both solutions of a block until the loss of every matrix is known well enough.

    Args:
        before: solutions without the failure.
        after: solutions with the failure.
        gap: gap of both; each round divides the target by ``_GAP_DIVISOR``, down to ``_MIN_GAP``.
    """
    target = gap
    while target > _MIN_GAP and len(undecided_matrices := _undecided_matrices(before, after)):
        target = max(target / _GAP_DIVISOR, _MIN_GAP)
        before = before.refined(undecided_matrices, target)
        after = after.refined(undecided_matrices, target)
    return before, after


def _undecided_matrices(before: _SolvedBlock, after: _SolvedBlock) -> torch.Tensor:
    """Return the indices of the matrices whose loss interval is too wide.

    An interval is too wide if its upper end is above 0.1%, and it is infinite or wider than 0.1%
    and than a tenth of this end.  Sequences of programs have no such matrices.

    Args:
        before: solutions without the failure.
        after: solutions with the failure.
    """
    if before.problem.objective.rules.is_sequence:
        return torch.zeros(0, dtype=torch.int64)
    sense = before.problem.objective.rules.sense
    low, high = loss_interval(before.value, before.bound, after.value, after.bound, sense)
    # An unknown end of an interval is NaN: negated comparisons are true for it.
    is_wide = (
        ~(high - low <= torch.clamp(_MAX_RELATIVE_WIDTH * high, min=_NEGLIGIBLE_LOSS))
        | high.isinf()
    )
    return torch.nonzero(~(high <= _NEGLIGIBLE_LOSS) & is_wide & (before.value > 0))[:, 0]


def loss_interval(
    value_before: torch.Tensor,
    bound_before: torch.Tensor,
    value: torch.Tensor,
    bound: torch.Tensor,
    sense: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest possible loss (B,) of a failure.

    Losses are relative to the optimum without the failure; NaN if undefined:

        sense * (1 - bound / value_before),   sense * (1 - value / bound_before)

    Args:
        value_before, bound_before: (B,) value and bound without the failure.
        value, bound: (B,) value and bound with the failure.
        sense: 1 for an objective to maximise, -1 for one to minimise.
    """
    return sense * (1 - bound / value_before), sense * (1 - value / bound_before)


def _make_outages(
    instance: Instance,
    block: Int64Array,
    before: _SolvedBlock,
    after: _SolvedBlock,
    failure: Failure,
) -> tuple[list[Outage], LinkPeaks]:
    """Return the outage of each matrix under one failure, and the largest utilisation of each link.

    Args:
        instance: network and traffic.
        block: (B,) rows of the matrices in the traffic.
        before: solutions without the failure.
        after: solutions with the failure.
        failure: the failure.
    """
    # Metrics and status of each matrix of the block, and utilisation (B, E): solutions over more
    # paths come later, and replace those over the candidate paths.
    all_rows = torch.arange(len(block))
    metrics_by_row: dict[int, tuple[Metrics, Status]] = {}
    utilisation = np.zeros((len(block), instance.topology.num_links))
    for block_rows, problem, result in (
        (all_rows, after.problem, after.result),
        *after.extended_solutions,
    ):
        assessment = assess(problem, result)
        utilisation[block_rows.cpu().numpy()] = np.nan_to_num(assessment.utilisation.cpu().numpy())
        for b, row in enumerate(block_rows.tolist()):
            metrics_by_row[row] = assessment.metrics(b), assessment.status[b]
    # One outage for each matrix.
    problem = after.problem
    # (B,) share of the demand without a live path; the divisor is never 0.
    stranded = (problem.demand * ~problem.routable).sum(1) / problem.demand.sum(1).clamp(min=1e-300)
    value_before = before.value
    block_outages = [
        Outage(
            index=index,
            timestamp=str(instance.traffic.timestamps[index]),
            failure=failure.name,
            kind=failure.kind,
            bound_all_paths=float(after.bound[b]),
            value_before=float(value_before[b]),
            bound_before=float(before.bound[b]),
            stranded=float(stranded[b]),
            status=metrics_by_row[b][1].value,
            **vars(metrics_by_row[b][0]),
        )
        for b, index in enumerate(block.tolist())
    ]
    return block_outages, LinkPeaks(utilisation.max(0), block[utilisation.argmax(0)])


def loss(outage: Outage, objective: Objective) -> float:
    """Return the certain loss of a failure under one matrix.

    It is the share of the value that is certainly lost, or by which utilisation or cost certainly
    rise; negative if the value certainly improves, 0 if the sign is unknown, and NaN if nothing is
    known.

    Args:
        outage: matrix under the failure.
        objective: objective of the values.
    """
    low, high = loss_limits(outage, objective)
    return math.nan if math.isnan(low + high) else max(low, min(high, 0.0))


def loss_limits(outage: Outage, objective: Objective) -> tuple[float, float]:
    """Return the smallest and the largest possible loss of a failure under one matrix.

    Losses are relative to the optimum without the failure; NaN if nothing is known.

    Args:
        outage: matrix under the failure.
        objective: objective of the values.
    """
    # Without a positive value no relative loss is defined; equal values are no loss.
    if outage.value_before <= 0 or outage.bound_before <= 0:
        known_loss = 0.0 if outage.value == outage.value_before else float("nan")
        return known_loss, known_loss
    sense = objective.rules.sense
    low = sense * (1 - outage.bound_all_paths / outage.value_before)
    return low, sense * (1 - outage.value / outage.bound_before)


def severity(outage: Outage, objective: Objective) -> tuple[float, float]:
    """Return the sort key of an outage; a larger key is worse, and an unknown loss is worst.

    If all demand must be carried, stranded demand is not part of the loss: its share comes first in
    the key, then the certain loss.  Otherwise only the certain loss counts.
    """
    certain_loss = loss(outage, objective)
    if math.isnan(certain_loss):
        return math.inf, 0.0
    return (0.0 if objective.may_shed else outage.stranded), certain_loss


@dataclasses.dataclass(frozen=True)
class FailureLoss:
    """Loss of one failure over all matrices.

    Attributes:
        failure: name of the failure.
        kind: cable, link, node, group or pair.
        mean: mean certain loss of the matrices.
        worst: certain loss of the worst matrix.
        worst_at_most: largest possible loss of the worst matrix.
        worst_at: time of the worst matrix, ISO 8601.
        stranded: mean share of the demand that the failure disconnects.
    """

    failure: str
    kind: str
    mean: float
    worst: float
    worst_at_most: float
    worst_at: str
    stranded: float


def by_failure(outages: Sequence[Outage], objective: Objective) -> list[FailureLoss]:
    """Return the loss of each failure over all matrices, the worst failure first.

    Args:
        outages: every matrix under every failure; those without a failure are ignored.
        objective: objective of the values.
    """
    # Outages of each failure, by its name.
    outages_by_name: dict[str, list[Outage]] = {}
    for outage in outages:
        if outage.failure:
            outages_by_name.setdefault(outage.failure, []).append(outage)
    # Losses of each failure, with the sort key of its worst matrix.
    keyed_losses = []
    for name, failure_outages in outages_by_name.items():
        worst = max(failure_outages, key=lambda o: severity(o, objective))
        losses = [loss(o, objective) for o in failure_outages]
        failure_loss = FailureLoss(
            failure=name,
            kind=worst.kind,
            mean=float(np.mean(losses)),
            worst=loss(worst, objective),
            worst_at_most=loss_limits(worst, objective)[1],
            worst_at=worst.timestamp,
            stranded=float(np.mean([o.stranded for o in failure_outages])),
        )
        keyed_losses.append((severity(worst, objective), failure_loss))
    return [
        failure_loss
        for _, failure_loss in sorted(keyed_losses, key=lambda item: item[0], reverse=True)
    ]


@dataclasses.dataclass(frozen=True)
class PlannedLink:
    """Largest utilisation of one link over all failures and matrices.

    Attributes:
        link: name of the link.
        capacity: Gbit/s.
        utilisation: largest utilisation without failure.
        failed_utilisation: largest utilisation over all failures.
        failure: failure with the largest utilisation; ``""`` for none.
        timestamp: time of the matrix with the largest utilisation.
    """

    link: str
    capacity: float
    utilisation: float
    failed_utilisation: float
    failure: str
    timestamp: str


@dataclasses.dataclass(frozen=True, eq=False)
class PlanReport:
    """Result of `teal plan`: outages, and the largest utilisation of each link.

    Attributes:
        topology: the network.
        traffic: its traffic matrices.
        objective: objective of the values.
        outages: every matrix under every failure, and without a failure.
        normal: largest utilisation of each link without failure.
        fullest: largest utilisation of each link over all failures.
    """

    topology: Topology
    traffic: TrafficMatrices
    objective: Objective
    outages: tuple[Outage, ...]
    normal: FullestLinks
    fullest: FullestLinks

    def by_failure(self) -> list[FailureLoss]:
        """Return the loss of each failure over all matrices, the worst failure first."""
        return by_failure(self.outages, self.objective)

    def links(self) -> list[PlannedLink]:
        """Return the largest utilisation of each link with and without failures, fullest first."""
        # Before the first part of a sweep, utilisations and matrix indices are -1.
        planned_links = [
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
        return sorted(planned_links, key=lambda row: -row.failed_utilisation)
