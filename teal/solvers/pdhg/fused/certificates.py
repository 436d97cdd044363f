"""Compiled kernels before and after the iterations: constants of the program, certified bound,
feasible allocation.

All float64, because the bound and the validator depend on the results.  Symbols are those of the
table in :mod:`teal.solvers.pdhg`; further

- L lanes: the matrices solved side by side, B rounded up; an argument ``lanes`` is a tuple of which
  only the length L counts;
- P: the candidate paths of all demands, one after the other;
- a block: the sources ``block_ptr[b]`` to ``block_ptr[b + 1]``, which one thread processes;
- max_slots: the largest number of trie nodes of a source, and one for the source itself;
- an array of shape (X, L) is flat, X * L numbers, with the lanes of one entry side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.packed import MAX_PATHS, PathScan
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.lanes import fill, larger, load, narrow, store, where_above, widen
from teal.runtime.parallel import as_int64, inner_kernel, parallel_kernel, prange
from teal.solvers.pdhg.fused.curves import CurveRows, best_of_curve, curve_value
from teal.solvers.pdhg.fused.demand_value import (
    DemandValue,
    capped_profit,
    value_lost,
    value_profit,
)
from teal.solvers.pdhg.fused.kernels import FAILED_PRICE, flows_up, prices_down
from teal.solvers.pdhg.fused.simplex import Lanes
from teal.solvers.projection import MIN_SPLIT_SUM

# Value per Gbit/s.  A failed link lowers a path's profit by FAILED_PRICE: a path with a profit
# above this has none.
_LIVE_PROFIT = -FAILED_PRICE / 10
_UNLIMITED = (
    FAILED_PRICE  # Gbit/s, larger than any capacity: unused capacity above the first link of a path
)
_MIN_CAPACITY = 1e-30  # Gbit/s, instead of 0 as a divisor
_MIN_DEMAND = 1e-300  # Gbit/s; 1 / demand would overflow below it


class Measurements(NamedTuple):
    """The sums that :func:`measure` fills in.

    Attributes:
        inverse_capacity_sum: (D, L), or (D, 1) if all matrices have the same capacities: h,
            1/(Gbit/s); 1 where it would be 0.
        live_demand: (D, L) Gbit/s, 0 where no path is live.
        full_load: (blocks, E, L) load if every live path carried all of its demand, Gbit/s.
        trial_load: (blocks, E, L) load of a trial routing over live paths, Gbit/s, for
            :func:`teal.solvers.pdhg.engine.guess_dual`.
        demand_value_sum: (blocks, L) the demands' part of the dual bound at prices of 0, value.
    """

    inverse_capacity_sum: FloatArray
    live_demand: FloatArray
    full_load: FloatArray
    trial_load: FloatArray
    demand_value_sum: FloatArray


@inner_kernel
def _measure_block(  # type: ignore[no-untyped-def]
    block,
    scan,
    block_ptr,
    max_slots,
    demand,
    inverse_capacity,
    cost,
    demand_value,
    curve,
    is_even,
    out,
    lanes,
):
    width = len(lanes)
    several_values, has_steps = len(demand_value.first) > 1, demand_value.drop.shape[1] > 1
    drop, end = demand_value.drop, demand_value.end
    of_lanes, ones = np.empty(width), np.ones(width)
    if curve is not None:
        worth, alpha = curve.worth, curve.alpha[0]
    inverse_sum, path_cost = np.zeros(max_slots * width), np.zeros(max_slots * width)
    full_flow, trial_flow = np.empty(max_slots * width), np.empty(max_slots * width)
    one = fill(1.0, lanes)
    zero, live_profit = one - one, fill(_LIVE_PROFIT, lanes)
    total = zero
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        prices_down(first, nodes, scan.parent, scan.link, inverse_capacity, inverse_sum, lanes)
        prices_down(first, nodes, scan.parent, scan.link, cost, path_cost, lanes)
        full_flow[: (nodes + 1) * width] = 0
        trial_flow[: (nodes + 1) * width] = 0
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            h, live_paths, best_profit = zero, zero, zero
            value = fill(demand_value.first[d if several_values else 0], lanes)
            for k in range(p, p + scan.path_count[d]):
                node = scan.end_node[k]
                profit = value - load(path_cost, node, lanes)
                best_profit = larger(best_profit, profit)
                live_paths = live_paths + where_above(profit, live_profit, one, zero)
                h = larger(h, load(inverse_sum, node, lanes))
            store(out.inverse_capacity_sum, d, where_above(h, zero, h, one))
            carried = where_above(live_paths, zero, load(demand, d, lanes), zero)
            store(out.live_demand, d, carried)
            if curve is not None:
                unit_value = demand_value.first[d if several_values else 0]
                best_profit = best_of_curve(
                    best_profit, of_lanes, worth, alpha, ones, unit_value, d, lanes
                )
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, value, lanes)
            total = total + carried * best_profit
            even = carried / larger(live_paths, one)
            for k in range(p, p + scan.path_count[d]):
                node = scan.end_node[k]
                is_live = where_above(value - load(path_cost, node, lanes), live_profit, one, zero)
                store(full_flow, node, is_live * carried)
                if is_even:
                    store(trial_flow, node, is_live * even)
                elif k == p:
                    store(trial_flow, node, is_live * carried)
            p += scan.path_count[d]
        flows_up(first, nodes, scan.parent, scan.link, full_flow, out.full_load[block], lanes)
        flows_up(first, nodes, scan.parent, scan.link, trial_flow, out.trial_load[block], lanes)
    store(out.demand_value_sum[block], 0, total)


@parallel_kernel
def measure(
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    demand: FloatArray,
    inverse_capacity: FloatArray,
    cost: FloatArray,
    demand_value: DemandValue,
    curve: CurveRows | None,
    is_even: bool,
    out: Measurements,
    lanes: Lanes,
) -> None:
    """Compute the constants of a program.

    Args:
        scan, block_ptr, max_slots: as in :func:`teal.solvers.pdhg.fused.kernels.iterate`.
        demand: (D, L) Gbit/s.
        inverse_capacity: (E, L) 1 / c, 0 for a failed link.
        cost: (E, L) cost of each link, value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        demand_value: values of the demands, in float64.
        curve: utility of the demands; None for none.
        is_even: true for a trial routing that spreads each demand evenly over its live paths; false
            for one that uses its first path, and nothing if that has failed.
        out: receives the results; ``full_load`` and ``trial_load`` must be 0 before the call.
        lanes: array of length L.
    """
    for b in prange(len(block_ptr) - 1):
        _measure_block(
            as_int64(b),
            scan,
            block_ptr,
            max_slots,
            demand,
            inverse_capacity,
            cost,
            demand_value,
            curve,
            is_even,
            out,
            lanes,
        )


@inner_kernel
def _certify_block(  # type: ignore[no-untyped-def]
    block,
    scan,
    block_ptr,
    max_slots,
    demand,
    demand_value,
    curve,
    price_plus_cost,
    carries_all,
    is_repairing,
    splits,
    flows,
    loads,
    profits,
    lanes,
):
    width, several_values, has_steps = (
        len(lanes),
        len(demand_value.first) > 1,
        demand_value.drop.shape[1] > 1,
    )
    drop, end, cap, has_caps = (
        demand_value.drop,
        demand_value.end,
        demand_value.cap,
        len(demand_value.cap) > 0,
    )
    path_profit, is_used, of_lanes, ones = (
        np.empty(MAX_PATHS * width if has_caps else 0),
        np.empty(MAX_PATHS if has_caps else 0, np.bool_),
        np.empty(width),
        np.ones(width),
    )
    path_price, flow = np.zeros(max_slots * width), np.empty(max_slots * width)
    one = fill(1.0, lanes)
    zero, live_profit, tiny = one - one, fill(_LIVE_PROFIT, lanes), fill(MIN_SPLIT_SUM, lanes)
    # In a balanced program below every live profit, so that a demand without a live path adds
    # nothing; under a utility any price is worth paying for a share next to 0.
    floor = fill(2 * _LIVE_PROFIT if carries_all else 0.0, lanes)
    if curve is not None:
        worth, alpha, floor = curve.worth, curve.alpha[0], fill(2 * _LIVE_PROFIT, lanes)
    profit_sum = zero
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        prices_down(first, nodes, scan.parent, scan.link, price_plus_cost, path_price, lanes)
        flow[: (nodes + 1) * width] = 0
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            rate, value = (
                load(demand, d, lanes),
                fill(demand_value.first[d if several_values else 0], lanes),
            )
            best_profit, total, live_paths = floor, zero, zero
            for k in range(p, p + scan.path_count[d]):
                profit = value - load(path_price, scan.end_node[k], lanes)
                is_live = where_above(profit, live_profit, one, zero)
                best_profit, live_paths = larger(best_profit, profit), live_paths + is_live
                share = widen(load(splits, k, lanes))
                if has_caps:
                    store(path_profit, k - p, profit)
                    most = load(cap, k, lanes)
                    share = where_above(share, most, most, share)
                total = total + is_live * share
            if has_caps:
                capped_profit(path_profit, cap, p, scan.path_count[d], lanes, is_used, of_lanes)
                best_profit = load(of_lanes, 0, lanes)
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, value, lanes)
            if curve is not None:
                unit_value = demand_value.first[d if several_values else 0]
                best_profit = best_of_curve(
                    best_profit, of_lanes, worth, alpha, ones, unit_value, d, lanes
                )
            profit_sum = profit_sum + where_above(
                best_profit, live_profit, rate * best_profit, zero
            )
            # A demand is carried at most once; a balanced program carries all of it, evenly if it
            # has no splits.
            scale = one / larger(total, one)
            even = zero
            if carries_all:
                scale = where_above(total, tiny, one / larger(total, tiny), zero)
                even = where_above(total, tiny, zero, one / larger(live_paths, one))
            for k in range(p, p + scan.path_count[d]):
                node = scan.end_node[k]
                is_live = where_above(value - load(path_price, node, lanes), live_profit, one, zero)
                share = widen(load(splits, k, lanes))
                if has_caps:
                    most = load(cap, k, lanes)
                    share = where_above(share, most, most, share)
                split = is_live * (share * scale + even)
                sent = rate * split
                if is_repairing:
                    store(splits, k, narrow(where_above(rate, zero, split, zero), splits))
                store(flows, k, sent)
                store(flow, node, sent)
            p += scan.path_count[d]
        flows_up(first, nodes, scan.parent, scan.link, flow, loads[block], lanes)
    store(profits[block], 0, profit_sum)


@parallel_kernel
def certify(
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    demand: FloatArray,
    demand_value: DemandValue,
    curve: CurveRows | None,
    price_plus_cost: FloatArray,
    carries_all: bool,
    is_repairing: bool,
    splits: AnyArray,
    flows: FloatArray,
    loads: FloatArray,
    profits: FloatArray,
    lanes: Lanes,
) -> None:
    """Compute the demands' part of the dual bound, and flows and loads of the splits.

    That part is sum_d demand[d] max(0, max_k(value[d] - path_price[d, k])); in a balanced program,
    which must carry all demand, without the max with 0; for values that fall in steps see
    :mod:`teal.problem.steps`.

    Args:
        scan, block_ptr, max_slots, lanes: as in :func:`teal.solvers.pdhg.fused.kernels.iterate`.
        demand: (D, L) Gbit/s, 0 where no path is live.
        demand_value: values of the demands, in float64.
        curve: utility of the demands; None for none.
        price_plus_cost: (E, L) value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        carries_all: whether all demand must be carried.
        is_repairing: whether to overwrite ``splits`` with the repaired splits.
        splits: (P, L) shares.  They are repaired before use: 0 on paths with a failed link, then
            scaled so that those of a demand sum to at most 1; if ``carries_all`` to exactly 1,
            evenly over live paths where all are 0.
        flows: receives (P, L) Gbit/s.
        loads: receives (blocks, E, L) Gbit/s.
        profits: receives (blocks, L) the terms of the sum above; a demand without a live path adds
            0.
    """
    for b in prange(len(block_ptr) - 1):
        loads[b] = 0
        _certify_block(
            as_int64(b),
            scan,
            block_ptr,
            max_slots,
            demand,
            demand_value,
            curve,
            price_plus_cost,
            carries_all,
            is_repairing,
            splits,
            flows,
            loads,
            profits,
            lanes,
        )


@inner_kernel
def _project_block(  # type: ignore[no-untyped-def]
    block,
    scan,
    block_ptr,
    max_slots,
    demand,
    demand_value,
    curve,
    load_ratio,
    unused,
    is_first,
    is_last,
    flows,
    requests,
    loads,
    requested_loads,
    values,
    lanes,
):
    width, several_values, has_steps = (
        len(lanes),
        len(demand_value.first) > 1,
        demand_value.drop.shape[1] > 1,
    )
    drop, end, cap, has_caps = (
        demand_value.drop,
        demand_value.end,
        demand_value.cap,
        len(demand_value.cap) > 0,
    )
    of_lanes = np.empty(width)
    path_ratio, path_unused = np.zeros(max_slots * width), np.empty(max_slots * width)
    flow, requested_flow = np.empty(max_slots * width), np.empty(max_slots * width)
    one = fill(1.0, lanes)
    zero, tiny, unlimited = one - one, fill(_MIN_CAPACITY, lanes), fill(_UNLIMITED, lanes)
    value = zero
    store(path_unused, 0, unlimited)
    for s in range(block_ptr[block], block_ptr[block + 1]):
        base, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        for i in range(nodes):
            above, e = scan.parent[base + i], scan.link[base + i]
            store(
                path_ratio,
                i + 1,
                larger(load(path_ratio, above, lanes), load(load_ratio, e, lanes)),
            )
            so_far, here = load(path_unused, above, lanes), load(unused, e, lanes)
            store(path_unused, i + 1, where_above(so_far, here, here, so_far))
        flow[: (nodes + 1) * width] = 0
        requested_flow[: (nodes + 1) * width] = 0
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            total, demand_unused = zero, zero
            for k in range(p, p + scan.path_count[d]):
                node = scan.end_node[k]
                divisor = larger(load(path_ratio, node, lanes), one)
                sent = (
                    load(flows, k, lanes) / divisor
                    if is_first
                    else load(flows, k, lanes) + load(requests, k, lanes) / divisor
                )
                store(flows, k, sent)
                store(flow, node, sent)
                total = total + sent
                room = load(path_unused, node, lanes)
                if has_caps:
                    most = larger(load(cap, k, lanes) * load(demand, d, lanes) - sent, zero)
                    room = where_above(room, most, most, room)
                demand_unused = demand_unused + room
            valued = total
            if has_steps:
                valued = total - value_lost(drop, end, d, total, load(demand, d, lanes), lanes)
            if curve is not None:
                store(of_lanes, 0, total)
                curve_value(of_lanes, demand, curve.worth, curve.alpha[0], d, lanes)
                value = value + load(of_lanes, 0, lanes)
            else:
                value = value + valued * fill(demand_value.first[d if several_values else 0], lanes)
            if not is_last:
                unserved = larger(load(demand, d, lanes) - total, zero)
                share = unserved / larger(demand_unused, tiny)
                for k in range(p, p + scan.path_count[d]):
                    node = scan.end_node[k]
                    room = load(path_unused, node, lanes)
                    if has_caps:
                        most = larger(
                            load(cap, k, lanes) * load(demand, d, lanes) - load(flows, k, lanes),
                            zero,
                        )
                        room = where_above(room, most, most, room)
                    request = room * where_above(share, one, one, share)
                    store(requests, k, request)
                    store(requested_flow, node, request)
            p += scan.path_count[d]
        flows_up(base, nodes, scan.parent, scan.link, flow, loads[block], lanes)
        if not is_last:
            flows_up(
                base, nodes, scan.parent, scan.link, requested_flow, requested_loads[block], lanes
            )
    store(values[block], 0, value)


@parallel_kernel
def project_round(
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    demand: FloatArray,
    demand_value: DemandValue,
    curve: CurveRows | None,
    load_ratio: FloatArray,
    unused: FloatArray,
    is_first: bool,
    is_last: bool,
    flows: FloatArray,
    requests: FloatArray,
    loads: FloatArray,
    requested_loads: FloatArray,
    values: FloatArray,
    lanes: Lanes,
) -> None:
    """One round of the projection (see :func:`teal.solvers.projection.project`).

    Cut each path's request so that no link overflows and add it to the path's flow; then let each
    demand request its unserved rest from its paths, in proportion to their unused capacity.

    Args:
        scan, block_ptr, max_slots, lanes: as in :func:`teal.solvers.pdhg.fused.kernels.iterate`.
        demand: (D, L) Gbit/s, 0 where no path is live.
        demand_value: values of the demands, in float64.
        curve: utility of the demands; None for none.
        load_ratio: (E, L) load of ``flows`` over capacity in the first round, load of ``requests``
            over residual capacity in the others; 0 on links without load.  A path is divided by the
            largest ratio on it, if above 1.
        unused: (E, L) capacity that may still be requested, Gbit/s; 0 on failed links.
        is_first: whether to cut ``flows`` instead of granting ``requests``.
        is_last: whether to make no new requests.
        flows: (P, L) Gbit/s, in place.
        requests: (P, L) Gbit/s, in place.
        loads: receives (blocks, E, L) of the flows, Gbit/s.
        requested_loads: receives (blocks, E, L) of the new requests, Gbit/s.
        values: receives (blocks, L) value of the flows without link costs.
    """
    for b in prange(len(block_ptr) - 1):
        loads[b] = 0
        requested_loads[b] = 0
        _project_block(
            as_int64(b),
            scan,
            block_ptr,
            max_slots,
            demand,
            demand_value,
            curve,
            load_ratio,
            unused,
            is_first,
            is_last,
            flows,
            requests,
            loads,
            requested_loads,
            values,
            lanes,
        )


@parallel_kernel
def pack_splits(scan: PathScan, splits: FloatArray, out: AnyArray, lanes: Lanes) -> None:
    """(B, D, K) splits into path rows (P, L).

    Entries that are negative, infinite or NaN become 0, and so do lanes B to L - 1, which hold no
    matrix.
    """
    width, batch = len(lanes), len(splits)
    for s in prange(len(scan.demand_ptr) - 1):
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            for k in range(scan.path_count[d]):
                for l in range(width):
                    share = splits[l, d, k] if l < batch else 0
                    out[p * width + l] = share if 0 < share < np.inf else 0
                p += 1


@parallel_kernel
def unpack_splits(
    scan: PathScan, rows: AnyArray, demand: FloatArray, out: FloatArray, lanes: Lanes
) -> None:
    """Path rows into splits.

    Args:
        scan, lanes: as in :func:`teal.solvers.pdhg.fused.kernels.iterate`.
        rows: (P, L) flows in Gbit/s, or splits.
        demand: (B, D) Gbit/s, by which flows are divided; of shape (B, 0) if ``rows`` are splits.
        out: receives (B, D, K), 0 for a demand of 0 and for paths that do not exist.
    """
    width, is_dividing = len(lanes), demand.shape[1] > 0
    for s in prange(len(scan.demand_ptr) - 1):
        for l in range(len(out)):
            p = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                scale = 1.0
                if is_dividing:
                    scale = 1 / demand[l, d] if demand[l, d] > _MIN_DEMAND else 0.0
                for k in range(scan.path_count[d]):
                    out[l, d, k] = rows[p * width + l] * scale
                    p += 1
                for k in range(scan.path_count[d], out.shape[2]):
                    out[l, d, k] = 0
