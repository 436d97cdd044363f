"""Column generation over all paths of a network (Dantzig & Wolfe 1960; Tomlin 1966 for flows).

The pricing problem is a shortest path under the link prices p.  A path enters the path set if its
reduced profit v - p(path) exceeds 0 and the profit of all candidate paths of the demand.  If no
path enters, prices and allocation are optimal over all paths of the network.  Entry points:
:func:`generate_columns`, and :func:`generating_columns` for a computation that can pause.
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

from teal.deprecated import with_old_names
from teal.errors import InputError
from teal.network.path_changes import first_paths_of_each, paths_in_trees, with_more_paths
from teal.network.path_set import PathSet
from teal.network.reachability import with_surviving_paths
from teal.network.shortest import shortest_trees
from teal.objectives import ObjectiveName
from teal.problem import Problem, all_paths_bound, dual_bound
from teal.problem.bounds import from_score, gap, link_weights, usable_prices
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers import least_cost
from teal.solvers.interior import all_paths
from teal.solvers.interior import engine as interior
from teal.solvers.interior.columns import (
    add_columns,
    column_shares,
    path_columns,
    splits_over,
)
from teal.solvers.interior.master import Round
from teal.solvers.pdhg.fused.warm_up import three_nodes
from teal.solvers.pdhg.solver import iteration_dtype
from teal.solvers.pipeline import prepare as prepare_engine
from teal.solvers.pipeline import solving
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, Stop, merged

ENGINES = ("auto", "interior", "pdhg")
# Total gain of the paths that a round may skip, as a share of the target gap.
_SKIPPED_SHARE = 0.1
# Weight per link, as a multiple of the largest price: breaks ties in favour of fewer links.
_TIE_WEIGHT = 1e-6
# Price of unserved demand over the cost of all links, where a lower price leaves demand unserved
# that the network can carry.
_SHEDDING_PRICE_FACTOR = 10.0
# Gap to the optimum over all paths, assumed before the first round has measured it.
_INITIAL_GAP = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class OverAllPaths:
    """Solution of the last round of column generation, with its gap over all paths.

    Attributes:
        paths: path set of the last round.
        result: solution over these paths, with the iterations of all rounds.
        bound_all_paths: (B,) best bound on the optimum over all paths.
        gap_all_paths: (B,) certified gap to the optimum over all paths.
    """

    paths: PathSet
    result: SolveResult
    bound_all_paths: Tensor
    gap_all_paths: Tensor

    def row(self, index: int) -> OverAllPaths:
        """Return the solution of one matrix; if there is only one, that one.

        Args:
            index: index of the matrix; ignored if there is only one.
        """
        rows = torch.tensor([index if len(self.gap_all_paths) > 1 else 0])
        return OverAllPaths(
            self.paths, self.result.rows(rows), self.bound_all_paths[rows], self.gap_all_paths[rows]
        )


class ColumnRound(NamedTuple):
    """Progress of a round of column generation.

    Attributes:
        num_paths: number of paths of all demands together.
        gap_all_paths: largest gap of a matrix to the optimum over all paths, before rounding.
        added: number of paths added for the next round.
    """

    num_paths: int
    gap_all_paths: float
    added: int


def generate_columns(
    problem: Problem,
    *,
    target: float = 1e-2,
    max_rounds: int = 30,
    report: Callable[[ColumnRound], None] | None = None,
    engine: str = "auto",
    start: OverAllPaths | None = None,
) -> OverAllPaths:
    """Add paths until the allocation over them is within ``target`` of the optimum over all paths.

    Args:
        problem: B matrices, which share the added paths.
        target: gap to the optimum over all paths at which to stop.
        max_rounds: largest number of rounds.
        report: progress callback, called after each round.
        engine: "interior", "pdhg" or "auto".
        start: warm start: solution of the same demands at other rates or capacities, for one
            matrix or as many as the problem has; None for a cold start.
    """
    return complete(
        generating_columns(
            problem,
            target=target,
            max_rounds=max_rounds,
            report=report,
            engine=engine,
            start=start,
        )
    )


def generating_columns(
    problem: Problem,
    *,
    target: float,
    max_rounds: int = 30,
    max_iterations: int = 10_000,
    deadline: Deadline | None = None,
    report: Callable[[ColumnRound], None] | None = None,
    engine: str = "auto",
    start: OverAllPaths | None = None,
) -> Steps[OverAllPaths]:
    """Add paths until the allocation over them is within ``target`` of the optimum over all paths.

    A single matrix of a linear program may use the interior-point master
    (:mod:`teal.solvers.interior.master`); least cost always does.  Other programs are solved in
    rounds by PDHG, to a third of the target, or to half of the gap to the optimum over all paths if
    that is larger; a round adds the path of best reduced profit for each matrix and demand.

    Args:
        problem: B matrices, which share the added paths.
        target: gap to the optimum over all paths at which to stop, for every matrix.
        max_rounds: largest number of rounds.
        max_iterations: largest number of iterations of a round of PDHG.
        deadline: deadline of the last round, which then ends early; None for no limit.
        report: progress callback, called after each round.
        engine: interior (the master); pdhg (rounds of PDHG, and of interior points for targets that
            need float64); or auto, the engine with the shortest predicted time.
        start: warm start: solution of the same demands at other rates or capacities, for one
            matrix or as many as the problem has; None for a cold start.

    Raises:
        InputError: an unknown engine, or one that does not apply to the problem; a start with other
            demands or links, or another number of matrices.
    """
    end = deadline or Deadline()
    if engine not in ENGINES:
        raise InputError("generate_columns", "engine", " or ".join(ENGINES), repr(engine))
    problem = _with_live_paths(problem)
    if start is not None:
        _check_start(problem, start)
    if problem.objective.rules.may_be_infeasible:
        return (yield from _at_least_cost(problem, target, end, max_rounds, report, start))
    if engine == "interior" and not all_paths.accepts(problem):
        raise InputError.invalid(
            "generate_columns",
            "engine",
            "the interior-point master solves one matrix of a linear program, on the CPU, and does "
            "not support this one",
            "use engine auto or pdhg",
        )
    if engine == "interior" or (engine == "auto" and all_paths.is_faster(problem)):
        return (yield from _by_master(problem, target, end, max_rounds, report, start))
    return (
        yield from _by_rounds(
            problem, target, end, max_rounds, max_iterations, report, engine, start
        )
    )


def _check_start(problem: Problem, start: OverAllPaths) -> None:
    """Raise InputError unless a solution can start the search for a problem.

    Args:
        problem: B matrices.
        start: solution of one or B matrices.
    """
    batch, *start_shape = start.result.splits.shape
    if (
        start.paths.topology_key != problem.paths.topology_key
        or start_shape != list(start.paths.mask.shape)
        or start.result.prices.shape != (batch, problem.capacity.shape[1])
        or not np.array_equal(start.paths.pairs, problem.paths.pairs)
    ):
        raise InputError.invalid(
            "generate_columns",
            "start",
            "it is the solution of another network or of other demands",
            "start from a solution of the same links and pairs of nodes",
        )
    if batch not in (1, problem.batch):
        raise InputError(
            "generate_columns",
            "start",
            "the solution of one matrix, or of as many as the problem has",
            f"{batch} matrices for {problem.batch}",
        )


def _by_rounds(
    problem: Problem,
    target_gap: float,
    round_deadline: Deadline,
    max_rounds: int,
    max_iterations: int,
    report: Callable[[ColumnRound], None] | None,
    engine: str,
    start: OverAllPaths | None,
) -> Steps[OverAllPaths]:
    """Generate columns in rounds: solve over the present paths, then add the best missing paths.

    A round adds to each demand its path of best reduced profit at the dual prices.

    Args:
        problem: B matrices.
        target_gap: gap to the optimum over all paths at which to stop.
        round_deadline: deadline of the last round.
        max_rounds: largest number of rounds.
        max_iterations: largest number of iterations of a round.
        report: progress callback, called after each round.
        engine: "pdhg" for PDHG alone; "auto" to let each round select its engine.
        start: solution of similar matrices; None for a cold start.
    """
    # Warm start of the next round; best bound, largest gap and iterations of all rounds so far.
    state: SolveState | None = None
    if start is not None:
        problem, state = _over_paths_of(problem, start)
    sense = problem.objective.rules.sense
    best_bound: Tensor | None = None
    max_gap = _INITIAL_GAP
    round_solution = None
    iterations = 0
    for round_index in range(max_rounds):
        # Solve over the present paths, no more precisely than the last gap to all paths requires.
        round_gap = max(target_gap / 3, max_gap / 2)
        # An explicit float32 excludes interior points from the engines of the round.
        dtype = iteration_dtype(problem, round_gap, None) if engine == "pdhg" else None
        result = yield from solving(
            problem,
            gap=round_gap,
            warm_start=state,
            deadline=round_deadline,
            max_iterations=max_iterations,
            dtype=dtype,
        )
        # Tightest bound over all paths of the rounds so far; the sense is 1 for a maximum, -1 for a
        # minimum.
        iterations += result.iterations
        result = dataclasses.replace(result, iterations=iterations)
        bound = all_paths_bound(problem, result.prices)
        if best_bound is not None:
            bound = torch.where(sense * bound < sense * best_bound, bound, best_bound)
        best_bound = bound
        gaps = gap(problem, result.value, best_bound)
        max_gap = float(gaps.max())
        # Price out new paths, unless this is the last round.
        is_last = max_gap <= target_gap or round_index == max_rounds - 1 or round_deadline.is_over
        paths = problem.paths if is_last else _with_best_paths(problem, result, target_gap)
        num_added = int(paths.mask.sum()) - int(problem.paths.mask.sum())
        round_solution = OverAllPaths(problem.paths, result, best_bound, gaps)
        if report is not None:
            report(ColumnRound(int(problem.paths.mask.sum()), max_gap, num_added))
        # Without new paths a further round helps only if it would have a smaller target gap: not if
        # this one had the smallest of all, or missed its own.
        is_final_gap = float(result.gap.max()) <= target_gap / 3 or any(
            stop is not Stop.GAP for stop in result.stopped_by
        )
        if is_last or (not num_added and is_final_gap):
            break
        # Warm-start the next round, with zero flow on new paths.
        state = result.state
        if num_added:
            new_columns = paths.num_paths - problem.paths.num_paths
            state = SolveState(pad(state.splits, (0, new_columns)), state.prices)
            problem = problem.with_paths(paths)
    assert round_solution is not None
    return round_solution


def _over_paths_of(problem: Problem, start: OverAllPaths) -> tuple[Problem, SolveState]:
    """Return a problem over its paths and those that carry traffic in a solution, and its splits
    and prices over them.

    Args:
        problem: B matrices.
        start: solution of one or B matrices.
    """
    state = start.result.state
    if len(state.splits) < problem.batch:
        state = state.repeated(problem.batch)
    # Add the paths that some matrix of the start uses: those with a positive largest share.
    start_splits = state.splits.to(torch.float64).cpu().numpy()
    largest_splits = start_splits.max(0)
    start_columns = path_columns(start.paths)
    paths, _ = add_columns(problem.paths, start_columns, column_shares(start.paths, largest_splits))
    splits = torch.stack(
        [
            torch.from_numpy(splits_over(paths, start_columns, column_shares(start.paths, row)))
            for row in start_splits
        ]
    )
    device = problem.demand.device
    return problem.with_paths(paths), SolveState(splits.to(device), state.prices.to(device))


def _with_live_paths(problem: Problem) -> Problem:
    """Return the problem with at least one live path for each demand between connected nodes.

    Column generation requires one; demands whose candidate paths have all failed get a new path.
    """
    if not least_cost.without_path(problem).any():
        return problem
    # Failed links of each matrix, and the network without failures.
    failed_links = [np.flatnonzero(row <= 0).tolist() for row in problem.capacity.cpu().numpy()]
    intact_topology = problem.topology.with_capacity(np.ones(problem.topology.num_links))
    paths = with_surviving_paths(problem.paths, intact_topology, failed_links)
    return problem if paths is problem.paths else problem.with_paths(paths)


def _by_master(
    problem: Problem,
    target_gap: float,
    round_deadline: Deadline,
    max_rounds: int,
    report: Callable[[ColumnRound], None] | None,
    start: OverAllPaths | None = None,
    shedding_price: float = 0.0,
) -> Steps[OverAllPaths]:
    """Generate columns for one matrix by the interior-point master problem.

    Args:
        problem: one matrix of a linear program or of least cost.
        target_gap: gap to the optimum over all paths at which to stop.
        round_deadline: deadline of the last round.
        max_rounds: largest number of rounds.
        report: progress callback, called after each round.
        start: solution of a similar matrix; None for a cold start.
        shedding_price: price of unserved demand under least cost; 0 for the master's choice.
    """
    begin = time.perf_counter()
    problem64 = problem.to(torch.float64)
    warm_start = None if start is None else _fitting_start(problem64, start)
    solution = yield from all_paths.generating_columns(
        problem64,
        target_gap,
        round_deadline,
        max_rounds,
        _round_callback(report),
        shedding_price,
        warm_start,
    )
    # Evaluate splits and prices over the generated paths.
    restricted_problem = problem64.with_paths(solution.paths)
    splits = torch.from_numpy(solution.splits)[None]
    prices = torch.from_numpy(solution.prices)[None]
    if problem64.objective.rules.may_be_infeasible:
        # Least cost.
        result = least_cost.make_result(
            restricted_problem, splits, prices, solution.iterations, target_gap, round_deadline
        )
    else:
        # Project onto the capacities, without refilling unused capacity.
        splits = project(restricted_problem, splits, refill=0)
        value = restricted_problem.value(splits)
        bound = dual_bound(restricted_problem, prices)
        gaps = gap(restricted_problem, value, bound)
        stop_reason = (
            Stop.GAP
            if solution.has_reached_target
            else Stop.DEADLINE
            if round_deadline.is_over
            else Stop.ITERATIONS
        )
        state = SolveState(splits, prices)
        result = SolveResult(
            splits=splits,
            prices=prices,
            value=value,
            bound=bound,
            gap=gaps,
            iterations=solution.iterations,
            solve_s=0.0,
            state=state,
            stopped_by=(stop_reason,),
        )
    # Result in the problem's floating-point type, with the seconds of this call.
    result = least_cost.in_type(result, problem.demand.dtype)
    result = dataclasses.replace(result, solve_s=time.perf_counter() - begin)
    # Bound of the master, which holds over all paths of the network.
    bound_all_paths = from_score(
        restricted_problem, torch.tensor([solution.bound], dtype=torch.float64), prices
    )
    return OverAllPaths(
        solution.paths,
        result,
        bound_all_paths,
        gap(restricted_problem, result.value, bound_all_paths),
    )


def _fitting_start(problem: Problem, start: OverAllPaths) -> all_paths.AllPathsStart:
    """Return the start of a matrix, with its splits projected onto the capacities.

    Args:
        problem: one matrix.
        start: solution of one similar matrix.
    """
    restricted_problem = problem.with_paths(start.paths)
    splits = project(restricted_problem, start.result.splits.to(problem.demand), refill=0)
    prices = usable_prices(problem, start.result.prices.to(problem.demand.device))
    # A demand whose paths have failed needs those of the problem.
    if not bool((splits.sum(-1) > 0)[problem.demand > 0].all()):
        restricted_problem, state = _over_paths_of(problem, start)
        splits = project(restricted_problem, state.splits, refill=0)
    paths = restricted_problem.paths
    assert isinstance(paths, PathSet)
    return all_paths.AllPathsStart(paths, splits[0].numpy(), prices[0].numpy())


def _round_callback(
    report: Callable[[ColumnRound], None] | None,
) -> Callable[[Round], None] | None:
    """Return a callback for rounds of the master that calls ``report`` with a :class:`ColumnRound`.

    None without ``report``.
    """
    if report is None:
        return None
    return lambda master_round: report(
        ColumnRound(len(master_round.share), master_round.gap, master_round.num_new_columns)
    )


def _at_least_cost(
    problem: Problem,
    target_gap: float,
    round_deadline: Deadline,
    max_rounds: int,
    report: Callable[[ColumnRound], None] | None,
    start: OverAllPaths | None,
) -> Steps[OverAllPaths]:
    """Generate columns under least cost, matrix by matrix; paths accumulate.

    A matrix that is not fully served is either infeasible, as dual prices prove, or solved again at
    a higher price of unserved demand.

    Args:
        problem: B matrices under least cost.
        target_gap: gap to the optimum over all paths at which to stop.
        round_deadline: deadline of the last round.
        max_rounds: largest number of rounds.
        report: progress callback, called after each round.
        start: solution of similar matrices; None for a cold start.

    Raises:
        InputError: interior points do not apply to the problem.
    """
    least_cost.require(problem, "auto")
    paths = problem.paths
    solutions = list[OverAllPaths]()
    for row in range(problem.batch):
        row_problem = problem.row(row).with_paths(paths)
        row_start = None if start is None else start.row(row)
        row_solution = yield from _by_master(
            row_problem, target_gap, round_deadline, max_rounds, report, row_start
        )
        if not least_cost.is_feasible(
            row_problem.with_paths(row_solution.paths), row_solution.result.splits
        ):
            # Unserved demand: the network cannot carry it, or the price was too low.
            infeasible_solution = yield from _max_concurrent_flow(
                row_problem, row_solution, round_deadline
            )
            if infeasible_solution is not None:
                row_solution = infeasible_solution
            elif not round_deadline.is_over:
                # The network can carry all demand, at prices far above those of cheap paths; no
                # path costs as much as all links.
                shedding_price = _SHEDDING_PRICE_FACTOR * float(row_problem.link_cost.sum())
                extended_problem = row_problem.with_paths(row_solution.paths)
                row_solution = yield from _by_master(
                    extended_problem,
                    target_gap,
                    round_deadline,
                    max_rounds,
                    report,
                    shedding_price=shedding_price,
                )
        # Demand between disconnected nodes makes the matrix infeasible.
        paths = row_solution.paths
        if bool(least_cost.without_path(row_problem.with_paths(paths))[0]):
            result = least_cost.disconnected_result(row_solution.result)
            row_solution = OverAllPaths(paths, result, result.bound, result.gap)
        solutions.append(row_solution)
    # Join the matrices over the paths of all of them.
    merged_result = merged(
        [_pad_splits(solution.result, paths.num_paths) for solution in solutions]
    )
    bounds, gaps = (
        torch.cat([getattr(solution, field) for solution in solutions])
        for field in ("bound_all_paths", "gap_all_paths")
    )
    return OverAllPaths(paths, merged_result, bounds, gaps)


def _pad_splits(result: SolveResult, num_paths: int) -> SolveResult:
    """Return a result whose splits are padded with zeros to ``num_paths`` paths per demand."""
    splits = pad(result.splits, (0, num_paths - result.splits.shape[-1]))
    return dataclasses.replace(result, splits=splits, state=SolveState(splits, result.state.prices))


def _max_concurrent_flow(
    problem: Problem, least_cost_solution: OverAllPaths, search_deadline: Deadline
) -> Steps[OverAllPaths | None]:
    """Return the solution with the largest common served fraction of an infeasible matrix.

    Returns None unless dual prices prove that the largest fraction is below 1.

    Args:
        problem: one matrix under least cost.
        least_cost_solution: its least-cost solution, with unserved demand.
        search_deadline: deadline of the search.
    """
    path_sets = list[PathSet]()

    # Solver of max_link_utilisation by column generation, which reuses the paths of its last call.
    def minimise_mlu(mlu_problem: Problem, target: float, deadline: Deadline) -> Steps[SolveResult]:
        restricted_problem = mlu_problem.with_paths(
            path_sets[-1] if path_sets else least_cost_solution.paths
        )
        solution = yield from generating_columns(
            restricted_problem, target=target, deadline=deadline
        )
        path_sets.append(solution.paths)
        return dataclasses.replace(solution.result, bound=solution.bound_all_paths)

    concurrent_flow = yield from least_cost.max_concurrent_flow(
        problem, minimise_mlu, search_deadline
    )
    if not concurrent_flow.is_infeasible:
        return None
    result = least_cost.infeasible_result(least_cost_solution.result, concurrent_flow)
    return OverAllPaths(path_sets[-1], result, result.bound, result.gap)


def _with_best_paths(problem: Problem, result: SolveResult, target: float) -> PathSet:
    """Return the problem's paths with the best missing path of each matrix and demand.

    Args:
        problem: B matrices.
        result: solution over the problem's paths, with dual prices.
        target: relative target gap.
    """
    paths = problem.paths
    for row in range(problem.batch):
        # Target gap in the unit of the objective; of a utility, a share of the sum of the weights.
        absolute_gap = float(result.bound[row]) * target
        if problem.utility is not None:
            absolute_gap = target * float(problem.utility.total[row])
        elif problem.solved is not problem:
            # The program solved is a min-max program, in units of the largest utilisation; its
            # optimum is about 1 / bound.
            absolute_gap = target / max(float(result.bound[row]), 1e-12)
        paths = _add_best_paths(problem.row(row), result.prices[row : row + 1], absolute_gap, paths)
    return paths


def _add_best_paths(
    problem: Problem, prices: Tensor, absolute_gap: float, paths: PathSet
) -> PathSet:
    """Add the best missing path of each demand with sufficient reduced profit to a path set.

    The pricing problem is a shortest path at the dual prices plus link costs, whose sum is the cost
    of a path.  With the value of a Gbit/s of the demand, the path enters if its reduced profit
    exceeds 10% of the target gap over the number of demands:

        demand * (min(cost of the cheapest candidate path, value) - cost of the path).

    Args:
        problem: one matrix.
        prices: (1, E) dual prices of the matrix, value per Gbit/s.
        absolute_gap: target gap, in the unit of the objective.
        paths: path set to extend.
    """
    # (E,) link weights for the shortest paths, (D,) value of a Gbit/s of each demand, and (D,) cost
    # of its cheapest candidate path.
    topology = problem.topology
    pairs = problem.paths.pairs
    link_weight = link_weights(problem, prices)[0].cpu().numpy()
    unit_value = problem.demand_value
    path_cost = problem.ops.path_sum(prices + problem.link_cost)
    candidate_cost = problem.cheapest_path_cost(path_cost, unroutable=np.inf)[0].cpu().numpy()
    # Shortest path of each demand; a tiny weight per link breaks ties by the number of links.
    # It is 1 where all prices are 0.
    finite_weights = link_weight[np.isfinite(link_weight)]
    tie_weight = _TIE_WEIGHT * float(finite_weights.max(initial=0.0)) or 1.0
    source_nodes, source_index = np.unique(pairs[:, 0], return_inverse=True)
    num_nodes = topology.num_nodes
    tail = topology.link_source
    head = topology.link_target
    # Distance (sources, nodes) from each source, and last link of the shortest path to each node.
    distance, tree_link = shortest_trees(
        num_nodes, tail, head, link_weight + tie_weight, source_nodes, topology.no_transit
    )
    shortest_cost = distance[source_index, pairs[:, 1]]
    # (D,) cost below which a new path has a positive reduced profit: that of the cheapest candidate
    # path, or the value of the demand if that is lower.
    demand = problem.demand[0].cpu().numpy()
    break_even_cost = np.minimum(candidate_cost, unit_value.cpu().numpy())
    # Under a utility, the marginal value is the cost of the cheapest candidate path.
    if problem.utility is not None:
        break_even_cost = candidate_cost
    # Where all demand must be carried it has no value, and the gap is relative to the dual value
    # sum_e capacity[e] price[e]: divide by it.
    if problem.demand_set.carries_all:
        break_even_cost = np.where(problem.routable[0].cpu().numpy(), candidate_cost, -np.inf)
        demand = demand / max(float(problem.capacity_value(prices)[0]), 1e-300)
    is_finite = np.isfinite(shortest_cost) & np.isfinite(break_even_cost)
    reduced_profit = demand * np.subtract(
        break_even_cost, shortest_cost, out=np.zeros_like(shortest_cost), where=is_finite
    )
    # The paths that are left out would gain at most 10% of the target gap in total.
    is_added = reduced_profit > _SKIPPED_SHARE * absolute_gap / len(demand)
    # Under a utility a demand without a path has no weight, so its first path always counts.
    if problem.utility is not None:
        is_added |= np.isfinite(shortest_cost) & ~np.isfinite(candidate_cost) & (demand > 0)
    # Extract the new paths from the shortest-path trees, and append them.
    added_demands = np.flatnonzero(is_added)
    if not len(added_demands):
        return paths
    path_starts, path_links = paths_in_trees(added_demands, pairs, source_index, tree_link, tail)
    return with_more_paths(paths, path_starts, path_links)


def prepare(problem: Problem, target: float) -> None:
    """Compile the kernels of column generation for a problem, before a time limit begins.

    Args:
        problem: B matrices.
        target: target gap.
    """
    if problem.objective.rules.may_be_infeasible or all_paths.is_faster(problem):
        if not is_interpreting():
            warm_up_master()
            # Rounds add columns.
            num_columns = max(problem.ops.mask.numel(), interior.MIN_SELECTED_COLUMNS)
            interior.warm_up_for(num_columns, may_select=True)
    else:
        prepare_engine(problem, gap=target)
        # Later rounds start from earlier ones, and go on to a narrower gap.
        prepare_engine(problem, gap=target / 3, is_warm=True)
        warm_up_kernels()


@functools.cache
def warm_up_master() -> None:
    """Compile the kernels of the interior-point master by a cold and a warm round."""
    problem = three_nodes(ObjectiveName.LEAST_COST)
    # A gap of 1%, no deadline, one round, no progress callback.
    solution = complete(_by_master(problem, 1e-2, Deadline(), 1, None))
    complete(_by_master(problem, 1e-2, Deadline(), 1, None, solution))


def warm_up_kernels() -> None:
    """Compile the pricing kernels of a round of column generation on three nodes.

    The kernels of the engine that solves a round are compiled separately.
    """
    problem = three_nodes()
    direct = problem.with_paths(first_paths_of_each(problem.paths, 1))
    prices = torch.zeros_like(problem.capacity)
    # A price that makes the path over the third node profitable.
    prices[:, 0] = 1.0
    _add_best_paths(direct, prices, 0.0, direct.paths)


__getattr__ = with_old_names(__name__, globals())
