"""TEAVAR* against the enumeration of every scenario there is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import cvxpy
import numpy as np
import pytest
import torch

from baselines.lp_all import LpAll
from baselines.matrix import Matrix, PathArrays
from baselines.teavar import Teavar, likeliest
from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.testing import assert_feasible, make_topology, random_problem


def _matrix(problem: Problem) -> Matrix:
    mask, demand, capacity = (v[0].numpy() for v in (problem.path_mask, problem.demand, problem.capacity))
    return Matrix(PathArrays.of(problem), demand, capacity, mask)


def test_scenarios_are_the_likeliest_and_cover_what_they_must() -> None:
    chance = np.array([0.1, 0.02, 0.3, 0.05])
    truth = {}
    for failed in product([False, True], repeat=4):
        which = tuple(np.flatnonzero(failed).tolist())
        truth[which] = float(np.prod(np.where(failed, chance, 1 - chance)))
    found = likeliest(chance, 0.97)
    assert sum(p for p, _ in found) >= 0.97
    assert found[0][1] == ()
    seen = {tuple(sorted(failed)): p for p, failed in found}
    assert len(seen) == len(found) < 16
    for which, p in seen.items():
        assert p == pytest.approx(truth[which])
    assert min(seen.values()) >= max(p for failed, p in truth.items() if failed not in seen) - 1e-12


def test_with_no_failures_alone_it_is_the_lp() -> None:
    for seed in range(3):
        problem = random_problem(seed)
        values = [assess(problem, scheme.solve(problem)).value for scheme in (Teavar(single=True), LpAll())]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


def _losses(problem: Problem, splits: torch.Tensor, chance: float) -> tuple[np.ndarray, np.ndarray]:
    """(2^n,) probabilities of all scenarios, and what each loses: flows reserved once, whatever fails."""
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
            [[not dead[problem.paths.path_links(d, k)].any() for k in range(flow.shape[1])] for d in range(len(flow))]
        )
        probability.append(float(np.prod(np.where(failed, chance, 1 - chance))))
        lost.append(routable - (flow * works).sum())
    return np.array(probability), np.array(lost)


@pytest.mark.parametrize("beta", [0.9, 0.99])
def test_the_loss_at_risk_is_the_least_there_is(beta: float) -> None:
    """Five cables, 32 scenarios.  Its conditional value at risk is the optimum of its program; LP-all's is no less."""
    topology = make_topology([(0, 1, 4.0), (1, 2, 3.0), (0, 2, 2.0), (2, 3, 5.0), (1, 3, 2.0)], both=True)
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
        at = np.searchsorted(np.cumsum(probability[order]), beta - 1e-12)
        alpha = float(lost[order][at])
        assert probability[lost <= alpha + 1e-9].sum() >= beta - 1e-12, "available with probability beta"
        risks[name] = alpha + float((probability * np.maximum(0, lost - alpha)).sum()) / (1 - beta)
    assert risks["teavar"] <= risks["lp-all"] + 1e-6
    if beta == 0.99:
        assert risks["teavar"] < risks["lp-all"] - 1e-3, "and here it pays"


def _textbook(problem: Problem, scheme: Teavar) -> tuple[float, Callable[[np.ndarray], float]]:
    """The optimum of the program as its paper writes it, a loss for every scenario and demand; and its objective."""
    matrix = _matrix(problem)
    scenarios = scheme.scenarios(matrix)
    d, p = problem.demand[0].numpy(), problem.paths
    some = [i for i in range(len(d)) if matrix.routable[i] and d[i] > 0]
    places = [(i, k) for i in some for k in range(p.num_paths) if matrix.mask[i, k]]
    pi, count, n = scenarios.probability, len(scenarios.probability), len(places)
    total, rest = d[some].sum(), 1 - scenarios.probability.sum()
    works = np.array([[works[p.path_links(i, k)].all() for i, k in places] for works in scenarios.works])
    f, loss, u = cvxpy.Variable(n, nonneg=True), cvxpy.Variable((count, len(some)), nonneg=True), cvxpy.Variable(count)
    alpha = cvxpy.Variable(nonneg=True)
    owner = np.array([[i == j for i, _ in places] for j in some], float)
    links = np.zeros((problem.topology.num_links, n))
    for column, (i, k) in enumerate(places):
        links[p.path_links(i, k), column] = 1
    rows = [links @ f <= matrix.capacity, owner @ f <= d[some], u >= 0, alpha <= total]
    rows += [loss[s] >= d[some] - (owner * works[s]) @ f for s in range(count)]
    rows += [u[s] + alpha >= cvxpy.sum(loss[s]) for s in range(count)]
    beta = scheme.beta
    goal = alpha + (pi @ u) / (1 - beta) + rest * (total - alpha) / (1 - beta)
    best = cvxpy.Problem(cvxpy.Minimize(goal), rows).solve(solver="HIGHS")

    def risk(splits: np.ndarray) -> float:
        flow = np.array([splits[i, k] * d[i] for i, k in places])
        lost = np.array([np.maximum(0, d[some] - (owner * works[s]) @ flow).sum() for s in range(count)])
        values = [
            a + pi @ np.maximum(0, lost - a) / (1 - beta) + rest * (total - a) / (1 - beta) for a in [0, total, *lost]
        ]
        return float(min(values))

    return float(best), risk


@pytest.mark.parametrize("seed", range(4))
def test_patterns_of_paths_give_the_optimum_of_the_textbook_program(seed: int) -> None:
    problem = random_problem(seed, batch=1, nodes=5, density=0.6)
    scheme = Teavar(beta=0.95, failure=0.05)
    best, risk = _textbook(problem, scheme)
    assert risk(scheme.solve(problem).splits[0].numpy()) == pytest.approx(best, rel=1e-6, abs=1e-6)
    nothing = risk(np.zeros(problem.paths.leaf.shape))
    assert nothing > best * (1 + 1e-3) or best == pytest.approx(nothing, abs=1e-9)


def test_wrong_use() -> None:
    with pytest.raises(InputError, match="total_flow"):
        Teavar().solve(random_problem(0, objective=ObjectiveName.MAX_LINK_UTILISATION))
