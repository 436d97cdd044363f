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

A demand has a policy if any of its shares is not on its direct way; m[d] = 1 - w[d, direct] is the share that moves.

- *Fewest policies* at a utilisation U: min sum_d m[d] s.t. the rows with theta = U.  With l = y / c, any l >= 0 prove

      policies >= sum_d min over l of (cost of l at l, and 1 if it is not the direct way) - U sum l.

- *At most N policies*: min theta s.t. sum_d m[d] <= N.  With the price p >= 0 of that row in the place of 1,

      theta >= (sum_d min over l of (cost of l, and p if it is not the direct way) - p N) / sum l.

Both relax whole numbers.  Lists of so many policies are found by a dive: the demands that move most get a policy that
counts no more, and the program is solved again for the others, until no other demand moves.
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
from teal.pathops.segment_passes import SegmentPasses
from teal.problem.bounds import gap_between
from teal.routing.segments.problem import TARGET_ROUNDING, require_target
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import solve_lp
from teal.solvers.result import Solution, Stop

_MAX_ROUNDS = 200
_ROWS_A_SCENARIO = 3  # links that are added of a scenario in a round
_MIN_SHARE = 1e-7  # of a demand, below which rounding of the master is all that is left of it
_CHEAPER = 1e-9  # relative, by which a list must be cheaper to be added
_FEW_GAP = 0.02  # between the sum of moved shares and its bound, as a share, at which a search for few policies stops
_DIVE_GAP = 1e-3  # of the programs of a dive
_TARGETS = 10  # utilisations whose fewest policies are tried for at most N
_DIVES = 10  # a dive gives at least the n-th part of the demands that move a policy at a time
_WHOLE = 1e-6  # share of a demand, up to which it may not move and still counts as moved whole


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StaticLists(Solution):
    """Shares that serve all scenarios; the value is the largest utilisation of a link in any of them.

    The bound is that over lists with one midpoint that no failure cuts off; an iteration is a linear program.

    Attributes:
        policies: the lists.
        policies_bound: least number of policies of any solution within the utilisation; NaN unless asked for.
        utilisation: (M, F) largest utilisation of a link, for each matrix under each failure.
        straight: value of the IGP's shortest paths alone.
    """

    policies: SegmentPolicies
    policies_bound: float
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """What is minimised over the shares.

    Attributes:
        counts: (D,) 1 for demands whose policy counts, 0 for those that may have one.
        utilisation: U of the fewest policies; None for the least utilisation.
        policies: N, the most policies that count; infinite for any number.
    """

    counts: FloatArray
    utilisation: float | None = None
    policies: float = math.inf


@dataclasses.dataclass(frozen=True, eq=False)
class _Point:
    """Shares, what they reach and what they cost.

    Attributes:
        of, mid, share: (n,) demand, midpoint and share of each column.
        used: (F, M, E) utilisation.
        moved: (D,) share that does not go the direct way.
        prices: (R,) of the rows, of utilisation.
        policy_price: price of a policy that counts.
    """

    of: Int64Array
    mid: Int64Array
    share: FloatArray
    used: FloatArray
    moved: FloatArray
    prices: FloatArray
    policy_price: float

    @property
    def value(self) -> float:
        """Largest utilisation."""
        return float(self.used.max())

    def cleaned(self, scenarios: _Scenarios) -> _Point:
        """The point without shares that are rounding alone; those of a demand sum to 1."""
        share = np.where(self.share > _MIN_SHARE, self.share, 0.0)
        share /= np.bincount(self.of, share)[self.of]
        used = scenarios.utilisation(self.of, self.mid, share)
        return dataclasses.replace(self, share=share, used=used)

    @property
    def steered(self) -> Int64Array:
        """The demands that have a policy."""
        return np.flatnonzero(self.moved > _MIN_SHARE)


