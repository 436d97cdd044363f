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

import numpy as np
import torch
from torch import Tensor

from teal.network import PathSet
from teal.parallel import inlined_kernel, parallel_kernel, prange, threads_for

DEAD = 1e30  # weight of a link that carries nothing
_BLOCKS, _WORK = 16, 20_000  # of sources, at most; trie nodes and paths of each, at least


@inlined_kernel
def _exponentials(arguments, bits, count):
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
    sums, splits,
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
                    value[i + 1] = value[above[first + i]] + weight[b, link[first + i]]
                place, path = 0, path_ptr[s]  # a demand takes a place for rejecting and one a path
                for d in range(demand_ptr[s], demand_ptr[s + 1]):
                    top, n = np.float32(0), count[d]
                    for k in range(n):
                        x = sharpness * (worth[d] - value[end[path + k]])
                        share[place + 1 + k] = x
                        top = max(top, x)
                    share[place] = -top
                    for k in range(n):
                        share[place + 1 + k] -= top
                    place += n + 1
                    path += n
                _exponentials(share, bits, place)
                flow[: 2 * (nodes + 1)] = 0
                place, path = 0, path_ptr[s]
                for d in range(demand_ptr[s], demand_ptr[s + 1]):
                    rate, n = demand[b, d], count[d]
                    total = share[place]
                    for k in range(n):
                        total += share[place + 1 + k]
                    scale = np.float32(1) / total
                    for k in range(n):
                        part = share[place + 1 + k] * scale
                        node = 2 * end[path + k]
                        flow[node] = rate * part
                        flow[node + 1] = rate * part * (np.float32(1) - part) * sharpness
                        if storing:
                            splits[b, d, k] = part
                    place += n + 1
                    path += n
                for j in range(nodes):
                    i = nodes - 1 - j
                    e, to = link[first + i], 2 * above[first + i]
                    passing, falling = flow[2 * (i + 1)], flow[2 * (i + 1) + 1]
                    sums[block, b, e, 0] += passing
                    sums[block, b, e, 1] += falling
                    flow[to] += passing
                    flow[to + 1] += falling


def respond(
    paths: PathSet, weight: Tensor, demand: Tensor, worth: Tensor, sharpness: float, *, want_splits: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(B, E) loads, (B, E) elasticities, and (B, D, K) splits if they are wanted; float32 on the CPU.

    Args:
        weight: (B, E) a, :data:`DEAD` on a failed link.
        demand: (B, D); worth: (D,); sharpness: q.
    """
    packed, batch = paths.packed, len(weight)
    blocks = packed.blocks(_WORK, _BLOCKS)
    most = int(np.diff(packed.path_ptr + packed.demand_ptr).max(initial=0))  # places that a source needs
    sums = np.zeros((len(blocks) - 1, batch, packed.num_links, 2))
    splits = torch.zeros(batch, *(paths.leaf.shape if want_splits else (0, 0)))
    a, rate, v = (t.detach().to(torch.float32).contiguous().numpy() for t in (weight, demand, worth))
    with threads_for(4 * batch * (len(packed.above) + packed.num_paths)):
        _respond(a, rate, v, np.float32(sharpness), *packed.arrays, blocks, packed.widest, most, sums, splits.numpy())
    found = torch.from_numpy(sums.sum(0)).to(torch.float32)
    return found[..., 0], found[..., 1], splits if want_splits else None
