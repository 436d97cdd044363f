"""Scenario programs of dropped flow against HiGHS, against total_flow, and against what links
drop."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

pytest.importorskip("teal_next", reason="needs the package teal_next")

from teal.problem import Problem
from teal.solvers import pipeline
from teal.solvers.pdhg.scenarios.dropped_flow import project_prices
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.testing import random_problem
from teal_next.evaluation import realised


def _scenarios(seed: int, count: int, failed: int = 0) -> Problem:
    problem = random_problem(seed, batch=1, failed=failed)
    factors = np.random.default_rng(seed).lognormal(0, 0.8, (count, problem.paths.num_demands))
    return problem.with_demand(torch.from_numpy(problem.demand.numpy() * factors))


def _optimum(problem: Problem, weights: np.ndarray, tail: float) -> float:
    """By HiGHS; variables are splits, excess of each link and scenario, loss, t, and loss above t
    of each scenario."""
    scenarios = problem.batch
    slots = problem.paths.leaf.size
    links = problem.topology.num_links
    per_demand = problem.paths.num_paths
    live = problem.path_mask[0].numpy().reshape(-1)
    capacity = problem.capacity[0].numpy()
    paths, used = problem.paths.incidences()
    paths, used = paths[live[paths]], used[live[paths]]
    excess = slots
    loss = slots + scenarios * links
    width = loss + 2 * scenarios + 1
    rows = []
    limits = []
    for s in range(scenarios):
        demand = np.where(problem.routable[0].numpy(), problem.demand[s].numpy(), 0)
        loads = sp.csr_array((demand[paths // per_demand], (used, paths)), shape=(links, width))
        spill = sp.csr_array(
            (np.ones(links), (np.arange(links), excess + s * links + np.arange(links))),
            shape=(links, width),
        )
        rows.append(loads - spill)
        limits += list(capacity)
        lost, above = np.zeros((2, width))
        lost[:slots] = -np.repeat(demand, per_demand) * live
        lost[excess + s * links : excess + (s + 1) * links] = 1
        lost[loss + s] = -1
        above[loss + s] = 1
        above[loss + scenarios] = -1
        above[loss + scenarios + 1 + s] = -1
        rows.append(sp.csr_array(np.stack([lost, above])))
        limits += [-demand.sum(), 0.0]
    demands = slots // per_demand
    rows.append(
        sp.csr_array(
            (np.ones(slots), (np.arange(slots) // per_demand, np.arange(slots))),
            shape=(demands, width),
        )
    )
    limits += [1.0] * demands
    cost = np.zeros(width)
    if tail == 0:
        cost[loss : loss + scenarios] = weights
    else:
        cost[loss + scenarios] = 1
        cost[loss + scenarios + 1 :] = weights / (1 - tail) if tail < 1 else 1e3
    bounds: list[tuple[float | None, float | None]] = [(0, float(one)) for one in live]
    bounds += (
        [(0, None)] * (scenarios * links + scenarios) + [(None, None)] + [(0, None)] * scenarios
    )
    return float(linprog(cost, sp.vstack(rows).tocsr(), np.array(limits), bounds=bounds).fun)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    scenarios=st.sampled_from([1, 3, 8]),
    tail=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    failed=st.sampled_from([0, 2]),
    iterations=st.sampled_from([0, 5, 20_000]),
)
def test_value_and_bound_enclose_the_optimum(
    seed: int, scenarios: int, tail: float, failed: int, iterations: int
) -> None:
    problem = _scenarios(seed, scenarios, failed)
    weights = np.random.default_rng(seed).random(scenarios) + 0.05
    weights /= weights.sum()
    result = solve_scenarios(
        problem, weights=weights, tail=tail, gap=2e-3, max_iterations=iterations
    )
    optimum = _optimum(problem, weights, tail)
    slack = 1e-6 * float(problem.demand.sum())
    assert result.bound <= optimum + slack
    assert result.value >= optimum - slack
    assert result.gap <= 2e-3 or iterations < 20_000
    assert float(result.splits.sum(-1).max()) <= 1 + 1e-12
    assert float(result.splits[~problem.path_mask[0]].abs().sum()) == 0


def test_one_scenario_loses_what_total_flow_cannot_carry() -> None:
    for seed in range(4):
        problem = _scenarios(seed, 1)
        best = float(pipeline.solve(problem, gap=1e-5).value)
        result = solve_scenarios(problem, gap=1e-3)
        volume = float(torch.where(problem.routable, problem.demand, 0).sum())
        assert result.value == pytest.approx(volume - best, abs=2e-3 * volume)


def test_links_drop_at_most_the_cost() -> None:
    """If of a path arrives the smallest share of its links, no more is lost than the program
    counts."""
    problem = _scenarios(4, 6)
    result = solve_scenarios(problem, gap=1e-2)
    for s in range(problem.batch):
        one = problem.row(s)
        volume = float(torch.where(one.routable, one.demand, 0).sum())
        arrived = realised(one, result.splits) * float(one.demand.sum())
        assert volume - arrived <= float(result.costs[s]) + 1e-9


def test_a_warm_start_needs_fewer_iterations() -> None:
    problem = _scenarios(4, 6)
    first = solve_scenarios(problem, gap=1e-3)
    second = solve_scenarios(problem, gap=1.1e-3, warm_start=(first.splits, first.prices))
    assert second.iterations < first.iterations / 2


@pytest.mark.parametrize("limit_sum", [1.0, 1.6])
def test_the_projection_is_the_nearest_point(limit_sum: float) -> None:
    rng = np.random.default_rng(0)
    scenarios = 2
    links = 3
    limits = np.array([0.4, 0.6]) * limit_sum
    for _ in range(10):
        given_point = rng.normal(0.3, 0.6, (scenarios, links + 1))
        step = rng.uniform(0.2, 2, (scenarios, links + 1))
        projected = given_point.copy()
        project_prices(projected, step, limits)
        y = projected[:, :-1]
        q = projected[:, -1]
        assert q.sum() == pytest.approx(1, abs=1e-9)
        assert (y >= 0).all()
        assert (y <= q[:, None] + 1e-12).all()
        assert (q <= limits + 1e-12).all()

        def distance(
            x: np.ndarray, point: np.ndarray = given_point, size: np.ndarray = step
        ) -> float:
            return float(((x.reshape(point.shape) - point) ** 2 / size).sum())

        constraints = [
            {"type": "eq", "fun": lambda x: x.reshape(scenarios, -1)[:, -1].sum() - 1},
            {
                "type": "ineq",
                "fun": lambda x: (
                    x.reshape(scenarios, -1)[:, -1:] - x.reshape(scenarios, -1)
                ).reshape(-1),
            },
        ]
        bounds = [(0, limits[s]) for s in range(scenarios) for _ in range(links + 1)]
        best = minimize(
            distance, projected.reshape(-1), bounds=bounds, constraints=constraints, method="SLSQP"
        )
        assert distance(projected.reshape(-1)) <= best.fun + 1e-7
