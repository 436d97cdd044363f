"""Shared splits for several matrices against HiGHS on the scenario program, and against one
matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.solvers import pipeline
from teal.solvers.pdhg.samples import start as sampled_start
from teal.solvers.pdhg.scenarios.solver import ScenarioEngine, ScenarioPasses, solve_scenarios
from teal.testing import random_problem

MLU = ObjectiveName.MAX_LINK_UTILISATION


def _optimum(problem: Problem, weights: np.ndarray, tail: float) -> float:
    """By HiGHS: the tail mean as t + sum of weights * max(0, theta_s - t) / (1 - tail)."""
    scenarios = problem.batch
    slots = problem.paths.leaf.size
    links = problem.topology.num_links
    per_demand = problem.paths.num_paths
    live = problem.path_mask[0].numpy()
    capacity = problem.capacity[0].numpy()
    paths, used = problem.paths.incidences()
    paths, used = paths[live.reshape(-1)[paths]], used[live.reshape(-1)[paths]]
    blocks = []
    for s in range(scenarios):
        share = problem.demand[s].numpy()[paths // per_demand] / capacity[used]
        loads = sp.coo_array((share, (used, paths)), shape=(links, slots)).tocsr()[capacity > 0]
        theta = sp.csr_array(
            (-np.ones(loads.shape[0]), (np.arange(loads.shape[0]), np.full(loads.shape[0], s))),
            shape=(loads.shape[0], 2 * scenarios + 1),
        )
        blocks.append(sp.hstack([loads, theta]))
    excess = sp.hstack(
        [
            sp.csr_array((scenarios, slots)),
            sp.eye(scenarios),
            -np.ones((scenarios, 1)),
            -sp.eye(scenarios),
        ]
    )
    above = sp.vstack([*blocks, excess]).tocsr()
    routable: np.ndarray = np.asarray(live.any(1))
    sums = sp.csr_array(
        (np.ones(slots), (np.arange(slots) // per_demand, np.arange(slots))),
        shape=(len(routable), slots + 2 * scenarios + 1),
    )[routable]
    cost = np.zeros(slots + 2 * scenarios + 1)
    if tail == 0:
        cost[slots : slots + scenarios] = weights
    else:
        cost[slots + scenarios] = 1
        cost[slots + scenarios + 1 :] = weights / (1 - tail) if tail < 1 else 1e3
    bounds: list[tuple[float | None, float | None]] = [(0, float(one)) for one in live.reshape(-1)]
    bounds += [(0, None)] * scenarios + [(None, None)] + [(0, None)] * scenarios
    result = linprog(
        cost, above, np.zeros(above.shape[0]), sums, np.ones(routable.sum()), bounds=bounds
    )
    return float(result.fun)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    scenarios=st.sampled_from([1, 3, 8, 19]),
    tail=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    failed=st.sampled_from([0, 2]),
)
def test_value_and_bound_enclose_the_optimum(
    seed: int, scenarios: int, tail: float, failed: int
) -> None:
    problem = random_problem(seed, objective=MLU, batch=1, failed=failed)
    rng = np.random.default_rng(seed)
    demand = problem.demand.numpy() * rng.lognormal(0, 0.8, (scenarios, problem.paths.num_demands))
    problem = problem.with_demand(torch.from_numpy(demand))
    weights = rng.random(scenarios) + 0.05
    weights /= weights.sum()
    result = solve_scenarios(problem, weights=weights, tail=tail, gap=1e-3)
    optimum = _optimum(problem, weights, tail)
    assert result.bound <= optimum * (1 + 1e-6) + 1e-9
    assert result.value >= optimum * (1 - 1e-6) - 1e-9
    assert result.gap <= 1e-3
    splits = result.splits.expand(scenarios, -1, -1)
    torch.testing.assert_close(result.costs, problem.utilisation(splits).amax(1))
    total = result.splits.sum(-1)
    torch.testing.assert_close(
        total[problem.routable[0]], torch.ones_like(total[problem.routable[0]])
    )
    assert float(result.splits[~problem.path_mask[0]].abs().sum()) == 0
    theta = np.sort(result.costs.numpy())[::-1]
    if tail == 0:
        assert result.value == pytest.approx(float(weights @ result.costs.numpy()), rel=1e-9)
    if tail == 1:
        assert result.value == pytest.approx(float(theta[0]), rel=1e-9)


def test_the_prices_prove_the_bound_by_the_plain_formula() -> None:
    problem = random_problem(4, objective=MLU, batch=5)
    result = solve_scenarios(problem, gap=1e-3)
    prices = result.prices
    assert float((prices * problem.capacity).sum()) == pytest.approx(1)
    torch.testing.assert_close(
        (prices * problem.capacity).sum(1), torch.full((5,), 0.2, dtype=torch.float64)
    )
    cost = problem.ops.path_sum(prices) * problem.demand[..., None]
    least = torch.where(problem.path_mask[0], cost.sum(0), torch.inf).amin(-1)
    assert float(least[problem.routable[0]].sum()) == pytest.approx(result.bound, rel=1e-9)


def test_one_scenario_is_one_matrix_and_equal_scenarios_are_one() -> None:
    problem = random_problem(4, objective=MLU, batch=1)
    reference = pipeline.solve(problem, gap=1e-4)
    for problem_s in (problem, problem.with_demand(problem.demand.expand(20, -1))):
        for tail in (0.0, 0.7, 1.0):
            result = solve_scenarios(problem_s, gap=1e-4, tail=tail)
            assert result.value == pytest.approx(float(reference.value), rel=2e-4)


def test_a_warm_start_at_the_optimum_needs_no_iteration() -> None:
    problem = random_problem(4, objective=MLU, batch=9)
    first = solve_scenarios(problem, gap=1e-3)
    assert first.iterations > 10
    second = solve_scenarios(problem, gap=1.1e-3, warm_start=(first.splits, first.prices))
    assert second.iterations == 0
    assert second.value == pytest.approx(first.value, rel=1e-9)


@pytest.mark.parametrize("tail", [0.0, 0.6])
def test_a_start_from_samples_ends_at_the_same_optimum(
    tail: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = teal.load_topology("topohub:sndlib/germany50")
    traffic = teal.load_traffic("gravity:seed=3,count=9,load=2", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    problem = Problem.create(topology, paths, teal.Objective(MLU), traffic.read(slice(None)))
    whole = solve_scenarios(problem, tail=tail, gap=1e-3)
    monkeypatch.setattr(sampled_start, "LARGE_WORK", 0)
    monkeypatch.setattr(sampled_start, "_DEMANDS_PER_LINK", 1)
    answers = []
    respond = ScenarioPasses.respond_to

    def counted(self: ScenarioPasses, *arguments: Any) -> None:
        respond(self, *arguments)
        answers.append(self.stepped_splits())

    monkeypatch.setattr(ScenarioPasses, "respond_to", counted)
    sampled = solve_scenarios(problem, tail=tail, gap=1e-2)
    assert len(answers) == 1
    np.testing.assert_allclose(answers[0].sum(-1), 1)
    assert sampled.gap <= 1e-2
    assert sampled.iterations < whole.iterations
    assert sampled.value == pytest.approx(whole.value, rel=1.2e-2)


def test_a_scenario_without_weight_does_not_count() -> None:
    problem = random_problem(4, objective=MLU, batch=3)
    huge = problem.with_demand(torch.cat([problem.demand[:2], 1e4 * problem.demand[2:]]))
    result = solve_scenarios(huge, weights=np.array([1.0, 1.0, 0.0]), gap=1e-4)
    expected = solve_scenarios(problem.rows(slice(0, 2)), gap=1e-4)
    assert result.value == pytest.approx(expected.value, rel=3e-4)
    worst = solve_scenarios(huge, weights=np.array([1.0, 1.0, 0.0]), tail=1.0, gap=1e-4)
    assert worst.value == pytest.approx(float(worst.costs[:2].max()), rel=1e-9)


@pytest.mark.parametrize("tail", [0.0, 0.5])
@pytest.mark.parametrize("iterations", [0, 3, 10_000])
def test_no_start_gives_a_false_bound(tail: float, iterations: int) -> None:
    """A start within other limits, and the even one, may put more weight on a scenario than the
    program allows."""
    problem = random_problem(4, objective=MLU, batch=3)
    problem = problem.with_demand(torch.cat([problem.demand[:2], 100 * problem.demand[2:]]))
    weights = np.array([0.5, 0.499, 0.001])
    worst = solve_scenarios(problem, tail=1.0)
    optimum = _optimum(problem, weights, tail)
    for start in (None, (worst.splits, worst.prices)):
        result = solve_scenarios(
            problem,
            weights=weights,
            tail=tail,
            gap=1e-3,
            max_iterations=iterations,
            warm_start=start,
        )
        assert result.bound <= optimum * (1 + 1e-6)
        assert result.value >= optimum * (1 - 1e-6)
        assert result.gap <= 1e-3 or iterations < 10


def test_prices_count_by_the_scenario_whose_limit_they_exceed_most() -> None:
    """By hand: a sum of 1/2, of which the scenario with a limit of 0.001 has 1/10, must be divided
    by 100."""
    problem = random_problem(4, objective=MLU, batch=3)
    engine = ScenarioEngine(problem, np.array([0.5, 0.499, 0.001]), None)
    price = np.zeros(tuple(problem.capacity.shape))
    price[:, 0] = [0.2, 0.2, 0.1]
    assert engine._dual_size(engine._group_scenarios(price)) == pytest.approx([100.0])
    price[:, 0] = [0.5, 0.3, 0.0005]
    assert engine._dual_size(engine._group_scenarios(price)) == pytest.approx([1.0])
    price[:, 0] = [0.3, 0.3, 0.0001]
    assert engine._dual_size(engine._group_scenarios(price)) == pytest.approx(
        [0.6012024], rel=1e-4
    ), "0.3 / 0.499"


def test_what_scenarios_cannot_be_is_refused() -> None:
    problem = random_problem(4, objective=MLU, batch=3)
    flow = random_problem(4, objective=ObjectiveName.WEIGHTED_FLOW, batch=3)
    for bad, field in (
        (lambda: solve_scenarios(flow), "objective"),
        (lambda: solve_scenarios(problem, tail=1.5), "tail"),
        (lambda: solve_scenarios(problem, gap=-1), "gap"),
        (lambda: solve_scenarios(problem, weights=np.zeros(3)), "weights"),
        (lambda: solve_scenarios(problem, weights=np.ones(2)), "weights"),
        (lambda: solve_scenarios(random_problem(4, objective=MLU, batch=3, failed=2)), "capacity"),
        (
            lambda: solve_scenarios(problem, warm_start=(torch.zeros(1, 1), torch.zeros(3, 1))),
            "warm_start",
        ),
    ):
        with pytest.raises(InputError, match=field):
            bad()


def test_the_public_name() -> None:
    assert teal.solve_scenarios is solve_scenarios
