"""Dual and primal simplex iterations on a program over paths.

References and symbols: :mod:`teal.solvers.simplex`.  :func:`optimise` takes any basis to an optimal
one: costs are shifted until it is dual feasible, dual simplex iterations make it primal feasible,
and where costs were shifted, primal simplex iterations follow with the true costs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.parallel import inner_kernel
from teal.solvers.simplex.basis import (
    NO_BLOCK,
    NONBASIC,
    Basis,
    Program,
    ftran,
    largest_value,
    path_sums,
    refactorise,
    set_key,
    swap_key,
    update_basis,
)

# Primal feasibility tolerance: of a flow over the demand of its block, of a slack over the capacity
# of its row.
_PRIMAL_TOLERANCE = 1e-10
# Rounding error of a flow, over the largest capacity.
_ROUNDING = 1e-13
# Dual feasibility tolerance, over the largest value.
_DUAL_TOLERANCE = 1e-11
# Smallest pivot.
_MIN_PIVOT = 1e-7
# Residual of the link equations, over the largest capacity, above which the inverse is computed
# anew.
_MAX_DRIFT = 1e-8
# Attempts at a matrix: a basis may turn out infeasible when its flows are computed anew, or its
# inverse may be wrong.
_MAX_ATTEMPTS = 4
# Steps of the ratio test that are equal up to rounding.
_TIE = 1 + 1e-9
# How a phase ends: with its kind of feasibility, at a limit, or by numerical errors.
_DONE = 0
_LIMIT = 1
_FAILED = 2


class Work(NamedTuple):
    """Iterate and workspace.

    Attributes:
        value: (P + D + n,) value of a Gbit/s on each column in the iteration, which may be shifted.
        price: (n,) dual prices y.
        path_price: (P,) A' y, price of each path.
        path_alpha: (P,) A' rho, sum of the pivot row over the rows of each path.
        flow: (n,) flow of the columns of W, Gbit/s.
        key_flow: (D,) flow of the keys, Gbit/s.
        tolerance: (D + n,) primal feasibility tolerance for flows of each block and the slack of
            each row, Gbit/s.
        num_basic: (D,) number of columns of W in each block.
        tableau_column: (n,) u, the entering column in terms of W.
        row_scratch: (n,) overwritten by any function.
        key_slope: (D,) change of the flow of each key for a Gbit/s of the entering column.
    """

    value: FloatArray
    price: FloatArray
    path_price: FloatArray
    path_alpha: FloatArray
    flow: FloatArray
    key_flow: FloatArray
    tolerance: FloatArray
    num_basic: Int64Array
    tableau_column: FloatArray
    row_scratch: FloatArray
    key_slope: FloatArray


def new_work(num_paths: int, num_blocks: int, num_rows: int) -> Work:
    """Return the workspace of programs of a size."""
    return Work(
        np.zeros(num_paths + num_blocks + num_rows),
        np.zeros(num_rows),
        np.zeros(num_paths),
        np.zeros(num_paths),
        np.zeros(num_rows),
        np.zeros(num_blocks),
        np.zeros(num_blocks + num_rows),
        np.zeros(num_blocks, np.int64),
        np.zeros(num_rows),
        np.zeros(num_rows),
        np.zeros(num_blocks),
    )


@inner_kernel
def optimise(
    program: Program, basis: Basis, work: Work, max_pivots: int, stop: BoolArray
) -> tuple[int, bool]:
    """Take a basis to an optimal one.

    Args:
        program: the program.
        basis: any basis (written).
        work: workspace; receives flows and prices of the last basis.
        max_pivots: largest number of pivots.
        stop: (1,) flag at which the iteration ends.

    Returns:
        number of pivots, and whether the basis is optimal.
    """
    dual_tolerance = _DUAL_TOLERANCE * largest_value(program)
    _set_tolerances(program, work)
    pivots = 0
    for _ in range(_MAX_ATTEMPTS):
        # Dual feasible start: the best key column of each block (generalized upper bounding) at the
        # prices of the basis, then shifted costs.
        _restore_values(program, work)
        _compute_prices(program, basis, work)
        _choose_keys(program, basis, work, dual_tolerance)
        is_shifted = _shift_costs(program, basis, work, dual_tolerance)
        # Primal feasibility, then the true costs.
        _compute_flows(program, basis, work)
        phase_pivots, status = _dual_simplex(program, basis, work, max_pivots - pivots, stop)
        pivots += phase_pivots
        if status == _DONE and is_shifted:
            _restore_values(program, work)
            _compute_prices(program, basis, work)
            phase_pivots, status = _primal_simplex(
                program, basis, work, max_pivots - pivots, dual_tolerance, stop
            )
            pivots += phase_pivots
        if status == _LIMIT:
            return pivots, False
        # The basis is optimal if its flows are feasible after they are computed anew; otherwise the
        # next attempt starts from it.
        _compute_flows(program, basis, work)
        if status == _FAILED or _flows_have_drifted(program, basis, work):
            refactorise(program, basis, work.tableau_column)
        elif _select_leaving(program, basis, work) < 0:
            _compute_prices(program, basis, work)
            return pivots, True
    return pivots, False


@inner_kernel
def _restore_values(program: Program, work: Work) -> None:
    """Reset the value of each column to that of the program, without shifts."""
    for column in range(len(work.value)):
        work.value[column] = program.value[column]


@inner_kernel
def perturb_to_dual_feasible(
    program: Program, basis: Basis, work: Work, max_relative_change: float
) -> None:
    """Make a nearly dual feasible basis dual feasible by a small perturbation of values.

    The value of each nonbasic path whose reduced cost is above 0, but small, falls by that cost.
    The keys stay.

    Args:
        program: the program; ``value`` is written.
        basis: its basis.
        work: overwritten.
        max_relative_change: largest change of a value, over the value.
    """
    num_paths = len(program.link_ptr) - 1
    _restore_values(program, work)
    _compute_prices(program, basis, work)
    for g in range(len(program.demand)):
        key = basis.key[g]
        multiplier = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            reduced_cost = work.value[p] - multiplier - work.path_price[p]
            is_small = 0 < reduced_cost <= max_relative_change * program.value[p]
            if is_small and basis.position[p] == NONBASIC:
                program.value[p] -= reduced_cost


@inner_kernel
def _set_tolerances(program: Program, work: Work) -> None:
    """Set the primal feasibility tolerances: of each block's flows, then of each slack, Gbit/s."""
    num_blocks = len(program.demand)
    max_capacity = 0.0
    for r in range(len(program.capacity)):
        max_capacity = max(max_capacity, program.capacity[r])
    # No tolerance is below the rounding error of a flow.
    rounding_error = _ROUNDING * max_capacity
    for block in range(num_blocks):
        work.tolerance[block] = max(_PRIMAL_TOLERANCE * program.demand[block], rounding_error)
    for r in range(len(program.capacity)):
        work.tolerance[num_blocks + r] = max(
            _PRIMAL_TOLERANCE * program.capacity[r], rounding_error
        )


