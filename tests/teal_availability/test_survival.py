"""Probabilities of surviving paths, against all states of small networks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.errors import InputError
from teal.network import all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability.components import components_of
from teal_availability.survival import survival_probabilities
from tests.teal_availability.brute import every_state, random_case, works


@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_patterns_are_those_of_all_states(seed: int) -> None:
    problem, components = random_case(seed)
    paths = problem.paths
    expected = np.zeros((paths.num_demands, 1 << paths.num_paths))
    for time, down in every_state(components.unavailability):
        state = works(components, down, problem.topology.num_links)
        for d in range(paths.num_demands):
            alive = [
                k
                for k in range(paths.num_paths)
                if paths.mask[d, k] and state[list(paths.links_of(d, k))].all()
            ]
            expected[d, sum(1 << k for k in alive)] += time
    found = survival_probabilities(problem, components).probability
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_more_paths_than_sets_can_be_looked_at_are_refused() -> None:
    topology = make_topology([(0, 1, 1.0)] * 9 + [(1, 0, 1.0)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=9, cache=False)
    demand = np.ones((1, paths.num_demands))
    problem = Problem.create(topology, paths, Objective(), demand)
    with pytest.raises(InputError, match="at most 8 per demand"):
        survival_probabilities(problem, components_of(topology))
