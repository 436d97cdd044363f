"""Basis of a program over paths: key columns, working basis and its inverse.

References and symbols: :mod:`teal.solvers.simplex`.  :func:`new_basis` has all slacks and all
unserved flows; :func:`crash` builds the basis of an optimal allocation and its prices;
:func:`update_basis` and :func:`swap_key` are the operations of a pivot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.path_links import PathLinks
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, summing_kernel

# Entries of ``Basis.position`` of columns outside W.
NONBASIC = -1
KEY = -2
# Block of a slack.
NO_BLOCK = -1
# A crash basis has columns that carry more than this share of their demand.
_MIN_SHARE = 1e-6
# Flows beside the keys for each row with a price, above which a start is not a vertex and its small
# prices are ignored.
_MAX_FLOWS_PER_PRICE = 2
# Where prices are inexact, those below this part of the largest value are ignored.
_MIN_PRICE_RATIO = 1e-6
# Columns that are tried for a crash basis, for each row.
_MAX_TRIES_PER_ROW = 4
# Smallest pivot of a crash basis, and over the largest one in its column; entries of A are 0 and 1.
_MIN_PIVOT = 1e-5
_MIN_PIVOT_RATIO = 0.1


class Program(NamedTuple):
    """Program of one matrix: D blocks, P paths, n rows.

    Path p is column p, the unserved flow of block g column P + g, the slack of row r column
    P + D + r.

    Attributes:
        path_ptr: (D + 1,) the paths of block g are ``path_ptr[g]:path_ptr[g + 1]``.
        link_ptr: (P + 1,) the rows of path p are ``link[link_ptr[p]:link_ptr[p + 1]]``.
        link: rows of all paths.
        row_path_ptr: (n + 1,) the paths over row r are
            ``row_path[row_path_ptr[r]:row_path_ptr[r + 1]]``.
        row_path: paths over all rows.
        block: (P + D + n,) block of each column; NO_BLOCK for slacks.
        demand: (D,) Gbit/s.
        capacity: (n,) Gbit/s, finite.
        value: (P + D + n,) value of a Gbit/s on each column; 0 for unserved flow and slacks.
    """

    path_ptr: Int64Array
    link_ptr: Int64Array
    link: IntArray
    row_path_ptr: Int64Array
    row_path: IntArray
    block: Int64Array
    demand: FloatArray
    capacity: FloatArray
    value: FloatArray


class Basis(NamedTuple):
    """Basis of a program.

    Attributes:
        key: (D,) key column of each block.
        column: (n,) columns of W, by position.
        position: (P + D + n,) position of each column in W; NONBASIC, or KEY for keys.
        inverse: (n, n) inverse of W: a row for each position, a column for each row.
        squared_norm: (n,) squared norm of each row of the inverse.
    """

    key: Int64Array
    column: Int64Array
    position: Int64Array
    inverse: FloatArray
    squared_norm: FloatArray


def blocks_of(path_links: PathLinks, num_rows: int) -> Int64Array:
    """Return (P + D + n,) the block of each column.

    Args:
        path_links: P paths of D demands.
        num_rows: n.
    """
    num_blocks = len(path_links.path_ptr) - 1
    blocks = np.arange(num_blocks)
    path_blocks = np.repeat(blocks, np.diff(path_links.path_ptr))
    slack_blocks = np.full(num_rows, NO_BLOCK)
    return np.concatenate([path_blocks, blocks, slack_blocks]).astype(np.int64)


def paths_by_row(path_links: PathLinks, num_rows: int) -> tuple[Int64Array, IntArray]:
    """Return pointers (n + 1,) to the paths over each row, and these paths.

    Args:
        path_links: P paths.
        num_rows: n.
    """
    order = np.argsort(path_links.link, kind="stable")
    path_of_entry = np.repeat(np.arange(len(path_links.slot)), np.diff(path_links.link_ptr))
    counts = np.bincount(path_links.link, minlength=num_rows)
    row_path_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return row_path_ptr, np.ascontiguousarray(path_of_entry[order], np.int32)


def new_basis(num_paths: int, num_blocks: int, num_rows: int) -> Basis:
    """Return the basis of all unserved flows, as keys, and all slacks."""
    key = np.arange(num_paths, num_paths + num_blocks)
    column = np.arange(num_paths + num_blocks, num_paths + num_blocks + num_rows)
    position = np.full(num_paths + num_blocks + num_rows, NONBASIC)
    position[key] = KEY
    position[column] = np.arange(num_rows)
    return Basis(key, column, position, np.eye(num_rows), np.ones(num_rows))


@inner_kernel
def path_sums(program: Program, row_value: FloatArray, out: FloatArray) -> None:
    """Write A' z, the sum over the rows of each path of (n,) values z, most of which are 0.

    Args:
        program: program of P paths.
        row_value: (n,) z.
        out: (P,) sums (written).
    """
    row_path_ptr = program.row_path_ptr
    row_path = program.row_path
    out[:] = 0.0
    for r in range(len(row_value)):
        value = row_value[r]
        if value != 0:
            for i in range(row_path_ptr[r], row_path_ptr[r + 1]):
                out[row_path[i]] += value


@inner_kernel
def ftran(program: Program, basis: Basis, column: int, out: FloatArray) -> None:
    """Write u, the column q in terms of W (forward transformation, FTRAN).

    It solves W u = a[q] - a[key], with the key of the block of q; for the slack of row r, W u =
    e[r], the unit vector.

    Args:
        program: program of P paths, D blocks.
        basis: its basis.
        column: q, a column outside the basis.
        out: (n,) u (written).
    """
    num_paths = len(program.link_ptr) - 1
    block = program.block[column]
    # A slack: u is a column of the inverse.
    if block == NO_BLOCK:
        row = column - num_paths - len(program.demand)
        for i in range(len(out)):
            out[i] = basis.inverse[i, row]
        return
    # Columns of the inverse for the links of q, less those for the links of its key.
    out[:] = 0.0
    key = basis.key[block]
    for path, sign in ((column, 1.0), (key, -1.0)):
        if path < num_paths:
            for j in range(program.link_ptr[path], program.link_ptr[path + 1]):
                row = program.link[j]
                for i in range(len(out)):
                    out[i] += sign * basis.inverse[i, row]


@summing_kernel
def update_basis(basis: Basis, position: int, column: int, tableau_column: FloatArray) -> None:
    """Replace a column of the working basis W; update its inverse, and the squared norms of the
    rows of the inverse.

    Args:
        basis: the basis (written).
        position: position of the leaving column.
        column: the entering column.
        tableau_column: (n,) u, the entering column in terms of W (:func:`ftran`).
    """
    num_rows = len(tableau_column)
    leaving = basis.column[position]
    basis.position[leaving] = NONBASIC
    basis.position[column] = position
    basis.column[position] = column
    # The pivot row is divided by the pivot, and multiples of it are subtracted from the others.
    pivot_row = basis.inverse[position]
    pivot_inverse = 1 / tableau_column[position]
    squared_norm = 0.0
    for r in range(num_rows):
        entry = pivot_row[r] * pivot_inverse
        pivot_row[r] = entry
        squared_norm += entry * entry
    basis.squared_norm[position] = squared_norm
    for i in range(num_rows):
        multiple = tableau_column[i]
        if i == position or multiple == 0:
            continue
        inverse_row = basis.inverse[i]
        squared_norm = 0.0
        for r in range(num_rows):
            entry = inverse_row[r] - multiple * pivot_row[r]
            inverse_row[r] = entry
            squared_norm += entry * entry
        basis.squared_norm[i] = squared_norm


@inner_kernel
def swap_key(program: Program, basis: Basis, position: int) -> None:
    """Make the column of W at a position the key of its block, and the key a column of W.

    The columns of W of block g are a[q] - a[key].  With j the position, the new W has a[key] - a[j]
    there, and a[q] - a[j] for the others of the block, so that only row j of the inverse changes:
    to minus the sum of the block's rows.

    Args:
        program: the program.
        basis: its basis (written).
        position: position j of a path or an unserved flow.
    """
    column = basis.column[position]
    block = program.block[column]
    row = basis.inverse[position]
    # The row of the position becomes minus the sum of the rows of the block.
    for i in range(len(basis.column)):
        if i != position and program.block[basis.column[i]] == block:
            for r in range(len(row)):
                row[r] += basis.inverse[i, r]
    squared_norm = 0.0
    for r in range(len(row)):
        row[r] = -row[r]
        squared_norm += row[r] * row[r]
    basis.squared_norm[position] = squared_norm
    # Exchange the two columns.
    key = basis.key[block]
    basis.column[position] = key
    basis.position[key] = position
    basis.key[block] = column
    basis.position[column] = KEY


@inner_kernel
def set_key(basis: Basis, block: int, column: int) -> None:
    """Replace the key of a block that has no column in W.

    Args:
        basis: the basis (written).
        block: the block.
        column: its new key.
    """
    basis.position[basis.key[block]] = NONBASIC
    basis.key[block] = column
    basis.position[column] = KEY


@inner_kernel
def crash(
    program: Program,
    basis: Basis,
    path_share: FloatArray,
    price: FloatArray,
    tableau_column: FloatArray,
) -> None:
    """Build the basis of an allocation and its prices, optimal for similar demands: its largest
    flows are keys, its other flows columns of W.

    Flows enter from the largest share of their demand to the smallest, each for the slack of the
    row of the highest price; those that depend on the others are left out.

    Args:
        program: program of P paths, D blocks and n rows.
        basis: the basis (written).
        path_share: (P,) share of its demand on each path.
        price: (n,) dual prices.
        tableau_column: (n,) overwritten.
    """
    num_paths = len(path_share)
    _reset_basis(program, basis)
    # Keys, and the candidates to enter: columns above 0 with their shares.
    candidate = np.empty(len(basis.position), np.int64)
    candidate_share = np.empty(len(basis.position))
    num_candidates = 0
    # Flows above 0 beside that of the key.
    num_flows = 0
    for g in range(len(program.demand)):
        first = num_candidates
        unserved = 1.0
        # Flows above 0 beside the key: one less than the flows of the demand.
        num_flows -= 1
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            unserved -= path_share[p]
            num_flows += path_share[p] > 0
            if path_share[p] > _MIN_SHARE:
                candidate[num_candidates] = p
                candidate_share[num_candidates] = path_share[p]
                num_candidates += 1
        num_flows += unserved > _MIN_SHARE
        if unserved > _MIN_SHARE:
            candidate[num_candidates] = num_paths + g
            candidate_share[num_candidates] = unserved
            num_candidates += 1
        if num_candidates > first:
            # The largest share is the key, and no candidate: the last one takes its place.
            largest_candidate = first
            for i in range(first, num_candidates):
                if candidate_share[i] > candidate_share[largest_candidate]:
                    largest_candidate = i
            set_key(basis, g, candidate[largest_candidate])
            num_candidates -= 1
            candidate[largest_candidate] = candidate[num_candidates]
            candidate_share[largest_candidate] = candidate_share[num_candidates]
    leaving_priority = _leaving_priorities(program, price, num_flows)
    # The largest shares enter first, while there are rows whose slack may leave.
    # Number of rows whose slack may leave.
    num_left = 0
    for r in range(len(price)):
        num_left += leaving_priority[r] > 0
    for _ in range(min(num_candidates, _MAX_TRIES_PER_ROW * len(price))):
        if num_left == 0:
            return
        largest_candidate = 0
        for i in range(num_candidates):
            if candidate_share[i] > candidate_share[largest_candidate]:
                largest_candidate = i
        candidate_share[largest_candidate] = -1.0
        num_left -= _enter_for_slack(
            program, basis, candidate[largest_candidate], leaving_priority, tableau_column
        )


@inner_kernel
def _leaving_priorities(program: Program, price: FloatArray, num_flows: int) -> FloatArray:
    """Return (n,) the priority of the slack of each row to leave the basis; 0 if it stays.

    It is the price of the row: at the optimum the slack of a row with a price is 0.
    At a vertex as many paths outside the keys carry flow as rows have a price.  With many more, the
    start is not a vertex, so that its small prices are inexact and count as 0.

    Args:
        program: the program.
        price: (n,) dual prices.
        num_flows: number of flows beside the keys.
    """
    num_priced = 0
    for r in range(len(price)):
        num_priced += price[r] > 0
    min_price = 0.0
    if num_flows > _MAX_FLOWS_PER_PRICE * num_priced:
        min_price = _MIN_PRICE_RATIO * largest_value(program)
    leaving_priority = np.zeros(len(price))
    for r in range(len(price)):
        if price[r] > min_price:
            leaving_priority[r] = price[r]
    return leaving_priority


@inner_kernel
def largest_value(program: Program) -> float:
    """Return the largest value of a Gbit/s on a path."""
    largest = 0.0
    for p in range(len(program.link_ptr) - 1):
        largest = max(largest, program.value[p])
    return largest


@inner_kernel
def refactorise(program: Program, basis: Basis, tableau_column: FloatArray) -> None:
    """Compute the inverse of W anew from its columns.

    Args:
        program: the program.
        basis: its basis (written).
        tableau_column: (n,) overwritten.
    """
    first_slack = len(basis.position) - len(basis.column)
    columns = basis.column.copy()
    # The rows of the basic slacks keep them; the other columns enter for the other slacks.
    leaving_priority = np.zeros(len(columns))
    for r in range(len(columns)):
        leaving_priority[r] = 1.0
    for column in columns:
        if column >= first_slack:
            leaving_priority[column - first_slack] = 0.0
    _reset_working_basis(basis)
    for column in columns:
        if column < first_slack:
            _enter_for_slack(program, basis, column, leaving_priority, tableau_column)


@inner_kernel
def _reset_basis(program: Program, basis: Basis) -> None:
    """Return to the basis of :func:`new_basis`."""
    for g in range(len(program.demand)):
        set_key(basis, g, len(program.link_ptr) - 1 + g)
    _reset_working_basis(basis)


@inner_kernel
def _reset_working_basis(basis: Basis) -> None:
    """Make all slacks the columns of W; the keys stay."""
    num_rows = len(basis.column)
    first_slack = len(basis.position) - num_rows
    for i in range(num_rows):
        basis.position[basis.column[i]] = NONBASIC
    for i in range(num_rows):
        basis.column[i] = first_slack + i
        basis.position[first_slack + i] = i
        basis.squared_norm[i] = 1.0
        for r in range(num_rows):
            basis.inverse[i, r] = 0.0
        basis.inverse[i, i] = 1.0


@inner_kernel
def _enter_for_slack(
    program: Program,
    basis: Basis,
    column: int,
    leaving_priority: FloatArray,
    tableau_column: FloatArray,
) -> int:
    """Let a column enter W for a slack; return 1, or 0 if every pivot is too small.

    Of the slacks whose pivot is not small beside the largest one, that of the highest priority
    leaves, among equals that of the largest pivot.

    Args:
        program: the program.
        basis: basis whose W has the slack of row r at position r, if that may leave (written).
        column: the column, outside the basis.
        leaving_priority: (n,) priority of the slack of each row to leave; 0 if it stays, and once
            it has left (written).
        tableau_column: (n,) overwritten.
    """
    ftran(program, basis, column, tableau_column)
    # Largest pivot of the slacks that may leave, then the slack that leaves.
    largest_pivot = 0.0
    for r in range(len(tableau_column)):
        if leaving_priority[r] > 0:
            largest_pivot = max(largest_pivot, abs(tableau_column[r]))
    if largest_pivot < _MIN_PIVOT:
        return 0
    best = -1
    for r in range(len(tableau_column)):
        pivot = abs(tableau_column[r])
        if leaving_priority[r] > 0 and pivot > _MIN_PIVOT_RATIO * largest_pivot:
            is_better = best < 0 or leaving_priority[r] > leaving_priority[best]
            is_equal = best >= 0 and leaving_priority[r] == leaving_priority[best]
            if is_better or (is_equal and pivot > abs(tableau_column[best])):
                best = r
    update_basis(basis, best, column, tableau_column)
    leaving_priority[best] = 0.0
    return 1
