"""One iteration of the engine in two launches: a block per source for the splits, then threads per link for the prices.

The arithmetic is that of :mod:`teal.solvers.pdhg.kernels`, step by step.  The block that is last to finish with the
links of a matrix also closes its iteration: norms, primal weight, restart, Halpern's average.  Nothing goes back
to the host, so that iterations can be replayed one after another from a recorded graph.

Rows of ``dual`` and ``control`` are named below.  Everything of the size of the paths is of the iteration's own type,
everything of the size of the links float64.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import math

from numba import cuda, float64, int32

from teal.cuda import LINK_THREADS, THREADS, cuda_kernel, device_function
from teal.pathops.cuda_kernels import fold, hold, scan_down, scan_up, sum_over_link
from teal.solvers.pdhg.engine import LONG, NECESSARY, OMEGA_RANGE, SUFFICIENT
from teal.solvers.pdhg.kernels import DEAD

# Rows of dual, (10, B, E): scaled prices y and utilisations where the iteration stands, at Halpern's anchor and where
# the last step led; what a load is multiplied by; 1 / c; m; a link's cost over S.  A failed link has INVERSE 0.
POINT, ANCHOR, OFFER, POINT_LOAD, ANCHOR_LOAD, OFFER_LOAD, PER_LOAD, INVERSE, THROUGH, COST = range(10)
DUAL_ROWS = 10
# Rows of control, (9, B).  UNIT is 1 / S.
OMEGA, FIRST_OMEGA, CYCLE, TOTAL, FIRST_ERROR, LAST_ERROR, DUE, BOUND, UNIT = range(9)
CONTROL_ROWS = 9
# Rows of what a source adds to its matrix's sums, (3, B, S).
BEST, MOVED, STRAYED = range(3)
SOURCE_ROWS = 3
_LOWEST = -1e34
_SUMS = 7


@device_function
def _shift_to_simplex(point, at, count, tau, push, value, end, path, floor):
    """The t for which max(0, x - t) adds up to 1 (Michelot 1986), x = point + tau (push - price); at least ``floor``.

    x is computed anew in each pass: its parts are in cache, and a thread has no room for all of them.
    """
    real = point.dtype.type
    if count == 1:
        return max(point[at] + tau * (push - value[end[path]]) - real(1), floor)
    shift, active = real(_LOWEST), count + 1
    for _ in range(count):
        total, found = real(-1), 0
        for k in range(count):
            x = point[at + k] + tau * (push - value[end[path + k]])
            if x > shift:
                total += x
                found += 1
        if found == active or found == 0:
            break
        shift, active = total / real(found), found
    return max(shift, floor)


@cuda_kernel
def step_sources(
    point, anchor, offer, price, demand, reach, worth, control, node_flow, sums, scratch, link, above, below, ends, end,
    count, starts, level_end, widest, places, batch, balanced, storing, mode,
):  # fmt: skip
    """The primal step and Halpern's average of the splits of each source; leaves the flow through each node.

    Args:
        point, anchor, offer: (B, D, K) splits; offer is written only if ``storing``.
        price: (B, E) y / c + cost / S, DEAD on a failed link.
        demand: (B, D), 0 where no path is left; reach: (B, D) or (1, D) h; worth: (D,) or (1,).
        node_flow: receives (B, T); sums: receives (3, B, S).
    """
    sources, demands, nodes_in_all = len(starts) // 3 - 1, len(count), len(link)
    links = len(price) // batch
    me = cuda.threadIdx.x
    partial = cuda.shared.array((SOURCE_ROWS, THREADS), float64)
    real = price.dtype.type
    for item in range(cuda.blockIdx.x, sources * batch, cuda.gridDim.x):
        s = item // batch
        b = item - s * batch
        first, nodes = starts[s], starts[s + 1] - starts[s]
        level, last_level = starts[2 * sources + 2 + s], starts[2 * sources + 3 + s]
        value, index, shift = hold(mode, scratch, above, widest, 1, first, nodes)
        up = index if len(mode) == 1 else below
        for n in range(me, nodes, THREADS):
            value[n + 1] = price[b * links + link[first + n]]
        cuda.syncthreads()
        scan_down(value, index, shift, level_end, level, last_level, me, 0, 1, THREADS)

        cycle = control[CYCLE * batch + b]
        due = control[DUE * batch + b] > 0
        share = (cycle + 1) / (cycle + 2)
        of_new = real(1.0 if due else 2 * share)
        of_point = real(0.0 if due else -share)
        of_anchor = real(0.0 if due else 1 - share)
        step = real(1 / control[OMEGA * batch + b])
        floor = real(_LOWEST if balanced else 0.0)
        unit = real(0.0 if balanced else control[UNIT * batch + b])
        best, moved, strayed = 0.0, 0.0, 0.0
        for d in range(starts[sources + 1 + s] + me, starts[sources + 2 + s], THREADS):
            n, own, path = int32(count[d]), b * demands + d, d * places
            rate = demand[own]
            if rate <= 0:
                for k in range(n):
                    value[end[path + k]] = 0
                continue
            far = reach[own if len(reach) > demands else d]
            push = unit * worth[d if len(worth) > 1 else 0]
            tau, weight, at = step / far, rate * far, own * places
            top = floor
            for k in range(n):
                top = max(top, push - value[end[path + k]])
            best += rate * top
            cut = _shift_to_simplex(point, at, n, tau, push, value, end, path, floor)
            for k in range(n):
                old = point[at + k]
                new = max(old + tau * (push - value[end[path + k]]) - cut, real(0))
                start = anchor[at + k]
                value[end[path + k]] = rate * new
                moved += weight * (new - old) * (new - old)
                if storing:
                    offer[at + k] = new
                if due:
                    strayed += weight * (new - start) * (new - start)
                    anchor[at + k] = new
                point[at + k] = of_new * new + of_point * old + of_anchor * start
        partial[BEST, me], partial[MOVED, me], partial[STRAYED, me] = best, moved, strayed
        cuda.syncthreads()

        if len(mode) == 1:
            for n in range(me, nodes, THREADS):
                up[n + 1] = below[first + n]
        for n in range(me, nodes, THREADS):
            if ends[first + n] == 0:
                value[n + 1] = 0
        cuda.syncthreads()
        scan_up(value, up, shift, level_end, level, last_level, me, 0, 1, THREADS)
        for n in range(me, nodes, THREADS):
            node_flow[b * nodes_in_all + first + n] = value[n + 1]
        add_up(partial, SOURCE_ROWS, THREADS)
        if me < SOURCE_ROWS:
            sums[(me * batch + b) * sources + s] = partial[me, 0]
        cuda.syncthreads()


@device_function
def add_up(partial, rows, threads):
    """Sum each of the first ``rows`` rows of a shared array into its first entry; all ``threads`` call it."""
    me = cuda.threadIdx.x
    half = threads // 2
    while half > 0:
        cuda.syncthreads()
        if me < half:
            for row in range(rows):
                partial[row, me] += partial[row, me + half]
        half //= 2
    cuda.syncthreads()


@device_function
def _to_simplex(dual, base, stride, links, omega, partial):
    """The OFFER prices less t times their slope, t such that they add up to 1 over the live links."""
    me = cuda.threadIdx.x
    shift, active = _LOWEST, float64(links + 1)
    for _ in range(links):
        total, slopes, size = 0.0, 0.0, 0.0
        for e in range(me, links, LINK_THREADS):
            here = base + e
            slope = omega / dual[THROUGH * stride + here]
            trial = dual[OFFER * stride + here]
            if dual[INVERSE * stride + here] > 0 and trial > shift * slope:
                total += trial
                slopes += slope
                size += 1
        partial[0, me], partial[1, me], partial[2, me] = total, slopes, size
        add_up(partial, 3, LINK_THREADS)
        total, slopes, size = partial[0, 0] - 1, partial[1, 0], partial[2, 0]
        cuda.syncthreads()
        if size >= active or slopes <= 0:  # nothing fell out: rounding may even let something back in
            break
        shift, active = total / slopes, size
    for e in range(me, links, LINK_THREADS):
        here = base + e
        live = dual[INVERSE * stride + here] > 0
        rest = dual[OFFER * stride + here] - shift * omega / dual[THROUGH * stride + here]
        dual[OFFER * stride + here] = max(0.0, rest) if live else 0.0
    cuda.syncthreads()


@device_function
def _close(dual, control, price, sums, b, batch, links, sources, balanced, partial):
    """The rest of a matrix's iteration: fixed-point error, Halpern's average, and whether to restart next."""
    me, stride, base = cuda.threadIdx.x, batch * links, b * links
    omega, unit = control[OMEGA * batch + b], control[UNIT * batch + b]
    cycle, due = control[CYCLE * batch + b], control[DUE * batch + b] > 0
    if balanced:
        _to_simplex(dual, base, stride, links, omega, partial)

    best, moved, strayed = 0.0, 0.0, 0.0
    for s in range(me, sources, LINK_THREADS):
        best += sums[(BEST * batch + b) * sources + s]
        moved += sums[(MOVED * batch + b) * sources + s]
        strayed += sums[(STRAYED * batch + b) * sources + s]
    priced, cross, dual_moved, dual_strayed = 0.0, 0.0, 0.0, 0.0
    for e in range(me, links, LINK_THREADS):
        here = base + e
        y, point, through = dual[OFFER * stride + here], dual[POINT * stride + here], dual[THROUGH * stride + here]
        went, way = y - point, y - dual[ANCHOR * stride + here]
        priced += point
        cross += went * (dual[OFFER_LOAD * stride + here] - dual[POINT_LOAD * stride + here])
        dual_moved += through * went * went
        dual_strayed += through * way * way
    partial[0, me], partial[1, me], partial[2, me] = best, moved, strayed
    partial[3, me], partial[4, me], partial[5, me], partial[6, me] = priced, cross, dual_moved, dual_strayed
    add_up(partial, _SUMS, LINK_THREADS)
    scale = unit if balanced else 1.0
    best, moved, strayed = partial[0, 0], partial[1, 0] * scale, partial[2, 0] * scale
    priced, cross, dual_moved, dual_strayed = partial[3, 0], partial[4, 0], partial[5, 0], partial[6, 0]

    share = (cycle + 1) / (cycle + 2)
    of_new, of_point, of_anchor = 2 * share, -share, 1 - share
    for e in range(me, links, LINK_THREADS):
        here = base + e
        y, load = dual[OFFER * stride + here], dual[OFFER_LOAD * stride + here]
        if due:
            dual[ANCHOR * stride + here], dual[ANCHOR_LOAD * stride + here] = y, load
        else:
            y = of_new * y + of_point * dual[POINT * stride + here] + of_anchor * dual[ANCHOR * stride + here]
            y = max(0.0, y)
            load = of_new * load + of_point * dual[POINT_LOAD * stride + here]
            load += of_anchor * dual[ANCHOR_LOAD * stride + here]
        dual[POINT * stride + here], dual[POINT_LOAD * stride + here] = y, load
        live = dual[INVERSE * stride + here] > 0
        price[here] = y * dual[INVERSE * stride + here] + dual[COST * stride + here] if live else DEAD
    cuda.syncthreads()  # all have read what the first thread now writes
    if me > 0:
        return
    error = math.sqrt(max(0.0, omega * moved - 2 * cross + dual_moved / omega))
    first_error = control[FIRST_ERROR * batch + b]
    total = control[TOTAL * batch + b] + 1
    control[BOUND * batch + b] = -best / max(priced, 1e-300) if balanced else (priced + best) / unit
    control[TOTAL * batch + b] = total
    if due:
        if strayed > 1e-20 and dual_strayed > 1e-20:
            omega = math.sqrt(omega * math.sqrt(dual_strayed / strayed))
        usual = control[FIRST_OMEGA * batch + b]
        control[OMEGA * batch + b] = min(max(omega, usual / OMEGA_RANGE), usual * OMEGA_RANGE)
        control[CYCLE * batch + b], control[DUE * batch + b], control[FIRST_ERROR * batch + b] = 0, 0, -1
    else:
        control[CYCLE * batch + b] = cycle + 1
        if first_error < 0:
            control[FIRST_ERROR * batch + b] = error
        elif (
            error <= SUFFICIENT * first_error
            or (error <= NECESSARY * first_error and error > control[LAST_ERROR * batch + b])
            or cycle + 1 >= LONG * total
        ):
            control[DUE * batch + b] = 1
    control[LAST_ERROR * batch + b] = error


@cuda_kernel
def step_links(node_flow, dual, control, price, sums, arrived, link_ptr, link_node, batch, sources, balanced, rows):
    """The load of each link, ``rows`` threads for each, and its dual step; the last block of a matrix does the rest.

    Args:
        arrived: (B,) int32, 0: how many blocks have finished; is 0 again in the end.
    """
    links, nodes = len(link_ptr) - 1, len(link_node)
    teams = LINK_THREADS // rows
    blocks = (links + teams - 1) // teams  # for each matrix
    b, me = cuda.blockIdx.x // blocks, cuda.threadIdx.x
    team, row = me // rows, me % rows
    e = (cuda.blockIdx.x - b * blocks) * teams + team
    partial = cuda.shared.array((_SUMS, LINK_THREADS), float64)
    last = cuda.shared.array(1, int32)
    total = 0.0
    if e < links:
        total = sum_over_link(node_flow, b * nodes, 1, link_ptr, link_node, e, row, rows)
    partial[0, me] = total
    fold(partial[0], row, rows, 1)
    if e < links and row == 0:
        here, stride = b * links + e, batch * links
        load = partial[0, me] * dual[PER_LOAD * stride + here]
        ahead = 2 * load - dual[POINT_LOAD * stride + here]
        slope = control[OMEGA * batch + b] / dual[THROUGH * stride + here]
        trial = dual[POINT * stride + here] + slope * (ahead if balanced else ahead - 1)
        live = dual[INVERSE * stride + here] > 0
        dual[OFFER_LOAD * stride + here] = load
        dual[OFFER * stride + here] = trial if live and (balanced or trial > 0) else 0.0
    cuda.syncthreads()
    if me == 0:
        cuda.threadfence()  # what the block wrote is there for all before it says that it has finished
        before = cuda.atomic.add(arrived, b, 1)
        cuda.threadfence()
        last[0] = 1 if before == blocks - 1 else 0
    cuda.syncthreads()
    if last[0] == 0:
        return
    cuda.threadfence()
    if me == 0:
        arrived[b] = 0
    _close(dual, control, price, sums, b, batch, links, sources, balanced, partial)
