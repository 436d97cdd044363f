"""Flow moves to shorter paths, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem, violations
from teal.solvers import pipeline
from teal.solvers.short_paths import preferred, shortened
from teal.testing import make_topology, random_problem


def _triangle(demand: float, objective: ObjectiveName = ObjectiveName.TOTAL_FLOW) -> Problem:
    # From 0 to 1: a direct link, and ways by 2 and by 3.
    topology = make_topology(
        [(0, 1, 10), (0, 2, 10), (2, 1, 10), (0, 3, 10), (3, 1, 10)], both=True
    )
    paths = compute_paths(topology, np.array([[0, 1]]), num_paths=3)
    return Problem.create(topology, paths, Objective(objective), np.array([[demand]]))


def test_an_empty_network_carries_all_on_the_direct_link() -> None:
    problem = _triangle(9.0)
    splits = torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(
        shortened(problem, splits), torch.tensor([[[1.0, 0, 0]]], dtype=torch.float64)
    )
    assert preferred(problem, splits, "none") is splits


def test_no_more_moves_than_the_direct_link_holds() -> None:
    problem = _triangle(20.0)
    splits = torch.tensor([[[0.2, 0.4, 0.4]]], dtype=torch.float64)
    moved = shortened(problem, splits)
    assert moved[0, 0, 0] == pytest.approx(0.5)
    assert moved.sum() == pytest.approx(1.0)


def test_the_largest_utilisation_stays_where_it_is_minimised() -> None:
    problem = _triangle(9.0, ObjectiveName.MAX_LINK_UTILISATION)
    splits = torch.tensor([[[0.2, 0.4, 0.4]]], dtype=torch.float64)
    moved = shortened(problem, splits)
    assert problem.value(moved)[0] == pytest.approx(0.36)
    assert moved[0, 0, 0] == pytest.approx(0.4)


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
@pytest.mark.parametrize("seed", range(6))
def test_what_each_demand_carries_and_feasibility_stay(seed: int, objective: ObjectiveName) -> None:
    problem = random_problem(seed, objective=objective)
    latency = torch.as_tensor(np.random.default_rng(seed).uniform(1, 5, problem.topology.num_links))
    result = pipeline.solve(problem, gap=1e-3)
    moved = shortened(problem, result.splits, latency)
    torch.testing.assert_close(moved.sum(-1), result.splits.sum(-1), atol=1e-9, rtol=0)
    torch.testing.assert_close(
        problem.value(moved), problem.value(result.splits), atol=1e-9, rtol=1e-9
    )
    assert all(bool((v <= 1e-9).all()) for v in violations(problem, moved).by_rule.values())
    of_path = problem.ops.path_sum(latency[None])[0]
    before, after = ((problem.flows(s) * of_path).sum((1, 2)) for s in (result.splits, moved))
    assert bool((after <= before * (1 + 1e-9)).all())


def test_links_with_costs_and_conditions_keep_their_splits() -> None:
    costly = _triangle(9.0, ObjectiveName.LATENCY_PENALISED_FLOW)
    splits = torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)
    assert shortened(costly, splits) is splits
    calm = _triangle(9.0).with_churn_limit(splits, 0.1)
    assert shortened(calm, splits) is splits
