"""Variants of Teal for benchmarks/paper.py: those of the ablation, each without one part, and those
of the sensitivity study, with other sizes.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import teal
from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn import TealModel
from teal.nn.flow_gnn_config import FEEDBACK, PUBLISHED, UNIVERSAL, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.policy import PriceHead
from teal.problem.problem import mean_capacity, mean_value
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import Trainer

_HIDDEN = 64  # neurons of each layer of the network without FlowGNN


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model and the settings of its training.

    Attributes:
        name: name in the table.
        form: form of FlowGNN, such as :data:`UNIVERSAL`.
        layers: number of layers of FlowGNN.
        width: width of FlowGNN's states.
        learner: ``coma`` or ``direct``.
        std: standard deviation of COMA's exploration.
        kind: ``flow``; ``dense``, a perceptron over all demands in place of FlowGNN; or ``global``,
            one policy over the states of all demands in place of one policy for each.
        policy_layers: number of hidden layers of the policy, for the form ``feedback``; 0 for the
            default policy of the form.
        policy_hidden: number of neurons of each hidden layer of the policy.
        admm_iterations: iterations of ADMM in the repair; -1 for the default number, 0 for none.
    """

    name: str
    form: str = UNIVERSAL
    layers: int = 6
    width: int = 8
    learner: str = "coma"
    std: float = 0.2
    kind: str = "flow"
    policy_layers: int = 0
    policy_hidden: int = 24
    admm_iterations: int = -1


ABLATIONS = (
    Variant("Teal: universal form, COMA*, ADMM"),
    Variant("the paper's form, COMA* as published", form=PUBLISHED, std=1.0),
    Variant("form feedback (K concatenated)", form=FEEDBACK),
    Variant("direct loss in place of COMA*", learner="direct"),
    Variant("without FlowGNN: a perceptron over all demands", kind="dense"),
    Variant("without a policy per demand: one for all", form=FEEDBACK, kind="global"),
    Variant("without ADMM", admm_iterations=0),
)
SENSITIVITIES = (
    *(Variant(f"{n} layers of FlowGNN", layers=n) for n in (2, 4, 6, 8)),
    *(Variant(f"width {n}", width=n) for n in (4, 8, 16)),
    *(
        Variant(f"{n} dense layers of the policy", form=FEEDBACK, policy_layers=n)
        for n in (1, 2, 4)
    ),
    *(
        Variant(f"{n} neurons in the policy", form=FEEDBACK, policy_layers=1, policy_hidden=n)
        for n in (8, 24, 64)
    ),
    *(Variant(f"{n} iterations of ADMM", admm_iterations=n) for n in (0, 2, 5, 10, 20)),
)


class _DenseModel(FlowModel):
    """A perceptron from all demands and capacities to the actions of all demands, without weights
    that demands share.

    Args:
        problem: problem of the network, for the numbers of demands, paths and links.
    """

    def __init__(self, problem: teal.Problem) -> None:
        super().__init__()
        demands, paths = problem.paths.leaf.shape
        self.config = FlowGnnConfig(paths, form=FEEDBACK)
        links = problem.topology.num_links
        self.net = nn.Sequential(
            nn.Linear(demands + links, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.SiLU()
        )
        self.actions = nn.Linear(_HIDDEN, demands * paths)
        self.prices = nn.Linear(_HIDDEN, links)
        self.shape = demands, paths

    def forward(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Return the actions, (B, D, K), from which splits are made, and the link
        prices, (B, E).
        """
        unit = mean_capacity(problem).clamp(min=1e-30)
        states = self.net(torch.cat([problem.demand / unit, problem.capacity / unit], 1))
        # Softplus makes prices positive; the shift by 3 makes them small before training.
        prices = nn.functional.softplus(self.prices(states) - 3) * mean_value(problem)
        return self.actions(states).unflatten(1, self.shape), prices


class _GlobalPolicyModel(TealModel):
    """FlowGNN with one policy over the states of all paths of all demands together.

    Args:
        config: settings of FlowGNN.
        problem: problem of the network, for the numbers of demands and paths.
    """

    def __init__(self, config: FlowGnnConfig, problem: teal.Problem) -> None:
        super().__init__(config)
        demands, paths = problem.paths.leaf.shape
        self.together = nn.Sequential(
            nn.Linear(demands * paths * config.width, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, demands * paths),
        )
        self.policy = _GlobalPolicy(self.together, (demands, paths))  # type: ignore[assignment]
        self.price_head = PriceHead(self.flow_gnn.link_width)


class _GlobalPolicy(nn.Module):
    """Policy from the states of all paths to the actions of all demands.

    Args:
        net: network from the flattened states to the flattened actions.
        shape: numbers of demands and of paths a demand, (D, K).
    """

    def __init__(self, net: nn.Module, shape: tuple[int, int]) -> None:
        super().__init__()
        self.net = net
        self.shape = shape

    def forward(self, path: Tensor) -> Tensor:
        """Return the actions, (B, D, K), for the path states of a batch, (B, D, K, F)."""
        actions: Tensor = self.net(path.flatten(1)).unflatten(1, self.shape)
        return actions


def _model(variant: Variant, problem: teal.Problem) -> FlowModel:
    """Return the untrained model of a variant, for the network of a problem."""
    if variant.kind == "dense":
        return _DenseModel(problem)
    config = FlowGnnConfig(problem.paths.num_paths, variant.layers, variant.width, variant.form)
    if variant.kind == "global":
        return _GlobalPolicyModel(config, problem)
    model = new_flow_model(config)
    if variant.policy_layers:
        assert isinstance(model, TealModel)
        # Replace the policy by one with the variant's hidden layers.
        inputs = config.num_paths * config.width
        layers = []
        for _ in range(variant.policy_layers):
            layers += [nn.Linear(inputs, variant.policy_hidden), nn.SiLU()]
            inputs = variant.policy_hidden
        model.policy.net = nn.Sequential(*layers, nn.Linear(inputs, config.num_paths))
    return model


def trained(
    variant: Variant, problem: teal.Problem, traffic: Any, split: Any, seconds: float, seed: int
) -> tuple[FlowModel, int]:
    """Train the model of a variant for a given time, and keep the weights of the last step.

    Args:
        variant: model and settings of the training.
        problem: problem of one matrix, for the network and its paths.
        traffic: matrices.
        split: rows of the matrices for training, validation and test.
        seconds: time of the training, s.
        seed: seed of the weights and the training.

    Returns:
        the model in evaluation mode, and the number of optimiser steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Random initial weights.  COMA as published (std 1) draws one joint action per matrix,
        # COMA* draws four.
        config = TrainConfig(
            topology="",
            traffic="",
            out=Path(folder),
            from_="none",
            learner=variant.learner
            if variant.learner == "direct"
            else f"coma:std={variant.std},episodes={1 if variant.std == 1 else 4}",
            batch_size=20,
            seed=seed,
        )
        trainer = Trainer(problem, traffic, split, config)
        torch.manual_seed(seed)
        model = _model(variant, problem)
        trainer.task.model = model.train()  # type: ignore[misc]
        trainer.reset_optimiser()
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            trainer.one_step()
            trainer.state.step += 1
    return model.eval(), trainer.state.step
