"""The fused iteration: prices down the trie, splits, flows up the trie, for one source after
another.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.  A block is a run of sources whose tries
pass through the cache once, for L matrices side by side (see :mod:`teal.runtime.lanes`): arrays are
flat, of rows as wide as the tuple ``lanes`` is long.  What crosses sources, the load of each link,
is added up for each block and then over the blocks in order, so that no result depends on the
number of threads.

Link prices here are those of the scaled program, y / c + cost / S, and ``FAILED_PRICE`` on a failed
link; a path whose price reaches ``FAILED_PRICE`` carries nothing.  In :func:`iterate` arrays of the
size of the paths are float32 or float64 as the caller chose, arrays of the size of the links
float64.
"""

from __future__ import annotations

import numpy as np

from teal.network.packed import PathScan
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.lanes import fill, larger, load, store, where_above
from teal.runtime.parallel import (
    as_int64,
    inlined_kernel,
    inner_kernel,
    is_alone,
    kernel,
    parallel_kernel,
    prange,
)
from teal.solvers.pdhg.engine import (
    MAX_WEIGHT_CHANGE,
    MIN_SQUARED_DISTANCE,
    RESTART_ARTIFICIAL,
    RESTART_NECESSARY,
    RESTART_SUFFICIENT,
)
from teal.solvers.pdhg.fused.curves import CurveRows, best_of_curve, curve_shift
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

FAILED_PRICE = (
    1e30  # value per Gbit/s, above every price; the sum over the links of a path still fits float32
)
_MAX_PATHS_OF_DEMAND = (
    256  # entries of scratch for the paths of one demand (their count is one byte)
)


@inlined_kernel
def prices_down(first, nodes, parent, link, price, value, lanes):  # type: ignore[no-untyped-def]
    """Sum of prices along each node's path into rows 1.. of ``value``; row 0, the source, is 0."""
    for i in range(nodes):
        store(
            value,
            i + 1,
            load(value, parent[first + i], lanes) + load(price, link[first + i], lanes),
        )


@inlined_kernel
def flows_up(first, nodes, parent, link, flow, loads, lanes):  # type: ignore[no-untyped-def]
    """Add the flow of every path to the loads of its links; ``flow`` is overwritten."""
    for j in range(nodes):
        i = nodes - 1 - j
        passing, above, e = load(flow, i + 1, lanes), parent[first + i], link[first + i]
        store(loads, e, load(loads, e, lanes) + passing)
        store(flow, above, load(flow, above, lanes) + passing)


