"""Presolve: the program of one matrix over the links that can bind.

A link cannot bind if its capacity exceeds the sum of all demands that can use it; removing it does
not change the optimum.  Demands whose best path has only such links are served in full.

Where values fall in steps, a block also has shedding columns.  With r[c] the unserved share of step
c, and v level[c] the value of a Gbit/s in it,

    value = v (sum of the steps' shares times level) - sum over c of v level[c] r[c],
    sum of paths' shares + sum over c of r[c] = 1,   r[c] <= share of step c,

so that step c is a column without links, of value v (1 - level[c]); the first step is the unserved
share of the block.  Entry point: :func:`presolve`.

Of a program P in which demand may be unserved, :func:`restrict` keeps some columns: the restricted
program P' has the demands that have one of them, and the links that can bind under them.  Its
optimum is a feasible allocation of P; prices of its links, and 0 for the other links, give a bound
by the columns of P.
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
    """Load coefficients, upper bounds, value steps and utilities of D demands on K paths each.

    An empty array means that the program has no such term.

    Attributes:
        coefficient: load that a Gbit/s of a path puts on each of its links, one entry for each
            entry of ``PathLinks.link``; empty if all are 1.
        max_share: (D K,) largest share of its demand on each path, at index d K + k.
        level: (D, C) value of a Gbit/s in each of C steps over the value in the first one, falling.
        end: (D, C) share of the demand at which each step ends.
        utility_weight: (D,) value of a Gbit/s at the share 1, for concave utilities.
        alpha: exponent of the utilities u(s) = (s^(1 - alpha) - 1) / (1 - alpha).
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

    A block is a demand; a column is one of its paths, or a shedding column: the unserved share in
    one step of stepped values.

    Attributes:
        block_ptr: (G + 1,) columns of block g are ``block_ptr[g]:block_ptr[g + 1]``.
        rate: (G,) demand, Gbit/s.
        slot: (Q,) index d K + k of path k of demand d; -1 for a shedding column.
        column_value: (Q,) c, value of all of the demand on the column, over ``scale``.
        row_ptr: (Q + 1,) rows of column q are ``row[row_ptr[q]:row_ptr[q + 1]]``, ascending.
        row: rows of all columns.
        coefficient: load that a Gbit/s of a path puts on each of its rows, one entry for each entry
            of ``row``; empty if all are 1.
        bounded: (C,) columns with an upper bound below 1.
        upper_bound: (C,) that bound.
        bound_index: (Q,) index of each column's bound in ``upper_bound``, -1 for none; empty if no
            column has one.
        utility_weight: (G,) W, value of all of the demand at the share 1, over ``scale``, for
            concave utilities; else empty.
        alpha: exponent of the utilities.
        block_row_ptr: (G + 1,) rows of block g are ``block_row[block_row_ptr[g]:block_row_ptr[g +
            1]]``, ascending.
        block_row: rows of all blocks.
        link: (n,) link of the network for each row.
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
    path_links: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    may_shed: bool,
) -> BoolArray:
    """Return (P,) whether each path can carry traffic.

    It can if its demand is above 0, its links have capacity, its largest share is above 1e-9, and
    its value and the demand's utility weight are above 0 where they count.

    Args:
        path_links: P paths of D demands in CSR form.
        terms: upper bounds and utilities of the demands.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; 0 for failed links.
        value: (D K,) value of a Gbit/s on each path, at its slot d K + k.
        may_shed: whether demand may be shed; otherwise the values of the paths do not count.
    """
    is_usable = np.zeros(len(path_links.slot), np.bool_)
    for d in range(len(demand)):
        if not demand[d] > 0:
            continue
        for p in range(path_links.path_ptr[d], path_links.path_ptr[d + 1]):
            can_carry = not may_shed or value[path_links.slot[p]] > 0
            if len(terms.max_share) > 0:
                can_carry = can_carry and terms.max_share[path_links.slot[p]] > _MIN_SHARE
            if len(terms.utility_weight) > 0:
                can_carry = can_carry and terms.utility_weight[d] > 0
            for i in range(path_links.link_ptr[p], path_links.link_ptr[p + 1]):
                can_carry = can_carry and capacity[path_links.link[i]] > 0
            is_usable[p] = can_carry
    return is_usable


