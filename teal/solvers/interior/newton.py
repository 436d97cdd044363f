"""One iteration: the system, its factor, a predictor, correctors, a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel, summing_kernel
from teal.solvers.interior.reduction import Reduced
from teal.solvers.interior.starts import (
    Iterate,
    add,
    add_loads,
    carried_shares,
    fill,
    path_prices,
    power_of,
    put,
)

# Part of the way to the boundary that a step goes at most: all but all where steps are long, and
# the end is near; less where they are short, since what comes next to 0 stops every later step.
_TO_BOUNDARY_WHERE_LONG, _TO_BOUNDARY = 0.995, 0.9
_CORRECTORS = 2  # of an iteration at most, each of which takes a part of it
_LONG_STEP = 0.9  # a step that needs no correction
_FURTHER = 0.3  # how much longer the step is to become
_LEAST_GAIN = 0.05  # of both steps together, below which a correction is not worth its time
_LOW, _HIGH = 0.1, 10.0  # of the target, between which products stop no step
_LEAST_PRODUCT = 1e-1  # of the mean product, to which smaller ones are raised
_MOST_RAISED = 0.01  # of the largest share of a block, to which shares are raised
_MOST_GROWTH = 10.0  # x a share, to which it is raised at once
_LEAST_STEP = 1e-8  # a step below it gains nothing
_MOST_IMBALANCE = 1e-7  # of a block's shares, above which a step is wrong
_LEAST_PIVOT = 1e-14  # of S, over the diagonal before elimination
_NO_ROW = 1e128  # pivot that takes a row out of S
_MOST_PART = 0.5  # of a column's limit, to which a share is raised
_LEAST_CARRIED = 0.25  # of the share that is carried, to which a step lowers it where utility bends


class Work(NamedTuple):
    """Space that iterations need, and what they have found.

    Attributes:
        step: the step.
        products: products to come less the present ones.
        kept: the step before a correction.
        weight: (Q,) D.
        total: (G,) delta.
        carried: (G,) share of each demand, where utilities are concave.
        residual: (G,) cost of the rest less the multiplier and its reduced cost: 0 but where
            utilities are concave.
        bend: (G,) derivative of the rest's cost.
        of_path: (Q,) anything.
        path_price: (Q,) A' y.
        load: (n,) A x.
        missing: (n,) limit less load and slack.
        of_limits: (n,) the inverse of the system times the limits.
        system: (n, n) S, then its factor.
        penalty: (1,) rho of :func:`regularise`; 0 where demands may be shed.
        best_share: (Q,) of the best value so far.
        best_price: (n,) of the best bound so far.
        figures: (2,) value and bound of these.
    """

    step: Iterate
    products: Iterate
    kept: Iterate
    weight: FloatArray
    total: FloatArray
    carried: FloatArray
    residual: FloatArray
    bend: FloatArray
    of_path: FloatArray
    path_price: FloatArray
    load: FloatArray
    missing: FloatArray
    of_limits: FloatArray
    system: FloatArray
    penalty: FloatArray
    best_share: FloatArray
    best_price: FloatArray
    figures: FloatArray


@inner_kernel
def bend_rests(program: Reduced, at: Iterate, work: Work) -> None:
    """The conditions of the rests under concave utilities, which an iteration begins with: what a
    share more that is not carried costs, W (s^-alpha - 1) at the share s, less the multiplier and
    its reduced cost, and the derivative W alpha s^(-alpha - 1).
    """
    if len(program.worth) == 0:
        return
    alpha, carried = program.alpha, work.carried
    carried_shares(program, at.share, carried)
    for g in range(len(program.worth)):
        power = power_of(carried[g], -alpha)
        work.bend[g] = program.worth[g] * alpha * power / carried[g]
        cost = program.worth[g] * (power - 1)
        work.residual[g] = cost - at.multiplier[g] - at.rest_reduced[g]


@inner_kernel
def begin_system(at: Iterate, s: FloatArray) -> None:
    """S (n, n) without the paths: the diagonal of slacks over prices."""
    for r in range(len(s)):
        fill(0.0, s[r])
        s[r, r] = at.slack[r] / at.price[r]


@inner_kernel
def add_blocks(
    program: Reduced,
    sheds: bool,
    at: Iterate,
    work: Work,
    s: FloatArray,
    first_block: int,
    end_block: int,
) -> None:
    """D and delta of some blocks, and what they add to the lower triangle of S (n, n)."""
    rows, weight, total = len(program.limit), work.weight, work.total
    has_limits, coefficient = len(program.limit_of) > 0, program.coefficient
    sums, of_union = np.zeros(rows), np.empty(rows)
    for g in range(first_block, end_block):
        square = program.rate[g] * program.rate[g]
        delta = at.rest[g] / (at.rest_reduced[g] + at.rest[g] * work.bend[g]) if sheds else 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            weight[q] = at.share[q] / at.reduced[q]
            if has_limits and program.limit_of[q] >= 0:
                c = program.limit_of[q]
                weight[q] /= 1 + weight[q] * at.room_price[c] / at.room[c]
            delta += weight[q]
            scaled = square * weight[q]
            begin, end = program.row_ptr[q], program.row_ptr[q + 1]
            if len(coefficient) > 0:
                for i in range(begin, end):
                    row, of_row = s[program.row[i]], scaled * coefficient[i]
                    sums[program.row[i]] += weight[q] * coefficient[i]
                    for j in range(begin, i + 1):
                        row[program.row[j]] += of_row * coefficient[j]
            else:
                for i in range(begin, end):
                    row = s[program.row[i]]
                    sums[program.row[i]] += weight[q]
                    for j in range(begin, i + 1):
                        row[program.row[j]] += scaled
        total[g] = delta
        factor = square / delta
        first, count = program.union_ptr[g], program.union_ptr[g + 1] - program.union_ptr[g]
        for i in range(count):
            r = program.union[first + i]
            row = s[r]
            of_union[i] = sums[r]
            sums[r] = 0.0
            scaled = factor * of_union[i]
            for j in range(i + 1):
                row[program.union[first + j]] -= scaled * of_union[j]


@inner_kernel
def regularise(program: Reduced, sheds: bool, work: Work) -> None:
    """Where all demand is carried, replace S by S + rho c c' in the lower triangle, with limits c.

    Prices in proportion to the optimal ones change no reduced cost of a path that is used, so that
    S becomes singular along y as mu falls; c' y = 1 alone says how large they are.  The Newton
    system

        S dy + c dtheta = r,   c' dy = g

    has the solution of (S + rho c c') dy + c dtheta = r + rho g c, c' dy = g, whose matrix stays
    well-conditioned (Golub and Greif, SIAM J. Scientific Computing 24, 2003).
    """
    s = work.system
    limit = program.limit
    work.penalty[0] = 0.0
    if sheds:
        return
    # Of the size of S, so that neither term rounds the other one away.
    trace = 0.0
    square = 0.0
    for r in range(len(limit)):
        trace += s[r, r]
        square += limit[r] * limit[r]
    rho = trace / square
    work.penalty[0] = rho
    for i in range(len(limit)):
        row = s[i]
        scaled = rho * limit[i]
        for j in range(i + 1):
            row[j] += scaled * limit[j]


@summing_kernel
def factor(s: FloatArray) -> None:
    """Cholesky factor in place, lower triangle; a row without a pivot of its own leaves."""
    size = len(s)
    for i in range(size):
        row = s[i]
        before = row[i]
        for j in range(i):
            other = s[j]
            total = 0.0
            for k in range(j):
                total += row[k] * other[k]
            row[j] = (row[j] - total) / other[j]
        total = 0.0
        for k in range(i):
            total += row[k] * row[k]
        pivot = before - total
        row[i] = np.sqrt(pivot) if pivot > _LEAST_PIVOT * before else _NO_ROW


@summing_kernel
def _solve_factored(s: FloatArray, x: FloatArray) -> None:
    """Solve with the factor, in place."""
    size = len(s)
    for i in range(size):
        row = s[i]
        total = 0.0
        for k in range(i):
            total += row[k] * x[k]
        x[i] = (x[i] - total) / row[i]
    for i in range(size - 1, -1, -1):
        row = s[i]
        x[i] /= row[i]
        for k in range(i):
            x[k] -= row[k] * x[i]


@inner_kernel
def _direction(program: Reduced, sheds: bool, at: Iterate, work: Work) -> None:
    """Newton's step towards the products x z, s z and t y that are wanted."""
    step, products, weight, total = work.step, work.products, work.weight, work.total
    moves, missing, of_limits, s = work.of_path, work.missing, work.of_limits, work.system
    rows = len(program.limit)
    right = step.price
    for r in range(rows):
        right[r] = products.slack[r] / at.price[r] - missing[r]
    for q in range(len(program.gain)):
        moves[q] = products.share[q] / at.reduced[q]
    for c in range(len(program.limited)):
        q = program.limited[c]
        moves[q] = weight[q] * (products.share[q] / at.share[q] - products.room[c] / at.room[c])
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        moved = 0.0
        if sheds:
            moved = (products.rest[g] - at.rest[g] * work.residual[g]) / (
                at.rest_reduced[g] + at.rest[g] * work.bend[g]
            )
        for q in range(first, end):
            moved += moves[q]
        step.rest[g] = moved
        for q in range(first, end):
            step.share[q] = moves[q] - weight[q] * moved / total[g]
    add_loads(program, step.share, right)
    missing_price = 0.0
    if not sheds:  # prices on the simplex: limits times prices add up to 1
        missing_price = 1.0
        for r in range(rows):
            missing_price -= program.limit[r] * at.price[r]
        add(work.penalty[0] * missing_price, program.limit, right)
    _solve_factored(s, right)
    if not sheds:
        along = 0.0
        own = 0.0
        for r in range(rows):
            along += program.limit[r] * right[r]
            own += program.limit[r] * of_limits[r]
        step.theta[0] = (along - missing_price) / own
        for r in range(rows):
            right[r] -= of_limits[r] * step.theta[0]
    for r in range(rows):
        step.slack[r] = (products.slack[r] - at.slack[r] * right[r]) / at.price[r]
    path_prices(program, right, step.reduced)
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        along = 0.0
        for q in range(first, end):
            along += weight[q] * step.reduced[q]
        change = (along - step.rest[g]) / total[g]
        step.multiplier[g] = change
        for q in range(first, end):
            step.reduced[q] -= change
            step.share[q] = moves[q] - weight[q] * step.reduced[q]
        if sheds:
            bent = at.rest[g] * work.bend[g]
            step.rest[g] = (products.rest[g] + at.rest[g] * (change - work.residual[g])) / (
                at.rest_reduced[g] + bent
            )
            step.rest_reduced[g] = -change
            if len(program.worth) > 0:
                step.rest_reduced[g] += work.bend[g] * step.rest[g] + work.residual[g]
    for c in range(len(program.limited)):
        q = program.limited[c]
        move = step.share[q]
        step.room[c] = -move
        step.reduced[q] = (products.share[q] - at.reduced[q] * move) / at.share[q]
        step.room_price[c] = (products.room[c] + at.room_price[c] * move) / at.room[c]


@inner_kernel
def _longest(value: FloatArray, step: FloatArray, most: float) -> float:
    """The longest step up to ``most`` that keeps values >= 0."""
    for i in range(len(value)):
        if step[i] < 0:
            most = min(most, -value[i] / step[i])
    return most


@inner_kernel
def _step_lengths(program: Reduced, at: Iterate, work: Work, sheds: bool) -> tuple[float, float]:
    """The longest steps to the boundary, of shares and slacks, and of prices and reduced costs; one
    of both where utilities are concave.
    """
    step, far = work.step, 1e30
    share_step = _longest(at.slack, step.slack, _longest(at.share, step.share, far))
    price_step = _longest(at.price, step.price, _longest(at.reduced, step.reduced, far))
    share_step = _longest(at.room, step.room, share_step)
    price_step = _longest(at.room_price, step.room_price, price_step)
    if sheds:
        share_step = _longest(at.rest, step.rest, share_step)
        price_step = _longest(at.rest_reduced, step.rest_reduced, price_step)
    if len(program.worth) > 0:
        for g in range(len(program.rate)):
            if step.rest[g] > 0:
                falls = (1 - _LEAST_CARRIED) * work.carried[g]
                share_step = min(share_step, falls / step.rest[g])
        share_step = price_step = min(share_step, price_step)
    return share_step, price_step


@inner_kernel
def _sum_of_products(
    value: FloatArray,
    value_step: FloatArray,
    share_step: float,
    price: FloatArray,
    price_change: FloatArray,
    price_step: float,
) -> float:
    """Sum of the products of values and their prices after a step."""
    total = 0.0
    for i in range(len(value)):
        total += (value[i] + share_step * value_step[i]) * (price[i] + price_step * price_change[i])
    return total


@inner_kernel
def product_sum(
    at: Iterate, step: Iterate, sheds: bool, share_step: float, price_step: float
) -> float:
    """Sum of all products x z, s z, t y and those of limits after a step.

    Args:
        at: the point.
        step: the direction.
        sheds: whether demands may be shed.
        share_step: length of the step of shares, rests, slacks and rooms.
        price_step: length of the step of prices and reduced costs.
    """
    total = _sum_of_products(at.share, step.share, share_step, at.reduced, step.reduced, price_step)
    total += _sum_of_products(at.slack, step.slack, share_step, at.price, step.price, price_step)
    total += _sum_of_products(
        at.room, step.room, share_step, at.room_price, step.room_price, price_step
    )
    if sheds:
        total += _sum_of_products(
            at.rest, step.rest, share_step, at.rest_reduced, step.rest_reduced, price_step
        )
    return total


@inner_kernel
def _wanted_of(
    value: FloatArray,
    value_step: FloatArray,
    price: FloatArray,
    price_step: FloatArray,
    target: float,
    correction: float,
    out: FloatArray,
) -> None:
    """Products to come less the present ones, of values and their prices."""
    for i in range(len(value)):
        out[i] = target - value[i] * price[i] - correction * value_step[i] * price_step[i]


@inner_kernel
def _wanted(
    at: Iterate, step: Iterate, sheds: bool, target: float, correction: float, out: Iterate
) -> None:
    """Products to come less the present ones: target - x z - correction dx dz."""
    _wanted_of(at.share, step.share, at.reduced, step.reduced, target, correction, out.share)
    _wanted_of(at.slack, step.slack, at.price, step.price, target, correction, out.slack)
    _wanted_of(at.room, step.room, at.room_price, step.room_price, target, correction, out.room)
    if sheds:
        _wanted_of(
            at.rest, step.rest, at.rest_reduced, step.rest_reduced, target, correction, out.rest
        )


@inner_kernel
def _into_band(product: float, target: float) -> float:
    """Change that brings a product near the target, where it is far from it."""
    if product < _LOW * target:
        return _LOW * target - product
    if product > _HIGH * target:
        return max(_HIGH * target - product, -_HIGH * target)
    return 0.0


@inner_kernel
def _correct_of(
    value: FloatArray,
    value_step: FloatArray,
    share_step: float,
    price: FloatArray,
    price_change: FloatArray,
    price_step: float,
    target: float,
    out: FloatArray,
) -> None:
    """Add what brings the products of values and their prices near the target."""
    for i in range(len(value)):
        out[i] += _into_band(
            (value[i] + share_step * value_step[i]) * (price[i] + price_step * price_change[i]),
            target,
        )


@inner_kernel
def _correct(
    at: Iterate,
    step: Iterate,
    sheds: bool,
    target: float,
    share_step: float,
    price_step: float,
    out: Iterate,
) -> None:
    """Add to the wanted products what brings those near the target that stop a longer step.

    Gondzio, Computational Optimization and Applications 6, 1996.
    """
    a, b = min(1.0, share_step + _FURTHER), min(1.0, price_step + _FURTHER)
    _correct_of(at.share, step.share, a, at.reduced, step.reduced, b, target, out.share)
    _correct_of(at.slack, step.slack, a, at.price, step.price, b, target, out.slack)
    _correct_of(at.room, step.room, a, at.room_price, step.room_price, b, target, out.room)
    if sheds:
        _correct_of(at.rest, step.rest, a, at.rest_reduced, step.rest_reduced, b, target, out.rest)


@inner_kernel
def copy(source: Iterate, target: Iterate) -> None:
    """Copy a point or a step."""
    put(source.share, target.share)
    put(source.reduced, target.reduced)
    put(source.rest, target.rest)
    put(source.rest_reduced, target.rest_reduced)
    put(source.price, target.price)
    put(source.slack, target.slack)
    put(source.theta, target.theta)
    put(source.room, target.room)
    put(source.room_price, target.room_price)
    put(source.multiplier, target.multiplier)


@inner_kernel
def _move(at: Iterate, step: Iterate, share_step: float, price_step: float) -> None:
    """Take a step."""
    add(share_step, step.share, at.share)
    add(share_step, step.rest, at.rest)
    add(share_step, step.slack, at.slack)
    add(share_step, step.theta, at.theta)
    add(price_step, step.reduced, at.reduced)
    add(price_step, step.rest_reduced, at.rest_reduced)
    add(price_step, step.price, at.price)
    add(share_step, step.room, at.room)
    add(price_step, step.room_price, at.room_price)
    add(price_step, step.multiplier, at.multiplier)


@inner_kernel
def _recentre(program: Reduced, sheds: bool, at: Iterate, mean: float) -> None:
    """Raise what is far too small for its product, by a little.

    A share whose product is far below the mean stops every later step.  Raised to a part of
    mean / z it is still next to nothing; the largest share of its block gives it away.
    """
    least, has_limits = _LEAST_PRODUCT * mean, len(program.limit_of) > 0
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        largest, most = -1, at.rest[g] if sheds else 0.0
        for q in range(first, end):
            if at.share[q] > most:
                largest, most = q, at.share[q]
        highest, raised = _MOST_RAISED * most, 0.0
        for q in range(first, end):
            enough = min(highest, least / at.reduced[q], _MOST_GROWTH * at.share[q])
            number = program.limit_of[q] if has_limits else -1
            if number >= 0:
                enough = min(enough, _MOST_PART * program.largest[number])
            if at.share[q] < enough:
                raised += enough - at.share[q]
                at.share[q] = enough
                if number >= 0:
                    at.room[number] = program.largest[number] - enough
        if sheds:
            enough = min(highest, least / at.rest_reduced[g], _MOST_GROWTH * at.rest[g])
            if at.rest[g] < enough:
                raised += enough - at.rest[g]
                at.rest[g] = enough
        if largest < 0:
            at.rest[g] -= raised
        else:
            at.share[largest] -= raised
            if has_limits and program.limit_of[largest] >= 0:
                at.room[program.limit_of[largest]] += raised


@inner_kernel
def _imbalance(program: Reduced, sheds: bool, step: Iterate) -> float:
    """The largest change of the sum of a block's shares, 0 but for rounding."""
    most = 0.0
    for g in range(len(program.rate)):
        total = step.rest[g] if sheds else 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total += step.share[q]
        most = max(most, abs(total))
    return most


@inner_kernel
def iterate(program: Reduced, sheds: bool, at: Iterate, work: Work) -> bool:
    """One iteration; false where the step is none."""
    bend_rests(program, at, work)
    begin_system(at, work.system)
    add_blocks(program, sheds, at, work, work.system, 0, len(program.rate))
    regularise(program, sheds, work)
    factor(work.system)
    return advance(program, sheds, at, work)


@inner_kernel
def advance(program: Reduced, sheds: bool, at: Iterate, work: Work) -> bool:
    """An iteration whose system has been factored: a predictor, correctors, a step; false where
    the step is none.
    """
    step, products = work.step, work.products
    rows = len(program.limit)
    count = len(program.gain) + rows + len(program.limited) + (len(program.rate) if sheds else 0)
    mean = product_sum(at, step, sheds, 0.0, 0.0) / count
    for r in range(rows):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        work.missing[r] = limit - work.load[r] - at.slack[r]
    if not sheds:
        put(program.limit, work.of_limits)
        _solve_factored(work.system, work.of_limits)
    _wanted(at, step, sheds, 0.0, 0.0, products)
    _direction(program, sheds, at, work)
    share_step, price_step = _step_lengths(program, at, work, sheds)
    share_step, price_step = min(1.0, share_step), min(1.0, price_step)
    after = product_sum(at, step, sheds, share_step, price_step) / count
    ratio = (after / mean) ** 3
    _wanted(at, step, sheds, ratio * mean, 1.0, products)
    _direction(program, sheds, at, work)
    share_step, price_step = _step_lengths(program, at, work, sheds)
    for _ in range(_CORRECTORS):
        if min(share_step, price_step) > _LONG_STEP:
            break
        copy(step, work.kept)
        _correct(at, step, sheds, ratio * mean, share_step, price_step, products)
        _direction(program, sheds, at, work)
        longer_shares, longer_prices = _step_lengths(program, at, work, sheds)
        gained = min(1.0, longer_shares) + min(1.0, longer_prices)
        if gained < min(1.0, share_step) + min(1.0, price_step) + _LEAST_GAIN:
            copy(work.kept, step)
            break
        share_step, price_step = longer_shares, longer_prices
    is_long = min(share_step, price_step) > _LONG_STEP
    to_boundary = _TO_BOUNDARY_WHERE_LONG if is_long else _TO_BOUNDARY
    share_step = min(1.0, to_boundary * share_step)
    price_step = min(1.0, to_boundary * price_step)
    if not max(share_step, price_step) > _LEAST_STEP:
        return False
    if not share_step * _imbalance(program, sheds, step) < _MOST_IMBALANCE:
        return False  # rounding has taken over
    _move(at, step, share_step, price_step)
    # Under concave utilities a share and its reduced cost may both end at 0, and a raised share
    # then overloads its links.
    if len(program.worth) == 0:
        _recentre(program, sheds, at, product_sum(at, step, sheds, 0.0, 0.0) / count)
    return True
