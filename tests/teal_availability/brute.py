"""States of a small network one by one, for oracles that share nothing with the package."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from teal.network import Topology, all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal_availability.components import Components, components_of
from tests.igp_reference import network_with_parallels


def every_state(unavailability: np.ndarray) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Probability and members of all 2^n states."""
    for flags in itertools.product((False, True), repeat=len(unavailability)):
        down = np.array(flags, dtype=bool)
        time = float(np.prod(np.where(down, unavailability, 1 - unavailability)))
        yield time, tuple(np.flatnonzero(down).tolist())


def works(components: Components, down: tuple[int, ...], links: int) -> np.ndarray:
    """(E,) whether each link works."""
    state = np.ones(links, dtype=bool)
    for one in down:
        state[components.links[one]] = False
    return state


def random_case(seed: int, nodes: int = 5, count: int = 7) -> tuple[Problem, Components]:
    """A network with parallel and one-way links, random demands, some of them 0, and ``count``
    random components, groups and nodes among them."""
    rng = np.random.default_rng(seed)
    topology: Topology = network_with_parallels(seed, nodes)
    paths = compute_paths(topology, all_pairs(topology), num_paths=3, cache=False)
    demand = rng.lognormal(0, 1, (1, paths.num_demands))
    demand *= rng.random((1, paths.num_demands)) > 0.3
    scale = topology.capacity.mean() / max(demand.mean(), 1e-9) / rng.uniform(1, 8)
    problem = Problem.create(topology, paths, Objective(), demand * scale)
    groups = {
        f"group {number}": sorted(rng.choice(topology.num_links, 2, replace=False).tolist())
        for number in range(2)
    }
    everything = components_of(
        topology,
        groups=groups,
        cable_availability=0.9,
        node_availability=0.95,
        group_availability=0.97,
    )
    chosen = np.sort(rng.choice(len(everything), min(count, len(everything)), replace=False))
    return problem, Components(
        tuple(everything.names[one] for one in chosen),
        tuple(everything.kinds[one] for one in chosen),
        everything.links[chosen],
        rng.uniform(0.01, 0.3, len(chosen)),
    )
