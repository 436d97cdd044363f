"""Compiled rounds of PriceGNN for inference, under objectives that maximise value.

In a round the demands respond to the link prices (:mod:`teal.pathops.response`), then a GRU cell
and a perceptron update memory and price of every link.  The results equal those of
:class:`teal.nn.price_gnn.PriceGNN` in torch up to rounding.  The vectors of four links are
multiplied at once (:mod:`teal.runtime.lanes`): a round takes 0.25 us per link; in torch a round of
70 links takes 0.4 ms, nearly all of it call overhead.  Entry point: :func:`make_rounds`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from teal.network.packed import PathScan
from teal.pathops.response import FAILED_WEIGHT, DemandArrays, Responses, respond_in_block
from teal.runtime.arrays import BoolArray, Float32Array
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
from teal.runtime.parallel import (
    as_int64,
    inlined_kernel,
    inner_kernel,
    kernel,
    partitioned_kernel,
    threads_for,
)
from teal.runtime.thread_team import parallel_for

# Links in one parallel task; a multiple of 4.
_LINKS_PER_TASK = 64
# Columns of a matrix multiplied at once.
_MAX_LANES = 16
# Multiply-adds per number of a link's memory: 3 products of about 2 H elements at the default
# H = 32.  Determines the number of threads.
_OPERATIONS_PER_NUMBER = 200


class Parameters(NamedTuple):
    """Weights of a link update, with F features and H numbers of memory per link.

    Matrices are flat, (inputs, outputs) row by row.

    Attributes:
        feature_weight: (F 3 H,) features to reset gate, update gate and candidate of the GRU cell.
        memory_weight: (H 3 H,) memory to reset gate, update gate and candidate of the GRU cell.
        feature_bias: (3 H,) bias of the product with ``feature_weight``.
        memory_bias: (3 H,) bias of the product with ``memory_weight``.
        inner: ((H + F) H,) weights of the perceptron's hidden layer; the rows of the memory come
            first.
        inner_bias: (H,) bias of the hidden layer.
        outer: (H,) weights of the perceptron's output, a change of the raw price.
        outer_bias: bias of the output.
    """

    feature_weight: Float32Array
    memory_weight: Float32Array
    feature_bias: Float32Array
    memory_bias: Float32Array
    inner: Float32Array
    inner_bias: Float32Array
    outer: Float32Array
    outer_bias: float


class LinkInputs(NamedTuple):
    """Link inputs that are the same in all rounds, for B matrices and E links.

    Attributes:
        inverse_capacity: (B E,) 1 / capacity, 1/(Gbit/s).
        is_live: (B E,) whether the link works.
        cost: (B E,) cost of the link over the mean value of a Gbit/s, without unit.
        static: (B E, features) features that depend only on network, capacities and demands.
    """

    inverse_capacity: Float32Array
    is_live: BoolArray
    cost: Float32Array
    static: Float32Array


class Constants(NamedTuple):
    """Constants of :mod:`teal.nn.price_gnn`, which imports this module.

    Attributes:
        price_gain: change of the raw price for one unit of the perceptron's output.
        log_offset: added to utilisation and elasticity before the logarithm.
    """

    price_gain: float
    log_offset: float


def kernel_parameters(cell: nn.GRUCell, perceptron: nn.Sequential) -> Parameters:
    """Return the weights of a link update in the layout of the kernel.

    Args:
        cell: GRU cell that updates a link's memory.
        perceptron: Sequential(Linear, SiLU, Linear), the perceptron that changes a link's raw
            price.
    """
    inner = cast(nn.Linear, perceptron[0])
    outer = cast(nn.Linear, perceptron[2])
    return Parameters(
        _transposed(cell.weight_ih),
        _transposed(cell.weight_hh),
        _array(cell.bias_ih),
        _array(cell.bias_hh),
        _transposed(inner.weight),
        _array(inner.bias),
        _array(outer.weight)[0],
        float(outer.bias.detach()),
    )


def _array(values: Tensor) -> Float32Array:
    """Return a tensor's values as an array, without gradients."""
    return values.detach().numpy()


def _transposed(values: Tensor) -> Float32Array:
    """Return a matrix (outputs, inputs) as (inputs, outputs), flat."""
    return _array(values).T.flatten()