@inner_kernel
def _link_rows(
    path_links: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    is_usable: BoolArray,
    may_shed: bool,
) -> Int64Array:
    """Return (E,) the row of each link that can bind, -1 for the others.

    If a value is maximised, a link can bind if the sum of the demands that can use it exceeds its
    capacity.  If the largest utilisation is minimised, it can bind if this sum exceeds its capacity
    times a lower bound on the optimum.  That bound is the largest utilisation by forced loads, the
    loads of demands all of whose paths use a link.

    Args:
        path_links: P paths of D demands in CSR form: paths of demand d are path_ptr[d]:path_ptr[d +
            1], links of path p are link[link_ptr[p]:link_ptr[p + 1]].
        terms: load coefficients of the paths.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s.
        is_usable: (P,) whether each path can carry traffic.
        may_shed: whether demand may be shed; else the largest utilisation is minimised.
    """
    num_links = len(capacity)
    has_unit_coefficients = len(terms.coefficient) == 0
    # (E,) Gbit/s: load if every demand used the link, with its largest coefficient; load of the
    # demands all of whose paths use the link.
    max_load = np.zeros(num_links)
    forced_load = np.zeros(num_links)
    # (E,) For the last demand so far that can use each link: the largest coefficient of its paths,
    # the number of its paths over the link, and its index.
    max_coefficient = np.zeros(num_links)
    num_demand_paths = np.zeros(num_links, np.int64)
    last_demand = np.full(num_links, -1)
    for d in range(len(demand)):
        num_usable = 0
        for p in range(path_links.path_ptr[d], path_links.path_ptr[d + 1]):
            if not is_usable[p]:
                continue
            num_usable += 1
            # Count the demand once for each link, at the largest coefficient of its paths.
            for i in range(path_links.link_ptr[p], path_links.link_ptr[p + 1]):
                e = path_links.link[i]
                if last_demand[e] != d:
                    last_demand[e] = d
                    num_demand_paths[e] = 0
                    max_coefficient[e] = 0.0
                coefficient = 1.0 if has_unit_coefficients else terms.coefficient[i]
                if coefficient > max_coefficient[e]:
                    max_load[e] += demand[d] * (coefficient - max_coefficient[e])
                    max_coefficient[e] = coefficient
                num_demand_paths[e] += 1
        if may_shed or num_usable == 0:
            continue
        # Forced loads: a link of every usable path is a link of the first one.
        for p in range(path_links.path_ptr[d], path_links.path_ptr[d + 1]):
            if is_usable[p]:
                for i in range(path_links.link_ptr[p], path_links.link_ptr[p + 1]):
                    e = path_links.link[i]
                    # All usable paths of the demand cross the link.
                    if num_demand_paths[e] == num_usable:
                        forced_load[e] += demand[d]
                break
    # Lower bound on the largest utilisation.
    min_utilisation = 1.0
    if not may_shed:
        min_utilisation = 0.0
        for e in range(num_links):
            if capacity[e] > 0:
                min_utilisation = max(min_utilisation, forced_load[e] / capacity[e])
    # Number the links that can bind.
    link_row = np.full(num_links, -1)
    num_rows = 0
    for e in range(num_links):
        # Rounding errors: a load slightly above the capacity fits, a load slightly below the lower
        # bound may bind.
        max_fitting_load = (
            capacity[e] * (1 + _ROUNDING)
            if may_shed
            else min_utilisation * capacity[e] * (1 - _ROUNDING)
        )
        if capacity[e] > 0 and max_load[e] > max_fitting_load:
            link_row[e] = num_rows
            num_rows += 1
    return link_row


@inner_kernel
def block_rows(
    block_ptr: Int64Array, row_ptr: Int64Array, row: IntArray, num_links: int
) -> tuple[Int64Array, IntArray]:
    """Return the rows of each block in CSR form.

    Args:
        block_ptr: (G + 1,) columns of block g are block_ptr[g]:block_ptr[g + 1].
        row_ptr: (Q + 1,) rows of column q are row[row_ptr[q]:row_ptr[q + 1]].
        row: rows of all columns.
        num_links: E, an upper bound on the number of rows.

    Returns:
        pointers (G + 1,) and rows: those of block g are rows[pointers[g]:pointers[g + 1]],
        ascending.
    """
    blocks = len(block_ptr) - 1
    block_row_ptr = np.zeros(blocks + 1, np.int64)
    block_row = np.empty(len(row), np.int32)
    # (E,) last block that has used each row.
    last_block = np.full(num_links, -1)
    count = 0
    for g in range(blocks):
        begin = count
        for i in range(row_ptr[block_ptr[g]], row_ptr[block_ptr[g + 1]]):
            r = row[i]
            if last_block[r] == g:
                continue
            last_block[r] = g
            # Insertion sort: the rows of a block ascend.
            position = count
            while position > begin and block_row[position - 1] > r:
                block_row[position] = block_row[position - 1]
                position -= 1
            block_row[position] = r
            count += 1
        block_row_ptr[g + 1] = count
    return block_row_ptr, block_row[:count]


