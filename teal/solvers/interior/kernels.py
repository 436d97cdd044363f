"""The compiled method for one matrix: reduction, start, iterations, and what they prove."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, kernel, summing_kernel
from teal.solvers.interior.layout import Layout

# Part of the way to the boundary that a step goes at most: all but all where steps are long, and
# the end is near; less where they are short, since what comes next to 0 stops every later step.
_TO_BOUNDARY_WHERE_LONG, _TO_BOUNDARY = 0.995, 0.9
_FIRST_TARGET = 0.03  # first mu, over the mean value of a column
_FIRST_LOAD = 0.9  # of the capacity, in the cold start
_FIRST_THETA = 1.1  # first theta, over the utilisation of even splits
_CORRECTORS = 2  # of an iteration at most, each of which takes a part of it
_LONG_STEP = 0.9  # a step that needs no correction
_FURTHER = 0.3  # how much longer the step is to become
_LEAST_GAIN = 0.05  # of both steps together, below which a correction is not worth its time
_LOW, _HIGH = 0.1, 10.0  # of the target, between which products stop no step
_WARM_TARGET = 0.03  # first mu of a warm start, over the mean value of a column
_WARM_MIX = 0.15  # part of a warm start that is not of the given shares
_WARM_THETA = 1.02  # first theta of a warm start, over its utilisation
_WARM_SLACK = 0.05  # of the limit, up to which a slack of a warm start is raised
_LEAST_PRICE = 0.01  # of the mean price of a warm start, to which smaller ones are raised
_LEAST_PRODUCT = 1e-1  # of the mean product, to which smaller ones are raised
_MOST_RAISED = 0.01  # of the largest share of a block, to which shares are raised
_MOST_GROWTH = 10.0  # x a share, to which it is raised at once
_LEAST_SLACK = 0.5  # of a slack, to which it may fall where loads were raised
_LEAST_STEP = 1e-8  # a step below it gains nothing
_LEAST_PIVOT = 1e-14  # of S, over the diagonal before elimination
_ROUNDING = 1e-12  # relative, of a sum of demands
_NO_ROW = 1e128  # pivot that takes a row out of S


class Reduced(NamedTuple):
    """The program of one matrix over the links that can bind: G blocks, Q paths, n rows.

    Attributes:
        block_ptr: (G + 1,) the paths of block g are ``block_ptr[g]:block_ptr[g + 1]``.
        rate: (G,) demand, Gbit/s.
        slot: (Q,) number d K + k of each path.
        gain: (Q,) c, value of all of the demand on the path, over ``scale``.
        row_ptr: (Q + 1,) the rows of path q are ``row[row_ptr[q]:row_ptr[q + 1]]``, ascending.
        row: rows of all paths.
        union_ptr: (G + 1,) the rows of block g are ``union[union_ptr[g]:union_ptr[g + 1]]``,
            ascending.
        union: rows of all blocks.
        link: (n,) the link of each row.
        limit: (n,) Gbit/s: capacity of the link.
        scale: unit of values.
        fixed: value of the demands that need no block, over ``scale``.
    """

    block_ptr: Int64Array
    rate: FloatArray
    slot: Int64Array
    gain: FloatArray
    row_ptr: Int64Array
    row: IntArray
    union_ptr: Int64Array
    union: IntArray
    link: Int64Array
    limit: FloatArray
    scale: float
    fixed: float


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
    """

    share: FloatArray
    reduced: FloatArray
    rest: FloatArray
    rest_reduced: FloatArray
    price: FloatArray
    slack: FloatArray
    theta: FloatArray


class Work(NamedTuple):
    """Space that iterations need, and what they have found.

    Attributes:
        step: the step.
        products: products to come less the present ones.
        kept: the step before a correction.
        weight: (Q,) D.
        total: (G,) delta.
        of_path: (Q,) anything.
        path_price: (Q,) A' y.
        load: (n,) A x.
        missing: (n,) limit less load and slack.
        of_limits: (n,) S^-1 times the limits.
        system: (n, n) S, then its factor.
        best_share: (Q,) of the best value so far.
        best_price: (n,) of the best bound so far.
        figures: (2,) value and bound of these.
    """

    step: Iterate
    products: Iterate
    kept: Iterate
    weight: FloatArray
    total: FloatArray
    of_path: FloatArray
    path_price: FloatArray
    load: FloatArray
    missing: FloatArray
    of_limits: FloatArray
    system: FloatArray
    best_share: FloatArray
    best_price: FloatArray
    figures: FloatArray


