"""Iterations until a certified gap; what is kept is the best of both sides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from scipy.linalg.lapack import dpotrf

from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import inner_kernel, kernel
from teal.solvers.interior.newton import (
    Work,
    add_blocks,
    advance,
    begin_system,
    bend_rests,
    copy,
    factor,
    iterate,
    product_sum,
    regularise,
)
from teal.solvers.interior.reduction import Reduced
from teal.solvers.interior.starts import (
    COLD,
    Iterate,
    Start,
    carried_shares,
    cold_start,
    fill,
    loads,
    near_gap,
    new_iterate,
    path_prices,
    power_of,
    put,
    warm_start,
)

# Sum of the products, over all value, of an optimum; and share of a demand that it does not carry.
_AT_END, _LEFT = 1e-9, 1e-6
_LEAST_COST = 1e-9  # of what leaving all demand costs; a gap is relative to at least that
_ROUNDING = 1e-10  # of a limit, by which loads of a whole allocation may exceed it
_LEAST_CARRIED = 1e-300  # share of a demand of which there is a utility
_LEAST_SLACK = 0.5  # of a slack, to which it may fall where loads were raised


@inner_kernel
def _fullest(program: Reduced, least: float, load: FloatArray) -> float:
    """The largest load over limit, at least ``least``."""
    most = least
    for r in range(len(load)):
        most = max(most, load[r] / program.limit[r])
    return most


@inner_kernel
def _utility(alpha: float, share: float) -> float:
    """u(s) of :mod:`teal.problem.curves`."""
    power = 1 - alpha
    if power == 0:
        return float(np.log(share))
    return float(np.expm1(power * np.log(share)) / power)


@inner_kernel
def _share_of(alpha: float, utility: float) -> float:
    """The share of a utility, at most 1: the inverse of u."""
    utility, power = min(0.0, utility), 1 - alpha
    if power == 0:
        return float(np.exp(utility))
    return float(np.exp(np.log1p(max(-1.0, power * utility)) / power))


@inner_kernel
def _value_of(program: Reduced, share: FloatArray, most: float, work: Work) -> float:
    """Value of shares divided by a number of at least 1, or less where it falls in steps: W (u(s) +
    1) of concave utilities; without that of the demands that need no block.
    """
    total = program.in_steps
    if len(program.worth) > 0:
        carried_shares(program, share, work.carried)
        for g in range(len(program.rate)):
            part = min(1.0, work.carried[g] / most)
            total += program.worth[g] * (_utility(program.alpha, part) + 1)
        return total
    for q in range(len(share)):
        total += program.gain[q] * share[q]
    return total / most


@inner_kernel
def _whole_value_of(
    program: Reduced, share: FloatArray, whole: FloatArray, load: FloatArray
) -> float:
    """Value of shares of which those of a block are scaled to a sum of 1; -inf where they overload
    a row.

    Args:
        program: program of the matrix.
        share: (Q,).
        whole: (Q,) receives the scaled shares.
        load: (n,) receives their loads.
    """
    total = 0.0
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        given = 0.0
        for q in range(first, end):
            given += share[q]
        for q in range(first, end):
            whole[q] = share[q] / given
            total += program.gain[q] * whole[q]
    loads(program, whole, load)
    for r in range(len(load)):
        if not load[r] <= program.limit[r] * (1 + _ROUNDING):
            return -np.inf
    return total + program.fixed


@inner_kernel
def _sort_block(
    program: Reduced, path_price: FloatArray, g: int, profit: FloatArray, room: FloatArray
) -> int:
    """Profits of a block's columns, falling, and how large a share each may carry; their number."""
    first, has_limits = program.block_ptr[g], len(program.limit_of) > 0
    count = program.block_ptr[g + 1] - first
    for i in range(count):
        q, largest = first + i, 1.0
        if has_limits and program.limit_of[q] >= 0:
            largest = program.largest[program.limit_of[q]]
        of_column, place = program.gain[q] - path_price[q], i
        while place > 0 and profit[place - 1] < of_column:
            profit[place], room[place] = profit[place - 1], room[place - 1]
            place -= 1
        profit[place], room[place] = of_column, largest
    return int(count)


