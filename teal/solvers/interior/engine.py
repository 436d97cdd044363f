"""One program by interior points, with the certificate that every engine has."""

from __future__ import annotations

import functools
import time
from typing import NamedTuple

import numpy as np
import torch

from teal.network import PathSet
from teal.problem import Problem, dual_bound
from teal.problem.bounds import gap as certified_gap
from teal.problem.sets import AtMostOne, ExactlyOne
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.interior.kernels import size_of as size_of_program
from teal.solvers.interior.kernels import solve_one
from teal.solvers.interior.layout import layout_of
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, Stop


class _Arrays(NamedTuple):
    """A problem in float64 as the kernels take it.

    Attributes:
        demand: (B, D) Gbit/s.
        capacity: (B, E) Gbit/s.
        value: (D K,) of a Gbit/s on each path.
        sheds: whether demands may be carried in part.
    """

    demand: FloatArray
    capacity: FloatArray
    value: FloatArray
    sheds: bool

    @classmethod
    def of(cls, problem: Problem) -> _Arrays:
        return cls(
            problem.demand.contiguous().numpy(),
            problem.capacity.contiguous().numpy(),
            problem.path_value.contiguous().numpy().reshape(-1),
            not problem.price_set.on_simplex,
        )


class Size(NamedTuple):
    """The size of a program of one matrix.

    Attributes:
        rows: links that can bind.
        paths: paths of the blocks.
        entries: links of these paths that can bind.
        updates: updates of S in an iteration.
    """

    rows: float
    paths: float
    entries: float
    updates: float


def size_of(problem: Problem) -> Size:
    """The size of the program of the first matrix."""
    exact, out = problem.row(0).to(torch.float64), np.zeros(4)
    arrays = _Arrays.of(exact)
    size_of_program(
        layout_of(exact.paths),
        arrays.demand[0],
        arrays.capacity[0],
        arrays.value,
        arrays.sheds,
        np.zeros(problem.paths.mask.size),
        out,
    )
    return Size(*out.tolist())


MAX_ITERATIONS = 200  # of a matrix; usual ones take 5 to 30
# Part of the target gap that the kernel aims at: the projection rounds, and adds in another order.
_AIM, _ROUNDING = 0.99, 1e-12


def accepts(problem: Problem) -> bool:
    """Whether the engine takes a program: over paths, linear in flow, on the CPU."""
    return (
        problem.ops.device.type == "cpu"
        and isinstance(problem.paths, PathSet)
        and problem.ops.is_over_paths
        and not problem.conditions
        and type(problem.demand_set) in (AtMostOne, ExactlyOne)
    )


def solving(
    problem: Problem, gap: float, max_iterations: int, deadline: Deadline
) -> Steps[PdhgResult]:
    """The solution of B matrices.

    Args:
        problem: that :func:`accepts` takes.
        gap: target.
        max_iterations: largest number of iterations of a matrix.
        deadline: asked between matrices.
    """
    begin = time.perf_counter()
    exact = problem if problem.demand.dtype == torch.float64 else problem.to(torch.float64)
    yield
    shares, prices, iterations = _solved(exact, gap, min(max_iterations, MAX_ITERATIONS))
    splits = project(exact, torch.from_numpy(shares), refill=0)
    found = torch.from_numpy(prices)
    value, bound = exact.value(splits), dual_bound(exact, found)
    gaps = certified_gap(exact, value, bound)
    real = problem.demand.dtype
    splits, found = splits.to(real), found.to(real)
    return PdhgResult(
        splits=splits,
        prices=found,
        value=value.to(real),
        bound=bound.to(real),
        gap=gaps.to(real),
        iterations=int(iterations.max(initial=0)),
        solve_s=time.perf_counter() - begin,
        state=PdhgState(splits, found),
        stopped_by=tuple(Stop.GAP if one <= gap else Stop.STALLED for one in gaps.tolist()),
    )


def _solved(
    problem: Problem, gap: float, max_iterations: int
) -> tuple[FloatArray, FloatArray, Int64Array]:
    """Shares (B, D, K), prices (B, E) and the iterations (B,) of each matrix."""
    layout, mask = layout_of(problem.paths), problem.paths.mask
    splits = np.zeros((problem.batch, mask.size))
    prices = np.zeros((problem.batch, problem.topology.num_links))
    iterations = np.zeros(problem.batch, np.int64)
    arrays = _Arrays.of(problem)
    for row in range(problem.batch):
        iterations[row] = solve_one(
            layout,
            arrays.demand[row],
            arrays.capacity[row],
            arrays.value,
            arrays.sheds,
            max(0.0, _AIM * gap - _ROUNDING),
            max_iterations,
            splits[row],
            prices[row],
        )
    return splits.reshape(problem.batch, *mask.shape), prices, iterations


@functools.cache
def rehearse() -> None:
    """Compile the kernels, on three nodes."""
    from teal.solvers.pdhg.fused.rehearsal import three_nodes

    _solved(three_nodes(), 1e-2, 1)
