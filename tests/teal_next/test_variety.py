"""Varied splits: within their budget, different for each seed, and telling apart what one routing
leaves open."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from teal.errors import InputError
from teal.network import all_pairs
from teal.problem import Problem
from teal.testing import random_topology
from teal_ip.routing.measurements import path_measurements
from teal_next.variety import vary


def _problem(seed: int, nodes: int = 8) -> Problem:
    topology = random_topology(seed, nodes)
    pairs = all_pairs(topology)
    paths = teal.compute_paths(topology, pairs, num_paths=3, cache=False)
    demand = np.random.default_rng(seed).exponential(1.0, (1, len(pairs)))
    return Problem.create(topology, paths, teal.Objective("max_link_utilisation"), demand)


@pytest.mark.parametrize("seed", range(3))
def test_varied_splits_cost_no_more_than_their_budget(seed: int) -> None:
    problem = _problem(seed)
    optimum = float(teal.solve(problem, gap=1e-4).value[0])
    seen = []
    for number in range(3):
        splits = vary(problem, budget=0.05, share=1.0, seed=number)
        torch.testing.assert_close(splits.sum(-1), problem.routable[0].to(torch.float64))
        assert (splits >= 0).all()
        assert float(problem.utilisation(splits[None]).amax()) <= 1.05 * optimum * (1 + 2e-3)
        seen.append(splits)
    assert float((seen[0] - seen[1]).abs().sum()) > 0.1
    torch.testing.assert_close(vary(problem, budget=0.05, share=1.0, seed=2), seen[2])
    best, half = vary(problem, share=0.0), vary(problem, budget=0.05, share=0.5, seed=0)
    torch.testing.assert_close(half, (best + seen[0]) / 2)


def test_counters_under_varied_splits_tell_more_matrices_apart() -> None:
    problem = _problem(1)
    nodes = problem.topology.num_nodes

    def rank(share: float) -> int:
        rows = [
            path_measurements(
                problem.paths, vary(problem, share=share, seed=n).numpy(), nodes
            ).toarray()
            for n in range(6)
        ]
        return int(np.linalg.matrix_rank(np.vstack(rows)))

    assert rank(0.5) > rank(0.0)


def test_other_problems_and_options_are_refused() -> None:
    problem = _problem(0, 5)
    with pytest.raises(InputError, match="share"):
        vary(problem, share=2.0)
    with pytest.raises(InputError, match="one matrix"):
        vary(problem.with_demand(problem.demand.expand(2, -1)))
