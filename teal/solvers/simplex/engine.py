"""Dual simplex engine: solve small networks exactly, matrix after matrix from the last basis.

:class:`DualSimplex` takes the first basis from given splits, or from an optimum of interior points;
every further matrix of a batch starts from the basis of the matrix before it.
"""

from __future__ import annotations

import dataclasses
import functools
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
from teal.runtime.parallel import kernel
from teal.solvers import cost_model
from teal.solvers.certified import certified_result
from teal.solvers.contract import Limits, Start
from teal.solvers.interior.engine import InteriorPoints
from teal.solvers.interior.stops import ends_at
from teal.solvers.result import SolveResult, SolveState, Stop
from teal.solvers.simplex.basis import Basis, Program, blocks_of, crash, new_basis, users_of
from teal.solvers.simplex.method import Work, favour_basis, new_work, optimise

# Relative perturbation of the values, which breaks ties.
PERTURBATION = 1e-8
# A crash basis is favoured by as much as this share of the values.
_FAVOUR = 2 * PERTURBATION
# Prices times this factor are those of true values: no path of unserved demand is worth more than
# its price.  The gap of an optimal basis is at most this factor less 1.
_PRICE_FACTOR = 1 + PERTURBATION + _FAVOUR
# Largest gap of interior points, where these solve the first matrix.
_FIRST_GAP = 1e-7
# Largest number of pivots of a matrix, for each row of the program.
_MAX_PIVOTS_PER_ROW = 10
# Matrices in a row without an optimal basis, after which the rest of a batch is left out.
_MAX_FAILURES = 3


def accepts(problem: Problem) -> bool:
    """Return whether the engine can solve a problem: a linear value over paths, on the CPU, where
    demand may be unserved.
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
        """Return the predicted time of the expected pivots, s; the first basis is not included.

        Args:
            problem: B matrices of a program that :func:`accepts` allows.
            start: start of the search; it makes no difference.
            gap: target gap; it makes no difference.
        """
        del start, gap
        return cost_model.simplex_seconds(problem)

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        """Solve every matrix to an optimal basis.

        Args:
            problem: B matrices of a program that :func:`accepts` allows.
            start: start of the search; a model is not asked.
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
        exact = problem if problem.demand.dtype == torch.float64 else problem.to(torch.float64)
        yield
        stop = np.zeros(1, np.bool_)
        max_pivots = min(limits.max_iterations, _MAX_PIVOTS_PER_ROW * exact.capacity.shape[1])
        with ends_at(limits.deadline, stop):
            splits, prices, pivots = _solve_batch(exact, start.state, limits, max_pivots, stop)
        origin = "given splits" if start.state is not None else "interior points"
        self.detail = f"first basis from {origin}"
        result = certified_result(
            exact,
            torch.from_numpy(splits),
            torch.from_numpy(prices),
            limits.gap,
            iterations=int(pivots.max(initial=0)),
            missed=Stop.DEADLINE if stop[0] else Stop.ITERATIONS,
        )
        if limits.report is not None:
            limits.report(result.iterations, float(result.gap.max()))
        return result.in_dtype(problem.demand.dtype)


