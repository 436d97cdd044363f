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
    real_power,
)

# Fraction-to-the-boundary rule.  Short steps stay further away: a component next to 0 stops every
# later step; long ones occur near the end.
_FRACTION_TO_BOUNDARY = 0.995
_SHORT_STEP_FRACTION = 0.9
# Gondzio's correctors: largest number in an iteration, and the step length above which none is
# computed.  Each one costs another solve with the Cholesky factor.
_MAX_CORRECTORS = 2
_LONG_STEP = 0.9
# Correctors aim at steps this much longer (Gondzio's delta_alpha).  A corrector is rejected if the
# sum of the primal and the dual step length grows by less than the minimum gain.
_CORRECTOR_STEP_GAIN = 0.3
_MIN_CORRECTOR_GAIN = 0.05
# Neighbourhood of the central path: complementarity products between these multiples of mu.
_NEIGHBOURHOOD_LOW = 0.1
_NEIGHBOURHOOD_HIGH = 10.0
# Recentring raises a share until its complementarity product is this part of the mean product, but
# to at most this part of the largest share of its block, and by at most this factor.
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
_MIN_CARRIED_RATIO = 0.25


class Work(NamedTuple):
    """Preallocated workspace of a search.

    Q columns are paths, G blocks are demands, n rows are links that can bind.

    Attributes:
        step: Newton direction.
        complementarity_residual: right-hand side of the complementarity equations: target less
            present product of each pair, in the fields share, slack, bound_slack and unserved.
        previous_step: Newton direction before a centrality corrector, to return to.
        scaling: (Q,) D = x / z; 1 / (z / x + w / (u - x)) with an upper bound u.
        delta: (G,) sum of D over each block, with the term of the unserved share.
        carried: (G,) carried share of each demand, where utilities are concave.
        dual_residual: (G,) unserved cost less multiplier and reduced cost; 0 unless utilities are
            concave.
        curvature: (G,) derivative of the unserved cost with respect to the unserved share.
        column_scratch: (Q,) scratch space.
        path_price: (Q,) A' y, price of carrying all of the demand on a path.
        load: (n,) A x, Gbit/s.
        primal_residual: (n,) capacity less load and slack, Gbit/s.
        schur_inv_capacity: (n,) S^-1 c, with c the capacities.
        schur: (n, n) Schur complement S, then its Cholesky factor, both in the lower triangle.
        penalty: (1,) rho of the augmentation S + rho c c'; 0 where demand may be shed.
        incumbent_share: (Q,) shares of the best value so far.
        incumbent_price: (n,) dual prices of the best bound so far.
        best_value_and_bound: (2,) best value and best bound so far.
    """

    step: Iterate
    complementarity_residual: Iterate
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
    best_value_and_bound: FloatArray


@inner_kernel
def update_utility_terms(program: PresolvedProgram, point: Iterate, work: Work) -> None:
    """Update the dual residuals and curvatures of concave utilities at the start of an iteration.

    At the carried share r of a demand, with W the value of all of it, the marginal utility of the
    unserved share (its cost) is W (r^-alpha - 1).  Its derivative with respect to the unserved
    share is W alpha r^(-alpha - 1).

    Args:
        program: presolved program with G blocks (demands).
        point: present point.
        work: workspace; carried, curvature and dual_residual, each (G,), are written.
    """
    if len(program.utility_weight) == 0:
        return
    alpha = program.alpha
    carried = work.carried
    carried_shares(program, point.share, carried)
    for g in range(len(program.utility_weight)):
        power = real_power(carried[g], -alpha)
        work.curvature[g] = program.utility_weight[g] * alpha * power / carried[g]
        # At dual feasibility this cost is the multiplier plus the reduced cost.
        cost = program.utility_weight[g] * (power - 1)
        work.dual_residual[g] = cost - point.multiplier[g] - point.unserved_dual[g]


@inner_kernel
def init_schur(point: Iterate, schur: FloatArray) -> None:
    """Set the Schur complement S (n, n, written) to diag(slack / price) of the n link rows."""
    for r in range(len(schur)):
        fill(0.0, schur[r])
        schur[r, r] = point.slack[r] / point.price[r]


