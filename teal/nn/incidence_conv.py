"""The symmetric-normalised sum along path-link incidences, as torch_geometric message passing."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from teal.pathops import PathOps

Direction = Literal["link_to_path", "path_to_link"]


class IncidenceConv(MessagePassing):
    """out[i] = sum over the neighbours j of i of x[j] / sqrt(degree[i] degree[j]).

    The degree of a path is its number of links, that of a link the number of paths through it
    (Kipf & Welling 2017, eq. 2, on a bipartite graph without self-loops).

    Given path operations it aggregates by path_sum or link_sum over the trie; given an explicit
    (2, incidences) edge index it runs plain :meth:`propagate`, which gives the same result (and is tested to).
    """

    def __init__(self, direction: Direction) -> None:
        super().__init__(aggr="add", node_dim=-2)  # (B, nodes, F)
        self.direction = direction

    def forward(self, x: Tensor, path_degree: Tensor, link_degree: Tensor, incidence: PathOps | Tensor) -> Tensor:
        """link_to_path: (B, E, F) -> (B, D, K, F); path_to_link: (B, D, K, F) -> (B, E, F).

        B matrices, D demands with K paths each, E links, F features.

        Args:
            x: features of the links or of the paths.
            path_degree: (D, K) number of links of each path, 0 where there is no path.
            link_degree: (E,) number of paths through each link.
            incidence: path operations, or the edge index (2, incidences): path d * K + k in row 0, link in row 1.
        """
        path_scale = _inverse_root(path_degree).unsqueeze(-1)  # (D, K, 1)
        link_scale = _inverse_root(link_degree).unsqueeze(-1)  # (E, 1)
        to_path = self.direction == "link_to_path"
        x = x * (link_scale if to_path else path_scale)
        if isinstance(incidence, PathOps):
            out = incidence.path_sum(x) if to_path else incidence.link_sum(x)
        else:
            sizes = (path_degree.numel(), link_degree.numel())
            if to_path:
                out = self.propagate(incidence.flip(0), x=x, size=sizes[::-1]).unflatten(1, path_degree.shape)
            else:
                out = self.propagate(incidence, x=x.flatten(1, 2), size=sizes)
        return out * (path_scale if to_path else link_scale)

    def message(self, x_j: Tensor) -> Tensor:
        """The neighbour's value, already scaled."""
        return x_j


def _inverse_root(degree: Tensor) -> Tensor:
    return torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0)