def _solve_batch(
    problem: Problem, state: SolveState | None, limits: Limits, max_pivots: int, stop: BoolArray
) -> tuple[FloatArray, FloatArray, Int64Array]:
    """Solve B matrices in consecutive parts, one for each thread; return splits (B, D, K), dual
    prices (B, E) and pivots (B,).

    Args:
        problem: B matrices in float64.
        state: warm start; None for a cold one.
        limits: target and limits of interior points, where these solve the first matrix.
        max_pivots: largest number of pivots of a matrix.
        stop: (1,) flag at which the iteration ends.
    """
    links = path_links_of(problem.paths)
    mask = problem.ops.mask
    batch, num_links = problem.capacity.shape
    num_paths = len(links.slot)
    num_blocks = problem.demand.shape[1]
    block, user_ptr, user = _columns(problem.paths, num_links)
    cost = _perturbed_costs(problem, links, len(block))
    demand = problem.demand.contiguous().numpy()
    # Capacities above all demand, which may be infinite, do not bind.
    capacity = np.minimum(problem.capacity.numpy(), demand.sum(1, keepdims=True))
    splits = np.empty((batch, mask.numel()))
    prices = np.empty((batch, num_links))
    pivots = np.zeros(batch, np.int64)
    first_limits = dataclasses.replace(limits, gap=min(limits.gap, _FIRST_GAP), report=None)
    # Consecutive parts, one for each thread.
    num_parts = min(batch, numba.get_num_threads())
    ends = [batch * part // num_parts for part in range(num_parts + 1)]

    def solve_part(first: int, end: int) -> None:
        if state is not None:
            start = state if batch == 1 else state.rows(torch.tensor([first]))
        else:
            row = problem if batch == 1 else problem.row(first)
            start = complete(InteriorPoints().solve(row, Start(), first_limits)).state
        first_splits = start.splits.to(torch.float64).contiguous().numpy().reshape(-1)
        first_prices = start.prices.to(torch.float64).contiguous().numpy().reshape(-1)
        rows = slice(first, end)
        splits[rows] = first_splits
        prices[rows] = first_prices
        solve_matrices(
            links,
            user_ptr,
            user,
            block,
            cost.copy(),
            demand[rows],
            capacity[rows],
            new_basis(num_paths, num_blocks, num_links),
            new_work(num_paths, num_blocks, num_links),
            first_splits[links.slot],
            first_prices,
            max_pivots,
            splits[rows],
            prices[rows],
            pivots[rows],
            stop,
        )

    if num_parts == 1:
        solve_part(0, batch)
    else:
        with ThreadPoolExecutor(num_parts) as pool:
            list(pool.map(solve_part, ends, ends[1:]))
    return splits.reshape(batch, *mask.shape), prices, pivots


@functools.lru_cache(maxsize=8)
def _columns(paths: PathSet, num_links: int) -> tuple[Int64Array, Int64Array, IntArray]:
    """Return the block of each column (P + D + n,), and the paths over each link in CSR form."""
    links = path_links_of(paths)
    return blocks_of(links, num_links), *users_of(links, num_links)


def _perturbed_costs(problem: Problem, links: PathLinks, num_columns: int) -> FloatArray:
    """Return the perturbed value of a Gbit/s on each column; 0 for unserved flow and slacks.

    Args:
        problem: B matrices in float64.
        links: P paths.
        num_columns: P + D + n.
    """
    num_paths = len(links.slot)
    costs = np.zeros(num_columns)
    value = problem.path_value.contiguous().numpy().reshape(-1)[links.slot]
    costs[:num_paths] = value * _perturbation(num_paths)
    return costs


@functools.lru_cache(maxsize=8)
def _perturbation(num_paths: int) -> FloatArray:
    """Return (P,) the factor on the value of each path: random numbers that are always the same."""
    return 1 - PERTURBATION * np.random.default_rng(0).random(num_paths)


@kernel
def solve_matrices(
    links: PathLinks,
    user_ptr: Int64Array,
    user: IntArray,
    block: Int64Array,
    cost: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    basis: Basis,
    work: Work,
    first_shares: FloatArray,
    first_prices: FloatArray,
    max_pivots: int,
    splits: FloatArray,
    prices: FloatArray,
    pivots: Int64Array,
    stop: BoolArray,
) -> None:
    """Solve matrices one after the other, each from the basis of the one before.

    Args:
        links: P paths of D demands.
        user_ptr, user: paths over each of n links, in CSR form.
        block: (P + D + n,) block of each column.
        cost: (P + D + n,) value of a Gbit/s on each column; some are lowered.
        demand: (B, D) Gbit/s.
        capacity: (B, n) Gbit/s, finite, 0 for failed links.
        basis: any basis (overwritten).
        work: workspace.
        first_shares: (P,) splits of a similar matrix, whose basis comes first.
        first_prices: (n,) dual prices of that matrix.
        max_pivots: largest number of pivots of a matrix.
        splits: (B, D K) the splits of the first basis; receives those of the optimal bases, and for
            matrices without one those of the matrix before.
        prices: (B, n) the dual prices of the first basis; receives those of the optimal bases.
        pivots: (B,) receives the number of pivots.
        stop: (1,) flag at which the iteration ends.
    """
    failures = 0
    last = -1
    for b in range(len(demand)):
        program = Program(
            links.path_ptr,
            links.link_ptr,
            links.link,
            user_ptr,
            user,
            block,
            demand[b],
            capacity[b],
            cost,
        )
        if b == 0:
            crash(program, basis, first_shares, first_prices, work.entering)
            favour_basis(program, basis, work, _FAVOUR)
        is_optimal = False
        if not stop[0] and failures < _MAX_FAILURES:
            pivots[b], is_optimal = optimise(program, basis, work, max_pivots, stop)
        if is_optimal:
            failures = 0
            last = b
            _write(program, basis, work, links.slot, splits[b], prices[b])
            continue
        # The last matrix with an optimal basis stands in.
        failures += 1
        if last >= 0:
            for slot in links.slot:
                splits[b, slot] = splits[last, slot]
            for r in range(len(first_prices)):
                prices[b, r] = prices[last, r]


@kernel
def _write(
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
