"""Alpha-fair utilities of demands (:mod:`teal.problem.curves`) for the kernels, lane by lane.

:func:`curve_shift` is the primal prox, :func:`curve_profit` the demand's part of the dual bound;
:func:`teal.problem.curves.project_concave` and ``Concave.support_of_best`` are their references.
Kernels
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

# Newton's method usually takes 3 to 8 steps; from a lower bound it increases to the root.
_MAX_NEWTON_STEPS = 60
# Relative step below which Newton's method has converged.
_STEP_TOLERANCE = 1e-15
# Smallest divisor, instead of 0.
_MIN_DIVISOR = 1e-300


class UtilityRows(NamedTuple):
    """Alpha-fair utility sum_d W u(share) of D demands of L matrices, with weights W; flat arrays.

    Attributes:
        full_share_value: (D, L) W / demand, marginal value per Gbit/s at share 1; 0 for demands
            without weight.
        alpha: (1,) exponent of the utility.
    """

    full_share_value: FloatArray
    alpha: FloatArray


def curve_rows(
    problem: Problem, to_lane_rows: Callable[[Tensor], FloatArray]
) -> UtilityRows | None:
    """Return the utility of a problem in the layout of the kernels; None for linear values.

    Args:
        problem: B matrices.
        to_lane_rows: converts a tensor (B, n) to flat rows of lanes (n * L,).
    """
    utility = problem.utility
    return (
        None
        if utility is None
        else UtilityRows(to_lane_rows(utility.unit_value), np.array([utility.curve.alpha]))
    )


@inner_kernel
def _utility(share, alpha):
    """Return u(s) + 1 for the share s, with u(s) = (s^(1 - alpha) - 1) / (1 - alpha)."""
    share = max(share, _MIN_DIVISOR)
    if alpha == 1.0:
        return np.log(share) + 1.0
    # expm1 is accurate for alpha near 1 and shares near 1.
    return np.expm1((1.0 - alpha) * np.log(share)) / (1.0 - alpha) + 1.0


@inner_kernel
def _inverse_power(z, alpha):
    """Return z^-alpha.  Special cases avoid a power, the slowest operation of an iteration."""
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
def _utility_root(constant_term, power_coefficient, alpha):
    """Solve z = Y + a z^-alpha for z > 0: Y is ``constant_term``, a >= 0 is ``power_coefficient``.

    It is the optimality condition of the primal prox under an alpha-fair utility, for the sum z of
    a demand's splits.  Closed forms for alpha 0 and 1, else Newton's method from a lower bound.
    """
    if alpha == 0.0:
        return constant_term + power_coefficient
    if alpha == 1.0:
        # Quadratic equation.
        root = np.sqrt(constant_term * constant_term + 4.0 * power_coefficient)
        # For negative Y avoid the cancellation of the quadratic formula.
        return (
            (constant_term + root) / 2.0
            if constant_term >= 0
            else 2.0 * power_coefficient / max(root - constant_term, _MIN_DIVISOR)
        )
    # Lower bound of the root, from which Newton's steps increase to it.  The root is at least Y and
    # the root for Y = 0; for negative Y the root for Y = 0 bounds z in a z^-alpha = z - Y.
    zero_root = max(power_coefficient, _MIN_DIVISOR) ** (1.0 / (1.0 + alpha))
    if constant_term >= 0:
        z = max(constant_term, zero_root)
    else:
        z = min(
            max(power_coefficient / max(zero_root - constant_term, _MIN_DIVISOR), _MIN_DIVISOR)
            ** (1.0 / alpha),
            zero_root,
        )
    z = max(z, _MIN_DIVISOR)
    # Newton's method on z - Y - a z^-alpha.
    for _ in range(_MAX_NEWTON_STEPS):
        power_term = power_coefficient * _inverse_power(z, alpha)
        newton_step = -(z - constant_term - power_term) / (1.0 + alpha * power_term / z)
        # Converged, or the step is not finite.
        if not (newton_step > _STEP_TOLERANCE * z and newton_step < np.inf):
            break
        z += newton_step
    return z


@inlined_kernel
def lane_curve_profit(
    profit, lane_scratch, full_share_value, alpha, value_factor, linear_value, d, lanes
):
    """Return a demand's term in the dual bound under a utility, per Gbit/s of demand, lane by lane.

    The term is max over shares s in (0, 1] of ``value_factor`` V (u(s) + 1) - price s, with the
    utility u (u(1) = 0), the marginal value V at share 1, and the price of the cheapest path,
    ``linear_value * value_factor - profit``.

    Args:
        profit: profit of the demand's best path, one value per lane, times ``value_factor``.
        lane_scratch: (L,) work array.
        full_share_value: (D, L) V, marginal value per Gbit/s at share 1.
        alpha: exponent of the utility.
        value_factor: (L,) factor on values: 1 / (scale of the objective), or 1.
        linear_value: value per Gbit/s that the profit assumes.
        d: index of the demand.
        lanes: tuple of length L.
    """
    store(lane_scratch, 0, profit)
    curve_profit(lane_scratch, full_share_value, alpha, value_factor, linear_value, d, lanes)
    return load(lane_scratch, 0, lanes)


@inlined_kernel
def curve_profit(profit_or_term, full_share_value, alpha, value_factor, linear_value, d, lanes):
    """Replace the best path profits of demand ``d`` by its term in the dual bound, per Gbit/s.

    The term is max over shares s in (0, 1] of V (u(s) + 1) - price s, with the utility u
    (u(1) = 0), ``V = value_factor * full_share_value`` and
    ``price = value_factor * linear_value`` minus the best path's profit: at s = 1 if price <= V,
    else at s = (price / V)^(-1 / alpha).

    Args:
        profit_or_term: (L,) best path's profit times ``value_factor``; overwritten by the term.
        full_share_value: (D, L) marginal value per Gbit/s at share 1.
        alpha: exponent of the utility.
        value_factor: (L,) factor on values: 1 / (scale of the objective), or 1.
        linear_value: value per Gbit/s that the profits assume.
        d: index of the demand.
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    for lane in range(num_lanes):
        # V, and the price of the cheapest path.
        full_share_lane_value = full_share_value[d * num_lanes + lane] * value_factor[lane]
        price = max(linear_value * value_factor[lane] - profit_or_term[lane], 0.0)
        if full_share_lane_value <= 0:
            profit_or_term[lane] = 0.0
        elif price <= full_share_lane_value:
            # Fully served, at s = 1: u(1) + 1 = 1.
            profit_or_term[lane] = full_share_lane_value - price
        elif alpha == 1.0:
            # Logarithmic utility: s = V / price.
            profit_or_term[lane] = -full_share_lane_value * np.log(price / full_share_lane_value)
        elif alpha == 0.0:
            # Linear utility: nothing is worth a price above V.
            profit_or_term[lane] = 0.0
        else:
            # Share at which the marginal value V s^-alpha equals the price.
            share = (price / full_share_lane_value) ** (-1.0 / alpha)
            profit_or_term[lane] = full_share_lane_value * _utility(share, alpha) - price * share


