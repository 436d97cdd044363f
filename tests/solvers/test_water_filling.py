"""Water-filling by certified programs, against water-filling by linear programs and against networks by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import teal
from teal.errors import InputError
from teal.solvers.fair_levels import level_growths
from teal.solvers.fairness import fairness
from teal.solvers.water_filling import water_filling
from teal.testing import make_topology, random_problem


def test_rates_are_those_of_the_linear_programs() -> None:
    measured = []
    for seed in range(12):
        problem = random_problem(seed, nodes=7, density=0.5, batch=2, failed=seed % 3)
        problem = problem.with_demand(problem.demand * (1.0, 4.0, 30.0)[seed % 3])
        exact = problem.flows(teal.make_scheme("max-min-lp").solve(problem).splits).sum(-1)
        found = water_filling(problem)
        assert bool((teal.violations(problem, found.splits).largest <= 1e-9).all())
        least = 1e-3 * float(problem.capacity.max())
        measured += fairness(found.rates, exact, least).tolist()
        torch.testing.assert_close(found.rates.sum(1), exact.sum(1), rtol=0.05, atol=0)
        growths = [one.growth for one in level_growths(problem.row(0), found.splits[:1], levels=3, least=least)]
        assert all(growth <= 1.1 for growth in growths if math.isfinite(growth))
    assert min(measured) > 0.95
    assert np.mean(measured) > 0.995


def test_a_line_by_hand() -> None:
    """n0 -> n1 (9 Gbit/s) -> n2 (4 Gbit/s): demands 0 to 1, 0 to 2, 1 to 2."""
    topology = make_topology([(0, 1, 9.0), (1, 2, 4.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False)
    demand = np.array([[10.0, 10.0, 10.0], [1.0, 10.0, 0.5], [0.0, 0.0, 0.0]])
    problem = teal.Problem.create(topology, paths, teal.Objective(), demand)
    expected = np.array([[7.0, 2.0, 2.0], [1.0, 3.5, 0.5], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(water_filling(problem).rates, expected, rtol=2e-3, atol=1e-9)
    weighted = water_filling(problem.row(0), torch.tensor([1.0, 3.0, 1.0]))
    np.testing.assert_allclose(weighted.rates, np.array([[6.0, 3.0, 1.0]]), rtol=2e-3)


def test_the_scheme_takes_the_form() -> None:
    problem = random_problem(3, batch=1)
    found = teal.make_scheme("max-min:form=filling").solve(problem)
    torch.testing.assert_close(found.splits, water_filling(problem).splits)
    with pytest.raises(InputError, match="form"):
        teal.make_scheme("max-min:form=best")