@inner_kernel
def accumulate_schur(
    program: PresolvedProgram,
    may_shed: bool,
    point: Iterate,
    work: Work,
    schur: FloatArray,
    first_block: int,
    end_block: int,
) -> None:
    """Add the terms of some blocks to the lower triangle of the Schur complement S.

    A[r, q] = rate * coefficient is the load of link row r if column q carries its whole demand.
    With the scaling D[q] = 1 / (z / x + w / (u - x)), where the second term exists only with an
    upper bound u, and with v = sum over the block of D[q] A[:, q] and delta = sum over the block of
    D[q],

        S += sum over the block of D[q] A[:, q] A[:, q]' - v v' / delta.

    Here x is a share, z its reduced cost and w the dual of its upper bound.

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands), n rows (links).
        may_shed: whether demand may be shed: delta then has a term of the unserved share.
        point: present point, read.
        work: workspace; ``scaling`` (Q,) and ``delta`` (G,) of these blocks are written.
        schur: (n, n) S, added to.
        first_block: first block.
        end_block: block after the last one.
    """
    rows = len(program.capacity)
    scaling = work.scaling
    block_delta = work.delta
    has_bounds = len(program.bound_index) > 0
    coefficient = program.coefficient
    # (n,) sum over the block of D[q] * coefficient by link row, which is v / rate; zero between
    # blocks.
    scaled_column_sum = np.zeros(rows)
    # (n,) these sums in the order of the block's rows, packed at the front.
    packed_column_sum = np.empty(rows)
    for g in range(first_block, end_block):
        # delta starts with the term of the unserved share s with dual z_s, s / (z_s + s *
        # curvature); the curvature is that of a concave utility, 0 for a linear one.
        squared_rate = program.rate[g] * program.rate[g]
        delta = (
            point.unserved[g] / (point.unserved_dual[g] + point.unserved[g] * work.curvature[g])
            if may_shed
            else 0.0
        )
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            # D[q], with the term of an upper bound.
            scaling[q] = point.share[q] / point.reduced_cost[q]
            if has_bounds and program.bound_index[q] >= 0:
                bound_index = program.bound_index[q]
                scaling[q] /= (
                    1 + scaling[q] * point.bound_dual[bound_index] / point.bound_slack[bound_index]
                )
            delta += scaling[q]
            # Rank-one update D[q] A[:, q] A[:, q]' over the rows of the column, which ascend.
            update_factor = squared_rate * scaling[q]
            begin = program.row_ptr[q]
            end = program.row_ptr[q + 1]
            # Without coefficients (empty array) all of them are 1.
            if len(coefficient) > 0:
                for i in range(begin, end):
                    schur_row = schur[program.row[i]]
                    row_factor = update_factor * coefficient[i]
                    scaled_column_sum[program.row[i]] += scaling[q] * coefficient[i]
                    for j in range(begin, i + 1):
                        schur_row[program.row[j]] += row_factor * coefficient[j]
            else:
                for i in range(begin, end):
                    schur_row = schur[program.row[i]]
                    scaled_column_sum[program.row[i]] += scaling[q]
                    for j in range(begin, i + 1):
                        schur_row[program.row[j]] += update_factor
        # Rank-one update -v v' / delta over the rows of the block, which ascend.
        block_delta[g] = delta
        # The sums are v / rate: rate^2 is part of the factor.
        rank_one_factor = squared_rate / delta
        block_entry_begin = program.block_row_ptr[g]
        num_block_rows = program.block_row_ptr[g + 1] - program.block_row_ptr[g]
        for i in range(num_block_rows):
            r = program.block_row[block_entry_begin + i]
            schur_row = schur[r]
            # Pack the sums of the block's rows, and clear them for the next block.
            packed_column_sum[i] = scaled_column_sum[r]
            scaled_column_sum[r] = 0.0
            update_factor = rank_one_factor * packed_column_sum[i]
            for j in range(i + 1):
                schur_row[program.block_row[block_entry_begin + j]] -= (
                    update_factor * packed_column_sum[j]
                )


@inner_kernel
def regularise(program: PresolvedProgram, may_shed: bool, work: Work) -> None:
    """Add rho c c' to the lower triangle of S, where all demand is served; c are the capacities.

    A multiple of the optimal prices changes no reduced cost of a used path, so that S becomes
    singular along y as mu falls; only c' y = 1 fixes the scale of y.  The Newton system

        S dy + c dtheta = r,   c' dy = g

    with right-hand sides r and g, has the same solution as (S + rho c c') dy + c dtheta =
    r + rho g c, c' dy = g, whose matrix stays well-conditioned (Golub and Greif, SIAM J. Scientific
    Computing 24, 2003).

    Args:
        program: presolved program of n link rows.
        may_shed: whether demand may be shed; S then stays as it is.
        work: workspace; schur (n, n) is added to, penalty (1,) receives rho.
    """
    schur = work.schur
    capacity = program.capacity
    work.penalty[0] = 0.0
    if may_shed:
        return
    # rho = trace(S) / c'c gives both terms the same scale, so that neither is lost to rounding.
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
    """Replace the lower triangle of S (n, n) by its Cholesky factor L, S = L L'.

    A pivot that rounding has made negligible (a dependent row) is replaced by a huge number, which
    makes the row's solution 0.

    Args:
        schur: (n, n) symmetric matrix S; its lower triangle receives L.
    """
    size = len(schur)
    for i in range(size):
        row_i = schur[i]
        diagonal = row_i[i]
        # L[i, j] = (S[i, j] - sum over k < j of L[i, k] L[j, k]) / L[j, j].
        for j in range(i):
            row_j = schur[j]
            dot_product = 0.0
            for k in range(j):
                dot_product += row_i[k] * row_j[k]
            row_i[j] = (row_i[j] - dot_product) / row_j[j]
        # L[i, i] = sqrt(S[i, i] - sum over k < i of L[i, k]^2).
        dot_product = 0.0
        for k in range(i):
            dot_product += row_i[k] * row_i[k]
        pivot = diagonal - dot_product
        row_i[i] = np.sqrt(pivot) if pivot > _MIN_PIVOT * diagonal else _DROPPED_PIVOT


