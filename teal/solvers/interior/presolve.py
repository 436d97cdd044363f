"""Presolve: the program of one matrix over the links that can bind.

A link whose load is at most its capacity even if every demand that can use it does cannot bind; it
leaves the program, exactly.  Demands whose best path has no such link are served in full.

Where values fall in steps, a block also has shedding columns.  With r[c] the unserved share of step
c, and v level[c] the value of a Gbit/s in it,

    value = v (sum of the steps' shares times level) - sum over c of v level[c] r[c],
    sum of paths' shares + sum over c of r[c] = 1,   r[c] <= share of step c,

so that step c is a column without links, of value v (1 - level[c]); the first step is the unserved
share of the block.  Entry point: :func:`presolve`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.path_links import PathLinks
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, kernel

# Relative rounding error of a sum of demands.
_ROUNDING = 1e-12
# Columns with upper bounds up to this share are removed.
_MIN_SHARE = 1e-9


class DemandTerms(NamedTuple):
    """Coefficients, upper bounds, steps and utilities of demands; empty arrays stand for none.

    Attributes:
        coefficient: load that a Gbit/s of a path puts on each of its links, in the order of
            ``PathLinks.link``; empty for 1.
        max_share: (D K,) largest share of its demand on each path.
        level: (D, C) value of a Gbit/s in each step over that in the first one, falling.
        end: (D, C) share of the demand at which each step ends.
        utility_weight: (D,) value of a Gbit/s at the share 1, for concave utilities.
        alpha: exponent of the utilities (:mod:`teal.problem.curves`).
    """

    coefficient: FloatArray
    max_share: FloatArray
    level: FloatArray
    end: FloatArray
    utility_weight: FloatArray
    alpha: float


NO_TERMS = DemandTerms(
    np.zeros(0), np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0), 0.0
)


class PresolvedProgram(NamedTuple):
    """Program of one matrix: G blocks, Q columns, n rows (links that can bind), C upper bounds.

    Attributes:
        block_ptr: (G + 1,) columns of block g are ``block_ptr[g]:block_ptr[g + 1]``.
        rate: (G,) demand, Gbit/s.
        slot: (Q,) index d K + k of each path; -1 for a shedding column.
        column_value: (Q,) c, value of all of the demand on the column, over ``scale``.
        row_ptr: (Q + 1,) rows of column q are ``row[row_ptr[q]:row_ptr[q + 1]]``, ascending.
        row: rows of all columns.
        coefficient: load that a Gbit/s of a path puts on each of its rows; empty for 1.
        bounded: (C,) columns with an upper bound below 1.
        upper_bound: (C,) that bound.
        bound_index: (Q,) index of each column's bound, -1 for none; empty where no column has one.
        utility_weight: (G,) W, value of all of the demand at the share 1, over ``scale``, for
            concave utilities; else empty.
        alpha: exponent of the utilities.
        block_row_ptr: (G + 1,) rows of block g are ``block_row[block_row_ptr[g]:block_row_ptr[g +
            1]]``, ascending.
        block_row: rows of all blocks.
        link: (n,) link of each row.
        capacity: (n,) capacity of each row, Gbit/s.
        scale: unit of values.
        fixed_value: value of the demands without a block, over ``scale``.
        step_offset: constant of the objective where values fall in steps, over ``scale``.
        cost_base: value of serving all demand at no cost, over ``scale``, where the cost of serving
            all is minimised (cost is cost_base less value); else 0.
    """

    block_ptr: Int64Array
    rate: FloatArray
    slot: Int64Array
    column_value: FloatArray
    row_ptr: Int64Array
    row: IntArray
    coefficient: FloatArray
    bounded: Int64Array
    upper_bound: FloatArray
    bound_index: Int64Array
    utility_weight: FloatArray
    alpha: float
    block_row_ptr: Int64Array
    block_row: IntArray
    link: Int64Array
    capacity: FloatArray
    scale: float
    fixed_value: float
    step_offset: float
    cost_base: float


@inner_kernel
def _usable_paths(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
) -> BoolArray:
    """Return (P,) whether a path can carry traffic.

    Its demand is above 0, its links work, and its value is above 0 where demand may be shed.
    """
    is_usable = np.zeros(len(layout.slot), np.bool_)
    for d in range(len(demand)):
        if not demand[d] > 0:
            continue
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            is_path_usable = not sheds or value[layout.slot[p]] > 0
            if len(terms.max_share) > 0:
                is_path_usable = is_path_usable and terms.max_share[layout.slot[p]] > _MIN_SHARE
            if len(terms.utility_weight) > 0:
                is_path_usable = is_path_usable and terms.utility_weight[d] > 0
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                is_path_usable = is_path_usable and capacity[layout.link[i]] > 0
            is_usable[p] = is_path_usable
    return is_usable


@inner_kernel
def _row_of_link(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    is_usable: BoolArray,
    sheds: bool,
) -> Int64Array:
    """Return the row (E,) of each link that can bind, -1 for the others.

    A link can bind only where the demands that can use it exceed its capacity; for the largest
    utilisation, where they exceed its capacity times the utilisation that forced loads alone cause.
    """
    links = len(capacity)
    is_plain = len(terms.coefficient) == 0
    max_load = np.zeros(links)
    forced_load = np.zeros(links)
    max_coefficient = np.zeros(links)
    num_paths_over = np.zeros(links, np.int64)
    last_demand = np.full(links, -1)
    for d in range(len(demand)):
        num_usable = 0
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            if not is_usable[p]:
                continue
            num_usable += 1
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                e = layout.link[i]
                if last_demand[e] != d:
                    last_demand[e] = d
                    num_paths_over[e] = 0
                    max_coefficient[e] = 0.0
                coefficient = 1.0 if is_plain else terms.coefficient[i]
                if coefficient > max_coefficient[e]:
                    max_load[e] += demand[d] * (coefficient - max_coefficient[e])
                    max_coefficient[e] = coefficient
                num_paths_over[e] += 1
        if sheds or num_usable == 0:
            continue
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            if is_usable[p]:
                for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                    e = layout.link[i]
                    if num_paths_over[e] == num_usable:
                        forced_load[e] += demand[d]
                break
    min_utilisation = 1.0
    if not sheds:
        min_utilisation = 0.0
        for e in range(links):
            if capacity[e] > 0:
                min_utilisation = max(min_utilisation, forced_load[e] / capacity[e])
    row = np.full(links, -1)
    num_rows = 0
    for e in range(links):
        # Loads that round to the capacity fit; a load that rounds to the least utilisation may
        # bind.
        limit = (
            capacity[e] * (1 + _ROUNDING)
            if sheds
            else min_utilisation * capacity[e] * (1 - _ROUNDING)
        )
        if capacity[e] > 0 and max_load[e] > limit:
            row[e] = num_rows
            num_rows += 1
    return row


@inner_kernel
def _rows_of_blocks(
    block_ptr: Int64Array, row_ptr: Int64Array, row: IntArray, num_links: int
) -> tuple[Int64Array, IntArray]:
    """Return the rows of each block, ascending: pointers (G + 1,), and rows."""
    blocks = len(block_ptr) - 1
    block_row_ptr = np.zeros(blocks + 1, np.int64)
    block_row = np.empty(len(row), np.int32)
    block_of = np.full(num_links, -1)
    count = 0
    for g in range(blocks):
        begin = count
        for i in range(row_ptr[block_ptr[g]], row_ptr[block_ptr[g + 1]]):
            r = row[i]
            if block_of[r] == g:
                continue
            block_of[r] = g
            position = count
            while position > begin and block_row[position - 1] > r:
                block_row[position] = block_row[position - 1]
                position -= 1
            block_row[position] = r
            count += 1
        block_row_ptr[g + 1] = count
    return block_row_ptr, block_row[:count]


@inner_kernel
def _write_unserved_columns(
    terms: DemandTerms,
    d: int,
    value: float,
    num_columns: int,
    column_value: FloatArray,
    upper_bound: FloatArray,
) -> tuple[int, float]:
    """Write the shedding columns of a demand, those of the last steps first.

    Args:
        terms: terms of all demands.
        d: index of the demand.
        value: value of all of the demand in the first step.
        num_columns: number of columns so far.
        column_value: receives the values of the columns.
        upper_bound: receives their upper bounds.

    Returns:
        number of columns, and the constant that the values of the paths omit.
    """
    count = 0
    omitted_value = -value
    for c in range(terms.level.shape[1] - 1, -1, -1):
        step_begin = terms.end[d, c - 1] if c > 0 else 0.0
        share = terms.end[d, c] - step_begin
        level = terms.level[d, c]
        omitted_value += value * level * share
        if c > 0 and share > _MIN_SHARE:
            column_value[num_columns + count] = value * (1 - level)
            upper_bound[num_columns + count] = share
            count += 1
    return count, omitted_value


@inner_kernel
def _column_bounds(upper_bound: FloatArray) -> tuple[Int64Array, FloatArray, Int64Array]:
    """Return the columns with an upper bound below 1.

    Returns:
        their indices (C,), these bounds (C,), and the index of each column's bound (Q,).
    """
    count = 0
    for share in upper_bound:
        count += share < 1
    bounded = np.empty(count, np.int64)
    bounds = np.empty(count)
    bound_index = np.full(len(upper_bound) if count else 0, -1)
    count = 0
    for q in range(len(upper_bound)):
        if upper_bound[q] < 1:
            bounded[count] = q
            bounds[count] = upper_bound[q]
            bound_index[q] = count
            count += 1
    return bounded, bounds, bound_index


@inner_kernel
def _presolve(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    cost_base: float,
    splits: FloatArray,
) -> PresolvedProgram:
    """Return the program over the links that can bind.

    Demands whose best path has no such link are served in full, in ``splits`` (D K,).
    """
    is_usable = _usable_paths(layout, terms, demand, capacity, value, sheds)
    row_of = _row_of_link(layout, terms, demand, capacity, is_usable, sheds)
    is_plain = len(terms.coefficient) == 0
    has_utility = len(terms.utility_weight) > 0
    has_limits = len(terms.max_share) > 0
    steps = terms.level.shape[1]
    max_columns = len(layout.slot) + len(demand) * max(0, steps - 1)
    block_ptr = np.zeros(len(demand) + 1, np.int64)
    rate = np.empty(len(demand))
    slot = np.empty(max_columns, np.int64)
    column_value = np.empty(max_columns)
    upper_bound = np.ones(max_columns)
    row_ptr = np.zeros(max_columns + 1, np.int64)
    row = np.empty(len(layout.link), np.int32)
    coefficient = np.empty(0 if is_plain else len(row))
    utility_weight = np.empty(len(demand) if has_utility else 0)
    num_blocks = num_columns = num_entries = 0
    scale = fixed_value = total_demand = step_offset = 0.0
    for d in range(len(demand)):
        first_column = num_columns
        first_entry = num_entries
        best_value = 0.0
        best_slot = -1
        is_free = False
        for p in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
            if not is_usable[p]:
                continue
            begin = num_entries
            for i in range(layout.link_ptr[p], layout.link_ptr[p + 1]):
                r = row_of[layout.link[i]]
                if r < 0:
                    continue
                # Insertion sort: the rows of a path ascend.
                position = num_entries
                while position > begin and row[position - 1] > r:
                    row[position] = row[position - 1]
                    if not is_plain:
                        coefficient[position] = coefficient[position - 1]
                    position -= 1
                row[position] = r
                if not is_plain:
                    coefficient[position] = terms.coefficient[i]
                num_entries += 1
            path_value = value[layout.slot[p]] * demand[d] if sheds else 0.0
            if has_utility:
                path_value = terms.utility_weight[d] * demand[d]
            slot[num_columns] = layout.slot[p]
            column_value[num_columns] = path_value
            if has_limits:
                upper_bound[num_columns] = terms.max_share[layout.slot[p]]
            is_whole = upper_bound[num_columns] >= 1
            num_columns += 1
            row_ptr[num_columns] = num_entries
            is_better = best_slot < 0 or path_value > best_value
            if is_better or (path_value == best_value and num_entries == begin and is_whole):
                best_value = path_value
                best_slot = layout.slot[p]
                is_free = num_entries == begin and is_whole
        if best_slot < 0:
            continue
        scale += best_value
        total_demand += demand[d]
        demand_step_offset = 0.0
        if steps > 0:
            # All paths of a demand have the same value where it falls in steps.
            count, demand_step_offset = _write_unserved_columns(
                terms, d, best_value, num_columns, column_value, upper_bound
            )
            for q in range(num_columns, num_columns + count):
                slot[q] = -1
                row_ptr[q + 1] = num_entries
            num_columns += count
        if is_free:
            for k in range(layout.path_ptr[d], layout.path_ptr[d + 1]):
                splits[layout.slot[k]] = 0.0
            splits[best_slot] = 1.0
            fixed_value += best_value + demand_step_offset
            for q in range(first_column, num_columns):
                upper_bound[q] = 1.0
            num_columns = first_column
            num_entries = first_entry
            continue
        step_offset += demand_step_offset
        rate[num_blocks] = demand[d]
        if has_utility:
            utility_weight[num_blocks] = best_value
        num_blocks += 1
        block_ptr[num_blocks] = num_columns
    unit = scale if scale > 0 else 1.0
    for q in range(num_columns):
        column_value[q] /= unit
    for g in range(len(utility_weight)):
        utility_weight[g] /= unit
    block_row_ptr, block_row = _rows_of_blocks(
        block_ptr[: num_blocks + 1], row_ptr, row[:num_entries], len(capacity)
    )
    num_rows = 0
    link = np.empty(len(capacity), np.int64)
    row_capacity = np.empty(len(capacity))
    for e in range(len(capacity)):
        if row_of[e] >= 0:
            link[num_rows] = e
            row_capacity[num_rows] = capacity[e]
            num_rows += 1
    bounded, bounds, bound_index = _column_bounds(upper_bound[:num_columns])
    return PresolvedProgram(
        block_ptr[: num_blocks + 1],
        rate[:num_blocks],
        slot[:num_columns],
        column_value[:num_columns],
        row_ptr[: num_columns + 1],
        row[:num_entries],
        coefficient[: 0 if is_plain else num_entries],
        bounded,
        bounds,
        bound_index,
        utility_weight[: num_blocks if has_utility else 0],
        terms.alpha,
        block_row_ptr,
        block_row,
        link[:num_rows],
        row_capacity[:num_rows],
        unit,
        fixed_value / unit,
        step_offset / unit,
        cost_base * total_demand / unit,
    )


@kernel
def presolve(
    layout: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    sheds: bool,
    cost_base: float,
    splits: FloatArray,
) -> PresolvedProgram:
    """Return the program of one matrix over the links that can bind.

    Args:
        layout: paths of all demands.
        terms: terms of the demands; :data:`NO_TERMS` for none.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; infinite for a link to leave out.
        value: (D K,) value of a Gbit/s on each path; unused where all demand is served.
        sheds: whether demand may be shed: the value is maximised; else the largest utilisation is
            minimised.
        cost_base: value of a Gbit/s that costs nothing, where the cost of serving all demand is
            minimised: ``value`` is this less the cost of a path; else 0.
        splits: (D K,) receives the shares of demands whose best path has no link that can bind.
    """
    return _presolve(layout, terms, demand, capacity, value, sheds, cost_base, splits)


@kernel
def num_schur_updates(program: PresolvedProgram) -> int:
    """Return the number of entries of S that an iteration updates."""
    updates = 0
    for q in range(len(program.column_value)):
        length = program.row_ptr[q + 1] - program.row_ptr[q]
        updates += length * (length + 1) // 2
    for g in range(len(program.rate)):
        length = program.block_row_ptr[g + 1] - program.block_row_ptr[g]
        updates += length * (length + 1) // 2
    return updates
