"""TEAVAR* against the enumeration of all failure scenarios and against the program of its paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import cvxpy
import numpy as np
import pytest
import torch

from baselines.lp_all import LpAll
from baselines.matrix import Matrix, PathArrays
from baselines.teavar import Teavar, most_likely_scenarios
from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.testing import assert_feasible, make_topology, random_problem


def _matrix(problem: Problem) -> Matrix:
    mask, demand, capacity = (
        v[0].numpy() for v in (problem.path_mask, problem.demand, problem.capacity)
    )
    return Matrix(PathArrays.of(problem), demand, capacity, mask)


def test_scenarios_of_teavar_are_the_likeliest_and_cover_the_required_probability() -> None:
    chance = np.array([0.1, 0.02, 0.3, 0.05])
    exact = {}
    for failed in product([False, True], repeat=4):
        failed_cables = tuple(np.flatnonzero(failed).tolist())
        exact[failed_cables] = float(np.prod(np.where(failed, chance, 1 - chance)))
    scenarios = most_likely_scenarios(chance, 0.97)
    assert sum(probability for probability, _ in scenarios) >= 0.97
    assert scenarios[0][1] == ()
    probabilities = {tuple(sorted(failed)): probability for probability, failed in scenarios}
    assert len(probabilities) == len(scenarios) < 16
    for failed_cables, probability in probabilities.items():
        assert probability == pytest.approx(exact[failed_cables])
    assert (
        min(probabilities.values())
        >= max(probability for failed, probability in exact.items() if failed not in probabilities)
        - 1e-12
    )


def test_teavar_with_single_scenario_equals_lp_all() -> None:
    for seed in range(3):
        problem = random_problem(seed)
        values = [
            assess(problem, scheme.solve(problem)).value
            for scheme in (Teavar(single=True), LpAll())
        ]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


def _losses(problem: Problem, splits: torch.Tensor, chance: float) -> tuple[np.ndarray, np.ndarray]:
    """(2^n,) probabilities and lost flows, Gbit/s, of all scenarios of n cables; the flows do not
    adapt to failures."""
    matrix = _matrix(problem)
    cables = problem.topology.cables()
    flow = problem.flows(splits)[0].numpy()
    routable = matrix.demand[matrix.routable].sum()
    probability, lost = [], []
    for failed in product([False, True], repeat=len(cables)):
        dead = np.zeros(problem.topology.num_links, bool)
        for cable, down in zip(cables, failed, strict=True):
            dead[cable] = down
        works = np.array(
            [
                [not dead[problem.paths.links_of(d, k)].any() for k in range(flow.shape[1])]
                for d in range(len(flow))
            ]
        )
        probability.append(float(np.prod(np.where(failed, chance, 1 - chance))))
        lost.append(routable - (flow * works).sum())
    return np.array(probability), np.array(lost)


@pytest.mark.parametrize("beta", [0.9, 0.99])
def test_teavar_has_no_larger_conditional_value_at_risk_than_lp_all(beta: float) -> None:
    """Five cables, 32 scenarios: the conditional value at risk of TEAVAR* is at most that of
    LP-all."""
    topology = make_topology(
        [(0, 1, 4.0), (1, 2, 3.0), (0, 2, 2.0), (2, 3, 5.0), (1, 3, 2.0)], both=True
    )
    paths = compute_paths(topology, num_paths=3, cache=False)
    rates = np.random.default_rng(0).uniform(0.2, 2.0, paths.num_demands)
    problem, chance = Problem.create(topology, paths, Objective(), rates), 0.05
    risks = {}
    for name, allocation in (
        ("teavar", Teavar(beta=beta, failure=chance).solve(problem)),
        ("lp-all", LpAll().solve(problem)),
    ):
        assert_feasible(problem, allocation)
        probability, lost = _losses(problem, allocation.splits, chance)
        order = np.argsort(lost)
        quantile = np.searchsorted(np.cumsum(probability[order]), beta - 1e-12)
        alpha = float(lost[order][quantile])
        assert probability[lost <= alpha + 1e-9].sum() >= beta - 1e-12, (
            "the loss stays below alpha with probability beta"
        )
        risks[name] = alpha + float((probability * np.maximum(0, lost - alpha)).sum()) / (1 - beta)
    assert risks["teavar"] <= risks["lp-all"] + 1e-6
    if beta == 0.99:
        assert risks["teavar"] < risks["lp-all"] - 1e-3, "LP-all has a larger risk on this network"


def _textbook(problem: Problem, scheme: Teavar) -> tuple[float, Callable[[np.ndarray], float]]:
    """The optimum of the program of its paper, with a loss for every scenario and demand; the risk
    of given splits."""
    matrix = _matrix(problem)
    scenarios = scheme.scenarios(matrix)
    d, p = problem.demand[0].numpy(), problem.paths
    active = [i for i in range(len(d)) if matrix.routable[i] and d[i] > 0]
    places = [(i, k) for i in active for k in range(p.num_paths) if matrix.mask[i, k]]
    pi, count, n = scenarios.probability, len(scenarios.probability), len(places)
    total, excluded_probability = d[active].sum(), 1 - scenarios.probability.sum()
    works = np.array(
        [[works[p.links_of(i, k)].all() for i, k in places] for works in scenarios.works]
    )
    f, loss, u = (
        cvxpy.Variable(n, nonneg=True),
        cvxpy.Variable((count, len(active)), nonneg=True),
        cvxpy.Variable(count),
    )
    alpha = cvxpy.Variable(nonneg=True)
    owner = np.array([[i == j for i, _ in places] for j in active], float)
    links = np.zeros((problem.topology.num_links, n))
    for column, (i, k) in enumerate(places):
        links[p.links_of(i, k), column] = 1
    rows = [links @ f <= matrix.capacity, owner @ f <= d[active], u >= 0, alpha <= total]
    rows += [loss[s] >= d[active] - (owner * works[s]) @ f for s in range(count)]
    rows += [u[s] + alpha >= cvxpy.sum(loss[s]) for s in range(count)]
    beta = scheme.beta
    objective = alpha + (pi @ u) / (1 - beta) + excluded_probability * (total - alpha) / (1 - beta)
    optimum = cvxpy.Problem(cvxpy.Minimize(objective), rows).solve(solver="HIGHS")

    def risk(splits: np.ndarray) -> float:
        flow = np.array([splits[i, k] * d[i] for i, k in places])
        lost = np.array(
            [np.maximum(0, d[active] - (owner * works[s]) @ flow).sum() for s in range(count)]
        )
        values = [
            a
            + pi @ np.maximum(0, lost - a) / (1 - beta)
            + excluded_probability * (total - a) / (1 - beta)
            for a in [0, total, *lost]
        ]
        return float(min(values))

    return float(optimum), risk


@pytest.mark.parametrize("seed", range(4))
def test_teavar_by_patterns_of_paths_equals_the_optimum_of_the_textbook_program(seed: int) -> None:
    problem = random_problem(seed, batch=1, nodes=5, density=0.6)
    scheme = Teavar(beta=0.95, failure=0.05)
    optimum, risk = _textbook(problem, scheme)
    assert risk(scheme.solve(problem).splits[0].numpy()) == pytest.approx(
        optimum, rel=1e-6, abs=1e-6
    )
    risk_of_zero = risk(np.zeros(problem.paths.leaf.shape))
    assert risk_of_zero > optimum * (1 + 1e-3) or optimum == pytest.approx(risk_of_zero, abs=1e-9)


def test_teavar_refuses_other_objectives() -> None:
    with pytest.raises(InputError, match="total_flow"):
        Teavar().solve(random_problem(0, objective=ObjectiveName.MAX_LINK_UTILISATION))
