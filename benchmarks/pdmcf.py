"""Solve the instances of PDMCF (cvxgrp/pdmcf, 2025): proportional fairness without demand rates,
over all paths.

    python -m benchmarks.pdmcf --out pdmcf.csv [--nodes 100] [--neighbours 10] [--seeds 0 1 2]

The program is max sum W log f over the flows f (Gbit/s) of all n (n - 1) pairs of nodes, on a
network in which each node has links in both directions to its nearest neighbours; the instance of a
seed is that of PDMCF's generator. Teal's demands have rates, so each pair has a rate that no
optimum reaches, and paths are added by link prices until the gap over all paths is reached.  Value
and bound are computed here from flows f and link prices p >= 0 alone:

    bound(p) = sum W log(W / d) - sum W log(sum W / sum c p),

with the weight W of each pair, the length d of its shortest path under p, and the link capacities
c. It is the Lagrangian dual at the best multiple of p (the rates do not limit it).  The gap in nats
is (bound - value) / sum W, the logarithm of the ratio of the two equivalent common flows.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from teal.network import Topology, compute_paths
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import limit_threads
from teal.solvers.columns import OverAllPaths, generate_columns
from teal.solvers.projection import project

_CAPACITIES = (0.5, 5.0)  # Gbit/s, log-uniform
_WEIGHTS = (0.3, 3.0)  # log-uniform
_RATE = _CAPACITIES[1]  # demand of each pair, Gbit/s; the table has the largest flow to compare
_TARGET_GAP = 7e-4  # gap of the equivalent common flow over all paths


def instance(nodes: int, neighbours: int, seed: int) -> tuple[Topology, FloatArray]:
    """Return the instance of PDMCF's generator: the network, and the weights of all pairs.

    Args:
        nodes: number of nodes, N.
        neighbours: number of nearest neighbours to which each node has links in both directions.
        seed: seed of the generator.

    Returns:
        the network, and the weights (N, N); entry (s, t) is that of the pair from node s to node t.
    """
    # The generator behind numpy.random.seed, which PDMCF uses.
    random = np.random.RandomState(seed)
    position = random.rand(2 * nodes).reshape(nodes, 2)
    links = set()
    for node in range(nodes):
        nearest = np.argsort(np.linalg.norm(position[node] - position, axis=1))[1 : neighbours + 1]
        links |= {(node, int(neighbour)) for neighbour in nearest} | {
            (int(neighbour), node) for neighbour in nearest
        }
    ends = np.array(sorted(links))
    # Links are in the order of the columns of the incidence matrix (-1 at the source), and then
    # permuted.
    incidence = np.zeros((nodes, len(ends)))
    incidence[ends.T, np.arange(len(ends))] = [[-1], [1]]
    ends = ends[np.lexsort(incidence[::-1])][random.permutation(len(ends))]
    capacity = _log_uniform(random, _CAPACITIES, (len(ends),))
    # The rows of PDMCF's weights are targets.
    weight = _log_uniform(random, _WEIGHTS, (nodes, nodes)).T
    names = tuple(str(node) for node in range(nodes))
    return Topology(
        "pdmcf", names, ends[:, 0], ends[:, 1], capacity, np.ones(len(ends)), position
    ), weight


def _log_uniform(
    random: np.random.RandomState, limits: tuple[float, float], shape: tuple[int, ...]
) -> FloatArray:
    """Return an array of log-uniform random numbers within ``limits``."""
    low, high = np.log(limits)
    return np.exp(random.rand(*shape) * (high - low) + low)


def value_and_bound(
    topology: Topology, weight: FloatArray, problem: Problem, solution: OverAllPaths
) -> tuple[float, float, float]:
    """Compute value and bound from the final flows and prices, as in the module docstring.

    Args:
        topology: the network.
        weight: weights of all pairs, (N, N).
        problem: problem of the instance, of one matrix.
        solution: result of column generation: paths, splits and prices.

    Returns:
        value and bound in nats, and the largest flow of a pair in Gbit/s.

    Raises:
        AssertionError: a link carries more than its capacity.
    """
    problem = problem.with_paths(solution.paths)
    # Feasible flows (D, K), and the loads of the links.
    flow = project(problem, solution.result.splits)[0].numpy() * problem.demand[0].numpy()[:, None]
    load = np.zeros(topology.num_links)
    for demand, k in zip(*np.nonzero(flow), strict=True):
        load[solution.paths.links_of(demand, k)] += flow[demand, k]
    assert (load <= topology.capacity * (1 + 1e-9)).all()
    source, target = solution.paths.pairs.T
    pair_weight = weight[source, target]
    carried = flow.sum(1)
    # scipy.sparse.csgraph reads a 0 as no link.
    price = np.maximum(solution.result.prices[0].double().numpy(), 1e-15)
    # Length d of the shortest path of each pair under the prices p.
    shortest_length = dijkstra(csr_array((price, (topology.link_source, topology.link_target))))[
        source, target
    ]
    # Dual bound sum W log(W / d) - sum W log(sum W / sum c p).
    total_weight = float(pair_weight.sum())
    bound = float(
        (pair_weight * np.log(pair_weight / shortest_length)).sum()
    ) - total_weight * np.log(total_weight / float(topology.capacity @ price))
    return float((pair_weight * np.log(carried)).sum()), bound, float(carried.max())


def measure(nodes: int, neighbours: int, seed: int) -> list[object]:
    """Solve the instance of a seed; return its row of the table.

    Args:
        nodes: number of nodes.
        neighbours: number of nearest neighbours with links.
        seed: seed of the generator.
    """
    topology, weight = instance(nodes, neighbours, seed)
    # All ordered pairs of different nodes, each with a demand that no optimum serves in full.
    pairs = np.argwhere(~np.eye(nodes, dtype=bool)).astype(np.int32)
    begin = time.process_time()
    paths = compute_paths(topology, pairs, cache=False)
    problem = Problem.create(
        topology,
        paths,
        "proportional_fair:weight=given",
        np.full((1, len(pairs)), _RATE),
        weight=weight[*pairs.T],
    )
    solution = generate_columns(problem, target=_TARGET_GAP)
    seconds = time.process_time() - begin
    # Value, bound and gap from the flows and prices alone.
    value, bound, max_flow = value_and_bound(topology, weight, problem, solution)
    gap = (bound - value) / float(weight[*pairs.T].sum())
    return [
        nodes,
        neighbours,
        seed,
        len(pairs),
        topology.num_links,
        int(solution.paths.mask.sum()),
        solution.result.iterations,
        f"{seconds:.2f}",
        f"{value:.1f}",
        f"{bound:.1f}",
        f"{gap:.2e}",
        f"{max_flow:.2f}",
    ]


def main() -> None:
    """Solve the instances of all seeds, and write a row for each to the CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--neighbours", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    limit_threads(1)
    torch.set_num_threads(1)
    # Compile the kernels on a small instance.
    measure(20, 5, 0)
    with options.out.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(
            [
                "nodes",
                "neighbours",
                "seed",
                "pairs",
                "links",
                "paths",
                "iterations",
                "cpu_s",
                "value_nats",
                "bound_nats",
                "gap_nats",
                "largest_flow",
            ]
        )
        for seed in options.seeds:
            row = measure(options.nodes, options.neighbours, seed)
            out.writerow(row)
            print(*row, flush=True)


if __name__ == "__main__":
    main()
