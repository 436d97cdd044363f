"""FlowGNN (Xu et al., "Teal", SIGCOMM 2023, section 3.2): link nodes, path nodes, and the demands between paths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from teal.nn.features import (
    RAW_LINK_FEATURES,
    RAW_PATH_FEATURES,
    SCALED_LINK_FEATURES,
    SCALED_PATH_FEATURES,
)
from teal.nn.flow_gnn_config import FEEDBACK, PUBLISHED, SCALED
from teal.nn.incidence_conv import IncidenceConv
from teal.nn.policy import action_splits, bounded_profit
from teal.pathops import PathOps


class FlowGNN(nn.Module):
    """Embeds every link and every path, in one of four forms; each form adds one thing to the form before.

    ``published``: layer i = 1..6 has width i: a linear map per node kind, the
    symmetric-normalised sum of the other kind added to a node's own, then a dense layer over the K
    concatenated path vectors of each demand; after each layer the initial feature is appended.
    No nonlinearity, inputs in Gbit/s.

    ``scaled``: scaled inputs, the same width in every layer, residual sums.

    ``nonlinear``: SiLU, and normalisation over nodes.

    ``feedback``: before each layer a tentative allocation, whose utilisation and prices the links
    see, and each path its worst utilisation and profit.  Without that feedback a demand has no information about
    what the other demands do.

    Args:
        num_paths: K.
        layers: number of layers.
        width: F, except in the form ``published``.
        form: one of :data:`teal.nn.flow_gnn_config.FORMS`.
    """

    def __init__(self, num_paths: int, layers: int = 6, width: int = 8, *, form: str = FEEDBACK) -> None:
        super().__init__()
        self.published = form == PUBLISHED
        if self.published:
            self.link_width, self.path_width = layers + RAW_LINK_FEATURES, layers + RAW_PATH_FEATURES
            widths = [i + 1 for i in range(layers)]
        else:
            self.link_width = self.path_width = width
            widths = [width] * layers
            self.link_in = nn.Linear(SCALED_LINK_FEATURES, width)
            self.path_in = nn.Linear(SCALED_PATH_FEATURES, width)
        feedbacks = (_LoadFeedback(num_paths, width) for _ in widths)
        self.feedback = nn.ModuleList(feedbacks if form == FEEDBACK else ())
        self.layers = nn.ModuleList(_Layer(num_paths, w, plain=form in (PUBLISHED, SCALED)) for w in widths)

    def forward(self, data: HeteroData, edge_index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings of the links (B, E, F) and of the paths (B, D, K, F), 0 where there is no path.

        Args:
            data: from :func:`teal.nn.features.hetero_data`.
            edge_index: explicit incidences to use in place of the trie (tests).
        """
        incidence: PathOps | Tensor = data.ops if edge_index is None else edge_index
        degrees = (data.path_degree, data.link_degree)
        link, path = data["link"].x, data["path"].x
        mask = data.mask.unsqueeze(-1).to(path.dtype)  # converted once, not in every product
        if self.published:
            for layer in self.layers:
                new_link, new_path = layer(link, path, degrees, incidence, mask)
                link = torch.cat([new_link, data["link"].x], -1)
                path = torch.cat([new_path, data["path"].x], -1)
            return link, path
        link, path = self.link_in(link), self.path_in(path) * mask
        for number, layer in enumerate(self.layers):
            if self.feedback:
                link, path = self.feedback[number](link, path, mask, data)
            new_link, new_path = layer(link, path, degrees, incidence, mask)
            link, path = link + new_link, path + new_path
        return link, path


