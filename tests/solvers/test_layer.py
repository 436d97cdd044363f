"""The optimum as a function of demands and capacities, against a hand-solved network, HiGHS,
Clarabel, differences."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import teal
from baselines.lp_all import LpAll
from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.problem import mean_value
from teal.solvers import layer
from teal.testing import make_topology, random_problem
from tests.explicit import explicit_paths

LINEAR = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
)


def _two_ways() -> Problem:
    """From 0 to 2 over a link of 4 Gbit/s, or by way of 1 over links of 3 and of 5 Gbit/s."""
    topology = make_topology([(0, 2, 4.0), (0, 1, 3.0), (1, 2, 5.0)])
    paths = compute_paths(topology, np.array([[0, 2]]), num_paths=2, cache=False)
    return Problem.create(topology, paths, Objective(), np.array([[1.0]]))


def _free(values: Tensor) -> Tensor:
    return values.detach().to(torch.float64).clone().requires_grad_()


@pytest.mark.parametrize(
    ("demand", "value", "of_demand", "of_capacity"),
    [(10.0, 7.0, 0.0, [1.0, 1.0, 0.0]), (5.0, 5.0, 1.0, [0.0, 0.0, 0.0])],
    ids=["links are full", "all is carried"],
)
def test_the_gradient_of_a_hand_solved_network(
    demand: float, value: float, of_demand: float, of_capacity: list[float]
) -> None:
    problem = _two_ways()
    rates = _free(torch.tensor([[demand]]))
    capacity = _free(problem.capacity)
    result = teal.optimal_value(problem, rates, capacity, gap=1e-7)
    assert float(result.value.detach()) == pytest.approx(value, rel=1e-6)
    result.value.sum().backward()
    assert rates.grad is not None
    assert capacity.grad is not None
    assert float(rates.grad) == pytest.approx(of_demand, abs=1e-6)
    assert capacity.grad[0].tolist() == pytest.approx(of_capacity, abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "value", "of_capacity"),
    [("max_link_utilisation", 2.3, [-0.23, 0.0]), ("max_concurrent_flow", 1 / 2.3, [1 / 23, 0.0])],
)
def test_a_matrix_of_zeros_has_a_gradient_of_0(
    objective: str, value: float, of_capacity: list[float]
) -> None:
    """20 and 3 Gbit/s over a link of 10: (20 + 3) / c has the derivative -23 / c^2, and c / 23 that
    of 1 / 23."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 5.0)])
    paths = compute_paths(topology, np.array([[0, 1], [0, 2]]), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(objective), np.ones((1, 2)))
    demand = _free(torch.tensor([[0.0, 0.0], [20.0, 3.0]]))
    capacity = _free(torch.tensor([10.0, 5.0]))
    result = teal.optimal_value(problem, demand, capacity).value
    assert float(result[1].detach()) == pytest.approx(value, rel=1e-9)
    result.sum().backward()
    assert demand.grad is not None
    assert capacity.grad is not None
    assert capacity.grad.tolist() == pytest.approx(of_capacity, rel=1e-6, abs=1e-9)
    assert demand.grad.isfinite().all()
    assert demand.grad[0].tolist() == [0.0, 0.0]


@given(
    seed=st.integers(0, 10_000),
    failed=st.integers(0, 2),
    gap=st.sampled_from([0.2, 1e-2, 1e-4]),
    objective=st.sampled_from([*LINEAR, ObjectiveName.MAX_LINK_UTILISATION]),
)
def test_no_change_beats_the_gradient_by_more_than_the_error(
    seed: int, failed: int, gap: float, objective: ObjectiveName
) -> None:
    """The optimum of HiGHS elsewhere, against the value here, the gradient times the change, and
    the error."""
    problem = random_problem(seed, objective=objective, failed=failed).to(torch.float64)
    demand = _free(problem.demand)
    capacity = _free(problem.capacity)
    here = teal.optimal_value(problem, demand, capacity, gap=gap)
    slopes = torch.autograd.grad(here.value.sum(), (demand, capacity), allow_unused=True)
    random = torch.Generator().manual_seed(seed)
    sense = problem.objective.rules.sense
    for size in (0.1, 2.0):
        changed = [demand.detach(), capacity.detach()]
        changed[0] = changed[0] * (
            1 + size * (torch.rand(changed[0].shape, generator=random) - 0.5)
        ).clamp(min=0)
        if sense > 0:  # the utilisation is not concave in demands and capacities together
            changed[1] = changed[1] * (
                1 + size * (torch.rand(changed[1].shape, generator=random) - 0.5)
            ).clamp(min=0.1)
        elsewhere = problem.with_demand(changed[0]).with_capacity(changed[1])
        optimum = assess(elsewhere, LpAll().solve(elsewhere)).value
        foretold = here.value.detach() + sense * here.error
        for slope, new, old in zip(slopes, changed, (demand, capacity), strict=True):
            if slope is not None:
                foretold = foretold + (slope * (new - old.detach())).sum(1)
        assert (sense * (foretold - optimum) >= -1e-6 * (1 + optimum.abs())).all()


