"""Column generation over midpoints with HiGHS: the end of searches that stall.

A column (d, m) moves the share x[d, m] of demand d from its direct way to midpoint m, so that with
the loads ``load0`` of direct routing and a[e, d, m] = demand[d] (g(m, s, e) + g(t, m, e) - g(t, s,
e)),

    load[e] = load0[e] + sum a[e, d, m] x[d, m],    sum_m x[d, m] <= 1.

and theta is least s.t. load[e] <= theta c[e], or the flow is largest s.t. load[e] <= c[e].
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import scipy.sparse as sp

from teal.network.ecmp import Dags
from teal.pathops.segment_passes import load_inwards
from teal.problem.bounds import gap_between
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import solve_lp
from teal.runtime.parallel import kernel
from teal.solvers.result import Stop
from teal_ip.segments.problem import SegmentProblem
from teal_ip.segments.search import SegmentResult, feasible

_MAX_ADDED = 400  # columns in a round: those of the largest demand times reduced price
# weight of the master's prices, beside the best prices so far, in what columns are chosen by
_OF_MASTER = 0.7
_UNIFORM = 1e-4  # weight of equal prices, so that no way is free of cost
_FIRST_SHARE = (
    1e-2  # of a demand, that a midpoint must carry in the search's end to be a first column
)
_MIN_SHARE = 1e-7  # of a demand, below which rounding of the master is all that is left of it
_MAX_ROUNDS = 60


@kernel
def _column_entries(
    head: IntArray,
    dags: Dags,
    source: IntArray,
    target: IntArray,
    demand: FloatArray,
    mid: IntArray,
    replaces: bool,
    load: FloatArray,
) -> None:
    """(C, E) a of columns with these sources, targets and midpoints (C,), which may replace the
    direct way.
    """
    volume = np.zeros(dags.distance.shape[1])
    for c in range(len(source)):
        volume[:] = 0.0
        if replaces:
            volume[source[c]] = -demand[c]
            load_inwards(target[c], head, dags, volume, load[c])
            volume[:] = 0.0
        volume[source[c]] = demand[c]
        load_inwards(mid[c], head, dags, volume, load[c])
        if mid[c] != target[c]:
            volume[:] = 0.0
            volume[mid[c]] = demand[c]
            load_inwards(target[c], head, dags, volume, load[c])


class _Master:
    """The columns so far, and the linear programs over them."""

    def __init__(self, problem: SegmentProblem, mid: IntArray, share: FloatArray) -> None:
        self.p = problem
        direct, whole = problem.direct()
        self.load0 = problem.loads(direct, whole * problem.balances)
        self.live = problem.capacity > 0
        u0 = self.load0 * problem.inverse_capacity
        self.unit = (
            float(u0.max(initial=0.0)) or 1.0 if problem.balances else 1.0
        )  # HiGHS takes less than 1e-7 for 0
        self.demand_of: Int64Array = np.empty(0, dtype=np.int64)
        self.mid_of = np.empty(0, dtype=np.int32)
        self.entries = sp.csc_array((int(self.live.sum()), 0))
        self.add_used(mid, share)

    def add_used(self, mid: IntArray, share: FloatArray) -> None:
        """New columns for the midpoints (D, K) that carry more than _FIRST_SHARE; -1 for none."""
        used = (
            (share > _FIRST_SHARE)
            & (mid >= 0)
            & (mid != self.p.target[:, None])
            & (mid != self.p.source[:, None])
        )
        if not self.p.balances:
            used[:, 0] = True  # the direct way, which must not be taken whole
        demands, slots = np.nonzero(used)
        self.add(demands, mid[demands, slots])

    def add(self, demands: AnyArray, mids: IntArray) -> None:
        """New columns; those that are there already are left out."""
        nodes = self.p.num_nodes
        have = self.demand_of * nodes + self.mid_of
        keys, first = np.unique(
            np.asarray(demands, dtype=np.int64) * nodes + mids, return_index=True
        )
        first = first[~np.isin(keys, have)]
        demands, mids = (
            np.asarray(demands, dtype=np.int64)[first],
            np.asarray(mids, dtype=np.int32)[first],
        )
        parts = [self.entries]
        for begin in range(0, len(demands), 2000):  # columns whose dense form is in memory
            part = slice(begin, begin + 2000)
            dense = np.zeros((len(demands[part]), len(self.live)))
            p, d = self.p, demands[part]
            _column_entries(
                p.dag.links.head,
                p.dag.dags,
                p.source[d],
                p.target[d],
                p.demand[d],
                mids[part],
                p.balances,
                dense,
            )
            scaled = (dense * p.inverse_capacity)[:, self.live] / self.unit
            scaled[np.abs(scaled) < 1e-14] = 0  # what shares of common links leave by rounding
            parts.append(sp.csc_array(scaled.T))
        self.entries = sp.csc_array(sp.hstack(parts))
        self.demand_of, self.mid_of = (
            np.concatenate([self.demand_of, demands]),
            np.concatenate([self.mid_of, mids]),
        )

    def solve(self, seconds: float) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Shares (C,), prices (E,) of rows load / c and (D,) of demands; None if not solved in so
        many seconds.
        """
        columns = len(self.demand_of)
        demands, row = np.unique(self.demand_of, return_inverse=True)
        one_each = sp.csc_array(
            (np.ones(columns), (row, np.arange(columns))), shape=(len(demands), columns)
        )
        u0 = (self.load0 * self.p.inverse_capacity)[self.live] / self.unit
        rows, right = sp.vstack([self.entries, one_each]), np.ones(len(u0) + len(demands))
        if self.p.balances:  # min theta s.t. u0 + what columns move <= theta
            theta = sp.csc_array(np.repeat([[-1.0], [0.0]], [len(u0), len(demands)], axis=0))
            rows, cost = sp.hstack([rows, theta]), np.append(np.zeros(columns), 1.0)
            right[: len(u0)] = -u0
        else:  # max flow s.t. load <= capacity
            cost = -self.p.demand[self.demand_of]
        # Interior points and a crossover take an eighth of the time of the simplex method on
        # networks with many ties.
        at_most = sp.csr_array(rows), right
        solution = solve_lp(cost, at_most, seconds=max(0.05, seconds), by_interior_points=True)
        if solution.x is None or not solution.is_solved:
            return None
        prices, of_demand = np.zeros(len(self.live)), np.zeros(len(self.p.demand))
        prices[self.live], of_demand[demands] = np.split(solution.duals, [len(u0)])
        return solution.x[:columns], prices, of_demand

    def slots(self, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, K) of shares (C,); the rest of each demand goes straight to its
        target.
        """
        used = np.flatnonzero(share > _MIN_SHARE)
        demands = self.demand_of[used]
        order = np.argsort(demands, kind="stable")
        used, demands = used[order], demands[order]
        is_direct = self.mid_of[used] == self.p.target[demands]
        place = np.arange(len(used)) - np.searchsorted(demands, demands) + 1
        place[is_direct] = 0
        count = int(place.max(initial=0)) + 1
        mid = np.full((len(self.p.demand), count), -1, dtype=np.int32)
        result = np.zeros(mid.shape)
        mid[:, 0] = self.p.target
        mid[demands, place], result[demands, place] = self.mid_of[used], share[used]
        result /= np.maximum(1, result.sum(1, keepdims=True))
        if self.p.balances:
            result[:, 0] = np.maximum(0, 1 - result[:, 1:].sum(1))
        return mid, result


def finish(
    problem: SegmentProblem, start: SegmentResult, gap: float, deadline: Deadline
) -> SegmentResult:
    """Continue a search that stopped without its gap, by column generation.

    Args:
        problem: the matrix.
        start: shares at which the search begins.
        gap: certified gap at which to stop.
        deadline: after which to stop with the best so far.
    """
    begin, master, best = time.perf_counter(), _Master(problem, start.mid, start.share), start
    value, bound, prices = start.value, start.bound, start.prices
    sign = 1 if problem.balances else -1
    for _ in range(_MAX_ROUNDS):
        if deadline.is_over or gap_between(value, bound, problem.sense) <= gap:
            break
        solved = master.solve(deadline.left)
        if solved is None:
            break
        share, duals, of_demand = solved
        mid, slots = master.slots(share)
        if problem.balances:
            found = problem.utilisation(problem.loads(mid, slots))
        else:
            slots = feasible(problem, mid, slots)
            found = float((problem.demand * slots.sum(1)).sum())
        if sign * (found - value) < 0:
            value, best = found, dataclasses.replace(best, mid=mid, share=slots)
        at_master = duals * problem.inverse_capacity
        added = 0
        for weight in (
            _OF_MASTER,
            1.0,
        ):  # the master's own prices are needed where a mixture finds nothing
            mixed = _mixture(
                problem, weight * at_master + (1 - weight) * prices, 0 if weight == 1 else _UNIFORM
            )
            pi = problem.segment_prices(mixed)
            chosen, cost = problem.cheapest(pi)
            proven = problem.bound(mixed, cost)
            if sign * (proven - bound) > 0:
                bound, prices = proven, mixed
            added = _add_cheapest(master, pi, chosen, cost, weight * of_demand)
            if added:
                break
        if not added:
            break
    return dataclasses.replace(
        best,
        value=value,
        bound=bound,
        prices=prices,
        free_bound=problem.free_bound(prices),
        solve_s=start.solve_s + time.perf_counter() - begin,
        stopped_by=Stop.GAP
        if gap_between(value, bound, problem.sense) <= gap
        else start.stopped_by,
    )


def _mixture(problem: SegmentProblem, prices: FloatArray, part: float) -> FloatArray:
    if not problem.balances:
        return prices
    uniform = problem.inverse_capacity / max(1, int((problem.capacity > 0).sum()))
    total = (problem.capacity * prices).sum()
    return (1 - part) * prices / max(total, 1e-300) + part * uniform


def _add_cheapest(
    master: _Master, pi: FloatArray, chosen: IntArray, cost: FloatArray, of_demand: FloatArray
) -> int:
    """Add the columns that save most at these prices; their number."""
    p = master.p
    saving = (
        p.demand * (pi[p.target, p.source] - cost)
        if p.balances
        else p.demand * (1 - cost) - of_demand
    )
    saving[(chosen == p.target) | (chosen == p.source)] = 0
    most = np.argsort(-saving)[:_MAX_ADDED]
    most = most[saving[most] > 1e-12 * max(float(saving.max()), 1e-300)]
    before = len(master.demand_of)
    master.add(most, chosen[most])
    return len(master.demand_of) - before
