"""FlowGNN (Xu et al., "Teal", SIGCOMM 2023, section 3.2): link nodes, path nodes, and the demands
between paths.

Its input is one HeteroData with link nodes and path nodes.  The model of one network is FlowGNN,
policy and price head. The batch comes first everywhere: link features are (B, E, F), path features
(B, D, K, F).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import MessagePassing

from teal.nn.flow_gnn_config import FEEDBACK, PUBLISHED, SCALED, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.policy import Policy, PriceHead, action_splits, bounded_profit
from teal.pathops import PathOps
from teal.problem import Problem
from teal.problem.problem import mean_capacity, mean_value

Direction = Literal["link_to_path", "path_to_link"]


class IncidenceConv(MessagePassing):
    """out[i] = sum over the neighbours j of i of x[j] / sqrt(degree[i] degree[j]).

    The degree of a path is its number of links, that of a link the number of paths through it
    (Kipf & Welling 2017, eq. 2, on a bipartite graph without self-loops).

    Given path operations it aggregates by path_sum or link_sum over the trie; given an explicit
    (2, incidences) edge index it runs plain :meth:`propagate`, which gives the same result (and is
    tested to).
    """

    def __init__(self, direction: Direction) -> None:
        super().__init__(aggr="add", node_dim=-2)  # (B, nodes, F)
        self.direction = direction

    def forward(
        self, x: Tensor, path_degree: Tensor, link_degree: Tensor, incidence: PathOps | Tensor
    ) -> Tensor:
        """link_to_path: (B, E, F) -> (B, D, K, F); path_to_link: (B, D, K, F) -> (B, E, F).

        B matrices, D demands with K paths each, E links, F features.

        Args:
            x: features of the links or of the paths.
            path_degree: (D, K) number of links of each path, 0 where there is no path.
            link_degree: (E,) number of paths through each link.
            incidence: path operations, or the edge index (2, incidences): path d * K + k in row 0,
                link in row 1.
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
                out = self.propagate(incidence.flip(0), x=x, size=sizes[::-1]).unflatten(
                    1, path_degree.shape
                )
            else:
                out = self.propagate(incidence, x=x.flatten(1, 2), size=sizes)
        return out * (path_scale if to_path else link_scale)

    def message(self, x_j: Tensor) -> Tensor:
        """The neighbour's value, already scaled."""
        return x_j


def _inverse_root(degree: Tensor) -> Tensor:
    return torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0)


RAW_LINK_FEATURES = 1
RAW_PATH_FEATURES = 1
SCALED_LINK_FEATURES = 3
SCALED_PATH_FEATURES = 4
_FLOOR_SHARE = 1e-4  # x mean capacity: demands and capacities below it have nearly the same feature


def hetero_data(problem: Problem, *, scaled: bool) -> HeteroData:
    """The bipartite graph of ``problem``.

    Published form: a link has its capacity, a path its demand, both in Gbit/s.

    Scaled form, with c the mean of the live capacities: a link has log(capacity / c), the log of
    its utilisation if every path carried all its demand, and whether it is live; a path has
    log(demand / c), the largest such utilisation along it, its value over the mean value, and its
    number of links over the mean number.

    ``ops`` are the path operations, which replace an ``edge_index``.
    """
    ops = problem.ops
    mask = problem.path_mask
    dtype = problem.demand.dtype
    count = ops.mask.sum().clamp(min=1)
    data = HeteroData()
    data.ops = ops
    data.mask = mask
    data.maximises_value = problem.objective.maximises_value
    data.demand = problem.demand
    data.inverse_capacity = problem.inverse_capacity
    data.path_degree = ops.hops.to(dtype)
    data.link_degree = ops.paths_through.to(dtype)
    data.value = problem.path_value / mean_value(problem).clamp(min=1e-30)  # (D, K), mean 1
    # Features of the published form.
    if not scaled:
        data["link"].x = problem.capacity.unsqueeze(-1)
        data["path"].x = (problem.demand[..., None] * mask).unsqueeze(-1)
        return data
    # Features of the scaled form.
    live = problem.capacity > 0
    typical_capacity = mean_capacity(problem).clamp(min=1e-30)
    log_utilisation = torch.where(live, (problem.full_path_utilisation + _FLOOR_SHARE).log(), 0)
    log_capacity = torch.where(
        live, (problem.capacity / typical_capacity).clamp(min=_FLOOR_SHARE).log(), 0
    )
    data["link"].x = torch.stack([log_capacity, log_utilisation, live.to(dtype)], -1)
    size = (problem.demand / typical_capacity + _FLOOR_SHARE).log()[..., None]
    tightest = ops.path_max(log_utilisation)[0]
    hops = data.path_degree / (data.path_degree.sum() / count).clamp(min=1e-30)
    features = [feature.expand(mask.shape) for feature in (size, tightest, data.value, hops)]
    data["path"].x = torch.stack(features, -1) * mask[..., None]
    return data


