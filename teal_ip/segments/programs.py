"""Restricted master programs of :mod:`teal_ip.segments.static_lists`: linear programs over the
generated rows and columns, and the row and column generation.

A row (failure, matrix, link) limits one link's utilisation.  A column (demand, midpoint) moves a
share of the demand from its shortest paths to the list over the midpoint.  :class:`Master` holds
rows and columns; HiGHS solves the linear programs.  Entry point: :func:`optimum`.

Axis letters: F failures (index 0: no failure), M matrices, D demands (or transit policies), E
links, N nodes, R rows of the master, C columns of the master.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp

from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import solve_lp
from teal_ip.segments.problem import TARGET_ROUNDING
from teal_ip.segments.scenarios import Key, Scenarios

MAX_ROUNDS = 200
# Most utilised links of a scenario that a round adds as rows.
_MAX_ROWS_PER_SCENARIO = 3
# Columns that a round adds, in descending order of saving.
_MAX_ADDED = 400
# Weight of the master's prices in the smoothed prices of the pricing step; the best prices so far
# have the rest (dual price smoothing).
_MASTER_WEIGHT = 0.7
# Split ratio above which a midpoint of a starting point becomes a first column.
_FIRST_SHARE = 1e-2
# Split ratio below which a share of the master's solution is a rounding error.
MIN_SHARE = 1e-7
# The rows' unit is rescaled when the utilisation falls below this fraction of it, by this factor at
# the least.
_RESCALE_BELOW = 1e-2
_MIN_RESCALE = 1e-6
# A list is added if it saves more than this fraction of the current cost of its demand.
_MIN_SAVING = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Objective and limits of one linear program over the shares that move off the shortest paths.

    Either the largest utilisation is minimised with at most ``policy_limit`` policies, or the
    number of policies (the sum of the moved shares) is minimised within ``utilisation_limit``.

    Attributes:
        counted: (D,) 1 for demands whose policy counts towards the number, 0 for the others.
        utilisation_limit: largest utilisation U when policies are minimised; None to minimise the
            utilisation.
        policy_limit: largest number N of policies that count; infinite for any number.
        barred: (D,) whether a demand must not have a policy; None for no such demand.
    """

    counted: FloatArray
    utilisation_limit: float | None = None
    policy_limit: float = math.inf
    barred: BoolArray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """Feasible point of a program: shares, link utilisations and dual prices.

    Attributes:
        demand, mid, share: (n,) demand, midpoint and share of each column; the remaining share of a
            demand follows its shortest paths.
        utilisation: (F, M, E) link utilisation.
        moved: (D,) share of each demand that does not follow its shortest paths.
        prices: (R,) dual prices of the rows: objective per unit of utilisation.
        policy_price: dual price of a policy that counts: objective per policy.
    """

    demand: Int64Array
    mid: IntArray
    share: FloatArray
    utilisation: FloatArray
    moved: FloatArray
    prices: FloatArray
    policy_price: float

    @property
    def value(self) -> float:
        """Largest link utilisation in any matrix and failure."""
        return float(self.utilisation.max())

    @property
    def steered(self) -> Int64Array:
        """Indices of the demands that have a policy."""
        return np.flatnonzero(self.moved)


