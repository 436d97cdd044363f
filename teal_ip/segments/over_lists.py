"""Any program over segment lists: column generation, with a certificate over all lists of at most L
segments.

The program is solved over the lists that its demands have so far; under its prices the cheapest
list of every demand is found and added.  With these lists added the usual bound of
:mod:`teal.problem` holds for all lists, since no demand has a better one.  So every objective, and
every rule of the validator, is that of explicit paths.

The cheapest segment list of every demand, of all lists with at most L segments.

With the price S[t, u] of segment (t, u), and p[e] of link e, the least cost of leading from s to v
by l segments is

    C_0[s, v] = 0 for v = s, infinite otherwise,
    C_l[s, v] = min( C_(l-1)[s, v],  min over u of C_(l-1)[s, u] + S[v, u],
                     min over links e = (u, v) of C_(l-1)[s, u] + p[e] ),          the last one with adjacencies alone.

All pairs take L N^3 additions.  Of equal costs the list with fewer segments is taken.
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
from teal.solvers.columns import improving
from teal.solvers.pdhg import PdhgResult, solve
from teal_ip.segments.problem import UNIFORM_PARTS, SegmentProblem
from teal_ip.segments.search import solve as solve_two_segments

_TIE = 1e-9  # share of a cost by which a longer list must be cheaper
_NO_STEP, _NODE = -2, -1  # in the place of a link: the list of one segment fewer; a node segment


@partitioned_kernel("before")
def _extend(  # type: ignore[no-untyped-def]
    begin, end, segment, price, tail, head, wants_adjacency, before, after, from_node, by_link
):
    """One segment more, for every source.

    Args:
        segment: (N, N) price of the segment from the first node to the second one.
        price: (E,) of the links.
        tail: (E,) node where each link starts.
        head: (E,) node where it ends.
        wants_adjacency: whether links may be taken whatever the metrics say.
        before: (N, N) least cost with a segment less, source first.
        after: (N, N) to fill.
        from_node: (N, N) to fill: where the last segment starts.
        by_link: (N, N) to fill: the link that it takes, or one of the constants above.
    """
    nodes = len(before)
    for s in range(begin, end):
        after[s, :] = before[s, :]
        by_link[s, :] = _NO_STEP
        for u in range(nodes):
            reached = before[s, u]
            if reached == np.inf:
                continue
            for v in range(nodes):
                cost = reached + segment[u, v]
                if cost < after[s, v] - _TIE * cost:
                    after[s, v], from_node[s, v], by_link[s, v] = cost, u, _NODE
        if wants_adjacency:
            for e in range(len(tail)):
                cost = before[s, tail[e]] + price[e]
                if cost < after[s, head[e]] - _TIE * cost:
                    after[s, head[e]], from_node[s, head[e]], by_link[s, head[e]] = cost, tail[e], e


@inner_kernel
def _walk_back(source, target, from_node, by_link, stop, link) -> None:  # type: ignore[no-untyped-def]
    """Fill the stops (M,) of a list and their links; a node segment to the target itself is no
    stop.
    """
    level, node, count = len(from_node) - 1, target, 0
    while level >= 0 and node != source:
        taken = by_link[level, source, node]
        if taken != _NO_STEP:
            if not (taken == _NODE and node == target and count == 0):
                stop[count], link[count] = node, taken
                count += 1
            node = from_node[level, source, node]
        level -= 1
    stop[:count] = stop[:count][::-1].copy()
    link[:count] = link[:count][::-1].copy()


@partitioned_kernel("pairs")
def _all_lists(begin, end, pairs, from_node, by_link, stop, link) -> None:  # type: ignore[no-untyped-def]
    for d in range(begin, end):
        _walk_back(pairs[d, 0], pairs[d, 1], from_node, by_link, stop[d], link[d])


def cheapest_lists(
    dag: EcmpDag, pairs: IntArray, prices: FloatArray, segments: int, *, adjacencies: bool = False
) -> tuple[IntArray, IntArray, FloatArray]:
    """Stops (D, M), their links (D, M) as in :class:`CandidateLists`, and costs (D,), infinite
    without a path.

    Args:
        dag: shortest paths of the IGP.
        pairs: (D, 2) source and target.
        prices: (E,) of the links, at least 0.
        segments: L, the most of a list.
        adjacencies: whether a list may take links whatever the metrics say.
    """
    nodes, links = dag.topology.num_nodes, dag.links
    price = np.where(np.isfinite(links.metric), prices, np.inf)  # a failed link is no adjacency
    outward = np.ascontiguousarray(SegmentPasses(dag).segment_sum(prices[None])[0].T)
    cost = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(cost, 0.0)
    from_node = np.zeros((segments, nodes, nodes), dtype=np.int32)
    by_link = np.empty((segments, nodes, nodes), dtype=np.int32)
    with threads_for(segments * nodes**3):
        for level in range(segments):
            after = np.empty_like(cost)
            _extend(
                outward,
                price,
                links.tail,
                links.head,
                adjacencies,
                cost,
                after,
                from_node[level],
                by_link[level],
            )
            cost = after
    stop = np.full((len(pairs), max(1, segments)), -1, dtype=np.int32)
    link = np.full(stop.shape, -1, dtype=np.int32)
    with threads_for(len(pairs) * segments):
        _all_lists(np.ascontiguousarray(pairs), from_node, by_link, stop, link)
    return stop, link, cost[pairs[:, 0], pairs[:, 1]]


def with_cheapest(
    lists: CandidateLists, prices: FloatArray, segments: int, *, adjacencies: bool = False
) -> CandidateLists:
    """The lists and, for each demand, the cheapest one of all under each of the prices (L, E)."""
    for row in prices:
        stop, link, _ = cheapest_lists(
            lists.dag, lists.pairs, row, segments, adjacencies=adjacencies
        )
        lists = lists.with_lists(stop, link)
    return lists


_MAX_ROUNDS = 40
_FREE_GAP = 1e-3  # of the search over any paths
_FIRST_GAP = 0.1  # of the first round; later ones solve to half of what is missing
_MIN_SHARE = 1e-4  # of a demand, below which a list that did not come last is dropped again
_MAX_LISTS = 12  # of a demand, above which lists without a share are dropped


@dataclasses.dataclass(frozen=True, eq=False)
class OverLists:
    """An allocation over segment lists.

    Attributes:
        problem: over the lists that were found.
        allocation: splits over them, and prices; ``paths`` are the lists.
        assessment: value, and the bound over all lists of at most L segments.
        rounds: rounds of column generation.
        solve_s: seconds.
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
    """Add lists until the allocation over them is within ``gap`` of the optimum over all.

    Args:
        problem: B matrices over any columns of the demands, whose capacities are 0 where ``dag``
            has no link.
        dag: the IGP's shortest paths.
        segments: L, the most of a list, the one to the target included.
        adjacencies: whether a list may take links whatever the metrics say.
        gap: to the optimum over all lists, at which to stop.
        deadline: after which no further round begins.
        report: called after each round, with its number and the gap.

    Raises:
        InputError: no segments, links that fail in some matrices alone, a side condition, or
            priority classes.
    """
    begin, end = time.perf_counter(), deadline or Deadline(math.inf)
    _check(problem, dag, segments)
    if problem.objective.name == ObjectiveName.PRIORITY:
        raise InputError(
            "segment lists", "objective", "one without classes", problem.objective.name
        )
    problem = problem.to(torch.float64)
    lists = CandidateLists.straight(dag, problem.paths.pairs, segments)
    if segments > 1:
        lists = _first_lists(problem, lists, segments, end)
    best: tuple[float, Problem, Allocation, Assessment] | None = None
    bound: Tensor | None = None
    target, number = _FIRST_GAP, 0
    sense = problem.objective.rules.sense
    while True:
        number += 1
        current = problem.with_paths(lists)
        result = solve(current, gap=max(gap / 3, target / 2), deadline=end.remaining)
        prices = _all_prices(problem, result)
        richer = with_cheapest(lists, prices, segments, adjacencies=adjacencies)
        padded = torch.nn.functional.pad(result.splits, (0, richer.num_paths - lists.num_paths))
        allocation = Allocation.of_batch(padded, result.prices, 0.0, result.program_prices)
        allocation = dataclasses.replace(allocation, paths=richer)
        measured = assess(problem, allocation)
        if not problem.objective.rules.is_sequence:
            proven = measured.bound
            if (
                problem.has_link_cost
            ):  # the cheapest list under a multiple of the prices may be another one
                proven = dual_bound(problem.with_paths(richer), result.prices)
            bound = (
                proven
                if bound is None
                else torch.where(sense * proven < sense * bound, proven, bound)
            )
            measured = dataclasses.replace(
                measured, bound=bound, gap=certified_gap(problem, measured.value, bound)
            )
        widest = float(measured.gap.max())
        if best is None or widest < best[0]:
            best = widest, problem.with_paths(richer), allocation, measured
        if report is not None:
            report(number, best[0])
        is_new = bool(richer.mask.sum() > lists.mask.sum())
        if best[0] <= gap or end.is_over or number >= _MAX_ROUNDS or (not is_new and target <= gap):
            break
        target = widest if is_new else gap / 2
        lists = _pruned(richer, padded, lists.num_paths)
    widest, over, allocation, measured = best
    seconds = time.perf_counter() - begin
    share = seconds / problem.batch
    allocation = dataclasses.replace(allocation, solve_s=(share,) * problem.batch)
    return OverLists(over, allocation, measured, number, seconds, widest <= gap)


