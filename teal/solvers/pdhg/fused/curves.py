"""Alpha-fair utilities of demands (:mod:`teal.problem.curves`) for the kernels, lane by lane.

:func:`curve_shift` is the primal prox, :func:`curve_profit` the demand's part of the dual bound;
:func:`teal.problem.curves.project_concave` and ``Concave.of_best`` are their references.  Kernels
take the utility as a separate argument, None for linear values: Numba then skips its code.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.lanes import load, store
from teal.runtime.parallel import inlined_kernel, inner_kernel, kernel
from teal.solvers.pdhg.fused.simplex import LOWEST

_MAX_NEWTON_STEPS = 60  # usually 3 to 8, monotone from below
_STEP_TOLERANCE = 1e-15  # relative step below which Newton's method has converged
_MIN_DIVISOR = 1e-300  # replaces 0 as a divisor


class CurveRows(NamedTuple):
    """The utility of D demands of L matrices.

    Attributes:
        full_share_value: (D, L) marginal value per Gbit/s at share 1; 0 for demands without weight.
        alpha: (1,) exponent of the utility.
    """

    full_share_value: FloatArray
    alpha: FloatArray


def curve_rows(problem: Problem, rows_of: Callable[[Tensor], FloatArray]) -> CurveRows | None:
    """Return the utility of a problem; ``rows_of`` converts (B, n) to flat rows of lanes (n *
    L,).
    """
    utility = problem.utility
    return (
        None
        if utility is None
        else CurveRows(rows_of(utility.unit_value), np.array([utility.curve.alpha]))
    )


@inner_kernel
def _utility(share, alpha):
    """Return u(s) + 1 for the share s."""
    share = max(share, _MIN_DIVISOR)
    if alpha == 1.0:
        return np.log(share) + 1.0
    return np.expm1((1.0 - alpha) * np.log(share)) / (1.0 - alpha) + 1.0


@inner_kernel
def _inverse_power(z, alpha):
    """Return z^-alpha; special cases avoid a power, the slowest operation of an iteration."""
    if alpha == 1.0:
        return 1.0 / z
    if alpha == 2.0:
        return 1.0 / (z * z)
    if alpha == 4.0:
        return 1.0 / (z * z * (z * z))
    if alpha == 0.5:
        return 1.0 / np.sqrt(z)
    return z**-alpha


@inner_kernel
def _utility_root(total, strength, alpha):
    """Solve z = Y + a z^-alpha for z > 0, with Y = ``total`` and a = ``strength``, by Newton's
    method.
    """
    if alpha == 0.0:
        return total + strength
    if alpha == 1.0:
        root = np.sqrt(total * total + 4.0 * strength)
        # For negative Y avoid the cancellation of the quadratic formula.
        return (
            (total + root) / 2.0 if total >= 0 else 2.0 * strength / max(root - total, _MIN_DIVISOR)
        )
    # Lower bound of the root, from which Newton's steps increase to it.
    size = max(strength, _MIN_DIVISOR) ** (1.0 / (1.0 + alpha))
    if total >= 0:
        z = max(total, size)
    else:
        z = min(
            max(strength / max(size - total, _MIN_DIVISOR), _MIN_DIVISOR) ** (1.0 / alpha), size
        )
    z = max(z, _MIN_DIVISOR)
    for _ in range(_MAX_NEWTON_STEPS):
        pull = strength * _inverse_power(z, alpha)
        step = -(z - total - pull) / (1.0 + alpha * pull / z)
        if not (step > _STEP_TOLERANCE * z and step < np.inf):
            break
        z += step
    return z


@inlined_kernel
def lane_curve_profit(profit, lane_scratch, full_share_value, alpha, scale, first, d, lanes):
    """Apply :func:`curve_profit` to one value per lane.

    Args:
        profit: profit of the best path, in units of 1 / ``scale``.
        lane_scratch: (L,) work array.
        full_share_value, alpha, scale, first, d, lanes: as in :func:`curve_profit`.
    """
    store(lane_scratch, 0, profit)
    curve_profit(lane_scratch, full_share_value, alpha, scale, first, d, lanes)
    return load(lane_scratch, 0, lanes)


@inlined_kernel
def curve_profit(best, full_share_value, alpha, scale, first, d, lanes):
    """Replace the best profits of demand ``d`` by its part of the dual bound, per Gbit/s of demand.

    Args:
        best: (L,) profit of the best path, in units of 1 / ``scale``; in place.
        full_share_value: (D, L) marginal value per Gbit/s at share 1.
        alpha: exponent of the utility.
        scale: (L,) factor on values.
        first: value per Gbit/s that profits assume.
        d: index of the demand.
        lanes: array of length L.
    """
    width = len(lanes)
    for lane in range(width):
        lane_value = full_share_value[d * width + lane] * scale[lane]
        price = max(first * scale[lane] - best[lane], 0.0)
        if lane_value <= 0:
            best[lane] = 0.0
        elif price <= lane_value:
            best[lane] = lane_value - price
        elif alpha == 1.0:
            best[lane] = -lane_value * np.log(price / lane_value)
        elif alpha == 0.0:
            best[lane] = 0.0
        else:
            share = (price / lane_value) ** (-1.0 / alpha)
            best[lane] = lane_value * _utility(share, alpha) - price * share


@inlined_kernel
def curve_shift(unprojected, n, full_share_value, alpha, scale, step, first, d, lanes):
    """Replace the step sizes by the shifts t for which max(0, unprojected - t) are the new splits.

    Args:
        unprojected: (K, L) splits of the n paths after a gradient step with the value ``first``.
        n: number of paths.
        full_share_value, alpha, scale, first, d, lanes: as in :func:`curve_profit`.
        step: (L,) step sizes; receives t.
    """
    width = len(lanes)
    num_paths = np.int64(n)
    for lane in range(width):
        unit = scale[lane] * step[lane]
        base = first * unit
        strength = full_share_value[d * width + lane] * unit
        full_share_shift = LOWEST
        last_active = np.int64(-1)
        # Shift to a sum of 1: drop rows below the mean excess, repeat (Michelot 1986).
        for _ in range(num_paths):
            total, active = _sum_above(unprojected, num_paths, full_share_shift, width, lane)
            if active == last_active or active == 0:
                break
            full_share_shift = (total - 1.0) / active
            last_active = active
        step[lane] = full_share_shift
        # The marginal utility at share 1 decides: a fully served demand needs no root.
        if base - strength <= full_share_shift:
            continue
        shift = full_share_shift
        last_active = np.int64(-1)
        # Same iteration with the utility, whose marginal value falls as the sum rises.
        for _ in range(num_paths):
            total, active = _sum_above(unprojected, num_paths, shift, width, lane)
            if active == last_active or active == 0:
                break
            z = max(_utility_root(total - active * base, active * strength, alpha), _MIN_DIVISOR)
            shift = base - strength * _inverse_power(z, alpha)
            last_active = active
        step[lane] = max(full_share_shift, shift)


@inner_kernel
def _sum_above(unprojected, num_paths, shift, width, lane):
    """Return sum and number of the rows of one lane above ``shift``."""
    total = 0.0
    active = np.int64(0)
    for k in range(num_paths):
        if unprojected[k * width + lane] > shift:
            total += unprojected[k * width + lane]
            active += 1
    return total, active


@kernel
def curve_value(flow, demand, full_share_value, alpha, d, lanes):
    """Replace the served Gbit/s of demand ``d`` by their value W (u(s) + 1).

    Args:
        served: (L,) Gbit/s; in place.
        demand: (D, L) Gbit/s.
        full_share_value, alpha, d, lanes: as in :func:`curve_profit`.
    """
    width = len(lanes)
    for lane in range(width):
        rate = demand[d * width + lane]
        lane_value = full_share_value[d * width + lane]
        share = min(flow[lane] / rate, 1.0) if rate > 0 else 1.0
        flow[lane] = (
            rate * lane_value * _utility(share, alpha) if rate > 0 and lane_value > 0 else 0.0
        )
