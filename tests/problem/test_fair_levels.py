"""Certified growth of levels, from prices: by hand."""

from __future__ import annotations

import numpy as np
import torch

import teal
from teal.problem.fair_levels import growth_bound
from teal.testing import make_topology


def test_rounding_proves_no_growth_below_what_there_is() -> None:
    """0.1 + 0.2 Gbit/s fill a link of 0.3, and are more in floating point: its price says nothing about the third."""
    topology = make_topology([(0, 1, 0.3), (0, 2, 9.0), (3, 0, 9.0)])
    pairs = np.array([[0, 1], [0, 2], [3, 1]], np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([0.1, 9.0, 0.2]))
    rate, grows = torch.tensor([0.1, 1.0, 0.2], dtype=torch.float64), torch.tensor([False, True, False])
    prices = torch.tensor([[1.0, 1e-20, 0.0]], dtype=torch.float64)
    assert growth_bound(problem, rate, grows, rate, prices) >= 1
