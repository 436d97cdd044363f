"""Compiled PDHG iteration, fused per source: prices down the trie, splits, flows up the trie.

:func:`iterate` is the entry point; :func:`step` is the path-sized part of one iteration.  A block
is a run of sources whose tries pass through the cache once, for L matrices in SIMD lanes
(:mod:`teal.runtime.lanes`): arrays are flat, with rows as wide as the tuple ``lanes`` is long.
Link loads are summed per block and then over the blocks in order, so that results do not depend on
the number of threads.  Symbols: table in :mod:`teal.solvers.pdhg`.

Link prices are those of the scaled program, y / c + cost / S, and ``FAILED_PRICE`` on a failed
link; a path whose price reaches ``FAILED_PRICE`` carries nothing.  In :func:`iterate` arrays over
paths are float32 or float64, arrays over links float64.
"""

from __future__ import annotations

import numpy as np

from teal.network.packed import PathScan, num_ranges
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.lanes import broadcast, load, maximum, store, where_above
from teal.runtime.parallel import (
    as_int64,
    inlined_kernel,
    inner_kernel,
    kernel,
    parallel_kernel,
)
from teal.runtime.thread_team import parallel_for
from teal.solvers.pdhg.engine import (
    MAX_WEIGHT_CHANGE,
    MIN_SQUARED_DISTANCE,
    RESTART_ARTIFICIAL,
    RESTART_NECESSARY,
    RESTART_SUFFICIENT,
)
from teal.solvers.pdhg.fused.curves import UtilityRows, curve_shift, lane_curve_profit
from teal.solvers.pdhg.fused.demand_value import (
    DemandValue,
    capped_profit,
    capped_shift,
    step_shift,
    step_shift_of_two,
    value_profit,
)
from teal.solvers.pdhg.fused.simplex import LOWEST, Lanes, dual_simplex, simplex_shift
from teal.solvers.pdhg.fused.state import Control, DemandRows, Dual, Primal, ScaledProgram, Scratch

# Value per Gbit/s, above every price; the sum over the links of a path still fits float32.
FAILED_PRICE = 1e30
# Scratch entries for the paths of one demand; the number of paths is one byte.
_MAX_PATHS_PER_DEMAND = 256


@inlined_kernel
def prices_down(first_node, num_nodes, parent, link, price, path_price, lanes):  # type: ignore[no-untyped-def]
    """Compute the price of the path to every node of one source's trie, from the root downwards.

    ``path_price[node] <- path_price[parent] + price[link into node]``, L matrices at once.

    Args:
        first_node: index of the source's first node in ``parent`` and ``link``.
        num_nodes: number of the source's nodes, n.
        parent: parent of each node as a row of ``path_price``: 0 for the root, j + 1 for the
            source's j-th node.
        link: link that leads into each node.
        price: (E, L) price of each link.
        path_price: (max_trie_nodes, L) price of the path to each node, in rows 1 to n (written);
            row 0 is the root, which the callers set to 0.
        lanes: tuple of length L.
    """
    # A node's parent comes before it.
    for i in range(num_nodes):
        store(
            path_price,
            i + 1,
            load(path_price, parent[first_node + i], lanes)
            + load(price, link[first_node + i], lanes),
        )


@inlined_kernel
def add_link_loads(first_node, num_nodes, parent, link, flow, loads, lanes):  # type: ignore[no-untyped-def]
    """Add the flows of all paths of one source to the loads of their links, leaves first.

    Every node passes its flow, and that of the nodes below it, to its parent.

    Args:
        first_node: index of the source's first node in ``parent`` and ``link``.
        num_nodes: number of the source's nodes, n.
        parent: parent of each node as a row of ``flow``: 0 for the root, j + 1 for the j-th node
            of the source.
        link: link that leads into each node.
        flow: (max_trie_nodes, L) flow of the path that ends at each node, 0 without one, in rows 1
            to n; row 0 is the root (overwritten by the flow through each node).
        loads: (E, L) load of each link, in the unit of ``flow`` (increased).
        lanes: tuple of length L.
    """
    # From the last node to the first: a node's children come after it.
    for j in range(num_nodes):
        i = num_nodes - 1 - j
        # Flow of the path that ends here, and of all nodes below, which are already added.
        transit_flow = load(flow, i + 1, lanes)
        parent_row = parent[first_node + i]
        e = link[first_node + i]
        store(loads, e, load(loads, e, lanes) + transit_flow)
        store(flow, parent_row, load(flow, parent_row, lanes) + transit_flow)


