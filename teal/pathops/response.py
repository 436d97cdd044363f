"""Price response of demands: flows at given link prices in one fused pass over the tries.

This is a PriceGNN round without gradients.  For link weights a[b, e] and a sharpness q = 1 /
temperature, demand d sends the share (a softmax)

    w[d, k] = exp(q (u[d] - a(d, k))) / (1 + sum_j exp(q (u[d] - a(d, j))))

over its path k, with a(d, k) the sum of a along the path and u[d] the demand's value; the 1 in the
denominator is the unserved part.  The results are each link's load, the sum of demand w over the
paths through it, and its elasticity, the sum of q demand w (1 - w).  In torch that is a path_sum, a
softmax over (B, D, K + 1) and a link_sum of two features, 0.13 s on 568,000 demands and two cores;
here it is one loop over the sources.  Entry point: :meth:`Responses.at`.
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

# Weight of a failed link: paths over it get no share, and sums stay finite in float32.
FAILED_WEIGHT = 1e30
# Minimum number of trie nodes and paths of a block of sources.
_MIN_BLOCK_WORK = 20_000
# Maximum number of blocks of sources.
_MAX_BLOCKS = 16
# Approximate scalar operations for each trie node or path in a pass.
_OPERATIONS_PER_ENTRY = 4


@inlined_kernel
def exponentials(arguments: Float32Array, bits: IntArray, count: int) -> None:
    """Replace the first ``count`` arguments x <= 0 by exp(x), or by 0 where x < -80.

    exp(x) = 2^n p(f) with n + f = x log2(e), n an integer and p a polynomial of degree 6 on [0, 1)
    with an error below 1e-7.  Compilers vectorise these loops, but not calls of the library's exp.

    Args:
        arguments: x, replaced by the results.
        bits: scratch memory of at least ``count`` entries, for the exponents of 2^n.
        count: number of entries.
    """
    powers = bits.view(np.float32)
    for i in range(count):
        exponent = math.floor(max(arguments[i], np.float32(-80)) * np.float32(1.44269504))
        bits[i] = (np.int32(exponent) + np.int32(127)) << np.int32(23)
    for i in range(count):
        x = max(arguments[i], np.float32(-80)) * np.float32(1.44269504)
        x -= np.float32(math.floor(x))
        polynomial = np.float32(2.1884e-4)
        polynomial = polynomial * x + np.float32(1.2382e-3)
        polynomial = polynomial * x + np.float32(9.6843e-3)
        polynomial = polynomial * x + np.float32(5.54802e-2)
        polynomial = polynomial * x + np.float32(2.402264e-1)
        polynomial = polynomial * x + np.float32(6.931472e-1)
        polynomial = polynomial * x + np.float32(1)
        arguments[i] = polynomial * powers[i] if arguments[i] > np.float32(-80) else np.float32(0)


class Responding(NamedTuple):
    """Demands and paths of B matrices, as kernel arguments.

    Attributes:
        demand: (B, D) Gbit/s.
        value: (D,) values u.
        block_ptr: (blocks + 1,) first source of each block.
        max_slots: maximum number of trie nodes of a source, including the source itself.
        max_shares: maximum number of demands and paths of a source.
    """

    demand: Float32Array
    value: Float32Array
    block_ptr: Int64Array
    max_slots: int
    max_shares: int


@inner_kernel
def respond_in_block(block, weight, sharpness, demands, scan, sums, splits, pair):  # type: ignore[no-untyped-def]
    """Compute the response of one block of sources; arguments as in :meth:`Responses.at`.

    Args:
        block: index of the block.
        weight: (B, E) link weights.
        sharpness: q, float32.
        demands: a :class:`Responding`.
        scan: paths, source by source.
        sums: (blocks, B, 2 E); receives the loads and elasticities of the block.
        splits: (B, D, K), or without entries.
        pair: tuple of two numbers; its length is the number of lanes (load and elasticity).
    """
    demand = demands.demand
    value = demands.value
    block_ptr = demands.block_ptr
    batch = len(weight)
    is_storing = splits.shape[1] > 0
    # Path weight of each node, times the sharpness.
    path_weight = np.zeros(demands.max_slots, dtype=np.float32)
    # Load and elasticity of each node.
    flow = np.empty(2 * demands.max_slots, dtype=np.float32)
    # Shares of each demand: the unserved share, then one share a path.
    share = np.empty(demands.max_shares, dtype=np.float32)
    bits = np.empty(demands.max_shares, dtype=np.int32)
    sums[block] = 0
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first = scan.node_ptr[s]
        num_nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        for b in range(batch):
            # Path weights, top down; shares before normalisation.
            for i in range(num_nodes):
                parent = scan.parent[first + i]
                link = scan.link[first + i]
                path_weight[i + 1] = path_weight[parent] + sharpness * weight[b, link]
            offset = 0
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                largest = np.float32(0)
                num_paths = scan.path_count[d]
                scaled_value = sharpness * value[d]
                # The common case: a loop of unknown length costs more than its body.
                if num_paths == 2:
                    x = scaled_value - path_weight[scan.end_node[path]]
                    y = scaled_value - path_weight[scan.end_node[path + 1]]
                    largest = max(largest, max(x, y))
                    share[offset + 1] = x - largest
                    share[offset + 2] = y - largest
                else:
                    for k in range(num_paths):
                        x = scaled_value - path_weight[scan.end_node[path + k]]
                        share[offset + 1 + k] = x
                        largest = max(largest, x)
                    for k in range(num_paths):
                        share[offset + 1 + k] -= largest
                share[offset] = -largest
                offset += num_paths + 1
                path += num_paths
            exponentials(share, bits, offset)
            # Normalise the shares; load and elasticity of the end nodes.
            block_sums = sums[block, b]
            flow[: 2 * (num_nodes + 1)] = 0
            offset = 0
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                rate = demand[b, d]
                num_paths = scan.path_count[d]
                if num_paths == 2:
                    x = share[offset + 1]
                    y = share[offset + 2]
                    inverse_total = np.float32(1) / (share[offset] + x + y)
                    x = x * inverse_total
                    y = y * inverse_total
                    node = 2 * scan.end_node[path]
                    second_node = 2 * scan.end_node[path + 1]
                    flow[node] = rate * x
                    flow[second_node] = rate * y
                    slope = sharpness * rate
                    flow[node + 1] = slope * x * (np.float32(1) - x)
                    flow[second_node + 1] = slope * y * (np.float32(1) - y)
                    if is_storing:
                        splits[b, d, 0] = x
                        splits[b, d, 1] = y
                else:
                    total = share[offset]
                    for k in range(num_paths):
                        total += share[offset + 1 + k]
                    inverse_total = np.float32(1) / total
                    for k in range(num_paths):
                        split = share[offset + 1 + k] * inverse_total
                        node = 2 * scan.end_node[path + k]
                        flow[node] = rate * split
                        flow[node + 1] = sharpness * rate * split * (np.float32(1) - split)
                        if is_storing:
                            splits[b, d, k] = split
                offset += num_paths + 1
                path += num_paths
            # Sum loads and elasticities bottom up, and add them to the links.
            for j in range(num_nodes):
                i = num_nodes - 1 - j
                link = scan.link[first + i]
                parent = scan.parent[first + i]
                node_flow = load(flow, i + 1, pair)
                store(block_sums, link, load(block_sums, link, pair) + node_flow)
                store(flow, parent, load(flow, parent, pair) + node_flow)


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
    """Response of demands to successive link weights.

    Args:
        paths: paths of the demands.
        demand: (B, D) Gbit/s, on the CPU.
        value: (D,) values u, in the unit of the weights.

    Attributes:
        demands: demands and values, as kernel arguments.
        scan: packed paths.
        sums: (blocks, B, 2 E) memory for the loads and elasticities of :meth:`at`.
        no_splits: (B, 0, 0) placeholder where no splits are requested.
        operations: approximate number of scalar operations of a pass.
    """

    def __init__(self, paths: PathSet, demand: Tensor, value: Tensor) -> None:
        packed = paths.packed
        block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
        # One entry a path, one a demand.
        shares_before_source = packed.scan.path_ptr + packed.scan.demand_ptr
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
        """Compute loads and elasticities: (blocks, B, 2 E), to be summed over the blocks; the next
        call overwrites them.

        Entries 2 e and 2 e + 1 of the last axis are load and elasticity of link e, in Gbit/s and
        Gbit/s per unit of weight.

        Args:
            weight: (B, E) link weights a, float32, :data:`FAILED_WEIGHT` on a failed link.
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
