"""Training of a model for any network, on problems drawn from many networks (``teal pretrain``).

Main classes: :class:`Pretrainer`, the training loop; :class:`PretrainTask`, the part that depends
on the kind of model; :class:`FlowGnnTask`.
"""

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
from teal.nn import checkpoint
from teal.nn.adam import Adam
from teal.nn.flow_gnn_config import UNIVERSAL, FlowGnnConfig
from teal.nn.universal_flow_gnn import UniversalFlowGnn
from teal.problem import Problem
from teal.runtime.device import pick_device
from teal.runtime.storage import check_out_folder, model_folder
from teal.spec import Registry, Spec, parse_spec
from teal_study.learning import run_state
from teal_study.learning.coma import Exploration, coma_loss
from teal_study.learning.loop import Budget, Stopwatch, set_cosine_rate, train_until
from teal_study.learning.losses import bound_loss, reward, reward_scale
from teal_study.learning.network_pool import (
    ANY_LOAD,
    CONGESTED,
    NetworkPool,
    draw_problem,
    pool_network,
    topohub_pool,
)
from teal_study.learning.noise import Stream
from teal_study.learning.pretrain_price_gnn import PriceGnnTask
from teal_study.learning.settings import PretrainConfig
from teal_study.learning.steps import clipped_step
from teal_study.learning.train_command import FILES

# Number of layers before the last one whose rewards are part of the loss, and the weight of each
# of them; the last layer has the weight 1.
_NUM_TENTATIVE_LAYERS = 3
_TENTATIVE_WEIGHT = 1 / 16


class FlowGnnTask:
    """Training of a universal FlowGNN on many networks (a :class:`PretrainTask`).

    Args:
        config: settings.
    """

    scheme = "teal"
    max_gradient_norm = 0.3

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config

    def new_model(self) -> nn.Module:
        """Create a universal FlowGNN with random weights, or load the initial model of ``--from``.

        Raises:
            InputError: the initial model has another form.
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
        """Return the mean loss of the matrices, ().

        It is the dual bound at the model's prices, minus the rewards of the last layers' splits;
        with the learner coma, the COMA* loss replaces the reward of the last layer.

        Args:
            model: a universal FlowGNN.
            problem: B matrices.
            rng: seeds the exploration noise.
        """
        assert isinstance(model, UniversalFlowGnn)
        config = self._config
        scale = reward_scale(problem)
        actions, prices = model.tentative(problem)
        total_loss = bound_loss(problem, prices) / scale
        # Tentative splits of the layers before the last one, with a small weight.
        for layer_actions in actions[-1 - _NUM_TENTATIVE_LAYERS : -1]:
            total_loss = (
                total_loss
                - _TENTATIVE_WEIGHT * reward(problem, model.splits(layer_actions, problem)) / scale
            )
        if config.learner == "direct":
            total_loss = total_loss - reward(problem, model.splits(actions[-1], problem)) / scale
        else:
            exploration = Exploration(config.std, entries=config.entries, clamp=model.clamp)
            noise = Stream(int(rng.integers(2**31)), problem.demand.device)
            means = torch.where(problem.path_mask, actions[-1], 0)
            total_loss = total_loss + coma_loss(problem, means, exploration, noise) / scale
        return total_loss.mean()

    def save(self, out: Path, model: nn.Module, **fields: object) -> None:
        """Write the checkpoint to ``out``; ``fields`` are the card's fields on the training run."""
        assert isinstance(model, UniversalFlowGnn)
        # Any objective, without a latency penalty; any network, without a content key.
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


# Number of networks in a step.
_NETWORKS_PER_STEP = 3
# Approximate number of demands of one network in a step: small networks get several matrices.
_DEMANDS_PER_STEP = 2500
# Maximum number of matrices of one network in a step.
_MAX_MATRICES = 6
# Steps until the learning rate reaches its full value.
_WARM_UP_STEPS = 50
# Share of the full learning rate at the end of its cosine.
_FINAL_SHARE = 0.02
# Decay per step of the exponential moving average of the weights, which the checkpoint contains.
_WEIGHT_AVERAGE_DECAY = 0.998
# Seconds between two saves.
_SAVE_EVERY_S = 60.0


