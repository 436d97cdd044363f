"""The protocol of the next interval: hedges allocate for a matrix that they have not seen.

For the interval of matrix t, a hedge is given the matrices up to t - lead, and nothing else; its
splits then carry matrix t.  Measured are

- max_link_utilisation: the largest load over capacity, over the optimum of matrix t (which nobody
  knew);
- the other objectives: splits of what was admitted follow matrix t; of a path arrives the smallest
  share min(1, capacity / load) of its links; the satisfied demand, over that of the optimum;
- churn: sum_d demand[d] |x_t[d] - x_(t-1)[d]|_1 / 2 / sum_d demand[d], the share of the volume that
  moves.

Matrices without demand are gaps in the measurement: they are not evaluated.
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
from teal.solvers import pdhg
from teal_next.conformal import ConformalLimit

# Certified gaps of the optimum; differences below 0.001 mean little.
_OPTIMUM_GAP = 1e-4
_LARGE_OPTIMUM_GAP = 1e-3
_LARGE_NETWORK_SLOTS = 1_000_000  # slots of paths of a network that counts as large


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextRow:
    """One hedge in one interval.

    Attributes:
        scheme: as it was specified.
        topology: name of the network.
        traffic: name of the traffic.
        index: row of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        objective: name of the objective.
        optimum: largest utilisation, or satisfied demand, of the optimum of this matrix.
        realised: the same of the hedge.
        ratio: realised over optimum.
        limit: limit of the ratio, stated before the interval to hold with probability ``level``;
            infinite before there were enough intervals.  Only under max_link_utilisation, else NaN.
        churn: share of the volume that moved; NaN in the first interval.
        solve_s: seconds that the hedge took.
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
    """One hedge over all intervals of a network.

    Attributes:
        scheme, topology, traffic: as in :class:`NextRow`.
        intervals: number of measured intervals.
        mean: mean of the ratio.
        p50, p90, p99: its quantiles, from the best to the worst: of satisfied demand from above.
        worst: the worst ratio.
        churn: mean.
        coverage: share of intervals in which the limit held; NaN without limits.
        width: mean of limit - ratio, where the limit was finite.
        solve_s: median seconds.
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


class InForce(NamedTuple):
    """The splits that are installed for an interval.

    Attributes:
        splits: (D, K).
        paths: paths that they are over; None for the candidate paths.
    """

    splits: Tensor
    paths: AnyPaths | None

    def moved(self, before: InForce, demand: Tensor) -> float:
        """Gbit/s of demands (D,) on other paths than before; NaN between tunnels over different
        path sets.
        """
        if isinstance(self.paths, CandidateLists) and isinstance(before.paths, CandidateLists):
            shares = self.splits.cpu().numpy(), before.splits.cpu().numpy()
            return self.paths.moved(shares[0], before.paths, shares[1], demand.cpu().numpy())
        if self.paths is not before.paths:
            return math.nan
        return float((demand * (self.splits - before.splits).abs().sum(-1)).sum() / 2)


class NextInterval:
    """The protocol on one network.

    Args:
        instance: network, traffic, paths, objective.
        hedges: by name.
        lead: intervals from the newest known matrix to the one that is allocated for.
        lookback: matrices that hedges are given, the newest ones; 0 for all.
        level: probability with which the limit of the ratio is to hold.
        known: (of the same times) what hedges are given in the place of the traffic, such as
            estimates; None for it.
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
        known: TrafficMatrices | None = None,
        watch: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._watch = watch
        self._known = instance.traffic if known is None else known
        self._instance, self._hedges, self._lead, self._lookback = instance, hedges, lead, lookback
        self._network = instance.problem(np.zeros((1, instance.traffic.num_demands)))
        self._limits = {name: ConformalLimit(level) for name in hedges}
        self._ratios: dict[str, deque[tuple[int, float]]] = {name: deque() for name in hedges}
        self._before: dict[str, InForce] = {}
        self._start: pdhg.PdhgState | None = None  # of the optimum

    def intervals(self, rows: Sequence[int], warm_up: int) -> range:
        """The intervals that :meth:`run` goes through; arguments as there."""
        return range(max(rows[0] - warm_up, self._lead), rows[-1] + 1)

    def run(self, rows: Sequence[int], warm_up: int) -> Iterator[list[NextRow]]:
        """The rows of each interval, one for each hedge; none before the measured ones, and where
        there is no demand.

        Args:
            rows: consecutive matrices to allocate for.
            warm_up: intervals before the first of them in which hedges already allocate,
                unmeasured: they begin with their own past, and limits with scores.
        """
        for row in self.intervals(rows, warm_up):
            demand = self._instance.traffic.read([row])
            measured = self._interval(row, demand) if demand.sum() > 0 else []
            yield measured if row >= rows[0] else []

    def _past(self, row: int) -> Past:
        stop = row - self._lead + 1
        first = max(0, stop - self._lookback) if self._lookback else 0
        return Past(self._network, self._known.part(first, stop), self._lead, first)

    def _interval(self, row: int, demand: FloatArray) -> list[NextRow]:
        past, problem = self._past(row), self._network.with_demand(torch.from_numpy(demand))
        allocated: dict[str, tuple[InForce, float]] = {}
        for name, hedge in self._hedges.items():  # before anything is computed from the matrix
            self._watch(name)
            begin = time.perf_counter()
            splits = hedge.allocate(past)
            seconds = time.perf_counter() - begin
            paths = hedge.paths if isinstance(hedge, OfLastMatrix) else None
            allocated[name] = InForce(splits.to(torch.float64), paths), seconds
        optimum = self._optimum(problem)
        return [self._row(name, row, problem, optimum, *allocated[name]) for name in self._hedges]

    def _optimum(self, problem: Problem) -> float:
        """Largest utilisation or satisfied demand of the optimum."""
        is_large = problem.paths.leaf.size > _LARGE_NETWORK_SLOTS
        result = pdhg.solve(
            problem, gap=_LARGE_OPTIMUM_GAP if is_large else _OPTIMUM_GAP, warm_start=self._start
        )
        self._start = result.state
        return realised(problem, result.splits[0])

    def _row(
        self, name: str, row: int, problem: Problem, optimum: float, force: InForce, solve_s: float
    ) -> NextRow:
        instance, is_utilisation = (
            self._instance,
            problem.objective.name == ObjectiveName.MAX_LINK_UTILISATION,
        )
        over = problem if force.paths is None else problem.with_paths(force.paths)
        value = realised(over, force.splits)
        ratio, limit = value / optimum if optimum > 0 else math.nan, math.nan
        if is_utilisation and math.isfinite(ratio):
            # Ratios of intervals that are not measured yet when this one is allocated for count
            # later.
            waiting = self._ratios[name]
            while waiting and waiting[0][0] <= row - self._lead:
                self._limits[name].observe(waiting.popleft()[1])
            limit = self._limits[name].limit
            waiting.append((row, ratio))
        churn, before = math.nan, self._before.get(name)
        if before is not None:
            churn = force.moved(before, problem.demand[0]) / float(problem.demand.sum())
        self._before[name] = force
        return NextRow(
            scheme=name,
            topology=instance.topology.name,
            traffic=instance.traffic.name,
            index=row,
            timestamp=str(instance.traffic.timestamps[row]),
            objective=str(problem.objective.name),
            optimum=optimum,
            realised=value,
            ratio=ratio,
            limit=limit,
            churn=churn,
            solve_s=solve_s,
        )