def free_bound(problem: Problem, prices: Tensor) -> Tensor:
    """(B,) bound on the optimum over any paths, by the prices of an allocation over lists.

    Links that no list can load have a price of 0, which any path may use; so mixtures with equal
    prices of all capacity are tried too, and the best bound counts.

    Args:
        problem: B matrices of a single program.
        prices: (B, E).
    """
    prices = finite_prices(prices)
    live = (problem.capacity > 0).sum(1).clamp(min=1)
    even = (problem.capacity_value(prices) / live)[:, None] * problem.inverse_capacity
    bounds = torch.stack(
        [all_paths_bound(problem, (1 - part) * prices + part * even) for part in UNIFORM_PARTS]
    )
    return bounds.amin(0) if problem.objective.rules.sense > 0 else bounds.amax(0)


def searched_free_bound(problem: Problem, seconds: float) -> Tensor:
    """(B,) bound on the optimum over any paths, by a search over paths of its own; looser, the less
    time it has.

    Args:
        problem: B matrices of a single program over segment lists.
        seconds: after which the search stops.
    """
    paths = compute_paths(problem.topology, problem.paths.pairs, cache=False)
    steps = improving(problem.with_paths(paths), target=_FREE_GAP, deadline=Deadline.after(seconds))
    return complete(steps).bound_all_paths


