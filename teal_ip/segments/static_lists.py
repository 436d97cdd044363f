r"""Segment lists for several matrices and failures together, and with few policies: column and row
generation over linear programs.

A scenario s is a matrix and a failure.  The IGP has converged in each, so a list has other
fractions g_s(d, l, e) on the links.  A list with a disconnected midpoint loses its traffic.
Therefore a demand uses no midpoint that any of the failures disconnects from one of its ends; in a
scenario that disconnects the demand's ends it counts only as far as its midpoints.  With split
ratios w of each demand's lists that sum to 1,

    min theta   s.t.   sum_{d, l} demand_{s,d} g_s(d, l, e) w[d, l] <= theta c_e
                       for every scenario s and live link e.

Any prices y_{s,e} >= 0 prove  theta >= sum_d min over lists l of sum_{s,e} y_{s,e} demand_{s,d}
g_s(d, l, e)  over sum_{s,e} y_{s,e} c_e, and all lists with one midpoint are priced at once.  Rows
and columns are generated: the linear program (HiGHS) has only the links that are most utilised in
some scenario, and the lists that price out; a column moves a share of a demand from its shortest
paths, which are a constant, to a midpoint.

A demand has a policy if any of its shares is not on its shortest paths (l = direct); m[d] = 1 -
w[d, direct] is the share that moves.

- *Fewest policies* at a utilisation U: min sum_d m[d] s.t. the rows with theta = U.  With l = y /
  c, any l >= 0 prove

      policies >= sum_d min over l of (cost of l at l, and 1 if it is not the direct way) - U sum l.

- *At most N policies*: min theta s.t. sum_d m[d] <= N.  With the dual price p >= 0 of that row in
  place of 1,

      theta >= (sum_d min over l of (cost of l, and p if it is not the direct way) - p N) / sum l.

Both relax integrality; :mod:`teal_ip.segments.few` finds integer solutions.

*Transit policies* steer the traffic that crosses a router towards an endpoint.  Then d is a pair of
router and endpoint, demand_{s,d} the crossing traffic, and a list moves it from the shortest paths
of all remaining traffic.  Entry points: :func:`static_lists`; for a single matrix
:func:`fewest_policies`, :func:`least_utilisation` and :func:`unsplit`.
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
from teal_ip.segments.problem import TARGET_ROUNDING, SegmentProblem, unique_pairs
from teal_ip.segments.programs import MAX_ROUNDS, MIN_SHARE, Master, Point, Program, optimum
from teal_ip.segments.scenarios import Scenarios, TransitScenarios
from teal_ip.segments.search import SegmentResult

# Transit policies up to which the least installable utilisation is searched for.
_MANY_POLICIES = 10
# Time limit for few policies and for one list per demand without a deadline, seconds.
_EXTRA_S = 60.0


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StaticLists(Solution):
    """Split ratios that serve all scenarios; the value is the largest link utilisation of any.

    The bound holds over lists with one midpoint that no failure disconnects; an iteration is a
    linear program.

    Attributes:
        policies: the segment lists.
        policies_bound: lower bound on the number of policies within the utilisation; NaN unless
            policies were minimised.
        utilisation: (M, F) largest link utilisation for each matrix under each failure.
        straight: value of the IGP's shortest paths alone.
        fractional: value with splits, before one list per demand was chosen; NaN without that step.
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
    """Optimise segment lists that serve all matrices under all failures (module docstring).

    Args:
        dags: shortest paths without failure, then under each.
        pairs: (D, 2) source and target.
        demand: (M, D) Gbit/s.
        gap: certified gap at which to stop.
        few: limit on the number of policies; None for any number.
        one_list: whether no demand is split; not together with fewest policies.
        transit: whether a policy steers all traffic that crosses its router towards its endpoint;
            requires ``few``.
        deadline: time limit, after which the incumbent is returned.
        max_rounds: largest number of linear programs of the search with any number of policies.
        report: called after each round with its index, the incumbent's value and the bound.

    Raises:
        InputError: no demand with a path; one list with fewest policies; a target utilisation that
            is infeasible or was not reached.
    """
    begin = time.perf_counter()
    time_limit = deadline or Deadline()
    if one_list and few is not None and not few.at_most:
        raise InputError("one_list", "", "false with fewest policies", one_list)
    if transit and few is None:
        raise InputError("transit", "", "few policies: within, target or at_most", "any number")
    # Any number of policies.
    master = Master(_scenarios_of(dags, pairs, demand, transit=transit))
    unrestricted, bound, num_rounds = optimum(
        master, Program(np.ones(master.demands)), gap, time_limit, report, max_rounds
    )
    best = unrestricted or master.straight
    policies_bound = math.nan
    reached = gap_between(best.value, min(bound, best.value), -1.0) <= gap
    # Few policies.
    extra = time_limit if math.isfinite(time_limit.remaining_s) else Deadline.after(_EXTRA_S)
    if few is not None and few.at_most:
        best, few_bound, extra_rounds = at_most(master, few.at_most, best, gap, extra, report)
        bound = max(bound, few_bound)
        num_rounds += extra_rounds
    elif few is not None:
        best, policies_bound, extra_rounds = _with_fewest_policies(
            master, few, best, bound, gap, extra
        )
        num_rounds += extra_rounds
    # One list per demand.
    fractional = math.nan
    if one_list:
        max_policies = math.inf if few is None else float(few.at_most)
        split = best.value
        best = one_list_each(master, max_policies, best, max(gap, DIVE_GAP), extra)
        fractional = min(split, best.value)
    # The deadline counts only if the search with any number of policies missed the gap.
    stopped_by = Stop.GAP if reached else Stop.DEADLINE if time_limit.is_over else Stop.ITERATIONS
    return StaticLists(
        policies=_policies(master.scenarios, best),
        policies_bound=policies_bound,
        utilisation=best.used.max(2).T,
        value=best.value,
        bound=min(bound, best.value),
        sense=-1.0,
        straight=master.straight.value,
        fractional=fractional,
        iterations=num_rounds,
        solve_s=time.perf_counter() - begin,
        stopped_by=stopped_by,
    )


