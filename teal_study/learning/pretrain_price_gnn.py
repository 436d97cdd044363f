"""Training of a PriceGNN on many networks: initial model, losses, checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from teal.nn import checkpoint
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig, Round
from teal.problem import Problem
from teal.problem.problem import mean_value
from teal.runtime.storage import model_folder
from teal_study.learning.coma import Exploration, coma_loss
from teal_study.learning.losses import bound_loss, reward, reward_scale, total_demand_value
from teal_study.learning.noise import Stream
from teal_study.learning.settings import PretrainConfig

# Weight of the last round in the loss; every other round of the second half has 1 / rounds.
_LAST_ROUND_WEIGHT = 4.0
# Weight of the smoothed dual in the loss, relative to the reward.
_DUAL_WEIGHT = 0.3
# For starts of PDHG, the weight of a matrix in the loss is 0.02 / (gap + 0.01): relative
# improvements of a small gap then count as much as those of a large one.
_GAP_SCALE = 0.02
_GAP_FLOOR = 0.01


class PriceGnnTask:
    """Training of a PriceGNN on many networks, a
    :class:`teal_study.learning.pretrain.PretrainTask`.

    Args:
        config: settings.
    """

    scheme = "price-gnn"
    max_gradient_norm = 0.1

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config

    def new_model(self) -> nn.Module:
        """Create a PriceGNN with random weights, or load the initial model of ``--from``."""
        config = self._config
        model = PriceGNN(PriceGnnConfig(config.hidden))
        if config.from_ != "none":
            model = checkpoint.load_price_gnn(model_folder(Path(config.from_)))[0]
        default = model.config
        return model.with_rounds(
            config.rounds or default.rounds, config.bound_rounds or default.bound_rounds
        ).train()

    def loss(self, model: nn.Module, problem: Problem, rng: np.random.Generator) -> Tensor:
        """Return the mean loss of the matrices, ().

        It is the sum of negative rewards and smoothed duals of the rounds, and of the dual bound;
        with the learner coma also of the COMA* loss of the last round.  The numbers of rounds are
        random.

        Args:
            model: a PriceGNN.
            problem: B matrices.
            rng: source of the numbers of rounds and of the exploration noise.
        """
        assert isinstance(model, PriceGNN)
        config = self._config
        shapes = model.config
        # Numbers of rounds of the allocating and of the bounding pass, losses, and their sum.
        round_counts = (
            random_rounds(rng, default) for default in (shapes.rounds, shapes.bound_rounds)
        )
        rounds, prices = model(problem, *round_counts)
        losses_by_name = losses(problem, rounds, prices)
        matrix_weight = (
            _weight_of_start(problem, rounds[-1], losses_by_name["bound"])
            if config.aim == "start"
            else 1.0
        )
        mean = (matrix_weight * torch.stack(list(losses_by_name.values())).sum(0)).mean()
        if config.learner == "coma":
            mean = mean + self._coma_loss(problem, rounds[-1], int(rng.integers(2**31)))
        return mean

    def _coma_loss(self, problem: Problem, last: Round, seed: int) -> Tensor:
        """Return the COMA* loss of a round, (): its logits are the means of a Gaussian policy.

        Args:
            problem: B matrices.
            last: the last round of the allocating pass.
            seed: seed of the exploration noise.
        """
        exploration = Exploration(self._config.std, entries=self._config.entries, clamp=math.inf)
        means = torch.where(problem.path_mask, last.profit / last.temperature, 0)
        noise = Stream(seed, problem.demand.device)
        return (coma_loss(problem, means, exploration, noise) / reward_scale(problem)).mean()

    def save(self, out: Path, model: nn.Module, **fields: object) -> None:
        """Write the checkpoint to ``out``; ``fields`` are the card's fields on the training run."""
        assert isinstance(model, PriceGNN)
        card = checkpoint.PriceGnnCard(
            model=model.config,
            num_paths=self._config.num_paths,
            **fields,  # type: ignore[arg-type]
        )
        checkpoint.save_price_gnn(out, model, card)


def losses(problem: Problem, rounds: list[Round], bound_prices: Tensor) -> dict[str, Tensor]:
    """Return the losses of a PriceGNN by name, (B,) each; training adds them up.

    ``allocation``: weighted rewards (negative) and smoothed duals of the second half of the rounds.
    ``bound``: dual bound at the prices of the bounding pass.

    The smoothed dual of prices p at temperature t,

        sum_e c[e] p[e] + t sum_d demand[d] log(1 + sum_k exp((v[d, k] - price(d, k)) / t)),

    with capacities c and path values v, has the derivative capacity - load in each price: unlike
    the reward, it has a gradient for every link.

    Args:
        problem: B matrices.
        rounds: rounds of the allocating pass.
        bound_prices: (B, E) prices of the bounding pass.
    """
    # Second half of the rounds: the last one has the weight 4, each other one 1 / rounds.
    carries_all = problem.demand_set.carries_all
    scale = reward_scale(problem)
    second_half = rounds[len(rounds) // 2 :]
    weights = [1.0 / len(rounds)] * (len(second_half) - 1) + [_LAST_ROUND_WEIGHT]
    allocation_loss = torch.zeros_like(problem.demand[:, 0])
    for round_result, weight in zip(second_half, weights, strict=True):
        allocation_loss = allocation_loss - weight * reward(problem, round_result.splits) / scale
        if not carries_all:
            allocation_loss = allocation_loss + weight * _DUAL_WEIGHT * _smoothed_dual(
                problem, round_result
            )
    return {
        "allocation": allocation_loss / sum(weights),
        "bound": bound_loss(problem, bound_prices) / scale,
    }


@torch.no_grad()
def _weight_of_start(problem: Problem, last: Round, bound: Tensor) -> Tensor:
    """Return the weight of each matrix in the loss, (B,): 0.02 / (gap + 0.01).

    Args:
        problem: B matrices.
        last: last round of the allocating pass; its reward is the value.
        bound: (B,) dual bound as a share of the value of all demand.
    """
    gap = (bound - reward(problem, last.splits) / reward_scale(problem)).clamp(min=0)
    return _GAP_SCALE / (gap + _GAP_FLOOR)


def _smoothed_dual(problem: Problem, round_result: Round) -> Tensor:
    """Return the smoothed dual of a round, (B,), over the value of all demand.

    The smoothed dual is
    sum_e c p + t sum_d demand log(1 + sum_k exp((value - path price) / t)),
    with capacities c, prices p and the temperature t.
    """
    logits = torch.where(
        problem.path_mask, round_result.profit / round_result.temperature, -torch.inf
    )
    # An additional path of profit 0 stands for demand that is not carried: its logit is 0.
    logits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)
    smoothed_profit = mean_value(problem) * round_result.temperature * torch.logsumexp(logits, -1)
    dual = problem.capacity_value(round_result.prices) + (problem.demand * smoothed_profit).sum(1)
    return dual / total_demand_value(problem)


def random_rounds(rng: np.random.Generator, default: int) -> int:
    """Draw a number of rounds between 1/4 and 5/4 of the default number."""
    return int(rng.integers(max(1, default // 4), default + default // 4 + 1))