class PretrainTask(Protocol):
    """Model, loss and checkpoint of one kind of model that is trained on many networks.

    Attributes:
        scheme: name of the scheme that uses the model.
        max_gradient_norm: maximum norm of the gradient; larger gradients are scaled down.
    """

    scheme: str
    max_gradient_norm: float

    def new_model(self) -> nn.Module:
        """Create the model to train; its attribute ``config`` holds the shapes."""
        ...

    def loss(self, model: nn.Module, problem: Problem, rng: np.random.Generator) -> Tensor:
        """Return the mean loss of a problem's matrices, (); ``rng`` is the source of randomness."""
        ...

    def save(self, out: Path, model: nn.Module, **fields: object) -> None:
        """Write the checkpoint to ``out``; ``fields`` are the card's fields on the training run."""
        ...


_TASKS: dict[str, Callable[[PretrainConfig], PretrainTask]] = {
    "price": PriceGnnTask,
    "flow": FlowGnnTask,
}


class Pretrainer:
    """Training loop of one model on many networks.

    The networks and matrices of step n depend on (seed, n) only, so that a resumed run continues
    with the same draws.

    Args:
        config: settings.
        networks: training networks; None for those of topohub.
    """

    def __init__(self, config: PretrainConfig, networks: NetworkPool | None = None) -> None:
        self.config = config
        self.networks = networks or topohub_pool()
        torch.manual_seed(config.seed)
        self.task = _TASKS[config.model](config)
        self.device = pick_device(config.device)
        self.model = self.task.new_model().to(self.device)
        # Exponential moving average of the weights.
        self.average = copy.deepcopy(self.model)
        self.optimiser = Adam(self.model.parameters(), config.learning_rate)
        self.step = 0
        self.elapsed_s = 0.0
        self._budget = Budget(seconds(config.time_budget), config.max_steps)

    def train(self, out: Path, progress: bool = True) -> None:
        """Train until the time budget or the step limit is used up.

        Checkpoint and state are saved to ``out`` every minute and at the end.

        Args:
            out: folder of the run.
            progress: whether to show a progress bar.

        Raises:
            KeyboardInterrupt: on Ctrl-C, after the current step is done and the state is saved.
        """
        out.mkdir(parents=True, exist_ok=True)
        stopwatch = Stopwatch(self.elapsed_s)
        last_save = time.perf_counter()

        # One optimiser step; checkpoint and state are saved every minute.
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
        """Make one optimiser step over a few random networks; return the mean loss."""
        config = self.config
        rng = np.random.default_rng([self.config.seed, self.step])
        # A model that is to start a solver is trained on problems that take many iterations.
        problem_distribution = CONGESTED if config.aim == "start" else ANY_LOAD
        set_cosine_rate(
            self.optimiser,
            config.learning_rate,
            self.step,
            self._budget.share_used(self.step, self.elapsed_s),
            warm_up_steps=_WARM_UP_STEPS,
            final_share=_FINAL_SHARE,
        )
        # Accumulate the gradients of a problem on each of a few networks.
        self.optimiser.zero_grad()
        mean_loss = torch.zeros(1, dtype=torch.float64, device=self.device)
        for _ in range(_NETWORKS_PER_STEP):
            name = self.networks.pick(rng, problem_distribution)
            num_demands = pool_network(name, config.num_paths)[1].num_demands
            num_matrices = int(np.clip(round(_DEMANDS_PER_STEP / num_demands), 1, _MAX_MATRICES))
            problem = draw_problem(
                rng,
                name,
                num_matrices,
                config.num_paths,
                device=self.device,
                draws=problem_distribution,
            )
            network_loss = self.task.loss(self.model, problem, rng) / _NETWORKS_PER_STEP
            network_loss.backward()
            mean_loss += network_loss.detach()
        (loss,) = clipped_step(
            self.optimiser, self.model, self.task.max_gradient_norm, self.step, mean_loss
        )
        self.step += 1
        # Update the moving average of the weights.  The share of new weights is 9 / (9 + step), at
        # least 0.002, so that they count more in the first steps.
        new_share = 1 - min(_WEIGHT_AVERAGE_DECAY, self.step / (9 + self.step))
        with torch.no_grad():
            for average_weight, weight in zip(
                self.average.parameters(), self.model.parameters(), strict=True
            ):
                average_weight.lerp_(weight, new_share)
        return loss

    def save(self, out: Path) -> None:
        """Save the checkpoint with the averaged weights, and the state for a resume."""
        # The checkpoint: the averaged weights, for inference.
        self.task.save(
            out,
            self.average,
            networks=len(self.networks.train),
            held_out=self.networks.held_out,
            seed=self.config.seed,
            step=self.step,
            train_s=round(self.elapsed_s, 1),
        )
        # The state for a resume: current and averaged weights, and the optimiser's moments.
        tensors = run_state.with_prefix("model", self.model.state_dict())
        tensors |= run_state.with_prefix("average", self.average.state_dict())
        tensors |= run_state.with_prefix("adam", self.optimiser.tensors())
        fields = {"step": self.step, "elapsed_s": self.elapsed_s, "config": self._model_config()}
        run_state.save_run(out, tensors, fields)

    def resume(self, out: Path) -> None:
        """Load the state of an earlier run, to continue it.

        Args:
            out: folder of the run.

        Raises:
            InputError: the folder has no state, or that of a model with other shapes.
        """
        tensors, fields = run_state.load_run_of(out, self._model_config())
        self.model.load_state_dict(run_state.without_prefix("model", tensors))
        self.average.load_state_dict(run_state.without_prefix("average", tensors))
        self.optimiser.load(run_state.without_prefix("adam", tensors))
        self.step = int(fields["step"])
        self.elapsed_s = float(fields["elapsed_s"])

    def _model_config(self) -> dict[str, Any]:
        """Return the shapes of the model, which must be equal when a run is resumed."""
        return dataclasses.asdict(self.model.config)  # type: ignore[call-overload]


