"""The flows of demands at given link prices, in one pass over the tries: a PriceGNN round without
gradients, fused.

For link weights a[b, e] and a sharpness q = 1 / temperature, demand d sends the share

    w[d, k] = exp(q (u[d] - a(d, k))) / (1 + sum_j exp(q (u[d] - a(d, j))))

over its path k, with a(d, k) the sum of a along the path and u[d] the demand's value; the 1 in the
denominator stands for the rejected part.  The results are each link's load, the sum of demand w
over the paths through it, and its elasticity, the sum of q demand w (1 - w).  In torch that is a
path_sum, a softmax over (B, D, K + 1) and a link_sum of two features, 0.13 s on 568,000 demands and
two cores; here it is one loop over the sources.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.network import PathSet
from teal.network.packed import PathScan
from teal.runtime.arrays import AnyArray, Float32Array, Int64Array, IntArray
from teal.runtime.lanes import load, store
from teal.runtime.parallel import inlined_kernel, inner_kernel, partitioned_kernel, threads_for

FAILED_WEIGHT = (
    1e30  # weight of a failed link: paths over it get no share; sums of it stay finite in float32
)
_MIN_BLOCK_WORK = 20_000  # trie nodes and paths of a block of sources, at least
_MAX_BLOCKS = 16  # blocks of sources
_OPERATIONS_PER_ENTRY = (
    4  # scalar operations that a trie node or path takes in a pass, approximately
)


@inlined_kernel
def exponentials(arguments: Float32Array, bits: IntArray, count: int) -> None:
    """Replace the first ``count`` arguments x <= 0 by exp(x), or by 0 where x < -80.

    exp(x) = 2^n p(f) with n + f = x log2(e), n whole and p a polynomial of degree 6 on [0, 1) with
    an error below 1e-7.  Compilers turn these loops into vector code, which they do not do with
    calls of the library's exp.

    Args:
        arguments: x, replaced by the results.
        bits: scratch of at least ``count`` entries, for the exponents of 2^n.
        count: number of entries.
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


class Responding(NamedTuple):
    """The demands and paths of B matrices, as the kernels read them.

    Attributes:
        demand: (B, D) Gbit/s.
        value: (D,) u.
        block_ptr: (blocks + 1,) first source of each block.
        max_slots: largest number of trie nodes of a source, and one.
        max_shares: largest number of demands and paths of a source.
    """

    demand: Float32Array
    value: Float32Array
    block_ptr: Int64Array
    max_slots: int
    max_shares: int


@inner_kernel
def respond_in_block(block, weight, sharpness, demands, scan, sums, splits, pair):  # type: ignore[no-untyped-def]
    """The demands of one block of sources; the arguments are those of :meth:`Responses.at`.

    Args:
        block: number of the block.
        weight: (B, E).
        sharpness: q, float32.
        demands: a :class:`Responding`.
        scan: paths, source by source.
        sums: (blocks, B, 2 E); receives the loads and elasticities of the block.
        splits: (B, D, K), or without entries.
        pair: any two numbers; the length of the tuple is the number of lanes, of a load and its
            elasticity.
    """
    demand, value, block_ptr = demands.demand, demands.value, demands.block_ptr
    batch, is_storing = len(weight), splits.shape[1] > 0
    path_weight = np.zeros(demands.max_slots, dtype=np.float32)  # of each node, times the sharpness
    flow = np.empty(2 * demands.max_slots, dtype=np.float32)  # of each node: load, elasticity
    # Of each demand: the share that is rejected, then one share a path.
    share, bits = (
        np.empty(demands.max_shares, dtype=np.float32),
        np.empty(demands.max_shares, dtype=np.int32),
    )
    sums[block] = 0
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        for b in range(batch):
            for i in range(nodes):
                above, e = scan.parent[first + i], scan.link[first + i]
                path_weight[i + 1] = path_weight[above] + sharpness * weight[b, e]
            place, path = 0, scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                largest, n = np.float32(0), scan.path_count[d]
                scaled_value = sharpness * value[d]
                if n == 2:  # the usual case; a loop of unknown length costs more than its body
                    x = scaled_value - path_weight[scan.end_node[path]]
                    y = scaled_value - path_weight[scan.end_node[path + 1]]
                    largest = max(largest, max(x, y))
                    share[place + 1], share[place + 2] = x - largest, y - largest
                else:
                    for k in range(n):
                        x = scaled_value - path_weight[scan.end_node[path + k]]
                        share[place + 1 + k] = x
                        largest = max(largest, x)
                    for k in range(n):
                        share[place + 1 + k] -= largest
                share[place] = -largest
                place += n + 1
                path += n
            exponentials(share, bits, place)
            block_sums = sums[block, b]
            flow[: 2 * (nodes + 1)] = 0
            place, path = 0, scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                rate, n = demand[b, d], scan.path_count[d]
                if n == 2:
                    x, y = share[place + 1], share[place + 2]
                    scale = np.float32(1) / (share[place] + x + y)
                    x, y = x * scale, y * scale
                    node, other = 2 * scan.end_node[path], 2 * scan.end_node[path + 1]
                    flow[node], flow[other] = rate * x, rate * y
                    slope = sharpness * rate
                    flow[node + 1] = slope * x * (np.float32(1) - x)
                    flow[other + 1] = slope * y * (np.float32(1) - y)
                    if is_storing:
                        splits[b, d, 0], splits[b, d, 1] = x, y
                else:
                    total = share[place]
                    for k in range(n):
                        total += share[place + 1 + k]
                    scale = np.float32(1) / total
                    for k in range(n):
                        part = share[place + 1 + k] * scale
                        node = 2 * scan.end_node[path + k]
                        flow[node] = rate * part
                        flow[node + 1] = sharpness * rate * part * (np.float32(1) - part)
                        if is_storing:
                            splits[b, d, k] = part
                place += n + 1
                path += n
            for j in range(nodes):
                i = nodes - 1 - j
                e, above = scan.link[first + i], scan.parent[first + i]
                passing = load(flow, i + 1, pair)
                store(block_sums, e, load(block_sums, e, pair) + passing)
                store(flow, above, load(flow, above, pair) + passing)


