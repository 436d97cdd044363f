"""Evaluation protocol for the next interval: hedges allocate for unseen matrices.

For the interval of matrix t, a hedge sees only the matrices up to t - lead; its splits then carry
matrix t.  The metrics are

- max_link_utilisation: the largest link utilisation, over the optimum of matrix t;
- other objectives: the admitted splits carry matrix t, and the smallest share min(1, capacity /
  load) of a path's links arrives; the satisfied demand, over that of the optimum;
- churn: sum_d demand[d] |x_t[d] - x_(t-1)[d]|_1 / 2 / sum_d demand[d], the share of the volume that
  moves.

Matrices without demand are gaps in the measurement and are skipped.  Entry points:
:class:`NextInterval`, :func:`summarise`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.app.instance import Instance
from teal.network import AnyPaths, CandidateLists, TrafficMatrices
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.schemes.hedges import OfLastMatrix
from teal.schemes.past import Hedge, Past
from teal.solvers import pipeline
from teal.solvers.result import SolveState
from teal_next.conformal import ConformalLimit

# Certified gaps of the optimum; differences below 0.001 are not significant.
_OPTIMUM_GAP = 1e-4
_LARGE_OPTIMUM_GAP = 1e-3
# Path slots above which a network counts as large.
_LARGE_NETWORK_SLOTS = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextRow:
    """Result of one hedge in one interval.

    Attributes:
        scheme: specification of the hedge.
        topology: name of the network.
        traffic: name of the traffic.
        index: index of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        objective: name of the objective.
        optimum: largest utilisation, or satisfied demand, of optimal splits for this matrix.
        realised: largest utilisation, or satisfied demand, of the hedge's splits.
        ratio: realised over optimum.
        limit: upper limit of the ratio that is stated before the interval, and should hold with the
            target probability; infinite while too few ratios are known.  NaN except under
            max_link_utilisation.
        churn: share of the volume that changes paths; NaN in the first interval.
        solve_s: solve time of the hedge, seconds.
    """

    scheme: str
    topology: str
    traffic: str
    index: int
    timestamp: str
    objective: str
    optimum: float
    realised: float
    ratio: float
    limit: float
    churn: float
    solve_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextSummary:
    """Summary of one hedge over all intervals of a network.

    Attributes:
        scheme: specification of the hedge.
        topology: name of the network.
        traffic: name of the traffic.
        intervals: number of evaluated intervals.
        mean: mean of the ratio.
        p50, p90, p99: quantiles of the ratio, from the best to the worst: for satisfied demand,
            p90 is exceeded in 90% of the intervals.
        worst: the worst ratio.
        churn: mean churn.
        coverage: share of intervals in which the limit held; NaN without limits.
        width: mean of limit - ratio, where the limit was finite.
        solve_s: median solve time, seconds.
    """

    scheme: str
    topology: str
    traffic: str
    intervals: int
    mean: float
    p50: float
    p90: float
    p99: float
    worst: float
    churn: float
    coverage: float
    width: float
    solve_s: float


class InstalledSplits(NamedTuple):
    """Split ratios installed for an interval.

    Attributes:
        splits: (D, K) split ratios.
        paths: paths of the splits; None for the candidate paths.
    """

    splits: Tensor
    paths: AnyPaths | None

    def moved(self, previous: InstalledSplits, demand: Tensor) -> float:
        """Return the traffic in Gbit/s that changes paths since the previous interval.

        It is sum_d demand[d] |x[d] - y[d]|_1 / 2, with x these splits and y the previous ones; NaN
        if their path sets differ, unless both are segment lists.

        Args:
            previous: splits of the previous interval.
            demand: (D,) Gbit/s.
        """
        if isinstance(self.paths, CandidateLists) and isinstance(previous.paths, CandidateLists):
            shares = (self.splits.cpu().numpy(), previous.splits.cpu().numpy())
            return self.paths.moved(shares[0], previous.paths, shares[1], demand.cpu().numpy())
        # Splits over different path sets cannot be compared path by path.
        if self.paths is not previous.paths:
            return math.nan
        return float((demand * (self.splits - previous.splits).abs().sum(-1)).sum() / 2)


class NextInterval:
    """Evaluation of hedges on one network: they allocate for unseen matrices, interval by interval.

    Args:
        instance: network, traffic, paths, objective.
        hedges: hedges by name.
        lead: intervals from the newest known matrix to the allocated one.
        lookback: number of newest matrices that hedges see; 0 for all.
        level: target probability of the conformal limit of the ratio.
        observed_traffic: matrices of the same times that hedges see instead of the traffic, such as
            estimates; None for the traffic.
        watch: called with the name of each hedge before it allocates.
    """

    def __init__(
        self,
        instance: Instance,
        hedges: Mapping[str, Hedge],
        *,
        lead: int = 1,
        lookback: int = 0,
        level: float = 0.95,
        observed_traffic: TrafficMatrices | None = None,
        watch: Callable[[str], None] = lambda _: None,
    ) -> None:
        # Hedges see these matrices: the evaluated traffic, or estimates of it.
        self._watch = watch
        self._observed_traffic = instance.traffic if observed_traffic is None else observed_traffic
        self._instance = instance
        self._hedges = hedges
        self._lead = lead
        self._lookback = lookback
        # Network and paths without demand.
        self._problem_without_demand = instance.problem(np.zeros((1, instance.traffic.num_demands)))
        self._limits = {name: ConformalLimit(level) for name in hedges}
        # (matrix index, ratio) by hedge, of intervals whose ratios the limit may not use yet.
        self._pending_ratios: dict[str, deque[tuple[int, float]]] = {
            name: deque() for name in hedges
        }
        # Splits of each hedge in the previous interval, for the churn.
        self._previous_splits: dict[str, InstalledSplits] = {}
        # Warm start of the optimum.
        self._warm_start: SolveState | None = None

    def intervals(self, rows: Sequence[int], warm_up: int) -> range:
        """Return the matrix indices of all intervals of a run, including the warm-up.

        Args:
            rows: indices of consecutive matrices to allocate for.
            warm_up: number of intervals before the first of these in which hedges already allocate.
        """
        return range(max(rows[0] - warm_up, self._lead), rows[-1] + 1)

    def run(self, rows: Sequence[int], warm_up: int) -> Iterator[list[NextRow]]:
        """Yield the results of each interval: a row per hedge, or none during warm-up and for
        matrices without demand.

        Args:
            rows: indices of consecutive matrices to allocate for.
            warm_up: number of intervals before the first of these in which hedges already allocate,
                so that their state and the conformal limits are based on a past.
        """
        for matrix_index in self.intervals(rows, warm_up):
            demand = self._instance.traffic.read([matrix_index])
            interval_rows = (
                self._evaluate_interval(matrix_index, demand) if demand.sum() > 0 else []
            )
            yield interval_rows if matrix_index >= rows[0] else []

    def _past(self, matrix_index: int) -> Past:
        """Return the matrices that hedges may see when they allocate for one matrix.

        Args:
            matrix_index: index of the matrix to allocate for.
        """
        # Known matrices end before the index ``stop``; the newest one is ``lead`` intervals old.
        stop = matrix_index - self._lead + 1
        first = max(0, stop - self._lookback) if self._lookback else 0
        return Past(
            self._problem_without_demand,
            self._observed_traffic.part(first, stop),
            self._lead,
            first,
        )

    def _evaluate_interval(self, matrix_index: int, demand: FloatArray) -> list[NextRow]:
        """Let all hedges allocate for one interval, and measure their splits.

        Args:
            matrix_index: index of the matrix.
            demand: (1, D) Gbit/s of the matrix.

        Returns:
            a result for each hedge.
        """
        past = self._past(matrix_index)
        problem = self._problem_without_demand.with_demand(torch.from_numpy(demand))
        allocation_by_hedge: dict[str, tuple[InstalledSplits, float]] = {}
        # All hedges allocate before anything is computed from the matrix.
        for name, hedge in self._hedges.items():
            self._watch(name)
            begin = time.perf_counter()
            splits = hedge.allocate(past)
            seconds = time.perf_counter() - begin
            # A scheme that is no hedge may have split the demands over paths of its own.
            paths = hedge.paths if isinstance(hedge, OfLastMatrix) else None
            allocation_by_hedge[name] = (InstalledSplits(splits.to(torch.float64), paths), seconds)
        optimum = self._optimum(problem)
        return [
            self._measure_hedge(name, matrix_index, problem, optimum, *allocation_by_hedge[name])
            for name in self._hedges
        ]

    def _optimum(self, problem: Problem) -> float:
        """Return the largest utilisation, or the satisfied demand, of optimal splits for a matrix.

        The solution is the warm start of the next call.

        Args:
            problem: the matrix, B = 1.
        """
        # Path slots of the network: demands times candidate paths.
        is_large = problem.paths.leaf.size > _LARGE_NETWORK_SLOTS
        result = pipeline.solve(
            problem,
            gap=_LARGE_OPTIMUM_GAP if is_large else _OPTIMUM_GAP,
            warm_start=self._warm_start,
        )
        self._warm_start = result.state
        return realised(problem, result.splits[0])

    def _measure_hedge(
        self,
        name: str,
        matrix_index: int,
        problem: Problem,
        optimum: float,
        installed_splits: InstalledSplits,
        solve_s: float,
    ) -> NextRow:
        """Measure the splits of one hedge in one interval.

        Args:
            name: name of the hedge.
            matrix_index: index of the matrix.
            problem: the realised matrix, B = 1.
            optimum: value of optimal splits for this matrix.
            installed_splits: splits of the hedge.
            solve_s: solve time of the hedge, seconds.
        """
        instance = self._instance
        minimises_utilisation = problem.objective.name == ObjectiveName.MAX_LINK_UTILISATION
        problem_over_paths = (
            problem
            if installed_splits.paths is None
            else problem.with_paths(installed_splits.paths)
        )
        # Value of the splits under the realised matrix, and its ratio to the optimum.
        value = realised(problem_over_paths, installed_splits.splits)
        ratio = value / optimum if optimum > 0 else math.nan
        # Conformal limit of the ratio.
        limit = math.nan
        if minimises_utilisation and math.isfinite(ratio):
            # The limit may only use ratios that were measured when the hedge allocated.
            pending_ratios = self._pending_ratios[name]
            while pending_ratios and pending_ratios[0][0] <= matrix_index - self._lead:
                self._limits[name].observe(pending_ratios.popleft()[1])
            limit = self._limits[name].limit
            pending_ratios.append((matrix_index, ratio))
        # Churn since the previous interval.
        churn = math.nan
        previous = self._previous_splits.get(name)
        if previous is not None:
            churn = installed_splits.moved(previous, problem.demand[0]) / float(
                problem.demand.sum()
            )
        self._previous_splits[name] = installed_splits
        return NextRow(
            scheme=name,
            topology=instance.topology.name,
            traffic=instance.traffic.name,
            index=matrix_index,
            timestamp=str(instance.traffic.timestamps[matrix_index]),
            objective=str(problem.objective.name),
            optimum=optimum,
            realised=value,
            ratio=ratio,
            limit=limit,
            churn=churn,
            solve_s=solve_s,
        )


def realised(problem: Problem, splits: Tensor) -> float:
    """Return the metric of splits under one matrix: largest link utilisation, or satisfied demand.

    Under max_link_utilisation it is the utilisation. Under other objectives each path delivers the
    share min(1, capacity / load) on its most loaded link; the satisfied demand is the delivered
    traffic over all traffic.

    Args:
        problem: one matrix, B = 1.
        splits: (D, K) split ratios.
    """
    if problem.objective.name is ObjectiveName.MAX_LINK_UTILISATION:
        return float(problem.utilisation(splits[None]).amax())
    # Splits of live paths; overload max(1, load / capacity) of each link; and the share of a path's
    # flow that its most overloaded link delivers.
    live_splits = torch.where(problem.path_mask, splits[None], 0)
    overload_factor = problem.utilisation(live_splits).clamp(min=1)
    delivered_share = 1 / problem.ops.path_max(overload_factor)[0].clamp(min=1)
    total = float(problem.demand.sum())
    return float((problem.flows(live_splits) * delivered_share).sum()) / total if total > 0 else 1.0


def summarise(rows: Sequence[NextRow]) -> list[NextSummary]:
    """Return a summary for each network, traffic and hedge, in the order of the rows."""
    groups: dict[tuple[str, str, str], list[NextRow]] = {}
    for row in rows:
        groups.setdefault((row.topology, row.traffic, row.scheme), []).append(row)
    return [_summary(group) for group in groups.values()]


def _summary(rows: Sequence[NextRow]) -> NextSummary:
    """Return the summary of one hedge over the intervals of one network.

    Args:
        rows: results of the hedge, at least one.
    """
    # Finite ratios, whose quantiles are stated from the best to the worst.
    finite_ratios = np.array([row.ratio for row in rows])
    finite_ratios = finite_ratios[np.isfinite(finite_ratios)]
    smaller_is_better = rows[0].objective == ObjectiveName.MAX_LINK_UTILISATION.value

    def quantile(share: float) -> float:
        """Return the ratio that this share of the intervals reaches or betters; NaN without any."""
        return (
            float(np.quantile(finite_ratios, share if smaller_is_better else 1 - share))
            if len(finite_ratios)
            else math.nan
        )

    # Intervals with a finite limit.
    limits = np.array([row.limit for row in rows])
    ratios = np.array([row.ratio for row in rows])
    has_finite_limit = np.isfinite(limits) & np.isfinite(ratios)
    # NaN where a value is unknown.
    churn = np.array([row.churn for row in rows])
    return NextSummary(
        scheme=rows[0].scheme,
        topology=rows[0].topology,
        traffic=rows[0].traffic,
        intervals=len(finite_ratios),
        mean=float(finite_ratios.mean()) if len(finite_ratios) else math.nan,
        p50=quantile(0.5),
        p90=quantile(0.9),
        p99=quantile(0.99),
        worst=quantile(1.0),
        churn=float(np.nanmean(churn)) if np.isfinite(churn).any() else math.nan,
        coverage=float((ratios <= limits)[has_finite_limit].mean())
        if has_finite_limit.any()
        else math.nan,
        width=float((limits - ratios)[has_finite_limit].mean())
        if has_finite_limit.any()
        else math.nan,
        solve_s=float(np.median([row.solve_s for row in rows])),
    )