# Loops in the place of array expressions, each of which would take a second to compile.


@inner_kernel
def _put(value: FloatArray, out: FloatArray) -> None:
    for i in range(len(out)):
        out[i] = value[i]


@inner_kernel
def _fill(value: float, out: FloatArray) -> None:
    for i in range(len(out)):
        out[i] = value


@inner_kernel
def _add(factor: float, value: FloatArray, out: FloatArray) -> None:
    for i in range(len(out)):
        out[i] += factor * value[i]


@inner_kernel
def _new_iterate(paths: int, blocks: int, rows: int) -> Iterate:
    return Iterate(
        np.zeros(paths),
        np.zeros(paths),
        np.zeros(blocks),
        np.zeros(blocks),
        np.zeros(rows),
        np.zeros(rows),
        np.zeros(1),
    )


@inner_kernel
def _live_paths(
    layout: Layout, demand: FloatArray, capacity: FloatArray, value: FloatArray, sheds: bool
) -> BoolArray:
    """(P,) paths of a demand above 0, over links that work; where demands may be shed, of a value
    above 0.
    """
    live = np.zeros(len(layout.slot), np.bool_)
    for d in range(len(demand)):
        if not demand[d] > 0:
            continue
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            is_live = not sheds or value[layout.slot[p]] > 0
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                is_live = is_live and capacity[layout.link[i]] > 0
            live[p] = is_live
    return live


@inner_kernel
def _row_of_link(
    layout: Layout, demand: FloatArray, capacity: FloatArray, live: BoolArray, sheds: bool
) -> Int64Array:
    """(E,) number of the row of each link that can bind, -1 for the others.

    A link binds at most where the demands that can use it exceed its capacity; of the largest
    utilisation, where they exceed that share of it which some link carries in any case.
    """
    links = len(capacity)
    most, forced = np.zeros(links), np.zeros(links)
    times, stamp = np.zeros(links, np.int64), np.full(links, -1)
    for d in range(len(demand)):
        count = 0
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            if not live[p]:
                continue
            count += 1
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                e = layout.link[i]
                if stamp[e] != d:
                    stamp[e], times[e] = d, 0
                    most[e] += demand[d]
                times[e] += 1
        if sheds or count == 0:
            continue
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            if live[p]:
                for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                    e = layout.link[i]
                    if times[e] == count:
                        forced[e] += demand[d]
                break
    least = 1.0
    if not sheds:
        least = 0.0
        for e in range(links):
            if capacity[e] > 0:
                least = max(least, forced[e] / capacity[e])
    row, rows = np.full(links, -1), 0
    for e in range(links):
        # What rounds to the capacity fits; what rounds to the least utilisation may be the one.
        limit = capacity[e] * (1 + _ROUNDING) if sheds else least * capacity[e] * (1 - _ROUNDING)
        if capacity[e] > 0 and most[e] > limit:
            row[e] = rows
            rows += 1
    return row


@inner_kernel
def _unions(
    block_ptr: Int64Array, row_ptr: Int64Array, row: IntArray, most: int
) -> tuple[Int64Array, IntArray]:
    """The rows of each block, ascending: pointers (G + 1,), and rows."""
    blocks = len(block_ptr) - 1
    union_ptr, union = np.zeros(blocks + 1, np.int64), np.empty(len(row), np.int32)
    block_of, count = np.full(most, -1), 0
    for g in range(blocks):
        begin = count
        for i in range(row_ptr[block_ptr[g]], row_ptr[block_ptr[g + 1]]):
            r = row[i]
            if block_of[r] == g:
                continue
            block_of[r] = g
            place = count
            while place > begin and union[place - 1] > r:
                union[place] = union[place - 1]
                place -= 1
            union[place] = r
            count += 1
        union_ptr[g + 1] = count
    return union_ptr, union[:count]