@inner_kernel
def _iterate_block(  # type: ignore[no-untyped-def]
    block,
    scan,
    block_ptr,
    max_slots,
    demands,
    value,
    curve,
    primal,
    scratch,
    loads,
    sums,
    inverse_scale,
    floor,
    is_restarting,
    is_storing,
    lanes,
):
    """The primal step and Halpern's average for the demands of one block of sources; arguments as
    of ``step``.
    """
    real = scratch.price.dtype.type
    width = len(lanes)
    several_values, has_steps, has_caps = (
        len(value.first) > 1,
        value.drop.shape[1] > 1,
        len(value.cap) > 0,
    )
    cap, scales, of_steps = value.cap, inverse_scale, np.empty(width, scratch.price.dtype)
    # Locals: Numba counts a reference to each array that is read from a tuple inside a loop, and
    # threads share counts.
    point, anchor, stepped = primal.current, primal.anchor, primal.stepped
    rates, inverse_sums, first_value, drop, end = (
        demands.demand,
        demands.inverse_capacity_sum,
        value.first,
        value.drop,
        value.end,
    )
    if curve is not None:
        worth, alpha = curve.worth, curve.alpha[0]
    node_ptr, demand_ptr, path_ptr = scan.node_ptr, scan.demand_ptr, scan.path_ptr
    parent, link, end_node, path_count, price = (
        scan.parent,
        scan.link,
        scan.end_node,
        scan.path_count,
        scratch.price,
    )
    path_price, flow = (
        np.empty(max_slots * width, price.dtype),
        np.empty(max_slots * width, price.dtype),
    )
    # Of the paths of a demand: splits after the gradient step; with caps also profits, which of
    # them are taken, and a number a lane.
    moved_splits, profits = (
        np.empty(_MAX_PATHS_OF_DEMAND * width, price.dtype),
        np.empty(_MAX_PATHS_OF_DEMAND * width if has_caps else 0, price.dtype),
    )
    is_used, of_lanes = np.empty(_MAX_PATHS_OF_DEMAND, np.bool_), np.empty(width, price.dtype)
    one, half, floor = fill(real(1), lanes), fill(real(0.5), lanes), fill(floor, lanes)
    zero = one - one
    inverse_scale, inverse_weight = (
        load(inverse_scale, 0, lanes),
        load(scratch.inverse_weight, 0, lanes),
    )
    of_stepped, of_current, of_anchor, restarts = (
        load(scratch.halpern, 0, lanes),
        load(scratch.halpern, 1, lanes),
        load(scratch.halpern, 2, lanes),
        load(scratch.halpern, 3, lanes),
    )
    is_special = is_restarting or is_storing
    path_price[:width] = 0
    profit_sum, step_distance, anchor_distance = zero, zero, zero
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
        prices_down(first, nodes, parent, link, price, path_price, lanes)
        flow[: (nodes + 1) * width] = 0
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            n = path_count[d]
            if n == 0:
                continue
            demand = load(rates, d, lanes)
            scaled_value = fill(first_value[d if several_values else 0], lanes) * inverse_scale
            h = load(inverse_sums, d, lanes)
            primal_step, metric = inverse_weight / h, demand * h
            scaled_step = scaled_value * primal_step
            if has_caps:
                for k in range(n):
                    g = scaled_value - load(path_price, end_node[p + k], lanes)
                    store(profits, k, g)
                    store(moved_splits, k, load(point, p + k, lanes) + primal_step * g)
                capped_profit(profits, cap, p, n, lanes, is_used, of_lanes)
                best_profit = load(of_lanes, 0, lanes)
                capped_shift(moved_splits, cap, p, n, lanes, of_lanes)
                shift = load(of_lanes, 0, lanes)
            elif curve is not None:
                best_profit = fill(real(LOWEST), lanes)
                for k in range(n):
                    g = scaled_value - load(path_price, end_node[p + k], lanes)
                    best_profit = larger(g, best_profit)
                    store(moved_splits, k, load(point, p + k, lanes) + primal_step * g)
                unit_value = first_value[d if several_values else 0]
                best_profit = best_of_curve(
                    best_profit, of_lanes, worth, alpha, scales, unit_value, d, lanes
                )
                store(of_steps, 0, primal_step)
                curve_shift(moved_splits, n, worth, alpha, scales, of_steps, unit_value, d, lanes)
                shift = load(of_steps, 0, lanes)
            elif n == 1:
                g = scaled_value - load(path_price, end_node[p], lanes)
                x = load(point, p, lanes) + primal_step * g
                store(moved_splits, 0, x)
                best_profit = larger(g, floor)
                if has_steps:
                    shift = step_shift_of_two(drop, end, d, x, x - one, scaled_step, lanes)
                else:
                    shift = larger(x - one, floor)
            elif n == 2:
                g = scaled_value - load(path_price, end_node[p], lanes)
                g2 = scaled_value - load(path_price, end_node[p + 1], lanes)
                x, y = (
                    load(point, p, lanes) + primal_step * g,
                    load(point, p + 1, lanes) + primal_step * g2,
                )
                store(moved_splits, 0, x)
                store(moved_splits, 1, y)
                best_profit = larger(larger(g, g2), floor)
                if has_steps:
                    shift = step_shift_of_two(drop, end, d, x, y, scaled_step, lanes)
                else:
                    shift = larger(larger(half * (x + y - one), larger(x, y) - one), floor)
            else:
                best_profit = floor
                for k in range(n):
                    g = scaled_value - load(path_price, end_node[p + k], lanes)
                    best_profit = larger(g, best_profit)
                    store(moved_splits, k, load(point, p + k, lanes) + primal_step * g)
                if has_steps:
                    shift = step_shift(drop, end, d, moved_splits, n, scaled_step, lanes)
                else:
                    shift = larger(simplex_shift(moved_splits, n, one, lanes), floor)
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, scaled_value, lanes)
            profit_sum = profit_sum + where_above(demand, zero, demand * best_profit, zero)
            for k in range(n):
                old, new = load(point, p, lanes), larger(load(moved_splits, k, lanes) - shift, zero)
                if has_caps:
                    most = load(cap, p, lanes)
                    new = where_above(new, most, most, new)
                start = load(anchor, p, lanes)
                store(flow, end_node[p], demand * new)
                step_distance = step_distance + metric * (new - old) * (new - old)
                store(point, p, of_stepped * new + of_current * old + of_anchor * start)
                if is_special:
                    if is_storing:
                        store(stepped, p, new)
                    if is_restarting:
                        anchor_distance = anchor_distance + metric * (new - start) * (new - start)
                        store(anchor, p, where_above(restarts, half, new, start))
                p += 1
        flows_up(first, nodes, parent, link, flow, loads, lanes)
    store(sums, 0, profit_sum)
    store(sums, 1, step_distance)
    store(sums, 2, anchor_distance)