@inner_kernel
def _tolerance_of(program: Program, work: Work, column: int) -> float:
    """Return the primal feasibility tolerance of a column, Gbit/s."""
    block = program.block[column]
    if block == NO_BLOCK:
        # Slack of row r: column P + D + r, tolerance D + r.
        num_paths = len(program.link_ptr) - 1
        return float(work.tolerance[column - num_paths])
    return float(work.tolerance[block])


@inner_kernel
def _compute_prices(program: Program, basis: Basis, work: Work) -> None:
    """Compute the prices y of the basis, and count the columns of W in each block.

    They solve y' W = values of the columns of W less those of their keys.
    """
    price = work.price
    price[:] = 0.0
    work.num_basic[:] = 0
    # y is the sum over the columns of W of (value less that of the key) times the inverse's row.
    for i in range(len(basis.column)):
        column = basis.column[i]
        column_value = work.value[column]
        block = program.block[column]
        if block != NO_BLOCK:
            work.num_basic[block] += 1
            column_value -= work.value[basis.key[block]]
        if column_value != 0:
            inverse_row = basis.inverse[i]
            for r in range(len(price)):
                price[r] += column_value * inverse_row[r]
    path_sums(program, price, work.path_price)


@inner_kernel
def _choose_keys(program: Program, basis: Basis, work: Work, tolerance: float) -> None:
    """Make the best column the key of each block without a column in W.

    The best column has the largest value less path price.  The prices do not depend on these keys.
    """
    num_paths = len(program.link_ptr) - 1
    for g in range(len(program.demand)):
        if work.num_basic[g] > 0:
            continue
        # The present key wins ties, up to rounding.
        key = basis.key[g]
        best = key
        best_reduced_value = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        best_reduced_value += tolerance
        unserved_column = num_paths + g
        if work.value[unserved_column] > best_reduced_value:
            best = unserved_column
            best_reduced_value = work.value[unserved_column]
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            reduced_value = work.value[p] - work.path_price[p]
            if reduced_value > best_reduced_value:
                best = p
                best_reduced_value = reduced_value
        if best != key:
            set_key(basis, g, best)


