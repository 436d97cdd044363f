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
from teal.runtime.lanes import fill, larger, load, store, where_above
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
from teal.solvers.pdhg.fused.curves import CurveRows, curve_shift, lane_curve_profit
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
def prices_down(first, nodes, parent, link, price, value, lanes):  # type: ignore[no-untyped-def]
    """Compute the price of the path to each node in rows 1.. of ``value``; row 0, the source,
    is 0.
    """
    for i in range(nodes):
        store(
            value,
            i + 1,
            load(value, parent[first + i], lanes) + load(price, link[first + i], lanes),
        )


@inlined_kernel
def flows_up(first, nodes, parent, link, flow, loads, lanes):  # type: ignore[no-untyped-def]
    """Add the flow of every path to the loads of its links; overwrites ``flow``."""
    for j in range(nodes):
        i = nodes - 1 - j
        passing = load(flow, i + 1, lanes)
        parent_row = parent[first + i]
        e = link[first + i]
        store(loads, e, load(loads, e, lanes) + passing)
        store(flow, parent_row, load(flow, parent_row, lanes) + passing)


@kernel
def begin_iteration(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> bool:
    """Set prices and weights of the next iteration.  Returns whether any matrix restarts in it."""
    is_restarting = False
    for l in range(width):
        halpern_weight = (control.cycle_iterations[l] + 1) / (control.cycle_iterations[l] + 2)
        is_restart = control.restart_due[l] > 0
        is_restarting = is_restarting or is_restart
        scratch.halpern[l] = 1.0 if is_restart else 2 * halpern_weight
        scratch.halpern[width + l] = 0.0 if is_restart else -halpern_weight
        scratch.halpern[2 * width + l] = 0.0 if is_restart else 1 - halpern_weight
        scratch.halpern[3 * width + l] = 1.0 if is_restart else 0.0
        scratch.inverse_weight[l] = 1 / control.primal_weight[l]
    for i in range(len(program.inverse_capacity)):
        live = program.live[i] > 0
        price = dual.current[i] * program.inverse_capacity[i] + program.scaled_cost[i]
        scratch.price[i] = price if live else FAILED_PRICE
    return is_restarting


@kernel
def end_iteration(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> None:
    """Dual step, fixed-point error, Halpern average of y, restart decision."""
    dual_step = dual_gradient_step(program, dual, control, scratch, width)
    if program.on_simplex:
        for l in range(width):
            dual_simplex(dual.stepped, dual_step, program.live, l, width)
    average_and_restart(program, dual, control, scratch, width)


@inner_kernel
def dual_gradient_step(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> FloatArray:
    """Compute the y of T(z) (before the projection of a balanced program) and loads; returns the
    step sizes (E, L).
    """
    links = len(program.inverse_capacity) // width
    blocks = len(scratch.block_load)
    dual_step = np.empty(links * width)
    for i in range(links * width):
        total = 0.0
        for b in range(blocks):
            total += scratch.block_load[b, i]
        dual.stepped_load[i] = total * program.load_factor[i]
        dual_step[i] = control.primal_weight[i % width] / program.full_path_utilisation[i]
        reflected_load = 2 * dual.stepped_load[i] - dual.current_load[i]
        gradient = reflected_load if program.on_simplex else reflected_load - 1
        stepped_dual = dual.current[i] + dual_step[i] * gradient
        dual.stepped[i] = (
            stepped_dual
            if program.live[i] > 0 and (program.on_simplex or stepped_dual > 0)
            else 0.0
        )
    return dual_step


@inner_kernel
def average_and_restart(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> None:
    """Compute fixed-point error, bound and Halpern average of y, and decide on a restart."""
    links = len(program.inverse_capacity) // width
    blocks = len(scratch.block_load)
    for l in range(width):
        profit_sum = 0.0
        step_distance = 0.0
        anchor_distance = 0.0
        for b in range(blocks):
            profit_sum += scratch.block_sums[b, l]
            step_distance += scratch.block_sums[b, width + l]
            anchor_distance += scratch.block_sums[b, 2 * width + l]
        if program.on_simplex:
            step_distance *= program.inverse_scale[l]
            anchor_distance *= program.inverse_scale[l]
        # Distances of y, and their coupling with the loads.
        dual_sum = 0.0
        coupling = 0.0
        dual_step_distance = 0.0
        dual_anchor_distance = 0.0
        for i in range(l, links * width, width):
            dual_sum += dual.current[i]
            difference = dual.stepped[i] - dual.current[i]
            coupling += difference * (dual.stepped_load[i] - dual.current_load[i])
            dual_step_distance += program.full_path_utilisation[i] * difference * difference
            dual_anchor_distance += (
                program.full_path_utilisation[i] * (dual.stepped[i] - dual.anchor[i]) ** 2
            )
        if program.on_simplex:
            control.bound[l] = -profit_sum / max(dual_sum, 1e-300)
        else:
            control.bound[l] = (dual_sum + profit_sum) / program.inverse_scale[l]
        # Fixed-point error in the norm of the step sizes.
        weight = control.primal_weight[l]
        error = np.sqrt(
            max(0.0, weight * step_distance - 2 * coupling + dual_step_distance / weight)
        )
        # Restart at T(z) with a new primal weight, or average.
        control.total_iterations[l] += 1
        if control.restart_due[l] > 0:
            for i in range(l, links * width, width):
                dual.current[i] = dual.anchor[i] = dual.stepped[i]
                dual.current_load[i] = dual.anchor_load[i] = dual.stepped_load[i]
            if (
                anchor_distance > MIN_SQUARED_DISTANCE
                and dual_anchor_distance > MIN_SQUARED_DISTANCE
            ):
                weight = np.sqrt(weight * np.sqrt(dual_anchor_distance / anchor_distance))
            first_weight = control.first_primal_weight[l]
            min_weight = first_weight / MAX_WEIGHT_CHANGE
            max_weight = first_weight * MAX_WEIGHT_CHANGE
            control.primal_weight[l] = min(max(weight, min_weight), max_weight)
            control.cycle_iterations[l] = 0
            control.restart_due[l] = 0
            control.first_error[l] = -1.0
        else:
            stepped_weight = scratch.halpern[l]
            current_weight = scratch.halpern[width + l]
            anchor_weight = scratch.halpern[2 * width + l]
            for i in range(l, links * width, width):
                average = (
                    stepped_weight * dual.stepped[i]
                    + current_weight * dual.current[i]
                    + anchor_weight * dual.anchor[i]
                )
                dual.current[i] = max(0.0, average)
                dual.current_load[i] = (
                    stepped_weight * dual.stepped_load[i]
                    + current_weight * dual.current_load[i]
                    + anchor_weight * dual.anchor_load[i]
                )
            control.cycle_iterations[l] += 1
            first_error = control.first_error[l]
            if first_error < 0:
                control.first_error[l] = error
            elif (
                error <= RESTART_SUFFICIENT * first_error
                or (error <= RESTART_NECESSARY * first_error and error > control.last_error[l])
                or control.cycle_iterations[l] >= RESTART_ARTIFICIAL * control.total_iterations[l]
            ):
                control.restart_due[l] = 1
        control.last_error[l] = error


@parallel_kernel("block_ptr", num_ranges)
def step(
    block: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    demands: DemandRows,
    value: DemandValue,
    curve: CurveRows | None,
    primal: Primal,
    scratch: Scratch,
    inverse_scale: AnyArray,
    carries_all: bool,
    is_restarting: bool,
    is_storing: bool,
    lanes: Lanes,
) -> None:
    """Compute new splits for the prices and weights in ``scratch``, and their loads: the path-sized
    part of one iteration.

    Args:
        scan, block_ptr, max_slots, demands, value, curve, primal, lanes: as in
            :func:`iterate`.
        scratch: prices and weights; ``block_load`` and ``block_sums`` receive the results.
        inverse_scale: (L,) 1 / S in the type of the splits; 0 for a balanced program, whose demands
            have no value.
        carries_all: as in the program.
        is_restarting: whether any matrix restarts in this iteration.
        is_storing: whether to store the splits of T(z).
    """
    real = scratch.price.dtype.type
    floor = real(LOWEST) if carries_all else real(0)
    loads = scratch.block_load[block]
    sums = scratch.block_sums[block]
    loads[:] = 0
    width = len(lanes)
    has_distinct_values = len(value.first) > 1
    has_steps = value.drop.shape[1] > 1
    has_caps = len(value.cap) > 0
    cap = value.cap
    objective_scales = inverse_scale
    step_scratch = np.empty(width, scratch.price.dtype)
    # Locals: Numba counts a reference to each array that is read from a tuple inside a loop, and
    # threads share counts.
    point = primal.current
    anchor = primal.anchor
    stepped = primal.stepped
    rates = demands.demand
    inverse_sums = demands.inverse_capacity_sum
    first_value = value.first
    drop = value.drop
    end = value.end
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
    path_price = np.empty(max_slots * width, price.dtype)
    flow = np.empty(max_slots * width, price.dtype)
    # Scratch for the paths of a demand: splits after the gradient step; with caps also profits,
    # used paths, and one value per lane.
    unprojected = np.empty(_MAX_PATHS_PER_DEMAND * width, price.dtype)
    profits = np.empty(_MAX_PATHS_PER_DEMAND * width if has_caps else 0, price.dtype)
    is_used = np.empty(_MAX_PATHS_PER_DEMAND, np.bool_)
    lane_scratch = np.empty(width, price.dtype)
    unit = fill(real(1), lanes)
    half = fill(real(0.5), lanes)
    floor = fill(floor, lanes)
    zero = unit - unit
    inverse_scale = load(inverse_scale, 0, lanes)
    inverse_weight = load(scratch.inverse_weight, 0, lanes)
    stepped_weight = load(scratch.halpern, 0, lanes)
    current_weight = load(scratch.halpern, 1, lanes)
    anchor_weight = load(scratch.halpern, 2, lanes)
    restarts = load(scratch.halpern, 3, lanes)
    is_special = is_restarting or is_storing
    path_price[:width] = 0
    profit_sum = zero
    step_distance = zero
    anchor_distance = zero
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first = node_ptr[s]
        nodes = node_ptr[s + 1] - node_ptr[s]
        prices_down(first, nodes, parent, link, price, path_price, lanes)
        flow[: (nodes + 1) * width] = 0
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            n = path_count[d]
            if n == 0:
                continue
            demand = load(rates, d, lanes)
            scaled_value = fill(first_value[d if has_distinct_values else 0], lanes) * inverse_scale
            h = load(inverse_sums, d, lanes)
            primal_step = inverse_weight / h
            metric = demand * h
            scaled_step = scaled_value * primal_step
            # Gradient step, best profit (for the bound) and the shift of the projection; the cases
            # of one and two paths are closed forms.
            if has_caps:
                for k in range(n):
                    g = scaled_value - load(path_price, end_node[p + k], lanes)
                    store(profits, k, g)
                    store(unprojected, k, load(point, p + k, lanes) + primal_step * g)
                capped_profit(profits, cap, p, n, lanes, is_used, lane_scratch)
                best_profit = load(lane_scratch, 0, lanes)
                capped_shift(unprojected, cap, p, n, lanes, lane_scratch)
                shift = load(lane_scratch, 0, lanes)
            elif curve is not None:
                best_profit = fill(real(LOWEST), lanes)
                for k in range(n):
                    g = scaled_value - load(path_price, end_node[p + k], lanes)
                    best_profit = larger(g, best_profit)
                    store(unprojected, k, load(point, p + k, lanes) + primal_step * g)
                unit_value = first_value[d if has_distinct_values else 0]
                best_profit = lane_curve_profit(
                    best_profit,
                    lane_scratch,
                    full_share_value,
                    alpha,
                    objective_scales,
                    unit_value,
                    d,
                    lanes,
                )
                store(step_scratch, 0, primal_step)
                curve_shift(
                    unprojected,
                    n,
                    full_share_value,
                    alpha,
                    objective_scales,
                    step_scratch,
                    unit_value,
                    d,
                    lanes,
                )
                shift = load(step_scratch, 0, lanes)
            elif n == 1:
                g = scaled_value - load(path_price, end_node[p], lanes)
                x = load(point, p, lanes) + primal_step * g
                store(unprojected, 0, x)
                best_profit = larger(g, floor)
                if has_steps:
                    shift = step_shift_of_two(drop, end, d, x, x - unit, scaled_step, lanes)
                else:
                    shift = larger(x - unit, floor)
            elif n == 2:
                g = scaled_value - load(path_price, end_node[p], lanes)
                g2 = scaled_value - load(path_price, end_node[p + 1], lanes)
                x = load(point, p, lanes) + primal_step * g
                y = load(point, p + 1, lanes) + primal_step * g2
                store(unprojected, 0, x)
                store(unprojected, 1, y)
                best_profit = larger(larger(g, g2), floor)
                if has_steps:
                    shift = step_shift_of_two(drop, end, d, x, y, scaled_step, lanes)
                else:
                    shift = larger(larger(half * (x + y - unit), larger(x, y) - unit), floor)
            else:
                best_profit = floor
                for k in range(n):
                    g = scaled_value - load(path_price, end_node[p + k], lanes)
                    best_profit = larger(g, best_profit)
                    store(unprojected, k, load(point, p + k, lanes) + primal_step * g)
                if has_steps:
                    shift = step_shift(drop, end, d, unprojected, n, scaled_step, lanes)
                else:
                    shift = larger(simplex_shift(unprojected, n, unit, lanes), floor)
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, scaled_value, lanes)
            profit_sum = profit_sum + where_above(demand, zero, demand * best_profit, zero)
            # Projection, Halpern average, and distances for the restart criteria.
            for k in range(n):
                old = load(point, p, lanes)
                new = larger(load(unprojected, k, lanes) - shift, zero)
                if has_caps:
                    max_share = load(cap, p, lanes)
                    new = where_above(new, max_share, max_share, new)
                anchor_split = load(anchor, p, lanes)
                store(flow, end_node[p], demand * new)
                step_distance = step_distance + metric * (new - old) * (new - old)
                store(
                    point,
                    p,
                    stepped_weight * new + current_weight * old + anchor_weight * anchor_split,
                )
                if is_special:
                    if is_storing:
                        store(stepped, p, new)
                    if is_restarting:
                        anchor_distance = anchor_distance + metric * (new - anchor_split) * (
                            new - anchor_split
                        )
                        store(anchor, p, where_above(restarts, half, new, anchor_split))
                p += 1
        flows_up(first, nodes, parent, link, flow, loads, lanes)
    store(sums, 0, profit_sum)
    store(sums, 1, step_distance)
    store(sums, 2, anchor_distance)


@kernel
def value_scale(program: ScaledProgram, scratch: Scratch) -> AnyArray:
    """Return (L,) factors of demand values in the scaled program, in the type of the splits."""
    scale = program.inverse_scale * 0 if program.on_simplex else program.inverse_scale
    return scale.astype(scratch.price.dtype)


_step_part = step.part  # type: ignore[attr-defined]


@kernel
def _iterate(  # type: ignore[no-untyped-def]
    num_iterations,
    scan,
    block_ptr,
    max_slots,
    program,
    demands,
    value,
    curve,
    primal,
    dual,
    control,
    scratch,
    lanes,
):
    """Run the loop of :func:`iterate`."""
    inverse_scale = value_scale(program, scratch)
    for i in range(num_iterations):
        is_restarting = begin_iteration(program, dual, control, scratch, as_int64(len(lanes)))
        arguments = (
            scan,
            block_ptr,
            max_slots,
            demands,
            value,
            curve,
            primal,
            scratch,
            inverse_scale,
            program.carries_all,
            is_restarting,
            i == num_iterations - 1,
            lanes,
        )
        parallel_for(_step_part, as_int64(len(block_ptr) - 1), arguments)
        end_iteration(program, dual, control, scratch, as_int64(len(lanes)))
        if curve is not None and i + 1 < num_iterations and control.restart_due.max() > 0:
            return i + 1
    return num_iterations


def iterate(
    num_iterations: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    program: ScaledProgram,
    demands: DemandRows,
    value: DemandValue,
    curve: CurveRows | None,
    primal: Primal,
    dual: Dual,
    control: Control,
    scratch: Scratch,
    lanes: Lanes,
) -> int:
    """Run at most ``num_iterations`` iterations of all lanes; return the number done.

    T(z) of the last iteration is in ``primal.stepped`` and ``dual.stepped``.  Under a utility the
    loop ends before a matrix restarts, so that the caller can update its step sizes.

    Args:
        num_iterations: largest number of iterations.
        scan: the paths.
        block_ptr: (blocks + 1,) sources of each block.
        max_slots: largest number of trie nodes of a source, plus one.
        program: the scaled program.
        demands: demands of the scaled program.
        value: values of the demands, in the type of the splits.
        curve: utility of the demands; None for linear values.
        primal: splits, in place.
        dual: dual variables and loads, in place.
        control: state of each matrix, in place.
        scratch: work arrays.
        lanes: a tuple of length L.
    """
    num_done: int = _iterate(
        num_iterations,
        scan,
        block_ptr,
        max_slots,
        program,
        demands,
        value,
        curve,
        primal,
        dual,
        control,
        scratch,
        lanes,
    )
    return num_done
