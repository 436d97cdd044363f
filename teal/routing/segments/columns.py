"""Column generation over midpoints with HiGHS: the end of searches that stall, and the fewest policies.

A column (d, m) moves the share x[d, m] of demand d from its direct way to midpoint m, so that with the loads ``load0``
of direct routing and a[e, d, m] = demand[d] (g(m, s, e) + g(t, m, e) - g(t, s, e)),

    load[e] = load0[e] + sum a[e, d, m] x[d, m],    sum_m x[d, m] <= 1.

- *least utilisation*: min theta s.t. load[e] <= theta c[e];
- *fewest policies* at a utilisation U: min sum x[d, m] s.t. load[e] <= U c[e].  Any prices l >= 0 of the rows
  load[e] / c[e] <= U prove

    sum x >= sum_e l[e] (load0[e] / c[e] - U) - sum_d max(0, demand[d] gain[d] - 1),

  where gain[d] is the cost of the direct way less that of the cheapest midpoint, at prices l / c.  The
  sum of shares cannot exceed the number of demands that have any, so this bounds the number of policies from below.

A basic solution splits at most as many demands as links are tight.

*Least utilisation of at most N policies*: a U for which the second program proves more than N policies is reached by no
N of them, and a U for which it finds N at most is reached.  Between the two, bisection; where the program finds more
than N, the first program over the N demands that move most is tried as well.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import scipy.sparse as sp

from teal.network.ecmp import Dags
from teal.pathops.segment_passes import load_inwards
from teal.problem.bounds import gap_between
from teal.routing.segments.problem import TARGET_ROUNDING, SegmentProblem
from teal.routing.segments.search import SegmentResult, feasible
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import solve_lp
from teal.runtime.parallel import kernel
from teal.solvers.result import Stop

_MAX_ADDED = 400  # columns in a round: those of the largest demand times reduced price
_OF_MASTER = 0.7  # weight of the master's prices, beside the best prices so far, in what columns are chosen by
_UNIFORM = 1e-4  # weight of equal prices, so that no way is free of cost
_FIRST_SHARE = 1e-2  # of a demand, that a midpoint must carry in the search's end to be a first column
_MIN_SHARE = 1e-7  # of a demand, below which rounding of the master is all that is left of it
_MAX_ROUNDS = 60
_MAX_BISECTIONS = 16  # utilisations tried in each of the two bisections for N policies
_BISECTION_WIDTH = 1e-3  # share of the utilisation: a narrower interval ends a bisection


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
    """(C, E) a of columns with these sources, targets and midpoints (C,), which may replace the direct way."""
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
        self.unit = float(u0.max(initial=0.0)) or 1.0 if problem.balances else 1.0  # HiGHS takes less than 1e-7 for 0
        self.demand_of: Int64Array = np.empty(0, dtype=np.int64)
        self.mid_of = np.empty(0, dtype=np.int32)
        self.entries = sp.csc_array((int(self.live.sum()), 0))
        self.add_used(mid, share)

    def add_used(self, mid: IntArray, share: FloatArray) -> None:
        """New columns for the midpoints (D, K) that carry more than _FIRST_SHARE; -1 for none."""
        used = (share > _FIRST_SHARE) & (mid >= 0) & (mid != self.p.target[:, None]) & (mid != self.p.source[:, None])
        if not self.p.balances:
            used[:, 0] = True  # the direct way, which must not be taken whole
        demands, slots = np.nonzero(used)
        self.add(demands, mid[demands, slots])

    def add(self, demands: AnyArray, mids: IntArray) -> None:
        """New columns; those that are there already are left out."""
        nodes = self.p.num_nodes
        have = self.demand_of * nodes + self.mid_of
        keys, first = np.unique(np.asarray(demands, dtype=np.int64) * nodes + mids, return_index=True)
        first = first[~np.isin(keys, have)]
        demands, mids = np.asarray(demands, dtype=np.int64)[first], np.asarray(mids, dtype=np.int32)[first]
        parts = [self.entries]
        for begin in range(0, len(demands), 2000):  # columns whose dense form is in memory
            part = slice(begin, begin + 2000)
            dense = np.zeros((len(demands[part]), len(self.live)))
            p, d = self.p, demands[part]
            _column_entries(
                p.dag.links.head, p.dag.dags, p.source[d], p.target[d], p.demand[d], mids[part], p.balances, dense
            )  # fmt: skip
            scaled = (dense * p.inverse_capacity)[:, self.live] / self.unit
            scaled[np.abs(scaled) < 1e-14] = 0  # what shares of common links leave by rounding
            parts.append(sp.csc_array(scaled.T))
        self.entries = sp.csc_array(sp.hstack(parts))
        self.demand_of, self.mid_of = np.concatenate([self.demand_of, demands]), np.concatenate([self.mid_of, mids])

    def solve(
        self, utilisation: float | None, seconds: float
    ) -> tuple[FloatArray, FloatArray, FloatArray, float] | None:
        """Shares (C,), prices (E,) of rows load / c, prices (D,) of demands, and the value; None if not solved.

        Args:
            utilisation: U of the fewest policies; None for the least utilisation.
            seconds: time that HiGHS may take.
        """
        columns = len(self.demand_of)
        if not columns and utilisation is not None:  # direct routing keeps the utilisation
            return np.zeros(0), np.zeros(len(self.live)), np.zeros(len(self.p.demand)), 0.0
        demands, row = np.unique(self.demand_of, return_inverse=True)
        one_each = sp.csc_array((np.ones(columns), (row, np.arange(columns))), shape=(len(demands), columns))
        u0 = (self.load0 * self.p.inverse_capacity)[self.live] / self.unit
        if not self.p.balances:
            rows, cost = sp.vstack([self.entries, one_each]), -self.p.demand[self.demand_of]
            right = np.ones(len(u0) + len(demands))
        elif utilisation is None:
            theta = sp.csc_array(-np.ones((len(u0), 1)))
            rows = sp.vstack([sp.hstack([self.entries, theta]), sp.hstack([one_each, sp.csc_array((len(demands), 1))])])
            cost, right = np.append(np.zeros(columns), 1.0), np.concatenate([-u0, np.ones(len(demands))])
        else:
            rows, cost = sp.vstack([self.entries, one_each]), np.ones(columns)
            right = np.concatenate([utilisation / self.unit - u0, np.ones(len(demands))])
        # Interior points and a crossover take an eighth of the time of the simplex method on tie-rich networks.
        at_most = sp.csr_array(rows), right
        solution = solve_lp(cost, at_most, seconds=max(0.05, seconds), by_interior_points=True)
        if solution.x is None or not solution.is_solved:
            return None
        duals = solution.duals
        prices, of_demand = np.zeros(len(self.live)), np.zeros(len(self.p.demand))
        prices[self.live] = duals[: len(u0)] / (1.0 if utilisation is None else self.unit)
        of_demand[demands] = duals[len(u0) :]
        return solution.x[:columns], prices, of_demand, solution.value

    def slots(self, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, K) of shares (C,); the rest of each demand goes straight to its target."""
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


