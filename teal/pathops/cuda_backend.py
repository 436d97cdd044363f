"""CUDA backend of the path operations: one block per source, its trie in shared memory if it fits.

:class:`CudaBackend` launches the kernels of :mod:`teal.pathops.cuda_kernels`.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import teal.runtime.cuda as cuda
import teal.runtime.memory as memory
from teal.network import PathSet
from teal.pathops import cuda_kernels as kernels
from teal.runtime.arrays import FloatArray
from teal.runtime.lru_cache import LruCache

# Bytes of global memory for nodes of sources that do not fit into shared memory.
_MAX_SCRATCH_BYTES = 256 << 20
# Maximum number of shapes of programs for which recordings over one path set are kept.
_MAX_SHAPES = 8
# Maximum number of entries of a row that one block reduces at a time.
_CHUNK = 64 * cuda.THREADS
# Approximate number of trie nodes that a thread adds up for a link of average degree.
_NODES_PER_THREAD = 8
_REMEDY = "fewer paths a demand (--num-paths) or only the pairs that carry traffic take less"


class BlockLayout(NamedTuple):
    """Memory layout of the blocks of a launch, and the maximum number of blocks.

    Attributes:
        memory: node memory, an argument of the kernels.
        lanes: number of values per node.
        shared_bytes: dynamic shared memory of a block.
        max_blocks: maximum number of blocks of a launch.
    """

    memory: kernels.NodeMemory
    lanes: int
    shared_bytes: int
    max_blocks: int


class CudaBackend:
    """Scans compiled by numba-cuda, over float32 or float64 tensors on a GPU.

    Results are bitwise reproducible: no sum depends on the order in which blocks run.

    Args:
        paths: candidate paths.
        device: the GPU.

    Attributes:
        device: device of all tensors.
        num_nodes: T, number of trie nodes of all sources.
        sources: number of sources.
        trie: arrays of the trie on the GPU.
        link_ptr, link_node: trie nodes into which each link leads, in CSR form, (E + 1,) and (T,).
        threads_per_link: number of threads that sum the nodes of one link.
        spare_buffers: recordings of the PDHG engine, by shape of the program, for the next solve.

    Raises:
        InputError: CUDA kernels cannot run here, or the paths exceed the GPU's memory.
    """

    name = "cuda"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        cuda.require()
        self.device = device
        trie = paths.levels
        memory.require("paths", trie.num_bytes, _REMEDY, device)
        self._shape = paths.leaf.shape
        self._num_links = paths.num_links
        self.num_nodes = paths.trie.num_nodes
        self._max_trie_nodes = trie.max_trie_nodes
        self.sources = len(trie.node_ptr) - 1
        # Upload the trie and the nodes of each link.
        names = (*kernels.TrieArrays._fields, "link_ptr", "link_node")
        # The tensors own the memory of the kernels' arrays, which are views.
        self._tensors = {name: cuda.upload(getattr(trie, name), device) for name in names}
        arrays = {
            name: cuda.array(t, unsigned=name in _UNSIGNED) for name, t in self._tensors.items()
        }
        self.link_ptr = arrays.pop("link_ptr")
        self.link_node = arrays.pop("link_node")
        self.trie = kernels.TrieArrays(**arrays)
        self._index_bytes = trie.parent.itemsize
        self.threads_per_link = _threads_per_link(paths.trie.num_nodes, paths.num_links)
        self.spare_buffers = LruCache[Any, Any](_MAX_SHAPES)

    def without_spare_buffers(self) -> CudaBackend:
        """Return a copy with the same path arrays and no recorded PDHG buffers."""
        copied = copy.copy(self)
        copied.spare_buffers = LruCache[Any, Any](_MAX_SHAPES)
        return copied

    def layout(self, dtype: torch.dtype, lanes: int, arrays: int = 1) -> BlockLayout:
        """Return the memory layout of blocks: node values in shared memory if they fit, else in
        global memory.

        Args:
            dtype: type of the values.
            lanes: maximum number of values per node and array.
            arrays: number of arrays of node values.
        """
        item_bytes = dtype.itemsize
        lanes = min(lanes, cuda.THREADS)
        usable_bytes = cuda.SHARED_BYTES - cuda.RESERVED_BYTES
        # Largest number of values per node with which every source fits into shared memory.
        max_lanes = (usable_bytes // self._max_trie_nodes - self._index_bytes) // (
            arrays * item_bytes
        )
        # Shared memory, if the nodes of every source fit.
        if max_lanes >= 1:
            lanes = min(lanes, max_lanes)
            shared_bytes = self._max_trie_nodes * (arrays * lanes * item_bytes + self._index_bytes)
            node_memory = kernels.NodeMemory(
                kernels.IN_SHARED_MEMORY, self._scratch(dtype, 1), self._max_trie_nodes
            )
            return BlockLayout(node_memory, lanes, shared_bytes, cuda.MAX_BLOCKS)
        # Global memory for the blocks that the GPU holds at once.
        num_blocks = cuda.resident_blocks(self.device)
        num_entries = num_blocks * self._max_trie_nodes * arrays
        lanes = max(1, min(lanes, _MAX_SCRATCH_BYTES // (num_entries * item_bytes)))
        scratch = self._scratch(dtype, num_entries * lanes)
        return BlockLayout(
            kernels.NodeMemory(kernels.IN_GLOBAL_MEMORY, scratch, self._max_trie_nodes),
            lanes,
            0,
            num_blocks,
        )

    def _scratch(self, dtype: torch.dtype, entries: int) -> Any:
        """Allocate uninitialised memory, which torch frees with the last reference to the array."""
        return cuda.array(torch.empty(entries, dtype=dtype, device=self.device))

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum link values along each path: (B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        out = link_values.new_empty(batch, *self._shape, features)
        if not out.numel():
            return out
        if not self.num_nodes:
            return out.zero_()
        layout = self.layout(link_values.dtype, features)
        blocks = min(self.sources * batch * -(-features // layout.lanes), layout.max_blocks)
        cuda.launch(
            kernels.path_sum,
            self.device,
            blocks,
            layout.shared_bytes,
            cuda.array(link_values),
            cuda.array(out),
            self.trie,
            layout.memory,
            self._num_links,
            self._shape[1],
            features,
            layout.lanes,
        )
        return out

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sum path values over each link: (B, D, K, F) -> (B, E, F)."""
        batch = path_values.shape[0]
        features = path_values.shape[-1]
        if not path_values.numel() or not self.num_nodes:
            return path_values.new_zeros(batch, self._num_links, features)
        # Sums through each node of the tries of paths; then sums of the nodes of each link.
        flows = path_values.new_empty(batch, self.num_nodes, features)
        layout = self.layout(path_values.dtype, features)
        blocks = min(self.sources * batch * -(-features // layout.lanes), layout.max_blocks)
        cuda.launch(
            kernels.node_flows,
            self.device,
            blocks,
            layout.shared_bytes,
            cuda.array(path_values),
            cuda.array(flows),
            self.trie,
            layout.memory,
            self._shape[1],
            features,
            layout.lanes,
        )
        return self._link_totals(flows)

    def _link_totals(self, flows: Tensor) -> Tensor:
        """Sum node flows over the trie nodes of each link: (B, T, F) -> (B, E, F)."""
        batch, _, features = flows.shape
        out = flows.new_empty(batch, self._num_links, features)
        lanes = min(features, cuda.THREADS)
        rows = max(1, min(self.threads_per_link, cuda.THREADS // lanes))
        # A block sums as many links as it has teams of ``lanes * rows`` threads, for one chunk of
        # features of one matrix.
        blocks = (
            -(-self._num_links // (cuda.THREADS // (lanes * rows))) * batch * -(-features // lanes)
        )
        cuda.launch(
            kernels.link_totals,
            self.device,
            blocks,
            0,
            cuda.array(flows),
            cuda.array(out),
            self.link_ptr,
            self.link_node,
            features,
            lanes,
            rows,
        )
        return out

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest link value along each path, and its link: (B, E) -> (B, D, K) each.

        They are 0 and -1 where there is no path.
        """
        out = link_values.new_empty(len(link_values), *self._shape)
        out_link = torch.empty(out.shape, dtype=torch.int64, device=out.device)
        if not out.numel() or not self.num_nodes:
            return out.zero_(), out_link.fill_(-1)
        layout = self.layout(link_values.dtype, 1, arrays=2)
        blocks = min(self.sources * len(link_values), layout.max_blocks)
        cuda.launch(
            kernels.path_max,
            self.device,
            blocks,
            layout.shared_bytes,
            cuda.array(link_values),
            cuda.array(out),
            cuda.array(out_link),
            self.trie,
            layout.memory,
            self._num_links,
            self._shape[1],
        )
        return out, out_link

    def extremes(self, *tensors: Tensor) -> list[FloatArray]:
        """Return minimum, maximum, sum and minimum positive value of each row of four tensors.

        They take one kernel and one transfer to the host.

        Args:
            tensors: four tensors (B, n) on the GPU; n may differ.

        Returns:
            (B, 4) for each tensor; the minimum positive value is infinite for none.
        """
        # Index of the first chunk of each tensor.
        first_chunk = [0]
        for tensor in tensors:
            first_chunk.append(first_chunk[-1] + len(tensor) * -(-tensor.shape[1] // _CHUNK))
        # Results of each chunk; the kernel needs no dynamic shared memory (0 bytes).
        partials = torch.empty(4 * first_chunk[-1], dtype=torch.float64, device=self.device)
        cuda.launch(
            kernels.extremes,
            self.device,
            min(first_chunk[-1], cuda.MAX_BLOCKS),
            0,
            *(cuda.array(tensor.contiguous()) for tensor in tensors),
            tuple(first_chunk),
            tuple(tensor.shape[1] for tensor in tensors),
            _CHUNK,
            cuda.array(partials),
        )
        # Reduce the chunks of each row.
        chunks = np.asarray(partials.cpu()).reshape(-1, 4)
        extremes = []
        for tensor, first, last in zip(tensors, first_chunk, first_chunk[1:], strict=False):
            chunks_of_rows = chunks[first:last].reshape(len(tensor), -1, 4)
            row_extremes = (
                chunks_of_rows[..., 0].min(1),
                chunks_of_rows[..., 1].max(1),
                chunks_of_rows[..., 2].sum(1),
                chunks_of_rows[..., 3].min(1),
            )
            extremes.append(np.stack(row_extremes, 1))
        return extremes


# Arrays of the trie whose kernels read them as unsigned integers.
_UNSIGNED = ("parent", "link", "child_end", "is_path_end", "end_node")


def _threads_per_link(num_nodes: int, num_links: int) -> int:
    """Return the number of threads that sum the nodes of one link, a power of 2.

    At least 32 where a block has as many, so that the threads of a warp do not work for several
    links.
    """
    threads = min(32, cuda.THREADS // 2)
    while threads < cuda.THREADS and threads * _NODES_PER_THREAD * num_links < num_nodes:
        threads *= 2
    return threads