def _scenarios_of(
    dags: Sequence[EcmpDag], pairs: Int64Array, demand: FloatArray, *, transit: bool
) -> Scenarios:
    """Return the scenarios of the demands that have a path; demands of equal pairs are merged.

    Raises:
        InputError: no demand with a path.
    """
    routable = np.flatnonzero((demand > 0).any(0) & dags[0].reaches[pairs[:, 1], pairs[:, 0]])
    if not len(routable):
        raise InputError("segments", "demand", "a demand above 0 between nodes with a path", "none")
    source, target, pair_index = unique_pairs(pairs[routable])
    pair_demand = np.array([np.bincount(pair_index, matrix[routable]) for matrix in demand])
    return (TransitScenarios if transit else Scenarios)(dags, source, target, pair_demand)


def _with_fewest_policies(
    master: Master, few: Few, start: Point, bound: float, gap: float, deadline: Deadline
) -> tuple[Point, float, int]:
    """Return the point of fewest policies within the allowed utilisation, the bound on their
    number, and the number of rounds.

    Args:
        master: rows and columns so far.
        few: allowed utilisation.
        start: optimum with any number of policies.
        bound: lower bound on the utilisation.
        gap: certified gap at which searches for the least utilisation stop.
        deadline: time limit, after which the incumbent is returned.

    Raises:
        InputError: a target utilisation that is infeasible or was not reached.
    """
    lists = "no lists with one midpoint that no failure cuts off"
    limit = few.limit(start.value, bound, lists)
    points, policies_bound, num_rounds = fewest(master, limit, FEW_GAP, deadline)
    points += [start] if master.can_be_installed(start) else []
    if not points:
        # The unrestricted optimum has transit policies that exclude each other.
        installable, _, _ = at_most(master, _MANY_POLICIES, start, gap, deadline)
        limit = few.limit(installable.value, bound, lists)
        points, policies_bound, num_rounds = fewest(master, limit, FEW_GAP, deadline)
        points.append(installable)
    best = min(
        (point for point in points if point.value <= limit * (1 + TARGET_ROUNDING)),
        key=lambda point: len(point.steered),
    )
    return best, policies_bound, num_rounds


def _policies(scenarios: Scenarios, point: Point) -> SegmentPolicies:
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for d in point.steered.tolist():
        columns = np.flatnonzero((point.of == d) & (point.share > 0))
        shares = zip(point.mid[columns].tolist(), point.share[columns].tolist(), strict=True)
        share_by_stops: dict[tuple[int, ...], float] = {(m,): w for m, w in shares}
        remaining = 1 - sum(share_by_stops.values())
        if remaining > MIN_SHARE:
            share_by_stops[()] = remaining
        total = sum(share_by_stops.values())
        pair = int(scenarios.source[d]), int(scenarios.target[d])
        lists[pair] = tuple(
            SegmentList(w / total, stops) for stops, w in sorted(share_by_stops.items())
        )
    return SegmentPolicies(lists, scenarios.is_transit)


