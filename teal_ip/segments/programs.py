"""Restricted master programs of :mod:`teal_ip.segments.static_lists`: linear programs over the
generated rows and columns, and the row and column generation.

:class:`Master` holds rows (failure, matrix, link) and columns (demand, midpoint); HiGHS solves the
linear programs.  Entry point: :func:`optimum`.
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
_ROWS_A_SCENARIO = 3
# Columns that a round adds, in descending order of saving.
_MAX_ADDED = 400
# Weight of the master's prices in the smoothed prices of the pricing step; the best prices so far
# have the rest (dual price smoothing).
_MASTER_WEIGHT = 0.7
# Share of a demand above which a midpoint of a starting point becomes a first column.
_FIRST_SHARE = 1e-2
# Share of a demand below which the master's shares are rounding errors.
MIN_SHARE = 1e-7
# Rescaling of the unit: values below this share of the unit change it, and the smallest factor.
_RESCALE_BELOW = 1e-2
_MIN_RESCALE = 1e-6
# Relative saving above which a list is added.
_CHEAPER = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One linear program over the shares.

    Attributes:
        counts: (D,) 1 for demands whose policy counts, 0 for demands whose policy is free.
        utilisation: limit U when policies are minimised; None to minimise the utilisation.
        policies: largest number of policies that count, N; infinite for any number.
        closed: (D,) whether a demand must not have a policy; None for none.
    """

    counts: FloatArray
    utilisation: float | None = None
    policies: float = math.inf
    closed: BoolArray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A point of the program: shares, utilisations and dual prices.

    Attributes:
        of, mid, share: (n,) demand, midpoint and share of each column; the remaining share of a
            demand follows its shortest paths.
        used: (F, M, E) link utilisation.
        moved: (D,) share that does not follow the shortest paths.
        prices: (R,) dual prices of the rows, of utilisation.
        policy_price: dual price of a policy that counts.
    """

    of: Int64Array
    mid: IntArray
    share: FloatArray
    used: FloatArray
    moved: FloatArray
    prices: FloatArray
    policy_price: float

    @property
    def value(self) -> float:
        """Largest link utilisation."""
        return float(self.used.max())

    @property
    def steered(self) -> Int64Array:
        """Indices of the demands that have a policy."""
        return np.flatnonzero(self.moved)


class Master:
    """Restricted master: generated rows and columns, and the linear programs over them.

    Args:
        scenarios: matrices under failures.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        self.scenarios = scenarios
        self.demands = len(scenarios.source)
        self.of = np.zeros(0, dtype=np.int64)
        self.mid = np.zeros(0, dtype=np.int32)
        # Banned columns: policy * nodes + midpoint.
        self._banned_columns = np.zeros(0, dtype=np.int64)
        self.rows: list[Key] = []
        self._row_set: set[Key] = set()
        self.entries = np.zeros((0, 0))
        self.straight = self.point(self.of, self.mid, np.zeros(0))
        # Rows are divided by this unit, since HiGHS treats values below 1e-7 as 0.
        self.unit = self.straight.value or 1.0

    def add_rows(self, keys: Sequence[Key]) -> None:
        """Add rows; existing ones are skipped."""
        new = [key for key in keys if key not in self._row_set]
        new_entries = [self.scenarios.row(key, self.of, self.mid) for key in new]
        self.entries = np.vstack(
            [self.entries, np.array(new_entries).reshape(len(new), len(self.of))]
        )
        self.rows += new
        self._row_set |= set(new)

    def has(self, keys: Sequence[Key]) -> bool:
        """Whether all these rows exist."""
        return self._row_set.issuperset(keys)

    def add_columns(self, demand: Int64Array, mid: IntArray) -> bool:
        """Add columns, each (demand, midpoint) once; return whether there was a new one."""
        nodes = self.scenarios.nodes
        is_new = ~np.isin(
            demand * nodes + mid, np.append(self.of * nodes + self.mid, self._banned_columns)
        )
        is_new &= (mid != self.scenarios.target[demand]) & (mid != self.scenarios.source[demand])
        demand = demand[is_new]
        mid = mid[is_new]
        new_entries = [self.scenarios.row(key, demand, mid) for key in self.rows]
        self.entries = np.hstack(
            [self.entries, np.array(new_entries).reshape(len(self.rows), len(demand))]
        )
        self.of = np.concatenate([self.of, demand])
        self.mid = np.concatenate([self.mid, mid])
        return bool(len(demand))

    def ban(self, demand: Int64Array, mid: IntArray) -> None:
        """Remove columns and never add them again."""
        keys = demand * self.scenarios.nodes + mid
        remains = ~np.isin(self.of * self.scenarios.nodes + self.mid, keys)
        self.of = self.of[remains]
        self.mid = self.mid[remains]
        self.entries = self.entries[:, remains]
        self._banned_columns = np.append(self._banned_columns, keys)

    def conflicts(self, point: Point) -> BoolArray:
        """Whether each column (n,) of a point conflicts: its real load differs from the program's
        (:meth:`Scenarios.conflicting`).
        """
        is_used = point.share > 0
        result = np.zeros(len(is_used), dtype=bool)
        result[is_used] = self.scenarios.conflicting(point.of[is_used], point.mid[is_used])
        return result

    def can_be_installed(self, point: Point) -> bool:
        """Whether the policies can be installed together: none excludes another one, and none
        steers another one's traffic.
        """
        steered = point.steered
        return (
            not self.scenarios.excluded(steered)[steered].any() and not self.conflicts(point).any()
        )

    def largest(self, volume: FloatArray, max_policies: int) -> Int64Array:
        """Return the policies of the largest volumes (D,), at most ``max_policies``, such that none
        excludes another one.
        """
        order = np.argsort(-volume, kind="stable")
        if not self.scenarios.is_transit:
            return np.asarray(order[:max_policies])
        barred = volume <= 0
        chosen = list[int]()
        for d in order.tolist():
            if len(chosen) < max_policies and not barred[d]:
                chosen.append(d)
                barred |= self.scenarios.excluded(np.array([d]))
        return np.array(chosen, dtype=np.int64)

    def add_used(self, mid: IntArray, share: FloatArray) -> None:
        """Add columns for midpoints (D, K) with more than _FIRST_SHARE; -1 for empty slots."""
        demands, slots = np.nonzero((share > _FIRST_SHARE) & (mid >= 0))
        keys = np.unique(demands * self.scenarios.nodes + mid[demands, slots])
        self.add_columns(
            keys // self.scenarios.nodes, (keys % self.scenarios.nodes).astype(np.int32)
        )

    def solve(self, program: Program, seconds: float) -> Point | None:
        """Return the optimum over current rows and columns; None if HiGHS fails or times out."""
        num_columns = len(self.of)
        # Without columns the shortest paths are the only point.
        if not num_columns and program.utilisation is not None:
            is_within = self.straight.value <= program.utilisation * (1 + TARGET_ROUNDING)
            return (
                dataclasses.replace(self.straight, prices=np.zeros(len(self.rows)))
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
        # Round tiny shares to 0, and unscale the dual prices.
        share = np.where(solution.x[:num_columns] > MIN_SHARE, solution.x[:num_columns], 0.0)
        share /= np.maximum(1.0, np.bincount(self.of, share, minlength=self.demands))[self.of]
        prices, policy_price = self._unscaled_prices(program, solution.duals)
        return self.point(self.of, self.mid, share, prices, policy_price)

    def _variables(self, program: Program) -> tuple[FloatArray, FloatArray]:
        """Costs and upper bounds of the variables: shares, and theta if it is minimised."""
        # 1 for columns whose policy the program counts.
        counted = program.counts[self.of]
        is_closed = (counted > 0) & (program.policies == 0)
        is_closed |= False if program.closed is None else program.closed[self.of]
        upper_bounds = np.where(is_closed, 0.0, math.inf)
        if program.utilisation is not None:
            return counted, upper_bounds
        return np.append(np.zeros(len(self.of)), 1.0), np.append(upper_bounds, math.inf)

    def _constraints(self, program: Program) -> tuple[sp.csr_array, FloatArray]:
        """Rows of utilisations of links, sums of shares, and the number of policies, and their
        right-hand sides.
        """
        sums = self.scenarios.sums(self.of)
        blocks = [sp.csr_array(self.entries / self.unit), sums]
        straight = np.array([self.straight.used[key] for key in self.rows]) / self.unit
        rhs = [-straight, np.ones(sums.shape[0])]
        if math.isfinite(program.policies):
            blocks.append(sp.csr_array(program.counts[self.of][None]))
            rhs.append(np.array([program.policies]))
        rows = sp.vstack(blocks)
        # The limit, or theta as a further column.
        if program.utilisation is None:
            theta = np.zeros((rows.shape[0], 1))
            theta[: len(straight)] = -1.0
            rows = sp.hstack([rows, sp.csr_array(theta)])
        else:
            rhs[0] = rhs[0] + program.utilisation / self.unit
        return sp.csr_array(rows), np.concatenate(rhs)

    def _unscaled_prices(self, program: Program, duals: FloatArray) -> tuple[FloatArray, float]:
        """Return the dual prices of the rows, of utilisation, and that of a policy."""
        prices = duals[: len(self.rows)]
        if program.utilisation is not None:
            # The rows are in ``unit``.
            return prices / self.unit, 1.0
        # theta is in ``unit``: only the dual of the policy limit is rescaled.
        has_limit = math.isfinite(program.policies)
        policy_price = float(duals[-1]) * self.unit if has_limit else 0.0
        return prices, math.inf if program.policies == 0 else policy_price

    def point(
        self,
        of: Int64Array,
        mid: IntArray,
        share: FloatArray,
        prices: FloatArray | None = None,
        price: float = 0.0,
    ) -> Point:
        """Return the point of shares (n,) of columns (demand, midpoint), with their dual prices."""
        utilisation = self.scenarios.utilisation(of, mid, share)
        moved = np.bincount(of, share, minlength=self.demands).astype(np.float64)
        return Point(
            of, mid, share, utilisation, moved, np.zeros(0) if prices is None else prices, price
        )

    def program_of_largest(self, point: Point, max_policies: int) -> Program:
        """Program of least utilisation in which only the ``max_policies`` demands with the largest
        moved volume may have policies.
        """
        counts = np.ones(self.demands)
        counts[self.largest(point.moved * self.scenarios.largest_offered, max_policies)] = 0.0
        return Program(counts, policies=0.0)

    def link_prices(self, prices: FloatArray) -> dict[tuple[int, int], FloatArray]:
        """Link prices (E,) by (failure, matrix), from the dual prices (R,) of the rows."""
        link_prices: dict[tuple[int, int], FloatArray] = {}
        for (failure, matrix, link), row_price in zip(self.rows, prices, strict=True):
            if row_price > 0:
                price = link_prices.setdefault(
                    (failure, matrix), np.zeros(self.scenarios.capacity.shape[1])
                )
                price[link] += row_price / self.scenarios.capacity[failure, link]
        return link_prices

    def slots(self, point: Point) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, K) of a point; slot 0 has the shortest paths."""
        used_columns = np.flatnonzero(point.share)
        used_columns = used_columns[np.argsort(point.of[used_columns], kind="stable")]
        demands = point.of[used_columns]
        slot = np.arange(len(used_columns)) - np.searchsorted(demands, demands) + 1
        mid = np.full((self.demands, int(slot.max(initial=0)) + 1), -1, dtype=np.int32)
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
    """Generate rows and columns until the gap is closed; return the incumbent, the bound on its
    value or number of policies, and the number of rounds.

    Args:
        master: rows and columns so far, extended in place.
        program: program to solve.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
        report: called after each round with its index, the incumbent's value and the bound.
        max_rounds: largest number of rounds.
    """
    limit = program.utilisation
    max_value = math.inf if limit is None else limit * (1 + TARGET_ROUNDING)
    best: Point | None = master.straight if master.straight.value <= max_value else None
    value = master.straight.value if limit is None else math.inf if best is None else 0.0
    dual_bound = _DualBound()
    num_rounds = 0
    utilisation = master.straight.used
    while value > 0 and num_rounds < max_rounds:
        num_rounds += 1
        # Row generation and the restricted master.
        master.add_rows(most_utilised(utilisation, limit))
        point = master.solve(program, deadline.remaining_s)
        if point is None:
            break
        utilisation = point.used
        # Rescale the rows of the next program if its values are tiny.
        if point.value < _RESCALE_BELOW * master.unit:
            master.unit = max(point.value, _MIN_RESCALE * master.unit)
        # Incumbent.
        point_value = point.value if limit is None else float(program.counts @ point.moved)
        if point.value <= max_value and point_value < value:
            value = point_value
            best = point
        # Column generation.
        is_new = _generate_columns(master, program, point, dual_bound, deadline)
        bound = dual_bound.value
        if report is not None:
            report(num_rounds, value, bound)
        if (math.isfinite(value) and value - bound <= gap * value) or deadline.is_over:
            break
        if not is_new and master.has(most_utilised(utilisation, limit)):
            break
    return best, dual_bound.value, num_rounds


@dataclasses.dataclass(eq=False)
class _DualBound:
    """Best dual bound so far, and the prices that prove it.

    Attributes:
        value: bound on the utilisation or the number of policies.
        prices: (R,) dual prices of the rows at that time.
        policy_price: dual price of a policy that counts.
    """

    value: float = 0.0
    prices: FloatArray = dataclasses.field(default_factory=lambda: np.zeros(0))
    policy_price: float = 0.0


def _generate_columns(
    master: Master, program: Program, point: Point, best: _DualBound, deadline: Deadline
) -> bool:
    """Price columns at smoothed prices, or at the master's own prices if no column improves on
    them; return whether there was a new column.

    Args:
        master: rows and columns so far, extended in place.
        program: program to solve.
        point: optimum of the master.
        best: dual bound, updated in place.
        deadline: time limit; False is returned after it.
    """
    earlier_prices = np.pad(best.prices, (0, len(point.prices) - len(best.prices)))
    for weight in (_MASTER_WEIGHT, 1.0):
        # Smoothed prices.
        prices = weight * point.prices + (1 - weight) * earlier_prices
        price = point.policy_price
        price = price if math.isinf(price) else weight * price + (1 - weight) * best.policy_price
        policy_cost = np.where(program.counts > 0, price, 0.0)
        if program.closed is not None:
            policy_cost = np.where(program.closed, math.inf, policy_cost)
        # Cheapest list of each demand.
        link_prices = master.link_prices(prices)
        answer = master.scenarios.cheapest(link_prices, deadline)
        if answer is None:
            return False
        cheapest, list_cost, direct = answer
        cost = list_cost + policy_cost
        # Dual bound.
        least_cost = master.scenarios.least(cost, direct, link_prices)
        total = float(prices.sum())
        if program.utilisation is not None:
            new_bound = least_cost - program.utilisation * total
        else:
            budget_cost = price * program.policies if 0 < price < math.inf else 0.0
            new_bound = (least_cost - budget_cost) / max(total, 1e-300)
        if new_bound > best.value:
            best.value = new_bound
            best.prices = prices
            best.policy_price = price
        # Add the columns that save most against the cheapest current column of their demand.
        current_cost = direct.copy()
        np.minimum.at(
            current_cost,
            master.of,
            direct[master.of] + prices @ master.entries + policy_cost[master.of],
        )
        saving = current_cost - cost
        chosen = np.argsort(-saving)[:_MAX_ADDED]
        chosen = chosen[saving[chosen] > _CHEAPER * current_cost[chosen]]
        if master.add_columns(chosen, cheapest[chosen]):
            return True
    return False


def most_utilised(utilisation: FloatArray, limit: float | None) -> list[Key]:
    """Return the most utilised links of scenarios near the worst one, or above a limit, as rows."""
    worst = float(utilisation.max())
    scenario_threshold, link_threshold = (
        (0.9 * worst, 0.8 * worst) if limit is None else (limit * (1 + TARGET_ROUNDING / 2),) * 2
    )
    keys = []
    for failure, matrix in zip(*np.nonzero(utilisation.max(2) >= scenario_threshold), strict=True):
        order = np.argsort(-utilisation[failure, matrix])[:_ROWS_A_SCENARIO]
        keys += [
            (int(failure), int(matrix), int(link))
            for link in order
            if utilisation[failure, matrix, link] >= link_threshold
        ]
    return keys
