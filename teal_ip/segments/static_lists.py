r"""Segment lists by linear programs: for several matrices and failures together, and with few
policies.

A scenario s is a matrix and what has failed; the IGP has converged in each, so that a list puts
other fractions g_s(d, l, e) on the links.  A list whose midpoint is cut off loses its traffic, so
that a demand takes no midpoint that any of the failures cuts off from one of its ends; a demand
whose ends are cut off from each other does not count in that scenario but as far as its midpoints.
With shares w of each demand's lists that sum to 1,

    min theta   s.t.   sum_{d, l} demand_{s,d} g_s(d, l, e) w[d, l] <= theta c_e
                       for every scenario s and live link
    e.

Any prices y_{s,e} >= 0 prove  theta >= sum_d min over lists l of sum_{s,e} y_{s,e} demand_{s,d}
g_s(d, l, e)  over sum_{s,e} y_{s,e} c_e, and all lists with one midpoint are priced at once.  Rows
and columns are generated: only the links that are full in some scenario, and the lists that its
prices ask for, are in the linear program (HiGHS); a column moves a share of a demand from its
direct way, which is a constant, to a midpoint.

A demand has a policy if any of its shares is not on its direct way; m[d] = 1 - w[d, direct] is the
share that moves.

- *Fewest policies* at a utilisation U: min sum_d m[d] s.t. the rows with theta = U.  With l = y /
  c, any l >= 0 prove

      policies >= sum_d min over l of (cost of l at l, and 1 if it is not the direct way) - U sum l.

- *At most N policies*: min theta s.t. sum_d m[d] <= N.  With the price p >= 0 of that row in the
  place of 1,

      theta >= (sum_d min over l of (cost of l, and p if it is not the direct way) - p N) / sum l.

Both relax whole numbers, which :mod:`teal_ip.segments.few` finds.

*Transit policies* steer what crosses a router towards an endpoint.  Then d is a pair of router and
endpoint, demand_{s,d} what crosses, and a list moves it from the direct way of all that stays.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.problem.bounds import gap_between
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.solvers.result import Solution, Stop
from teal_ip.segments.few import DIVE_GAP, FEW_GAP, Few, at_most, fewest, one_list_each
from teal_ip.segments.problem import TARGET_ROUNDING, SegmentProblem, distinct
from teal_ip.segments.programs import MAX_ROUNDS, MIN_SHARE, Master, Point, Program, optimum
from teal_ip.segments.scenarios import Scenarios, TransitScenarios
from teal_ip.segments.search import SegmentResult

# transit policies, more of which are not tried for the least utilisation that can be installed
_MANY = 10
_EXTRA_S = 60.0  # for few policies and for one list each, unless there is a deadline


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StaticLists(Solution):
    """Shares that serve all scenarios; the value is the largest utilisation of a link in any of
    them.

    The bound is that over lists with one midpoint that no failure cuts off; an iteration is a
    linear program.

    Attributes:
        policies: the lists.
        policies_bound: least number of policies of any solution within the utilisation; NaN unless
            asked for.
        utilisation: (M, F) largest utilisation of a link, for each matrix under each failure.
        straight: value of the IGP's shortest paths alone.
        fractional: value before one list was chosen for each demand; NaN unless asked for.
    """

    policies: SegmentPolicies
    policies_bound: float
    utilisation: FloatArray
    straight: float
    fractional: float


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
    max_rounds: int = MAX_ROUNDS,
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
        transit: whether a policy steers all traffic that crosses its router towards its endpoint;
            few policies only.
        deadline: after which the best so far is returned.
        max_rounds: number of linear programs of the search for any number of policies, at most.
        report: called after each round with its number, the least value found and the bound.

    Raises:
        InputError: no demand with a path; one list with fewest policies; a target that no lists
            keep, or that none were found for.
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
    master = Master((TransitScenarios if transit else Scenarios)(dags, source, target, summed))
    found, bound, number = optimum(
        master, Program(np.ones(master.demands)), gap, end, report, max_rounds
    )
    best, policies_bound = found or master.straight, math.nan
    reached = gap_between(best.value, min(bound, best.value), -1.0) <= gap
    extra = end if math.isfinite(end.left) else Deadline.after(_EXTRA_S)
    if few is not None:
        if few.at_most:
            best, least_value, more = at_most(master, few.at_most, best, gap, extra, report)
            bound = max(bound, least_value)
        else:
            lists = "no lists with one midpoint that no failure cuts off"
            limit = few.limit(best.value, bound, lists)
            points, policies_bound, more = fewest(master, limit, FEW_GAP, extra)
            points += [best] if master.can_be_installed(best) else []
            if not points:  # what any number reaches has transit policies that exclude each other
                least, _, _ = at_most(master, _MANY, best, gap, extra)
                limit = few.limit(least.value, bound, lists)
                points, policies_bound, more = fewest(master, limit, FEW_GAP, extra)
                points.append(least)
            best = min(
                (one for one in points if one.value <= limit * (1 + TARGET_ROUNDING)),
                key=lambda one: len(one.steered),
            )
        number += more
    fractional = math.nan
    if one_list:
        most = math.inf if few is None else float(few.at_most)
        split, best = best.value, one_list_each(master, most, best, max(gap, DIVE_GAP), extra)
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


def _policies(scenarios: Scenarios, point: Point) -> SegmentPolicies:
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for d in point.steered.tolist():
        used = np.flatnonzero((point.of == d) & (point.share > 0))
        shares = zip(point.mid[used].tolist(), point.share[used].tolist(), strict=True)
        parts: dict[tuple[int, ...], float] = {(m,): w for m, w in shares}
        rest = 1 - sum(parts.values())
        if rest > MIN_SHARE:
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
    problem: SegmentProblem,
    start: SegmentResult,
    utilisation: float,
    deadline: Deadline,
    gap: float = FEW_GAP,
) -> FewPolicies:
    """Find few policies that keep a utilisation, for one matrix without failures.

    Args:
        problem: the matrix, balanced.
        start: a solution whose utilisation is at most ``utilisation``.
        utilisation: U.
        deadline: after which to stop with the best so far.
        gap: between the sum of shares and its bound, as a share, at which to stop.
    """
    begin, master = time.perf_counter(), _master_of(problem, start)
    points, bound, _ = fewest(master, utilisation, gap, deadline)
    few = [_of_point(problem, *master.slots(point), bound, begin) for point in points]
    return min(
        [*few, _of_point(problem, start.mid, start.share, bound, begin)],
        key=lambda one: one.policies,
    )


def least_utilisation(
    problem: SegmentProblem,
    start: SegmentResult,
    most: int,
    deadline: Deadline,
    gap: float = DIVE_GAP,
) -> tuple[FewPolicies, float]:
    """The least utilisation that was found with at most ``most`` policies, and a bound on that of
    any such lists.

    Args:
        problem: the matrix, balanced.
        start: a solution, of any number of policies.
        most: N.
        deadline: after which to stop with the best so far.
        gap: certified gap at which to stop.
    """
    begin, master = time.perf_counter(), _master_of(problem, start)
    is_column = (
        (start.share > MIN_SHARE) & (start.mid >= 0) & (start.mid != problem.target[:, None])
    )
    of, slots = np.nonzero(is_column & (start.mid != problem.source[:, None]))
    any_number = master.point(of, start.mid[of, slots], start.share[of, slots])
    point, bound, _ = at_most(master, most, any_number, gap, deadline)
    found = [_of_point(problem, *master.slots(point), 0.0, begin)]
    found += [
        one
        for one in [_of_point(problem, start.mid, start.share, 0.0, begin)]
        if one.policies <= most
    ]
    best = min(found, key=lambda one: one.utilisation)
    return best, min(max(bound, start.bound), best.utilisation)


def unsplit(
    problem: SegmentProblem,
    start: SegmentResult,
    mid: IntArray,
    deadline: Deadline,
    gap: float = DIVE_GAP,
) -> tuple[IntArray, float]:
    """One list for each demand by an integer program over the lists that save most: midpoints (D,
    1), utilisation.

    Args:
        problem: the matrix, balanced.
        start: a solution with splits.
        mid: (D, 1) one list for each demand, which is kept where nothing better is found.
        deadline: after which to stop with the best so far.
        gap: relative gap of the program, at which HiGHS stops.
    """
    master, ones = _master_of(problem, start), np.ones(mid.shape)
    master.add_used(mid, ones)
    of = np.flatnonzero((mid[:, 0] != problem.target) & (mid[:, 0] != problem.source))
    found = one_list_each(
        master, math.inf, master.point(of, mid[of, 0], np.ones(len(of))), gap, deadline
    )
    slots, share = master.slots(found)
    chosen = np.take_along_axis(slots, share.argmax(1)[:, None], 1)
    return min(
        ((one, problem.utilisation(problem.loads(one, ones))) for one in (mid, chosen)),
        key=lambda one: one[1],
    )


def _master_of(problem: SegmentProblem, start: SegmentResult) -> Master:
    master = Master(Scenarios([problem.dag], problem.source, problem.target, problem.demand[None]))
    master.add_used(start.mid, start.share)
    return master


def _of_point(
    problem: SegmentProblem, mid: IntArray, share: FloatArray, bound: float, begin: float
) -> FewPolicies:
    utilisation = problem.utilisation(problem.loads(mid, share))
    seconds = time.perf_counter() - begin
    return FewPolicies(
        mid, share, utilisation, int(problem.steered(mid, share).sum()), bound, seconds
    )
