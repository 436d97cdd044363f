"""The learner ``direct``: the gradient of the surrogate, without exploration."""

from __future__ import annotations

from torch import Tensor

from teal.learning.losses import reward
from teal.nn.policy import action_splits
from teal.problem import Problem


def direct_loss(problem: Problem, means: Tensor) -> Tensor:
    """Minus the reward of the policy's means, (B,).

    Args:
        means: (B, D, K) from the policy.
    """
    return -reward(problem, action_splits(means, problem.path_mask, maximises_value=problem.objective.maximises_value))
