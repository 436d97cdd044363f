"""Columns and rows beyond paths and links, as path operations, so that programs and engines take
them as they are.

A program has a column for each path and a row for each link.  A side condition makes other columns
(every path twice, bundles of paths) or adds a row (a budget); :class:`teal.pathops.PathOps` of
these have K columns a demand and E rows.

Path operations over bundles: several paths of a demand that are reserved together, in fixed
proportions.

A bundle j of demand d reserves ``weight[d, j, k]`` Gbit/s on path k for each Gbit/s that it stands
for.  To programs and engines a bundle is a path: its price is the weighted sum of its paths'
prices, its load that of all of them.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from teal.network.path_changes import with_moves
from teal.pathops.base import PathOps


class MoveOps(PathOps):
    """Every path twice, to stay on it and to move onto it; what moves is on one row more, the last
    one.

    Column 2 k is path k of ``ops`` to stay on, column 2 k + 1 the same to move onto.  It is a path
    set itself (:func:`teal.network.path_changes.with_moves`), so that engines over paths take it as
    any other.

    Args:
        ops: over the paths.
    """

    def __init__(self, ops: PathOps) -> None:
        paths = with_moves(ops.paths)
        super().__init__(paths, type(ops.backend)(paths, ops.device), ops.device)  # type: ignore[call-arg]
        self.paths = ops.paths

    @override
    def of_paths(self, path_values: Tensor) -> Tensor:
        return path_values.repeat_interleave(2, -1)


class AddedRowOps(PathOps):
    """One row more, the last one, whose load is the sum of ``coefficient`` times the flow of each
    column.

    Args:
        ops: over K columns and E - 1 rows.
        coefficient: (D, K) >= 0, of a Gbit/s of each column.
    """

    counts_once = is_over_paths = False

    def __init__(self, ops: PathOps, coefficient: Tensor) -> None:
        self.paths, self.backend, self.device, self.ops = ops.paths, ops.backend, ops.device, ops
        self.column_paths, self.mask, self.hops = ops.paths, ops.mask, ops.hops
        self.coefficient = torch.where(ops.mask, coefficient.to(ops.device), 0)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sums along columns, as in :meth:`PathOps.path_sum`; link values have no feature axis."""
        added = link_values[:, -1, None, None] * self.coefficient.to(link_values)
        return self.ops.path_sum(link_values[:, :-1].contiguous()) + added

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sums over columns, as in :meth:`PathOps.link_sum`; path values have no feature axis."""
        added = (path_values * self.coefficient.to(path_values)).sum((1, 2))
        return torch.cat([self.ops.link_sum(path_values), added[:, None]], 1)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Largest values along columns, as in :meth:`PathOps.path_max`: a column is on the row if
        its coefficient is above 0.
        """
        values, links = self.ops.path_max(link_values[:, :-1].contiguous())
        added = link_values[:, -1, None, None].expand_as(values)
        is_on = self.coefficient > 0
        is_larger = is_on & ((added > values) | (links < 0))
        return torch.where(is_larger, added, values), torch.where(
            is_larger, link_values.shape[1] - 1, links
        )

    @override
    def of_paths(self, path_values: Tensor) -> Tensor:
        return self.ops.of_paths(path_values)

    @override
    def incidence(self, num_rows: int) -> sp.csr_array:
        added = sp.csr_array(self.coefficient.cpu().numpy().astype(np.float64).reshape(1, -1))
        return sp.csr_array(sp.vstack([self.ops.incidence(num_rows - 1), added]))


class BundleOps(PathOps):
    """Operations over bundles of paths, as in :class:`teal.pathops.PathOps`; K is the number of
    bundles J here.

    Args:
        ops: over the paths.
        weight: (D, J, K), >= 0; a bundle without any weight does not exist.
    """

    counts_once = is_over_paths = False

    def __init__(self, ops: PathOps, weight: Tensor) -> None:
        self.paths = self.column_paths = ops.paths
        self.backend, self.device = ops.backend, ops.device
        self.ops, self.weight = ops, weight.to(ops.device)
        self.mask = (self.weight > 0).any(-1)
        self.hops = torch.einsum("djk,dk->dj", (self.weight > 0).to(ops.hops.dtype), ops.hops)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """The weighted sum over the paths of a bundle, as in :meth:`PathOps.path_sum`."""
        return torch.einsum(
            "djk,bdk->bdj", self.weight.to(link_values), self.ops.path_sum(link_values)
        )

    @override
    def link_sum(self, path_values: Tensor) -> Tensor:
        return self.ops.link_sum(self.on_paths(path_values))

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """The largest value over the paths of a bundle, as in :meth:`PathOps.path_max`."""
        values, links = self.ops.path_max(link_values)
        has = (self.weight > 0)[None]
        spread = torch.where(has, values[:, :, None], -torch.inf)  # (B, D, J, K)
        largest, at = spread.max(-1)
        link = links[:, :, None].expand_as(spread).gather(-1, at[..., None])[..., 0]
        return torch.where(self.mask, largest, 0), torch.where(self.mask, link, -1)

    def of_paths(self, path_values: Tensor) -> Tensor:
        """The weighted sum over the paths of a bundle, as in :meth:`PathOps.of_paths`."""
        return torch.einsum(
            "djk,dk->dj", self.weight.to(path_values), self.ops.of_paths(path_values)
        )

    @override
    def incidence(self, num_rows: int) -> sp.csr_array:
        demands, bundles, paths = self.weight.shape
        demand, bundle, path = (part.cpu().numpy() for part in self.weight.nonzero(as_tuple=True))
        weight = self.weight[self.weight != 0].cpu().numpy().astype(np.float64)
        of_bundles = sp.csr_array(
            (weight, (demand * paths + path, demand * bundles + bundle)),
            shape=(demands * paths, demands * bundles),
        )
        return sp.csr_array(self.ops.incidence(num_rows) @ of_bundles)

    def on_paths(self, bundles: Tensor) -> Tensor:
        """(B, D, K) what is reserved on each path, of (B, D, J) bundles."""
        return torch.einsum("djk,bdj->bdk", self.weight.to(bundles), bundles)
