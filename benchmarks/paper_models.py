"""Variants of Teal for benchmarks/paper.py: what the ablation removes, and the shapes that the
sensitivity varies.
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
from teal.learning.settings import TrainConfig
from teal.learning.train import Trainer
from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn import TealModel
from teal.nn.flow_gnn_config import FEEDBACK, PUBLISHED, UNIVERSAL, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.policy import PriceHead
from teal.problem.problem import mean_capacity, mean_value

_HIDDEN = 64  # neurons of each layer of the network without FlowGNN


@dataclasses.dataclass(frozen=True)
class Variant:
    """A model and how it learns.

    Attributes:
        name: in the table.
        form: of FlowGNN.
        layers: of FlowGNN.
        width: of its states.
        learner: ``coma`` or ``direct``.
        std: of the exploration of coma.
        kind: ``flow``; ``dense``, a perceptron over all demands in place of FlowGNN; or ``global``,
            one policy over the states of all demands in place of one policy for each.
        policy_layers: hidden layers of the policy, of the form ``feedback``; 0 for its own policy.
        policy_hidden: neurons of each.
        admm_iterations: of the repair; -1 for the usual number, 0 for none.
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


class _Dense(FlowModel):
    """A perceptron from all demands and capacities to the actions of all demands: no weights are
    shared.
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
        unit = mean_capacity(problem).clamp(min=1e-30)
        states = self.net(torch.cat([problem.demand / unit, problem.capacity / unit], 1))
        prices = nn.functional.softplus(self.prices(states) - 3) * mean_value(problem)
        return self.actions(states).unflatten(1, self.shape), prices


class _Global(TealModel):
    """FlowGNN, and one linear policy over the states of all paths of all demands together."""

    def __init__(self, config: FlowGnnConfig, problem: teal.Problem) -> None:
        super().__init__(config)
        demands, paths = problem.paths.leaf.shape
        self.together = nn.Sequential(
            nn.Linear(demands * paths * config.width, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, demands * paths),
        )
        self.policy = _Together(self.together, (demands, paths))  # type: ignore[assignment]
        self.price_head = PriceHead(self.flow_gnn.link_width)


class _Together(nn.Module):
    def __init__(self, net: nn.Module, shape: tuple[int, int]) -> None:
        super().__init__()
        self.net = net
        self.shape = shape

    def forward(self, path: Tensor) -> Tensor:
        actions: Tensor = self.net(path.flatten(1)).unflatten(1, self.shape)
        return actions


def _model(variant: Variant, problem: teal.Problem) -> FlowModel:
    if variant.kind == "dense":
        return _Dense(problem)
    config = FlowGnnConfig(problem.paths.num_paths, variant.layers, variant.width, variant.form)
    if variant.kind == "global":
        return _Global(config, problem)
    model = new_flow_model(config)
    if variant.policy_layers:
        assert isinstance(model, TealModel)
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
    """The model of a variant after so many seconds of training, and the number of steps; the last
    weights are kept.
    """
    with tempfile.TemporaryDirectory() as folder:
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
        trainer.start_anew()
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            trainer.one_step()
            trainer.state.step += 1
    return model.eval(), trainer.state.step
