"""Columns and rows beyond paths and links, as path operations, so that programs and engines take them as they are.

A program has a column for each path and a row for each link.  A side condition makes other columns (every path twice,
bundles of paths) or adds a row (a budget); :class:`teal.pathops.PathOps` of these have K columns a demand and E rows.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from teal.network.moves import with_moves
from teal.pathops.base import PathOps


class MoveOps(PathOps):
    """Every path twice, to stay on it and to move onto it; what moves is on one row more, the last one.

    Column 2 k is path k of ``ops`` to stay on, column 2 k + 1 the same to move onto.  It is a path set itself
    (:func:`teal.network.moves.with_moves`), so that engines over paths take it as any other.

    Args:
        ops: over the paths.
    """

    def __init__(self, ops: PathOps) -> None:
        paths = with_moves(ops.paths)
        super().__init__(paths, type(ops.backend)(paths, ops.device), ops.device)  # type: ignore[call-arg]
        self.paths = ops.paths

    def of_paths(self, path_values: Tensor) -> Tensor:
        """See PathOps."""
        return path_values.repeat_interleave(2, -1)


class AddedRowOps(PathOps):
    """One row more, the last one, whose load is the sum of ``coefficient`` times the flow of each column.

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