@dataclasses.dataclass(frozen=True, eq=False)
class FewPolicies:
    """Routing with few policies that keeps a utilisation.

    Attributes:
        mid: (D, K) midpoints.
        share: (D, K) split ratios.
        utilisation: largest link utilisation.
        policies: number of demands that have a policy.
        bound: lower bound on the number of policies with this utilisation.
        solve_s: solve time, seconds.
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
    """Minimise the number of policies within a utilisation, for one matrix without failures.

    Args:
        problem: the matrix, balanced.
        start: a solution whose utilisation is at most ``utilisation``.
        utilisation: limit U.
        deadline: time limit, after which the incumbent is returned.
        gap: relative gap between the sum of shares and its bound at which to stop.
    """
    begin = time.perf_counter()
    master = _master_of(problem, start)
    points, bound, _ = fewest(master, utilisation, gap, deadline)
    candidates = [_few_policies(problem, *master.slots(point), bound, begin) for point in points]
    return min(
        [*candidates, _few_policies(problem, start.mid, start.share, bound, begin)],
        key=lambda routing: routing.policies,
    )


def least_utilisation(
    problem: SegmentProblem,
    start: SegmentResult,
    max_policies: int,
    deadline: Deadline,
    gap: float = DIVE_GAP,
) -> tuple[FewPolicies, float]:
    """Minimise the utilisation with at most ``max_policies`` policies; return routing and bound.

    Args:
        problem: the matrix, balanced.
        start: a solution with any number of policies.
        max_policies: largest number of policies, N.
        deadline: time limit, after which the incumbent is returned.
        gap: certified gap at which to stop.
    """
    begin = time.perf_counter()
    master = _master_of(problem, start)
    is_column = (
        (start.share > MIN_SHARE) & (start.mid >= 0) & (start.mid != problem.target[:, None])
    )
    demands, slots = np.nonzero(is_column & (start.mid != problem.source[:, None]))
    any_number = master.point(demands, start.mid[demands, slots], start.share[demands, slots])
    point, bound, _ = at_most(master, max_policies, any_number, gap, deadline)
    candidates = [_few_policies(problem, *master.slots(point), 0.0, begin)]
    start_routing = _few_policies(problem, start.mid, start.share, 0.0, begin)
    if start_routing.policies <= max_policies:
        candidates.append(start_routing)
    best = min(candidates, key=lambda routing: routing.utilisation)
    return best, min(max(bound, start.bound), best.utilisation)


def unsplit(
    problem: SegmentProblem,
    start: SegmentResult,
    mid: IntArray,
    deadline: Deadline,
    gap: float = DIVE_GAP,
) -> tuple[IntArray, float]:
    """Solve an integer program for one list per demand, over the lists that save most; return
    midpoints (D, 1) and utilisation.

    Args:
        problem: the matrix, balanced.
        start: a solution with splits.
        mid: (D, 1) incumbent with one list per demand, returned if no better one exists.
        deadline: time limit, after which the incumbent is returned.
        gap: relative gap of the integer program at which HiGHS stops.
    """
    master = _master_of(problem, start)
    ones = np.ones(mid.shape)
    master.add_used(mid, ones)
    demands = np.flatnonzero((mid[:, 0] != problem.target) & (mid[:, 0] != problem.source))
    unsplit_point = one_list_each(
        master,
        math.inf,
        master.point(demands, mid[demands, 0], np.ones(len(demands))),
        gap,
        deadline,
    )
    slots, share = master.slots(unsplit_point)
    best_mid = np.take_along_axis(slots, share.argmax(1)[:, None], 1)
    candidates = [
        (midpoints, problem.utilisation(problem.loads(midpoints, ones)))
        for midpoints in (mid, best_mid)
    ]
    return min(candidates, key=lambda candidate: candidate[1])


def _master_of(problem: SegmentProblem, start: SegmentResult) -> Master:
    master = Master(Scenarios([problem.dag], problem.source, problem.target, problem.demand[None]))
    master.add_used(start.mid, start.share)
    return master


def _few_policies(
    problem: SegmentProblem, mid: IntArray, share: FloatArray, bound: float, begin: float
) -> FewPolicies:
    utilisation = problem.utilisation(problem.loads(mid, share))
    seconds = time.perf_counter() - begin
    return FewPolicies(
        mid, share, utilisation, int(problem.steered(mid, share).sum()), bound, seconds
    )
