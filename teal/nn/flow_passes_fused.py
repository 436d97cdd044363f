"""Compiled passes of a universal FlowGNN over the paths, for inference on the CPU.

They implement :class:`teal.nn.flow_passes.PathPasses` and equal
:class:`teal.nn.flow_passes.TorchPasses` up to rounding.  Paths are visited source by source
in the packed layout, a trie of the paths of each source, without padded slots. A layer is one pass:
it reads the messages of the links, updates the path states, and sums the states and loads of the
paths of each link.

A state is a row of F float32 numbers, which the processor adds and multiplies at once
(:mod:`teal.runtime.lanes`). Entry points: :class:`CompiledPasses`, and the kernel :func:`one_pass`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from teal.network.packed import PathScan, num_ranges
from teal.nn.flow_gnn_config import UNIVERSAL_WIDTHS
from teal.nn.flow_passes import UTILISATION_OFFSET, PathEncoder, PathUpdate
from teal.pathops.padding import pad_paths
from teal.pathops.response import FAILED_WEIGHT, exponentials
from teal.problem import Problem
from teal.problem.problem import mean_value
from teal.runtime.arrays import Float32Array, Int64Array
from teal.runtime.lanes import (
    broadcast,
    exponential,
    lane_sum,
    load,
    load_broadcast,
    multiply_accumulate,
    store,
    where_above,
)
from teal.runtime.parallel import inlined_kernel, inner_kernel, partitioned_kernel, threads_for

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"


# A path at or above this price contains a failed link, whose price is FAILED_WEIGHT.
_MIN_FAILED_PRICE = np.float32(FAILED_WEIGHT / 2)


class Demands(NamedTuple):
    """Demands, values and costs of B matrices, as a pass reads them.

    Attributes:
        rate: (B, D) Gbit/s.
        value: (D,) value of a Gbit/s over the mean value; 0 in a min-max program.
        cost: (E,) cost of a Gbit/s on each link over the mean value; 0 in a min-max program.
        rejects: whether a demand may be rejected in part: not in a min-max program.
    """

    rate: Float32Array
    value: Float32Array
    cost: Float32Array
    rejects: bool


class PassResults(NamedTuple):
    """Arrays that a pass reads and writes: path states, splits, and sums over the links.

    Attributes:
        state: (B, P F) state g of each path; 0 for a path with a failed link.
        share: (B, P) splits w.
        load_elasticity: (blocks, B, 2 E) load and elasticity of every link, side by side, Gbit/s,
            to be summed over the blocks: over the paths through the link, sums of demand w and of
            q demand w (1 - w), with q the factor of profits in the actions.
        link_states: (blocks, B, E F) sum of demand g over the paths through each link, to be summed
            over the blocks.
    """

    state: Float32Array
    share: Float32Array
    load_elasticity: Float32Array
    link_states: Float32Array


class LinkInputs(NamedTuple):
    """Inputs of the paths from their links in a pass.

    Attributes:
        price: (B, E) relative price, over the mean value, in a min-max program over the mean path
            price; ``FAILED_WEIGHT`` on a failed link.
        logarithm: (B, E) log(utilisation + 0.01).
        excess: (B, E) 1 - 1 / max(utilisation, 1), the share of the load that exceeds the capacity.
        message: (B, E F) V h, a linear map of each link's state.
    """

    price: Float32Array
    logarithm: Float32Array
    excess: Float32Array
    message: Float32Array


class Weights(NamedTuple):
    """Weights of the encoder or a layer; matrices are flat, (inputs, F) row by row.

    Attributes:
        path_state: (F F,) A, of the path's state; (0,) in the encoder.
        demand: (F F,) B, of the mean state of the demand's paths; (0,) in the encoder.
        features: (4 F,) C, of the path's features.
        bias: (F,) bias of the sum.
        action: (F,) u, of the action.
        action_bias: added to the action.
        sharpness: q, factor of the profit in the action.
    """

    path_state: Float32Array
    demand: Float32Array
    features: Float32Array
    bias: Float32Array
    action: Float32Array
    action_bias: np.float32
    sharpness: np.float32


@inlined_kernel
def _bounded_profit(profit):
    """Return a profit >= 0 as is, and a loss x < 0 as x / (1 - x / 3), which is above -3."""
    return profit / (np.float32(1) - profit / np.float32(3)) if profit < 0 else profit


@inlined_kernel
def _silu(row, lanes):
    """Return SiLU, x / (1 + exp(-x)), of each of the F numbers of a row."""
    zero = broadcast(np.float32(0), lanes)
    ones = broadcast(np.float32(1), lanes)
    # exp(-|x|) cannot overflow: SiLU is x / (1 + exp(-|x|)) for x > 0, else
    # x exp(-|x|) / (1 + exp(-|x|)).
    exp_minus_abs = exponential(where_above(row, zero, zero - row, row))
    return where_above(row, zero, row, row * exp_minus_abs) / (ones + exp_minus_abs)


@inlined_kernel
def _action(row, profit, weights, clamp, lanes):
    """Return the action of a path, u . g + q profit + bias, clamped to +- ``clamp``.

    Args:
        row: state g of the path, F numbers.
        profit: bounded profit of the path.
        weights: ``action`` u (F,), ``action_bias``, and ``sharpness`` q.
        clamp: largest absolute value of an action.
        lanes: tuple of length F.
    """
    action = lane_sum(row * load(weights.action, 0, lanes)) + weights.action_bias
    return min(max(action + weights.sharpness * profit, -clamp), clamp)


@inlined_kernel
def _encode(
    first_node,
    num_nodes,
    b,
    source,
    scan,
    demands,
    links,
    capacity,
    state,
    price,
    max_log_utilisation,
    min_capacity,
    num_hops,
    actions,
    weights,
    clamp,
    lanes,
):
    """Compute the first states and actions of the paths of one source in one matrix.

    The state is silu(C x + bias), with weights C and the features x: log(1 + 10 demand / smallest
    capacity), log of the largest utilisation, value (minus 1 if demand may be rejected), and
    log(hops) - 2.

    Args:
        first_node: first trie node of the source in ``scan.parent`` and ``scan.link``.
        num_nodes: number of the source's nodes; they are numbered from 1, 0 is the source.
        b: index of the matrix.
        source: index of the source.
        scan: candidate paths, as one trie per source.
        demands: ``rate`` (B, D) Gbit/s, ``value`` (D,) and ``cost`` (E,) over the mean value.
        links: ``price`` (B, E) and ``logarithm`` (B, E) of the utilisation.
        capacity: (B, E) Gbit/s.
        state: (P, F) states, flat (rows of the source's paths are written; 0 for a path with a
            failed link).
        price, max_log_utilisation, min_capacity, num_hops: (max_trie_nodes,) of the path to each
            trie node: price, log of the largest utilisation, smallest capacity, links (written).
        actions: (paths of the source,) actions (written; minus infinity for a path with a failed
            link).
        weights: weights of the encoder: ``features`` (4, F), ``bias`` (F,), ``action`` (F,).
        clamp: largest absolute value of an action.
        lanes: tuple of length F, the number of SIMD lanes of a state.
    """
    # Walk the trie from the root: price, cost, largest utilisation, bottleneck and hops of nodes.
    price[0] = 0
    max_log_utilisation[0] = -np.inf
    min_capacity[0] = np.inf
    num_hops[0] = 0
    cost = np.zeros(num_nodes + 1, dtype=np.float32)
    for i in range(num_nodes):
        parent = scan.parent[first_node + i]
        e = scan.link[first_node + i]
        price[i + 1] = price[parent] + links.price[b, e]
        cost[i + 1] = cost[parent] + demands.cost[e]
        max_log_utilisation[i + 1] = max(max_log_utilisation[parent], links.logarithm[b, e])
        min_capacity[i + 1] = min(min_capacity[parent], capacity[b, e])
        num_hops[i + 1] = num_hops[parent] + np.float32(1)
    # Encode each path of each demand from its features.
    path = scan.path_ptr[source]
    # Values are relative to the mean value, 1; a min-max program has none.
    value_offset = np.float32(1) if demands.rejects else np.float32(0)
    for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
        for _ in range(scan.path_count[d]):
            node = scan.end_node[path]
            # Index of the path among those of the source.
            i = path - scan.path_ptr[source]
            # A path with a failed link, which has a huge price, keeps state 0 and action -inf.
            encoded_state = broadcast(np.float32(0), lanes)
            action = np.float32(-np.inf)
            if price[node] < _MIN_FAILED_PRICE:
                # The constants 10, 1 and 2 scale and centre the features.
                log_demand_ratio = np.float32(
                    math.log1p(np.float32(10) * demands.rate[b, d] / min_capacity[node])
                )
                value = demands.value[d] - cost[node]
                log_hops = np.float32(math.log(num_hops[node])) - np.float32(2)
                # C x + bias, feature by feature; then SiLU.
                encoded_state = load(weights.bias, 0, lanes)
                encoded_state = multiply_accumulate(
                    encoded_state,
                    broadcast(log_demand_ratio, lanes),
                    load(weights.features, 0, lanes),
                )
                encoded_state = multiply_accumulate(
                    encoded_state,
                    broadcast(max_log_utilisation[node], lanes),
                    load(weights.features, 1, lanes),
                )
                encoded_state = multiply_accumulate(
                    encoded_state,
                    broadcast(value - value_offset, lanes),
                    load(weights.features, 2, lanes),
                )
                encoded_state = multiply_accumulate(
                    encoded_state, broadcast(log_hops, lanes), load(weights.features, 3, lanes)
                )
                encoded_state = _silu(encoded_state, lanes)
                action = _action(
                    encoded_state, _bounded_profit(value - price[node]), weights, clamp, lanes
                )
            store(state, path, encoded_state)
            actions[i] = action
            path += 1


@inlined_kernel
def _update(
    first_node,
    num_nodes,
    b,
    source,
    scan,
    demands,
    links,
    state,
    share,
    price,
    max_log_utilisation,
    max_excess,
    num_hops,
    message_sum,
    actions,
    mean_state,
    weights,
    clamp,
    lanes,
):
    """Compute the next states and actions of the paths of one source in one matrix.

    The state g grows by silu(A g + B (mean g of the demand's live paths) + mean message of the
    links + C x + bias), with weights A, B, C and the features x: log of the largest utilisation,
    largest excess, profit, and last split.

    Args:
        first_node: first trie node of the source in ``scan.parent`` and ``scan.link``.
        num_nodes: number of the source's nodes; they are numbered from 1, 0 is the source.
        b: index of the matrix.
        source: index of the source.
        scan: candidate paths, as one trie per source.
        demands: ``value`` (D,) and ``cost`` (E,), over the mean value.
        links: ``price``, ``logarithm`` of the utilisation and ``excess`` utilisation (B, E), and
            ``message`` (B, E F) of each link.
        state: (P, F) states, flat (rows of the source's paths are updated; those of a path with a
            failed link stay 0).
        share: (P,) splits of the last pass.
        price, max_log_utilisation, max_excess, num_hops: (max_trie_nodes,) of the path to each trie
            node: price plus cost, log of the largest utilisation, largest excess, links (written).
        message_sum: (max_trie_nodes, F) sum of the links' messages on the path to each node
            (written).
        actions: (paths of the source,) actions (written; minus infinity for a path with a failed
            link).
        mean_state: (F,) mean state of the live paths of a demand (work array).
        weights: weights of the layer: ``path_state`` A (F, F), ``demand`` B (F, F), ``features`` C
            (4, F), ``bias`` (F,), ``action`` (F,).
        clamp: largest absolute value of an action.
        lanes: tuple of length F.
    """
    width = len(lanes)
    zero_row = broadcast(np.float32(0), lanes)
    # Walk the trie from the root: price, largest utilisation and excess, hops, and the sum of the
    # messages of links.
    price[0] = 0
    max_log_utilisation[0] = -np.inf
    max_excess[0] = -np.inf
    num_hops[0] = 0
    store(message_sum, 0, zero_row)
    for i in range(num_nodes):
        parent = np.int64(scan.parent[first_node + i])
        e = np.int64(scan.link[first_node + i])
        price[i + 1] = price[parent] + links.price[b, e] + demands.cost[e]
        max_log_utilisation[i + 1] = max(max_log_utilisation[parent], links.logarithm[b, e])
        max_excess[i + 1] = max(max_excess[parent], links.excess[b, e])
        num_hops[i + 1] = num_hops[parent] + np.float32(1)
        store(
            message_sum, i + 1, load(message_sum, parent, lanes) + load(links.message[b], e, lanes)
        )
    path = scan.path_ptr[source]
    for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
        # Mean state of the live paths of the demand; other paths have the state 0.
        state_sum = zero_row
        num_live_paths = np.float32(0)
        for k in range(scan.path_count[d]):
            state_sum = state_sum + load(state, path + k, lanes)
            if price[scan.end_node[path + k]] < _MIN_FAILED_PRICE:
                num_live_paths += np.float32(1)
        store(
            mean_state,
            0,
            state_sum * broadcast(np.float32(1) / max(num_live_paths, np.float32(1)), lanes),
        )
        # Multiply the mean state by its weights B; even and odd inputs are summed apart, as
        # two independent sums that the processor can overlap.
        demand_term = load(weights.bias, 0, lanes)
        second_sum = zero_row
        for j in range(0, width, 2):
            demand_term = multiply_accumulate(
                demand_term, load_broadcast(mean_state, j, lanes), load(weights.demand, j, lanes)
            )
            second_sum = multiply_accumulate(
                second_sum,
                load_broadcast(mean_state, j + 1, lanes),
                load(weights.demand, j + 1, lanes),
            )
        demand_term = demand_term + second_sum
        # Update each live path.
        for _ in range(scan.path_count[d]):
            node = np.int64(scan.end_node[path])
            # Index of the path among those of the source; a failed path keeps the action -inf.
            i = path - scan.path_ptr[source]
            action = np.float32(-np.inf)
            if price[node] < _MIN_FAILED_PRICE:
                # Add the mean message of its links and the four features, again as two independent
                # sums.
                profit = _bounded_profit(demands.value[d] - price[node])
                new_state = multiply_accumulate(
                    demand_term,
                    load(message_sum, node, lanes),
                    broadcast(np.float32(1) / num_hops[node], lanes),
                )
                second_sum = broadcast(max_log_utilisation[node], lanes) * load(
                    weights.features, 0, lanes
                )
                new_state = multiply_accumulate(
                    new_state, broadcast(max_excess[node], lanes), load(weights.features, 1, lanes)
                )
                second_sum = multiply_accumulate(
                    second_sum, broadcast(profit, lanes), load(weights.features, 2, lanes)
                )
                new_state = multiply_accumulate(
                    new_state, broadcast(share[path], lanes), load(weights.features, 3, lanes)
                )
                # Add the product of its state and the weights A.
                for j in range(0, width, 2):
                    state_entry = path * width + j
                    new_state = multiply_accumulate(
                        new_state,
                        load_broadcast(state, state_entry, lanes),
                        load(weights.path_state, j, lanes),
                    )
                    second_sum = multiply_accumulate(
                        second_sum,
                        load_broadcast(state, state_entry + 1, lanes),
                        load(weights.path_state, j + 1, lanes),
                    )
                # Residual connection: add SiLU of both sums to the state.  Then the action.
                new_state = load(state, path, lanes) + _silu(new_state + second_sum, lanes)
                store(state, path, new_state)
                action = _action(new_state, profit, weights, clamp, lanes)
            actions[i] = action
            path += 1


@inlined_kernel
def _softmax_shares(source, scan, rejects, actions, shares, softmax_weights, exponent_bits):
    """Compute the splits of the paths of one source: the softmax of each demand's actions.

    The split of path k with the action z[k] is w[k] = exp(z[k]) / (1 + sum_j exp(z[j])); the 1 is
    the rejected part, only if ``rejects``.  Without a live path all splits are 0.

    Args:
        source: index of the source; its demands are ``demand_ptr[source]:demand_ptr[source + 1]``,
            each with ``path_count[d]`` consecutive paths from ``path_ptr[source]``.
        scan: candidate paths.
        rejects: whether a demand may be rejected in part.
        actions: (paths of the source,) z; minus infinity for a path with a failed link.
        shares: (P,) splits w (entries of the source's paths are written).
        softmax_weights: (max_shares,) unnormalised shares, per demand the rejected one, then one
            per path (work array).
        exponent_bits: (max_shares,) work array of the exponentials.
    """
    # Subtract the largest action of the demand; its first entry is that of rejected traffic.
    first_weight = 0
    path = scan.path_ptr[source]
    first_path = path
    for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
        max_action = np.float32(0) if rejects else np.float32(-np.inf)
        num_paths = scan.path_count[d]
        for k in range(num_paths):
            max_action = max(max_action, actions[path + k - first_path])
        # Without a live path subtract 0: -inf minus -inf would be NaN.
        if max_action == -np.inf:
            max_action = np.float32(0)
        softmax_weights[first_weight] = -max_action if rejects else np.float32(-np.inf)
        for k in range(num_paths):
            softmax_weights[first_weight + 1 + k] = actions[path + k - first_path] - max_action
        first_weight += num_paths + 1
        path += num_paths
    # Exponentiate all entries at once.
    exponentials(softmax_weights, exponent_bits, first_weight)
    # Divide by the sum of each demand.
    first_weight = 0
    path = first_path
    for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
        num_paths = scan.path_count[d]
        weight_sum = np.float32(0)
        for k in range(num_paths + 1):
            weight_sum += softmax_weights[first_weight + k]
        scale = np.float32(1) / weight_sum if weight_sum > 0 else np.float32(0)
        for k in range(num_paths):
            shares[path + k] = softmax_weights[first_weight + 1 + k] * scale
        first_weight += num_paths + 1
        path += num_paths


@inlined_kernel
def _sum_over_links(
    first_node,
    num_nodes,
    source,
    b,
    scan,
    demands,
    state,
    shares,
    sharpness,
    node_load_elasticity,
    node_state,
    link_load_elasticity,
    link_states,
    lanes,
):
    """Add load, elasticity and demand-weighted states of one source's paths to its links.

    Per link, over the paths through it: sums of demand w (load), of q demand w (1 - w)
    (elasticity), and of demand g, with the split w and the state g of a path.

    Args:
        first_node: first trie node of the source in ``scan.parent`` and ``scan.link``.
        num_nodes: number of the source's nodes; they are numbered from 1, 0 is the source.
        source: index of the source.
        b: index of the matrix.
        scan: candidate paths, as one trie per source.
        demands: ``rate`` (B, D) Gbit/s.
        state: (P, F) states g, flat.
        shares: (P,) splits w.
        sharpness: q, factor of the profit in the actions.
        node_load_elasticity: (max_trie_nodes, 2) load and elasticity of each trie node (work
            array).
        node_state: (max_trie_nodes, F) demand-weighted states of each trie node (work array).
        link_load_elasticity: (E, 2) load and elasticity of each link, flat, Gbit/s (increased).
        link_states: (E, F) demand-weighted states of each link, flat (increased).
        lanes: tuple of length F.
    """
    # Scatter load, elasticity and demand-weighted state of each path to its end node.
    node_load_elasticity[: 2 * (num_nodes + 1)] = 0
    node_state[: len(lanes) * (num_nodes + 1)] = 0
    path = scan.path_ptr[source]
    for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
        rate = demands.rate[b, d]
        for _ in range(scan.path_count[d]):
            node = np.int64(scan.end_node[path])
            path_share = shares[path]
            node_load_elasticity[2 * node] = rate * path_share
            node_load_elasticity[2 * node + 1] = (
                sharpness * rate * path_share * (np.float32(1) - path_share)
            )
            store(node_state, node, broadcast(rate, lanes) * load(state, path, lanes))
            path += 1
    # Walk the trie from the leaves: add each subtree to its link and to its parent.
    for j in range(num_nodes):
        i = num_nodes - 1 - j
        e = np.int64(scan.link[first_node + i])
        parent = np.int64(scan.parent[first_node + i])
        # The tuple (0, 0) has the length 2: load and elasticity are two lanes.
        subtree_load_elasticity = load(node_load_elasticity, i + 1, (0, 0))
        store(
            link_load_elasticity, e, load(link_load_elasticity, e, (0, 0)) + subtree_load_elasticity
        )
        store(
            node_load_elasticity,
            parent,
            load(node_load_elasticity, parent, (0, 0)) + subtree_load_elasticity,
        )
        subtree_state = load(node_state, i + 1, lanes)
        store(link_states, e, load(link_states, e, lanes) + subtree_state)
        store(node_state, parent, load(node_state, parent, lanes) + subtree_state)


@inner_kernel
def _pass_over_block(
    block,
    is_encoder,
    demands,
    links,
    capacity,
    weights,
    clamp,
    scan,
    block_ptr,
    max_trie_nodes,
    max_paths,
    max_shares,
    results,
    lanes,
):
    """Update path states and splits of one block of sources, and sum them over the links.

    Per source and matrix: encode or update the states, softmax of the actions, sums over the links.

    Args:
        block: index of the block; its sources are ``block_ptr[block]:block_ptr[block + 1]``.
        is_encoder: whether the pass is the encoder's, else that of a layer.
        demands: ``rate`` (B, D) Gbit/s, ``value`` (D,) and ``cost`` (E,) over the mean value.
        links: prices, log and excess utilisations (B, E), and messages (B, E F) of the links.
        capacity: (B, E) Gbit/s, which only the encoder reads.
        weights: weights of the encoder or the layer.
        clamp: largest absolute value of an action.
        scan: candidate paths, as one trie per source.
        block_ptr: (blocks + 1,) first source of each block.
        max_trie_nodes: maximum number of trie nodes of a source, including the source itself.
        max_paths: maximum number of paths of a source.
        max_shares: maximum number of paths plus demands of a source.
        results: states (B, P F) and splits (B, P) of the paths (updated), load and elasticity
            (blocks, B, 2 E) and state sums (blocks, B, E F) of the links (row ``block`` is
            increased).
        lanes: tuple of length F.
    """
    width = len(lanes)
    batch = len(demands.rate)
    load_elasticity = results.load_elasticity
    link_states = results.link_states
    # Scratch arrays over the trie nodes of a source, about the path to each node.
    price = np.empty(max_trie_nodes, dtype=np.float32)
    max_log_utilisation = np.empty(max_trie_nodes, dtype=np.float32)
    # Smallest capacity (encoder) or largest excess utilisation (layer).
    min_capacity_or_max_excess = np.empty(max_trie_nodes, dtype=np.float32)
    num_hops = np.empty(max_trie_nodes, dtype=np.float32)
    # (max_trie_nodes, F) sum of the messages on the path to a node, for the update; later the
    # demand-weighted sum of the states of the paths through it.
    node_messages_or_states = np.empty(max_trie_nodes * width, dtype=np.float32)
    # (max_trie_nodes, 2) load and elasticity of the paths through a node.
    node_load_elasticity = np.empty(max_trie_nodes * 2, dtype=np.float32)
    # Actions by path of a source; mean state of a demand; unnormalised shares by path and demand.
    actions = np.empty(max_paths, dtype=np.float32)
    mean_state = np.empty(width, dtype=np.float32)
    softmax_weights = np.empty(max_shares, dtype=np.float32)
    exponent_bits = np.empty(max_shares, dtype=np.int32)
    # Visit the sources of the block, and each matrix of the batch.
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        for b in range(batch):
            state = results.state[b]
            shares = results.share[b]
            # Compute states and actions.
            if is_encoder:
                _encode(
                    first_node,
                    num_nodes,
                    b,
                    source,
                    scan,
                    demands,
                    links,
                    capacity,
                    state,
                    price,
                    max_log_utilisation,
                    min_capacity_or_max_excess,
                    num_hops,
                    actions,
                    weights,
                    clamp,
                    lanes,
                )
            else:
                _update(
                    first_node,
                    num_nodes,
                    b,
                    source,
                    scan,
                    demands,
                    links,
                    state,
                    shares,
                    price,
                    max_log_utilisation,
                    min_capacity_or_max_excess,
                    num_hops,
                    node_messages_or_states,
                    actions,
                    mean_state,
                    weights,
                    clamp,
                    lanes,
                )
            # Turn the actions into splits, and sum them over the links.
            _softmax_shares(
                source, scan, demands.rejects, actions, shares, softmax_weights, exponent_bits
            )
            _sum_over_links(
                first_node,
                num_nodes,
                source,
                b,
                scan,
                demands,
                state,
                shares,
                weights.sharpness,
                node_load_elasticity,
                node_messages_or_states,
                load_elasticity[block, b],
                link_states[block, b],
                lanes,
            )


@partitioned_kernel("block_ptr", num_ranges)
def one_pass(
    begin: int,
    end: int,
    is_encoder: bool,
    demands: Demands,
    links: LinkInputs,
    capacity: Float32Array,
    weights: Weights,
    clamp: np.float32,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    max_paths: int,
    max_shares: int,
    results: PassResults,
    lanes: tuple[int, ...],
) -> None:
    """Make one pass of a FlowGNN over all paths: update states and splits, and sum over the links.

    Args:
        begin, end: range of blocks that this call processes.
        is_encoder: whether the pass is the encoder's, else that of a layer.
        demands: ``rate`` (B, D) Gbit/s, ``value`` (D,) and ``cost`` (E,) over the mean value.
        links: prices, log and excess utilisations (B, E), and messages (B, E F) of the links.
        capacity: (B, E) Gbit/s, which only the encoder reads.
        weights: weights of the encoder or the layer.
        clamp: largest absolute value of an action.
        scan: candidate paths, as one trie per source.
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: maximum number of trie nodes of a source, including the source itself.
        max_paths: maximum number of paths of a source.
        max_shares: maximum number of paths plus demands of a source.
        results: states (B, P F) and splits (B, P) of the paths (updated); load and elasticity
            (blocks, B, 2 E) and state sums (blocks, B, E F) of the links, which must be 0 before
            the call (increased).
        lanes: F zeros.
    """
    for block in range(begin, end):
        _pass_over_block(
            block,
            is_encoder,
            demands,
            links,
            capacity,
            weights,
            clamp,
            scan,
            block_ptr,
            max_trie_nodes,
            max_paths,
            max_shares,
            results,
            lanes,
        )


@inner_kernel
def _even_loads_of_block(
    block,
    rate,
    failed,
    scan,
    block_ptr,
    max_trie_nodes,
    link_loads,
):
    """Compute the link loads of even splits and of full paths, for one block of sources.

    Even splits divide each demand equally over its live paths; full paths carry all of their demand
    each.

    Args:
        block: index of the block; its sources are ``block_ptr[block]:block_ptr[block + 1]``.
        rate: (B, D) Gbit/s.
        failed: (B, E) 1 where a link has failed, else 0.
        scan: candidate paths, as one trie per source.
        block_ptr: (blocks + 1,) first source of each block.
        max_trie_nodes: maximum number of trie nodes of a source, including the source itself.
        link_loads: (blocks, B, 2 E) load of even splits and of full paths, side by side, Gbit/s
            (row ``block`` is increased).
    """
    # (max_trie_nodes,) number of failed links on the path to each trie node of a source.
    num_failed = np.zeros(max_trie_nodes, dtype=np.float32)
    # (max_trie_nodes, 2) even flow and full flow of each node.
    flow = np.empty(2 * max_trie_nodes, dtype=np.float32)
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        for b in range(len(rate)):
            # Count the failed links up to each node.
            for i in range(num_nodes):
                num_failed[i + 1] = (
                    num_failed[scan.parent[first_node + i]] + failed[b, scan.link[first_node + i]]
                )
            # Split each demand evenly over its live paths.
            flow[: 2 * (num_nodes + 1)] = 0
            path = scan.path_ptr[source]
            for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
                num_paths = scan.path_count[d]
                num_live = 0
                for k in range(num_paths):
                    num_live += num_failed[scan.end_node[path + k]] == 0
                for k in range(num_paths):
                    node = scan.end_node[path + k]
                    if num_failed[node] == 0:
                        flow[2 * node] = rate[b, d] / np.float32(num_live)
                        flow[2 * node + 1] = rate[b, d]
                path += num_paths
            # Walk the trie from the leaves: add each subtree to its link and to its parent.
            for j in range(num_nodes):
                i = num_nodes - 1 - j
                e = np.int64(scan.link[first_node + i])
                parent = np.int64(scan.parent[first_node + i])
                # The tuple (0, 0) has the length 2: even and full flow are two lanes.
                subtree_flow = load(flow, i + 1, (0, 0))
                store(link_loads[block, b], e, load(link_loads[block, b], e, (0, 0)) + subtree_flow)
                store(flow, parent, load(flow, parent, (0, 0)) + subtree_flow)


@partitioned_kernel("block_ptr", num_ranges)
def even_loads(
    begin: int,
    end: int,
    rate: Float32Array,
    failed: Float32Array,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    link_loads: Float32Array,
) -> None:
    """Compute the link loads of even splits over live paths, and those if every live path carried
    all of its demand.

    Args:
        begin, end: range of blocks that this call processes.
        rate: (B, D) Gbit/s.
        failed: (B, E) 1 where a link has failed, else 0.
        scan: candidate paths, as one trie per source.
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: maximum number of trie nodes of a source, including the source itself.
        link_loads: (blocks, B, 2 E) both loads of each link, side by side, Gbit/s, to be summed
            over the blocks (increased).
    """
    for block in range(begin, end):
        _even_loads_of_block(
            block,
            rate,
            failed,
            scan,
            block_ptr,
            max_trie_nodes,
            link_loads,
        )


# Minimum number of trie nodes and paths of a block of sources.
_MIN_BLOCK_WORK = 20_000
# Maximum number of blocks of sources; each has separate link sums.
_MAX_BLOCKS = 16
# Approximate scalar operations per number of a path state in a pass; determines the threads.
_OPERATIONS_PER_NUMBER = 20


class CompiledPasses:
    """Passes of a universal FlowGNN over all paths, compiled, for inference on the CPU.

    Implements :class:`teal.nn.flow_passes.PathPasses`.  The state of a path has F numbers.

    Args:
        problem: B matrices, for which :meth:`accepts` is true.
        clamp: largest absolute value of an action.

    Attributes:
        even_load: (B, E) load if every demand is split evenly over its live paths, Gbit/s.
        full_load: (B, E) load if every live path carried all of its demand, Gbit/s.
        sums: (B, E, F + 2) of the last pass: load, elasticity, and sum of demand g over the paths
            through each link.
    """

    def __init__(self, problem: Problem, clamp: float) -> None:
        self._problem = problem
        self._packed = problem.paths.packed
        self._clamp = np.float32(clamp)
        scan = self._packed.scan
        packed = self._packed
        batch = problem.batch
        # Blocks of sources, and sizes of the scratch arrays.
        self._block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
        self._max_paths = int(np.diff(scan.path_ptr).max(initial=0))
        self._max_shares = int(np.diff(scan.path_ptr + scan.demand_ptr).max(initial=0))
        # Demands; values and costs over the mean value (at least 1e-30: it may be 0).
        rejects = not problem.demand_set.carries_all
        value_unit = mean_value(problem).clamp(min=1e-30) if rejects else torch.ones(())
        value = (
            problem.demand_value / value_unit if rejects else torch.zeros_like(problem.demand_value)
        )
        cost = problem.link_cost / value_unit if rejects else torch.zeros_like(problem.link_cost)
        self._demands = Demands(_array(problem.demand), _array(value), _array(cost), rejects)
        self._is_failed = problem.capacity <= 0
        # Load under even splits, and if every path carried its demand, in (B, 2 E).
        blocks = len(self._block_ptr) - 1
        loads_by_block = np.zeros((blocks, batch, 2 * packed.num_links), np.float32)
        with threads_for(2 * batch * (packed.num_nodes + packed.num_paths)):
            even_loads(
                self._demands.rate,
                _array(self._is_failed.to(torch.float32)),
                scan,
                self._block_ptr,
                packed.max_trie_nodes,
                loads_by_block,
            )
        # (B, 2 E): entries 2 e are loads of even splits, 2 e + 1 those of full paths.
        link_loads = torch.from_numpy(loads_by_block.sum(0))
        self.even_load = link_loads[:, ::2]
        self.full_load = link_loads[:, 1::2]
        self._results: PassResults | None = None
        self.sums = torch.zeros(0)

    @staticmethod
    def accepts(problem: Problem, width: int) -> bool:
        """Whether the kernels support the problem and the width of the states.

        The problem must be in float32 on the Numba backend, with paths as columns.
        """
        on_cpu = problem.ops.backend.name == "numba" and problem.demand.dtype == torch.float32
        return on_cpu and problem.ops.is_over_paths and width in UNIVERSAL_WIDTHS

    @property
    def splits(self) -> Tensor:
        """(B, D, K) splits of the last pass; 0 where there is no path."""
        assert self._results is not None
        splits = torch.zeros(self._problem.batch, *self._problem.paths.leaf.shape)
        with threads_for(self._packed.num_paths * self._problem.batch):
            pad_paths(self._results.share, self._packed.scan, splits.numpy())
        return splits

    def encode(
        self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor
    ) -> None:
        """Set the first states of the paths, their splits at these prices, and the link sums.

        Args:
            weights: weights of the encoder.
            price: (B, E) link prices, over the mean value (over the mean path price in a min-max
                program).
            sharpness: () q, factor of the profit in an action.
            utilisation: (B, E) utilisation of even splits.
        """
        width = weights.features.out_features
        batch = self._problem.batch
        packed = self._packed
        blocks = len(self._block_ptr) - 1
        # Path states and splits, 0; load and elasticity, and sums of states, of the links, which
        # ``_run_pass`` clears.
        self._results = PassResults(
            np.zeros((batch, packed.num_paths * width), np.float32),
            np.zeros((batch, packed.num_paths), np.float32),
            np.empty((blocks, batch, packed.num_links * 2), np.float32),
            np.empty((blocks, batch, packed.num_links * width), np.float32),
        )
        # Weights: none for A and B (earlier states), then C, its bias, u, the action's bias, and q.
        # The encoder receives no messages.
        no_weights = np.zeros(0, np.float32)
        pass_weights = Weights(
            no_weights,
            no_weights,
            _flatten_weights(weights.features),
            _array(weights.features.bias),
            _array(weights.action.weight)[0],
            np.float32(float(weights.action.bias)),
            np.float32(float(sharpness)),
        )
        self._run_pass(
            True, pass_weights, price, np.zeros((batch, 0), np.float32), utilisation, width
        )

    def update(
        self,
        weights: PathUpdate,
        price: Tensor,
        sharpness: Tensor,
        message: Tensor,
        utilisation: Tensor,
    ) -> None:
        """Advance the path states by one layer; set their splits at these prices and the link sums.

        Args:
            weights: weights of the layer.
            price: (B, E) link prices, over the mean value (over the mean path price in a min-max
                program).
            sharpness: () q, factor of the profit in an action.
            message: (B, E, F) message of each link to its paths.
            utilisation: (B, E) utilisation of the last splits.
        """
        pass_weights = Weights(
            _flatten_weights(weights.own),
            _flatten_weights(weights.demand),
            _flatten_weights(weights.features),
            _array(weights.own.bias),
            _array(weights.action.weight)[0],
            np.float32(float(weights.action.bias)),
            np.float32(float(sharpness)),
        )
        self._run_pass(
            False,
            pass_weights,
            price,
            _array(message.flatten(1)),
            utilisation,
            weights.own.out_features,
        )

    def _run_pass(
        self,
        is_encoder: bool,
        pass_weights: Weights,
        price: Tensor,
        message: Float32Array,
        utilisation: Tensor,
        width: int,
    ) -> None:
        """Run one pass over all paths, and set ``sums`` to the link sums of all blocks.

        Args:
            is_encoder: whether the pass is the encoder's, else that of a layer.
            pass_weights: weights of the encoder or the layer.
            price: (B, E) prices of the links, over the mean value (over the mean path price in a
                min-max program).
            message: (B, E F) messages of the links; (B, 0) for the encoder.
            utilisation: (B, E) utilisation of the links.
            width: F, numbers of a state.
        """
        results = self._results
        packed = self._packed
        assert results is not None
        # Inputs of the links: price, log utilisation, share of the load above the capacity, and
        # message.  The link sums start at 0.
        links = LinkInputs(
            _array(torch.where(self._is_failed, FAILED_WEIGHT, price)),
            _array((utilisation + UTILISATION_OFFSET).log()),
            _array(1 - 1 / utilisation.clamp(min=1)),
            message,
        )
        results.load_elasticity[:] = 0
        results.link_states[:] = 0
        with threads_for(_OPERATIONS_PER_NUMBER * packed.num_paths * width * self._problem.batch):
            one_pass(
                is_encoder,
                self._demands,
                links,
                _array(self._problem.capacity),
                pass_weights,
                self._clamp,
                packed.scan,
                self._block_ptr,
                packed.max_trie_nodes,
                self._max_paths,
                self._max_shares,
                results,
                (0,) * width,
            )
        # Sum over the blocks.
        shape = (self._problem.batch, packed.num_links, -1)
        link_sums = (
            torch.from_numpy(sums_by_block.sum(0)).view(shape)
            for sums_by_block in (results.load_elasticity, results.link_states)
        )
        self.sums = torch.cat(list(link_sums), -1)


def _array(values: Tensor) -> Float32Array:
    """Convert a tensor to a contiguous float32 array, without gradients."""
    return values.detach().to(torch.float32).contiguous().numpy()


def _flatten_weights(layer: nn.Linear) -> Float32Array:
    """Return the weights of a linear layer as (inputs, outputs), flat."""
    return np.ascontiguousarray(_array(layer.weight).T).ravel()