@kernel
def begin_iteration(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, num_lanes: int
) -> bool:
    """Set the link prices and Halpern weights of the next iteration.

    With the iterate z, the result T(z) of a PDHG step from it and Halpern's anchor z_0, the next
    iterate is a T(z) + b z + c z_0 with a = 2 (n + 1) / (n + 2), b = -(n + 1) / (n + 2) and
    c = 1 / (n + 2) in iteration n of a restart cycle, and T(z) at a restart.  The price of a link
    is y / capacity plus its scaled cost, and ``FAILED_PRICE`` on a failed link.

    Args:
        program: costs, capacities and failed links, (E, L) each.
        dual: ``current`` (E, L), y, the scaled dual variables of z.
        control: iterations of the cycle, restarts and primal weights, (L,) each.
        scratch: receives ``price`` (E, L), ``halpern_weights`` (4, L: a, b, c, and 1 at a restart)
            and ``inverse_primal_weight`` (L,).
        num_lanes: L.

    Returns:
        Whether any matrix restarts in this iteration.
    """
    any_restart = False
    # Halpern weights a, b and c of each matrix; 1, 0 and 0 at a restart.
    for lane in range(num_lanes):
        halpern_weight = (control.cycle_iterations[lane] + 1) / (control.cycle_iterations[lane] + 2)
        is_restart = control.restart_due[lane] > 0
        any_restart = any_restart or is_restart
        scratch.halpern_weights[lane] = 1.0 if is_restart else 2 * halpern_weight
        scratch.halpern_weights[num_lanes + lane] = 0.0 if is_restart else -halpern_weight
        scratch.halpern_weights[2 * num_lanes + lane] = 0.0 if is_restart else 1 - halpern_weight
        scratch.halpern_weights[3 * num_lanes + lane] = 1.0 if is_restart else 0.0
        scratch.inverse_primal_weight[lane] = 1 / control.primal_weight[lane]
    # Link prices y / c + cost / S; entry i is link i // L in lane i % L.
    for i in range(len(program.inverse_capacity)):
        live = program.live[i] > 0
        price = dual.current[i] * program.inverse_capacity[i] + program.scaled_cost[i]
        scratch.price[i] = price if live else FAILED_PRICE
    return any_restart


@kernel
def end_iteration(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, num_lanes: int
) -> None:
    """Finish an iteration on the links: dual step, fixed-point error, Halpern average, restart.

    The paths' part of the iteration (:func:`step`) must have written ``scratch`` before.

    Args:
        program: scaled program of L matrices, arrays (E, L).
        dual: dual variables and loads, (E, L) each (``stepped`` becomes that of T(z), the PDHG step
            from the iterate z; ``current`` that of the next iterate).
        control: (L,) state of each matrix (written).
        scratch: loads and sums of the new splits per block, and the Halpern weights.
        num_lanes: L.
    """
    # Gradient step of y; in a min-max program followed by the projection onto the simplex.
    dual_step = dual_gradient_step(program, dual, control, scratch, num_lanes)
    if program.on_simplex:
        for lane in range(num_lanes):
            dual_simplex(dual.stepped, dual_step, program.live, lane, num_lanes)
    # Halpern average, or restart.
    average_and_restart(program, dual, control, scratch, num_lanes)