def finish(problem: SegmentProblem, start: SegmentResult, gap: float, deadline: Deadline) -> SegmentResult:
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
        solved = master.solve(None, deadline.left)
        if solved is None:
            break
        share, duals, of_demand, _ = solved
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
        for weight in (_OF_MASTER, 1.0):  # the master's own prices are needed where a mixture finds nothing
            mixed = _mixture(problem, weight * at_master + (1 - weight) * prices, 0 if weight == 1 else _UNIFORM)
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
        best, value=value, bound=bound, prices=prices, free_bound=problem.free_bound(prices),
        solve_s=start.solve_s + time.perf_counter() - begin,
        stopped_by=Stop.GAP if gap_between(value, bound, problem.sense) <= gap else start.stopped_by,
    )  # fmt: skip


def _mixture(problem: SegmentProblem, prices: FloatArray, part: float) -> FloatArray:
    if not problem.balances:
        return prices
    uniform = problem.inverse_capacity / max(1, int((problem.capacity > 0).sum()))
    total = (problem.capacity * prices).sum()
    return (1 - part) * prices / max(total, 1e-300) + part * uniform


def _add_cheapest(master: _Master, pi: FloatArray, chosen: IntArray, cost: FloatArray, of_demand: FloatArray) -> int:
    """Add the columns that save most at these prices; their number."""
    p = master.p
    saving = p.demand * (pi[p.target, p.source] - cost) if p.balances else p.demand * (1 - cost) - of_demand
    saving[(chosen == p.target) | (chosen == p.source)] = 0
    most = np.argsort(-saving)[:_MAX_ADDED]
    most = most[saving[most] > 1e-12 * max(float(saving.max()), 1e-300)]
    before = len(master.demand_of)
    master.add(most, chosen[most])
    return len(master.demand_of) - before


@dataclasses.dataclass(frozen=True, eq=False)
class FewPolicies:
    """The fewest demands with a policy that keep a utilisation.

    Attributes:
        mid: (D, K) midpoints.
        share: (D, K).
        utilisation: largest of a link.
        policies: demands that have one.
        bound: least number of policies that any solution with this utilisation can have.
        solve_s: seconds.
    """

    mid: IntArray
    share: FloatArray
    utilisation: float
    policies: int
    bound: float
    solve_s: float


