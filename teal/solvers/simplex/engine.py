"""Dual simplex engine: solve small networks exactly, matrix after matrix from the last basis.

:class:`DualSimplex` takes the first basis from given splits, or from an optimum of interior points;
every further matrix of a batch starts from the basis of the matrix before it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch

from teal.errors import InputError
from teal.network import PathSet
from teal.network.path_links import PathLinks, path_links_of
from teal.problem import Problem
from teal.problem.sets import AtMostOne
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.runtime.parallel import kernel, threads_for
from teal.solvers import cost_model
from teal.solvers.certified import certified_result
from teal.solvers.contract import Limits, Origin, Start
from teal.solvers.interior.engine import InteriorPoints
from teal.solvers.interior.stops import ends_at
from teal.solvers.result import SolveResult, SolveState, Stop
from teal.solvers.simplex.basis import Basis, Program, blocks_of, crash, new_basis, paths_by_row
from teal.solvers.simplex.method import Work, new_work, optimise, perturb_to_dual_feasible

# Relative perturbation of the values, which breaks ties.
PERTURBATION = 1e-8
# Further perturbation, which makes a crash basis dual feasible.
_CRASH_PERTURBATION = 2 * PERTURBATION
# Prices of the perturbed values times this factor are dual feasible for the true ones.  The gap of
# an optimal basis is at most this factor less 1.
_PRICE_FACTOR = 1 + PERTURBATION + _CRASH_PERTURBATION
# Number of matrices that are solved one after the other, each from the basis of the one before; the
# last part of a batch has half as many to one and a half times as many.  It does not depend on the
# number of threads, so that results do not either.
_PART_SIZE = 16
# Largest gap of interior points, where these solve the first matrix.
_FIRST_GAP = 1e-7
# Largest number of pivots of a matrix, for each row of the program.
_MAX_PIVOTS_PER_ROW = 10
# Consecutive matrices without an optimal basis, after which no further one is attempted.
_MAX_FAILURES = 3


def accepts(problem: Problem) -> bool:
    """Return whether the engine can solve a problem.

    It solves programs of a linear value over paths, on the CPU, in which demand may be unserved.
    """
    return (
        problem.ops.device.type == "cpu"
        and problem.ops.backend.name != "cuda"
        and isinstance(problem.paths, PathSet)
        and problem.ops.is_over_paths
        and not problem.conditions
        and type(problem.demand_set) is AtMostOne
        and problem.steps is None
        and not problem.price_set.on_simplex
    )


class DualSimplex:
    """Engine that takes the basis of one matrix to the optimum of the next one.

    Attributes:
        detail: origin of the first basis of the last solve.
    """

    name = "simplex"

    def __init__(self) -> None:
        self.detail = ""

    def accepts(self, problem: Problem) -> bool:
        """Return whether the engine can solve a program (:func:`accepts`)."""
        return accepts(problem)

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return the predicted time of the expected pivots, s.

        Args:
            problem: B matrices of a program that :func:`accepts` allows.
            start: start of the search.
            gap: target gap; it makes no difference.
        """
        del gap
        return cost_model.simplex_seconds(problem, is_warm=start.state is not None)

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve every matrix to an optimal basis.

        Args:
            problem: B matrices of a program that :func:`accepts` allows.
            start: warm start; its model is not used.
            limits: target and limits; ``max_iterations`` counts the pivots of a matrix.

        Raises:
            InputError: the engine does not support the program.
        """
        if not accepts(problem):
            raise InputError.invalid(
                "solve",
                "engine",
                "the simplex method solves programs over paths, on the CPU, in which demand may "
                "be unserved, and does not support this one",
                "use engine auto",
            )
        problem64 = problem if problem.demand.dtype == torch.float64 else problem.to(torch.float64)
        # Allow a pause before the pivots, which only the deadline interrupts.
        yield
        stop = np.zeros(1, np.bool_)
        max_pivots = min(limits.max_iterations, _MAX_PIVOTS_PER_ROW * problem64.capacity.shape[1])
        with ends_at(limits.deadline, stop):
            splits, prices, pivots = _solve_batch(problem64, start.state, limits, max_pivots, stop)
        # Without a warm start interior points give the first basis.
        self.detail = Origin.INTERIOR if start.state is None else start.origin
        result = certified_result(
            problem64,
            torch.from_numpy(splits),
            torch.from_numpy(prices),
            limits.gap,
            iterations=int(pivots.max(initial=0)),
            stop_reasons=tuple(
                _stop_reason(count >= max_pivots, stop) for count in pivots.tolist()
            ),
        )
        if limits.report is not None:
            limits.report(result.iterations, float(result.gap.max()))
        return result.in_dtype(problem.demand.dtype)


def _stop_reason(has_reached_limit: bool, stop: BoolArray) -> Stop:
    """Return why a matrix has no optimal basis, or its gap is above the target."""
    if stop[0]:
        return Stop.DEADLINE
    return Stop.ITERATIONS if has_reached_limit else Stop.STALLED


def _solve_batch(
    problem: Problem,
    warm_start: SolveState | None,
    limits: Limits,
    max_pivots: int,
    stop: BoolArray,
) -> tuple[FloatArray, FloatArray, Int64Array]:
    """Solve B matrices in consecutive parts, several at once.

    Args:
        problem: B matrices in float64.
        warm_start: warm start; None for a cold one.
        limits: target and limits of interior points, where these solve the first matrix.
        max_pivots: largest number of pivots of a matrix.
        stop: (1,) flag at which the iteration ends.

    Returns:
        splits (B, D, K), dual prices (B, E), and pivots (B,).
    """
    path_links = path_links_of(problem.paths)
    mask = problem.ops.mask
    batch, num_links = problem.capacity.shape
    num_paths = len(path_links.slot)
    num_blocks = problem.demand.shape[1]
    block, row_path_ptr, row_path = _column_arrays(problem.paths, num_links)
    value = _perturbed_values(problem, path_links, len(block))
    demand = problem.demand.contiguous().numpy()
    # Capacities above all demand, which may be infinite, do not bind.  Without demand any other
    # finite one will do.
    total = demand.sum(1, keepdims=True)
    capacity = np.minimum(problem.capacity.numpy(), np.where(total > 0, 2 * total, 1.0))
    pivots = np.zeros(batch, np.int64)
    # Splits (B, D K) and prices (B, E) of the warm start, or 0.
    if warm_start is None:
        splits = np.zeros((batch, mask.numel()))
        prices = np.zeros((batch, num_links))
    else:
        splits = np.array(warm_start.splits.to(torch.float64).numpy().reshape(batch, -1))
        prices = np.array(warm_start.prices.to(torch.float64).numpy())
    num_parts = max(1, (batch + _PART_SIZE // 2) // _PART_SIZE)
    part_bounds = [*range(0, num_parts * _PART_SIZE, _PART_SIZE), batch]

    def solve_part(first: int, end: int) -> None:
        # Without a warm start interior points solve the first matrix of a part.
        part_matrices = slice(first, end)
        if warm_start is None:
            first_problem = problem if batch == 1 else problem.row(first)
            first_gap = min(limits.gap, _FIRST_GAP)
            first_limits = dataclasses.replace(limits, gap=first_gap, report=None)
            first_state = complete(
                InteriorPoints().solve(first_problem, Start(), first_limits)
            ).state
            splits[part_matrices] = first_state.splits.to(torch.float64).numpy().reshape(-1)
            prices[part_matrices] = first_state.prices.to(torch.float64).numpy().reshape(-1)
        solve_matrices(
            path_links,
            row_path_ptr,
            row_path,
            block,
            value.copy(),
            demand[part_matrices],
            capacity[part_matrices],
            new_basis(num_paths, num_blocks, num_links),
            new_work(num_paths, num_blocks, num_links),
            splits[first, path_links.slot],
            prices[first].copy(),
            warm_start is not None,
            max_pivots,
            splits[part_matrices],
            prices[part_matrices],
            pivots[part_matrices],
            stop,
        )

    # Each part runs on one thread.
    num_threads = numba.get_num_threads()
    if num_parts == 1 or num_threads == 1:
        with threads_for(0):
            for first, end in itertools.pairwise(part_bounds):
                solve_part(first, end)
    else:
        with ThreadPoolExecutor(
            num_threads, initializer=numba.set_num_threads, initargs=(1,)
        ) as pool:
            list(pool.map(solve_part, part_bounds, part_bounds[1:]))
    return splits.reshape(batch, *mask.shape), prices, pivots


_Columns = tuple[Int64Array, Int64Array, IntArray]
_cache: weakref.WeakKeyDictionary[PathSet, _Columns] = weakref.WeakKeyDictionary()


def _column_arrays(paths: PathSet, num_links: int) -> _Columns:
    """Return the block of each column (P + D + n,), and the paths over each link in CSR form."""
    columns = _cache.get(paths)
    if columns is None:
        path_links = path_links_of(paths)
        columns = (blocks_of(path_links, num_links), *paths_by_row(path_links, num_links))
        _cache[paths] = columns
    return columns


def _perturbed_values(problem: Problem, path_links: PathLinks, num_columns: int) -> FloatArray:
    """Return the perturbed value of a Gbit/s on each column; 0 for unserved flow and slacks.

    Args:
        problem: B matrices in float64.
        path_links: P paths.
        num_columns: P + D + n.
    """
    num_paths = len(path_links.slot)
    column_value = np.zeros(num_columns)
    path_value = problem.path_value.contiguous().numpy().reshape(-1)[path_links.slot]
    column_value[:num_paths] = path_value * _perturbation_factors(num_paths)
    return column_value


@functools.lru_cache(maxsize=8)
def _perturbation_factors(num_paths: int) -> FloatArray:
    """Return (P,) the factor on the value of each path: random numbers that are always the same."""
    return 1 - PERTURBATION * np.random.default_rng(0).random(num_paths)


@kernel
def solve_matrices(
    path_links: PathLinks,
    row_path_ptr: Int64Array,
    row_path: IntArray,
    block: Int64Array,
    value: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    basis: Basis,
    work: Work,
    first_shares: FloatArray,
    first_prices: FloatArray,
    keeps_starts: bool,
    max_pivots: int,
    splits: FloatArray,
    prices: FloatArray,
    pivots: Int64Array,
    stop: BoolArray,
) -> None:
    """Solve matrices one after the other, each from the basis of the one before.

    Args:
        path_links: P paths of D demands.
        row_path_ptr, row_path: paths over each of n links, in CSR form.
        block: (P + D + n,) block of each column.
        value: (P + D + n,) value of a Gbit/s on each column; some are lowered.
        demand: (B, D) Gbit/s.
        capacity: (B, n) Gbit/s, finite, 0 for failed links.
        basis: any basis (overwritten).
        work: workspace.
        first_shares: (P,) splits of a similar matrix, whose basis comes first.
        first_prices: (n,) dual prices of that matrix.
        keeps_starts: whether a matrix without an optimal basis keeps its splits and prices; else it
            gets those of the last optimal basis.
        max_pivots: largest number of pivots of a matrix.
        splits: (B, D K) splits of the starts; receives those of the optimal bases.
        prices: (B, n) dual prices of the starts; receives those of the optimal bases.
        pivots: (B,) receives the number of pivots.
        stop: (1,) flag at which the iteration ends.
    """
    failures = 0
    last_optimal = -1
    for b in range(len(demand)):
        program = Program(
            path_links.path_ptr,
            path_links.link_ptr,
            path_links.link,
            row_path_ptr,
            row_path,
            block,
            demand[b],
            capacity[b],
            value,
        )
        # The first basis comes from the given splits and prices.
        if b == 0:
            crash(program, basis, first_shares, first_prices, work.tableau_column)
            perturb_to_dual_feasible(program, basis, work, _CRASH_PERTURBATION)
        is_optimal = False
        if not stop[0] and failures < _MAX_FAILURES:
            pivots[b], is_optimal = optimise(program, basis, work, max_pivots, stop)
        if is_optimal:
            failures = 0
            last_optimal = b
            _write_solution(program, basis, work, path_links.slot, splits[b], prices[b])
            continue
        # Fall back to the last optimal solution.
        failures += 1
        if last_optimal >= 0 and not keeps_starts:
            for slot in path_links.slot:
                splits[b, slot] = splits[last_optimal, slot]
            for r in range(len(first_prices)):
                prices[b, r] = prices[last_optimal, r]


@kernel
def _write_solution(
    program: Program,
    basis: Basis,
    work: Work,
    slot: Int64Array,
    splits: FloatArray,
    prices: FloatArray,
) -> None:
    """Write the splits and the dual prices of an optimal basis.

    Args:
        program: program of P paths, D blocks and n rows.
        basis: optimal basis.
        work: its flows and prices.
        slot: (P,) slot d K + k of each path.
        splits: (D K,) share of its demand on each path (written).
        prices: (n,) dual prices (written).
    """
    for p in range(len(slot)):
        splits[slot[p]] = 0.0
    for g in range(len(program.demand)):
        key = basis.key[g]
        if key < len(slot) and program.demand[g] > 0:
            splits[slot[key]] = max(0.0, work.key_flow[g]) / program.demand[g]
    for i in range(len(basis.column)):
        column = basis.column[i]
        if column < len(slot):
            demand = program.demand[program.block[column]]
            if demand > 0:
                splits[slot[column]] = max(0.0, work.flow[i]) / demand
    for r in range(len(prices)):
        prices[r] = _PRICE_FACTOR * max(0.0, work.price[r])


@functools.cache
def warm_up() -> None:
    """Compile or load the kernels of the engine by solving a problem of three nodes."""
    from teal.solvers.pdhg.fused.warm_up import three_nodes

    problem = three_nodes()
    state = SolveState(problem.even_splits, torch.zeros_like(problem.capacity))
    limits = Limits(gap=1e-6, deadline=Deadline(), max_iterations=10)
    complete(DualSimplex().solve(problem, Start(state), limits))