@inner_kernel
def dual_gradient_step(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, num_lanes: int
) -> FloatArray:
    """Compute the dual step of T(z): y' <- max(0, y + omega (2 load' - load - 1) / m).

    Loads are utilisations: ``load`` of the splits before, ``load'`` of those after the primal step.
    A min-max program has the gradient 2 load' - load without the 1, and its caller projects y'
    onto the simplex instead of the max with 0.

    Args:
        program: ``load_factor``, ``full_path_utilisation`` (m) and ``live``, (E, L) each.
        dual: (E, L) ``current`` is y, ``current_load`` its load (``stepped``, y', and
            ``stepped_load`` are written).
        control: ``primal_weight`` (L,), omega, the factor of dual step sizes.
        scratch: ``block_load`` (blocks, E, L), loads of the new splits by block, Gbit/s.
        num_lanes: L.

    Returns:
        (E, L) step sizes omega / m.
    """
    num_links = len(program.inverse_capacity) // num_lanes
    num_blocks = len(scratch.block_load)
    dual_step = np.empty(num_links * num_lanes)
    for i in range(num_links * num_lanes):
        # Load of the new splits on link i // L in lane i % L, summed over the blocks.
        load_sum = 0.0
        for b in range(num_blocks):
            load_sum += scratch.block_load[b, i]
        dual.stepped_load[i] = load_sum * program.load_factor[i]
        # Step along the gradient, at the extrapolated load 2 load' - load.
        dual_step[i] = control.primal_weight[i % num_lanes] / program.full_path_utilisation[i]
        reflected_load = 2 * dual.stepped_load[i] - dual.current_load[i]
        gradient = reflected_load if program.on_simplex else reflected_load - 1
        stepped_dual = dual.current[i] + dual_step[i] * gradient
        # y' >= 0, and 0 on a failed link; the projection onto the simplex clamps by itself.
        dual.stepped[i] = (
            stepped_dual
            if program.live[i] > 0 and (program.on_simplex or stepped_dual > 0)
            else 0.0
        )
    return dual_step


