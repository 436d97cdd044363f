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

# Rows of `dual`, (10, B, E):
#   CURRENT_DUAL, ANCHOR_DUAL, STEPPED_DUAL: y of the iterate z, the Halpern anchor z_0 and the
#       step T(z);
#   CURRENT_LOAD, ANCHOR_LOAD, STEPPED_LOAD: link loads of their splits, times LOAD_FACTOR;
#   LOAD_FACTOR: 1 / c, divided by S in a min-max program;
#   INVERSE_CAPACITY: 1 / c, 0 for a failed link;
#   FULL_PATH_UTILISATION: m, utilisation of the link if every path carried all of its demand;
#   COST: link cost over S.
(
    CURRENT_DUAL,
    ANCHOR_DUAL,
    STEPPED_DUAL,
    CURRENT_LOAD,
    ANCHOR_LOAD,
    STEPPED_LOAD,
    LOAD_FACTOR,
    INVERSE_CAPACITY,
    FULL_PATH_UTILISATION,
    COST,
) = range(10)
DUAL_ROWS = 10
# Rows of `control`, (9, B):
#   WEIGHT: primal weight omega; FIRST_WEIGHT: omega at the start of the solve;
#   CYCLE_ITERATIONS: iterations since the last restart; TOTAL: iterations of all cycles;
#   FIRST_ERROR: fixed-point error of the cycle's first iteration, -1 before it;
#   LAST_ERROR: fixed-point error of the last iteration;
#   RESTART_DUE: 1 if the next iteration restarts; BOUND: dual bound at the y before the step;
#   INVERSE_SCALE: 1 / S.
(
    WEIGHT,
    FIRST_WEIGHT,
    CYCLE_ITERATIONS,
    TOTAL,
    FIRST_ERROR,
    LAST_ERROR,
    RESTART_DUE,
    BOUND,
    INVERSE_SCALE,
) = range(9)
CONTROL_ROWS = 9
# Rows of `sums`, (3, B, sources), sums over the demands of a source:
#   PROFIT: demand times the profit of its best path;
#   STEP_DISTANCE, ANCHOR_DISTANCE: squared distances of the splits of T(z) from the splits of z and
#   of z_0, in the norm sum_d demand[d] h[d] |w[d]|^2.
PROFIT, STEP_DISTANCE, ANCHOR_DISTANCE = range(3)
SUM_ROWS = 3
_LOWEST = -1e34  # below every price and split, within the range of float32
_CLOSING_SUMS = 7  # number of sums over a matrix in :func:`_finish_iteration`


