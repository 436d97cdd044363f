"""One program by interior points, with the certificate that every engine has."""

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
from teal.solvers.interior.reduction import PLAIN, DemandTerms, Reduced, reduced, updates_of
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

MAX_ITERATIONS = 200  # of a matrix; usual ones take 5 to 30
# Part of the target gap that the kernel aims at: the projection rounds, and adds in another order.
_AIM, _ROUNDING = 0.99, 1e-12
_LEAST_AIM = 1e-14  # which float64 can tell from 0


def accepts(problem: Problem) -> bool:
    """Whether the engine takes a program: over paths, or the columns and rows that conditions make
    of them, on the CPU.
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
    """The size of a program of one matrix.

    Attributes:
        rows: links that can bind.
        paths: paths of the blocks.
        updates: updates of S in an iteration.
    """

    rows: int
    paths: int
    updates: int

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration, approximately."""
        of_factor = _S_PER_PIVOT * self.rows**3
        return _S_PER_UPDATE * self.updates + _S_PER_PATH * self.paths + of_factor


class FirstProgram:
    """The program of the first matrix: its size says which engine is expected to be faster, and the
    search of one matrix does not make it again.

    Args:
        problem: B matrices of a program that :func:`accepts` takes.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @functools.cached_property
    def made(self) -> tuple[Reduced, FloatArray]:
        """The program, and the splits (D K,) of the demands that need none."""
        problem = self._problem
        first = (problem if problem.batch == 1 else problem.row(0)).to(torch.float64)
        splits = np.zeros((1, self._problem.ops.mask.numel()))
        return next(_programs(first, splits)), splits[0]

    @functools.cached_property
    def size(self) -> Size:
        """Its size."""
        program, _ = self.made
        return Size(len(program.limit), len(program.gain), updates_of(program))


def may_be_asked(problem: Problem) -> bool:
    """Whether :func:`is_faster` may be true of a program with such paths."""
    is_small = problem.paths.scan_size <= _NEVER_ABOVE
    return is_small and accepts(problem) and not is_interpreting()


def is_faster(
    problem: Problem, gap: float, most_s: float = math.inf, first: FirstProgram | None = None
) -> bool:
    """Whether the engine is expected to reach a target before PDHG does.

    The time of an iteration follows from the updates of S and the paths; the share that the whole
    takes of the time of PDHG was measured (``benchmarks/interior.py``).

    Args:
        problem: B matrices, of which the first is asked.
        gap: target.
        most_s: seconds that all matrices may take.
        first: the program of the first matrix.
    """
    first = first or FirstProgram(problem)
    if not accepts(problem) or is_interpreting():
        return False
    scan = problem.paths.scan_size
    if scan > _NEVER_ABOVE:
        return False
    place = _place_of(gap)
    if not problem.ops.is_over_paths:  # which PDHG's compiled engines do not take
        seconds = problem.batch * _seconds(problem, first.size, place)
        return seconds <= most_s / 2
    by_lanes = max(1, min(problem.batch, _LANES)) ** _GAIN_OF_LANES
    if scan <= _SMALL:
        return by_lanes * float(np.interp(place, _PLACES, _SHARE_IF_SMALL)) <= 1
    seconds = _seconds(problem, first.size, place)
    if problem.batch * seconds > most_s / 2:
        return False
    share = min(_share_of(problem, first.size, place), seconds / _least_of_pdhg_s(problem, place))
    return by_lanes * share <= 1


def _least_of_pdhg_s(problem: Problem, place: float) -> float:
    """Seconds that PDHG takes for one matrix at least: those of its fewest iterations."""
    iteration_s = _S_PER_ENTRY_OF_PDHG * problem.paths.scan_size + _LEAST_OF_PDHG_S
    return float(np.interp(place, _PLACES, _FEWEST_ITERATIONS_OF_PDHG)) * iteration_s


def _seconds(problem: Problem, size: Size, place: float) -> float:
    """Seconds that this engine takes for one matrix, approximately; arguments as in
    :func:`_share_of`.
    """
    iterations = np.interp(place, _PLACES, _ITERATIONS[problem.demand_set.carries_all])
    return float(iterations) * size.iteration_s + _S_PER_ENTRY_ONCE * problem.paths.scan_size


def _share_of(problem: Problem, size: Size, place: float) -> float:
    """Time of this engine over that of PDHG for one matrix of a network that is not small.

    Args:
        problem: problem of the matrix.
        size: size of its program.
        place: digits of the gap.
    """
    kind, carries_all = type(problem.demand_set), problem.demand_set.carries_all
    if kind is Capped:
        return _SHARE_OF_LIMITS
    iteration = math.log(size.iteration_s + _LEAST_ITERATION_S)
    rows, scan = math.log(max(1, size.rows)), math.log(problem.paths.scan_size)
    linear = sum(map(operator.mul, _LOG_SHARE[carries_all], (1.0, rows, scan, iteration, place)))
    if kind in (AtMostOne, ExactlyOne):
        return math.exp(linear)
    alpha = 1.0 if problem.utility is None else problem.utility.curve.alpha
    of_curves = (1.0, iteration, place, math.log(max(1.0, alpha)))
    concave = sum(map(operator.mul, _LOG_SHARE_OF_CURVES, of_curves))
    return math.exp(max(concave, linear) if kind is Stepped else concave)


def iterations_before(
    problem: Problem, gap: float, most_s: float, first: FirstProgram, *, is_warm: bool
) -> int | None:
    """Iterations that PDHG may take before this engine is asked: none where this engine is expected
    to be faster; None where it is not to be asked.

    How much a start near the solution saves PDHG differs by a factor of ten between programs, so
    that PDHG is given the time that this engine would take, and both take twice that time at most.

    Args:
        problem: B matrices, of which the first is asked.
        gap: target.
        most_s: seconds that all matrices may take.
        first: the program of the first matrix.
        is_warm: whether there is a start near the solution.
    """
    scan = problem.paths.scan_size
    if not accepts(problem) or is_interpreting() or scan > _NEVER_ABOVE:
        return None
    is_one_small = scan <= _SMALL and problem.batch == 1
    gains_little = is_one_small or not problem.ops.is_over_paths
    if (gains_little or not is_warm) and is_faster(problem, gap, most_s, first):
        return 0
    seconds = _seconds(problem, first.size, _place_of(gap))
    if problem.batch * seconds > most_s / 2:
        return None
    lanes = max(1, min(problem.batch, _LANES))
    of_pdhg = (_S_PER_ENTRY_OF_PDHG * scan + _LEAST_OF_PDHG_S) * lanes ** (1 - _GAIN_OF_LANES)
    return max(_LEAST_BEFORE, int(lanes * seconds / of_pdhg))


def _place_of(gap: float) -> float:
    """Digits of a gap, as far as they were measured."""
    return min(max(-math.log10(max(gap, 1e-12)), _PLACES[0]), _PLACES[-1])


def gains_from_model(problem: Problem, gap: float, first: FirstProgram | None = None) -> bool:
    """Whether the iterations that a PriceGNN's start saves take longer than the model.

    Args:
        problem: B matrices of a program that :func:`accepts` takes.
        gap: target.
        first: the program of the first matrix.
    """
    return _saved_by_model_s(problem, gap, first or FirstProgram(problem)) > 0


def is_faster_from_model(problem: Problem, gap: float, most_s: float, first: FirstProgram) -> bool:
    """Whether the engine is expected to reach a target from a PriceGNN's start before both engines
    do from nothing; arguments as in :func:`iterations_before`.
    """
    if not accepts(problem) or is_interpreting() or not problem.ops.is_over_paths:
        return False
    if not _SMALL < problem.paths.scan_size <= _NEVER_ABOVE or problem.batch > 1:
        return False
    place = _place_of(gap)
    alone = _seconds(problem, first.size, place)
    if alone > most_s / 2:
        return False
    saved = min(_saved_by_model_s(problem, gap, first), _PART_SAVED * alone)
    if saved < _LEAST_SAVED * alone:
        return False
    gain = float(np.interp(place, _PLACES, _GAIN_OF_PDHG_FROM_MODEL))
    of_pdhg = alone / _share_of(problem, first.size, place) / gain
    return alone - saved <= of_pdhg


def _saved_by_model_s(problem: Problem, gap: float, first: FirstProgram) -> float:
    """Seconds of a matrix that a PriceGNN's start saves, less those of the model.

    To a gap of d digits over r links that can bind there are without the model about

        3 + d / 2 + (0.022 + 0.0055 d) r

    iterations: 32 cases of networks of 33 to 125 nodes, to 1%, 0.01% and 0.0001%.
    """
    size = first.size
    digits = -math.log10(max(gap, 1e-12))
    iterations = 3 + 0.5 * digits + (0.022 + 0.0055 * digits) * size.rows
    of_model = _LEAST_OF_MODEL_S + _S_PER_ENTRY_OF_MODEL * problem.paths.scan_size
    return _PART_SAVED * iterations * size.iteration_s - of_model


_PART_SAVED = 0.5  # of the iterations, by a PriceGNN's start
_LEAST_OF_MODEL_S, _S_PER_ENTRY_OF_MODEL = 1.9e-3, 1.1e-7  # of a PriceGNN, the latter of a scan
_LEAST_SAVED = 0.1  # of the time without a model, below which none is asked
_GAIN_OF_PDHG_FROM_MODEL = (2.0, 1.2, 1.0)  # over PDHG from nothing, by digits of the gap
_SMALL, _NEVER_ABOVE = 7_000, 400_000  # entries of a scan
# Seconds of an iteration of PDHG, for each entry of a scan and at least; and its iterations before
# this engine is asked, at least.
_S_PER_ENTRY_OF_PDHG, _LEAST_OF_PDHG_S, _LEAST_BEFORE = 8e-9, 5e-5, 32
# Iterations of PDHG to gaps of 1%, 0.1% and 0.01%, fewer than which it seldom takes where links
# bind: 264 cases of networks of 50 to 136 nodes.
_FEWEST_ITERATIONS_OF_PDHG = (20.0, 30.0, 40.0)
_SIDE_BY_SIDE_FROM = 20_000  # entries of all matrices, from which threads save time
_SHORT_S = 0.1  # seconds, in which one small network is solved in any case
# Time of this engine over that of PDHG for one matrix of a small network, to 1%, 0.1% and 0.01%.
_SHARE_IF_SMALL = (0.6, 0.42, 0.26)
# PDHG takes matrices side by side: n of them, up to 16, take n^0.4 times as long as one.
_LANES, _GAIN_OF_LANES = 16, 0.6
_ONCE = np.ones(1)  # the multiple of the prices that a result proves by
_EXACT = 1e-7  # gap to which networks are solved of which an iteration takes microseconds
_S_PER_UPDATE, _S_PER_PATH, _LEAST_ITERATION_S = 3.5e-9, 6e-8, 1e-6
_S_PER_PIVOT = 3.5e-11  # of the factor, for each cube of the links that can bind
_S_PER_ENTRY_ONCE = 4e-8  # of the links that can bind, which are found twice
# Iterations to gaps of 1%, 0.1% and 0.01%, by whether all demand is carried.
_ITERATIONS = {False: (7.0, 9.0, 11.0), True: (4.5, 6.0, 7.0)}
_PLACES = (2.0, 3.0, 4.0)  # digits of these gaps
_SHARE_OF_LIMITS = 0.5  # of columns: the largest of 75 cases of a limit on churn was 0.92
# Larger networks: logarithm of the time of this engine over that of PDHG, as a sum of 1 and of the
# logarithms of the links that can bind, of the entries of a scan, of the seconds of an iteration,
# and of the digits of the gap, fitted to 96 cases by least squares, by whether all demand is
# carried.  Fitted without a network, it is right on that network in 92% of the cases.
_LOG_SHARE = {
    False: (15.792, -1.798, 0.0, 0.925, -0.583),
    True: (-11.217, 0.554, 0.668, -0.360, -0.176),
}
# The same of concave utilities, as a sum of 1 and of the logarithm of the seconds of an iteration,
# of the digits of the gap and of the logarithm of alpha, fitted to 132 cases: right in 97%, and in
# 96% on networks that it was not fitted to.  Values in steps take the larger of both.
_LOG_SHARE_OF_CURVES = (4.767, 0.513, -0.672, -0.509)


def solving(
    problem: Problem,
    state: PdhgState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    first: FirstProgram | None = None,
) -> Steps[PdhgResult]:
    """The solution of B matrices.

    Args:
        problem: B matrices of a program that :func:`accepts` takes.
        state: to start from; None for nothing.
        gap: target.
        max_iterations: largest number of iterations of a matrix.
        deadline: after which no iteration begins.
        first: the program of the first matrix, where it is known.
    """
    begin = time.perf_counter()
    exact = problem if problem.demand.dtype == torch.float64 else problem.to(torch.float64)
    yield
    stop = np.zeros(1, np.bool_)
    # A timer is a thread, which takes as long to start as such a network to solve.
    is_short = problem.batch * problem.paths.scan_size <= _SMALL and deadline.left > _SHORT_S
    with contextlib.nullcontext() if is_short else ends_at(deadline, stop):
        shares, prices, iterations = _solved(
            exact, state, gap, min(max_iterations, MAX_ITERATIONS), stop, first
        )
    found = torch.from_numpy(prices)
    if small.is_small(exact):
        splits = small.projected(exact, shares.reshape(exact.batch, -1))
        measured = small.measured(exact, splits, found, _ONCE)
        value = torch.from_numpy(measured.value)
        bound = from_score(exact, torch.from_numpy(measured.score), found)
    else:
        splits = project(exact, torch.from_numpy(shares), refill=0)
        value, bound = exact.value(splits), dual_bound(exact, found)
    gaps = certified_gap(exact, value, bound)
    real, most = problem.demand.dtype, int(iterations.max(initial=0))
    missed = Stop.ITERATIONS if most >= max_iterations else Stop.STALLED
    splits, found = splits.to(real), found.to(real)
    return PdhgResult(
        splits=splits,
        prices=found,
        value=value.to(real),
        bound=bound.to(real),
        gap=gaps.to(real),
        iterations=most,
        solve_s=time.perf_counter() - begin,
        state=PdhgState(splits, found),
        stopped_by=tuple(
            Stop.GAP if one <= gap else Stop.DEADLINE if stop[0] else missed
            for one in gaps.tolist()
        ),
    )


def _solved(
    problem: Problem,
    state: PdhgState | None,
    gap: float,
    max_iterations: int,
    stop: BoolArray,
    first: FirstProgram | None,
) -> tuple[FloatArray, FloatArray, Int64Array]:
    """Shares (B, D, K), prices (B, E) and the iterations (B,) of each matrix."""
    mask, sheds = problem.ops.mask, not problem.price_set.on_simplex
    splits = np.zeros((problem.batch, mask.numel()))
    prices = np.zeros((problem.batch, problem.capacity.shape[1]))
    if state is not None:
        given = project(problem, state.splits.to(torch.float64), refill=0)
        splits[:] = given.reshape(problem.batch, -1).numpy()
        prices[:] = state.prices.numpy()
    iterations = np.zeros(problem.batch, np.int64)
    if problem.paths.scan_size <= _SMALL and type(problem.demand_set) in (AtMostOne, ExactlyOne):
        gap = min(gap, _EXACT)
    aim = max(_LEAST_AIM, _AIM * gap - _ROUNDING)
    start, threads = COLD if state is None else WARM, numba.get_num_threads()
    # Matrices side by side, or one after the other, each on all threads where it is large.
    is_by_matrix = threads > 1 and problem.batch * problem.paths.scan_size >= _SIDE_BY_SIDE_FROM
    is_by_matrix = is_by_matrix and problem.batch >= threads
    of_one = solve if is_by_matrix else solve_on_threads

    def solve_row(row: int, program: Reduced) -> None:
        iterations[row] = of_one(
            program, sheds, False, aim, max_iterations, splits[row], prices[row], start, stop
        )

    if first is not None and problem.batch == 1:
        program, others = first.made
        is_in_block = program.slot[program.slot >= 0]
        of_blocks = splits[0, is_in_block]
        splits[0] = others
        splits[0, is_in_block] = of_blocks
        numbered = enumerate([program])
    else:
        numbered = enumerate(_programs(problem, splits))
    if not is_by_matrix:
        for row, program in numbered:
            solve_row(row, program)
    else:
        with ThreadPoolExecutor(threads) as pool:
            while some := list(itertools.islice(numbered, 4 * threads)):
                list(pool.map(solve_row, *zip(*some, strict=True)))
    return splits.reshape(problem.batch, *mask.shape), prices, iterations


def _programs(problem: Problem, splits: FloatArray) -> Iterator[Reduced]:
    """The program of each matrix; what needs none is put into ``splits`` (B, D K)."""
    sheds = not problem.price_set.on_simplex
    layout, coefficient = columns_of_ops(problem.ops, problem.capacity.shape[1])
    demand, capacity = problem.demand.contiguous().numpy(), problem.capacity.contiguous().numpy()
    value = problem.path_value.contiguous().numpy().reshape(-1)
    for row in range(problem.batch):
        terms = _terms_of(problem, coefficient, row)
        yield reduced(layout, terms, demand[row], capacity[row], value, sheds, 0.0, splits[row])


def _terms_of(problem: Problem, coefficient: FloatArray, row: int) -> DemandTerms:
    """Terms of the demands of one matrix."""
    terms, demand_set = PLAIN._replace(coefficient=coefficient), problem.demand_set
    if isinstance(demand_set, Stepped):
        level = demand_set.steps.level.expand(problem.demand.shape[1], -1)
        end = demand_set.steps.end[row].expand_as(level)
        terms = terms._replace(level=_array(level), end=_array(end))
    if isinstance(demand_set, Concave):
        terms = terms._replace(worth=_array(demand_set.worth[row]), alpha=demand_set.curve.alpha)
    largest = getattr(demand_set, "max_share", None)
    if largest is not None:
        terms = terms._replace(largest=_array(largest[row]).reshape(-1))
    return terms


def _array(values: torch.Tensor) -> FloatArray:
    return values.to(torch.float64).contiguous().numpy()


@functools.cache
def rehearse(*, is_large: bool = False) -> None:
    """Compile the kernels, and those of bounds and projections in float64, on three nodes.

    Args:
        is_large: those of programs so large that an iteration runs on all threads, in place of the
            others.
    """
    from teal.solvers.pdhg.fused.rehearsal import three_nodes

    problem = three_nodes()
    first = FirstProgram(problem)
    if not is_large:
        assert first.size
        complete(solving(problem, None, 1e-2, 1, Deadline()))
        return
    program, splits = first.made
    warm_up_steps(program, splits, np.zeros(problem.capacity.shape[1]))


def rehearse_for(num_columns: int) -> None:
    """:func:`rehearse` for programs with so many columns."""
    rehearse()
    if may_be_large(num_columns):
        rehearse(is_large=True)