def _entropy_program(problem: Problem, temperature: float) -> np.ndarray:
    """(D, K) splits of the program with entropy of B = 1, by Clarabel over explicit paths."""
    use, of_demand = explicit_paths(problem)
    mask = problem.path_mask[0].numpy()
    demand = problem.demand[0].numpy()
    value = problem.path_value.numpy()[mask]
    per_path = of_demand.T @ demand
    shares = cp.Variable(len(value))
    rejected = cp.Variable(len(mask))
    entropy = cp.sum(cp.multiply(per_path, cp.entr(shares))) + cp.sum(
        cp.multiply(demand, cp.entr(rejected))
    )
    gain = cp.sum(cp.multiply(per_path * value, shares)) + temperature * entropy
    limits = [
        use @ cp.multiply(per_path, shares) <= problem.capacity[0].numpy(),
        of_demand @ shares + rejected == 1,
    ]
    cp.Problem(cp.Maximize(gain), limits).solve(solver=cp.CLARABEL)
    splits = np.zeros(mask.shape)
    splits[mask] = shares.value
    return splits


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("temperature", [0.3, 0.05])
def test_smooth_splits_are_those_of_the_program_with_entropy(seed: int, temperature: float) -> None:
    """Total flow, where a Gbit/s is worth 1 and the temperature of the program is that of the
    argument."""
    problem = random_problem(seed, batch=1, failed=seed % 2).to(torch.float64)
    splits = teal.smooth_splits(problem, problem.demand, temperature=temperature)
    flows = problem.flows(splits)[0].numpy()
    expected = problem.flows(torch.from_numpy(_entropy_program(problem, temperature))[None])[
        0
    ].numpy()
    np.testing.assert_allclose(flows, expected, atol=2e-4 * float(problem.demand.amax()))


