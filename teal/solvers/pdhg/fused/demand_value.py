"""Values of demands for the kernels: one value a demand, or one that falls in steps.

See :mod:`teal.problem.steps`.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,assignment"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray
from teal.runtime.lanes import fill, larger, load, where_above
from teal.runtime.parallel import inlined_kernel, inner_kernel, kernel
from teal.solvers.pdhg.fused.simplex import LOWEST, simplex_shift


class DemandValue(NamedTuple):
    """The value of D demands of L matrices in C steps.

    Attributes:
        first: (D,) value of a Gbit/s of each demand in the first step, or (1,) if it is the same
            for all.
        drop: (D, C) 1 - level, or (1, C) if it is the same for all: by which a Gbit/s is worth less
            in a step, as a share of ``first``.
        end: (D, C, L) share of the demand at which each step ends; (0,) for one step.
        cap: (P, L) largest share of its demand on each path; (0,) where each path may carry all of
            it.
    """

    first: AnyArray
    drop: AnyArray
    end: AnyArray
    cap: AnyArray

    def astype(self, real: Any) -> DemandValue:
        """The values in another type."""
        return DemandValue(*(part.astype(real) for part in self))


def one_step(value: FloatArray) -> DemandValue:
    """Values (D,) or (1,) that do not fall."""
    return DemandValue(value, np.zeros((1, 1)), np.zeros(0), np.zeros(0))


def of_problem(problem: Problem, rows_of: Callable[[Tensor], FloatArray]) -> DemandValue:
    """The values in a problem; ``rows_of`` makes flat rows of lanes, (n * L,), of (B, n)."""
    value = problem.demand_value.numpy()
    # One entry if all demands have the same value: the kernels then read no value for each demand.
    value = value[:1] if len(value) and (value == value[0]).all() else value
    steps = problem.steps
    if steps is None:
        return one_step(value)
    drop, end = 1 - steps.level.numpy().astype(np.float64), rows_of(steps.end.flatten(1))
    return one_step(value)._replace(drop=drop, end=end)


@inlined_kernel
def value_profit(drop, end, d, best, value, lanes):
    """Part of demand ``d`` in the dual bound, for each Gbit/s of demand.

    Args:
        drop, end: as of DemandValue, of several steps; arrays, since Numba counts a reference to
            each array that is read from a tuple inside a loop, and threads share counts.
        d: number of the demand.
        best: profit of the best path in the first step.
        value: value of the first step, in the units of ``best``.
        lanes: array of length L.
    """
    count, row = drop.shape[1], d if drop.shape[0] > 1 else 0
    total = start = value - value
    zero = start
    for c in range(count):
        stop = load(end, d * count + c, lanes)
        total = total + (stop - start) * larger(best - value * fill(drop[row, c], lanes), zero)
        start = stop
    return total


@inlined_kernel
def value_lost(drop, end, d, carried, demand, lanes):
    """Gbit/s of the first step that are worth as much as what ``carried`` Gbit/s lose, since some
    lie in later steps.

    Args:
        drop, end: as of DemandValue, of several steps.
        d: number of the demand.
        carried: Gbit/s.
        demand: Gbit/s.
        lanes: array of length L.
    """
    count, row = drop.shape[1], d if drop.shape[0] > 1 else 0
    total = zero = demand - demand
    for c in range(1, count):
        beyond = larger(carried - load(end, d * count + c - 1, lanes) * demand, zero)
        total = total + fill(drop[row, c] - drop[row, c - 1], lanes) * beyond
    return total


@inlined_kernel
def step_shift(drop, end, d, moved, n, value, lanes):
    """The t for which max(0, moved - t) are the new splits; see
    :func:`teal.problem.prox.project_steps`.

    Args:
        drop, end: as of DemandValue, of several steps.
        d: number of the demand.
        moved: (K, L) splits of its n paths after a gradient step with the value of the first step.
        n: number of paths.
        value: value of the first step times the step size.
        lanes: array of length L.
    """
    count, row = drop.shape[1], d if drop.shape[0] > 1 else 0
    shift = fill(moved.dtype.type(-LOWEST), lanes)
    for c in range(count):
        of_step = simplex_shift(moved, n, load(end, d * count + c, lanes), lanes)
        of_step = larger(of_step, value * fill(drop[row, c], lanes))
        shift = where_above(shift, of_step, of_step, shift)
    return shift


@inlined_kernel
def step_shift_of_two(drop, end, d, x, y, value, lanes):
    """:func:`step_shift` of at most two paths, which most demands have, without a loop over them.

    Args:
        drop, end: as of DemandValue, of several steps.
        d: number of the demand.
        x, y: splits after a gradient step with the value of the first step; of a demand with one
            path y = x - 1.
        value: value of the first step times the step size.
        lanes: array of length L.
    """
    count, row, half = (
        drop.shape[1],
        d if drop.shape[0] > 1 else 0,
        fill(drop.dtype.type(0.5), lanes),
    )
    most, mean = larger(x, y), half * (x + y)
    shift = fill(drop.dtype.type(-LOWEST), lanes)
    for c in range(count):
        stop = load(end, d * count + c, lanes)
        of_step = larger(larger(mean - half * stop, most - stop), value * fill(drop[row, c], lanes))
        shift = where_above(shift, of_step, of_step, shift)
    return shift


@kernel
def capped_profit(profit, cap, first, n, lanes, is_used, out):
    """Part of a demand whose paths have caps in the dual bound, per Gbit/s: the best paths first,
    up to their caps.

    Args:
        profit: (K, L) of its n paths.
        cap: (P, L) as of DemandValue.
        first: number of its first path.
        n: number of paths.
        lanes: array of length L.
        is_used: (K,) memory.
        out: receives (L,).
    """
    width, count = len(lanes), np.int64(n)
    for lane in range(width):
        left, total = 1.0, 0.0
        is_used[:count] = False
        while left > 0:
            best, most = np.int64(-1), 0.0
            for k in range(count):
                if not is_used[k] and profit[k * width + lane] > most:
                    best, most = k, profit[k * width + lane]
            if best < 0:
                break
            is_used[best] = True
            taken = min(left, cap[(first + best) * width + lane])
            total += taken * most
            left -= taken
        out[lane] = total


@kernel
def capped_shift(moved, cap, first, n, lanes, out):
    """The least t >= 0 for which the sum of max(0, min(cap, moved - t)) is at most 1.

    The sum is linear between the 2 n values of t at which an entry reaches a bound; of these, the
    two between which it falls to 1 give t.

    Args:
        moved: (K, L) splits of its n paths after a gradient step.
        cap, first, n, lanes: as in :func:`capped_profit`.
        out: receives (L,) t.
    """
    width, count = len(lanes), np.int64(n)
    for lane in range(width):
        at = first * width + lane
        low, high, low_sum = 0.0, np.inf, _capped_sum(moved, cap, at, count, width, lane, 0.0)
        if low_sum > 1:
            for i in range(2 * count):
                k = i % count
                t = moved[k * width + lane] - (0.0 if i < count else cap[at + k * width])
                if low < t < high:
                    total = _capped_sum(moved, cap, at, count, width, lane, t)
                    if total > 1:
                        low, low_sum = t, total
                    else:
                        high = t
            falling = 0
            for k in range(count):  # the entries that fall between the two
                row = moved[k * width + lane]
                if row - cap[at + k * width] <= low and row >= high:
                    falling += 1
            low = low + (low_sum - 1) / falling if falling > 0 else high
        out[lane] = low


@inner_kernel
def _capped_sum(moved, cap, at, count, width, lane, t):
    """Sum of max(0, min(cap, moved - t)) of one lane."""
    total = 0.0
    for k in range(count):
        total += max(0.0, min(cap[at + k * width], moved[k * width + lane] - t))
    return total
