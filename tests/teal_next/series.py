"""A small network with two ways between its nodes, and series of matrices on it."""

from __future__ import annotations

import numpy as np

from teal.network import TrafficMatrices, compute_paths
from teal.network.rates import ArrayRates
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.schemes.past import Past
from teal.testing import make_topology


def make_past(demand: np.ndarray, lead: int = 1, objective: str = "max_link_utilisation") -> Past:
    """Matrices (T, 3) of the demands a -> b, a -> c and b -> c on a triangle with both directions,
    K = 2."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (0, 2, 10.0)], both=True)
    pairs = np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    network = Problem.create(topology, paths, Objective(ObjectiveName(objective)), np.zeros((1, 3)))
    return past_of(network, demand, lead)


def past_of(network: Problem, demand: np.ndarray, lead: int = 1) -> Past:
    """Matrices (T, D), five minutes apart, as the past of a network."""
    times = np.datetime64("2024-01-01T00:00:00", "s") + 300 * np.arange(len(demand))
    traffic = TrafficMatrices(
        "series", network.paths.pairs, times, ArrayRates(demand), 300, key="series"
    )
    return Past(network, traffic, lead)
