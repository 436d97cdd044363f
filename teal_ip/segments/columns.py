"""Column generation over midpoints with HiGHS, which finishes PDHG searches that stall.

A column (d, m) moves the share x[d, m] of demand d from its shortest paths to the list over
midpoint m.  With load0 the loads of shortest-path routing, g(t, u, e) the share of segment u to t
on link e, and a[e, d, m] = demand[d] (g(m, s, e) + g(t, m, e) - g(t, s, e)),

    load[e] = load0[e] + sum a[e, d, m] x[d, m],    sum_m x[d, m] <= 1,

and theta is minimised s.t. load[e] <= theta c[e].  If the flow is maximised s.t. load[e] <= c[e],
load0 is 0, a[e, d, m] lacks the last term, and the shortest paths are a column, too.

Axis letters: D demands, K slots (midpoints of a demand), C columns, E links, L links that have not
failed, N nodes.  Entry point: :func:`finish`.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import scipy.sparse as sp

from teal.network.ecmp import Dags
from teal.pathops.segment_passes import add_ecmp_loads
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
# Weight of uniform prices that are added to the smoothed prices, so that no path is free.
_UNIFORM_WEIGHT = 1e-4
# Split ratio above which a midpoint of the stalled search becomes a first column.
_FIRST_SHARE = 1e-2
# Split ratio below which a share of the master's solution is a rounding error.
_MIN_SHARE = 1e-7
_MAX_ROUNDS = 60


@kernel
def _compute_column_loads(
    head: IntArray,
    dags: Dags,
    source: IntArray,
    target: IntArray,
    demand: FloatArray,
    mid: IntArray,
    subtracts_shortest_paths: bool,
    load: FloatArray,
) -> None:
    """Compute the link loads of columns: Gbit/s if the whole demand takes the list over the
    midpoint.

    Args:
        head: (E,) node where each link ends.
        dags: shortest-path DAGs towards all N destinations.
        source: (C,) source of each column's demand.
        target: (C,) target of each column's demand.
        demand: (C,) Gbit/s.
        mid: (C,) midpoint of each column; the target itself for the shortest paths.
        subtracts_shortest_paths: whether the load of the demand's shortest paths is subtracted.
        load: (C, E) output, Gbit/s; 0 at the call.
    """
    # (N,) Gbit/s from each node to the end of one segment.
    volume = np.zeros(dags.distance.shape[1])
    for column in range(len(source)):
        # Minus the load of the shortest paths.
        volume[:] = 0.0
        if subtracts_shortest_paths:
            volume[source[column]] = -demand[column]
            add_ecmp_loads(target[column], head, dags, volume, load[column])
            volume[:] = 0.0
        # Load of the segments to the midpoint and from it.
        volume[source[column]] = demand[column]
        add_ecmp_loads(mid[column], head, dags, volume, load[column])
        if mid[column] != target[column]:
            volume[:] = 0.0
            volume[mid[column]] = demand[column]
            add_ecmp_loads(target[column], head, dags, volume, load[column])


class _Master:
    """Restricted master: generated columns, and the linear programs over them.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        mid: (D, K) midpoints of the stalled search; -1 for an empty slot.
        share: (D, K) split ratios.

    Attributes:
        problem: routing of one matrix over lists with at most one midpoint.
        shortest_path_load: (E,) Gbit/s of shortest-path routing; 0 if the flow is maximised.
        is_live: (E,) whether a link has a capacity.
        unit: utilisation by which rows are divided, since HiGHS treats values below 1e-7 as 0.
        column_demand: (C,) demand of each column.
        column_mid: (C,) midpoint of each column.
        entries: (L, C) utilisation of each live link per column, divided by ``unit``.
    """

    def __init__(self, problem: SegmentProblem, mid: IntArray, share: FloatArray) -> None:
        """Start with the loads of shortest-path routing and the columns of the stalled search."""
        self.problem = problem
        direct, ones = problem.direct()
        self.shortest_path_load = problem.loads(direct, ones * problem.minimises_utilisation)
        self.is_live = problem.capacity > 0
        shortest_path_utilisation = self.shortest_path_load * problem.inverse_capacity
        self.unit = (
            float(shortest_path_utilisation.max(initial=0.0)) or 1.0
            if problem.minimises_utilisation
            else 1.0
        )
        self.column_demand: Int64Array = np.empty(0, dtype=np.int64)
        self.column_mid = np.empty(0, dtype=np.int32)
        self.entries = sp.csc_array((int(self.is_live.sum()), 0))
        self.add_columns_in_use(mid, share)

    def add_columns_in_use(self, mid: IntArray, share: FloatArray) -> None:
        """Add the columns of a fractional solution whose split ratio is above _FIRST_SHARE.

        Args:
            mid: (D, K) midpoint of each slot; -1 for an empty slot.
            share: (D, K) split ratio of each slot.
        """
        is_column = (
            (share > _FIRST_SHARE)
            & (mid >= 0)
            & (mid != self.problem.target[:, None])
            & (mid != self.problem.source[:, None])
        )
        if not self.problem.minimises_utilisation:
            # The shortest paths, whose share may be below 1.
            is_column[:, 0] = True
        demands, slots = np.nonzero(is_column)
        self.add(demands, mid[demands, slots])

    def add(self, demands: AnyArray, mids: IntArray) -> None:
        """Add columns; existing ones are skipped.

        Args:
            demands: (n,) demand of each column.
            mids: (n,) midpoint of each column; the target itself for the shortest paths.
        """
        nodes = self.problem.num_nodes
        # A column as one integer, demand * N + midpoint; retain new ones, each once.
        existing = self.column_demand * nodes + self.column_mid
        keys, first = np.unique(
            np.asarray(demands, dtype=np.int64) * nodes + mids, return_index=True
        )
        first = first[~np.isin(keys, existing)]
        demands = np.asarray(demands, dtype=np.int64)[first]
        mids = np.asarray(mids, dtype=np.int32)[first]
        blocks = [self.entries]
        # Blocks of 2000 columns limit the memory of their dense entries (n, E).
        for begin in range(0, len(demands), 2000):
            block = slice(begin, begin + 2000)
            dense_entries = np.zeros((len(demands[block]), len(self.is_live)))
            problem = self.problem
            block_demands = demands[block]
            _compute_column_loads(
                problem.dag.links.head,
                problem.dag.dags,
                problem.source[block_demands],
                problem.target[block_demands],
                problem.demand[block_demands],
                mids[block],
                problem.minimises_utilisation,
                dense_entries,
            )
            scaled_entries = (dense_entries * problem.inverse_capacity)[:, self.is_live] / self.unit
            # Remove rounding errors on links that both the list and the shortest paths use.
            scaled_entries[np.abs(scaled_entries) < 1e-14] = 0
            blocks.append(sp.csc_array(scaled_entries.T))
        self.entries = sp.csc_array(sp.hstack(blocks))
        self.column_demand = np.concatenate([self.column_demand, demands])
        self.column_mid = np.concatenate([self.column_mid, mids])

    def solve(self, seconds: float) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Solve the restricted master; None if HiGHS does not finish in time.

        Constraints, with utilisations divided by ``unit``: for each live link, utilisation of the
        shortest paths + entries x <= theta (or load <= c), and sum of the shares <= 1 for each
        demand with a column.

        Args:
            seconds: time limit.

        Returns:
            shares (C,), dual prices (E,) of the rows load / c, dual prices (D,) of the demands.
        """
        num_columns = len(self.column_demand)
        demands, demand_row = np.unique(self.column_demand, return_inverse=True)
        # Sums of shares, (demands with a column, C).
        share_sums = sp.csc_array(
            (np.ones(num_columns), (demand_row, np.arange(num_columns))),
            shape=(len(demands), num_columns),
        )
        shortest_path_utilisation = (self.shortest_path_load * self.problem.inverse_capacity)[
            self.is_live
        ] / self.unit
        rows = sp.vstack([self.entries, share_sums])
        rhs = np.ones(len(shortest_path_utilisation) + len(demands))
        if self.problem.minimises_utilisation:
            # min theta s.t. utilisation of the shortest paths + moved utilisation <= theta
            theta_column = sp.csc_array(
                np.repeat([[-1.0], [0.0]], [len(shortest_path_utilisation), len(demands)], axis=0)
            )
            rows = sp.hstack([rows, theta_column])
            cost = np.append(np.zeros(num_columns), 1.0)
            rhs[: len(shortest_path_utilisation)] = -shortest_path_utilisation
        else:
            # max flow s.t. load <= capacity
            cost = -self.problem.demand[self.column_demand]
        # Interior points and a crossover take an eighth of the time of the simplex method on
        # networks with many ties.
        inequalities = sp.csr_array(rows), rhs
        solution = solve_lp(cost, inequalities, seconds=max(0.05, seconds), by_interior_points=True)
        if solution.x is None or not solution.is_solved:
            return None
        # Duals of the links' rows, then of the demands' rows.
        prices = np.zeros(len(self.is_live))
        demand_prices = np.zeros(len(self.problem.demand))
        prices[self.is_live], demand_prices[demands] = np.split(
            solution.duals, [len(shortest_path_utilisation)]
        )
        return solution.x[:num_columns], prices, demand_prices

    def slots(self, share: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return midpoints and split ratios (D, K) from the columns' shares.

        Slot 0 of each demand has its shortest paths, with the remaining share if theta is
        minimised; -1 is an empty slot.

        Args:
            share: (C,) share of each column.
        """
        used_columns = np.flatnonzero(share > _MIN_SHARE)
        demands = self.column_demand[used_columns]
        order = np.argsort(demands, kind="stable")
        used_columns = used_columns[order]
        demands = demands[order]
        is_direct = self.column_mid[used_columns] == self.problem.target[demands]
        # Slot of each column in use: 0 for the shortest paths, else 1, 2, ... within its demand.
        slot = np.arange(len(used_columns)) - np.searchsorted(demands, demands) + 1
        slot[is_direct] = 0
        num_slots = int(slot.max(initial=0)) + 1
        mid = np.full((len(self.problem.demand), num_slots), -1, dtype=np.int32)
        slot_share = np.zeros(mid.shape)
        mid[:, 0] = self.problem.target
        mid[demands, slot] = self.column_mid[used_columns]
        slot_share[demands, slot] = share[used_columns]
        # Rounding may make the shares of a demand exceed 1.
        slot_share /= np.maximum(1, slot_share.sum(1, keepdims=True))
        if self.problem.minimises_utilisation:
            slot_share[:, 0] = np.maximum(0, 1 - slot_share[:, 1:].sum(1))
        return mid, slot_share


def finish(
    problem: SegmentProblem, start: SegmentResult, gap: float, deadline: Deadline
) -> SegmentResult:
    """Finish a search that stalled above its target gap, by column generation.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        start: result of the stalled search.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
    """
    begin = time.perf_counter()
    master = _Master(problem, start.mid, start.share)
    incumbent = start
    best_value = start.value
    dual_bound = _DualBound(start.bound, start.prices)
    # 1 for a minimum (utilisation), -1 for a maximum (flow).
    sign = 1 if problem.minimises_utilisation else -1
    for _ in range(_MAX_ROUNDS):
        if deadline.is_over or gap_between(best_value, dual_bound.value, problem.sense) <= gap:
            break
        # Restricted master.
        solution = master.solve(deadline.remaining_s)
        if solution is None:
            break
        column_share, duals, demand_prices = solution
        mid, slot_share = master.slots(column_share)
        # Incumbent: utilisation, or Gbit/s after a repair to feasibility.
        if problem.minimises_utilisation:
            new_value = problem.utilisation(problem.loads(mid, slot_share))
        else:
            slot_share = feasible(problem, mid, slot_share)
            new_value = float((problem.demand * slot_share.sum(1)).sum())
        if sign * (new_value - best_value) < 0:
            best_value = new_value
            incumbent = dataclasses.replace(incumbent, mid=mid, share=slot_share)
        # Pricing; stop when no column has a saving.
        if not _generate_columns(master, duals, demand_prices, dual_bound):
            break
    bound = dual_bound.value
    is_closed = gap_between(best_value, bound, problem.sense) <= gap
    return dataclasses.replace(
        incumbent,
        value=best_value,
        bound=bound,
        prices=dual_bound.prices,
        free_bound=problem.free_bound(dual_bound.prices),
        solve_s=start.solve_s + time.perf_counter() - begin,
        stopped_by=Stop.GAP if is_closed else start.stopped_by,
    )


@dataclasses.dataclass(eq=False)
class _DualBound:
    """Best dual bound so far.

    Attributes:
        value: bound on the utilisation (lower) or the flow (upper).
        prices: (E,) link prices per Gbit/s that prove it.
    """

    value: float
    prices: FloatArray


def _generate_columns(
    master: _Master, duals: FloatArray, demand_prices: FloatArray, dual_bound: _DualBound
) -> int:
    """Add the columns with the largest savings (reduced costs), and update the dual bound.

    Prices are smoothed with those of the best bound first (dual price smoothing); if no column has
    a saving under them, the master's own prices are used.

    Args:
        master: restricted master program, whose columns (demand, midpoint) are extended in place.
        duals: (E,) dual prices of the master's rows load / c.
        demand_prices: (D,) dual prices of the demands.
        dual_bound: best dual bound, updated in place.

    Returns:
        the number of new columns.
    """
    problem = master.problem
    # A bound improves upwards if theta is minimised (sign 1), downwards if the flow is maximised.
    sign = 1 if problem.minimises_utilisation else -1
    master_prices = duals * problem.inverse_capacity
    for master_weight in (_MASTER_WEIGHT, 1.0):
        # Smoothed prices at a weight below 1; the master's own prices, without uniform ones, at 1.
        prices = _with_uniform_prices(
            problem,
            master_weight * master_prices + (1 - master_weight) * dual_bound.prices,
            0 if master_weight == 1 else _UNIFORM_WEIGHT,
        )
        # Cheapest midpoint of each demand, and the dual bound.
        segment_price = problem.segment_prices(prices)
        cheapest_mid, cost = problem.cheapest(segment_price)
        new_bound = problem.bound(prices, cost)
        if sign * (new_bound - dual_bound.value) > 0:
            dual_bound.value = new_bound
            dual_bound.prices = prices
        num_added = _add_best_columns(
            master, segment_price, cheapest_mid, cost, master_weight * demand_prices
        )
        if num_added:
            return num_added
    return 0


def _with_uniform_prices(
    problem: SegmentProblem, prices: FloatArray, uniform_weight: float
) -> FloatArray:
    """Return link prices p (E,) per Gbit/s, combined with uniform prices.

    If theta is minimised, the result is scaled to sum_e c[e] p[e] = 1, with capacities c.  If the
    flow is maximised, the prices are unchanged.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        prices: (E,) link prices per Gbit/s.
        uniform_weight: weight of the uniform prices, proportional to 1 / c.
    """
    if not problem.minimises_utilisation:
        return prices
    # Uniform prices value the whole capacity at 1; so do the given ones after the division.
    uniform_prices = problem.inverse_capacity / max(1, int((problem.capacity > 0).sum()))
    total = (problem.capacity * prices).sum()
    return (1 - uniform_weight) * prices / max(total, 1e-300) + uniform_weight * uniform_prices


def _add_best_columns(
    master: _Master,
    segment_price: FloatArray,
    cheapest_mid: IntArray,
    cost: FloatArray,
    demand_prices: FloatArray,
) -> int:
    """Add the columns with the largest savings (reduced costs); return the number of new columns.

    Saving of demand d with target t and source s, whose shortest paths have the price(s to t):

        demand[d] (price(s to t) - cost[d])               if the largest utilisation is minimised
        demand[d] (1 - cost[d]) - demand_prices[d]        if the flow is maximised

    Args:
        master: restricted master program, whose columns (demand, midpoint) are extended in place.
        segment_price: (N, N) prices of segments, destination first.
        cheapest_mid: (D,) cheapest midpoint of each demand.
        cost: (D,) cost of the list over that midpoint.
        demand_prices: (D,) dual prices of the demands.
    """
    problem = master.problem
    saving = (
        problem.demand * (segment_price[problem.target, problem.source] - cost)
        if problem.minimises_utilisation
        else problem.demand * (1 - cost) - demand_prices
    )
    # An end of the demand is no midpoint.
    saving[(cheapest_mid == problem.target) | (cheapest_mid == problem.source)] = 0
    added_demands = np.argsort(-saving)[:_MAX_ADDED]
    added_demands = added_demands[saving[added_demands] > 1e-12 * max(float(saving.max()), 1e-300)]
    num_before = len(master.column_demand)
    master.add(added_demands, cheapest_mid[added_demands])
    return len(master.column_demand) - num_before
