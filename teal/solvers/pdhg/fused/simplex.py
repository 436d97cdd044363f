"""Projections onto simplices in the metric of the step sizes: of splits, and of dual variables.

Active-set projections (Michelot 1986), and Newton's method within a bracket for scenario limits
(:func:`limited_simplex`).
"""

from __future__ import annotations

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.lanes import broadcast, load, maximum, where_above
from teal.runtime.parallel import inner_kernel, kernel

# Below every profit and split, within the range of float32.
LOWEST = -1e34
# Steps of the search for a multiplier: Newton's method takes a few, bisection 50.
_MAX_STEPS = 100

Lanes = tuple[int, ...]


@inner_kernel
def simplex_shift(unprojected, n, target_sum, lanes):  # type: ignore[no-untyped-def]
    """Return the shift t for which max(0, v - t) over the first n rows sums to ``target_sum``.

    It is the Euclidean projection onto the scaled simplex.  Michelot (1986): start with all rows,
    set t = (sum of the active v - ``target_sum``) / number of active rows, drop rows below t,
    repeat.

    Args:
        unprojected: (K, L) v, one row per path, flat.
        n: number of rows.
        target_sum: sum of the projection, one value per lane.
        lanes: tuple of length L.
    """
    ones = broadcast(unprojected.dtype.type(1), lanes)
    zero = ones - ones
    shift = broadcast(unprojected.dtype.type(LOWEST), lanes)
    # Each round but the last drops at least one row.
    for _ in range(n):
        # Sum of the rows above the shift minus the target sum, and number of these rows.
        excess = zero - target_sum
        num_active = zero
        for k in range(n):
            entry = load(unprojected, k, lanes)
            excess = excess + where_above(entry, shift, entry, zero)
            num_active = num_active + where_above(entry, shift, ones, zero)
        # For a target sum of 0 the last round drops the largest row too; the shift then stays.
        shift = where_above(num_active, zero, excess / maximum(num_active, ones), shift)
    return shift


@kernel
def dual_simplex(
    dual: FloatArray, slope: FloatArray, live: FloatArray, lane: int, num_lanes: int
) -> None:
    """Project the dual variables of one matrix onto the simplex {y >= 0, sum y = 1}.

    y = max(0, dual - t slope) over the live links with t such that the sum is 1, 0 on failed links:
    the projection in the norm with the square sum_e y[e]^2 / slope[e].  Active-set method (Michelot
    1986).

    Args:
        dual: (E, L) y, flat (column ``lane`` is overwritten by the projection).
        slope: (E, L) step size of each y, by which y falls per unit of t; positive.
        live: (E, L) 1 where the link works, else 0.
        lane: index of the matrix.
        num_lanes: L, number of matrices side by side.
    """
    shift = LOWEST
    last_num_active = len(dual) + 1
    for _ in range(len(dual)):
        # Sum of the active y minus 1, sum of their slopes, and their number.
        excess = -1.0
        slope_sum = 0.0
        num_active = 0
        for i in range(lane, len(dual), num_lanes):
            if live[i] > 0 and dual[i] > shift * slope[i]:
                excess += dual[i]
                slope_sum += slope[i]
                num_active += 1
        # No link was dropped; by rounding, one may even return.
        if num_active >= last_num_active or slope_sum <= 0:
            break
        shift = excess / slope_sum
        last_num_active = num_active
    # Projected y; 0 on failed links.
    for i in range(lane, len(dual), num_lanes):
        dual[i] = max(0.0, dual[i] - shift * slope[i]) if live[i] > 0 else 0.0