def realised(problem: Problem, splits: Tensor) -> float:
    """Largest utilisation, or share of the demand that arrives, if splits (D, K) carry one matrix.

    Args:
        problem: B = 1.
        splits: (D, K).
    """
    if problem.objective.name is ObjectiveName.MAX_LINK_UTILISATION:
        return float(problem.utilisation(splits[None]).amax())
    admitted = torch.where(problem.path_mask, splits[None], 0)
    utilisation = problem.utilisation(admitted).clamp(min=1)
    kept = 1 / problem.ops.path_max(utilisation)[0].clamp(min=1)
    total = float(problem.demand.sum())
    return float((problem.flows(admitted) * kept).sum()) / total if total > 0 else 1.0


def summarise(rows: Sequence[NextRow]) -> list[NextSummary]:
    """A summary for each network, traffic and hedge, in the order of the rows."""
    groups: dict[tuple[str, str, str], list[NextRow]] = {}
    for row in rows:
        groups.setdefault((row.topology, row.traffic, row.scheme), []).append(row)
    return [_summary(group) for group in groups.values()]


def _summary(rows: Sequence[NextRow]) -> NextSummary:
    ratio = np.array([row.ratio for row in rows])
    ratio = ratio[np.isfinite(ratio)]
    rises = rows[0].objective == ObjectiveName.MAX_LINK_UTILISATION.value

    def quantile(share: float) -> float:
        return float(np.quantile(ratio, share if rises else 1 - share)) if len(ratio) else math.nan

    limits = np.array([row.limit for row in rows])
    ratios = np.array([row.ratio for row in rows])
    stated = np.isfinite(limits) & np.isfinite(ratios)
    churn = np.array([row.churn for row in rows])
    return NextSummary(
        scheme=rows[0].scheme,
        topology=rows[0].topology,
        traffic=rows[0].traffic,
        intervals=len(ratio),
        mean=float(ratio.mean()) if len(ratio) else math.nan,
        p50=quantile(0.5),
        p90=quantile(0.9),
        p99=quantile(0.99),
        worst=quantile(1.0),
        churn=float(np.nanmean(churn)) if np.isfinite(churn).any() else math.nan,
        coverage=float((ratios <= limits)[stated].mean()) if stated.any() else math.nan,
        width=float((limits - ratios)[stated].mean()) if stated.any() else math.nan,
        solve_s=float(np.median([row.solve_s for row in rows])),
    )