@kernel
def before(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> bool:
    """Set the prices and weights of the next iteration; whether any matrix restarts in it."""
    is_restarting = False
    for l in range(width):
        share = (control.cycle_iterations[l] + 1) / (control.cycle_iterations[l] + 2)
        restarts = control.restart_due[l] > 0
        is_restarting = is_restarting or restarts
        scratch.halpern[l] = 1.0 if restarts else 2 * share
        scratch.halpern[width + l] = 0.0 if restarts else -share
        scratch.halpern[2 * width + l] = 0.0 if restarts else 1 - share
        scratch.halpern[3 * width + l] = 1.0 if restarts else 0.0
        scratch.inverse_weight[l] = 1 / control.primal_weight[l]
    for i in range(len(program.inverse_capacity)):
        live = program.live[i] > 0
        price = dual.current[i] * program.inverse_capacity[i] + program.scaled_cost[i]
        scratch.price[i] = price if live else FAILED_PRICE
    return is_restarting


@kernel
def after(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> None:
    """The dual step, the fixed-point error, Halpern's average of the y, and whether to restart
    next.
    """
    dual_step = dual_gradient_step(program, dual, control, scratch, width)
    if program.on_simplex:
        for l in range(width):
            dual_simplex(dual.stepped, dual_step, program.live, l, width)
    average_and_restart(program, dual, control, scratch, width)


@inner_kernel
def dual_gradient_step(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> FloatArray:
    """Set the y of T(z), of a balanced program before their projection, and loads; returns the step
    sizes (E, L).
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
        moved = dual.current[i] + dual_step[i] * gradient
        dual.stepped[i] = (
            moved if program.live[i] > 0 and (program.on_simplex or moved > 0) else 0.0
        )
    return dual_step


@inner_kernel
def average_and_restart(
    program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch, width: int
) -> None:
    """The work after the dual step: fixed-point error, bound, Halpern's average of the y, whether
    to restart.
    """
    links, blocks = len(program.inverse_capacity) // width, len(scratch.block_load)
    for l in range(width):
        profit_sum, step_distance, anchor_distance = 0.0, 0.0, 0.0
        for b in range(blocks):
            profit_sum += scratch.block_sums[b, l]
            step_distance += scratch.block_sums[b, width + l]
            anchor_distance += scratch.block_sums[b, 2 * width + l]
        if program.on_simplex:
            step_distance *= program.inverse_scale[l]
            anchor_distance *= program.inverse_scale[l]
        dual_sum, coupling, dual_step_distance, dual_anchor_distance = 0.0, 0.0, 0.0, 0.0
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
        weight = control.primal_weight[l]
        error = np.sqrt(
            max(0.0, weight * step_distance - 2 * coupling + dual_step_distance / weight)
        )
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
            lowest, highest = first_weight / MAX_WEIGHT_CHANGE, first_weight * MAX_WEIGHT_CHANGE
            control.primal_weight[l] = min(max(weight, lowest), highest)
            control.cycle_iterations[l], control.restart_due[l], control.first_error[l] = 0, 0, -1.0
        else:
            of_stepped, of_current, of_anchor = (
                scratch.halpern[l],
                scratch.halpern[width + l],
                scratch.halpern[2 * width + l],
            )
            for i in range(l, links * width, width):
                average = (
                    of_stepped * dual.stepped[i]
                    + of_current * dual.current[i]
                    + of_anchor * dual.anchor[i]
                )
                dual.current[i] = max(0.0, average)
                dual.current_load[i] = (
                    of_stepped * dual.stepped_load[i]
                    + of_current * dual.current_load[i]
                    + of_anchor * dual.anchor_load[i]
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


@parallel_kernel
def step(
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
    """The paths' part of one iteration: new splits for the prices and weights in ``scratch``, and
    their loads.

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
    # Locals: Numba drops a store to an array that is reached through a tuple inside prange.
    block_load, block_sums = scratch.block_load, scratch.block_sums
    for b in prange(len(block_ptr) - 1):
        block_load[b] = 0
        _iterate_block(
            as_int64(b),
            scan,
            block_ptr,
            max_slots,
            demands,
            value,
            curve,
            primal,
            scratch,
            block_load[b],
            block_sums[b],
            inverse_scale,
            floor,
            is_restarting,
            is_storing,
            lanes,
        )


@kernel
def value_scale(program: ScaledProgram, scratch: Scratch) -> AnyArray:
    """(L,) the factor of demand values in the scaled program, in the type of the splits."""
    scale = program.inverse_scale * 0 if program.on_simplex else program.inverse_scale
    return scale.astype(scratch.price.dtype)


# A compiled function calls either form of a parallel kernel, never a choice of them: hence two
# loops.
_step_on_all, _step_alone = step.dispatchers  # type: ignore[attr-defined]


@kernel
def _iterate_on_all(  # type: ignore[no-untyped-def]
    count,
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
    inverse_scale = value_scale(program, scratch)
    for i in range(count):
        is_restarting = before(program, dual, control, scratch, as_int64(len(lanes)))
        _step_on_all(
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
            i == count - 1,
            lanes,
        )
        after(program, dual, control, scratch, as_int64(len(lanes)))
        if curve is not None and i + 1 < count and control.restart_due.max() > 0:
            return i + 1
    return count


@kernel
def _iterate_alone(  # type: ignore[no-untyped-def]
    count,
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
    inverse_scale = value_scale(program, scratch)
    for i in range(count):
        is_restarting = before(program, dual, control, scratch, as_int64(len(lanes)))
        _step_alone(
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
            i == count - 1,
            lanes,
        )
        after(program, dual, control, scratch, as_int64(len(lanes)))
        if curve is not None and i + 1 < count and control.restart_due.max() > 0:
            return i + 1
    return count


def iterate(
    count: int,
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
    """At most ``count`` iterations of all lanes; how many there were.

    The steps of the last of ``count`` iterations are left in ``primal.stepped`` and
    ``dual.stepped``.  Under a utility the loop ends before a matrix restarts, so that its step
    sizes may follow.

    Args:
        count: iterations.
        scan: the paths.
        block_ptr: (blocks + 1,) sources of each block.
        max_slots: node numbers that the source with most nodes needs.
        program: the scaled program.
        demands: its demands.
        value: their values, in the type of the splits.
        curve: their utility; None for none.
        primal: splits, in place.
        dual: dual variables and loads, in place.
        control: state of each matrix, in place.
        scratch: memory.
        lanes: a tuple of length L.
    """
    done: int = (_iterate_alone if is_alone() else _iterate_on_all)(
        count,
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
    return done