@inner_kernel
def _reduced(
    layout: Layout,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    splits: FloatArray,
) -> Reduced:
    """The program over the links that can bind.

    Demands whose best path meets no such link get it whole, in ``splits`` (D K,).
    """
    live = _live_paths(layout, demand, capacity, value, sheds)
    row_of = _row_of_link(layout, demand, capacity, live, sheds)
    paths = len(layout.slot)
    block_ptr, rate = np.zeros(len(demand) + 1, np.int64), np.empty(len(demand))
    slot, gain = np.empty(paths, np.int64), np.empty(paths)
    row_ptr, row = np.zeros(paths + 1, np.int64), np.empty(len(layout.link), np.int32)
    blocks = columns = entries = 0
    scale = fixed = 0.0
    for d in range(len(demand)):
        first, before = columns, entries
        best, best_slot, is_free = 0.0, -1, False
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            if not live[p]:
                continue
            begin = entries
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                r = row_of[layout.link[i]]
                if r < 0:
                    continue
                place = entries  # the rows of a path ascend
                while place > begin and row[place - 1] > r:
                    row[place] = row[place - 1]
                    place -= 1
                row[place] = r
                entries += 1
            of_path = value[layout.slot[p]] * demand[d] if sheds else 0.0
            slot[columns], gain[columns] = layout.slot[p], of_path
            columns += 1
            row_ptr[columns] = entries
            is_better = best_slot < 0 or of_path > best
            if is_better or (of_path == best and entries == begin):
                best, best_slot, is_free = of_path, layout.slot[p], entries == begin
        if best_slot < 0:
            continue
        scale += best
        if is_free:
            for k in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
                splits[layout.slot[k]] = 0.0
            splits[best_slot] = 1.0
            fixed += best
            columns, entries = first, before
            continue
        rate[blocks] = demand[d]
        blocks += 1
        block_ptr[blocks] = columns
    unit = scale if scale > 0 else 1.0
    for q in range(columns):
        gain[q] /= unit
    union_ptr, union = _unions(block_ptr[: blocks + 1], row_ptr, row[:entries], len(capacity))
    rows = 0
    link, limit = np.empty(len(capacity), np.int64), np.empty(len(capacity))
    for e in range(len(capacity)):
        if row_of[e] >= 0:
            link[rows], limit[rows] = e, capacity[e]
            rows += 1
    return Reduced(
        block_ptr[: blocks + 1],
        rate[:blocks],
        slot[:columns],
        gain[:columns],
        row_ptr[: columns + 1],
        row[:entries],
        union_ptr,
        union,
        link[:rows],
        limit[:rows],
        unit,
        fixed / unit,
    )


@inner_kernel
def _path_prices(program: Reduced, price: FloatArray, out: FloatArray) -> None:
    """(Q,) A' y: rate times the sum of the prices of each path's rows."""
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total = 0.0
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                total += price[program.row[i]]
            out[q] = total * program.rate[g]


@inner_kernel
def _loads(program: Reduced, share: FloatArray, out: FloatArray) -> None:
    """(n,) A x, Gbit/s."""
    _fill(0.0, out)
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            flow = program.rate[g] * share[q]
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                out[program.row[i]] += flow


@inner_kernel
def _centred(cost: FloatArray, first: int, end: int, has_rest: bool, target: float) -> float:
    """The multiplier l of a block for which sum of target / (cost - l) = 1, with the rest's cost 0
    among them.
    """
    least = 0.0 if has_rest else cost[first]
    for q in range(first, end):
        least = min(least, cost[q])
    count = end - first + has_rest
    low, high = least - count * target, least - target  # the sum is below and above 1 there
    multiplier = low
    for _ in range(60):
        total, slope = 0.0, 0.0
        for q in range(first - has_rest, end):
            distance = (0.0 if q < first else cost[q]) - multiplier
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
def _cold_start(program: Reduced, sheds: bool, at: Iterate) -> None:
    """A point strictly inside, on both sides.

    Where demands may be shed, each path carries an equal part of what the fullest link on it grants
    when all are carried evenly.
    """
    blocks, rows = len(program.rate), len(program.limit)
    for g in range(blocks):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        for q in range(first, end):
            at.share[q] = 1.0 / (end - first)
    load = np.empty(rows)
    _loads(program, at.share, load)
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
        _loads(program, at.share, load)
        target = 0.0
        for q in range(len(program.gain)):
            target += _FIRST_TARGET * program.gain[q] / len(program.gain)
        for r in range(rows):
            at.slack[r] = program.limit[r] - load[r]
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
def _centre_blocks(program: Reduced, sheds: bool, target: float, at: Iterate) -> None:
    """Reduced costs of each block for its prices and mu."""
    cost = np.empty(len(program.gain))
    _path_prices(program, at.price, cost)
    _add(-1.0, program.gain, cost)
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        multiplier = _centred(cost, first, end, sheds, target)
        at.rest_reduced[g] = -multiplier
        for q in range(first, end):
            at.reduced[q] = cost[q] - multiplier


