"""Compiled passes over the paths of S traffic matrices with shared splits.

Scenarios stand in groups of L SIMD lanes.  With G groups, arrays of links are flat (G, E, L);
shares of the scenarios in a demand are flat (D, G, L).  All numbers are float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.packed import PathScan
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
    """The arrays of the size of the demands.

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
def _prices_of_groups(s, scan, price, path_price, groups, lanes):  # type: ignore[no-untyped-def]
    """Prices of the paths to all nodes of a source, for every group of scenarios."""
    first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
    for g in range(groups):
        prices_down(first, nodes, scan.parent, scan.link, price[g], path_price[g], lanes)


@inner_kernel
def _loads_of_groups(s, scan, flow, loads, groups, lanes):  # type: ignore[no-untyped-def]
    """Add the flows of a source's paths to the loads of their links, for every group of
    scenarios.
    """
    first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
    for g in range(groups):
        flows_up(first, nodes, scan.parent, scan.link, flow[g], loads[g], lanes)


@inlined_kernel
def _weighted_price(d, node, rows, path_price, groups, lanes):  # type: ignore[no-untyped-def]
    """Sum over the scenarios of demand ``d`` times the price of the path to a node."""
    weighted = fill(0.0, lanes)
    for g in range(groups):
        weighted = weighted + load(rows.rate, d * groups + g, lanes) * load(
            path_price[g], node, lanes
        )
    return total(weighted)


@partitioned_kernel("block_ptr", lambda block_ptr: len(block_ptr) - 1)
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
    """The paths' part of one iteration; see :func:`teal.solvers.pdhg.fused.kernels.step`.

    With D_s the demand in scenario s, the gradient of a path is the mean of its prices weighted by
    D_s, and all splits of a demand sum to 1.

    Args:
        scan, block_ptr, max_slots: as in :func:`teal.solvers.pdhg.fused.kernels.iterate`.
        rows: the demands.
        current, anchor, stepped: (P,) splits of z, z_0 and T(z).
        price: (G, E * L) y / c, 1/(Gbit/s); ``FAILED_PRICE`` on a failed link.
        halpern: (4,) as in :class:`teal.solvers.pdhg.fused.state.Scratch`.
        inverse_weight: 1 / omega.
        is_restarting: whether this iteration restarts.
        loads: (blocks, G, E * L) receives loads, Gbit/s.
        sums: (blocks, 3) receives sums over demands: demand times lowest price with the sign
            reversed, and the squared distances of the new splits from z and z_0.
        lanes: array of length L.
    """
    width, groups = len(lanes), len(price)
    for block in range(begin, end):
        path_price = np.zeros((groups, max_slots * width))
        flow, moved = np.zeros((groups, max_slots * width)), np.empty(256)
        own_loads, own_sums = loads[block], sums[block]
        own_loads[:] = 0
        profit, step_distance, anchor_distance = 0.0, 0.0, 0.0
        for s in range(block_ptr[block], block_ptr[block + 1]):
            _prices_of_groups(s, scan, price, path_price, groups, lanes)
            flow[:, : (scan.node_ptr[s + 1] - scan.node_ptr[s] + 1) * width] = 0
            p = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n = scan.path_count[d]
                if rows.total[d] > 0:
                    primal_step = inverse_weight / rows.inverse_capacity_sum[d]
                    metric, lowest = rows.total[d] * rows.inverse_capacity_sum[d], np.inf
                    for k in range(n):
                        node = np.int64(scan.end_node[p + k])
                        mean_price = (
                            _weighted_price(d, node, rows, path_price, groups, lanes)
                            / rows.total[d]
                        )
                        lowest = min(lowest, mean_price)
                        moved[k] = current[p + k] - primal_step * mean_price
                    profit -= rows.total[d] * lowest
                    shift = simplex_shift(moved, n, 1.0, (0,))
                    for k in range(p, p + n):
                        old, new, start = current[k], max(0.0, moved[k - p] - shift), anchor[k]
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
            _loads_of_groups(s, scan, flow, own_loads, groups, lanes)
        own_sums[0], own_sums[1], own_sums[2] = profit, step_distance, anchor_distance


@kernel
def after(program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch) -> None:
    """The links' part of one iteration; see :func:`teal.solvers.pdhg.fused.kernels.after`."""
    dual_step = dual_gradient_step(program, dual, control, scratch, 1)
    limited_simplex(dual.stepped, dual_step, program.live, program.limits, program.scenario_width)
    average_and_restart(program, dual, control, scratch, 1)


@partitioned_kernel("block_ptr", lambda block_ptr: len(block_ptr) - 1)
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
    """Repair the splits of T(z), add up their loads, and compute the demands' part of the bound.

    Splits become 0 on paths that are not live, then sum to 1, evenly over live paths where all are
    0.

    Args:
        scan, block_ptr, max_slots, rows, stepped, price, loads, lanes: as in :func:`step`.
        sums: (blocks,) receives the first sum of :func:`step`.
    """
    width, groups = len(lanes), len(price)
    for block in range(begin, end):
        path_price = np.zeros((groups, max_slots * width))
        flow = np.zeros((groups, max_slots * width))
        own_loads = loads[block]
        own_loads[:] = 0
        profit = 0.0
        for s in range(block_ptr[block], block_ptr[block + 1]):
            _prices_of_groups(s, scan, price, path_price, groups, lanes)
            flow[:, : (scan.node_ptr[s + 1] - scan.node_ptr[s] + 1) * width] = 0
            p = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n, lowest, sum_of_splits, live = scan.path_count[d], np.inf, 0.0, 0.0
                for k in range(p, p + n):
                    live += rows.is_live[k]
                    stepped[k] = stepped[k] * rows.is_live[k] if stepped[k] > 0 else 0.0
                    sum_of_splits += stepped[k]
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
            _loads_of_groups(s, scan, flow, own_loads, groups, lanes)
        sums[block] = profit


@partitioned_kernel("block_ptr", lambda block_ptr: len(block_ptr) - 1)
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
    kept: Int64Array,
    kept_ptr: Int64Array,
    kept_splits: FloatArray,
    lanes: Lanes,
) -> None:
    """Make the response of all demands to prices the splits of T(z): exp(-q mean price) over the
    live paths, scaled.

    Args:
        scan, block_ptr, max_slots, rows, stepped, price, lanes: as in :func:`step`.
        sharpness: q, Gbit/s.
        kept: (n,) numbers of the demands that take their splits from ``kept_splits``, ascending.
        kept_ptr: (S + 1,) those of each source.
        kept_splits: (n, K).
    """
    width, groups = len(lanes), len(price)
    for block in range(begin, end):
        path_price, cost = np.zeros((groups, max_slots * width)), np.empty(256)
        for s in range(block_ptr[block], block_ptr[block + 1]):
            _prices_of_groups(s, scan, price, path_price, groups, lanes)
            p, next_kept = scan.path_ptr[s], kept_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n = scan.path_count[d]
                if next_kept < kept_ptr[s + 1] and kept[next_kept] == d:
                    for k in range(n):
                        stepped[p + k] = kept_splits[next_kept, k]
                    next_kept += 1
                else:
                    lowest, sum_of_shares = np.inf, 0.0
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
