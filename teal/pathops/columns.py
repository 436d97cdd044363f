"""Path operations over transformed columns and rows, for side conditions of programs.

A program has a column per path and a row per link.  A side condition transforms the columns (every
path twice, bundles of paths) or adds a row (a budget); the resulting :class:`teal.pathops.PathOps`
have K columns a demand and E rows, so that programs and engines use them unchanged.

A bundle is a set of paths of a demand that are reserved together in fixed proportions: bundle j of
demand d reserves ``weight[d, j, k]`` Gbit/s on path k for each of its Gbit/s.  Its price is the
weighted sum of its paths' prices.
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
    """Path operations with two columns per path, for traffic that stays on the path or moves to it.

    Column 2 k is path k of ``ops`` for staying traffic, column 2 k + 1 path k for moving traffic.
    An extra last row counts the moved traffic.  The columns are a path set
    (:func:`teal.network.path_changes.with_moves`), so that engines over paths support them.

    Args:
        ops: operations over the paths.
    """

    def __init__(self, ops: PathOps) -> None:
        paths = with_moves(ops.paths)
        super().__init__(paths, type(ops.backend)(paths, ops.device), ops.device)  # type: ignore[call-arg]
        self.paths = ops.paths

    @override
    def of_paths(self, path_values: Tensor) -> Tensor:
        return path_values.repeat_interleave(2, -1)


class AddedRowOps(PathOps):
    """Path operations with an extra last row: its load is the sum of coefficient times column flow.

    Args:
        ops: operations over K columns and E - 1 rows.
        coefficient: (D, K) non-negative coefficient of each column.
    """

    counts_once = is_over_paths = False

    def __init__(self, ops: PathOps, coefficient: Tensor) -> None:
        self.paths = ops.paths
        self.backend = ops.backend
        self.device = ops.device
        self.ops = ops
        self.column_paths = ops.paths
        self.mask = ops.mask
        self.hops = ops.hops
        self.coefficient = torch.where(ops.mask, coefficient.to(ops.device), 0)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum row values along each column: (B, E) -> (B, D, K).

        The extra row adds coefficient times its value.  There is no feature axis.
        """
        added_value = link_values[:, -1, None, None] * self.coefficient.to(link_values)
        return self.ops.path_sum(link_values[:, :-1].contiguous()) + added_value

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sum column flows over each row: (B, D, K) -> (B, E).

        The extra row gets the sum of coefficient times flow.  There is no feature axis.
        """
        added_load = (path_values * self.coefficient.to(path_values)).sum((1, 2))
        return torch.cat([self.ops.link_sum(path_values), added_load[:, None]], 1)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest row value along each column, and its row: (B, E) -> (B, D, K) each.

        Columns with a positive coefficient include the extra row.  The results are 0 and -1 where
        there is no column.
        """
        values, links = self.ops.path_max(link_values[:, :-1].contiguous())
        added_value = link_values[:, -1, None, None].expand_as(values)
        uses_added_row = self.coefficient > 0
        is_larger = uses_added_row & ((added_value > values) | (links < 0))
        return torch.where(is_larger, added_value, values), torch.where(
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
    """Path operations over bundles of paths: the columns of a demand are its J bundles.

    A Gbit/s of bundle j of demand d reserves ``weight[d, j, k]`` Gbit/s on path k.

    Args:
        ops: operations over the paths.
        weight: (D, J, K) non-negative weights; a bundle with all weights 0 does not exist.
    """

    counts_once = is_over_paths = False

    def __init__(self, ops: PathOps, weight: Tensor) -> None:
        self.paths = self.column_paths = ops.paths
        self.backend = ops.backend
        self.device = ops.device
        self.ops = ops
        self.weight = weight.to(ops.device)
        self.mask = (self.weight > 0).any(-1)
        self.hops = torch.einsum("djk,dk->dj", (self.weight > 0).to(ops.hops.dtype), ops.hops)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum link values along the paths of each bundle, weighted: (B, E) -> (B, D, J)."""
        return torch.einsum(
            "djk,bdk->bdj", self.weight.to(link_values), self.ops.path_sum(link_values)
        )

    @override
    def link_sum(self, path_values: Tensor) -> Tensor:
        return self.ops.link_sum(self.on_paths(path_values))

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest link value on the paths of each bundle, and its link.

        Link values (B, E) give two arrays (B, D, J), with 0 and -1 where there is no bundle.
        """
        values, links = self.ops.path_max(link_values)
        has_path = (self.weight > 0)[None]
        # (B, D, J, K) values of the paths in each bundle.
        path_values = torch.where(has_path, values[:, :, None], -torch.inf)
        largest, index = path_values.max(-1)
        link = links[:, :, None].expand_as(path_values).gather(-1, index[..., None])[..., 0]
        return torch.where(self.mask, largest, 0), torch.where(self.mask, link, -1)

    def of_paths(self, path_values: Tensor) -> Tensor:
        """Convert path values to weighted sums over the paths of each bundle: (D, P) -> (D, J)."""
        return torch.einsum(
            "djk,dk->dj", self.weight.to(path_values), self.ops.of_paths(path_values)
        )

    @override
    def incidence(self, num_rows: int) -> sp.csr_array:
        # (D K, D J) weight of each path in each bundle.
        num_demands, num_bundles, num_paths = self.weight.shape
        demand, bundle, path = (part.cpu().numpy() for part in self.weight.nonzero(as_tuple=True))
        weight = self.weight[self.weight != 0].cpu().numpy().astype(np.float64)
        bundle_matrix = sp.csr_array(
            (weight, (demand * num_paths + path, demand * num_bundles + bundle)),
            shape=(num_demands * num_paths, num_demands * num_bundles),
        )
        return sp.csr_array(self.ops.incidence(num_rows) @ bundle_matrix)

    def on_paths(self, bundles: Tensor) -> Tensor:
        """Return the flow that bundle flows (B, D, J) reserve on each path, (B, D, K)."""
        return torch.einsum("djk,bdj->bdk", self.weight.to(bundles), bundles)