@inlined_kernel
def _sigmoid(row, lanes):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + exp(-x)) of each number of a row."""
    zero = broadcast(np.float32(0), lanes)
    ones = broadcast(np.float32(1), lanes)
    # exp(-|x|) cannot overflow: the sigmoid is 1 / (1 + exp(-|x|)) for x > 0, else
    # exp(-|x|) / (1 + exp(-|x|)).
    exp_minus_abs = exponential(where_above(row, zero, zero - row, row))
    return where_above(row, zero, ones, exp_minus_abs) / (ones + exp_minus_abs)


@inner_kernel
def _linear(results, bias, vectors, first_input, num_inputs, matrix, lanes):  # type: ignore[no-untyped-def]
    """Apply a linear layer to four vectors: result <- bias + vector matrix.

    Args:
        results: (4, N) N outputs of each vector, flat (written).
        bias: (N,) bias of the layer.
        vectors: (4, M) four vectors, flat; the inputs are their columns ``first_input`` to
            ``first_input + num_inputs - 1``.
        first_input: first column of the inputs.
        num_inputs: number of inputs.
        matrix: (L, N) weights of the layer for its L = ``num_inputs`` inputs, flat.
        lanes: tuple whose length is the number of outputs that are computed at once; it divides N.
    """
    # Number of groups of outputs that are computed at once, and M.
    num_lane_groups = len(bias) // len(lanes)
    vector_length = len(vectors) // 4
    for lane_group in range(num_lane_groups):
        # Outputs of the four vectors in this group; they start at the bias.
        output_0 = load(bias, lane_group, lanes)
        output_1 = output_0
        output_2 = output_0
        output_3 = output_0
        for j in range(num_inputs):
            weight_row = load(matrix, j * num_lane_groups + lane_group, lanes)
            input_column = first_input + j
            output_0 = multiply_accumulate(
                output_0, load_broadcast(vectors, input_column, lanes), weight_row
            )
            output_1 = multiply_accumulate(
                output_1, load_broadcast(vectors, vector_length + input_column, lanes), weight_row
            )
            output_2 = multiply_accumulate(
                output_2,
                load_broadcast(vectors, 2 * vector_length + input_column, lanes),
                weight_row,
            )
            output_3 = multiply_accumulate(
                output_3,
                load_broadcast(vectors, 3 * vector_length + input_column, lanes),
                weight_row,
            )
        store(results, lane_group, output_0)
        store(results, num_lane_groups + lane_group, output_1)
        store(results, 2 * num_lane_groups + lane_group, output_2)
        store(results, 3 * num_lane_groups + lane_group, output_3)


@inlined_kernel
def _write_features(  # type: ignore[no-untyped-def]
    link_row,
    features,
    position,
    link_sums,
    links,
    allocating_features,
    raw_price,
    round_index,
    num_rounds,
    log_offset,
):
    """Compute the features of one link in one round.

    They are the static features, log price, log utilisation, excess utilisation, log elasticity,
    a Newton step of the price, progress of the pass, and the features of the allocating pass.

    Args:
        link_row: index of matrix and link, from 0 to B E - 1.
        features: flat array (written from ``position`` on).
        position: position of the first feature in ``features``.
        link_sums: (blocks, B E 2) load and elasticity of each link by block of demands, side by
            side.
        links: ``inverse_capacity``, ``is_live`` and ``cost`` (B E,), ``static`` (B E, features).
        allocating_features: (B E, 2) features from the allocating pass; (B E, 0) in that pass.
        raw_price: argument of the softplus that gives the link's price.
        round_index: index of the round.
        num_rounds: number of rounds of the pass.
        log_offset: added to utilisation and elasticity before the logarithm.
    """
    # Sum load and elasticity over the blocks of demands, relative to the capacity.
    utilisation = np.float32(0)
    elasticity = np.float32(0)
    for block in range(len(link_sums)):
        utilisation += link_sums[block, 2 * link_row]
        elasticity += link_sums[block, 2 * link_row + 1]
    utilisation *= links.inverse_capacity[link_row]
    elasticity *= links.inverse_capacity[link_row]
    # Write the static features, those of load and price, and those of the allocating pass.
    excess = utilisation - np.float32(1)
    price = _softplus(raw_price) if links.is_live[link_row] else np.float32(0)
    for j in range(links.static.shape[1]):
        features[position + j] = links.static[link_row, j]
    position += links.static.shape[1]
    # The offsets 0.001 and 0.05 avoid the log of 0 and a division by 0; factors, limits and tanh
    # keep the features of order 1.
    features[position] = math.log(price + np.float32(1e-3)) / np.float32(3)
    features[position + 1] = min(
        max(np.float32(math.log(utilisation + log_offset)), np.float32(-4)), np.float32(4)
    )
    features[position + 2] = math.tanh(excess)
    features[position + 3] = math.log(elasticity + log_offset)
    features[position + 4] = math.tanh(np.float32(5) * excess / (elasticity + np.float32(0.05)))
    features[position + 5] = np.float32(round_index) / np.float32(num_rounds)
    features[position + 6] = np.float32(2) / np.float32(num_rounds)
    for j in range(allocating_features.shape[1]):
        features[position + 7 + j] = allocating_features[link_row, j]


@inner_kernel
def _update_links(  # type: ignore[no-untyped-def]
    task_index,
    link_sums,
    links,
    allocating_features,
    memory,
    raw_price,
    round_index,
    num_rounds,
    parameters,
    price_gain,
    log_offset,
    next_weight,
    lanes,
):
    """Update memory and price of the links of one parallel task, four links at once.

    A GRU cell updates the memory m from the features f; a perceptron of both changes the raw price.
    With the weights W of the features and U of the memory in reset gate r, update gate u and
    candidate n, without the biases:

        r = sigmoid(W_r f + U_r m),    u = sigmoid(W_u f + U_u m),
        n = tanh(W_n f + r (U_n m)),    m <- n + u (m - n),
        raw price += price_gain * perceptron(m, f).

    Args:
        task_index: index of the task; its rows are ``task_index * _LINKS_PER_TASK`` and following.
        link_sums: (blocks, B E 2) load and elasticity of each link by block of demands, side by
            side.
        links: ``inverse_capacity``, ``is_live`` and ``cost`` (B E,), ``static`` (B E, features).
        allocating_features: (B E, 2) features from the first (allocating) pass in the second
            (bounding) one; (B E, 0) in the first.
        memory: (B E, H) flat (rows of the task are updated).
        raw_price: (B E,) arguments of the softplus (rows of the task are updated).
        round_index, num_rounds: index of the round, and number of rounds of the pass.
        parameters: weights of the GRU cell, (F, 3 H) and (H, 3 H), and of the perceptron,
            (H + F, H) and (H,), for F features and H numbers of memory.
        price_gain: factor of the perceptron's output.
        log_offset: added to utilisation and elasticity before the logarithm.
        next_weight: (B E,) price plus cost, ``FAILED_WEIGHT`` for a failed link (rows of the task
            are written).
        lanes: tuple whose length, a divisor of H, is the number of outputs computed at once.
    """
    # Sizes: rows (a matrix and a link), H, F, groups of outputs per H outputs, and H + F.
    num_rows = len(raw_price)
    memory_size = len(parameters.outer)
    num_features = len(parameters.feature_weight) // (3 * memory_size)
    num_lane_groups = memory_size // len(lanes)
    ones = broadcast(np.float32(1), lanes)
    two = broadcast(np.float32(2), lanes)
    vector_length = memory_size + num_features
    # (4, H + F) memory, then features, of four links.
    vectors = np.zeros(4 * vector_length, dtype=np.float32)
    # (4, 3 H) products of the GRU cell with features and memory: reset gate, update gate,
    # candidate; (4, H) hidden layer of the perceptron.
    feature_gates = np.empty(12 * memory_size, dtype=np.float32)
    memory_gates = np.empty(12 * memory_size, dtype=np.float32)
    hidden_layer = np.empty(4 * memory_size, dtype=np.float32)
    for first_row in range(
        task_index * _LINKS_PER_TASK, min(num_rows, (task_index + 1) * _LINKS_PER_TASK), 4
    ):
        # Gather memory and features of four links.
        num_links = min(4, num_rows - first_row)
        for i in range(num_links):
            for h in range(memory_size):
                vectors[i * vector_length + h] = memory[(first_row + i) * memory_size + h]
            _write_features(
                first_row + i,
                vectors,
                i * vector_length + memory_size,
                link_sums,
                links,
                allocating_features,
                raw_price[first_row + i],
                round_index,
                num_rounds,
                log_offset,
            )
        # Multiply both by the weights of the GRU cell.
        _linear(
            feature_gates,
            parameters.feature_bias,
            vectors,
            memory_size,
            num_features,
            parameters.feature_weight,
            lanes,
        )
        _linear(
            memory_gates,
            parameters.memory_bias,
            vectors,
            0,
            memory_size,
            parameters.memory_weight,
            lanes,
        )
        # Update the memory; reset gate, update gate and candidate lie side by side.
        for i in range(num_links):
            for lane_group in range(num_lane_groups):
                # Positions of the reset gate of link i and of its memory, in groups of outputs.
                gate_column = 3 * i * num_lane_groups + lane_group
                memory_position = (first_row + i) * num_lane_groups + lane_group
                reset = _sigmoid(
                    load(feature_gates, gate_column, lanes)
                    + load(memory_gates, gate_column, lanes),
                    lanes,
                )
                gate_column += num_lane_groups
                update_gate = _sigmoid(
                    load(feature_gates, gate_column, lanes)
                    + load(memory_gates, gate_column, lanes),
                    lanes,
                )
                gate_column += num_lane_groups
                pre_activation = multiply_accumulate(
                    load(feature_gates, gate_column, lanes),
                    reset,
                    load(memory_gates, gate_column, lanes),
                )
                # The candidate is a tanh: tanh x = 2 sigmoid(2 x) - 1.
                candidate = two * _sigmoid(two * pre_activation, lanes) - ones
                store(
                    memory,
                    memory_position,
                    multiply_accumulate(
                        candidate, update_gate, load(memory, memory_position, lanes) - candidate
                    ),
                )
            # The perceptron reads the new memory.
            for h in range(memory_size):
                vectors[i * vector_length + h] = memory[(first_row + i) * memory_size + h]
        # Change the raw price by the perceptron of memory and features, then update the weight.
        _linear(
            hidden_layer, parameters.inner_bias, vectors, 0, vector_length, parameters.inner, lanes
        )
        for i in range(num_links):
            link_row = first_row + i
            price_change = np.float32(parameters.outer_bias)
            for lane_group in range(num_lane_groups):
                # SiLU of the hidden layer, x sigmoid(x).
                pre_activation = load(hidden_layer, i * num_lane_groups + lane_group, lanes)
                price_change += lane_sum(
                    load(parameters.outer, lane_group, lanes)
                    * pre_activation
                    * _sigmoid(pre_activation, lanes)
                )
            raw_price[link_row] += price_gain * price_change
            weight = _softplus(raw_price[link_row]) + links.cost[link_row]
            next_weight[link_row] = weight if links.is_live[link_row] else np.float32(FAILED_WEIGHT)


@kernel
def _make_rounds(
    sharpness: Float32Array,
    demands: DemandArrays,
    scan: PathScan,
    sums: Float32Array,
    sums_by_row: Float32Array,
    no_splits: Float32Array,
    links: LinkInputs,
    allocating_features: Float32Array,
    memory: Float32Array,
    raw_price: Float32Array,
    parameters: Parameters,
    price_gain: np.float32,
    log_offset: np.float32,
    weight: Float32Array,
    weight_by_row: Float32Array,
    lanes: tuple[int, ...],
    two_lanes: tuple[int, int],
) -> None:
    """Run all rounds of a pass: response of the demands, then update of the links, in parallel.

    The first (allocating) pass computes the splits, a second (bounding) pass the dual prices.

    Args:
        sharpness: (R,) 1 / temperature of each round.
        demands: demands of B matrices and ranges of sources per block.
        scan: candidate paths, as one trie per source.
        sums: (blocks, B, 2 E) load and elasticity of each link, side by side (written).
        sums_by_row: view of ``sums`` as (blocks, B E 2); a row is a matrix and a link.
        no_splits: (B, 0, 0) placeholder: no splits are stored.
        links: link inputs that are the same in all rounds.
        allocating_features: (B E, 2) features from the allocating pass; (B E, 0) in that pass.
        memory: (B E, H) flat (updated).
        raw_price: (B E,) arguments of the softplus that gives the price (updated).
        parameters: weights of the link update.
        price_gain: factor of the perceptron's output in the raw price.
        log_offset: added to utilisation and elasticity before the logarithm.
        weight: (B, E) price plus cost of each link (updated).
        weight_by_row: view of ``weight`` as (B E,).
        lanes: tuple whose length is the number of outputs of a linear layer computed at once.
        two_lanes: tuple of two numbers, for load and elasticity as two SIMD lanes.
    """
    # Numbers of rows (a matrix and a link), of rounds, and of parallel tasks of the links.
    rows = len(raw_price)
    num_rounds = len(sharpness)
    num_tasks = as_int64((rows + _LINKS_PER_TASK - 1) // _LINKS_PER_TASK)
    for round_index in range(num_rounds):
        # Demands respond to the weights.
        response_arguments = (
            weight,
            sharpness[round_index],
            demands,
            scan,
            sums,
            no_splits,
            two_lanes,
        )
        parallel_for(respond_in_block, as_int64(len(demands.block_ptr) - 1), response_arguments)
        # Links update memory and price.
        update_arguments = (
            sums_by_row,
            links,
            allocating_features,
            memory,
            raw_price,
            as_int64(round_index),
            num_rounds,
            parameters,
            price_gain,
            log_offset,
            weight_by_row,
            lanes,
        )
        parallel_for(_update_links, num_tasks, update_arguments)


@inlined_kernel
def _softplus(argument):  # type: ignore[no-untyped-def]
    """Return softplus, log(1 + exp(x)); x itself above 20, as in torch."""
    return argument if argument > np.float32(20) else np.float32(math.log1p(math.exp(argument)))


@partitioned_kernel("raw_price")
def compute_weights(
    begin: int, end: int, raw_price: Float32Array, links: LinkInputs, next_weight: Float32Array
) -> None:
    """Compute the link weights of the rows ``begin`` to ``end - 1``: softplus(raw price) + cost.

    Args:
        begin, end: range of rows; a row is a matrix and a link.
        raw_price: (B E,) arguments of the softplus.
        links: costs and live links, (B E,) each.
        next_weight: (B E,) weights (written); ``FAILED_WEIGHT`` for a failed link.
    """
    for row in range(begin, end):
        weight = _softplus(raw_price[row]) + links.cost[row]
        next_weight[row] = weight if links.is_live[row] else np.float32(FAILED_WEIGHT)


def make_rounds(
    sharpness: Float32Array,
    responses: Responses,
    links: LinkInputs,
    allocating_features: Float32Array,
    memory: Float32Array,
    raw_price: Float32Array,
    parameters: Parameters,
    constants: Constants,
    weight: Float32Array,
) -> None:
    """Run all rounds of a pass of PriceGNN.

    In each round the demands respond to the link weights, then the links update memory and price.

    Args:
        sharpness: (R,) 1 / temperature of each round.
        responses: demands of B matrices, and memory for their link sums.
        links: link inputs that are the same in all rounds.
        allocating_features: (B E, 2) features of each link from the allocating pass, an input of
            the bounding pass; (B E, 0) in the allocating pass.
        memory: (B E, H), contiguous (updated).
        raw_price: (B E,) argument of the softplus that gives the price over the mean value
            (updated).
        parameters: weights of the update.
        constants: constants of PriceGNN.
        weight: (B, E) price plus cost over the mean value, ``FAILED_WEIGHT`` for a failed link
            (updated).
    """
    # Number of outputs computed at once: a divisor of H, at most 16.
    num_lanes = math.gcd(len(parameters.outer), _MAX_LANES)
    sums = responses.sums
    with threads_for(max(memory.size * _OPERATIONS_PER_NUMBER, responses.operations)):
        _make_rounds(
            sharpness,
            responses.demands,
            responses.scan,
            sums,
            sums.reshape(len(sums), -1),
            responses.no_splits,
            links,
            allocating_features,
            memory.reshape(-1),
            raw_price,
            parameters,
            np.float32(constants.price_gain),
            np.float32(constants.log_offset),
            weight,
            weight.reshape(-1),
            (0,) * num_lanes,
            (0, 0),
        )
