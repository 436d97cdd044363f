"""Column generation over midpoints with HiGHS, which finishes PDHG searches that stall.

A column (d, m) moves the share x[d, m] of demand d from its shortest paths to midpoint m.  With the
loads ``load0`` of shortest-path routing and a[e, d, m] = demand[d] (g(m, s, e) + g(t, m, e) - g(t,
s, e)),

    load[e] = load0[e] + sum a[e, d, m] x[d, m],    sum_m x[d, m] <= 1,

and theta is minimised s.t. load[e] <= theta c[e], or the flow is maximised s.t. load[e] <= c[e].
Entry point: :func:`finish`.
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

# Columns that a round adds, in descending order of saving (reduced cost times demand).
_MAX_ADDED = 400
# Weight of the master's prices in the smoothed prices of the pricing step; the best prices so far
# have the rest (dual price smoothing).
_MASTER_WEIGHT = 0.7
# Weight of uniform prices in the mixture, so that no path is free.
_UNIFORM = 1e-4
# Share of a demand above which a midpoint of the stalled search becomes a first column.
_FIRST_SHARE = 1e-2
# Share of a demand below which the master's shares are rounding errors.
_MIN_SHARE = 1e-7
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
    """Fill the entries a (C, E) of columns with these sources, targets and midpoints (C,); with
    ``replaces`` the load of the shortest paths is subtracted.
    """
    volume = np.zeros(dags.distance.shape[1])
    for c in range(len(source)):
        # Minus the load of the shortest paths.
        volume[:] = 0.0
        if replaces:
            volume[source[c]] = -demand[c]
            load_inwards(target[c], head, dags, volume, load[c])
            volume[:] = 0.0
        # Load of the segments to the midpoint and from it.
        volume[source[c]] = demand[c]
        load_inwards(mid[c], head, dags, volume, load[c])
        if mid[c] != target[c]:
            volume[:] = 0.0
            volume[mid[c]] = demand[c]
            load_inwards(target[c], head, dags, volume, load[c])


class _Master:
    """Restricted master: generated columns, and the linear programs over them."""

    def __init__(self, problem: SegmentProblem, mid: IntArray, share: FloatArray) -> None:
        self.p = problem
        direct, ones = problem.direct()
        self.load0 = problem.loads(direct, ones * problem.balances)
        self.live = problem.capacity > 0
        u0 = self.load0 * problem.inverse_capacity
        # Rows are divided by this unit, since HiGHS treats values below 1e-7 as 0.
        self.unit = float(u0.max(initial=0.0)) or 1.0 if problem.balances else 1.0
        self.demand_of: Int64Array = np.empty(0, dtype=np.int64)
        self.mid_of = np.empty(0, dtype=np.int32)
        self.entries = sp.csc_array((int(self.live.sum()), 0))
        self.add_used(mid, share)

    def add_used(self, mid: IntArray, share: FloatArray) -> None:
        """Add columns for midpoints (D, K) with more than _FIRST_SHARE; -1 for empty slots."""
        is_column = (
            (share > _FIRST_SHARE)
            & (mid >= 0)
            & (mid != self.p.target[:, None])
            & (mid != self.p.source[:, None])
        )
        if not self.p.balances:
            # The shortest paths, whose share may be below 1.
            is_column[:, 0] = True
        demands, slots = np.nonzero(is_column)
        self.add(demands, mid[demands, slots])

    def add(self, demands: AnyArray, mids: IntArray) -> None:
        """Add columns; existing ones are skipped."""
        nodes = self.p.num_nodes
        existing = self.demand_of * nodes + self.mid_of
        keys, first = np.unique(
            np.asarray(demands, dtype=np.int64) * nodes + mids, return_index=True
        )
        first = first[~np.isin(keys, existing)]
        demands = np.asarray(demands, dtype=np.int64)[first]
        mids = np.asarray(mids, dtype=np.int32)[first]
        blocks = [self.entries]
        # Blocks, to limit the memory of dense columns.
        for begin in range(0, len(demands), 2000):
            block = slice(begin, begin + 2000)
            dense = np.zeros((len(demands[block]), len(self.live)))
            p = self.p
            d = demands[block]
            _column_entries(
                p.dag.links.head,
                p.dag.dags,
                p.source[d],
                p.target[d],
                p.demand[d],
                mids[block],
                p.balances,
                dense,
            )
            scaled = (dense * p.inverse_capacity)[:, self.live] / self.unit
            # Rounding errors of loads on common links.
            scaled[np.abs(scaled) < 1e-14] = 0
            blocks.append(sp.csc_array(scaled.T))
        self.entries = sp.csc_array(sp.hstack(blocks))
        self.demand_of = np.concatenate([self.demand_of, demands])
        self.mid_of = np.concatenate([self.mid_of, mids])

    def solve(self, seconds: float) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Solve the restricted master in so many seconds; None if HiGHS does not finish in time.

        Returns:
            shares (C,), dual prices (E,) of the rows load / c, dual prices (D,) of the demands.
        """
        num_columns = len(self.demand_of)
        demands, demand_row = np.unique(self.demand_of, return_inverse=True)
        one_each = sp.csc_array(
            (np.ones(num_columns), (demand_row, np.arange(num_columns))),
            shape=(len(demands), num_columns),
        )
        u0 = (self.load0 * self.p.inverse_capacity)[self.live] / self.unit
        rows = sp.vstack([self.entries, one_each])
        rhs = np.ones(len(u0) + len(demands))
        if self.p.balances:
            # min theta s.t. u0 + moved utilisation <= theta
            theta = sp.csc_array(np.repeat([[-1.0], [0.0]], [len(u0), len(demands)], axis=0))
            rows = sp.hstack([rows, theta])
            cost = np.append(np.zeros(num_columns), 1.0)
            rhs[: len(u0)] = -u0
        else:
            # max flow s.t. load <= capacity
            cost = -self.p.demand[self.demand_of]
        # Interior points and a crossover take an eighth of the time of the simplex method on
        # networks with many ties.
        at_most = sp.csr_array(rows), rhs
        solution = solve_lp(cost, at_most, seconds=max(0.05, seconds), by_interior_points=True)
        if solution.x is None or not solution.is_solved:
            return None
        prices = np.zeros(len(self.live))
        demand_prices = np.zeros(len(self.p.demand))
        prices[self.live], demand_prices[demands] = np.split(solution.duals, [len(u0)])
        return solution.x[:num_columns], prices, demand_prices

    def slots(self, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, K) from the columns' shares (C,); the remaining share of each
        demand follows its shortest paths.
        """
        used_columns = np.flatnonzero(share > _MIN_SHARE)
        demands = self.demand_of[used_columns]
        order = np.argsort(demands, kind="stable")
        used_columns = used_columns[order]
        demands = demands[order]
        is_direct = self.mid_of[used_columns] == self.p.target[demands]
        slot = np.arange(len(used_columns)) - np.searchsorted(demands, demands) + 1
        slot[is_direct] = 0
        num_slots = int(slot.max(initial=0)) + 1
        mid = np.full((len(self.p.demand), num_slots), -1, dtype=np.int32)
        slot_share = np.zeros(mid.shape)
        mid[:, 0] = self.p.target
        mid[demands, slot] = self.mid_of[used_columns]
        slot_share[demands, slot] = share[used_columns]
        slot_share /= np.maximum(1, slot_share.sum(1, keepdims=True))
        if self.p.balances:
            slot_share[:, 0] = np.maximum(0, 1 - slot_share[:, 1:].sum(1))
        return mid, slot_share


def finish(
    problem: SegmentProblem, start: SegmentResult, gap: float, deadline: Deadline
) -> SegmentResult:
    """Finish a search that stalled above its target gap, by column generation.

    Args:
        problem: the two-segment program of one matrix.
        start: result of the stalled search.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
    """
    begin = time.perf_counter()
    master = _Master(problem, start.mid, start.share)
    best = start
    value = start.value
    dual_bound = _DualBound(start.bound, start.prices)
    sign = 1 if problem.balances else -1
    for _ in range(_MAX_ROUNDS):
        if deadline.is_over or gap_between(value, dual_bound.value, problem.sense) <= gap:
            break
        # Restricted master.
        solution = master.solve(deadline.remaining_s)
        if solution is None:
            break
        share, duals, demand_prices = solution
        mid, slot_share = master.slots(share)
        # Incumbent.
        if problem.balances:
            new_value = problem.utilisation(problem.loads(mid, slot_share))
        else:
            slot_share = feasible(problem, mid, slot_share)
            new_value = float((problem.demand * slot_share.sum(1)).sum())
        if sign * (new_value - value) < 0:
            value = new_value
            best = dataclasses.replace(best, mid=mid, share=slot_share)
        # Pricing.
        if not _generate_columns(master, duals, demand_prices, dual_bound):
            break
    bound = dual_bound.value
    is_closed = gap_between(value, bound, problem.sense) <= gap
    return dataclasses.replace(
        best,
        value=value,
        bound=bound,
        prices=dual_bound.prices,
        free_bound=problem.free_bound(dual_bound.prices),
        solve_s=start.solve_s + time.perf_counter() - begin,
        stopped_by=Stop.GAP if is_closed else start.stopped_by,
    )


@dataclasses.dataclass(eq=False)
class _DualBound:
    """Best dual bound so far, and the link prices (E,) that prove it."""

    value: float
    prices: FloatArray


def _generate_columns(
    master: _Master, duals: FloatArray, demand_prices: FloatArray, best: _DualBound
) -> int:
    """Price columns at smoothed prices, or at the master's own prices if no column improves on
    them; return the number of new columns.

    Args:
        master: columns so far, extended in place.
        duals: (E,) dual prices of the master's rows load / c.
        demand_prices: (D,) dual prices of the demands.
        best: dual bound, updated in place.
    """
    problem = master.p
    sign = 1 if problem.balances else -1
    master_prices = duals * problem.inverse_capacity
    for weight in (_MASTER_WEIGHT, 1.0):
        mixed = _mixture(
            problem,
            weight * master_prices + (1 - weight) * best.prices,
            0 if weight == 1 else _UNIFORM,
        )
        # Cheapest midpoint of each demand, and the dual bound.
        pi = problem.segment_prices(mixed)
        best_mid, cost = problem.cheapest(pi)
        new_bound = problem.bound(mixed, cost)
        if sign * (new_bound - best.value) > 0:
            best.value = new_bound
            best.prices = mixed
        num_added = _add_cheapest(master, pi, best_mid, cost, weight * demand_prices)
        if num_added:
            return num_added
    return 0


def _mixture(problem: SegmentProblem, prices: FloatArray, uniform_weight: float) -> FloatArray:
    if not problem.balances:
        return prices
    uniform = problem.inverse_capacity / max(1, int((problem.capacity > 0).sum()))
    total = (problem.capacity * prices).sum()
    return (1 - uniform_weight) * prices / max(total, 1e-300) + uniform_weight * uniform


def _add_cheapest(
    master: _Master, pi: FloatArray, best_mid: IntArray, cost: FloatArray, demand_prices: FloatArray
) -> int:
    """Add the columns that save most at these prices; return their number."""
    p = master.p
    saving = (
        p.demand * (pi[p.target, p.source] - cost)
        if p.balances
        else p.demand * (1 - cost) - demand_prices
    )
    saving[(best_mid == p.target) | (best_mid == p.source)] = 0
    added = np.argsort(-saving)[:_MAX_ADDED]
    added = added[saving[added] > 1e-12 * max(float(saving.max()), 1e-300)]
    num_before = len(master.demand_of)
    master.add(added, best_mid[added])
    return len(master.demand_of) - num_before
