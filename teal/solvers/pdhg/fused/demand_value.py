"""Demand values for the kernels: linear, or with piecewise constant marginal values and path caps.

:class:`DemandValue` holds them; ``*_profit`` are terms of the dual bound, ``*_shift`` projections
of the splits.  Reference: :mod:`teal.problem.steps` and :mod:`teal.problem.prox`.
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
    """Marginal values of D demands of L matrices in C steps, and caps of the paths.

    Attributes:
        first: (D,) value per Gbit/s in the first step, or (1,) if equal for all demands.
        drop: (D, C) 1 - level, the loss of value per Gbit/s in each step as a share of ``first``;
            (1, C) if equal for all demands.
        end: (D, C, L) share of the demand at the end of each step; (0,) for one step.
        cap: (P, L) largest share of a demand on each path; (0,) without caps.
    """

    first: AnyArray
    drop: AnyArray
    end: AnyArray
    cap: AnyArray

    def astype(self, real: Any) -> DemandValue:
        """Convert the values to another type."""
        return DemandValue(*(part.astype(real) for part in self))


def one_step(value: FloatArray) -> DemandValue:
    """Return linear values (D,) or (1,)."""
    return DemandValue(value, np.zeros((1, 1)), np.zeros(0), np.zeros(0))


def demand_value_rows(problem: Problem, rows_of: Callable[[Tensor], FloatArray]) -> DemandValue:
    """Return the values of a problem; ``rows_of`` converts (B, n) to flat rows of lanes (n *
    L,).
    """
    value = problem.demand_value.numpy()
    # One entry if all demands have the same value: the kernels then read no value for each demand.
    value = value[:1] if len(value) and (value == value[0]).all() else value
    steps = problem.steps
    if steps is None:
        return one_step(value)
    drop = 1 - steps.level.numpy().astype(np.float64)
    end = rows_of(steps.end.flatten(1))
    return one_step(value)._replace(drop=drop, end=end)


@inlined_kernel
def value_profit(drop, end, d, best, value, lanes):
    """Return the part of demand ``d`` in the dual bound, per Gbit/s of demand.

    Args:
        drop, end: as in DemandValue, of several steps; arrays, since Numba counts a reference to
            each array that is read from a tuple inside a loop, and threads share counts.
        d: index of the demand.
        best: profit of the best path in the first step.
        value: value of the first step, in the units of ``best``.
        lanes: array of length L.
    """
    num_steps = drop.shape[1]
    row = d if drop.shape[0] > 1 else 0
    total = start = value - value
    zero = start
    for c in range(num_steps):
        stop = load(end, d * num_steps + c, lanes)
        total = total + (stop - start) * larger(best - value * fill(drop[row, c], lanes), zero)
        start = stop
    return total


@inlined_kernel
def value_lost(drop, end, d, served_flow, demand, lanes):
    """Return the loss of value of served flow in later steps, in Gbit/s of the first step.

    Args:
        drop, end: as in DemandValue, of several steps.
        d: index of the demand.
        served: served flow, Gbit/s.
        demand: Gbit/s.
        lanes: array of length L.
    """
    num_steps = drop.shape[1]
    row = d if drop.shape[0] > 1 else 0
    total = zero = demand - demand
    for c in range(1, num_steps):
        beyond = larger(served_flow - load(end, d * num_steps + c - 1, lanes) * demand, zero)
        total = total + fill(drop[row, c] - drop[row, c - 1], lanes) * beyond
    return total


@inlined_kernel
def step_shift(drop, end, d, unprojected, n, value, lanes):
    """Return the t for which max(0, moved - t) are the new splits
    (:func:`teal.problem.prox.project_steps`).

    Args:
        drop, end: as in DemandValue, of several steps.
        d: index of the demand.
        unprojected: (K, L) splits of the n paths after a gradient step with the value of the first
            step.
        n: number of paths.
        value: value of the first step times the step size.
        lanes: array of length L.
    """
    num_steps = drop.shape[1]
    row = d if drop.shape[0] > 1 else 0
    shift = fill(unprojected.dtype.type(-LOWEST), lanes)
    for c in range(num_steps):
        shift_of_step = simplex_shift(unprojected, n, load(end, d * num_steps + c, lanes), lanes)
        shift_of_step = larger(shift_of_step, value * fill(drop[row, c], lanes))
        shift = where_above(shift, shift_of_step, shift_of_step, shift)
    return shift


@inlined_kernel
def step_shift_of_two(drop, end, d, x, y, value, lanes):
    """Return :func:`step_shift` for one or two paths, the most frequent case, without a loop.

    Args:
        drop, end: as in DemandValue, of several steps.
        d: index of the demand.
        x, y: splits after a gradient step with the value of the first step; y = x - 1 for a demand
            with one path.
        value: value of the first step times the step size.
        lanes: array of length L.
    """
    num_steps = drop.shape[1]
    row = d if drop.shape[0] > 1 else 0
    half = fill(drop.dtype.type(0.5), lanes)
    largest = larger(x, y)
    mean = half * (x + y)
    shift = fill(drop.dtype.type(-LOWEST), lanes)
    for c in range(num_steps):
        stop = load(end, d * num_steps + c, lanes)
        shift_of_step = larger(
            larger(mean - half * stop, largest - stop), value * fill(drop[row, c], lanes)
        )
        shift = where_above(shift, shift_of_step, shift_of_step, shift)
    return shift


@kernel
def capped_profit(profit, cap, first, n, lanes, is_used, out):
    """Compute the part of a demand with capped paths in the dual bound, per Gbit/s.

    Greedy: the most profitable paths first, up to their caps.

    Args:
        profit: (K, L) profits of the n paths.
        cap: (P, L) as in DemandValue.
        first: index of the first path.
        n: number of paths.
        lanes: array of length L.
        is_used: (K,) work array.
        out: receives (L,).
    """
    width = len(lanes)
    num_paths = np.int64(n)
    for lane in range(width):
        remaining_share = 1.0
        total = 0.0
        is_used[:num_paths] = False
        while remaining_share > 0:
            best = np.int64(-1)
            best_profit = 0.0
            for k in range(num_paths):
                if not is_used[k] and profit[k * width + lane] > best_profit:
                    best = k
                    best_profit = profit[k * width + lane]
            if best < 0:
                break
            is_used[best] = True
            share = min(remaining_share, cap[(first + best) * width + lane])
            total += share * best_profit
            remaining_share -= share
        out[lane] = total


@kernel
def capped_shift(unprojected, cap, first, n, lanes, out):
    """Compute the smallest t >= 0 for which the sum of max(0, min(cap, moved - t)) is at most 1.

    The sum is piecewise linear in t, with 2 n breakpoints where an entry reaches a bound; the two
    breakpoints around the sum 1 give t.

    Args:
        unprojected: (K, L) splits of the n paths after a gradient step.
        cap, first, n, lanes: as in :func:`capped_profit`.
        out: receives (L,) t.
    """
    width = len(lanes)
    num_paths = np.int64(n)
    for lane in range(width):
        cap_offset = first * width + lane
        low = 0.0
        high = np.inf
        low_sum = _capped_sum(unprojected, cap, cap_offset, num_paths, width, lane, 0.0)
        if low_sum > 1:
            for i in range(2 * num_paths):
                k = i % num_paths
                t = unprojected[k * width + lane] - (
                    0.0 if i < num_paths else cap[cap_offset + k * width]
                )
                if low < t < high:
                    total = _capped_sum(unprojected, cap, cap_offset, num_paths, width, lane, t)
                    if total > 1:
                        low = t
                        low_sum = total
                    else:
                        high = t
            num_free = 0
            # Entries strictly between their bounds decrease with slope 1.
            for k in range(num_paths):
                row = unprojected[k * width + lane]
                if row - cap[cap_offset + k * width] <= low and row >= high:
                    num_free += 1
            low = low + (low_sum - 1) / num_free if num_free > 0 else high
        out[lane] = low


@inner_kernel
def _capped_sum(unprojected, cap, cap_offset, num_paths, width, lane, t):
    """Return the sum of max(0, min(cap, unprojected - t)) of one lane."""
    total = 0.0
    for k in range(num_paths):
        total += max(0.0, min(cap[cap_offset + k * width], unprojected[k * width + lane] - t))
    return total
