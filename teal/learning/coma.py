"""COMA* (Xu et al., "Teal", SIGCOMM 2023, section 3.3 and appendix B): policy gradient with counterfactual advantages.

Every demand i is an agent; an episode is one step; the reward R is shared.  The advantage of i's
action is R minus its expectation when i alone draws another action and all other actions stay:

    A_i = R(a) - E[R(a_-i, a_i')],   a_i' from i's policy.

R depends on i only through its flows f_i, and one demand is small compared with the network.  So the change
of R is taken to first order, for all demands at once:

    A_i = < dR/df_i, f_i - mean over the samples of f_i' >.

The map from actions to splits need not be differentiable: with ``entries`` above 0 the splits are the integer
weights of a split table (:mod:`teal.solvers.split_table`).  Rounded flows jump, and a demand whose paths are cut by
one factor loses on all of them when it starts to use an overloaded path; the first order misses that.

``tests/learning/test_coma.py`` compares the advantages with brute force on three nodes.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.learning.losses import reward
from teal.learning.noise import Noise
from teal.nn.policy import CLAMP, action_splits
from teal.problem import Problem
from teal.solvers.split_table import in_table


@dataclasses.dataclass(frozen=True)
class Exploration:
    """How COMA* explores.

    Attributes:
        std: standard deviation of the Gaussian policy; 1 in the paper.
        samples: actions drawn for the expectation; 5 in the paper.
        episodes: joint actions drawn for each matrix; 1 in the paper.  An episode costs one reward
            and its gradient, far less than the pass through the model, and the variance of the
            policy gradient falls as 1 / episodes.
        entries: of a split table that the splits are rounded to; 0 for none.
        clamp: actions are clamped to +- this.
    """

    std: float
    samples: int
    episodes: int
    entries: int = 0
    clamp: float = CLAMP

    def execute(self, problem: Problem, actions: Tensor) -> Tensor:
        """Actions (B, D, K) -> splits (B, D, K)."""
        maximises_value = problem.objective.maximises_value
        splits = action_splits(actions, problem.path_mask, maximises_value=maximises_value, clamp=self.clamp)
        return in_table(splits, self.entries) if self.entries else splits


def sample_actions(means: Tensor, std: float, noise: Noise) -> Tensor:
    """Actions (B, D, K) from the Gaussian policy N(means, std^2)."""
    return means.detach() + std * noise.normal(means)


def advantages(problem: Problem, means: Tensor, actions: Tensor, exploration: Exploration, noise: Noise) -> Tensor:
    """A_i as above, with ``exploration.samples`` draws of each agent's action: (B, D), without gradient."""
    splits = exploration.execute(problem, actions).detach().requires_grad_()
    (slope,) = torch.autograd.grad(reward(problem, splits, cut_demands_whole=exploration.entries > 0).sum(), splits)
    expected = torch.zeros_like(splits)
    for _ in range(exploration.samples):
        expected += exploration.execute(problem, sample_actions(means, exploration.std, noise)) / exploration.samples
    return (slope * (splits - expected)).sum(-1).detach()


def coma_loss(problem: Problem, means: Tensor, exploration: Exploration, noise: Noise) -> Tensor:
    """The policy gradient loss, (B,): minus the sum over agents of A_i log pi(a_i), mean over episodes.

    Args:
        problem: B matrices.
        means: (B, D, K) from the policy.
        exploration: how to explore.
        noise: source of the actions.
    """
    loss = means.new_zeros(problem.batch)
    for _ in range(exploration.episodes):
        actions = sample_actions(means, exploration.std, noise)
        advantage = advantages(problem, means, actions, exploration, noise)
        log_density = -0.5 * ((actions - means) / exploration.std).square()
        loss = loss - (advantage * torch.where(problem.path_mask, log_density, 0).sum(-1)).sum(1) / exploration.episodes
    return loss