@given(
    seed=st.integers(0, 10_000),
    failed=st.integers(0, 2),
    objective=st.sampled_from(LINEAR),
    temperature=st.sampled_from([0.5, 0.05, 0.002]),
)
def test_smooth_splits_keep_the_capacities_and_lose_little(
    seed: int, failed: int, objective: ObjectiveName, temperature: float
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed).to(torch.float64)
    splits = teal.smooth_splits(problem, problem.demand, problem.capacity, temperature=temperature)
    assert float(problem.utilisation(splits).amax()) <= 1 + 1e-6
    optimum = assess(problem, LpAll().solve(problem)).value
    most_lost = (
        temperature * mean_value(problem) * problem.demand.sum(1) * np.log(1 + splits.shape[-1])
    )
    assert (problem.value(splits) >= optimum - most_lost - 1e-6).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_gradient_of_smooth_splits_is_that_of_differences(seed: int) -> None:
    problem = random_problem(seed, objective=LINEAR[seed % 3], failed=seed % 2).to(torch.float64)
    demand = _free(problem.demand)
    capacity = _free(problem.capacity)
    random = torch.Generator().manual_seed(seed)

    def weighted(rates: Tensor, limits: Tensor) -> Tensor:
        splits = teal.smooth_splits(problem, rates, limits, temperature=0.3)
        return (
            splits * torch.randn(splits.shape, generator=random.manual_seed(seed)).double()
        ).sum()

    slopes = torch.autograd.grad(weighted(demand, capacity), (demand, capacity))
    assert max(float(slope.abs().amax()) for slope in slopes) > 0
    for _ in range(3):
        along = [
            (2 * torch.rand(each.shape).double() - 1) * each.detach() for each in (demand, capacity)
        ]
        foretold = sum(float((slope * one).sum()) for slope, one in zip(slopes, along, strict=True))
        h = 1e-6
        with torch.no_grad():
            ends = [
                weighted(demand + sign * h * along[0], capacity + sign * h * along[1])
                for sign in (1, -1)
            ]
        assert float(ends[0] - ends[1]) / (2 * h) == pytest.approx(foretold, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_links_with_a_price_are_full_and_the_gradient_is_that_of_dense_equations(seed: int) -> None:
    """dw = -J A dp / t and H dp = A'(w d demand) - dc of the module, over explicit paths, by
    Gaussian elimination."""
    temperature = 0.3
    problem = random_problem(seed, batch=1).to(torch.float64)
    problem = problem.with_demand(4 * problem.demand)
    demand = _free(problem.demand)
    capacity = _free(problem.capacity)
    splits = teal.smooth_splits(problem, demand, capacity, temperature=temperature)
    load = problem.loads(splits.detach())[0]
    price = layer._optimal_prices(problem, temperature)[0]
    full = (price > 1e-9).numpy()
    assert full.any()
    assert float((load / problem.capacity[0] - 1)[full].abs().amax()) <= 2e-9
    use, of_demand = explicit_paths(problem)
    mask = problem.path_mask[0].numpy()
    random = np.random.default_rng(seed)
    slopes = random.normal(size=mask.sum())
    weighted = (splits[0][torch.from_numpy(mask)] * torch.from_numpy(slopes)).sum()
    result = [one[0].numpy() for one in torch.autograd.grad(weighted, (demand, capacity))]
    w = splits[0].detach().numpy()[mask]
    rate = problem.demand[0].numpy()
    use = use[full]
    jacobian = np.diag(w) - np.outer(w, w) * (of_demand.T @ of_demand)
    hessian = use * (of_demand.T @ rate / temperature) @ jacobian @ use.T
    effect = np.linalg.solve(hessian, -use @ jacobian @ slopes / temperature)
    of_capacity = np.zeros(len(full))
    of_capacity[full] = -effect
    np.testing.assert_allclose(result[0], of_demand @ (w * (use.T @ effect)), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(result[1], of_capacity, rtol=1e-7, atol=1e-9)


def test_a_demand_without_a_path_has_neither_splits_nor_a_gradient() -> None:
    topology = make_topology([(0, 1, 1.0), (2, 3, 1.0)])
    paths = compute_paths(topology, np.array([[0, 1], [0, 3]]), num_paths=2, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([[2.0, 2.0]]))
    demand = _free(problem.demand)
    splits = teal.smooth_splits(problem, demand, temperature=0.1)
    (splits.sum() + teal.optimal_value(problem, demand).value.sum()).backward()
    assert splits[0, 1].tolist() == [0.0, 0.0]
    assert demand.grad is not None
    assert float(demand.grad[0, 1]) == 0


def test_what_cannot_be_differentiated_is_refused() -> None:
    problem = _two_ways()
    demand = torch.ones(1, 1)
    for name in ("max_min", "proportional_fair"):
        other = Problem.create(
            problem.topology, problem.paths, Objective(ObjectiveName(name)), np.ones((1, 1))
        )
        for call in (teal.optimal_value, teal.smooth_splits):
            with pytest.raises(InputError, match=name):
                call(other, demand)
    balanced = Problem.create(
        problem.topology, problem.paths, Objective("max_link_utilisation"), np.ones((1, 1))
    )
    with pytest.raises(InputError, match="maximises a linear value"):
        teal.smooth_splits(balanced, demand)
    with pytest.raises(InputError, match="temperature"):
        teal.smooth_splits(problem, demand, temperature=0.0)
    for wrong in (torch.ones(1, 2), torch.full((1, 1), torch.nan), -demand):
        with pytest.raises(InputError, match="demand"):
            teal.optimal_value(problem, wrong)
    with pytest.raises(InputError, match="capacity"):
        teal.smooth_splits(problem, demand, torch.ones(2, 3))
    churn = problem.with_churn_limit(torch.zeros(1, 1, 2), 0.5)
    for call in (teal.optimal_value, teal.smooth_splits):
        with pytest.raises(InputError, match=r"no side conditions, found \w*Churn"):
            call(churn, demand)


def test_second_derivatives_are_refused_and_not_wrong() -> None:
    problem = random_problem(1, batch=1).to(torch.float64)
    demand = _free(problem.demand)
    splits = teal.smooth_splits(problem, demand, temperature=0.3)
    (slope,) = torch.autograd.grad(splits.square().sum(), demand, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
