"""The training of a model for any network, on many networks: the loop, whatever the model."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from teal.app.command import Notify, Outcome
from teal.app.run_files import RESUME_HINT, save_settings
from teal.app.settings import seconds
from teal.learning import run_state
from teal.learning.coma import Exploration, coma_loss
from teal.learning.loop import Budget, Stopwatch, set_cosine_rate, train_until
from teal.learning.losses import bound_loss, reward, reward_scale
from teal.learning.network_pool import (
    ANY_LOAD,
    CONGESTED,
    NetworkPool,
    draw_problem,
    pool_network,
    topohub_pool,
)
from teal.learning.noise import Stream
from teal.learning.pretrain_price_gnn import PriceGnnTask
from teal.learning.settings import PretrainConfig
from teal.learning.steps import clipped_step
from teal.learning.train_command import FILES
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.nn.flow_gnn_config import UNIVERSAL, FlowGnnConfig
from teal.nn.universal_flow_gnn import UniversalFlowGnn
from teal.problem import Problem
from teal.runtime.device import pick_device
from teal.runtime.storage import check_out_folder, model_folder
from teal.spec import Registry, Spec, parse_spec

_TENTATIVE_PASSES = 3  # passes before the last one whose rewards are part of the loss
_TENTATIVE_WEIGHT = 1 / 16  # of each of them, beside 1 for the last pass


class FlowGnnTask:
    """The training of FlowGNN: a :class:`teal.learning.pretrain.PretrainTask`.

    Args:
        config: the settings.
    """

    scheme = "teal"
    max_gradient_norm = 0.3

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config

    def new_model(self) -> nn.Module:
        """A universal FlowGNN with random weights, or those to start from.

        Raises:
            InputError: what to start from is of another form.
        """
        config = self._config
        if config.from_ == "none":
            return UniversalFlowGnn(
                FlowGnnConfig(config.num_paths, config.layers, config.width, UNIVERSAL)
            )
        folder = model_folder(Path(config.from_))
        model, card = checkpoint.load_flow_gnn(folder)
        checkpoint.check_is_universal(card, folder)
        return model.train()

    def loss(self, model: nn.Module, problem: Problem, rng: np.random.Generator) -> Tensor:
        """() mean loss of the matrices: rewards of the last passes, or COMA* of the last one, and
        the bound.
        """
        assert isinstance(model, UniversalFlowGnn)
        config = self._config
        scale = reward_scale(problem)
        actions, prices = model.tentative(problem)
        total = bound_loss(problem, prices) / scale
        for tentative in actions[-1 - _TENTATIVE_PASSES : -1]:
            total = (
                total
                - _TENTATIVE_WEIGHT * reward(problem, model.splits(tentative, problem)) / scale
            )
        if config.learner == "direct":
            total = total - reward(problem, model.splits(actions[-1], problem)) / scale
        else:
            exploration = Exploration(config.std, entries=config.entries, clamp=model.clamp)
            noise = Stream(int(rng.integers(2**31)), problem.demand.device)
            means = torch.where(problem.path_mask, actions[-1], 0)
            total = total + coma_loss(problem, means, exploration, noise) / scale
        return total.mean()

    def save(self, out: Path, model: nn.Module, **fields: object) -> None:
        """Write the checkpoint; ``fields`` are the card fields that record its provenance."""
        assert isinstance(model, UniversalFlowGnn)
        card = checkpoint.FlowGnnCard(
            model.config,
            checkpoint.ANY,
            0.0,
            checkpoint.ANY,
            "",
            self._config.learner,
            entries=self._config.entries,
            **fields,  # type: ignore[arg-type]
        )
        checkpoint.save_flow_gnn(out, model, card)


_NETWORKS_PER_STEP = 3
_DEMANDS_PER_STEP = (
    2500  # demands of one network in a step, approximately: small networks get several matrices
)
_MAX_MATRICES = 6  # matrices of one network in a step
_WARM_UP_STEPS = 50  # steps until the learning rate reaches its full value
_FINAL_SHARE = 0.02  # share of the full learning rate at the end of its cosine
_AVERAGE_DECAY = (
    0.998  # a step: of the exponential mean of the weights, which is what the checkpoint contains
)
_SAVE_EVERY_S = 60.0  # seconds between two saves


class PretrainTask(Protocol):
    """The differences between the models that are trained on many networks.

    Attributes:
        scheme: scheme that uses the model.
        max_gradient_norm: longer gradients are shortened to it.
    """

    scheme: str
    max_gradient_norm: float

    def new_model(self) -> nn.Module:
        """The model to train; its shapes are in ``config``."""
        ...

    def loss(self, model: nn.Module, problem: Problem, rng: np.random.Generator) -> Tensor:
        """() mean loss of a problem's matrices; what is random comes from ``rng``."""
        ...

    def save(self, out: Path, model: nn.Module, **fields: object) -> None:
        """Write the checkpoint, with the card fields that record its provenance."""
        ...


_TASKS: dict[str, Callable[[PretrainConfig], PretrainTask]] = {
    "price": PriceGnnTask,
    "flow": FlowGnnTask,
}


