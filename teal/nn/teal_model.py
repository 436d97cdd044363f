"""The Teal model: FlowGNN, policy and price head, for one network."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from teal.errors import InputError
from teal.nn.features import hetero_data
from teal.nn.flow_gnn import FORMS, FlowGNN
from teal.nn.policy import Policy, PriceHead, action_splits, bounded_profit
from teal.problem import Problem


@dataclasses.dataclass(frozen=True)
class FlowGnnConfig:
    """What the shapes of the weights depend on (FlowGNN and its heads).

    Attributes:
        num_paths: K.
        layers: FlowGNN's.
        width: FlowGNN's, except in the published form.
        form: one of :data:`teal.nn.flow_gnn.FORMS`; ``published`` is that of the paper's release.
    """

    num_paths: int = 4
    layers: int = 6
    width: int = 8
    form: str = FORMS[-1]

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError("model", "form", " or ".join(FORMS), self.form)
        for field in ("num_paths", "layers", "width"):
            if not isinstance(getattr(self, field), int) or getattr(self, field) < 1:
                raise InputError("model", field, "a whole number of at least 1", getattr(self, field))


class TealModel(nn.Module):
    """Actions for every demand and prices for every link, in one pass."""

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config = config
        self.flow_gnn = FlowGNN(config.num_paths, config.layers, config.width, form=config.form)
        self.policy = Policy(config.num_paths, self.flow_gnn.path_width, linear=config.form in FORMS[:2])
        self.price_head = PriceHead(self.flow_gnn.link_width)
        if config.form == FORMS[3]:
            self.sharpness = nn.Parameter(torch.tensor(1.0))  # log of the weight of a path's profit

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Means of the actions (B, D, K) and link prices (B, E) in value per Gbit/s.

        ``problem`` must be in the model's floating-point type.
        """
        data = hetero_data(problem, scaled=self.config.form != FORMS[0])
        link, path = self.flow_gnn(data)
        means, shares = self.policy(path), self.price_head(link)
        if not problem.objective.maximises_value:
            return means, shares * problem.inverse_capacity  # the balanced programs use only the ratios of c p
        mean_value = problem.mean_value
        prices = shares * mean_value * (problem.capacity > 0)
        if self.config.form == FORMS[3]:
            # detach: prices are trained by the bound alone, not by the policy's loss.
            profit = (problem.path_value - problem.ops.path_sum(prices.detach())) / mean_value.clamp(min=1e-30)
            means = means + self.sharpness.exp() * bounded_profit(profit)
        return means, prices

    def splits(self, means: Tensor, problem: Problem) -> Tensor:
        """Splits (B, D, K) of given actions."""
        return action_splits(means, problem.path_mask, maximises_value=problem.objective.maximises_value)

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return next(self.parameters()).dtype
