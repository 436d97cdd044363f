"""Interior-point engine: solve the matrices of a problem, and predict the time that takes.

:func:`solving` presolves each matrix, solves it (several at once where threads allow),
projects the splits onto the capacities and certifies the gap with the bound of the dual prices.
:func:`is_faster` and :func:`pdhg_iterations_before` choose between this engine and PDHG by a model
of their times, whose coefficients were fitted to ``benchmarks/interior.py``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
import torch

from teal.network import PathSet
from teal.pathops.base import columns_of_ops
from teal.problem import Problem, dual_bound, small
from teal.problem.bounds import from_score
from teal.problem.bounds import gap as certified_gap
from teal.problem.curves import Concave
from teal.problem.sets import AtMostOne, Capped, ExactlyOne, Stepped
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.runtime.kernel_cache import is_interpreting
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
from teal.solvers.interior.starts import COLD, WARM
from teal.solvers.interior.stops import ends_at
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, Stop

# Largest number of iterations of a matrix; most matrices take 5 to 30.
MAX_ITERATIONS = 200
# The kernel's target gap is slightly below the requested one, since the projection afterwards
# rounds and sums in another order; it is at least what float64 can resolve.
_KERNEL_GAP_FACTOR = 0.99
_ROUNDING = 1e-12
_MIN_KERNEL_GAP = 1e-14


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

    @property
    def iteration_s(self) -> float:
        """Predicted time of an interior-point iteration on this program, in seconds."""
        cholesky_s = _S_PER_CUBED_ROW * self.rows**3
        return _S_PER_UPDATE * self.updates + _S_PER_PATH * self.paths + cholesky_s


class FirstProgram:
    """Presolved program of the first matrix: its size predicts the faster engine.

    The solve of a single matrix reuses it.

    Args:
        problem: B matrices of a problem that :func:`accepts` allows.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @functools.cached_property
    def presolved(self) -> tuple[PresolvedProgram, FloatArray]:
        """The presolved program of the first matrix, and splits (D K,) of the demands outside it.

        Demands that no link limits are served in full by these splits; all others are 0.
        """
        problem = self._problem
        first = (problem if problem.batch == 1 else problem.row(0)).to(torch.float64)
        splits = np.zeros((1, self._problem.ops.mask.numel()))
        return next(_programs(first, splits)), splits[0]

    @functools.cached_property
    def size(self) -> Size:
        """Rows, columns and Schur complement updates of the first matrix's program."""
        program, _ = self.presolved
        return Size(len(program.capacity), len(program.column_value), num_schur_updates(program))


def is_candidate(problem: Problem) -> bool:
    """Return whether the engine accepts a problem whose path set is not too large for it."""
    is_small = problem.paths.scan_size <= _MAX_SCAN
    return is_small and accepts(problem) and not is_interpreting()


def is_faster(
    problem: Problem, gap: float, max_s: float = math.inf, first: FirstProgram | None = None
) -> bool:
    """Return whether the engine is predicted to reach a target gap before PDHG.

    The predictions depend on the scan size: trie nodes and path slots of the path set.

    Args:
        problem: B matrices, the first of which stands for all.
        gap: target gap.
        max_s: seconds that all matrices may take; the prediction must be at most half of these.
        first: the program of the first matrix; None to build it.
    """
    first = first or FirstProgram(problem)
    if not accepts(problem) or is_interpreting():
        return False
    scan_size = problem.paths.scan_size
    if scan_size > _MAX_SCAN:
        return False
    digits = _gap_digits(gap)
    # PDHG's compiled engines accept plain paths only: otherwise only the time limit counts.
    if not problem.ops.is_over_paths:
        seconds = problem.batch * _predicted_s(problem, first.size, digits)
        return seconds <= max_s / 2
    # PDHG iterates on up to 16 matrices at once, which takes less time than one after the other.
    batch_penalty = max(1, min(problem.batch, _MAX_LANES)) ** _LANES_EXPONENT
    # Small networks: measured time ratios, interpolated between gaps.
    if scan_size <= _SMALL_SCAN:
        return batch_penalty * float(np.interp(digits, _DIGITS, _TIME_RATIO_IF_SMALL)) <= 1
    # Larger networks: the time limit, then the smaller of two estimates of the time ratio.
    seconds = _predicted_s(problem, first.size, digits)
    if problem.batch * seconds > max_s / 2:
        return False
    time_ratio = min(
        _time_ratio(problem, first.size, digits), seconds / _min_pdhg_s(problem, digits)
    )
    return batch_penalty * time_ratio <= 1