class Pretrainer:
    """Trains one model.

    Step n draws its networks and matrices from (seed, n) alone, so that a resumed run continues
    with the same.

    Args:
        config: the settings.
        networks: to train on; None for those of topohub.
    """

    def __init__(self, config: PretrainConfig, networks: NetworkPool | None = None) -> None:
        self.config = config
        self.networks = networks or topohub_pool()
        torch.manual_seed(config.seed)
        self.task = _TASKS[config.model](config)
        self.device = pick_device(config.device)
        self.model = self.task.new_model().to(self.device)
        self.average = copy.deepcopy(self.model)  # exponential mean of the weights
        self.optimiser = Adam(self.model.parameters(), config.learning_rate)
        self.step = 0
        self.elapsed_s = 0.0
        self._budget = Budget(seconds(config.time_budget), config.max_steps)

    def train(self, out: Path, progress: bool = True) -> None:
        """Train until the time budget or the step limit; writes to ``out`` every minute and at the
        end.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the current step is done and everything is written.
        """
        out.mkdir(parents=True, exist_ok=True)
        stopwatch = Stopwatch(self.elapsed_s)
        last_save = time.perf_counter()

        def step(bar: Any) -> None:
            nonlocal last_save
            bar.set_postfix(loss=f"{self.one_step():.4f}", refresh=False)
            self.elapsed_s = stopwatch.elapsed_s()
            if time.perf_counter() - last_save > _SAVE_EVERY_S:
                self.save(out)
                last_save = time.perf_counter()

        train_until(
            lambda: self._budget.is_used_up(self.step, self.elapsed_s),
            step,
            lambda: self.save(out),
            steps_done=self.step,
            max_steps=self._budget.max_steps,
            show=progress,
        )

    def one_step(self) -> float:
        """One optimiser step over a few networks; the mean loss."""
        config = self.config
        rng = np.random.default_rng([self.config.seed, self.step])
        draws = CONGESTED if config.aim == "start" else ANY_LOAD
        set_cosine_rate(
            self.optimiser,
            config.learning_rate,
            self.step,
            self._budget.share_used(self.step, self.elapsed_s),
            warm_up_steps=_WARM_UP_STEPS,
            final_share=_FINAL_SHARE,
        )
        self.optimiser.zero_grad()
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        for _ in range(_NETWORKS_PER_STEP):
            name = self.networks.pick(rng, draws)
            demands = pool_network(name, config.num_paths)[1].num_demands
            batch = int(np.clip(round(_DEMANDS_PER_STEP / demands), 1, _MAX_MATRICES))
            problem = draw_problem(
                rng, name, batch, config.num_paths, device=self.device, draws=draws
            )
            mean = self.task.loss(self.model, problem, rng) / _NETWORKS_PER_STEP
            mean.backward()
            total += mean.detach()
        (loss,) = clipped_step(
            self.optimiser, self.model, self.task.max_gradient_norm, self.step, total
        )
        self.step += 1
        # Larger in the first steps.
        new_share = 1 - min(_AVERAGE_DECAY, self.step / (9 + self.step))
        with torch.no_grad():
            for averaged, weight in zip(
                self.average.parameters(), self.model.parameters(), strict=True
            ):
                averaged.lerp_(weight, new_share)
        return loss

    def save(self, out: Path) -> None:
        """Write the checkpoint, and the state to resume from."""
        self.task.save(
            out,
            self.average,
            networks=len(self.networks.train),
            held_out=self.networks.held_out,
            seed=self.config.seed,
            step=self.step,
            train_s=round(self.elapsed_s, 1),
        )
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("average", self.average.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        fields = {"step": self.step, "elapsed_s": self.elapsed_s, "config": self._shapes()}
        run_state.save_run(out, tensors, fields)

    def resume(self, out: Path) -> None:
        """Continue from what :meth:`save` wrote.

        Raises:
            InputError: no state there, or that of a model of other shapes.
        """
        tensors, fields = run_state.load_run_of(out, self._shapes())
        self.model.load_state_dict(run_state.without_prefix("model", tensors))
        self.average.load_state_dict(run_state.without_prefix("average", tensors))
        self.optimiser.load(run_state.without_prefix("adam", tensors))
        self.step = int(fields["step"])
        self.elapsed_s = float(fields["elapsed_s"])

    def _shapes(self) -> dict[str, Any]:
        """The settings that must stay when a run is resumed, for the weights to fit."""
        return dataclasses.asdict(self.model.config)  # type: ignore[call-overload]


def run_pretrain(config: PretrainConfig) -> Pretrainer:
    """Train, from the start or from the state in OUT.

    Raises:
        InputError: invalid settings, or an earlier run in OUT that must not be replaced.
    """
    if not config.resume:
        check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)
    trainer = Pretrainer(config)
    if config.resume:
        trainer.resume(config.out)
    save_settings(config)
    trainer.train(config.out)
    return trainer


Pretraining = Callable[[PretrainConfig, Spec, Notify], Outcome]
"""Trains a kind of model, of the settings and the specification of ``--model``."""


def _pretrain(config: PretrainConfig, spec: Spec, _: Notify) -> Outcome:
    spec.parse_options()
    trainer = run_pretrain(config)
    train = len(trainer.networks.train)
    held_out = len(trainer.networks.held_out)
    return Outcome(
        text=f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s on {train} "
        f"networks, {held_out} held "
        f"out; try it with: teal evaluate --scheme {trainer.task.scheme} --model {config.out}",
        data={
            "out": str(config.out),
            "steps": trainer.step,
            "elapsed_s": trainer.elapsed_s,
            "networks": train,
            "held_out": held_out,
        },
    )


# By the name of --model; packages announce further kinds by entry points.
KINDS: Registry[Pretraining] = Registry(
    "kind of model", "teal.pretraining", {"price": _pretrain, "flow": _pretrain}
)


def pretrain_outcome(config: PretrainConfig, notify: Notify) -> Outcome:
    """`teal pretrain`.

    Raises:
        InputError: a kind that nobody knows, or what its training refuses.
    """
    spec = parse_spec(config.model)
    return KINDS[spec.name](config, spec, notify)
