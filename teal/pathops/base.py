"""path_sum, link_sum, path_max: sums and maxima over links and paths, which all other code uses.

With B matrices in a batch, D demands, K path slots of each demand, E links, F features, and A the
(D K, E) incidence matrix of paths and links, for link values x (B, E, F) and path values f (B, D,
K, F), over the paths that exist:

- path_sum:  (A x)[b, d, k, f]  = sum of x[b, e, f] over the links e of path (d, k);
- link_sum:  (A' f)[b, e, f]    = sum of f[b, d, k, f] over the paths (d, k) through link e;
- path_max:  max x[b, e] over the links e of path (d, k), and the first link that attains it.

link_sum is the transpose of path_sum, so each is the other's gradient.  Where a demand has no k-th
path, path_sum and path_max give 0 (and link -1), and link_sum ignores the entry.
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
    """The three operations on plain tensors, without gradients; each module of this package has one
    implementation.

    Attributes:
        name: name by which a user chooses it.
    """

    name: str

    def path_sum(self, link_values: Tensor) -> Tensor:
        """(B, E, F) -> (B, D, K, F)."""
        ...

    def link_sum(self, path_values: Tensor) -> Tensor:
        """(B, D, K, F) -> (B, E, F)."""
        ...

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) -> values (B, D, K), 0 where there is no path, and links (B, D, K) int64, -1 where
        there is none.

        Of links with equal values the one nearest the source is returned.
        """
        ...


class _PathSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, link_values: Tensor, backend: OpsBackend) -> Tensor:
        ctx.backend = backend
        return backend.path_sum(link_values.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _LinkSum.apply(grads[0], ctx.backend)), None


