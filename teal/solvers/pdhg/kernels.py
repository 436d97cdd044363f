"""The fused iteration: prices down the trie, splits, flows up, for one source after another.

Every block kernel works on a run of sources whose tries pass through the cache once, and on L matrices
side by side (see :mod:`teal.lanes`): arrays are flat, of rows as wide as the tuple ``lanes`` is long.
What crosses sources, the load of each link, is added up per block and then over the blocks in order, so
that no result depends on the number of threads.

Prices here are those of the scaled program, y / c + cost / S, and ``DEAD`` on a failed link; a path that
adds up to ``DEAD`` carries nothing.  In :func:`iterate` everything of the size of the paths is float32 or
float64 as the caller chose, everything of the size of the links float64.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from teal.lanes import fill, larger, load, store, where_above
from teal.parallel import inlined_kernel, kernel, parallel_kernel, prange
from teal.solvers.pdhg.engine import LONG, NECESSARY, OMEGA_RANGE, SUFFICIENT

DEAD = 1e30  # price of a failed link; a sum of many of them still fits float32
_LOWEST = -1e34


class Scans(NamedTuple):
    """What every block kernel reads: a packed path set (see ``PackedPaths``) and its blocks."""

    above: Any
    link: Any
    end: Any
    count: Any
    node_ptr: Any
    demand_ptr: Any
    path_ptr: Any
    blocks: Any
    widest: int


class Program(NamedTuple):
    """The scaled program of L matrices.

    demand: (D, L), 0 where no path is left; reach: (D, 1 or L) h; worth: (D,) or (1,); cost: (E, L) of a link
    over S; inverse: (E, L) 1 / c, 0 where the link has failed; per_load: what a load is multiplied by, 1 / c (of a
    balanced program over S); live: (E, L) 1 where the link works; through: (E, L) m; unit: (L,) 1 / S; balanced:
    whether all demand must be carried, and the y lie on a simplex.
    """

    demand: Any
    reach: Any
    worth: Any
    cost: Any
    inverse: Any
    per_load: Any
    live: Any
    through: Any
    unit: Any
    balanced: bool


class Primal(NamedTuple):
    """(P, L) splits: where the iteration stands, Halpern's anchor, and the last step's result."""

    point: Any
    anchor: Any
    offer: Any


class Dual(NamedTuple):
    """(E, L) scaled prices y and utilisations of the same three."""

    point: Any
    anchor: Any
    offer: Any
    point_load: Any
    anchor_load: Any
    offer_load: Any


class Control(NamedTuple):
    """(L,) of each matrix: primal weight now and at first, iterations in this cycle and in all, errors, bound."""

    omega: Any
    first_omega: Any
    cycle: Any
    total: Any
    first_error: Any
    last_error: Any
    due: Any
    bound: Any


class Scratch(NamedTuple):
    """price (E, L); mix (4, L) weights of the new splits, point and anchor, and who restarts; step (L,);
    load (blocks, E, L); sums (blocks, 3, L).
    """

    price: Any
    mix: Any
    step: Any
    load: Any
    sums: Any


@inlined_kernel
def prices_down(first, nodes, above, link, price, value, lanes):
    """Sum of prices along each node's path into rows 1.. of ``value``; row 0, the source, is 0."""
    for i in range(nodes):
        store(value, i + 1, load(value, above[first + i], lanes) + load(price, link[first + i], lanes))


@inlined_kernel
def flows_up(first, nodes, above, link, flow, loads, lanes):
    """Add the flow of every path to the loads of its links.  ``flow`` is used up."""
    for j in range(nodes):
        i = nodes - 1 - j
        passing, top, e = load(flow, i + 1, lanes), above[first + i], link[first + i]
        store(loads, e, load(loads, e, lanes) + passing)
        store(flow, top, load(flow, top, lanes) + passing)


@kernel
def _simplex_shift(trial, n, lanes):
    """The t for which max(0, trial - t) adds up to 1 over n rows (Michelot 1986: drop what falls below it)."""
    one = fill(trial.dtype.type(1), lanes)
    zero = one - one
    shift = fill(trial.dtype.type(_LOWEST), lanes)
    for _ in range(n):
        total, active = zero - one, zero
        for k in range(n):
            row = load(trial, k, lanes)
            total = total + where_above(row, shift, row, zero)
            active = active + where_above(row, shift, one, zero)
        shift = total / larger(active, one)
    return shift


