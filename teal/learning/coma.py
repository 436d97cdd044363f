"""COMA* (Teal, section 3.3 and appendix B): multi-agent policy gradient with counterfactual advantages.

Every demand i is an agent; an episode is one step; the reward R is shared.  The advantage of what i
did is R minus its expectation when i alone acts again and all others stay:

    A_i = R(a) - E[R(a_-i, a_i')],   a_i' from i's policy.

R depends on i through its flows f_i alone, and one demand is small beside the network; so the change
is taken to first order, for all demands at once:

    A_i = < dR/df_i, f_i - mean over the samples of f_i' >.

No derivative of how an action becomes splits is asked for, so it may have none: with ``entries`` above 0 what is
executed are the integer weights of a split table (:mod:`teal.solvers.split_table`).  Rounded flows jump, and a
demand whose paths are cut together loses at once where it opens a crowded path; the first order does not see that.

``tests/learning/test_coma.py`` holds this against brute force on three nodes.
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
    """How COMA* tries things out.

    Attributes:
        std: of the Gaussian policy; 1 in the paper.
        samples: draws for the expectation; 5 in the paper.
        episodes: joint actions tried for each matrix; 1 in the paper.  An episode costs one reward
            and its gradient, far less than the pass through the network, and the variance of the
            policy gradient falls as 1 / episodes.
        entries: of a split table that rounds what is done; 0 for none.
        clamp: of actions.
    """

    std: float
    samples: int
    episodes: int
    entries: int = 0
    clamp: float = CLAMP

    def execute(self, problem: Problem, actions: Tensor) -> Tensor:
        """Actions (B, D, K) -> splits (B, D, K)."""
        shed = problem.objective.maximises_value
        splits = action_splits(actions, problem.path_mask, may_shed=shed, clamp=self.clamp)
        return in_table(splits, self.entries) if self.entries else splits


def sample_actions(means: Tensor, std: float, noise: Noise) -> Tensor:
    """Actions (B, D, K) from the Gaussian policy N(means, std^2)."""
    return means.detach() + std * noise.normal(means)


def advantages(problem: Problem, means: Tensor, actions: Tensor, how: Exploration, noise: Noise) -> Tensor:
    """A_i as above, with ``how.samples`` draws of each agent's action: (B, D), no gradient."""
    splits = how.execute(problem, actions).detach().requires_grad_()
    (slope,) = torch.autograd.grad(reward(problem, splits, together=how.entries > 0).sum(), splits)
    expected = torch.zeros_like(splits)
    for _ in range(how.samples):
        expected += how.execute(problem, sample_actions(means, how.std, noise)) / how.samples
    return (slope * (splits - expected)).sum(-1).detach()


def coma_loss(problem: Problem, means: Tensor, how: Exploration, noise: Noise) -> Tensor:
    """The policy gradient loss, (B,): minus the sum over agents of A_i log pi(a_i), mean over episodes.

    Args:
        means: (B, D, K) from the policy.
    """
    loss = means.new_zeros(problem.batch)
    for _ in range(how.episodes):
        actions = sample_actions(means, how.std, noise)
        advantage = advantages(problem, means, actions, how, noise)
        log_density = -0.5 * ((actions - means) / how.std).square()
        loss = loss - (advantage * torch.where(problem.path_mask, log_density, 0).sum(-1)).sum(1) / how.episodes
    return loss
