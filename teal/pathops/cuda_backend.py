"""The GPU backend: a block per source, its trie in shared memory where it fits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import teal.cuda as cuda
import teal.memory as memory
from teal.network import PathSet
from teal.pathops import cuda_kernels as kernels

_SCRATCH_BYTES = 256 << 20  # at most, where a source does not fit into shared memory
_SHARED, _GLOBAL = (0,), (0, 0)  # told apart by the compiler


class CudaBackend:
    """Scans compiled by numba-cuda; tensors of float32 or float64 on a GPU.

    Results repeat bit by bit: no sum depends on which block came first.

    Raises:
        InputError: where CUDA kernels cannot run, or the paths do not fit.
    """

    name = "cuda"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        cuda.require()
        self.device = device
        trie = paths.levels
        remedy = "fewer paths a demand (--num-paths) or only the pairs that carry traffic take less"
        memory.require("paths", trie.num_bytes, remedy, device)
        self._shape, self._num_links = paths.leaf.shape, paths.num_links
        self.num_nodes, self.widest, self.sources = paths.trie.num_nodes, trie.widest, len(trie.node_ptr) - 1
        starts = torch.cat([torch.from_numpy(p) for p in (trie.node_ptr, trie.demand_ptr, trie.level_ptr)])
        held = {name: cuda.upload(getattr(trie, name), device) for name in _TRIE}
        self._held = {**held, "starts": starts.to(device)}  # tensors own the memory that the arrays below look at
        self.arrays = {name: cuda.array(t, unsigned=name in _TRIE[:5]) for name, t in self._held.items()}
        self._index_bytes = trie.above.itemsize
        self.rows = _threads_per_link(paths.trie.num_nodes, paths.num_links)
        self.spare: dict[Any, list[Any]] = {}  # solvers' buffers and graphs by shape, from one solve to the next

    def room(self, dtype: torch.dtype, lanes: int, arrays: int = 1) -> tuple[tuple[int, ...], int, int, Any, int]:
        """Where a block keeps its nodes.

        Args:
            lanes: values a node and array, at most.

        Returns:
            (mode, lanes, bytes of shared memory, scratch, most blocks): ``lanes`` is what fits.
        """
        size, lanes = dtype.itemsize, min(lanes, cuda.THREADS)
        fitting = ((cuda.SHARED_BYTES - cuda.RESERVED_BYTES) // self.widest - self._index_bytes) // (arrays * size)
        if fitting >= 1:
            lanes = min(lanes, fitting)
            shared = self.widest * (arrays * lanes * size + self._index_bytes)
            return _SHARED, lanes, shared, self._empty(dtype, 1), cuda.MOST_BLOCKS
        blocks = cuda.resident_blocks(self.device)
        each = blocks * self.widest * arrays
        lanes = max(1, min(lanes, _SCRATCH_BYTES // (each * size)))
        return _GLOBAL, lanes, 0, self._empty(dtype, each * lanes), blocks

    def _empty(self, dtype: torch.dtype, numbers: int) -> Any:
        """Memory for so many values, given back to torch when nobody holds the array any more."""
        return cuda.array(torch.empty(numbers, dtype=dtype, device=self.device))

    def path_sum(self, link_values: Tensor) -> Tensor:
        """(B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        out = link_values.new_empty(batch, *self._shape, features)
        if not out.numel():
            return out
        if not self.num_nodes:
            return out.zero_()
        mode, lanes, shared, scratch, most = self.room(link_values.dtype, features)
        a, blocks = self.arrays, min(self.sources * batch * -(-features // lanes), most)
        cuda.launch(
            kernels.path_sum, self.device, blocks, shared, cuda.array(link_values), cuda.array(out), scratch,
            a["link"], a["above"], a["end"], a["starts"], a["level_end"], self.widest, self._num_links,
            self._shape[1], features, lanes, mode,
        )  # fmt: skip
        return out

    def link_sum(self, path_values: Tensor) -> Tensor:
        """(B, D, K, F) -> (B, E, F)."""
        batch, features = path_values.shape[0], path_values.shape[-1]
        if not path_values.numel() or not self.num_nodes:
            return path_values.new_zeros(batch, self._num_links, features)
        flows = path_values.new_empty(batch, self.num_nodes, features)
        mode, lanes, shared, scratch, most = self.room(path_values.dtype, features)
        a, blocks = self.arrays, min(self.sources * batch * -(-features // lanes), most)
        cuda.launch(
            kernels.node_flows, self.device, blocks, shared, cuda.array(path_values), cuda.array(flows), scratch,
            a["below"], a["end"], a["starts"], a["level_end"], self.widest, self._shape[1], features, lanes, mode,
        )  # fmt: skip
        return self._link_totals(flows)

    def _link_totals(self, flows: Tensor) -> Tensor:
        batch, _, features = flows.shape
        out = flows.new_empty(batch, self._num_links, features)
        lanes = min(features, cuda.THREADS)
        rows = max(1, min(self.rows, cuda.THREADS // lanes))
        blocks = -(-self._num_links // (cuda.THREADS // (lanes * rows))) * batch * -(-features // lanes)
        cuda.launch(
            kernels.link_totals, self.device, blocks, 0, cuda.array(flows), cuda.array(out), self.arrays["link_ptr"],
            self.arrays["link_node"], features, lanes, rows,
        )  # fmt: skip
        return out

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) -> values (B, D, K) and links (B, D, K)."""
        out = link_values.new_empty(len(link_values), *self._shape)
        where = torch.empty(out.shape, dtype=torch.int64, device=out.device)
        if not out.numel() or not self.num_nodes:
            return out.zero_(), where.fill_(-1)
        mode, _, shared, scratch, most = self.room(link_values.dtype, 1, arrays=2)
        a, blocks = self.arrays, min(self.sources * len(link_values), most)
        cuda.launch(
            kernels.path_max, self.device, blocks, shared, cuda.array(link_values), cuda.array(out),
            cuda.array(where), scratch, a["link"], a["above"], a["end"], a["starts"], a["level_end"], self.widest,
            self._num_links, self._shape[1], mode,
        )  # fmt: skip
        return out, where


_TRIE = ("above", "link", "below", "ends", "end", "count", "level_end", "link_ptr", "link_node")


def _threads_per_link(nodes: int, links: int) -> int:
    """A power of 2: each adds about 8 of the nodes of a mean link, and a warp is not divided among links."""
    rows = min(32, cuda.THREADS // 2)
    while rows < cuda.THREADS and rows * 8 * links < nodes:
        rows *= 2
    return rows
