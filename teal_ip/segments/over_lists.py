"""Column generation over segment lists of at most L segments, for every objective, with a bound
over all such lists.

The restricted master program over the current lists is solved; under its dual prices the cheapest
list of every demand is priced and added.  No demand has a cheaper list than the ones added, so the
bound of :mod:`teal.problem` over the extended columns holds for all lists.  Objectives and
validation are those of explicit paths.

Pricing is a dynamic program.  With the price S[v, u] of the segment from u to v, and p[e] of link
e, the least cost from s to v with at most l segments is

    C_0[s, v] = 0 for v = s, infinite otherwise,
    C_l[s, v] = min( C_(l-1)[s, v],  min over u of C_(l-1)[s, u] + S[v, u],
                     min over links e = (u, v) of C_(l-1)[s, u] + p[e] ),

where the last term applies only if adjacency segments (single links) are allowed.  All pairs take
L N^3 additions.  Ties go to the list with fewer segments.

Axis letters: B matrices, D demands, M stops of a list, E links, N nodes, R rows of prices.  Entry
points: :func:`cheapest_lists` (pricing), :func:`solve_over_lists`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import compute_paths
from teal.network.candidate_lists import CandidateLists
from teal.network.ecmp import EcmpDag
from teal.objectives import ObjectiveName
from teal.pathops.segment_passes import SegmentPasses
from teal.problem import Allocation, Assessment, Problem, assess
from teal.problem.bounds import all_paths_bound, dual_bound, finite_prices
from teal.problem.bounds import gap as certified_gap
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline, complete
from teal.runtime.parallel import inner_kernel, partitioned_kernel, threads_for
from teal.schemes.igp import check_igp_program
from teal.solvers.columns import generating_columns
from teal.solvers.pipeline import solve
from teal.solvers.result import SolveResult
from teal_ip.segments.problem import UNIFORM_WEIGHTS, SegmentProblem
from teal_ip.segments.search import solve as solve_two_segments

# Relative saving that a list with one more segment must have to replace the shorter list.
_MIN_SAVING = 1e-9
# Instead of the link index of an adjacency segment: the level adds no segment to the list.
_NO_SEGMENT = -2
# Instead of the link index of an adjacency segment: a node segment, on the IGP's shortest paths.
_NODE_SEGMENT = -1


@partitioned_kernel("old_cost")
def _extend(  # type: ignore[no-untyped-def]
    begin,
    end,
    segment_price,
    link_price,
    tail,
    head,
    allows_adjacency,
    old_cost,
    new_cost,
    from_node,
    by_link,
):
    """Extend the cheapest lists of every source by at most one segment (one level of the dynamic
    program).

        new_cost[s, v] = min(old_cost[s, v], min over u of old_cost[s, u] + price of segment u to v)

    for sources s and nodes u and v.  Threads split the sources ``begin`` to ``end``.

    Args:
        segment_price: (N, N) price of the segment from the first node to the second one.
        link_price: (E,) link prices; infinite for failed links.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends.
        allows_adjacency: whether adjacency segments (single links) are allowed.
        old_cost: (N, N) least cost with one segment less, source first.
        new_cost: (N, N) output, least cost, source first.
        from_node: (N, N) output, node where the last segment starts; undefined without a new one.
        by_link: (N, N) output, link of an adjacency segment; _NODE_SEGMENT for a node segment, _NO_SEGMENT if
            the list has no new segment.
    """
    nodes = len(old_cost)
    for s in range(begin, end):
        # The list without a new segment.
        new_cost[s, :] = old_cost[s, :]
        by_link[s, :] = _NO_SEGMENT
        # A new node segment, from u to v.
        for u in range(nodes):
            cost_to_node = old_cost[s, u]
            if cost_to_node == np.inf:
                continue
            for v in range(nodes):
                cost = cost_to_node + segment_price[u, v]
                if cost < new_cost[s, v] - _MIN_SAVING * cost:
                    new_cost[s, v] = cost
                    from_node[s, v] = u
                    by_link[s, v] = _NODE_SEGMENT
        # A new adjacency segment, over link e.
        if allows_adjacency:
            for e in range(len(tail)):
                cost = old_cost[s, tail[e]] + link_price[e]
                if cost < new_cost[s, head[e]] - _MIN_SAVING * cost:
                    new_cost[s, head[e]] = cost
                    from_node[s, head[e]] = tail[e]
                    by_link[s, head[e]] = e


@inner_kernel
def _trace_back(source, target, from_node, by_link, stop, link) -> None:  # type: ignore[no-untyped-def]
    """Trace the cheapest list of one demand back through the levels of the dynamic program.

    A node segment that ends at the target is no stop.

    Args:
        source: source of the demand.
        target: target of the demand.
        from_node: (L, N, N) node where the last segment starts, per level, source first.
        by_link: (L, N, N) link of the last segment; _NODE_SEGMENT for a node segment, _NO_SEGMENT for none.
        stop: (M,) output, stops in order; entries behind the last stop are not written.
        link: (M,) output, link by which each stop is reached; -1 for shortest paths.
    """
    level = len(from_node) - 1
    node = target
    count = 0
    while level >= 0 and node != source:
        segment_link = by_link[level, source, node]
        if segment_link != _NO_SEGMENT:
            # The list ends at the target anyway, so a last node segment to it needs no stop.
            if not (segment_link == _NODE_SEGMENT and node == target and count == 0):
                stop[count] = node
                link[count] = segment_link
                count += 1
            node = from_node[level, source, node]
        level -= 1
    # Reverse: the stops were found from the target to the source.
    stop[:count] = stop[:count][::-1].copy()
    link[:count] = link[:count][::-1].copy()


@partitioned_kernel("pairs")
def _trace_back_all(begin, end, pairs, from_node, by_link, stop, link) -> None:  # type: ignore[no-untyped-def]
    """Trace back the cheapest lists of the demands ``begin`` to ``end``.

    Args:
        pairs: (D, 2) source and target.
        from_node: (L, N, N) node where the last segment starts, per level, source first.
        by_link: (L, N, N) link of the last segment; _NODE_SEGMENT for a node segment, _NO_SEGMENT for none.
        stop: (D, M) output, stops of each list; entries behind the last stop are not written.
        link: (D, M) output, link by which each stop is reached; -1 for shortest paths.
    """
    for d in range(begin, end):
        _trace_back(pairs[d, 0], pairs[d, 1], from_node, by_link, stop[d], link[d])


def cheapest_lists(
    dag: EcmpDag, pairs: IntArray, prices: FloatArray, segments: int, *, adjacencies: bool = False
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the cheapest segment list of each demand under link prices.

    Args:
        dag: shortest paths of the IGP.
        pairs: (D, 2) source and target.
        prices: (E,) link prices, at least 0.
        segments: largest number of segments of a list, L.
        adjacencies: whether adjacency segments (single links) are allowed.

    Returns:
        stops (D, M) of each list, -1 behind the last one, with M = max(1, L); the link (D, M) by
        which each stop is reached, -1 for the IGP's shortest paths; and costs (D,), infinite
        without a path.
    """
    nodes = dag.topology.num_nodes
    links = dag.links
    # A failed link is no adjacency.
    link_price = np.where(np.isfinite(links.metric), prices, np.inf)
    # Price (N, N) of the segment from the first node to the second one.
    segment_price = np.ascontiguousarray(SegmentPasses(dag).segment_sum(prices[None])[0].T)
    # Least cost (N, N), source first: at first with no segment.
    cost = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(cost, 0.0)
    # For each level (L, N, N): start and link of the last segment.
    from_node = np.zeros((segments, nodes, nodes), dtype=np.int32)
    by_link = np.empty((segments, nodes, nodes), dtype=np.int32)
    # Dynamic program over the number of segments.
    with threads_for(segments * nodes**3):
        for level in range(segments):
            new_cost = np.empty_like(cost)
            _extend(
                segment_price,
                link_price,
                links.tail,
                links.head,
                adjacencies,
                cost,
                new_cost,
                from_node[level],
                by_link[level],
            )
            cost = new_cost
    # Trace back the list of each pair.
    stop = np.full((len(pairs), max(1, segments)), -1, dtype=np.int32)
    link = np.full(stop.shape, -1, dtype=np.int32)
    with threads_for(len(pairs) * segments):
        _trace_back_all(np.ascontiguousarray(pairs), from_node, by_link, stop, link)
    return stop, link, cost[pairs[:, 0], pairs[:, 1]]


