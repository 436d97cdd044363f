"""Interior-point engine: solve the matrices of a problem by the primal-dual method.

:class:`InteriorPoints` presolves each matrix, solves it (several at once where threads allow),
projects the splits onto the capacities and certifies the gap with the bound of the dual prices.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
import torch

from teal.errors import InputError
from teal.network import PathSet
from teal.pathops.base import columns_of_ops
from teal.problem import Problem
from teal.problem.curves import Concave
from teal.problem.sets import AtMostOne, Capped, ExactlyOne, Stepped
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.solvers import cost_model
from teal.solvers.certified import certified_result
from teal.solvers.contract import Limits, Start
from teal.solvers.interior.presolve import (
    NO_TERMS,
    DemandTerms,
    PresolvedProgram,
    num_schur_updates,
    presolve,
)
from teal.solvers.interior.search import (
    may_be_large,
    solve,
    solve_on_threads,
    warm_up_steps,
)
from teal.solvers.interior.selection import solve_selected, supports, warm_up_selection
from teal.solvers.interior.starts import COLD, WARM
from teal.solvers.interior.stops import ends_at
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, Stop, usable_start

# Largest number of iterations of a matrix; most matrices take 5 to 30.
MAX_ITERATIONS = 200
# The kernel's target gap is slightly below the requested one, since the projection afterwards
# rounds and sums in another order; it is at least what float64 can resolve.
_KERNEL_GAP_FACTOR = 0.99
_ROUNDING = 1e-12
_MIN_KERNEL_GAP = 1e-14
# Smallest number of columns of a program of which a warm-started search selects columns.
MIN_SELECTED_COLUMNS = 3_000


def accepts(problem: Problem) -> bool:
    """Return whether the engine can solve a problem.

    It needs a path set on the CPU, no side conditions (unless they are rewritten as columns and
    rows), and a demand set that the presolve supports; values in steps exclude link costs.
    """
    return (
        problem.ops.device.type == "cpu"
        and problem.ops.backend.name != "cuda"
        and isinstance(problem.paths, PathSet)
        and not problem.conditions
        and type(problem.demand_set) in (AtMostOne, ExactlyOne, Capped, Stepped, Concave)
        and not (problem.steps is not None and problem.has_link_cost)
    )


class Size(NamedTuple):
    """Size of the presolved program of one matrix.

    Attributes:
        rows: number of links that can bind.
        paths: number of columns.
        updates: entries of the Schur complement that an iteration updates.
    """

    rows: int
    paths: int
    updates: int


class FirstMatrixProgram:
    """Presolved program of the first matrix: its size predicts the faster engine.

    The solve of a single matrix reuses it.

    Args:
        problem: B matrices of a problem that :func:`accepts` allows.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        # Target gap and features of the last prediction.
        self._features: tuple[float, cost_model.Features] | None = None

    @functools.cached_property
    def presolved(self) -> tuple[PresolvedProgram, FloatArray]:
        """The presolved program of the first matrix, and splits (D K,) of the demands outside it.

        Demands that no link limits are served in full by these splits; all others are 0.
        """
        problem = self.problem
        first = (problem if problem.batch == 1 else problem.row(0)).to(torch.float64)
        splits = np.zeros((1, problem.ops.mask.numel()))
        return next(_programs(first, splits)), splits[0]

    @functools.cached_property
    def size(self) -> Size:
        """Rows, columns and Schur complement updates of the first matrix's program."""
        program, _ = self.presolved
        return Size(len(program.capacity), len(program.column_value), num_schur_updates(program))

    def features(self, gap: float) -> cost_model.Features:
        """Return the features of the program that predict times to a target gap."""
        if self._features is None or self._features[0] != gap:
            self._features = gap, cost_model.features_of(self.problem, self.size, gap)
        return self._features[1]


# Scan entries (trie nodes of all paths, and path slots) of the largest small network.
SMALL_SCAN = 7_000
# Scan entries of all matrices from which threads save time.
_MIN_PARALLEL_SCAN = 20_000
# Seconds within which a small network is solved in any case: its deadline needs no timer.
_SHORT_S = 0.1
# Small networks are solved at least to this gap, since an iteration takes microseconds.
_SMALL_NETWORK_GAP = 1e-7