@inner_kernel
def _write_shedding_columns(
    terms: DemandTerms,
    d: int,
    value: float,
    num_columns: int,
    column_value: FloatArray,
    upper_bound: FloatArray,
) -> tuple[int, float]:
    """Write the shedding columns of a demand whose value falls in steps, the last step first.

    Paths count each Gbit/s at the value of the first step, so that shedding seems to lose this
    value.  In step c only level[c] of it is lost; the column of the step returns the difference:
    its value is value * (1 - level[c]), its upper bound the width of the step.

    Args:
        terms: terms of all demands; level and end (D, C) describe the steps.
        d: index of the demand.
        value: value of all of the demand in the first step.
        num_columns: number of columns so far.
        column_value: (Q,) value of each column, over all of the demand; the new ones are written.
        upper_bound: (Q,) largest share of each column; the new ones are written.

    Returns:
        number of new columns, and the constant to add to the values of paths and columns, which is
        the value of serving the whole demand through its steps less ``value``.
    """
    num_new_columns = 0
    # Becomes the sum of value * level * width over the steps, less value.
    value_offset = -value
    for step in range(terms.level.shape[1] - 1, -1, -1):
        step_begin = terms.end[d, step - 1] if step > 0 else 0.0
        step_width = terms.end[d, step] - step_begin
        level = terms.level[d, step]
        value_offset += value * level * step_width
        # The first step is the unserved share of the block, without a column.
        if step > 0 and step_width > _MIN_SHARE:
            column_value[num_columns + num_new_columns] = value * (1 - level)
            upper_bound[num_columns + num_new_columns] = step_width
            num_new_columns += 1
    return num_new_columns, value_offset


@inner_kernel
def _column_bounds(upper_bound: FloatArray) -> tuple[Int64Array, FloatArray, Int64Array]:
    """Return the columns with an upper bound below 1.

    Args:
        upper_bound: (Q,) largest share of each column; 1 for none.

    Returns:
        indices (C,) of these columns, their bounds (C,), and for each column the index (Q,) of its
        bound, -1 for none; the last array is empty if C is 0.
    """
    # Count the bounds, then write them.
    num_bounded = 0
    for bound in upper_bound:
        num_bounded += bound < 1
    bounded = np.empty(num_bounded, np.int64)
    bounds = np.empty(num_bounded)
    bound_index = np.full(len(upper_bound) if num_bounded else 0, -1)
    num_bounded = 0
    for q in range(len(upper_bound)):
        if upper_bound[q] < 1:
            bounded[num_bounded] = q
            bounds[num_bounded] = upper_bound[q]
            bound_index[q] = num_bounded
            num_bounded += 1
    return bounded, bounds, bound_index