@summing_kernel
def _solve_cholesky(factor: FloatArray, x: FloatArray) -> None:
    """Solve L L' x = b in place.

    Args:
        factor: (n, n) Cholesky factor L, lower triangle.
        x: (n,) b; receives the solution.
    """
    size = len(factor)
    # Forward substitution: L u = b.
    for i in range(size):
        row = factor[i]
        dot_product = 0.0
        for k in range(i):
            dot_product += row[k] * x[k]
        x[i] = (x[i] - dot_product) / row[i]
    # Back substitution: L' x = u.
    for i in range(size - 1, -1, -1):
        row = factor[i]
        x[i] /= row[i]
        for k in range(i):
            x[k] -= row[k] * x[i]


@inner_kernel
def _newton_direction(
    program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work
) -> None:
    """Compute the Newton direction for the complementarity targets of ``work``.

    A point has the shares x of columns with reduced costs z, the unserved shares s with reduced
    costs z_s, the slacks t of link capacities with link prices y, the duals w of upper bounds u on
    shares, a multiplier lambda for each block, and the largest utilisation theta.  With r_x, r_s,
    r_t and r_w the targets less the present products of the pairs (x, z), (s, z_s), (t, y) and
    (u - x, w), c the link capacities and p the primal residual, the direction solves

        z dx + x dz = r_x,    z_s ds + s dz_s = r_s,    y dt + t dy = r_t,
        (u - x) dw - w dx = r_w,    dz - dw = A' dy - dlambda,    sum of dx over a block + ds = 0,
        A dx + dt - c dtheta = p,    c' (y + dy) = 1,

    where dtheta and the last equation exist only if all demand is served, s only if demand may be
    shed.  Elimination of all but the price step leaves S dy + c dtheta = rhs; back substitution
    then gives the other components.

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands), n rows (links), C
            upper bounds u on columns.
        may_shed: whether demand may be shed.
        point: present point.
        work: workspace.  Read: ``complementarity_residual`` (r_x, r_s, r_t, r_w), scaling (Q,) D,
            delta (G,) sum of D over a block, dual_residual and curvature (G,) of concave utilities,
            primal_residual (n,), schur (n, n) Cholesky factor of S, schur_inv_capacity (n,) S^-1 c.
            Written: step, the direction, and column_scratch (Q,).
    """
    step = work.step
    complementarity_residual = work.complementarity_residual
    scaling = work.scaling
    delta = work.delta
    # (Q,) step of each share at fixed prices and multipliers.
    free_step = work.column_scratch
    primal_residual = work.primal_residual
    schur_inv_capacity = work.schur_inv_capacity
    cholesky_factor = work.schur
    rows = len(program.capacity)
    # rhs = r_t / y - p + A (free step - D * block step / delta); the solve replaces it by dy.
    rhs = step.price
    for r in range(rows):
        rhs[r] = complementarity_residual.slack[r] / point.price[r] - primal_residual[r]
    # Free steps at fixed prices: r_x / z; D (r_x / x - r_w / (u - x)) with an upper bound.
    for q in range(len(program.column_value)):
        free_step[q] = complementarity_residual.share[q] / point.reduced_cost[q]
    for bound_index in range(len(program.bounded)):
        q = program.bounded[bound_index]
        free_step[q] = scaling[q] * (
            complementarity_residual.share[q] / point.share[q]
            - complementarity_residual.bound_slack[bound_index] / point.bound_slack[bound_index]
        )
    # Eliminate the multiplier of each block.  step.unserved keeps the sum of the block's free steps
    # for the back substitution.
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        block_free_step = 0.0
        # Free step of the unserved share s: (r_s - s * dual residual) / (z_s + s * curvature).
        if may_shed:
            block_free_step = (
                complementarity_residual.unserved[g] - point.unserved[g] * work.dual_residual[g]
            ) / (point.unserved_dual[g] + point.unserved[g] * work.curvature[g])
        for q in range(first, end):
            block_free_step += free_step[q]
        step.unserved[g] = block_free_step
        for q in range(first, end):
            step.share[q] = free_step[q] - scaling[q] * block_free_step / delta[g]
    # rhs is complete where demand may be shed; otherwise the normalisation adds a term.
    add_link_loads(program, step.share, rhs)
    normalisation_residual = 0.0
    if not may_shed:
        # Residual g of the normalisation c' y = 1; rho g c belongs to the augmented S + rho c c'.
        normalisation_residual = 1.0
        for r in range(rows):
            normalisation_residual -= program.capacity[r] * point.price[r]
        axpy(work.penalty[0] * normalisation_residual, program.capacity, rhs)
    _solve_cholesky(cholesky_factor, rhs)
    # Eliminate dtheta: dtheta = (c' S^-1 rhs - g) / (c' S^-1 c), dy = S^-1 rhs - S^-1 c dtheta.
    if not may_shed:
        numerator = 0.0
        denominator = 0.0
        for r in range(rows):
            numerator += program.capacity[r] * rhs[r]
            denominator += program.capacity[r] * schur_inv_capacity[r]
        step.theta[0] = (numerator - normalisation_residual) / denominator
        for r in range(rows):
            rhs[r] -= schur_inv_capacity[r] * step.theta[0]
    # Back substitution: dt, then for each block dlambda, dz = A' dy - dlambda, dx = free - D dz and
    # the step of the unserved share.
    for r in range(rows):
        step.slack[r] = (complementarity_residual.slack[r] - point.slack[r] * rhs[r]) / point.price[
            r
        ]
    path_prices(program, rhs, step.reduced_cost)
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        # dlambda = (sum of D A' dy - sum of the free steps) / delta keeps the sum of the block's
        # shares.
        numerator = 0.0
        for q in range(first, end):
            numerator += scaling[q] * step.reduced_cost[q]
        multiplier_step = (numerator - step.unserved[g]) / delta[g]
        step.multiplier[g] = multiplier_step
        # A' dy becomes dz = A' dy - dlambda.
        for q in range(first, end):
            step.reduced_cost[q] -= multiplier_step
            step.share[q] = free_step[q] - scaling[q] * step.reduced_cost[q]
        # Step of the unserved share and of its reduced cost.
        if may_shed:
            scaled_curvature = point.unserved[g] * work.curvature[g]
            step.unserved[g] = (
                complementarity_residual.unserved[g]
                + point.unserved[g] * (multiplier_step - work.dual_residual[g])
            ) / (point.unserved_dual[g] + scaled_curvature)
            step.unserved_dual[g] = -multiplier_step
            if len(program.utility_weight) > 0:
                step.unserved_dual[g] += (
                    work.curvature[g] * step.unserved[g] + work.dual_residual[g]
                )
    # Columns with an upper bound: dz from the pair (x, z), dw from the pair (u - x, w).
    for bound_index in range(len(program.bounded)):
        q = program.bounded[bound_index]
        share_step = step.share[q]
        step.bound_slack[bound_index] = -share_step
        step.reduced_cost[q] = (
            complementarity_residual.share[q] - point.reduced_cost[q] * share_step
        ) / point.share[q]
        step.bound_dual[bound_index] = (
            complementarity_residual.bound_slack[bound_index]
            + point.bound_dual[bound_index] * share_step
        ) / point.bound_slack[bound_index]