class Master:
    """Restricted master: generated rows and columns, and the linear programs over them.

    Args:
        scenarios: matrices under failures.

    Attributes:
        scenarios: matrices under failures.
        num_demands: number of demands, or of transit policies, D.
        column_demand: (C,) demand of each column.
        column_mid: (C,) midpoint of each column.
        rows: failure, matrix and link of each of the R rows.
        entries: (R, C) increase of the row's utilisation when the column moves its whole demand.
        shortest_paths: the point at which all traffic follows its shortest paths.
        unit: utilisation by which rows are divided, since HiGHS treats values below 1e-7 as 0.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        """Start without rows and columns: all traffic follows its shortest paths."""
        self.scenarios = scenarios
        self.num_demands = len(scenarios.source)
        self.column_demand = np.zeros(0, dtype=np.int64)
        self.column_mid = np.zeros(0, dtype=np.int32)
        # Columns that are never added again, as demand * N + midpoint.
        self._banned_columns = np.zeros(0, dtype=np.int64)
        self.rows: list[Key] = []
        self._row_set: set[Key] = set()
        self.entries = np.zeros((0, 0))
        self.shortest_paths = self.point(self.column_demand, self.column_mid, np.zeros(0))
        self.unit = self.shortest_paths.value or 1.0

    def add_rows(self, keys: Sequence[Key]) -> None:
        """Add the rows of these links, each with its entries for all columns; skip existing
        rows.
        """
        new_keys = [key for key in keys if key not in self._row_set]
        new_entries = [
            self.scenarios.utilisation_row(key, self.column_demand, self.column_mid)
            for key in new_keys
        ]
        self.entries = np.vstack(
            [self.entries, np.array(new_entries).reshape(len(new_keys), len(self.column_demand))]
        )
        self.rows += new_keys
        self._row_set |= set(new_keys)

    def has(self, keys: Sequence[Key]) -> bool:
        """Whether the master has the rows of all these keys (failure, matrix, link)."""
        return self._row_set.issuperset(keys)

    def add_columns(self, demand: Int64Array, mid: IntArray) -> bool:
        """Add columns, and return whether there was a new one.

        Existing and banned columns are skipped, as are midpoints that are an end of their demand.

        Args:
            demand: (n,) demand of each column; each pair (demand, midpoint) occurs once.
            mid: (n,) midpoint of each column.
        """
        num_nodes = self.scenarios.num_nodes
        # A column as one integer, demand * N + midpoint.
        is_new = ~np.isin(
            demand * num_nodes + mid,
            np.append(self.column_demand * num_nodes + self.column_mid, self._banned_columns),
        )
        is_new &= (mid != self.scenarios.target[demand]) & (mid != self.scenarios.source[demand])
        demand = demand[is_new]
        mid = mid[is_new]
        # Entries (R, n) of the new columns.
        new_entries = [self.scenarios.utilisation_row(key, demand, mid) for key in self.rows]
        self.entries = np.hstack(
            [self.entries, np.array(new_entries).reshape(len(self.rows), len(demand))]
        )
        self.column_demand = np.concatenate([self.column_demand, demand])
        self.column_mid = np.concatenate([self.column_mid, mid])
        return bool(len(demand))

    def ban(self, demand: Int64Array, mid: IntArray) -> None:
        """Remove columns, and never add them again.

        Args:
            demand: (n,) demand of each column.
            mid: (n,) midpoint of each column.
        """
        column_codes = demand * self.scenarios.num_nodes + mid
        is_retained = ~np.isin(
            self.column_demand * self.scenarios.num_nodes + self.column_mid, column_codes
        )
        self.column_demand = self.column_demand[is_retained]
        self.column_mid = self.column_mid[is_retained]
        self.entries = self.entries[:, is_retained]
        self._banned_columns = np.append(self._banned_columns, column_codes)

    def conflicts(self, point: Point) -> BoolArray:
        """Whether another policy of the point changes the loads of each column (n,).

        The linear program adds up the loads of columns; it is wrong for a transit policy whose
        traffic another policy captures on its way.  Columns without a share never conflict.
        """
        is_used = point.share > 0
        is_conflicting = np.zeros(len(is_used), dtype=bool)
        is_conflicting[is_used] = self.scenarios.conflicting(
            point.demand[is_used], point.mid[is_used]
        )
        return is_conflicting

    def can_be_installed(self, point: Point) -> bool:
        """Whether the policies of a point can be installed together: none excludes another one, and
        none steers another one's traffic.
        """
        steered = point.steered
        return (
            not self.scenarios.excluded(steered)[steered].any() and not self.conflicts(point).any()
        )

    def largest_policies(self, volume: FloatArray, max_policies: int) -> Int64Array:
        """Return the policies of the largest volumes, such that none excludes another one (greedy).

        Args:
            volume: (D,) volume of each policy, such as the Gbit/s that it moves.
            max_policies: largest number of policies to return.
        """
        descending = np.argsort(-volume, kind="stable")
        if not self.scenarios.is_transit:
            return np.asarray(descending[:max_policies])
        is_excluded = volume <= 0
        chosen = list[int]()
        for d in descending.tolist():
            if len(chosen) < max_policies and not is_excluded[d]:
                chosen.append(d)
                is_excluded |= self.scenarios.excluded(np.array([d]))
        return np.array(chosen, dtype=np.int64)

    def add_columns_in_use(self, mid: IntArray, share: FloatArray) -> None:
        """Add the columns of a fractional solution whose split ratio is above _FIRST_SHARE.

        Args:
            mid: (D, K) midpoint of each slot of a demand; -1 for an empty slot.
            share: (D, K) split ratio of each slot.
        """
        demands, slots = np.nonzero((share > _FIRST_SHARE) & (mid >= 0))
        column_codes = np.unique(demands * self.scenarios.num_nodes + mid[demands, slots])
        self.add_columns(
            column_codes // self.scenarios.num_nodes,
            (column_codes % self.scenarios.num_nodes).astype(np.int32),
        )

    def solve(self, program: Program, seconds: float) -> Point | None:
        """Return the optimum over the current rows and columns; None if the program is infeasible
        or HiGHS does not solve it in time.

        Args:
            program: objective and limits.
            seconds: time limit of HiGHS.
        """
        num_columns = len(self.column_demand)
        # Without columns the shortest paths are the only point.
        if not num_columns and program.utilisation_limit is not None:
            is_within = self.shortest_paths.value <= program.utilisation_limit * (
                1 + TARGET_ROUNDING
            )
            return (
                dataclasses.replace(self.shortest_paths, prices=np.zeros(len(self.rows)))
                if is_within
                else None
            )
        cost, upper_bounds = self._variables(program)
        # Interior points and a crossover take an eighth of the time of the simplex method on
        # networks with many ties.
        solution = solve_lp(
            cost,
            self._constraints(program),
            high=upper_bounds,
            seconds=max(0.05, seconds),
            by_interior_points=True,
        )
        if solution.x is None or not solution.is_solved:
            return None
        # Round tiny shares to 0, and scale the shares of a demand down to a sum of 1.
        share = np.where(solution.x[:num_columns] > MIN_SHARE, solution.x[:num_columns], 0.0)
        share /= np.maximum(
            1.0, np.bincount(self.column_demand, share, minlength=self.num_demands)
        )[self.column_demand]
        # Dual prices in unscaled rows.
        prices, policy_price = self._unscaled_prices(program, solution.duals)
        return self.point(self.column_demand, self.column_mid, share, prices, policy_price)

    def _variables(self, program: Program) -> tuple[FloatArray, FloatArray]:
        """Return the costs and the upper bounds of all variables.

        The variables are the share of each column (C), then theta, the largest utilisation, if it
        is minimised.  The cost is theta, or the sum of the shares of policies that count.

        Args:
            program: objective and limits.
        """
        # (C,) 1 for columns whose policy counts, 0 for the others.
        is_counted = program.counted[self.column_demand]
        # Columns whose share must be 0: policies that count if none may exist, and barred ones.
        is_barred = (is_counted > 0) & (program.policy_limit == 0)
        is_barred |= False if program.barred is None else program.barred[self.column_demand]
        upper_bounds = np.where(is_barred, 0.0, math.inf)
        if program.utilisation_limit is not None:
            return is_counted, upper_bounds
        return np.append(np.zeros(len(self.column_demand)), 1.0), np.append(upper_bounds, math.inf)

    def _constraints(self, program: Program) -> tuple[sp.csr_array, FloatArray]:
        """Return the matrix and the right-hand side of the constraints, matrix x <= right-hand
        side, over the variables x of :meth:`_variables`.

        In this order, with all utilisations divided by ``unit``:

            utilisation of the shortest paths + entries x <= theta, or <= U    for each row
            sum of shares <= 1    for each demand, or set of excluding transit policies
            sum of the shares that count <= N    if the number of policies is limited

        theta is the largest utilisation if it is minimised, U the utilisation limit otherwise, and
        N the largest number of policies.

        Args:
            program: objective and limits.
        """
        share_sums = self.scenarios.share_sum_rows(self.column_demand)
        blocks = [sp.csr_array(self.entries / self.unit), share_sums]
        shortest_path_utilisation = (
            np.array([self.shortest_paths.utilisation[key] for key in self.rows]) / self.unit
        )
        rhs = [-shortest_path_utilisation, np.ones(share_sums.shape[0])]
        if math.isfinite(program.policy_limit):
            blocks.append(sp.csr_array(program.counted[self.column_demand][None]))
            rhs.append(np.array([program.policy_limit]))
        rows = sp.vstack(blocks)
        # The limit, or theta as a further column.
        if program.utilisation_limit is None:
            theta_column = np.zeros((rows.shape[0], 1))
            theta_column[: len(shortest_path_utilisation)] = -1.0
            rows = sp.hstack([rows, sp.csr_array(theta_column)])
        else:
            rhs[0] = rhs[0] + program.utilisation_limit / self.unit
        return sp.csr_array(rows), np.concatenate(rhs)

    def _unscaled_prices(self, program: Program, duals: FloatArray) -> tuple[FloatArray, float]:
        """Return the dual prices of the rows (R,), of utilisation, and the dual price of a policy.

        Args:
            program: objective and limits.
            duals: duals of the constraints in the order of :meth:`_constraints`.
        """
        prices = duals[: len(self.rows)]
        if program.utilisation_limit is not None:
            # The rows are divided by ``unit``; the price of a policy is its cost in the objective.
            return prices / self.unit, 1.0
        # theta is divided by ``unit`` like its rows: only the dual of the policy limit is rescaled.
        has_limit = math.isfinite(program.policy_limit)
        policy_price = float(duals[-1]) * self.unit if has_limit else 0.0
        return prices, math.inf if program.policy_limit == 0 else policy_price

    def point(
        self,
        demand: Int64Array,
        mid: IntArray,
        share: FloatArray,
        prices: FloatArray | None = None,
        policy_price: float = 0.0,
    ) -> Point:
        """Return the point of given shares, with the link utilisations that it causes.

        Args:
            demand: (n,) demand of each column.
            mid: (n,) midpoint of each column.
            share: (n,) share that each column moves off the shortest paths.
            prices: (R,) dual prices of the rows; None for none.
            policy_price: dual price of a policy.
        """
        utilisation = self.scenarios.utilisation(demand, mid, share)
        moved = np.bincount(demand, share, minlength=self.num_demands).astype(np.float64)
        return Point(
            demand,
            mid,
            share,
            utilisation,
            moved,
            np.zeros(0) if prices is None else prices,
            policy_price,
        )

    def program_of_largest(self, point: Point, max_policies: int) -> Program:
        """Return the program of least utilisation in which only the policies that move most may
        exist.

        Args:
            point: the moved Gbit/s of its demands select the policies.
            max_policies: largest number of policies.
        """
        is_counted = np.ones(self.num_demands)
        is_counted[
            self.largest_policies(point.moved * self.scenarios.largest_offered, max_policies)
        ] = 0.0
        return Program(is_counted, policy_limit=0.0)

    def link_prices(self, prices: FloatArray) -> dict[tuple[int, int], FloatArray]:
        """Return link prices (E,) by (failure, matrix), per Gbit/s: row price / capacity.

        Args:
            prices: (R,) dual prices of the rows, per unit of utilisation.
        """
        link_prices: dict[tuple[int, int], FloatArray] = {}
        for (failure, matrix, link), row_price in zip(self.rows, prices, strict=True):
            if row_price > 0:
                price = link_prices.setdefault(
                    (failure, matrix), np.zeros(self.scenarios.capacity.shape[1])
                )
                price[link] += row_price / self.scenarios.capacity[failure, link]
        return link_prices

    def slots(self, point: Point) -> tuple[IntArray, FloatArray]:
        """Return midpoints and split ratios (D, K) of a point.

        Slot 0 of each demand has its shortest paths and the share that no column moves; the columns
        in use follow; -1 is an empty slot.
        """
        # Columns in use, by demand.
        used_columns = np.flatnonzero(point.share)
        used_columns = used_columns[np.argsort(point.demand[used_columns], kind="stable")]
        # Slot of each column in use: 1, 2, ... within its demand.
        demands = point.demand[used_columns]
        slot = np.arange(len(used_columns)) - np.searchsorted(demands, demands) + 1
        mid = np.full((self.num_demands, int(slot.max(initial=0)) + 1), -1, dtype=np.int32)
        share = np.zeros(mid.shape)
        mid[:, 0] = self.scenarios.target
        mid[demands, slot] = point.mid[used_columns]
        share[demands, slot] = point.share[used_columns]
        share[:, 0] = np.maximum(0.0, 1 - share[:, 1:].sum(1))
        return mid, share


def optimum(
    master: Master,
    program: Program,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
    max_rounds: int = MAX_ROUNDS,
) -> tuple[Point | None, float, int]:
    """Solve a program over segment lists with one midpoint, by row and column generation.

    Either the largest link utilisation or the number of policies is minimised.  Each round adds the
    most utilised links as rows, solves the restricted master, and adds the columns that price out.
    The prices prove a lower bound on the objective (utilisation, or number of policies).

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        program: objective and limits.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
        report: called after each round with its index, the incumbent's objective and the bound.
        max_rounds: largest number of rounds.

    Returns:
        the incumbent, None if none is feasible; the lower bound on the objective; the number of
        rounds.
    """
    # Incumbent: the shortest paths, if they are feasible.
    limit = program.utilisation_limit
    max_utilisation = math.inf if limit is None else limit * (1 + TARGET_ROUNDING)
    incumbent: Point | None = (
        master.shortest_paths if master.shortest_paths.value <= max_utilisation else None
    )
    # Objective of the shortest paths: their utilisation, or 0 policies if they respect the limit.
    incumbent_objective = (
        master.shortest_paths.value if limit is None else math.inf if incumbent is None else 0.0
    )
    dual_bound = _DualBound()
    num_rounds = 0
    utilisation = master.shortest_paths.utilisation
    while incumbent_objective > 0 and num_rounds < max_rounds:
        num_rounds += 1
        # Row generation and the restricted master.
        master.add_rows(most_utilised(utilisation, limit))
        point = master.solve(program, deadline.remaining_s)
        if point is None:
            break
        utilisation = point.utilisation
        # Rescale the rows of the next program if its values are tiny.
        if point.value < _RESCALE_BELOW * master.unit:
            master.unit = max(point.value, _MIN_RESCALE * master.unit)
        # Incumbent: its objective is the utilisation, or the number of policies.
        objective = point.value if limit is None else float(program.counted @ point.moved)
        if point.value <= max_utilisation and objective < incumbent_objective:
            incumbent_objective = objective
            incumbent = point
        # Column generation.
        has_new_column = _generate_columns(master, program, point, dual_bound, deadline)
        bound = dual_bound.value
        if report is not None:
            report(num_rounds, incumbent_objective, bound)
        # Stop: gap closed, time limit, or neither new rows nor new columns.
        if (
            math.isfinite(incumbent_objective)
            and incumbent_objective - bound <= gap * incumbent_objective
        ) or deadline.is_over:
            break
        if not has_new_column and master.has(most_utilised(utilisation, limit)):
            break
    return incumbent, dual_bound.value, num_rounds


@dataclasses.dataclass(eq=False)
class _DualBound:
    """Best dual bound so far, and the prices that prove it.

    Attributes:
        value: lower bound on the utilisation or the number of policies.
        prices: (R,) dual prices of the rows that existed then, per unit of utilisation.
        policy_price: dual price of a policy that counts.
    """

    value: float = 0.0
    prices: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(0))
    policy_price: float = 0.0


def _generate_columns(
    master: Master, program: Program, point: Point, dual_bound: _DualBound, deadline: Deadline
) -> bool:
    """Add the columns with the largest savings (reduced costs) at the master's dual prices.

    Prices are smoothed with those of the best bound first (dual price smoothing); if no column
    improves on them, the master's own prices are used.  With row prices y, policy price q and link
    prices p = y / capacity, every pricing also proves a dual bound:

        policies    >= sum_d min(direct[d], cost[d] + q) - U sum y
        utilisation >= (sum_d min(direct[d], cost[d] + q) - q N) / sum y

    where direct[d] and cost[d] are the costs of demand d's shortest paths and of its cheapest list
    at p, U is the utilisation limit, and N the largest number of policies.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        program: objective and limits.
        point: optimum of the restricted master, with its dual prices.
        dual_bound: best dual bound, updated in place.
        deadline: time limit.

    Returns:
        whether a column was added; False after the deadline.
    """
    # (R,) prices of the best bound; rows that are newer have a price of 0.
    earlier_prices = np.pad(dual_bound.prices, (0, len(point.prices) - len(dual_bound.prices)))
    for master_weight in (_MASTER_WEIGHT, 1.0):
        # Smoothed prices of rows and policies; an infinite policy price is not smoothed.
        prices = master_weight * point.prices + (1 - master_weight) * earlier_prices
        policy_price = point.policy_price
        policy_price = (
            policy_price
            if math.isinf(policy_price)
            else master_weight * policy_price + (1 - master_weight) * dual_bound.policy_price
        )
        # Cost (D,) of having a policy: its price, 0 if it does not count, infinite if it is barred.
        policy_cost = np.where(program.counted > 0, policy_price, 0.0)
        if program.barred is not None:
            policy_cost = np.where(program.barred, math.inf, policy_cost)
        # Pricing: cheapest list of each demand (D,), its cost, and the cost of the shortest paths.
        link_prices = master.link_prices(prices)
        pricing = master.scenarios.cheapest(link_prices, deadline)
        if pricing is None:
            return False
        cheapest_mid, list_cost, direct_cost = pricing
        # Cost (D,) of moving each demand to its cheapest list, the price of a policy included.
        policy_list_cost = list_cost + policy_cost
        # Dual bound of these prices; ``budget_cost`` is q N, and 0 at an infinite price, at which
        # no policy that counts may exist.
        least_cost = master.scenarios.least_cost(policy_list_cost, direct_cost, link_prices)
        total_price = float(prices.sum())
        if program.utilisation_limit is not None:
            new_bound = least_cost - program.utilisation_limit * total_price
        else:
            budget_cost = (
                policy_price * program.policy_limit if 0 < policy_price < math.inf else 0.0
            )
            new_bound = (least_cost - budget_cost) / max(total_price, 1e-300)
        if new_bound > dual_bound.value:
            dual_bound.value = new_bound
            dual_bound.prices = prices
            dual_bound.policy_price = policy_price
        # Add the columns that save most against the cheapest current column of their demand.
        current_cost = direct_cost.copy()
        np.minimum.at(
            current_cost,
            master.column_demand,
            direct_cost[master.column_demand]
            + prices @ master.entries
            + policy_cost[master.column_demand],
        )
        # Saving (D,) of the cheapest list, the negative reduced cost.
        saving = current_cost - policy_list_cost
        chosen_demands = np.argsort(-saving)[:_MAX_ADDED]
        chosen_demands = chosen_demands[
            saving[chosen_demands] > _MIN_SAVING * current_cost[chosen_demands]
        ]
        if master.add_columns(chosen_demands, cheapest_mid[chosen_demands]):
            return True
    return False


def most_utilised(utilisation: FloatArray, limit: float | None) -> list[Key]:
    """Return (failure, matrix, link) of the most utilised links, as rows of the master.

    Without a limit these are links above 0.8 of the largest utilisation, in scenarios above 0.9 of
    it; with a limit, links that exceed it.  At most _MAX_ROWS_PER_SCENARIO links of a scenario are
    returned.

    Args:
        utilisation: (F, M, E) link utilisation.
        limit: largest allowed utilisation; None for none.
    """
    max_utilisation = float(utilisation.max())
    scenario_threshold, link_threshold = (
        (0.9 * max_utilisation, 0.8 * max_utilisation)
        if limit is None
        else (limit * (1 + TARGET_ROUNDING / 2),) * 2
    )
    keys = []
    for failure, matrix in zip(*np.nonzero(utilisation.max(2) >= scenario_threshold), strict=True):
        order = np.argsort(-utilisation[failure, matrix])[:_MAX_ROWS_PER_SCENARIO]
        keys += [
            (int(failure), int(matrix), int(link))
            for link in order
            if utilisation[failure, matrix, link] >= link_threshold
        ]
    return keys
