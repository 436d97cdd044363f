r"""Lists that stay as they are for several matrices and failures: min over shares of the largest utilisation of all.

A scenario s is a matrix and what has failed; the IGP has converged in each, so that a list puts other fractions g_s(d,
l, e) on the links.  A list whose midpoint is cut off loses its traffic, so that a demand takes no midpoint that any of
the failures cuts off from one of its ends; a demand whose ends are cut off from each other does not count in that
scenario.  With shares w of each demand's lists that sum to 1,

    min theta   s.t.   sum_{d, l} demand_{s,d} g_s(d, l, e) w[d, l] <= theta c_e     for every scenario s and live link
    e.

Any prices y_{s,e} >= 0 prove  theta >= sum_d min over lists l of sum_{s,e} y_{s,e} demand_{s,d} g_s(d, l, e)  over
sum_{s,e} y_{s,e} c_e, and all lists with one midpoint are priced at once.  Rows and columns are generated: only the
links that are full in some scenario, and the lists that its prices ask for, are in the linear program (HiGHS).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses
from teal.problem.bounds import gap_between
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import solve_lp
from teal.solvers.result import Solution, Stop

_MAX_ROUNDS = 200
_ROWS_A_SCENARIO = 3  # links that are added of a scenario in a round
_MIN_SHARE = 1e-9  # of a demand, below which a list is not installed
_CHEAPER = 1e-9  # relative, by which a list must be cheaper to be added


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StaticLists(Solution):
    """Shares that serve all scenarios; the value is the largest utilisation of a link in any of them.

    The bound is that over lists with one midpoint that no failure cuts off; an iteration is a linear program.

    Attributes:
        policies: the lists.
        utilisation: (M, F) largest utilisation of a link, for each matrix under each failure.
        straight: value of the IGP's shortest paths alone.
    """

    policies: SegmentPolicies
    utilisation: FloatArray
    straight: float


class _Scenarios:
    """Loads and prices of all matrices under all failures."""

    def __init__(self, dags: Sequence[EcmpDag], pairs: Int64Array, demand: FloatArray) -> None:
        self.passes, self.pairs = [SegmentPasses(dag) for dag in dags], pairs
        self.source, self.target = pairs[:, 0], pairs[:, 1]
        self.capacity = np.array([np.where(np.isfinite(dag.links.metric), dag.topology.capacity, 0.0) for dag in dags])
        # (F, M, D): what counts under each failure
        self.demand = np.array([np.where(dag.reaches[self.target, self.source], demand, 0.0) for dag in dags])
        self.keeps = np.ones((len(pairs), dags[0].topology.num_nodes), dtype=bool)  # (D, N): no failure cuts it off
        for dag in dags:
            over = dag.reaches[:, self.source].T & dag.reaches[self.target]
            self.keeps &= over | ~dag.reaches[self.target, self.source][:, None]

    def utilisation(self, demand: Int64Array, mid: Int64Array, share: FloatArray) -> FloatArray:
        """(F, M, E) of columns (n,)."""
        result = []
        for failure, passes in enumerate(self.passes):
            nodes, source, target = passes.dag.topology.num_nodes, self.source[demand], self.target[demand]
            volume = np.zeros((self.demand.shape[1], nodes * nodes))
            for matrix in range(len(volume)):
                flow = self.demand[failure, matrix, demand] * share
                for end, begin in ((mid, source), (target, mid)):
                    used = end != begin
                    volume[matrix] += np.bincount((end * nodes + begin)[used], flow[used], minlength=nodes * nodes)
            load = passes.segment_load(volume.reshape(-1, nodes, nodes))
            capacity = self.capacity[failure]
            result.append(np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1.0), 0.0))
        return np.array(result)

    def row(self, failure: int, matrix: int, link: int, demand: Int64Array, mid: Int64Array) -> FloatArray:
        """One row (n,) of the linear program: the load of a link, as a share of its capacity, by whole columns.

        A column is a demand sent by one midpoint.
        """
        unit = np.zeros((1, self.capacity.shape[1]))
        unit[0, link] = 1.0
        share = self.passes[failure].segment_sum(unit)[0]
        along = self._along(share, demand, mid)
        return np.asarray(self.demand[failure, matrix, demand] * along / self.capacity[failure, link])

    def _along(self, value: FloatArray, demand: Int64Array, stop: Int64Array) -> FloatArray:
        source, target = self.source[demand], self.target[demand]
        first = np.where(stop == source, 0.0, value[stop, source])
        second = np.where(stop == target, 0.0, value[target, stop])
        return np.nan_to_num(first + second, posinf=0.0)

    def costs(self, prices: dict[tuple[int, int], FloatArray]) -> FloatArray:
        """(D, N) of a whole demand over each midpoint, the target for none, at prices (E,) by failure and matrix.

        Infinite for midpoints that a failure cuts off.
        """
        total = np.where(self.keeps, 0.0, np.inf)
        for (failure, matrix), price in prices.items():
            value = self.passes[failure].segment_sum(price[None])[0]
            finite = np.where(np.isfinite(value), value, 0.0)
            np.fill_diagonal(finite, 0.0)
            total += self.demand[failure, matrix][:, None] * (finite[:, self.source].T + finite[self.target])
        return total


def static_lists(
    dags: Sequence[EcmpDag],
    pairs: Int64Array,
    demand: FloatArray,
    *,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    report: Callable[[int, float, float], None] | None = None,
) -> StaticLists:
    """Segment lists that hold under all failures (equations in the module).

    Args:
        dags: shortest paths without failure, then under each.
        pairs: (D, 2) source and target.
        demand: (M, D) Gbit/s.
        gap: certified gap at which to stop.
        deadline: after which the best so far is returned.
        report: called after each round with its number, the least value found and the bound.

    Raises:
        InputError: no demand with a path.
        SolverError: HiGHS failed.
    """
    begin, end = time.perf_counter(), deadline or Deadline()
    counted = np.flatnonzero((demand > 0).any(0) & dags[0].reaches[pairs[:, 1], pairs[:, 0]])
    if not len(counted):
        raise InputError("segments", "demand", "a demand above 0 between nodes with a path", "none")
    scenarios = _Scenarios(dags, pairs[counted].astype(np.int64), demand[:, counted])
    demands, nodes = len(counted), dags[0].topology.num_nodes
    of, mid = np.arange(demands), scenarios.target.copy()
    share = np.ones(demands)
    used = scenarios.utilisation(of, mid, share)
    straight = value = float(used.max())
    best = of, mid, share, used
    bound, number, rows = 0.0, 0, list[tuple[int, int, int]]()
    entries = np.zeros((0, demands))
    while value > 0:
        number += 1
        new = [key for key in _fullest(used) if key not in set(rows)]
        rows += new
        entries = np.vstack([entries, *(scenarios.row(*key, of, mid)[None] for key in new)])
        share, dual = _master(entries / straight, of, demands)  # HiGHS takes less than 1e-7 for 0
        used = scenarios.utilisation(of, mid, share)
        if float(used.max()) < value:
            value, best = float(used.max()), (of, mid, share, used)
        prices: dict[tuple[int, int], FloatArray] = {}
        for (failure, matrix, link), y in zip(rows, dual, strict=True):
            if y > 0:
                price = prices.setdefault((failure, matrix), np.zeros(scenarios.capacity.shape[1]))
                price[link] += y / scenarios.capacity[failure, link]
        costs = scenarios.costs(prices)
        cheapest = costs.argmin(1)
        least = costs[np.arange(demands), cheapest]
        bound = max(bound, float(least.sum()) / max(float(dual.sum()), 1e-300))
        if report is not None:
            report(number, value, bound)
        if value - bound <= gap * value or end.is_over or number >= _MAX_ROUNDS:
            break
        known = set((of * nodes + mid).tolist())
        at_hand = np.full(demands, np.inf)
        np.minimum.at(at_hand, of, costs[of, mid])
        added = np.flatnonzero(least < at_hand * (1 - _CHEAPER))
        added = np.array([d for d in added.tolist() if d * nodes + int(cheapest[d]) not in known], dtype=np.int64)
        if not len(added) and not [key for key in _fullest(used) if key not in set(rows)]:
            break
        if len(added):
            more = np.array([scenarios.row(*key, added, cheapest[added]) for key in rows])
            of, mid = np.concatenate([of, added]), np.concatenate([mid, cheapest[added]])
            entries = np.hstack([entries, more])
    of, mid, share, used = best
    policies = _policies(scenarios, of, mid, share)
    seconds = time.perf_counter() - begin
    bound = min(bound, value)
    reached = gap_between(value, bound, -1.0) <= gap
    return StaticLists(
        policies=policies,
        utilisation=used.max(2).T,
        value=value,
        bound=bound,
        sense=-1.0,
        straight=straight,
        iterations=number,
        solve_s=seconds,
        stopped_by=Stop.GAP if reached else Stop.DEADLINE if end.is_over else Stop.ITERATIONS,
    )


def _fullest(used: FloatArray) -> list[tuple[int, int, int]]:
    """Failure, matrix and link of the fullest links of the scenarios that are near the worst one."""
    worst = float(used.max())
    keys = []
    for failure, matrix in zip(*np.nonzero(used.max(2) >= 0.9 * worst), strict=True):
        order = np.argsort(-used[failure, matrix])[:_ROWS_A_SCENARIO]
        keys += [(int(failure), int(matrix), int(link)) for link in order if used[failure, matrix, link] >= 0.8 * worst]
    return keys


def _master(entries: FloatArray, of: Int64Array, demands: int) -> tuple[FloatArray, FloatArray]:
    """Shares (n,) of least theta over the rows so far, and the rows' duals, whatever the unit of the rows."""
    rows, columns = entries.shape
    upper = sp.csr_array(np.hstack([entries, -np.ones((rows, 1))]))
    sums = sp.csr_array((np.ones(columns), (of, np.arange(columns))), shape=(demands, columns + 1))
    cost = np.append(np.zeros(columns), 1.0)
    result = solve_lp(cost, (upper, np.zeros(rows)), (sums, np.ones(demands)))
    return np.maximum(result.solution("segments")[:-1], 0.0), result.duals


def _policies(scenarios: _Scenarios, of: Int64Array, mid: Int64Array, share: FloatArray) -> SegmentPolicies:
    parts: dict[int, dict[tuple[int, ...], float]] = {}
    for d, m, w in zip(of.tolist(), mid.tolist(), share.tolist(), strict=True):
        if w > _MIN_SHARE:
            stops = () if m in (scenarios.source[d], scenarios.target[d]) else (m,)
            own = parts.setdefault(d, {})
            own[stops] = own.get(stops, 0.0) + w
    lists = {}
    for d, own in parts.items():
        if set(own) != {()}:
            total = sum(own.values())
            pair = int(scenarios.source[d]), int(scenarios.target[d])
            lists[pair] = tuple(SegmentList(w / total, stops) for stops, w in sorted(own.items()))
    return SegmentPolicies(lists)