def _min_pdhg_s(problem: Problem, digits: float) -> float:
    """Return the least seconds that PDHG takes for one matrix: iterations times seconds of each.

    Args:
        problem: problem of the matrix.
        digits: -log10 of the target gap.
    """
    # A scan of all trie nodes and path slots takes most of an iteration.
    iteration_s = _PDHG_S_PER_ENTRY * problem.paths.scan_size + _MIN_PDHG_ITERATION_S
    return float(np.interp(digits, _DIGITS, _PDHG_ITERATIONS)) * iteration_s


def _predicted_s(problem: Problem, size: Size, digits: float) -> float:
    """Return the predicted seconds of one matrix: its iterations and the presolve.

    Args:
        problem: problem of the matrix.
        size: size of its program.
        digits: -log10 of the target gap.
    """
    iterations = np.interp(digits, _DIGITS, _ITERATIONS[problem.demand_set.carries_all])
    return float(iterations) * size.iteration_s + _PRESOLVE_S_PER_ENTRY * problem.paths.scan_size


def _time_ratio(problem: Problem, size: Size, digits: float) -> float:
    """Return the predicted time of this engine over the time of PDHG, for one matrix.

    A linear model of the logarithms of rows, scan size (trie nodes and path slots) and seconds of
    an iteration, and of the digits of the gap, predicts the logarithm of the ratio.  It was fitted
    to networks above the scan size of a small one.

    Args:
        problem: problem of the matrix.
        size: size of its program.
        digits: -log10 of the target gap.
    """
    # Upper bounds on columns have a constant ratio.
    demand_set_type = type(problem.demand_set)
    carries_all = problem.demand_set.carries_all
    if demand_set_type is Capped:
        return _TIME_RATIO_WITH_BOUNDS
    log_iteration_s = math.log(size.iteration_s + _MIN_ITERATION_S)
    log_rows = math.log(max(1, size.rows))
    log_scan_size = math.log(problem.paths.scan_size)
    linear_model = sum(
        map(
            operator.mul,
            _LOG_TIME_RATIO[carries_all],
            (1.0, log_rows, log_scan_size, log_iteration_s, digits),
        )
    )
    if demand_set_type in (AtMostOne, ExactlyOne):
        return math.exp(linear_model)
    # Concave utilities have a model of their own; stepped values take the larger ratio.
    alpha = 1.0 if problem.utility is None else problem.utility.curve.alpha
    utility_features = (1.0, log_iteration_s, digits, math.log(max(1.0, alpha)))
    utility_model = sum(map(operator.mul, _LOG_TIME_RATIO_WITH_UTILITIES, utility_features))
    return math.exp(
        max(utility_model, linear_model) if demand_set_type is Stepped else utility_model
    )


def pdhg_iterations_before(
    problem: Problem, gap: float, max_s: float, first: FirstProgram, *, is_warm: bool
) -> int | None:
    """Return how many iterations PDHG may take before this engine is started instead.

    A warm start saves PDHG ten times more work on some programs than on others.  PDHG therefore
    runs for the predicted time of this engine, so that both together take about twice that time.

    Args:
        problem: B matrices, the first of which stands for all.
        gap: target gap.
        max_s: seconds that all matrices may take; the prediction must be at most half of these.
        first: the program of the first matrix.
        is_warm: whether PDHG has a warm start.

    Returns:
        number of iterations: 0 if this engine is predicted to be faster and runs at once; None if
        this engine is not to be used.
    """
    scan_size = problem.paths.scan_size
    if not accepts(problem) or is_interpreting() or scan_size > _MAX_SCAN:
        return None
    # Where PDHG gains little from a warm start, the faster engine runs at once.
    is_one_small = scan_size <= _SMALL_SCAN and problem.batch == 1
    gains_little = is_one_small or not problem.ops.is_over_paths
    if (gains_little or not is_warm) and is_faster(problem, gap, max_s, first):
        return 0
    # This engine alone must fit half of the time limit.
    seconds = _predicted_s(problem, first.size, _gap_digits(gap))
    if problem.batch * seconds > max_s / 2:
        return None
    # Seconds of a PDHG iteration over ``lanes`` matrices at once: lanes^0.4 times those over one.
    lanes = max(1, min(problem.batch, _MAX_LANES))
    pdhg_iteration_s = (_PDHG_S_PER_ENTRY * scan_size + _MIN_PDHG_ITERATION_S) * lanes ** (
        1 - _LANES_EXPONENT
    )
    # Iterations that take as long as this engine on as many matrices.
    return max(_MIN_PDHG_ITERATIONS, int(lanes * seconds / pdhg_iteration_s))