@partitioned_kernel("demands", lambda demands: len(demands.block_ptr) - 1)
def _respond(
    begin: int,
    end: int,
    weight: Float32Array,
    sharpness: np.float32,
    demands: Responding,
    scan: PathScan,
    sums: Float32Array,
    splits: Float32Array,
    pair: tuple[int, int],
) -> None:
    for block in range(begin, end):
        respond_in_block(block, weight, sharpness, demands, scan, sums, splits, pair)


class Responses:
    """Demands that respond to one set of link weights after another.

    Args:
        paths: paths of the demands.
        demand: (B, D) Gbit/s, on the CPU.
        value: (D,) u, in the unit of the weights.

    Attributes:
        demands: the arguments, as the kernels read them.
        scan: the paths, likewise.
        sums: (blocks, B, 2 E) memory for the loads and elasticities of :meth:`at`.
        no_splits: (B, 0, 0), where no splits are wanted.
        operations: scalar operations of a pass, approximately.
    """

    def __init__(self, paths: PathSet, demand: Tensor, value: Tensor) -> None:
        packed = paths.packed
        block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
        shares_before_source = (
            packed.scan.path_ptr + packed.scan.demand_ptr
        )  # one a path, one a demand
        max_shares = int(np.diff(shares_before_source).max(initial=0))
        self.demands = Responding(
            _float32(demand), _float32(value), block_ptr, packed.max_slots, max_shares
        )
        self.scan = packed.scan
        self.sums = np.zeros(
            (len(block_ptr) - 1, len(demand), 2 * packed.num_links), dtype=np.float32
        )
        self.operations = (
            _OPERATIONS_PER_ENTRY * len(demand) * (packed.num_nodes + packed.num_paths)
        )
        self.no_splits = np.zeros((len(demand), 0, 0), dtype=np.float32)

    def at(
        self, weight: AnyArray, sharpness: float, splits: AnyArray | None = None
    ) -> Float32Array:
        """Loads and elasticities: (blocks, B, 2 E) to be summed over the blocks; the next call
        overwrites them.

        Entries 2 e and 2 e + 1 of the last axis are load and elasticity of link e, in Gbit/s and
        Gbit/s per unit of weight.

        Args:
            weight: (B, E) a, float32, :data:`FAILED_WEIGHT` on a failed link.
            sharpness: q.
            splits: (B, D, K) float32, 0 where there is no path; receives w if given.
        """
        splits = self.no_splits if splits is None else splits
        with threads_for(self.operations):
            _respond(
                weight, np.float32(sharpness), self.demands, self.scan, self.sums, splits, (0, 0)
            )
        return self.sums


def _float32(values: Tensor) -> Float32Array:
    return values.detach().to(torch.float32).contiguous().numpy()
