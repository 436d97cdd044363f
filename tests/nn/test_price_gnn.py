"""PriceGNN against LP-all optima and its symmetries, and its fused rounds against plain torch."""

from __future__ import annotations

import dataclasses

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.lp_all import LpAll
from teal.formats import load_topology, load_traffic
from teal.network import all_pairs, compute_paths
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import dual_bound
from teal.runtime import parallel
from teal.schemes.models import load_model
from teal.schemes.price_gnn import PriceGnnScheme, PriceGnnSchemeConfig
from teal.schemes.repair import BALANCED_GAP
from teal.testing import assert_batch_equals_loop, assert_feasible, make_topology, random_problem

SMALL = PriceGnnConfig(hidden=8, rounds=4, bound_rounds=2)


def _model(seed: int = 0) -> PriceGNN:
    """A PriceGNN with random weights, also in the last layers, which are initialised with zeros."""
    torch.manual_seed(seed)
    model = PriceGNN(SMALL)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


@pytest.mark.system
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 2, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
    num_paths=st.integers(1, 5),
)
def test_price_gnn_with_any_weights_is_feasible_and_certified(
    seed: int, objective: ObjectiveName, failed: int, idle: float, num_paths: int
) -> None:
    problem = random_problem(
        seed, objective=objective, failed=failed, idle=idle, num_paths=num_paths
    )
    allocation = PriceGnnScheme(_model(seed)).solve(problem)
    assert_feasible(problem, allocation)
    measured, optimum = assess(problem, allocation), assess(problem, LpAll().solve(problem)).value
    higher_is_better = problem.objective.may_shed
    assert (
        (measured.bound - optimum) * (1 if higher_is_better else -1)
        >= -1e-7 * optimum.abs().clamp(min=1)
    ).all()
    assert torch.isfinite(measured.gap).all()


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_price_gnn_on_a_batch_equals_its_matrices_one_by_one(objective: ObjectiveName) -> None:
    problem = random_problem(3, objective=objective, failed=1)
    scheme = PriceGnnScheme(_model())
    if not problem.demand_set.carries_all:
        assert_batch_equals_loop(scheme, problem, tolerance=1e-4)
        return
    # The iterations that balance the splits of the model end at a gap, which is looked at now and
    # then: of a batch at other iterations than of its matrices.
    splits, _ = scheme.start(problem)
    together = assess(problem, scheme.solve(problem))
    for row in range(problem.batch):
        one = problem.row(row)
        torch.testing.assert_close(splits[row], scheme.start(one)[0][0], atol=1e-5, rtol=1e-5)
        alone = assess(one, scheme.solve(one))
        if float(alone.gap) <= BALANCED_GAP:
            assert float(together.gap[row]) <= BALANCED_GAP
        else:
            torch.testing.assert_close(together.value[row], alone.value[0], rtol=1e-4, atol=0)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_price_gnn_does_not_depend_on_the_unit_of_rates(objective: ObjectiveName) -> None:
    problem = random_problem(4, objective=objective)
    larger = problem.with_demand(problem.demand * 1000).with_capacity(problem.capacity * 1000)
    model = PriceGnnScheme(_model())
    torch.testing.assert_close(
        model.solve(larger).splits, model.solve(problem).splits, atol=1e-4, rtol=1e-4
    )


