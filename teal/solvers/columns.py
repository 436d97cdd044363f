"""Column generation: the paths that a path set lacks, found by link prices.

A demand's best missing path is its shortest path under the link prices p.  It is worth adding if
its reduced profit v - p(path) exceeds that of all paths that the demand has (and 0).  When no
demand has such a path, prices and allocation are optimal over all paths of the network (Dantzig &
Wolfe 1960; for multicommodity flow Tomlin 1966).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from teal.errors import InputError
from teal.network.path_changes import first_columns, paths_in_trees, with_more_paths
from teal.network.path_set import PathSet
from teal.network.reachability import with_surviving_paths
from teal.network.shortest import shortest_trees
from teal.objectives import ObjectiveName
from teal.problem import Problem, all_paths_bound, dual_bound
from teal.problem.bounds import from_score, gap, link_weights
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers import least_cost
from teal.solvers.interior import all_paths
from teal.solvers.interior import engine as interior
from teal.solvers.interior.master import Round
from teal.solvers.pdhg import PdhgResult, PdhgState, Stop, solving
from teal.solvers.pdhg import prepare as prepare_engine
from teal.solvers.pdhg.fused.rehearsal import three_nodes
from teal.solvers.pdhg.single import iteration_dtype
from teal.solvers.projection import project
from teal.solvers.result import merged

ENGINES = ("auto", "interior", "pdhg")
_SKIPPED_SHARE = (
    0.1  # of the target gap: what all paths that a round leaves out may be worth together
)
# x the largest price, added per link: of equally cheap paths the one with fewer links is taken
_TIE_WEIGHT = 1e-6
# Price of a Gbit/s that is not carried, over the cost of all links, where a lower one leaves demand
# that can be carried.
_OVER_ALL_LINKS = 10.0
_FIRST_GAP = 0.1  # to the optimum over all paths, assumed before the first round has measured it


@dataclasses.dataclass(frozen=True, eq=False)
class OverAllPaths:
    """The solution of the last round.

    Attributes:
        paths: the path set that was solved with.
        result: the solution over these paths; its iterations are those of all rounds.
        bound_all_paths: (B,) best bound on the optimum over all paths.
        gap_all_paths: (B,) certified gap to the optimum over all paths.
    """

    paths: PathSet
    result: PdhgResult
    bound_all_paths: Tensor
    gap_all_paths: Tensor


class ColumnRound(NamedTuple):
    """A round of column generation.

    Attributes:
        num_paths: paths of all demands.
        gap_all_paths: largest gap of a matrix to the optimum over all paths, before rounding.
        added: number of paths that the next round has more.
    """

    num_paths: int
    gap_all_paths: float
    added: int


def improve(
    problem: Problem,
    *,
    target: float = 1e-2,
    max_rounds: int = 30,
    report: Callable[[ColumnRound], None] | None = None,
    engine: str = "auto",
) -> OverAllPaths:
    """:func:`improving` without a pause and without a deadline."""
    return complete(
        improving(problem, target=target, max_rounds=max_rounds, report=report, engine=engine)
    )


def improving(
    problem: Problem,
    *,
    target: float,
    max_rounds: int = 30,
    max_iterations: int = 10_000,
    deadline: Deadline | None = None,
    report: Callable[[ColumnRound], None] | None = None,
    engine: str = "auto",
) -> Steps[OverAllPaths]:
    """Add paths until the allocation over them is within ``target`` of the optimum over all paths.

    One matrix of a linear program may have an interior-point master
    (:mod:`teal.solvers.interior.master`), and that of the least cost always has.  Other programs
    are solved in rounds by PDHG, to a third of the target, or to half of the gap to the optimum
    over all paths while that is more; a round adds for each matrix and demand the path of best
    reduced profit.

    Args:
        problem: B matrices; the added paths serve all of them.
        target: gap_all_paths at which to stop, of every matrix.
        max_rounds: number of rounds, at most.
        max_iterations: iterations of a round of PDHG, at most.
        deadline: after which no further round begins, and a round ends early; None for none.
        report: called after each round.
        engine: interior (the master); pdhg (rounds of PDHG, and of interior points where the
            target is so narrow that it needs float64); or auto, what is expected to be fastest.

    Raises:
        InputError: another engine, or one that does not take the problem.
    """
    end = deadline or Deadline()
    if engine not in ENGINES:
        raise InputError("improve", "engine", " or ".join(ENGINES), repr(engine))
    problem = _with_live_paths(problem)
    if problem.objective.rules.may_have_no_allocation:
        return (yield from _at_least_cost(problem, target, end, max_rounds, report))
    if engine == "interior" and not all_paths.accepts(problem):
        expected = "another one: the master takes one matrix of a linear program, on the CPU"
        raise InputError("improve", "engine", expected, engine)
    if engine == "interior" or (engine == "auto" and all_paths.is_faster(problem)):
        return (yield from _by_master(problem, target, end, max_rounds, report))
    state: PdhgState | None = None
    sense = problem.objective.rules.sense
    best_bound: Tensor | None = None
    widest_gap, last, iterations = _FIRST_GAP, None, 0
    for number in range(max_rounds):
        round_gap = max(target / 3, widest_gap / 2)
        # Interior points are not asked for a solve whose type is float32.
        dtype = iteration_dtype(problem, round_gap, None) if engine == "pdhg" else None
        result = yield from solving(
            problem,
            gap=round_gap,
            warm_start=state,
            deadline=end,
            max_iterations=max_iterations,
            dtype=dtype,
        )
        iterations += result.iterations
        result = dataclasses.replace(result, iterations=iterations)
        bound = all_paths_bound(problem, result.prices)
        if best_bound is not None:
            bound = torch.where(sense * bound < sense * best_bound, bound, best_bound)
        best_bound = bound
        gaps = gap(problem, result.value, best_bound)
        widest_gap = float(gaps.max())
        is_last = widest_gap <= target or number == max_rounds - 1 or end.is_over
        paths = problem.paths if is_last else _with_best_paths(problem, result, target)
        added = int(paths.mask.sum()) - int(problem.paths.mask.sum())
        last = OverAllPaths(problem.paths, result, best_bound, gaps)
        if report is not None:
            report(ColumnRound(int(problem.paths.mask.sum()), widest_gap, added))
        is_solved = float(result.gap.max()) <= target / 3 or any(
            stop is not Stop.GAP for stop in result.stopped_by
        )
        if is_last or (not added and is_solved):
            break
        state = result.state
        if added:
            new_columns = paths.num_paths - problem.paths.num_paths
            state = PdhgState(pad(state.splits, (0, new_columns)), state.prices)
            problem = problem.with_paths(paths)
    assert last is not None
    return last


def _with_live_paths(problem: Problem) -> Problem:
    """The problem with a path for each demand that a matrix connects and whose candidate paths have
    all failed in it: column generation counts on one.
    """
    if not least_cost.without_path(problem).any():
        return problem
    failures = [np.flatnonzero(row <= 0).tolist() for row in problem.capacity.cpu().numpy()]
    whole = problem.topology.with_capacity(np.ones(problem.topology.num_links))
    paths = with_surviving_paths(problem.paths, whole, failures)
    return problem if paths is problem.paths else problem.with_paths(paths)


def _by_master(
    problem: Problem,
    target: float,
    end: Deadline,
    max_rounds: int,
    report: Callable[[ColumnRound], None] | None,
    worth: float = 0.0,
) -> Steps[OverAllPaths]:
    """:func:`improving` of one matrix by the interior-point master."""
    begin = time.perf_counter()
    exact = problem.to(torch.float64)
    found = yield from all_paths.improving(
        exact, target, end, max_rounds, _reporting(report), worth
    )
    over = exact.with_paths(found.paths)
    splits = torch.from_numpy(found.splits)[None]
    prices = torch.from_numpy(found.prices)[None]
    if exact.objective.rules.may_have_no_allocation:
        result = least_cost.result_of(over, splits, prices, found.iterations, target, end)
    else:
        splits = project(over, splits, refill=0)
        value, bound = over.value(splits), dual_bound(over, prices)
        gaps = gap(over, value, bound)
        stop = Stop.GAP if found.reached else Stop.DEADLINE if end.is_over else Stop.ITERATIONS
        state = PdhgState(splits, prices)
        result = PdhgResult(
            splits=splits,
            prices=prices,
            value=value,
            bound=bound,
            gap=gaps,
            iterations=found.iterations,
            solve_s=0.0,
            state=state,
            stopped_by=(stop,),
        )
    result = least_cost.in_type(result, problem.demand.dtype)
    result = dataclasses.replace(result, solve_s=time.perf_counter() - begin)
    best = from_score(over, torch.tensor([found.bound], dtype=torch.float64), prices)
    return OverAllPaths(found.paths, result, best, gap(over, result.value, best))


def _reporting(
    report: Callable[[ColumnRound], None] | None,
) -> Callable[[Round], None] | None:
    """A report of rounds of the master."""
    if report is None:
        return None
    return lambda done: report(ColumnRound(len(done.share), done.gap, done.added))


def _at_least_cost(
    problem: Problem,
    target: float,
    end: Deadline,
    max_rounds: int,
    report: Callable[[ColumnRound], None] | None,
) -> Steps[OverAllPaths]:
    """:func:`improving` of the least cost, matrix by matrix; each begins with the paths of those
    before.

    Raises:
        InputError: a problem that interior points do not take.
    """
    least_cost.require(problem, "auto")
    paths, parts = problem.paths, list[OverAllPaths]()
    for row in range(problem.batch):
        one = problem.row(row).with_paths(paths)
        last = yield from _by_master(one, target, end, max_rounds, report)
        if not least_cost.is_within(one.with_paths(last.paths), last.result.splits):
            share = yield from _largest_share(one, last, end)
            if share is not None:
                last = share
            elif not end.is_over:  # all can be carried, at prices far above those of cheap paths
                worth = _OVER_ALL_LINKS * float(
                    one.link_cost.sum()
                )  # no path costs as much as all links
                found = one.with_paths(last.paths)
                last = yield from _by_master(found, target, end, max_rounds, report, worth)
        paths = last.paths
        if bool(least_cost.without_path(one.with_paths(paths))[0]):
            result = least_cost.cut_off(last.result)
            last = OverAllPaths(paths, result, result.bound, result.gap)
        parts.append(last)
    whole = merged([_with_columns(part.result, paths.num_paths) for part in parts])
    bounds, gaps = (
        torch.cat([getattr(part, field) for part in parts])
        for field in ("bound_all_paths", "gap_all_paths")
    )
    return OverAllPaths(paths, whole, bounds, gaps)


def _with_columns(result: PdhgResult, num_paths: int) -> PdhgResult:
    """A result whose splits have so many paths a demand, those beyond its own without flow."""
    splits = pad(result.splits, (0, num_paths - result.splits.shape[-1]))
    return dataclasses.replace(result, splits=splits, state=PdhgState(splits, result.state.prices))


def _largest_share(
    problem: Problem, last: OverAllPaths, end: Deadline
) -> Steps[OverAllPaths | None]:
    """The largest share, where prices prove that not all can be carried; None elsewhere."""
    reached = list[PathSet]()

    def balance(balanced: Problem, wanted: float, deadline: Deadline) -> Steps[PdhgResult]:
        over = balanced.with_paths(reached[-1] if reached else last.paths)
        found = yield from improving(over, target=wanted, deadline=deadline)
        reached.append(found.paths)
        return dataclasses.replace(found.result, bound=found.bound_all_paths)

    share = yield from least_cost.largest_share(problem, balance, end)
    if not share.is_impossible:
        return None
    result = least_cost.impossible(last.result, share)
    return OverAllPaths(reached[-1], result, result.bound, result.gap)


def _with_best_paths(problem: Problem, result: PdhgResult, target: float) -> PathSet:
    """The problem's paths and, for each matrix, the best missing ones."""
    paths = problem.paths
    for row in range(problem.batch):
        target_value = float(result.bound[row]) * target
        if problem.utility is not None:
            target_value = target * float(problem.utility.total[row])
        elif problem.solved is not problem:
            target_value = target / max(
                float(result.bound[row]), 1e-12
            )  # in utilisations: theta = 1 / bound
        paths = _add_for_matrix(problem.row(row), result.prices[row : row + 1], target_value, paths)
    return paths


