"""PriceGNN's rounds without gradients, compiled: what demands answer, and then what links make of it.

The same numbers as :class:`teal.nn.price_gnn.PriceGNN` in torch, to rounding, for the programs that maximise value.  In
torch a round of 70 links takes 0.4 ms, nearly all of it in calling; here 0.02 ms.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,assignment"

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor, nn

from teal.parallel import inlined_kernel, parallel_kernel, prange, threads_for
from teal.pathops.response import DEAD, Array, exponentials

_ROWS = 64  # links of a piece of work


class Weights(NamedTuple):
    """Of an update, inputs down and outputs across: GRU cell on F features and H numbers, perceptron on H + F.

    by_feature: (F, 3 H); by_memory: (H, 3 H); bias: (2, 3 H); inner: (H + F, H); inner_bias: (H,); outer: (H,);
    outer_bias: ().
    """

    by_feature: Array
    by_memory: Array
    bias: Array
    inner: Array
    inner_bias: Array
    outer: Array
    outer_bias: float


class Links(NamedTuple):
    """What stays of each link: (B E,) 1 / c, whether it works, cost in mean values; (B E, S) static features."""

    inverse: Array
    live: Array
    cost: Array
    static: Array


def weights_of(cell: nn.GRUCell, move: nn.Sequential) -> Weights:
    """As the kernel reads them."""
    inner, outer = cast(nn.Linear, move[0]), cast(nn.Linear, move[2])
    return Weights(
        _turned(cell.weight_ih), _turned(cell.weight_hh), np.stack([_plain(cell.bias_ih), _plain(cell.bias_hh)]),
        _turned(inner.weight), _plain(inner.bias), _plain(outer.weight)[0], float(outer.bias),
    )  # fmt: skip


def _plain(values: Tensor) -> Array:
    return values.detach().numpy()


def _turned(values: Tensor) -> Array:
    return np.ascontiguousarray(_plain(values).T)


@inlined_kernel
def _sigmoids(values, work, bits, count):
    """1 / (1 + exp(-x)) of the first ``count`` values, in place."""
    for i in range(count):
        work[i] = -abs(values[i])
    exponentials(work, bits, count)
    for i in range(count):
        share = np.float32(1) / (np.float32(1) + work[i])
        values[i] = share if values[i] >= 0 else work[i] * share


@inlined_kernel
def _add_product(total, vector, length, matrix, first_row):
    """Total += vector[:length] times rows of matrix from ``first_row`` on."""
    for j in range(length):
        factor = vector[j]
        for o in range(len(total)):
            total[o] += factor * matrix[first_row + j, o]


@parallel_kernel
def _update(sums, links, used, memory, argument, number, count, weights, gain, tiny, next_weight):
    inverse, live, cost, static = links
    by_feature, by_memory, bias, inner, inner_bias, outer, outer_bias = weights
    rows, hidden, features = len(argument), memory.shape[1], len(by_feature)
    statics, one = static.shape[1], np.float32(1)
    for piece in prange((rows + _ROWS - 1) // _ROWS):
        seen = np.empty(features, dtype=np.float32)
        own, other = np.empty(3 * hidden, dtype=np.float32), np.empty(3 * hidden, dtype=np.float32)
        work, bits = np.empty(3 * hidden, dtype=np.float32), np.empty(3 * hidden, dtype=np.int32)
        middle, squashed = np.empty(hidden, dtype=np.float32), np.empty(hidden, dtype=np.float32)
        for row in range(piece * _ROWS, min(rows, (piece + 1) * _ROWS)):
            load, elasticity = np.float32(0), np.float32(0)
            for block in range(len(sums)):
                load += sums[block, 2 * row]
                elasticity += sums[block, 2 * row + 1]
            load, elasticity = load * inverse[row], elasticity * inverse[row]
            price = _price(argument[row]) if live[row] else np.float32(0)
            excess = load - one
            for j in range(statics):
                seen[j] = static[row, j]
            seen[statics] = math.log(price + np.float32(1e-3)) / np.float32(3)
            seen[statics + 1] = min(max(math.log(load + tiny), np.float32(-4)), np.float32(4))
            seen[statics + 2] = math.tanh(excess)
            seen[statics + 3] = math.log(elasticity + tiny)
            seen[statics + 4] = math.tanh(np.float32(5) * excess / (elasticity + np.float32(0.05)))
            seen[statics + 5] = np.float32(number) / np.float32(count)
            seen[statics + 6] = np.float32(2) / np.float32(count)
            for j in range(used.shape[1]):
                seen[statics + 7 + j] = used[row, j]
            own[:] = bias[0]
            other[:] = bias[1]
            _add_product(own, seen, features, by_feature, 0)
            _add_product(other, memory[row], hidden, by_memory, 0)
            for o in range(2 * hidden):  # reset and update gates
                own[o] += other[o]
            _sigmoids(own, work, bits, 2 * hidden)
            for h in range(hidden):  # tanh x = 2 sigmoid(2 x) - 1
                middle[h] = np.float32(2) * (own[2 * hidden + h] + own[h] * other[2 * hidden + h])
            _sigmoids(middle, work, bits, hidden)
            for h in range(hidden):
                fresh, keep = np.float32(2) * middle[h] - one, own[hidden + h]
                memory[row, h] = fresh + keep * (memory[row, h] - fresh)
            middle[:] = inner_bias
            _add_product(middle, memory[row], hidden, inner, 0)
            _add_product(middle, seen, features, inner, hidden)
            squashed[:] = middle
            _sigmoids(squashed, work, bits, hidden)
            move = np.float32(outer_bias)
            for h in range(hidden):
                move += outer[h] * middle[h] * squashed[h]
            argument[row] += gain * move
            next_weight[row] = _price(argument[row]) + cost[row] if live[row] else np.float32(DEAD)


@inlined_kernel
def _price(argument):
    """Softplus, as torch has it."""
    return argument if argument > np.float32(20) else np.float32(math.log1p(math.exp(argument)))


@parallel_kernel
def weigh(argument, links, next_weight):
    """Weights (B E,) that demands see: softplus of the argument, and the link's cost."""
    for row in prange(len(argument)):
        price = _price(argument[row]) + links.cost[row]
        next_weight[row] = price if links.live[row] else np.float32(DEAD)


def update(
    sums: Array, links: Links, used: Array, memory: Array, argument: Array, number: int, count: int, weights: Weights,
    gain: float, tiny: float, next_weight: Array,
) -> None:  # fmt: skip
    """Round ``number`` of ``count`` for all links.

    Args:
        sums: (blocks, B, 2 E) of load and elasticity (:mod:`teal.pathops.response`).
        used: (B E, U) further features.
        memory: (B E, H), in place; argument: (B E,) of the price, in place.
        next_weight: (B E,) receives price and cost, or ``DEAD``.
    """
    with threads_for(memory.size * 200):
        _update(
            sums.reshape(len(sums), -1), links, used, memory, argument, number, count, weights, np.float32(gain),
            np.float32(tiny), next_weight,
        )  # fmt: skip