@inner_kernel
def _max_step(value: FloatArray, step: FloatArray, max_length: float) -> float:
    """Return the longest step up to ``max_length`` with value + length * step >= 0."""
    # Ratio test.
    for i in range(len(value)):
        if step[i] < 0:
            max_length = min(max_length, -value[i] / step[i])
    return max_length


@inner_kernel
def _step_lengths(
    program: PresolvedProgram, point: Iterate, work: Work, may_shed: bool
) -> tuple[float, float]:
    """Return the longest primal and dual steps to the boundary.

    They are equal where utilities are concave, since their dual residual depends on the shares.

    Args:
        program: presolved program of G blocks (demands).
        point: present point.
        work: workspace; step is the direction, carried (G,) the carried share of each demand.
        may_shed: whether demand may be shed.
    """
    step = work.step
    # Stands for infinity.
    no_limit = 1e30
    # Ratio tests: shares and link slacks, their duals, then upper bounds and unserved shares.
    primal_length = _max_step(point.slack, step.slack, _max_step(point.share, step.share, no_limit))
    dual_length = _max_step(
        point.price, step.price, _max_step(point.reduced_cost, step.reduced_cost, no_limit)
    )
    primal_length = _max_step(point.bound_slack, step.bound_slack, primal_length)
    dual_length = _max_step(point.bound_dual, step.bound_dual, dual_length)
    if may_shed:
        primal_length = _max_step(point.unserved, step.unserved, primal_length)
        dual_length = _max_step(point.unserved_dual, step.unserved_dual, dual_length)
    # Concave utilities: keep a part of each carried share, at which the marginal utility is finite.
    if len(program.utility_weight) > 0:
        for g in range(len(program.rate)):
            if step.unserved[g] > 0:
                max_decrease = (1 - _MIN_CARRIED_RATIO) * work.carried[g]
                primal_length = min(primal_length, max_decrease / step.unserved[g])
        primal_length = dual_length = min(primal_length, dual_length)
    return primal_length, dual_length


