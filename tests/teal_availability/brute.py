"""States of a small network one by one, for oracles that share nothing with the package."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from teal.network import Topology, all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal_availability.components import Components, components_of
from teal_availability.protection_options import ProtectionOption, Request
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


def load_of_option(problem: Problem, request: Request, option: ProtectionOption) -> np.ndarray:
    """(E,) Gbit/s that an option reserves, path by path."""
    load = np.zeros(problem.topology.num_links)
    for path in option.paths:
        links = problem.paths.links_of(_demand_of(problem, request), path)
        load[list(links)] += request.rate / option.min_surviving
    return load


def time_of_option(
    problem: Problem, components: Components, request: Request, option: ProtectionOption
) -> float:
    """Share of the time in which enough paths of an option survive, over all states."""
    demand = _demand_of(problem, request)
    time = 0.0
    for share, down in every_state(components.unavailability):
        state = works(components, down, problem.topology.num_links)
        alive = sum(
            bool(state[list(problem.paths.links_of(demand, path))].all()) for path in option.paths
        )
        time += share * (alive >= option.min_surviving)
    return time


def _demand_of(problem: Problem, request: Request) -> int:
    names = problem.topology.node_names
    pairs = [(names[s], names[t]) for s, t in problem.paths.pairs.tolist()]
    return pairs.index((request.source, request.target))


def over_all_paths(problem: Problem) -> Problem:
    """The problem over all loopless paths of its small network, also where links are parallel."""
    paths = compute_paths(
        problem.topology, problem.paths.pairs, num_paths=60, method="yen", cache=False
    )
    assert (paths.mask.sum(1) < 60).all()
    return problem.with_paths(paths)


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
