"""One iteration of the GPU engine in two launches: a block a source for the splits, then threads a
link for the y.

The arithmetic is that of :mod:`teal.solvers.pdhg.fused.kernels`, step by step; symbols are those of
the table in :mod:`teal.solvers.pdhg`.  The block that finishes last with the links of a matrix also
completes its iteration: norms, primal weight, restart, Halpern's average.  Nothing goes back to the
host, so that iterations can be replayed one after another from a recorded graph.

Rows of the arrays ``dual``, ``control`` and ``sums`` are named below.  Arrays of the size of the
paths have the iteration's own type, arrays of the size of the links are float64; all are flat.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import cuda, float64, int32

from teal.pathops.cuda_kernels import fold, node_memory, scan_down, scan_up, sum_over_link
from teal.runtime.cuda import LINK_THREADS, THREADS, cuda_kernel, device_function
from teal.solvers.pdhg.engine import (
    MAX_WEIGHT_CHANGE,
    MIN_SQUARED_DISTANCE,
    RESTART_ARTIFICIAL,
    RESTART_NECESSARY,
    RESTART_SUFFICIENT,
)
from teal.solvers.pdhg.fused.kernels import FAILED_PRICE

# Rows of `dual`, (10, B, E): y of z, z_0 and T(z); the loads of their splits times LOAD_FACTOR;
# what loads are multiplied by (1 / c, over S for a balanced program); 1 / c, 0 for a failed link;
# m; a link's cost over S.
(
    CURRENT,
    ANCHOR,
    STEPPED,
    CURRENT_LOAD,
    ANCHOR_LOAD,
    STEPPED_LOAD,
    LOAD_FACTOR,
    INVERSE,
    FULL,
    COST,
) = range(10)
DUAL_ROWS = 10
# Rows of `control`, (9, B): as in `fused_state.Control`, and 1 / S.
WEIGHT, FIRST_WEIGHT, CYCLE, TOTAL, FIRST_ERROR, LAST_ERROR, RESTART_DUE, BOUND, INVERSE_SCALE = (
    range(9)
)
CONTROL_ROWS = 9
# Rows of `sums`, (3, B, S), of each source: demand times best profit, squared distances to z and to
# z_0.
PROFIT, STEP_DISTANCE, ANCHOR_DISTANCE = range(3)
SUM_ROWS = 3
_LOWEST = -1e34  # below every price and split, within the range of float32
_CLOSING_SUMS = 7  # sums that the last block of a matrix makes


class SourceArrays(NamedTuple):
    """Arrays of :func:`step_sources`.

    Attributes:
        current, anchor, stepped: (B, D, K) splits of z, z_0 and T(z).
        price: (B, E) y / c + cost / S, ``FAILED_PRICE`` on a failed link.
        demand: (B, D) Gbit/s, 0 where no path is live.
        inverse_capacity_sum: (B, D) or, if capacities are the same in all matrices, (1, D) h.
        demand_value: (D,) or, if all are equal, (1,).
        control: (9, B), see above.
        node_flow: (B, T) receives the flow through each trie node.
        sums: (3, B, S) receives sums, see above.
    """

    current: Any
    anchor: Any
    stepped: Any
    price: Any
    demand: Any
    inverse_capacity_sum: Any
    demand_value: Any
    control: Any
    node_flow: Any
    sums: Any


class LinkArrays(NamedTuple):
    """Arrays of :func:`step_links`.

    Attributes:
        node_flow: (B, T) flow through each trie node.
        dual: (10, B, E), see above.
        control: (9, B), see above.
        price: (B, E) receives the prices of the next iteration.
        sums: (3, B, S), see above.
        arrived: (B,) int32, number of blocks that have finished; 0 before and after a launch.
        link_ptr: (E + 1,) of a LevelTrie.
        link_node: (T,) of a LevelTrie.
    """

    node_flow: Any
    dual: Any
    control: Any
    price: Any
    sums: Any
    arrived: Any
    link_ptr: Any
    link_node: Any


@device_function
def _simplex_shift(splits, at, count, primal_step, scaled_value, value, end_node, path, floor):
    """The t >= ``floor`` for which max(0, x - t) sums to 1 (Michelot 1986), x = splits + tau (v / S
    - price).

    x is computed anew in each pass: its terms are in cache, and a thread has no registers for all
    of them.
    """
    real = splits.dtype.type
    if count == 1:
        return max(
            splits[at] + primal_step * (scaled_value - value[end_node[path]]) - real(1), floor
        )
    shift, active = real(_LOWEST), count + 1
    for _ in range(count):
        total, size = real(-1), 0
        for k in range(count):
            x = splits[at + k] + primal_step * (scaled_value - value[end_node[path + k]])
            if x > shift:
                total += x
                size += 1
        if size == active or size == 0:
            break
        shift, active = total / real(size), size
    return max(shift, floor)


@cuda_kernel
def step_sources(arrays, trie, memory, num_paths, batch, carries_all, is_storing):
    """The primal step and Halpern's average of the splits of each source; the flow through each
    trie node.

    Args:
        arrays: a SourceArrays.
        trie: a :class:`teal.pathops.cuda_kernels.TrieArrays`.
        memory: a :class:`teal.pathops.cuda_kernels.NodeMemory`.
        num_paths: K.
        batch: B.
        carries_all: whether all demand must be carried.
        is_storing: whether to write ``arrays.stepped``.
    """
    sources, demands, all_nodes = len(trie.node_ptr) - 1, len(trie.path_count), len(trie.link)
    links = len(arrays.price) // batch
    me = cuda.threadIdx.x
    partial = cuda.shared.array((SUM_ROWS, THREADS), float64)
    real = arrays.price.dtype.type
    end_node, control = trie.end_node, arrays.control
    for item in range(cuda.blockIdx.x, sources * batch, cuda.gridDim.x):
        s = item // batch
        b = item - s * batch
        first, nodes = trie.node_ptr[s], trie.node_ptr[s + 1] - trie.node_ptr[s]
        level, last_level = trie.level_ptr[s], trie.level_ptr[s + 1]
        value, index, offset = node_memory(memory, trie.parent, memory.max_slots, 1, first, nodes)
        up_index = index if len(memory.place) == 1 else trie.child_end
        for n in range(me, nodes, THREADS):
            value[n + 1] = arrays.price[b * links + trie.link[first + n]]
        cuda.syncthreads()
        scan_down(value, index, offset, trie.level_end, level, last_level, me, 0, 1, THREADS)

        cycle = control[CYCLE * batch + b]
        restarts = control[RESTART_DUE * batch + b] > 0
        share = (cycle + 1) / (cycle + 2)
        of_stepped = real(1.0 if restarts else 2 * share)
        of_current = real(0.0 if restarts else -share)
        of_anchor = real(0.0 if restarts else 1 - share)
        inverse_weight = real(1 / control[WEIGHT * batch + b])
        floor = real(_LOWEST if carries_all else 0.0)
        inverse_scale = real(0.0 if carries_all else control[INVERSE_SCALE * batch + b])
        profit_sum, step_distance, anchor_distance = 0.0, 0.0, 0.0
        for d in range(trie.demand_ptr[s] + me, trie.demand_ptr[s + 1], THREADS):
            n, row, path = int32(trie.path_count[d]), b * demands + d, d * num_paths
            demand = arrays.demand[row]
            if demand <= 0:
                for k in range(n):
                    value[end_node[path + k]] = 0
                continue
            h = arrays.inverse_capacity_sum[
                row if len(arrays.inverse_capacity_sum) > demands else d
            ]
            scaled_value = (
                inverse_scale * arrays.demand_value[d if len(arrays.demand_value) > 1 else 0]
            )
            primal_step, metric, at = inverse_weight / h, demand * h, row * num_paths
            best_profit = floor
            for k in range(n):
                best_profit = max(best_profit, scaled_value - value[end_node[path + k]])
            profit_sum += demand * best_profit
            shift = _simplex_shift(
                arrays.current, at, n, primal_step, scaled_value, value, end_node, path, floor
            )
            for k in range(n):
                old = arrays.current[at + k]
                new = max(
                    old + primal_step * (scaled_value - value[end_node[path + k]]) - shift, real(0)
                )
                start = arrays.anchor[at + k]
                value[end_node[path + k]] = demand * new
                step_distance += metric * (new - old) * (new - old)
                if is_storing:
                    arrays.stepped[at + k] = new
                if restarts:
                    anchor_distance += metric * (new - start) * (new - start)
                    arrays.anchor[at + k] = new
                arrays.current[at + k] = of_stepped * new + of_current * old + of_anchor * start
        partial[PROFIT, me], partial[STEP_DISTANCE, me] = profit_sum, step_distance
        partial[ANCHOR_DISTANCE, me] = anchor_distance
        cuda.syncthreads()

        if len(memory.place) == 1:
            for n in range(me, nodes, THREADS):
                up_index[n + 1] = trie.child_end[first + n]
        for n in range(me, nodes, THREADS):
            if trie.is_path_end[first + n] == 0:
                value[n + 1] = 0
        cuda.syncthreads()
        scan_up(value, up_index, offset, trie.level_end, level, last_level, me, 0, 1, THREADS)
        for n in range(me, nodes, THREADS):
            arrays.node_flow[b * all_nodes + first + n] = value[n + 1]
        add_up(partial, SUM_ROWS, THREADS)
        if me < SUM_ROWS:
            arrays.sums[(me * batch + b) * sources + s] = partial[me, 0]
        cuda.syncthreads()


@device_function
def add_up(partial, rows, threads):
    """Sum each of the first ``rows`` rows of a shared array into its first entry; all ``threads``
    must call it.
    """
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
def _dual_simplex(dual, base, stride, links, weight, partial):
    """The STEPPED y less t times their step size, with t such that they sum to 1 over the live
    links.
    """
    me = cuda.threadIdx.x
    shift, active = _LOWEST, float64(links + 1)
    for _ in range(links):
        total, slopes, size = 0.0, 0.0, 0.0
        for e in range(me, links, LINK_THREADS):
            here = base + e
            slope = weight / dual[FULL * stride + here]
            moved = dual[STEPPED * stride + here]
            if dual[INVERSE * stride + here] > 0 and moved > shift * slope:
                total += moved
                slopes += slope
                size += 1
        partial[0, me], partial[1, me], partial[2, me] = total, slopes, size
        add_up(partial, 3, LINK_THREADS)
        total, slopes, size = partial[0, 0] - 1, partial[1, 0], partial[2, 0]
        cuda.syncthreads()
        if (
            size >= active or slopes <= 0
        ):  # no link was dropped; by rounding, one may even come back
            break
        shift, active = total / slopes, size
    for e in range(me, links, LINK_THREADS):
        here = base + e
        live = dual[INVERSE * stride + here] > 0
        shifted = dual[STEPPED * stride + here] - shift * weight / dual[FULL * stride + here]
        dual[STEPPED * stride + here] = max(0.0, shifted) if live else 0.0
    cuda.syncthreads()


@device_function
def _complete(arrays, b, batch, links, sources, on_simplex, partial):
    """The rest of a matrix's iteration: fixed-point error, Halpern's average, and whether to
    restart next.
    """
    dual, control, sums = arrays.dual, arrays.control, arrays.sums
    me, stride, base = cuda.threadIdx.x, batch * links, b * links
    weight, inverse_scale = control[WEIGHT * batch + b], control[INVERSE_SCALE * batch + b]
    cycle, restarts = control[CYCLE * batch + b], control[RESTART_DUE * batch + b] > 0
    if on_simplex:
        _dual_simplex(dual, base, stride, links, weight, partial)

    profit_sum, step_distance, anchor_distance = 0.0, 0.0, 0.0
    for s in range(me, sources, LINK_THREADS):
        profit_sum += sums[(PROFIT * batch + b) * sources + s]
        step_distance += sums[(STEP_DISTANCE * batch + b) * sources + s]
        anchor_distance += sums[(ANCHOR_DISTANCE * batch + b) * sources + s]
    dual_sum, coupling, dual_step_distance, dual_anchor_distance = 0.0, 0.0, 0.0, 0.0
    for e in range(me, links, LINK_THREADS):
        here = base + e
        y, current, full = (
            dual[STEPPED * stride + here],
            dual[CURRENT * stride + here],
            dual[FULL * stride + here],
        )
        difference, from_anchor = y - current, y - dual[ANCHOR * stride + here]
        dual_sum += current
        coupling += difference * (
            dual[STEPPED_LOAD * stride + here] - dual[CURRENT_LOAD * stride + here]
        )
        dual_step_distance += full * difference * difference
        dual_anchor_distance += full * from_anchor * from_anchor
    partial[0, me], partial[1, me], partial[2, me] = profit_sum, step_distance, anchor_distance
    partial[3, me], partial[4, me] = dual_sum, coupling
    partial[5, me], partial[6, me] = dual_step_distance, dual_anchor_distance
    add_up(partial, _CLOSING_SUMS, LINK_THREADS)
    scale = inverse_scale if on_simplex else 1.0
    profit_sum, step_distance, anchor_distance = (
        partial[0, 0],
        partial[1, 0] * scale,
        partial[2, 0] * scale,
    )
    dual_sum, coupling = partial[3, 0], partial[4, 0]
    dual_step_distance, dual_anchor_distance = partial[5, 0], partial[6, 0]

    share = (cycle + 1) / (cycle + 2)
    of_stepped, of_current, of_anchor = 2 * share, -share, 1 - share
    for e in range(me, links, LINK_THREADS):
        here = base + e
        y, load = dual[STEPPED * stride + here], dual[STEPPED_LOAD * stride + here]
        if restarts:
            dual[ANCHOR * stride + here], dual[ANCHOR_LOAD * stride + here] = y, load
        else:
            y = (
                of_stepped * y
                + of_current * dual[CURRENT * stride + here]
                + of_anchor * dual[ANCHOR * stride + here]
            )
            y = max(0.0, y)
            load = of_stepped * load + of_current * dual[CURRENT_LOAD * stride + here]
            load += of_anchor * dual[ANCHOR_LOAD * stride + here]
        dual[CURRENT * stride + here], dual[CURRENT_LOAD * stride + here] = y, load
        live = dual[INVERSE * stride + here] > 0
        price = y * dual[INVERSE * stride + here] + dual[COST * stride + here]
        arrays.price[here] = price if live else FAILED_PRICE
    cuda.syncthreads()  # every thread has read what the first one writes below
    if me > 0:
        return
    error = math.sqrt(max(0.0, weight * step_distance - 2 * coupling + dual_step_distance / weight))
    first_error = control[FIRST_ERROR * batch + b]
    total = control[TOTAL * batch + b] + 1
    if on_simplex:
        control[BOUND * batch + b] = -profit_sum / max(dual_sum, 1e-300)
    else:
        control[BOUND * batch + b] = (dual_sum + profit_sum) / inverse_scale
    control[TOTAL * batch + b] = total
    if restarts:
        if anchor_distance > MIN_SQUARED_DISTANCE and dual_anchor_distance > MIN_SQUARED_DISTANCE:
            weight = math.sqrt(weight * math.sqrt(dual_anchor_distance / anchor_distance))
        first_weight = control[FIRST_WEIGHT * batch + b]
        lowest, highest = first_weight / MAX_WEIGHT_CHANGE, first_weight * MAX_WEIGHT_CHANGE
        control[WEIGHT * batch + b] = min(max(weight, lowest), highest)
        (
            control[CYCLE * batch + b],
            control[RESTART_DUE * batch + b],
            control[FIRST_ERROR * batch + b],
        ) = 0, 0, -1
    else:
        control[CYCLE * batch + b] = cycle + 1
        if first_error < 0:
            control[FIRST_ERROR * batch + b] = error
        elif (
            error <= RESTART_SUFFICIENT * first_error
            or (
                error <= RESTART_NECESSARY * first_error and error > control[LAST_ERROR * batch + b]
            )
            or cycle + 1 >= RESTART_ARTIFICIAL * total
        ):
            control[RESTART_DUE * batch + b] = 1
    control[LAST_ERROR * batch + b] = error


@cuda_kernel
def step_links(arrays, batch, sources, on_simplex, rows):
    """The load of each link and its dual step; the last block of a matrix completes the iteration.

    Args:
        arrays: a LinkArrays.
        batch: B.
        sources: S.
        on_simplex: whether the y lie on the simplex.
        rows: threads a link.
    """
    dual, control = arrays.dual, arrays.control
    links, nodes = len(arrays.link_ptr) - 1, len(arrays.link_node)
    teams = LINK_THREADS // rows  # a team of threads takes one link
    blocks = (links + teams - 1) // teams  # for each matrix
    b, me = cuda.blockIdx.x // blocks, cuda.threadIdx.x
    team, row = me // rows, me % rows
    e = (cuda.blockIdx.x - b * blocks) * teams + team
    partial = cuda.shared.array((_CLOSING_SUMS, LINK_THREADS), float64)
    is_last = cuda.shared.array(1, int32)
    total = 0.0
    if e < links:
        total = sum_over_link(
            arrays.node_flow, b * nodes, 1, arrays.link_ptr, arrays.link_node, e, row, rows
        )
    partial[0, me] = total
    fold(partial[0], row, rows, 1)
    if e < links and row == 0:
        here, stride = b * links + e, batch * links
        load = partial[0, me] * dual[LOAD_FACTOR * stride + here]
        reflected_load = 2 * load - dual[CURRENT_LOAD * stride + here]
        dual_step = control[WEIGHT * batch + b] / dual[FULL * stride + here]
        gradient = reflected_load if on_simplex else reflected_load - 1
        moved = dual[CURRENT * stride + here] + dual_step * gradient
        live = dual[INVERSE * stride + here] > 0
        dual[STEPPED_LOAD * stride + here] = load
        dual[STEPPED * stride + here] = moved if live and (on_simplex or moved > 0) else 0.0
    cuda.syncthreads()
    if me == 0:
        cuda.threadfence()  # the block's results are visible to all before it counts as finished
        before = cuda.atomic.add(arrays.arrived, b, 1)
        cuda.threadfence()
        is_last[0] = 1 if before == blocks - 1 else 0
    cuda.syncthreads()
    if is_last[0] == 0:
        return
    cuda.threadfence()
    if me == 0:
        arrays.arrived[b] = 0
    _complete(arrays, b, batch, links, sources, on_simplex, partial)
