"""Recorded optimiser steps against those without a recording, on a GPU, or on a stand-in for one
whose recorded graphs are replayed over the same memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.problem import Problem
from teal.runtime import cuda
from teal.testing import random_problem
from teal_study.learning.learners import make_coma, register_learner
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import Trainer
from tests.stand_in_gpu import PLAIN, any_gpu, without_recordings

pytestmark = [
    pytest.mark.system,
    pytest.mark.usefixtures("quick_simulator"),
]

_MOST_LAUNCHES = 12  # outside of graphs, of a step
_STEPS = 3  # the first is launched one by one, the second recorded, the third replayed
_ROUNDING = 1e-7  # of gradients
_MATRICES = 20  # 14 to train on


def _trainer(device: str, objective: str, **settings: object) -> Trainer:
    """A training on a network of four nodes."""
    problem = random_problem(0, num_paths=3, failed=0, idle=0.2, nodes=4, density=0.7, batch=1)
    rng = np.random.default_rng(1)
    demand = problem.demand.numpy()
    rates = demand * rng.uniform(0.3, 3, (_MATRICES, demand.shape[1]))
    pairs = problem.paths.pairs
    times = np.arange(_MATRICES).astype("datetime64[s]")
    traffic = TrafficMatrices("made", pairs, times, ArrayRates(rates), 1)
    config = TrainConfig(
        topology="-",
        traffic="-",
        out=Path("never-written"),
        **({"batch_size": 2, "from_": "none:layers=1,width=4"} | settings),  # type: ignore[arg-type]
    )
    made = Problem.create(
        problem.topology, problem.paths, objective, rates[:1], device=device, backend="cuda"
    )
    return Trainer(made, traffic, traffic.split(), config)


def _steps(trainer: Trainer) -> list[float]:
    """The losses of some steps."""
    losses: list[float] = []
    for _ in range(_STEPS):
        trainer.optimiser.rate = 1e-2 / (1 + trainer.state.step)
        losses += trainer.one_step().values()
        trainer.state.step += 1
    return losses


def _weights_that_count(trainer: Trainer) -> list[torch.Tensor]:
    """The weights, without those whose gradients are the rounding of 0: Adam divides a gradient by
    its size."""
    means = [value for name, value in trainer.optimiser.tensors().items() if "avg" in name][::2]
    return [
        weight.detach().cpu()
        for weight, mean in zip(trainer.model.parameters(), means, strict=True)
        if float(mean.abs().max()) > _ROUNDING
    ]


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("total_flow", {"learner": "coma:samples=1,episodes=1", "batch_size": 4, "micro_batch": 2}),
        ("max_link_utilisation", {"from_": "none:form=feedback,layers=1,width=4"}),
        ("latency_penalised_flow", {"model": "price", "from_": "none"}),
    ],
)
def test_recorded_steps_are_those_of_the_cpu(
    objective: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of rounds of PriceGNN are drawn for each step: here the same ones."""
    monkeypatch.setattr(
        "teal_study.learning.pretrain_price_gnn.random_rounds", lambda rng, usual: min(2, usual)
    )
    with without_recordings():
        plain = _trainer(PLAIN, objective, **settings)
        expected = _steps(plain)
    # As a GPU does, which has kernels over lists of tensors.
    module = sys.modules["torch.optim.adam"]
    monkeypatch.setattr(module, "_default_to_fused_or_foreach", lambda *_, **__: (False, True))
    with any_gpu() as counts:
        trainer = _trainer("cuda", objective, **settings)
        found = _steps(trainer)
        weights = _weights_that_count(trainer)
        counts.clear()
        trainer.one_step()
        if cuda.SIMULATED:
            assert counts["replayed"] >= len(("gradients", "norm", "update"))
            assert counts["launched"] <= _MOST_LAUNCHES
            assert counts["read"] + counts["copied"] == 1, "the losses and the norm"
            assert not counts["uploaded"]
    assert found == pytest.approx(expected, rel=1e-4)
    for one, other in zip(_weights_that_count(plain), weights, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-5)


def test_steps_of_a_registered_learner_are_not_recorded() -> None:
    """What it computes may depend on what it counts itself."""
    register_learner("counting", make_coma, replace=True)
    assert _trainer(PLAIN, "total_flow", learner="counting").task.form(0) is None
    assert _trainer(PLAIN, "total_flow").task.form(0) is not None
