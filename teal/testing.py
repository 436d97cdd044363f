"""Assertions, and random networks and problems, for tests of Teal and of its users.

>>> from teal.testing import assert_feasible, assert_batch_equals_loop, random_problem
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from teal.network import Topology, all_pairs, compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.problem.feasibility import TOLERANCE, violations
from teal.problem.steps import ValueSteps
from teal.schemes.registry import Scheme


def assert_feasible(problem: Problem, allocation: Allocation, tolerance: float = TOLERANCE) -> None:
    """Raise AssertionError if an allocation with a usable status is infeasible: negative splits,
    splits on unusable paths, or flows above a demand or a capacity.

    Args:
        problem: problem of B matrices.
        allocation: allocation of the problem.
        tolerance: maximum accepted violation, as a fraction of the link's capacity or of the
            demand.
    """
    if allocation.paths is not None:
        problem = problem.with_paths(allocation.paths)
    for rule, violation in violations(problem, allocation.splits).by_rule.items():
        for b, status in enumerate(allocation.status):
            if status.usable:
                assert violation[b] <= tolerance, (
                    f"matrix {b}: constraint {rule} is violated by {float(violation[b]):.3g} times "
                    f"a capacity or demand, above the tolerance {tolerance:g}"
                )


def assert_batch_equals_loop(scheme: Scheme, problem: Problem, tolerance: float = 1e-6) -> None:
    """Raise AssertionError unless a scheme returns the same splits for a batch as for its matrices
    one by one.

    Args:
        scheme: the scheme.
        problem: problem of B matrices.
        tolerance: absolute and relative tolerance of the splits; above the rounding of float32.
    """
    batch_splits = scheme.solve(problem).splits
    for b in range(problem.batch):
        single_splits = scheme.solve(problem.row(b)).splits[0]
        torch.testing.assert_close(batch_splits[b], single_splits, atol=tolerance, rtol=tolerance)


def make_topology(
    links: list[tuple[int, int, float]],
    *,
    min_nodes: int = 0,
    latency: float = 1.0,
    both: bool = False,
) -> Topology:
    """Build a network from a list of links.

    Args:
        links: (source index, target index, capacity in Gbit/s) of each link.
        min_nodes: minimum number of nodes, to add nodes without links.
        latency: latency of every link, ms.
        both: also add the reverse of each link.
    """
    if both:
        links = [*links, *((t, s, c) for s, t, c in links)]
    source, target, capacity = (np.array(column) for column in zip(*links, strict=True))
    count = max(min_nodes, int(max(source.max(), target.max())) + 1)
    return Topology(
        name="test",
        node_names=tuple(f"n{i}" for i in range(count)),
        link_source=source.astype(np.int32),
        link_target=target.astype(np.int32),
        capacity=capacity.astype(np.float64),
        latency=np.full(len(links), latency),
        coordinates=np.full((count, 2), np.nan),
    )


def random_topology(seed: int, nodes: int = 7, density: float = 0.4) -> Topology:
    """Build a random directed network, often not strongly connected, with capacities from 1 to 10
    Gbit/s.

    Args:
        seed: seed of all random numbers.
        nodes: number of nodes.
        density: probability of a link for each ordered pair of nodes.
    """
    rng = np.random.default_rng(seed)
    chosen = [
        (i, j, float(rng.uniform(1, 10)))
        for i in range(nodes)
        for j in range(nodes)
        if i != j and rng.random() < density
    ]
    return make_topology(chosen or [(0, 1, 1.0)], min_nodes=nodes)


def cabled_topology(seed: int, nodes: int = 6) -> Topology:
    """Build a random network of cables with up to three parallel links per direction, some with one
    direction only; it may be disconnected.

    Args:
        seed: seed of all random numbers.
        nodes: number of nodes.
    """
    rng = np.random.default_rng(seed)
    # Links of each pair of nodes, which is connected with a random probability.
    links: list[tuple[int, int, float]] = []
    density = rng.uniform(0.3, 0.7)
    for i in range(nodes):
        for j in range(i + 1, nodes):
            if rng.random() < density:
                # Numbers of parallel links from i to j, and from j to i.
                forward, backward = rng.choice([(1, 1), (1, 1), (2, 2), (3, 1), (1, 0), (0, 2)])
                capacity = float(rng.integers(1, 10))
                links += [(i, j, capacity)] * int(forward) + [(j, i, capacity)] * int(backward)
    # Shuffle the links: parallel ones need not be neighbours.
    order = rng.permutation(len(links))
    return make_topology([links[i] for i in order] or [(0, 1, 1.0)], min_nodes=nodes)


def random_problem(
    seed: int,
    *,
    objective: str = ObjectiveName.TOTAL_FLOW,
    nodes: int = 7,
    density: float = 0.4,
    num_paths: int = 3,
    batch: int = 3,
    failed: int = 0,
    idle: float = 0.2,
) -> Problem:
    """Build a random problem with log-normal demands, some of them 0, pairs without a path, failed
    links, and weights 1, 2 and 4.

    Args:
        seed: seed of all random numbers.
        objective: objective of the problem.
        nodes: number of nodes.
        density: probability of a link for each ordered pair of nodes.
        num_paths: maximum number of candidate paths of a demand, K.
        batch: number of matrices, B.
        failed: number of links of capacity 0, drawn independently for each matrix; all links if
            there are fewer.
        idle: probability that a demand is 0.
    """
    rng = np.random.default_rng(seed)
    topology = random_topology(seed, nodes, density)
    paths = compute_paths(topology, all_pairs(topology), num_paths=num_paths, cache=False)
    # Demands (B, D) and capacities (B, E), Gbit/s.
    demand = rng.lognormal(0, 1.5, (batch, paths.num_demands)) * (
        rng.random((batch, paths.num_demands)) >= idle
    )
    capacity = np.tile(topology.capacity, (batch, 1))
    for row in capacity:
        row[rng.choice(len(row), min(failed, len(row)), replace=False)] = 0
    weight = rng.choice([1.0, 2.0, 4.0], paths.num_demands)
    return Problem.create(
        topology, paths, Objective(objective), demand, capacity=capacity, weight=weight
    )


def with_random_steps(problem: Problem, seed: int) -> Problem:
    """Return the problem with random value steps: the value of one Gbit/s of a demand decreases in
    one to four steps, some of them of width 0.

    Args:
        problem: problem that maximises a value.
        seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    # (B, D, count) widths of the steps, and their ends as fractions of the demand, the last one 1.
    width = rng.random((*problem.demand.shape, count)) * (
        rng.random((*problem.demand.shape, count)) < 0.7
    )
    end = width.cumsum(-1)
    end = np.where(end[..., -1:] > 0, end / np.maximum(end[..., -1:], 1e-300), 1.0)
    # (1 or D, count) value of the steps relative to the first one, decreasing.
    rows = int(rng.choice([1, problem.demand.shape[1]]))
    level = np.concatenate([np.ones((rows, 1)), -np.sort(-rng.random((rows, count - 1)))], axis=1)
    return dataclasses.replace(
        problem, steps=ValueSteps(torch.from_numpy(level), torch.from_numpy(end))
    )
