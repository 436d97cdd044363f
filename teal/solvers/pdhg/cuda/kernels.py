"""CUDA kernels of one PDHG iteration in two launches: splits per source, then y per link.

:func:`step_sources` runs one block per source, :func:`step_links` some threads per link; the last
block of a matrix completes its iteration: norms, primal weight, restart, Halpern average.  The
arithmetic equals :mod:`teal.solvers.pdhg.fused.kernels`; symbols: table in
:mod:`teal.solvers.pdhg`.  Nothing returns to the host, so that a recorded graph can replay
iterations.

The constants below name the rows of ``dual``, ``control`` and ``sums``.  Arrays over paths have the
type of the iteration, arrays over links are float64; all are flat.
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

# Rows of `dual`, (10, B, E): y of z, z_0 and T(z); the loads of their splits times LOAD_FACTOR; the
# factor of loads (1 / c, over S for a balanced program); 1 / c, 0 for a failed link; m; the cost of
# a link over S.
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
# Rows of `sums`, (3, B, S), per source: demand times best profit, squared distances to z and z_0.
PROFIT, STEP_DISTANCE, ANCHOR_DISTANCE = range(3)
SUM_ROWS = 3
_LOWEST = -1e34  # below every price and split, within the range of float32
_CLOSING_SUMS = 7  # number of sums of the last block of a matrix


class SourceArrays(NamedTuple):
    """Arrays of :func:`step_sources`.

    Attributes:
        current, anchor, stepped: (B, D, K) splits of z, z_0 and T(z).
        price: (B, E) y / c + cost / S, ``FAILED_PRICE`` on a failed link.
        demand: (B, D) Gbit/s, 0 where no path is live.
        inverse_capacity_sum: (B, D) h; (1, D) if capacities are equal in all matrices.
        demand_value: (D,) value per Gbit/s; (1,) if equal for all demands.
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
        arrived: (B,) int32, number of finished blocks; 0 before and after a launch.
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
    """Return the t >= ``floor`` for which max(0, x - t) sums to 1 (Michelot 1986), with
    x = splits + tau (v / S - price).

    Each pass recomputes x: its terms are in cache, and a thread has too few registers for all.
    """
    real = splits.dtype.type
    if count == 1:
        return max(
            splits[at] + primal_step * (scaled_value - value[end_node[path]]) - real(1), floor
        )
    shift = real(_LOWEST)
    active = count + 1
    for _ in range(count):
        total = real(-1)
        size = 0
        for k in range(count):
            x = splits[at + k] + primal_step * (scaled_value - value[end_node[path + k]])
            if x > shift:
                total += x
                size += 1
        if size == active or size == 0:
            break
        shift = total / real(size)
        active = size
    return max(shift, floor)


