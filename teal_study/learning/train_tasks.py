"""Training tasks on one network by kind of model: initial weights, losses, checkpoints.

Entry point: :func:`train_task`; :class:`TrainTask` is the interface.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from teal.errors import InputError
from teal.nn import checkpoint
from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn_config import UNIVERSAL, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.problem import Problem
from teal.runtime.storage import model_folder
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.schemes.price_gnn import PriceGnnScheme
from teal_study.learning import pretrain_price_gnn
from teal_study.learning.learners import is_built_in, make_learner
from teal_study.learning.losses import bound_loss
from teal_study.learning.network_pool import network_family
from teal_study.learning.noise import Noise
from teal_study.learning.settings import TrainOptions

# Default shapes of a FlowGNN with random weights.
_LAYERS = 6
_WIDTH = 8
_UNIVERSAL_WIDTH = 16


class TrainTask(Protocol):
    """Model, losses and checkpoint of one kind of model on one network.

    Attributes:
        kind: kind of the checkpoint, also required of an initial model.
        loss_names: names of the terms of :meth:`losses`.
        max_gradient_norm: maximum norm of the gradient; infinite for no limit.
    """

    kind: str
    loss_names: tuple[str, ...]
    max_gradient_norm: float

    @property
    def model(self) -> nn.Module:
        """The neural network in training."""
        ...

    @property
    def shapes(self) -> FlowGnnConfig | PriceGnnConfig:
        """Configuration that fixes the shapes of the model's weights."""
        ...

    def numbers_per_matrix(self, demands: int, paths: int) -> int:
        """Return the approximate size of the activations of one matrix, in numbers.

        It limits the matrices of a micro-batch.

        Args:
            demands: D.
            paths: K.
        """
        ...

    def form(self, step: int) -> Hashable | None:
        """Return a key of a step's computation, or None if it must not be recorded.

        A recording is replayed in all steps with the same key.
        """
        ...

    def losses(self, problem: Problem, noise: Noise, step: int) -> dict[str, Tensor]:
        """Return the losses by name, (B,) each; their sum is minimised.

        Args:
            problem: B matrices.
            noise: source of random numbers, one stream per matrix.
            step: index of the optimiser step.
        """
        ...

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and prices (B, E) of the model alone, for validations."""
        ...

    def save(self, out: Path, **progress: Any) -> None:
        """Write the checkpoint to the folder ``out``.

        Args:
            out: folder of the run.
            progress: fields of the card, such as step, train_s and validation.
        """
        ...


class _FlowTask:
    """Training of a FlowGNN with its policy on one network.

    Args:
        config: settings.
        problem: network, paths and objective.
        training: entry ``training`` of the card.
    """

    kind = checkpoint.FLOW_GNN_KIND
    loss_names: tuple[str, ...] = ("policy", "bound")
    max_gradient_norm = float("inf")

    def __init__(self, config: TrainOptions, problem: Problem, training: dict[str, Any]) -> None:
        self._config = config
        self._learner = make_learner(config.learner)
        self._scheme: FlowGnnScheme | None = None
        self.model: FlowModel = _initial_flow_model(config, problem)
        self._card = checkpoint.FlowGnnCard(
            self.model.config,
            str(problem.objective.name),
            problem.objective.epsilon,
            problem.topology.name,
            problem.topology.content_key(),
            config.learner,
            config.seed,
            training=training,
        )

    @property
    def shapes(self) -> FlowGnnConfig:
        return self.model.config

    def numbers_per_matrix(self, demands: int, paths: int) -> int:
        return demands * paths * self.model.config.width * self.model.config.layers

    def form(self, step: int) -> Hashable | None:
        # One key for all steps: their launches are equal.
        may_record = is_built_in(self._config.learner) and self.model.config.is_built_in
        return () if may_record else None

    def losses(self, problem: Problem, noise: Noise, step: int) -> dict[str, Tensor]:
        means, prices = self.model(problem)
        policy = self._learner(self.model, problem, means, noise, self._config)
        return {"policy": policy, "bound": bound_loss(problem, prices)}

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        if self._scheme is None:
            self._scheme = FlowGnnScheme(self.model, card=self._card)
        return self._scheme.start(problem)

    def save(self, out: Path, **progress: Any) -> None:
        checkpoint.save_flow_gnn(out, self.model, dataclasses.replace(self._card, **progress))


class _PriceTask:
    """Training of a PriceGNN on one network; the model still serves every network and objective.

    Args:
        config: settings.
        problem: network, paths and objective.
        training: entry ``training`` of the card.
    """

    kind = checkpoint.PRICE_GNN_KIND
    loss_names: tuple[str, ...] = ("allocation", "bound")
    max_gradient_norm = pretrain_price_gnn.PriceGnnTask.max_gradient_norm

    def __init__(self, config: TrainOptions, problem: Problem, training: dict[str, Any]) -> None:
        self._seed = config.seed
        self._scheme: PriceGnnScheme | None = None
        if config.start == "none":
            self.model = PriceGNN()
            networks = 1
            held_out = tuple[str, ...]()
        else:
            # The training network and its family are no longer held out.
            self.model, initial_card = checkpoint.load_price_gnn(model_folder(Path(config.start)))
            network_name = problem.topology.name.lower()
            networks = initial_card.networks + 1
            held_out = tuple(
                name for name in initial_card.held_out if network_family(name) not in network_name
            )
        # Step 0, after 0 s of training.
        self._card = checkpoint.PriceGnnCard(
            self.model.config,
            problem.paths.num_paths,
            networks,
            held_out,
            config.seed,
            0,
            0.0,
            topology=problem.topology.name,
            topology_key=problem.topology.content_key(),
            training=training,
        )

    @property
    def shapes(self) -> PriceGnnConfig:
        return self.model.config

    def numbers_per_matrix(self, demands: int, paths: int) -> int:
        return demands * paths * (self.model.config.rounds + self.model.config.bound_rounds)

    def form(self, step: int) -> tuple[int, int]:
        """Return the numbers of rounds of both passes in a step, drawn from (seed, step).

        All processes draw the same numbers.
        """
        rng = np.random.default_rng([self._seed, step])
        rounds = pretrain_price_gnn.random_rounds(rng, self.model.config.rounds)
        return rounds, pretrain_price_gnn.random_rounds(rng, self.model.config.bound_rounds)

    def losses(self, problem: Problem, noise: Noise, step: int) -> dict[str, Tensor]:
        rounds, prices = self.model(problem, *self.form(step))
        return pretrain_price_gnn.losses(problem, rounds, prices)

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        if self._scheme is None:
            self._scheme = PriceGnnScheme(self.model)
        return self._scheme.start(problem)

    def save(self, out: Path, **progress: Any) -> None:
        checkpoint.save_price_gnn(out, self.model, dataclasses.replace(self._card, **progress))


# Training tasks by the value of --model.
_TASKS: dict[str, type[_FlowTask] | type[_PriceTask]] = {
    "flow": _FlowTask,
    "price": _PriceTask,
}


def check_names(config: TrainOptions) -> None:
    """Check names in the settings before any computation.

    Raises:
        InputError: an unknown learner or form, or a missing initial model or one of another kind.
    """
    _ = make_learner(config.learner)
    if config.model == "flow" and config.start == "none":
        _new_model_config(config, num_paths=1)
    if config.start != "none":
        kind = _TASKS[config.model].kind
        stored_kind = checkpoint.kind_of(model_folder(Path(config.start)))
        if stored_kind != kind:
            raise InputError(
                "--from",
                config.start,
                f"a model of the kind {kind} with --model {config.model}",
                stored_kind,
            )


def train_task(config: TrainOptions, problem: Problem, training: dict[str, Any]) -> TrainTask:
    """Create the training task of ``--model``; seeds torch for random initial weights.

    Args:
        config: settings.
        problem: network, paths and objective.
        training: entry ``training`` of the model's card.

    Raises:
        InputError: the initial model is missing, or has another kind, objective or number of paths.
    """
    torch.manual_seed(config.seed)
    return _TASKS[config.model](config, problem, training)


def _new_model_config(config: TrainOptions, num_paths: int) -> FlowGnnConfig:
    """Return form and shape of a FlowGNN with random weights, with defaults filled in.

    Args:
        config: settings; empty or 0 for the defaults.
        num_paths: K.
    """
    shape = config.new_model_shape
    form = shape["form"] or UNIVERSAL
    width = shape["width"] or (_UNIVERSAL_WIDTH if form == UNIVERSAL else _WIDTH)
    return FlowGnnConfig(num_paths, shape["layers"] or _LAYERS, width, form)


def _initial_flow_model(config: TrainOptions, problem: Problem) -> FlowModel:
    """Create a FlowGNN with random weights, or load the initial model of ``--from``.

    Raises:
        InputError: the initial model has another objective or number of paths.
    """
    num_paths = problem.paths.num_paths
    if config.start == "none":
        return new_flow_model(_new_model_config(config, num_paths))
    folder = model_folder(Path(config.start))
    model, card = checkpoint.load_flow_gnn(folder)
    checkpoint.check_fits(card, folder, problem.objective)
    if not card.model.takes_any_paths and card.model.num_paths != num_paths:
        raise InputError.invalid(
            str(folder / checkpoint.MODEL_CARD),
            "num_paths",
            f"the model takes {card.model.num_paths} paths per demand, not {num_paths}",
            f"set --num-paths, or use a model of the form {UNIVERSAL}",
        )
    return model