class SourceArrays(NamedTuple):
    """Arrays of :func:`step_sources`, flat in row-major order.

    B matrices, D demands, K paths of a demand, E links, T trie nodes.

    Attributes:
        current, anchor, stepped: (B, D, K) splits of the iterate z, the Halpern anchor z_0 and the
            step T(z).
        price: (B, E) y / capacity + scaled cost, 1/(Gbit/s), with y the scaled dual variables;
            ``FAILED_PRICE`` on a failed link.
        demand: (B, D) Gbit/s, 0 where no path is live.
        inverse_capacity_sum: (B, D) h, largest sum of 1 / capacity along a path of the demand,
            1/(Gbit/s); (1, D) if capacities are equal in all matrices.
        demand_value: (D,) value per Gbit/s; (1,) if equal for all demands.
        control: (9, B) state of the restarts, rows ``WEIGHT`` to ``INVERSE_SCALE``.
        node_flow: (B, T) flow through each trie node, Gbit/s (written).
        sums: (3, B, sources) sums over the demands of each source, rows ``PROFIT`` to
            ``ANCHOR_DISTANCE`` (written).
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
    """Arrays of :func:`step_links`, flat in row-major order.

    B matrices, E links, T trie nodes.

    Attributes:
        node_flow: (B, T) flow through each trie node, Gbit/s.
        dual: (10, B, E) dual variables, loads, link constants: rows ``CURRENT_DUAL`` to ``COST``.
        control: (9, B) state of the restarts, rows ``WEIGHT`` to ``INVERSE_SCALE``.
        price: (B, E) y / capacity + scaled cost of the next iteration, 1/(Gbit/s) (written).
        sums: (3, B, sources) sums over the demands of each source, rows ``PROFIT`` to
            ``ANCHOR_DISTANCE``.
        arrived: (B,) int32, number of finished thread blocks; 0 before and after a launch.
        link_ptr: (E + 1,) link e leads into the trie nodes
            link_node[link_ptr[e]:link_ptr[e + 1]].
        link_node: (T,) trie nodes, ascending for each link.
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
def _simplex_shift(
    splits,
    first_split,
    num_paths,
    primal_step,
    scaled_value,
    node_price,
    end_node,
    first_path,
    floor,
):
    """Return the t >= ``floor`` for which max(0, x - t) sums to 1 (Michelot 1986).

    x[k] = splits[k] + tau (v / S - price[k]) over the paths k of one demand, with its value v per
    Gbit/s, the scale S of the objective and the step size tau: max(0, x - t) is the projected
    primal step.  Each pass keeps the entries above the last t and computes t = (sum - 1) / count.
    Each pass recomputes x: its terms are in cache, and a thread has too few registers for all.

    Args:
        splits: (B * D * K,) splits of the iterate.
        first_split: index of the demand's first split.
        num_paths: number of paths of the demand.
        primal_step: tau, Gbit/s.
        scaled_value: v / S, 1/(Gbit/s).
        node_price: price from the source to each trie node.
        end_node: (D * K,) trie node in which each path ends.
        first_path: index of the demand's first path in ``end_node``.
        floor: 0 if the splits may sum to less than 1; else below every x.
    """
    real = splits.dtype.type
    # One path: t = x - 1.
    if num_paths == 1:
        return max(
            splits[first_split]
            + primal_step * (scaled_value - node_price[end_node[first_path]])
            - real(1),
            floor,
        )
    shift = real(_LOWEST)
    last_num_active = num_paths + 1
    for _ in range(num_paths):
        # Sum minus 1, and number, of the entries above the last t; stop when none was dropped.
        excess = real(-1)
        num_active = 0
        for k in range(num_paths):
            x = splits[first_split + k] + primal_step * (
                scaled_value - node_price[end_node[first_path + k]]
            )
            if x > shift:
                excess += x
                num_active += 1
        if num_active == last_num_active or num_active == 0:
            break
        shift = excess / real(num_active)
        last_num_active = num_active
    return max(shift, floor)