def _gap_digits(gap: float) -> float:
    """Return -log10 of a gap, clamped to the measured range from 2 (1%) to 4 (0.01%)."""
    return min(max(-math.log10(max(gap, 1e-12)), _DIGITS[0]), _DIGITS[-1])


def gains_from_model(problem: Problem, gap: float, first: FirstProgram | None = None) -> bool:
    """Return whether a start from a PriceGNN saves more time than the model takes.

    Args:
        problem: B matrices of a problem that :func:`accepts` allows.
        gap: target gap.
        first: the program of the first matrix; None to build it.
    """
    return _saved_by_model_s(problem, gap, first or FirstProgram(problem)) > 0


def is_faster_from_model(problem: Problem, gap: float, max_s: float, first: FirstProgram) -> bool:
    """Return whether this engine, started from a PriceGNN, is predicted to be the fastest.

    It is compared with cold starts of this engine and of PDHG.

    Args:
        problem: one matrix; false for more matrices.
        gap: target gap.
        max_s: seconds that the matrix may take; the prediction must be at most half of these.
        first: the program of the matrix.
    """
    if not accepts(problem) or is_interpreting() or not problem.ops.is_over_paths:
        return False
    if not _SMALL_SCAN < problem.paths.scan_size <= _MAX_SCAN or problem.batch > 1:
        return False
    digits = _gap_digits(gap)
    without_model_s = _predicted_s(problem, first.size, digits)
    if without_model_s > max_s / 2:
        return False
    # Saved seconds, at most half of the time; a small part does not justify the model.
    saved_s = min(_saved_by_model_s(problem, gap, first), _SAVED_BY_MODEL * without_model_s)
    if saved_s < _MIN_SAVED * without_model_s:
        return False
    # Time of PDHG from a start of the model.
    speedup = float(np.interp(digits, _DIGITS, _PDHG_SPEEDUP_FROM_MODEL))
    pdhg_s = without_model_s / _time_ratio(problem, first.size, digits) / speedup
    return without_model_s - saved_s <= pdhg_s


def _saved_by_model_s(problem: Problem, gap: float, first: FirstProgram) -> float:
    """Return the predicted seconds that a start from a PriceGNN saves, less the time of the model.

    To a gap of 10^-d over r links that can bind, a cold solve of one matrix takes about

        3 + d / 2 + (0.022 + 0.0055 d) r

    iterations, fitted to 32 cases on networks of 33 to 125 nodes with gaps of 1%, 0.01% and
    0.0001%.

    Args:
        problem: B matrices; the paths determine the time of the model.
        gap: target gap.
        first: the program of the first matrix, whose size determines the time of an iteration.
    """
    size = first.size
    digits = -math.log10(max(gap, 1e-12))
    iterations = 3 + 0.5 * digits + (0.022 + 0.0055 * digits) * size.rows
    model_s = _MIN_MODEL_S + _MODEL_S_PER_ENTRY * problem.paths.scan_size
    return _SAVED_BY_MODEL * iterations * size.iteration_s - model_s


