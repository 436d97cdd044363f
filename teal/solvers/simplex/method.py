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
        entering: (n,) u of the entering column.
        row: (n,) overwritten by any function.
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
    entering: FloatArray
    row: FloatArray
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
        count, status = _dual_simplex(program, basis, work, max_pivots - pivots, stop)
        pivots += count
        if status == _DONE and is_shifted:
            _restore_values(program, work)
            _compute_prices(program, basis, work)
            count, status = _primal_simplex(
                program, basis, work, max_pivots - pivots, dual_tolerance, stop
            )
            pivots += count
        if status == _LIMIT:
            return pivots, False
        # The basis is optimal if its flows are feasible after they are computed anew; otherwise the
        # next attempt starts from it.
        _compute_flows(program, basis, work)
        if status == _FAILED or _flows_have_drifted(program, basis, work):
            refactorise(program, basis, work.entering)
        elif _select_leaving(program, basis, work) < 0:
            _compute_prices(program, basis, work)
            return pivots, True
    return pivots, False


@inner_kernel
def _restore_values(program: Program, work: Work) -> None:
    """Take the costs of the program, unshifted."""
    for column in range(len(work.value)):
        work.value[column] = program.value[column]


@inner_kernel
def perturb_towards(program: Program, basis: Basis, work: Work, share: float) -> None:
    """Lower the values of nonbasic paths whose reduced cost is above 0, but at most a share of
    the value, by it, so that a basis that is nearly dual feasible becomes so.

    It is a perturbation like that of all values, by as little, but it keeps the keys.

    Args:
        program: the program; costs are written.
        basis: its basis.
        work: overwritten.
        share: largest change of a value, over the value.
    """
    num_paths = len(program.link_ptr) - 1
    _restore_values(program, work)
    _compute_prices(program, basis, work)
    for g in range(len(program.demand)):
        key = basis.key[g]
        multiplier = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            reduced_cost = work.value[p] - multiplier - work.path_price[p]
            is_small = 0 < reduced_cost <= share * program.value[p]
            if is_small and basis.position[p] == NONBASIC:
                program.value[p] -= reduced_cost


@inner_kernel
def _set_tolerances(program: Program, work: Work) -> None:
    """Set the primal feasibility tolerances: of each block's flows, then of each slack, Gbit/s."""
    num_blocks = len(program.demand)
    max_capacity = 0.0
    for row in range(len(program.capacity)):
        max_capacity = max(max_capacity, program.capacity[row])
    # No tolerance is below the rounding error of a flow.
    rounding_error = _ROUNDING * max_capacity
    for block in range(num_blocks):
        work.tolerance[block] = max(_PRIMAL_TOLERANCE * program.demand[block], rounding_error)
    for row in range(len(program.capacity)):
        work.tolerance[num_blocks + row] = max(
            _PRIMAL_TOLERANCE * program.capacity[row], rounding_error
        )


@inner_kernel
def _tolerance_of(program: Program, work: Work, column: int) -> float:
    """Return the primal feasibility tolerance of a column, Gbit/s."""
    block = program.block[column]
    if block == NO_BLOCK:
        num_paths = len(program.link_ptr) - 1
        return float(work.tolerance[column - num_paths])
    return float(work.tolerance[block])


@inner_kernel
def _compute_prices(program: Program, basis: Basis, work: Work) -> None:
    """Compute the prices y of the basis, y' W = values of its columns less those of their keys;
    count the columns of W in each block.
    """
    price = work.price
    price[:] = 0.0
    work.num_basic[:] = 0
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
    """Make the column of the highest reduced value the key of each block without a column in W.

    The prices do not depend on these keys.
    """
    num_paths = len(program.link_ptr) - 1
    for g in range(len(program.demand)):
        if work.num_basic[g] > 0:
            continue
        # The present key wins ties, up to rounding.
        key = basis.key[g]
        best = key
        best_value = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        best_value += tolerance
        unserved = num_paths + g
        if work.value[unserved] > best_value:
            best = unserved
            best_value = work.value[unserved]
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            value = work.value[p] - work.path_price[p]
            if value > best_value:
                best = p
                best_value = value
        if best != key:
            set_key(basis, g, best)