@cuda_kernel
def step_sources(arrays, trie, memory, num_paths, batch, carries_all, is_storing):
    """Primal step and Halpern average of the splits of each source; the flow through each trie
    node.

    Args:
        arrays: a SourceArrays.
        trie: a :class:`teal.pathops.cuda_kernels.TrieArrays`.
        memory: a :class:`teal.pathops.cuda_kernels.NodeMemory`.
        num_paths: K.
        batch: B.
        carries_all: whether all demand must be carried.
        is_storing: whether to write ``arrays.stepped``.
    """
    sources = len(trie.node_ptr) - 1
    demands = len(trie.path_count)
    all_nodes = len(trie.link)
    links = len(arrays.price) // batch
    thread = cuda.threadIdx.x
    partial = cuda.shared.array((SUM_ROWS, THREADS), float64)
    real = arrays.price.dtype.type
    end_node = trie.end_node
    control = arrays.control
    for item in range(cuda.blockIdx.x, sources * batch, cuda.gridDim.x):
        s = item // batch
        b = item - s * batch
        first = trie.node_ptr[s]
        nodes = trie.node_ptr[s + 1] - trie.node_ptr[s]
        level = trie.level_ptr[s]
        last_level = trie.level_ptr[s + 1]
        value, index, offset = node_memory(memory, trie.parent, memory.max_slots, 1, first, nodes)
        up_index = index if len(memory.place) == 1 else trie.child_end
        # Prices of the paths, down the trie.
        for n in range(thread, nodes, THREADS):
            value[n + 1] = arrays.price[b * links + trie.link[first + n]]
        cuda.syncthreads()
        scan_down(value, index, offset, trie.level_end, level, last_level, thread, 0, 1, THREADS)

        # Halpern weights, and splits of each demand.
        cycle = control[CYCLE * batch + b]
        is_restart = control[RESTART_DUE * batch + b] > 0
        halpern_weight = (cycle + 1) / (cycle + 2)
        stepped_weight = real(1.0 if is_restart else 2 * halpern_weight)
        current_weight = real(0.0 if is_restart else -halpern_weight)
        anchor_weight = real(0.0 if is_restart else 1 - halpern_weight)
        inverse_weight = real(1 / control[WEIGHT * batch + b])
        floor = real(_LOWEST if carries_all else 0.0)
        inverse_scale = real(0.0 if carries_all else control[INVERSE_SCALE * batch + b])
        profit_sum = 0.0
        step_distance = 0.0
        anchor_distance = 0.0
        for d in range(trie.demand_ptr[s] + thread, trie.demand_ptr[s + 1], THREADS):
            n = int32(trie.path_count[d])
            row = b * demands + d
            path = d * num_paths
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
            primal_step = inverse_weight / h
            metric = demand * h
            at = row * num_paths
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
                anchor_split = arrays.anchor[at + k]
                value[end_node[path + k]] = demand * new
                step_distance += metric * (new - old) * (new - old)
                if is_storing:
                    arrays.stepped[at + k] = new
                if is_restart:
                    anchor_distance += metric * (new - anchor_split) * (new - anchor_split)
                    arrays.anchor[at + k] = new
                arrays.current[at + k] = (
                    stepped_weight * new + current_weight * old + anchor_weight * anchor_split
                )
        partial[PROFIT, thread] = profit_sum
        partial[STEP_DISTANCE, thread] = step_distance
        partial[ANCHOR_DISTANCE, thread] = anchor_distance
        cuda.syncthreads()

        # Flows through trie nodes, up the trie.
        if len(memory.place) == 1:
            for n in range(thread, nodes, THREADS):
                up_index[n + 1] = trie.child_end[first + n]
        for n in range(thread, nodes, THREADS):
            if trie.is_path_end[first + n] == 0:
                value[n + 1] = 0
        cuda.syncthreads()
        scan_up(value, up_index, offset, trie.level_end, level, last_level, thread, 0, 1, THREADS)
        for n in range(thread, nodes, THREADS):
            arrays.node_flow[b * all_nodes + first + n] = value[n + 1]
        add_up(partial, SUM_ROWS, THREADS)
        if thread < SUM_ROWS:
            arrays.sums[(thread * batch + b) * sources + s] = partial[thread, 0]
        cuda.syncthreads()


@device_function
def add_up(partial, rows, threads):
    """Sum each of the first ``rows`` rows of a shared array into its first entry; all ``threads``
    must call it.
    """
    thread = cuda.threadIdx.x
    half = threads // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            for row in range(rows):
                partial[row, thread] += partial[row, thread + half]
        half //= 2
    cuda.syncthreads()


@device_function
def _dual_simplex(dual, base, stride, links, weight, partial):
    """Project the STEPPED y onto the simplex in the metric of the step sizes, over the live
    links.
    """
    thread = cuda.threadIdx.x
    shift = _LOWEST
    active = float64(links + 1)
    for _ in range(links):
        total = 0.0
        slopes = 0.0
        size = 0.0
        for e in range(thread, links, LINK_THREADS):
            i = base + e
            slope = weight / dual[FULL * stride + i]
            unprojected = dual[STEPPED * stride + i]
            if dual[INVERSE * stride + i] > 0 and unprojected > shift * slope:
                total += unprojected
                slopes += slope
                size += 1
        partial[0, thread] = total
        partial[1, thread] = slopes
        partial[2, thread] = size
        add_up(partial, 3, LINK_THREADS)
        total = partial[0, 0] - 1
        slopes = partial[1, 0]
        size = partial[2, 0]
        cuda.syncthreads()
        # No link was dropped; by rounding, one may even return.
        if size >= active or slopes <= 0:
            break
        shift = total / slopes
        active = size
    for e in range(thread, links, LINK_THREADS):
        i = base + e
        live = dual[INVERSE * stride + i] > 0
        shifted = dual[STEPPED * stride + i] - shift * weight / dual[FULL * stride + i]
        dual[STEPPED * stride + i] = max(0.0, shifted) if live else 0.0
    cuda.syncthreads()


