"""Restricted programs: a presolved program over some of its columns (paths).

Of a program P in which demand may be unserved, the restricted program P' keeps some columns, the
demands that have one of them, and the links that can bind under them.  Its optimum is a feasible
allocation of P; prices of its links, and 0 for the other links, give a bound by the columns of P.
When columns join, :func:`carry_over` moves an interior point of P' to the larger program.

References: column generation (Dantzig and Wolfe 1960), and in interior-point methods Gondzio,
Gonzalez-Brevis and Munari (2013), "New developments in the primal-dual column generation
technique".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.parallel import inner_kernel
from teal.solvers.interior.presolve import PresolvedProgram, block_rows
from teal.solvers.interior.starts import Iterate, axpy, link_loads, path_prices

# Relative rounding error of a sum of demands.
_ROUNDING = 1e-12
# Smallest slack of a row that joins, over its capacity.
_MIN_NEW_SLACK = 0.01
# Largest share of a column that joins.
_MAX_NEW_SHARE = 0.1


class Restricted(NamedTuple):
    """A restricted program, with the index of its parts in the full program.

    The full program has Q columns, G blocks (demands) and n rows (links); this one has Q', G', n'.

    Attributes:
        program: the restricted program.
        column: (Q',) columns of the full program.
        block: (G',) blocks of the full program.
        row: (n,) row of the restricted program for each row of the full one, -1 for none.
    """

    program: PresolvedProgram
    column: Int64Array
    block: Int64Array
    row: Int64Array


@inner_kernel
def restrict(program: PresolvedProgram, keep: BoolArray) -> Restricted:
    """Return the program over the columns to keep.

    Args:
        program: presolved program of Q columns without upper bounds, utilities and coefficients.
        keep: (Q,) columns to keep.
    """
    num_rows = len(program.capacity)
    row, links, capacity = _binding_rows(program, keep)
    # Sizes of the result.
    num_columns = 0
    num_entries = 0
    for q in range(len(keep)):
        if keep[q]:
            num_columns += 1
            num_entries += program.row_ptr[q + 1] - program.row_ptr[q]
    # Columns and blocks, in the order of the full program.
    blocks = len(program.rate)
    column = np.empty(num_columns, np.int64)
    block = np.empty(blocks, np.int64)
    block_ptr = np.zeros(blocks + 1, np.int64)
    rate = np.empty(blocks)
    slot = np.empty(num_columns, np.int64)
    column_value = np.empty(num_columns)
    row_ptr = np.zeros(num_columns + 1, np.int64)
    column_row = np.empty(num_entries, np.int32)
    num_blocks = 0
    count = 0
    entry = 0
    for g in range(blocks):
        first = count
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            if not keep[q]:
                continue
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                r = row[program.row[i]]
                if r >= 0:
                    column_row[entry] = r
                    entry += 1
            column[count] = q
            slot[count] = program.slot[q]
            column_value[count] = program.column_value[q]
            count += 1
            row_ptr[count] = entry
        # Blocks without a column are not part of the program.
        if count > first:
            block[num_blocks] = g
            rate[num_blocks] = program.rate[g]
            num_blocks += 1
            block_ptr[num_blocks] = count
    block_row_ptr, block_row = block_rows(
        block_ptr[: num_blocks + 1], row_ptr, column_row[:entry], num_rows
    )
    restricted = PresolvedProgram(
        # Blocks and columns.
        block_ptr[: num_blocks + 1],
        rate[:num_blocks],
        slot,
        column_value,
        # Rows of the columns; no coefficients, upper bounds and utilities.
        row_ptr,
        column_row[:entry],
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
    return Restricted(restricted, column, block[:num_blocks], row)


@inner_kernel
def _binding_rows(
    program: PresolvedProgram, keep: BoolArray
) -> tuple[Int64Array, Int64Array, FloatArray]:
    """Return the rows that can bind under some columns: those whose capacity is below the sum of
    the demands that can use them.

    Args:
        program: presolved program of Q columns and n rows.
        keep: (Q,) the columns.

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
            if not keep[q]:
                continue
            for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                r = program.row[i]
                if last_block[r] != g:
                    last_block[r] = g
                    max_load[r] += program.rate[g]
    # Number the rows that can bind.
    row = np.full(num_rows, -1)
    links = np.empty(num_rows, np.int64)
    capacity = np.empty(num_rows)
    count = 0
    for r in range(num_rows):
        if max_load[r] > program.capacity[r] * (1 + _ROUNDING):
            row[r] = count
            links[count] = program.link[r]
            capacity[count] = program.capacity[r]
            count += 1
    return row, links[:count], capacity[:count]


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


@inner_kernel
def carry_over(
    full: PresolvedProgram,
    old: Restricted,
    old_point: Iterate,
    mu: float,
    new: Restricted,
    point: Iterate,
) -> None:
    """Move an interior point of one restricted program to another one with more columns.

    A new column gets the share mu / z, with its reduced cost z = A' y - c - l; the multiplier l of
    its demand falls where this share would exceed a limit, and the other shares make room.  A new
    row has the price mu / slack.  The point stays dual feasible; loads differ from capacity less
    slack by the new shares, a primal residual that the next Newton steps remove.

    Args:
        full: the full program of Q columns, G blocks, n rows.
        old: restricted program of the point.
        old_point: interior point of ``old``.
        mu: mean complementarity of the point.
        new: restricted program that contains all columns of ``old``.
        point: receives the point.
    """
    program = new.program
    # (Q,) and (G,) index of each column and block in the old program, -1 for a new one.
    old_column = np.full(len(full.column_value), -1)
    for i in range(len(old.column)):
        old_column[old.column[i]] = i
    old_block = np.full(len(full.rate), -1)
    for i in range(len(old.block)):
        old_block[old.block[i]] = i
    # Present shares, and the loads (n',) that they cause.
    for q in range(len(new.column)):
        i = old_column[new.column[q]]
        point.share[q] = old_point.share[i] if i >= 0 else 0.0
    load = np.empty(len(program.capacity))
    link_loads(program, point.share, load)
    # Rows: present ones stay; a new one has the slack that the loads leave.
    for r in range(len(new.row)):
        i = new.row[r]
        if i < 0:
            continue
        if old.row[r] >= 0:
            point.price[i] = old_point.price[old.row[r]]
            point.slack[i] = old_point.slack[old.row[r]]
        else:
            capacity = program.capacity[i]
            point.slack[i] = max(capacity - load[i], _MIN_NEW_SLACK * capacity)
            point.price[i] = mu / point.slack[i]
    # (Q',) cost of each column: A' y less its value.
    cost = np.empty(len(program.column_value))
    path_prices(program, point.price, cost)
    axpy(-1.0, program.column_value, cost)
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        earlier = old_block[new.block[g]]
        # A demand without columns so far is unserved.
        point.multiplier[g] = old_point.multiplier[earlier] if earlier >= 0 else -mu
        point.unserved[g] = old_point.unserved[earlier] if earlier >= 0 else 1.0
        # The multiplier falls so far that the reduced costs z of new columns are large enough.
        multiplier = point.multiplier[g]
        for q in range(first, end):
            if old_column[new.column[q]] < 0:
                multiplier = min(multiplier, cost[q] - mu / _MAX_NEW_SHARE)
        # Unserved share, and reduced costs: falling multipliers and new rows only raise them.
        fall = point.multiplier[g] - multiplier
        point.multiplier[g] = multiplier
        point.unserved_dual[g] = fall
        point.unserved_dual[g] += old_point.unserved_dual[earlier] if earlier >= 0 else mu
        total = 1.0
        for q in range(first, end):
            i = old_column[new.column[q]]
            if i >= 0:
                least = old_point.reduced_cost[i] + fall
                point.reduced_cost[q] = max(least, cost[q] - multiplier)
            else:
                point.reduced_cost[q] = cost[q] - multiplier
                point.share[q] = mu / point.reduced_cost[q]
                total += point.share[q]
        # The shares of the demand sum to 1.
        if total > 1:
            point.unserved[g] /= total
            for q in range(first, end):
                point.share[q] /= total