@cuda_kernel
def step_sources(arrays, trie, memory, num_paths, batch, carries_all, is_storing):
    """Primal step and Halpern average of the splits of each source, and the flow through each trie
    node.

    For the splits w of each demand, w' = Proj(w + tau (v / S - price)) with tau = 1 / (omega h),
    the value v of a Gbit/s, the scale S of the objective, the primal weight omega and h the largest
    sum of 1 / capacity along a path; then w <- (n + 1) / (n + 2) (2 w' - w) + w_0 / (n + 2) in
    iteration n of a restart cycle with the anchor w_0, or w <- w' and w_0 <- w' at a restart.  One
    thread block per source and matrix.

    Args:
        arrays: a SourceArrays: splits (B, D, K), link prices (B, E), demands (B, D), node flows and
            sums (written).
        trie: a :class:`teal.pathops.cuda_kernels.TrieArrays`: nodes of source s are
            node_ptr[s]:node_ptr[s + 1], its demands demand_ptr[s]:demand_ptr[s + 1]; path k of
            demand d ends in node end_node[d * K + k].
        memory: a :class:`teal.pathops.cuda_kernels.NodeMemory`: scratch for one value per node.
        num_paths: K.
        batch: B.
        carries_all: whether all demand must be carried, so that splits sum to 1.
        is_storing: whether to write ``arrays.stepped``.
    """
    num_sources = len(trie.node_ptr) - 1
    num_demands = len(trie.path_count)
    total_nodes = len(trie.link)
    num_links = len(arrays.price) // batch
    thread = cuda.threadIdx.x
    # Partial sums of each thread, rows as in ``sums``.
    thread_sums = cuda.shared.array((SUM_ROWS, THREADS), float64)
    real = arrays.price.dtype.type
    end_node = trie.end_node
    control = arrays.control
    for item in range(cuda.blockIdx.x, num_sources * batch, cuda.gridDim.x):
        # Source and matrix of this item; nodes and levels of the source's trie.
        source = item // batch
        b = item - source * batch
        first_node = trie.node_ptr[source]
        num_nodes = trie.node_ptr[source + 1] - trie.node_ptr[source]
        first_level = trie.level_ptr[source]
        last_level = trie.level_ptr[source + 1]
        # Scratch of the source: a value per node, and each node's parent at index[offset + node].
        node_value, index, offset = node_memory(
            memory, trie.parent, memory.max_trie_nodes, 1, first_node, num_nodes
        )
        # For the sums from the leaves up: the end of each node's children, a copy in shared memory
        # (written below) if the node values are there.
        child_end_index = index if len(memory.space) == 1 else trie.child_end
        # Prices of the paths: node_value is the price from the source to each node.
        for n in range(thread, num_nodes, THREADS):
            node_value[n + 1] = arrays.price[b * num_links + trie.link[first_node + n]]
        cuda.syncthreads()
        scan_down(
            node_value,
            index,
            offset,
            trie.level_end,
            first_level,
            last_level,
            thread,
            0,
            1,
            THREADS,
        )

        # Factors of w', w and w_0 in the new iterate: Halpern average with reflection, or w' alone
        # at a restart.
        cycle_iterations = control[CYCLE_ITERATIONS * batch + b]
        is_restart = control[RESTART_DUE * batch + b] > 0
        halpern_weight = (cycle_iterations + 1) / (cycle_iterations + 2)
        stepped_weight = real(1.0 if is_restart else 2 * halpern_weight)
        current_weight = real(0.0 if is_restart else -halpern_weight)
        anchor_weight = real(0.0 if is_restart else 1 - halpern_weight)
        inverse_primal_weight = real(1 / control[WEIGHT * batch + b])
        floor = real(_LOWEST if carries_all else 0.0)
        inverse_scale = real(0.0 if carries_all else control[INVERSE_SCALE * batch + b])
        # Splits of each demand.
        profit_sum = 0.0
        squared_step_distance = 0.0
        squared_anchor_distance = 0.0
        for d in range(trie.demand_ptr[source] + thread, trie.demand_ptr[source + 1], THREADS):
            # Number of the demand's paths.
            n = int32(trie.path_count[d])
            # Index of the demand in (B, D), and of its first path in (D, K).
            demand_entry = b * num_demands + d
            first_path = d * num_paths
            demand = arrays.demand[demand_entry]
            # No demand: no flow.
            if demand <= 0:
                for k in range(n):
                    node_value[end_node[first_path + k]] = 0
                continue
            # h (one row where capacities are equal in all matrices), v / S, tau, and the weight of
            # the squared distances.
            h = arrays.inverse_capacity_sum[
                demand_entry if len(arrays.inverse_capacity_sum) > num_demands else d
            ]
            scaled_value = (
                inverse_scale * arrays.demand_value[d if len(arrays.demand_value) > 1 else 0]
            )
            primal_step = inverse_primal_weight / h
            metric_weight = demand * h
            first_split = demand_entry * num_paths
            # Profit of the best path; at least 0 if demand may be rejected.
            best_profit = floor
            for k in range(n):
                best_profit = max(best_profit, scaled_value - node_value[end_node[first_path + k]])
            profit_sum += demand * best_profit
            # Projected primal step; node_value becomes the flow at the end of each path.
            shift = _simplex_shift(
                arrays.current,
                first_split,
                n,
                primal_step,
                scaled_value,
                node_value,
                end_node,
                first_path,
                floor,
            )
            for k in range(n):
                # New split w', squared distances to w and w_0, and the Halpern average.
                current_split = arrays.current[first_split + k]
                stepped_split = max(
                    current_split
                    + primal_step * (scaled_value - node_value[end_node[first_path + k]])
                    - shift,
                    real(0),
                )
                anchor_split = arrays.anchor[first_split + k]
                node_value[end_node[first_path + k]] = demand * stepped_split
                squared_step_distance += (
                    metric_weight
                    * (stepped_split - current_split)
                    * (stepped_split - current_split)
                )
                if is_storing:
                    arrays.stepped[first_split + k] = stepped_split
                if is_restart:
                    squared_anchor_distance += (
                        metric_weight
                        * (stepped_split - anchor_split)
                        * (stepped_split - anchor_split)
                    )
                    arrays.anchor[first_split + k] = stepped_split
                arrays.current[first_split + k] = (
                    stepped_weight * stepped_split
                    + current_weight * current_split
                    + anchor_weight * anchor_split
                )
        thread_sums[PROFIT, thread] = profit_sum
        thread_sums[STEP_DISTANCE, thread] = squared_step_distance
        thread_sums[ANCHOR_DISTANCE, thread] = squared_anchor_distance
        cuda.syncthreads()

        # Flow through each trie node: sum of the flows of its paths and children.
        if len(memory.space) == 1:
            for n in range(thread, num_nodes, THREADS):
                child_end_index[n + 1] = trie.child_end[first_node + n]
        # A node where no path ends still has its price: set its flow to 0.
        for n in range(thread, num_nodes, THREADS):
            if trie.is_path_end[first_node + n] == 0:
                node_value[n + 1] = 0
        cuda.syncthreads()
        scan_up(
            node_value,
            child_end_index,
            offset,
            trie.level_end,
            first_level,
            last_level,
            thread,
            0,
            1,
            THREADS,
        )
        for n in range(thread, num_nodes, THREADS):
            arrays.node_flow[b * total_nodes + first_node + n] = node_value[n + 1]
        # Sums over the demands of the source.
        add_up(thread_sums, SUM_ROWS, THREADS)
        if thread < SUM_ROWS:
            arrays.sums[(thread * batch + b) * num_sources + source] = thread_sums[thread, 0]
        cuda.syncthreads()