@device_function
def _complete(arrays, b, batch, links, sources, on_simplex, partial):
    """Complete a matrix's iteration: fixed-point error, Halpern average, restart decision."""
    dual = arrays.dual
    control = arrays.control
    sums = arrays.sums
    thread = cuda.threadIdx.x
    stride = batch * links
    base = b * links
    weight = control[WEIGHT * batch + b]
    inverse_scale = control[INVERSE_SCALE * batch + b]
    cycle = control[CYCLE * batch + b]
    is_restart = control[RESTART_DUE * batch + b] > 0
    if on_simplex:
        _dual_simplex(dual, base, stride, links, weight, partial)

    # Sums over sources and links.
    profit_sum = 0.0
    step_distance = 0.0
    anchor_distance = 0.0
    for s in range(thread, sources, LINK_THREADS):
        profit_sum += sums[(PROFIT * batch + b) * sources + s]
        step_distance += sums[(STEP_DISTANCE * batch + b) * sources + s]
        anchor_distance += sums[(ANCHOR_DISTANCE * batch + b) * sources + s]
    dual_sum = 0.0
    coupling = 0.0
    dual_step_distance = 0.0
    dual_anchor_distance = 0.0
    for e in range(thread, links, LINK_THREADS):
        i = base + e
        y = dual[STEPPED * stride + i]
        current = dual[CURRENT * stride + i]
        full_path_utilisation = dual[FULL * stride + i]
        difference = y - current
        from_anchor = y - dual[ANCHOR * stride + i]
        dual_sum += current
        coupling += difference * (dual[STEPPED_LOAD * stride + i] - dual[CURRENT_LOAD * stride + i])
        dual_step_distance += full_path_utilisation * difference * difference
        dual_anchor_distance += full_path_utilisation * from_anchor * from_anchor
    partial[0, thread] = profit_sum
    partial[1, thread] = step_distance
    partial[2, thread] = anchor_distance
    partial[3, thread] = dual_sum
    partial[4, thread] = coupling
    partial[5, thread] = dual_step_distance
    partial[6, thread] = dual_anchor_distance
    add_up(partial, _CLOSING_SUMS, LINK_THREADS)
    scale = inverse_scale if on_simplex else 1.0
    profit_sum = partial[0, 0]
    step_distance = partial[1, 0] * scale
    anchor_distance = partial[2, 0] * scale
    dual_sum = partial[3, 0]
    coupling = partial[4, 0]
    dual_step_distance = partial[5, 0]
    dual_anchor_distance = partial[6, 0]

    # Halpern average of y, and prices of the next iteration.
    halpern_weight = (cycle + 1) / (cycle + 2)
    stepped_weight = 2 * halpern_weight
    current_weight = -halpern_weight
    anchor_weight = 1 - halpern_weight
    for e in range(thread, links, LINK_THREADS):
        i = base + e
        y = dual[STEPPED * stride + i]
        load = dual[STEPPED_LOAD * stride + i]
        if is_restart:
            dual[ANCHOR * stride + i] = y
            dual[ANCHOR_LOAD * stride + i] = load
        else:
            y = (
                stepped_weight * y
                + current_weight * dual[CURRENT * stride + i]
                + anchor_weight * dual[ANCHOR * stride + i]
            )
            y = max(0.0, y)
            load = stepped_weight * load + current_weight * dual[CURRENT_LOAD * stride + i]
            load += anchor_weight * dual[ANCHOR_LOAD * stride + i]
        dual[CURRENT * stride + i] = y
        dual[CURRENT_LOAD * stride + i] = load
        live = dual[INVERSE * stride + i] > 0
        price = y * dual[INVERSE * stride + i] + dual[COST * stride + i]
        arrays.price[i] = price if live else FAILED_PRICE
    # All threads must read control before the first one writes it below.
    cuda.syncthreads()
    if thread > 0:
        return
    error = math.sqrt(max(0.0, weight * step_distance - 2 * coupling + dual_step_distance / weight))
    first_error = control[FIRST_ERROR * batch + b]
    total = control[TOTAL * batch + b] + 1
    if on_simplex:
        control[BOUND * batch + b] = -profit_sum / max(dual_sum, 1e-300)
    else:
        control[BOUND * batch + b] = (dual_sum + profit_sum) / inverse_scale
    control[TOTAL * batch + b] = total
    if is_restart:
        if anchor_distance > MIN_SQUARED_DISTANCE and dual_anchor_distance > MIN_SQUARED_DISTANCE:
            weight = math.sqrt(weight * math.sqrt(dual_anchor_distance / anchor_distance))
        first_weight = control[FIRST_WEIGHT * batch + b]
        min_weight = first_weight / MAX_WEIGHT_CHANGE
        max_weight = first_weight * MAX_WEIGHT_CHANGE
        control[WEIGHT * batch + b] = min(max(weight, min_weight), max_weight)
        control[CYCLE * batch + b] = 0
        control[RESTART_DUE * batch + b] = 0
        control[FIRST_ERROR * batch + b] = -1
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
    """Compute the load and the dual step of each link; the last block of a matrix completes the
    iteration.

    Args:
        arrays: a LinkArrays.
        batch: B.
        sources: S.
        on_simplex: whether the y lie on the simplex.
        rows: number of threads per link.
    """
    dual = arrays.dual
    control = arrays.control
    links = len(arrays.link_ptr) - 1
    nodes = len(arrays.link_node)
    teams = LINK_THREADS // rows  # one team of threads per link
    blocks = (links + teams - 1) // teams  # for each matrix
    b = cuda.blockIdx.x // blocks
    thread = cuda.threadIdx.x
    team = thread // rows
    row = thread % rows
    e = (cuda.blockIdx.x - b * blocks) * teams + team
    partial = cuda.shared.array((_CLOSING_SUMS, LINK_THREADS), float64)
    is_last = cuda.shared.array(1, int32)
    # Load of the link, summed by its team of threads.
    total = 0.0
    if e < links:
        total = sum_over_link(
            arrays.node_flow, b * nodes, 1, arrays.link_ptr, arrays.link_node, e, row, rows
        )
    partial[0, thread] = total
    fold(partial[0], row, rows, 1)
    # Dual step.
    if e < links and row == 0:
        i = b * links + e
        stride = batch * links
        load = partial[0, thread] * dual[LOAD_FACTOR * stride + i]
        reflected_load = 2 * load - dual[CURRENT_LOAD * stride + i]
        dual_step = control[WEIGHT * batch + b] / dual[FULL * stride + i]
        gradient = reflected_load if on_simplex else reflected_load - 1
        stepped_dual = dual[CURRENT * stride + i] + dual_step * gradient
        live = dual[INVERSE * stride + i] > 0
        dual[STEPPED_LOAD * stride + i] = load
        dual[STEPPED * stride + i] = (
            stepped_dual if live and (on_simplex or stepped_dual > 0) else 0.0
        )
    cuda.syncthreads()
    # Only the last block of the matrix continues.
    if thread == 0:
        cuda.threadfence()  # publish the block's results before it counts as finished
        num_arrived = cuda.atomic.add(arrays.arrived, b, 1)
        cuda.threadfence()
        is_last[0] = 1 if num_arrived == blocks - 1 else 0
    cuda.syncthreads()
    if is_last[0] == 0:
        return
    cuda.threadfence()
    if thread == 0:
        arrays.arrived[b] = 0
    _complete(arrays, b, batch, links, sources, on_simplex, partial)
