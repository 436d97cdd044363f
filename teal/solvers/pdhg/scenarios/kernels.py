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
from teal.runtime.lanes import broadcast, lane_sum, load, store
from teal.runtime.parallel import inlined_kernel, inner_kernel, kernel, partitioned_kernel
from teal.solvers.pdhg.fused.kernels import (
    add_link_loads,
    average_and_restart,
    dual_gradient_step,
    prices_down,
)
from teal.solvers.pdhg.fused.simplex import Lanes, limited_simplex, simplex_shift
from teal.solvers.pdhg.fused.state import Control, Dual, ScaledProgram, Scratch


class ScenarioDemands(NamedTuple):
    """Demands of all scenarios.

    D demands, P paths, scenarios in G groups of L lanes.

    Attributes:
        rate: (D * G * L,) demand in each scenario, Gbit/s; 0 where no path is live.
        total: (D,) sum over the scenarios, Gbit/s.
        inverse_capacity_sum: (D,) h, the largest sum of 1/c along a live path, 1/(Gbit/s).
        is_live: (P,) 1 for a live path, else 0.
    """

    rate: FloatArray
    total: FloatArray
    inverse_capacity_sum: FloatArray
    is_live: FloatArray


@inner_kernel
def _path_prices(source, scan, price, path_price, num_groups, lanes):  # type: ignore[no-untyped-def]
    """Compute the prices of the paths to all nodes of a source, for every group of scenarios.

    Args:
        source: index of the source.
        scan: tries of all sources; the nodes of source s are node_ptr[s]:node_ptr[s + 1].
        price: (G, E * L) link prices.
        path_price: (G, max_trie_nodes * L) price from the source to node i of its trie in row i;
            node 0 is the source (written).
        num_groups: G.
        lanes: tuple of length L.
    """
    first_node = scan.node_ptr[source]
    num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
    for g in range(num_groups):
        prices_down(first_node, num_nodes, scan.parent, scan.link, price[g], path_price[g], lanes)


@inner_kernel
def _add_loads(source, scan, flow, loads, num_groups, lanes):  # type: ignore[no-untyped-def]
    """Add the flows of a source's paths to the loads of their links, for every group of scenarios.

    Args:
        source: index of the source.
        scan: tries of all sources; the nodes of source s are node_ptr[s]:node_ptr[s + 1].
        flow: (G, max_trie_nodes * L) flow of the path that ends in each node, Gbit/s
            (overwritten).
        loads: (G, E * L) link loads, Gbit/s (added to).
        num_groups: G.
        lanes: tuple of length L.
    """
    first_node = scan.node_ptr[source]
    num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
    for g in range(num_groups):
        add_link_loads(first_node, num_nodes, scan.parent, scan.link, flow[g], loads[g], lanes)


@inlined_kernel
def _weighted_price(d, node, demands, path_price, num_groups, lanes):  # type: ignore[no-untyped-def]
    """Return the sum over the scenarios of demand ``d`` times the price of the path to ``node``.

    Args:
        d: index of the demand.
        node: trie node within the source.
        demands: demands of all scenarios.
        path_price: (G, max_trie_nodes * L) price from the source to each trie node.
        num_groups: G.
        lanes: tuple of length L.
    """
    weighted_price_sum = broadcast(0.0, lanes)
    for g in range(num_groups):
        weighted_price_sum = weighted_price_sum + load(
            demands.rate, d * num_groups + g, lanes
        ) * load(path_price[g], node, lanes)
    return lane_sum(weighted_price_sum)