def fewest_policies(
    problem: SegmentProblem, start: SegmentResult, utilisation: float, deadline: Deadline, gap: float = 0.02
) -> FewPolicies:
    """Solve the second program of the module.

    Args:
        problem: the matrix.
        start: a solution whose utilisation is at most ``utilisation``.
        utilisation: U.
        deadline: after which to stop with the best so far.
        gap: between the sum of shares and its bound, as a share, at which to stop.
    """
    begin, master, bound = time.perf_counter(), _Master(problem, start.mid, start.share), 0.0
    mid, share = start.mid, start.share
    prices = np.zeros(len(problem.capacity))
    u0 = master.load0 * problem.inverse_capacity
    for _ in range(_MAX_ROUNDS):
        solved = None if deadline.is_over else master.solve(utilisation, deadline.left)
        if solved is None:
            break
        shares, duals, of_demand, total = solved
        mid, share = master.slots(shares)
        before = len(master.demand_of)
        for weight in (_OF_MASTER, 1.0):
            mixed = weight * duals + (1 - weight) * prices
            pi = problem.segment_prices(mixed * problem.inverse_capacity)
            chosen, cost = problem.cheapest(pi)
            gain = problem.demand * (pi[problem.target, problem.source] - cost)
            proven = float((mixed * (u0 - utilisation)).sum() - np.maximum(0, gain - 1).sum())
            if proven > bound:
                bound, prices = proven, mixed
            reduced = np.where(
                (chosen == problem.target) | (chosen == problem.source), 0, gain - 1 - weight * of_demand
            )
            most = np.argsort(-reduced)[:_MAX_ADDED]
            most = most[reduced[most] > 1e-9]
            master.add(most, chosen[most])
            if len(master.demand_of) > before:
                break
        if total - bound <= gap * max(total, 1e-9) or len(master.demand_of) == before:
            break
    return FewPolicies(
        mid, share, problem.utilisation(problem.loads(mid, share)), int(problem.steered(mid, share).sum()),
        max(0, math.ceil(bound - 1e-6)), time.perf_counter() - begin,
    )  # fmt: skip


def least_utilisation(
    problem: SegmentProblem, start: SegmentResult, most: int, deadline: Deadline
) -> tuple[FewPolicies, float]:
    """The least utilisation that was found with at most ``most`` policies, and a bound on that of any such lists.

    Args:
        problem: the matrix, balanced.
        start: a solution, of any number of policies.
        most: N.
        deadline: after which to stop with the best so far.
    """
    begin = time.perf_counter()
    mid, share = problem.direct()
    direct = problem.utilisation(problem.loads(mid, share))
    best, bound = FewPolicies(mid, share, direct, 0, 0.0, 0.0), min(start.bound, direct)

    def attempt(target: float) -> None:
        """Look for N policies at this utilisation, and for a proof that there are none."""
        nonlocal best, bound
        found = fewest_policies(problem, start, target, deadline)
        if found.bound > most:
            bound = max(bound, target)
        tried = found if found.policies <= most else _of_largest(problem, found, start, most, deadline)
        best = min(best, tried, key=lambda one: one.utilisation)

    def is_unreached(target: float) -> bool:
        attempt(target)
        return best.utilisation > target * (1 + TARGET_ROUNDING)

    def is_excluded(target: float) -> bool:
        attempt(target)
        return bound >= target

    least = min(start.value, direct)
    if is_unreached(least):
        for is_low in (is_unreached, is_excluded):  # bisect for what is reached, then for what is proved
            low, high = max(bound, least), best.utilisation
            for _ in range(_MAX_BISECTIONS):
                if deadline.is_over or high - low <= _BISECTION_WIDTH * high:
                    break
                target = (low + high) / 2
                low, high = (target, high) if is_low(target) else (low, target)
    return dataclasses.replace(best, solve_s=time.perf_counter() - begin), bound


def _of_largest(
    problem: SegmentProblem, found: FewPolicies, start: SegmentResult, most: int, deadline: Deadline
) -> FewPolicies:
    """The least utilisation over the midpoints so far of the ``most`` demands that move the largest volume."""
    moved = problem.demand * np.where(found.mid != problem.target[:, None], found.share, 0.0).sum(1)
    is_chosen = np.zeros(len(moved), dtype=bool)
    is_chosen[np.argsort(-moved, kind="stable")[:most]] = True
    master = _Master(problem, np.where(is_chosen[:, None], found.mid, -1), found.share)
    master.add_used(np.where(is_chosen[:, None], start.mid, -1), start.share)
    solved = master.solve(None, deadline.left) if len(master.demand_of) else None
    mid, share = master.slots(np.zeros(len(master.demand_of)) if solved is None else solved[0])
    return FewPolicies(
        mid, share, problem.utilisation(problem.loads(mid, share)), int(problem.steered(mid, share).sum()), 0.0, 0.0
    )