def _add_for_matrix(
    problem: Problem, prices: Tensor, target_value: float, paths: PathSet
) -> PathSet:
    """``paths`` and the best missing path of each demand for which it is worth adding.

    Args:
        problem: one matrix.
        prices: (1, E) of that matrix.
        target_value: the target gap, in the unit of the objective.
        paths: to which paths are added.
    """
    topology, pairs = problem.topology, problem.paths.pairs
    weight = link_weights(problem, prices)[0].cpu().numpy()
    value = problem.demand_value
    path_cost = problem.ops.path_sum(prices + problem.link_cost)
    cheapest = problem.cheapest_path_cost(path_cost, unroutable=np.inf)[0].cpu().numpy()
    finite = weight[np.isfinite(weight)]
    tie_weight = _TIE_WEIGHT * float(finite.max(initial=0.0)) or 1.0
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    nodes, tail, head = topology.num_nodes, topology.link_source, topology.link_target
    distance, into = shortest_trees(
        nodes, tail, head, weight + tie_weight, sources, topology.no_transit
    )
    shortest = distance[source_row, pairs[:, 1]]
    demand = problem.demand[0].cpu().numpy()
    limit = np.minimum(cheapest, value.cpu().numpy())  # a new path must cost less than this
    if problem.utility is not None:
        limit = cheapest
    if problem.demand_set.carries_all:
        limit = np.where(problem.routable[0].cpu().numpy(), cheapest, -np.inf)
        demand = demand / max(float(problem.capacity_value(prices)[0]), 1e-300)
    both_finite = np.isfinite(shortest) & np.isfinite(limit)
    gain = demand * np.subtract(limit, shortest, out=np.zeros_like(shortest), where=both_finite)
    is_worth_adding = gain > _SKIPPED_SHARE * target_value / len(demand)
    if problem.utility is not None:  # the first path of a demand gives it a weight
        is_worth_adding |= np.isfinite(shortest) & ~np.isfinite(cheapest) & (demand > 0)
    chosen = np.flatnonzero(is_worth_adding)
    if not len(chosen):
        return paths
    ptr, links = paths_in_trees(chosen, pairs, source_row, into, tail)
    return with_more_paths(paths, ptr, links)


def prepare(problem: Problem, target: float) -> None:
    """Compile what :func:`improving` runs for such a problem, before a clock starts.

    Args:
        problem: B matrices.
        target: target gap.
    """
    if problem.objective.rules.may_have_no_allocation or all_paths.is_faster(problem):
        if not is_interpreting():
            rehearse_master()
            interior.warm_up_for(problem.ops.mask.numel())
    else:
        prepare_engine(problem, gap=target)
        rehearse()


@functools.cache
def rehearse_master() -> None:
    """Compile the kernels of the interior-point master on three nodes."""
    problem = three_nodes(ObjectiveName.LEAST_COST)
    complete(_by_master(problem, 1e-2, Deadline(), 1, None))


def rehearse() -> None:
    """Call the kernels of a round on three nodes, but those of the engine."""
    problem = three_nodes()
    direct = problem.with_paths(first_columns(problem.paths, 1))
    prices = torch.zeros_like(problem.capacity)
    prices[:, 0] = 1.0  # so that the path over the third node is worth adding
    _add_for_matrix(direct, prices, 0.0, direct.paths)