def with_cheapest(
    lists: CandidateLists, prices: FloatArray, segments: int, *, adjacencies: bool = False
) -> CandidateLists:
    """Add to the lists of each demand its cheapest list under each row of prices.

    Args:
        lists: the lists so far.
        prices: (R, E) link prices.
        segments: largest number of segments of a list.
        adjacencies: whether adjacency segments (single links) are allowed.
    """
    for row_prices in prices:
        stop, link, _ = cheapest_lists(
            lists.dag, lists.pairs, row_prices, segments, adjacencies=adjacencies
        )
        lists = lists.with_lists(stop, link)
    return lists


_MAX_ROUNDS = 40
# Target gap of the search over any paths.
_FREE_GAP = 1e-3
# Target gap of the first round; later rounds solve to half of the open gap.
_FIRST_GAP = 0.1
# Split ratio below which a list is pruned, unless the last round added it.
_MIN_SHARE = 1e-4
# Lists per demand above which unused lists are pruned.
_MAX_LISTS = 12


@dataclasses.dataclass(frozen=True, eq=False)
class OverLists:
    """An allocation over generated segment lists.

    Attributes:
        problem: the problem over the generated lists.
        allocation: splits over the lists, and prices; ``paths`` are the lists.
        assessment: value, and the bound over all lists of at most L segments.
        rounds: number of rounds of column generation.
        solve_s: solve time, seconds.
        reached: whether every matrix reached the target gap.
    """

    problem: Problem
    allocation: Allocation
    assessment: Assessment
    rounds: int
    solve_s: float
    reached: bool


