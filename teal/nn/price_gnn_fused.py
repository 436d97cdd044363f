"""Compiled link update of PriceGNN, for inference only; :mod:`teal.pathops.response` has the update of the demands.

The same numbers as :class:`teal.nn.price_gnn.PriceGNN` in torch, to rounding, for the programs that maximise value.  In
torch a round of 70 links takes 0.4 ms, nearly all of it spent in calls of small operations; here 0.02 ms.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from teal.pathops.response import FAILED_WEIGHT, exponentials
from teal.runtime.arrays import BoolArray, Float32Array
from teal.runtime.parallel import as_int64, inlined_kernel, inner_kernel, parallel_kernel, prange, threads_for

_LINKS_PER_TASK = 64  # links in one parallel task
# Multiply-adds for each element of ``memory``: 3 products of about 2 H elements at the default H = 32.  Sets the number
# of threads.
_OPERATIONS_PER_NUMBER = 200


class Parameters(NamedTuple):
    """Weights of an update, with F features and H numbers of memory; matrices are (inputs, outputs).

    Attributes:
        by_feature: (F, 3 H) of the GRU cell: reset gate, update gate, candidate.
        by_memory: (H, 3 H) of the GRU cell, in the same order.
        bias: (2, 3 H) biases of ``by_feature`` and ``by_memory``.
        inner: (H + F, H) of the perceptron's hidden layer; the rows of the memory come first.
        inner_bias: (H,).
        outer: (H,) of the perceptron's output.
        outer_bias: ().
    """

    by_feature: Float32Array
    by_memory: Float32Array
    bias: Float32Array
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
    """The weights in the layout of the kernel.

    Args:
        cell: updates a link's memory.
        move: Sequential(Linear, SiLU, Linear), the change of a link's raw price.
    """
    inner, outer = cast(nn.Linear, move[0]), cast(nn.Linear, move[2])
    return Parameters(
        _transposed(cell.weight_ih), _transposed(cell.weight_hh),
        np.stack([_array(cell.bias_ih), _array(cell.bias_hh)]), _transposed(inner.weight), _array(inner.bias),
        _array(outer.weight)[0], float(outer.bias),
    )  # fmt: skip


def _array(values: Tensor) -> Float32Array:
    return values.detach().numpy()


def _transposed(values: Tensor) -> Float32Array:
    return np.ascontiguousarray(_array(values).T)


@inlined_kernel
def _sigmoids(values, work, bits, count):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x)) of the first ``count`` values, in place; ``work`` and ``bits`` are scratch."""
    for i in range(count):
        work[i] = -abs(values[i])
    exponentials(work, bits, count)
    for i in range(count):
        share = np.float32(1) / (np.float32(1) + work[i])
        values[i] = share if values[i] >= 0 else work[i] * share


@inlined_kernel
def _add_product(total, vector, length, matrix, first_row):  # type: ignore[no-untyped-def]
    """Total += vector[:length] times the rows of ``matrix`` from ``first_row`` on."""
    for j in range(length):
        factor = vector[j]
        for o in range(len(total)):
            total[o] += factor * matrix[first_row + j, o]


