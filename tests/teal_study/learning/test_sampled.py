"""Training on samples: the expected gradient is that of all demands."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.nn.flow_gnn_config import FlowGnnConfig
from teal.nn.universal_flow_gnn import UniversalFlowGnn
from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers.pdhg.samples import sample
from teal_study.learning.losses import reward, total_demand_value
from teal_study.learning.settings import TrainConfig
from teal_study.learning.steps import sampled
from teal_study.learning.train import Trainer, TrainState, sample_size


def _problem(load: float) -> Problem:
    topology = load_topology("topohub:sndlib/geant")
    traffic = load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
    return Problem.create(
        topology, compute_paths(topology, traffic.pairs), Objective(), traffic.read([0])
    )


def test_without_congestion_the_mean_gradient_over_samples_is_that_of_all_demands() -> None:
    """Free splits in place of a model: gradients of sampled demands, at their raised rates, add up
    to those of all."""
    problem = _problem(load=0.2)
    rng = np.random.default_rng(0)
    splits = torch.from_numpy(rng.uniform(0.1, 0.2, problem.path_mask.shape)) * problem.path_mask
    whole = splits.clone().requires_grad_()
    (reward(problem, whole) * total_demand_value(problem)).sum().backward()
    total, count = torch.zeros_like(splits), 400
    for stream in range(count):
        drawn = sample.draw(problem, 120, stream=stream)
        part = splits[:, drawn.demands].clone().requires_grad_()
        (reward(drawn.problem, part) * total_demand_value(drawn.problem)).sum().backward()
        assert part.grad is not None
        total[:, drawn.demands] += part.grad / count
    assert whole.grad is not None
    # Per demand the estimate has a relative standard deviation of sqrt((1 - pi) / (pi 400)); over
    # all demands far less.
    assert abs(float(total.sum() / whole.grad.sum()) - 1) < 0.01
    chance = torch.zeros(problem.paths.num_demands, dtype=torch.float64)
    demands, pi = sample.draw_demands(problem.demand[0].numpy(), problem.paths.num_demands - 1)
    chance[torch.from_numpy(demands)] = torch.from_numpy(pi)
    often = problem.demand[0] > problem.demand[0].median()
    ratio = total[0, often].sum(-1) / whole.grad[0, often].sum(-1)
    assert float((ratio - 1).abs().mean()) < 0.15


def test_the_mean_gradient_of_a_model_approaches_that_of_all_demands_with_the_size_of_the_sample() -> (
    None
):
    problem = _problem(load=3.0).to(torch.float32)
    torch.manual_seed(0)
    model = UniversalFlowGnn(FlowGnnConfig(layers=2, width=8))

    def gradient(one: Problem) -> torch.Tensor:
        model.zero_grad()
        means, _ = model(one)
        (-reward(one, model.splits(means, one))).sum().backward()
        return torch.cat(
            [
                (torch.zeros_like(w) if w.grad is None else w.grad).flatten()
                for w in model.parameters()
            ]
        )

    whole, errors, cosines = gradient(problem), [], []
    for size in (40, 160):
        gradients = [
            gradient(sampled(problem, problem.demand, size, stream)) for stream in range(60)
        ]
        mean = torch.stack(gradients).mean(0)
        errors.append(float((mean - whole).norm() / whole.norm()))
        cosines.append(float(torch.cosine_similarity(mean, whole, 0)))
    assert cosines[1] > 0.97
    assert errors[1] < 0.3
    assert errors[1] < errors[0]


def test_large_networks_are_sampled_and_training_on_samples_resumes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,count=20,load=3", topology)
    problem = Problem.create(
        topology, compute_paths(topology, traffic.pairs), Objective(), traffic.read([0])
    )

    def trainer(steps: int) -> Trainer:
        config = TrainConfig(
            topology="b4",
            traffic="-",
            out=tmp_path,
            from_="none:layers=1",
            sample=60,
            batch_size=2,
            max_steps=steps,
            validate_every=5,
        )
        assert sample_size(config, problem) == 60
        return Trainer(problem, traffic, traffic.split(), config)

    whole = trainer(6)
    whole.train(tmp_path / "whole", progress=False)
    first = trainer(6)

    def watch(state: TrainState) -> None:
        if state.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        first.train(tmp_path / "parts", progress=False, watch=watch)
    second = trainer(6)
    second.resume(tmp_path / "parts")
    second.train(tmp_path / "parts", progress=False)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert sample_size(TrainConfig(topology="b4", traffic="-", out=tmp_path), problem) == 0
