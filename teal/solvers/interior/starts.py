"""Points strictly inside, cold and near given splits and prices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel
from teal.solvers.interior.reduction import Reduced

_FIRST_TARGET = 0.03  # first mu, over the mean value of a column
_FIRST_LOAD = 0.9  # of the capacity, in the cold start
_FIRST_PART = 0.5  # of the limit of a column, in the cold start
_MOST_PART = 0.95  # of the limit of a column, in a warm start
_FIRST_THETA = 1.1  # first theta, over the utilisation of even splits
_WARM_THETA = 1.02  # first theta of a warm start, over its utilisation
_WARM_SLACK = 0.05  # of the limit, up to which a slack of a warm start is raised
_LEAST_PRICE = 0.01  # of the mean price of a warm start, to which smaller ones are raised
# First mu of a warm start over the mean value of a column, and the part of its shares that is not
# of the given ones, both over the certified gap of what is given; and their ranges.  Of factors
# from 0.5 to 4 and from 3 to 12 the fewest iterations on seven networks of 50 to 125 nodes.
_TARGET_OF_GAP, _MIX_OF_GAP = 2.0, 12.0
_LEAST_TARGET, _MOST_TARGET, _MOST_MIX = 1e-3, 0.3, 0.4


class Start(NamedTuple):
    """How a search begins.

    Attributes:
        is_warm: whether near given splits and prices.
        target: first mu, over the mean value of a column; 0 where the certified gap of what is
            given is to choose it and the mix.
        mix: part of the first shares that is not of the given ones.
    """

    is_warm: bool
    target: float
    mix: float


COLD = Start(False, 0.0, 0.0)
WARM = Start(True, 0.0, 0.0)  # near the splits and prices of another matrix, or of a model


class Iterate(NamedTuple):
    """A point, or a direction.

    Attributes:
        share: (Q,) x.
        reduced: (Q,) z.
        rest: (G,) s; unused where all is carried.
        rest_reduced: (G,) z of the rest.
        price: (n,) y, value per Gbit/s.
        slack: (n,) t, Gbit/s.
        theta: (1,) largest utilisation; unused where demands may be shed.
        room: (C,) limit of a column less its share.
        room_price: (C,) the price of that limit.
        multiplier: (G,) of the sum of a block's shares; a column's reduced cost is its cost less
            this.
    """

    share: FloatArray
    reduced: FloatArray
    rest: FloatArray
    rest_reduced: FloatArray
    price: FloatArray
    slack: FloatArray
    theta: FloatArray
    room: FloatArray
    room_price: FloatArray
    multiplier: FloatArray


# Loops in the place of array expressions, each of which would take a second to compile.


@inner_kernel
def put(value: FloatArray, out: FloatArray) -> None:
    """Copy an array."""
    for i in range(len(out)):
        out[i] = value[i]


@inner_kernel
def fill(value: float, out: FloatArray) -> None:
    """Set all entries."""
    for i in range(len(out)):
        out[i] = value


@inner_kernel
def add(factor: float, value: FloatArray, out: FloatArray) -> None:
    """Add a multiple of an array."""
    for i in range(len(out)):
        out[i] += factor * value[i]


@inner_kernel
def new_iterate(program: Reduced) -> Iterate:
    """A point of zeros."""
    columns, blocks, rows = len(program.gain), len(program.rate), len(program.limit)
    return Iterate(
        np.zeros(columns),
        np.zeros(columns),
        np.zeros(blocks),
        np.zeros(blocks),
        np.zeros(rows),
        np.zeros(rows),
        np.zeros(1),
        np.zeros(len(program.limited)),
        np.zeros(len(program.limited)),
        np.zeros(blocks),
    )


@inner_kernel
def power_of(base: float, exponent: float) -> float:
    """A power; that of -1 takes no logarithm."""
    if exponent == -1:
        return 1 / base
    return float(base**exponent)


@inner_kernel
def path_prices(program: Reduced, price: FloatArray, out: FloatArray) -> None:
    """(Q,) A' y: rate times the sum of the prices of each column's rows."""
    coefficient, is_plain = program.coefficient, len(program.coefficient) == 0
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total = 0.0
            if is_plain:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    total += price[program.row[i]]
            else:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    total += coefficient[i] * price[program.row[i]]
            out[q] = total * program.rate[g]


@inner_kernel
def add_loads(program: Reduced, share: FloatArray, out: FloatArray) -> None:
    """Add A x, Gbit/s, to numbers (n,)."""
    coefficient, is_plain = program.coefficient, len(program.coefficient) == 0
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            flow = program.rate[g] * share[q]
            if is_plain:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    out[program.row[i]] += flow
            else:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    out[program.row[i]] += coefficient[i] * flow


@inner_kernel
def loads(program: Reduced, share: FloatArray, out: FloatArray) -> None:
    """(n,) A x, Gbit/s."""
    fill(0.0, out)
    add_loads(program, share, out)


@inner_kernel
def carried_shares(program: Reduced, share: FloatArray, out: FloatArray) -> None:
    """(G,) share of each demand that is carried, where no block has columns of other parts."""
    for g in range(len(program.rate)):
        total = 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total += share[q]
        out[g] = total


@inner_kernel
def _share_at(distance: float, largest: float, target: float) -> float:
    """The x of a centred column of a limit: target / x - target / (largest - x) = distance; that of
    the distance reversed is what it leaves.
    """
    scaled, double = distance * largest, 2 * target
    root = np.hypot(scaled, double)
    # Of a negative distance the sum of both would lose all digits.
    sum_of_both = scaled + root if scaled > 0 else double * double / (root - scaled)
    return float(double * largest / (double + sum_of_both))


@inner_kernel
def _centred(
    program: Reduced, cost: FloatArray, g: int, has_rest: bool, of_rest: float, target: float
) -> float:
    """The multiplier l of a block whose centred shares, target / (cost - l) without a limit, sum
    to 1.

    Args:
        program: program of the matrix.
        cost: (Q,) of each column.
        g: number of the block.
        has_rest: whether there is a rest.
        of_rest: its cost.
        target: mu.
    """
    first, end = program.block_ptr[g], program.block_ptr[g + 1]
    has_limits = len(program.limit_of) > 0
    least = of_rest if has_rest else cost[first]
    for q in range(first, end):
        if not (has_limits and program.limit_of[q] >= 0):
            least = min(least, cost[q])
    count = end - first + has_rest
    low, high = least - count * target, least - target  # the sum is below and above 1 there
    if has_limits:
        for q in range(first, end):
            low = min(low, cost[q] - count * target)
    multiplier = low
    for _ in range(60):
        total, slope = 0.0, 0.0
        for q in range(first - has_rest, end):
            distance = (of_rest if q < first else cost[q]) - multiplier
            number = program.limit_of[q] if has_limits and q >= first else -1
            if number >= 0:
                largest = program.largest[number]
                share = _share_at(distance, largest, target)
                room = _share_at(-distance, largest, target)
                total += share
                slope += 1 / (target / (share * share) + target / (room * room))
            else:
                total += target / distance
                slope += target / (distance * distance)
        if abs(total - 1) < 1e-10:
            break
        if total < 1:
            low = multiplier
        else:
            high = multiplier
        multiplier += total * (1 - total) / slope  # Newton's step of 1 / total, nearly linear
        if not low < multiplier < high:
            multiplier = 0.5 * (low + high)
    return multiplier


@inner_kernel
def cold_start(program: Reduced, sheds: bool, at: Iterate) -> None:
    """A point strictly inside, on both sides.

    Where demands may be shed, each path carries an equal part of what the fullest link on it grants
    when all are carried evenly.
    """
    blocks, rows = len(program.rate), len(program.limit)
    has_limits = len(program.limit_of) > 0
    for g in range(blocks):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        for q in range(first, end):
            at.share[q] = 1.0 / (end - first)
            if has_limits and program.limit_of[q] >= 0:
                at.share[q] = min(at.share[q], _FIRST_PART * program.largest[program.limit_of[q]])
    load = np.empty(rows)
    loads(program, at.share, load)
    most = 0.0
    for r in range(rows):
        most = max(most, load[r] / program.limit[r])
    if sheds:
        for g in range(blocks):
            left = 1.0
            for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
                fullest = 1.0
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    r = program.row[i]
                    fullest = max(fullest, load[r] / program.limit[r])
                at.share[q] *= _FIRST_LOAD / fullest
                left -= at.share[q]
            at.rest[g] = left
        loads(program, at.share, load)
        target = 0.0
        for q in range(len(program.gain)):
            target += _FIRST_TARGET * program.gain[q] / len(program.gain)
        if len(program.worth) > 0:  # of what a little more of each demand is worth here
            target = 0.0
            carried = np.empty(blocks)
            carried_shares(program, at.share, carried)
            for g in range(blocks):
                worth = program.worth[g] * power_of(carried[g], -program.alpha)
                target += _FIRST_TARGET * worth / blocks
        for r in range(rows):
            at.slack[r] = program.limit[r] - load[r]
        _set_rooms(program, at)
    else:
        at.theta[0] = _FIRST_THETA * most
        total = 0.0
        for r in range(rows):
            at.slack[r] = at.theta[0] * program.limit[r] - load[r]
            total += program.limit[r] / at.slack[r]
        target = 1.0 / total
    for r in range(rows):
        at.price[r] = target / at.slack[r]
    _centre_blocks(program, sheds, target, at)


@inner_kernel
def _set_rooms(program: Reduced, at: Iterate) -> None:
    """Set what each column's limit leaves."""
    for c in range(len(program.limited)):
        at.room[c] = program.largest[c] - at.share[program.limited[c]]


