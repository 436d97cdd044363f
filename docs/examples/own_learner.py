"""A learner of your own: REINFORCE (Williams 1992) in the place of COMA*: `teal train --learner reinforce:episodes=8`.

python docs/examples/own_learner.py --topology b4 --traffic gravity:seed=0,count=40,load=4 \
    --learner reinforce:episodes=8 --max-steps 100 --out runs/reinforce

All demands share the reward of their joint action; the mean of the other episodes is the baseline.
"""

import sys
from typing import Any

import torch

import teal
from teal.command import main
from teal.extend import FlowModel, Spec
from teal_study.learning.learners import Learner
from teal_study.learning.losses import reward
from teal_study.learning.noise import Noise
from teal_study.learning.settings import TrainOptions


def make(spec: Spec) -> Learner:
    """The learner of `reinforce[:episodes=5,std=0.2]`; the one name that an entry point in the group teal.learners needs."""
    options: Any = spec.parse_options(episodes=5, std=0.2)

    def reinforce(
        model: FlowModel,
        problem: teal.Problem,
        means: torch.Tensor,
        noise: Noise,
        config: TrainOptions,
    ) -> torch.Tensor:
        return loss_of(model, problem, means, noise, options["std"], max(2, options["episodes"]))

    return reinforce


def loss_of(
    model: FlowModel,
    problem: teal.Problem,
    means: torch.Tensor,
    noise: Noise,
    std: float,
    episodes: int,
) -> torch.Tensor:
    """The loss (B,): minus the mean of advantage times log-likelihood; noise is (B, D, K) of a normal distribution."""
    actions = [means.detach() + std * noise.normal(means) for _ in range(episodes)]
    with torch.no_grad():
        rewards = torch.stack(
            [reward(problem, model.splits(action, problem)) for action in actions]
        )
        advantages = (rewards - rewards.mean(0)) * len(actions) / (len(actions) - 1)
        advantages = advantages / advantages.std(0).clamp(min=1e-6)
    loss = torch.zeros_like(rewards[0])
    for action, advantage in zip(actions, advantages, strict=True):
        log_likelihood = torch.where(problem.path_mask, -((action - means) ** 2) / (2 * std**2), 0)
        loss = loss - advantage * log_likelihood.mean((1, 2)) / len(actions)
    return loss


if __name__ == "__main__":
    teal.register_learner("reinforce", make)
    sys.exit(main(["train", *sys.argv[1:]]))