def solve_over_lists(
    problem: Problem,
    dag: EcmpDag,
    *,
    segments: int = 2,
    adjacencies: bool = False,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    report: Callable[[int, float], None] | None = None,
) -> OverLists:
    """Generate segment lists until the allocation over them is within ``gap`` of the optimum over
    all.

    Each round solves the program over the current lists and adds the cheapest list of every demand
    under its dual prices.

    Args:
        problem: B matrices over any columns of the demands, whose capacities are 0 where ``dag``
            has no link.
        dag: shortest paths of the IGP.
        segments: largest number of segments of a list, L, including the one to the target.
        adjacencies: whether adjacency segments (single links) are allowed.
        gap: certified gap to the optimum over all lists at which to stop.
        deadline: time limit, after which no further round begins.
        report: called after each round with its index and the gap.

    Raises:
        InputError: segments below 1, links that fail in some matrices alone, a side constraint, or
            priority classes.
    """
    begin = time.perf_counter()
    time_limit = deadline or Deadline(math.inf)
    _check(problem, dag, segments)
    # First lists: the shortest paths, and lists of a coarse two-segment solution.
    problem = problem.to(torch.float64)
    lists = CandidateLists.straight(dag, problem.paths.pairs, segments)
    if segments > 1:
        lists = _first_lists(problem, lists, segments, time_limit)
    # Incumbent: largest gap of a matrix, problem over the lists, allocation and assessment.
    incumbent: tuple[float, Problem, Allocation, Assessment] | None = None
    best_bound: Tensor | None = None
    target_gap = _FIRST_GAP
    num_rounds = 0
    while True:
        num_rounds += 1
        # Restricted master program, to a gap that tightens with the rounds.
        master_problem = problem.with_paths(lists)
        solution = solve(
            master_problem, gap=max(gap / 3, target_gap / 2), deadline=time_limit.remaining
        )
        # Pricing: the cheapest list of each demand under the prices.
        prices = _all_prices(problem, solution)
        extended_lists = with_cheapest(lists, prices, segments, adjacencies=adjacencies)
        # Value, and bound over all lists: the new lists have splits of 0.  The solve time, 0 here,
        # is set at the end.
        padded_splits = torch.nn.functional.pad(
            solution.splits, (0, extended_lists.num_paths - lists.num_paths)
        )
        allocation = Allocation.of_batch(
            padded_splits, solution.prices, 0.0, solution.program_prices
        )
        allocation = dataclasses.replace(allocation, paths=extended_lists)
        assessment = assess(problem, allocation)
        # Keep the best bound of all rounds; a sequence of programs has a bound for each program.
        if not problem.objective.rules.is_sequence:
            best_bound = _best_bound(
                problem.with_paths(extended_lists), assessment, solution.prices, best_bound
            )
            assessment = dataclasses.replace(
                assessment,
                bound=best_bound,
                gap=certified_gap(problem, assessment.value, best_bound),
            )
        # Incumbent: the widest gap of the matrices counts.
        largest_gap = float(assessment.gap.max())
        if incumbent is None or largest_gap < incumbent[0]:
            incumbent = largest_gap, problem.with_paths(extended_lists), allocation, assessment
        if report is not None:
            report(num_rounds, incumbent[0])
        # Stop: gap closed, time or rounds used up, or no list prices out at the final target.
        has_new_list = bool(extended_lists.mask.sum() > lists.mask.sum())
        if (
            incumbent[0] <= gap
            or time_limit.is_over
            or num_rounds >= _MAX_ROUNDS
            or (not has_new_list and target_gap <= gap)
        ):
            break
        # The next round solves to half of the present gap, or beyond the final one if no new list
        # was found; unused lists are pruned.
        target_gap = largest_gap if has_new_list else gap / 2
        lists = _prune(extended_lists, padded_splits, lists.num_paths)
    largest_gap, best_problem, allocation, assessment = incumbent
    elapsed_s = time.perf_counter() - begin
    matrix_s = elapsed_s / problem.batch
    allocation = dataclasses.replace(allocation, solve_s=(matrix_s,) * problem.batch)
    return OverLists(
        best_problem, allocation, assessment, num_rounds, elapsed_s, largest_gap <= gap
    )


