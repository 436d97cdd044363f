"""Compiled rounds of PriceGNN, for inference only: :mod:`teal.pathops.response` for the demands,
then the links.

Equal to :class:`teal.nn.price_gnn.PriceGNN` in torch up to rounding, for the programs that maximise
value. Four links at once are multiplied by the matrices of the update
(:mod:`teal.runtime.lanes`), which takes 0.25 us a link and round, half of it multiplications.  In
torch a round of 70 links takes 0.4 ms, nearly all of it calls.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from teal.network.packed import PathScan
from teal.pathops.response import FAILED_WEIGHT, Responding, Responses, respond_in_block
from teal.runtime.arrays import BoolArray, Float32Array
from teal.runtime.lanes import (
    exponential,
    fill,
    load,
    plus_product,
    spread,
    store,
    total,
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
# Multiply-adds for each element of ``memory``: 3 products of about 2 H elements at the default H =
# 32.  Sets the number of threads.
_OPERATIONS_PER_NUMBER = 200


class Parameters(NamedTuple):
    """Weights of an update, with F features and H numbers of memory; matrices are (inputs
    outputs,), row by row.

    Attributes:
        by_feature: (F 3 H,) of the GRU cell: reset gate, update gate, candidate.
        by_memory: (H 3 H,) of the GRU cell, in the same order.
        feature_bias: (3 H,) of ``by_feature``.
        memory_bias: (3 H,) of ``by_memory``.
        inner: ((H + F) H,) of the perceptron's hidden layer; the rows of the memory come first.
        inner_bias: (H,).
        outer: (H,) of the perceptron's output.
        outer_bias: ().
    """

    by_feature: Float32Array
    by_memory: Float32Array
    feature_bias: Float32Array
    memory_bias: Float32Array
    inner: Float32Array
    inner_bias: Float32Array
    outer: Float32Array
    outer_bias: float


class LinkInputs(NamedTuple):
    """Inputs that are the same in all rounds, for B matrices and E links.

    Attributes:
        inverse_capacity: (B E,) 1 / c in 1 / (Gbit/s).
        live: (B E,) whether the link works.
        cost: (B E,) cost of the link over the mean value of a Gbit/s, without unit.
        static: (B E, S) features that depend only on network, capacities and demands.
    """

    inverse_capacity: Float32Array
    live: BoolArray
    cost: Float32Array
    static: Float32Array


class Constants(NamedTuple):
    """Constants of :mod:`teal.nn.price_gnn`, which imports this module.

    Attributes:
        price_gain: change of the raw price for one unit of the perceptron's output.
        tiny: added to utilisation and elasticity before the logarithm.
    """

    price_gain: float
    tiny: float


def parameters_of(cell: nn.GRUCell, move: nn.Sequential) -> Parameters:
    """Weights in the layout of the kernel.

    Args:
        cell: updates a link's memory.
        move: Sequential(Linear, SiLU, Linear), the change of a link's raw price.
    """
    inner = cast(nn.Linear, move[0])
    outer = cast(nn.Linear, move[2])
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
    return values.detach().numpy()


def _transposed(values: Tensor) -> Float32Array:
    return _array(values).T.flatten()


@inlined_kernel
def _sigmoid(row, lanes):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x)), lane by lane."""
    zero = fill(np.float32(0), lanes)
    ones = fill(np.float32(1), lanes)
    power = exponential(where_above(row, zero, zero - row, row))
    return where_above(row, zero, ones, power) / (ones + power)


@inner_kernel
def _linear(results, bias, vectors, first, length, matrix, lanes):  # type: ignore[no-untyped-def]
    """``bias`` (N,) plus the product of four vectors and a matrix (length N,), into ``results`` (4
    N,).

    The vectors are the entries from ``first`` on of the rows of ``vectors``, 4 rows of equal
    length.
    """
    columns = len(bias) // len(lanes)
    stride = len(vectors) // 4
    for column in range(columns):
        a = load(bias, column, lanes)
        b = a
        c = a
        d = a
        for j in range(length):
            row = load(matrix, j * columns + column, lanes)
            position = first + j
            a = plus_product(a, spread(vectors, position, lanes), row)
            b = plus_product(b, spread(vectors, stride + position, lanes), row)
            c = plus_product(c, spread(vectors, 2 * stride + position, lanes), row)
            d = plus_product(d, spread(vectors, 3 * stride + position, lanes), row)
        store(results, column, a)
        store(results, columns + column, b)
        store(results, 2 * columns + column, c)
        store(results, 3 * columns + column, d)