@inner_kernel
def _shift_costs(program: Program, basis: Basis, work: Work, tolerance: float) -> bool:
    """Lower the value of each nonbasic column with a positive reduced cost by that cost.

    Return whether some reduced cost was above the tolerance.
    """
    num_paths = len(program.link_ptr) - 1
    num_blocks = len(program.demand)
    is_shifted = False
    for g in range(num_blocks):
        # The keys of the other blocks were chosen.
        if work.num_basic[g] == 0:
            continue
        key = basis.key[g]
        multiplier = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        unserved_column = num_paths + g
        if basis.position[unserved_column] == NONBASIC:
            reduced_cost = work.value[unserved_column] - multiplier
            if reduced_cost > 0:
                work.value[unserved_column] -= reduced_cost
                is_shifted = is_shifted or reduced_cost > tolerance
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            if basis.position[p] != NONBASIC:
                continue
            reduced_cost = work.value[p] - multiplier - work.path_price[p]
            if reduced_cost > 0:
                work.value[p] -= reduced_cost
                is_shifted = is_shifted or reduced_cost > tolerance
    for r in range(len(work.price)):
        slack_column = num_paths + num_blocks + r
        # The reduced cost of a slack is its value less the price of its row.
        if basis.position[slack_column] == NONBASIC and work.price[r] < 0:
            work.value[slack_column] = work.price[r]
            is_shifted = is_shifted or work.price[r] < -tolerance
    return is_shifted


@inner_kernel
def _compute_flows(program: Program, basis: Basis, work: Work) -> None:
    """Compute the flows of the basis from the demands and capacities."""
    num_paths = len(program.link_ptr) - 1
    # Capacity that the keys leave if they carry all of their demands.
    unused_capacity = work.row_scratch
    for r in range(len(unused_capacity)):
        unused_capacity[r] = program.capacity[r]
    for g in range(len(program.demand)):
        key = basis.key[g]
        work.key_flow[g] = program.demand[g]
        if key < num_paths:
            for i in range(program.link_ptr[key], program.link_ptr[key + 1]):
                unused_capacity[program.link[i]] -= program.demand[g]
    # A column of W carries its row of the inverse times this capacity; its key the rest of the
    # demand.
    for i in range(len(basis.column)):
        inverse_row = basis.inverse[i]
        flow = 0.0
        for r in range(len(unused_capacity)):
            flow += inverse_row[r] * unused_capacity[r]
        work.flow[i] = flow
        block = program.block[basis.column[i]]
        if block != NO_BLOCK:
            work.key_flow[block] -= flow


@inner_kernel
def _flows_have_drifted(program: Program, basis: Basis, work: Work) -> bool:
    """Return whether loads and slacks of the flows of the basis differ from the capacities."""
    num_paths = len(program.link_ptr) - 1
    first_slack = num_paths + len(program.demand)
    residual = work.row_scratch
    for r in range(len(residual)):
        residual[r] = program.capacity[r]
    largest = 0.0
    # Subtract the slacks, and the loads of the columns of W and of the keys.
    for i in range(len(basis.column)):
        column = basis.column[i]
        if column >= first_slack:
            residual[column - first_slack] -= work.flow[i]
        elif column < num_paths:
            for j in range(program.link_ptr[column], program.link_ptr[column + 1]):
                residual[program.link[j]] -= work.flow[i]
    for g in range(len(program.demand)):
        key = basis.key[g]
        if key < num_paths:
            for j in range(program.link_ptr[key], program.link_ptr[key + 1]):
                residual[program.link[j]] -= work.key_flow[g]
    for r in range(len(residual)):
        largest = max(largest, program.capacity[r])
    # NaN counts as drift.
    num_exact = 0
    for r in range(len(residual)):
        num_exact += abs(residual[r]) <= _MAX_DRIFT * largest
    return num_exact < len(residual)


