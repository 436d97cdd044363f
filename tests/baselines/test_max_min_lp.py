"""Exact max-min fairness on networks solved by hand."""

from __future__ import annotations

import numpy as np

import teal
from teal.testing import make_topology


def test_a_demand_with_two_paths_leaves_the_shared_link_to_others() -> None:
    """a -> b by two links, 4 and 2; b -> c with 3: demands a to b (10), a to c (10, only by the first link)."""
    topology = make_topology([(0, 1, 4.0), (0, 2, 2.0), (2, 1, 2.0), (1, 3, 3.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1], [0, 3]], np.int32), num_paths=2, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([10.0, 10.0]))
    rates = problem.flows(teal.make_scheme("max-min-lp").solve(problem).splits).sum(-1)
    np.testing.assert_allclose(rates[0], [3, 3], rtol=1e-6)  # together 6 leave node a, and 3 is all that reaches c
    small = problem.with_demand(np.array([[10.0, 1.0]]))
    rates = small.flows(teal.make_scheme("max-min-lp").solve(small).splits).sum(-1)
    np.testing.assert_allclose(rates[0], [5, 1], rtol=1e-6)


def test_geometric_bins_are_within_their_ratio() -> None:
    topology = make_topology([(0, 1, 9.0), (1, 2, 4.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([10.0, 8.0, 6.0]))
    rates = problem.flows(teal.make_scheme("geometric-binner").solve(problem).splits).sum(-1)[0]
    ratio = rates.numpy() / np.array([7.0, 2.0, 2.0])
    assert ratio.max() <= 2
    assert ratio.min() >= 1 / 2