@inner_kernel
def _fill_blocks(program: Reduced, splits: FloatArray) -> None:
    """Write the shares of a program without rows, of which limits of columns alone divide demands:
    the column of the largest value first.
    """
    for g in range(len(program.rate)):
        first, end, left = program.block_ptr[g], program.block_ptr[g + 1], 1.0
        for q in range(first, end):
            if program.slot[q] >= 0:
                splits[program.slot[q]] = 0.0
        for _ in range(end - first):
            best = -1
            for q in range(first, end):
                is_open = program.slot[q] >= 0 and splits[program.slot[q]] == 0
                if is_open and (best < 0 or program.gain[q] > program.gain[best]):
                    best = q
            if best < 0 or left <= 0:
                break
            room = left
            if len(program.limit_of) > 0 and program.limit_of[best] >= 0:
                room = min(left, program.largest[program.limit_of[best]])
            splits[program.slot[best]] = room
            left -= room


@inner_kernel
def _best_fillings(program: Reduced, path_price: FloatArray) -> float:
    """The largest profits of blocks whose columns have limits: the best column first."""
    total, most = 0.0, len(program.gain)
    profit, room = np.empty(most), np.empty(most)
    for g in range(len(program.rate)):
        count, left = _sort_block(program, path_price, g, profit, room), 1.0
        for i in range(count):
            if profit[i] <= 0 or left <= 0:
                break
            total += profit[i] * min(left, room[i])
            left -= room[i]
    return total


@inner_kernel
def _best_utilities(program: Reduced, path_price: FloatArray) -> float:
    """The largest W (u(s) + 1) of blocks less what the share s pays: the cheapest column first, up
    to where the next part is worth less than its price.
    """
    total, most, alpha = 0.0, len(program.gain), program.alpha
    profit, room = np.empty(most), np.empty(most)
    for g in range(len(program.rate)):
        count = _sort_block(program, path_price, g, profit, room)
        worth, carried, paid = program.worth[g], 0.0, 0.0
        for i in range(count):
            price, alone = max(worth - profit[i], 0.0), 1.0  # a column gains W
            if price > worth:
                alone = power_of(price / worth, -1 / alpha) if alpha > 0 else 0.0
            part = min(1.0, carried + room[i], alone) - carried
            if part <= 0:
                break
            paid += price * part
            carried += part
        total += worth * (_utility(alpha, max(carried, _LEAST_CARRIED)) + 1) - paid
    return total


@inner_kernel
def _bound_of(
    program: Reduced, sheds: bool, is_whole: bool, price: FloatArray, path_price: FloatArray
) -> float:
    """The bound that prices prove: an upper limit of the value, or a lower one of the
    utilisation.
    """
    of_rows = 0.0
    for r in range(len(price)):
        of_rows += program.limit[r] * price[r]
    total = 0.0
    if len(program.worth) > 0:
        total = _best_utilities(program, path_price)
    elif len(program.limit_of) > 0:
        total = _best_fillings(program, path_price)
    else:
        for g in range(len(program.rate)):
            first, end = program.block_ptr[g], program.block_ptr[g + 1]
            best = 0.0 if sheds and not is_whole else program.gain[first] - path_price[first]
            for q in range(first, end):
                best = max(best, program.gain[q] - path_price[q])
            total += best
    if sheds:
        return of_rows + total + program.fixed + program.in_steps
    return -total / of_rows


@inner_kernel
def _new_work(program: Reduced, sheds: bool) -> Work:
    blocks, paths, rows = len(program.rate), len(program.gain), len(program.limit)
    figures = np.empty(2)  # of nothing
    figures[0], figures[1] = (-np.inf, np.inf) if sheds else (np.inf, -np.inf)
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
        figures,
    )


