"""FlowGNN (Xu et al., "Teal", SIGCOMM 2023, section 3.2): message passing between links and paths.

The input is a bipartite graph of link nodes and path nodes (:func:`hetero_data`).
:class:`TealModel` consists of :class:`FlowGNN`, the policy and the price head.  The batch comes
first everywhere: link features are (B, E, F), path features (B, D, K, F).
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
    """Symmetric-normalised sum over neighbours: out[i] = sum_j x[j] / sqrt(degree[i] degree[j]).

    The neighbours j of a path are its links, those of a link the paths through it.  The degree of
    a node is its number of neighbours (Kipf & Welling 2017, eq. 2, on a bipartite graph without
    self-loops).

    Given path operations it aggregates by path_sum or link_sum over the trie; given an explicit
    edge index (2, incidences) by :meth:`propagate`, with the same result.

    Args:
        direction: ``link_to_path`` or ``path_to_link``.
    """

    def __init__(self, direction: Direction) -> None:
        # Inputs are (B, nodes, F).
        super().__init__(aggr="add", node_dim=-2)
        self.direction = direction

    def forward(
        self, x: Tensor, path_degree: Tensor, link_degree: Tensor, incidence: PathOps | Tensor
    ) -> Tensor:
        """Aggregate neighbours: links to paths, (B, E, F) -> (B, D, K, F), or paths to links,
        (B, D, K, F) -> (B, E, F).

        Args:
            x: features of the links or of the paths.
            path_degree: (D, K) number of links of each path, 0 where there is no path.
            link_degree: (E,) number of paths through each link.
            incidence: path operations, or the edge index (2, incidences): path d * K + k in row 0,
                link in row 1.
        """
        # (D, K, 1) and (E, 1).
        path_scale = _inverse_root(path_degree).unsqueeze(-1)
        link_scale = _inverse_root(link_degree).unsqueeze(-1)
        is_link_to_path = self.direction == "link_to_path"
        x = x * (link_scale if is_link_to_path else path_scale)
        # Sum over the neighbours by the trie, or by the edge index, which numbers paths d * K + k.
        if isinstance(incidence, PathOps):
            neighbour_sum = incidence.path_sum(x) if is_link_to_path else incidence.link_sum(x)
        else:
            sizes = (path_degree.numel(), link_degree.numel())
            if is_link_to_path:
                neighbour_sum = self.propagate(incidence.flip(0), x=x, size=sizes[::-1]).unflatten(
                    1, path_degree.shape
                )
            else:
                neighbour_sum = self.propagate(incidence, x=x.flatten(1, 2), size=sizes)
        return neighbour_sum * (path_scale if is_link_to_path else link_scale)

    def message(self, x_j: Tensor) -> Tensor:
        """Return the neighbour's features, which are scaled already."""
        return x_j


def _inverse_root(degree: Tensor) -> Tensor:
    """Return 1 / sqrt(degree), and 0 for a degree of 0."""
    return torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0)


RAW_LINK_FEATURES = 1
RAW_PATH_FEATURES = 1
SCALED_LINK_FEATURES = 3
SCALED_PATH_FEATURES = 4
# Added to demands and utilisations before the logarithm, in units of the mean capacity: smaller
# values have nearly the same feature.
_FLOOR_SHARE = 1e-4