@partitioned_kernel("block_ptr", num_ranges)
def step(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    demands: ScenarioDemands,
    current: FloatArray,
    anchor: FloatArray,
    stepped: FloatArray,
    price: FloatArray,
    halpern_weights: FloatArray,
    inverse_primal_weight: float,
    is_restarting: bool,
    loads: FloatArray,
    sums: FloatArray,
    lanes: Lanes,
) -> None:
    """Compute primal step and Halpern average of the shared splits, and all scenarios' link loads.

        w'[d, :] = Proj(w[d, :] - mean price / (omega h[d])),   w <- halpern . (w', w, w_0),

    where w, w_0 and w' are the splits of the iterate, of Halpern's anchor and of the step, omega is
    the primal weight, h[d] the largest sum of 1/c along a path, and the mean price of a path is
    sum_s D_s[d] price_s / sum_s D_s[d] over the scenarios s, with demands D_s; the projection is
    onto {w >= 0, sum = 1}.  P paths, E links, scenarios in G groups of L lanes.

    Args:
        begin, end: range of blocks of this call.
        scan: tries and paths; the demands of source s are demand_ptr[s]:demand_ptr[s + 1].
        block_ptr: (blocks + 1,) the sources of block i are block_ptr[i]:block_ptr[i + 1].
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        demands: demands of all scenarios.
        current, anchor, stepped: (P,) splits of the iterate z, the Halpern anchor z_0 and the step
            T(z); all written.
        price: (G, E * L) y / c, 1/(Gbit/s); ``FAILED_PRICE`` on a failed link.
        halpern_weights: (4,) weights of T(z), z and z_0 in the next iterate.
        inverse_primal_weight: 1 / omega, the inverse primal weight.
        is_restarting: whether this iteration restarts, which moves the anchor to T(z).
        loads: (blocks, G, E * L) link loads of T(z) by the block's demands, Gbit/s (written).
        sums: (blocks, 3) sums over demands: minus demand times lowest mean price, and the squared
            distances of T(z) from z and z_0 (written).
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    num_groups = len(price)
    for block in range(begin, end):
        # Scratch of one source: price from the source to each trie node, and flow of the path that
        # ends there, per scenario; splits of one demand before the projection.
        path_price = np.zeros((num_groups, max_trie_nodes * num_lanes))
        flow = np.zeros((num_groups, max_trie_nodes * num_lanes))
        unprojected = np.empty(256)  # at least the number of paths, which is one byte
        block_loads = loads[block]
        block_sums = sums[block]
        block_loads[:] = 0
        profit_sum = 0.0
        squared_step_distance = 0.0
        squared_anchor_distance = 0.0
        for source in range(block_ptr[block], block_ptr[block + 1]):
            _path_prices(source, scan, price, path_price, num_groups, lanes)
            flow[:, : (scan.node_ptr[source + 1] - scan.node_ptr[source] + 1) * num_lanes] = 0
            first_path = scan.path_ptr[source]
            for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
                num_paths = scan.path_count[d]
                if demands.total[d] > 0:
                    # Gradient step and projection onto the simplex.
                    primal_step = inverse_primal_weight / demands.inverse_capacity_sum[d]
                    # Weight of the demand in the norm of the splits: demand times h.
                    metric_weight = demands.total[d] * demands.inverse_capacity_sum[d]
                    lowest_price = np.inf
                    # Mean price of each path, and the split after the gradient step.
                    for k in range(num_paths):
                        node = np.int64(scan.end_node[first_path + k])
                        mean_price = (
                            _weighted_price(d, node, demands, path_price, num_groups, lanes)
                            / demands.total[d]
                        )
                        lowest_price = min(lowest_price, mean_price)
                        unprojected[k] = current[first_path + k] - primal_step * mean_price
                    profit_sum -= demands.total[d] * lowest_price
                    # Lanes (0,): a single value, since all scenarios share the splits.
                    shift = simplex_shift(unprojected, num_paths, 1.0, (0,))
                    # New split of each path (here k counts the paths of all demands), its flows in
                    # the scenarios, squared distances, and Halpern average.
                    for k in range(first_path, first_path + num_paths):
                        current_split = current[k]
                        stepped_split = max(0.0, unprojected[k - first_path] - shift)
                        anchor_split = anchor[k]
                        node = np.int64(scan.end_node[k])
                        for g in range(num_groups):
                            store(
                                flow[g],
                                node,
                                load(demands.rate, d * num_groups + g, lanes)
                                * broadcast(stepped_split, lanes),
                            )
                        squared_step_distance += (
                            metric_weight * (stepped_split - current_split) ** 2
                        )
                        squared_anchor_distance += (
                            metric_weight * (stepped_split - anchor_split) ** 2
                        )
                        stepped[k] = stepped_split
                        current[k] = (
                            halpern_weights[0] * stepped_split
                            + halpern_weights[1] * current_split
                            + halpern_weights[2] * anchor_split
                        )
                        if is_restarting:
                            anchor[k] = stepped_split
                first_path += num_paths
            _add_loads(source, scan, flow, block_loads, num_groups, lanes)
        block_sums[0] = profit_sum
        block_sums[1] = squared_step_distance
        block_sums[2] = squared_anchor_distance


@kernel
def end_iteration(program: ScaledProgram, dual: Dual, control: Control, scratch: Scratch) -> None:
    """Finish an iteration on the links of all scenarios: dual step, projection, average, restart.

    y' = y + omega / m (2 load(w') - load(w)), projected onto {y >= 0, sum of y = 1, sum of y of
    scenario s <= limit[s]}, with loads over capacity, w and w' the splits of iterate and step, and
    omega / m the step size.

    Args:
        program: constants of the links, (G * E * L,).
        dual: dual variables and loads of the iterate z, Halpern's anchor z_0 and the step T(z),
            (G * E * L,) (written).
        control: primal weight and restart state, (1,) each (written).
        scratch: link loads and sums of the primal step, and the Halpern weights.
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
    max_trie_nodes: int,
    demands: ScenarioDemands,
    stepped: FloatArray,
    price: FloatArray,
    loads: FloatArray,
    sums: FloatArray,
    lanes: Lanes,
) -> None:
    """Repair the splits of the last step, sum their loads, and compute a part of the dual bound.

    Splits become 0 on dead paths and are scaled to a sum of 1, evenly over live paths where all are
    0.  The demands' part of the bound is -sum_d min_k sum_s D_s[d] price_s(d, k), with D_s[d] the
    demand d in scenario s and price_s(d, k) the price of its path k there.

    Args:
        begin, end: range of blocks of this call.
        scan: tries and paths; the demands of source s are demand_ptr[s]:demand_ptr[s + 1].
        block_ptr: (blocks + 1,) the sources of block i are block_ptr[i]:block_ptr[i + 1].
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        demands: demands of all scenarios.
        stepped: (P,) splits of the last step, T(z) (written).
        price: (G, E * L) y / c, 1/(Gbit/s); ``FAILED_PRICE`` on a failed link.
        loads: (blocks, G, E * L) link loads of the repaired splits, Gbit/s (written).
        sums: (blocks,) each block's part of the bound (written).
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    num_groups = len(price)
    for block in range(begin, end):
        # Price from the source to each trie node of one source, and flow of the path that ends
        # there, per scenario.
        path_price = np.zeros((num_groups, max_trie_nodes * num_lanes))
        flow = np.zeros((num_groups, max_trie_nodes * num_lanes))
        block_loads = loads[block]
        block_loads[:] = 0
        profit_sum = 0.0
        for source in range(block_ptr[block], block_ptr[block + 1]):
            _path_prices(source, scan, price, path_price, num_groups, lanes)
            flow[:, : (scan.node_ptr[source + 1] - scan.node_ptr[source] + 1) * num_lanes] = 0
            first_path = scan.path_ptr[source]
            for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
                num_paths = scan.path_count[d]
                lowest_price = np.inf
                split_sum = 0.0
                num_live_paths = 0.0
                # Clamp the splits to live paths.
                for k in range(first_path, first_path + num_paths):
                    num_live_paths += demands.is_live[k]
                    stepped[k] = stepped[k] * demands.is_live[k] if stepped[k] > 0 else 0.0
                    split_sum += stepped[k]
                # Normalise them (a sum up to 1e-9 counts as 0), and find the cheapest path.
                for k in range(first_path, first_path + num_paths):
                    node = np.int64(scan.end_node[k])
                    if split_sum > 1e-9:
                        stepped[k] /= split_sum
                    elif num_live_paths > 0:
                        stepped[k] = demands.is_live[k] / num_live_paths
                    for g in range(num_groups):
                        store(
                            flow[g],
                            node,
                            load(demands.rate, d * num_groups + g, lanes)
                            * broadcast(stepped[k], lanes),
                        )
                    lowest_price = min(
                        lowest_price,
                        _weighted_price(d, node, demands, path_price, num_groups, lanes),
                    )
                # A demand without a live path adds nothing.
                if num_live_paths > 0:
                    profit_sum -= lowest_price
                first_path += num_paths
            _add_loads(source, scan, flow, block_loads, num_groups, lanes)
        sums[block] = profit_sum


@partitioned_kernel("block_ptr", num_ranges)
def respond(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    demands: ScenarioDemands,
    stepped: FloatArray,
    price: FloatArray,
    sharpness: float,
    fixed_demands: Int64Array,
    fixed_ptr: Int64Array,
    fixed_splits: FloatArray,
    lanes: Lanes,
) -> None:
    """Set the splits of T(z), the last step, to the response of all demands to prices.

    A softmax over the live paths of each demand, w[d, k] ~ exp(-q mean price), where the mean price
    of a path is sum_s D_s[d] price_s / sum_s D_s[d] over the scenarios s, with demands D_s.

    Args:
        begin, end: range of blocks of this call.
        scan: tries and paths; the demands of source s are demand_ptr[s]:demand_ptr[s + 1].
        block_ptr: (blocks + 1,) the sources of block i are block_ptr[i]:block_ptr[i + 1].
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        demands: demands of all scenarios.
        stepped: (P,) splits (written).
        price: (G, E * L) y / c, 1/(Gbit/s); ``FAILED_PRICE`` on a failed link.
        sharpness: q, inverse temperature of the softmax, Gbit/s.
        fixed_demands: (n,) indices of the demands with fixed splits, ascending.
        fixed_ptr: (sources + 1,) the fixed demands of source s are
            fixed_demands[fixed_ptr[s]:fixed_ptr[s + 1]].
        fixed_splits: (n, K) splits of these demands.
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    num_groups = len(price)
    for block in range(begin, end):
        # Price from the source to each trie node of one source, per scenario; mean prices of the
        # paths of one demand.
        path_price = np.zeros((num_groups, max_trie_nodes * num_lanes))
        mean_price = np.empty(256)  # at least the number of paths, which is one byte
        for source in range(block_ptr[block], block_ptr[block + 1]):
            _path_prices(source, scan, price, path_price, num_groups, lanes)
            first_path = scan.path_ptr[source]
            next_fixed = fixed_ptr[source]
            for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
                num_paths = scan.path_count[d]
                # Fixed demands keep their splits; the others respond to the prices.
                if next_fixed < fixed_ptr[source + 1] and fixed_demands[next_fixed] == d:
                    for k in range(num_paths):
                        stepped[first_path + k] = fixed_splits[next_fixed, k]
                    next_fixed += 1
                else:
                    lowest_price = np.inf
                    weight_sum = 0.0
                    for k in range(num_paths):
                        node = np.int64(scan.end_node[first_path + k])
                        weighted_price_sum = _weighted_price(
                            d, node, demands, path_price, num_groups, lanes
                        )
                        mean_price[k] = weighted_price_sum / max(demands.total[d], 1e-300)
                        lowest_price = min(lowest_price, mean_price[k])
                    # Softmax, relative to the cheapest path.
                    for k in range(num_paths):
                        stepped[first_path + k] = (
                            np.exp(-sharpness * (mean_price[k] - lowest_price))
                            * demands.is_live[first_path + k]
                        )
                        weight_sum += stepped[first_path + k]
                    # Scale to a sum of 1.
                    for k in range(first_path, first_path + num_paths):
                        stepped[k] /= max(weight_sum, 1e-300)
                first_path += num_paths