@inner_kernel
def average_and_restart(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, num_lanes: int
) -> None:
    """Compute the next y of each matrix: a restart at T(z), or the Halpern average of T(z), z, z_0.

    Per matrix, with the iterate z = (w, y) of splits w and scaled dual variables y, a prime for the
    step T(z) from it, z_0 = (w_0, y_0) Halpern's anchor, omega the primal weight, and S the scale
    of the objective:

    - dual bound: S (sum y + sum_d demand max(0, best profit)); in a min-max program
      -(sum_d demand best profit) / sum y;
    - fixed-point error ||T(z) - z|| in the norm of the step sizes, with the square
      omega |w' - w|^2 - 2 <y' - y, load' - load> + |y' - y|^2 / omega;
    - at a restart: anchor z_0 <- T(z), omega <- sqrt(omega |y' - y_0| / |w' - w_0|), clamped;
    - otherwise: y <- max(0, a y' + b y + c y_0), and PDLP's restart criteria (Applegate et al.
      2021) decide whether the next iteration restarts.

    Args:
        program: scaled program; ``full_path_utilisation`` (E, L) weights the distances of y.
        dual: (E, L) y and loads of z, T(z) and z_0 (z is written, z_0 at a restart).
        control: (L,) state of each matrix (written).
        scratch: ``block_sums`` (blocks, 3, L), sums of demand times best profit, of |w' - w|^2 and
            of |w' - w_0|^2; ``halpern_weights`` (4, L), the weights a, b, c.
        num_lanes: L.
    """
    num_links = len(program.inverse_capacity) // num_lanes
    num_blocks = len(scratch.block_load)
    for lane in range(num_lanes):
        # Sums over the demands, added up over the blocks: demand times best profit, and squared
        # distances from w' to w and to w_0.
        profit_sum = 0.0
        squared_step_distance = 0.0
        squared_anchor_distance = 0.0
        for b in range(num_blocks):
            profit_sum += scratch.block_sums[b, lane]
            squared_step_distance += scratch.block_sums[b, num_lanes + lane]
            squared_anchor_distance += scratch.block_sums[b, 2 * num_lanes + lane]
        # In a min-max program the norm of the splits is over S.
        if program.on_simplex:
            squared_step_distance *= program.inverse_scale[lane]
            squared_anchor_distance *= program.inverse_scale[lane]
        # Sum of y, <y' - y, load' - load>, and squared distances from y' to y and to y_0; the links
        # of this matrix are every L-th entry from ``lane`` on.
        dual_sum = 0.0
        coupling = 0.0
        squared_dual_step_distance = 0.0
        squared_dual_anchor_distance = 0.0
        for i in range(lane, num_links * num_lanes, num_lanes):
            dual_sum += dual.current[i]
            dual_change = dual.stepped[i] - dual.current[i]
            coupling += dual_change * (dual.stepped_load[i] - dual.current_load[i])
            squared_dual_step_distance += (
                program.full_path_utilisation[i] * dual_change * dual_change
            )
            squared_dual_anchor_distance += (
                program.full_path_utilisation[i] * (dual.stepped[i] - dual.anchor[i]) ** 2
            )
        # Dual bound at the y before this iteration.
        if program.on_simplex:
            control.bound[lane] = -profit_sum / max(dual_sum, 1e-300)
        else:
            control.bound[lane] = (dual_sum + profit_sum) / program.inverse_scale[lane]
        # Fixed-point error in the norm of the step sizes.
        omega = control.primal_weight[lane]
        error = np.sqrt(
            max(
                0.0,
                omega * squared_step_distance - 2 * coupling + squared_dual_step_distance / omega,
            )
        )
        control.total_iterations[lane] += 1
        if control.restart_due[lane] > 0:
            # Restart: iterate and anchor become T(z).
            for i in range(lane, num_links * num_lanes, num_lanes):
                dual.current[i] = dual.anchor[i] = dual.stepped[i]
                dual.current_load[i] = dual.anchor_load[i] = dual.stepped_load[i]
            # Primal weight: half way to the ratio of the distances, in logarithms.
            if (
                squared_anchor_distance > MIN_SQUARED_DISTANCE
                and squared_dual_anchor_distance > MIN_SQUARED_DISTANCE
            ):
                omega = np.sqrt(
                    omega * np.sqrt(squared_dual_anchor_distance / squared_anchor_distance)
                )
            # Keep it within MAX_WEIGHT_CHANGE times the first one, up or down.
            first_weight = control.first_primal_weight[lane]
            min_weight = first_weight / MAX_WEIGHT_CHANGE
            max_weight = first_weight * MAX_WEIGHT_CHANGE
            control.primal_weight[lane] = min(max(omega, min_weight), max_weight)
            control.cycle_iterations[lane] = 0
            control.restart_due[lane] = 0
            # -1: no error has been measured in the new cycle.
            control.first_error[lane] = -1.0
        else:
            # Halpern average of y and of the loads, which are linear in the splits.
            stepped_weight = scratch.halpern_weights[lane]
            current_weight = scratch.halpern_weights[num_lanes + lane]
            anchor_weight = scratch.halpern_weights[2 * num_lanes + lane]
            for i in range(lane, num_links * num_lanes, num_lanes):
                averaged_dual = (
                    stepped_weight * dual.stepped[i]
                    + current_weight * dual.current[i]
                    + anchor_weight * dual.anchor[i]
                )
                dual.current[i] = max(0.0, averaged_dual)
                dual.current_load[i] = (
                    stepped_weight * dual.stepped_load[i]
                    + current_weight * dual.current_load[i]
                    + anchor_weight * dual.anchor_load[i]
                )
            control.cycle_iterations[lane] += 1
            # Restart criteria: sufficient decrease of the error; necessary decrease while the
            # error grows; or a long cycle.
            first_error = control.first_error[lane]
            if first_error < 0:
                control.first_error[lane] = error
            elif (
                error <= RESTART_SUFFICIENT * first_error
                or (error <= RESTART_NECESSARY * first_error and error > control.last_error[lane])
                or control.cycle_iterations[lane]
                >= RESTART_ARTIFICIAL * control.total_iterations[lane]
            ):
                control.restart_due[lane] = 1
        control.last_error[lane] = error