class _LinkSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path_values: Tensor, backend: OpsBackend) -> Tensor:
        ctx.backend = backend
        return backend.link_sum(path_values.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return cast(Tensor, _PathSum.apply(grads[0], ctx.backend)), None


class _PathMax(torch.autograd.Function):
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
        # An extra last column collects the entries of paths that do not exist.
        grad = grads[0].new_zeros(len(links), ctx.num_links + 1)
        index = torch.where(links < 0, ctx.num_links, links).flatten(1)
        return grad.scatter_add_(1, index, grads[0].flatten(1))[:, :-1], None


class PathOps:
    """The operations over one path set, differentiable, on one device.

    Values have the batch axis first; path_sum and link_sum also take a feature axis last.

    Args:
        paths: candidate paths.
        backend: implementation, made for ``device``.
        device: device of all tensors.

    Attributes:
        counts_once: whether a Gbit/s on a column puts 1 Gbit/s, or nothing, on each row.
        is_over_paths: whether the columns are the paths of ``column_paths``, and the rows its
            links.
        column_paths: ``paths``, unless a side condition made others of them.
    """

    counts_once = is_over_paths = True

    def __init__(self, paths: ProblemPaths, backend: OpsBackend, device: torch.device) -> None:
        self.paths, self.backend, self.device = paths, backend, device
        self.column_paths = paths
        self.mask = torch.from_numpy(paths.mask).to(
            device
        )  # (D, K), true where the demand has a k-th path
        self.hops = torch.from_numpy(paths.hops).to(device)  # (D, K), 0 where there is no path

    @cached_property
    def path_count(self) -> Int[Tensor, " D"]:
        """(D,) number of paths of each demand."""
        return self.mask.sum(-1)

    @cached_property
    def paths_through(self) -> Float[Tensor, " E"]:
        """(E,) number of paths through each link; float64, which counts exactly."""
        return self.link_sum(self.mask[None].to(torch.float64))[0]

    def path_sum(self, link_values: Float[Tensor, "B E *F"]) -> Float[Tensor, "B D K *F"]:
        """Sum along each path: (B, E) -> (B, D, K), or (B, E, F) -> (B, D, K, F)."""
        if link_values.dim() == 2:
            return cast(Tensor, _PathSum.apply(link_values.unsqueeze(-1), self.backend)).squeeze(-1)
        return cast(Tensor, _PathSum.apply(link_values, self.backend))

    def link_sum(self, path_values: Float[Tensor, "B D K *F"]) -> Float[Tensor, "B E *F"]:
        """Sum over the paths through each link: (B, D, K) -> (B, E), or (B, D, K, F) -> (B, E,
        F).
        """
        if path_values.dim() == 3:
            return cast(Tensor, _LinkSum.apply(path_values.unsqueeze(-1), self.backend)).squeeze(-1)
        return cast(Tensor, _LinkSum.apply(path_values, self.backend))

    def path_max(
        self, link_values: Float[Tensor, "B E"]
    ) -> tuple[Float[Tensor, "B D K"], Int[Tensor, "B D K"]]:
        """Maximum along each path, and the index of the link that attains it: (B, E) -> (B, D, K)
        and (B, D, K) int64.

        Where there is no path they are 0 and -1.  Of links with equal values the one nearest the
        source is returned; it alone receives the gradient.
        """
        return cast(tuple[Tensor, Tensor], _PathMax.apply(link_values, self.backend))

    def of_paths(self, path_values: Float[Tensor, "D P"]) -> Float[Tensor, "D K"]:
        """Values (D, K) of the columns of a program from values (D, P) of paths; here each column
        is a path.
        """
        return path_values

    def incidence(self, num_rows: int) -> sp.csr_array:
        """(E, D K) what a Gbit/s of each column puts on each row.

        Args:
            num_rows: E.
        """
        path, link = self.column_paths.incidences()
        return sp.csr_array((np.ones(len(path)), (link, path)), shape=(num_rows, self.mask.numel()))


class TorchBackend:
    """All nodes of one depth are processed at once, because a node's value needs its parent's."""

    name = "torch"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        trie = paths.trie
        self._num_nodes, self._num_links = trie.num_nodes, paths.num_links
        self._leaf = torch.from_numpy(paths.leaf.astype("int64")).to(device)  # (D, K)
        self._mask = self._leaf >= 0
        # Numbers, since a GPU would wait for the host at an index by the mask.
        self._slot = self._mask.flatten().nonzero()[:, 0]
        self._end = self._leaf.flatten()[self._slot]
        self._levels = []
        for nodes in trie.levels:
            node, link, parent = (
                nodes.astype("int64"),
                trie.link[nodes].astype("int64"),
                trie.parent[nodes],
            )
            self._levels.append(
                tuple(torch.from_numpy(a).to(device) for a in (node, link, parent.astype("int64")))
            )

    def path_sum(self, link_values: Tensor) -> Tensor:
        """(B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        sums = link_values.new_zeros(batch, self._num_nodes, features)  # (B, T, F)
        for depth, (node, link, parent) in enumerate(self._levels):
            value = link_values[:, link]
            sums[:, node] = value if depth == 0 else value + sums[:, parent]
        return self._at_leaves(sums)

    def link_sum(self, path_values: Tensor) -> Tensor:
        """(B, D, K, F) -> (B, E, F)."""
        batch, features = path_values.shape[0], path_values.shape[-1]
        flow = path_values.new_zeros(batch, self._num_nodes, features)  # (B, T, F)
        flow.index_add_(1, self._end, path_values.flatten(1, 2)[:, self._slot])
        out = path_values.new_zeros(batch, self._num_links, features)
        for depth in reversed(range(len(self._levels))):
            node, link, parent = self._levels[depth]
            out.index_add_(1, link, flow[:, node])
            if depth:
                flow.index_add_(1, parent, flow[:, node])
        return out

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) -> values (B, D, K) and links (B, D, K)."""
        largest = link_values.new_zeros(len(link_values), self._num_nodes)  # (B, T)
        at_link = torch.full(largest.shape, -1, dtype=torch.int64, device=largest.device)
        for depth, (node, link, parent) in enumerate(self._levels):
            value, at = link_values[:, link], link.expand(len(link_values), -1)
            if depth:
                is_above = largest[:, parent] >= value
                value = torch.where(is_above, largest[:, parent], value)
                at = torch.where(is_above, at_link[:, parent], at)
            largest[:, node], at_link[:, node] = value, at
        links = torch.where(self._mask, self._take(at_link), -1)
        return self._at_leaves(largest.unsqueeze(-1)).squeeze(-1), links

    def _take(self, node_values: Tensor) -> Tensor:
        if not self._num_nodes:
            return node_values.new_zeros(
                len(node_values), *self._leaf.shape, *node_values.shape[2:]
            )
        return node_values[:, self._leaf.clamp(min=0)]

    def _at_leaves(self, node_values: Tensor) -> Tensor:
        """(B, T, F) -> (B, D, K, F), 0 where there is no path."""
        return torch.where(self._mask[..., None], self._take(node_values), 0)


ColumnLinks = tuple[PathLinks, FloatArray]

_KEPT: weakref.WeakKeyDictionary[PathOps, ColumnLinks] = weakref.WeakKeyDictionary()


def columns_of_ops(ops: PathOps, num_rows: int) -> ColumnLinks:
    """The rows of all columns, and what a Gbit/s of a column puts on each; these are without
    entries where it is a Gbit/s.

    Args:
        ops: over paths, or over the columns and rows that side conditions make of them.
        num_rows: number of the rows.
    """
    if ops.is_over_paths and isinstance(ops.column_paths, PathSet):
        return path_links_of(ops.column_paths), np.zeros(0)
    found = _KEPT.get(ops)
    if found is None:
        found = _KEPT[ops] = _column_links(ops, num_rows)
    return found


def _column_links(ops: PathOps, num_rows: int) -> ColumnLinks:
    mask = ops.mask.cpu().numpy()
    slot = np.flatnonzero(mask.reshape(-1)).astype(np.int64)
    rows = sp.csc_array(ops.incidence(num_rows))[:, slot]
    rows.eliminate_zeros()
    rows.sort_indices()
    path_ptr = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64)
    links = PathLinks(
        path_ptr, slot, rows.indptr.astype(np.int64), np.ascontiguousarray(rows.indices, np.int32)
    )
    return links, np.ascontiguousarray(rows.data, np.float64)