@inner_kernel
def _update_chunk(  # type: ignore[no-untyped-def]
    chunk, sums, links, allocating_features, memory, raw_price, round_index, num_rounds, parameters, price_gain, tiny,
    next_weight,
):  # fmt: skip
    """Update memory and price of the links of one task, ``_LINKS_PER_TASK`` of them."""
    rows, hidden, num_features = len(raw_price), memory.shape[1], len(parameters.by_feature)
    num_static, one = links.static.shape[1], np.float32(1)
    features = np.empty(num_features, dtype=np.float32)
    gates, of_memory = np.empty(3 * hidden, dtype=np.float32), np.empty(3 * hidden, dtype=np.float32)
    work, bits = np.empty(3 * hidden, dtype=np.float32), np.empty(3 * hidden, dtype=np.int32)
    inner, activated = np.empty(hidden, dtype=np.float32), np.empty(hidden, dtype=np.float32)
    for row in range(chunk * _LINKS_PER_TASK, min(rows, (chunk + 1) * _LINKS_PER_TASK)):
        load, elasticity = np.float32(0), np.float32(0)
        for block in range(len(sums)):
            load += sums[block, 2 * row]
            elasticity += sums[block, 2 * row + 1]
        utilisation = load * links.inverse_capacity[row]
        elasticity = elasticity * links.inverse_capacity[row]
        price = _softplus(raw_price[row]) if links.live[row] else np.float32(0)
        excess = utilisation - one
        # The features of PriceGNN, with the same numbers.
        for j in range(num_static):
            features[j] = links.static[row, j]
        features[num_static] = math.log(price + np.float32(1e-3)) / np.float32(3)
        log_utilisation = np.float32(math.log(utilisation + tiny))
        features[num_static + 1] = min(max(log_utilisation, np.float32(-4)), np.float32(4))
        features[num_static + 2] = math.tanh(excess)
        features[num_static + 3] = math.log(elasticity + tiny)
        features[num_static + 4] = math.tanh(np.float32(5) * excess / (elasticity + np.float32(0.05)))
        features[num_static + 5] = np.float32(round_index) / np.float32(num_rounds)
        features[num_static + 6] = np.float32(2) / np.float32(num_rounds)
        for j in range(allocating_features.shape[1]):
            features[num_static + 7 + j] = allocating_features[row, j]
        gates[:] = parameters.bias[0]
        of_memory[:] = parameters.bias[1]
        _add_product(gates, features, num_features, parameters.by_feature, 0)
        _add_product(of_memory, memory[row], hidden, parameters.by_memory, 0)
        for o in range(2 * hidden):  # reset and update gates
            gates[o] += of_memory[o]
        _sigmoids(gates, work, bits, 2 * hidden)
        for h in range(hidden):  # tanh x = 2 sigmoid(2 x) - 1
            inner[h] = np.float32(2) * (gates[2 * hidden + h] + gates[h] * of_memory[2 * hidden + h])
        _sigmoids(inner, work, bits, hidden)
        for h in range(hidden):
            candidate, update_gate = np.float32(2) * inner[h] - one, gates[hidden + h]
            memory[row, h] = candidate + update_gate * (memory[row, h] - candidate)
        inner[:] = parameters.inner_bias
        _add_product(inner, memory[row], hidden, parameters.inner, 0)
        _add_product(inner, features, num_features, parameters.inner, hidden)
        activated[:] = inner
        _sigmoids(activated, work, bits, hidden)
        change = np.float32(parameters.outer_bias)
        for h in range(hidden):
            change += parameters.outer[h] * inner[h] * activated[h]
        raw_price[row] += price_gain * change
        weight = _softplus(raw_price[row]) + links.cost[row]
        next_weight[row] = weight if links.live[row] else np.float32(FAILED_WEIGHT)


@parallel_kernel
def _update(
    sums: Float32Array,
    links: LinkInputs,
    allocating_features: Float32Array,
    memory: Float32Array,
    raw_price: Float32Array,
    round_index: int,
    num_rounds: int,
    parameters: Parameters,
    price_gain: np.float32,
    tiny: np.float32,
    next_weight: Float32Array,
) -> None:
    rows = len(raw_price)
    for chunk in prange((rows + _LINKS_PER_TASK - 1) // _LINKS_PER_TASK):
        _update_chunk(
            as_int64(chunk), sums, links, allocating_features, memory, raw_price, round_index, num_rounds, parameters,
            price_gain, tiny, next_weight,
        )  # fmt: skip


@inlined_kernel
def _softplus(argument):  # type: ignore[no-untyped-def]
    """log(1 + exp(x)), or x itself above 20, as torch computes it."""
    return argument if argument > np.float32(20) else np.float32(math.log1p(math.exp(argument)))


@parallel_kernel
def compute_weights(raw_price: Float32Array, links: LinkInputs, next_weight: Float32Array) -> None:
    """Weights (B E,) that demands respond to: the price plus the link's cost."""
    for row in prange(len(raw_price)):
        weight = _softplus(raw_price[row]) + links.cost[row]
        next_weight[row] = weight if links.live[row] else np.float32(FAILED_WEIGHT)


def update(
    sums: Float32Array,
    links: LinkInputs,
    allocating_features: Float32Array,
    memory: Float32Array,
    raw_price: Float32Array,
    round_index: int,
    num_rounds: int,
    parameters: Parameters,
    constants: Constants,
    next_weight: Float32Array,
) -> None:
    """Update memory and price of all links in round ``round_index`` of ``num_rounds``.

    Args:
        sums: (blocks, B, 2 E) for each link its load and its elasticity, in turn, Gbit/s, to be added up over blocks
            (:mod:`teal.pathops.response`).
        links: inputs that are the same in all rounds.
        allocating_features: (B E, U) features of each link from the allocating pass, an input of the bounding pass;
            (B E, 0) in the allocating pass.
        memory: (B E, H), in place.
        raw_price: (B E,) argument of the softplus that gives the price over the mean value; in place.
        round_index: number of this round, from 0.
        num_rounds: rounds of the pass.
        parameters: weights of the update.
        constants: constants of PriceGNN.
        next_weight: (B E,) receives price plus cost, to which the demands respond; ``FAILED_WEIGHT`` for a failed link.
    """
    with threads_for(memory.size * _OPERATIONS_PER_NUMBER):
        _update(
            sums.reshape(len(sums), -1), links, allocating_features, memory, raw_price, round_index, num_rounds,
            parameters, np.float32(constants.price_gain), np.float32(constants.tiny), next_weight,
        )  # fmt: skip
