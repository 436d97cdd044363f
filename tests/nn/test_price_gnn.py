"""PriceGNN against LP bounds, its symmetries, and its fused rounds against plain torch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.lp_all import LpAll
from teal.network import all_pairs, compute_paths
from teal.nn import PriceGNN, PriceGnnConfig
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import dual_bound
from teal.schemes.price_gnn import PriceGnnScheme, PriceGnnSchemeConfig
from teal.testing import assert_batch_equals_loop, assert_feasible, make_topology, random_problem

SMALL = PriceGnnConfig(hidden=8, rounds=4, bound_rounds=2)


def _model(seed: int = 0) -> PriceGNN:
    """Random weights, those of the last layers too."""
    torch.manual_seed(seed)
    model = PriceGNN(SMALL)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(ObjectiveName),
    failed=st.sampled_from([0, 2, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
    num_paths=st.integers(1, 5),
)
def test_whatever_its_weights_the_answer_is_feasible_and_certified(
    seed: int, objective: ObjectiveName, failed: int, idle: float, num_paths: int
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed, idle=idle, num_paths=num_paths)
    allocation = PriceGnnScheme(_model(seed)).solve(problem)
    assert_feasible(problem, allocation)
    measured, optimum = assess(problem, allocation), assess(problem, LpAll().solve(problem)).value
    up = problem.objective.higher_is_better
    assert ((measured.bound - optimum) * (1 if up else -1) >= -1e-7 * optimum.abs().clamp(min=1)).all()
    assert torch.isfinite(measured.gap).all()


@pytest.mark.parametrize("objective", list(ObjectiveName))
def test_a_batch_is_the_matrices_one_by_one(objective: ObjectiveName) -> None:
    problem = random_problem(3, objective=objective, failed=1)
    assert_batch_equals_loop(PriceGnnScheme(_model()), problem, tolerance=1e-4)


@pytest.mark.parametrize("objective", list(ObjectiveName))
def test_units_of_rates_change_nothing(objective: ObjectiveName) -> None:
    problem = random_problem(4, objective=objective)
    larger = problem.with_demand(problem.demand * 1000).with_capacity(problem.capacity * 1000)
    model = PriceGnnScheme(_model())
    torch.testing.assert_close(model.solve(larger).splits, model.solve(problem).splits, atol=1e-4, rtol=1e-4)


def test_names_of_nodes_and_links_change_nothing() -> None:
    """A one-way ring with a chord, where no two paths are equally short; nodes and links in another order."""
    rng = np.random.default_rng(0)
    links = [(i, (i + 1) % 7, float(rng.uniform(1, 3))) for i in range(7)] + [(0, 3, 2.0)]
    rename, order = rng.permutation(7), rng.permutation(len(links))
    moved = [(int(rename[links[i][0]]), int(rename[links[i][1]]), links[i][2]) for i in order]
    loads = []
    for own, names in ((links, np.arange(7)), (moved, rename)):
        topology = make_topology(own)
        paths = compute_paths(topology, all_pairs(topology), num_paths=1, cache=False)
        rate = np.random.default_rng(1).uniform(0.2, 1, (7, 7))
        back = np.argsort(names)
        demand = rate[back[paths.pairs[:, 0]], back[paths.pairs[:, 1]]]
        problem = Problem.create(topology, paths, Objective(), demand, dtype=torch.float32)
        rounds, _ = _model()(problem)
        loads.append(problem.loads(rounds[-1].splits)[0])
    torch.testing.assert_close(loads[1], loads[0][torch.from_numpy(order)], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("objective", list(ObjectiveName))
def test_every_weight_is_learnt(objective: ObjectiveName) -> None:
    from teal.learning.pretrain import loss

    problem = random_problem(1, objective=objective, failed=1).to(torch.float32)
    model = _model().train()
    loss(problem, *model(problem)).mean().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        if name != "encoder.2.bias":
            assert weight.grad.abs().max() > 0, name


def test_a_start_of_pdhg_is_never_worse_than_the_answer_alone() -> None:
    problem = random_problem(7)
    alone = assess(problem, PriceGnnScheme(_model()).solve(problem))
    config = PriceGnnSchemeConfig(repair="pdhg", iterations=4, gap=0.0)
    repaired = assess(problem, PriceGnnScheme(_model(), config).solve(problem))
    assert (repaired.gap <= alone.gap + 1e-9).all()


def test_the_smoothed_dual_is_a_bound() -> None:
    from teal.learning.losses import total_demand_value
    from teal.learning.pretrain import _smoothed_dual

    problem = random_problem(2, failed=1)
    rounds, _ = _model().double()(problem)
    smoothed = _smoothed_dual(problem, rounds[-1]) * total_demand_value(problem)
    assert (smoothed >= dual_bound(problem, rounds[-1].prices) - 1e-9).all(), "log sum exp is above the maximum"


def test_a_configuration_names_its_shapes() -> None:
    config = dataclasses.replace(SMALL, rounds=2)
    assert len(PriceGNN(config)(random_problem(0).to(torch.float32))[0]) == 3


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(ObjectiveName),
    failed=st.sampled_from([0, 2, 99]),
    num_paths=st.integers(1, 5),
)
def test_the_fused_rounds_compute_what_torch_does(
    seed: int, objective: ObjectiveName, failed: int, num_paths: int
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed, num_paths=num_paths).to(torch.float32)
    model = _model(seed)
    rounds, prices = model(problem)
    with torch.no_grad():
        fused, fused_prices = model(problem)
    assert len(fused) == 1
    torch.testing.assert_close(fused[-1].splits, rounds[-1].splits.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fused_prices, prices.detach(), atol=1e-4, rtol=1e-4)