class _Master:
    """The rows and columns so far, and the linear programs over them.

    Args:
        scenarios: matrices under failures.
    """

    def __init__(self, scenarios: _Scenarios) -> None:
        self.scenarios, self.demands = scenarios, len(scenarios.pairs)
        self.of, self.mid = np.arange(self.demands), scenarios.target.copy()
        self.rows: list[tuple[int, int, int]] = []
        self.entries = np.zeros((0, self.demands))
        used = scenarios.utilisation(self.of, self.mid, np.ones(self.demands))
        self.unit = float(used.max()) or 1.0  # HiGHS takes less than 1e-7 for 0
        nothing = np.zeros(self.demands)
        self.straight = _Point(self.of, self.mid, np.ones(self.demands), used, nothing, np.zeros(0), 0.0)

    def add_rows(self, keys: Sequence[tuple[int, int, int]]) -> bool:
        """New rows, by failure, matrix and link; whether there is one."""
        known = set(self.rows)
        new = [key for key in keys if key not in known]
        more = [self.scenarios.row(*key, self.of, self.mid)[None] for key in new]
        self.rows += new
        self.entries = np.vstack([self.entries, *more])
        return bool(new)

    def add_columns(self, demand: Int64Array, mid: Int64Array) -> bool:
        """New columns; whether there is one."""
        nodes = self.scenarios.keeps.shape[1]
        is_new = ~np.isin(demand * nodes + mid, self.of * nodes + self.mid)
        demand, mid = demand[is_new], mid[is_new]
        if len(demand):
            more = [self.scenarios.row(*key, demand, mid) for key in self.rows]
            self.entries = np.hstack([self.entries, np.array(more).reshape(len(self.rows), len(demand))])
            self.of, self.mid = np.concatenate([self.of, demand]), np.concatenate([self.mid, mid])
        return bool(len(demand))

    def solve(self, program: _Program, seconds: float) -> _Point | None:
        """The optimum over rows and columns so far; None if HiGHS finds none in time."""
        count = len(self.of)
        is_policy = (self.mid != self.scenarios.target[self.of]) & (self.mid != self.scenarios.source[self.of])
        counted = np.where(is_policy, program.counts[self.of], 0.0)
        scaled, right = self.entries / self.unit, np.zeros(len(self.rows))
        if program.utilisation is None:
            rows = np.hstack([scaled, -np.ones((len(scaled), 1))])
            cost, width = np.append(np.zeros(count), 1.0), count + 1
        else:
            rows, cost, width = scaled, counted, count
            right += program.utilisation / self.unit
        if math.isfinite(program.policies):
            rows = np.vstack([rows, np.pad(counted, (0, width - count))])
            right = np.append(right, program.policies)
        sums = sp.csr_array((np.ones(count), (self.of, np.arange(count))), shape=(self.demands, width))
        high = np.full(width, math.inf)
        high[:count][(counted > 0) & (program.policies == 0)] = 0.0
        found = solve_lp(
            cost, (sp.csr_array(rows), right), (sums, np.ones(self.demands)), high=high, seconds=max(0.05, seconds)
        )  # fmt: skip
        if found.x is None or not found.is_solved:
            return None
        share = np.maximum(found.x[:count], 0.0)
        prices, price = found.duals[: len(self.rows)], 1.0
        if program.utilisation is None:
            price = float(found.duals[-1]) * self.unit if math.isfinite(program.policies) else 0.0
        else:
            prices = prices / self.unit
        moved = np.bincount(self.of[is_policy], share[is_policy], minlength=self.demands).astype(np.float64)
        used = self.scenarios.utilisation(self.of, self.mid, share)
        return _Point(self.of, self.mid, share, used, moved, prices, price)

    def costs(self, program: _Program, point: _Point) -> FloatArray:
        """(D, N) of a whole demand over each midpoint, at the prices of a point, with what a policy costs."""
        prices: dict[tuple[int, int], FloatArray] = {}
        for (failure, matrix, link), y in zip(self.rows, point.prices, strict=True):
            if y > 0:
                price = prices.setdefault((failure, matrix), np.zeros(self.scenarios.capacity.shape[1]))
                price[link] += y / self.scenarios.capacity[failure, link]
        costs = self.scenarios.costs(prices)
        of_policy = np.broadcast_to(point.policy_price * program.counts[:, None], costs.shape).copy()
        for end in (self.scenarios.source, self.scenarios.target):
            of_policy[np.arange(self.demands), end] = 0.0
        return np.asarray(costs + of_policy)