@device_function
def add_up(thread_sums, rows, threads):
    """Sum each of the first ``rows`` rows of a shared array into its first entry; all ``threads``
    must call it.
    """
    thread = cuda.threadIdx.x
    half = threads // 2
    # Add the second half of each row to the first one, and halve.
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            for row in range(rows):
                thread_sums[row, thread] += thread_sums[row, thread + half]
        half //= 2
    cuda.syncthreads()


@device_function
def _dual_simplex(dual, first_entry, stride, num_links, primal_weight, thread_sums):
    """Project the dual variables y of the last step onto the simplex (Michelot 1986).

    y[e] <- max(0, y[e] - t omega / m[e]), with the step size omega / m[e] and the t for which the y
    of the live links sum to 1.

    Args:
        dual: (10, B, E) flat, rows ``CURRENT_DUAL`` to ``COST``; row ``STEPPED_DUAL`` is written.
        first_entry: index of the matrix's first link in a row.
        stride: B * E, length of a row.
        num_links: E.
        primal_weight: primal weight omega.
        thread_sums: (>= 3, LINK_THREADS) shared scratch for the threads' sums.
    """
    thread = cuda.threadIdx.x
    shift = _LOWEST
    last_num_active = float64(num_links + 1)
    for _ in range(num_links):
        # This thread's sums over the live links above the shift, then the sums of all threads.
        excess = 0.0
        slope_sum = 0.0
        num_active = 0.0
        for e in range(thread, num_links, LINK_THREADS):
            i = first_entry + e
            slope = primal_weight / dual[FULL_PATH_UTILISATION * stride + i]
            unprojected = dual[STEPPED_DUAL * stride + i]
            if dual[INVERSE_CAPACITY * stride + i] > 0 and unprojected > shift * slope:
                excess += unprojected
                slope_sum += slope
                num_active += 1
        thread_sums[0, thread] = excess
        thread_sums[1, thread] = slope_sum
        thread_sums[2, thread] = num_active
        add_up(thread_sums, 3, LINK_THREADS)
        excess = thread_sums[0, 0] - 1
        slope_sum = thread_sums[1, 0]
        num_active = thread_sums[2, 0]
        cuda.syncthreads()
        # The set of positive links is stable; rounding may even add one.
        if num_active >= last_num_active or slope_sum <= 0:
            break
        shift = excess / slope_sum
        last_num_active = num_active
    # Shift the y of the live links; those of failed links are 0.
    for e in range(thread, num_links, LINK_THREADS):
        i = first_entry + e
        live = dual[INVERSE_CAPACITY * stride + i] > 0
        shifted = (
            dual[STEPPED_DUAL * stride + i]
            - shift * primal_weight / dual[FULL_PATH_UTILISATION * stride + i]
        )
        dual[STEPPED_DUAL * stride + i] = max(0.0, shifted) if live else 0.0
    cuda.syncthreads()