def hetero_data(problem: Problem, *, scaled: bool) -> HeteroData:
    """Build the bipartite graph of links and paths of a problem, with node features.

    Published form: one feature of a link, its capacity, and one of a path, its demand, in Gbit/s.

    Scaled form, with c the mean of the live capacities: features of a link are log(capacity / c),
    the log of its utilisation if every path carried all of its demand, and whether it is live;
    features of a path are log(demand / c), the largest such log utilisation along it, its value
    over the mean value, and its number of links over the mean number.

    Args:
        problem: B matrices.
        scaled: whether to use the scaled form.

    Returns:
        Graph with link features (B, E, F) and path features (B, D, K, F).  Its attribute ``ops``
        holds the path operations, which replace an ``edge_index``.
    """
    ops = problem.ops
    mask = problem.path_mask
    dtype = problem.demand.dtype
    num_paths = ops.mask.sum().clamp(min=1)
    graph = HeteroData()
    graph.ops = ops
    graph.mask = mask
    graph.maximises_value = problem.objective.maximises_value
    graph.demand = problem.demand
    graph.inverse_capacity = problem.inverse_capacity
    graph.path_degree = ops.hops.to(dtype)
    graph.link_degree = ops.paths_through.to(dtype)
    # (D, K) path values, with the mean 1.
    graph.value = problem.path_value / mean_value(problem).clamp(min=1e-30)
    # Features of the published form.
    if not scaled:
        graph["link"].x = problem.capacity.unsqueeze(-1)
        graph["path"].x = (problem.demand[..., None] * mask).unsqueeze(-1)
        return graph
    # Features of the scaled form.
    live = problem.capacity > 0
    typical_capacity = mean_capacity(problem).clamp(min=1e-30)
    log_utilisation = torch.where(live, (problem.full_path_utilisation + _FLOOR_SHARE).log(), 0)
    log_capacity = torch.where(
        live, (problem.capacity / typical_capacity).clamp(min=_FLOOR_SHARE).log(), 0
    )
    graph["link"].x = torch.stack([log_capacity, log_utilisation, live.to(dtype)], -1)
    # Path features: log demand, largest log utilisation of a link, value, relative number of links.
    log_demand = (problem.demand / typical_capacity + _FLOOR_SHARE).log()[..., None]
    max_log_utilisation = ops.path_max(log_utilisation)[0]
    relative_hops = graph.path_degree / (graph.path_degree.sum() / num_paths).clamp(min=1e-30)
    features = [
        feature.expand(mask.shape)
        for feature in (log_demand, max_log_utilisation, graph.value, relative_hops)
    ]
    graph["path"].x = torch.stack(features, -1) * mask[..., None]
    return graph


class FlowGNN(nn.Module):
    """Message passing that embeds every link and every path, in one of four forms.

    Each form adds one thing to the previous one.

    ``published``: layer i = 1..6 has width i: a linear map per node kind, the
    symmetric-normalised sum of the other kind added to it, then a dense layer over the K
    concatenated path vectors of each demand; after each layer the initial feature is appended.
    No nonlinearity, inputs in Gbit/s.

    ``scaled``: scaled inputs, the same width in every layer, residual sums.

    ``nonlinear``: SiLU, and normalisation over nodes.

    ``feedback``: before each layer a tentative allocation.  Links get its utilisation and prices,
    paths their worst utilisation and profit.  Without this feedback a demand has no information on
    the traffic of other demands.

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
        # Widths of links, paths and layers; other forms map their features to the common width.
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
        # Feedback before each layer, and the layers.
        feedbacks = (_LoadFeedback(num_paths, width) for _ in widths)
        self.feedback = nn.ModuleList(feedbacks if form == FEEDBACK else ())
        self.layers = nn.ModuleList(
            _Layer(num_paths, layer_width, is_linear=form in (PUBLISHED, SCALED))
            for layer_width in widths
        )

    def forward(self, graph: HeteroData, edge_index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return embeddings of the links (B, E, F) and of the paths (B, D, K, F).

        Those of missing paths are 0.

        Args:
            graph: bipartite graph of :func:`teal.nn.flow_gnn.hetero_data`.
            edge_index: (2, incidences) explicit incidences instead of the trie; for tests.
        """
        incidence: PathOps | Tensor = graph.ops if edge_index is None else edge_index
        degrees = (graph.path_degree, graph.link_degree)
        link_embeddings = graph["link"].x
        path_embeddings = graph["path"].x
        # Converted once, not in every product.
        mask = graph.mask.unsqueeze(-1).to(path_embeddings.dtype)
        # Published form: append the initial feature after each layer.
        if self.published:
            for layer in self.layers:
                new_link, new_path = layer(
                    link_embeddings, path_embeddings, degrees, incidence, mask
                )
                link_embeddings = torch.cat([new_link, graph["link"].x], -1)
                path_embeddings = torch.cat([new_path, graph["path"].x], -1)
            return link_embeddings, path_embeddings
        # Other forms: residual layers of equal width, each after its feedback if any.
        link_embeddings = self.link_in(link_embeddings)
        path_embeddings = self.path_in(path_embeddings) * mask
        for index, layer in enumerate(self.layers):
            if self.feedback:
                link_embeddings, path_embeddings = self.feedback[index](
                    link_embeddings, path_embeddings, mask, graph
                )
            new_link, new_path = layer(link_embeddings, path_embeddings, degrees, incidence, mask)
            link_embeddings = link_embeddings + new_link
            path_embeddings = path_embeddings + new_path
        return link_embeddings, path_embeddings


