"""The reduced program and the way back from it, against linear programs over the flows of paths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from teal.network import compute_paths
from teal.problem import Problem, dual_bound
from teal.solvers import pipeline
from teal.solvers.pdhg.reduction import _extended_prices
from teal.testing import make_topology, random_problem, with_random_steps


def _optimum(problem: Problem) -> float:
    """The largest value of one matrix whose value falls in steps, each step of a demand with flows
    of its own."""
    assert problem.steps is not None
    level = problem.steps.level.T.numpy()
    end = problem.steps.end[0].numpy()
    (demands, paths) = problem.paths.leaf.shape
    count = len(level)
    lost = problem.demand_value.numpy()[:, None]
    loads = np.zeros((problem.topology.num_links, demands * paths))
    path, link = problem.paths.incidences()
    loads[link, path] = 1
    width = problem.demand[0].numpy()[:, None] * np.diff(end, prepend=0.0, axis=1)
    served = np.kron(np.eye(count), np.repeat(np.eye(demands), paths, axis=1))
    solution = linprog(
        np.concatenate(
            [(lost * (1 - one[:, None]) - problem.path_value.numpy()).ravel() for one in level]
        ),
        np.vstack([np.tile(loads, count), served]),
        np.concatenate([problem.capacity[0].numpy(), width.T.ravel()]),
        bounds=[(0, None) if live else (0, 0) for live in problem.path_mask[0].flatten().tolist()]
        * count,
    )
    return -float(solution.fun)


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_a_demand_that_its_paths_cannot_carry(seed: int) -> None:
    """A narrow link limits demands to less than a step of theirs, so that steps are other shares of
    what is left."""
    problem = random_problem(seed, batch=1)
    capacity = problem.capacity.clone()
    capacity[:, 0] *= 1e-4
    problem = with_random_steps(
        problem.with_demand(problem.demand * 40).with_capacity(capacity), seed
    )
    usable = problem.usable
    optimum = _optimum(problem)
    assert usable.demand is not problem.demand
    assert _optimum(usable) == pytest.approx(optimum, rel=1e-9)
    result = pipeline.solve(problem, gap=1e-3, max_iterations=20_000)
    assert float(result.gap) <= 1e-3
    assert (
        optimum * (1 - 1e-3)
        <= float(result.value)
        <= optimum * (1 + 1e-9)
        <= float(result.bound) * (1 + 2e-9)
    )
    for scale in (0.1, 1.0):
        prices = torch.from_numpy(np.random.default_rng(seed).exponential(scale, capacity.shape))
        proven = dual_bound(problem, _extended_prices(problem, prices))
        assert float(proven) <= float(dual_bound(usable, prices)) * (1 + 1e-9), (
            "no less than for the usable part"
        )


@pytest.mark.parametrize("demand", [20.6, 2e5])
@pytest.mark.parametrize("wide", [1e2, 1e4, 1e5, 1e8])
def test_parallel_links_are_filled_alike_however_far_their_capacities_are_apart(
    wide: float, demand: float
) -> None:
    topology = make_topology([(0, 1, 1.0), (0, 1, wide)])
    paths = compute_paths(topology, np.array([[0, 1]]), cache=False)
    problem = Problem.create(topology, paths, "max_link_utilisation", np.array([[demand]]))
    result = pipeline.solve(problem, gap=2.5e-3, max_iterations=500)
    assert float(result.value) == pytest.approx(demand / (1 + wide), rel=2.5e-3)
    assert float(result.gap) <= 2.5e-3
