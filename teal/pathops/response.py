"""What demands do at given prices, in one pass over the tries: the fused form of a PriceGNN's round, without gradients.

For link weights a (B, E) and a sharpness q, demand d sends over its path k the share

    w[d, k] = exp(q (worth[d] - a(path))) / (1 + sum_j exp(q (worth[d] - a(path j)))),

the 1 standing for what is rejected.  Wanted are the loads and the elasticities, the sums of demand w and of
q demand w (1 - w) over the paths through each link.  In torch that is a path_sum, a softmax over (B, D, K + 1) and a
link_sum of two features, 0.13 s on 568,000 demands and two cores; here it is one loop over the sources.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from teal.lanes import load, store
from teal.network import PathSet
from teal.parallel import inlined_kernel, parallel_kernel, prange, threads_for

Array = npt.NDArray[Any]
DEAD = 1e30  # weight of a link that carries nothing
_BLOCKS, _WORK = 16, 20_000  # of sources, at most; trie nodes and paths of each, at least


@inlined_kernel
def exponentials(arguments, bits, count):
    """Exp of the first ``count`` arguments, none above 0, in place; below -80 it is 0.

    2^n times a polynomial of degree 6 on [0, 1), off by less than 1e-7: loops that compilers turn into vector code,
    which they do not do with a call of the library's exp.
    """
    powers = bits.view(np.float32)
    for i in range(count):
        whole = math.floor(max(arguments[i], np.float32(-80)) * np.float32(1.44269504))
        bits[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    for i in range(count):
        x = max(arguments[i], np.float32(-80)) * np.float32(1.44269504)
        x -= np.float32(math.floor(x))
        p = np.float32(2.1884e-4)
        p = p * x + np.float32(1.2382e-3)
        p = p * x + np.float32(9.6843e-3)
        p = p * x + np.float32(5.54802e-2)
        p = p * x + np.float32(2.402264e-1)
        p = p * x + np.float32(6.931472e-1)
        p = p * x + np.float32(1)
        arguments[i] = p * powers[i] if arguments[i] > np.float32(-80) else np.float32(0)


@parallel_kernel
def _respond(
    weight, demand, worth, sharpness, above, link, end, count, node_ptr, demand_ptr, path_ptr, blocks, widest, most,
    sums, splits, pair,
):  # fmt: skip
    batch, storing = len(weight), splits.shape[1] > 0
    for block in prange(len(blocks) - 1):
        value = np.zeros(widest, dtype=np.float32)
        flow = np.empty(2 * widest, dtype=np.float32)  # of each node: load, elasticity
        share, bits = np.empty(most, dtype=np.float32), np.empty(most, dtype=np.int32)
        for s in range(blocks[block], blocks[block + 1]):
            first, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
            for b in range(batch):
                for i in range(nodes):
                    value[i + 1] = value[above[first + i]] + sharpness * weight[b, link[first + i]]
                place, path = 0, path_ptr[s]  # a demand takes a place for rejecting and one a path
                for d in range(demand_ptr[s], demand_ptr[s + 1]):
                    top, n = np.float32(0), count[d]
                    full = sharpness * worth[d]
                    if n == 2:  # most often; a loop of unknown length costs more than what it does
                        x, y = full - value[end[path]], full - value[end[path + 1]]
                        top = max(top, max(x, y))
                        share[place + 1], share[place + 2] = x - top, y - top
                    else:
                        for k in range(n):
                            x = full - value[end[path + k]]
                            share[place + 1 + k] = x
                            top = max(top, x)
                        for k in range(n):
                            share[place + 1 + k] -= top
                    share[place] = -top
                    place += n + 1
                    path += n
                exponentials(share, bits, place)
                own = sums[block, b]
                flow[: 2 * (nodes + 1)] = 0
                place, path = 0, path_ptr[s]
                for d in range(demand_ptr[s], demand_ptr[s + 1]):
                    rate, n = demand[b, d], count[d]
                    if n == 2:
                        x, y = share[place + 1], share[place + 2]
                        scale = np.float32(1) / (share[place] + x + y)
                        x, y = x * scale, y * scale
                        node, other = 2 * end[path], 2 * end[path + 1]
                        flow[node], flow[other] = rate * x, rate * y
                        falling = sharpness * rate
                        flow[node + 1] = falling * x * (np.float32(1) - x)
                        flow[other + 1] = falling * y * (np.float32(1) - y)
                        if storing:
                            splits[b, d, 0], splits[b, d, 1] = x, y
                    else:
                        total = share[place]
                        for k in range(n):
                            total += share[place + 1 + k]
                        scale = np.float32(1) / total
                        for k in range(n):
                            part = share[place + 1 + k] * scale
                            node = 2 * end[path + k]
                            flow[node] = rate * part
                            flow[node + 1] = sharpness * rate * part * (np.float32(1) - part)
                            if storing:
                                splits[b, d, k] = part
                    place += n + 1
                    path += n
                for j in range(nodes):
                    i = nodes - 1 - j
                    e, to = link[first + i], above[first + i]
                    passing = load(flow, i + 1, pair)
                    store(own, e, load(own, e, pair) + passing)
                    store(flow, to, load(flow, to, pair) + passing)


class Responses:
    """Demands (B, D) of worth (D,) that answer to one set of weights after the other.

    Args:
        paths: of the demands.
        demand: (B, D) on the CPU.
        worth: (D,).
    """

    def __init__(self, paths: PathSet, demand: Tensor, worth: Tensor) -> None:
        self._packed = packed = paths.packed
        self._demand, self._worth = _array(demand), _array(worth)
        self._blocks = packed.blocks(_WORK, _BLOCKS)
        self._most = int(np.diff(packed.path_ptr + packed.demand_ptr).max(initial=0))  # places that a source needs
        self._sums = np.zeros((len(self._blocks) - 1, len(demand), 2 * packed.num_links), dtype=np.float32)
        self._no_splits = np.zeros((len(demand), 0, 0), dtype=np.float32)
        self._operations = 4 * len(demand) * (len(packed.above) + packed.num_paths)

    def at(self, weight: Array, sharpness: float, splits: Array | None = None) -> Array:
        """(blocks, B, E * 2) of load and elasticity, to be added over the blocks; overwritten by the next call.

        Args:
            weight: (B, E) a, float32, :data:`DEAD` on a failed link.
            sharpness: q.
            splits: (B, D, K) float32, 0 where there is no path, receives w if it is wanted.
        """
        self._sums[:] = 0
        splits = self._no_splits if splits is None else splits
        with threads_for(self._operations):
            _respond(
                weight, self._demand, self._worth, np.float32(sharpness), *self._packed.arrays, self._blocks,
                self._packed.widest, self._most, self._sums, splits, (0, 0),
            )  # fmt: skip
        return self._sums


def _array(values: Tensor) -> Array:
    return values.detach().to(torch.float32).contiguous().numpy()
