"""A learner of your own: REINFORCE (Williams 1992) in the place of COMA*, as `teal train --learner reinforce`.

python docs/examples/own_learner.py --topology b4 --traffic gravity:seed=0,count=40,load=4 \
    --learner reinforce --max-steps 100 --out runs/reinforce

All demands share the reward of their joint action; the mean of the other episodes is the baseline.
"""

import sys

import torch

import teal
from teal.cli import main
from teal.learning.losses import reward
from teal.learning.noise import Noise
from teal.learning.settings import TrainConfig
from teal.nn.flow_models import FlowModel


def reinforce(
    model: FlowModel, problem: teal.Problem, means: torch.Tensor, noise: Noise, config: TrainConfig
) -> torch.Tensor:
    """The loss (B,): minus the mean of advantage times log-likelihood; noise is (B, D, K) of a normal distribution."""
    actions = [means.detach() + config.std * noise.normal(means) for _ in range(max(2, config.episodes))]
    with torch.no_grad():
        rewards = torch.stack([reward(problem, model.splits(action, problem)) for action in actions])
        advantages = (rewards - rewards.mean(0)) * len(actions) / (len(actions) - 1)
        advantages = advantages / advantages.std(0).clamp(min=1e-6)
    loss = torch.zeros_like(rewards[0])
    for action, advantage in zip(actions, advantages, strict=True):
        log_likelihood = torch.where(problem.path_mask, -((action - means) ** 2) / (2 * config.std**2), 0)
        loss = loss - advantage * log_likelihood.mean((1, 2)) / len(actions)
    return loss


teal.register_learner("reinforce", reinforce)

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
