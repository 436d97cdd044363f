"""The learner ``direct``: the gradient of the surrogate, without exploration."""

from __future__ import annotations

from torch import Tensor

from teal.learning.losses import reward
from teal.nn.flow_models import FlowModel
from teal.problem import Problem


def direct_loss(model: FlowModel, problem: Problem, means: Tensor) -> Tensor:
    """Minus the reward of the policy's means, (B,).

    Args:
        model: whose actions they are.
        means: (B, D, K) from the policy.
    """
    return -reward(problem, model.splits(means, problem))