@inner_kernel
def _dual_simplex(
    program: Program, basis: Basis, work: Work, max_pivots: int, stop: BoolArray
) -> tuple[int, int]:
    """Pivot from a dual feasible basis until it is primal feasible.

    Args:
        program: the program.
        basis: dual feasible basis at the costs of ``work`` (written).
        work: costs, prices and flows of the basis (written).
        max_pivots: largest number of pivots.
        stop: (1,) flag at which the iteration ends.

    Returns:
        number of pivots, and _DONE for a primal feasible basis, _LIMIT or _FAILED.
    """
    pivots = 0
    while True:
        leaving_position = _select_leaving(program, basis, work)
        if leaving_position < 0:
            return pivots, _DONE
        if pivots >= max_pivots or stop[0]:
            return pivots, _LIMIT
        # Ratio test on the pivot row, and the entering column in terms of W.
        entering_column, step = _dual_entering_column(
            program, basis, work, basis.inverse[leaving_position]
        )
        if entering_column < 0:
            return pivots, _FAILED
        ftran(program, basis, entering_column, work.tableau_column)
        if not abs(work.tableau_column[leaving_position]) > _MIN_PIVOT:
            return pivots, _FAILED
        _step_prices(work, basis.inverse[leaving_position], step)
        _pivot(program, basis, work, leaving_position, entering_column)
        pivots += 1


@inner_kernel
def _select_leaving(program: Program, basis: Basis, work: Work) -> int:
    """Return the position of the leaving column (dual steepest edge); -1 if the basis is feasible.

    It has the largest squared infeasibility over the squared norm of its row of the inverse.  An
    infeasible key becomes a column of W first.
    """
    best = -1
    best_score = 0.0
    is_key_infeasible = False
    for i in range(len(basis.column)):
        column = basis.column[i]
        flow = work.flow[i]
        if flow < -_tolerance_of(program, work, column):
            score = flow * flow / basis.squared_norm[i]
            if score > best_score:
                best = i
                best_score = score
                is_key_infeasible = False
        # The key of the column's block; a key without columns in W carries all of its demand.
        block = program.block[column]
        if block == NO_BLOCK:
            continue
        flow = work.key_flow[block]
        if flow < -work.tolerance[block]:
            score = flow * flow / basis.squared_norm[i]
            if score > best_score:
                best = i
                best_score = score
                is_key_infeasible = True
    if is_key_infeasible:
        # The largest flow of the block becomes its key, and the infeasible key a column of W.
        block = program.block[basis.column[best]]
        for i in range(len(basis.column)):
            if program.block[basis.column[i]] == block and work.flow[i] > work.flow[best]:
                best = i
        _swap_key(program, basis, work, best)
    return best


@inner_kernel
def _swap_key(program: Program, basis: Basis, work: Work, position: int) -> None:
    """Make the column of W at a position the key of its block, with its flow."""
    block = program.block[basis.column[position]]
    flow = work.flow[position]
    work.flow[position] = work.key_flow[block]
    work.key_flow[block] = flow
    swap_key(program, basis, position)


@inner_kernel
def _dual_entering_column(
    program: Program, basis: Basis, work: Work, pivot_row: FloatArray
) -> tuple[int, float]:
    """Return the nonbasic column whose reduced cost becomes 0 first as the leaving flow grows, and
    the step of the prices along the pivot row.

    With alpha the entry of a column in the pivot row, its reduced cost changes from d <= 0 to d -
    step alpha; the leaving flow is below 0, and grows by columns with alpha < 0.

    Args:
        program: the program.
        basis: dual feasible basis.
        work: costs and prices; path_alpha is written.
        pivot_row: (n,) row of the inverse at the leaving position.
    """
    num_paths = len(program.link_ptr) - 1
    num_blocks = len(program.demand)
    path_ptr = program.path_ptr
    position = basis.position
    value = work.value
    path_price = work.path_price
    path_alpha = work.path_alpha
    path_sums(program, pivot_row, path_alpha)
    # Ratio test: smallest step; reduced costs that rounding has made positive count as 0.
    best = -1
    best_step = np.inf
    best_alpha = 0.0
    # Slacks.  Among equal steps the largest pivot is the most exact.
    for r in range(len(pivot_row)):
        alpha = pivot_row[r]
        slack_column = num_paths + num_blocks + r
        if alpha < -_MIN_PIVOT and position[slack_column] == NONBASIC:
            step = min(0.0, value[slack_column] - work.price[r]) / alpha
            if step < best_step or (step <= _TIE * best_step and alpha < best_alpha):
                best = slack_column
                best_step = step
                best_alpha = alpha
    for g in range(num_blocks):
        # Multiplier of the block, and entry of its key, which its other columns subtract.
        key = basis.key[g]
        multiplier = value[key]
        key_alpha = 0.0
        if key < num_paths:
            multiplier -= path_price[key]
            key_alpha = path_alpha[key]
        # Unserved flow, whose entry is minus that of the key, then the paths.
        unserved_column = num_paths + g
        if key_alpha > _MIN_PIVOT and position[unserved_column] == NONBASIC:
            step = min(0.0, value[unserved_column] - multiplier) / -key_alpha
            if step < best_step or (step <= _TIE * best_step and -key_alpha < best_alpha):
                best = unserved_column
                best_step = step
                best_alpha = -key_alpha
        for p in range(path_ptr[g], path_ptr[g + 1]):
            alpha = path_alpha[p] - key_alpha
            if alpha < -_MIN_PIVOT and position[p] == NONBASIC:
                step = min(0.0, value[p] - multiplier - path_price[p]) / alpha
                if step < best_step or (step <= _TIE * best_step and alpha < best_alpha):
                    best = p
                    best_step = step
                    best_alpha = alpha
    return best, best_step


