"""Rows of an evaluation: the metrics of one scheme on one case."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from teal.app.instance import Instance
from teal.objectives import Objective
from teal.problem import Allocation, Metrics, Problem, Status
from teal.problem.assessment import LatencyMetrics, latency_metrics
from teal.problem.bounds import gap
from teal.problem.part_certificates import PartCertificates, records
from teal.runtime.arrays import FloatArray
from teal_study.evaluation.cases import Case
from teal_study.evaluation.comparison import (
    SchemeResult,
    best_bounds,
    fairness_of,
    gaps_of_sequence,
)
from teal_study.evaluation.fairness_curve import least_share

# Scheme whose optima are the reference of all others.
REFERENCE_SCHEME = "lp-all"
# Prefix of the note of cases on which a scheme was not run, since it takes too long.
LEFT_OUT = "left out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Metrics):
    """Metrics of one scheme on one case.

    Value, bound, gap, satisfied demand, utilisation and violation are those of
    :class:`teal.problem.assessment.Metrics`.  Under the online protocol, value and satisfied demand
    are means over the interval.

    Attributes:
        scheme: specification of the scheme.
        topology: name of the network.
        traffic: name of the traffic.
        protocol: kind of change of matrix or network (:mod:`teal_study.evaluation.cases`).
        level: strength of the change, as it was written.
        draw: index of the random draw.
        index: index of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        objective: name of the objective.
        gap_known: gap by the best bound of all schemes for this matrix; for a scheme with its own
            paths, by the bound over all paths of the network.
        build_s: seconds to build a model, as the scheme reports.
        solve_s: seconds to solve it, as the scheme reports.
        parallel_s: seconds that both would take if every independent subproblem had its own
            processor; NaN if there are no subproblems.
        status: optimal, feasible, infeasible (the validator's verdict), time_limit or failed.
        note: reason for which the scheme failed; ``""`` if it did not.
        classes: under priority, demand, value, bound and gap of each class, as JSON; else ``""``.
        levels: under max_min, the levels that hold most flow, each with its number of demands and
            its growth (:mod:`teal.problem.fair_levels`), as JSON; else ``""``.
        fairness: under max_min, geometric mean over the demands of min(f / g, g / f), with f the
            rate and g that of the scheme with the smallest gap (an optimal one, if there is one);
            NaN without such a scheme.
        latency_mean: mean latency over the carried volume, ms; this and the next two are NaN in a
            network without latencies.
        latency_99: smallest latency that 99% of the volume do not exceed, ms.
        largest_stretch: largest ratio of the latency of a used path to that of the demand's fastest
            path.
        cut_demand: share of the demand that the splits of a scheme's model carry when they are only
            scaled down to fit the capacities; NaN for a scheme without a model.
        cut_gap: certified gap of the cut splits, by the prices of the model; under priority that of
            the weighted sum, whereas ``gap`` is the widest of a class.
        proved_gap: with --prove, the gap that a proof in integers shows (:mod:`teal.proofs`), the
            widest one if the objective has several programs; NaN without a proof, and for the
            online protocol.
        least_share: smallest served share of a demand above 0 that has a live path; NaN for the
            online protocol.
        wall_s: seconds of the scheme by the clock of the evaluation; NaN if it failed, and in files
            of versions that did not measure it.
    """

    scheme: str
    topology: str
    traffic: str
    protocol: str
    level: str
    draw: int
    index: int
    timestamp: str
    objective: str
    gap_known: float
    build_s: float
    solve_s: float
    parallel_s: float
    status: str
    note: str = ""
    classes: str = ""
    levels: str = ""
    fairness: float = float("nan")
    latency_mean: float = float("nan")
    latency_99: float = float("nan")
    largest_stretch: float = float("nan")
    wall_s: float = float("nan")
    cut_demand: float = float("nan")
    cut_gap: float = float("nan")
    proved_gap: float = float("nan")
    least_share: float = float("nan")

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "scheme",
        "topology",
        "traffic",
        "protocol",
        "level",
        "draw",
        "index",
        "timestamp",
        "objective",
        "value",
        "satisfied_demand",
        "bound",
        "gap",
        "gap_known",
        "max_link_utilisation",
        "max_violation",
        "build_s",
        "solve_s",
        "parallel_s",
        "status",
        "note",
        "classes",
        "levels",
        "fairness",
        "latency_mean",
        "latency_99",
        "largest_stretch",
        "wall_s",
        "cut_demand",
        "cut_gap",
        "proved_gap",
        "least_share",
    )
    """Columns of a file of rows, in this order."""

    @property
    def usable(self) -> bool:
        """Whether the scheme has an allocation that may be installed."""
        return Status(self.status).usable

    @property
    def was_run(self) -> bool:
        """Whether the scheme was run on this case; False once it has exceeded the time limit."""
        return not self.note.startswith(LEFT_OUT)

    def counted(self, measure: str) -> float:
        """Return the value of a metric that a mean uses for this row; NaN if the mean omits the
        row.

        A failed case counts as if nothing were carried: satisfied demand and value 0 (infinite for
        a value that is minimised), and gap 1, so that a scheme gains nothing by failing on hard
        cases.  A case on which the scheme was not run is omitted.

        Args:
            measure: name of a numeric column.
        """
        if self.usable:
            return float(getattr(self, measure))
        if not self.was_run:
            return math.nan
        failed_value = 0.0 if Objective(self.objective).rules.sense > 0 else math.inf
        return {"satisfied_demand": 0.0, "value": failed_value, "gap": 1.0, "gap_known": 1.0}.get(
            measure, math.nan
        )

    @property
    def total_s(self) -> float:
        """Seconds of the scheme by the clock of the evaluation; if unmeasured, the seconds to build
        and to solve that it reports.
        """
        return self.build_s + self.solve_s if math.isnan(self.wall_s) else self.wall_s


@dataclasses.dataclass(frozen=True, eq=False)
class CaseResult:
    """Results of all schemes on one case.

    Attributes:
        key: key of the case.
        rows: a row for each scheme; two with the online protocol.
        utilisation: (E,) load / capacity by scheme with a usable allocation; NaN for a failed link.
    """

    key: str
    rows: tuple[Row, ...]
    utilisation: Mapping[str, FloatArray]


def make_rows(
    instance: Instance, case: Case, problem: Problem, results: Mapping[str, SchemeResult]
) -> list[Row]:
    """Return a row for each scheme, whose ``gap_known`` is by the best bound of all schemes.

    Args:
        instance: network and traffic.
        case: the case.
        problem: its problem, B = 1.
        results: result of each scheme, by name.
    """
    best_bound, all_paths_bound = best_bounds(problem, results)
    sequence_gaps = gaps_of_sequence(problem, results)
    fairness = fairness_of(problem, results)
    rows = []
    for name, result in results.items():
        # Gap by the best bound over the paths that the scheme uses.
        bound = best_bound if result.allocation.paths is None else all_paths_bound
        gap_known = sequence_gaps.get(name, float(gap(problem, result.assessment.value, bound)[0]))
        rows.append(
            _row(instance, case, problem, name, result, gap_known, fairness.get(name, math.nan))
        )
    return rows


def _row(
    instance: Instance,
    case: Case,
    problem: Problem,
    name: str,
    result: SchemeResult,
    gap_known: float,
    fairness: float,
) -> Row:
    """Build the row of a scheme.

    Args:
        instance: network and traffic.
        case: the case.
        problem: its problem, B = 1.
        name: name of the scheme.
        result: its allocation and assessment.
        gap_known: gap by the best bound of all schemes.
        fairness: fairness against the best scheme; NaN if it is not defined.
    """
    (parallel_s,) = result.allocation.parallel_s or (None,)
    part_certificates = result.assessment.part_certificates
    latency = _latency(problem, result)
    model_alone = result.model_alone
    return Row(
        scheme=name,
        topology=instance.topology.name,
        traffic=instance.traffic.name,
        protocol=case.protocol.value,
        level=case.level,
        draw=case.draw,
        index=case.index,
        timestamp=str(instance.traffic.timestamps[case.index]),
        objective=str(problem.objective.spec),
        gap_known=gap_known,
        build_s=result.allocation.build_s[0],
        solve_s=result.allocation.solve_s[0],
        parallel_s=math.nan if parallel_s is None else parallel_s,
        status=result.assessment.status[0].value,
        note=result.note,
        classes=_json_of(part_certificates, "classes"),
        fairness=fairness,
        levels=_json_of(part_certificates, "levels"),
        latency_mean=latency.mean,
        latency_99=latency.tail,
        largest_stretch=latency.stretch,
        wall_s=result.wall_s,
        cut_demand=math.nan if model_alone is None else float(model_alone.satisfied_demand[0]),
        cut_gap=math.nan if model_alone is None else float(model_alone.gap[0]),
        proved_gap=result.proved_gap,
        least_share=_least_share(problem, result),
        **vars(result.assessment.metrics(0)),
    )


def _json_of(part_certificates: PartCertificates | None, parts_key: str) -> str:
    """Return the values, bounds and gaps of priority classes, or of max_min levels, as JSON; "" if
    the assessment has none of this kind.

    Args:
        part_certificates: record of each class or level of the assessment; None for none.
        parts_key: ``classes`` or ``levels``.
    """
    return (
        ""
        if part_certificates is None or part_certificates.parts_key != parts_key
        else json.dumps(records(part_certificates, 0))
    )


def _latency(problem: Problem, result: SchemeResult) -> LatencyMetrics:
    """Return the latencies of an allocation, ms, and its largest stretch; NaN if the allocation is
    unusable, or in a network without latencies.

    Args:
        problem: problem of the case, B = 1.
        result: the allocation and its assessment.
    """
    if not result.assessment.status[0].usable or not problem.topology.latency.any():
        return LatencyMetrics(float("nan"), float("nan"), float("nan"))
    return latency_metrics(_over_its_paths(problem, result.allocation), result.allocation.splits[0])


def _least_share(problem: Problem, result: SchemeResult) -> float:
    """Return the smallest served share of a demand under an allocation; NaN if it is unusable.

    Args:
        problem: problem of the case, B = 1.
        result: the allocation and its assessment.
    """
    if not result.assessment.status[0].usable:
        return math.nan
    return least_share(_over_its_paths(problem, result.allocation), result.allocation.splits)


def _over_its_paths(problem: Problem, allocation: Allocation) -> Problem:
    """Return the problem over the paths of an allocation: its own, or else those of the problem."""
    return problem if allocation.paths is None else problem.with_paths(allocation.paths)


def gap_of(problem: Problem, value: float, bound: float) -> float:
    """Return the relative gap between a value and a bound: (bound - value) / bound for a maximum,
    (value - bound) / value for a minimum.

    Args:
        problem: supplies the objective.
        value: value of an allocation.
        bound: dual bound on the optimum.
    """
    return float(gap(problem, *(torch.tensor([x], dtype=torch.float64) for x in (value, bound))))


def failed_allocation(problem: Problem) -> Allocation:
    """Return an allocation without flow for B matrices, with status failed and unknown (NaN)
    times.
    """
    splits = torch.zeros_like(problem.path_value.expand(problem.batch, -1, -1))
    unknown_times = (float("nan"),) * problem.batch
    return Allocation(splits, None, (Status.FAILED,) * problem.batch, unknown_times, unknown_times)


def link_utilisation(problem: Problem, allocation: Allocation) -> FloatArray:
    """Return load / capacity (E,) of the links under an allocation; NaN for a failed link.

    Args:
        problem: B = 1.
        allocation: B = 1, over the paths of the problem or its own.
    """
    utilisation = _over_its_paths(problem, allocation).utilisation(
        allocation.splits.to(problem.demand)
    )[0]
    return torch.where(problem.capacity[0] > 0, utilisation, torch.nan).cpu().numpy()


def usable_utilisations(
    problem: Problem, results: Mapping[str, SchemeResult]
) -> dict[str, FloatArray]:
    """Return load / capacity (E,) of the links for each scheme that has a usable allocation.

    Args:
        problem: problem of the case, B = 1.
        results: result of each scheme, by name.
    """
    usable_allocations = {
        name: result.allocation
        for name, result in results.items()
        if result.assessment.status[0].usable
    }
    return {
        name: link_utilisation(problem, allocation)
        for name, allocation in usable_allocations.items()
    }


def weighted_mean(shares: Sequence[float], values: Sequence[Tensor]) -> float:
    """Return the mean of a value over an interval: the sum of share times value over its parts.

    Args:
        shares: share of the interval of each part.
        values: (1,) value of each part.
    """
    return sum(share * float(value[0]) for share, value in zip(shares, values, strict=True))


def shares_of_optimum(rows: Sequence[Row]) -> dict[int, float]:
    """Return value / optimum of each row, by the row's identity (``id``).

    The optimum of a case is the value of LP-all's optimal row; without one the result is NaN.  A
    failed case counts with value 0, or infinity for a value that is minimised.
    """
    # Optimum of each case: the best value of the optimal rows of LP-all, with any options.
    optimum_by_case: dict[tuple[object, ...], float] = {}
    for row in rows:
        if row.scheme.split(":")[0] == REFERENCE_SCHEME and row.status == Status.OPTIMAL.value:
            better_of = max if Objective(row.objective).rules.sense > 0 else min
            optimum_by_case[_case_key(row)] = better_of(
                row.value, optimum_by_case.get(_case_key(row), row.value)
            )
    optima = [optimum_by_case.get(_case_key(row), 0.0) for row in rows]
    return {
        id(row): row.counted("value") / case_optimum if case_optimum > 0 else math.nan
        for row, case_optimum in zip(rows, optima, strict=True)
    }


def _case_key(row: Row) -> tuple[object, ...]:
    """Return the key that rows of one case share: network, traffic, protocol, level, draw and
    matrix.
    """
    return row.topology, row.traffic, row.protocol, row.level, row.draw, row.index


class _Measured(Protocol):
    """Rows, and other records, of one scheme on one network."""

    @property
    def topology(self) -> str: ...
    @property
    def traffic(self) -> str: ...
    @property
    def scheme(self) -> str: ...


_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)
_AnyMeasured = TypeVar("_AnyMeasured", bound=_Measured)


def by_network(rows: Iterable[_AnyMeasured]) -> dict[tuple[str, str], list[_AnyMeasured]]:
    """Return the rows of each network with its traffic, by (topology, traffic)."""
    return _grouped(rows, lambda row: (row.topology, row.traffic))


def by_scheme(rows: Iterable[_AnyMeasured]) -> dict[str, list[_AnyMeasured]]:
    """Return the rows of each scheme, by its name."""
    return _grouped(rows, lambda row: row.scheme)


def by_level(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each level of each protocol, by (protocol, level)."""
    return _grouped(rows, lambda row: (row.protocol, row.level))


def _grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Return the items of each key, by key, in order of appearance.

    Args:
        items: items to group.
        key: function from an item to its key.
    """
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