def run_pretrain(config: PretrainConfig) -> Pretrainer:
    """Train a PriceGNN or a FlowGNN on many networks, or resume the run in the folder OUT.

    Returns the trainer after the last step.

    Raises:
        InputError: invalid settings, or OUT has an earlier run and ``overwrite`` is not set.
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
"""Training of a kind of model, from settings, the specification of ``--model``, and a callback for
messages."""


def _pretrain(config: PretrainConfig, spec: Spec, _: Notify) -> Outcome:
    """Train a PriceGNN or a FlowGNN; return the result of the command."""
    spec.parse_options()
    trainer = run_pretrain(config)
    num_training = len(trainer.networks.train)
    num_held_out = len(trainer.networks.held_out)
    return Outcome(
        text=f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s on {num_training} "
        f"networks; {num_held_out} networks held "
        f"out; to evaluate: teal evaluate --scheme {trainer.task.scheme} --model {config.out}",
        data={
            "out": str(config.out),
            "steps": trainer.step,
            "elapsed_s": trainer.elapsed_s,
            "networks": num_training,
            "held_out": num_held_out,
        },
    )


# Kinds of models by the name of --model; packages declare further kinds as entry points.
KINDS: Registry[Pretraining] = Registry(
    "kind of model", "teal.pretraining", {"price": _pretrain, "flow": _pretrain}
)


def pretrain_outcome(config: PretrainConfig, notify: Notify) -> Outcome:
    """Run ``teal pretrain``; return its text and data.

    Raises:
        InputError: an unknown kind of model, or invalid settings of its training.
    """
    spec = parse_spec(config.model)
    return KINDS[spec.name](config, spec, notify)