@inner_kernel
def _step_prices(work: Work, pivot_row: FloatArray, step: float) -> None:
    """Add a step along the pivot row to the prices of rows and paths.

    Args:
        work: prices (written), and A' rho of the pivot row.
        pivot_row: (n,) rho.
        step: the step.
    """
    for r in range(len(pivot_row)):
        work.price[r] += step * pivot_row[r]
    for p in range(len(work.path_price)):
        work.path_price[p] += step * work.path_alpha[p]


@inner_kernel
def _pivot(
    program: Program, basis: Basis, work: Work, leaving_position: int, entering_column: int
) -> None:
    """Let a column enter W at a position; update flows, basis and inverse.

    Args:
        program: the program.
        basis: the basis (written).
        work: flows (written), and u of the entering column.
        leaving_position: position of the leaving column, whose flow becomes 0.
        entering_column: the entering column.
    """
    tableau_column = work.tableau_column
    # Flow of the entering column at which that of the leaving one is 0; the keys balance their
    # blocks.
    entering_flow = work.flow[leaving_position] / tableau_column[leaving_position]
    for i in range(len(tableau_column)):
        flow_decrease = entering_flow * tableau_column[i] if i != leaving_position else work.flow[i]
        if flow_decrease == 0:
            continue
        work.flow[i] -= flow_decrease
        block = program.block[basis.column[i]]
        if block != NO_BLOCK:
            work.key_flow[block] += flow_decrease
    # Count the columns of W in each block.
    leaving_block = program.block[basis.column[leaving_position]]
    if leaving_block != NO_BLOCK:
        work.num_basic[leaving_block] -= 1
    block = program.block[entering_column]
    if block != NO_BLOCK:
        work.num_basic[block] += 1
        work.key_flow[block] -= entering_flow
    work.flow[leaving_position] = entering_flow
    update_basis(basis, leaving_position, entering_column, tableau_column)


@inner_kernel
def _primal_simplex(
    program: Program,
    basis: Basis,
    work: Work,
    max_pivots: int,
    dual_tolerance: float,
    stop: BoolArray,
) -> tuple[int, int]:
    """Pivot from a primal feasible basis until it is dual feasible.

    Args:
        program: the program.
        basis: primal feasible basis (written).
        work: costs, prices and flows of the basis (written).
        max_pivots: largest number of pivots.
        dual_tolerance: dual feasibility tolerance.
        stop: (1,) flag at which the iteration ends.

    Returns:
        number of pivots, and _DONE for a dual feasible basis, _LIMIT or _FAILED.
    """
    for pivots in range(max_pivots + 1):
        # Entering column, and ratio test: position of W or key that becomes 0 first.
        entering_column, reduced_cost = _primal_entering_column(program, basis, work)
        if reduced_cost <= dual_tolerance:
            return pivots, _DONE
        if pivots == max_pivots or stop[0]:
            return pivots, _LIMIT
        ftran(program, basis, entering_column, work.tableau_column)
        leaving_position, key_block = _primal_ratio_test(program, basis, work, entering_column)
        if leaving_position < 0 and key_block < 0:
            return pivots, _FAILED
        if key_block >= 0 and work.num_basic[key_block] == 0:
            # The key itself leaves, and the column replaces it: W and prices stay.
            entering_flow = work.key_flow[key_block]
            for i in range(len(work.flow)):
                work.flow[i] -= entering_flow * work.tableau_column[i]
                basic_block = program.block[basis.column[i]]
                if basic_block != NO_BLOCK:
                    work.key_flow[basic_block] += entering_flow * work.tableau_column[i]
            set_key(basis, key_block, entering_column)
            work.key_flow[key_block] = entering_flow
            continue
        if key_block >= 0:
            # A key leaves after it has become a column of W.
            leaving_position = _largest_basic(program, basis, work, key_block)
            _swap_key(program, basis, work, leaving_position)
            ftran(program, basis, entering_column, work.tableau_column)
        if not abs(work.tableau_column[leaving_position]) > _MIN_PIVOT:
            return pivots, _FAILED
        # Set a leaving flow that rounding has made negative to 0; then update prices, flows and
        # basis.
        work.flow[leaving_position] = max(0.0, work.flow[leaving_position])
        path_sums(program, basis.inverse[leaving_position], work.path_alpha)
        _step_prices(
            work,
            basis.inverse[leaving_position],
            reduced_cost / work.tableau_column[leaving_position],
        )
        _pivot(program, basis, work, leaving_position, entering_column)
    return max_pivots, _LIMIT