# Start from a PriceGNN: saved part of the iterations; seconds of the model, fixed and for each scan
# entry; smallest saved part of the time for which the model is used; speed-up of PDHG to gaps of
# 1%, 0.1% and 0.01%.  Scan entries are the nodes of the trie of all paths, and the path slots.
_SAVED_BY_MODEL = 0.5
_MIN_MODEL_S = 1.9e-3
_MODEL_S_PER_ENTRY = 1.1e-7
_MIN_SAVED = 0.1
_PDHG_SPEEDUP_FROM_MODEL = (2.0, 1.2, 1.0)
# Scan entries of the largest small network, and of the largest network that is solved by interior
# points.
_SMALL_SCAN = 7_000
_MAX_SCAN = 400_000
# Seconds of a PDHG iteration: for each scan entry, and at least; smallest number of PDHG iterations
# before this engine is used.
_PDHG_S_PER_ENTRY = 8e-9
_MIN_PDHG_ITERATION_S = 5e-5
_MIN_PDHG_ITERATIONS = 32
# Least PDHG iterations to gaps of 1%, 0.1% and 0.01%; with binding links PDHG seldom takes fewer:
# 264 cases on networks of 50 to 136 nodes.
_PDHG_ITERATIONS = (20.0, 30.0, 40.0)
# Scan entries of all matrices from which threads save time.
_MIN_PARALLEL_SCAN = 20_000
# Seconds within which a small network is solved in any case: its deadline needs no timer.
_SHORT_S = 0.1
# Time of this engine over that of PDHG for one matrix of a small network, to 1%, 0.1% and 0.01%.
_TIME_RATIO_IF_SMALL = (0.6, 0.42, 0.26)
# PDHG solves up to 16 matrices at once: n matrices take n^0.4 times as long as one.
_MAX_LANES = 16
_LANES_EXPONENT = 0.6
# The dual bound is computed at the prices times this factor.
_UNSCALED = np.ones(1)
# Small networks are solved at least to this gap, since an iteration takes microseconds.
_SMALL_NETWORK_GAP = 1e-7
# Seconds of an iteration: for each updated entry of the Schur complement, for each path, at least,
# and for the Cholesky factor times the cube of the rows; seconds of the presolve for each scan
# entry.
_S_PER_UPDATE = 3.5e-9
_S_PER_PATH = 6e-8
_MIN_ITERATION_S = 1e-6
_S_PER_CUBED_ROW = 3.5e-11
_PRESOLVE_S_PER_ENTRY = 4e-8
# Iterations to gaps of 1%, 0.1% and 0.01%, by whether all demand is served.
_ITERATIONS = {False: (7.0, 9.0, 11.0), True: (4.5, 6.0, 7.0)}
_DIGITS = (2.0, 3.0, 4.0)
# Ratio with upper bounds on columns; the largest of 75 cases with a limit on churn was 0.92.
_TIME_RATIO_WITH_BOUNDS = 0.5
# Larger networks: log(time of this engine / time of PDHG), linear in 1, log(links that can bind),
# log(scan entries), log(seconds of an iteration) and digits of the gap; least squares on 96 cases,
# by whether all demand is served.  Cross-validated by network, the sign is right in 92% of the
# cases.
_LOG_TIME_RATIO = {
    False: (15.792, -1.798, 0.0, 0.925, -0.583),
    True: (-11.217, 0.554, 0.668, -0.360, -0.176),
}
# Concave utilities: linear in 1, log(seconds of an iteration), digits of the gap and log(alpha);
# 132 cases, the sign right in 97%, and in 96% when cross-validated by network.  Values in steps
# take the larger of both models.
_LOG_TIME_RATIO_WITH_UTILITIES = (4.767, 0.513, -0.672, -0.509)


def solving(
    problem: Problem,
    state: PdhgState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    first: FirstProgram | None = None,
) -> Steps[PdhgResult]:
    """Solve B matrices by interior points, with a certified gap for each.

    Each matrix is presolved and solved; its splits are projected onto the capacities, and the
    Lagrangian bound of its prices certifies the gap.

    Args:
        problem: B matrices of a problem that :func:`accepts` allows.
        state: warm start; None for a cold one.
        gap: target gap.
        max_iterations: largest number of iterations of a matrix.
        deadline: time after which no iteration begins.
        first: the program of the first matrix, if it has been built.
    """
    begin = time.perf_counter()
    problem64 = problem if problem.demand.dtype == torch.float64 else problem.to(torch.float64)
    yield
    stop = np.zeros(1, np.bool_)
    # Starting a timer thread takes as long as solving such a network.
    is_short = (
        problem.batch * problem.paths.scan_size <= _SMALL_SCAN and deadline.remaining_s > _SHORT_S
    )
    # Splits (B, D, K), dual prices (B, E) and iterations (B,).
    with contextlib.nullcontext() if is_short else ends_at(deadline, stop):
        solution, prices, iterations = _solve_batch(
            problem64, state, gap, min(max_iterations, MAX_ITERATIONS), stop, first
        )
    dual_prices = torch.from_numpy(prices)
    # Project the splits onto the capacities, without refilling unused capacity; certify with the
    # Lagrangian bound of the prices.  Small problems have compiled kernels for both.
    if small.is_small(problem64):
        splits = small.projected(problem64, solution.reshape(problem64.batch, -1))
        metrics = small.measured(problem64, splits, dual_prices, _UNSCALED)
        value = torch.from_numpy(metrics.value)
        bound = from_score(problem64, torch.from_numpy(metrics.score), dual_prices)
    else:
        splits = project(problem64, torch.from_numpy(solution), refill=0)
        value = problem64.value(splits)
        bound = dual_bound(problem64, dual_prices)
    gaps = certified_gap(problem64, value, bound)
    dtype = problem.demand.dtype
    # The stopping criterion of the matrices that neither reached the gap nor met the deadline.
    max_iterations_taken = int(iterations.max(initial=0))
    other_stop = Stop.ITERATIONS if max_iterations_taken >= max_iterations else Stop.STALLED
    splits = splits.to(dtype)
    dual_prices = dual_prices.to(dtype)
    return PdhgResult(
        splits=splits,
        prices=dual_prices,
        value=value.to(dtype),
        bound=bound.to(dtype),
        gap=gaps.to(dtype),
        iterations=max_iterations_taken,
        solve_s=time.perf_counter() - begin,
        state=PdhgState(splits, dual_prices),
        stopped_by=tuple(
            Stop.GAP if matrix_gap <= gap else Stop.DEADLINE if stop[0] else other_stop
            for matrix_gap in gaps.tolist()
        ),
    )


