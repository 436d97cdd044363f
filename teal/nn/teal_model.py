"""The Teal model: FlowGNN, policy and price head; trained on one network at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from teal.nn.flow_gnn import FlowGNN, hetero_data
from teal.nn.flow_gnn_config import FEEDBACK, PUBLISHED, SCALED, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.policy import Policy, PriceHead, bounded_profit
from teal.problem import Problem
from teal.problem.problem import mean_value


class TealModel(FlowModel):
    """The forms of :class:`teal.nn.flow_gnn.FlowGNN`, whose weights depend on K."""

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config = config
        self.flow_gnn = FlowGNN(config.num_paths, config.layers, config.width, form=config.form)
        self.policy = Policy(config.num_paths, self.flow_gnn.path_width, linear=config.form in (PUBLISHED, SCALED))
        self.price_head = PriceHead(self.flow_gnn.link_width)
        if config.form == FEEDBACK:
            # Log of the weight by which the profit of a path enters its action; trained, and saved under this name.
            self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Means of the normal distribution of the actions (B, D, K), and link prices (B, E).

        Prices are in value per Gbit/s; for a balanced objective in 1/(Gbit/s), up to a common factor.

        ``problem`` must be in the model's floating-point type.
        """
        data = hetero_data(problem, scaled=self.config.form != PUBLISHED)
        link, path = self.flow_gnn(data)
        means, relative_prices = self.policy(path), self.price_head(link)
        if not problem.objective.maximises_value:
            # Of balanced programs only the ratios between links of capacity * price matter: no scale is needed.
            return means, relative_prices * problem.inverse_capacity
        typical_value = mean_value(problem)
        prices = relative_prices * typical_value * (problem.capacity > 0)
        if self.config.form == FEEDBACK:
            # detach: prices are trained by the bound alone, not by the policy's loss.
            profit = (problem.path_value - problem.ops.path_sum(prices.detach())) / typical_value.clamp(min=1e-30)
            means = means + self.sharpness.exp() * bounded_profit(profit)
        return means, prices