def _best_bound(
    problem: Problem, assessment: Assessment, prices: Tensor, bound: Tensor | None
) -> Tensor:
    """Return the best bound (B,) over all lists so far.

    Args:
        problem: the problem over lists that include the cheapest ones under the prices.
        assessment: assessment of the splits and prices.
        prices: (B, E) dual prices.
        bound: (B,) best bound of earlier rounds; None for none.
    """
    new_bound = assessment.bound
    if problem.has_link_cost:
        # The assessment bounds at multiples of the prices, too.  With link costs, lists outside the
        # problem may be the cheapest at a multiple: use the bound of the prices themselves.
        new_bound = dual_bound(problem, prices)
    if bound is None:
        return new_bound
    sense = problem.objective.rules.sense
    return torch.where(sense * new_bound < sense * bound, new_bound, bound)


def free_bound(problem: Problem, prices: Tensor) -> Tensor:
    """Return the best bound (B,) on the optimum over any paths, from the prices of an allocation
    over lists.

    A link that no list can load has a price of 0, and a path over it costs nothing.  Therefore the
    bound is also computed at convex combinations with uniform prices, which are proportional to
    1 / capacity.

    Args:
        problem: B matrices of a single program.
        prices: (B, E) link prices.
    """
    prices = finite_prices(prices)
    # Uniform prices: proportional to 1 / c, with the same total value of capacity.
    num_live = (problem.capacity > 0).sum(1).clamp(min=1)
    uniform_prices = (problem.capacity_value(prices) / num_live)[:, None] * problem.inverse_capacity
    bounds = torch.stack(
        [
            all_paths_bound(
                problem, (1 - uniform_weight) * prices + uniform_weight * uniform_prices
            )
            for uniform_weight in UNIFORM_WEIGHTS
        ]
    )
    return bounds.amin(0) if problem.objective.rules.sense > 0 else bounds.amax(0)


