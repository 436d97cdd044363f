"""Interior-point search to a certified gap.

Iterates :func:`teal.solvers.interior.newton.iterate` from a cold or warm start.  After each
iteration the shares, scaled to fit the capacities, give a primal value, and the prices a dual
bound; the best of each are the incumbents, and their relative difference is the gap.  Entry points:
:func:`solve` on one thread, :func:`solve_on_threads` with S assembled on all threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from scipy.linalg.lapack import dpotrf

from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import inner_kernel, kernel
from teal.solvers.interior.newton import (
    Work,
    accumulate_schur,
    cholesky,
    complementarity_sum,
    copy_iterate,
    init_schur,
    iterate,
    predict_and_correct,
    regularise,
    update_utility_terms,
)
from teal.solvers.interior.presolve import PresolvedProgram
from teal.solvers.interior.starts import (
    COLD,
    Iterate,
    Start,
    carried_shares,
    cold_start,
    copy_into,
    fill,
    link_loads,
    new_iterate,
    path_prices,
    power_of,
    start_for_gap,
    warm_start,
)

# An optimum with shedding: the sum of products, over the value, and the unserved share.
_CONVERGED_COMPLEMENTARITY = 1e-9
_MAX_UNSERVED = 1e-6
# Gaps of costs are relative to at least this part of the cost of leaving all demand unserved.
_MIN_RELATIVE_COST = 1e-9
# Relative overload of a row that counts as rounding, where all demand must be served.
_ROUNDING = 1e-10
# Smallest carried share in a utility, whose logarithm is finite.
_MIN_CARRIED = 1e-300
# Factor to which a slack may shrink where recentring raised the load.
_MIN_SLACK_FACTOR = 0.5


@inner_kernel
def _max_utilisation(program: PresolvedProgram, lower: float, load: FloatArray) -> float:
    """Return the largest utilisation of a row, at least ``lower``."""
    max_utilisation = lower
    for r in range(len(load)):
        max_utilisation = max(max_utilisation, load[r] / program.capacity[r])
    return max_utilisation


@inner_kernel
def _utility(alpha: float, share: float) -> float:
    """Return u(s) of :mod:`teal.problem.curves`."""
    power = 1 - alpha
    if power == 0:
        return float(np.log(share))
    return float(np.expm1(power * np.log(share)) / power)


@inner_kernel
def _utility_inverse(alpha: float, utility: float) -> float:
    """Return the share of a utility: the inverse of u, at most 1."""
    utility = min(0.0, utility)
    power = 1 - alpha
    if power == 0:
        return float(np.exp(utility))
    return float(np.exp(np.log1p(max(-1.0, power * utility)) / power))


@inner_kernel
def _primal_value(
    program: PresolvedProgram, share: FloatArray, scale_down: float, work: Work
) -> float:
    """Return the value of shares divided by ``scale_down`` >= 1.

    With concave utilities it is W (u(s) + 1); for values that fall in steps it is a lower bound.
    Demands outside the blocks are not included.
    """
    total = program.step_offset
    if len(program.utility_weight) > 0:
        carried_shares(program, share, work.carried)
        for g in range(len(program.rate)):
            carried = min(1.0, work.carried[g] / scale_down)
            total += program.utility_weight[g] * (_utility(program.alpha, carried) + 1)
        return total
    for q in range(len(share)):
        total += program.column_value[q] * share[q]
    return total / scale_down


@inner_kernel
def _fully_served_value(
    program: PresolvedProgram, share: FloatArray, scaled: FloatArray, load: FloatArray
) -> float:
    """Return the value with the shares of each block scaled to a sum of 1.

    Args:
        program: program of the matrix.
        share: (Q,) shares.
        scaled: (Q,) receives the scaled shares.
        load: (n,) receives their loads.

    Returns:
        value; -inf where a row is overloaded.
    """
    total = 0.0
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        share_sum = 0.0
        for q in range(first, end):
            share_sum += share[q]
        for q in range(first, end):
            scaled[q] = share[q] / share_sum
            total += program.column_value[q] * scaled[q]
    link_loads(program, scaled, load)
    for r in range(len(load)):
        if not load[r] <= program.capacity[r] * (1 + _ROUNDING):
            return -np.inf
    return total + program.fixed_value


@inner_kernel
def _sort_columns(
    program: PresolvedProgram,
    path_price: FloatArray,
    g: int,
    profit: FloatArray,
    upper_bound: FloatArray,
) -> int:
    """Sort the columns of a block by falling profit c - A' y.

    Args:
        program: program of the matrix.
        path_price: (Q,) A' y.
        g: index of the block.
        profit: receives the profits.
        upper_bound: receives the upper bounds, in the same order.

    Returns:
        number of columns.
    """
    first = program.block_ptr[g]
    has_limits = len(program.bound_index) > 0
    count = program.block_ptr[g + 1] - first
    for i in range(count):
        q = first + i
        column_bound = 1.0
        if has_limits and program.bound_index[q] >= 0:
            column_bound = program.upper_bound[program.bound_index[q]]
        column_profit = program.column_value[q] - path_price[q]
        position = i
        while position > 0 and profit[position - 1] < column_profit:
            profit[position] = profit[position - 1]
            upper_bound[position] = upper_bound[position - 1]
            position -= 1
        profit[position] = column_profit
        upper_bound[position] = column_bound
    return int(count)


@inner_kernel
def _write_unconstrained_shares(program: PresolvedProgram, splits: FloatArray) -> None:
    """Write the shares of a program without rows.

    Columns of the largest value come first, each up to its upper bound.
    """
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        unserved = 1.0
        for q in range(first, end):
            if program.slot[q] >= 0:
                splits[program.slot[q]] = 0.0
        for _ in range(end - first):
            best = -1
            for q in range(first, end):
                is_open = program.slot[q] >= 0 and splits[program.slot[q]] == 0
                if is_open and (best < 0 or program.column_value[q] > program.column_value[best]):
                    best = q
            if best < 0 or unserved <= 0:
                break
            share = unserved
            if len(program.bound_index) > 0 and program.bound_index[best] >= 0:
                share = min(unserved, program.upper_bound[program.bound_index[best]])
            splits[program.slot[best]] = share
            unserved -= share


@inner_kernel
def _bounded_profits(program: PresolvedProgram, path_price: FloatArray) -> float:
    """Return the sum of the largest profits of blocks whose columns have upper bounds."""
    total = 0.0
    num_columns = len(program.column_value)
    profit = np.empty(num_columns)
    upper_bound = np.empty(num_columns)
    for g in range(len(program.rate)):
        count = _sort_columns(program, path_price, g, profit, upper_bound)
        unserved = 1.0
        for i in range(count):
            if profit[i] <= 0 or unserved <= 0:
                break
            total += profit[i] * min(unserved, upper_bound[i])
            unserved -= upper_bound[i]
    return total


@inner_kernel
def _utility_profits(program: PresolvedProgram, path_price: FloatArray) -> float:
    """Return the sum over blocks of max W (u(s) + 1) less the price of the share s.

    The cheapest column is filled first, up to the share whose marginal utility is its price.
    """
    total = 0.0
    num_columns = len(program.column_value)
    alpha = program.alpha
    profit = np.empty(num_columns)
    upper_bound = np.empty(num_columns)
    for g in range(len(program.rate)):
        count = _sort_columns(program, path_price, g, profit, upper_bound)
        weight = program.utility_weight[g]
        carried = 0.0
        paid = 0.0
        for i in range(count):
            # The value of a column is W.
            price = max(weight - profit[i], 0.0)
            optimal_share = 1.0
            if price > weight:
                optimal_share = power_of(price / weight, -1 / alpha) if alpha > 0 else 0.0
            added = min(1.0, carried + upper_bound[i], optimal_share) - carried
            if added <= 0:
                break
            paid += price * added
            carried += added
        total += weight * (_utility(alpha, max(carried, _MIN_CARRIED)) + 1) - paid
    return total


@inner_kernel
def _dual_bound(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    price: FloatArray,
    path_price: FloatArray,
) -> float:
    """Return the Lagrangian dual bound of link prices.

    It is an upper bound on the value, or a lower bound on the largest utilisation.
    """
    capacity_term = 0.0
    for r in range(len(price)):
        capacity_term += program.capacity[r] * price[r]
    profit = 0.0
    if len(program.utility_weight) > 0:
        profit = _utility_profits(program, path_price)
    elif len(program.bound_index) > 0:
        profit = _bounded_profits(program, path_price)
    else:
        for g in range(len(program.rate)):
            first = program.block_ptr[g]
            end = program.block_ptr[g + 1]
            best_profit = (
                0.0
                if sheds and not must_serve_all
                else program.column_value[first] - path_price[first]
            )
            for q in range(first, end):
                best_profit = max(best_profit, program.column_value[q] - path_price[q])
            profit += best_profit
    if sheds:
        return capacity_term + profit + program.fixed_value + program.step_offset
    return -profit / capacity_term


@inner_kernel
def _new_work(program: PresolvedProgram, sheds: bool) -> Work:
    blocks = len(program.rate)
    paths = len(program.column_value)
    rows = len(program.capacity)
    # Value and bound before the first point.
    incumbent = np.empty(2)
    incumbent[0], incumbent[1] = (-np.inf, np.inf) if sheds else (np.inf, -np.inf)
    return Work(
        new_iterate(program),
        new_iterate(program),
        new_iterate(program),
        np.empty(paths),
        np.empty(blocks),
        np.zeros(blocks),
        np.zeros(blocks),
        np.zeros(blocks),
        np.empty(paths),
        np.empty(paths),
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        np.empty((rows, rows)),
        np.zeros(1),
        np.zeros(paths),
        np.zeros(rows),
        incumbent,
    )


@inner_kernel
def _update_incumbent(
    program: PresolvedProgram, sheds: bool, must_serve_all: bool, at: Iterate, work: Work
) -> float:
    """Update the incumbents from the present point, and return their relative gap."""
    link_loads(program, at.share, work.load)
    path_prices(program, at.price, work.path_price)
    for r in range(len(program.capacity)):
        capacity = program.capacity[r] if sheds else program.capacity[r] * at.theta[0]
        slack = capacity - work.load[r]
        if _MIN_SLACK_FACTOR * at.slack[r] < slack < at.slack[r]:
            at.slack[r] = slack
    bound = _dual_bound(program, sheds, must_serve_all, at.price, work.path_price)
    sense = 1.0 if sheds else -1.0
    if must_serve_all:
        value = _fully_served_value(program, at.share, work.column_scratch, work.primal_residual)
        if work.incumbent[0] == -np.inf or value > work.incumbent[0]:
            work.incumbent[0] = value
            copy_into(work.column_scratch, work.incumbent_share)
    else:
        # Shares are scaled down to fit the most overloaded row.
        max_utilisation = _max_utilisation(program, 1.0 if sheds else 0.0, work.load)
        value = (
            _primal_value(program, at.share, max_utilisation, work) + program.fixed_value
            if sheds
            else max_utilisation
        )
        if sense * value > sense * work.incumbent[0]:
            work.incumbent[0] = value
            factor = 1.0 / max_utilisation if sheds else 1.0
            for q in range(len(at.share)):
                work.incumbent_share[q] = factor * at.share[q]
    if sense * bound < sense * work.incumbent[1]:
        work.incumbent[1] = bound
        copy_into(at.price, work.incumbent_price)
    value = work.incumbent[0]
    bound = work.incumbent[1]
    if len(program.utility_weight) > 0:
        # Gaps are those of the equivalent common share.
        value = _utility_inverse(program.alpha, value - 1)
        bound = _utility_inverse(program.alpha, bound - 1)
    reference = bound if sheds else value
    if program.cost_base > 0:
        reference = max(program.cost_base - value, _MIN_RELATIVE_COST * program.cost_base)
    gap = sense * (bound - value)
    if gap == np.inf:
        return np.inf
    return gap / reference if reference > 0 else 0.0


@inner_kernel
def _starting_point(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    start: Start,
    splits: FloatArray,
    prices: FloatArray,
) -> tuple[Iterate, Work, bool]:
    """Return the starting point, the workspace, and whether the gap is reached already."""
    at = new_iterate(program)
    work = _new_work(program, sheds)
    if start.is_warm and start.initial_mu == 0:
        given_gap = _gap_of_given(program, sheds, must_serve_all, splits, prices, work)
        if given_gap <= gap:
            return at, work, True
        start = start_for_gap(given_gap)
    cold_start(program, sheds, at)
    if start.is_warm:
        warm_start(program, sheds, at, splits, prices, start)
    return at, work, _is_converged(program, sheds, must_serve_all, gap, at, work)


@inner_kernel
def _gap_of_given(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    splits: FloatArray,
    prices: FloatArray,
    work: Work,
) -> float:
    """Return the certified gap of given splits (D K,) and prices (E,), the first incumbents."""
    point = work.previous_step
    rows = len(program.capacity)
    has_limits = len(program.bound_index) > 0
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        carried = 0.0
        for q in range(first, end):
            point.share[q] = splits[program.slot[q]] if program.slot[q] >= 0 else 0.0
            carried += point.share[q]
        unserved = max(0.0, 1 - carried)
        # Shedding columns take the unserved share, the last step first.
        for q in range(first, end):
            if program.slot[q] < 0:
                bound = program.bound_index[q] if has_limits else -1
                upper_bound = program.upper_bound[bound] if bound >= 0 else 1.0
                point.share[q] = min(upper_bound, unserved)
                unserved -= point.share[q]
        # Where all demand is served, the shares of a demand sum to 1.
        for q in range(first, end):
            if not sheds:
                point.share[q] = point.share[q] / carried if carried > 0 else 1.0 / (end - first)
    for r in range(rows):
        point.price[r] = prices[program.link[r]] / program.scale
    return _update_incumbent(program, sheds, must_serve_all, point, work)


@inner_kernel
def _is_converged(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    at: Iterate,
    work: Work,
) -> bool:
    """Return whether the search may end.

    It ends at the target gap.  Where all demand must be served but no such point was found, it also
    ends at the optimum with shedding, in which unserved demand is worth less than the traffic that
    it would displace.
    """
    if _update_incumbent(program, sheds, must_serve_all, at, work) <= gap:
        return True
    if work.incumbent[0] != -np.inf or not np.isfinite(work.incumbent[1]):
        return False
    max_unserved = 0.0
    for unserved in at.unserved:
        max_unserved = max(max_unserved, unserved)
    return max_unserved > _MAX_UNSERVED and bool(
        complementarity_sum(at, work.step, sheds, 0.0, 0.0) < _CONVERGED_COMPLEMENTARITY
    )


@inner_kernel
def _restart_cold(program: PresolvedProgram, sheds: bool, at: Iterate, work: Work) -> None:
    """Restart from a cold start after a warm one has failed; incumbents stay."""
    copy_iterate(new_iterate(program), work.step)
    cold_start(program, sheds, at)


@inner_kernel
def _write_solution(
    program: PresolvedProgram, work: Work, splits: FloatArray, prices: FloatArray
) -> None:
    """Write the incumbent shares and prices."""
    for q in range(len(program.column_value)):
        if program.slot[q] >= 0:
            splits[program.slot[q]] = work.incumbent_share[q]
    fill(0.0, prices)
    for r in range(len(program.capacity)):
        prices[program.link[r]] = work.incumbent_price[r] * program.scale


@kernel
def solve(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
) -> int:
    """Solve one program on one thread.

    Args:
        program: presolved program of one matrix.
        sheds: whether demand may be shed (:func:`teal.solvers.interior.presolve.presolve`).
        must_serve_all: whether only points that serve all demand count, and bounds may rely on it.
        gap: target of the certified gap.
        max_iterations: largest number of iterations.
        splits: (D K,) feasible splits of a warm start; receives the shares.
        prices: (E,) dual prices of a warm start; receives the prices.
        start: cold or warm start.
        stop: (1,) flag that is read before each iteration: another thread may set it.

    Returns:
        number of iterations.
    """
    if len(program.rate) == 0 or len(program.capacity) == 0:
        fill(0.0, prices)
        _write_unconstrained_shares(program, splits)
        return 0
    at, work, is_done = _starting_point(program, sheds, must_serve_all, gap, start, splits, prices)
    is_warm = start.is_warm
    iterations = 0
    while not is_done:
        if iterations >= max_iterations or stop[0]:
            break
        if iterate(program, sheds, at, work):
            iterations += 1
        elif is_warm:
            is_warm = False
            _restart_cold(program, sheds, at, work)
        else:
            break
        is_done = _is_converged(program, sheds, must_serve_all, gap, at, work)
    _write_solution(program, work, splits, prices)
    return iterations


# Separate kernels for the parts of an iteration, for programs so large that S is assembled on
# several threads and factored by LAPACK.  Programs with fewer columns do not even count the updates
# of S; that many updates take about 5 ms, from which a second thread pays.
_MIN_LARGE_COLUMNS = 10_000
_MIN_LARGE_UPDATES = 3_000_000


@kernel
def _starting_point_kernel(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    start: Start,
    splits: FloatArray,
    prices: FloatArray,
) -> tuple[Iterate, Work, bool]:
    return _starting_point(program, sheds, must_serve_all, gap, start, splits, prices)


@kernel
def _is_converged_kernel(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    at: Iterate,
    work: Work,
) -> bool:
    return _is_converged(program, sheds, must_serve_all, gap, at, work)


@kernel
def _restart_cold_kernel(program: PresolvedProgram, sheds: bool, at: Iterate, work: Work) -> None:
    _restart_cold(program, sheds, at, work)


@kernel
def _write_solution_kernel(
    program: PresolvedProgram, work: Work, splits: FloatArray, prices: FloatArray
) -> None:
    _write_solution(program, work, splits, prices)


@kernel
def _update_utility_terms_kernel(program: PresolvedProgram, at: Iterate, work: Work) -> None:
    update_utility_terms(program, at, work)


@kernel
def _accumulate_schur_kernel(
    program: PresolvedProgram,
    sheds: bool,
    at: Iterate,
    work: Work,
    schur: FloatArray,
    first: int,
    end: int,
    has_slacks: bool,
) -> None:
    """Compute the terms of some blocks of S, with the diagonal if ``has_slacks``."""
    if has_slacks:
        init_schur(at, schur)
    else:
        for row in schur:
            fill(0.0, row)
    accumulate_schur(program, sheds, at, work, schur, first, end)


@kernel
def _add_lower_triangle(s: FloatArray, out: FloatArray) -> None:
    """Add a lower triangle to another one."""
    for i in range(len(s)):
        for j in range(i + 1):
            out[i, j] += s[i, j]


@kernel
def _regularise_kernel(program: PresolvedProgram, sheds: bool, work: Work) -> None:
    regularise(program, sheds, work)


@kernel
def _cholesky_kernel(s: FloatArray) -> None:
    cholesky(s)


@kernel
def _predict_and_correct_kernel(
    program: PresolvedProgram, sheds: bool, at: Iterate, work: Work
) -> bool:
    return predict_and_correct(program, sheds, at, work)


def solve_on_threads(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
) -> int:
    """Solve one program, on all threads where that is faster.

    The threads assemble S, and LAPACK factors it.  Arguments and result: :func:`solve`.
    """
    threads = numba.get_num_threads()
    updates = np.zeros(0)
    if threads > 1 and len(program.column_value) >= _MIN_LARGE_COLUMNS and len(program.capacity):
        updates = _schur_updates_of_blocks(program)
    if updates.sum() < _MIN_LARGE_UPDATES:
        return solve(
            program, sheds, must_serve_all, gap, max_iterations, splits, prices, start, stop
        )
    return _solve_by_steps(
        program,
        sheds,
        must_serve_all,
        gap,
        max_iterations,
        splits,
        prices,
        start,
        stop,
        updates=updates,
        threads=threads,
    )


def _solve_by_steps(
    program: PresolvedProgram,
    sheds: bool,
    must_serve_all: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
    *,
    updates: FloatArray,
    threads: int,
) -> int:
    """Solve one program by separate kernels, with S assembled on ``threads`` threads.

    Args:
        program, sheds, must_serve_all, gap, max_iterations, splits, prices, start, stop: as in
            :func:`solve`.
        updates: (G,) rank-one updates of S by each block.
        threads: number of threads.
    """
    at, work, is_done = _starting_point_kernel(
        program, sheds, must_serve_all, gap, start, splits, prices
    )
    last_blocks = np.searchsorted(
        np.cumsum(updates), updates.sum() * np.arange(1, threads) / threads
    )
    ptr = [0, *(int(end) + 1 for end in last_blocks), len(program.rate)]
    partial_schur = [work.schur, *(np.empty_like(work.schur) for _ in range(threads - 1))]
    is_warm = start.is_warm
    iterations = 0
    with ThreadPoolExecutor(threads) as pool:

        def accumulate_part(part: int) -> None:
            schur = partial_schur[part]
            is_first = part == 0
            _accumulate_schur_kernel(
                program, sheds, at, work, schur, ptr[part], ptr[part + 1], is_first
            )

        def assemble_schur() -> None:
            _update_utility_terms_kernel(program, at, work)
            list(pool.map(accumulate_part, range(threads)))
            for schur_of_thread in partial_schur[1:]:
                _add_lower_triangle(schur_of_thread, work.schur)
            _regularise_kernel(program, sheds, work)

        while not is_done:
            if iterations >= max_iterations or stop[0]:
                break
            assemble_schur()
            _, info = dpotrf(work.schur.T, lower=0, overwrite_a=1, clean=0)
            if info:
                assemble_schur()
                _cholesky_kernel(work.schur)
            if _predict_and_correct_kernel(program, sheds, at, work):
                iterations += 1
            elif is_warm:
                is_warm = False
                _restart_cold_kernel(program, sheds, at, work)
            else:
                break
            is_done = _is_converged_kernel(program, sheds, must_serve_all, gap, at, work)
    _write_solution_kernel(program, work, splits, prices)
    return iterations


# Two threads even on one core, since the sum of two parts of S is a kernel, too.
_WARM_UP_THREADS = 2


def may_be_large(num_columns: int) -> bool:
    """Return whether :func:`solve_on_threads` may use threads for so many columns."""
    return numba.get_num_threads() > 1 and num_columns >= _MIN_LARGE_COLUMNS


def warm_up_steps(program: PresolvedProgram, splits: FloatArray, prices: FloatArray) -> None:
    """Call the kernels of a search on threads once, so that they are compiled or loaded.

    Args:
        program: any program that may shed demand and has rows.
        splits, prices: as in :func:`solve`.
    """
    options = program, True, False, 0.0
    _solve_by_steps(
        *options,
        1,
        splits,
        prices,
        COLD,
        np.zeros(1, np.bool_),
        updates=np.ones(len(program.rate)),
        threads=_WARM_UP_THREADS,
    )
    # Kernels that run only where LAPACK or a warm start fails.
    at, work, _ = _starting_point_kernel(*options, COLD, splits, prices)
    _cholesky_kernel(np.eye(len(program.capacity)))
    _restart_cold_kernel(program, True, at, work)


def _schur_updates_of_blocks(program: PresolvedProgram) -> FloatArray:
    """Return the number (G,) of entries of S that each block updates."""
    path_lengths = np.diff(program.row_ptr)
    block_sizes = np.diff(program.block_row_ptr)
    cumulative = np.append(0, np.cumsum(path_lengths * (path_lengths + 1) // 2))
    path_updates = np.diff(cumulative[program.block_ptr])
    return np.asarray(path_updates + block_sizes * (block_sizes + 1) // 2, np.float64)