class FlowGNN(nn.Module):
    """Embeds every link and every path, in one of four forms; each form adds one thing to the form
    before.

    ``published``: layer i = 1..6 has width i: a linear map per node kind, the
    symmetric-normalised sum of the other kind added to a node's own, then a dense layer over the K
    concatenated path vectors of each demand; after each layer the initial feature is appended.
    No nonlinearity, inputs in Gbit/s.

    ``scaled``: scaled inputs, the same width in every layer, residual sums.

    ``nonlinear``: SiLU, and normalisation over nodes.

    ``feedback``: before each layer a tentative allocation, whose utilisation and prices the links
    see, and each path its worst utilisation and profit.  Without that feedback a demand has no
    information about what the other demands do.

    Args:
        num_paths: K.
        layers: number of layers.
        width: F, except in the form ``published``.
        form: one of :data:`teal.nn.flow_gnn_config.FORMS`.
    """

    def __init__(
        self, num_paths: int, layers: int = 6, width: int = 8, *, form: str = FEEDBACK
    ) -> None:
        super().__init__()
        self.published = form == PUBLISHED
        if self.published:
            self.link_width = layers + RAW_LINK_FEATURES
            self.path_width = layers + RAW_PATH_FEATURES
            widths = [i + 1 for i in range(layers)]
        else:
            self.link_width = self.path_width = width
            widths = [width] * layers
            self.link_in = nn.Linear(SCALED_LINK_FEATURES, width)
            self.path_in = nn.Linear(SCALED_PATH_FEATURES, width)
        feedbacks = (_LoadFeedback(num_paths, width) for _ in widths)
        self.feedback = nn.ModuleList(feedbacks if form == FEEDBACK else ())
        self.layers = nn.ModuleList(
            _Layer(num_paths, w, plain=form in (PUBLISHED, SCALED)) for w in widths
        )

    def forward(self, data: HeteroData, edge_index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings of the links (B, E, F) and of the paths (B, D, K, F), 0 where there is no
        path.

        Args:
            data: from :func:`teal.nn.flow_gnn.hetero_data`.
            edge_index: explicit incidences to use in place of the trie (tests).
        """
        incidence: PathOps | Tensor = data.ops if edge_index is None else edge_index
        degrees = (data.path_degree, data.link_degree)
        link = data["link"].x
        path = data["path"].x
        mask = data.mask.unsqueeze(-1).to(path.dtype)  # converted once, not in every product
        if self.published:
            for layer in self.layers:
                new_link, new_path = layer(link, path, degrees, incidence, mask)
                link = torch.cat([new_link, data["link"].x], -1)
                path = torch.cat([new_path, data["path"].x], -1)
            return link, path
        link = self.link_in(link)
        path = self.path_in(path) * mask
        for number, layer in enumerate(self.layers):
            if self.feedback:
                link, path = self.feedback[number](link, path, mask, data)
            new_link, new_path = layer(link, path, degrees, incidence, mask)
            link = link + new_link
            path = path + new_path
        return link, path


class _Layer(nn.Module):
    """One exchange between links, paths and demands; ``plain`` omits normalisation and
    nonlinearity.
    """

    def __init__(self, num_paths: int, width: int, *, plain: bool) -> None:
        super().__init__()
        self.link_linear = nn.Linear(width, width)
        self.path_linear = nn.Linear(width, width)
        self.to_path = IncidenceConv("link_to_path")
        self.to_link = IncidenceConv("path_to_link")
        self.demand_linear = nn.Linear(num_paths * width, num_paths * width)
        self.norm_link = None if plain else _NodeNorm(width)
        self.norm_path = None if plain else _NodeNorm(width)
        self.activation = nn.Identity() if plain else nn.SiLU()

    def forward(
        self,
        link: Tensor,
        path: Tensor,
        degrees: tuple[Tensor, Tensor],
        incidence: PathOps | Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(B, E, F) and (B, D, K, F) in and out."""
        if self.norm_link is not None and self.norm_path is not None:
            link = self.norm_link(link, torch.ones_like(link[..., :1]))
            path = self.norm_path(path, mask)
        # Entries of missing paths need not be 0 here: link_sum ignores them.
        link = self.link_linear(link)
        path = self.path_linear(path)
        new_link = self.activation(link + self.to_link(path, *degrees, incidence))
        new_path = self.activation(path + self.to_path(link, *degrees, incidence)) * mask
        demand = self.demand_linear(new_path.flatten(2))  # (B, D, K * F)
        return new_link, self.activation(demand).view_as(new_path) * mask


class _NodeNorm(nn.Module):
    """Each feature to mean 0 and variance 1 over the nodes of a matrix, then scaled and shifted.

    Normalising over features instead would remove the differences between demands, which the policy
    depends on.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, ..., F), 0 where there is no node, with a mask (B or 1, ..., 1) of the nodes there
        are.

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
        self.action = nn.Linear(num_paths * width, num_paths)
        self.price = nn.Linear(width, 1)
        self.sharpness = nn.Parameter(torch.tensor(1.0))
        self.link_in = nn.Linear(3, width)
        self.path_in = nn.Linear(3, width)
        # Prices start near 0, because most links are not full.
        nn.init.constant_(self.price.bias, -3.0)

    def forward(
        self, link: Tensor, path: Tensor, mask: Tensor, data: HeteroData
    ) -> tuple[Tensor, Tensor]:
        """(B, E, F) and (B, D, K, F) in and out."""
        price = nn.functional.softplus(self.price(link).squeeze(-1))  # (B, E), mean value = 1
        profit = data.value - data.ops.path_sum(price)  # (B, D, K)
        action = self.action(path.flatten(2)) + self.sharpness.exp() * bounded_profit(profit)
        splits = action_splits(action, data.mask, maximises_value=data.maximises_value)
        # Shape (B, E).
        utilisation = data.ops.link_sum(splits * data.demand[..., None]) * data.inverse_capacity
        worst = data.ops.path_max(utilisation)[0]  # (B, D, K)
        link = link + self.link_in(_features(utilisation, price))
        return link, path + self.path_in(_features(worst, bounded_profit(profit))) * mask


def _features(utilisation: Tensor, third: Tensor) -> Tensor:
    """Three features of order 1: log utilisation, the share of the load that exceeds capacity, and
    ``third``.
    """
    excess_share = 1 - 1 / utilisation.clamp(min=1)
    return torch.stack([torch.log(utilisation + 1e-2), excess_share, third], -1)


class TealModel(FlowModel):
    """The forms of :class:`FlowGNN`, whose weights depend on K."""

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config = config
        self.flow_gnn = FlowGNN(config.num_paths, config.layers, config.width, form=config.form)
        self.policy = Policy(
            config.num_paths, self.flow_gnn.path_width, linear=config.form in (PUBLISHED, SCALED)
        )
        self.price_head = PriceHead(self.flow_gnn.link_width)
        if config.form == FEEDBACK:
            # Log of the weight by which the profit of a path enters its action; trained, and saved
            # under this name.
            self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Means of the normal distribution of the actions (B, D, K), and link prices (B, E).

        Prices are in value per Gbit/s; for a balanced objective in 1/(Gbit/s), up to a common
        factor.

        ``problem`` must be in the model's floating-point type.
        """
        data = hetero_data(problem, scaled=self.config.form != PUBLISHED)
        link, path = self.flow_gnn(data)
        maximises_value = problem.objective.maximises_value
        means = self.policy(path)
        relative_prices = self.price_head(link, maximises_value=maximises_value)
        if not maximises_value:
            # Of balanced programs only the ratios between links of capacity * price matter: no
            # scale is needed.
            return means, relative_prices * problem.inverse_capacity
        typical_value = mean_value(problem)
        prices = relative_prices * typical_value * (problem.capacity > 0)
        if self.config.form == FEEDBACK:
            # detach: prices are trained by the bound alone, not by the policy's loss.
            profit = (
                problem.path_value - problem.ops.path_sum(prices.detach())
            ) / typical_value.clamp(min=1e-30)
            means = means + self.sharpness.exp() * bounded_profit(profit)
        return means, prices
