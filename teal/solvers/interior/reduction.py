"""The program of one matrix over the rows that can bind.

Beside its paths, a block may have columns for the parts of a demand that are not carried: where
values fall in steps, what is left out first costs least.  With r[c] the share that is left out of
step c, of which the value of a Gbit/s is v level[c],

    value = v (sum of the steps' shares times level) - sum over c of v level[c] r[c],
    sum of paths' shares + sum over c of r[c] = 1,   r[c] <= share of step c,

so that step c is a column on no row, of the value v (1 - level[c]); that of the first step is the
rest of the block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.path_links import PathLinks
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, kernel

_ROUNDING = 1e-12  # relative, of a sum of demands
_NO_SHARE = 1e-9  # of a demand, up to which the limit of a column closes it


class DemandTerms(NamedTuple):
    """Coefficients, limits, steps and utilities of demands; arrays without entries stand for none.

    Attributes:
        coefficient: what a Gbit/s of a path puts on each of its links, in the order of
            ``PathLinks.link``; without entries it puts a Gbit/s on each.
        largest: (D K,) share of its demand that each path may carry.
        level: (D, C) value of a Gbit/s in each step over that in the first one, falling.
        end: (D, C) share of the demand at which each step ends.
        worth: (D,) value of a Gbit/s at the share 1, where demands have concave utilities.
        alpha: exponent of these (:mod:`teal.problem.curves`).
    """

    coefficient: FloatArray
    largest: FloatArray
    level: FloatArray
    end: FloatArray
    worth: FloatArray
    alpha: float


PLAIN = DemandTerms(np.zeros(0), np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), 0.0)


class Reduced(NamedTuple):
    """The program of one matrix over the links that can bind: G blocks, Q columns, n rows, C limits
    of columns.

    Attributes:
        block_ptr: (G + 1,) the paths of block g are ``block_ptr[g]:block_ptr[g + 1]``.
        rate: (G,) demand, Gbit/s.
        slot: (Q,) number d K + k of each path; -1 for a part that is not carried.
        gain: (Q,) c, value of all of the demand on the column, over ``scale``.
        row_ptr: (Q + 1,) the rows of path q are ``row[row_ptr[q]:row_ptr[q + 1]]``, ascending.
        row: rows of all paths.
        coefficient: what a Gbit/s of a path puts on each of its rows; without entries a Gbit/s.
        limited: (C,) the columns that may carry a part of their demand only.
        largest: (C,) that part.
        limit_of: (Q,) number of each column's limit, -1 for none; without entries where no column
            has one.
        worth: (G,) W, value of all of the demand at the share 1, over ``scale``, where demands have
            concave utilities; without entries elsewhere.
        alpha: exponent of the utilities.
        union_ptr: (G + 1,) the rows of block g are ``union[union_ptr[g]:union_ptr[g + 1]]``,
            ascending.
        union: rows of all blocks.
        link: (n,) the link of each row.
        limit: (n,) Gbit/s: capacity of the link.
        scale: unit of values.
        fixed: value of the demands that need no block, over ``scale``.
        in_steps: what the values of columns leave out where values fall in steps, over ``scale``.
        base: what carrying all demand for nothing would be worth, over ``scale``, where the cost of
            carrying all of it is minimised: cost is base less value; else 0.
    """

    block_ptr: Int64Array
    rate: FloatArray
    slot: Int64Array
    gain: FloatArray
    row_ptr: Int64Array
    row: IntArray
    coefficient: FloatArray
    limited: Int64Array
    largest: FloatArray
    limit_of: Int64Array
    worth: FloatArray
    alpha: float
    union_ptr: Int64Array
    union: IntArray
    link: Int64Array
    limit: FloatArray
    scale: float
    fixed: float
    in_steps: float
    base: float


@inner_kernel
def _live_paths(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
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
            if len(terms.largest) > 0:
                is_live = is_live and terms.largest[layout.slot[p]] > _NO_SHARE
            if len(terms.worth) > 0:
                is_live = is_live and terms.worth[d] > 0
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                is_live = is_live and capacity[layout.link[i]] > 0
            live[p] = is_live
    return live


@inner_kernel
def _row_of_link(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    live: BoolArray,
    sheds: bool,
) -> Int64Array:
    """(E,) number of the row of each link that can bind, -1 for the others.

    A link binds at most where the demands that can use it exceed its capacity; of the largest
    utilisation, where they exceed that share of it which some link carries in any case.
    """
    links, is_plain = len(capacity), len(terms.coefficient) == 0
    most, forced, largest = np.zeros(links), np.zeros(links), np.zeros(links)
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
                    stamp[e], times[e], largest[e] = d, 0, 0.0
                load = 1.0 if is_plain else terms.coefficient[i]
                if load > largest[e]:
                    most[e] += demand[d] * (load - largest[e])
                    largest[e] = load
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
def _steps_of(
    terms: DemandTerms, d: int, value: float, columns: int, gain: FloatArray, largest: FloatArray
) -> tuple[int, float]:
    """Write the columns of the parts of a demand that are not carried, those of the last steps
    first; their number, and what the values of the paths leave out.

    Args:
        terms: terms of all demands.
        d: number of the demand.
        value: value of all of the demand in the first step.
        columns: number of columns so far.
        gain: receives the values of the columns.
        largest: receives their limits.
    """
    count, left_out = 0, -value
    for c in range(terms.level.shape[1] - 1, -1, -1):
        before = terms.end[d, c - 1] if c > 0 else 0.0
        share, level = terms.end[d, c] - before, terms.level[d, c]
        left_out += value * level * share
        if c > 0 and share > _NO_SHARE:
            gain[columns + count] = value * (1 - level)
            largest[columns + count] = share
            count += 1
    return count, left_out


@inner_kernel
def _limits(largest: FloatArray) -> tuple[Int64Array, FloatArray, Int64Array]:
    """The columns with a limit below 1, their limits, and the number of each column's limit."""
    count = 0
    for share in largest:
        count += share < 1
    limited, limits = np.empty(count, np.int64), np.empty(count)
    limit_of = np.full(len(largest) if count else 0, -1)
    count = 0
    for q in range(len(largest)):
        if largest[q] < 1:
            limited[count], limits[count], limit_of[q] = q, largest[q], count
            count += 1
    return limited, limits, limit_of