@inner_kernel
def _presolve(
    path_links: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    may_shed: bool,
    cost_base: float,
    splits: FloatArray,
) -> PresolvedProgram:
    """Return the program of one matrix over the links that can bind.

    Demands whose most valuable path has no such link, and no upper bound, are served in full.

    Args:
        path_links: P paths of D demands in CSR form: paths of demand d are path_ptr[d]:path_ptr[d +
            1], links of path p are link[link_ptr[p]:link_ptr[p + 1]], slot[p] = d K + k.
        terms: coefficients, upper bounds, steps and utilities of the demands.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; infinite for a link without a row.
        value: (D K,) value of a Gbit/s on each path; unused where all demand is served.
        may_shed: whether demand may be shed; else the largest utilisation is minimised.
        cost_base: value of a Gbit/s that costs nothing, where a cost is minimised; else 0.
        splits: (D K,) share of its demand on each path; receives those of the demands that are
            served in full.
    """
    # (P,) paths that can carry traffic; (E,) row of each link that can bind, -1 for the others.
    is_usable = _usable_paths(path_links, terms, demand, capacity, value, may_shed)
    link_row = _link_rows(path_links, terms, demand, capacity, is_usable, may_shed)
    has_unit_coefficients = len(terms.coefficient) == 0
    has_utility = len(terms.utility_weight) > 0
    has_bounds = len(terms.max_share) > 0
    num_steps = terms.level.shape[1]
    # Buffers of the program, cut to their final lengths at the end.  Block g (at most D) has the
    # columns block_ptr[g]:block_ptr[g + 1]; column q (a path or a shedding column) has the rows
    # row[row_ptr[q]:row_ptr[q + 1]] with the load coefficients at the same positions.
    max_columns = len(path_links.slot) + len(demand) * max(0, num_steps - 1)
    block_ptr = np.zeros(len(demand) + 1, np.int64)
    rate = np.empty(len(demand))
    slot = np.empty(max_columns, np.int64)
    column_value = np.empty(max_columns)
    upper_bound = np.ones(max_columns)
    row_ptr = np.zeros(max_columns + 1, np.int64)
    row = np.empty(len(path_links.link), np.int32)
    coefficient = np.empty(0 if has_unit_coefficients else len(row))
    utility_weight = np.empty(len(demand) if has_utility else 0)
    # Sizes so far; sums over the demands: best values, values of those served in full, rates, and
    # constants of the value steps of the others.
    num_blocks = num_columns = num_entries = 0
    total_best_value = fixed_value = total_demand = step_offset = 0.0
    for d in range(len(demand)):
        # The columns of the demand are removed again if it is served in full.
        first_column = num_columns
        first_entry = num_entries
        best_value = 0.0
        best_slot = -1
        is_unconstrained = False
        for p in range(path_links.path_ptr[d], path_links.path_ptr[d + 1]):
            if not is_usable[p]:
                continue
            # Rows of the path: its links that can bind.
            begin = num_entries
            for i in range(path_links.link_ptr[p], path_links.link_ptr[p + 1]):
                r = link_row[path_links.link[i]]
                if r < 0:
                    continue
                # Insertion sort: the rows of a path ascend.
                position = num_entries
                while position > begin and row[position - 1] > r:
                    row[position] = row[position - 1]
                    if not has_unit_coefficients:
                        coefficient[position] = coefficient[position - 1]
                    position -= 1
                row[position] = r
                if not has_unit_coefficients:
                    coefficient[position] = terms.coefficient[i]
                num_entries += 1
            # Value of the column, for all of the demand.
            path_value = value[path_links.slot[p]] * demand[d] if may_shed else 0.0
            if has_utility:
                path_value = terms.utility_weight[d] * demand[d]
            slot[num_columns] = path_links.slot[p]
            column_value[num_columns] = path_value
            if has_bounds:
                upper_bound[num_columns] = terms.max_share[path_links.slot[p]]
            can_carry_all = upper_bound[num_columns] >= 1
            num_columns += 1
            row_ptr[num_columns] = num_entries
            # Most valuable path; among equal values one without rows and bounds.
            is_better = best_slot < 0 or path_value > best_value
            if is_better or (path_value == best_value and num_entries == begin and can_carry_all):
                best_value = path_value
                best_slot = path_links.slot[p]
                is_unconstrained = num_entries == begin and can_carry_all
        # No usable path: the demand is not part of the program.
        if best_slot < 0:
            continue
        total_best_value += best_value
        total_demand += demand[d]
        demand_step_offset = 0.0
        if num_steps > 0:
            # All paths of a demand have the same value where it falls in steps.
            num_shedding, demand_step_offset = _write_shedding_columns(
                terms, d, best_value, num_columns, column_value, upper_bound
            )
            # Shedding columns have neither a slot nor rows.
            for q in range(num_columns, num_columns + num_shedding):
                slot[q] = -1
                row_ptr[q + 1] = num_entries
            num_columns += num_shedding
        if is_unconstrained:
            # Serve the demand in full on its best path, without a block.
            for path in range(path_links.path_ptr[d], path_links.path_ptr[d + 1]):
                splits[path_links.slot[path]] = 0.0
            splits[best_slot] = 1.0
            fixed_value += best_value + demand_step_offset
            # Remove the columns of the demand again, with their bounds and rows.
            for q in range(first_column, num_columns):
                upper_bound[q] = 1.0
            num_columns = first_column
            num_entries = first_entry
            continue
        # Keep the columns as the next block.
        step_offset += demand_step_offset
        rate[num_blocks] = demand[d]
        if has_utility:
            utility_weight[num_blocks] = best_value
        num_blocks += 1
        block_ptr[num_blocks] = num_columns
    # Scale the values: the unit is the sum of the best values of all demands.
    value_unit = total_best_value if total_best_value > 0 else 1.0
    for q in range(num_columns):
        column_value[q] /= value_unit
    for g in range(len(utility_weight)):
        utility_weight[g] /= value_unit
    # Rows of each block.
    block_row_ptr, block_row = block_rows(
        block_ptr[: num_blocks + 1], row_ptr, row[:num_entries], len(capacity)
    )
    # Link and capacity of each row.
    num_rows = 0
    link = np.empty(len(capacity), np.int64)
    row_capacity = np.empty(len(capacity))
    for e in range(len(capacity)):
        if link_row[e] >= 0:
            link[num_rows] = e
            row_capacity[num_rows] = capacity[e]
            num_rows += 1
    bounded, bounds, bound_index = _column_bounds(upper_bound[:num_columns])
    # The fields in their order, cut to their final lengths.
    return PresolvedProgram(
        # Blocks and columns.
        block_ptr[: num_blocks + 1],
        rate[:num_blocks],
        slot[:num_columns],
        column_value[:num_columns],
        # Rows of the columns, and their load coefficients.
        row_ptr[: num_columns + 1],
        row[:num_entries],
        coefficient[: 0 if has_unit_coefficients else num_entries],
        # Upper bounds of columns, and utilities of blocks.
        bounded,
        bounds,
        bound_index,
        utility_weight[: num_blocks if has_utility else 0],
        terms.alpha,
        # Rows of the blocks; link and capacity of each row.
        block_row_ptr,
        block_row,
        link[:num_rows],
        row_capacity[:num_rows],
        # scale, fixed_value, step_offset and cost_base.
        value_unit,
        fixed_value / value_unit,
        step_offset / value_unit,
        cost_base * total_demand / value_unit,
    )


