"""Compiled kernels around the iterations: constants of the program, dual bound, projection.

:func:`measure` computes the constants, :func:`certify` the demands' part of the dual bound,
:func:`project_round` one round of the projection onto the capacities.  All are float64, since the
bound and the validator depend on the results.  Symbols: table in :mod:`teal.solvers.pdhg`; further

- L lanes: the matrices solved side by side, B rounded up; only the length L of the tuple ``lanes``
  counts;
- P: the candidate paths of all demands, one after the other;
- a block: the sources ``block_ptr[b]`` to ``block_ptr[b + 1]``, which one thread processes;
- max_trie_nodes: the largest number of trie nodes of a source, and one for the source itself;
- an array of shape (X, L) is flat, X * L values, with the lanes of one entry side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.packed import MAX_PATHS, PathScan, num_ranges
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.lanes import broadcast, load, maximum, narrow, store, where_above, widen
from teal.runtime.parallel import parallel_kernel
from teal.solvers.pdhg.fused.curves import UtilityRows, curve_value, lane_curve_profit
from teal.solvers.pdhg.fused.demand_value import (
    DemandValue,
    capped_profit,
    value_lost,
    value_profit,
)
from teal.solvers.pdhg.fused.kernels import FAILED_PRICE, add_link_loads, prices_down
from teal.solvers.pdhg.fused.simplex import Lanes
from teal.solvers.projection import MIN_SPLIT_SUM

# Value per Gbit/s.  A failed link lowers a path's profit by FAILED_PRICE: a path with a profit
# above this limit is live.
_LIVE_PROFIT = -FAILED_PRICE / 10
# Gbit/s, larger than any capacity: unused capacity before the first link of a path.
_UNLIMITED = FAILED_PRICE
# Gbit/s, replaces an unused capacity of 0 as a divisor.
_MIN_CAPACITY = 1e-30
# Gbit/s; below it 1 / demand would overflow.
_MIN_DEMAND = 1e-300


class Measurements(NamedTuple):
    """Constants of the program of L matrices, all written by :func:`measure`.

    Attributes:
        inverse_capacity_sum: (D, L) h, largest sum of 1 / capacity along a path of the demand,
            1/(Gbit/s); 1 where it would be 0.
        live_demand: (D, L) Gbit/s, 0 where no path is live.
        full_load: (blocks, E, L) load if every live path carried all of its demand, Gbit/s.
        trial_load: (blocks, E, L) load of a trial routing over live paths, Gbit/s, for
            :func:`teal.solvers.pdhg.engine.guess_dual`.
        demand_value_sum: (blocks, L) demands' part of the dual bound at zero prices, in units of
            the objective.
    """

    inverse_capacity_sum: FloatArray
    live_demand: FloatArray
    full_load: FloatArray
    trial_load: FloatArray
    demand_value_sum: FloatArray


@parallel_kernel("block_ptr", num_ranges)
def measure(
    block: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    demand: FloatArray,
    inverse_capacity: FloatArray,
    cost: FloatArray,
    demand_value: DemandValue,
    curve: UtilityRows | None,
    splits_evenly: bool,
    measurements: Measurements,
    lanes: Lanes,
) -> None:
    """Compute the constants of a program for one block of sources (:class:`Measurements`).

    For each demand: h, the largest sum of 1 / capacity along a path; the demand if a path is live,
    else 0; its term demand * max(0, max_k(value - path cost)) in the dual bound at zero prices.
    For each link: its load if every live path carried all of its demand, and its load under a trial
    routing.  An array of shape (X, L) is flat, and ``load(array, i, lanes)`` reads its row i.

    Args:
        block: index of the block.
        scan: candidate paths, as one trie (prefix tree) per source.  Source s has the trie nodes
            ``node_ptr[s]:node_ptr[s + 1]``, the demands ``demand_ptr[s]:demand_ptr[s + 1]`` and the
            paths from ``path_ptr[s]``, ``path_count[d]`` per demand; path p ends at node
            ``end_node[p]`` (nodes are numbered from 1 within a source, 0 is the source).
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        demand: (D, L) Gbit/s.
        inverse_capacity: (E, L) 1 / capacity, 0 for a failed link.
        cost: (E, L) cost of each link, value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        demand_value: ``first`` (D,) or (1,) value per Gbit/s, value steps ``drop`` (D, C) or (1, C)
            and ``end`` (D, C, L), path caps ``cap`` (P, L); float64; ``end`` and ``cap`` are (0,)
            if unused.
        curve: concave utility, ``full_share_value`` (D, L) and ``alpha`` (1,); None for linear
            values.
        splits_evenly: whether the trial routing splits each demand evenly over its live paths;
            otherwise it uses the first path, if that is live.
        measurements: results (written); ``full_load`` and ``trial_load`` must be 0 before the call.
        lanes: tuple of length L, the number of matrices computed side by side.
    """
    num_lanes = len(lanes)
    has_distinct_values = len(demand_value.first) > 1
    has_steps = demand_value.drop.shape[1] > 1
    drop = demand_value.drop
    end = demand_value.end
    # (L,) work array, and factors on the values: 1, since this program is not scaled.
    lane_scratch = np.empty(num_lanes)
    unit_factors = np.ones(num_lanes)
    if curve is not None:
        full_share_value = curve.full_share_value
        alpha = curve.alpha[0]
    # (max_trie_nodes, L) per trie node of a source: sum of 1 / capacity and cost of the path to it,
    # and flows of the path that ends there.
    inverse_capacity_sum = np.zeros(max_trie_nodes * num_lanes)
    path_cost = np.zeros(max_trie_nodes * num_lanes)
    full_flow = np.empty(max_trie_nodes * num_lanes)
    trial_flow = np.empty(max_trie_nodes * num_lanes)
    ones = broadcast(1.0, lanes)
    zero = ones - ones
    live_profit = broadcast(_LIVE_PROFIT, lanes)
    value_sum = zero
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        # Sums of 1 / capacity and of costs along the path to each node.
        prices_down(
            first_node,
            num_nodes,
            scan.parent,
            scan.link,
            inverse_capacity,
            inverse_capacity_sum,
            lanes,
        )
        prices_down(first_node, num_nodes, scan.parent, scan.link, cost, path_cost, lanes)
        # No flow yet; p becomes the first path of each demand in turn.
        full_flow[: (num_nodes + 1) * num_lanes] = 0
        trial_flow[: (num_nodes + 1) * num_lanes] = 0
        p = scan.path_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            # Number of live paths, h and the best profit of the demand.
            h = zero
            num_live_paths = zero
            best_profit = zero
            value = broadcast(demand_value.first[d if has_distinct_values else 0], lanes)
            for path in range(p, p + scan.path_count[d]):
                node = scan.end_node[path]
                profit = value - load(path_cost, node, lanes)
                best_profit = maximum(best_profit, profit)
                num_live_paths = num_live_paths + where_above(profit, live_profit, ones, zero)
                h = maximum(h, load(inverse_capacity_sum, node, lanes))
            store(measurements.inverse_capacity_sum, d, where_above(h, zero, h, ones))
            live_rate = where_above(num_live_paths, zero, load(demand, d, lanes), zero)
            store(measurements.live_demand, d, live_rate)
            # Demand's term in the dual bound.
            if curve is not None:
                unit_value = demand_value.first[d if has_distinct_values else 0]
                best_profit = lane_curve_profit(
                    best_profit,
                    lane_scratch,
                    full_share_value,
                    alpha,
                    unit_factors,
                    unit_value,
                    d,
                    lanes,
                )
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, value, lanes)
            value_sum = value_sum + live_rate * best_profit
            # Flows of the full and of the trial routing.
            even_flow = live_rate / maximum(num_live_paths, ones)
            for path in range(p, p + scan.path_count[d]):
                node = scan.end_node[path]
                is_live = where_above(value - load(path_cost, node, lanes), live_profit, ones, zero)
                store(full_flow, node, is_live * live_rate)
                if splits_evenly:
                    store(trial_flow, node, is_live * even_flow)
                elif path == p:
                    store(trial_flow, node, is_live * live_rate)
            p += scan.path_count[d]
        # Link loads of both routings.
        add_link_loads(
            first_node,
            num_nodes,
            scan.parent,
            scan.link,
            full_flow,
            measurements.full_load[block],
            lanes,
        )
        add_link_loads(
            first_node,
            num_nodes,
            scan.parent,
            scan.link,
            trial_flow,
            measurements.trial_load[block],
            lanes,
        )
    store(measurements.demand_value_sum[block], 0, value_sum)


@parallel_kernel("block_ptr", num_ranges)
def certify(
    block: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    demand: FloatArray,
    demand_value: DemandValue,
    curve: UtilityRows | None,
    price_plus_cost: FloatArray,
    carries_all: bool,
    is_repairing: bool,
    splits: AnyArray,
    flows: FloatArray,
    loads: FloatArray,
    block_profit_sums: FloatArray,
    lanes: Lanes,
) -> None:
    """Compute the demands' part of the dual bound for one block of sources, and flows and loads.

    Dual bound: sum_d demand[d] max(0, max_k(value[d] - path_price[d, k])), without the max with 0
    in a min-max program, which must carry all demand.  Under value steps, path caps or a utility
    the maximum is over all allocations of the demand (value_profit, capped_profit, curve_profit).

    Flows: demand times repaired split.  The repair sets splits of paths with a failed link to 0 and
    scales those of a demand to a sum of at most 1; if ``carries_all`` to exactly 1, evenly over the
    live paths where all splits are 0.  An array of shape (X, L) is flat, and
    ``load(array, i, lanes)`` and ``store`` access its row i.

    Args:
        block: index of the block.
        scan: candidate paths, as one trie (prefix tree) per source.  Source s has the trie nodes
            ``node_ptr[s]:node_ptr[s + 1]``, the demands ``demand_ptr[s]:demand_ptr[s + 1]`` and the
            paths from ``path_ptr[s]``, ``path_count[d]`` per demand; path p ends at node
            ``end_node[p]`` (nodes are numbered from 1 within a source, 0 is the source).
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        demand: (D, L) Gbit/s, 0 where no path is live.
        demand_value: ``first`` (D,) or (1,) value per Gbit/s, value steps ``drop`` (D, C) or (1, C)
            and ``end`` (D, C, L), path caps ``cap`` (P, L); float64; ``end`` and ``cap`` are (0,)
            if unused.
        curve: concave utility, ``full_share_value`` (D, L) and ``alpha`` (1,); None for linear
            values.
        price_plus_cost: (E, L) price plus cost of each link, value per Gbit/s; ``FAILED_PRICE`` for
            a failed link.
        carries_all: whether all demand must be carried.
        is_repairing: whether to overwrite ``splits`` with the repaired splits.
        splits: (P, L) shares of the demand (written if ``is_repairing``).
        flows: (P, L) Gbit/s (written).
        loads: (blocks, E, L) Gbit/s (row ``block`` is written).
        block_profit_sums: (blocks, L) demands' part of the dual bound (row ``block`` is written);
            a demand without a live path adds 0.
        lanes: tuple of length L, the number of matrices computed side by side.
    """
    loads[block] = 0
    num_lanes = len(lanes)
    has_distinct_values = len(demand_value.first) > 1
    has_steps = demand_value.drop.shape[1] > 1
    drop = demand_value.drop
    end = demand_value.end
    cap = demand_value.cap
    has_caps = len(demand_value.cap) > 0
    # (K, L) profits of a demand's paths, and (K,) flags: work arrays of capped_profit.
    path_profit = np.empty(MAX_PATHS * num_lanes if has_caps else 0)
    is_used = np.empty(MAX_PATHS if has_caps else 0, np.bool_)
    # (L,) result of one demand; factors on the values: 1, since this program is not scaled.
    lane_scratch = np.empty(num_lanes)
    unit_factors = np.ones(num_lanes)
    # (max_trie_nodes, L) per trie node of a source: price of the path to it, flow of the path that
    # ends there.
    path_price = np.zeros(max_trie_nodes * num_lanes)
    flow = np.empty(max_trie_nodes * num_lanes)
    ones = broadcast(1.0, lanes)
    zero = ones - ones
    live_profit = broadcast(_LIVE_PROFIT, lanes)
    min_split_sum = broadcast(MIN_SPLIT_SUM, lanes)
    # In a min-max program the floor is below every live profit, so that a demand without a live
    # path adds nothing; also under a utility, whose marginal value is unbounded at share 0.
    profit_floor = broadcast(2 * _LIVE_PROFIT if carries_all else 0.0, lanes)
    if curve is not None:
        full_share_value = curve.full_share_value
        alpha = curve.alpha[0]
        profit_floor = broadcast(2 * _LIVE_PROFIT, lanes)
    profit_sum = zero
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        # Prices of all paths of the source.
        prices_down(
            first_node, num_nodes, scan.parent, scan.link, price_plus_cost, path_price, lanes
        )
        # No flow yet; p becomes the first path of each demand in turn.
        flow[: (num_nodes + 1) * num_lanes] = 0
        p = scan.path_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            rate = load(demand, d, lanes)
            value = broadcast(demand_value.first[d if has_distinct_values else 0], lanes)
            # Best profit, and the sum of the splits on live paths, at most their caps.
            best_profit = profit_floor
            split_sum = zero
            num_live_paths = zero
            for path in range(p, p + scan.path_count[d]):
                profit = value - load(path_price, scan.end_node[path], lanes)
                is_live = where_above(profit, live_profit, ones, zero)
                best_profit = maximum(best_profit, profit)
                num_live_paths = num_live_paths + is_live
                stored_split = widen(load(splits, path, lanes))
                if has_caps:
                    store(path_profit, path - p, profit)
                    max_share = load(cap, path, lanes)
                    stored_split = where_above(stored_split, max_share, max_share, stored_split)
                split_sum = split_sum + is_live * stored_split
            # Demand's term in the dual bound.
            if has_caps:
                capped_profit(path_profit, cap, p, scan.path_count[d], lanes, is_used, lane_scratch)
                best_profit = load(lane_scratch, 0, lanes)
            if has_steps:
                best_profit = value_profit(drop, end, d, best_profit, value, lanes)
            if curve is not None:
                unit_value = demand_value.first[d if has_distinct_values else 0]
                best_profit = lane_curve_profit(
                    best_profit,
                    lane_scratch,
                    full_share_value,
                    alpha,
                    unit_factors,
                    unit_value,
                    d,
                    lanes,
                )
            # A demand without a live path adds nothing.
            profit_sum = profit_sum + where_above(
                best_profit, live_profit, rate * best_profit, zero
            )
            # Scale splits to a sum of at most 1; in a min-max program to 1, evenly if all are 0.
            split_factor = ones / maximum(split_sum, ones)
            even_share = zero
            if carries_all:
                split_factor = where_above(
                    split_sum, min_split_sum, ones / maximum(split_sum, min_split_sum), zero
                )
                even_share = where_above(
                    split_sum, min_split_sum, zero, ones / maximum(num_live_paths, ones)
                )
            # Repaired splits of the demand, and their flows.
            for path in range(p, p + scan.path_count[d]):
                node = scan.end_node[path]
                is_live = where_above(
                    value - load(path_price, node, lanes), live_profit, ones, zero
                )
                stored_split = widen(load(splits, path, lanes))
                if has_caps:
                    max_share = load(cap, path, lanes)
                    stored_split = where_above(stored_split, max_share, max_share, stored_split)
                repaired_split = is_live * (stored_split * split_factor + even_share)
                path_flow = rate * repaired_split
                if is_repairing:
                    store(
                        splits, path, narrow(where_above(rate, zero, repaired_split, zero), splits)
                    )
                store(flows, path, path_flow)
                store(flow, node, path_flow)
            p += scan.path_count[d]
        # Link loads of the source's flows.
        add_link_loads(first_node, num_nodes, scan.parent, scan.link, flow, loads[block], lanes)
    store(block_profit_sums[block], 0, profit_sum)


@parallel_kernel("block_ptr", num_ranges)
def project_round(
    block: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    demand: FloatArray,
    demand_value: DemandValue,
    curve: UtilityRows | None,
    load_ratio: FloatArray,
    residual_capacity: FloatArray,
    is_first: bool,
    is_last: bool,
    flows: FloatArray,
    requests: FloatArray,
    loads: FloatArray,
    requested_loads: FloatArray,
    block_values: FloatArray,
    lanes: Lanes,
) -> None:
    """Run one round of the projection of flows onto the capacities, for one block of sources.

    First round: divide each path's flow by max(1, largest load / capacity along the path).  Later
    rounds: add to it the path's request, divided by max(1, largest requested load / residual
    capacity along the path).  Afterwards no link is overloaded.  Then request the unserved demand
    of each demand from its paths, in proportion to the smallest residual capacity along each path
    (under path caps at most the remaining cap):

        request[k] = residual[k] min(1, unserved / sum_j residual[j]).

    An array of shape (X, L) is flat, and ``load(array, i, lanes)`` and ``store`` access its row i.

    Args:
        block: index of the block.
        scan: candidate paths, as one trie (prefix tree) per source.  Source s has the trie nodes
            ``node_ptr[s]:node_ptr[s + 1]``, the demands ``demand_ptr[s]:demand_ptr[s + 1]`` and the
            paths from ``path_ptr[s]``, ``path_count[d]`` per demand; path p ends at node
            ``end_node[p]`` (nodes are numbered from 1 within a source, 0 is the source).
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        demand: (D, L) Gbit/s, 0 where no path is live.
        demand_value: ``first`` (D,) or (1,) value per Gbit/s, value steps ``drop`` (D, C) or (1, C)
            and ``end`` (D, C, L), path caps ``cap`` (P, L); float64; ``end`` and ``cap`` are (0,)
            if unused.
        curve: concave utility, ``full_share_value`` (D, L) and ``alpha`` (1,); None for linear
            values.
        load_ratio: (E, L) load of ``flows`` over capacity in the first round, load of ``requests``
            over residual capacity in the others; 0 on links without load.
        residual_capacity: (E, L) capacity open to requests, Gbit/s; 0 on failed links.
        is_first: whether this is the first round, which has no requests to grant.
        is_last: whether this is the last round, which makes no new requests.
        flows: (P, L) Gbit/s (written).
        requests: (P, L) requests of the last round, Gbit/s (overwritten by the new requests).
        loads: (blocks, E, L) load of the flows, Gbit/s (row ``block`` is written).
        requested_loads: (blocks, E, L) load of the new requests, Gbit/s (row ``block`` is written).
        block_values: (blocks, L) value of the flows without link costs (row ``block`` is written).
        lanes: tuple of length L, the number of matrices computed side by side.
    """
    loads[block] = 0
    requested_loads[block] = 0
    num_lanes = len(lanes)
    has_distinct_values = len(demand_value.first) > 1
    has_steps = demand_value.drop.shape[1] > 1
    drop = demand_value.drop
    end = demand_value.end
    cap = demand_value.cap
    has_caps = len(demand_value.cap) > 0
    # (L,) carried rate of one demand, which curve_value replaces by its value.
    lane_scratch = np.empty(num_lanes)
    # (max_trie_nodes, L) per trie node of a source: largest load ratio and smallest residual
    # capacity on the path to it; flow and request of the path that ends there.
    path_load_ratio = np.zeros(max_trie_nodes * num_lanes)
    path_residual_capacity = np.empty(max_trie_nodes * num_lanes)
    flow = np.empty(max_trie_nodes * num_lanes)
    requested_flow = np.empty(max_trie_nodes * num_lanes)
    ones = broadcast(1.0, lanes)
    zero = ones - ones
    min_capacity = broadcast(_MIN_CAPACITY, lanes)
    unlimited_capacity = broadcast(_UNLIMITED, lanes)
    value_sum = zero
    store(path_residual_capacity, 0, unlimited_capacity)
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        # Largest load ratio and smallest residual capacity along the path to each node.
        for i in range(num_nodes):
            parent_row = scan.parent[first_node + i]
            e = scan.link[first_node + i]
            store(
                path_load_ratio,
                i + 1,
                maximum(load(path_load_ratio, parent_row, lanes), load(load_ratio, e, lanes)),
            )
            # where_above(a, b, b, a) is min(a, b).
            upstream_residual = load(path_residual_capacity, parent_row, lanes)
            link_residual = load(residual_capacity, e, lanes)
            store(
                path_residual_capacity,
                i + 1,
                where_above(upstream_residual, link_residual, link_residual, upstream_residual),
            )
        # No flow yet; p becomes the first path of each demand in turn.
        flow[: (num_nodes + 1) * num_lanes] = 0
        requested_flow[: (num_nodes + 1) * num_lanes] = 0
        p = scan.path_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            # Scale the flows down, or grant the requests; sum the residual capacities of the paths.
            carried_rate = zero
            residual_sum = zero
            for path in range(p, p + scan.path_count[d]):
                node = scan.end_node[path]
                # Largest load ratio along the path, at least 1.
                overload_divisor = maximum(load(path_load_ratio, node, lanes), ones)
                path_flow = (
                    load(flows, path, lanes) / overload_divisor
                    if is_first
                    else load(flows, path, lanes) + load(requests, path, lanes) / overload_divisor
                )
                store(flows, path, path_flow)
                store(flow, node, path_flow)
                carried_rate = carried_rate + path_flow
                available_capacity = load(path_residual_capacity, node, lanes)
                # Path caps: no more than the unused part of the cap.
                if has_caps:
                    remaining_cap = maximum(
                        load(cap, path, lanes) * load(demand, d, lanes) - path_flow, zero
                    )
                    available_capacity = where_above(
                        available_capacity, remaining_cap, remaining_cap, available_capacity
                    )
                residual_sum = residual_sum + available_capacity
            # Value of the carried rate: under value steps converted to Gbit/s of the first step.
            first_step_flow = carried_rate
            if has_steps:
                first_step_flow = carried_rate - value_lost(
                    drop, end, d, carried_rate, load(demand, d, lanes), lanes
                )
            if curve is not None:
                store(lane_scratch, 0, carried_rate)
                curve_value(lane_scratch, demand, curve.full_share_value, curve.alpha[0], d, lanes)
                value_sum = value_sum + load(lane_scratch, 0, lanes)
            else:
                value_sum = value_sum + first_step_flow * broadcast(
                    demand_value.first[d if has_distinct_values else 0], lanes
                )
            # Request unserved demand in proportion to residual capacity.
            if not is_last:
                unserved_rate = maximum(load(demand, d, lanes) - carried_rate, zero)
                request_factor = unserved_rate / maximum(residual_sum, min_capacity)
                for path in range(p, p + scan.path_count[d]):
                    node = scan.end_node[path]
                    available_capacity = load(path_residual_capacity, node, lanes)
                    # Path caps: again no more than the unused part of the cap.
                    if has_caps:
                        remaining_cap = maximum(
                            load(cap, path, lanes) * load(demand, d, lanes)
                            - load(flows, path, lanes),
                            zero,
                        )
                        available_capacity = where_above(
                            available_capacity, remaining_cap, remaining_cap, available_capacity
                        )
                    request = available_capacity * where_above(
                        request_factor, ones, ones, request_factor
                    )
                    store(requests, path, request)
                    store(requested_flow, node, request)
            p += scan.path_count[d]
        # Link loads of flows and requests.
        add_link_loads(first_node, num_nodes, scan.parent, scan.link, flow, loads[block], lanes)
        if not is_last:
            add_link_loads(
                first_node,
                num_nodes,
                scan.parent,
                scan.link,
                requested_flow,
                requested_loads[block],
                lanes,
            )
    store(block_values[block], 0, value_sum)


def _num_sources(scan: PathScan) -> int:
    """Return the number of sources, the units of parallel work of the kernels below."""
    return num_ranges(scan.demand_ptr)


@parallel_kernel("scan", _num_sources)
def pack_splits(
    source: int, scan: PathScan, splits: FloatArray, path_rows: AnyArray, lanes: Lanes
) -> None:
    """Convert the splits of one source's demands from (B, D, K) to path rows (P, L).

    Entries that are negative, infinite or NaN become 0, and so do lanes B to L - 1, which hold no
    matrix.

    Args:
        source: index of the source; its demands are ``demand_ptr[source]:demand_ptr[source + 1]``
            and its paths start at ``path_ptr[source]``, ``path_count[d]`` consecutive paths per
            demand d.
        scan: P paths of D demands.
        splits: (B, D, K) shares of the demands; columns past the number of paths are not read.
        path_rows: (P, L) splits, flat (written).
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    batch = len(splits)
    p = scan.path_ptr[source]
    for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
        for k in range(scan.path_count[d]):
            for lane in range(num_lanes):
                share = splits[lane, d, k] if lane < batch else 0
                path_rows[p * num_lanes + lane] = share if 0 < share < np.inf else 0
            p += 1


