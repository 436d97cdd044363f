"""The training of a PriceGNN, on many networks."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.config import PretrainConfig, seconds
from teal.learning import run_state
from teal.learning.coma import Exploration, coma_loss
from teal.learning.loop import Budget, Stopwatch, clipped_step, set_cosine_rate, train_until
from teal.learning.losses import bound_loss, reward, total_demand_value
from teal.learning.network_pool import NetworkPool, draw_problem, pool_network, topohub_pool
from teal.learning.noise import Stream
from teal.nn import checkpoint
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig, Round
from teal.problem import Problem
from teal.problem.scale import mean_value
from teal.runtime.device import pick_device
from teal.runtime.storage import model_folder

_NETWORKS_PER_STEP = 3
_DEMANDS_PER_STEP = 2500  # demands of one network in a step, approximately: small networks get several matrices
_MAX_MATRICES = 6  # matrices of one network in a step
_LAST_ROUND_WEIGHT = 4.0  # in the loss; every other round of the second half has weight 1 / rounds
_DUAL_WEIGHT = 0.3  # of the smoothed dual in the loss, beside the reward
_MAX_GRADIENT_NORM = 0.1
_COMA_SAMPLES, _COMA_EPISODES = 5, 4  # of `Exploration`
_WARM_UP_STEPS = 50  # steps until the learning rate reaches its full value
_FINAL_SHARE = 0.02  # share of the full learning rate at the end of its cosine
_AVERAGE_DECAY = 0.998  # a step: of the exponential mean of the weights, which is what the checkpoint contains
_SAVE_EVERY_S = 60.0  # seconds between two saves


def loss(problem: Problem, rounds: list[Round], bound_prices: Tensor) -> Tensor:
    """(B,) loss: rewards of the rounds' splits, their smoothed duals, and the bound.

    The smoothed dual of prices p at temperature t,

        sum_e c[e] p[e] + t sum_d demand[d] log(1 + sum_k exp((v[d, k] - price(d, k)) / t)),

    has the derivative capacity - load in each price, so that unlike the reward it has a gradient for every link.

    Args:
        problem: B matrices.
        rounds: of the allocating pass.
        bound_prices: (B, E) of the bounding pass.
    """
    carries_all, scale = problem.demand_set.carries_all, _reward_scale(problem)
    last_half = rounds[len(rounds) // 2 :]
    weights = [1.0 / len(rounds)] * (len(last_half) - 1) + [_LAST_ROUND_WEIGHT]
    total = torch.zeros_like(problem.demand[:, 0])
    for result, weight in zip(last_half, weights, strict=True):
        total = total - weight * reward(problem, result.splits) / scale
        if not carries_all:
            total = total + weight * _DUAL_WEIGHT * _smoothed_dual(problem, result)
    return total / sum(weights) + bound_loss(problem, bound_prices) / scale


def _reward_scale(problem: Problem) -> Tensor | float:
    """(B,) by which the rewards of the balanced programs are divided: the utilisation of even splits; else 1."""
    if not problem.demand_set.carries_all:
        return 1.0
    return problem.utilisation(problem.even_splits).amax(1).clamp(min=1e-9)


def _smoothed_dual(problem: Problem, result: Round) -> Tensor:
    """(B,) the smoothed dual above, over the value of all demand."""
    logits = torch.where(problem.path_mask, result.profit / result.temperature, -torch.inf)
    logits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)  # the reject option, which is never masked
    profit = mean_value(problem) * result.temperature * torch.logsumexp(logits, -1)
    dual = problem.capacity_value(result.prices) + (problem.demand * profit).sum(1)
    return dual / total_demand_value(problem)


def _random_rounds(rng: np.random.Generator, usual: int) -> int:
    """A number of rounds from a quarter of the usual number to 5/4 of it."""
    return int(rng.integers(max(1, usual // 4), usual + usual // 4 + 1))


class Pretrainer:
    """Trains one PriceGNN.

    Step n draws its networks and matrices from (seed, n) alone, so that a resumed run continues with the same.

    Args:
        config: the settings.
        networks: to train on; None for those of topohub.
    """

    def __init__(self, config: PretrainConfig, networks: NetworkPool | None = None) -> None:
        self.config, self.networks = config, networks or topohub_pool()
        torch.manual_seed(config.seed)
        self.model = PriceGNN(PriceGnnConfig(config.hidden, config.rounds, config.bound_rounds))
        if config.init:
            self.model = checkpoint.load_price_gnn(model_folder(Path(config.init)))[0].train()
        self.device = pick_device(config.device)
        self.model.to(self.device)
        self.average = PriceGNN(self.model.config).to(self.device)  # exponential mean of the weights
        self.average.load_state_dict(self.model.state_dict())
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        self.step, self.elapsed_s = 0, 0.0
        self._budget = Budget(seconds(config.time_budget), config.max_steps)

    def train(self, out: Path, progress: bool = True) -> None:
        """Train until the time budget or the step limit; writes to ``out`` every minute and at the end.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the current step is done and everything is written.
        """
        out.mkdir(parents=True, exist_ok=True)
        stopwatch, last_save = Stopwatch(self.elapsed_s), time.perf_counter()

        def step(bar: Any) -> None:
            nonlocal last_save
            bar.set_postfix(loss=f"{self.one_step():.4f}", refresh=False)
            self.elapsed_s = stopwatch.elapsed_s()
            if time.perf_counter() - last_save > _SAVE_EVERY_S:
                self.save(out)
                last_save = time.perf_counter()

        train_until(
            lambda: self._budget.is_used_up(self.step, self.elapsed_s), step, lambda: self.save(out),
            steps_done=self.step, max_steps=self._budget.max_steps, show=progress,
        )  # fmt: skip

    def one_step(self) -> float:
        """One optimiser step over a few networks; the mean loss."""
        config, rng = self.config, np.random.default_rng([self.config.seed, self.step])
        set_cosine_rate(
            self.optimiser, config.learning_rate, self.step, self._budget.share_used(self.step, self.elapsed_s),
            warm_up_steps=_WARM_UP_STEPS, final_share=_FINAL_SHARE,
        )  # fmt: skip
        self.optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(_NETWORKS_PER_STEP):
            name = self.networks.pick(rng)
            demands = pool_network(name, config.num_paths)[1].num_demands
            batch = int(np.clip(round(_DEMANDS_PER_STEP / demands), 1, _MAX_MATRICES))
            problem = draw_problem(rng, name, batch, config.num_paths, device=self.device)
            counts = (_random_rounds(rng, usual) for usual in (config.rounds, config.bound_rounds))
            rounds, prices = self.model(problem, *counts)
            mean = loss(problem, rounds, prices).mean() / _NETWORKS_PER_STEP
            if config.learner == "coma":
                mean = mean + self._coma_loss(problem, rounds[-1], int(rng.integers(2**31))) / _NETWORKS_PER_STEP
            mean.backward()
            total += float(mean.detach())
        clipped_step(self.optimiser, self.model, _MAX_GRADIENT_NORM, self.step)
        self.step += 1
        new_share = 1 - min(_AVERAGE_DECAY, self.step / (9 + self.step))  # larger in the first steps
        with torch.no_grad():
            for averaged, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                averaged.lerp_(weight, new_share)
        return total

    def _coma_loss(self, problem: Problem, last: Round, seed: int) -> Tensor:
        """() policy gradient loss of the last round: each demand's logits are the means of a Gaussian policy."""
        config = self.config
        exploration = Exploration(config.std, _COMA_SAMPLES, _COMA_EPISODES, config.entries, clamp=math.inf)
        means = torch.where(problem.path_mask, last.profit / last.temperature, 0)
        return (coma_loss(problem, means, exploration, Stream(seed, self.device)) / _reward_scale(problem)).mean()

    def save(self, out: Path) -> None:
        """Write the checkpoint, and the state to resume from."""
        card = checkpoint.PriceGnnCard(
            model=self.model.config, num_paths=self.config.num_paths, networks=len(self.networks.train),
            held_out=self.networks.held_out, seed=self.config.seed, step=self.step, train_s=round(self.elapsed_s, 1),
        )  # fmt: skip
        checkpoint.save_price_gnn(out, self.average, card)
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("average", self.average.state_dict())
        tensors |= run_state.optimiser_tensors(self.optimiser)
        fields = {"step": self.step, "elapsed_s": self.elapsed_s, "config": dataclasses.asdict(self.model.config)}
        run_state.save_run(out, tensors, fields)

    def resume(self, out: Path) -> None:
        """Continue from what :meth:`save` wrote.

        Raises:
            InputError: no state there, or that of a model of other shapes.
        """
        tensors, fields = run_state.load_run_of(out, dataclasses.asdict(self.model.config))
        self.model.load_state_dict(run_state.without_prefix("model", tensors))
        self.average.load_state_dict(run_state.without_prefix("average", tensors))
        run_state.load_optimiser(self.optimiser, tensors)
        self.step, self.elapsed_s = int(fields["step"]), float(fields["elapsed_s"])
