"""The sequence of LPs, against a network solved by hand and against one weighted LP."""

from __future__ import annotations

import numpy as np

import teal
from teal.testing import make_topology


def test_three_classes_on_one_link() -> None:
    topology = make_topology([(0, 1, 10.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    demand = {"a": np.array([4.0]), "b": np.array([5.0]), "c": np.array([6.0])}
    problem = teal.priority_problem(topology, paths, demand)
    allocation = teal.make_scheme("lp-all").solve(problem)
    figures = teal.assess(problem, allocation).classes
    assert figures is not None
    np.testing.assert_allclose(figures.value[0], [4, 5, 1], atol=1e-6)
    np.testing.assert_allclose(figures.bound[0], [4, 5, 1], atol=1e-6)


def test_a_large_weight_gives_the_same_values() -> None:
    topology = teal.load_topology("topohub:sndlib/abilene")
    traffic = teal.load_traffic("gravity:seed=2,count=1,load=6", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    demand = traffic.read([0])
    problem = teal.priority_problem(topology, paths, {"high": 0.4 * demand, "low": 0.6 * demand})
    figures = teal.assess(problem, teal.make_scheme("lp-all").solve(problem)).classes
    assert figures is not None
    weight = np.repeat([1000.0, 1.0], paths.num_demands)
    weighted = teal.Problem.create(
        topology,
        problem.paths,
        teal.Objective(teal.ObjectiveName.WEIGHTED_FLOW),
        problem.demand.numpy(),
        weight=weight,
    )
    carried = (
        weighted.flows(teal.make_scheme("lp-all").solve(weighted).splits)
        .sum(-1)
        .reshape(2, -1)
        .sum(1)
    )
    np.testing.assert_allclose(figures.value[0], carried, rtol=1e-5)
