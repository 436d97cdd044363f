"""Allocations that know nothing of the traffic, on a network whose answer is known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.schemes.registry import make_scheme
from teal.testing import assert_feasible, make_topology, random_problem


def _two_ways() -> Problem:
    """From 0 to 2 over a link of 4 Gbit/s, or of 3 Gbit/s each by way of 1; a demand of 10."""
    topology = make_topology([(0, 2, 4.0), (0, 1, 3.0), (1, 2, 3.0)])
    paths = compute_paths(topology, np.array([[0, 2]]), num_paths=2, cache=False)
    return Problem.create(topology, paths, Objective("total_flow"), np.array([[10.0]]))


@pytest.mark.parametrize(
    ("scheme", "carried"),
    [
        ("shortest-path", 4.0),
        ("shortest-path:refill=4", 7.0),
        ("null:refill=0", 0.0),
        ("null", 7.0),
    ],
)
def test_the_refill_takes_what_paths_have_left(scheme: str, carried: float) -> None:
    problem = _two_ways()
    assert float(assess(problem, make_scheme(scheme).solve(problem)).value[0]) == pytest.approx(
        carried
    )


def test_the_shortest_live_path_is_taken_wherever_it_is_in_the_order_of_paths() -> None:
    for seed in range(20):
        problem = random_problem(seed)
        splits = make_scheme("shortest-path").solve(problem).splits
        hops, mask = problem.paths.hops, problem.path_mask.expand_as(splits).numpy()
        for matrix, demand in np.argwhere(splits.sum(-1).numpy() > 0):
            live = np.flatnonzero(mask[matrix, demand])
            (taken,) = np.flatnonzero(splits[matrix, demand].numpy())
            assert taken == min(live, key=lambda path: (hops[demand, path], path))


def test_they_are_feasible_on_random_networks_and_refuse_a_negative_refill() -> None:
    for seed in range(5):
        problem = random_problem(seed)
        for scheme in ("null", "shortest-path:refill=4"):
            assert_feasible(problem, make_scheme(scheme).solve(problem))
    with pytest.raises(InputError, match="refill"):
        make_scheme("null:refill=-1")