@inner_kernel
def _measure(program: Reduced, sheds: bool, is_whole: bool, at: Iterate, work: Work) -> float:
    """Keep the best shares and prices; the certified gap."""
    loads(program, at.share, work.load)
    path_prices(program, at.price, work.path_price)
    for r in range(len(program.limit)):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        room = limit - work.load[r]
        if _LEAST_SLACK * at.slack[r] < room < at.slack[r]:
            at.slack[r] = room
    bound = _bound_of(program, sheds, is_whole, at.price, work.path_price)
    sense = 1.0 if sheds else -1.0
    if is_whole:
        value = _whole_value_of(program, at.share, work.of_path, work.missing)
        if work.figures[0] == -np.inf or value > work.figures[0]:
            work.figures[0] = value
            put(work.of_path, work.best_share)
    else:
        # Shares that overload a row are scaled down.
        most = _fullest(program, 1.0 if sheds else 0.0, work.load)
        value = _value_of(program, at.share, most, work) + program.fixed if sheds else most
        if sense * value > sense * work.figures[0]:
            work.figures[0] = value
            scaled = 1.0 / most if sheds else 1.0
            for q in range(len(at.share)):
                work.best_share[q] = scaled * at.share[q]
    if sense * bound < sense * work.figures[1]:
        work.figures[1] = bound
        put(at.price, work.best_price)
    value, bound = work.figures[0], work.figures[1]
    if len(program.worth) > 0:  # of the equivalent common share
        value, bound = _share_of(program.alpha, value - 1), _share_of(program.alpha, bound - 1)
    high = bound if sheds else value
    if program.base > 0:
        high = max(program.base - value, _LEAST_COST * program.base)
    gap = sense * (bound - value)
    if gap == np.inf:
        return np.inf
    return gap / high if high > 0 else 0.0


@inner_kernel
def _begin(
    program: Reduced,
    sheds: bool,
    is_whole: bool,
    gap: float,
    start: Start,
    splits: FloatArray,
    prices: FloatArray,
) -> tuple[Iterate, Work, bool]:
    """The first point, the space that iterations need, and whether none is needed."""
    at, work = new_iterate(program), _new_work(program, sheds)
    if start.is_warm and start.target == 0:
        given = _gap_of_given(program, sheds, is_whole, splits, prices, work)
        if given <= gap:
            return at, work, True
        start = near_gap(given)
    cold_start(program, sheds, at)
    if start.is_warm:
        warm_start(program, sheds, at, splits, prices, start)
    return at, work, _is_done(program, sheds, is_whole, gap, at, work)


@inner_kernel
def _gap_of_given(
    program: Reduced,
    sheds: bool,
    is_whole: bool,
    splits: FloatArray,
    prices: FloatArray,
    work: Work,
) -> float:
    """The certified gap of given splits (D K,) and prices (E,), which are kept as the best so
    far.
    """
    given, rows, has_limits = work.kept, len(program.limit), len(program.limit_of) > 0
    for g in range(len(program.rate)):
        first, end, carried = program.block_ptr[g], program.block_ptr[g + 1], 0.0
        for q in range(first, end):
            given.share[q] = splits[program.slot[q]] if program.slot[q] >= 0 else 0.0
            carried += given.share[q]
        open_rest = max(0.0, 1 - carried)
        for q in range(first, end):  # parts that are not carried: the last step first
            if program.slot[q] < 0:
                number = program.limit_of[q] if has_limits else -1
                largest = program.largest[number] if number >= 0 else 1.0
                given.share[q] = min(largest, open_rest)
                open_rest -= given.share[q]
        for q in range(first, end):  # where all is carried, shares of a demand sum to 1
            if not sheds:
                given.share[q] = given.share[q] / carried if carried > 0 else 1.0 / (end - first)
    for r in range(rows):
        given.price[r] = prices[program.link[r]] / program.scale
    return _measure(program, sheds, is_whole, given, work)


@inner_kernel
def _is_done(
    program: Reduced, sheds: bool, is_whole: bool, gap: float, at: Iterate, work: Work
) -> bool:
    """Whether the gap is reached; or, where all must be carried and is not, the optimum of what
    may be left: what must be carried is then worth less than what displaces it.
    """
    if _measure(program, sheds, is_whole, at, work) <= gap:
        return True
    if work.figures[0] != -np.inf or not np.isfinite(work.figures[1]):
        return False
    largest = 0.0
    for rest in at.rest:
        largest = max(largest, rest)
    return largest > _LEFT and bool(product_sum(at, work.step, sheds, 0.0, 0.0) < _AT_END)