@kernel
def presolve(
    path_links: PathLinks,
    terms: DemandTerms,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    may_shed: bool,
    cost_base: float,
    splits: FloatArray,
) -> PresolvedProgram:
    """Return the program of one matrix over the links that can bind.

    Args:
        path_links: P paths of D demands in CSR form: paths of demand d are path_ptr[d]:path_ptr[d +
            1], links of path p are link[link_ptr[p]:link_ptr[p + 1]], slot[p] = d K + k.
        terms: terms of the demands; :data:`NO_TERMS` for none.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; infinite for a link to leave out.
        value: (D K,) value of a Gbit/s on each path; unused where all demand is served.
        may_shed: whether demand may be shed: the value is maximised; else the largest utilisation
            is minimised.
        cost_base: value of a Gbit/s that costs nothing, where the cost of serving all demand is
            minimised: ``value`` is this less the cost of a path; else 0.
        splits: (D K,) share of its demand on each path; receives those of demands that no link
            limits, which are served in full on their best path.
    """
    return _presolve(path_links, terms, demand, capacity, value, may_shed, cost_base, splits)


@kernel
def num_schur_updates(program: PresolvedProgram) -> int:
    """Return the number of entries of the Schur complement that an iteration updates.

    The rank-one term of a path over m link rows updates m (m + 1) / 2 entries of the lower
    triangle, and so does the term of a block (demand) whose paths use m rows.
    """
    updates = 0
    for q in range(len(program.column_value)):
        length = program.row_ptr[q + 1] - program.row_ptr[q]
        updates += length * (length + 1) // 2
    for g in range(len(program.rate)):
        length = program.block_row_ptr[g + 1] - program.block_row_ptr[g]
        updates += length * (length + 1) // 2
    return updates


class Restricted(NamedTuple):
    """A restricted program, with the index of its parts in the full program.

    The full program has Q columns, G blocks (demands) and n rows (links); this one has Q', G', n'.

    Attributes:
        program: the restricted program.
        column: (Q',) index of each restricted column in the full program.
        block: (G',) index of each restricted block in the full program.
        row: (n,) for each row of the full program its index in the restricted one, -1 for none.
    """

    program: PresolvedProgram
    column: Int64Array
    block: Int64Array
    row: Int64Array