class InteriorPoints:
    """Engine that solves each matrix by interior points.

    Args:
        first: presolved program of the first matrix, for the prediction, and for the solve of one
            matrix; None to presolve it here.

    Attributes:
        detail: start of the last solve, and the columns that it used where it selected them.
    """

    name = "interior"

    def __init__(self, first_program: FirstMatrixProgram | None = None) -> None:
        self._first_program = first_program
        self.detail = ""

    def accepts(self, problem: Problem) -> bool:
        """Return whether the engine can solve a program (:func:`accepts`)."""
        return accepts(problem)

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        """Return the predicted time to the target gap, s; with a model, its time is included.

        Args:
            problem: B matrices, the first of which stands for all.
            start: start of the search.
            gap: target gap.
        """
        features = (self._first_program or FirstMatrixProgram(problem)).features(gap)
        if start.state is None and start.model is not None:
            return cost_model.seconds_from_model(features)
        return cost_model.seconds(self.name, features, is_warm=start.state is not None)

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve every matrix, from the warm start, else from the model's splits and prices.

        Args:
            problem: B matrices of one program without side conditions.
            start: start of the search.
            limits: target and limits.

        Raises:
            InputError: the engine does not support the program.
        """
        if not accepts(problem):
            raise InputError.invalid(
                "solve",
                "engine",
                "interior points solve programs over paths, on the CPU, without side conditions "
                "and without value steps beside link costs, and this one is different",
                "use engine auto",
            )
        warm_start = start.state
        if warm_start is None and start.model is not None:
            warm_start = usable_start(problem, start.model.start)
        first_program = self._first_program
        if first_program is not None and first_program.problem is not problem:
            first_program = None
        result, selected = yield from _solving(
            problem, warm_start, limits.gap, limits.max_iterations, limits.deadline, first_program
        )
        self.detail = ", ".join(filter(None, (Start(warm_start).origin, selected)))
        if limits.report is not None:
            limits.report(result.iterations, float(result.gap.max()))
        return result


def _solving(
    problem: Problem,
    warm_start: SolveState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    first_program: FirstMatrixProgram | None = None,
) -> Steps[tuple[SolveResult, str]]:
    """Solve B matrices by interior points, with a certified gap for each.

    Each matrix is presolved and solved; its splits are projected onto the capacities, and the
    Lagrangian bound of its prices certifies the gap.

    Args:
        problem: B matrices of a problem that :func:`accepts` allows.
        warm_start: warm start; None for a cold one.
        gap: target gap.
        max_iterations: largest number of iterations of a matrix.
        deadline: time after which no iteration begins.
        first_program: the program of the first matrix, if it has been built.

    Returns:
        result, and a text about the selected columns, empty if all were used.
    """
    problem64 = problem if problem.demand.dtype == torch.float64 else problem.to(torch.float64)
    yield
    stop = np.zeros(1, np.bool_)
    # Starting a timer thread takes as long as solving such a network.
    needs_no_timer = (
        problem.batch * problem.paths.scan_size <= SMALL_SCAN and deadline.remaining_s > _SHORT_S
    )
    # Splits (B, D, K), dual prices (B, E) and iterations (B,).
    with contextlib.nullcontext() if needs_no_timer else ends_at(deadline, stop):
        solution, prices, iterations, num_columns = _solve_batch(
            problem64, warm_start, gap, min(max_iterations, MAX_ITERATIONS), stop, first_program
        )
    # The stopping criterion of the matrices that neither reached the gap nor met the deadline.
    max_iterations_taken = int(iterations.max(initial=0))
    stop_reason = Stop.ITERATIONS if max_iterations_taken >= max_iterations else Stop.STALLED
    result = certified_result(
        problem64,
        torch.from_numpy(solution),
        torch.from_numpy(prices),
        gap,
        iterations=max_iterations_taken,
        stop_reasons=Stop.DEADLINE if stop[0] else stop_reason,
    )
    num_selected, num_all_columns = num_columns.sum(0).tolist()
    detail = (
        f"{num_selected:,} of {num_all_columns:,} columns" if num_selected < num_all_columns else ""
    )
    return result.in_dtype(problem.demand.dtype), detail


def _solve_batch(
    problem: Problem,
    warm_start: SolveState | None,
    gap: float,
    max_iterations: int,
    stop: BoolArray,
    first_program: FirstMatrixProgram | None,
) -> tuple[FloatArray, FloatArray, Int64Array, Int64Array]:
    """Solve all matrices, several at once or one after the other.

    Args:
        problem: B matrices in float64.
        warm_start: warm start; None for a cold one.
        gap: target gap.
        max_iterations: largest number of iterations of a matrix.
        stop: (1,) flag at which the searches end.
        first_program: the program of the first matrix, if it has been built.

    Returns:
        splits (B, D, K), dual prices (B, E), iterations (B,), and columns (B, 2): those at the end
        of the search, and all of the program.
    """
    # Prices lie on a simplex where the largest utilisation is minimised: then no demand is shed.
    mask = problem.ops.mask
    may_shed = not problem.price_set.on_simplex
    # Splits (B, D K) and dual prices (B, E): 0, or those of the warm start.
    splits = np.zeros((problem.batch, mask.numel()))
    prices = np.zeros((problem.batch, problem.capacity.shape[1]))
    # Warm start: splits projected onto the capacities, without refilling unused capacity; prices.
    if warm_start is not None:
        feasible_splits = project(problem, warm_start.splits.to(torch.float64), refill=0)
        splits[:] = feasible_splits.reshape(problem.batch, -1).numpy()
        prices[:] = warm_start.prices.numpy()
    iterations = np.zeros(problem.batch, np.int64)
    # Columns selected, and all columns, of each matrix.
    num_columns = np.zeros((problem.batch, 2), np.int64)
    # Gap of the kernel: small networks are solved further than asked, since an iteration is cheap.
    if problem.paths.scan_size <= SMALL_SCAN and type(problem.demand_set) in (
        AtMostOne,
        ExactlyOne,
    ):
        gap = min(gap, _SMALL_NETWORK_GAP)
    kernel_gap = max(_MIN_KERNEL_GAP, _KERNEL_GAP_FACTOR * gap - _ROUNDING)
    start = COLD if warm_start is None else WARM
    threads = numba.get_num_threads()
    # Many matrices run on one thread each; few run one after the other, each on all threads if it
    # is large.
    is_parallel_by_matrix = (
        threads > 1 and problem.batch * problem.paths.scan_size >= _MIN_PARALLEL_SCAN
    )
    is_parallel_by_matrix = is_parallel_by_matrix and problem.batch >= threads
    solve_one = solve if is_parallel_by_matrix else solve_on_threads

    def solve_row(b: int, program: PresolvedProgram) -> None:
        # Without a selection the search uses all columns.
        num_columns[b] = len(program.column_value)
        if warm_start is not None and may_shed and _selects_columns(program):
            iterations[b], num_columns[b, 0] = solve_selected(
                program,
                kernel_gap,
                max_iterations,
                splits[b],
                prices[b],
                stop,
                on_threads=not is_parallel_by_matrix,
            )
            return
        # must_serve_all is False: incumbents may shed demand.
        iterations[b] = solve_one(
            program, may_shed, False, kernel_gap, max_iterations, splits[b], prices[b], start, stop
        )

    if first_program is not None and problem.batch == 1:
        # The program is built already.  Demands that the presolve removed get its splits; the slots
        # of the program keep those of the warm start.
        program, fixed_splits = first_program.presolved
        program_slots = program.slot[program.slot >= 0]
        warm_splits = splits[0, program_slots]
        splits[0] = fixed_splits
        splits[0, program_slots] = warm_splits
        indexed_programs = enumerate([program])
    else:
        indexed_programs = enumerate(_programs(problem, splits))
    if not is_parallel_by_matrix:
        for b, program in indexed_programs:
            solve_row(b, program)
    else:
        with ThreadPoolExecutor(threads) as pool:
            # Presolve a few programs per thread at a time, so that not all are in memory.
            while chunk := list(itertools.islice(indexed_programs, 4 * threads)):
                list(pool.map(solve_row, *zip(*chunk, strict=True)))
    return splits.reshape(problem.batch, *mask.shape), prices, iterations, num_columns


def _selects_columns(program: PresolvedProgram) -> bool:
    """Return whether a warm-started search selects columns: it pays on all but small programs."""
    return len(program.column_value) >= MIN_SELECTED_COLUMNS and supports(program)


def _programs(problem: Problem, splits: FloatArray) -> Iterator[PresolvedProgram]:
    """Yield the presolved program of each matrix.

    Args:
        problem: B matrices in float64.
        splits: (B, D K) share of its demand on each path; receives those of demands that are served
            in full because no link limits them.
    """
    may_shed = not problem.price_set.on_simplex
    layout, coefficient = columns_of_ops(problem.ops, problem.capacity.shape[1])
    demand = problem.demand.contiguous().numpy()
    capacity = problem.capacity.contiguous().numpy()
    value = problem.path_value.contiguous().numpy().reshape(-1)
    for b in range(problem.batch):
        terms = _demand_terms(problem, coefficient, b)
        yield presolve(layout, terms, demand[b], capacity[b], value, may_shed, 0.0, splits[b])


def _demand_terms(problem: Problem, coefficient: FloatArray, b: int) -> DemandTerms:
    """Return the coefficients, upper bounds, steps and utilities of the demands of one matrix.

    Args:
        problem: B matrices in float64.
        coefficient: load that a Gbit/s of a path puts on each of its links; empty if all are 1.
        b: index of the matrix.
    """
    terms = NO_TERMS._replace(coefficient=coefficient)
    demand_set = problem.demand_set
    # Levels and ends (D, C) of C value steps.
    if isinstance(demand_set, Stepped):
        level = demand_set.steps.level.expand(problem.demand.shape[1], -1)
        end = demand_set.steps.end[b].expand_as(level)
        terms = terms._replace(level=_array(level), end=_array(end))
    if isinstance(demand_set, Concave):
        terms = terms._replace(
            utility_weight=_array(demand_set.unit_value[b]), alpha=demand_set.curve.alpha
        )
    # Largest share (D, K) of each path, flattened.
    max_share = getattr(demand_set, "max_share", None)
    if max_share is not None:
        terms = terms._replace(max_share=_array(max_share[b]).reshape(-1))
    return terms


def _array(values: torch.Tensor) -> FloatArray:
    """Return a tensor as a contiguous float64 array of the same shape."""
    return values.to(torch.float64).contiguous().numpy()


@functools.cache
def warm_up(*, is_large: bool = False) -> None:
    """Compile or load the kernels of the engine by solving a problem of three nodes.

    This includes the kernels of bounds and projections.

    Args:
        is_large: load the kernels of programs that run on all threads, instead of the others.
    """
    from teal.solvers.pdhg.fused.warm_up import three_nodes

    problem = three_nodes()
    first = FirstMatrixProgram(problem)
    if not is_large:
        # The size of the program, and one iteration of a cold search to a gap of 1%.
        assert first.size
        complete(_solving(problem, None, 1e-2, 1, Deadline()))
        return
    program, splits = first.presolved
    warm_up_steps(program, splits, np.zeros(problem.capacity.shape[1]))


@functools.cache
def _warm_up_selection(*, is_large: bool) -> None:
    """Compile or load the kernels of column selection (:mod:`teal.solvers.interior.selection`).

    Args:
        is_large: load the kernels of programs that run on all threads, instead of the others.
    """
    from teal.solvers.pdhg.fused.warm_up import three_nodes

    # Any small program compiles the kernels; splits and prices are scratch.
    problem = three_nodes()
    program, splits = FirstMatrixProgram(problem).presolved
    prices = np.zeros(problem.capacity.shape[1])
    warm_up_selection(program, splits, prices, is_large=is_large)


def warm_up_all(*, is_large: bool) -> None:
    """Compile or load all kernels of the engine, with those of searches over selected columns.

    Args:
        is_large: load the kernels of programs that run on all threads, instead of the others.
    """
    warm_up(is_large=is_large)
    _warm_up_selection(is_large=is_large)


def warm_up_for(num_columns: int, *, may_select: bool) -> None:
    """Compile or load the kernels that a program of at most ``num_columns`` columns may call.

    Args:
        num_columns: D K, the largest possible number of columns.
        may_select: whether a linear value is maximised, so that a search may start from a
            subset of the columns.
    """
    is_large = may_be_large(num_columns)
    warm_up()
    if is_large:
        warm_up(is_large=True)
    if may_select and num_columns >= MIN_SELECTED_COLUMNS:
        _warm_up_selection(is_large=False)
        if is_large:
            _warm_up_selection(is_large=True)
