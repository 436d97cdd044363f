"""Certified growth of levels, and what a demand can have alone, from prices: by hand and against
linear programs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
from teal.problem import ProgramPrices
from teal.problem.fair_levels import fair_certificates, growth_bound
from teal.solvers.level_growths import level_growths
from teal.testing import make_topology, random_problem
from tests.explicit import explicit_paths


def test_rounding_proves_no_growth_below_what_there_is() -> None:
    """0.1 + 0.2 Gbit/s fill a link of 0.3, and are more in floating point: its price says nothing
    about the third."""
    topology = make_topology([(0, 1, 0.3), (0, 2, 9.0), (3, 0, 9.0)])
    pairs = np.array([[0, 1], [0, 2], [3, 1]], np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([0.1, 9.0, 0.2]))
    rate, grows = (
        torch.tensor([0.1, 1.0, 0.2], dtype=torch.float64),
        torch.tensor([False, True, False]),
    )
    prices = torch.tensor([[1.0, 1e-20, 0.0]], dtype=torch.float64)
    assert growth_bound(problem, rate, grows, rate, prices) >= 1


def _one_link(demand: list[float]) -> teal.Problem:
    """10 Gbit/s that two demands share."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 99.0)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2]], np.int32), num_paths=1, cache=False
    )
    return teal.Problem.create(
        topology, paths, teal.Objective(teal.ObjectiveName.MAX_MIN), np.array(demand)
    )


@pytest.mark.parametrize(
    ("demand", "rates", "fair"),
    [
        (
            [100.0, 100.0],
            [0.5, 9.5],
            [5.0, 5.0],
        ),  # the link is full, but the larger rate may be lowered
        ([100.0, 8.0], [2.0, 8.0], [5.0, 5.0]),  # also where that demand is carried whole
        ([100.0, 10.0], [0.001, 9.999], [5.0, 5.0]),
        ([100.0, 3.0], [7.0, 3.0], [7.0, 3.0]),
    ],
)
def test_a_full_link_is_not_a_fair_one(
    demand: list[float], rates: list[float], fair: list[float]
) -> None:
    problem = _one_link(demand)
    prices = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    for own, is_fair in ((rates, rates == fair), (fair, True)):
        splits = torch.tensor([own], dtype=torch.float64)[..., None] / problem.demand[..., None]
        for level in (min(own), max(own), 1e9):
            found = ProgramPrices(prices, torch.tensor([[level]], dtype=torch.float64))
            assessed = teal.assess(problem, teal.Allocation.of_batch(splits, None, 0.0, found))
            assert (float(assessed.gap[0]) < 1e-6) == is_fair
        growths = [one.growth for one in level_growths(problem, splits)]
        assert (max(growths) < 1.01) == is_fair


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_no_demand_alone_can_have_more_than_its_limit(seed: int) -> None:
    """Any allocation and any prices, by a linear program: no other demand has less than before or
    than its level."""
    torch.manual_seed(seed)
    weight = np.random.default_rng(seed).uniform(0.5, 3.0, 30)
    base = random_problem(seed, nodes=6, batch=1, idle=0.0, failed=seed % 2)
    problem = dataclasses.replace(
        base,
        objective=teal.Objective(teal.ObjectiveName.MAX_MIN),
        demand_value=torch.from_numpy(weight),
    )
    splits = teal.project(base, base.even_splits * torch.rand(base.even_splits.shape))
    prices = torch.rand(1, 2, problem.topology.num_links, dtype=torch.float64)
    unreached = torch.full((1, 2), 1e9, dtype=torch.float64)  # so that no level holds anything
    figures = fair_certificates(problem, splits, ProgramPrices(prices, unreached))
    rate, demand = problem.flows(splits).sum(-1)[0].numpy(), problem.demand[0].numpy()
    use, of_demand = explicit_paths(problem)
    for d in range(0, len(rate), 5):
        if not bool(problem.routable[0, d]):
            continue
        others = np.arange(len(rate)) != d
        kept = np.minimum(rate, rate[d] / weight[d] * weight)[others]
        a_ub = np.concatenate([use, -of_demand[others], of_demand[~others]])
        b_ub = np.concatenate([problem.capacity[0].numpy(), -kept * (1 - 1e-9), demand[~others]])
        most = linprog(-of_demand[d], A_ub=a_ub, b_ub=b_ub, bounds=(0, None))
        assert most.status == 0
        assert -most.fun <= float(figures.limit[0, d]) * (1 + 1e-6) + 1e-9
    assert figures.levels == ((),)


def test_nothing_is_held_without_prices_and_limits_are_demands() -> None:
    problem = random_problem(5, batch=3, objective=teal.ObjectiveName.MAX_MIN)
    splits = problem.even_splits * 0
    figures = fair_certificates(problem, splits, None)
    torch.testing.assert_close(figures.limit, problem.routable_demand)
    assert figures.held == (0, 0, 0)
    assert figures.open == tuple(int((row > 0).sum()) for row in problem.routable_demand)