@inner_kernel
def _centre_blocks(program: Reduced, sheds: bool, target: float, at: Iterate) -> None:
    """Reduced costs of each block for its prices and mu."""
    cost = np.empty(len(program.gain))
    path_prices(program, at.price, cost)
    add(-1.0, program.gain, cost)
    carried = np.empty(len(program.rate))
    carried_shares(program, at.share, carried)
    for g in range(len(program.rate)):
        of_rest = 0.0
        if len(program.worth) > 0:
            of_rest = program.worth[g] * (power_of(carried[g], -program.alpha) - 1)
        multiplier = _centred(program, cost, g, sheds, of_rest, target)
        at.multiplier[g] = multiplier
        at.rest_reduced[g] = of_rest - multiplier
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            at.reduced[q] = cost[q] - multiplier
    for c in range(len(program.limited)):
        # Of a limited column, z less the price of its limit is the distance.
        q = program.limited[c]
        distance, largest = at.reduced[q], program.largest[c]
        if distance < 0:
            at.reduced[q] = target / _share_at(distance, largest, target)
            at.room_price[c] = at.reduced[q] - distance
        else:
            at.room_price[c] = target / _share_at(-distance, largest, target)
            at.reduced[q] = distance + at.room_price[c]


@inner_kernel
def _place_block(
    program: Reduced,
    sheds: bool,
    at: Iterate,
    splits: FloatArray,
    g: int,
    target: float,
    mix: float,
) -> None:
    """Shares of one block near given splits, with a part of the cold ones and of mu / z."""
    has_limits, given = len(program.limit_of) > 0, 0.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        if program.slot[q] >= 0:
            given += splits[program.slot[q]]
    unit, left, open_rest = 1.0, 1.0, max(0.0, 1 - given)
    if not sheds:  # shares of a demand sum to 1
        unit = 1 / given if given > 0 else 0.0
        mix = mix if given > 0 else 1.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        number = program.limit_of[q] if has_limits else -1
        largest = program.largest[number] if number >= 0 else 1.0
        if program.slot[q] >= 0:
            of_column = unit * splits[program.slot[q]]
        else:  # a part that is not carried: the last step first
            of_column = min(largest, open_rest)
            open_rest -= of_column
        far = 0.5 * (at.share[q] + target / at.reduced[q])
        at.share[q] = (1 - mix) * of_column + mix * far
        if number >= 0:
            at.share[q] = min(at.share[q], _MOST_PART * largest)
        left -= at.share[q]
    if sheds:
        far = 0.5 * (at.rest[g] + target / at.rest_reduced[g])
        at.rest[g] = max(left, mix * far)


