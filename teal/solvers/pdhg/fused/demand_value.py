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
from teal.runtime.lanes import broadcast, load, maximum, where_above
from teal.runtime.parallel import inlined_kernel, inner_kernel, kernel
from teal.solvers.pdhg.fused.simplex import LOWEST, simplex_shift


class DemandValue(NamedTuple):
    """Marginal values of D demands of L matrices in C value steps, and caps of the paths.

    A Gbit/s of demand d in step c has the value ``first[d] (1 - drop[d, c])``.

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
        """Return the same values as arrays of the NumPy type ``real``."""
        return DemandValue(*(part.astype(real) for part in self))


def one_step(value: FloatArray) -> DemandValue:
    """Return linear demand values, without path caps.

    Args:
        value: value per Gbit/s, (D,), or (1,) if equal for all demands.
    """
    return DemandValue(value, np.zeros((1, 1)), np.zeros(0), np.zeros(0))


def demand_value_rows(
    problem: Problem, to_lane_rows: Callable[[Tensor], FloatArray]
) -> DemandValue:
    """Return the demand values of a problem in the layout of the kernels, without path caps.

    Args:
        problem: B matrices of D demands.
        to_lane_rows: converts a tensor (B, n) to flat rows of lanes (n * L,).
    """
    value = problem.demand_value.numpy()
    # One entry if all demands have the same value: the kernels then read no value for each demand.
    value = value[:1] if len(value) and (value == value[0]).all() else value
    steps = problem.steps
    if steps is None:
        return one_step(value)
    drop = 1 - steps.level.numpy().astype(np.float64)
    end = to_lane_rows(steps.end.flatten(1))
    return one_step(value)._replace(drop=drop, end=end)


@inlined_kernel
def value_profit(drop, end, d, best_profit, value, lanes):
    """Return the term of demand ``d`` in the dual bound under value steps, per Gbit/s of demand.

    It is ``sum_c (end[d, c] - end[d, c - 1]) max(0, best_profit - value drop[d, c])`` over the
    value steps c, with end[d, -1] = 0.

    Args:
        drop: (D, C) or (1, C), loss of value per Gbit/s in each step as a share of ``value``.
        end: (D, C, L) share of the demand at the end of each step, flat.  ``drop`` and ``end`` are
            separate arguments, since Numba counts a reference to each array that is read from a
            tuple inside a loop, and threads share counts.
        d: index of the demand.
        best_profit: profit of the best path in the first step, one value per lane.
        value: value per Gbit/s in the first step, in the unit of ``best_profit``, one value per
            lane.
        lanes: tuple of length L.
    """
    num_steps = drop.shape[1]
    drop_row = d if drop.shape[0] > 1 else 0
    # 0 in every lane.
    profit_sum = step_start = value - value
    zero = step_start
    # Width of each step times the profit of the best path in it.
    for c in range(num_steps):
        step_end = load(end, d * num_steps + c, lanes)
        profit_sum = profit_sum + (step_end - step_start) * maximum(
            best_profit - value * broadcast(drop[drop_row, c], lanes), zero
        )
        step_start = step_end
    return profit_sum


@inlined_kernel
def value_lost(drop, end, d, served_flow, demand, lanes):
    """Return the value that a carried rate loses in later value steps, in Gbit/s of the first step.

    It is the sum over the steps c >= 1 of (drop[d, c] - drop[d, c - 1]) max(0, served_flow -
    end[d, c - 1] demand).

    Args:
        drop: (D, C) or (1, C), loss of value per Gbit/s in each step as a share of the first value.
        end: (D, C, L) share of the demand at the end of each step, flat.
        d: index of the demand.
        served_flow: carried rate, Gbit/s, one value per lane.
        demand: Gbit/s, one value per lane.
        lanes: tuple of length L.
    """
    num_steps = drop.shape[1]
    drop_row = d if drop.shape[0] > 1 else 0
    # 0 in every lane.
    lost_value = zero = demand - demand
    for c in range(1, num_steps):
        # Part of the carried rate in step c and later ones.
        later_flow = maximum(served_flow - load(end, d * num_steps + c - 1, lanes) * demand, zero)
        lost_value = (
            lost_value + broadcast(drop[drop_row, c] - drop[drop_row, c - 1], lanes) * later_flow
        )
    return lost_value


@inlined_kernel
def step_shift(drop, end, d, unprojected, n, value_gradient_step, lanes):
    """Return the shift t of the primal prox under value steps: the new splits are max(0, v - t).

    t = min_c max(t_c, ``value_gradient_step`` drop[d, c]) over the value steps c, where
    max(0, v - t_c) sums to end[d, c] (:func:`teal.problem.prox.project_steps`).

    Args:
        drop: (D, C) or (1, C), loss of value per Gbit/s in each step as a share of the first value.
        end: (D, C, L) share of the demand at the end of each step, flat.
        d: index of the demand.
        unprojected: (K, L) v, splits of the n paths after a gradient step with the value of the
            first step.
        n: number of paths.
        value_gradient_step: value of the first step times the step size, one value per lane.
        lanes: tuple of length L.
    """
    num_steps = drop.shape[1]
    drop_row = d if drop.shape[0] > 1 else 0
    # Minimum over the steps, from a number above every shift.
    shift = broadcast(unprojected.dtype.type(-LOWEST), lanes)
    for c in range(num_steps):
        shift_of_step = simplex_shift(unprojected, n, load(end, d * num_steps + c, lanes), lanes)
        shift_of_step = maximum(
            shift_of_step, value_gradient_step * broadcast(drop[drop_row, c], lanes)
        )
        shift = where_above(shift, shift_of_step, shift_of_step, shift)
    return shift


@inlined_kernel
def step_shift_of_two(drop, end, d, x, y, value_gradient_step, lanes):
    """Return the shift t of the primal prox under value steps, for a demand with one or two paths.

    The new splits are max(0, x - t) and max(0, y - t) with
    t = min_c max(t_c, ``value_gradient_step`` drop[d, c]); t_c, for which they sum to end[d, c],
    has a closed form: the larger of
    (x + y - end[d, c]) / 2 (both paths in use) and max(x, y) - end[d, c] (one path in use).

    Args:
        drop: (D, C) or (1, C), loss of value per Gbit/s in each step as a share of the first value.
        end: (D, C, L) share of the demand at the end of each step, flat.
        d: index of the demand.
        x, y: splits after a gradient step with the value of the first step, one value per lane;
            y = x - 1 for a demand with one path.
        value_gradient_step: value of the first step times the step size, one value per lane.
        lanes: tuple of length L.
    """
    num_steps = drop.shape[1]
    drop_row = d if drop.shape[0] > 1 else 0
    half = broadcast(drop.dtype.type(0.5), lanes)
    max_split = maximum(x, y)
    mean_split = half * (x + y)
    # Minimum over the steps, from a number above every shift.
    shift = broadcast(drop.dtype.type(-LOWEST), lanes)
    for c in range(num_steps):
        step_end = load(end, d * num_steps + c, lanes)
        # Shift with both paths in use or with one, at least the loss of value in this step.
        shift_of_step = maximum(
            maximum(mean_split - half * step_end, max_split - step_end),
            value_gradient_step * broadcast(drop[drop_row, c], lanes),
        )
        shift = where_above(shift, shift_of_step, shift_of_step, shift)
    return shift


@kernel
def capped_profit(profit, cap, first_path, n, lanes, is_used, bound_terms):
    """Compute the term of a demand with capped paths in the dual bound, per Gbit/s of demand.

    It is max over splits w of sum_k profit[k] w[k], subject to 0 <= w <= cap and sum w <= 1.
    Greedy: fill the most profitable paths first, up to their caps.

    Args:
        profit: (K, L) profits of the n paths.
        cap: (P, L) largest share of a demand on each path, of path k in row ``first_path + k``.
        first_path: index of the demand's first path.
        n: number of paths.
        lanes: tuple of length L.
        is_used: (K,) work array.
        bound_terms: (L,) term of each matrix (written).
    """
    num_lanes = len(lanes)
    num_paths = np.int64(n)
    for lane in range(num_lanes):
        remaining_share = 1.0
        profit_sum = 0.0
        is_used[:num_paths] = False
        while remaining_share > 0:
            # Most profitable path among the unused ones.
            best_path = np.int64(-1)
            best_profit = 0.0
            for k in range(num_paths):
                if not is_used[k] and profit[k * num_lanes + lane] > best_profit:
                    best_path = k
                    best_profit = profit[k * num_lanes + lane]
            if best_path < 0:
                break
            is_used[best_path] = True
            # Fill the path up to its cap.
            share = min(remaining_share, cap[(first_path + best_path) * num_lanes + lane])
            profit_sum += share * best_profit
            remaining_share -= share
        bound_terms[lane] = profit_sum


@kernel
def capped_shift(unprojected, cap, first_path, n, lanes, shifts):
    """Compute the shift t of the projection onto {0 <= w <= cap, sum w <= 1}, lane by lane.

    t is the smallest t >= 0 for which the sum of max(0, min(cap, v - t)) is at most 1.  The sum is
    piecewise linear in t, with 2 n breakpoints v[k] and v[k] - cap[k] where an entry reaches a
    bound; interpolation between the two breakpoints around the sum 1 gives t.

    Args:
        unprojected: (K, L) v, splits of the n paths after a gradient step.
        cap: (P, L) largest share of a demand on each path, of path k in row ``first_path + k``.
        first_path: index of the demand's first path.
        n: number of paths.
        lanes: tuple of length L.
        shifts: (L,) t of each matrix (written).
    """
    num_lanes = len(lanes)
    num_paths = np.int64(n)
    for lane in range(num_lanes):
        cap_offset = first_path * num_lanes + lane
        # Bracket of t, and the sum at its lower end.
        low = 0.0
        high = np.inf
        low_sum = _capped_sum(unprojected, cap, cap_offset, num_paths, num_lanes, lane, 0.0)
        # A sum of at most 1 needs no shift.
        if low_sum > 1:
            # Breakpoints v[k], then v[k] - cap[k].
            for i in range(2 * num_paths):
                k = i % num_paths
                candidate_shift = unprojected[k * num_lanes + lane] - (
                    0.0 if i < num_paths else cap[cap_offset + k * num_lanes]
                )
                # Narrow the bracket, since the sum falls as t rises.
                if low < candidate_shift < high:
                    candidate_sum = _capped_sum(
                        unprojected, cap, cap_offset, num_paths, num_lanes, lane, candidate_shift
                    )
                    if candidate_sum > 1:
                        low = candidate_shift
                        low_sum = candidate_sum
                    else:
                        high = candidate_shift
            # Within the bracket the entries strictly between their bounds fall with slope 1, and
            # the sum falls with their number.
            num_free = 0
            for k in range(num_paths):
                unprojected_split = unprojected[k * num_lanes + lane]
                if (
                    unprojected_split - cap[cap_offset + k * num_lanes] <= low
                    and unprojected_split >= high
                ):
                    num_free += 1
            low = low + (low_sum - 1) / num_free if num_free > 0 else high
        shifts[lane] = low


@inner_kernel
def _capped_sum(unprojected, cap, cap_offset, num_paths, num_lanes, lane, t):
    """Return the sum over a demand's paths of max(0, min(cap, unprojected - t)), in one lane.

    Args:
        unprojected: (K, L) splits, flat with L = ``num_lanes``.
        cap: (P, L) largest share of a demand on each path, flat.
        cap_offset: position in ``cap`` of the first path's cap in this lane.
        num_paths: number of paths.
        num_lanes: L.
        lane: index of the matrix.
        t: shift.
    """
    total = 0.0
    for k in range(num_paths):
        total += max(
            0.0, min(cap[cap_offset + k * num_lanes], unprojected[k * num_lanes + lane] - t)
        )
    return total