@inner_kernel
def _again(program: Reduced, sheds: bool, at: Iterate, work: Work) -> None:
    """Begin from a cold start, where a warm one has led nowhere; what it gave is kept."""
    copy(new_iterate(program), work.step)
    cold_start(program, sheds, at)


@inner_kernel
def _give(program: Reduced, work: Work, splits: FloatArray, prices: FloatArray) -> None:
    """Write the best shares and prices."""
    for q in range(len(program.gain)):
        if program.slot[q] >= 0:
            splits[program.slot[q]] = work.best_share[q]
    fill(0.0, prices)
    for r in range(len(program.limit)):
        prices[program.link[r]] = work.best_price[r] * program.scale


@kernel
def solve(
    program: Reduced,
    sheds: bool,
    is_whole: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
) -> int:
    """Solve one program; the number of iterations.

    Args:
        program: program of one matrix.
        sheds: as in :func:`reduced`.
        is_whole: whether shares must carry all demand, and bounds may count on it.
        gap: target of the certified gap.
        max_iterations: number of iterations, at most.
        splits: (D K,) receives the shares.
        prices: (E,) receives the prices.
        start: whether both have a start, with feasible shares; they are 0 otherwise.
        stop: (1,) is read before each iteration: another thread may end the search.
    """
    if len(program.rate) == 0 or len(program.limit) == 0:
        fill(0.0, prices)
        _fill_blocks(program, splits)
        return 0
    at, work, is_done = _begin(program, sheds, is_whole, gap, start, splits, prices)
    is_warm, done = start.is_warm, 0
    while not is_done:
        if done >= max_iterations or stop[0]:
            break
        if iterate(program, sheds, at, work):
            done += 1
        elif is_warm:
            is_warm = False
            _again(program, sheds, at, work)
        else:
            break
        is_done = _is_done(program, sheds, is_whole, gap, at, work)
    _give(program, work, splits, prices)
    return done


# The steps of an iteration as kernels of their own, for programs so large that S is made on several
# threads and factored by LAPACK.
_MIN_LARGE_PATHS = 10_000  # below which the updates are not even counted
_MIN_LARGE_UPDATES = 3_000_000  # of S, about 5 ms, from which on a second thread is worth its while


@kernel
def _begin_large(
    program: Reduced,
    sheds: bool,
    is_whole: bool,
    gap: float,
    start: Start,
    splits: FloatArray,
    prices: FloatArray,
) -> tuple[Iterate, Work, bool]:
    return _begin(program, sheds, is_whole, gap, start, splits, prices)


@kernel
def _is_large_done(
    program: Reduced, sheds: bool, is_whole: bool, gap: float, at: Iterate, work: Work
) -> bool:
    return _is_done(program, sheds, is_whole, gap, at, work)


@kernel
def _large_again(program: Reduced, sheds: bool, at: Iterate, work: Work) -> None:
    _again(program, sheds, at, work)


@kernel
def _give_large(program: Reduced, work: Work, splits: FloatArray, prices: FloatArray) -> None:
    _give(program, work, splits, prices)


@kernel
def _bend_rests(program: Reduced, at: Iterate, work: Work) -> None:
    bend_rests(program, at, work)


@kernel
def _add_blocks(
    program: Reduced,
    sheds: bool,
    at: Iterate,
    work: Work,
    s: FloatArray,
    first: int,
    end: int,
    has_slacks: bool,
) -> None:
    """A part of S: that of some blocks, and perhaps of the slacks."""
    if has_slacks:
        begin_system(at, s)
    else:
        for row in s:
            fill(0.0, row)
    add_blocks(program, sheds, at, work, s, first, end)


@kernel
def _add_lower(s: FloatArray, out: FloatArray) -> None:
    """Add a lower triangle to another one."""
    for i in range(len(s)):
        for j in range(i + 1):
            out[i, j] += s[i, j]