def _solve_batch(
    problem: Problem,
    state: PdhgState | None,
    gap: float,
    max_iterations: int,
    stop: BoolArray,
    first: FirstProgram | None,
) -> tuple[FloatArray, FloatArray, Int64Array]:
    """Solve all matrices, several at once or one after the other.

    Args:
        problem: B matrices in float64.
        state: warm start; None for a cold one.
        gap: target gap.
        max_iterations: largest number of iterations of a matrix.
        stop: (1,) flag at which the searches end.
        first: the program of the first matrix, if it has been built.

    Returns:
        splits (B, D, K), dual prices (B, E) and iterations (B,).
    """
    mask = problem.ops.mask
    sheds = not problem.price_set.on_simplex
    splits = np.zeros((problem.batch, mask.numel()))
    prices = np.zeros((problem.batch, problem.capacity.shape[1]))
    # Warm start: splits projected onto the capacities, without refilling unused capacity; prices.
    if state is not None:
        feasible_splits = project(problem, state.splits.to(torch.float64), refill=0)
        splits[:] = feasible_splits.reshape(problem.batch, -1).numpy()
        prices[:] = state.prices.numpy()
    # Gap of the kernel: small networks are solved further than asked, since an iteration is cheap.
    iterations = np.zeros(problem.batch, np.int64)
    if problem.paths.scan_size <= _SMALL_SCAN and type(problem.demand_set) in (
        AtMostOne,
        ExactlyOne,
    ):
        gap = min(gap, _SMALL_NETWORK_GAP)
    kernel_gap = max(_MIN_KERNEL_GAP, _KERNEL_GAP_FACTOR * gap - _ROUNDING)
    start = COLD if state is None else WARM
    threads = numba.get_num_threads()
    # Many matrices run on one thread each; few run one after the other, each on all threads if it
    # is large.
    is_parallel_by_matrix = (
        threads > 1 and problem.batch * problem.paths.scan_size >= _MIN_PARALLEL_SCAN
    )
    is_parallel_by_matrix = is_parallel_by_matrix and problem.batch >= threads
    solve_one = solve if is_parallel_by_matrix else solve_on_threads

    # False: solutions that shed demand count, too.
    def solve_row(b: int, program: PresolvedProgram) -> None:
        iterations[b] = solve_one(
            program, sheds, False, kernel_gap, max_iterations, splits[b], prices[b], start, stop
        )

    if first is not None and problem.batch == 1:
        # The program is built already: demands outside it have the splits of the presolve, the
        # others those of the warm start.
        program, fixed_splits = first.presolved
        block_slots = program.slot[program.slot >= 0]
        block_splits = splits[0, block_slots]
        splits[0] = fixed_splits
        splits[0, block_slots] = block_splits
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
    return splits.reshape(problem.batch, *mask.shape), prices, iterations


def _programs(problem: Problem, splits: FloatArray) -> Iterator[PresolvedProgram]:
    """Yield the presolved program of each matrix.

    Args:
        problem: B matrices in float64.
        splits: (B, D K) share of its demand on each path; receives those of demands that are served
            in full because no link limits them.
    """
    sheds = not problem.price_set.on_simplex
    layout, coefficient = columns_of_ops(problem.ops, problem.capacity.shape[1])
    demand = problem.demand.contiguous().numpy()
    capacity = problem.capacity.contiguous().numpy()
    value = problem.path_value.contiguous().numpy().reshape(-1)
    for b in range(problem.batch):
        terms = _demand_terms(problem, coefficient, b)
        yield presolve(layout, terms, demand[b], capacity[b], value, sheds, 0.0, splits[b])


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
    from teal.solvers.pdhg.fused.rehearsal import three_nodes

    problem = three_nodes()
    first = FirstProgram(problem)
    if not is_large:
        # The size of the program, and one iteration of a cold search to a gap of 1%.
        assert first.size
        complete(solving(problem, None, 1e-2, 1, Deadline()))
        return
    program, splits = first.presolved
    warm_up_steps(program, splits, np.zeros(problem.capacity.shape[1]))


def warm_up_for(num_columns: int) -> None:
    """Compile or load the kernels that a program of at most ``num_columns`` columns may call."""
    warm_up()
    if may_be_large(num_columns):
        warm_up(is_large=True)
