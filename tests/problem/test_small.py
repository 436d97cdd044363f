"""The compiled measurement of small problems against the plain one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.objectives import ObjectiveName, Rules, register_objective
from teal.problem import Allocation, Assessment, Problem, Status, assess, dual_bound
from teal.problem import assessment as assessing
from teal.problem.small import is_small, measured, projected
from teal.solvers.projection import project
from teal.testing import random_problem

# Uses four fifths of each capacity: utilisations count the whole of it.
register_objective("reserving_flow", Rules(capacity_share=0.8))
OBJECTIVES = (
    "reserving_flow",
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
)
CASES = given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(OBJECTIVES),
    failed=st.integers(0, 4),
    kind=st.sampled_from(["feasible", "whole", "any", "none", "no number"]),
    price_scale=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e9]),
)


def _splits(problem: Problem, seed: int, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    random = torch.rand(problem.path_mask.shape, generator=generator, dtype=torch.float64)
    if kind == "any":  # of both signs, above 1, on paths that failed or do not exist
        return 3 * random - 0.5
    if kind == "no number":
        random[0, 0, 0] = torch.nan
        random[-1, -1, -1] = torch.inf
        return random
    if kind == "none":
        return torch.zeros_like(random)
    splits = torch.where(problem.path_mask, random, 0)
    if kind == "whole":
        return splits / splits.sum(-1, keepdim=True).clamp(min=1e-30)
    return project(problem, splits)


def _prices(problem: Problem, seed: int, scale: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    random = torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64)
    return scale * (random - 0.2)


def _plainly(problem: Problem, allocation: Allocation) -> Assessment:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assessing, "is_small", lambda _: False)
        return assess(problem, allocation)


@settings(max_examples=150)
@CASES
def test_an_assessment_is_the_plain_one(
    seed: int, objective: str, failed: int, kind: str, price_scale: float
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    assert is_small(problem)
    splits, prices = _splits(problem, seed, kind), _prices(problem, seed, price_scale)
    allocation = Allocation.of_batch(splits, prices, 0.0)
    small, plain = assess(problem, allocation), _plainly(problem, allocation)
    assert small.status == plain.status
    for field in dataclasses.fields(plain):
        expected = getattr(plain, field.name)
        if isinstance(expected, torch.Tensor):
            found = getattr(small, field.name)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_share_on_a_path_that_does_not_exist_is_infeasible(objective: str) -> None:
    """The rest of the allocation breaks no rule."""
    problem = random_problem(5, objective=objective, failed=0, batch=3)
    is_padded = ~problem.path_mask & (problem.demand > 0)[..., None]
    row, demand, slot = is_padded.nonzero()[0].tolist()
    splits = project(problem, _splits(problem, 5, "feasible"))
    assert assess(problem, Allocation.of_batch(splits, None, 0.0)).status[row].usable
    splits[row, demand] *= 0.5
    splits[row, demand, slot] = 0.5
    found = assess(problem, Allocation.of_batch(splits, None, 0.0))
    assert is_small(problem)
    assert found.status[row] is Status.INFEASIBLE
    assert float(found.max_violation[row]) == pytest.approx(0.5)


@settings(max_examples=100)
@CASES
def test_a_projection_is_the_plain_one(
    seed: int, objective: str, failed: int, kind: str, price_scale: float
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    splits = _splits(problem, seed, kind)
    if kind == "any":
        splits[:, 0, 0] = torch.nan
    expected = project(problem, splits, refill=0)
    found = projected(problem, splits.reshape(problem.batch, -1).numpy())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    prices = _prices(problem, seed, price_scale).clamp(min=0)
    figures = measured(problem, found, prices, np.ones(1))
    value = torch.from_numpy(figures.value)
    torch.testing.assert_close(value, problem.value(found), rtol=1e-12, atol=1e-12)
    if price_scale < 1e6:  # beyond, the plain bound takes the value of a Gbit/s for the price
        score = torch.from_numpy(figures.score)
        bound = problem.objective.rules.from_score(problem, score)
        torch.testing.assert_close(bound, dual_bound(problem, prices), rtol=1e-10, atol=1e-10)


def test_other_problems_are_measured_plainly() -> None:
    problem = random_problem(1)
    assert is_small(problem)
    assert not is_small(problem.to(torch.float32))
    assert not is_small(random_problem(1, objective=ObjectiveName.MAX_CONCURRENT_FLOW))
    assert not is_small(random_problem(1, objective=ObjectiveName.LEAST_COST))
    assert not is_small(random_problem(1, objective=ObjectiveName.PROPORTIONAL_FAIR))
    assert not is_small(problem.with_protection())
    topology = teal.load_topology("topohub:gabriel/100/2")
    paths = teal.compute_paths(topology, cache=False)
    large = Problem.create(topology, paths, "total_flow", np.ones((1, paths.num_demands)))
    assert not is_small(large)
