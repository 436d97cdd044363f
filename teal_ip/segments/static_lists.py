r"""Segment lists for several matrices and failures together, and with few policies: column and row
generation over linear programs.

A scenario s is a matrix and a failure.  The IGP has converged in each scenario, so list l of demand
d has other fractions g_s(d, l, e) of its traffic on link e.  A list with a disconnected midpoint
loses its traffic.  Therefore a demand uses no midpoint that any of the failures disconnects from
one of its ends.  In a scenario that disconnects the demand's ends, a list carries traffic only as
far as its midpoint.  With split ratios w of each demand's lists that sum to 1,

    min theta   s.t.   sum_{d, l} demand_{s,d} g_s(d, l, e) w[d, l] <= theta c_e
                       for every scenario s and live link e.

Any prices y_{s,e} >= 0 prove  theta >= sum_d min over lists l of sum_{s,e} y_{s,e} demand_{s,d}
g_s(d, l, e)  over sum_{s,e} y_{s,e} c_e, and all lists with one midpoint are priced at once.  Rows
and columns are generated: the linear program (HiGHS) has only rows of links that are most utilised
in some scenario, and columns of lists that price out.  A column moves a share of a demand from its
shortest paths, whose loads are constant, to the list over a midpoint.

A demand has a policy if any share of it is not on its shortest paths (l = direct); m[d] = 1 -
w[d, direct] is the share that moves.  Below, cost_y[d, l] is the cost of list l at link prices y /
c, plus the price of a policy unless l = direct.

- *Fewest policies* at a utilisation U: min sum_d m[d] s.t. the rows with theta = U.  With a policy
  price of 1, any row prices y >= 0 prove

      policies >= sum_d min over l of cost_y[d, l] - U sum y.

- *At most N policies*: min theta s.t. sum_d m[d] <= N.  With the dual price p >= 0 of that row as
  policy price,

      theta >= (sum_d min over l of cost_y[d, l] - p N) / sum y.

Both relax integrality; :mod:`teal_ip.segments.few` finds integer solutions.

*Transit policies* steer the traffic that crosses a router towards an endpoint.  Then d is a pair of
router and endpoint, demand_{s,d} the crossing traffic, and a list moves it from the shortest paths
of all remaining traffic.

Axis letters: F failures (index 0: no failure), M matrices, D demands, K slots (midpoints of a
demand).  Entry points: :func:`static_lists`; for a single matrix
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

# Limit on the number of transit policies when an installable point is searched for.
_MANY_POLICIES = 10
# Time limit for few policies and for one list per demand without a deadline, seconds.
_EXTRA_S = 60.0


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StaticLists(Solution):
    """Split ratios that serve all scenarios; the value is the largest link utilisation of any.

    The bound holds over lists with one midpoint that no failure disconnects; the number of
    iterations is that of linear programs.

    Attributes:
        policies: the segment lists.
        policies_bound: lower bound on the number of policies within the utilisation; NaN unless
            policies were minimised.
        utilisation: (M, F) largest link utilisation for each matrix without, then under each
            failure.
        straight: largest link utilisation under the IGP's shortest paths alone.
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
    """Optimise segment lists that serve all matrices under all failures: minimise the largest link
    utilisation, or the number of policies within a utilisation.

    Args:
        dags: (F,) shortest paths without failure, then under each.
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
        raise InputError.invalid(
            "one_list", "", "cannot be combined with fewest policies", "use few.at_most instead"
        )
    if transit and few is None:
        raise InputError.invalid(
            "transit",
            "",
            "transit policies need a limit on their number",
            "set within, target or at_most of few",
        )
    # Splits with any number of policies.
    master = Master(_make_scenarios(dags, pairs, demand, transit=transit))
    unrestricted_point, bound, num_rounds = optimum(
        master, Program(np.ones(master.num_demands)), gap, time_limit, report, max_rounds
    )
    incumbent = unrestricted_point or master.shortest_paths
    policies_bound = math.nan
    reached_gap = gap_between(incumbent.value, min(bound, incumbent.value), -1.0) <= gap
    # Few policies: least utilisation with at most N policies, or fewest within a utilisation.  The
    # step has a time limit of its own if there is no deadline.
    extra_deadline = (
        time_limit if math.isfinite(time_limit.remaining_s) else Deadline.after(_EXTRA_S)
    )
    if few is not None and few.at_most:
        incumbent, few_bound, extra_rounds = at_most(
            master, few.at_most, incumbent, gap, extra_deadline, report
        )
        bound = max(bound, few_bound)
        num_rounds += extra_rounds
    elif few is not None:
        incumbent, policies_bound, extra_rounds = _with_fewest_policies(
            master, few, incumbent, bound, gap, extra_deadline
        )
        num_rounds += extra_rounds
    # One list per demand.
    fractional = math.nan
    if one_list:
        max_policies = math.inf if few is None else float(few.at_most)
        split_value = incumbent.value
        incumbent = one_list_each(
            master, max_policies, incumbent, max(gap, DIVE_GAP), extra_deadline
        )
        fractional = min(split_value, incumbent.value)
    # The deadline counts only if the search with any number of policies missed the gap.
    stopped_by = (
        Stop.GAP if reached_gap else Stop.DEADLINE if time_limit.is_over else Stop.ITERATIONS
    )
    return StaticLists(
        policies=_policies(master.scenarios, incumbent),
        policies_bound=policies_bound,
        utilisation=incumbent.utilisation.max(2).T,
        value=incumbent.value,
        bound=min(bound, incumbent.value),
        sense=-1.0,
        straight=master.shortest_paths.value,
        fractional=fractional,
        iterations=num_rounds,
        solve_s=time.perf_counter() - begin,
        stopped_by=stopped_by,
    )


def _make_scenarios(
    dags: Sequence[EcmpDag], pairs: Int64Array, demand: FloatArray, *, transit: bool
) -> Scenarios:
    """Return the scenarios of the demands that have a path; demands of equal pairs are merged.

    Args:
        dags: (F,) shortest paths without failure, then under each.
        pairs: (D, 2) source and target.
        demand: (M, D) Gbit/s.
        transit: whether policies steer the traffic that crosses a router.

    Raises:
        InputError: no demand with a path.
    """
    # Demands above 0 in some matrix that have a path without failure (target first).
    routable = np.flatnonzero((demand > 0).any(0) & dags[0].reaches[pairs[:, 1], pairs[:, 0]])
    if not len(routable):
        raise InputError.invalid(
            "segments", "demand", "no matrix has a demand above 0 between connected nodes"
        )
    source, target, pair_index = unique_pairs(pairs[routable])
    pair_demand = np.array([np.bincount(pair_index, matrix[routable]) for matrix in demand])
    return (TransitScenarios if transit else Scenarios)(dags, source, target, pair_demand)


def _with_fewest_policies(
    master: Master, few: Few, start: Point, bound: float, gap: float, deadline: Deadline
) -> tuple[Point, float, int]:
    """Return the point with the fewest policies within the allowed utilisation.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        few: allowed utilisation.
        start: optimum with any number of policies.
        bound: lower bound on the utilisation.
        gap: certified gap at which searches for the least utilisation stop.
        deadline: time limit, after which the incumbent is returned.

    Returns:
        the point, the lower bound on the number of policies, and the number of rounds.

    Raises:
        InputError: a target utilisation that is infeasible or was not reached.
    """
    list_kind = "lists with one midpoint that no failure disconnects"
    limit = few.utilisation_limit(start.value, bound, list_kind)
    points, policies_bound, num_rounds = fewest(master, limit, FEW_GAP, deadline)
    # The start is feasible, too, if its policies can be installed together.
    points += [start] if master.can_be_installed(start) else []
    if not points:
        # All points have transit policies that exclude each other: search for a few that do not,
        # and allow their utilisation.
        installable, _, _ = at_most(master, _MANY_POLICIES, start, gap, deadline)
        limit = few.utilisation_limit(installable.value, bound, list_kind)
        points, policies_bound, num_rounds = fewest(master, limit, FEW_GAP, deadline)
        points.append(installable)
    best = min(
        (point for point in points if point.value <= limit * (1 + TARGET_ROUNDING)),
        key=lambda point: len(point.steered),
    )
    return best, policies_bound, num_rounds


def _policies(scenarios: Scenarios, point: Point) -> SegmentPolicies:
    """Return the segment lists of the demands with a policy; the split ratios of a demand sum to 1.

    Args:
        scenarios: ends of the policies.
        point: columns and shares.
    """
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for d in point.steered.tolist():
        # A list for each midpoint with a share; the remaining share has no stop.
        columns = np.flatnonzero((point.demand == d) & (point.share > 0))
        mid_share_pairs = zip(
            point.mid[columns].tolist(), point.share[columns].tolist(), strict=True
        )
        share_by_stops: dict[tuple[int, ...], float] = {
            (midpoint,): list_share for midpoint, list_share in mid_share_pairs
        }
        remaining = 1 - sum(share_by_stops.values())
        if remaining > MIN_SHARE:
            share_by_stops[()] = remaining
        total = sum(share_by_stops.values())
        pair = int(scenarios.source[d]), int(scenarios.target[d])
        lists[pair] = tuple(
            SegmentList(list_share / total, stops)
            for stops, list_share in sorted(share_by_stops.items())
        )
    return SegmentPolicies(lists, scenarios.is_transit)


@dataclasses.dataclass(frozen=True, eq=False)
class FewPolicies:
    """Midpoints and split ratios in which few demands have a policy, within a utilisation.

    Attributes:
        mid: (D, K) midpoints; the target itself for the shortest paths, -1 for an empty slot.
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
        problem: routing of one matrix over lists with at most one midpoint, which minimises the
            largest utilisation.
        start: a solution whose utilisation is at most ``utilisation``.
        utilisation: utilisation limit U.
        deadline: time limit, after which the incumbent is returned.
        gap: relative gap between the sum of moved shares and its bound at which to stop.
    """
    begin = time.perf_counter()
    master = _make_master(problem, start)
    points, bound, _ = fewest(master, utilisation, gap, deadline)
    candidates = [_few_policies(problem, *master.slots(point), bound, begin) for point in points]
    # The start is feasible, too.
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
    """Minimise the utilisation with at most N policies, for one matrix without failures.

    Args:
        problem: routing of one matrix over lists with at most one midpoint, which minimises the
            largest utilisation.
        start: a solution with any number of policies.
        max_policies: largest number of policies, N.
        deadline: time limit, after which the incumbent is returned.
        gap: certified gap at which to stop.

    Returns:
        the routing, and the lower bound on the utilisation.
    """
    begin = time.perf_counter()
    master = _make_master(problem, start)
    # The start as a point of the master: one column for each midpoint with a share, except ends of
    # the demand, which are no midpoints.
    is_column = (
        (start.share > MIN_SHARE) & (start.mid >= 0) & (start.mid != problem.target[:, None])
    )
    demands, slots = np.nonzero(is_column & (start.mid != problem.source[:, None]))
    start_point = master.point(demands, start.mid[demands, slots], start.share[demands, slots])
    # Least utilisation with N policies; the start is a candidate, too, if it has at most N.
    point, bound, _ = at_most(master, max_policies, start_point, gap, deadline)
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
    """Choose one list per demand by an integer program over the lists that save most.

    Args:
        problem: routing of one matrix over lists with at most one midpoint, which minimises the
            largest utilisation.
        start: a solution with splits.
        mid: (D, 1) incumbent with one list per demand, returned if no better one exists.
        deadline: time limit, after which the incumbent is returned.
        gap: relative gap of the integer program at which HiGHS stops.

    Returns:
        midpoints (D, 1) and the largest link utilisation.
    """
    master = _make_master(problem, start)
    ones = np.ones(mid.shape)
    master.add_columns_in_use(mid, ones)
    # Incumbent as a point, and its improvement.
    demands = np.flatnonzero((mid[:, 0] != problem.target) & (mid[:, 0] != problem.source))
    unsplit_point = one_list_each(
        master,
        math.inf,
        master.point(demands, mid[demands, 0], np.ones(len(demands))),
        gap,
        deadline,
    )
    slot_mid, share = master.slots(unsplit_point)
    # Midpoint (D, 1) with the share of 1; the incumbent is retained if it is better.
    best_mid = np.take_along_axis(slot_mid, share.argmax(1)[:, None], 1)
    candidates = [
        (midpoints, problem.utilisation(problem.loads(midpoints, ones)))
        for midpoints in (mid, best_mid)
    ]
    return min(candidates, key=lambda candidate: candidate[1])


def _make_master(problem: SegmentProblem, start: SegmentResult) -> Master:
    """Return the master of one matrix without failures, with the columns of a solution."""
    master = Master(Scenarios([problem.dag], problem.source, problem.target, problem.demand[None]))
    master.add_columns_in_use(start.mid, start.share)
    return master


def _few_policies(
    problem: SegmentProblem, mid: IntArray, share: FloatArray, bound: float, begin: float
) -> FewPolicies:
    """Return these midpoints and split ratios with their utilisation and number of policies.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        mid: (D, K) midpoints; the target itself for the shortest paths, -1 for an empty slot.
        share: (D, K) split ratios.
        bound: lower bound on the number of policies.
        begin: start of the search on the clock of time.perf_counter, seconds.
    """
    utilisation = problem.utilisation(problem.loads(mid, share))
    seconds = time.perf_counter() - begin
    return FewPolicies(
        mid, share, utilisation, int(problem.steered(mid, share).sum()), bound, seconds
    )