@inlined_kernel
def _write_features(  # type: ignore[no-untyped-def]
    row,
    features,
    position,
    sums,
    links,
    allocating_features,
    raw_price,
    round_index,
    num_rounds,
    tiny,
):
    """Write the features of PriceGNN of one link into ``features``, from ``position`` on."""
    # Sum load and elasticity over the blocks of demands, relative to the capacity.
    utilisation = np.float32(0)
    elasticity = np.float32(0)
    for block in range(len(sums)):
        utilisation += sums[block, 2 * row]
        elasticity += sums[block, 2 * row + 1]
    utilisation *= links.inverse_capacity[row]
    elasticity *= links.inverse_capacity[row]
    # Write the static features, those of load and price, and those of the allocating pass.
    excess = utilisation - np.float32(1)
    price = _softplus(raw_price) if links.live[row] else np.float32(0)
    for j in range(links.static.shape[1]):
        features[position + j] = links.static[row, j]
    position += links.static.shape[1]
    features[position] = math.log(price + np.float32(1e-3)) / np.float32(3)
    features[position + 1] = min(
        max(np.float32(math.log(utilisation + tiny)), np.float32(-4)), np.float32(4)
    )
    features[position + 2] = math.tanh(excess)
    features[position + 3] = math.log(elasticity + tiny)
    features[position + 4] = math.tanh(np.float32(5) * excess / (elasticity + np.float32(0.05)))
    features[position + 5] = np.float32(round_index) / np.float32(num_rounds)
    features[position + 6] = np.float32(2) / np.float32(num_rounds)
    for j in range(allocating_features.shape[1]):
        features[position + 7 + j] = allocating_features[row, j]


@inner_kernel
def _update_chunk(  # type: ignore[no-untyped-def]
    chunk,
    sums,
    links,
    allocating_features,
    memory,
    raw_price,
    round_index,
    num_rounds,
    parameters,
    price_gain,
    tiny,
    next_weight,
    lanes,
):
    """Update memory and price of the links of one task, ``_LINKS_PER_TASK`` of them, four at
    once.
    """
    # Sizes and scratch arrays.
    rows = len(raw_price)
    hidden = len(parameters.outer)
    num_features = len(parameters.by_feature) // (3 * hidden)
    columns = hidden // len(lanes)
    ones = fill(np.float32(1), lanes)
    two = fill(np.float32(2), lanes)
    length = hidden + num_features
    # Four vectors, of one link each: memory, then features.
    vectors = np.zeros(4 * length, dtype=np.float32)
    feature_gates = np.empty(12 * hidden, dtype=np.float32)
    memory_gates = np.empty(12 * hidden, dtype=np.float32)
    inner = np.empty(4 * hidden, dtype=np.float32)
    for first in range(chunk * _LINKS_PER_TASK, min(rows, (chunk + 1) * _LINKS_PER_TASK), 4):
        # Gather memory and features of four links.
        count = min(4, rows - first)
        for i in range(count):
            for h in range(hidden):
                vectors[i * length + h] = memory[(first + i) * hidden + h]
            _write_features(
                first + i,
                vectors,
                i * length + hidden,
                sums,
                links,
                allocating_features,
                raw_price[first + i],
                round_index,
                num_rounds,
                tiny,
            )
        # Multiply both by the weights of the GRU cell.
        _linear(
            feature_gates,
            parameters.feature_bias,
            vectors,
            hidden,
            num_features,
            parameters.by_feature,
            lanes,
        )
        _linear(
            memory_gates, parameters.memory_bias, vectors, 0, hidden, parameters.by_memory, lanes
        )
        # Update the memory with reset gate, update gate and candidate.
        for i in range(count):
            for column in range(columns):
                gates = 3 * i * columns + column
                memory_position = (first + i) * columns + column
                reset = _sigmoid(
                    load(feature_gates, gates, lanes) + load(memory_gates, gates, lanes), lanes
                )
                gates += columns
                update_gate = _sigmoid(
                    load(feature_gates, gates, lanes) + load(memory_gates, gates, lanes), lanes
                )
                gates += columns
                argument = plus_product(
                    load(feature_gates, gates, lanes), reset, load(memory_gates, gates, lanes)
                )
                # Tanh x = 2 sigmoid(2 x) - 1.
                candidate = two * _sigmoid(two * argument, lanes) - ones
                store(
                    memory,
                    memory_position,
                    plus_product(
                        candidate, update_gate, load(memory, memory_position, lanes) - candidate
                    ),
                )
            for h in range(hidden):
                vectors[i * length + h] = memory[(first + i) * hidden + h]
        # Change the raw price by the perceptron of memory and features, then update the weight.
        _linear(inner, parameters.inner_bias, vectors, 0, length, parameters.inner, lanes)
        for i in range(count):
            row = first + i
            price_change = np.float32(parameters.outer_bias)
            for column in range(columns):
                argument = load(inner, i * columns + column, lanes)
                price_change += total(
                    load(parameters.outer, column, lanes) * argument * _sigmoid(argument, lanes)
                )
            raw_price[row] += price_gain * price_change
            weight = _softplus(raw_price[row]) + links.cost[row]
            next_weight[row] = weight if links.live[row] else np.float32(FAILED_WEIGHT)