@device_function
def _finish_iteration(arrays, b, batch, num_links, num_sources, on_simplex, thread_sums):
    """Complete a matrix's iteration: fixed-point error, Halpern average of y, restart decision.

    z = (w, y) is the iterate of splits and dual variables, a prime marks the step T(z) from it,
    z_0 = (w_0, y_0) is Halpern's anchor, omega the primal weight, n the number of iterations since
    the restart, and S the scale of the objective.
    Error ||T(z) - z||^2 = omega |w' - w|^2 - 2 <y' - y, load' - load> + |y' - y|^2 / omega, in the
    norms sum demand h w^2 and sum m y^2, with load and load' those of w and w' over capacity.
    Average y <- (n + 1) / (n + 2) (2 y' - y) + y_0 / (n + 2), clamped to >= 0.  Restarts and the
    primal weight follow PDLP.

    Args:
        arrays: a LinkArrays: dual variables and loads, control state and prices (written); sums
            over sources.
        b: index of the matrix.
        batch: B.
        num_links: E.
        num_sources: number of sources.
        on_simplex: whether y lies on the simplex (min-max program).
        thread_sums: (_CLOSING_SUMS, LINK_THREADS) shared scratch for the threads' sums.
    """
    dual = arrays.dual
    control = arrays.control
    sums = arrays.sums
    thread = cuda.threadIdx.x
    stride = batch * num_links
    first_entry = b * num_links
    primal_weight = control[WEIGHT * batch + b]
    inverse_scale = control[INVERSE_SCALE * batch + b]
    cycle_iterations = control[CYCLE_ITERATIONS * batch + b]
    is_restart = control[RESTART_DUE * batch + b] > 0
    if on_simplex:
        _dual_simplex(dual, first_entry, stride, num_links, primal_weight, thread_sums)

    # Sums over sources: profit, and squared distances of the splits w' to w and w_0.
    profit_sum = 0.0
    squared_step_distance = 0.0
    squared_anchor_distance = 0.0
    for s in range(thread, num_sources, LINK_THREADS):
        profit_sum += sums[(PROFIT * batch + b) * num_sources + s]
        squared_step_distance += sums[(STEP_DISTANCE * batch + b) * num_sources + s]
        squared_anchor_distance += sums[(ANCHOR_DISTANCE * batch + b) * num_sources + s]
    # Sums over links: y, <y' - y, load' - load>, squared distances of y' to y and y_0.
    dual_sum = 0.0
    coupling = 0.0
    squared_dual_step_distance = 0.0
    squared_dual_anchor_distance = 0.0
    for e in range(thread, num_links, LINK_THREADS):
        i = first_entry + e
        y = dual[STEPPED_DUAL * stride + i]
        current_dual = dual[CURRENT_DUAL * stride + i]
        # m, the weight of the link in the norm of y.
        full_path_utilisation = dual[FULL_PATH_UTILISATION * stride + i]
        dual_change = y - current_dual
        anchor_change = y - dual[ANCHOR_DUAL * stride + i]
        dual_sum += current_dual
        coupling += dual_change * (
            dual[STEPPED_LOAD * stride + i] - dual[CURRENT_LOAD * stride + i]
        )
        squared_dual_step_distance += full_path_utilisation * dual_change * dual_change
        squared_dual_anchor_distance += full_path_utilisation * anchor_change * anchor_change
    # Add up the sums of all threads.
    thread_sums[0, thread] = profit_sum
    thread_sums[1, thread] = squared_step_distance
    thread_sums[2, thread] = squared_anchor_distance
    thread_sums[3, thread] = dual_sum
    thread_sums[4, thread] = coupling
    thread_sums[5, thread] = squared_dual_step_distance
    thread_sums[6, thread] = squared_dual_anchor_distance
    add_up(thread_sums, _CLOSING_SUMS, LINK_THREADS)
    # In a min-max program loads are divided by S, and so is the norm of the splits.
    split_metric_factor = inverse_scale if on_simplex else 1.0
    profit_sum = thread_sums[0, 0]
    squared_step_distance = thread_sums[1, 0] * split_metric_factor
    squared_anchor_distance = thread_sums[2, 0] * split_metric_factor
    dual_sum = thread_sums[3, 0]
    coupling = thread_sums[4, 0]
    squared_dual_step_distance = thread_sums[5, 0]
    squared_dual_anchor_distance = thread_sums[6, 0]

    # Halpern average of y, and prices of the next iteration.
    halpern_weight = (cycle_iterations + 1) / (cycle_iterations + 2)
    stepped_weight = 2 * halpern_weight
    current_weight = -halpern_weight
    anchor_weight = 1 - halpern_weight
    for e in range(thread, num_links, LINK_THREADS):
        i = first_entry + e
        y = dual[STEPPED_DUAL * stride + i]
        load = dual[STEPPED_LOAD * stride + i]
        if is_restart:
            dual[ANCHOR_DUAL * stride + i] = y
            dual[ANCHOR_LOAD * stride + i] = load
        else:
            y = (
                stepped_weight * y
                + current_weight * dual[CURRENT_DUAL * stride + i]
                + anchor_weight * dual[ANCHOR_DUAL * stride + i]
            )
            y = max(0.0, y)
            load = stepped_weight * load + current_weight * dual[CURRENT_LOAD * stride + i]
            load += anchor_weight * dual[ANCHOR_LOAD * stride + i]
        dual[CURRENT_DUAL * stride + i] = y
        dual[CURRENT_LOAD * stride + i] = load
        live = dual[INVERSE_CAPACITY * stride + i] > 0
        price = y * dual[INVERSE_CAPACITY * stride + i] + dual[COST * stride + i]
        arrays.price[i] = price if live else FAILED_PRICE
    # All threads must read control before the first one writes it below.
    cuda.syncthreads()
    if thread > 0:
        return
    # Fixed-point error ||T(z) - z||.
    fixed_point_error = math.sqrt(
        max(
            0.0,
            primal_weight * squared_step_distance
            - 2 * coupling
            + squared_dual_step_distance / primal_weight,
        )
    )
    first_error = control[FIRST_ERROR * batch + b]
    total_iterations = control[TOTAL * batch + b] + 1
    # Dual bound at the y before the step.
    if on_simplex:
        control[BOUND * batch + b] = -profit_sum / max(dual_sum, 1e-300)
    else:
        control[BOUND * batch + b] = (dual_sum + profit_sum) / inverse_scale
    control[TOTAL * batch + b] = total_iterations
    # Restart: log(omega) moves half way to the logarithm of the ratio of the distances from z_0.
    if is_restart:
        if (
            squared_anchor_distance > MIN_SQUARED_DISTANCE
            and squared_dual_anchor_distance > MIN_SQUARED_DISTANCE
        ):
            primal_weight = math.sqrt(
                primal_weight * math.sqrt(squared_dual_anchor_distance / squared_anchor_distance)
            )
        first_weight = control[FIRST_WEIGHT * batch + b]
        min_weight = first_weight / MAX_WEIGHT_CHANGE
        max_weight = first_weight * MAX_WEIGHT_CHANGE
        control[WEIGHT * batch + b] = min(max(primal_weight, min_weight), max_weight)
        control[CYCLE_ITERATIONS * batch + b] = 0
        control[RESTART_DUE * batch + b] = 0
        control[FIRST_ERROR * batch + b] = -1
    else:
        # PDLP's restart criteria: sufficient decrease, necessary decrease without progress, or a
        # long cycle.
        control[CYCLE_ITERATIONS * batch + b] = cycle_iterations + 1
        if first_error < 0:
            control[FIRST_ERROR * batch + b] = fixed_point_error
        elif (
            fixed_point_error <= RESTART_SUFFICIENT * first_error
            or (
                fixed_point_error <= RESTART_NECESSARY * first_error
                and fixed_point_error > control[LAST_ERROR * batch + b]
            )
            or cycle_iterations + 1 >= RESTART_ARTIFICIAL * total_iterations
        ):
            control[RESTART_DUE * batch + b] = 1
    control[LAST_ERROR * batch + b] = fixed_point_error


