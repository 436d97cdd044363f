"""Columns and rows beyond paths and links, as path operations, so that programs and engines take them as they are.

A program has a column for each path and a row for each link.  A side condition makes other columns (every path twice,
bundles of paths) or adds a row (a budget); :class:`teal.pathops.PathOps` of these have K columns a demand and E rows.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from teal.pathops.base import PathOps


class TwiceOps(PathOps):
    """Every column of ``ops`` twice: K first ones, then the same K again.

    Args:
        ops: over K columns.
    """

    def __init__(self, ops: PathOps) -> None:
        self.paths, self.backend, self.device, self.ops = ops.paths, ops.backend, ops.device, ops
        self.mask, self.hops = ops.mask.repeat(1, 2), ops.hops.repeat(1, 2)
        self.counts_once = ops.counts_once

    def path_sum(self, link_values: Tensor) -> Tensor:
        """See PathOps."""
        once = self.ops.path_sum(link_values)
        return torch.cat([once, once], 2)

    def link_sum(self, path_values: Tensor) -> Tensor:
        """See PathOps."""
        first, second = path_values.chunk(2, 2)
        return self.ops.link_sum(first + second)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """See PathOps."""
        values, links = self.ops.path_max(link_values)
        return torch.cat([values, values], -1), torch.cat([links, links], -1)

    def of_paths(self, path_values: Tensor) -> Tensor:
        """See PathOps."""
        return self.ops.of_paths(path_values).repeat(1, 2)

    def incidence(self, num_rows: int) -> sp.csr_array:
        """See PathOps."""
        once, width = self.ops.incidence(num_rows).tocoo(), self.ops.mask.shape[1]
        demand, column = np.divmod(once.coords[1], width)
        first = demand * 2 * width + column
        entries = np.tile(once.data, 2), (np.tile(once.coords[0], 2), np.concatenate([first, first + width]))
        return sp.csr_array(entries, shape=(num_rows, self.mask.numel()))


class AddedRowOps(PathOps):
    """One row more, the last one, whose load is the sum of ``coefficient`` times the flow of each column.

    Args:
        ops: over K columns and E - 1 rows.
        coefficient: (D, K) >= 0, of a Gbit/s of each column.
    """

    counts_once = False

    def __init__(self, ops: PathOps, coefficient: Tensor) -> None:
        self.paths, self.backend, self.device, self.ops = ops.paths, ops.backend, ops.device, ops
        self.mask, self.hops = ops.mask, ops.hops
        self.coefficient = torch.where(ops.mask, coefficient.to(ops.device), 0)

    def path_sum(self, link_values: Tensor) -> Tensor:
        """See PathOps; link values have no feature axis."""
        added = link_values[:, -1, None, None] * self.coefficient.to(link_values)
        return self.ops.path_sum(link_values[:, :-1].contiguous()) + added

    def link_sum(self, path_values: Tensor) -> Tensor:
        """See PathOps; path values have no feature axis."""
        added = (path_values * self.coefficient.to(path_values)).sum((1, 2))
        return torch.cat([self.ops.link_sum(path_values), added[:, None]], 1)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """See PathOps: a column is on the row if its coefficient is above 0."""
        values, links = self.ops.path_max(link_values[:, :-1].contiguous())
        added = link_values[:, -1, None, None].expand_as(values)
        is_on = self.coefficient > 0
        is_larger = is_on & ((added > values) | (links < 0))
        return torch.where(is_larger, added, values), torch.where(is_larger, link_values.shape[1] - 1, links)

    def of_paths(self, path_values: Tensor) -> Tensor:
        """See PathOps."""
        return self.ops.of_paths(path_values)

    def incidence(self, num_rows: int) -> sp.csr_array:
        """See PathOps."""
        added = sp.csr_array(self.coefficient.cpu().numpy().astype(np.float64).reshape(1, -1))
        return sp.csr_array(sp.vstack([self.ops.incidence(num_rows - 1), added]))
