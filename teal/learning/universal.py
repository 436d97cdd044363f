"""Training of a PriceGNN over a universe of networks."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from teal.config import PretrainConfig, seconds
from teal.device import pick_device
from teal.errors import InputError
from teal.interrupts import Interrupted, interrupts_wait
from teal.learning import checkpoint
from teal.learning.coma import Exploration, coma_loss
from teal.learning.losses import bound_loss, demand_value, reward
from teal.learning.noise import Stream
from teal.learning.universe import Universe, draw, network, universe
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig, Round
from teal.problem import Problem
from teal.storage import model_folder

_NETWORKS = 3  # a step
_ENTRIES, _MOST_MATRICES = 2500, 6  # demands of one network a step, and matrices at most
_LAST = 4.0  # weight of the last round; those of the second half have 1 / rounds each
_SMOOTHED = 0.3  # weight of the smoothed dual
_CLIP = 0.1
_SAMPLES, _EPISODES = 5, 4  # of coma
_WARM_UP, _COLD = 50, 0.02  # steps to the full learning rate; share of it that is left in the end
_AVERAGE = 0.998  # of the weights that are kept, an exponential mean over steps
_SAVE_EVERY_S = 60.0


def loss(problem: Problem, rounds: list[Round], bound_prices: Tensor) -> Tensor:
    """(B,) of the rounds' allocations, their smoothed duals, and the bound.

    The smoothed dual of prices p at temperature t,

        sum_e c[e] p[e] + t sum_d demand[d] log(1 + sum_k exp((v[d, k] - price(d, k)) / t)),

    has the slope capacity - load in each price: unlike the reward it pulls at every link.
    """
    balanced, unit = problem.objective.is_balanced, _unit(problem)
    half = rounds[len(rounds) // 2 :]
    weights = [1.0 / len(rounds)] * (len(half) - 1) + [_LAST]
    total = torch.zeros_like(problem.demand[:, 0])
    for now, weight in zip(half, weights, strict=True):
        total = total - weight * reward(problem, now.splits) / unit
        if not balanced:
            total = total + weight * _SMOOTHED * _smoothed_dual(problem, now)
    return total / sum(weights) + bound_loss(problem, bound_prices) / unit


def _unit(problem: Problem) -> Tensor | float:
    """(B,) in which rewards of the balanced programs are of order 1: the utilisation of even splits."""
    if not problem.objective.is_balanced:
        return 1.0
    return problem.utilisation(problem.even_splits).amax(1).clamp(min=1e-9)


def _smoothed_dual(problem: Problem, now: Round) -> Tensor:
    logits = torch.where(problem.path_mask, now.profit / now.temperature, -torch.inf)
    logits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)  # rejecting; never all of them infinite
    profit = problem.mean_value * now.temperature * torch.logsumexp(logits, -1)
    return ((problem.capacity * now.prices).sum(1) + (problem.demand * profit).sum(1)) / demand_value(problem)


def _around(rng: np.random.Generator, usual: int) -> int:
    """From a quarter of the usual number of rounds to 5/4 of it."""
    return int(rng.integers(max(1, usual // 4), usual + usual // 4 + 1))


class Pretrainer:
    """Step n draws its networks and matrices from (seed, n) alone, so that a resumed run goes on with the same."""

    def __init__(self, config: PretrainConfig, networks: Universe | None = None) -> None:
        self.config, self.networks = config, networks or universe()
        torch.manual_seed(config.seed)
        self.model = PriceGNN(PriceGnnConfig(config.hidden, config.rounds, config.bound_rounds))
        if config.init:
            self.model = checkpoint.load_price_model(model_folder(Path(config.init)))[0].train()
        self.device = pick_device(config.device)
        self.model.to(self.device)
        self.average = PriceGNN(self.model.config).to(self.device)
        self.average.load_state_dict(self.model.state_dict())
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate)
        self.step, self.elapsed_s, self._budget_s = 0, 0.0, seconds(config.time_budget)

    def train(self, out: Path, progress: bool = True) -> None:
        """Until the time budget or the step limit; writes to ``out`` every minute and at the end.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the step at hand is done and everything is written.
        """
        out.mkdir(parents=True, exist_ok=True)
        begin, spent, saved = time.perf_counter(), self.elapsed_s, time.perf_counter()
        with interrupts_wait() as stop_here, tqdm(desc="training", unit="step", disable=not progress) as bar:
            bar.update(self.step)
            try:
                while not self._finished():
                    stop_here()
                    bar.set_postfix(loss=f"{self.one_step():.4f}", refresh=False)
                    bar.update()
                    self.elapsed_s = spent + time.perf_counter() - begin
                    if time.perf_counter() - saved > _SAVE_EVERY_S:
                        self.save(out)
                        saved = time.perf_counter()
            except Interrupted:
                self.save(out)
                raise
        self.save(out)

    def _finished(self) -> bool:
        config = self.config
        return self.elapsed_s >= self._budget_s or bool(config.max_steps and self.step >= config.max_steps)

    def one_step(self) -> float:
        """One optimiser step over a few networks; the mean loss."""
        config, rng = self.config, np.random.default_rng([self.config.seed, self.step])
        done = self.step / config.max_steps if config.max_steps else self.elapsed_s / self._budget_s
        rate = min(1.0, (self.step + 1) / _WARM_UP)
        rate *= _COLD + (1 - _COLD) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        for group in self.optimiser.param_groups:
            group["lr"] = config.learning_rate * rate
        self.optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(_NETWORKS):
            name = self.networks.pick(rng)
            demands = network(name, config.num_paths)[1].num_demands
            batch = int(np.clip(round(_ENTRIES / demands), 1, _MOST_MATRICES))
            problem = draw(rng, name, batch, config.num_paths, device=self.device)
            counts = (_around(rng, usual) for usual in (config.rounds, config.bound_rounds))
            rounds, prices = self.model(problem, *counts)
            mean = loss(problem, rounds, prices).mean() / _NETWORKS
            if config.learner == "coma":
                mean = mean + self._coma(problem, rounds[-1], int(rng.integers(2**31))) / _NETWORKS
            mean.backward()
            total += float(mean.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        if not bool(torch.isfinite(norm)):
            where = f"step {self.step}"
            raise InputError("training", where, "a finite gradient; try a lower --learning-rate", float(norm))
        self.optimiser.step()
        self.step += 1
        share = 1 - min(_AVERAGE, self.step / (9 + self.step))
        with torch.no_grad():
            for mean_weight, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean_weight.lerp_(weight, share)
        return total

    def _coma(self, problem: Problem, last: Round, seed: int) -> Tensor:
        """() the policy gradient of the answer: each demand's logits are the means of a Gaussian policy."""
        how = Exploration(self.config.std, _SAMPLES, _EPISODES, self.config.entries, clamp=math.inf)
        means = torch.where(problem.path_mask, last.profit / last.temperature, 0)
        found = coma_loss(problem, means, how, Stream(seed, self.device))
        return (found / _unit(problem)).mean()

    def save(self, out: Path) -> None:
        """Write the model, and the state to go on from."""
        card = checkpoint.PriceCard(
            model=self.model.config, num_paths=self.config.num_paths, networks=len(self.networks.train),
            held_out=self.networks.held_out, seed=self.config.seed, step=self.step, train_s=round(self.elapsed_s, 1),
        )  # fmt: skip
        checkpoint.save_price_model(out, self.average, card)
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        tensors |= checkpoint.optimiser_tensors(self.optimiser)
        text = {"step": self.step, "elapsed_s": self.elapsed_s, "config": dataclasses.asdict(self.model.config)}
        checkpoint.save_run(out, {k: v.detach().cpu().clone() for k, v in tensors.items()}, text)

    def resume(self, out: Path) -> None:
        """Go on from what :meth:`save` wrote.

        Raises:
            InputError: nothing there, or the state of another kind of model.
        """
        tensors, text = checkpoint.load_run(out)
        expected = dataclasses.asdict(self.model.config)
        checkpoint.require_same(out, text.get("config"), expected)
        self.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        self.average.load_state_dict({k[8:]: v for k, v in tensors.items() if k.startswith("average.")})
        checkpoint.load_optimiser(self.optimiser, tensors)
        self.step, self.elapsed_s = int(text["step"]), float(text["elapsed_s"])