@kernel
def _regularise(program: Reduced, sheds: bool, work: Work) -> None:
    regularise(program, sheds, work)


@kernel
def _factor_plainly(s: FloatArray) -> None:
    factor(s)


@kernel
def _advance(program: Reduced, sheds: bool, at: Iterate, work: Work) -> bool:
    return advance(program, sheds, at, work)


def solve_on_threads(
    program: Reduced,
    sheds: bool,
    is_whole: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
) -> int:
    """:func:`solve`, with S made on all threads and factored by LAPACK where that is faster."""
    threads, updates = numba.get_num_threads(), np.zeros(0)
    if threads > 1 and len(program.gain) >= _MIN_LARGE_PATHS and len(program.limit):
        updates = _updates_of_blocks(program)
    if updates.sum() < _MIN_LARGE_UPDATES:
        return solve(program, sheds, is_whole, gap, max_iterations, splits, prices, start, stop)
    return _solve_by_steps(
        program,
        sheds,
        is_whole,
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
    program: Reduced,
    sheds: bool,
    is_whole: bool,
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
    """:func:`solve` by the steps of an iteration; S is made on ``threads`` threads.

    Args:
        program, sheds, is_whole, gap, max_iterations, splits, prices, start, stop: as in
            :func:`solve`.
        updates: (G,) updates of S that each block makes.
        threads: number of threads.
    """
    at, work, is_done = _begin_large(program, sheds, is_whole, gap, start, splits, prices)
    ends = np.searchsorted(np.cumsum(updates), updates.sum() * np.arange(1, threads) / threads)
    ptr = [0, *(int(end) + 1 for end in ends), len(program.rate)]
    systems = [work.system, *(np.empty_like(work.system) for _ in range(threads - 1))]
    is_warm, done = start.is_warm, 0
    with ThreadPoolExecutor(threads) as pool:

        def make(part: int) -> None:
            s, is_first = systems[part], part == 0
            _add_blocks(program, sheds, at, work, s, ptr[part], ptr[part + 1], is_first)

        def make_whole() -> None:
            _bend_rests(program, at, work)
            list(pool.map(make, range(threads)))
            for other in systems[1:]:
                _add_lower(other, work.system)
            _regularise(program, sheds, work)

        while not is_done:
            if done >= max_iterations or stop[0]:
                break
            make_whole()
            _, fault = dpotrf(work.system.T, lower=0, overwrite_a=1, clean=0)
            if fault:
                make_whole()
                _factor_plainly(work.system)
            if _advance(program, sheds, at, work):
                done += 1
            elif is_warm:
                is_warm = False
                _large_again(program, sheds, at, work)
            else:
                break
            is_done = _is_large_done(program, sheds, is_whole, gap, at, work)
    _give_large(program, work, splits, prices)
    return done


_WARM_UP_THREADS = 2  # also on one core: the sum of two parts of S is a kernel too


def may_be_large(num_columns: int) -> bool:
    """Whether :func:`solve_on_threads` may solve programs with so many columns by steps."""
    return numba.get_num_threads() > 1 and num_columns >= _MIN_LARGE_PATHS


def warm_up_steps(program: Reduced, splits: FloatArray, prices: FloatArray) -> None:
    """Call the kernels of a search by steps, so that they are compiled or loaded.

    Args:
        program: any program that sheds demand and has rows.
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
    # Kernels of a factorisation or a warm start that fails.
    at, work, _ = _begin_large(*options, COLD, splits, prices)
    _factor_plainly(np.eye(len(program.limit)))
    _large_again(program, True, at, work)


def _updates_of_blocks(program: Reduced) -> FloatArray:
    """(G,) updates of S that each block makes."""
    of_paths, of_unions = np.diff(program.row_ptr), np.diff(program.union_ptr)
    paths = np.append(0, np.cumsum(of_paths * (of_paths + 1) // 2))
    blocks = np.diff(paths[program.block_ptr])
    return np.asarray(blocks + of_unions * (of_unions + 1) // 2, np.float64)