@kernel
def limited_simplex(
    dual: FloatArray, slope: FloatArray, live: FloatArray, limits: FloatArray, num_lanes: int
) -> None:
    """Project dual variables onto {y >= 0, sum y = 1, sum of y of each scenario <= its limit}.

    y = max(0, dual - (t + t_s) slope) on the live links of scenario s.  The multiplier t_s >= 0 is
    positive only for a scenario at its limit.  The multiplier t is the root of
    sum_s min(limits[s], sum of max(0, dual - t slope) in scenario s) - 1, found by Newton's method
    within a bracket.

    Args:
        dual: (G, E, L) y, flat (overwritten by the projection).  Scenario s is lane s % L of group
            s // L, with S scenarios in G = ceil(S / L) groups.
        slope: (G, E, L) step size of each y, by which y falls per unit of t; positive.
        live: (G, E, L) 1 where a link works in a scenario, else 0.
        limits: (S,) upper bounds in (0, 1], with a sum of at least 1.
        num_lanes: L, number of scenarios side by side.
    """
    # Entries of a group: E * L.
    group_size = len(dual) // (-(-len(limits) // num_lanes))
    shift = LOWEST
    # Limits with the sum 1, up to rounding, fix the sum of every scenario: no t is needed.
    is_at_limits = limits.sum() <= 1 + 1e-12
    # Root t: Newton's method within a bracket.
    if not is_at_limits:
        low = np.inf
        high = -np.inf
        for i in range(len(dual)):
            if live[i] > 0:
                # At ``high`` every y is 0, at ``low`` at least 1.
                high = max(high, dual[i] / slope[i])
                low = min(low, (dual[i] - 1) / slope[i])
        shift = high
        for _ in range(_MAX_STEPS):
            # Function value, and minus its derivative; ``scenario_value`` is a scenario's sum of y.
            excess = -1.0
            slope_sum = 0.0
            for s in range(len(limits)):
                scenario_value, scenario_slope_sum = _scenario_sums(
                    dual, slope, live, shift, s, num_lanes, group_size
                )
                excess += min(scenario_value, limits[s])
                slope_sum += scenario_slope_sum if scenario_value < limits[s] else 0.0
            # The sum is 1 up to rounding.
            if abs(excess) < 1e-14:
                break
            # Narrow the bracket, since the sum falls as t rises; then Newton's step.
            low, high = (shift, high) if excess > 0 else (low, shift)
            shift = shift + excess / slope_sum if slope_sum > 0 else low
            # Bisection where Newton's step leaves the bracket.
            if not low < shift < high:
                shift = (low + high) / 2
    # Project each scenario with t + t_s; t_s > 0 at its limit.  From here on, ``scenario_value`` is
    # this multiplier.
    for s in range(len(limits)):
        scenario_value = shift
        if is_at_limits:
            # Start of the active-set method: every y is positive.
            scenario_sum, slope_sum = _scenario_sums(
                dual, slope, live, LOWEST, s, num_lanes, group_size
            )
            scenario_value = (scenario_sum - limits[s]) / slope_sum if slope_sum > 0 else 0.0
        # Michelot (1986): drop the y below the shift, repeat.
        for _ in range(_MAX_STEPS):
            scenario_sum, slope_sum = _scenario_sums(
                dual, slope, live, scenario_value, s, num_lanes, group_size
            )
            if scenario_sum <= limits[s] * (1 + 1e-14) or slope_sum <= 0:
                break
            scenario_value += (scenario_sum - limits[s]) / slope_sum
        # Projected y of the scenario: lane s % L of group s // L.
        first_entry = (s // num_lanes) * group_size + s % num_lanes
        for i in range(first_entry, first_entry + group_size, num_lanes):
            dual[i] = max(0.0, dual[i] - scenario_value * slope[i]) if live[i] > 0 else 0.0


@kernel
def _scenario_sums(dual, slope, live, shift, s, num_lanes, group_size):  # type: ignore[no-untyped-def]
    """Return the sum of max(0, dual - shift slope) over the live links of scenario ``s``, and the
    sum of the slopes of its positive terms.

    For the shift ``LOWEST``: the sums of ``dual`` and of all slopes.

    Args:
        dual, slope, live: (G, E, L) flat; scenario s is lane s % L of group s // L.
        shift: multiplier.
        s: index of the scenario.
        num_lanes: L.
        group_size: E * L, entries of a group.
    """
    dual_sum = 0.0
    slope_sum = 0.0
    # LOWEST stands for no shift, with every live link in the sums.
    is_lowest = shift == LOWEST
    first_entry = (s // num_lanes) * group_size + s % num_lanes
    for i in range(first_entry, first_entry + group_size, num_lanes):
        if live[i] > 0 and (is_lowest or dual[i] > shift * slope[i]):
            dual_sum += dual[i] - (0.0 if is_lowest else shift * slope[i])
            slope_sum += slope[i]
    return dual_sum, slope_sum