def _optimum(
    master: _Master,
    program: _Program,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[_Point | None, float, int]:
    """Generate rows and columns until the gap: the best point, the bound on value or policies, and the rounds.

    Args:
        master: rows and columns so far, which grow.
        program: program to solve.
        gap: certified gap at which to stop.
        deadline: after which to stop with the best so far.
        report: called after each round with its number, the least value found and the bound.
    """
    limit, demands = program.utilisation, np.arange(master.demands)
    allowed = math.inf if limit is None else limit * (1 + TARGET_ROUNDING)
    best: _Point | None = master.straight if master.straight.value <= allowed else None
    value = master.straight.value if limit is None else math.inf if best is None else 0.0
    bound, number, used = 0.0, 0, master.straight.used
    while value > 0 and number < _MAX_ROUNDS:
        number += 1
        master.add_rows(_fullest(used, limit))
        point = master.solve(program, deadline.left)
        if point is None:
            break
        used = point.used
        found = point.value if limit is None else float(program.counts @ point.moved)
        if point.value <= allowed and found < value:
            value, best = found, point
        costs = master.costs(program, point)
        cheapest = costs.argmin(1)
        least = costs[demands, cheapest]
        total = float(point.prices.sum())
        if limit is not None:
            proven = float(least.sum()) - limit * total
        else:
            spare = point.policy_price * program.policies if point.policy_price else 0.0
            proven = (float(least.sum()) - spare) / max(total, 1e-300)
        bound = max(bound, proven)
        if report is not None:
            report(number, value, bound)
        if (math.isfinite(value) and value - bound <= gap * value) or deadline.is_over:
            break
        at_hand = np.full(master.demands, np.inf)
        np.minimum.at(at_hand, master.of, costs[master.of, master.mid])
        added = np.flatnonzero(least < at_hand * (1 - _CHEAPER))
        if not master.add_columns(added, cheapest[added]) and not set(_fullest(used, limit)) - set(master.rows):
            break
    return best, bound, number


def _fullest(used: FloatArray, limit: float | None) -> list[tuple[int, int, int]]:
    """Failure, matrix and link of the fullest links of the scenarios that are near the worst one, or above a limit."""
    worst = float(used.max())
    near, of_link = (0.9 * worst, 0.8 * worst) if limit is None else (limit * (1 + TARGET_ROUNDING / 2),) * 2
    keys = []
    for failure, matrix in zip(*np.nonzero(used.max(2) >= near), strict=True):
        order = np.argsort(-used[failure, matrix])[:_ROWS_A_SCENARIO]
        keys += [(int(failure), int(matrix), int(link)) for link in order if used[failure, matrix, link] >= of_link]
    return keys


def _dive(master: _Master, program: _Program, start: _Point, deadline: Deadline) -> _Point | None:
    """Give policies to the demands that move most, until no other demand moves (see the module); None if time is over.

    Args:
        master: rows and columns so far.
        program: fewest policies, or at most so many.
        start: optimum of the program.
        deadline: after which to give up.
    """
    counts, point = program.counts.copy(), start
    while True:
        moved = np.where(counts > 0, point.moved, 0.0)
        others = np.flatnonzero(moved > _MIN_SHARE)
        if not len(others):
            return point
        whole = max(int((moved >= 1 - _WHOLE).sum()), 1, len(others) // _DIVES)
        left = program.policies - float((program.counts - counts).sum())
        most = int(min(whole, max(left, 0.0)))
        if not most:
            return point
        counts[np.argsort(-moved, kind="stable")[:most]] = 0.0
        left = max(0.0, left - most)
        found, _, _ = _optimum(
            master, dataclasses.replace(program, counts=counts, policies=left), _DIVE_GAP, deadline
        )  # fmt: skip
        if found is None or deadline.is_over:
            return None
        point = found


def _fewest(master: _Master, utilisation: float, best: _Point, deadline: Deadline) -> tuple[_Point, float, int]:
    """The point with the fewest policies within a utilisation, the bound on their number, and the rounds.

    Args:
        master: rows and columns so far.
        utilisation: U.
        best: a point within it.
        deadline: after which to stop with the best so far.
    """
    program = _Program(np.ones(master.demands), utilisation)
    start, bound, rounds = _optimum(master, program, _FEW_GAP, deadline)
    dived = None if start is None else _dive(master, program, start, deadline)
    found = [one for one in (best, start, dived) if one is not None]
    return min(found, key=lambda one: len(one.steered)), bound, rounds


def _at_most(
    master: _Master, most: int, gap: float, deadline: Deadline, report: Callable[[int, float, float], None] | None
) -> tuple[_Point, float, int]:
    """The point of least utilisation with at most so many policies, the bound on it, and the rounds.

    Points come from a dive, and from fewest policies at utilisations between bound and value: the least utilisation of
    the demands that move most there.
    """
    program = _Program(np.ones(master.demands), policies=float(most))
    start, bound, rounds = _optimum(master, program, gap, deadline, report)
    dived = None if start is None else _dive(master, program, start, deadline)
    best = min([master.straight, *([dived] if dived else [])], key=lambda one: one.value)
    highest = best.value
    for part in range(_TARGETS):
        target = bound + (highest - bound) * part / _TARGETS
        if best.value <= max(target, bound * (1 + gap)) or deadline.is_over:
            break
        fewest, _, more = _optimum(master, _Program(program.counts, target), _FEW_GAP, deadline)
        volume = (best if fewest is None else fewest).moved * master.scenarios.demand.max((0, 1))
        counts = program.counts.copy()
        counts[np.argsort(-volume, kind="stable")[:most]] = 0.0
        found, _, further = _optimum(master, _Program(counts, policies=0.0), _DIVE_GAP, deadline)
        rounds += more + further
        best = min([best, *([found] if found else [])], key=lambda one: one.value)
    return best, bound, rounds


@dataclasses.dataclass(frozen=True)
class Few:
    """Limits on policies; none by default.

    Attributes:
        within: share of the least utilisation by which it may be exceeded for fewest policies; NaN for none.
        target: utilisation that fewest policies keep; NaN for none.
        at_most: number of policies; 0 for any.
        seconds: time for that, beside the deadline of all.
    """

    within: float = math.nan
    target: float = math.nan
    at_most: int = 0
    seconds: float = math.inf


def static_lists(
    dags: Sequence[EcmpDag],
    pairs: Int64Array,
    demand: FloatArray,
    *,
    gap: float = 1e-2,
    few: Few | None = None,
    deadline: Deadline | None = None,
    report: Callable[[int, float, float], None] | None = None,
) -> StaticLists:
    """Segment lists that hold under all failures (equations in the module).

    Args:
        dags: shortest paths without failure, then under each.
        pairs: (D, 2) source and target.
        demand: (M, D) Gbit/s.
        gap: certified gap at which to stop.
        few: how few policies; None for any number.
        deadline: after which the best so far is returned.
        report: called after each round with its number, the least value found and the bound.

    Raises:
        InputError: no demand with a path; a target that no lists keep, or that none were found for.
    """
    begin, end = time.perf_counter(), deadline or Deadline()
    counted = np.flatnonzero((demand > 0).any(0) & dags[0].reaches[pairs[:, 1], pairs[:, 0]])
    if not len(counted):
        raise InputError("segments", "demand", "a demand above 0 between nodes with a path", "none")
    scenarios = _Scenarios(dags, pairs[counted].astype(np.int64), demand[:, counted])
    master = _Master(scenarios)
    every, straight = np.ones(len(counted)), master.straight.value
    found, bound, number = _optimum(master, _Program(every), gap, end, report)
    best = found or master.straight
    policies_bound = math.nan
    reached = gap_between(best.value, min(bound, best.value), -1.0) <= gap
    if few is not None:
        extra = end if math.isfinite(end.left) else Deadline.after(few.seconds)
        if few.at_most:
            best, bound, more = _at_most(master, few.at_most, gap, extra, report)
        else:
            best, least, more = _fewest(master, _limit(few, best, bound), best, extra)
            policies_bound = float(max(0, math.ceil(least - 1e-6)))
        number += more
    best = best.cleaned(scenarios)
    bound = min(bound, best.value)
    policies = _policies(scenarios, best.of, best.mid, best.share)
    return StaticLists(
        policies=policies,
        policies_bound=policies_bound,
        utilisation=best.used.max(2).T,
        value=best.value,
        bound=bound,
        sense=-1.0,
        straight=straight,
        iterations=number,
        solve_s=time.perf_counter() - begin,
        stopped_by=Stop.GAP if reached else Stop.DEADLINE if end.is_over else Stop.ITERATIONS,
    )


def _limit(few: Few, best: _Point, bound: float) -> float:
    """The utilisation within which policies are to be few.

    Raises:
        InputError: no lists keep the target, or the search has found none that do.
    """
    if not math.isnan(few.within):
        return best.value * (1 + few.within)
    require_target(few.target, best.value, bound)
    return max(few.target, best.value)


def _policies(scenarios: _Scenarios, of: Int64Array, mid: Int64Array, share: FloatArray) -> SegmentPolicies:
    parts: dict[int, dict[tuple[int, ...], float]] = {}
    for d, m, w in zip(of.tolist(), mid.tolist(), share.tolist(), strict=True):
        if w > 0:
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