@inner_kernel
def _reduced(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    cost_base: float,
    splits: FloatArray,
) -> Reduced:
    """The program over the links that can bind.

    Demands whose best path meets no such link get it whole, in ``splits`` (D K,).
    """
    live = _live_paths(layout, terms, demand, capacity, value, sheds)
    row_of = _row_of_link(layout, terms, demand, capacity, live, sheds)
    is_plain, has_utility = len(terms.coefficient) == 0, len(terms.worth) > 0
    has_limits, steps = len(terms.largest) > 0, terms.level.shape[1]
    most = len(layout.slot) + len(demand) * max(0, steps - 1)
    block_ptr, rate = np.zeros(len(demand) + 1, np.int64), np.empty(len(demand))
    slot, gain, largest = np.empty(most, np.int64), np.empty(most), np.ones(most)
    row_ptr, row = np.zeros(most + 1, np.int64), np.empty(len(layout.link), np.int32)
    coefficient = np.empty(0 if is_plain else len(row))
    worth = np.empty(len(demand) if has_utility else 0)
    blocks = columns = entries = 0
    scale = fixed = carried = in_steps = 0.0
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
                    if not is_plain:
                        coefficient[place] = coefficient[place - 1]
                    place -= 1
                row[place] = r
                if not is_plain:
                    coefficient[place] = terms.coefficient[i]
                entries += 1
            of_path = value[layout.slot[p]] * demand[d] if sheds else 0.0
            if has_utility:
                of_path = terms.worth[d] * demand[d]
            slot[columns], gain[columns] = layout.slot[p], of_path
            if has_limits:
                largest[columns] = terms.largest[layout.slot[p]]
            is_whole = largest[columns] >= 1
            columns += 1
            row_ptr[columns] = entries
            is_better = best_slot < 0 or of_path > best
            if is_better or (of_path == best and entries == begin and is_whole):
                best, best_slot, is_free = of_path, layout.slot[p], entries == begin and is_whole
        if best_slot < 0:
            continue
        scale += best
        carried += demand[d]
        of_steps = 0.0
        if steps > 0:
            # Paths of one demand have one value where it falls in steps.
            count, of_steps = _steps_of(terms, d, best, columns, gain, largest)
            for q in range(columns, columns + count):
                slot[q], row_ptr[q + 1] = -1, entries
            columns += count
        if is_free:
            for k in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
                splits[layout.slot[k]] = 0.0
            splits[best_slot] = 1.0
            fixed += best + of_steps
            for q in range(first, columns):
                largest[q] = 1.0
            columns, entries = first, before
            continue
        in_steps += of_steps
        rate[blocks] = demand[d]
        if has_utility:
            worth[blocks] = best
        blocks += 1
        block_ptr[blocks] = columns
    unit = scale if scale > 0 else 1.0
    for q in range(columns):
        gain[q] /= unit
    for g in range(len(worth)):
        worth[g] /= unit
    union_ptr, union = _unions(block_ptr[: blocks + 1], row_ptr, row[:entries], len(capacity))
    rows = 0
    link, limit = np.empty(len(capacity), np.int64), np.empty(len(capacity))
    for e in range(len(capacity)):
        if row_of[e] >= 0:
            link[rows], limit[rows] = e, capacity[e]
            rows += 1
    limited, limits, limit_of = _limits(largest[:columns])
    return Reduced(
        block_ptr[: blocks + 1],
        rate[:blocks],
        slot[:columns],
        gain[:columns],
        row_ptr[: columns + 1],
        row[:entries],
        coefficient[: 0 if is_plain else entries],
        limited,
        limits,
        limit_of,
        worth[: blocks if has_utility else 0],
        terms.alpha,
        union_ptr,
        union,
        link[:rows],
        limit[:rows],
        unit,
        fixed / unit,
        in_steps / unit,
        cost_base * carried / unit,
    )


@kernel
def reduced(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    cost_base: float,
    splits: FloatArray,
) -> Reduced:
    """The program of one matrix over the links that can bind.

    Args:
        layout: paths of all demands.
        terms: terms of the demands; :data:`PLAIN` for none.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; infinite for a link that is left out.
        value: (D K,) value of a Gbit/s on each path; unused where all is carried.
        sheds: whether a demand may be carried in part: the value is maximised; else the largest
            utilisation is minimised.
        cost_base: value of a Gbit/s that costs nothing, where the cost of carrying all demand is
            minimised: ``value`` is this less the cost of a path; else 0.
        splits: (D K,) receives the shares of demands whose best path meets no such link.
    """
    return _reduced(layout, terms, demand, capacity, value, sheds, cost_base, splits)


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
