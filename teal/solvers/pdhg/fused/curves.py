"""Concave utilities of demands (:mod:`teal.problem.curves`) for the kernels: a number for each
lane, in plain loops.

The roots and powers are those of :func:`teal.problem.curves.project_concave` and
``Concave.of_best``, which are the reference.  Kernels get the utility as an argument of its own,
None where there is none: Numba then compiles nothing of it.
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

_NEWTON_STEPS = 60  # at most; each comes from below, 3 to 8 are taken
_ROUNDING = 1e-15  # relative step that counts as none
_MIN_DIVISOR = 1e-300  # instead of 0 as a divisor


class CurveRows(NamedTuple):
    """The utility of D demands of L matrices.

    Attributes:
        worth: (D, L) value of a Gbit/s at the share 1; 0 of demands without a weight.
        alpha: (1,) of the utility.
    """

    worth: FloatArray
    alpha: FloatArray


def curve_rows(problem: Problem, rows_of: Callable[[Tensor], FloatArray]) -> CurveRows | None:
    """The utility in a problem; ``rows_of`` makes flat rows of lanes, (n * L,), of (B, n)."""
    utility = problem.utility
    return (
        None
        if utility is None
        else CurveRows(rows_of(utility.worth), np.array([utility.curve.alpha]))
    )


@inner_kernel
def _utility(share, alpha):
    """u(s) + 1."""
    share = max(share, _MIN_DIVISOR)
    if alpha == 1.0:
        return np.log(share) + 1.0
    return np.expm1((1.0 - alpha) * np.log(share)) / (1.0 - alpha) + 1.0


@inner_kernel
def _inverse_power(z, alpha):
    """z^-alpha; a power takes longer than all the rest of an iteration."""
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
    """The root z > 0 of z = Y + a z^-alpha, with Y = ``total`` and a = ``strength``."""
    if alpha == 0.0:
        return total + strength
    if alpha == 1.0:
        root = np.sqrt(total * total + 4.0 * strength)
        # Of a negative Y the difference would lose all digits.
        return (
            (total + root) / 2.0 if total >= 0 else 2.0 * strength / max(root - total, _MIN_DIVISOR)
        )
    # A lower limit of the root, from which Newton's steps rise to it.
    size = max(strength, _MIN_DIVISOR) ** (1.0 / (1.0 + alpha))
    if total >= 0:
        z = max(total, size)
    else:
        z = min(
            max(strength / max(size - total, _MIN_DIVISOR), _MIN_DIVISOR) ** (1.0 / alpha), size
        )
    z = max(z, _MIN_DIVISOR)
    for _ in range(_NEWTON_STEPS):
        pull = strength * _inverse_power(z, alpha)
        step = -(z - total - pull) / (1.0 + alpha * pull / z)
        if not (step > _ROUNDING * z and step < np.inf):
            break
        z += step
    return z


@inlined_kernel
def best_of_curve(profit, of_lanes, worth, alpha, scale, first, d, lanes):
    """:func:`curve_profit` of a number for each lane.

    Args:
        profit: profit of the best path, in units of 1 / ``scale``.
        of_lanes: (L,) memory.
        worth, alpha, scale, first, d, lanes: as in :func:`curve_profit`.
    """
    store(of_lanes, 0, profit)
    curve_profit(of_lanes, worth, alpha, scale, first, d, lanes)
    return load(of_lanes, 0, lanes)


@inlined_kernel
def curve_profit(best, worth, alpha, scale, first, d, lanes):
    """Part of demand ``d`` in the dual bound, for each Gbit/s of demand, in the place of its best
    profits.

    Args:
        best: (L,) profit of the best path, in units of 1 / ``scale``; in place.
        worth: (D, L) value of a Gbit/s at the share 1.
        alpha: exponent of the utility.
        scale: (L,) by which values are multiplied.
        first: value of a Gbit/s in profits.
        d: number of the demand.
        lanes: array of length L.
    """
    width = len(lanes)
    for lane in range(width):
        own, price = (
            worth[d * width + lane] * scale[lane],
            max(first * scale[lane] - best[lane], 0.0),
        )
        if own <= 0:
            best[lane] = 0.0
        elif price <= own:
            best[lane] = own - price
        elif alpha == 1.0:
            best[lane] = -own * np.log(price / own)
        elif alpha == 0.0:
            best[lane] = 0.0
        else:
            share = (price / own) ** (-1.0 / alpha)
            best[lane] = own * _utility(share, alpha) - price * share


@inlined_kernel
def curve_shift(moved, n, worth, alpha, scale, step, first, d, lanes):
    """The t for which max(0, moved - t) are the new splits, in the place of the step sizes.

    Args:
        moved: (K, L) splits of its n paths after a gradient step with the value ``first``.
        n: number of paths.
        worth, alpha, scale, first, d, lanes: as in :func:`curve_profit`.
        step: (L,) step sizes; receives t.
    """
    width, count = len(lanes), np.int64(n)
    for lane in range(width):
        unit = scale[lane] * step[lane]
        base, strength = first * unit, worth[d * width + lane] * unit
        whole, before = LOWEST, np.int64(-1)
        for _ in range(
            count
        ):  # rows that sum to 1: those below the mean excess are dropped (Michelot 1986)
            total, active = _sum_above(moved, count, whole, width, lane)
            if active == before or active == 0:
                break
            whole, before = (total - 1.0) / active, active
        step[lane] = whole
        if (
            base - strength <= whole
        ):  # the pull at the share 1: a demand that is carried whole needs no root
            continue
        shift, before = whole, np.int64(-1)
        for _ in range(count):  # the same for the utility, whose pull falls as the sum rises
            total, active = _sum_above(moved, count, shift, width, lane)
            if active == before or active == 0:
                break
            z = max(_utility_root(total - active * base, active * strength, alpha), _MIN_DIVISOR)
            shift, before = base - strength * _inverse_power(z, alpha), active
        step[lane] = max(whole, shift)


@inner_kernel
def _sum_above(moved, count, shift, width, lane):
    """Sum and number of the rows of one lane that are above ``shift``."""
    total, active = 0.0, np.int64(0)
    for k in range(count):
        if moved[k * width + lane] > shift:
            total += moved[k * width + lane]
            active += 1
    return total, active


@kernel
def curve_value(carried, demand, worth, alpha, d, lanes):
    """Value W (u(s) + 1) of demand ``d``, in the place of the Gbit/s that are carried.

    Args:
        carried: (L,) Gbit/s; in place.
        demand: (D, L) Gbit/s.
        worth, alpha, d, lanes: as in :func:`curve_profit`.
    """
    width = len(lanes)
    for lane in range(width):
        rate, own = demand[d * width + lane], worth[d * width + lane]
        share = min(carried[lane] / rate, 1.0) if rate > 0 else 1.0
        carried[lane] = rate * own * _utility(share, alpha) if rate > 0 and own > 0 else 0.0