class _Layer(nn.Module):
    """One layer of message passing: links and paths exchange features, then a demand's paths mix.

    Args:
        num_paths: K.
        width: F.
        is_linear: whether to omit normalisation and nonlinearity.
    """

    def __init__(self, num_paths: int, width: int, *, is_linear: bool) -> None:
        super().__init__()
        self.link_linear = nn.Linear(width, width)
        self.path_linear = nn.Linear(width, width)
        self.to_path = IncidenceConv("link_to_path")
        self.to_link = IncidenceConv("path_to_link")
        self.demand_linear = nn.Linear(num_paths * width, num_paths * width)
        self.norm_link = None if is_linear else _NodeNorm(width)
        self.norm_path = None if is_linear else _NodeNorm(width)
        self.activation = nn.Identity() if is_linear else nn.SiLU()

    def forward(
        self,
        link_embeddings: Tensor,
        path_embeddings: Tensor,
        degrees: tuple[Tensor, Tensor],
        incidence: PathOps | Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return new features of links (B, E, F) and paths (B, D, K, F).

        Args:
            link_embeddings: (B, E, F) features of the links.
            path_embeddings: (B, D, K, F) features of the paths.
            degrees: (D, K) links of each path, (E,) paths through each link.
            incidence: path operations, or the edge index (2, incidences).
            mask: (B, D, K, 1) 1 for a live path, else 0.
        """
        # Normalise over the nodes, unless the layer is linear.
        if self.norm_link is not None and self.norm_path is not None:
            link_embeddings = self.norm_link(
                link_embeddings, torch.ones_like(link_embeddings[..., :1])
            )
            path_embeddings = self.norm_path(path_embeddings, mask)
        # Entries of missing paths need not be 0 here: link_sum ignores them.
        link_embeddings = self.link_linear(link_embeddings)
        path_embeddings = self.path_linear(path_embeddings)
        # Add to each node the normalised sum of its neighbours.
        new_link = self.activation(
            link_embeddings + self.to_link(path_embeddings, *degrees, incidence)
        )
        new_path = (
            self.activation(path_embeddings + self.to_path(link_embeddings, *degrees, incidence))
            * mask
        )
        # Dense layer over the K path vectors of each demand, (B, D, K F).
        mixed_paths = self.demand_linear(new_path.flatten(2))
        return new_link, self.activation(mixed_paths).view_as(new_path) * mask


class _NodeNorm(nn.Module):
    """Normalise each feature to mean 0 and variance 1 over the nodes of a matrix; scale and shift.

    Normalising over features instead would remove the differences between demands, which the policy
    depends on.

    Args:
        width: F.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the normalised features, (B, ..., F); undefined for missing nodes.

        Args:
            x: (B, ..., F) features; 0 for missing nodes.
            mask: (B or 1, ..., 1) 1 for existing nodes, else 0.
        """
        # Mean and variance over the nodes: all dimensions but the first (B) and the last (F).
        node_dims = tuple(range(1, x.dim() - 1))
        num_nodes = mask.sum(node_dims, keepdim=True).clamp(min=1)
        mean = x.sum(node_dims, keepdim=True) / num_nodes
        variance = (x.square().sum(node_dims, keepdim=True) / num_nodes - mean.square()).clamp(
            min=0
        )
        # scale (x - mean) / standard deviation + shift, as one multiply-add; 1e-5 avoids a division
        # by 0.
        scale_over_deviation = (variance + 1e-5).rsqrt() * self.scale
        return torch.addcmul(self.shift - mean * scale_over_deviation, x, scale_over_deviation)


class _LoadFeedback(nn.Module):
    """Tentative allocation before a layer, whose utilisation and prices enter the embeddings.

    Every link has a price; a path's profit is its value minus the prices along it; the tentative
    action of a demand is a linear map of its paths' embeddings plus a learned multiple of the
    profits.  Links get their utilisation and price as features, paths their worst utilisation and
    profit.

    Args:
        num_paths: K.
        width: F.
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
        self, link_embeddings: Tensor, path_embeddings: Tensor, mask: Tensor, graph: HeteroData
    ) -> tuple[Tensor, Tensor]:
        """Add the feedback of a tentative allocation to the embeddings.

        Args:
            link_embeddings: (B, E, F) embeddings of the links.
            path_embeddings: (B, D, K, F) embeddings of the paths.
            mask: (B, D, K, 1) 1 for a live path, else 0.
            graph: bipartite graph of the problem.

        Returns:
            New embeddings of links and paths, in the same shapes.
        """
        # (B, E) prices over the mean value, and (B, D, K) profits.
        price = nn.functional.softplus(self.price(link_embeddings).squeeze(-1))
        profit = graph.value - graph.ops.path_sum(price)
        action = self.action(path_embeddings.flatten(2)) + self.sharpness.exp() * bounded_profit(
            profit
        )
        splits = action_splits(action, graph.mask, maximises_value=graph.maximises_value)
        # (B, E) utilisation, and (B, D, K) the worst one along each path.
        utilisation = graph.ops.link_sum(splits * graph.demand[..., None]) * graph.inverse_capacity
        max_utilisation = graph.ops.path_max(utilisation)[0]
        link_embeddings = link_embeddings + self.link_in(_feedback_features(utilisation, price))
        return link_embeddings, path_embeddings + self.path_in(
            _feedback_features(max_utilisation, bounded_profit(profit))
        ) * mask