@cuda_kernel
def step_links(arrays, batch, num_sources, on_simplex, threads_per_link):
    """Compute the load and the dual step of each link; the last block of a matrix completes the
    iteration.

    y' = max(0, y + omega / m (2 load(w') - load(w) - 1)), with loads over capacity, w and w' the
    splits before and after the primal step, omega the primal weight and m the utilisation of the
    link if every path carried all of its demand.  In a min-max program without the 1 and the max,
    before the projection onto the simplex.

    Args:
        arrays: a LinkArrays: node flows (B, T), dual variables and loads (10, B, E), control state
            (9, B); dual, control and prices are written.
        batch: B.
        num_sources: number of sources.
        on_simplex: whether y lies on the simplex (min-max program).
        threads_per_link: number of threads per link.
    """
    dual = arrays.dual
    control = arrays.control
    num_links = len(arrays.link_ptr) - 1
    num_nodes = len(arrays.link_node)
    # A team of threads computes one link.
    teams_per_block = LINK_THREADS // threads_per_link
    blocks_per_matrix = (num_links + teams_per_block - 1) // teams_per_block
    b = cuda.blockIdx.x // blocks_per_matrix
    thread = cuda.threadIdx.x
    team = thread // threads_per_link
    team_thread = thread % threads_per_link
    e = (cuda.blockIdx.x - b * blocks_per_matrix) * teams_per_block + team
    # Each thread's part of a sum, and whether this is the last block of the matrix.
    thread_sums = cuda.shared.array((_CLOSING_SUMS, LINK_THREADS), float64)
    is_last = cuda.shared.array(1, int32)
    # Load of the link, summed by its team of threads.
    node_sum = 0.0
    if e < num_links:
        node_sum = sum_over_link(
            arrays.node_flow,
            b * num_nodes,
            1,
            arrays.link_ptr,
            arrays.link_node,
            e,
            team_thread,
            threads_per_link,
        )
    thread_sums[0, thread] = node_sum
    fold(thread_sums[0], team_thread, threads_per_link, 1)
    # Dual step.
    if e < num_links and team_thread == 0:
        i = b * num_links + e
        stride = batch * num_links
        load = thread_sums[0, thread] * dual[LOAD_FACTOR * stride + i]
        reflected_load = 2 * load - dual[CURRENT_LOAD * stride + i]
        dual_step = control[WEIGHT * batch + b] / dual[FULL_PATH_UTILISATION * stride + i]
        gradient = reflected_load if on_simplex else reflected_load - 1
        stepped_dual = dual[CURRENT_DUAL * stride + i] + dual_step * gradient
        live = dual[INVERSE_CAPACITY * stride + i] > 0
        dual[STEPPED_LOAD * stride + i] = load
        dual[STEPPED_DUAL * stride + i] = (
            stepped_dual if live and (on_simplex or stepped_dual > 0) else 0.0
        )
    cuda.syncthreads()
    # Only the last block of the matrix continues.
    if thread == 0:
        # Publish the block's results before it counts as finished.
        cuda.threadfence()
        num_arrived = cuda.atomic.add(arrays.arrived, b, 1)
        cuda.threadfence()
        is_last[0] = 1 if num_arrived == blocks_per_matrix - 1 else 0
    cuda.syncthreads()
    if is_last[0] == 0:
        return
    cuda.threadfence()
    if thread == 0:
        arrays.arrived[b] = 0
    # Norms, primal weight, restart and Halpern average of the matrix.
    _finish_iteration(arrays, b, batch, num_links, num_sources, on_simplex, thread_sums)
