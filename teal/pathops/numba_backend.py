"""The CPU backend: one scan over each source's trie, parallel over sources.

A call reads 12 bytes a trie node and moves B * F values for each node and each path; a source's
trie stays in cache while the batch passes over it.  link_sum adds into one load vector per block of
sources and then over the blocks in order, so its result does not depend on the number of threads.
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
def _path_sum(link_values, parent, link, source_ptr, demand_ptr, leaf, out):
    batch, _, features = link_values.shape
    for s in prange(len(source_ptr) - 1):
        first, last = source_ptr[s], source_ptr[s + 1]
        sums = np.empty((last - first, features), dtype=link_values.dtype)
        for b in range(batch):
            for node in range(first, last):
                above = parent[node] - first
                if above < 0:
                    for f in range(features):
                        sums[node - first, f] = link_values[b, link[node], f]
                else:
                    for f in range(features):
                        sums[node - first, f] = sums[above, f] + link_values[b, link[node], f]
            for d in range(demand_ptr[s], demand_ptr[s + 1]):
                for k in range(leaf.shape[1]):
                    end = leaf[d, k]
                    for f in range(features):
                        out[b, d, k, f] = sums[end - first, f] if end >= 0 else 0


@parallel_kernel
def _link_sum(path_values, parent, link, source_ptr, demand_ptr, leaf, block_ptr, partial):
    batch, features = path_values.shape[0], path_values.shape[3]
    for block in prange(len(block_ptr) - 1):
        for s in range(block_ptr[block], block_ptr[block + 1]):
            first, last = source_ptr[s], source_ptr[s + 1]
            flow = np.empty((last - first, features), dtype=path_values.dtype)
            for b in range(batch):
                flow[:] = 0
                for d in range(demand_ptr[s], demand_ptr[s + 1]):
                    for k in range(leaf.shape[1]):
                        end = leaf[d, k]
                        if end >= 0:
                            for f in range(features):
                                flow[end - first, f] += path_values[b, d, k, f]
                for node in range(last - 1, first - 1, -1):
                    above = parent[node] - first
                    for f in range(features):
                        partial[block, b, link[node], f] += flow[node - first, f]
                    if above >= 0:
                        for f in range(features):
                            flow[above, f] += flow[node - first, f]


@parallel_kernel
def _path_max(link_values, parent, link, source_ptr, demand_ptr, leaf, out, where):
    for s in prange(len(source_ptr) - 1):
        first, last = source_ptr[s], source_ptr[s + 1]
        most = np.empty(last - first, dtype=link_values.dtype)
        at = np.empty(last - first, dtype=np.int32)
        for b in range(len(link_values)):
            for node in range(first, last):
                above, value = parent[node] - first, link_values[b, link[node]]
                if above >= 0 and most[above] >= value:
                    most[node - first], at[node - first] = most[above], at[above]
                else:
                    most[node - first], at[node - first] = value, link[node]
            for d in range(demand_ptr[s], demand_ptr[s + 1]):
                for k in range(leaf.shape[1]):
                    end = leaf[d, k]
                    if end >= 0:
                        out[b, d, k], where[b, d, k] = most[end - first], at[end - first]
                    else:
                        out[b, d, k], where[b, d, k] = 0, -1


class NumbaBackend:
    """Scans compiled by Numba; CPU tensors of float32 or float64."""

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"the numba backend runs on the CPU, not on {device}")
        trie = paths.trie
        self._scan = (trie.parent, trie.link, trie.source_ptr, paths.demand_ptr, paths.leaf)
        self._num_links = paths.num_links
        self._work = trie.num_nodes + paths.leaf.size  # steps of a scan
        sources = len(trie.source_ptr) - 1
        blocks = min(_BLOCKS, sources)
        # Blocks of about equal numbers of trie nodes.
        cuts = np.searchsorted(trie.source_ptr, np.linspace(0, trie.num_nodes, blocks + 1)[1:-1])
        self._block_ptr = np.concatenate([[0], cuts, [sources]]).astype(np.int32)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """(B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        out = link_values.new_empty(batch, *self._scan[-1].shape, features)
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
        out = link_values.new_empty(len(link_values), *self._scan[-1].shape)
        where = torch.empty(out.shape, dtype=torch.int64)
        with threads_for(self._work * len(link_values)):
            _path_max(link_values.detach().numpy(), *self._scan, out.numpy(), where.numpy())
        return out, where