def test_price_gnn_does_not_depend_on_the_order_of_nodes_and_links() -> None:
    """A directed ring with a chord, where all shortest paths are unique, against the same network
    renumbered."""
    rng = np.random.default_rng(0)
    links = [(i, (i + 1) % 7, float(rng.uniform(1, 3))) for i in range(7)] + [(0, 3, 2.0)]
    new_number, link_order = rng.permutation(7), rng.permutation(len(links))
    renumbered_links = [
        (int(new_number[links[i][0]]), int(new_number[links[i][1]]), links[i][2])
        for i in link_order
    ]
    loads = []
    for edges, numbers in ((links, np.arange(7)), (renumbered_links, new_number)):
        topology = make_topology(edges)
        paths = compute_paths(topology, all_pairs(topology), num_paths=1, cache=False)
        rate = np.random.default_rng(1).uniform(0.2, 1, (7, 7))
        original_number = np.argsort(numbers)
        demand = rate[original_number[paths.pairs[:, 0]], original_number[paths.pairs[:, 1]]]
        problem = Problem.create(topology, paths, Objective(), demand, dtype=torch.float32)
        rounds, _ = _model()(problem)
        loads.append(problem.loads(rounds[-1].splits)[0])
    torch.testing.assert_close(
        loads[1], loads[0][torch.from_numpy(link_order)], atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_every_weight_of_price_gnn_has_a_gradient(objective: ObjectiveName) -> None:
    from teal_study.learning.pretrain_price_gnn import losses

    problem = random_problem(1, objective=objective, failed=1).to(torch.float32)
    model = _model().train()
    torch.stack(list(losses(problem, *model(problem)).values())).mean().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        if name != "encoder.2.bias":
            assert weight.grad.abs().max() > 0, name


def test_price_gnn_with_pdhg_repair_is_never_worse_than_without() -> None:
    problem = random_problem(7)
    unrepaired = assess(problem, PriceGnnScheme(_model()).solve(problem))
    config = PriceGnnSchemeConfig(repair="pdhg", iterations=4, gap=0.0)
    repaired = assess(problem, PriceGnnScheme(_model(), config).solve(problem))
    assert (repaired.gap <= unrepaired.gap + 1e-9).all()


def test_the_smoothed_dual_of_pretraining_is_an_upper_bound() -> None:
    from teal_study.learning.losses import total_demand_value
    from teal_study.learning.pretrain_price_gnn import _smoothed_dual

    problem = random_problem(2, failed=1)
    rounds, _ = _model().double()(problem)
    smoothed = _smoothed_dual(problem, rounds[-1]) * total_demand_value(problem)
    assert (smoothed >= dual_bound(problem, rounds[-1].prices) - 1e-9).all(), (
        "log-sum-exp is at least the maximum"
    )


def test_price_gnn_returns_an_allocation_of_every_round_and_of_the_start() -> None:
    config = dataclasses.replace(SMALL, rounds=2)
    assert len(PriceGNN(config)(random_problem(0).to(torch.float32))[0]) == 3


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 2, 99]),
    num_paths=st.integers(1, 5),
)
def test_fused_rounds_of_price_gnn_equal_plain_torch(
    seed: int, objective: ObjectiveName, failed: int, num_paths: int
) -> None:
    """Both round in float32, and rounds can amplify that: each is compared with float64."""
    exact_problem = random_problem(seed, objective=objective, failed=failed, num_paths=num_paths)
    problem = exact_problem.to(torch.float32)
    model = _model(seed)
    rounds, prices = model(problem)
    with torch.no_grad():
        fused, fused_prices = model(problem)
    assert len(fused) == 1
    exact, exact_prices = model.double()(exact_problem)

    for ours, plain, true in (
        (fused[-1].splits, rounds[-1].splits, exact[-1].splits),
        (fused_prices, prices, exact_prices),
    ):
        rounding = (plain - true).abs().max()
        assert (ours - true).abs().max() <= 3 * rounding + 1e-4 * (1 + true.abs().max())


def _planar() -> Problem:
    """A network of 134 links: three tasks of the kernel, the last of which ends with two links in
    the place of four."""
    topology = load_topology("topohub:gabriel/40/2")
    traffic = load_traffic("gravity:seed=0,count=1,load=4", topology)
    paths = compute_paths(topology, traffic.pairs)
    return Problem.create(topology, paths, Objective(), traffic.read(slice(None))).to(torch.float32)


def _trained() -> PriceGNN:
    """The model that comes with Teal, whose prices move far in each round."""
    model = load_model("universal")
    assert isinstance(model, PriceGnnScheme)
    return model.model


def test_fused_rounds_of_many_links_equal_plain_torch() -> None:
    problem, model = _planar(), _trained()
    rounds, prices = model(problem)
    with torch.no_grad():
        fused, fused_prices = model(problem)
    torch.testing.assert_close(fused[-1].splits, rounds[-1].splits.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fused_prices, prices.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_fused_rounds_on_all_threads_equal_those_on_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two cores")
    monkeypatch.setattr(parallel, "is_large", lambda operations, min_operations=1: True)
    monkeypatch.setattr(parallel, "_cores_are_taken", lambda: False)
    problem, model = _planar(), _trained()
    with torch.no_grad():
        alone, prices = model(problem)
        numba.set_num_threads(2)
        try:
            together, same_prices = model(problem)
        finally:
            numba.set_num_threads(1)
    assert torch.equal(alone[-1].splits, together[-1].splits)
    assert torch.equal(prices, same_prices)


def test_a_model_with_a_multiple_of_the_default_rounds_is_the_same_function() -> None:
    model, problem = _model(), random_problem(5).to(torch.float32)
    other = model.with_rounds(3 * SMALL.rounds, SMALL.bound_rounds)
    assert other.config == dataclasses.replace(SMALL, rounds=3 * SMALL.rounds)
    for rounds in (None, 5, 17):
        expected = model(problem, rounds or 3 * SMALL.rounds)
        found = other(problem, rounds)
        torch.testing.assert_close(found[0][-1].splits, expected[0][-1].splits)
        torch.testing.assert_close(found[1], expected[1])


def test_with_twice_the_rounds_temperatures_lie_at_and_between_the_trained_ones() -> None:
    model, problem = _model(), random_problem(0).to(torch.float32)
    trained = model.log_temperature.detach()
    rounds, _ = model(problem, rounds=2 * SMALL.rounds)
    logs = torch.stack([one.temperature.detach() for one in rounds]).log()
    torch.testing.assert_close(logs[::2], trained)
    torch.testing.assert_close(logs[1::2], (trained[:-1] + trained[1:]) / 2)
