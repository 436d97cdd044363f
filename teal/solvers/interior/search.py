"""Iterations until a certified gap; what is kept is the best of both sides."""

from __future__ import annotations

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import inner_kernel, kernel
from teal.solvers.interior.newton import Work, copy, iterate
from teal.solvers.interior.reduction import Reduced
from teal.solvers.interior.starts import (
    Iterate,
    cold_start,
    fill,
    loads,
    new_iterate,
    path_prices,
    put,
    warm_start,
)

_LEAST_SLACK = 0.5  # of a slack, to which it may fall where loads were raised


@inner_kernel
def _value_of(program: Reduced, sheds: bool, share: FloatArray, load: FloatArray) -> float:
    """Value of shares, scaled down where they overload a row; or their largest utilisation."""
    most = 1.0 if sheds else 0.0
    for r in range(len(load)):
        most = max(most, load[r] / program.limit[r])
    if not sheds:
        return most
    total = 0.0
    for q in range(len(share)):
        total += program.gain[q] * share[q]
    return total / most + program.fixed


@inner_kernel
def _bound_of(program: Reduced, sheds: bool, price: FloatArray, path_price: FloatArray) -> float:
    """The bound that prices prove: an upper limit of the value, or a lower one of the
    utilisation.
    """
    of_rows = 0.0
    for r in range(len(price)):
        of_rows += program.limit[r] * price[r]
    total = 0.0
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        best = 0.0 if sheds else -path_price[first]
        for q in range(first, end):
            best = max(best, program.gain[q] - path_price[q])
        total += best
    if sheds:
        return of_rows + total + program.fixed
    return -total / of_rows


@inner_kernel
def _new_work(program: Reduced, sheds: bool, at: Iterate) -> Work:
    blocks, paths, rows = len(program.rate), len(program.gain), len(program.limit)
    figures = np.empty(2)  # of nothing
    figures[0], figures[1] = (-np.inf, np.inf) if sheds else (np.inf, -np.inf)
    return Work(
        new_iterate(paths, blocks, rows),
        new_iterate(paths, blocks, rows),
        new_iterate(paths, blocks, rows),
        np.empty(paths),
        np.empty(blocks),
        np.empty(paths),
        np.empty(paths),
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        np.empty((rows, rows)),
        np.zeros(paths),
        np.zeros(rows),
        figures,
    )


@inner_kernel
def _measure(program: Reduced, sheds: bool, at: Iterate, work: Work) -> float:
    """Keep the best shares and prices; the certified gap."""
    loads(program, at.share, work.load)
    path_prices(program, at.price, work.path_price)
    for r in range(len(program.limit)):
        limit = program.limit[r] if sheds else program.limit[r] * at.theta[0]
        room = limit - work.load[r]
        if _LEAST_SLACK * at.slack[r] < room < at.slack[r]:
            at.slack[r] = room
    value = _value_of(program, sheds, at.share, work.load)
    bound = _bound_of(program, sheds, at.price, work.path_price)
    sense = 1.0 if sheds else -1.0
    if sense * value > sense * work.figures[0]:
        work.figures[0] = value
        put(at.share, work.best_share)
    if sense * bound < sense * work.figures[1]:
        work.figures[1] = bound
        put(at.price, work.best_price)
    high = work.figures[1] if sheds else work.figures[0]
    return sense * (work.figures[1] - work.figures[0]) / high if high > 0 else 0.0


@kernel
def solve(
    program: Reduced,
    sheds: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    is_warm: bool,
    stop: BoolArray,
) -> int:
    """Solve one program; the number of iterations.

    Args:
        program: program of one matrix.
        sheds: as in :func:`reduced`.
        gap: target of the certified gap.
        max_iterations: number of iterations, at most.
        splits: (D K,) receives the shares.
        prices: (E,) receives the prices.
        is_warm: whether both have a start, with feasible shares; they are 0 otherwise.
        stop: (1,) is read before each iteration: another thread may end the search.
    """
    if len(program.rate) == 0 or len(program.limit) == 0:
        fill(0.0, prices)
        return 0
    at = new_iterate(len(program.gain), len(program.rate), len(program.limit))
    cold_start(program, sheds, at)
    if is_warm:
        warm_start(program, sheds, at, splits, prices)
    work = _new_work(program, sheds, at)
    done = 0
    while _measure(program, sheds, at, work) > gap and done < max_iterations and not stop[0]:
        if iterate(program, sheds, at, work):
            done += 1
        elif is_warm:  # the start led nowhere; what it gave is kept
            is_warm = False
            copy(new_iterate(len(program.gain), len(program.rate), len(program.limit)), work.step)
            cold_start(program, sheds, at)
        else:
            break
    for q in range(len(program.gain)):
        splits[program.slot[q]] = work.best_share[q]
    fill(0.0, prices)
    for r in range(len(program.limit)):
        prices[program.link[r]] = work.best_price[r] * program.scale
    return done
