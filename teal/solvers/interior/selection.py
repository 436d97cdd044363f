"""Column selection: interior points over the paths that given dual prices leave.

The prices and splits of a model, of an earlier solve or of another engine tell which columns can
carry traffic at the optimum.  For a program in which demand may be unserved, the search

1. keeps the columns of each demand whose profit is close to its best one (:func:`select_columns`);
2. iterates on the restricted program (:func:`teal.solvers.interior.presolve.restrict`);
3. after every iteration bounds the full program by the prices of all columns, so that a wrong
   selection costs time and never the certificate;
4. lets columns join whose central share mu / z has become large, and goes on from the present
   interior point.

Min-max programs, in which every demand is served, gain nothing from it (networks of 50 and 125
nodes): most of their paths carry traffic until late.

Sources: column generation (Dantzig and Wolfe 1960) within interior points (Gondzio,
Gonzalez-Brevis and Munari 2013, "New developments in the primal-dual column generation technique",
section 3), and the build-up interior-point method of Dantzig and Ye (1991).  Entry point:
:func:`solve_selected`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import inner_kernel, kernel
from teal.solvers.interior.newton import Work, complementarity_sum, iterate
from teal.solvers.interior.presolve import (
    PresolvedProgram,
    Restricted,
    full_prices,
    restrict,
)
from teal.solvers.interior.search import (
    ThreadedNewton,
    block_schur_updates,
    largest_utilisation,
    new_work,
    relative_gap,
    set_point,
    solve,
    solve_on_threads,
    update_loads,
    updates_for_threads,
)
from teal.solvers.interior.starts import (
    WARM,
    Iterate,
    carry_over,
    cold_start,
    copy_into,
    fill,
    link_loads,
    new_iterate,
    path_prices,
    start_for_gap,
    warm_start,
)

# A column is selected if its profit is within this part of the demand's value of the best one, or
# if it has at least this share at the start.
_PROFIT_MARGIN = 0.03
_MIN_SHARE = 0.01
# A column joins when its central share mu / z exceeds this, and its reduced cost z is below this
# part of the demand's value.
_JOINING_SHARE = 0.1
_JOINING_MARGIN = 0.03
# The search over selected columns ends after so many iterations in a row in which the gap has not
# fallen below this part of its last value that counted as progress.
_MAX_STALLED = 12
_PROGRESS_RATIO = 0.9
# All programs here may leave demand unserved.
_MAY_SHED = True


class Incumbent(NamedTuple):
    """Best allocation and prices of the full program so far, and scratch of its size.

    The full program has Q columns, G blocks (demands) and n rows (links).

    Attributes:
        share: (Q,) shares of the best value.
        price: (n,) dual prices of the best bound.
        value_and_bound: (2,) best value and best bound.
        is_selected: (Q,) whether each column is in the restricted program.
        row_price: (n,) prices of the present point; 0 for rows that are left out.
        path_price: (Q,) A' y of the present point.
        multiplier: (G,) multiplier of each block at the present point; 0 for blocks left out.
    """

    share: FloatArray
    price: FloatArray
    value_and_bound: FloatArray
    is_selected: BoolArray
    row_price: FloatArray
    path_price: FloatArray
    multiplier: FloatArray


def supports(program: PresolvedProgram) -> bool:
    """Return whether columns of a program can be selected.

    It must have rows, and no upper bounds, utilities, coefficients or minimised cost.

    Args:
        program: presolved program in which demand may be unserved.
    """
    has_terms = (
        len(program.bounded)
        or len(program.utility_weight)
        or len(program.coefficient)
        or program.cost_base
    )
    return len(program.capacity) > 0 and not has_terms


@inner_kernel
def select_columns(
    program: PresolvedProgram, path_price: FloatArray, share: FloatArray, is_selected: BoolArray
) -> None:
    """Select the columns that can carry traffic at the optimum, by prices and shares.

    A column is kept if its profit c - A' y is within a margin of the best profit of its demand
    (that of the unserved share, 0, included), or if it carries a share already.

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands).
        path_price: (Q,) A' y, price of carrying all of the demand on each path.
        share: (Q,) share of its demand on each path.
        is_selected: (Q,) whether each column is kept (written).
    """
    for g in range(len(program.rate)):
        best_profit, value = _best_profit(program, path_price, g)
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            profit = program.column_value[q] - path_price[q]
            is_close = profit >= best_profit - _PROFIT_MARGIN * value
            is_selected[q] = is_close or share[q] > _MIN_SHARE


@inner_kernel
def _best_profit(program: PresolvedProgram, path_price: FloatArray, g: int) -> tuple[float, float]:
    """Return the largest profit c - A' y of a block, at least 0, and its largest value c.

    Args:
        program: presolved program of Q columns (paths).
        path_price: (Q,) A' y.
        g: index of the block.
    """
    best_profit = 0.0
    value = 0.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        best_profit = max(best_profit, program.column_value[q] - path_price[q])
        value = max(value, program.column_value[q])
    return best_profit, value


@inner_kernel
def _lagrangian_bound(
    program: PresolvedProgram, price: FloatArray, path_price: FloatArray
) -> float:
    """Return the Lagrangian bound of prices by all columns: c' y plus the best profits.

    Args:
        program: presolved program of Q columns (paths), n rows (links) of capacity c.
        price: (n,) dual prices y.
        path_price: (Q,) A' y.
    """
    bound = program.fixed_value + program.step_offset
    for r in range(len(price)):
        bound += program.capacity[r] * price[r]
    for g in range(len(program.rate)):
        best_profit, _ = _best_profit(program, path_price, g)
        bound += best_profit
    return bound


@inner_kernel
def _scaled_value(
    program: PresolvedProgram, share: FloatArray, load: FloatArray
) -> tuple[float, float]:
    """Return the value of shares, scaled down to fit the most overloaded row, and the factor.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        share: (Q,) share of its demand on each path.
        load: (n,) their loads, Gbit/s.
    """
    factor = 1.0 / largest_utilisation(program, 1.0, load)
    value = 0.0
    for q in range(len(share)):
        value += program.column_value[q] * share[q]
    return value * factor + program.fixed_value + program.step_offset, factor


@inner_kernel
def _set_up_search(
    full_program: PresolvedProgram, gap: float, splits: FloatArray, prices: FloatArray
) -> tuple[Incumbent, Restricted, Iterate, Work, bool]:
    """Certify the given splits and prices, select columns by them, and set up the search.

    Args:
        full_program: presolved program of Q columns (paths), G blocks (demands), n rows (links).
        gap: target of the certified gap.
        splits: (D K,) feasible share of its demand on each path k of demand d, at index d K + k.
        prices: (E,) dual price of each link, value per Gbit/s.

    Returns:
        incumbents, restricted program, its starting point and workspace, and whether the incumbents
        have the target gap already.
    """
    columns = len(full_program.column_value)
    rows = len(full_program.capacity)
    # Certify the given splits and prices, which are the first incumbents.
    initial_point = new_iterate(full_program)
    set_point(full_program, _MAY_SHED, splits, prices, initial_point)
    load = np.empty(rows)
    link_loads(full_program, initial_point.share, load)
    path_price = np.empty(columns)
    path_prices(full_program, initial_point.price, path_price)
    value_and_bound = np.empty(2)
    value, factor = _scaled_value(full_program, initial_point.share, load)
    bound = _lagrangian_bound(full_program, initial_point.price, path_price)
    # Values and bounds that are no numbers certify nothing.
    value_and_bound[0] = value if value > -np.inf else -np.inf
    value_and_bound[1] = bound if bound < np.inf else np.inf
    # Select columns, unless no search is needed.
    is_selected = np.zeros(columns, np.bool_)
    initial_gap = relative_gap(full_program, _MAY_SHED, value_and_bound[0], value_and_bound[1])
    is_done = initial_gap <= gap
    if not is_done:
        select_columns(full_program, path_price, initial_point.share, is_selected)
    # The first incumbent: shares that fit the capacities.
    for q in range(columns):
        initial_point.share[q] *= factor
    incumbent = Incumbent(
        initial_point.share,
        initial_point.price.copy(),
        value_and_bound,
        is_selected,
        # row_price, path_price, multiplier
        initial_point.price,
        path_price,
        np.zeros(len(full_program.rate)),
    )
    restricted = restrict(full_program, is_selected)
    # Prices far from the optimum may select nothing that could bind: all columns then.
    if len(restricted.program.capacity) == 0 and not is_done:
        is_selected[:] = True
        restricted = restrict(full_program, is_selected)
    point = new_iterate(restricted.program)
    work = new_work(restricted.program, _MAY_SHED)
    if is_done:
        return incumbent, restricted, point, work, True
    # Start near the splits and prices.
    cold_start(restricted.program, _MAY_SHED, point)
    warm_start(restricted.program, _MAY_SHED, point, splits, prices, start_for_gap(initial_gap))
    is_done = _update_incumbent(full_program, incumbent, restricted, point, work) <= gap
    return incumbent, restricted, point, work, is_done


@inner_kernel
def _update_incumbent(
    full_program: PresolvedProgram,
    incumbent: Incumbent,
    restricted: Restricted,
    point: Iterate,
    work: Work,
) -> float:
    """Update the incumbents from the present point, and return the relative gap between them.

    Args:
        full_program: presolved program of n rows (links).
        incumbent: incumbents (updated); row_price and path_price become those of the point.
        restricted: the restricted program.
        point: its present point; slacks that exceed capacity less load are reduced.
        work: its workspace; load is written.
    """
    # Allocation: it uses columns of the restricted program alone.
    update_loads(restricted.program, _MAY_SHED, point, work)
    value, factor = _scaled_value(restricted.program, point.share, work.load)
    if value > incumbent.value_and_bound[0]:
        incumbent.value_and_bound[0] = value
        fill(0.0, incumbent.share)
        for q in range(len(point.share)):
            incumbent.share[restricted.column[q]] = factor * point.share[q]
    # Bound: by all columns.
    full_prices(restricted, point.price, incumbent.row_price)
    path_prices(full_program, incumbent.row_price, incumbent.path_price)
    bound = _lagrangian_bound(full_program, incumbent.row_price, incumbent.path_price)
    if bound < incumbent.value_and_bound[1]:
        incumbent.value_and_bound[1] = bound
        copy_into(incumbent.row_price, incumbent.price)
    return relative_gap(
        full_program, _MAY_SHED, incumbent.value_and_bound[0], incumbent.value_and_bound[1]
    )


@inner_kernel
def _mark_joining_columns(
    full_program: PresolvedProgram,
    incumbent: Incumbent,
    restricted: Restricted,
    point: Iterate,
    mu: float,
) -> int:
    """Mark the columns that join the restricted program, and return their number.

    A column joins if its reduced cost z = A' y - c - l is small: so small that its central share
    mu / z exceeds a limit, and below a part of the demand's value.

    Args:
        full_program: presolved program of G blocks (demands).
        incumbent: path_price is read; ``is_selected`` and multiplier are updated.
        restricted: the restricted program.
        point: its present point.
        mu: mean complementarity of the point.
    """
    # The multiplier l of a block without columns is 0, the profit of its unserved share.
    fill(0.0, incumbent.multiplier)
    for g in range(len(restricted.block)):
        incumbent.multiplier[restricted.block[g]] = point.multiplier[g]
    count = 0
    for g in range(len(full_program.rate)):
        _, demand_value = _best_profit(full_program, incumbent.path_price, g)
        max_reduced_cost = min(mu / _JOINING_SHARE, _JOINING_MARGIN * demand_value)
        for q in range(full_program.block_ptr[g], full_program.block_ptr[g + 1]):
            reduced_cost = (
                incumbent.path_price[q] - full_program.column_value[q] - incumbent.multiplier[g]
            )
            if not incumbent.is_selected[q] and reduced_cost < max_reduced_cost:
                incumbent.is_selected[q] = True
                count += 1
    return count


@inner_kernel
def _let_columns_join(
    full_program: PresolvedProgram,
    incumbent: Incumbent,
    restricted: Restricted,
    point: Iterate,
    work: Work,
) -> tuple[Restricted, Iterate, Work, bool]:
    """Let the columns with a large central share join the restricted program.

    Args:
        full_program: presolved program.
        incumbent: incumbents of the present point; ``is_selected`` is updated.
        restricted: the restricted program.
        point: its present point.
        work: its workspace.

    Returns:
        restricted program, its point and workspace, and whether a column has joined; if none has,
        they are the arguments.
    """
    program = restricted.program
    num_pairs = len(program.column_value) + len(program.capacity) + len(program.rate)
    mu = complementarity_sum(point, work.step, _MAY_SHED, 0.0, 0.0) / num_pairs
    if not _mark_joining_columns(full_program, incumbent, restricted, point, mu):
        return restricted, point, work, False
    larger_restricted = restrict(full_program, incumbent.is_selected)
    larger_point = new_iterate(larger_restricted.program)
    carry_over(full_program, restricted, point, mu, larger_restricted, larger_point)
    larger_work = new_work(larger_restricted.program, _MAY_SHED)
    update_loads(larger_restricted.program, _MAY_SHED, larger_point, larger_work)
    return larger_restricted, larger_point, larger_work, True


@inner_kernel
def _write_solution(
    full_program: PresolvedProgram, incumbent: Incumbent, splits: FloatArray, prices: FloatArray
) -> None:
    """Write the incumbents in the layout of the network.

    Args:
        full_program: presolved program of Q columns (paths), n rows (links).
        incumbent: incumbents.
        splits: (D K,) share of its demand on each path; entries outside the program stay (written).
        prices: (E,) dual price of each link, value per Gbit/s; 0 for links without a row (written).
    """
    for q in range(len(full_program.column_value)):
        splits[full_program.slot[q]] = incumbent.share[q]
    fill(0.0, prices)
    for r in range(len(full_program.capacity)):
        prices[full_program.link[r]] = incumbent.price[r] * full_program.scale


@kernel
def _solve_on_one_thread(
    full_program: PresolvedProgram,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    stop: BoolArray,
) -> tuple[int, bool, int]:
    """Solve one program from splits and prices on one thread, over selected columns.

    :func:`solve_selected` describes the arguments.

    Returns:
        number of iterations, whether they made no more progress, which ends the search, and number
        of columns at the end.
    """
    incumbent, restricted, point, work, is_done = _set_up_search(full_program, gap, splits, prices)
    iterations = 0
    is_stuck = False
    # Smallest gap that counted as progress, and iterations since then.
    last_progress_gap = np.inf
    num_stalled = 0
    while not (is_done or is_stuck or iterations >= max_iterations or stop[0]):
        restricted, point, work, _ = _let_columns_join(
            full_program, incumbent, restricted, point, work
        )
        if iterate(restricted.program, _MAY_SHED, point, work):
            iterations += 1
            present_gap = _update_incumbent(full_program, incumbent, restricted, point, work)
            is_done = present_gap <= gap
            # Count the iterations since the gap has fallen.
            num_stalled = (
                0 if present_gap < _PROGRESS_RATIO * last_progress_gap else num_stalled + 1
            )
            last_progress_gap = present_gap if num_stalled == 0 else last_progress_gap
            is_stuck = not is_done and num_stalled >= _MAX_STALLED
        else:
            is_stuck = True
    _write_solution(full_program, incumbent, splits, prices)
    return iterations, is_stuck, len(restricted.column)


# Each kernel named *_kernel makes the function of the same name callable from Python.


@kernel
def _set_up_search_kernel(
    full_program: PresolvedProgram, gap: float, splits: FloatArray, prices: FloatArray
) -> tuple[Incumbent, Restricted, Iterate, Work, bool]:
    return _set_up_search(full_program, gap, splits, prices)


@kernel
def _let_columns_join_kernel(
    full_program: PresolvedProgram,
    incumbent: Incumbent,
    restricted: Restricted,
    point: Iterate,
    work: Work,
) -> tuple[Restricted, Iterate, Work, bool]:
    return _let_columns_join(full_program, incumbent, restricted, point, work)


@kernel
def _update_incumbent_kernel(
    full_program: PresolvedProgram,
    incumbent: Incumbent,
    restricted: Restricted,
    point: Iterate,
    work: Work,
) -> float:
    return _update_incumbent(full_program, incumbent, restricted, point, work)


@kernel
def _write_solution_kernel(
    full_program: PresolvedProgram, incumbent: Incumbent, splits: FloatArray, prices: FloatArray
) -> None:
    _write_solution(full_program, incumbent, splits, prices)


def _solve_on_several_threads(
    full_program: PresolvedProgram,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    stop: BoolArray,
    threads: int,
) -> tuple[int, bool, int]:
    """Solve one program like :func:`_solve_on_one_thread`, with the Schur complement assembled on
    several threads.
    """
    incumbent, restricted, point, work, is_done = _set_up_search_kernel(
        full_program, gap, splits, prices
    )
    iterations = 0
    is_stuck = False
    # Smallest gap that counted as progress, and iterations since then.
    last_progress_gap = np.inf
    num_stalled = 0
    with ThreadPoolExecutor(threads) as pool:

        def newton_of(program: PresolvedProgram) -> ThreadedNewton:
            return ThreadedNewton(program, _MAY_SHED, block_schur_updates(program), threads, pool)

        newton = newton_of(restricted.program)
        while not (is_done or is_stuck or iterations >= max_iterations or stop[0]):
            restricted, point, work, has_grown = _let_columns_join_kernel(
                full_program, incumbent, restricted, point, work
            )
            if has_grown:
                newton = newton_of(restricted.program)
            if newton.step(point, work):
                iterations += 1
                present_gap = _update_incumbent_kernel(
                    full_program, incumbent, restricted, point, work
                )
                is_done = present_gap <= gap
                # Count the iterations since the gap has fallen.
                num_stalled = (
                    0 if present_gap < _PROGRESS_RATIO * last_progress_gap else num_stalled + 1
                )
                last_progress_gap = present_gap if num_stalled == 0 else last_progress_gap
                is_stuck = not is_done and num_stalled >= _MAX_STALLED
            else:
                is_stuck = True
    _write_solution_kernel(full_program, incumbent, splits, prices)
    return iterations, is_stuck, len(restricted.column)


def solve_selected(
    full_program: PresolvedProgram,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    stop: BoolArray,
    *,
    on_threads: bool,
) -> tuple[int, int]:
    """Solve one program from splits and prices over selected columns, to a certified gap.

    Where iterations over selected columns make no more progress, a search over all columns goes on
    from the incumbents.

    Args:
        full_program: presolved program of one matrix that :func:`supports` allows.
        gap: target of the certified gap.
        max_iterations: largest number of iterations.
        splits: (D K,) feasible share of its demand on each path k of demand d; receives the
            solution.
        prices: (E,) dual price of each link, value per Gbit/s; receives the prices of the best
            bound.
        stop: (1,) flag that is read before each iteration: another thread may set it.
        on_threads: whether large programs may run on all threads.

    Returns:
        number of iterations, and number of columns at the end.
    """
    if on_threads and updates_for_threads(full_program) is not None:
        threads = numba.get_num_threads()
        iterations, is_stuck, columns = _solve_on_several_threads(
            full_program, gap, max_iterations, splits, prices, stop, threads
        )
    else:
        iterations, is_stuck, columns = _solve_on_one_thread(
            full_program, gap, max_iterations, splits, prices, stop
        )
    remaining = max_iterations - iterations
    if not is_stuck or stop[0] or remaining <= 0:
        return iterations, columns
    solve_all = solve_on_threads if on_threads else solve
    # False: solutions that leave demand unserved count, too.
    extra_iterations = solve_all(
        full_program, _MAY_SHED, False, gap, remaining, splits, prices, WARM, stop
    )
    return iterations + extra_iterations, len(full_program.column_value)


def warm_up_selection(
    program: PresolvedProgram, splits: FloatArray, prices: FloatArray, *, is_large: bool
) -> None:
    """Compile or load the kernels of the search, by calling each of them once.

    Args:
        program: any program that :func:`supports` allows.
        splits: (D K,) scratch for the solution.
        prices: (E,) scratch for the dual prices.
        is_large: load the kernels of programs that run on all threads, instead of the others.
    """
    stop = np.zeros(1, np.bool_)
    # Target gap 0: then one iteration.
    if is_large:
        _solve_on_several_threads(program, 0.0, 1, splits, prices, stop, 2)
    else:
        _solve_on_one_thread(program, 0.0, 1, splits, prices, stop)
