"""Compiled passes over the paths of S traffic scenarios with shared splits.

Scenarios form G groups of L SIMD lanes.  Arrays over links are flat (G, E, L), arrays over demands
and scenarios flat (D, G, L), all float64.  :func:`step`, :func:`certify` and :func:`respond` are
the passes of :class:`teal.solvers.pdhg.scenarios.solver.ScenarioPasses`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.packed import PathScan, num_ranges
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lanes import fill, load, store, total
from teal.runtime.parallel import inlined_kernel, inner_kernel, kernel, partitioned_kernel
from teal.solvers.pdhg.fused.kernels import (
    average_and_restart,
    dual_gradient_step,
    flows_up,
    prices_down,
)
from teal.solvers.pdhg.fused.simplex import Lanes, limited_simplex, simplex_shift
from teal.solvers.pdhg.fused.state import Control, Dual, ScaledProgram, Scratch


class ScenarioRows(NamedTuple):
    """Arrays over the demands.

    Attributes:
        rate: (D, G, L) demand in each scenario, Gbit/s; 0 where no path is live.
        total: (D,) sum over the scenarios, Gbit/s.
        inverse_capacity_sum: (D,) h, the largest sum of 1/c along a live path, 1/(Gbit/s).
        is_live: (P,) 1 for a live path, else 0.
    """

    rate: FloatArray
    total: FloatArray
    inverse_capacity_sum: FloatArray
    is_live: FloatArray


@inner_kernel
def _path_prices(s, scan, price, path_price, groups, lanes):  # type: ignore[no-untyped-def]
    """Compute the prices of the paths to all nodes of a source, for every group of scenarios."""
    first = scan.node_ptr[s]
    nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
    for g in range(groups):
        prices_down(first, nodes, scan.parent, scan.link, price[g], path_price[g], lanes)


@inner_kernel
def _add_loads(s, scan, flow, loads, groups, lanes):  # type: ignore[no-untyped-def]
    """Add the flows of a source's paths to the loads of their links, for every group of
    scenarios.
    """
    first = scan.node_ptr[s]
    nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
    for g in range(groups):
        flows_up(first, nodes, scan.parent, scan.link, flow[g], loads[g], lanes)


@inlined_kernel
def _weighted_price(d, node, rows, path_price, groups, lanes):  # type: ignore[no-untyped-def]
    """Return the sum over the scenarios of demand ``d`` times the price of the path to a node."""
    weighted = fill(0.0, lanes)
    for g in range(groups):
        weighted = weighted + load(rows.rate, d * groups + g, lanes) * load(
            path_price[g], node, lanes
        )
    return total(weighted)


@partitioned_kernel("block_ptr", num_ranges)
def step(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    rows: ScenarioRows,
    current: FloatArray,
    anchor: FloatArray,
    stepped: FloatArray,
    price: FloatArray,
    halpern: FloatArray,
    inverse_weight: float,
    is_restarting: bool,
    loads: FloatArray,
    sums: FloatArray,
    lanes: Lanes,
) -> None:
    """Run the paths' part of one iteration (:func:`teal.solvers.pdhg.fused.kernels.step`).

    The gradient of a path is the mean of its prices weighted by the demands D_s of the scenarios;
    the splits of a demand sum to 1.

    Args:
        scan, block_ptr, max_slots: as in :func:`teal.solvers.pdhg.fused.kernels.iterate`.
        rows: the demands.
        current, anchor, stepped: (P,) splits of z, z_0 and T(z).
        price: (G, E * L) y / c, 1/(Gbit/s); ``FAILED_PRICE`` on a failed link.
        halpern: (4,) as in :class:`teal.solvers.pdhg.fused.state.Scratch`.
        inverse_weight: 1 / omega.
        is_restarting: whether this iteration restarts.
        loads: (blocks, G, E * L) receives loads, Gbit/s.
        sums: (blocks, 3) receives sums over demands: minus demand times lowest price, and the
            squared distances of the new splits from z and z_0.
        lanes: array of length L.
    """
    width = len(lanes)
    groups = len(price)
    for block in range(begin, end):
        path_price = np.zeros((groups, max_slots * width))
        flow = np.zeros((groups, max_slots * width))
        unprojected = np.empty(256)
        block_loads = loads[block]
        block_sums = sums[block]
        block_loads[:] = 0
        profit = 0.0
        step_distance = 0.0
        anchor_distance = 0.0
        for s in range(block_ptr[block], block_ptr[block + 1]):
            _path_prices(s, scan, price, path_price, groups, lanes)
            flow[:, : (scan.node_ptr[s + 1] - scan.node_ptr[s] + 1) * width] = 0
            p = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n = scan.path_count[d]
                if rows.total[d] > 0:
                    # Gradient step and projection onto the simplex.
                    primal_step = inverse_weight / rows.inverse_capacity_sum[d]
                    metric = rows.total[d] * rows.inverse_capacity_sum[d]
                    lowest = np.inf
                    for k in range(n):
                        node = np.int64(scan.end_node[p + k])
                        mean_price = (
                            _weighted_price(d, node, rows, path_price, groups, lanes)
                            / rows.total[d]
                        )
                        lowest = min(lowest, mean_price)
                        unprojected[k] = current[p + k] - primal_step * mean_price
                    profit -= rows.total[d] * lowest
                    shift = simplex_shift(unprojected, n, 1.0, (0,))
                    # Halpern average, flows and distances.
                    for k in range(p, p + n):
                        old = current[k]
                        new = max(0.0, unprojected[k - p] - shift)
                        start = anchor[k]
                        node = np.int64(scan.end_node[k])
                        for g in range(groups):
                            store(
                                flow[g],
                                node,
                                load(rows.rate, d * groups + g, lanes) * fill(new, lanes),
                            )
                        step_distance += metric * (new - old) ** 2
                        anchor_distance += metric * (new - start) ** 2
                        stepped[k] = new
                        current[k] = halpern[0] * new + halpern[1] * old + halpern[2] * start
                        if is_restarting:
                            anchor[k] = new
                p += n
            _add_loads(s, scan, flow, block_loads, groups, lanes)
        block_sums[0] = profit
        block_sums[1] = step_distance
        block_sums[2] = anchor_distance


@kernel
def end_iteration(program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch) -> None:
    """Run the links' part of one iteration
    (:func:`teal.solvers.pdhg.fused.kernels.end_iteration`).
    """
    dual_step = dual_gradient_step(program, dual, control, scratch, 1)
    limited_simplex(dual.stepped, dual_step, program.live, program.limits, program.scenario_width)
    average_and_restart(program, dual, control, scratch, 1)


@partitioned_kernel("block_ptr", num_ranges)
def certify(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    rows: ScenarioRows,
    stepped: FloatArray,
    price: FloatArray,
    loads: FloatArray,
    sums: FloatArray,
    lanes: Lanes,
) -> None:
    """Repair the splits of T(z), sum their loads, and compute the demands' part of the bound.

    Splits become 0 on dead paths and are scaled to a sum of 1, evenly over live paths where all are
    0.

    Args:
        scan, block_ptr, max_slots, rows, stepped, price, loads, lanes: as in :func:`step`.
        sums: (blocks,) receives the first sum of :func:`step`.
    """
    width = len(lanes)
    groups = len(price)
    for block in range(begin, end):
        path_price = np.zeros((groups, max_slots * width))
        flow = np.zeros((groups, max_slots * width))
        block_loads = loads[block]
        block_loads[:] = 0
        profit = 0.0
        for s in range(block_ptr[block], block_ptr[block + 1]):
            _path_prices(s, scan, price, path_price, groups, lanes)
            flow[:, : (scan.node_ptr[s + 1] - scan.node_ptr[s] + 1) * width] = 0
            p = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n = scan.path_count[d]
                lowest = np.inf
                sum_of_splits = 0.0
                live = 0.0
                # Clamp the splits to live paths.
                for k in range(p, p + n):
                    live += rows.is_live[k]
                    stepped[k] = stepped[k] * rows.is_live[k] if stepped[k] > 0 else 0.0
                    sum_of_splits += stepped[k]
                # Normalise them, and find the cheapest path.
                for k in range(p, p + n):
                    node = np.int64(scan.end_node[k])
                    if sum_of_splits > 1e-9:
                        stepped[k] /= sum_of_splits
                    elif live > 0:
                        stepped[k] = rows.is_live[k] / live
                    for g in range(groups):
                        store(
                            flow[g],
                            node,
                            load(rows.rate, d * groups + g, lanes) * fill(stepped[k], lanes),
                        )
                    lowest = min(lowest, _weighted_price(d, node, rows, path_price, groups, lanes))
                if live > 0:
                    profit -= lowest
                p += n
            _add_loads(s, scan, flow, block_loads, groups, lanes)
        sums[block] = profit


@partitioned_kernel("block_ptr", num_ranges)
def respond(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    rows: ScenarioRows,
    stepped: FloatArray,
    price: FloatArray,
    sharpness: float,
    fixed_demands: Int64Array,
    fixed_ptr: Int64Array,
    fixed_splits: FloatArray,
    lanes: Lanes,
) -> None:
    """Set the splits of T(z) to the response of all demands to prices: a softmax of -q mean price
    over the live paths.

    Args:
        scan, block_ptr, max_slots, rows, stepped, price, lanes: as in :func:`step`.
        sharpness: q, Gbit/s.
        fixed_demands: (n,) indices of the demands with fixed splits, ascending.
        fixed_ptr: (S + 1,) offsets of the sources in ``fixed_demands``.
        fixed_splits: (n, K) splits of these demands.
    """
    width = len(lanes)
    groups = len(price)
    for block in range(begin, end):
        path_price = np.zeros((groups, max_slots * width))
        cost = np.empty(256)
        for s in range(block_ptr[block], block_ptr[block + 1]):
            _path_prices(s, scan, price, path_price, groups, lanes)
            p = scan.path_ptr[s]
            next_fixed = fixed_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n = scan.path_count[d]
                if next_fixed < fixed_ptr[s + 1] and fixed_demands[next_fixed] == d:
                    for k in range(n):
                        stepped[p + k] = fixed_splits[next_fixed, k]
                    next_fixed += 1
                else:
                    lowest = np.inf
                    sum_of_shares = 0.0
                    for k in range(n):
                        node = np.int64(scan.end_node[p + k])
                        weighted = _weighted_price(d, node, rows, path_price, groups, lanes)
                        cost[k] = weighted / max(rows.total[d], 1e-300)
                        lowest = min(lowest, cost[k])
                    for k in range(n):
                        stepped[p + k] = (
                            np.exp(-sharpness * (cost[k] - lowest)) * rows.is_live[p + k]
                        )
                        sum_of_shares += stepped[p + k]
                    for k in range(p, p + n):
                        stepped[k] /= max(sum_of_shares, 1e-300)
                p += n