@parallel_kernel("block_ptr", num_ranges)
def step(
    block: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    demands: DemandRows,
    demand_value: DemandValue,
    curve: UtilityRows | None,
    primal: Primal,
    scratch: Scratch,
    inverse_scale: AnyArray,
    carries_all: bool,
    is_restarting: bool,
    is_storing: bool,
    lanes: Lanes,
) -> None:
    """Compute the primal step of one PDHG iteration for one block of sources: new splits and loads.

    For each demand d with the splits w over its paths, their Halpern anchor w_0, the link prices in
    ``scratch.price``, the scale S of the objective and the step size tau = 1 / (omega h[d]), with
    the primal weight omega and h[d] the largest sum of 1 / capacity along a path:

        w' = Proj(w + tau (value[d] / S - path price)),
        w <- a w' + b w + c w_0    (Halpern average; a = 1, b = c = 0 at a restart),

    where Proj is the projection onto {w >= 0, sum w <= 1} (sum w = 1 if ``carries_all``), in the
    form max(0, . - shift).  D demands, P paths, E links, C value steps; L matrices are computed
    side by side: an array of shape (X, L) is flat, and ``load(array, i, lanes)`` and ``store``
    access its row i, one value per matrix.

    Args:
        block: index of the block.
        scan: candidate paths, as one trie (prefix tree) per source.  Source s has the trie nodes
            ``node_ptr[s]:node_ptr[s + 1]``, the demands ``demand_ptr[s]:demand_ptr[s + 1]`` and the
            paths from ``path_ptr[s]``, ``path_count[d]`` per demand; path p ends at node
            ``end_node[p]``.  Nodes are numbered from 1 within a source, 0 is the source;
            ``parent`` and ``link`` hold each node's parent and the link into it.
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        demands: ``demand`` (D, L) rates in Gbit/s, and ``inverse_capacity_sum`` (D, L) h.
        demand_value: ``first`` (D,) or (1,) value per Gbit/s; for value steps ``drop`` (D, C) or
            (1, C) and ``end`` (D, C, L); for path caps ``cap`` (P, L); ``end`` and ``cap`` are (0,)
            if unused.
        curve: concave utility, ``full_share_value`` (D, L) and ``alpha`` (1,); None for linear
            values.
        primal: splits (P, L): ``current`` w (written), ``anchor`` w_0 (written at a restart) and
            ``stepped`` w' (written if ``is_storing``).
        scratch: ``price`` (E, L), ``halpern_weights`` (4, L; a, b, c, and 1 for matrices that
            restart) and ``inverse_primal_weight`` (L,; 1 / omega) are read.  Row ``block`` of
            ``block_load`` receives the (E, L) loads of w', Gbit/s, and that of ``block_sums`` (3,
            L) sums over the demands: demand times best profit, and squared distances |w' - w|^2 and
            |w' - w_0|^2.
        inverse_scale: (L,) 1 / S in the type of the splits; 0 for a min-max program, whose demands
            have no value.
        carries_all: whether all demand must be carried.
        is_restarting: whether any matrix restarts in this iteration.
        is_storing: whether to store w'.
        lanes: tuple of length L.
    """
    # Type of the splits, float32 or float64, which all constants must have.
    real = scratch.price.dtype.type
    # Lower bound of profits and of the shift: none where all demand must be carried, else 0.
    floor = real(LOWEST) if carries_all else real(0)
    loads = scratch.block_load[block]
    demand_sums = scratch.block_sums[block]
    loads[:] = 0
    num_lanes = len(lanes)
    # Kinds of values: one for each demand or one for all, value steps, path caps.
    has_distinct_values = len(demand_value.first) > 1
    has_steps = demand_value.drop.shape[1] > 1
    has_caps = len(demand_value.cap) > 0
    cap = demand_value.cap
    inverse_scale_array = inverse_scale
    # (L,) step sizes of a demand; under a utility curve_shift replaces them by the shifts.
    step_or_shift = np.empty(num_lanes, scratch.price.dtype)
    # Locals: Numba counts a reference to each array that is read from a tuple inside a loop, and
    # threads share counts.
    current = primal.current
    anchor = primal.anchor
    stepped = primal.stepped
    rates = demands.demand
    inverse_capacity_sums = demands.inverse_capacity_sum
    first_value = demand_value.first
    drop = demand_value.drop
    end = demand_value.end
    if curve is not None:
        full_share_value = curve.full_share_value
        alpha = curve.alpha[0]
    node_ptr = scan.node_ptr
    demand_ptr = scan.demand_ptr
    path_ptr = scan.path_ptr
    parent = scan.parent
    link = scan.link
    end_node = scan.end_node
    path_count = scan.path_count
    price = scratch.price
    # (max_trie_nodes, L) per trie node of a source: price of the path to it, flow of the path that
    # ends there.
    path_price = np.empty(max_trie_nodes * num_lanes, price.dtype)
    flow = np.empty(max_trie_nodes * num_lanes, price.dtype)
    # (K, L) per path of a demand: splits after the gradient step; with caps also profits.
    unprojected = np.empty(_MAX_PATHS_PER_DEMAND * num_lanes, price.dtype)
    profits = np.empty(_MAX_PATHS_PER_DEMAND * num_lanes if has_caps else 0, price.dtype)
    # Work arrays: flags of the paths in capped_profit, (K,); a result of one demand, (L,).
    is_used = np.empty(_MAX_PATHS_PER_DEMAND, np.bool_)
    lane_scratch = np.empty(num_lanes, price.dtype)
    # Constants and per-matrix scalars in all lanes; from here on ``floor`` and ``inverse_scale``
    # have one value per lane.
    ones = broadcast(real(1), lanes)
    half = broadcast(real(0.5), lanes)
    floor = broadcast(floor, lanes)
    zero = ones - ones
    inverse_scale = load(inverse_scale, 0, lanes)
    inverse_primal_weight = load(scratch.inverse_primal_weight, 0, lanes)
    stepped_weight = load(scratch.halpern_weights, 0, lanes)
    current_weight = load(scratch.halpern_weights, 1, lanes)
    anchor_weight = load(scratch.halpern_weights, 2, lanes)
    restart_flags = load(scratch.halpern_weights, 3, lanes)
    writes_stepped_or_anchor = is_restarting or is_storing
    path_price[:num_lanes] = 0
    profit_sum = zero
    squared_step_distance = zero
    squared_anchor_distance = zero
    # For each source: prices down its trie, new splits of its demands, flows up its trie.
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = node_ptr[source]
        num_nodes = node_ptr[source + 1] - node_ptr[source]
        # Prices of all paths of the source.
        prices_down(first_node, num_nodes, parent, link, price, path_price, lanes)
        flow[: (num_nodes + 1) * num_lanes] = 0
        # p passes over the source's paths, demand by demand.
        p = path_ptr[source]
        for d in range(demand_ptr[source], demand_ptr[source + 1]):
            num_paths = path_count[d]
            if num_paths == 0:
                continue
            demand = load(rates, d, lanes)
            # Value of a Gbit/s in the scaled program, v / S; 0 in a min-max program.
            scaled_value = (
                broadcast(first_value[d if has_distinct_values else 0], lanes) * inverse_scale
            )
            h = load(inverse_capacity_sums, d, lanes)
            # Step size tau; weight of the squared distances; tau v / S, the part of the gradient
            # step that the value causes.
            primal_step = inverse_primal_weight / h
            metric_weight = demand * h
            value_gradient_step = scaled_value * primal_step
            # Gradient step w + tau * profit, best profit (for the dual bound) and shift of the
            # projection.  With path caps: greedy profit, and projection within the caps.
            if has_caps:
                for k in range(num_paths):
                    profit = scaled_value - load(path_price, end_node[p + k], lanes)
                    store(profits, k, profit)
                    store(unprojected, k, load(current, p + k, lanes) + primal_step * profit)
                capped_profit(profits, cap, p, num_paths, lanes, is_used, lane_scratch)
                best_profit = load(lane_scratch, 0, lanes)
                capped_shift(unprojected, cap, p, num_paths, lanes, lane_scratch)
                shift = load(lane_scratch, 0, lanes)
            elif curve is not None:
                # Utility: its term in the dual bound, and the shift of its primal prox.
                best_profit = broadcast(real(LOWEST), lanes)
                for k in range(num_paths):
                    profit = scaled_value - load(path_price, end_node[p + k], lanes)
                    best_profit = maximum(profit, best_profit)
                    store(unprojected, k, load(current, p + k, lanes) + primal_step * profit)
                unit_value = first_value[d if has_distinct_values else 0]
                best_profit = lane_curve_profit(
                    best_profit,
                    lane_scratch,
                    full_share_value,
                    alpha,
                    inverse_scale_array,
                    unit_value,
                    d,
                    lanes,
                )
                store(step_or_shift, 0, primal_step)
                curve_shift(
                    unprojected,
                    num_paths,
                    full_share_value,
                    alpha,
                    inverse_scale_array,
                    step_or_shift,
                    unit_value,
                    d,
                    lanes,
                )
                shift = load(step_or_shift, 0, lanes)
            elif num_paths == 1:
                # One path: the shift to a split of 1.  For value steps add a second path, whose
                # split is lower by 1, so that it is never in use.
                profit = scaled_value - load(path_price, end_node[p], lanes)
                first_unprojected = load(current, p, lanes) + primal_step * profit
                store(unprojected, 0, first_unprojected)
                best_profit = maximum(profit, floor)
                if has_steps:
                    shift = step_shift_of_two(
                        drop,
                        end,
                        d,
                        first_unprojected,
                        first_unprojected - ones,
                        value_gradient_step,
                        lanes,
                    )
                else:
                    shift = maximum(first_unprojected - ones, floor)
            elif num_paths == 2:
                # Two paths: closed form of the shift.
                profit = scaled_value - load(path_price, end_node[p], lanes)
                second_profit = scaled_value - load(path_price, end_node[p + 1], lanes)
                first_unprojected = load(current, p, lanes) + primal_step * profit
                second_unprojected = load(current, p + 1, lanes) + primal_step * second_profit
                store(unprojected, 0, first_unprojected)
                store(unprojected, 1, second_unprojected)
                best_profit = maximum(maximum(profit, second_profit), floor)
                if has_steps:
                    shift = step_shift_of_two(
                        drop,
                        end,
                        d,
                        first_unprojected,
                        second_unprojected,
                        value_gradient_step,
                        lanes,
                    )
                else:
                    # Larger of the shifts with both paths active and with one.
                    shift = maximum(
                        maximum(
                            half * (first_unprojected + second_unprojected - ones),
                            maximum(first_unprojected, second_unprojected) - ones,
                        ),
                        floor,
                    )
            else:
                # More paths: active-set projection onto the simplex.
                best_profit = floor
                for k in range(num_paths):
                    profit = scaled_value - load(path_price, end_node[p + k], lanes)
                    best_profit = maximum(profit, best_profit)
                    store(unprojected, k, load(current, p + k, lanes) + primal_step * profit)
                if has_steps:
                    shift = step_shift(
                        drop, end, d, unprojected, num_paths, value_gradient_step, lanes
                    )
                else:
                    shift = maximum(simplex_shift(unprojected, num_paths, ones, lanes), floor)
            # Demand's term in the dual bound; 0 for a demand of 0, whose paths may all have failed.
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, scaled_value, lanes)
            profit_sum = profit_sum + where_above(demand, zero, demand * best_profit, zero)
            # New splits w', their flows, the Halpern average, and the squared distances from w' to
            # w and w_0.
            for k in range(num_paths):
                current_split = load(current, p, lanes)
                stepped_split = maximum(load(unprojected, k, lanes) - shift, zero)
                if has_caps:
                    max_share = load(cap, p, lanes)
                    stepped_split = where_above(stepped_split, max_share, max_share, stepped_split)
                anchor_split = load(anchor, p, lanes)
                store(flow, end_node[p], demand * stepped_split)
                squared_step_distance = squared_step_distance + metric_weight * (
                    stepped_split - current_split
                ) * (stepped_split - current_split)
                store(
                    current,
                    p,
                    stepped_weight * stepped_split
                    + current_weight * current_split
                    + anchor_weight * anchor_split,
                )
                if writes_stepped_or_anchor:
                    if is_storing:
                        store(stepped, p, stepped_split)
                    if is_restarting:
                        squared_anchor_distance = squared_anchor_distance + metric_weight * (
                            stepped_split - anchor_split
                        ) * (stepped_split - anchor_split)
                        # The anchor moves in the lanes that restart (1 > half) only.
                        store(
                            anchor, p, where_above(restart_flags, half, stepped_split, anchor_split)
                        )
                p += 1
        # Link loads of the source's new flows.
        add_link_loads(first_node, num_nodes, parent, link, flow, loads, lanes)
    # Sums over the block's demands, for the dual bound and the restart criteria.
    store(demand_sums, 0, profit_sum)
    store(demand_sums, 1, squared_step_distance)
    store(demand_sums, 2, squared_anchor_distance)


