"""A FlowGNN with its heads, whatever its form: what schemes, checkpoints and training know of
it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from teal.nn.flow_gnn_config import FlowGnnConfig
from teal.nn.policy import CLAMP, action_splits
from teal.problem import Problem


class FlowModel(nn.Module):
    """Actions for every demand and prices for every link.

    ``model(problem)`` gives the means of the policy, a normal distribution (B, D, K), and link
    prices (B, E) in value per Gbit/s, for a balanced program up to a common factor; both
    differentiable, of a problem in the model's type.

    Attributes:
        config: shapes.
        takes_any_paths: whether the weights serve any number of paths a demand.
        clamp: largest absolute value of an action that makes a difference.
    """

    clamp = CLAMP
    takes_any_paths: ClassVar[bool] = False
    config: FlowGnnConfig

    @torch.no_grad()
    def allocate(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Splits (B, D, K) of the policy's means, and link prices (B, E), without gradients."""
        means, prices = self(problem)
        return self.splits(means, problem), prices

    def splits(self, means: Tensor, problem: Problem) -> Tensor:
        """Splits (B, D, K), the share of each demand on each path, of actions ``means`` (B, D,
        K).
        """
        maximises_value = problem.objective.maximises_value
        return action_splits(
            means, problem.path_mask, maximises_value=maximises_value, clamp=self.clamp
        )

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return next(self.parameters()).dtype