@kernel
def _iterate_block(
    begin, stop, above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, reach, worth, unit, step, mix,
    floor, restarting, storing, price, point, anchor, offer, loads, sums, widest, lanes, reach_lanes,
):  # fmt: skip
    """One primal step and Halpern's average for the demands of sources ``begin`` to ``stop``."""
    real = price.dtype.type
    width, own_reach, several = len(lanes), len(reach_lanes) > 1, len(worth) > 1
    value, flow, trial = (
        np.empty(widest * width, price.dtype),
        np.empty(widest * width, price.dtype),
        np.empty(256 * width, price.dtype),
    )
    one, half, floor = fill(real(1), lanes), fill(real(0.5), lanes), fill(floor, lanes)
    zero = one - one
    unit, step = load(unit, 0, lanes), load(step, 0, lanes)
    of_new, of_point, of_anchor, restarts = (
        load(mix, 0, lanes),
        load(mix, 1, lanes),
        load(mix, 2, lanes),
        load(mix, 3, lanes),
    )
    special = restarting or storing
    value[:width] = 0
    best, moved, strayed = zero, zero, zero
    for s in range(begin, stop):
        first, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
        prices_down(first, nodes, above, link, price, value, lanes)
        flow[: (nodes + 1) * width] = 0
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            n = count[d]
            if n == 0:
                continue
            rate, push = load(demand, d, lanes), fill(worth[d if several else 0], lanes) * unit
            far = load(reach, d, lanes) if own_reach else fill(reach[d], lanes)
            tau, weight = step / far, rate * far
            if n == 1:
                g = push - load(value, end[p], lanes)
                x = load(point, p, lanes) + tau * g
                top, shift = larger(g, floor), larger(x - one, floor)
                store(trial, 0, x)
            elif n == 2:
                g, h = push - load(value, end[p], lanes), push - load(value, end[p + 1], lanes)
                x, y = load(point, p, lanes) + tau * g, load(point, p + 1, lanes) + tau * h
                top = larger(larger(g, h), floor)
                shift = larger(larger(half * (x + y - one), larger(x, y) - one), floor)
                store(trial, 0, x)
                store(trial, 1, y)
            else:
                top = floor
                for k in range(n):
                    g = push - load(value, end[p + k], lanes)
                    top = larger(g, top)
                    store(trial, k, load(point, p + k, lanes) + tau * g)
                shift = larger(_simplex_shift(trial, n, lanes), floor)
            best = best + where_above(rate, zero, rate * top, zero)
            for k in range(n):
                old, new = load(point, p, lanes), larger(load(trial, k, lanes) - shift, zero)
                start = load(anchor, p, lanes)
                store(flow, end[p], rate * new)
                moved = moved + weight * (new - old) * (new - old)
                store(point, p, of_new * new + of_point * old + of_anchor * start)
                if special:
                    if storing:
                        store(offer, p, new)
                    if restarting:
                        strayed = strayed + weight * (new - start) * (new - start)
                        store(anchor, p, where_above(restarts, half, new, start))
                p += 1
        flows_up(first, nodes, above, link, flow, loads, lanes)
    store(sums, 0, best)
    store(sums, 1, moved)
    store(sums, 2, strayed)


@kernel
def _before(program, dual, control, scratch, width):
    """Prices and weights of the coming iteration."""
    restarting = False
    for l in range(width):
        share = (control.cycle[l] + 1) / (control.cycle[l] + 2)
        due = control.due[l] > 0
        restarting = restarting or due
        scratch.mix[l] = 1.0 if due else 2 * share
        scratch.mix[width + l] = 0.0 if due else -share
        scratch.mix[2 * width + l] = 0.0 if due else 1 - share
        scratch.mix[3 * width + l] = 1.0 if due else 0.0
        scratch.step[l] = 1 / control.omega[l]
    for i in range(len(program.inverse)):
        live = program.live[i] > 0
        scratch.price[i] = dual.point[i] * program.inverse[i] + program.cost[i] if live else DEAD
    return restarting


@kernel
def _simplex_prices(trial, slope, live, lane, width):
    """max(0, trial - t slope) with t such that it sums to 1, over the live links of one lane; in place."""
    shift, active = _LOWEST, len(trial) + 1
    for _ in range(len(trial)):
        total, slopes, size = -1.0, 0.0, 0
        for i in range(lane, len(trial), width):
            if live[i] > 0 and trial[i] > shift * slope[i]:
                total += trial[i]
                slopes += slope[i]
                size += 1
        if size >= active or slopes <= 0:  # nothing fell out: rounding may even let something back in
            break
        shift, active = total / slopes, size
    for i in range(lane, len(trial), width):
        trial[i] = max(0.0, trial[i] - shift * slope[i]) if live[i] > 0 else 0.0