@inner_kernel
def _pair_complementarity(
    primal_value: FloatArray,
    primal_step: FloatArray,
    primal_length: float,
    dual_value: FloatArray,
    dual_step: FloatArray,
    dual_length: float,
) -> float:
    """Return the sum of the complementarity products of some primal-dual pairs after a step.

    Each product is
    ``(primal_value + primal_length * primal_step) * (dual_value + dual_length * dual_step)``.

    Args:
        primal_value: (m,) primal variables of m pairs, such as shares.
        primal_step: (m,) direction of ``primal_value``.
        primal_length: length of the primal step.
        dual_value: (m,) dual variables of the pairs, such as reduced costs.
        dual_step: (m,) direction of ``dual_value``.
        dual_length: length of the dual step.
    """
    total = 0.0
    for i in range(len(primal_value)):
        total += (primal_value[i] + primal_length * primal_step[i]) * (
            dual_value[i] + dual_length * dual_step[i]
        )
    return total


@inner_kernel
def complementarity_sum(
    point: Iterate, step: Iterate, may_shed: bool, primal_length: float, dual_length: float
) -> float:
    """Return the sum of all complementarity products after a step.

    The products are share times reduced cost, link slack times link price, slack of an upper bound
    times its dual, and unserved share times its reduced cost.

    Args:
        point: present point.
        step: direction.
        may_shed: whether demand may be shed; unserved shares count only then.
        primal_length: length of the primal step.
        dual_length: length of the dual step.
    """
    # Shares and reduced costs.
    total = _pair_complementarity(
        point.share, step.share, primal_length, point.reduced_cost, step.reduced_cost, dual_length
    )
    # Link slacks and link prices.
    total += _pair_complementarity(
        point.slack, step.slack, primal_length, point.price, step.price, dual_length
    )
    # Slacks of upper bounds and their duals.
    total += _pair_complementarity(
        point.bound_slack,
        step.bound_slack,
        primal_length,
        point.bound_dual,
        step.bound_dual,
        dual_length,
    )
    # Unserved shares and their reduced costs.
    if may_shed:
        total += _pair_complementarity(
            point.unserved,
            step.unserved,
            primal_length,
            point.unserved_dual,
            step.unserved_dual,
            dual_length,
        )
    return total


@inner_kernel
def _pair_complementarity_target(
    primal_value: FloatArray,
    primal_step: FloatArray,
    dual_value: FloatArray,
    dual_step: FloatArray,
    mu: float,
    second_order: float,
    out: FloatArray,
) -> None:
    """Write the right-hand side of the complementarity equation of each pair to ``out``.

    It is ``mu - primal_value * dual_value - second_order * primal_step * dual_step``.

    Args:
        primal_value: (m,) primal variables of m complementarity pairs.
        primal_step: (m,) direction of ``primal_value``.
        dual_value: (m,) dual variables of the pairs.
        dual_step: (m,) direction of ``dual_value``.
        mu: target of the products.
        second_order: 1 to subtract Mehrotra's second-order term; 0 for the predictor.
        out: (m,) target less present product of each pair (written).
    """
    for i in range(len(primal_value)):
        out[i] = mu - primal_value[i] * dual_value[i] - second_order * primal_step[i] * dual_step[i]


