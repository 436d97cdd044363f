"""Projections onto simplices, in the metric of the step sizes: of the splits of a demand, and of
dual variables.
"""

from __future__ import annotations

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.lanes import fill, larger, load, where_above
from teal.runtime.parallel import inner_kernel, kernel

LOWEST = -1e34  # below every profit and split, within the range of float32
_MAX_STEPS = (
    100  # of the search for a multiplier, at most; Newton's method takes a few, bisection 50
)

Lanes = tuple[int, ...]


@inner_kernel
def simplex_shift(moved, n, total, lanes):  # type: ignore[no-untyped-def]
    """The t for which max(0, moved - t) over n rows sums to ``total`` (Michelot 1986: drop rows
    below t, repeat).
    """
    one = fill(moved.dtype.type(1), lanes)
    zero = one - one
    shift = fill(moved.dtype.type(LOWEST), lanes)
    for _ in range(n):
        excess, active = zero - total, zero
        for k in range(n):
            row = load(moved, k, lanes)
            excess = excess + where_above(row, shift, row, zero)
            active = active + where_above(row, shift, one, zero)
        # For a total of 0 the largest row is dropped too, in the end: the shift stays there.
        shift = where_above(active, zero, excess / larger(active, one), shift)
    return shift


@kernel
def dual_simplex(
    dual: FloatArray, slope: FloatArray, live: FloatArray, lane: int, width: int
) -> None:
    """max(0, dual - t slope) with t such that it sums to 1, over the live links of one lane; in
    place.
    """
    shift, active = LOWEST, len(dual) + 1
    for _ in range(len(dual)):
        total, slopes, size = -1.0, 0.0, 0
        for i in range(lane, len(dual), width):
            if live[i] > 0 and dual[i] > shift * slope[i]:
                total += dual[i]
                slopes += slope[i]
                size += 1
        if (
            size >= active or slopes <= 0
        ):  # no link was dropped; by rounding, one may even come back
            break
        shift, active = total / slopes, size
    for i in range(lane, len(dual), width):
        dual[i] = max(0.0, dual[i] - shift * slope[i]) if live[i] > 0 else 0.0


@kernel
def limited_simplex(
    dual: FloatArray, slope: FloatArray, live: FloatArray, limits: FloatArray, width: int
) -> None:
    """Project ``dual`` onto {y >= 0, sum of y = 1, sum of each scenario's y <= its limit}, in
    place.

    With step sizes ``slope``, y = max(0, dual - (t + t_s) slope): t_s >= 0 is above 0 only where a
    scenario is at its limit, and t is the root of sum over s of min(limit_s, sum of max(0, dual - t
    slope)) - 1, found by Newton's method within a bracket.

    Args:
        dual: (G * E * L,) before the projection.
        slope: (G * E * L,) step sizes.
        live: (G * E * L,) 1 where a link works in a scenario, else 0.
        limits: (S,) in (0, 1], whose sum is at least 1.
        width: L.
    """
    size = len(dual) // (-(-len(limits) // width))  # E * L
    shift = LOWEST
    is_at_limits = limits.sum() <= 1 + 1e-12
    if not is_at_limits:
        low, high = np.inf, -np.inf
        for i in range(len(dual)):
            if live[i] > 0:
                high = max(high, dual[i] / slope[i])
                low = min(low, (dual[i] - 1) / slope[i])  # every y would be at least 1
        shift = high
        for _ in range(_MAX_STEPS):
            filled, change = -1.0, 0.0
            for s in range(len(limits)):
                of_scenario, own_change = _excess(dual, slope, live, shift, s, width, size)
                filled += min(of_scenario, limits[s])
                change += own_change if of_scenario < limits[s] else 0.0
            if abs(filled) < 1e-14:
                break
            low, high = (shift, high) if filled > 0 else (low, shift)
            shift = shift + filled / change if change > 0 else low
            if not low < shift < high:
                shift = (low + high) / 2
    for s in range(len(limits)):
        of_scenario = shift
        if is_at_limits:  # every y would be above 0
            total, change = _excess(dual, slope, live, LOWEST, s, width, size)
            of_scenario = (total - limits[s]) / change if change > 0 else 0.0
        for _ in range(_MAX_STEPS):  # Michelot 1986: drop the y below the shift, repeat
            total, change = _excess(dual, slope, live, of_scenario, s, width, size)
            if total <= limits[s] * (1 + 1e-14) or change <= 0:
                break
            of_scenario += (total - limits[s]) / change
        at = (s // width) * size + s % width
        for i in range(at, at + size, width):
            dual[i] = max(0.0, dual[i] - of_scenario * slope[i]) if live[i] > 0 else 0.0


@kernel
def _excess(dual, slope, live, shift, s, width, size):  # type: ignore[no-untyped-def]
    """Sum of max(0, dual - shift slope) over the live links of scenario ``s``, and of the slopes
    that count in it.

    For the shift ``LOWEST``, the sums of ``dual`` and of all slopes.
    """
    total, change, is_lowest = 0.0, 0.0, shift == LOWEST
    at = (s // width) * size + s % width
    for i in range(at, at + size, width):
        if live[i] > 0 and (is_lowest or dual[i] > shift * slope[i]):
            total += dual[i] - (0.0 if is_lowest else shift * slope[i])
            change += slope[i]
    return total, change
