"""Minimum-cost multicommodity flow over candidate paths, with a certificate of infeasibility.

    min sum cost[d, k] x[d, k]   s.t.   sum_k x[d, k] = demand[d],   load[e] <= u c[e],   x >= 0.

The interior-point method solves the exact-penalty form: demand may be shed, at a price per Gbit/s
above the cost of any path, which rises until all demand is served
(:mod:`teal.solvers.interior.search`).  If that fails, max_link_utilisation decides feasibility:
prices that prove a utilisation above 1 prove infeasibility, and its optimum gives the largest
common served fraction.  Entry point: :func:`solving`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network.path_links import path_links_of
from teal.objectives import ObjectiveName
from teal.problem import Problem, dual_bound
from teal.problem.bounds import gap as certified_gap
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline, Steps
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers.exact import exact_program
from teal.solvers.interior import engine as interior
from teal.solvers.interior.all_paths import SHEDDING_PRICE_GROWTH, UNSERVED_COST
from teal.solvers.interior.presolve import NO_TERMS, presolve
from teal.solvers.interior.search import solve_on_threads
from teal.solvers.interior.starts import COLD, WARM, Start
from teal.solvers.interior.stops import ends_at
from teal.solvers.projection import scaled_to_one
from teal.solvers.result import SolveResult, SolveState, Stop, merged

ENGINES = ("auto", "interior")
_MAX_PRICE_RISE = 1e5  # limit of the price of unserved demand over its first value
_SHARE_GAPS = (1e-2, 1e-4, 1e-6, 1e-9)  # successive target gaps of the largest common share
_ROUNDING = 1e-9  # relative tolerance of the capacity constraints
# Largest ratio of a path cost to the largest of the demands' cheapest costs that the first price of
# unserved demand covers.
_COST_RANGE = 1e3
_AIMED_GAP_SHARE = 0.99  # share of the target gap that the kernel aims at

MluSolver = Callable[[Problem, float, Deadline], Steps[SolveResult]]
"""Solver of max_link_utilisation: called with a problem of one matrix, the gap and a deadline."""


class ConcurrentFlow(NamedTuple):
    """Largest common served fraction of all demands of one matrix.

    Attributes:
        share: served fraction of every demand under the splits, at most 1.
        bound: upper bound of the served fraction; above 1 where all demand may fit.
        splits: (1, D, K) splits of the allocation.
        prices: (1, E) dual prices that prove the bound; the sum of capacity times price is 1.
    """

    share: float
    bound: float
    splits: Tensor
    prices: Tensor

    @property
    def is_fully_served(self) -> bool:
        """Whether all demand is served."""
        return self.share >= 1

    @property
    def is_infeasible(self) -> bool:
        """Whether prices prove that the network cannot carry all demand."""
        return self.bound < 1 - _ROUNDING


def max_concurrent_flow(
    problem: Problem, minimise_mlu: MluSolver, deadline: Deadline
) -> Steps[ConcurrentFlow]:
    """Compute the largest fraction that can be served of every demand of one matrix, with a bound.

    It is 1 / (smallest possible largest utilisation), at most 1.  Programs are solved to ever
    smaller gaps until value or bound decides whether all demand fits.

    Args:
        problem: one matrix.
        minimise_mlu: solver of max_link_utilisation for one matrix, to a gap, until a deadline.
        deadline: end of the search, which may leave the question undecided.
    """
    # The inverse of a largest utilisation is a common served fraction, and the inverse of its lower
    # bound an upper bound on the fraction.
    mlu_problem = problem.as_min_max_program(ObjectiveName.MAX_LINK_UTILISATION, problem.demand)
    for gap in _SHARE_GAPS:
        result = yield from minimise_mlu(mlu_problem, gap, deadline)
        utilisation = float(result.value[0])
        utilisation_bound = float(result.bound[0])
        served_share = 1 / max(utilisation, 1.0)
        served_share_bound = 1 / utilisation_bound if utilisation_bound > 0 else float("inf")
        concurrent_flow = ConcurrentFlow(
            served_share, served_share_bound, served_share * result.splits, result.prices
        )
        if concurrent_flow.is_fully_served or concurrent_flow.is_infeasible or deadline.is_over:
            break
    return concurrent_flow


def solving(
    problem: Problem,
    state: SolveState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    engine: str,
    minimise_mlu: MluSolver,
) -> Steps[SolveResult]:
    """Solve B matrices under least_cost over their candidate paths.

    Args:
        problem: B matrices.
        state: warm start; None for a cold start.
        gap: target gap.
        max_iterations: iteration limit of each matrix.
        deadline: deadline of the last iteration.
        engine: "auto" or "interior".
        minimise_mlu: solver of max_link_utilisation, which decides whether a matrix is feasible.

    Raises:
        InputError: another engine, side conditions, segment lists, or a GPU.
    """
    problem64 = problem.to(torch.float64)
    require(problem64, engine)
    results = []
    for row in range(problem.batch):
        row_problem = problem64.row(row)
        row_state = None if state is None else state.rows(slice(row, row + 1))
        results.append(
            (
                yield from _solve_matrix(
                    row_problem, row_state, gap, max_iterations, deadline, minimise_mlu
                )
            )
        )
    return in_type(merged(results), problem.demand.dtype)


def in_type(result: SolveResult, dtype: torch.dtype) -> SolveResult:
    """Return a result with splits and prices in ``dtype``; value, bound and gap stay float64."""
    tensors: dict[str, Any] = {
        field: getattr(result, field).to(dtype) for field in ("splits", "prices")
    }
    state = SolveState(tensors["splits"], tensors["prices"])
    return dataclasses.replace(result, **tensors, state=state)


def require(problem: Problem, engine: str) -> None:
    """Raise InputError unless interior points can solve a problem under least_cost.

    Args:
        problem: B matrices.
        engine: "auto" or "interior".

    Raises:
        InputError: another engine, side conditions, or another device.
    """
    if engine not in ENGINES:
        raise InputError("solve", "engine", f"{' or '.join(ENGINES)} under least_cost", engine)
    if not interior.accepts(problem):
        expected = "a problem on the CPU, over candidate paths, without side conditions"
        raise InputError("objective least_cost", "", expected, repr(problem))


def _solve_matrix(
    problem: Problem,
    state: SolveState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    minimise_mlu: MluSolver,
) -> Steps[SolveResult]:
    """Solve one matrix by the exact penalty method.

    Each round may shed demand at a price per Gbit/s; the price rises until all demand is served, or
    until max_link_utilisation proves that the network cannot carry it.

    Args:
        problem: one matrix, float64.
        state: warm start; None for a cold start.
        gap: target gap.
        max_iterations: iteration limit of a round.
        deadline: deadline of the last iteration.
        minimise_mlu: solver of max_link_utilisation.
    """
    # Splits (D * K,) and prices (E,), zero or from the warm start; each round continues from those
    # of the last one.
    begin = time.perf_counter()
    iterations = 0
    splits = np.zeros(problem.paths.mask.size)
    prices = np.zeros(problem.topology.num_links)
    start_kind = COLD if state is None else WARM
    if state is not None:
        splits[:] = scaled_to_one(problem, state.splits.to(torch.float64)).reshape(-1).numpy()
        prices[:] = state.prices[0].numpy()
    concurrent_flow: ConcurrentFlow | None = None
    shedding_price, max_shedding_price = _shedding_price_range(problem)
    while True:
        # The computation may pause here.
        yield
        # Solve at the present price, and evaluate the splits scaled to serve all demand.
        served_splits, iterations = _solve_at_shedding_price(
            problem, shedding_price, splits, prices, gap, max_iterations, deadline, start_kind
        )
        result = make_result(
            problem, served_splits, torch.from_numpy(prices)[None], iterations, gap, deadline
        )
        if (
            is_feasible(problem, result.splits)
            or deadline.is_over
            or shedding_price >= max_shedding_price
        ):
            break
        # Unserved demand: infeasible, or a price that is too low.
        if concurrent_flow is None:
            concurrent_flow = yield from max_concurrent_flow(problem, minimise_mlu, deadline)
            if concurrent_flow.is_infeasible:
                result = infeasible_result(result, concurrent_flow)
                break
        shedding_price *= SHEDDING_PRICE_GROWTH
    if bool(without_path(problem)[0]):
        result = disconnected_result(result)
    return dataclasses.replace(result, solve_s=time.perf_counter() - begin)


def _shedding_price_range(problem: Problem) -> tuple[float, float]:
    """Return the first price per Gbit/s of unserved demand, and the limit up to which it rises.

    A price above the cost of every path serves all feasible demand.  One path of extreme cost would
    make the price so large that the costs of all others vanish in its rounding, so that the first
    price covers costs up to 1000 times the typical one: the largest cost of a demand's cheapest
    path.
    """
    # (B, D, K) cost of a Gbit/s on each path.
    cost = torch.where(problem.path_mask, -problem.path_value, -torch.inf)
    max_cost = max(float(cost.max()), 0.0)
    cheapest_cost = torch.where(problem.path_mask, -problem.path_value, torch.inf).amin(-1)
    routable_cost = torch.where(problem.routable, cheapest_cost, 0.0)
    typical_cost = max(float(routable_cost.max()), 0.0)
    # Cost that the first price covers; costs of 0 everywhere give a price of 1.
    covered_cost = min(max_cost, _COST_RANGE * typical_cost) or max_cost
    return UNSERVED_COST * covered_cost or 1.0, (UNSERVED_COST * max_cost or 1.0) * _MAX_PRICE_RISE


def _solve_at_shedding_price(
    problem: Problem,
    shedding_price: float,
    splits: FloatArray,
    prices: FloatArray,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    start_kind: Start,
) -> tuple[Tensor, int]:
    """Minimise the cost of flows plus the price of unserved demand, for one matrix.

    Args:
        problem: one matrix, float64.
        shedding_price: cost of an unserved Gbit/s.
        splits: (D * K,) start, then solution (updated).
        prices: (E,) start, then dual prices (updated).
        gap: target gap.
        max_iterations: iteration limit.
        deadline: deadline of the last iteration.
        start_kind: COLD, or WARM to start from splits and prices.

    Returns:
        splits (1, D, K), and the number of iterations.
    """
    # Without compiled kernels HiGHS solves the program, with all demand served.
    if is_interpreting():
        highs_solution = exact_program(problem.program, deadline.remaining_s)
        if highs_solution is not None:
            prices[:] = highs_solution[1][0].numpy()
            return highs_solution[0], 0
    # Value of a Gbit/s on a path: shedding price minus path cost (path_value is minus the cost).
    path_profit = (shedding_price + problem.path_value).reshape(-1).contiguous().numpy()
    demand = problem.demand[0].contiguous()
    capacity = problem.capacity[0].contiguous()
    # Presolve a program that may shed demand (True); a Gbit/s at no cost has the value
    # shedding_price.
    program = presolve(
        path_links_of(problem.paths),
        NO_TERMS,
        demand.numpy(),
        capacity.numpy(),
        path_profit,
        True,
        shedding_price,
        splits,
    )
    # Search with shedding (first True) whose incumbents must serve all demand (second True), to
    # slightly below the gap; the deadline sets the flag.
    stop_flag = np.zeros(1, np.bool_)
    with ends_at(deadline, stop_flag):
        iterations = solve_on_threads(
            program,
            True,
            True,
            max(1e-14, _AIMED_GAP_SHARE * gap - 1e-12),
            min(max_iterations, interior.MAX_ITERATIONS),
            splits,
            prices,
            start_kind,
            stop_flag,
        )
    return torch.from_numpy(splits).reshape(problem.path_mask.shape), iterations


def is_feasible(problem: Problem, splits: Tensor) -> bool:
    """Return whether the loads of splits (1, D, K) are within the capacities, up to rounding.

    Splits are shares of the demands; whether they sum to 1 is not checked.
    """
    return bool((problem.program.overload(problem.loads(splits)) <= _ROUNDING).all())


def make_result(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    iterations: int,
    gap: float,
    deadline: Deadline,
) -> SolveResult:
    """Create the result of one matrix under least_cost, with the splits scaled to serve all demand.

    Value and gap are infinite if the loads then exceed the capacities.

    Args:
        problem: one matrix.
        splits: (1, D, K) splits, scaled here to a sum of 1 per demand.
        prices: (1, E) dual prices.
        iterations: number of iterations.
        gap: target gap.
        deadline: deadline of the search, for the stopping criterion.
    """
    # Serve all demand over the live paths; overloaded links make the value infinite.
    live_splits = torch.where(problem.path_mask, splits, 0).clamp(min=0)
    splits = scaled_to_one(problem, live_splits)
    bound = dual_bound(problem, prices)
    value = problem.value(splits)
    if not is_feasible(problem, splits):
        value = torch.full_like(value, torch.inf)
    # Certified gap, and the criterion that ended the search.
    gaps = certified_gap(problem, value, bound)
    has_target_gap = float(gaps[0]) <= gap
    stop_reason = (
        Stop.GAP if has_target_gap else Stop.DEADLINE if deadline.is_over else Stop.STALLED
    )
    state = SolveState(splits, prices)
    return SolveResult(
        splits=splits,
        prices=prices,
        value=value,
        bound=bound,
        gap=gaps,
        iterations=iterations,
        solve_s=0.0,
        state=state,
        stopped_by=(stop_reason,),
    )


def infeasible_result(result: SolveResult, concurrent_flow: ConcurrentFlow) -> SolveResult:
    """Return the result of an infeasible matrix, with infinite value, bound and gap.

    Splits and prices are those of the maximum concurrent flow.

    Args:
        result: result of one matrix with unserved demand.
        concurrent_flow: its maximum concurrent flow.
    """
    infinite = torch.full_like(result.value, torch.inf)
    splits = concurrent_flow.splits.to(result.splits)
    prices = concurrent_flow.prices.to(result.prices)
    return dataclasses.replace(
        result,
        splits=splits,
        prices=prices,
        value=infinite,
        bound=infinite,
        gap=infinite,
        state=SolveState(splits, prices),
        stopped_by=(Stop.INFEASIBLE,),
        largest_share=torch.tensor(
            [[concurrent_flow.share, concurrent_flow.bound]], dtype=torch.float64
        ),
    )


def without_path(problem: Problem) -> Tensor:
    """Return (B,) whether a matrix has a positive demand without a live candidate path.

    Such a matrix is infeasible under least_cost.
    """
    return ((problem.demand > 0) & ~problem.routable).any(1)


def disconnected_result(result: SolveResult) -> SolveResult:
    """Return the infeasible result of matrices that have a demand without a path.

    Value, bound and gap are infinite, and the largest common served fraction is 0 with the bound 0.
    The splits stay: they serve the other demands.

    Args:
        result: result of these matrices.
    """
    infinite = torch.full_like(result.value, torch.inf)
    return dataclasses.replace(
        result,
        value=infinite,
        bound=infinite,
        gap=infinite,
        stopped_by=(Stop.INFEASIBLE,) * len(result.stopped_by),
        largest_share=torch.zeros(len(infinite), 2, dtype=torch.float64),
    )