@inlined_kernel
def curve_shift(
    unprojected, n, full_share_value, alpha, value_factor, step_or_shift, linear_value, d, lanes
):
    """Compute the primal prox of demand ``d`` under a utility, as a shift t of its splits.

    The new splits max(0, v - t) minimise |w - v'|^2 / 2 - tau V u(sum w) over {w >= 0,
    sum w <= 1}, where v are splits after a gradient step with the value ``linear_value``, v' those
    without it, u is the utility and tau the step size.  So
    t = tau (``value_factor * linear_value`` - V z^-alpha) for the sum z of the
    new splits, if z < 1.
    The active set is found as for a simplex (Michelot 1986): drop splits below t, repeat.

    Args:
        unprojected: (K, L) v, splits of the n paths after a gradient step.
        n: number of paths.
        full_share_value: (D, L) marginal value per Gbit/s at share 1; V is ``value_factor`` times
            it.
        alpha: exponent of the utility.
        value_factor: (L,) factor on values, 1 / (scale of the objective).
        step_or_shift: (L,) step sizes tau (overwritten by t).
        linear_value: value per Gbit/s that the gradient step assumes.
        d: index of the demand.
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    num_paths = np.int64(n)
    for lane in range(num_lanes):
        # Step sizes times values: tau times the assumed linear value, and tau V.
        scaled_step = value_factor[lane] * step_or_shift[lane]
        linear_shift = linear_value * scaled_step
        utility_step = full_share_value[d * num_lanes + lane] * scaled_step
        # Shift to a sum of 1: drop splits below the mean excess, repeat (Michelot 1986).
        full_share_shift = LOWEST
        last_num_active = np.int64(-1)
        for _ in range(num_paths):
            active_sum, num_active = _sum_above(
                unprojected, num_paths, full_share_shift, num_lanes, lane
            )
            if num_active == last_num_active or num_active == 0:
                break
            full_share_shift = (active_sum - 1.0) / num_active
            last_num_active = num_active
        step_or_shift[lane] = full_share_shift
        # The marginal utility at share 1 decides: a fully served demand needs no root.
        if linear_shift - utility_step <= full_share_shift:
            continue
        shift = full_share_shift
        last_num_active = np.int64(-1)
        # Same iteration with the utility, whose marginal value falls as the sum z rises.
        for _ in range(num_paths):
            active_sum, num_active = _sum_above(unprojected, num_paths, shift, num_lanes, lane)
            if num_active == last_num_active or num_active == 0:
                break
            # Sum z of the active splits, and the shift that belongs to it.
            z = max(
                _utility_root(
                    active_sum - num_active * linear_shift, num_active * utility_step, alpha
                ),
                _MIN_DIVISOR,
            )
            shift = linear_shift - utility_step * _inverse_power(z, alpha)
            last_num_active = num_active
        step_or_shift[lane] = max(full_share_shift, shift)


@inner_kernel
def _sum_above(unprojected, num_paths, shift, num_lanes, lane):
    """Return the sum and the number of a demand's splits above ``shift``, in one lane.

    Args:
        unprojected: (K, L) splits, flat with L = ``num_lanes``; the first ``num_paths`` rows count.
        num_paths: number of paths.
        shift: threshold.
        num_lanes: L.
        lane: index of the matrix.
    """
    split_sum = 0.0
    num_active = np.int64(0)
    for k in range(num_paths):
        if unprojected[k * num_lanes + lane] > shift:
            split_sum += unprojected[k * num_lanes + lane]
            num_active += 1
    return split_sum, num_active


@kernel
def curve_value(rate_or_value, demand, full_share_value, alpha, d, lanes):
    """Replace the carried rates of demand ``d`` by their value W (u(share) + 1).

    W is the weight of the demand, u its utility (u(1) = 0), share the carried share of the demand.

    Args:
        rate_or_value: (L,) carried rate, Gbit/s (overwritten by the value).
        demand: (D, L) Gbit/s.
        full_share_value: (D, L) W / demand, marginal value per Gbit/s at share 1.
        alpha: exponent of the utility.
        d: index of the demand.
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    for lane in range(num_lanes):
        demand_rate = demand[d * num_lanes + lane]
        lane_value = full_share_value[d * num_lanes + lane]
        share = min(rate_or_value[lane] / demand_rate, 1.0) if demand_rate > 0 else 1.0
        # W (u(share) + 1); 0 for a demand of 0 or without weight.
        rate_or_value[lane] = (
            demand_rate * lane_value * _utility(share, alpha)
            if demand_rate > 0 and lane_value > 0
            else 0.0
        )