class _Layer(nn.Module):
    """One exchange between links, paths and demands; ``plain`` omits normalisation and nonlinearity."""

    def __init__(self, num_paths: int, width: int, *, plain: bool) -> None:
        super().__init__()
        self.link_linear = nn.Linear(width, width)
        self.path_linear = nn.Linear(width, width)
        self.to_path, self.to_link = IncidenceConv("link_to_path"), IncidenceConv("path_to_link")
        self.demand_linear = nn.Linear(num_paths * width, num_paths * width)
        self.norm_link = None if plain else _NodeNorm(width)
        self.norm_path = None if plain else _NodeNorm(width)
        self.activation = nn.Identity() if plain else nn.SiLU()

    def forward(
        self, link: Tensor, path: Tensor, degrees: tuple[Tensor, Tensor], incidence: PathOps | Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, E, F) and (B, D, K, F) in and out."""
        if self.norm_link is not None and self.norm_path is not None:
            link = self.norm_link(link, torch.ones_like(link[..., :1]))
            path = self.norm_path(path, mask)
        # Entries of missing paths need not be 0 here: link_sum ignores them.
        link, path = self.link_linear(link), self.path_linear(path)
        new_link = self.activation(link + self.to_link(path, *degrees, incidence))
        new_path = self.activation(path + self.to_path(link, *degrees, incidence)) * mask
        demand = self.demand_linear(new_path.flatten(2))  # (B, D, K * F)
        return new_link, self.activation(demand).view_as(new_path) * mask


class _NodeNorm(nn.Module):
    """Each feature to mean 0 and variance 1 over the nodes of a matrix, then scaled and shifted.

    Normalising over features instead would remove the differences between demands, which the policy depends on.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, ..., F), 0 where there is no node, with a mask (B or 1, ..., 1) of the nodes there are.

        The result is undefined where there is no node.
        """
        nodes = tuple(range(1, x.dim() - 1))
        count = mask.sum(nodes, keepdim=True).clamp(min=1)
        mean = x.sum(nodes, keepdim=True) / count
        variance = (x.square().sum(nodes, keepdim=True) / count - mean.square()).clamp(min=0)
        scale = (variance + 1e-5).rsqrt() * self.scale
        return torch.addcmul(self.shift - mean * scale, x, scale)


class _LoadFeedback(nn.Module):
    """A tentative allocation before a layer, whose loads the embeddings receive.

    Every link has a price; a path's profit is its value minus the prices along it; the tentative
    action of a demand is a linear map of its paths' embeddings plus a learned multiple of the
    profits.  Links see the load that follows and their price, paths the worst utilisation along
    themselves and their profit.
    """

    def __init__(self, num_paths: int, width: int) -> None:
        super().__init__()
        self.action, self.price = nn.Linear(num_paths * width, num_paths), nn.Linear(width, 1)
        self.sharpness = nn.Parameter(torch.tensor(1.0))
        self.link_in, self.path_in = nn.Linear(3, width), nn.Linear(3, width)
        nn.init.constant_(self.price.bias, -3.0)  # prices start near 0, because most links are not full

    def forward(self, link: Tensor, path: Tensor, mask: Tensor, data: HeteroData) -> tuple[Tensor, Tensor]:
        """(B, E, F) and (B, D, K, F) in and out."""
        price = nn.functional.softplus(self.price(link).squeeze(-1))  # (B, E), mean value = 1
        profit = data.value - data.ops.path_sum(price)  # (B, D, K)
        action = self.action(path.flatten(2)) + self.sharpness.exp() * bounded_profit(profit)
        splits = action_splits(action, data.mask, maximises_value=data.maximises_value)
        utilisation = data.ops.link_sum(splits * data.demand[..., None]) * data.inverse_capacity  # (B, E)
        worst = data.ops.path_max(utilisation)[0]  # (B, D, K)
        link = link + self.link_in(_features(utilisation, price))
        return link, path + self.path_in(_features(worst, bounded_profit(profit))) * mask


def _features(utilisation: Tensor, third: Tensor) -> Tensor:
    """Three features of order 1: log utilisation, the share of the load that exceeds capacity, and ``third``."""
    excess_share = 1 - 1 / utilisation.clamp(min=1)
    return torch.stack([torch.log(utilisation + 1e-2), excess_share, third], -1)