@inner_kernel
def _warm_start(
    program: Reduced, sheds: bool, at: Iterate, splits: FloatArray, prices: FloatArray
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
    target = _WARM_TARGET * value / (paths + rows + (blocks if sheds else 0))
    _centre_blocks(program, sheds, target, at)
    for g in range(blocks):
        left, given, unit = 1.0, 0.0, 1.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            given += splits[program.slot[q]]
        if not sheds:  # shares of a demand sum to 1
            unit = 1 / given if given > 0 else 0.0
        mix = _WARM_MIX if sheds or given > 0 else 1.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            far = 0.5 * (at.share[q] + target / at.reduced[q])
            at.share[q] = (1 - mix) * unit * splits[program.slot[q]] + mix * far
            left -= at.share[q]
        if sheds:
            far = 0.5 * (at.rest[g] + target / at.rest_reduced[g])
            at.rest[g] = max(left, _WARM_MIX * far)
    load = np.empty(rows)
    _loads(program, at.share, load)
    if not sheds:
        most = 0.0
        for r in range(rows):
            most = max(most, load[r] / program.limit[r])
        at.theta[0] = _WARM_THETA * most
    for r in range(rows):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        at.slack[r] = max(limit - load[r], min(target / at.price[r], _WARM_SLACK * limit))


@inner_kernel
def _system(program: Reduced, sheds: bool, at: Iterate, work: Work) -> None:
    """D (Q,), delta (G,) and the lower triangle of S (n, n) at a point."""
    rows, s, weight, total = len(program.limit), work.system, work.weight, work.total
    sums, of_union = np.zeros(rows), np.empty(rows)
    for r in range(rows):
        _fill(0.0, s[r])
        s[r, r] = at.slack[r] / at.price[r]
    for g in range(len(program.rate)):
        square = program.rate[g] * program.rate[g]
        delta = at.rest[g] / at.rest_reduced[g] if sheds else 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            weight[q] = at.share[q] / at.reduced[q]
            delta += weight[q]
            scaled = square * weight[q]
            begin, end = program.row_ptr[q], program.row_ptr[q + 1]
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


@summing_kernel
def _factor(s: FloatArray) -> None:
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
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        moved = products.rest[g] / at.rest_reduced[g] if sheds else 0.0
        for q in range(first, end):
            moves[q] = products.share[q] / at.reduced[q]
            moved += moves[q]
        step.rest[g] = moved
        for q in range(first, end):
            flow = program.rate[g] * (moves[q] - weight[q] * moved / total[g])
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                right[program.row[i]] += flow
    _solve_factored(s, right)
    if not sheds:
        along, own, of_price = 0.0, 0.0, 0.0
        for r in range(rows):
            along += program.limit[r] * right[r]
            own += program.limit[r] * of_limits[r]
            of_price += program.limit[r] * at.price[r]
        step.theta[0] = (along - (1 - of_price)) / own
        for r in range(rows):
            right[r] -= of_limits[r] * step.theta[0]
    for r in range(rows):
        step.slack[r] = (products.slack[r] - at.slack[r] * right[r]) / at.price[r]
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        along = 0.0
        for q in range(first, end):
            price = 0.0
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                price += right[program.row[i]]
            step.reduced[q] = price * program.rate[g]
            along += weight[q] * step.reduced[q]
        change = (along - step.rest[g]) / total[g]  # of the multiplier
        for q in range(first, end):
            step.reduced[q] -= change
            step.share[q] = moves[q] - weight[q] * step.reduced[q]
        if sheds:
            step.rest_reduced[g] = -change
            step.rest[g] = (products.rest[g] + at.rest[g] * change) / at.rest_reduced[g]


@inner_kernel
def _longest(value: FloatArray, step: FloatArray, most: float) -> float:
    """The longest step up to ``most`` that keeps values >= 0."""
    for i in range(len(value)):
        if step[i] < 0:
            most = min(most, -value[i] / step[i])
    return most


@inner_kernel
def _step_lengths(at: Iterate, step: Iterate, sheds: bool) -> tuple[float, float]:
    """The longest steps to the boundary, of shares and slacks, and of prices and reduced costs."""
    far = 1e30
    of_shares = _longest(at.slack, step.slack, _longest(at.share, step.share, far))
    of_prices = _longest(at.price, step.price, _longest(at.reduced, step.reduced, far))
    if sheds:
        of_shares = _longest(at.rest, step.rest, of_shares)
        of_prices = _longest(at.rest_reduced, step.rest_reduced, of_prices)
    return of_shares, of_prices


@inner_kernel
def _product_sum(
    at: Iterate, step: Iterate, sheds: bool, of_shares: float, of_prices: float
) -> float:
    """Sum of all products x z, s z, t y after a step."""
    total = 0.0
    for q in range(len(at.share)):
        total += (at.share[q] + of_shares * step.share[q]) * (
            at.reduced[q] + of_prices * step.reduced[q]
        )
    for r in range(len(at.price)):
        total += (at.slack[r] + of_shares * step.slack[r]) * (
            at.price[r] + of_prices * step.price[r]
        )
    if sheds:
        for g in range(len(at.rest)):
            total += (at.rest[g] + of_shares * step.rest[g]) * (
                at.rest_reduced[g] + of_prices * step.rest_reduced[g]
            )
    return total


@inner_kernel
def _wanted(
    at: Iterate, step: Iterate, sheds: bool, target: float, correction: float, out: Iterate
) -> None:
    """Products to come less the present ones: target - x z - correction dx dz."""
    for q in range(len(at.share)):
        out.share[q] = (
            target - at.share[q] * at.reduced[q] - correction * step.share[q] * step.reduced[q]
        )
    for r in range(len(at.price)):
        out.slack[r] = (
            target - at.slack[r] * at.price[r] - correction * step.slack[r] * step.price[r]
        )
    if sheds:
        for g in range(len(at.rest)):
            out.rest[g] = (
                target
                - at.rest[g] * at.rest_reduced[g]
                - correction * step.rest[g] * step.rest_reduced[g]
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
def _correct(
    at: Iterate,
    step: Iterate,
    sheds: bool,
    target: float,
    of_shares: float,
    of_prices: float,
    out: Iterate,
) -> None:
    """Add to the wanted products what brings those near the target that stop a longer step.

    Gondzio, Computational Optimization and Applications 6, 1996.
    """
    of_shares, of_prices = min(1.0, of_shares + _FURTHER), min(1.0, of_prices + _FURTHER)
    for q in range(len(at.share)):
        out.share[q] += _into_band(
            (at.share[q] + of_shares * step.share[q])
            * (at.reduced[q] + of_prices * step.reduced[q]),
            target,
        )
    for r in range(len(at.price)):
        out.slack[r] += _into_band(
            (at.slack[r] + of_shares * step.slack[r]) * (at.price[r] + of_prices * step.price[r]),
            target,
        )
    if sheds:
        for g in range(len(at.rest)):
            out.rest[g] += _into_band(
                (at.rest[g] + of_shares * step.rest[g])
                * (at.rest_reduced[g] + of_prices * step.rest_reduced[g]),
                target,
            )


@inner_kernel
def _copy(source: Iterate, target: Iterate) -> None:
    _put(source.share, target.share)
    _put(source.reduced, target.reduced)
    _put(source.rest, target.rest)
    _put(source.rest_reduced, target.rest_reduced)
    _put(source.price, target.price)
    _put(source.slack, target.slack)
    _put(source.theta, target.theta)


@inner_kernel
def _move(at: Iterate, step: Iterate, of_shares: float, of_prices: float) -> None:
    """Take a step."""
    _add(of_shares, step.share, at.share)
    _add(of_shares, step.rest, at.rest)
    _add(of_shares, step.slack, at.slack)
    _add(of_shares, step.theta, at.theta)
    _add(of_prices, step.reduced, at.reduced)
    _add(of_prices, step.rest_reduced, at.rest_reduced)
    _add(of_prices, step.price, at.price)


@inner_kernel
def _recentre(program: Reduced, sheds: bool, at: Iterate, mean: float) -> None:
    """Raise what is far too small for its product, by a little.

    A share whose product is far below the mean stops every later step.  Raised to a part of
    mean / z it is still next to nothing; the largest share of its block gives it away.
    """
    least = _LEAST_PRODUCT * mean
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        largest, most = -1, at.rest[g] if sheds else 0.0
        for q in range(first, end):
            if at.share[q] > most:
                largest, most = q, at.share[q]
        highest, raised = _MOST_RAISED * most, 0.0
        for q in range(first, end):
            enough = min(highest, least / at.reduced[q], _MOST_GROWTH * at.share[q])
            if at.share[q] < enough:
                raised += enough - at.share[q]
                at.share[q] = enough
        if sheds:
            enough = min(highest, least / at.rest_reduced[g], _MOST_GROWTH * at.rest[g])
            if at.rest[g] < enough:
                raised += enough - at.rest[g]
                at.rest[g] = enough
        if largest < 0:
            at.rest[g] -= raised
        else:
            at.share[largest] -= raised


@inner_kernel
def _value_of(program: Reduced, sheds: bool, share: FloatArray, load: FloatArray) -> float:
    """Value of shares, scaled down where they overload a row; or their largest utilisation."""
    most = 1.0 if sheds else 0.0
    for r in range(len(load)):
        most = max(most, load[r] / program.limit[r])
    if not sheds:
        return most
    total = 0.0
    for q in range(len(share)):
        total += program.gain[q] * share[q]
    return total / most + program.fixed


@inner_kernel
def _bound_of(program: Reduced, sheds: bool, price: FloatArray, path_price: FloatArray) -> float:
    """The bound that prices prove: an upper limit of the value, or a lower one of the utilisation."""
    of_rows = 0.0
    for r in range(len(price)):
        of_rows += program.limit[r] * price[r]
    total = 0.0
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        best = 0.0 if sheds else -path_price[first]
        for q in range(first, end):
            best = max(best, program.gain[q] - path_price[q])
        total += best
    if sheds:
        return of_rows + total + program.fixed
    return -total / of_rows


@inner_kernel
def _new_work(program: Reduced, sheds: bool, at: Iterate) -> Work:
    blocks, paths, rows = len(program.rate), len(program.gain), len(program.limit)
    figures = np.empty(2)  # of nothing
    figures[0], figures[1] = (-np.inf, np.inf) if sheds else (np.inf, -np.inf)
    return Work(
        _new_iterate(paths, blocks, rows),
        _new_iterate(paths, blocks, rows),
        _new_iterate(paths, blocks, rows),
        np.empty(paths),
        np.empty(blocks),
        np.empty(paths),
        np.empty(paths),
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        np.empty((rows, rows)),
        np.zeros(paths),
        np.zeros(rows),
        figures,
    )


@inner_kernel
def _measure(program: Reduced, sheds: bool, at: Iterate, work: Work) -> float:
    """Keep the best shares and prices; the certified gap."""
    _loads(program, at.share, work.load)
    _path_prices(program, at.price, work.path_price)
    for r in range(len(program.limit)):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        room = limit - work.load[r]
        if _LEAST_SLACK * at.slack[r] < room < at.slack[r]:
            at.slack[r] = room
    value = _value_of(program, sheds, at.share, work.load)
    bound = _bound_of(program, sheds, at.price, work.path_price)
    sense = 1.0 if sheds else -1.0
    if sense * value > sense * work.figures[0]:
        work.figures[0] = value
        _put(at.share, work.best_share)
    if sense * bound < sense * work.figures[1]:
        work.figures[1] = bound
        _put(at.price, work.best_price)
    high = work.figures[1] if sheds else work.figures[0]
    return sense * (work.figures[1] - work.figures[0]) / high if high > 0 else 0.0


@inner_kernel
def _iterate(program: Reduced, sheds: bool, at: Iterate, work: Work) -> bool:
    """One iteration: a predictor, a corrector, a step; false where the step is none."""
    step, products = work.step, work.products
    rows = len(program.limit)
    count = len(program.gain) + rows + (len(program.rate) if sheds else 0)
    mean = _product_sum(at, step, sheds, 0.0, 0.0) / count
    for r in range(rows):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        work.missing[r] = limit - work.load[r] - at.slack[r]
    _system(program, sheds, at, work)
    _factor(work.system)
    if not sheds:
        _put(program.limit, work.of_limits)
        _solve_factored(work.system, work.of_limits)
    _wanted(at, step, sheds, 0.0, 0.0, products)
    _direction(program, sheds, at, work)
    of_shares, of_prices = _step_lengths(at, step, sheds)
    of_shares, of_prices = min(1.0, of_shares), min(1.0, of_prices)
    after = _product_sum(at, step, sheds, of_shares, of_prices) / count
    ratio = (after / mean) ** 3
    _wanted(at, step, sheds, ratio * mean, 1.0, products)
    _direction(program, sheds, at, work)
    of_shares, of_prices = _step_lengths(at, step, sheds)
    for _ in range(_CORRECTORS):
        if min(of_shares, of_prices) > _LONG_STEP:
            break
        _copy(step, work.kept)
        _correct(at, step, sheds, ratio * mean, of_shares, of_prices, products)
        _direction(program, sheds, at, work)
        longer_shares, longer_prices = _step_lengths(at, step, sheds)
        gained = min(1.0, longer_shares) + min(1.0, longer_prices)
        if gained < min(1.0, of_shares) + min(1.0, of_prices) + _LEAST_GAIN:
            _copy(work.kept, step)
            break
        of_shares, of_prices = longer_shares, longer_prices
    is_long = min(of_shares, of_prices) > _LONG_STEP
    to_boundary = _TO_BOUNDARY_WHERE_LONG if is_long else _TO_BOUNDARY
    of_shares = min(1.0, to_boundary * of_shares)
    of_prices = min(1.0, to_boundary * of_prices)
    if not max(of_shares, of_prices) > _LEAST_STEP:
        return False
    _move(at, step, of_shares, of_prices)
    _recentre(program, sheds, at, _product_sum(at, step, sheds, 0.0, 0.0) / count)
    return True


@kernel
def reduced(
    layout: Layout,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    splits: FloatArray,
) -> Reduced:
    """The program of one matrix over the links that can bind.

    Args:
        layout: paths of all demands.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s.
        value: (D K,) value of a Gbit/s on each path; unused where all is carried.
        sheds: whether a demand may be carried in part: the value is maximised; else the largest
            utilisation is minimised.
        splits: (D K,) receives the shares of demands whose best path meets no such link.
    """
    return _reduced(layout, demand, capacity, value, sheds, splits)


@kernel
def updates_of(program: Reduced) -> int:
    """Updates of S that an iteration makes."""
    updates = 0
    for q in range(len(program.gain)):
        length = program.row_ptr[q + 1] - program.row_ptr[q]
        updates += length * (length + 1) // 2
    for g in range(len(program.rate)):
        length = program.union_ptr[g + 1] - program.union_ptr[g]
        updates += length * (length + 1) // 2
    return updates


@kernel
def solve(
    program: Reduced,
    sheds: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    is_warm: bool,
    stop: BoolArray,
) -> int:
    """Solve one program; the number of iterations.

    Args:
        program: program of one matrix.
        sheds: as in :func:`reduced`.
        gap: target of the certified gap.
        max_iterations: number of iterations, at most.
        splits: (D K,) receives the shares.
        prices: (E,) receives the prices.
        is_warm: whether both have a start, with feasible shares; they are 0 otherwise.
        stop: (1,) is read before each iteration: another thread may end the search.
    """
    if len(program.rate) == 0 or len(program.limit) == 0:
        _fill(0.0, prices)
        return 0
    at = _new_iterate(len(program.gain), len(program.rate), len(program.limit))
    _cold_start(program, sheds, at)
    if is_warm:
        _warm_start(program, sheds, at, splits, prices)
    work = _new_work(program, sheds, at)
    done = 0
    while _measure(program, sheds, at, work) > gap and done < max_iterations and not stop[0]:
        if _iterate(program, sheds, at, work):
            done += 1
        elif is_warm:  # the start led nowhere; what it gave is kept
            is_warm = False
            _copy(_new_iterate(len(program.gain), len(program.rate), len(program.limit)), work.step)
            _cold_start(program, sheds, at)
        else:
            break
    for q in range(len(program.gain)):
        splits[program.slot[q]] = work.best_share[q]
    _fill(0.0, prices)
    for r in range(len(program.limit)):
        prices[program.link[r]] = work.best_price[r] * program.scale
    return done
