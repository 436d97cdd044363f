"""All demand at the least cost, within capacities: over candidate paths, and whether it can be
carried at all.

    min sum cost[d, k] x[d, k]   s.t.   sum_k x[d, k] = demand[d],   load[e] <= u c[e],   x >= 0.

Interior points solve it as a program that may leave demand, each Gbit/s of it at a price above that
of any path, and end when what they have found carries all (:mod:`teal.solvers.interior.search`).
Where they find none, max_link_utilisation decides: prices that prove a utilisation above 1 prove
that no allocation carries all demand, and its optimum says the largest share of every demand that
can be carried.
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
from teal.solvers.interior.all_paths import UNSERVED_COST, UNSERVED_COST_FACTOR
from teal.solvers.interior.presolve import NO_TERMS, presolve
from teal.solvers.interior.search import solve_on_threads
from teal.solvers.interior.starts import COLD, WARM, Start
from teal.solvers.interior.stops import ends_at
from teal.solvers.projection import scaled_to_one
from teal.solvers.result import PdhgResult, PdhgState, Stop, merged

ENGINES = ("auto", "interior")
_MOST_RISES = 1e5  # factor up to which the price of a Gbit/s that is not carried rises
_SHARE_GAPS = (1e-2, 1e-4, 1e-6, 1e-9)  # at which the largest share is looked at, one after another
_ROUNDING = 1e-9  # of a capacity, by which loads may exceed it
# Costs of candidate paths over the dearest of the demands' cheapest ones, up to which the first
# price of unserved demand covers them.
_COST_RANGE = 1e3
_AIM = 0.99  # part of the target gap that the kernel aims at

Balance = Callable[[Problem, float, Deadline], Steps[PdhgResult]]
"""Solves max_link_utilisation of one matrix to a gap."""


class LargestShare(NamedTuple):
    """How much of every demand can be carried.

    Attributes:
        share: share of every demand that the splits carry, at most 1.
        bound: share that no allocation exceeds; above 1 where all may be carried.
        splits: (1, D, K) of the allocation.
        prices: (1, E) that prove the bound; the sum of capacity times price is 1.
    """

    share: float
    bound: float
    splits: Tensor
    prices: Tensor

    @property
    def is_whole(self) -> bool:
        """Whether all demand is carried."""
        return self.share >= 1

    @property
    def is_impossible(self) -> bool:
        """Whether prices prove that all demand cannot be carried."""
        return self.bound < 1 - _ROUNDING


def largest_share(problem: Problem, balance: Balance, deadline: Deadline) -> Steps[LargestShare]:
    """How much of every demand of one matrix can be carried, until that is known to be all or less.

    Args:
        problem: one matrix.
        balance: solves max_link_utilisation.
        deadline: after which the search ends undecided.
    """
    balanced = problem.balanced(ObjectiveName.MAX_LINK_UTILISATION, problem.demand)
    for gap in _SHARE_GAPS:
        result = yield from balance(balanced, gap, deadline)
        utilisation, least = float(result.value[0]), float(result.bound[0])
        share = 1 / max(utilisation, 1.0)
        bound = 1 / least if least > 0 else float("inf")
        found = LargestShare(share, bound, share * result.splits, result.prices)
        if found.is_whole or found.is_impossible or deadline.is_over:
            break
    return found


def solving(
    problem: Problem,
    state: PdhgState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    engine: str,
    balance: Balance,
) -> Steps[PdhgResult]:
    """The solution of B matrices under least_cost over their candidate paths.

    Args:
        problem: B matrices.
        state: to start from; None for nothing.
        gap: target.
        max_iterations: largest number of iterations of a matrix.
        deadline: after which no iteration begins.
        engine: auto or interior.
        balance: solves max_link_utilisation.

    Raises:
        InputError: another engine, side conditions, segment lists, or a GPU.
    """
    exact = problem.to(torch.float64)
    require(exact, engine)
    results = []
    for row in range(problem.batch):
        one = exact.row(row)
        start = None if state is None else state.rows(slice(row, row + 1))
        results.append(
            (yield from _solving_one(one, start, gap, max_iterations, deadline, balance))
        )
    return in_type(merged(results), problem.demand.dtype)


def in_type(result: PdhgResult, real: torch.dtype) -> PdhgResult:
    """A result with splits and prices in the type of its problem; value, bound and gap, which are
    certified, keep their digits.
    """
    tensors: dict[str, Any] = {
        field: getattr(result, field).to(real) for field in ("splits", "prices")
    }
    state = PdhgState(tensors["splits"], tensors["prices"])
    return dataclasses.replace(result, **tensors, state=state)


def require(problem: Problem, engine: str) -> None:
    """Raise InputError where interior points do not take a problem under least_cost."""
    if engine not in ENGINES:
        raise InputError("solve", "engine", f"{' or '.join(ENGINES)} under least_cost", engine)
    if not interior.accepts(problem):
        expected = "candidate paths, no side condition, and the device cpu"
        raise InputError("objective least_cost", "", expected, repr(problem))


def _solving_one(
    problem: Problem,
    state: PdhgState | None,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    balance: Balance,
) -> Steps[PdhgResult]:
    begin, iterations = time.perf_counter(), 0
    splits = np.zeros(problem.paths.mask.size)
    prices = np.zeros(problem.topology.num_links)
    start = COLD if state is None else WARM
    if state is not None:
        splits[:] = scaled_to_one(problem, state.splits.to(torch.float64)).reshape(-1).numpy()
        prices[:] = state.prices[0].numpy()
    share: LargestShare | None = None
    worth, limit = _prices_of_unserved(problem)
    while True:
        yield
        found, iterations = _solved(
            problem, worth, splits, prices, gap, max_iterations, deadline, start
        )
        result = result_of(
            problem, found, torch.from_numpy(prices)[None], iterations, gap, deadline
        )
        if is_within(problem, result.splits) or deadline.is_over or worth >= limit:
            break
        if share is None:
            share = yield from largest_share(problem, balance, deadline)
            if share.is_impossible:
                result = impossible(result, share)
                break
        worth *= UNSERVED_COST_FACTOR
    if bool(without_path(problem)[0]):
        result = cut_off(result)
    return dataclasses.replace(result, solve_s=time.perf_counter() - begin)


def _prices_of_unserved(problem: Problem) -> tuple[float, float]:
    """The first price of a Gbit/s of unserved demand, and the largest one that is tried.

    A price above the cost of every path serves all demand that can be served.  A single path of an
    extreme cost would make it lose the digits of all others, and is taken into account only where
    cheaper paths do not do.
    """
    cost = torch.where(problem.path_mask, -problem.path_value, -torch.inf)
    dearest = max(float(cost.max()), 0.0)
    cheapest = torch.where(problem.path_mask, -problem.path_value, torch.inf).amin(-1)
    of_routable = torch.where(problem.routable, cheapest, 0.0)
    usual = max(float(of_routable.max()), 0.0)
    first = min(dearest, _COST_RANGE * usual) or dearest
    return UNSERVED_COST * first or 1.0, (UNSERVED_COST * dearest or 1.0) * _MOST_RISES


def _solved(
    problem: Problem,
    worth: float,
    splits: FloatArray,
    prices: FloatArray,
    gap: float,
    max_iterations: int,
    deadline: Deadline,
    start: Start,
) -> tuple[Tensor, int]:
    """Splits (1, D, K), and the number of iterations; ``prices`` (E,) receive those found."""
    if is_interpreting():
        solved = exact_program(problem.program, deadline.left)
        if solved is not None:
            prices[:] = solved[1][0].numpy()
            return solved[0], 0
    value = (worth + problem.path_value).reshape(-1).contiguous().numpy()
    demand, capacity = problem.demand[0].contiguous(), problem.capacity[0].contiguous()
    program = presolve(
        path_links_of(problem.paths),
        NO_TERMS,
        demand.numpy(),
        capacity.numpy(),
        value,
        True,
        worth,
        splits,
    )
    stop = np.zeros(1, np.bool_)
    with ends_at(deadline, stop):
        iterations = solve_on_threads(
            program,
            True,
            True,
            max(1e-14, _AIM * gap - 1e-12),
            min(max_iterations, interior.MAX_ITERATIONS),
            splits,
            prices,
            start,
            stop,
        )
    return torch.from_numpy(splits).reshape(problem.path_mask.shape), iterations


def is_within(problem: Problem, splits: Tensor) -> bool:
    """Whether splits (1, D, K) that carry all demand keep loads within capacities."""
    return bool((problem.program.overload(problem.loads(splits)) <= _ROUNDING).all())


def result_of(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    iterations: int,
    gap: float,
    deadline: Deadline,
) -> PdhgResult:
    """The result of splits (1, D, K), scaled to carry all demand, and of prices (1, E).

    Splits whose loads exceed capacities are no allocation: their value and gap are infinite.
    """
    live = torch.where(problem.path_mask, splits, 0).clamp(min=0)
    splits = scaled_to_one(problem, live)
    bound = dual_bound(problem, prices)
    value = problem.value(splits)
    if not is_within(problem, splits):
        value = torch.full_like(value, torch.inf)
    gaps = certified_gap(problem, value, bound)
    is_reached = float(gaps[0]) <= gap
    stop = Stop.GAP if is_reached else Stop.DEADLINE if deadline.is_over else Stop.STALLED
    state = PdhgState(splits, prices)
    return PdhgResult(
        splits=splits,
        prices=prices,
        value=value,
        bound=bound,
        gap=gaps,
        iterations=iterations,
        solve_s=0.0,
        state=state,
        stopped_by=(stop,),
    )


def impossible(result: PdhgResult, share: LargestShare) -> PdhgResult:
    """The result of a matrix that cannot be carried: the allocation of the largest share, and the
    prices that prove that no share is larger.
    """
    infinite = torch.full_like(result.value, torch.inf)
    splits, prices = share.splits.to(result.splits), share.prices.to(result.prices)
    return dataclasses.replace(
        result,
        splits=splits,
        prices=prices,
        value=infinite,
        bound=infinite,
        gap=infinite,
        state=PdhgState(splits, prices),
        stopped_by=(Stop.INFEASIBLE,),
        largest_share=torch.tensor([[share.share, share.bound]], dtype=torch.float64),
    )


def without_path(problem: Problem) -> Tensor:
    """(B,) whether a demand above 0 has no live candidate path, so that not all can be carried."""
    return ((problem.demand > 0) & ~problem.routable).any(1)


def cut_off(result: PdhgResult) -> PdhgResult:
    """The result of a matrix with a demand that has no path: of every demand nothing can be carried
    at once, and the splits are those of the demands that have a path.
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