@inner_kernel
def restrict(program: PresolvedProgram, is_kept: BoolArray) -> Restricted:
    """Return the program over the columns to keep.

    Args:
        program: presolved program of Q columns without upper bounds, utilities and coefficients.
        is_kept: (Q,) columns to keep.
    """
    num_rows = len(program.capacity)
    new_row, links, capacity = _binding_rows(program, is_kept)
    # Sizes of the result.
    num_columns = 0
    num_entries = 0
    for q in range(len(is_kept)):
        if is_kept[q]:
            num_columns += 1
            num_entries += program.row_ptr[q + 1] - program.row_ptr[q]
    # Columns and blocks, in the order of the full program.
    num_full_blocks = len(program.rate)
    column = np.empty(num_columns, np.int64)
    block = np.empty(num_full_blocks, np.int64)
    block_ptr = np.zeros(num_full_blocks + 1, np.int64)
    rate = np.empty(num_full_blocks)
    slot = np.empty(num_columns, np.int64)
    column_value = np.empty(num_columns)
    row_ptr = np.zeros(num_columns + 1, np.int64)
    column_row = np.empty(num_entries, np.int32)
    # Numbers of blocks, columns and row entries so far.
    num_blocks = 0
    next_column = 0
    next_entry = 0
    for g in range(num_full_blocks):
        first_column = next_column
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            if not is_kept[q]:
                continue
            # Rows of the column that can bind in the restricted program.
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                r = new_row[program.row[i]]
                if r >= 0:
                    column_row[next_entry] = r
                    next_entry += 1
            column[next_column] = q
            slot[next_column] = program.slot[q]
            column_value[next_column] = program.column_value[q]
            next_column += 1
            row_ptr[next_column] = next_entry
        # Blocks without a column are not part of the program.
        if next_column > first_column:
            block[num_blocks] = g
            rate[num_blocks] = program.rate[g]
            num_blocks += 1
            block_ptr[num_blocks] = next_column
    block_row_ptr, block_row = block_rows(
        block_ptr[: num_blocks + 1], row_ptr, column_row[:next_entry], num_rows
    )
    restricted = PresolvedProgram(
        # Blocks and columns.
        block_ptr[: num_blocks + 1],
        rate[:num_blocks],
        slot,
        column_value,
        # Rows of the columns; no coefficients, upper bounds and utilities.
        row_ptr,
        column_row[:next_entry],
        program.coefficient,
        program.bounded,
        program.upper_bound,
        program.bound_index,
        program.utility_weight,
        program.alpha,
        # Rows of the blocks; link and capacity of each row.
        block_row_ptr,
        block_row,
        links,
        capacity,
        program.scale,
        program.fixed_value,
        program.step_offset,
        program.cost_base,
    )
    return Restricted(restricted, column, block[:num_blocks], new_row)


@inner_kernel
def _binding_rows(
    program: PresolvedProgram, is_kept: BoolArray
) -> tuple[Int64Array, Int64Array, FloatArray]:
    """Return the rows that can bind under some columns.

    These are the rows whose capacity is below the sum of the demands that can use them.

    Args:
        program: presolved program of Q columns and n rows.
        is_kept: (Q,) the columns.

    Returns:
        new index (n,) of each row, -1 for rows that cannot bind; link and capacity (n',) of each
        row that can.
    """
    num_rows = len(program.capacity)
    # (n,) Gbit/s: load if every demand used the row; the last demand that can use it.
    max_load = np.zeros(num_rows)
    last_block = np.full(num_rows, -1)
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            if not is_kept[q]:
                continue
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                r = program.row[i]
                if last_block[r] != g:
                    last_block[r] = g
                    max_load[r] += program.rate[g]
    # Number the rows that can bind.
    new_row = np.full(num_rows, -1)
    links = np.empty(num_rows, np.int64)
    capacity = np.empty(num_rows)
    num_binding_rows = 0
    for r in range(num_rows):
        if max_load[r] > program.capacity[r] * (1 + _ROUNDING):
            new_row[r] = num_binding_rows
            links[num_binding_rows] = program.link[r]
            capacity[num_binding_rows] = program.capacity[r]
            num_binding_rows += 1
    return new_row, links[:num_binding_rows], capacity[:num_binding_rows]


@inner_kernel
def full_prices(restricted: Restricted, price: FloatArray, out: FloatArray) -> None:
    """Write the prices of the full program's rows; 0 where the restricted program has no row.

    Args:
        restricted: restricted program of n' rows.
        price: (n',) dual prices.
        out: (n,) dual prices (written).
    """
    for r in range(len(out)):
        out[r] = price[restricted.row[r]] if restricted.row[r] >= 0 else 0.0
