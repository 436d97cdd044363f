"""Path operations (incidence products) path_sum, link_sum and path_max, on which all solvers build.

With B matrices in a batch, D demands, K path slots of each demand, E links, F features, and A the
(D K, E) incidence matrix of paths and links, for link values x (B, E, F) and path values f (B, D,
K, F), over existing paths:

- path_sum:  (A x)[b, d, k, f]  = sum of x[b, e, f] over the links e of path (d, k);
- link_sum:  (A' f)[b, e, f]    = sum of f[b, d, k, f] over the paths (d, k) through link e;
- path_max:  max x[b, e] over the links e of path (d, k), and the first link that attains it.

link_sum is the transpose of path_sum, so each is the other's gradient.  Where a demand has no k-th
path, path_sum and path_max give 0 (and link -1), and link_sum ignores the entry.  :class:`PathOps`
is the differentiable interface, :class:`OpsBackend` the interface of backends.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from teal.network import PathSet, ProblemPaths
from teal.network.path_links import PathLinks, path_links_of
from teal.runtime.arrays import FloatArray
from teal.runtime.shapes import Float, Int


@runtime_checkable
class OpsBackend(Protocol):
    """Interface of a backend: the three operations on plain tensors, without gradients.

    Attributes:
        name: name of the backend, as a user chooses it.
    """

    name: str

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum link values along each path: (B, E, F) -> (B, D, K, F)."""
        ...

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sum path values over each link: (B, D, K, F) -> (B, E, F)."""
        ...

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest link value along each path, and its link: (B, E) -> (B, D, K) each.

        They are 0 and -1 where there is no path.  Links are int64; of links with equal values, the
        one nearest the source is returned.
        """
        ...


class _PathSum(torch.autograd.Function):
    """Differentiable path_sum, (B, E, F) -> (B, D, K, F); its gradient is link_sum."""

    @staticmethod
    def forward(ctx: Any, link_values: Tensor, backend: OpsBackend) -> Tensor:
        ctx.backend = backend
        return backend.path_sum(link_values.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _LinkSum.apply(grads[0], ctx.backend)), None


class _LinkSum(torch.autograd.Function):
    """Differentiable link_sum, (B, D, K, F) -> (B, E, F); its gradient is path_sum."""

    @staticmethod
    def forward(ctx: Any, path_values: Tensor, backend: OpsBackend) -> Tensor:
        ctx.backend = backend
        return backend.link_sum(path_values.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _PathSum.apply(grads[0], ctx.backend)), None


class _PathMax(torch.autograd.Function):
    """Differentiable path_max, (B, E) -> (B, D, K); the gradient goes to the largest link alone."""

    @staticmethod
    def forward(ctx: Any, link_values: Tensor, backend: OpsBackend) -> tuple[Tensor, Tensor]:
        values, links = backend.path_max(link_values.contiguous())
        ctx.save_for_backward(links)
        ctx.num_links = link_values.shape[1]
        ctx.mark_non_differentiable(links)
        return values, links

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (links,) = ctx.saved_tensors
        # An extra last column collects the entries of missing paths.
        grad = grads[0].new_zeros(len(links), ctx.num_links + 1)
        index = torch.where(links < 0, ctx.num_links, links).flatten(1)
        return grad.scatter_add_(1, index, grads[0].flatten(1))[:, :-1], None