@kernel
def value_scale(program: ScaledProgram, scratch: Scratch) -> AnyArray:
    """Return (L,) factors of demand values in the scaled program, in the type of the splits.

    They are 1 / S, with S the scale of the objective, and 0 for a min-max program, whose demands
    have no value.
    """
    scale = program.inverse_scale * 0 if program.on_simplex else program.inverse_scale
    return scale.astype(scratch.price.dtype)


_step_part = step.part  # type: ignore[attr-defined]


@kernel
def _iterate(  # type: ignore[no-untyped-def]
    num_iterations,
    scan,
    block_ptr,
    max_trie_nodes,
    program,
    demands,
    demand_value,
    curve,
    primal,
    dual,
    control,
    scratch,
    lanes,
):
    """Run at most ``num_iterations`` PDHG iterations of L matrices; return the number done.

    Each iteration sets link prices, computes new splits in parallel over the blocks of sources, and
    then updates the dual variables.  Under a utility (``curve``) the loop ends before an iteration
    in which a matrix restarts, so that the caller can update its step sizes.

    Args:
        num_iterations: largest number of iterations.
        scan, block_ptr, max_trie_nodes: candidate paths, ranges of sources per block, and the
            largest number of trie nodes of a source plus one.
        program: scaled program: costs, inverse capacities, live links and step sizes, (E, L) each.
        demands: rates in Gbit/s, and largest sums of 1 / capacity along a path, (D, L) each.
        demand_value: value per Gbit/s (D,) or (1,), value steps (D, C), path caps (P, L) or (0,).
        curve: marginal value at share 1 (D, L) and exponent (1,) of a utility, or None.
        primal: splits (P, L) of the iterate z, Halpern's anchor and the step T(z) (written).
        dual: dual variables and loads (E, L) of the same three points (written).
        control: (L,) primal weight, iterations and fixed-point errors of each matrix (written).
        scratch: link prices (E, L), Halpern weights (4, L), loads and sums per block (written).
        lanes: tuple of length L.
    """
    inverse_scale = value_scale(program, scratch)
    for i in range(num_iterations):
        is_restarting = begin_iteration(program, dual, control, scratch, as_int64(len(lanes)))
        # The splits of T(z) are stored in the last iteration only.
        arguments = (
            scan,
            block_ptr,
            max_trie_nodes,
            demands,
            demand_value,
            curve,
            primal,
            scratch,
            inverse_scale,
            program.carries_all,
            is_restarting,
            i == num_iterations - 1,
            lanes,
        )
        # Primal step and Halpern average of the splits, block by block, on all threads.
        parallel_for(_step_part, as_int64(len(block_ptr) - 1), arguments)
        # Dual step, Halpern average of y, and restart criteria.
        end_iteration(program, dual, control, scratch, as_int64(len(lanes)))
        # Return before a restart, at which the caller scales the step sizes.
        if curve is not None and i + 1 < num_iterations and control.restart_due.max() > 0:
            return i + 1
    return num_iterations


