"""CPU backend of the path operations: one scan over each source's trie, parallel over sources.

A source's trie stays in cache while the batch is processed.  link_sum accumulates one load vector
per block of sources and then adds the blocks in order, so that its result does not depend on the
number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.network import PathSet
from teal.network.packed import PathScan, num_ranges
from teal.runtime.arrays import AnyArray, Int64Array
from teal.runtime.parallel import partitioned_kernel, threads_for

# Maximum number of blocks of sources; each has a separate load vector.
_MAX_BLOCKS = 16


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _path_sum(begin: int, end: int, link_values: AnyArray, scan: PathScan, out: AnyArray) -> None:
    """Sum link values along the paths of the sources ``begin`` to ``end - 1``.

    Args:
        begin, end: range of sources.
        link_values: (B, E, F) values of the links.
        scan: candidate paths, as one trie per source: sums[node] = sums[parent] + value of link.
            Nodes are numbered from 1 within a source, 0 is the source.
        out: (B, D, K, F) (written); 0 where a demand has no k-th path.
    """
    batch, _, features = link_values.shape
    for s in range(begin, end):
        first_node = scan.node_ptr[s]
        stop = scan.node_ptr[s + 1]
        # (nodes of the source + 1, F) sums along the path to each node; row 0 is the source.
        sums = np.empty((stop - first_node + 1, features), dtype=link_values.dtype)
        sums[0] = 0
        for b in range(batch):
            # Sums from the source to each node, then those of the paths from their end nodes.
            for i in range(stop - first_node):
                parent = scan.parent[first_node + i]
                link = scan.link[first_node + i]
                for f in range(features):
                    sums[i + 1, f] = sums[parent, f] + link_values[b, link, f]
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                for k in range(scan.path_count[d]):
                    node = scan.end_node[path + k]
                    for f in range(features):
                        out[b, d, k, f] = sums[node, f]
                for k in range(scan.path_count[d], out.shape[2]):
                    out[b, d, k] = 0
                path += scan.path_count[d]


@partitioned_kernel("block_ptr", num_ranges)
def _link_sum(
    begin: int,
    end: int,
    path_values: AnyArray,
    scan: PathScan,
    block_ptr: Int64Array,
    block_sums: AnyArray,
) -> None:
    """Sum path values over links, for the blocks ``begin`` to ``end - 1`` of sources.

    Args:
        begin, end: range of blocks.
        path_values: (B, D, K, F) values of the paths; entries without a path are ignored.
        scan: candidate paths, as one trie per source; every node passes its flow to its parent.
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        block_sums: (blocks, B, E, F) sums of each block (increased).
    """
    batch = path_values.shape[0]
    features = path_values.shape[3]
    for block in range(begin, end):
        for s in range(block_ptr[block], block_ptr[block + 1]):
            first_node = scan.node_ptr[s]
            stop = scan.node_ptr[s + 1]
            # (nodes of the source + 1, F) flow through each node; row 0 is the source.
            flow = np.empty((stop - first_node + 1, features), dtype=path_values.dtype)
            for b in range(batch):
                # Flows of the paths at their end nodes.
                flow[:] = 0
                path = scan.path_ptr[s]
                for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                    for k in range(scan.path_count[d]):
                        node = scan.end_node[path + k]
                        # No two paths end at one node.
                        for f in range(features):
                            flow[node, f] = path_values[b, d, k, f]
                    path += scan.path_count[d]
                # Leaves first: add each node's flow to its link and to its parent.
                for i in range(stop - first_node - 1, -1, -1):
                    parent = scan.parent[first_node + i]
                    link = scan.link[first_node + i]
                    for f in range(features):
                        block_sums[block, b, link, f] += flow[i + 1, f]
                        flow[parent, f] += flow[i + 1, f]


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _path_max(
    begin: int, end: int, link_values: AnyArray, scan: PathScan, out: AnyArray, out_link: Int64Array
) -> None:
    """Compute the largest link value along the paths of the sources ``begin`` to ``end - 1``.

    Args:
        begin, end: range of sources.
        link_values: (B, E) values of the links.
        scan: candidate paths, as one trie per source.  Nodes are numbered from 1 within a source, 0
            is the source.
        out: (B, D, K) largest value (written); 0 where a demand has no k-th path.
        out_link: (B, D, K) link with that value, the one nearest the source (written); -1 where a
            demand has no k-th path.
    """
    for s in range(begin, end):
        first_node = scan.node_ptr[s]
        stop = scan.node_ptr[s + 1]
        # (nodes of the source + 1,) largest value on the path to each node, and its link.
        largest = np.empty(stop - first_node + 1, dtype=link_values.dtype)
        max_link = np.empty(stop - first_node + 1, dtype=np.int32)
        largest[0] = -np.inf
        for b in range(len(link_values)):
            # Maxima from the source to each node, then those of the paths from their end nodes.
            for i in range(stop - first_node):
                parent = scan.parent[first_node + i]
                value = link_values[b, scan.link[first_node + i]]
                if largest[parent] >= value:
                    largest[i + 1] = largest[parent]
                    max_link[i + 1] = max_link[parent]
                else:
                    largest[i + 1] = value
                    max_link[i + 1] = scan.link[first_node + i]
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                for k in range(scan.path_count[d]):
                    node = scan.end_node[path + k]
                    out[b, d, k] = largest[node]
                    out_link[b, d, k] = max_link[node]
                for k in range(scan.path_count[d], out.shape[2]):
                    out[b, d, k] = 0
                    out_link[b, d, k] = -1
                path += scan.path_count[d]


class NumbaBackend:
    """Scans compiled by Numba, over CPU tensors of float32 or float64.

    Args:
        paths: candidate paths.
        device: the CPU.

    Raises:
        ValueError: another device.
    """

    name = "numba"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        if device.type != "cpu":
            raise ValueError(f"the numba backend runs on the CPU, not on {device}")
        self._scan = paths.packed.scan
        # Number of demands, and largest number of paths of one: (D, K).
        self._shape = paths.leaf.shape
        self._num_links = paths.num_links
        # Scalar operations of a scan of one feature.
        self._operations = paths.packed.num_nodes + paths.packed.num_paths
        self._block_ptr = paths.packed.blocks(1, _MAX_BLOCKS)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum link values along each path: (B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        out = link_values.new_empty(batch, *self._shape, features)
        with threads_for(self._operations * batch * features):
            _path_sum(link_values.detach().numpy(), self._scan, out.numpy())
        return out

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sum path values over each link: (B, D, K, F) -> (B, E, F)."""
        batch = path_values.shape[0]
        features = path_values.shape[-1]
        block_sums = path_values.new_zeros(
            len(self._block_ptr) - 1, batch, self._num_links, features
        )
        with threads_for(self._operations * batch * features):
            _link_sum(path_values.detach().numpy(), self._scan, self._block_ptr, block_sums.numpy())
        return block_sums.sum(0)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest link value along each path, and its link: (B, E) -> (B, D, K) each.

        They are 0 and -1 where there is no path.
        """
        out = link_values.new_empty(len(link_values), *self._shape)
        out_link = torch.empty(out.shape, dtype=torch.int64)
        with threads_for(self._operations * len(link_values)):
            _path_max(link_values.detach().numpy(), self._scan, out.numpy(), out_link.numpy())
        return out, out_link
