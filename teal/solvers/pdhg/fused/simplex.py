"""Projections onto simplices in the metric of the step sizes: of splits, and of dual variables.

Active-set projections (Michelot 1986), and Newton's method within a bracket for scenario limits
(:func:`limited_simplex`).
"""

from __future__ import annotations

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.lanes import fill, larger, load, where_above
from teal.runtime.parallel import inner_kernel, kernel

LOWEST = -1e34  # below every profit and split, within the range of float32
# Steps of the search for a multiplier: Newton's method takes a few, bisection 50.
_MAX_STEPS = 100

Lanes = tuple[int, ...]


@inner_kernel
def simplex_shift(unprojected, n, total, lanes):  # type: ignore[no-untyped-def]
    """Return the t for which max(0, moved - t) over n rows sums to ``total``.

    Michelot (1986): drop rows below t, repeat.
    """
    unit = fill(unprojected.dtype.type(1), lanes)
    zero = unit - unit
    shift = fill(unprojected.dtype.type(LOWEST), lanes)
    for _ in range(n):
        excess = zero - total
        active = zero
        for k in range(n):
            row = load(unprojected, k, lanes)
            excess = excess + where_above(row, shift, row, zero)
            active = active + where_above(row, shift, unit, zero)
        # For a total of 0 the last step drops the largest row too; the shift then stays.
        shift = where_above(active, zero, excess / larger(active, unit), shift)
    return shift


@kernel
def dual_simplex(
    dual: FloatArray, slope: FloatArray, live: FloatArray, lane: int, width: int
) -> None:
    """Project y onto the simplex, over the live links of one lane, in place.

    y = max(0, dual - t slope), with t such that the sum is 1.
    """
    shift = LOWEST
    active = len(dual) + 1
    for _ in range(len(dual)):
        total = -1.0
        slopes = 0.0
        size = 0
        for i in range(lane, len(dual), width):
            if live[i] > 0 and dual[i] > shift * slope[i]:
                total += dual[i]
                slopes += slope[i]
                size += 1
        # No link was dropped; by rounding, one may even return.
        if size >= active or slopes <= 0:
            break
        shift = total / slopes
        active = size
    for i in range(lane, len(dual), width):
        dual[i] = max(0.0, dual[i] - shift * slope[i]) if live[i] > 0 else 0.0


@kernel
def limited_simplex(
    dual: FloatArray, slope: FloatArray, live: FloatArray, limits: FloatArray, width: int
) -> None:
    """Project ``dual`` onto {y >= 0, sum of y = 1, sum of y of each scenario <= limit}, in place.

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
    # Root t: Newton's method within a bracket.
    if not is_at_limits:
        low = np.inf
        high = -np.inf
        for i in range(len(dual)):
            if live[i] > 0:
                high = max(high, dual[i] / slope[i])
                low = min(low, (dual[i] - 1) / slope[i])  # every y would be at least 1
        shift = high
        for _ in range(_MAX_STEPS):
            excess = -1.0
            slope_sum = 0.0
            for s in range(len(limits)):
                scenario_value, scenario_slope_sum = _excess(
                    dual, slope, live, shift, s, width, size
                )
                excess += min(scenario_value, limits[s])
                slope_sum += scenario_slope_sum if scenario_value < limits[s] else 0.0
            if abs(excess) < 1e-14:
                break
            low, high = (shift, high) if excess > 0 else (low, shift)
            shift = shift + excess / slope_sum if slope_sum > 0 else low
            if not low < shift < high:
                shift = (low + high) / 2
    # Project each scenario, with its own multiplier where it is at its limit.
    for s in range(len(limits)):
        scenario_value = shift
        if is_at_limits:  # every y would be above 0
            total, slope_sum = _excess(dual, slope, live, LOWEST, s, width, size)
            scenario_value = (total - limits[s]) / slope_sum if slope_sum > 0 else 0.0
        for _ in range(_MAX_STEPS):  # Michelot 1986: drop the y below the shift, repeat
            total, slope_sum = _excess(dual, slope, live, scenario_value, s, width, size)
            if total <= limits[s] * (1 + 1e-14) or slope_sum <= 0:
                break
            scenario_value += (total - limits[s]) / slope_sum
        start = (s // width) * size + s % width
        for i in range(start, start + size, width):
            dual[i] = max(0.0, dual[i] - scenario_value * slope[i]) if live[i] > 0 else 0.0


@kernel
def _excess(dual, slope, live, shift, s, width, size):  # type: ignore[no-untyped-def]
    """Return the sum of max(0, dual - shift slope) over the live links of scenario ``s``, and of
    the slopes of its positive terms.

    For the shift ``LOWEST``: the sums of ``dual`` and of all slopes.
    """
    total = 0.0
    slope_sum = 0.0
    is_lowest = shift == LOWEST
    start = (s // width) * size + s % width
    for i in range(start, start + size, width):
        if live[i] > 0 and (is_lowest or dual[i] > shift * slope[i]):
            total += dual[i] - (0.0 if is_lowest else shift * slope[i])
            slope_sum += slope[i]
    return total, slope_sum