def _feedback_features(utilisation: Tensor, price_or_profit: Tensor) -> Tensor:
    """Return three features of order 1: log utilisation, share of the load above capacity, and
    ``price_or_profit``.
    """
    excess_share = 1 - 1 / utilisation.clamp(min=1)
    return torch.stack([torch.log(utilisation + 1e-2), excess_share, price_or_profit], -1)


class TealModel(FlowModel):
    """FlowGNN with policy and price head, in a form whose weights depend on K.

    Args:
        config: shapes and form.
    """

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config = config
        self.flow_gnn = FlowGNN(config.num_paths, config.layers, config.width, form=config.form)
        self.policy = Policy(
            config.num_paths, self.flow_gnn.path_width, linear=config.form in (PUBLISHED, SCALED)
        )
        self.price_head = PriceHead(self.flow_gnn.link_width)
        if config.form == FEEDBACK:
            # Log of the factor of a path's profit in its action; checkpoints have this name.
            self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the means of the actions' normal distribution (B, D, K), and link prices (B, E).

        Prices are in value per Gbit/s; for a min-max objective in 1/(Gbit/s), up to a common
        factor.

        Args:
            problem: B matrices, in the model's floating-point type.
        """
        # Embed links and paths; the heads map them to actions and prices.
        graph = hetero_data(problem, scaled=self.config.form != PUBLISHED)
        link_embeddings, path_embeddings = self.flow_gnn(graph)
        maximises_value = problem.objective.maximises_value
        action_means = self.policy(path_embeddings)
        relative_prices = self.price_head(link_embeddings, maximises_value=maximises_value)
        if not maximises_value:
            # In a min-max program only the ratios of capacity * price between links matter.
            return action_means, relative_prices * problem.inverse_capacity
        value_unit = mean_value(problem)
        prices = relative_prices * value_unit * (problem.capacity > 0)
        if self.config.form == FEEDBACK:
            # detach: prices are trained by the bound alone, not by the policy's loss.
            profit = (
                problem.path_value - problem.ops.path_sum(prices.detach())
            ) / value_unit.clamp(min=1e-30)
            action_means = action_means + self.sharpness.exp() * bounded_profit(profit)
        return action_means, prices