@inner_kernel
def _complementarity_target(
    point: Iterate, step: Iterate, may_shed: bool, mu: float, second_order: float, out: Iterate
) -> None:
    """Write mu - x z - second_order dx dz of all pairs to ``out`` (Mehrotra's right-hand side).

    The pairs (x, z) are (share, reduced_cost), (slack, price), (bound_slack, bound_dual) and, where
    demand may be shed, (unserved, unserved_dual).

    Args:
        point: present point.
        step: affine-scaling direction dx, dz.
        may_shed: whether demand may be shed.
        mu: target of the products, sigma mu for the corrector, 0 for the predictor.
        second_order: 1 for the corrector, 0 for the predictor.
        out: values of the pairs in the fields share, slack, bound_slack, unserved (written).
    """
    # Shares and reduced costs.
    _pair_complementarity_target(
        point.share, step.share, point.reduced_cost, step.reduced_cost, mu, second_order, out.share
    )
    # Link slacks and link prices.
    _pair_complementarity_target(
        point.slack, step.slack, point.price, step.price, mu, second_order, out.slack
    )
    # Slacks of upper bounds and their duals.
    _pair_complementarity_target(
        point.bound_slack,
        step.bound_slack,
        point.bound_dual,
        step.bound_dual,
        mu,
        second_order,
        out.bound_slack,
    )
    # Unserved shares and their reduced costs.
    if may_shed:
        _pair_complementarity_target(
            point.unserved,
            step.unserved,
            point.unserved_dual,
            step.unserved_dual,
            mu,
            second_order,
            out.unserved,
        )


@inner_kernel
def _neighbourhood_change(product: float, mu: float) -> float:
    """Return the change that moves a complementarity product into the range [0.1 mu, 10 mu].

    The change is 0 within the range; a decrease is limited to 10 mu.
    """
    if product < _NEIGHBOURHOOD_LOW * mu:
        return _NEIGHBOURHOOD_LOW * mu - product
    if product > _NEIGHBOURHOOD_HIGH * mu:
        return max(_NEIGHBOURHOOD_HIGH * mu - product, -_NEIGHBOURHOOD_HIGH * mu)
    return 0.0


@inner_kernel
def _add_pair_corrector(
    primal_value: FloatArray,
    primal_step: FloatArray,
    primal_length: float,
    dual_value: FloatArray,
    dual_step: FloatArray,
    dual_length: float,
    mu: float,
    out: FloatArray,
) -> None:
    """Add Gondzio's centrality corrector of some primal-dual pairs to their right-hand sides.

    Args:
        primal_value: (m,) primal variables of m pairs.
        primal_step: (m,) direction of ``primal_value``.
        primal_length: length of the primal step at which the products are examined.
        dual_value: (m,) dual variables of the pairs.
        dual_step: (m,) direction of ``dual_value``.
        dual_length: length of the dual step at which the products are examined.
        mu: centring target of the products.
        out: (m,) target less present product of each pair (added to).
    """
    for i in range(len(primal_value)):
        # Product after the longer step, moved to the edge of the neighbourhood if outside.
        out[i] += _neighbourhood_change(
            (primal_value[i] + primal_length * primal_step[i])
            * (dual_value[i] + dual_length * dual_step[i]),
            mu,
        )


@inner_kernel
def _add_centrality_corrector(
    point: Iterate,
    step: Iterate,
    may_shed: bool,
    mu: float,
    primal_length: float,
    dual_length: float,
    out: Iterate,
) -> None:
    """Add Gondzio's centrality corrector to the complementarity targets.

    Products that leave the neighbourhood [0.1 mu, 10 mu] after a step longer by
    ``_CORRECTOR_STEP_GAIN`` are moved back to its edge (Gondzio, Computational Optimization and
    Applications 6, 1996).

    Args:
        point: present point.
        step: present direction.
        may_shed: whether demand may be shed.
        mu: centring target of the products.
        primal_length: longest primal step along the direction.
        dual_length: longest dual step along the direction.
        out: complementarity targets in the fields share, slack, bound_slack, unserved (added to).
    """
    # Step lengths at which the products are examined, then the correctors of each group of pairs.
    longer_primal = min(1.0, primal_length + _CORRECTOR_STEP_GAIN)
    longer_dual = min(1.0, dual_length + _CORRECTOR_STEP_GAIN)
    # Shares and reduced costs.
    _add_pair_corrector(
        point.share,
        step.share,
        longer_primal,
        point.reduced_cost,
        step.reduced_cost,
        longer_dual,
        mu,
        out.share,
    )
    # Link slacks and link prices.
    _add_pair_corrector(
        point.slack, step.slack, longer_primal, point.price, step.price, longer_dual, mu, out.slack
    )
    # Slacks of upper bounds and their duals.
    _add_pair_corrector(
        point.bound_slack,
        step.bound_slack,
        longer_primal,
        point.bound_dual,
        step.bound_dual,
        longer_dual,
        mu,
        out.bound_slack,
    )
    # Unserved shares and their reduced costs.
    if may_shed:
        _add_pair_corrector(
            point.unserved,
            step.unserved,
            longer_primal,
            point.unserved_dual,
            step.unserved_dual,
            longer_dual,
            mu,
            out.unserved,
        )


