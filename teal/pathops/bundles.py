"""Path operations over bundles: several paths of a demand that are reserved together, in fixed proportions.

A bundle j of demand d reserves ``weight[d, j, k]`` Gbit/s on path k for each Gbit/s that it stands for.  To programs
and engines a bundle is a path: its price is the weighted sum of its paths' prices, its load that of all of them.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from teal.pathops.base import PathOps


class BundleOps(PathOps):
    """See :class:`teal.pathops.PathOps`; K is the number of bundles J here.

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
        """See PathOps: the weighted sum over the paths of a bundle."""
        return torch.einsum("djk,bdk->bdj", self.weight.to(link_values), self.ops.path_sum(link_values))

    def link_sum(self, path_values: Tensor) -> Tensor:
        """See PathOps."""
        return self.ops.link_sum(self.on_paths(path_values))

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """See PathOps: the largest over the paths of a bundle."""
        values, links = self.ops.path_max(link_values)
        has = (self.weight > 0)[None]
        spread = torch.where(has, values[:, :, None], -torch.inf)  # (B, D, J, K)
        largest, at = spread.max(-1)
        link = links[:, :, None].expand_as(spread).gather(-1, at[..., None])[..., 0]
        return torch.where(self.mask, largest, 0), torch.where(self.mask, link, -1)

    def of_paths(self, path_values: Tensor) -> Tensor:
        """See PathOps: the weighted sum over the paths of a bundle."""
        return torch.einsum("djk,dk->dj", self.weight.to(path_values), self.ops.of_paths(path_values))

    def incidence(self, num_rows: int) -> sp.csr_array:
        """See PathOps."""
        demands, bundles, paths = self.weight.shape
        demand, bundle, path = (part.cpu().numpy() for part in self.weight.nonzero(as_tuple=True))
        weight = self.weight[self.weight != 0].cpu().numpy().astype(np.float64)
        of_bundles = sp.csr_array(
            (weight, (demand * paths + path, demand * bundles + bundle)), shape=(demands * paths, demands * bundles)
        )
        return sp.csr_array(self.ops.incidence(num_rows) @ of_bundles)

    def on_paths(self, bundles: Tensor) -> Tensor:
        """(B, D, K) what is reserved on each path, of (B, D, J) bundles."""
        return torch.einsum("djk,bdj->bdk", self.weight.to(bundles), bundles)