@inner_kernel
def near_gap(gap: float) -> Start:
    """How near a start is to splits and prices of a certified gap; far where that is no number."""
    if not gap >= 0:
        return Start(True, _MOST_TARGET, _MOST_MIX)
    target = min(max(_TARGET_OF_GAP * gap, _LEAST_TARGET), _MOST_TARGET)
    return Start(True, target, min(_MIX_OF_GAP * gap, _MOST_MIX))


@inner_kernel
def warm_start(
    program: Reduced,
    sheds: bool,
    at: Iterate,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
) -> None:
    """From a cold start to one near given splits and prices, still inside on both sides.

    Shares are those given, with a part of the cold ones and of mu / z, so that none is next to 0;
    prices are those given, but for the smallest; each block is centred for them.

    Args:
        program: program of the matrix.
        sheds: whether demands may be shed.
        at: the cold start; receives the warm one.
        splits: (D K,) feasible.
        prices: (E,) value per Gbit/s.
        start: how near.
    """
    rows, blocks, paths = len(program.limit), len(program.rate), len(program.gain)
    total = 0.0
    for r in range(rows):
        total += prices[program.link[r]] / program.scale
    if not 0 < total < np.inf:  # such prices say nothing
        return
    of_limits = 0.0
    for r in range(rows):
        price = prices[program.link[r]] / program.scale
        at.price[r] = max(price, _LEAST_PRICE * total / rows)
        of_limits += program.limit[r] * at.price[r]
    value = 1.0
    if not sheds:  # prices on the simplex
        for r in range(rows):
            at.price[r] /= of_limits
        value = at.theta[0]
    target = start.target * value / (paths + rows + (blocks if sheds else 0))
    _centre_blocks(program, sheds, target, at)
    for g in range(blocks):
        _place_block(program, sheds, at, splits, g, target, start.mix)
    _set_rooms(program, at)
    load = np.empty(rows)
    loads(program, at.share, load)
    if not sheds:
        most = 0.0
        for r in range(rows):
            most = max(most, load[r] / program.limit[r])
        at.theta[0] = _WARM_THETA * most
    for r in range(rows):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        at.slack[r] = max(limit - load[r], min(target / at.price[r], _WARM_SLACK * limit))
