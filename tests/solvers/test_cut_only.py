"""What a model carries by itself, on a network that is solved by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers.projection import cut_only
from teal.testing import make_topology


def _two_ways(demand: float) -> Problem:
    """From 0 to 2 over a link of 4 Gbit/s, or of 3 Gbit/s each by way of 1."""
    topology = make_topology([(0, 2, 4.0), (0, 1, 3.0), (1, 2, 3.0)])
    paths = compute_paths(topology, np.array([[0, 2]]), num_paths=2, cache=False)
    return Problem.create(topology, paths, Objective("total_flow"), np.array([[demand]]))


def test_splits_are_cut_and_not_refilled_and_the_gap_is_that_of_the_given_prices() -> None:
    problem = _two_ways(10.0)
    splits = torch.tensor([[[0.8, 0.2]]])  # 8 of 4 Gbit/s on the first path, 2 of 3 on the second
    exact = torch.tensor([[1.0, 1.0, 0.0]])  # bound: 4 + 3
    result = cut_only(problem, splits, exact)
    assert float(result.satisfied_demand[0]) == pytest.approx(0.6), "4 + 2 of 10"
    assert float(result.gap[0]) == pytest.approx(1 / 7)
    useless = cut_only(problem, splits, torch.zeros(1, 3))
    assert float(useless.gap[0]) == pytest.approx(0.4), "without prices all 10 Gbit/s are the bound"


def test_a_matrix_without_demand_is_carried_whole() -> None:
    result = cut_only(_two_ways(0.0), torch.zeros(1, 1, 2), torch.zeros(1, 3))
    assert (float(result.satisfied_demand[0]), float(result.gap[0])) == (1.0, 0.0)
