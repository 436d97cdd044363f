"""The program of one matrix over the links that can bind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.path_links import PathLinks
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, kernel

_ROUNDING = 1e-12  # relative, of a sum of demands


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
        base: what carrying all demand for nothing would be worth, over ``scale``, where the cost of
            carrying all of it is minimised: cost is base less value; else 0.
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
    base: float


@inner_kernel
def _live_paths(
    layout: PathLinks, demand: FloatArray, capacity: FloatArray, value: FloatArray, sheds: bool
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
    layout: PathLinks, demand: FloatArray, capacity: FloatArray, live: BoolArray, sheds: bool
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
    layout: PathLinks,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    worth: float,
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
    scale = fixed = carried = 0.0
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
        carried += demand[d]
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
        worth * carried / unit,
    )


@kernel
def reduced(
    layout: PathLinks,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    worth: float,
    splits: FloatArray,
) -> Reduced:
    """The program of one matrix over the links that can bind.

    Args:
        layout: paths of all demands.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; infinite for a link that is left out.
        value: (D K,) value of a Gbit/s on each path; unused where all is carried.
        sheds: whether a demand may be carried in part: the value is maximised; else the largest
            utilisation is minimised.
        worth: value of a Gbit/s that costs nothing, where the cost of carrying all demand is
            minimised: ``value`` is this less the cost of a path; else 0.
        splits: (D K,) receives the shares of demands whose best path meets no such link.
    """
    return _reduced(layout, demand, capacity, value, sheds, worth, splits)


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
