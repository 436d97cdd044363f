"""The search for split tables: feasible, never worse than rounding, near the best tables of all on
small networks."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Allocation, Problem, assess
from teal.problem.allocation import Status
from teal.solvers import pipeline
from teal.solvers.split_table import feasible_tables, table_weights
from teal.solvers.table_search import round_to_tables
from teal.testing import make_topology, random_problem


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    entries=st.sampled_from([1, 2, 3, 8]),
    failed=st.sampled_from([0, 2, 99]),
)
def test_tables_are_feasible_whole_and_at_least_as_good_as_rounding(
    seed: int, objective: ObjectiveName, entries: int, failed: int
) -> None:
    problem = random_problem(seed, objective=objective, batch=3, failed=failed, idle=0.3)
    solved = pipeline.solve(problem, gap=1e-2)
    rounded = feasible_tables(problem, solved.splits, entries)
    splits = round_to_tables(problem, solved.splits, entries)
    assert all(
        s is Status.FEASIBLE for s in assess(problem, Allocation.of_batch(splits, None, 0.0)).status
    )
    sign = problem.objective.rules.sense
    value = problem.value(splits)
    before = problem.value(rounded)
    assert (sign * (value - before) >= -1e-9 * before.abs()).all()
    total = splits.sum(-1, keepdim=True)
    weights = table_weights(splits, entries).to(splits) / entries
    torch.testing.assert_close(
        torch.where(total > 1e-9, splits / total.clamp(min=1e-12), weights), weights
    )


def _best_of_all(problem: Problem) -> float:
    """The largest value of any choice of one path a demand, with the best rates, by a linear
    program over each."""
    import numpy as np
    from scipy.optimize import linprog

    demands = problem.paths.num_demands
    best = 0.0
    choices = [range(int(count)) for count in problem.path_mask[0].sum(-1)]
    for choice in itertools.product(*choices):
        matrix = np.zeros((problem.topology.num_links, demands))
        for d, k in enumerate(choice):
            matrix[problem.paths.links_of(d, k), d] = 1
        bounds = [(0, float(rate)) for rate in problem.demand[0]]
        result = linprog(
            -problem.demand_value.numpy(), matrix, problem.capacity[0].numpy(), bounds=bounds
        )
        best = max(best, -float(result.fun))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_one_entry_comes_near_the_best_choice_of_paths(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    topology = make_topology(
        [(0, 1, 3.0), (1, 2, 4.0), (0, 2, 5.0), (2, 3, 3.0), (0, 3, 2.0)], both=True
    )
    pairs = torch.tensor([[0, 1], [0, 2], [0, 3], [1, 2], [2, 0], [3, 1]]).numpy()
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    demand = (4 * torch.rand(paths.num_demands, generator=generator, dtype=torch.float64)).numpy()
    problem = Problem.create(topology, paths, Objective(), demand)
    solved = pipeline.solve(problem, gap=1e-4)
    value = float(problem.value(round_to_tables(problem, solved.splits, 1))[0])
    assert value > 0.97 * _best_of_all(problem)


def test_two_fifths_of_what_rounding_loses_on_small_networks_are_found_again() -> None:
    """Over random networks with one entry: the loss against the optimum without tables, summed."""
    lost = 0.0
    still = 0.0
    for seed in range(12):
        problem = random_problem(seed, nodes=10, batch=1, num_paths=4)
        solved = pipeline.solve(problem, gap=1e-4)
        optimum = float(solved.value[0])
        lost += 1 - float(problem.value(feasible_tables(problem, solved.splits, 1))[0]) / optimum
        still += 1 - float(problem.value(round_to_tables(problem, solved.splits, 1))[0]) / optimum
    assert lost > 0.05
    assert still < 0.6 * lost