@parallel_kernel("scan", _num_sources)
def unpack_splits(
    source: int,
    scan: PathScan,
    path_rows: AnyArray,
    demand: FloatArray,
    splits: FloatArray,
    lanes: Lanes,
) -> None:
    """Convert path rows (P, L) of one source's demands to splits (B, D, K).

    Args:
        source: index of the source; its demands are ``demand_ptr[source]:demand_ptr[source + 1]``
            and its paths start at ``path_ptr[source]``, ``path_count[d]`` consecutive paths per
            demand d.
        scan: P paths of D demands.
        path_rows: (P, L) flows in Gbit/s, or splits, flat.
        demand: (B, D) Gbit/s, the divisor of flows; shape (B, 0) if ``path_rows`` are splits.
        splits: (B, D, K) splits (written); 0 for a demand of 0 and for missing paths.
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    is_dividing = demand.shape[1] > 0
    for b in range(len(splits)):
        p = scan.path_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            # Factor from rows to splits: 1 / demand for flows, 1 for splits.
            inverse_demand = 1.0
            if is_dividing:
                inverse_demand = 1 / demand[b, d] if demand[b, d] > _MIN_DEMAND else 0.0
            for k in range(scan.path_count[d]):
                splits[b, d, k] = path_rows[p * num_lanes + b] * inverse_demand
                p += 1
            # Columns without a path.
            for k in range(scan.path_count[d], splits.shape[2]):
                splits[b, d, k] = 0