class PathOps:
    """Differentiable path operations over one path set, on one device.

    Values have the batch axis first; path_sum and link_sum accept a feature axis last.

    Args:
        paths: candidate paths.
        backend: implementation for ``device``.
        device: device of all tensors.

    Attributes:
        counts_once: whether all incidence coefficients are 0 or 1.
        is_over_paths: whether the columns are the paths of ``column_paths``, and the rows its
            links.
        column_paths: ``paths``, unless a side condition transforms them.
    """

    counts_once = is_over_paths = True

    def __init__(self, paths: ProblemPaths, backend: OpsBackend, device: torch.device) -> None:
        self.paths = paths
        self.backend = backend
        self.device = device
        self.column_paths = paths
        # (D, K), true where the demand has a k-th path.
        self.mask = torch.from_numpy(paths.mask).to(device)
        # (D, K) number of links of each path, 0 where there is no path.
        self.hops = torch.from_numpy(paths.hops).to(device)

    @cached_property
    def path_count(self) -> Int[Tensor, " D"]:
        """(D,) number of paths of each demand."""
        return self.mask.sum(-1)

    @cached_property
    def paths_through(self) -> Float[Tensor, " E"]:
        """(E,) number of paths through each link; float64, so that counts are exact."""
        return self.link_sum(self.mask[None].to(torch.float64))[0]

    def path_sum(self, link_values: Float[Tensor, "B E *F"]) -> Float[Tensor, "B D K *F"]:
        """Sum link values along each path: (B, E) -> (B, D, K), or (B, E, F) -> (B, D, K, F).

        The sum is 0 where there is no path.
        """
        if link_values.dim() == 2:
            return cast(Tensor, _PathSum.apply(link_values.unsqueeze(-1), self.backend)).squeeze(-1)
        return cast(Tensor, _PathSum.apply(link_values, self.backend))

    def link_sum(self, path_values: Float[Tensor, "B D K *F"]) -> Float[Tensor, "B E *F"]:
        """Sum path values over the paths through each link: (B, D, K) -> (B, E).

        With features: (B, D, K, F) -> (B, E, F).  Slots without a path are ignored.
        """
        if path_values.dim() == 3:
            return cast(Tensor, _LinkSum.apply(path_values.unsqueeze(-1), self.backend)).squeeze(-1)
        return cast(Tensor, _LinkSum.apply(path_values, self.backend))

    def path_max(
        self, link_values: Float[Tensor, "B E"]
    ) -> tuple[Float[Tensor, "B D K"], Int[Tensor, "B D K"]]:
        """Compute the largest link value along each path, and its link: (B, E) -> (B, D, K) each.

        They are 0 and -1 where there is no path.  Links are int64; of links with equal values, the
        one nearest the source is returned, which alone receives the gradient.
        """
        return cast(tuple[Tensor, Tensor], _PathMax.apply(link_values, self.backend))

    def of_paths(self, path_values: Float[Tensor, "D P"]) -> Float[Tensor, "D K"]:
        """Convert path values (D, P) to column values (D, K); here each column is a path."""
        return path_values

    def incidence(self, num_rows: int) -> sp.csr_array:
        """Return the (E, D K) incidence matrix: load on each row of a Gbit/s on each column.

        Args:
            num_rows: E.
        """
        path, link = self.column_paths.incidences()
        return sp.csr_array((np.ones(len(path)), (link, path)), shape=(num_rows, self.mask.numel()))