def _check(problem: Problem, dag: EcmpDag, segments: int) -> None:
    if segments < 1:
        raise InputError("segment lists", "segments", "a whole number of at least 1", segments)
    check_igp_program(problem, dag)


def _first_lists(
    problem: Problem, lists: CandidateLists, segments: int, end: Deadline
) -> CandidateLists:
    """Lists with one midpoint that the search for two segments uses for the first matrix."""
    balances = (
        problem.objective.rules.carries_all or problem.objective.name == ObjectiveName.MAX_MIN
    )
    demand = problem.demand[0].cpu().numpy()
    try:
        two = SegmentProblem.of(lists.dag, lists.pairs, demand, balances=balances)
    except InputError:
        return lists  # nothing can be sent
    found = solve_two_segments(two, _FIRST_GAP / 4, end)
    row = {(int(s), int(t)): i for i, (s, t) in enumerate(zip(two.source, two.target, strict=True))}
    at = np.array([row.get((int(s), int(t)), -1) for s, t in lists.pairs])
    for k in range(found.mid.shape[1]):
        mid = np.where(at >= 0, found.mid[at, k], -1)
        is_used = (
            (at >= 0) & (mid >= 0) & (found.share[at, k] > _MIN_SHARE) & (mid != lists.pairs[:, 1])
        )
        stop = np.full((len(at), lists.stop.shape[2]), -1, dtype=np.int32)
        stop[:, 0] = np.where(is_used & (mid != lists.pairs[:, 0]), mid, -1)
        lists = lists.with_lists(stop, np.full_like(stop, -1))
    return lists.kept(lists.mask)


def _all_prices(problem: Problem, result: PdhgResult) -> FloatArray:
    """(L, E) what a Gbit/s costs on each link, different ones of all matrices and programs."""
    rows = result.prices
    if result.program_prices is not None:
        rows = torch.cat([rows, result.program_prices.prices.flatten(0, 1)])
    rows = finite_prices(rows).cpu() + problem.link_cost.cpu()
    return np.unique(rows.numpy(), axis=0)


def _pruned(lists: CandidateLists, splits: Tensor, last: int) -> CandidateLists:
    """The lists with a share in some matrix, the straight one, and those that came last."""
    if lists.num_paths <= _MAX_LISTS:
        return lists.kept(lists.mask)
    keep = (splits.amax(0) > _MIN_SHARE).cpu().numpy()
    keep[:, 0] = True
    keep[:, last:] = True
    return lists.kept(keep)