@inner_kernel
def copy_iterate(source: Iterate, target: Iterate) -> None:
    """Copy all fields of ``source``, a point or a direction, into ``target`` (written)."""
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
def _take_step(point: Iterate, step: Iterate, primal_length: float, dual_length: float) -> None:
    """Add primal_length or dual_length times ``step`` to the primal or dual fields of ``point``."""
    axpy(primal_length, step.share, point.share)
    axpy(primal_length, step.unserved, point.unserved)
    axpy(primal_length, step.slack, point.slack)
    axpy(primal_length, step.theta, point.theta)
    axpy(dual_length, step.reduced_cost, point.reduced_cost)
    axpy(dual_length, step.unserved_dual, point.unserved_dual)
    axpy(dual_length, step.price, point.price)
    axpy(primal_length, step.bound_slack, point.bound_slack)
    axpy(dual_length, step.bound_dual, point.bound_dual)
    axpy(dual_length, step.multiplier, point.multiplier)


@inner_kernel
def _recentre(
    program: PresolvedProgram, may_shed: bool, point: Iterate, mean_complementarity: float
) -> None:
    """Raise shares whose product with the reduced cost is far below the mean.

    Such a share would limit the length of every later step.  It is raised to at most 0.1 mu / z,
    with the mean product mu and its reduced cost z, still close to 0; the largest share of its
    block is lowered by as much, so that the sum stays 1.

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands).
        may_shed: whether demand may be shed: the unserved share is then one of the block's shares.
        point: present point; share, unserved and bound_slack are changed.
        mean_complementarity: mean of all complementarity products.
    """
    min_complementarity = _RECENTRED_PRODUCT * mean_complementarity
    has_bounds = len(program.bound_index) > 0
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        # Largest share of the block; column -1 stands for the unserved share.
        largest_column = -1
        largest_share = point.unserved[g] if may_shed else 0.0
        for q in range(first, end):
            if point.share[q] > largest_share:
                largest_column = q
                largest_share = point.share[q]
        # Raise each share whose product is too small, within its upper bound.
        max_raised_share = _MAX_RAISED_SHARE * largest_share
        raised_total = 0.0
        for q in range(first, end):
            # Raise to the smallest of three limits: a part of the block's largest share, the share
            # of a sufficient product, and a multiple of the present share.
            raised_share = min(
                max_raised_share,
                min_complementarity / point.reduced_cost[q],
                _MAX_RAISE_FACTOR * point.share[q],
            )
            bound_index = program.bound_index[q] if has_bounds else -1
            if bound_index >= 0:
                raised_share = min(
                    raised_share, _MAX_BOUND_FRACTION * program.upper_bound[bound_index]
                )
            if point.share[q] < raised_share:
                raised_total += raised_share - point.share[q]
                point.share[q] = raised_share
                if bound_index >= 0:
                    point.bound_slack[bound_index] = program.upper_bound[bound_index] - raised_share
        # The same for the unserved share.
        if may_shed:
            raised_share = min(
                max_raised_share,
                min_complementarity / point.unserved_dual[g],
                _MAX_RAISE_FACTOR * point.unserved[g],
            )
            if point.unserved[g] < raised_share:
                raised_total += raised_share - point.unserved[g]
                point.unserved[g] = raised_share
        # Lower the largest share by the sum of the increases.
        if largest_column < 0:
            point.unserved[g] -= raised_total
        else:
            point.share[largest_column] -= raised_total
            if has_bounds and program.bound_index[largest_column] >= 0:
                point.bound_slack[program.bound_index[largest_column]] += raised_total


@inner_kernel
def _max_imbalance(program: PresolvedProgram, may_shed: bool, step: Iterate) -> float:
    """Return how much a step changes the sum of the shares of a block, at most over all blocks.

    The sum stays 1 in exact arithmetic, so that the result measures the rounding of the step.
    """
    max_imbalance = 0.0
    for g in range(len(program.rate)):
        total = step.unserved[g] if may_shed else 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total += step.share[q]
        max_imbalance = max(max_imbalance, abs(total))
    return max_imbalance


@inner_kernel
def iterate(program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work) -> bool:
    """Compute one interior-point iteration, and move ``point`` by its step.

    Args:
        program: presolved program.
        may_shed: whether demand may be shed.
        point: present point (updated).
        work: workspace (overwritten); load must hold the link loads of the point.

    Returns:
        False if the step has length 0 or rounding errors dominate it; the point then stays.
    """
    update_utility_terms(program, point, work)
    init_schur(point, work.schur)
    accumulate_schur(program, may_shed, point, work, work.schur, 0, len(program.rate))
    regularise(program, may_shed, work)
    cholesky(work.schur)
    return predict_and_correct(program, may_shed, point, work)