@inner_kernel
def _shift_costs(program: Program, basis: Basis, work: Work, tolerance: float) -> bool:
    """Lower the value of each column with a positive reduced cost by it; return whether one had a
    reduced cost above the tolerance.
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
        unserved = num_paths + g
        if basis.position[unserved] == NONBASIC:
            reduced_cost = work.value[unserved] - multiplier
            if reduced_cost > 0:
                work.value[unserved] -= reduced_cost
                is_shifted = is_shifted or reduced_cost > tolerance
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            if basis.position[p] != NONBASIC:
                continue
            reduced_cost = work.value[p] - multiplier - work.path_price[p]
            if reduced_cost > 0:
                work.value[p] -= reduced_cost
                is_shifted = is_shifted or reduced_cost > tolerance
    for r in range(len(work.price)):
        slack = num_paths + num_blocks + r
        # The reduced cost of a slack is its value less the price of its row.
        if basis.position[slack] == NONBASIC and work.price[r] < 0:
            work.value[slack] = work.price[r]
            is_shifted = is_shifted or work.price[r] < -tolerance
    return is_shifted


@inner_kernel
def _compute_flows(program: Program, basis: Basis, work: Work) -> None:
    """Compute the flows of the basis from the demands and capacities."""
    num_paths = len(program.link_ptr) - 1
    # Capacity that the keys leave if they carry all of their demands.
    unused = work.row
    for r in range(len(unused)):
        unused[r] = program.capacity[r]
    for g in range(len(program.demand)):
        key = basis.key[g]
        work.key_flow[g] = program.demand[g]
        if key < num_paths:
            for i in range(program.link_ptr[key], program.link_ptr[key + 1]):
                unused[program.link[i]] -= program.demand[g]
    for i in range(len(basis.column)):
        inverse_row = basis.inverse[i]
        flow = 0.0
        for r in range(len(unused)):
            flow += inverse_row[r] * unused[r]
        work.flow[i] = flow
        block = program.block[basis.column[i]]
        if block != NO_BLOCK:
            work.key_flow[block] -= flow


@inner_kernel
def _flows_have_drifted(program: Program, basis: Basis, work: Work) -> bool:
    """Return whether loads and slacks of the flows of the basis differ from the capacities."""
    num_paths = len(program.link_ptr) - 1
    first_slack = num_paths + len(program.demand)
    residual = work.row
    for r in range(len(residual)):
        residual[r] = program.capacity[r]
    largest = 0.0
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
        leaving = _select_leaving(program, basis, work)
        if leaving < 0:
            return pivots, _DONE
        if pivots >= max_pivots or stop[0]:
            return pivots, _LIMIT
        # Ratio test on the pivot row, and the entering column in terms of W.
        column, step = _entering_column(program, basis, work, basis.inverse[leaving])
        if column < 0:
            return pivots, _FAILED
        ftran(program, basis, column, work.entering)
        if not abs(work.entering[leaving]) > _MIN_PIVOT:
            return pivots, _FAILED
        _step_prices(work, basis.inverse[leaving], step)
        _pivot(program, basis, work, leaving, column)
        pivots += 1


@inner_kernel
def _select_leaving(program: Program, basis: Basis, work: Work) -> int:
    """Return the position with the largest squared infeasibility over its squared norm; -1 if the
    basis is feasible.

    An infeasible key becomes a column of W first.
    """
    best = -1
    best_score = 0.0
    is_key = False
    for i in range(len(basis.column)):
        column = basis.column[i]
        flow = work.flow[i]
        if flow < -_tolerance_of(program, work, column):
            score = flow * flow / basis.squared_norm[i]
            if score > best_score:
                best = i
                best_score = score
                is_key = False
        block = program.block[column]
        if block == NO_BLOCK:
            continue
        flow = work.key_flow[block]
        if flow < -work.tolerance[block]:
            score = flow * flow / basis.squared_norm[i]
            if score > best_score:
                best = i
                best_score = score
                is_key = True
    if is_key:
        # The largest flow of the block is its new key.
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
def _entering_column(
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
    best = -1
    best_step = np.inf
    pivot = 0.0
    # Slacks.  Among equal steps the largest pivot is the most exact.
    for r in range(len(pivot_row)):
        alpha = pivot_row[r]
        slack = num_paths + num_blocks + r
        if alpha < -_MIN_PIVOT and position[slack] == NONBASIC:
            step = min(0.0, value[slack] - work.price[r]) / alpha
            if step < best_step or (step <= _TIE * best_step and alpha < pivot):
                best = slack
                best_step = step
                pivot = alpha
    for g in range(num_blocks):
        key = basis.key[g]
        multiplier = value[key]
        key_alpha = 0.0
        if key < num_paths:
            multiplier -= path_price[key]
            key_alpha = path_alpha[key]
        # Unserved flow, then the paths.
        unserved = num_paths + g
        if key_alpha > _MIN_PIVOT and position[unserved] == NONBASIC:
            step = min(0.0, value[unserved] - multiplier) / -key_alpha
            if step < best_step or (step <= _TIE * best_step and -key_alpha < pivot):
                best = unserved
                best_step = step
                pivot = -key_alpha
        for p in range(path_ptr[g], path_ptr[g + 1]):
            alpha = path_alpha[p] - key_alpha
            if alpha < -_MIN_PIVOT and position[p] == NONBASIC:
                step = min(0.0, value[p] - multiplier - path_price[p]) / alpha
                if step < best_step or (step <= _TIE * best_step and alpha < pivot):
                    best = p
                    best_step = step
                    pivot = alpha
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
def _pivot(program: Program, basis: Basis, work: Work, leaving: int, column: int) -> None:
    """Let a column enter W at a position; update flows, basis and inverse.

    Args:
        program: the program.
        basis: the basis (written).
        work: flows (written), and u of the entering column.
        leaving: position of the leaving column, whose flow becomes 0.
        column: the entering column.
    """
    entering = work.entering
    flow = work.flow[leaving] / entering[leaving]
    for i in range(len(entering)):
        change = flow * entering[i] if i != leaving else work.flow[i]
        if change == 0:
            continue
        work.flow[i] -= change
        block = program.block[basis.column[i]]
        if block != NO_BLOCK:
            work.key_flow[block] += change
    leaving_block = program.block[basis.column[leaving]]
    if leaving_block != NO_BLOCK:
        work.num_basic[leaving_block] -= 1
    block = program.block[column]
    if block != NO_BLOCK:
        work.num_basic[block] += 1
        work.key_flow[block] -= flow
    work.flow[leaving] = flow
    update_basis(basis, leaving, column, entering)


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
        column, reduced_cost = _best_column(program, basis, work)
        if reduced_cost <= dual_tolerance:
            return pivots, _DONE
        if pivots == max_pivots or stop[0]:
            return pivots, _LIMIT
        ftran(program, basis, column, work.entering)
        position, block = _blocking(program, basis, work, column)
        if position < 0 and block < 0:
            return pivots, _FAILED
        if block >= 0 and work.num_basic[block] == 0:
            # The key itself leaves, and the column replaces it: W and prices stay.
            flow = work.key_flow[block]
            for i in range(len(work.flow)):
                work.flow[i] -= flow * work.entering[i]
                other = program.block[basis.column[i]]
                if other != NO_BLOCK:
                    work.key_flow[other] += flow * work.entering[i]
            set_key(basis, block, column)
            work.key_flow[block] = flow
            continue
        if block >= 0:
            # A key leaves after it has become a column of W.
            position = _largest_basic(program, basis, work, block)
            _swap_key(program, basis, work, position)
            ftran(program, basis, column, work.entering)
        if not abs(work.entering[position]) > _MIN_PIVOT:
            return pivots, _FAILED
        work.flow[position] = max(0.0, work.flow[position])
        path_sums(program, basis.inverse[position], work.path_alpha)
        _step_prices(work, basis.inverse[position], reduced_cost / work.entering[position])
        _pivot(program, basis, work, position, column)
    return max_pivots, _LIMIT


@inner_kernel
def _best_column(program: Program, basis: Basis, work: Work) -> tuple[int, float]:
    """Return the nonbasic column of the largest reduced cost, and this cost (Dantzig's rule).

    The multiplier of a block makes the reduced cost of its key 0.
    """
    num_paths = len(program.link_ptr) - 1
    num_blocks = len(program.demand)
    best = -1
    best_cost = -np.inf
    for r in range(len(work.price)):
        slack = num_paths + num_blocks + r
        # Slack of a link.
        reduced_cost = work.value[slack] - work.price[r]
        if reduced_cost > best_cost and basis.position[slack] == NONBASIC:
            best = slack
            best_cost = reduced_cost
    for g in range(num_blocks):
        key = basis.key[g]
        multiplier = work.value[key] - (work.path_price[key] if key < num_paths else 0.0)
        # Unserved flow of the block, then its paths.
        unserved = num_paths + g
        reduced_cost = work.value[unserved] - multiplier
        if reduced_cost > best_cost and basis.position[unserved] == NONBASIC:
            best = unserved
            best_cost = reduced_cost
        for p in range(program.path_ptr[g], program.path_ptr[g + 1]):
            reduced_cost = work.value[p] - multiplier - work.path_price[p]
            if reduced_cost > best_cost and basis.position[p] == NONBASIC:
                best = p
                best_cost = reduced_cost
    return best, best_cost


@inner_kernel
def _blocking(program: Program, basis: Basis, work: Work, column: int) -> tuple[int, int]:
    """Return what becomes 0 first as a column enters: a position of W and -1, or -1 and the block
    of a key; -1 twice if nothing does.

    Among equal ratios the larger pivot wins.

    Args:
        program: the program.
        basis: primal feasible basis.
        work: flows, and u of the entering column; key_slope is overwritten.
        column: the entering column.
    """
    slope = work.key_slope
    slope[:] = 0.0
    for i in range(len(work.flow)):
        block = program.block[basis.column[i]]
        if block != NO_BLOCK:
            slope[block] += work.entering[i]
    block = program.block[column]
    if block != NO_BLOCK:
        slope[block] -= 1.0
    position = -1
    key_block = -1
    least = np.inf
    pivot = 0.0
    for i in range(len(work.flow)):
        rate = work.entering[i]
        if rate > _MIN_PIVOT:
            ratio = max(0.0, work.flow[i]) / rate
            if ratio < least or (ratio == least and rate > pivot):
                position = i
                least = ratio
                pivot = rate
    for g in range(len(slope)):
        rate = -slope[g]
        if rate > _MIN_PIVOT:
            ratio = max(0.0, work.key_flow[g]) / rate
            if ratio < least or (ratio == least and rate > pivot):
                key_block = g
                least = ratio
                pivot = rate
    return (-1, key_block) if key_block >= 0 else (position, -1)


@inner_kernel
def _largest_basic(program: Program, basis: Basis, work: Work, block: int) -> int:
    """Return the position of the largest flow of a block in W."""
    best = -1
    for i in range(len(basis.column)):
        if program.block[basis.column[i]] == block and (best < 0 or work.flow[i] > work.flow[best]):
            best = i
    return best