@inner_kernel
def _primal_entering_column(program: Program, basis: Basis, work: Work) -> tuple[int, float]:
    """Return the nonbasic column of the largest reduced cost, and this cost (Dantzig's rule).

    The multiplier of a block makes the reduced cost of its key 0.
    """
    num_paths = len(program.link_ptr) - 1
    num_blocks = len(program.demand)
    best = -1
    best_cost = -np.inf
    for r in range(len(work.price)):
        slack_column = num_paths + num_blocks + r
        # Slack of a link.
        reduced_cost = work.value[slack_column] - work.price[r]
        if reduced_cost > best_cost and basis.position[slack_column] == NONBASIC:
            best = slack_column
            best_cost = reduced_cost
    for g in range(num_blocks):
        key = basis.key[g]
        multiplier = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        # Unserved flow of the block, then its paths.
        unserved_column = num_paths + g
        reduced_cost = work.value[unserved_column] - multiplier
        if reduced_cost > best_cost and basis.position[unserved_column] == NONBASIC:
            best = unserved_column
            best_cost = reduced_cost
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            reduced_cost = work.value[p] - multiplier - work.path_price[p]
            if reduced_cost > best_cost and basis.position[p] == NONBASIC:
                best = p
                best_cost = reduced_cost
    return best, best_cost


@inner_kernel
def _primal_ratio_test(program: Program, basis: Basis, work: Work, column: int) -> tuple[int, int]:
    """Return the flow that becomes 0 first as a column enters (ratio test).

    The result is a position of W and -1, or -1 and the block of a key; -1 twice if no flow falls.
    Among equal ratios the larger pivot wins.

    Args:
        program: the program.
        basis: primal feasible basis.
        work: flows, and u of the entering column; key_slope is overwritten.
        column: the entering column.
    """
    slope = work.key_slope
    slope[:] = 0.0
    # Change of the flow of each key for a Gbit/s of the entering column.
    for i in range(len(work.flow)):
        block = program.block[basis.column[i]]
        if block != NO_BLOCK:
            slope[block] += work.tableau_column[i]
    block = program.block[column]
    if block != NO_BLOCK:
        slope[block] -= 1.0
    position = -1
    key_block = -1
    min_ratio = np.inf
    pivot = 0.0
    # Ratios of the columns of W, then of the keys.
    for i in range(len(work.flow)):
        flow_decrease = work.tableau_column[i]
        if flow_decrease > _MIN_PIVOT:
            ratio = max(0.0, work.flow[i]) / flow_decrease
            if ratio < min_ratio or (ratio == min_ratio and flow_decrease > pivot):
                position = i
                min_ratio = ratio
                pivot = flow_decrease
    for g in range(len(slope)):
        flow_decrease = -slope[g]
        if flow_decrease > _MIN_PIVOT:
            ratio = max(0.0, work.key_flow[g]) / flow_decrease
            if ratio < min_ratio or (ratio == min_ratio and flow_decrease > pivot):
                key_block = g
                min_ratio = ratio
                pivot = flow_decrease
    return (-1, key_block) if key_block >= 0 else (position, -1)


@inner_kernel
def _largest_basic(program: Program, basis: Basis, work: Work, block: int) -> int:
    """Return the position of the largest flow of a block in W."""
    best = -1
    for i in range(len(basis.column)):
        if program.block[basis.column[i]] == block and (best < 0 or work.flow[i] > work.flow[best]):
            best = i
    return best
