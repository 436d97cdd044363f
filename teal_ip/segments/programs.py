"""The linear programs of :mod:`teal_ip.segments.static_lists`, over the rows and columns that were
generated.
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
_ROWS_A_SCENARIO = 3  # links that are added of a scenario in a round
_MAX_ADDED = 400  # columns in a round: those that save most
# weight of the master's prices, beside the best prices so far, in what columns are chosen by
_OF_MASTER = 0.7
_FIRST_SHARE = 1e-2  # of a demand, that a midpoint must carry in a start to be a first column
MIN_SHARE = 1e-7  # of a demand, below which rounding of the master is all that is left of it
# Of the unit: values that change it, and how far it falls in a round at most.
_FAR_BELOW = 1e-2
_LEAST_UNIT = 1e-6
_CHEAPER = 1e-9  # relative, by which a list must be cheaper to be added


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One program over the shares.

    Attributes:
        counts: (D,) 1 for demands whose policy counts, 0 for those that may have one.
        utilisation: U of the fewest policies; None for the least utilisation.
        policies: N, the most policies that count; infinite for any number.
        closed: (D,) whether no policy is allowed; None for nowhere.
    """

    counts: FloatArray
    utilisation: float | None = None
    policies: float = math.inf
    closed: BoolArray | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """Shares, what they reach and what they cost.

    Attributes:
        of, mid, share: (n,) demand, midpoint and share of each column; the rest goes straight.
        used: (F, M, E) utilisation.
        moved: (D,) share that does not go straight.
        prices: (R,) of the rows, of utilisation.
        policy_price: price of a policy that counts.
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
        """Largest utilisation."""
        return float(self.used.max())

    @property
    def steered(self) -> Int64Array:
        """The demands that have a policy."""
        return np.flatnonzero(self.moved)


class Master:
    """The rows and columns so far, and the linear programs over them.

    Args:
        scenarios: matrices under failures.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        self.scenarios, self.demands = scenarios, len(scenarios.source)
        self.of, self.mid = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        self._banned = np.zeros(0, dtype=np.int64)  # policy and midpoint in one number
        self.rows: list[Key] = []
        self._known: set[Key] = set()
        self.entries = np.zeros((0, 0))
        self.straight = self.point(self.of, self.mid, np.zeros(0))
        self.unit = self.straight.value or 1.0  # HiGHS takes less than 1e-7 for 0

    def add_rows(self, keys: Sequence[Key]) -> None:
        """New rows; those that are there already are left out."""
        new = [key for key in keys if key not in self._known]
        more = [self.scenarios.row(key, self.of, self.mid) for key in new]
        self.entries = np.vstack([self.entries, np.array(more).reshape(len(new), len(self.of))])
        self.rows += new
        self._known |= set(new)

    def has(self, keys: Sequence[Key]) -> bool:
        """Whether all these rows are there."""
        return self._known.issuperset(keys)

    def add_columns(self, demand: Int64Array, mid: IntArray) -> bool:
        """New columns, each (demand, midpoint) once; whether there is one."""
        nodes = self.scenarios.nodes
        is_new = ~np.isin(demand * nodes + mid, np.append(self.of * nodes + self.mid, self._banned))
        is_new &= (mid != self.scenarios.target[demand]) & (mid != self.scenarios.source[demand])
        demand, mid = demand[is_new], mid[is_new]
        more = [self.scenarios.row(key, demand, mid) for key in self.rows]
        self.entries = np.hstack(
            [self.entries, np.array(more).reshape(len(self.rows), len(demand))]
        )
        self.of, self.mid = np.concatenate([self.of, demand]), np.concatenate([self.mid, mid])
        return bool(len(demand))

    def ban(self, demand: Int64Array, mid: IntArray) -> None:
        """Remove columns, and keep them out."""
        keys = demand * self.scenarios.nodes + mid
        kept = ~np.isin(self.of * self.scenarios.nodes + self.mid, keys)
        self.of, self.mid, self.entries = self.of[kept], self.mid[kept], self.entries[:, kept]
        self._banned = np.append(self._banned, keys)

    def conflicts(self, point: Point) -> BoolArray:
        """(n,) the columns of a point whose loads are others than the program's
        (:meth:`Scenarios.conflicting`).
        """
        used = point.share > 0
        result = np.zeros(len(used), dtype=bool)
        result[used] = self.scenarios.conflicting(point.of[used], point.mid[used])
        return result

    def can_be_installed(self, point: Point) -> bool:
        """Whether no policy excludes another one, and none takes what another one steers."""
        steered = point.steered
        return (
            not self.scenarios.excluded(steered)[steered].any() and not self.conflicts(point).any()
        )

    def largest(self, volume: FloatArray, most: int) -> Int64Array:
        """The policies of the largest volumes (D,), so many at most, of which none excludes another
        one.
        """
        order = np.argsort(-volume, kind="stable")
        if not self.scenarios.is_transit:
            return np.asarray(order[:most])
        barred, chosen = volume <= 0, list[int]()
        for d in order.tolist():
            if len(chosen) < most and not barred[d]:
                chosen.append(d)
                barred |= self.scenarios.excluded(np.array([d]))
        return np.array(chosen, dtype=np.int64)

    def add_used(self, mid: IntArray, share: FloatArray) -> None:
        """Columns for the midpoints (D, K) that carry more than _FIRST_SHARE; -1 for none."""
        demands, slots = np.nonzero((share > _FIRST_SHARE) & (mid >= 0))
        keys = np.unique(demands * self.scenarios.nodes + mid[demands, slots])
        self.add_columns(
            keys // self.scenarios.nodes, (keys % self.scenarios.nodes).astype(np.int32)
        )

    def solve(self, program: Program, seconds: float) -> Point | None:
        """The optimum over rows and columns so far; None if HiGHS finds none in time."""
        # Of each column: whether it is a policy that the program counts.
        num_columns, counted = len(self.of), program.counts[self.of]
        if not num_columns and program.utilisation is not None:
            is_kept = self.straight.value <= program.utilisation * (1 + TARGET_ROUNDING)
            return (
                dataclasses.replace(self.straight, prices=np.zeros(len(self.rows)))
                if is_kept
                else None
            )
        sums = self.scenarios.sums(self.of)
        blocks = [sp.csr_array(self.entries / self.unit), sums]
        straight = np.array([self.straight.used[key] for key in self.rows]) / self.unit
        right = [-straight, np.ones(sums.shape[0])]
        has_limit = math.isfinite(program.policies)
        if has_limit:
            blocks, right = (
                [*blocks, sp.csr_array(counted[None])],
                [*right, np.array([program.policies])],
            )
        rows, cost = sp.vstack(blocks), counted
        is_closed = (counted > 0) & (program.policies == 0)
        is_closed |= False if program.closed is None else program.closed[self.of]
        high = np.where(is_closed, 0.0, math.inf)
        if program.utilisation is None:
            theta = np.zeros((rows.shape[0], 1))
            theta[: len(straight)] = -1.0
            rows = sp.hstack([rows, sp.csr_array(theta)])
            cost = np.append(np.zeros(num_columns), 1.0)
            high = np.append(high, math.inf)
        else:
            right[0] = right[0] + program.utilisation / self.unit
        # Interior points and a crossover take an eighth of the time of the simplex method on
        # networks with many ties.
        found = solve_lp(
            cost,
            (sp.csr_array(rows), np.concatenate(right)),
            high=high,
            seconds=max(0.05, seconds),
            by_interior_points=True,
        )
        if found.x is None or not found.is_solved:
            return None
        share = np.where(found.x[:num_columns] > MIN_SHARE, found.x[:num_columns], 0.0)
        share /= np.maximum(1.0, np.bincount(self.of, share, minlength=self.demands))[self.of]
        prices, policy_price = found.duals[: len(straight)], 1.0
        if program.utilisation is None:
            # theta is in ``unit``: of the duals only that of the number of policies is rescaled.
            policy_price = float(found.duals[-1]) * self.unit if has_limit else 0.0
            policy_price = math.inf if program.policies == 0 else policy_price
        else:  # the rows are in ``unit``
            prices = prices / self.unit
        return self.point(self.of, self.mid, share, prices, policy_price)

    def point(
        self,
        of: Int64Array,
        mid: IntArray,
        share: FloatArray,
        prices: FloatArray | None = None,
        price: float = 0.0,
    ) -> Point:
        """The point of shares (n,) of demands by midpoints, with prices where they are known."""
        used = self.scenarios.utilisation(of, mid, share)
        moved = np.bincount(of, share, minlength=self.demands).astype(np.float64)
        return Point(of, mid, share, used, moved, np.zeros(0) if prices is None else prices, price)

    def largest_free(self, point: Point, most: int) -> Program:
        """The least utilisation with policies of those demands alone that move the largest volume
        at a point.
        """
        counts = np.ones(self.demands)
        counts[self.largest(point.moved * self.scenarios.largest_offered, most)] = 0.0
        return Program(counts, policies=0.0)

    def of_links(self, prices: FloatArray) -> dict[tuple[int, int], FloatArray]:
        """Prices (E,) of links, by failure and matrix, of prices (R,) of the rows."""
        of_links: dict[tuple[int, int], FloatArray] = {}
        for (failure, matrix, link), y in zip(self.rows, prices, strict=True):
            if y > 0:
                price = of_links.setdefault(
                    (failure, matrix), np.zeros(self.scenarios.capacity.shape[1])
                )
                price[link] += y / self.scenarios.capacity[failure, link]
        return of_links

    def slots(self, point: Point) -> tuple[IntArray, FloatArray]:
        """Midpoints and shares (D, K) of a point, the direct way first."""
        used = np.flatnonzero(point.share)
        used = used[np.argsort(point.of[used], kind="stable")]
        demands = point.of[used]
        place = np.arange(len(used)) - np.searchsorted(demands, demands) + 1
        mid = np.full((self.demands, int(place.max(initial=0)) + 1), -1, dtype=np.int32)
        share = np.zeros(mid.shape)
        mid[:, 0] = self.scenarios.target
        mid[demands, place], share[demands, place] = point.mid[used], point.share[used]
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
    """Generate rows and columns until the gap: the best point, the bound on value or policies, and
    the rounds.

    Args:
        master: rows and columns so far, which grow.
        program: program to solve.
        gap: certified gap at which to stop.
        deadline: after which to stop with the best so far.
        report: called after each round with its number, the least value found and the bound.
        max_rounds: number of rounds, at most.
    """
    limit = program.utilisation
    allowed = math.inf if limit is None else limit * (1 + TARGET_ROUNDING)
    best: Point | None = master.straight if master.straight.value <= allowed else None
    value = master.straight.value if limit is None else math.inf if best is None else 0.0
    bound, number, used, best_prices, best_price = 0.0, 0, master.straight.used, np.zeros(0), 0.0
    while value > 0 and number < max_rounds:
        number += 1
        master.add_rows(fullest(used, limit))
        point = master.solve(program, deadline.left)
        if point is None:
            break
        used = point.used
        if point.value < _FAR_BELOW * master.unit:  # of the next program
            master.unit = max(point.value, _LEAST_UNIT * master.unit)
        found = point.value if limit is None else float(program.counts @ point.moved)
        if point.value <= allowed and found < value:
            value, best = found, point
        is_new = False
        before = np.pad(best_prices, (0, len(point.prices) - len(best_prices)))
        for weight in (
            _OF_MASTER,
            1.0,
        ):  # the master's own prices are needed where a mixture finds nothing
            prices = weight * point.prices + (1 - weight) * before
            price = point.policy_price
            price = price if math.isinf(price) else weight * price + (1 - weight) * best_price
            of_policy = np.where(program.counts > 0, price, 0.0)
            of_policy = (
                of_policy
                if program.closed is None
                else np.where(program.closed, math.inf, of_policy)
            )
            of_links = master.of_links(prices)
            answer = master.scenarios.cheapest(of_links, deadline)
            if answer is None:
                break
            cheapest, cost, direct = answer
            cost = cost + of_policy
            least, total = master.scenarios.least(cost, direct, of_links), float(prices.sum())
            if limit is not None:
                proven = least - limit * total
            else:
                spare = price * program.policies if 0 < price < math.inf else 0.0
                proven = (least - spare) / max(total, 1e-300)
            if proven > bound:
                bound, best_prices, best_price = proven, prices, price
            at_hand = direct.copy()
            np.minimum.at(
                at_hand,
                master.of,
                direct[master.of] + prices @ master.entries + of_policy[master.of],
            )
            saving = at_hand - cost
            most = np.argsort(-saving)[:_MAX_ADDED]
            most = most[saving[most] > _CHEAPER * at_hand[most]]
            is_new = master.add_columns(most, cheapest[most])
            if is_new:
                break
        if report is not None:
            report(number, value, bound)
        if (math.isfinite(value) and value - bound <= gap * value) or deadline.is_over:
            break
        if not is_new and master.has(fullest(used, limit)):
            break
    return best, bound, number


def fullest(used: FloatArray, limit: float | None) -> list[Key]:
    """The fullest links of the scenarios that are near the worst one, or above a limit."""
    worst = float(used.max())
    near, of_link = (
        (0.9 * worst, 0.8 * worst) if limit is None else (limit * (1 + TARGET_ROUNDING / 2),) * 2
    )
    keys = []
    for failure, matrix in zip(*np.nonzero(used.max(2) >= near), strict=True):
        order = np.argsort(-used[failure, matrix])[:_ROWS_A_SCENARIO]
        keys += [
            (int(failure), int(matrix), int(link))
            for link in order
            if used[failure, matrix, link] >= of_link
        ]
    return keys