@inner_kernel
def predict_and_correct(
    program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work
) -> bool:
    """Move ``point`` by one predictor-corrector step, with a factored Schur complement.

    Mehrotra's method: the affine-scaling direction gives the centring parameter sigma
    = (mu after the affine step / mu)^3.  The corrector aims at products sigma mu and includes the
    second-order term; up to two centrality correctors of Gondzio lengthen the step.

    Args:
        program: presolved program of Q columns (paths), G blocks (demands), n rows (links).
        may_shed: whether demand may be shed.
        point: present point (updated).
        work: workspace; schur (n, n) is the Cholesky factor of S, load (n,) the link loads of the
            point, scaling (Q,) and delta (G,) the terms of S.  The other buffers are overwritten.

    Returns:
        False if the step has length 0 or rounding errors dominate it; the point then stays.
    """
    step = work.step
    complementarity_residual = work.complementarity_residual
    rows = len(program.capacity)
    # Number of complementarity pairs: shares, link slacks, upper bounds, unserved shares.
    num_pairs = (
        len(program.column_value)
        + rows
        + len(program.bounded)
        + (len(program.rate) if may_shed else 0)
    )
    # Mean complementarity mu, and the primal residual: capacity (times theta) less load and slack.
    mu = complementarity_sum(point, step, may_shed, 0.0, 0.0) / num_pairs
    for r in range(rows):
        capacity = program.capacity[r] if may_shed else program.capacity[r] * point.theta[0]
        work.primal_residual[r] = capacity - work.load[r] - point.slack[r]
    # S^-1 c with the capacities c, which the step of theta needs.
    if not may_shed:
        copy_into(program.capacity, work.schur_inv_capacity)
        _solve_cholesky(work.schur, work.schur_inv_capacity)
    # Predictor: affine-scaling direction.
    _complementarity_target(point, step, may_shed, 0.0, 0.0, complementarity_residual)
    _newton_direction(program, may_shed, point, work)
    primal_length, dual_length = _step_lengths(program, point, work, may_shed)
    primal_length = min(1.0, primal_length)
    dual_length = min(1.0, dual_length)
    affine_mu = complementarity_sum(point, step, may_shed, primal_length, dual_length) / num_pairs
    sigma = (affine_mu / mu) ** 3
    # Corrector: centring and the second-order term.
    _complementarity_target(point, step, may_shed, sigma * mu, 1.0, complementarity_residual)
    _newton_direction(program, may_shed, point, work)
    primal_length, dual_length = _step_lengths(program, point, work, may_shed)
    # Centrality correctors, each kept only if it lengthens the step enough.
    for _ in range(_MAX_CORRECTORS):
        if min(primal_length, dual_length) > _LONG_STEP:
            break
        copy_iterate(step, work.previous_step)
        _add_centrality_corrector(
            point, step, may_shed, sigma * mu, primal_length, dual_length, complementarity_residual
        )
        _newton_direction(program, may_shed, point, work)
        corrected_primal_length, corrected_dual_length = _step_lengths(
            program, point, work, may_shed
        )
        total_length = min(1.0, corrected_primal_length) + min(1.0, corrected_dual_length)
        if total_length < min(1.0, primal_length) + min(1.0, dual_length) + _MIN_CORRECTOR_GAIN:
            # Too little gain: return to the direction before this corrector.
            copy_iterate(work.previous_step, step)
            break
        primal_length = corrected_primal_length
        dual_length = corrected_dual_length
    # Step length: a fraction of the distance to the boundary, at most 1.
    is_long = min(primal_length, dual_length) > _LONG_STEP
    fraction = _FRACTION_TO_BOUNDARY if is_long else _SHORT_STEP_FRACTION
    primal_length = min(1.0, fraction * primal_length)
    dual_length = min(1.0, fraction * dual_length)
    # No progress; written so that lengths that are not numbers fail, too.
    if not max(primal_length, dual_length) > _MIN_STEP:
        return False
    if not primal_length * _max_imbalance(program, may_shed, step) < _MAX_IMBALANCE:
        # Rounding errors dominate.
        return False
    _take_step(point, step, primal_length, dual_length)
    # Recentring.  Under concave utilities a share and its reduced cost may both end at 0, and a
    # raised share then overloads its links.
    if len(program.utility_weight) == 0:
        _recentre(
            program,
            may_shed,
            point,
            complementarity_sum(point, step, may_shed, 0.0, 0.0) / num_pairs,
        )
    return True
