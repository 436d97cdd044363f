"""Base class of the FlowGNN models with their heads, used by schemes, checkpoints and training."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from teal.nn.flow_gnn_config import FlowGnnConfig
from teal.nn.policy import CLAMP, action_splits
from teal.problem import Problem


class FlowModel(nn.Module):
    """Network that maps a problem to an action per path and a price per link.

    ``model(problem)`` returns the means (B, D, K) of a normal distribution of the actions, and link
    prices (B, E) in value per Gbit/s, for a min-max program up to a common factor.  Both are
    differentiable.  The problem must be in the model's floating-point type.

    Attributes:
        config: shapes of the weights.
        takes_any_paths: whether the weights serve any number of paths a demand.
        clamp: largest absolute value of an action; larger ones are clamped.
    """

    clamp = CLAMP
    takes_any_paths: ClassVar[bool] = False
    config: FlowGnnConfig

    @torch.no_grad()
    def allocate(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) at the mean actions and prices (B, E), without gradients."""
        means, prices = self(problem)
        return self.splits(means, problem), prices

    def splits(self, means: Tensor, problem: Problem) -> Tensor:
        """Convert actions (B, D, K) to splits (B, D, K) by a softmax over each demand's live paths.

        Under objectives that maximise value, a reject option has the action 0.
        """
        maximises_value = problem.objective.maximises_value
        return action_splits(
            means, problem.path_mask, maximises_value=maximises_value, clamp=self.clamp
        )

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return next(self.parameters()).dtype