def iterate(
    num_iterations: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    program: ScaledProgram,
    demands: DemandRows,
    demand_value: DemandValue,
    curve: UtilityRows | None,
    primal: Primal,
    dual: Dual,
    control: Control,
    scratch: Scratch,
    lanes: Lanes,
) -> int:
    """Run at most ``num_iterations`` PDHG iterations of L matrices; return the number done.

    T(z), the result of the last PDHG step from the iterate z, is in ``primal.stepped`` and
    ``dual.stepped``.  Under a utility the loop ends before a matrix restarts, so that the caller
    can update its step sizes.

    Args:
        num_iterations: largest number of iterations.
        scan: candidate paths of D demands, as one trie per source.
        block_ptr: (blocks + 1,) block b, a unit of parallel work, has the sources
            ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        program: scaled program: costs, inverse capacities, live links and step sizes, (E, L) each.
        demands: rates in Gbit/s, and largest sums of 1 / capacity along a path, (D, L) each.
        demand_value: value per Gbit/s (D,) or (1,), value steps (D, C), path caps (P, L) or (0,),
            in the type of the splits.
        curve: marginal value at share 1 (D, L) and exponent (1,) of a utility; None for linear
            values.
        primal: splits (P, L) of iterate, anchor and T(z) (written).
        dual: dual variables and loads (E, L) of iterate, anchor and T(z) (written).
        control: (L,) primal weight, iterations and fixed-point errors of each matrix (written).
        scratch: link prices (E, L), Halpern weights (4, L), loads and sums per block (written).
        lanes: tuple of length L, the number of matrices side by side in SIMD lanes.
    """
    # The compiled function has no annotations; this one has them.
    num_done: int = _iterate(
        num_iterations,
        scan,
        block_ptr,
        max_trie_nodes,
        program,
        demands,
        demand_value,
        curve,
        primal,
        dual,
        control,
        scratch,
        lanes,
    )
    return num_done
