"""The CPU backend: one scan over each source's trie, parallel over sources.

A source's trie stays in cache while the batch passes over it.  link_sum adds into one load vector per
block of sources and then over the blocks in order, so its result does not depend on the number of threads.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.network import PathSet
from teal.parallel import parallel_kernel, prange, threads_for

_BLOCKS = 16


@parallel_kernel
def _path_sum(link_values, above, link, end, count, node_ptr, demand_ptr, path_ptr, out):
    batch, _, features = link_values.shape
    for s in prange(len(node_ptr) - 1):
        first, last = node_ptr[s], node_ptr[s + 1]
        sums = np.empty((last - first + 1, features), dtype=link_values.dtype)
        sums[0] = 0
        for b in range(batch):
            for i in range(last - first):
                top, e = above[first + i], link[first + i]
                for f in range(features):
                    sums[i + 1, f] = sums[top, f] + link_values[b, e, f]
            path = path_ptr[s]
            for d in range(demand_ptr[s], demand_ptr[s + 1]):
                for k in range(count[d]):
                    node = end[path + k]
                    for f in range(features):
                        out[b, d, k, f] = sums[node, f]
                for k in range(count[d], out.shape[2]):
                    out[b, d, k] = 0
                path += count[d]


@parallel_kernel
def _link_sum(path_values, above, link, end, count, node_ptr, demand_ptr, path_ptr, block_ptr, partial):
    batch, features = path_values.shape[0], path_values.shape[3]
    for block in prange(len(block_ptr) - 1):
        for s in range(block_ptr[block], block_ptr[block + 1]):
            first, last = node_ptr[s], node_ptr[s + 1]
            flow = np.empty((last - first + 1, features), dtype=path_values.dtype)
            for b in range(batch):
                flow[:] = 0
                path = path_ptr[s]
                for d in range(demand_ptr[s], demand_ptr[s + 1]):
                    for k in range(count[d]):
                        node = end[path + k]
                        for f in range(features):
                            flow[node, f] = path_values[b, d, k, f]  # no two paths end at one node
                    path += count[d]
                for i in range(last - first - 1, -1, -1):
                    top, e = above[first + i], link[first + i]
                    for f in range(features):
                        partial[block, b, e, f] += flow[i + 1, f]
                        flow[top, f] += flow[i + 1, f]


@parallel_kernel
def _path_max(link_values, above, link, end, count, node_ptr, demand_ptr, path_ptr, out, where):
    for s in prange(len(node_ptr) - 1):
        first, last = node_ptr[s], node_ptr[s + 1]
        most = np.empty(last - first + 1, dtype=link_values.dtype)
        at = np.empty(last - first + 1, dtype=np.int32)
        most[0] = -np.inf
        for b in range(len(link_values)):
            for i in range(last - first):
                top, value = above[first + i], link_values[b, link[first + i]]
                if most[top] >= value:
                    most[i + 1], at[i + 1] = most[top], at[top]
                else:
                    most[i + 1], at[i + 1] = value, link[first + i]
            path = path_ptr[s]
            for d in range(demand_ptr[s], demand_ptr[s + 1]):
                for k in range(count[d]):
                    node = end[path + k]
                    out[b, d, k], where[b, d, k] = most[node], at[node]
                for k in range(count[d], out.shape[2]):
                    out[b, d, k], where[b, d, k] = 0, -1
                path += count[d]


class NumbaBackend:
    """Scans compiled by Numba; CPU tensors of float32 or float64."""

    name = "numba"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"the numba backend runs on the CPU, not on {device}")
        self._scan = paths.packed.arrays
        self._shape = paths.leaf.shape  # D, K
        self._num_links = paths.num_links
        self._work = paths.trie.num_nodes + paths.packed.num_paths  # steps of a scan
        self._block_ptr = paths.packed.blocks(1, _BLOCKS)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """(B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        out = link_values.new_empty(batch, *self._shape, features)
        with threads_for(self._work * batch * features):
            _path_sum(link_values.detach().numpy(), *self._scan, out.numpy())
        return out

    def link_sum(self, path_values: Tensor) -> Tensor:
        """(B, D, K, F) -> (B, E, F)."""
        batch, features = path_values.shape[0], path_values.shape[-1]
        partial = path_values.new_zeros(len(self._block_ptr) - 1, batch, self._num_links, features)
        with threads_for(self._work * batch * features):
            _link_sum(path_values.detach().numpy(), *self._scan, self._block_ptr, partial.numpy())
        return partial.sum(0)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) -> values (B, D, K) and links (B, D, K)."""
        out = link_values.new_empty(len(link_values), *self._shape)
        where = torch.empty(out.shape, dtype=torch.int64)
        with threads_for(self._work * len(link_values)):
            _path_max(link_values.detach().numpy(), *self._scan, out.numpy(), where.numpy())
        return out, where
