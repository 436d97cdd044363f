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
        arguments: x (overwritten by the results).
        bits: int32 scratch memory of at least ``count`` entries, for the bit patterns of 2^n.
        count: number of entries.
    """
    # Bit patterns of the float32 2^n: exponent n + 127, mantissa 0.
    powers = bits.view(np.float32)
    for i in range(count):
        exponent = math.floor(max(arguments[i], np.float32(-80)) * np.float32(1.44269504))
        bits[i] = (np.int32(exponent) + np.int32(127)) << np.int32(23)
    # Polynomial p(f), by Horner's scheme, times 2^n.
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


class DemandArrays(NamedTuple):
    """Demands of B matrices and sizes of scratch buffers, as kernel arguments.

    Attributes:
        demand: (B, D) Gbit/s.
        value: (D,) value of each demand, in the unit of the link weights.
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: maximum number of trie nodes of a source, including the source itself.
        max_shares: maximum number of demands plus paths of a source.
    """

    demand: Float32Array
    value: Float32Array
    block_ptr: Int64Array
    max_trie_nodes: int
    max_shares: int


@inner_kernel
def respond_in_block(block, weight, sharpness, demands, scan, sums, splits, pair):  # type: ignore[no-untyped-def]
    """Compute splits, link loads and elasticities of one block of sources at given link weights.

    For each demand d, with u[d] its value and a(d, k) the sum of the weights along path k:

        w[d, k] = exp(q (u[d] - a(d, k))) / (1 + sum_j exp(q (u[d] - a(d, j)))),
        load[e] += sum of demand w,    elasticity[e] += sum of q demand w (1 - w),

    the sums over the paths through link e.

    Args:
        block: index of the block.
        weight: (B, E) link weights.
        sharpness: q, float32, 1/weight.
        demands: rates (B, D), values u (D,) and ranges of sources per block.
        scan: candidate paths, as one trie (prefix tree) per source.  Source s has the trie nodes
            ``node_ptr[s]:node_ptr[s + 1]``, the demands ``demand_ptr[s]:demand_ptr[s + 1]`` and the
            paths from ``path_ptr[s]``, ``path_count[d]`` per demand; path p ends at node
            ``end_node[p]`` (nodes are numbered from 1 within a source, 0 is the source).
        sums: (blocks, B, 2 E) load (Gbit/s) in entry 2 e and elasticity in entry 2 e + 1 of link e
            (row ``block`` is written).
        splits: (B, D, K) w (written), or (B, 0, 0) if not wanted.
        pair: tuple of two numbers; its length is the number of SIMD lanes (load and elasticity).
    """
    demand = demands.demand
    value = demands.value
    block_ptr = demands.block_ptr
    batch = len(weight)
    stores_splits = splits.shape[1] > 0
    # (max_trie_nodes,) weight of the path to each trie node of a source, times the sharpness.
    path_weight = np.zeros(demands.max_trie_nodes, dtype=np.float32)
    # (max_trie_nodes, 2) load and elasticity of each node.
    flow = np.empty(2 * demands.max_trie_nodes, dtype=np.float32)
    # Unnormalised shares of a source's demands, one after the other: the unserved share, then one
    # share per path.
    share = np.empty(demands.max_shares, dtype=np.float32)
    bits = np.empty(demands.max_shares, dtype=np.int32)
    sums[block] = 0
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        for b in range(batch):
            # Path weights, from the root downwards.
            for i in range(num_nodes):
                parent = scan.parent[first_node + i]
                link = scan.link[first_node + i]
                path_weight[i + 1] = path_weight[parent] + sharpness * weight[b, link]
            # Exponents of the softmax, minus the largest one: q (u - a) per path, 0 for unserved.
            offset = 0
            path = scan.path_ptr[source]
            for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
                largest_exponent = np.float32(0)
                num_paths = scan.path_count[d]
                scaled_value = sharpness * value[d]
                # Two paths, the common case: a loop of unknown length costs more than its body.
                if num_paths == 2:
                    first_term = scaled_value - path_weight[scan.end_node[path]]
                    second_term = scaled_value - path_weight[scan.end_node[path + 1]]
                    largest_exponent = max(largest_exponent, max(first_term, second_term))
                    share[offset + 1] = first_term - largest_exponent
                    share[offset + 2] = second_term - largest_exponent
                else:
                    for k in range(num_paths):
                        first_term = scaled_value - path_weight[scan.end_node[path + k]]
                        share[offset + 1 + k] = first_term
                        largest_exponent = max(largest_exponent, first_term)
                    for k in range(num_paths):
                        share[offset + 1 + k] -= largest_exponent
                share[offset] = -largest_exponent
                offset += num_paths + 1
                path += num_paths
            # Unnormalised shares: the exponentials of these exponents.
            exponentials(share, bits, offset)
            # Normalise the shares; set load and elasticity of the paths' end nodes.
            block_sums = sums[block, b]
            flow[: 2 * (num_nodes + 1)] = 0
            offset = 0
            path = scan.path_ptr[source]
            for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
                rate = demand[b, d]
                num_paths = scan.path_count[d]
                # Two paths, again without a loop: unnormalised shares, then splits.
                if num_paths == 2:
                    first_term = share[offset + 1]
                    second_term = share[offset + 2]
                    inverse_total = np.float32(1) / (share[offset] + first_term + second_term)
                    first_term = first_term * inverse_total
                    second_term = second_term * inverse_total
                    node = 2 * scan.end_node[path]
                    second_node = 2 * scan.end_node[path + 1]
                    # Flow and elasticity of both paths at their end nodes.
                    flow[node] = rate * first_term
                    flow[second_node] = rate * second_term
                    slope = sharpness * rate
                    flow[node + 1] = slope * first_term * (np.float32(1) - first_term)
                    flow[second_node + 1] = slope * second_term * (np.float32(1) - second_term)
                    if stores_splits:
                        splits[b, d, 0] = first_term
                        splits[b, d, 1] = second_term
                else:
                    # Sum of the shares, then splits, flows and elasticities of the paths.
                    total = share[offset]
                    for k in range(num_paths):
                        total += share[offset + 1 + k]
                    inverse_total = np.float32(1) / total
                    for k in range(num_paths):
                        split = share[offset + 1 + k] * inverse_total
                        node = 2 * scan.end_node[path + k]
                        flow[node] = rate * split
                        flow[node + 1] = sharpness * rate * split * (np.float32(1) - split)
                        if stores_splits:
                            splits[b, d, k] = split
                offset += num_paths + 1
                path += num_paths
            # Sum loads and elasticities from the leaves upwards, and add them to the links.
            for j in range(num_nodes):
                i = num_nodes - 1 - j
                link = scan.link[first_node + i]
                parent = scan.parent[first_node + i]
                node_flow = load(flow, i + 1, pair)
                store(block_sums, link, load(block_sums, link, pair) + node_flow)
                store(flow, parent, load(flow, parent, pair) + node_flow)


@partitioned_kernel("demands", lambda demands: len(demands.block_ptr) - 1)
def _respond(
    begin: int,
    end: int,
    weight: Float32Array,
    sharpness: np.float32,
    demands: DemandArrays,
    scan: PathScan,
    sums: Float32Array,
    splits: Float32Array,
    pair: tuple[int, int],
) -> None:
    """Compute the response of the blocks ``begin`` to ``end - 1`` of sources, one after the other.

    Args:
        begin, end: range of blocks.
        weight: (B, E) link weights.
        sharpness: q, inverse softmax temperature, 1/weight.
        demands: rates (B, D), values (D,) and ranges of sources per block.
        scan: candidate paths, as one trie per source.
        sums: (blocks, B, 2 E) load and elasticity of each link, side by side (written).
        splits: (B, D, K) splits (written), or (B, 0, 0).
        pair: tuple of two numbers; its length is the number of SIMD lanes.
    """
    for block in range(begin, end):
        respond_in_block(block, weight, sharpness, demands, scan, sums, splits, pair)


class Responses:
    """Response of demands to successive link weights.

    Args:
        paths: paths of the demands.
        demand: (B, D) Gbit/s, on the CPU.
        value: (D,) value of each demand, in the unit of the weights.

    Attributes:
        demands: demands and values, as kernel arguments.
        scan: packed paths.
        sums: (blocks, B, 2 E) loads and elasticities of the last pass, side by side.
        no_splits: (B, 0, 0) placeholder where no splits are requested.
        operations: approximate number of scalar operations of a pass.
    """

    def __init__(self, paths: PathSet, demand: Tensor, value: Tensor) -> None:
        packed = paths.packed
        block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
        # Scratch entries before each source: one per path, and one per demand.
        shares_before_source = packed.scan.path_ptr + packed.scan.demand_ptr
        max_shares = int(np.diff(shares_before_source).max(initial=0))
        self.demands = DemandArrays(
            _float32(demand), _float32(value), block_ptr, packed.max_trie_nodes, max_shares
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
        """Compute link loads and elasticities of the demands' response to link weights.

        Returns (blocks, B, 2 E) partial sums, which the caller adds up over the blocks; the next
        call overwrites them.  Entries 2 e and 2 e + 1 of the last axis are load and elasticity of
        link e, in Gbit/s and Gbit/s per unit of weight.

        Args:
            weight: (B, E) link weights a, float32, :data:`FAILED_WEIGHT` on a failed link.
            sharpness: q, the inverse softmax temperature, 1/weight.
            splits: (B, D, K) float32, 0 where there is no path (w is written to the paths); None
                if not wanted.
        """
        splits = self.no_splits if splits is None else splits
        with threads_for(self.operations):
            _respond(
                weight, np.float32(sharpness), self.demands, self.scan, self.sums, splits, (0, 0)
            )
        return self.sums


def _float32(values: Tensor) -> Float32Array:
    """Convert a tensor to a contiguous float32 array, without gradients."""
    return values.detach().to(torch.float32).contiguous().numpy()