def searched_free_bound(problem: Problem, seconds: float) -> Tensor:
    """Return a bound (B,) on the optimum over any paths, from column generation over paths.

    The bound is tighter with more time.

    Args:
        problem: B matrices of a single program over segment lists.
        seconds: time limit.
    """
    paths = compute_paths(problem.topology, problem.paths.pairs, cache=False)
    steps = generating_columns(
        problem.with_paths(paths), target=_FREE_GAP, deadline=Deadline.after(seconds)
    )
    return complete(steps).bound_all_paths


def _check(problem: Problem, dag: EcmpDag, segments: int) -> None:
    """Raise InputError for an invalid number of segments, program or objective."""
    if segments < 1:
        raise InputError("segment lists", "segments", "an integer >= 1", segments)
    check_igp_program(problem, dag)
    if problem.objective.name == ObjectiveName.PRIORITY:
        raise InputError(
            "segment lists", "objective", "an objective without classes", problem.objective.name
        )


def _first_lists(
    problem: Problem, lists: CandidateLists, segments: int, deadline: Deadline
) -> CandidateLists:
    """Add the lists of a coarse two-segment solution of the first matrix to the shortest paths.

    Args:
        problem: B matrices.
        lists: the shortest paths of each demand.
        segments: largest number of segments of a list.
        deadline: time limit.
    """
    minimises_utilisation = (
        problem.objective.rules.carries_all or problem.objective.name == ObjectiveName.MAX_MIN
    )
    demand = problem.demand[0].cpu().numpy()
    try:
        two_segment_problem = SegmentProblem.of(
            lists.dag, lists.pairs, demand, minimises_utilisation=minimises_utilisation
        )
    except InputError:
        # No routable demand.
        return lists
    # Two-segment solution; its program merges demands of equal pairs.
    two_segment = solve_two_segments(two_segment_problem, _FIRST_GAP / 4, deadline)
    row_by_pair = {
        (int(s), int(t)): i
        for i, (s, t) in enumerate(
            zip(two_segment_problem.source, two_segment_problem.target, strict=True)
        )
    }
    # Row (D,) of each demand in that solution; -1 for none.
    row_index = np.array([row_by_pair.get((int(s), int(t)), -1) for s, t in lists.pairs])
    # The midpoint of each slot becomes a list of one stop (D, M).
    for slot in range(two_segment.mid.shape[1]):
        mid = np.where(row_index >= 0, two_segment.mid[row_index, slot], -1)
        is_used = (
            (row_index >= 0)
            & (mid >= 0)
            & (two_segment.share[row_index, slot] > _MIN_SHARE)
            & (mid != lists.pairs[:, 1])
        )
        stop = np.full((len(row_index), lists.stop.shape[2]), -1, dtype=np.int32)
        stop[:, 0] = np.where(is_used & (mid != lists.pairs[:, 0]), mid, -1)
        lists = lists.with_lists(stop, np.full_like(stop, -1))
    return lists.select(lists.mask)


def _all_prices(problem: Problem, result: SolveResult) -> FloatArray:
    """Return the distinct rows of link prices (R, E), costs included, of all matrices and programs.

    Args:
        problem: B matrices.
        result: solution with dual prices (B, E), and those of each program of a sequence.
    """
    rows = result.prices
    if result.program_prices is not None:
        rows = torch.cat([rows, result.program_prices.prices.flatten(0, 1)])
    # A path costs its prices and the costs of its links.
    rows = finite_prices(rows).cpu() + problem.link_cost.cpu()
    return np.unique(rows.numpy(), axis=0)


def _prune(lists: CandidateLists, splits: Tensor, num_old: int) -> CandidateLists:
    """Drop the lists without a share in any matrix, if a demand has more than _MAX_LISTS lists.

    The shortest paths and the lists of the last round stay.

    Args:
        lists: the lists, K per demand.
        splits: (B, D, K) split ratios.
        num_old: number of lists per demand before the last round.
    """
    if lists.num_paths <= _MAX_LISTS:
        return lists.select(lists.mask)
    # Lists with a share in some matrix, the shortest paths, and the lists of the last round.
    is_retained = (splits.amax(0) > _MIN_SHARE).cpu().numpy()
    is_retained[:, 0] = True
    is_retained[:, num_old:] = True
    return lists.select(is_retained)
