r"""Segment lists by linear programs: for several matrices and failures together, and with few policies.

A scenario s is a matrix and what has failed; the IGP has converged in each, so that a list puts other fractions g_s(d,
l, e) on the links.  A list whose midpoint is cut off loses its traffic, so that a demand takes no midpoint that any of
the failures cuts off from one of its ends; a demand whose ends are cut off from each other does not count in that
scenario but as far as its midpoints.  With shares w of each demand's lists that sum to 1,

    min theta   s.t.   sum_{d, l} demand_{s,d} g_s(d, l, e) w[d, l] <= theta c_e     for every scenario s and live link
    e.

Any prices y_{s,e} >= 0 prove  theta >= sum_d min over lists l of sum_{s,e} y_{s,e} demand_{s,d} g_s(d, l, e)  over
sum_{s,e} y_{s,e} c_e, and all lists with one midpoint are priced at once.  Rows and columns are generated: only the
links that are full in some scenario, and the lists that its prices ask for, are in the linear program (HiGHS); a column
moves a share of a demand from its direct way, which is a constant, to a midpoint.

A demand has a policy if any of its shares is not on its direct way; m[d] = 1 - w[d, direct] is the share that moves.

- *Fewest policies* at a utilisation U: min sum_d m[d] s.t. the rows with theta = U.  With l = y / c, any l >= 0 prove

      policies >= sum_d min over l of (cost of l at l, and 1 if it is not the direct way) - U sum l.

- *At most N policies*: min theta s.t. sum_d m[d] <= N.  With the price p >= 0 of that row in the place of 1,

      theta >= (sum_d min over l of (cost of l, and p if it is not the direct way) - p N) / sum l.

Both relax whole numbers.  Lists of so many policies are found by a dive: the demands that move most get a policy that
counts no more, and the program is solved again for the others, until no other demand moves.  For at most N policies,
the least utilisation over those N demands that move most at the fewest policies of several utilisations is tried too.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.problem.bounds import gap_between
from teal.routing.segments.problem import TARGET_ROUNDING, SegmentProblem, distinct, require_target
from teal.routing.segments.scenarios import Key, Scenarios, TransitScenarios
from teal.routing.segments.search import SegmentResult
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal.solvers.result import Solution, Stop

_MAX_ROUNDS = 200
_EXTRA_S = 60.0  # for few policies and for one list each, unless there is a deadline
_ROWS_A_SCENARIO = 3  # links that are added of a scenario in a round
_MAX_ADDED = 400  # columns in a round: those that save most
_OF_MASTER = 0.7  # weight of the master's prices, beside the best prices so far, in what columns are chosen by
_FIRST_SHARE = 1e-2  # of a demand, that a midpoint must carry in a start to be a first column
_MIN_SHARE = 1e-7  # of a demand, below which rounding of the master is all that is left of it
_FAR_BELOW, _LEAST_UNIT = 1e-2, 1e-6  # of the unit: values that change it, and how far it falls in a round at most
_CHEAPER = 1e-9  # relative, by which a list must be cheaper to be added
_FEW_GAP = 0.02  # of few policies, their number or utilisation, at which further ways to find them are not tried
_DIVE_GAP = 1e-3  # of the programs of a dive
_TARGETS = 10  # utilisations whose fewest policies are tried for at most N
_DIVES = 10  # a dive gives at least the n-th part of the demands that move a policy at a time
_WHOLE = 1e-6  # share of a demand, up to which it may not move and still counts as moved whole
_MAX_WHOLE_ROUNDS, _WHOLE_S = 20, 20.0  # rounds of new rows for one list each, and seconds of each
_FEW_WHOLE = 5  # policies, up to which at most N of them are also looked for in whole numbers
_LAST_S = 5.0  # seconds of a last linear program over the columns so far, where time is over
_WHOLE_COLUMNS = 1_000  # columns that are added for one list each


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StaticLists(Solution):
    """Shares that serve all scenarios; the value is the largest utilisation of a link in any of them.

    The bound is that over lists with one midpoint that no failure cuts off; an iteration is a linear program.

    Attributes:
        policies: the lists.
        policies_bound: least number of policies of any solution within the utilisation; NaN unless asked for.
        utilisation: (M, F) largest utilisation of a link, for each matrix under each failure.
        straight: value of the IGP's shortest paths alone.
        fractional: value before one list was chosen for each demand; NaN unless asked for.
    """

    policies: SegmentPolicies
    policies_bound: float
    utilisation: FloatArray
    straight: float
    fractional: float


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
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
class _Point:
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


class _Master:
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
        self.entries = np.hstack([self.entries, np.array(more).reshape(len(self.rows), len(demand))])
        self.of, self.mid = np.concatenate([self.of, demand]), np.concatenate([self.mid, mid])
        return bool(len(demand))

    def ban(self, demand: Int64Array, mid: IntArray) -> None:
        """Remove columns, and keep them out."""
        keys = demand * self.scenarios.nodes + mid
        kept = ~np.isin(self.of * self.scenarios.nodes + self.mid, keys)
        self.of, self.mid, self.entries = self.of[kept], self.mid[kept], self.entries[:, kept]
        self._banned = np.append(self._banned, keys)

    def conflicts(self, point: _Point) -> BoolArray:
        """(n,) the columns of a point whose loads are others than the program's (:meth:`Scenarios.conflicting`)."""
        used = point.share > 0
        result = np.zeros(len(used), dtype=bool)
        result[used] = self.scenarios.conflicting(point.of[used], point.mid[used])
        return result

    def can_be_installed(self, point: _Point) -> bool:
        """Whether no policy excludes another one, and none takes what another one steers."""
        if not self.scenarios.is_transit:
            return True
        is_alone = not any(self.scenarios.excluded(d)[point.steered].any() for d in point.steered.tolist())
        return is_alone and not self.conflicts(point).any()

    def largest(self, volume: FloatArray, most: int) -> Int64Array:
        """The policies of the largest volumes (D,), so many at most, of which none excludes another one."""
        order = np.argsort(-volume, kind="stable")
        if not self.scenarios.is_transit:
            return np.asarray(order[:most])
        barred, chosen = volume <= 0, list[int]()
        for d in order.tolist():
            if len(chosen) < most and not barred[d]:
                chosen.append(d)
                barred |= self.scenarios.excluded(d)
        return np.array(chosen, dtype=np.int64)

    def add_used(self, mid: IntArray, share: FloatArray) -> None:
        """Columns for the midpoints (D, K) that carry more than _FIRST_SHARE; -1 for none."""
        demands, slots = np.nonzero((share > _FIRST_SHARE) & (mid >= 0))
        keys = np.unique(demands * self.scenarios.nodes + mid[demands, slots])
        self.add_columns(keys // self.scenarios.nodes, (keys % self.scenarios.nodes).astype(np.int32))

    def solve(self, program: _Program, seconds: float) -> _Point | None:
        """The optimum over rows and columns so far; None if HiGHS finds none in time."""
        count, counted = len(self.of), program.counts[self.of]
        if not count and program.utilisation is not None:
            is_kept = self.straight.value <= program.utilisation * (1 + TARGET_ROUNDING)
            return dataclasses.replace(self.straight, prices=np.zeros(len(self.rows))) if is_kept else None
        sums = self.scenarios.sums(self.of)
        blocks = [sp.csr_array(self.entries / self.unit), sums]
        straight = np.array([self.straight.used[key] for key in self.rows]) / self.unit
        right = [-straight, np.ones(sums.shape[0])]
        if math.isfinite(program.policies):
            blocks, right = [*blocks, sp.csr_array(counted[None])], [*right, np.array([program.policies])]
        rows, cost = sp.vstack(blocks), counted
        is_closed = (counted > 0) & (program.policies == 0)
        is_closed |= False if program.closed is None else program.closed[self.of]
        high = np.where(is_closed, 0.0, math.inf)
        if program.utilisation is None:
            theta = np.zeros((rows.shape[0], 1))
            theta[: len(straight)] = -1.0
            rows, cost = sp.hstack([rows, sp.csr_array(theta)]), np.append(np.zeros(count), 1.0)
            high = np.append(high, math.inf)
        else:
            right[0] = right[0] + program.utilisation / self.unit
        # Interior points and a crossover take an eighth of the time of the simplex method on networks with many ties.
        found = solve_lp(
            cost, (sp.csr_array(rows), np.concatenate(right)), high=high, seconds=max(0.05, seconds),
            by_interior_points=True,
        )  # fmt: skip
        if found.x is None or not found.is_solved:
            return None
        share = np.where(found.x[:count] > _MIN_SHARE, found.x[:count], 0.0)
        share /= np.maximum(1.0, np.bincount(self.of, share, minlength=self.demands))[self.of]
        prices, price = found.duals[: len(straight)], 1.0
        if program.utilisation is None:
            price = float(found.duals[-1]) * self.unit if math.isfinite(program.policies) else 0.0
            price = math.inf if program.policies == 0 else price
        else:
            prices = prices / self.unit
        return self.point(self.of, self.mid, share, prices, price)

    def point(
        self, of: Int64Array, mid: IntArray, share: FloatArray, prices: FloatArray | None = None, price: float = 0.0
    ) -> _Point:
        """The point of shares (n,) of demands by midpoints, with prices where they are known."""
        used = self.scenarios.utilisation(of, mid, share)
        moved = np.bincount(of, share, minlength=self.demands).astype(np.float64)
        return _Point(of, mid, share, used, moved, np.zeros(0) if prices is None else prices, price)

    def largest_free(self, point: _Point, most: int) -> _Program:
        """The least utilisation with policies of those demands alone that move the largest volume at a point."""
        counts = np.ones(self.demands)
        counts[self.largest(point.moved * self.scenarios.largest_offered, most)] = 0.0
        return _Program(counts, policies=0.0)

    def of_links(self, prices: FloatArray) -> dict[tuple[int, int], FloatArray]:
        """Prices (E,) of links, by failure and matrix, of prices (R,) of the rows."""
        of_links: dict[tuple[int, int], FloatArray] = {}
        for (failure, matrix, link), y in zip(self.rows, prices, strict=True):
            if y > 0:
                price = of_links.setdefault((failure, matrix), np.zeros(self.scenarios.capacity.shape[1]))
                price[link] += y / self.scenarios.capacity[failure, link]
        return of_links

    def slots(self, point: _Point) -> tuple[IntArray, FloatArray]:
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


def _optimum(
    master: _Master,
    program: _Program,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
    max_rounds: int = _MAX_ROUNDS,
) -> tuple[_Point | None, float, int]:
    """Generate rows and columns until the gap: the best point, the bound on value or policies, and the rounds.

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
    best: _Point | None = master.straight if master.straight.value <= allowed else None
    value = master.straight.value if limit is None else math.inf if best is None else 0.0
    bound, number, used, best_prices, best_price = 0.0, 0, master.straight.used, np.zeros(0), 0.0
    while value > 0 and number < max_rounds:
        number += 1
        master.add_rows(_fullest(used, limit))
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
        for weight in (_OF_MASTER, 1.0):  # the master's own prices are needed where a mixture finds nothing
            prices = weight * point.prices + (1 - weight) * before
            price = point.policy_price
            price = price if math.isinf(price) else weight * price + (1 - weight) * best_price
            of_policy = np.where(program.counts > 0, price, 0.0)
            of_policy = of_policy if program.closed is None else np.where(program.closed, math.inf, of_policy)
            of_links = master.of_links(prices)
            cheapest, cost, direct = master.scenarios.cheapest(of_links)
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
            np.minimum.at(at_hand, master.of, direct[master.of] + prices @ master.entries + of_policy[master.of])
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
        if not is_new and master.has(_fullest(used, limit)):
            break
    return best, bound, number


def _fullest(used: FloatArray, limit: float | None) -> list[Key]:
    """The fullest links of the scenarios that are near the worst one, or above a limit."""
    worst = float(used.max())
    near, of_link = (0.9 * worst, 0.8 * worst) if limit is None else (limit * (1 + TARGET_ROUNDING / 2),) * 2
    keys = []
    for failure, matrix in zip(*np.nonzero(used.max(2) >= near), strict=True):
        order = np.argsort(-used[failure, matrix])[:_ROWS_A_SCENARIO]
        keys += [(int(failure), int(matrix), int(link)) for link in order if used[failure, matrix, link] >= of_link]
    return keys


def _of_largest(master: _Master, point: _Point, most: int) -> _Point | None:
    """The optimum of :meth:`_Master.largest_free` over the columns so far."""
    return master.solve(master.largest_free(point, most), _LAST_S)


def _best(master: _Master, *points: _Point | None) -> _Point:
    """The point of least utilisation, of those that can be installed; the first one always can."""
    return min(
        (one for one in points if one is not None and (one is points[0] or master.can_be_installed(one))),
        key=lambda one: one.value,
    )


def _dive(master: _Master, program: _Program, start: _Point, deadline: Deadline) -> _Point | None:
    """Give policies to the demands that move most, until no other demand moves (see the module).

    Where time is over, None for fewest policies, and else what the columns so far allow those that move most.

    Args:
        master: rows and columns so far.
        program: fewest policies, or at most so many.
        start: optimum of the program.
        deadline: after which to give up.
    """
    counts, left, point = program.counts.copy(), program.policies, start
    closed = np.zeros(master.demands, dtype=bool)
    while True:
        moved = np.where(counts > 0, point.moved, 0.0)
        others = int(np.count_nonzero(moved))
        whole = max(int(np.count_nonzero(moved >= 1 - _WHOLE)), 1, others // _DIVES)
        most = whole if whole <= left else int(left)
        if not others or not most:
            met = master.conflicts(point)
            if not met.any():
                return point
            master.ban(point.of[met], point.mid[met])
        else:
            freed = master.largest(moved, most)
            counts[freed] = 0.0
            left -= len(freed)
            for excluded in map(master.scenarios.excluded, freed.tolist() if master.scenarios.is_transit else ()):
                closed |= excluded
        found, _, _ = _optimum(
            master, dataclasses.replace(program, counts=counts, policies=left, closed=closed), _DIVE_GAP, deadline
        )  # fmt: skip
        if found is None or deadline.is_over:
            return None if program.utilisation is not None else _of_largest(master, point, int(program.policies))
        point = found


def _fewest(master: _Master, utilisation: float, gap: float, deadline: Deadline) -> tuple[list[_Point], float, int]:
    """Points with few policies within a utilisation, the bound on their number, and the rounds.

    Args:
        master: rows and columns so far.
        utilisation: U.
        gap: between the sum of moved shares and its bound, as a share, at which to stop.
        deadline: after which to stop with the best so far.
    """
    program = _Program(np.ones(master.demands), utilisation)
    start, bound, rounds = _optimum(master, program, gap, deadline)
    least = float(max(0, math.ceil(bound - 1e-6)))
    is_near = start is None or len(start.steered) <= least * (1 + _FEW_GAP)
    dived = None if start is None or is_near else _dive(master, program, start, deadline)
    return [one for one in (start, dived) if one is not None and master.can_be_installed(one)], least, rounds


def _at_most(
    master: _Master,
    most: int,
    any_number: _Point,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[_Point, float, int]:
    """The point of least utilisation with at most so many policies, the bound on it, and the rounds.

    Args:
        master: rows and columns so far.
        most: N.
        any_number: a point of any number of policies.
        gap: certified gap at which to stop.
        deadline: after which to stop with the best so far.
        report: see :func:`_optimum`.
    """
    program = _Program(np.ones(master.demands), policies=float(most))
    start, bound, rounds = _optimum(master, program, gap, deadline, report)
    tried = [None if start is None else _dive(master, program, start, deadline)]
    is_enough = len(any_number.steered) <= most and master.can_be_installed(any_number)
    tried.append(any_number if is_enough else _of_largest(master, any_number, most))
    best = _best(master, master.straight, *tried)
    highest = best.value
    for part in range(_TARGETS):
        target = bound + (highest - bound) * part / _TARGETS
        if best.value <= max(target, bound * (1 + gap)) or deadline.is_over:
            break
        fewest, _, more = _optimum(master, _Program(program.counts, target), _FEW_GAP, deadline)
        freed = master.largest_free(best if fewest is None else fewest, most)
        found, _, further = _optimum(master, freed, _DIVE_GAP, deadline)
        rounds += more + further
        best = _best(master, best, found)
    if most <= _FEW_WHOLE and best.value > bound * (1 + max(gap, _FEW_GAP)) and not deadline.is_over:
        whole = _one_list(master, most, master.straight, gap, Deadline(time.perf_counter() + _WHOLE_S / 4, deadline))
        split = _of_largest(master, whole, most)
        best = _best(master, best, whole, split)
    return best, min(bound, best.value), rounds


def _one_list(master: _Master, most: float, start: _Point, gap: float, deadline: Deadline) -> _Point:
    """One list for each demand, and at most so many policies: the least utilisation in whole numbers.

    Columns are those so far, and those that save most at the prices of the program with splits.

    Args:
        master: rows and columns so far.
        most: number of policies; infinite for any.
        start: point that is kept where it splits no demand and nothing better is found.
        gap: relative gap of the program in whole numbers, at which HiGHS stops.
        deadline: after which to stop with the best so far.
    """
    point = master.solve(_Program(np.ones(master.demands), policies=most), deadline.left)
    if point is not None:
        master.add_columns(*master.scenarios.promising(master.of_links(point.prices), _WHOLE_COLUMNS))
    of, mid, count = master.of, master.mid, len(master.of)
    is_split = bool(((start.share > 0) & (start.share < 1)).any())
    best = master.straight if is_split else start
    sums = sp.hstack([master.scenarios.sums(of), sp.csr_array((len(np.unique(of)), 1))], format="csr")
    number = sp.csr_array(np.append(np.ones(count), 0.0)[None])
    for _ in range(_MAX_WHOLE_ROUNDS):
        straight = np.array([master.straight.used[key] for key in master.rows]) / master.unit
        theta = -np.ones((len(straight), 1))
        rows = sp.csr_array(np.hstack([master.entries / master.unit, theta]))
        found = solve_milp(
            np.append(np.zeros(count), 1.0),
            [Between(rows, high=-straight), Between(sums, high=1.0), Between(number, high=most)],
            np.append(np.ones(count), 0.0), seconds=max(0.1, min(deadline.left, _WHOLE_S)), relative_gap=gap,
        )  # fmt: skip
        if found.x is None:
            break
        tried = master.point(of, mid, np.round(found.x[:-1]))
        gains = tried.value < best.value * (1 - TARGET_ROUNDING)  # no policy that gains nothing
        best = tried if gains and master.can_be_installed(tried) else best
        if deadline.is_over or master.has(_fullest(tried.used, None)):
            break
        master.add_rows(_fullest(tried.used, None))
    return best


@dataclasses.dataclass(frozen=True)
class Few:
    """A limit on policies, one of three.

    Attributes:
        within: share of the least utilisation by which it may be exceeded for fewest policies; NaN for none.
        target: utilisation that fewest policies keep; NaN for none.
        at_most: number of policies; 0 for any.

    Raises:
        InputError: none of them, several, or a number below 0.
    """

    within: float = math.nan
    target: float = math.nan
    at_most: int = 0

    def __post_init__(self) -> None:
        given = [not math.isnan(self.within), not math.isnan(self.target), self.at_most != 0]
        if sum(given) != 1 or min(self.at_most, *(x for x in (self.within, self.target) if not math.isnan(x)), 0) < 0:
            raise InputError("few", "", "one of within, target and at_most, at least 0", self)

    def limit(self, value: float, bound: float, lists: str) -> float:
        """The utilisation within which policies are to be few.

        Args:
            value: least utilisation that was found.
            bound: bound on it.
            lists: lists that the bound is of, for the message.

        Raises:
            InputError: no lists keep the target, or the search has found none that do.
        """
        if not math.isnan(self.within):
            return value * (1 + self.within)
        require_target(self.target, value, bound, lists)
        return max(self.target, value)


def static_lists(
    dags: Sequence[EcmpDag],
    pairs: Int64Array,
    demand: FloatArray,
    *,
    gap: float = 1e-2,
    few: Few | None = None,
    one_list: bool = False,
    transit: bool = False,
    deadline: Deadline | None = None,
    max_rounds: int = _MAX_ROUNDS,
    report: Callable[[int, float, float], None] | None = None,
) -> StaticLists:
    """Segment lists that hold under all failures (equations in the module).

    Args:
        dags: shortest paths without failure, then under each.
        pairs: (D, 2) source and target.
        demand: (M, D) Gbit/s.
        gap: certified gap at which to stop.
        few: how few policies; None for any number.
        one_list: whether no demand is split; not together with fewest policies.
        transit: whether a policy steers all traffic that crosses its router towards its endpoint; few policies only.
        deadline: after which the best so far is returned.
        max_rounds: number of linear programs of the search for any number of policies, at most.
        report: called after each round with its number, the least value found and the bound.

    Raises:
        InputError: no demand with a path; one list with fewest policies; a target that no lists keep, or that none were
            found for.
    """
    begin, end = time.perf_counter(), deadline or Deadline()
    if one_list and few is not None and not few.at_most:
        raise InputError("one_list", "", "false with fewest policies", one_list)
    if transit and few is None:
        raise InputError("transit", "", "few policies: within, target or at_most", "any number")
    counted = np.flatnonzero((demand > 0).any(0) & dags[0].reaches[pairs[:, 1], pairs[:, 0]])
    if not len(counted):
        raise InputError("segments", "demand", "a demand above 0 between nodes with a path", "none")
    source, target, of = distinct(pairs[counted])
    summed = np.array([np.bincount(of, one[counted]) for one in demand])
    master = _Master((TransitScenarios if transit else Scenarios)(dags, source, target, summed))
    found, bound, number = _optimum(master, _Program(np.ones(master.demands)), gap, end, report, max_rounds)
    best, policies_bound = found or master.straight, math.nan
    reached = gap_between(best.value, min(bound, best.value), -1.0) <= gap
    extra = end if math.isfinite(end.left) else Deadline.after(_EXTRA_S)
    if few is not None:
        if few.at_most:
            best, least_value, more = _at_most(master, few.at_most, best, gap, extra, report)
            bound = max(bound, least_value)
        else:
            limit = few.limit(best.value, bound, "no lists with one midpoint that no failure cuts off")
            points, policies_bound, more = _fewest(master, limit, _FEW_GAP, extra)
            points += [best] if master.can_be_installed(best) else []
            if not points:
                raise InputError("few", "", f"transit policies that keep {limit:.4g}", "none found")
            best = min(points, key=lambda one: len(one.steered))
        number += more
    fractional = math.nan
    if one_list:
        most = math.inf if few is None else float(few.at_most)
        split, best = best.value, _one_list(master, most, best, max(gap, _DIVE_GAP), extra)
        fractional = min(split, best.value)
    return StaticLists(
        policies=_policies(master.scenarios, best),
        policies_bound=policies_bound,
        utilisation=best.used.max(2).T,
        value=best.value,
        bound=min(bound, best.value),
        sense=-1.0,
        straight=master.straight.value,
        fractional=fractional,
        iterations=number,
        solve_s=time.perf_counter() - begin,
        stopped_by=Stop.GAP if reached else Stop.DEADLINE if end.is_over else Stop.ITERATIONS,
    )


def _policies(scenarios: Scenarios, point: _Point) -> SegmentPolicies:
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for d in point.steered.tolist():
        used = np.flatnonzero((point.of == d) & (point.share > 0))
        shares = zip(point.mid[used].tolist(), point.share[used].tolist(), strict=True)
        parts: dict[tuple[int, ...], float] = {(m,): w for m, w in shares}
        rest = 1 - sum(parts.values())
        if rest > _MIN_SHARE:
            parts[()] = rest
        total = sum(parts.values())
        pair = int(scenarios.source[d]), int(scenarios.target[d])
        lists[pair] = tuple(SegmentList(w / total, stops) for stops, w in sorted(parts.items()))
    return SegmentPolicies(lists, scenarios.is_transit)


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
    problem: SegmentProblem, start: SegmentResult, utilisation: float, deadline: Deadline, gap: float = _FEW_GAP
) -> FewPolicies:
    """Solve the second program of the module for one matrix without failures.

    Args:
        problem: the matrix, balanced.
        start: a solution whose utilisation is at most ``utilisation``.
        utilisation: U.
        deadline: after which to stop with the best so far.
        gap: between the sum of shares and its bound, as a share, at which to stop.
    """
    begin, master = time.perf_counter(), _master_of(problem, start)
    points, bound, _ = _fewest(master, utilisation, gap, deadline)
    few = [_of_point(problem, *master.slots(point), bound, begin) for point in points]
    return min([*few, _of_point(problem, start.mid, start.share, bound, begin)], key=lambda one: one.policies)


def least_utilisation(
    problem: SegmentProblem, start: SegmentResult, most: int, deadline: Deadline, gap: float = _DIVE_GAP
) -> tuple[FewPolicies, float]:
    """The least utilisation that was found with at most ``most`` policies, and a bound on that of any such lists.

    Args:
        problem: the matrix, balanced.
        start: a solution, of any number of policies.
        most: N.
        deadline: after which to stop with the best so far.
        gap: certified gap at which to stop.
    """
    begin, master = time.perf_counter(), _master_of(problem, start)
    is_column = (start.share > _MIN_SHARE) & (start.mid >= 0) & (start.mid != problem.target[:, None])
    of, slots = np.nonzero(is_column & (start.mid != problem.source[:, None]))
    any_number = master.point(of, start.mid[of, slots], start.share[of, slots])
    point, bound, _ = _at_most(master, most, any_number, gap, deadline)
    found = [_of_point(problem, *master.slots(point), 0.0, begin)]
    found += [one for one in [_of_point(problem, start.mid, start.share, 0.0, begin)] if one.policies <= most]
    best = min(found, key=lambda one: one.utilisation)
    return best, min(max(bound, start.bound), best.utilisation)


def _master_of(problem: SegmentProblem, start: SegmentResult) -> _Master:
    master = _Master(Scenarios([problem.dag], problem.source, problem.target, problem.demand[None]))
    master.add_used(start.mid, start.share)
    return master


def _of_point(problem: SegmentProblem, mid: IntArray, share: FloatArray, bound: float, begin: float) -> FewPolicies:
    utilisation = problem.utilisation(problem.loads(mid, share))
    seconds = time.perf_counter() - begin
    return FewPolicies(mid, share, utilisation, int(problem.steered(mid, share).sum()), bound, seconds)