@kernel
def _make_rounds(
    sharpness: Float32Array,
    demands: Responding,
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
    tiny: np.float32,
    weight: Float32Array,
    weight_by_row: Float32Array,
    lanes: tuple[int, ...],
    pair: tuple[int, int],
) -> None:
    rows = len(raw_price)
    num_rounds = len(sharpness)
    num_chunks = as_int64((rows + _LINKS_PER_TASK - 1) // _LINKS_PER_TASK)
    for round_index in range(num_rounds):
        # Demands respond to the weights.
        responding = (
            weight,
            sharpness[round_index],
            demands,
            scan,
            sums,
            no_splits,
            pair,
        )
        parallel_for(respond_in_block, as_int64(len(demands.block_ptr) - 1), responding)
        # Links update memory and price.
        updating = (
            sums_by_row,
            links,
            allocating_features,
            memory,
            raw_price,
            as_int64(round_index),
            num_rounds,
            parameters,
            price_gain,
            tiny,
            weight_by_row,
            lanes,
        )
        parallel_for(_update_chunk, num_chunks, updating)


@inlined_kernel
def _softplus(argument):  # type: ignore[no-untyped-def]
    """log(1 + exp(x)), or x itself above 20, as torch computes it."""
    return argument if argument > np.float32(20) else np.float32(math.log1p(math.exp(argument)))


@partitioned_kernel("raw_price")
def compute_weights(
    begin: int, end: int, raw_price: Float32Array, links: LinkInputs, next_weight: Float32Array
) -> None:
    """Weights (B E,) that demands respond to: the price plus the link's cost."""
    for row in range(begin, end):
        weight = _softplus(raw_price[row]) + links.cost[row]
        next_weight[row] = weight if links.live[row] else np.float32(FAILED_WEIGHT)


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
    """Run all rounds of a pass: the demands respond to the weights, then the links update their
    memory and price.

    Args:
        sharpness: (R,) 1 / temperature of each round.
        responses: the demands.
        links: inputs that are the same in all rounds.
        allocating_features: (B E, U) features of each link from the allocating pass, an input of
            the bounding pass; (B E, 0) in the allocating pass.
        memory: (B E, H), contiguous; in place.
        raw_price: (B E,) argument of the softplus that gives the price over the mean value; in
            place.
        parameters: weights of the update.
        constants: constants of PriceGNN.
        weight: (B, E) price plus cost, to which the demands respond, ``FAILED_WEIGHT`` for a failed
            link; in place.
    """
    width = math.gcd(len(parameters.outer), _MAX_LANES)
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
            np.float32(constants.tiny),
            weight,
            weight.reshape(-1),
            (0,) * width,
            (0, 0),
        )