@kernel
def _after(program, dual, control, scratch, width):
    """The dual step, the fixed-point error, Halpern's average of the prices, and whether to restart next."""
    links = len(program.inverse) // width
    blocks = len(scratch.load)
    slope = np.empty(links * width)
    for i in range(links * width):
        total = 0.0
        for b in range(blocks):
            total += scratch.load[b, i]
        dual.offer_load[i] = total * program.per_load[i]
        slope[i] = control.omega[i % width] / program.through[i]
        ahead = 2 * dual.offer_load[i] - dual.point_load[i]
        trial = dual.point[i] + slope[i] * (ahead if program.balanced else ahead - 1)
        dual.offer[i] = trial if program.live[i] > 0 and (program.balanced or trial > 0) else 0.0
    for l in range(width):
        if program.balanced:
            _simplex_prices(dual.offer, slope, program.live, l, width)
        best, moved, strayed = 0.0, 0.0, 0.0
        for b in range(blocks):
            best += scratch.sums[b, l]
            moved += scratch.sums[b, width + l]
            strayed += scratch.sums[b, 2 * width + l]
        if program.balanced:
            moved, strayed = moved * program.unit[l], strayed * program.unit[l]
        priced, cross, dual_moved, dual_strayed = 0.0, 0.0, 0.0, 0.0
        for i in range(l, links * width, width):
            priced += dual.point[i]
            step = dual.offer[i] - dual.point[i]
            cross += step * (dual.offer_load[i] - dual.point_load[i])
            dual_moved += program.through[i] * step * step
            dual_strayed += program.through[i] * (dual.offer[i] - dual.anchor[i]) ** 2
        control.bound[l] = -best / max(priced, 1e-300) if program.balanced else (priced + best) / program.unit[l]
        omega = control.omega[l]
        error = np.sqrt(max(0.0, omega * moved - 2 * cross + dual_moved / omega))
        control.total[l] += 1
        if control.due[l] > 0:
            for i in range(l, links * width, width):
                dual.point[i] = dual.anchor[i] = dual.offer[i]
                dual.point_load[i] = dual.anchor_load[i] = dual.offer_load[i]
            if strayed > 1e-20 and dual_strayed > 1e-20:
                omega = np.sqrt(omega * np.sqrt(dual_strayed / strayed))
            usual = control.first_omega[l]
            control.omega[l] = min(max(omega, usual / OMEGA_RANGE), usual * OMEGA_RANGE)
            control.cycle[l], control.due[l], control.first_error[l] = 0, 0, -1.0
        else:
            of_new, of_point, of_anchor = scratch.mix[l], scratch.mix[width + l], scratch.mix[2 * width + l]
            for i in range(l, links * width, width):
                mixed = of_new * dual.offer[i] + of_point * dual.point[i] + of_anchor * dual.anchor[i]
                dual.point[i] = max(0.0, mixed)
                dual.point_load[i] = (
                    of_new * dual.offer_load[i] + of_point * dual.point_load[i] + of_anchor * dual.anchor_load[i]
                )
            control.cycle[l] += 1
            fresh = control.first_error[l] < 0
            if fresh:
                control.first_error[l] = error
            elif (
                error <= SUFFICIENT * control.first_error[l]
                or (error <= NECESSARY * control.first_error[l] and error > control.last_error[l])
                or control.cycle[l] >= LONG * control.total[l]
            ):
                control.due[l] = 1
        control.last_error[l] = error


@parallel_kernel
def iterate(times, scans, program, primal, dual, control, scratch, lanes, reach_lanes):
    """``times`` iterations of all lanes; the last one's steps are left in ``primal.offer`` and ``dual.offer``."""
    above, link, end, count, node_ptr, demand_ptr, path_ptr, blocks, widest = scans
    demand, reach, worth, unit = program.demand, program.reach, program.worth, program.unit
    point, anchor, offer = primal
    price, mix, step, loads, sums = scratch
    real = price.dtype.type
    floor = real(_LOWEST) if program.balanced else real(0)
    push = (unit * 0 if program.balanced else unit).astype(price.dtype)
    for i in range(times):
        restarting = _before(program, dual, control, scratch, len(lanes))
        storing = i == times - 1
        for b in prange(len(blocks) - 1):
            loads[b] = 0
            _iterate_block(
                blocks[b], blocks[b + 1], above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, reach, worth,
                push, step, mix, floor, restarting, storing, price, point, anchor, offer, loads[b], sums[b], widest,
                lanes, reach_lanes,
            )  # fmt: skip
        _after(program, dual, control, scratch, len(lanes))
