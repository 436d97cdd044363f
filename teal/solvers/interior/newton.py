"""One interior-point iteration: Schur complement, Cholesky factor, predictor, correctors, step.

Mehrotra's predictor-corrector with up to two of Gondzio's centrality correctors (references and
symbols: :mod:`teal.solvers.interior`).  :func:`iterate` is one iteration on one thread; its parts
(:func:`init_schur`, :func:`accumulate_schur`, :func:`regularise`, :func:`cholesky`,
:func:`predict_and_correct`) are called separately where several threads assemble S.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel, summing_kernel
from teal.solvers.interior.presolve import PresolvedProgram
from teal.solvers.interior.starts import (
    Iterate,
    add_link_loads,
    axpy,
    carried_shares,
    copy_into,
    fill,
    path_prices,
    power_of,
)

# Fraction-to-the-boundary rule.  Short steps stay further away: a component next to 0 stops every
# later step; long ones occur near the end.
_FRACTION_TO_BOUNDARY = 0.995
_SHORT_STEP_FRACTION = 0.9
# Gondzio's correctors.  Each one costs a part of an iteration; none is needed after a long step.
_MAX_CORRECTORS = 2
_LONG_STEP = 0.9
# Correctors aim at steps this much longer (Gondzio's delta_alpha), and must gain at least this much
# of both steps together.
_CORRECTOR_STEP_GAIN = 0.3
_MIN_CORRECTOR_GAIN = 0.05
# Symmetric neighbourhood of the central path, over mu: products inside do not stop a step.
_NEIGHBOURHOOD_LOW = 0.1
_NEIGHBOURHOOD_HIGH = 10.0
# Recentring: products below this part of the mean are raised to it, a share to at most a part of
# the largest one of its block, and by at most a factor.
_RECENTRED_PRODUCT = 0.1
_MAX_RAISED_SHARE = 0.01
_MAX_RAISE_FACTOR = 10.0
# Step length below which an iteration makes no progress.
_MIN_STEP = 1e-8
# Change of the sum of a block's shares above which rounding errors dominate a step.
_MAX_IMBALANCE = 1e-7
# A pivot of S below this part of the diagonal is dropped: the huge pivot makes the solution 0.
_MIN_PIVOT = 1e-14
_DROPPED_PIVOT = 1e128
# Recentring raises a share to at most this part of its column's upper bound.
_MAX_BOUND_FRACTION = 0.5
# Under concave utilities a step lowers the carried share to no less than this part.
_MIN_CARRIED = 0.25


class Work(NamedTuple):
    """Preallocated workspace of a search, and its incumbents.

    Attributes:
        step: Newton direction.
        complementarity: complementarity target less the present products, for each pair.
        previous_step: direction before a centrality corrector.
        scaling: (Q,) D.
        delta: (G,) sum of D over each block.
        carried: (G,) carried share of each demand, where utilities are concave.
        dual_residual: (G,) unserved cost less multiplier and reduced cost; 0 unless utilities are
            concave.
        curvature: (G,) derivative of the unserved cost.
        column_scratch: (Q,) scratch space.
        path_price: (Q,) A' y.
        load: (n,) A x.
        primal_residual: (n,) capacity less load and slack.
        schur_inv_capacity: (n,) S^-1 c, with c the capacities.
        schur: (n, n) S, then its Cholesky factor.
        penalty: (1,) rho of :func:`regularise`; 0 where demand may be shed.
        incumbent_share: (Q,) shares of the best value.
        incumbent_price: (n,) dual prices of the best bound.
        incumbent: (2,) best value and best bound.
    """

    step: Iterate
    complementarity: Iterate
    previous_step: Iterate
    scaling: FloatArray
    delta: FloatArray
    carried: FloatArray
    dual_residual: FloatArray
    curvature: FloatArray
    column_scratch: FloatArray
    path_price: FloatArray
    load: FloatArray
    primal_residual: FloatArray
    schur_inv_capacity: FloatArray
    schur: FloatArray
    penalty: FloatArray
    incumbent_share: FloatArray
    incumbent_price: FloatArray
    incumbent: FloatArray


@inner_kernel
def update_utility_terms(program: PresolvedProgram, at: Iterate, work: Work) -> None:
    """Update the dual residuals and curvatures of concave utilities at the start of an iteration.

    At the carried share r the unserved cost is W (r^-alpha - 1), and its derivative with respect to
    the unserved share is W alpha r^(-alpha - 1).
    """
    if len(program.utility_weight) == 0:
        return
    alpha = program.alpha
    carried = work.carried
    carried_shares(program, at.share, carried)
    for g in range(len(program.utility_weight)):
        power = power_of(carried[g], -alpha)
        work.curvature[g] = program.utility_weight[g] * alpha * power / carried[g]
        cost = program.utility_weight[g] * (power - 1)
        work.dual_residual[g] = cost - at.multiplier[g] - at.unserved_dual[g]


@inner_kernel
def init_schur(at: Iterate, schur: FloatArray) -> None:
    """Set S (n, n) to the diagonal t / y."""
    for r in range(len(schur)):
        fill(0.0, schur[r])
        schur[r, r] = at.slack[r] / at.price[r]


@inner_kernel
def accumulate_schur(
    program: PresolvedProgram,
    sheds: bool,
    at: Iterate,
    work: Work,
    schur: FloatArray,
    first_block: int,
    end_block: int,
) -> None:
    """Compute D and delta of some blocks, and add their terms to the lower triangle of S (n, n).

    Each path adds D[p] A[:, p] A[:, p]'; each block subtracts v[d] v[d]' / delta[d].
    """
    rows = len(program.capacity)
    scaling = work.scaling
    block_delta = work.delta
    has_limits = len(program.bound_index) > 0
    coefficient = program.coefficient
    scaled_column_sum = np.zeros(rows)
    block_sum = np.empty(rows)
    for g in range(first_block, end_block):
        squared_rate = program.rate[g] * program.rate[g]
        delta = (
            at.unserved[g] / (at.unserved_dual[g] + at.unserved[g] * work.curvature[g])
            if sheds
            else 0.0
        )
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            scaling[q] = at.share[q] / at.reduced_cost[q]
            if has_limits and program.bound_index[q] >= 0:
                c = program.bound_index[q]
                scaling[q] /= 1 + scaling[q] * at.bound_dual[c] / at.bound_slack[c]
            delta += scaling[q]
            scaled = squared_rate * scaling[q]
            begin = program.row_ptr[q]
            end = program.row_ptr[q + 1]
            if len(coefficient) > 0:
                for i in range(begin, end):
                    row = schur[program.row[i]]
                    of_row = scaled * coefficient[i]
                    scaled_column_sum[program.row[i]] += scaling[q] * coefficient[i]
                    for j in range(begin, i + 1):
                        row[program.row[j]] += of_row * coefficient[j]
            else:
                for i in range(begin, end):
                    row = schur[program.row[i]]
                    scaled_column_sum[program.row[i]] += scaling[q]
                    for j in range(begin, i + 1):
                        row[program.row[j]] += scaled
        block_delta[g] = delta
        factor = squared_rate / delta
        begin_row = program.block_row_ptr[g]
        count = program.block_row_ptr[g + 1] - program.block_row_ptr[g]
        for i in range(count):
            r = program.block_row[begin_row + i]
            row = schur[r]
            block_sum[i] = scaled_column_sum[r]
            scaled_column_sum[r] = 0.0
            scaled = factor * block_sum[i]
            for j in range(i + 1):
                row[program.block_row[begin_row + j]] -= scaled * block_sum[j]


@inner_kernel
def regularise(program: PresolvedProgram, sheds: bool, work: Work) -> None:
    """Add rho c c' to the lower triangle of S, where all demand is served; c are the capacities.

    A multiple of the optimal prices changes no reduced cost of a used path, so that S becomes
    singular along y as mu falls; only c' y = 1 fixes the scale of y.  The Newton system

        S dy + c dtheta = r,   c' dy = g

    has the same solution as (S + rho c c') dy + c dtheta = r + rho g c, c' dy = g, whose matrix
    stays well-conditioned (Golub and Greif, SIAM J. Scientific Computing 24, 2003).
    """
    schur = work.schur
    capacity = program.capacity
    work.penalty[0] = 0.0
    if sheds:
        return
    # rho has the scale of S, so that neither term is lost to rounding.
    trace = 0.0
    squared_capacity = 0.0
    for r in range(len(capacity)):
        trace += schur[r, r]
        squared_capacity += capacity[r] * capacity[r]
    rho = trace / squared_capacity
    work.penalty[0] = rho
    for i in range(len(capacity)):
        row = schur[i]
        scaled = rho * capacity[i]
        for j in range(i + 1):
            row[j] += scaled * capacity[j]


@summing_kernel
def cholesky(schur: FloatArray) -> None:
    """Compute the Cholesky factor in place, lower triangle.

    A pivot that rounding has made negligible (a dependent row) is replaced by a huge number, which
    makes the row's solution 0.
    """
    size = len(schur)
    for i in range(size):
        row = schur[i]
        before = row[i]
        for j in range(i):
            row_j = schur[j]
            total = 0.0
            for k in range(j):
                total += row[k] * row_j[k]
            row[j] = (row[j] - total) / row_j[j]
        total = 0.0
        for k in range(i):
            total += row[k] * row[k]
        pivot = before - total
        row[i] = np.sqrt(pivot) if pivot > _MIN_PIVOT * before else _DROPPED_PIVOT


@summing_kernel
def _solve_cholesky(factor: FloatArray, x: FloatArray) -> None:
    """Solve with the Cholesky factor, in place."""
    size = len(factor)
    for i in range(size):
        row = factor[i]
        total = 0.0
        for k in range(i):
            total += row[k] * x[k]
        x[i] = (x[i] - total) / row[i]
    for i in range(size - 1, -1, -1):
        row = factor[i]
        x[i] /= row[i]
        for k in range(i):
            x[k] -= row[k] * x[i]


@inner_kernel
def _newton_direction(program: PresolvedProgram, sheds: bool, at: Iterate, work: Work) -> None:
    """Compute the Newton direction for the complementarity targets of ``work``.

    Forward elimination of columns and blocks gives the right-hand side of the Schur complement; its
    solution is the step of the prices, from which back substitution gives all other components.
    """
    step = work.step
    complementarity = work.complementarity
    scaling = work.scaling
    delta = work.delta
    free_step = work.column_scratch
    primal_residual = work.primal_residual
    schur_inv_capacity = work.schur_inv_capacity
    factor = work.schur
    rows = len(program.capacity)
    # Right-hand side of the Schur complement; the step of the prices takes its place.
    rhs = step.price
    for r in range(rows):
        rhs[r] = complementarity.slack[r] / at.price[r] - primal_residual[r]
    for q in range(len(program.column_value)):
        free_step[q] = complementarity.share[q] / at.reduced_cost[q]
    for c in range(len(program.bounded)):
        q = program.bounded[c]
        free_step[q] = scaling[q] * (
            complementarity.share[q] / at.share[q]
            - complementarity.bound_slack[c] / at.bound_slack[c]
        )
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        block_step = 0.0
        if sheds:
            block_step = (complementarity.unserved[g] - at.unserved[g] * work.dual_residual[g]) / (
                at.unserved_dual[g] + at.unserved[g] * work.curvature[g]
            )
        for q in range(first, end):
            block_step += free_step[q]
        step.unserved[g] = block_step
        for q in range(first, end):
            step.share[q] = free_step[q] - scaling[q] * block_step / delta[g]
    add_link_loads(program, step.share, rhs)
    price_sum_residual = 0.0
    if not sheds:
        # Prices are on the simplex: capacities times prices sum to 1.
        price_sum_residual = 1.0
        for r in range(rows):
            price_sum_residual -= program.capacity[r] * at.price[r]
        axpy(work.penalty[0] * price_sum_residual, program.capacity, rhs)
    _solve_cholesky(factor, rhs)
    if not sheds:
        numerator = 0.0
        denominator = 0.0
        for r in range(rows):
            numerator += program.capacity[r] * rhs[r]
            denominator += program.capacity[r] * schur_inv_capacity[r]
        step.theta[0] = (numerator - price_sum_residual) / denominator
        for r in range(rows):
            rhs[r] -= schur_inv_capacity[r] * step.theta[0]
    for r in range(rows):
        step.slack[r] = (complementarity.slack[r] - at.slack[r] * rhs[r]) / at.price[r]
    path_prices(program, rhs, step.reduced_cost)
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        numerator = 0.0
        for q in range(first, end):
            numerator += scaling[q] * step.reduced_cost[q]
        multiplier_step = (numerator - step.unserved[g]) / delta[g]
        step.multiplier[g] = multiplier_step
        for q in range(first, end):
            step.reduced_cost[q] -= multiplier_step
            step.share[q] = free_step[q] - scaling[q] * step.reduced_cost[q]
        if sheds:
            scaled_curvature = at.unserved[g] * work.curvature[g]
            step.unserved[g] = (
                complementarity.unserved[g]
                + at.unserved[g] * (multiplier_step - work.dual_residual[g])
            ) / (at.unserved_dual[g] + scaled_curvature)
            step.unserved_dual[g] = -multiplier_step
            if len(program.utility_weight) > 0:
                step.unserved_dual[g] += (
                    work.curvature[g] * step.unserved[g] + work.dual_residual[g]
                )
    for c in range(len(program.bounded)):
        q = program.bounded[c]
        share_step = step.share[q]
        step.bound_slack[c] = -share_step
        step.reduced_cost[q] = (
            complementarity.share[q] - at.reduced_cost[q] * share_step
        ) / at.share[q]
        step.bound_dual[c] = (
            complementarity.bound_slack[c] + at.bound_dual[c] * share_step
        ) / at.bound_slack[c]


@inner_kernel
def _max_step(value: FloatArray, step: FloatArray, max_length: float) -> float:
    """Return the ratio test: the longest step up to ``max_length`` that keeps values >= 0."""
    for i in range(len(value)):
        if step[i] < 0:
            max_length = min(max_length, -value[i] / step[i])
    return max_length


@inner_kernel
def _step_lengths(
    program: PresolvedProgram, at: Iterate, work: Work, sheds: bool
) -> tuple[float, float]:
    """Return the longest primal and dual steps to the boundary.

    They are equal where utilities are concave.
    """
    step = work.step
    no_limit = 1e30
    primal_length = _max_step(at.slack, step.slack, _max_step(at.share, step.share, no_limit))
    dual_length = _max_step(
        at.price, step.price, _max_step(at.reduced_cost, step.reduced_cost, no_limit)
    )
    primal_length = _max_step(at.bound_slack, step.bound_slack, primal_length)
    dual_length = _max_step(at.bound_dual, step.bound_dual, dual_length)
    if sheds:
        primal_length = _max_step(at.unserved, step.unserved, primal_length)
        dual_length = _max_step(at.unserved_dual, step.unserved_dual, dual_length)
    if len(program.utility_weight) > 0:
        for g in range(len(program.rate)):
            if step.unserved[g] > 0:
                max_decrease = (1 - _MIN_CARRIED) * work.carried[g]
                primal_length = min(primal_length, max_decrease / step.unserved[g])
        primal_length = dual_length = min(primal_length, dual_length)
    return primal_length, dual_length


@inner_kernel
def _complementarity_of(
    value: FloatArray,
    value_step: FloatArray,
    primal_length: float,
    price: FloatArray,
    price_step: FloatArray,
    dual_length: float,
) -> float:
    """Return the sum of the products of values and their duals after a step."""
    total = 0.0
    for i in range(len(value)):
        total += (value[i] + primal_length * value_step[i]) * (
            price[i] + dual_length * price_step[i]
        )
    return total


@inner_kernel
def complementarity_sum(
    at: Iterate, step: Iterate, sheds: bool, primal_length: float, dual_length: float
) -> float:
    """Return the sum of all products x z, s z_s, t y and those of upper bounds after a step.

    Args:
        at: the point.
        step: the direction.
        sheds: whether demand may be shed.
        primal_length: length of the primal step.
        dual_length: length of the dual step.
    """
    total = _complementarity_of(
        at.share, step.share, primal_length, at.reduced_cost, step.reduced_cost, dual_length
    )
    total += _complementarity_of(
        at.slack, step.slack, primal_length, at.price, step.price, dual_length
    )
    total += _complementarity_of(
        at.bound_slack, step.bound_slack, primal_length, at.bound_dual, step.bound_dual, dual_length
    )
    if sheds:
        total += _complementarity_of(
            at.unserved,
            step.unserved,
            primal_length,
            at.unserved_dual,
            step.unserved_dual,
            dual_length,
        )
    return total


@inner_kernel
def _complementarity_target_of(
    value: FloatArray,
    value_step: FloatArray,
    price: FloatArray,
    price_step: FloatArray,
    mu: float,
    second_order: float,
    out: FloatArray,
) -> None:
    """Compute the target less the present products, of one kind of pairs."""
    for i in range(len(value)):
        out[i] = mu - value[i] * price[i] - second_order * value_step[i] * price_step[i]


@inner_kernel
def _complementarity_target(
    at: Iterate, step: Iterate, sheds: bool, mu: float, second_order: float, out: Iterate
) -> None:
    """Compute mu - x z - second_order dx dz for all pairs (Mehrotra's target)."""
    _complementarity_target_of(
        at.share, step.share, at.reduced_cost, step.reduced_cost, mu, second_order, out.share
    )
    _complementarity_target_of(
        at.slack, step.slack, at.price, step.price, mu, second_order, out.slack
    )
    _complementarity_target_of(
        at.bound_slack,
        step.bound_slack,
        at.bound_dual,
        step.bound_dual,
        mu,
        second_order,
        out.bound_slack,
    )
    if sheds:
        _complementarity_target_of(
            at.unserved,
            step.unserved,
            at.unserved_dual,
            step.unserved_dual,
            mu,
            second_order,
            out.unserved,
        )


@inner_kernel
def _clamp_to_neighbourhood(product: float, mu: float) -> float:
    """Return the change that moves a product to the neighbourhood of mu."""
    if product < _NEIGHBOURHOOD_LOW * mu:
        return _NEIGHBOURHOOD_LOW * mu - product
    if product > _NEIGHBOURHOOD_HIGH * mu:
        return max(_NEIGHBOURHOOD_HIGH * mu - product, -_NEIGHBOURHOOD_HIGH * mu)
    return 0.0


@inner_kernel
def _add_corrector_of(
    value: FloatArray,
    value_step: FloatArray,
    primal_length: float,
    price: FloatArray,
    price_step: FloatArray,
    dual_length: float,
    mu: float,
    out: FloatArray,
) -> None:
    """Add the centrality corrector of one kind of pairs to its targets."""
    for i in range(len(value)):
        out[i] += _clamp_to_neighbourhood(
            (value[i] + primal_length * value_step[i]) * (price[i] + dual_length * price_step[i]),
            mu,
        )


@inner_kernel
def _add_centrality_corrector(
    at: Iterate,
    step: Iterate,
    sheds: bool,
    mu: float,
    primal_length: float,
    dual_length: float,
    out: Iterate,
) -> None:
    """Add Gondzio's centrality corrector to the complementarity targets.

    Products that leave the neighbourhood of mu after a step longer by ``_CORRECTOR_STEP_GAIN`` are
    moved back to its edge (Gondzio, Computational Optimization and Applications 6, 1996).
    """
    longer_primal = min(1.0, primal_length + _CORRECTOR_STEP_GAIN)
    longer_dual = min(1.0, dual_length + _CORRECTOR_STEP_GAIN)
    _add_corrector_of(
        at.share,
        step.share,
        longer_primal,
        at.reduced_cost,
        step.reduced_cost,
        longer_dual,
        mu,
        out.share,
    )
    _add_corrector_of(
        at.slack, step.slack, longer_primal, at.price, step.price, longer_dual, mu, out.slack
    )
    _add_corrector_of(
        at.bound_slack,
        step.bound_slack,
        longer_primal,
        at.bound_dual,
        step.bound_dual,
        longer_dual,
        mu,
        out.bound_slack,
    )
    if sheds:
        _add_corrector_of(
            at.unserved,
            step.unserved,
            longer_primal,
            at.unserved_dual,
            step.unserved_dual,
            longer_dual,
            mu,
            out.unserved,
        )


@inner_kernel
def copy_iterate(source: Iterate, target: Iterate) -> None:
    """Copy a point or a direction."""
    copy_into(source.share, target.share)
    copy_into(source.reduced_cost, target.reduced_cost)
    copy_into(source.unserved, target.unserved)
    copy_into(source.unserved_dual, target.unserved_dual)
    copy_into(source.price, target.price)
    copy_into(source.slack, target.slack)
    copy_into(source.theta, target.theta)
    copy_into(source.bound_slack, target.bound_slack)
    copy_into(source.bound_dual, target.bound_dual)
    copy_into(source.multiplier, target.multiplier)


@inner_kernel
def _take_step(at: Iterate, step: Iterate, primal_length: float, dual_length: float) -> None:
    """Add a direction to a point, with separate primal and dual lengths."""
    axpy(primal_length, step.share, at.share)
    axpy(primal_length, step.unserved, at.unserved)
    axpy(primal_length, step.slack, at.slack)
    axpy(primal_length, step.theta, at.theta)
    axpy(dual_length, step.reduced_cost, at.reduced_cost)
    axpy(dual_length, step.unserved_dual, at.unserved_dual)
    axpy(dual_length, step.price, at.price)
    axpy(primal_length, step.bound_slack, at.bound_slack)
    axpy(dual_length, step.bound_dual, at.bound_dual)
    axpy(dual_length, step.multiplier, at.multiplier)


@inner_kernel
def _recentre(
    program: PresolvedProgram, sheds: bool, at: Iterate, mean_complementarity: float
) -> None:
    """Raise shares whose product with the reduced cost is far below the mean.

    Such shares stop every later step.  A share is raised to a part of mu / z, still close to 0; the
    largest share of its block is lowered by as much.
    """
    min_complementarity = _RECENTRED_PRODUCT * mean_complementarity
    has_limits = len(program.bound_index) > 0
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        largest_column = -1
        largest_share = at.unserved[g] if sheds else 0.0
        for q in range(first, end):
            if at.share[q] > largest_share:
                largest_column = q
                largest_share = at.share[q]
        max_raised_share = _MAX_RAISED_SHARE * largest_share
        raised_total = 0.0
        for q in range(first, end):
            raised_share = min(
                max_raised_share,
                min_complementarity / at.reduced_cost[q],
                _MAX_RAISE_FACTOR * at.share[q],
            )
            bound = program.bound_index[q] if has_limits else -1
            if bound >= 0:
                raised_share = min(raised_share, _MAX_BOUND_FRACTION * program.upper_bound[bound])
            if at.share[q] < raised_share:
                raised_total += raised_share - at.share[q]
                at.share[q] = raised_share
                if bound >= 0:
                    at.bound_slack[bound] = program.upper_bound[bound] - raised_share
        if sheds:
            raised_share = min(
                max_raised_share,
                min_complementarity / at.unserved_dual[g],
                _MAX_RAISE_FACTOR * at.unserved[g],
            )
            if at.unserved[g] < raised_share:
                raised_total += raised_share - at.unserved[g]
                at.unserved[g] = raised_share
        if largest_column < 0:
            at.unserved[g] -= raised_total
        else:
            at.share[largest_column] -= raised_total
            if has_limits and program.bound_index[largest_column] >= 0:
                at.bound_slack[program.bound_index[largest_column]] += raised_total


@inner_kernel
def _max_imbalance(program: PresolvedProgram, sheds: bool, step: Iterate) -> float:
    """Return the largest change of the sum of a block's shares, 0 but for rounding."""
    max_imbalance = 0.0
    for g in range(len(program.rate)):
        total = step.unserved[g] if sheds else 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total += step.share[q]
        max_imbalance = max(max_imbalance, abs(total))
    return max_imbalance


@inner_kernel
def iterate(program: PresolvedProgram, sheds: bool, at: Iterate, work: Work) -> bool:
    """Take one iteration; false where the step has length 0."""
    update_utility_terms(program, at, work)
    init_schur(at, work.schur)
    accumulate_schur(program, sheds, at, work, work.schur, 0, len(program.rate))
    regularise(program, sheds, work)
    cholesky(work.schur)
    return predict_and_correct(program, sheds, at, work)


@inner_kernel
def predict_and_correct(program: PresolvedProgram, sheds: bool, at: Iterate, work: Work) -> bool:
    """Take a step with a factored Schur complement: predictor, correctors, step.

    Returns:
        false where the step has length 0, or rounding errors dominate it.
    """
    step = work.step
    complementarity = work.complementarity
    rows = len(program.capacity)
    count = (
        len(program.column_value)
        + rows
        + len(program.bounded)
        + (len(program.rate) if sheds else 0)
    )
    mu = complementarity_sum(at, step, sheds, 0.0, 0.0) / count
    for r in range(rows):
        capacity = program.capacity[r] if sheds else program.capacity[r] * at.theta[0]
        work.primal_residual[r] = capacity - work.load[r] - at.slack[r]
    if not sheds:
        copy_into(program.capacity, work.schur_inv_capacity)
        _solve_cholesky(work.schur, work.schur_inv_capacity)
    _complementarity_target(at, step, sheds, 0.0, 0.0, complementarity)
    _newton_direction(program, sheds, at, work)
    primal_length, dual_length = _step_lengths(program, at, work, sheds)
    primal_length = min(1.0, primal_length)
    dual_length = min(1.0, dual_length)
    affine_mu = complementarity_sum(at, step, sheds, primal_length, dual_length) / count
    sigma = (affine_mu / mu) ** 3
    _complementarity_target(at, step, sheds, sigma * mu, 1.0, complementarity)
    _newton_direction(program, sheds, at, work)
    primal_length, dual_length = _step_lengths(program, at, work, sheds)
    for _ in range(_MAX_CORRECTORS):
        if min(primal_length, dual_length) > _LONG_STEP:
            break
        copy_iterate(step, work.previous_step)
        _add_centrality_corrector(
            at, step, sheds, sigma * mu, primal_length, dual_length, complementarity
        )
        _newton_direction(program, sheds, at, work)
        longer_primal, longer_dual = _step_lengths(program, at, work, sheds)
        total_length = min(1.0, longer_primal) + min(1.0, longer_dual)
        if total_length < min(1.0, primal_length) + min(1.0, dual_length) + _MIN_CORRECTOR_GAIN:
            copy_iterate(work.previous_step, step)
            break
        primal_length = longer_primal
        dual_length = longer_dual
    is_long = min(primal_length, dual_length) > _LONG_STEP
    fraction = _FRACTION_TO_BOUNDARY if is_long else _SHORT_STEP_FRACTION
    primal_length = min(1.0, fraction * primal_length)
    dual_length = min(1.0, fraction * dual_length)
    if not max(primal_length, dual_length) > _MIN_STEP:
        return False
    if not primal_length * _max_imbalance(program, sheds, step) < _MAX_IMBALANCE:
        # Rounding errors dominate.
        return False
    _take_step(at, step, primal_length, dual_length)
    # Under concave utilities a share and its reduced cost may both end at 0, and a raised share
    # then overloads its links.
    if len(program.utility_weight) == 0:
        _recentre(program, sheds, at, complementarity_sum(at, step, sheds, 0.0, 0.0) / count)
    return True