class TorchBackend:
    """Path operations in torch, which process all trie nodes of one depth at once.

    T trie nodes of all sources; a node stands for the path from its source to it.

    Args:
        paths: candidate paths.
        device: device of all tensors.
    """

    name = "torch"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        trie = paths.trie
        self._num_nodes = trie.num_nodes
        self._num_links = paths.num_links
        # (D, K) trie node where each path ends, -1 without a path.
        self._leaf = torch.from_numpy(paths.leaf.astype("int64")).to(device)
        self._mask = self._leaf >= 0
        # (P,) position of each path in (D, K), and its end node.
        # Indices instead of the mask, since a GPU would wait for the host at a boolean index.
        self._slot = self._mask.flatten().nonzero()[:, 0]
        self._end_node = self._leaf.flatten()[self._slot]
        # Nodes of each depth, with the links into them and their parents.
        self._levels = []
        for nodes in trie.levels:
            node = nodes.astype("int64")
            link = trie.link[nodes].astype("int64")
            parent = trie.parent[nodes]
            self._levels.append(
                tuple(
                    torch.from_numpy(array).to(device)
                    for array in (node, link, parent.astype("int64"))
                )
            )

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum link values along each path: (B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        # (B, T, F) sums from the source to each node.
        sums = link_values.new_zeros(batch, self._num_nodes, features)
        for depth, (node, link, parent) in enumerate(self._levels):
            value = link_values[:, link]
            sums[:, node] = value if depth == 0 else value + sums[:, parent]
        return self._at_leaves(sums)

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sum path values over each link: (B, D, K, F) -> (B, E, F)."""
        batch = path_values.shape[0]
        features = path_values.shape[-1]
        # (B, T, F) flow through each node: at first that of the paths that end there.
        flow = path_values.new_zeros(batch, self._num_nodes, features)
        flow.index_add_(1, self._end_node, path_values.flatten(1, 2)[:, self._slot])
        link_totals = path_values.new_zeros(batch, self._num_links, features)
        # Deepest nodes first: add each node's flow to its link and to its parent.
        for depth in reversed(range(len(self._levels))):
            node, link, parent = self._levels[depth]
            link_totals.index_add_(1, link, flow[:, node])
            if depth:
                flow.index_add_(1, parent, flow[:, node])
        return link_totals

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest link value along each path, and its link: (B, E) -> (B, D, K) each.

        They are 0 and -1 where there is no path.
        """
        # (B, T) largest value from the source to each node, and its link.
        largest_value = link_values.new_zeros(len(link_values), self._num_nodes)
        node_link = torch.full(
            largest_value.shape, -1, dtype=torch.int64, device=largest_value.device
        )
        for depth, (node, link, parent) in enumerate(self._levels):
            value = link_values[:, link]
            link_of_value = link.expand(len(link_values), -1)
            if depth:
                is_parent_larger = largest_value[:, parent] >= value
                value = torch.where(is_parent_larger, largest_value[:, parent], value)
                link_of_value = torch.where(is_parent_larger, node_link[:, parent], link_of_value)
            largest_value[:, node] = value
            node_link[:, node] = link_of_value
        links = torch.where(self._mask, self._gather_leaves(node_link), -1)
        return self._at_leaves(largest_value.unsqueeze(-1)).squeeze(-1), links

    def _gather_leaves(self, node_values: Tensor) -> Tensor:
        """Gather node values (B, T, ...) at the end nodes of the paths: (B, D, K, ...)."""
        if not self._num_nodes:
            return node_values.new_zeros(
                len(node_values), *self._leaf.shape, *node_values.shape[2:]
            )
        return node_values[:, self._leaf.clamp(min=0)]

    def _at_leaves(self, node_values: Tensor) -> Tensor:
        """Select the end node of each path: (B, T, F) -> (B, D, K, F); 0 where there is no path."""
        return torch.where(self._mask[..., None], self._gather_leaves(node_values), 0)


ColumnLinks = tuple[PathLinks, FloatArray]

# Incidences of the columns of path operations that side conditions transform.
_cache: weakref.WeakKeyDictionary[PathOps, ColumnLinks] = weakref.WeakKeyDictionary()


def columns_of_ops(ops: PathOps, num_rows: int) -> ColumnLinks:
    """Return the incidences of all columns in CSR form: rows of each column, and coefficients.

    The coefficients are (0,) where all are 1.

    Args:
        ops: path operations, possibly transformed by side conditions.
        num_rows: number of rows: the links, and the rows that side conditions add.
    """
    if ops.is_over_paths and isinstance(ops.column_paths, PathSet):
        return path_links_of(ops.column_paths), np.zeros(0)
    column_links = _cache.get(ops)
    if column_links is None:
        column_links = _cache[ops] = _column_links(ops, num_rows)
    return column_links


def _column_links(ops: PathOps, num_rows: int) -> ColumnLinks:
    """Return the rows of each column in CSR form, and the coefficients, (incidences,) float64.

    Args:
        ops: path operations, transformed by side conditions.
        num_rows: number of rows.
    """
    # Existing columns (``slot``), and their entries in column order, without stored zeros.
    mask = ops.mask.cpu().numpy()
    slot = np.flatnonzero(mask.reshape(-1)).astype(np.int64)
    rows = sp.csc_array(ops.incidence(num_rows))[:, slot]
    rows.eliminate_zeros()
    rows.sort_indices()
    # First column of each demand.
    path_ptr = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64)
    links = PathLinks(
        path_ptr, slot, rows.indptr.astype(np.int64), np.ascontiguousarray(rows.indices, np.int32)
    )
    return links, np.ascontiguousarray(rows.data, np.float64)
