"""Rows and paths of priority classes."""

from __future__ import annotations

import numpy as np
import pytest

import teal
from teal.errors import InputError
from teal.network.classes import DemandClasses, class_paths, within_latency
from teal.problem.priority import upper_classes
from teal.testing import random_topology


def test_each_class_has_the_paths_within_its_latency_limit() -> None:
    topology = random_topology(3, 8, 0.5)
    paths = teal.compute_paths(topology, num_paths=4, cache=False)
    rng = np.random.default_rng(0)
    pairs = [
        paths.pairs,
        paths.pairs[np.sort(rng.choice(len(paths.pairs), 20, replace=False))],
        paths.pairs[:0],
    ]
    ptr = np.cumsum([0, *map(len, pairs)]).astype(np.int64)
    classes = DemandClasses(("gold", "silver", "bronze"), ptr)
    limit = float(
        np.median([topology.latency[paths.links_of(d, 0)].sum() for d in range(len(paths.pairs))])
    )
    own = class_paths(paths, topology, np.concatenate(pairs), classes, {"silver": limit})
    assert own.num_demands == ptr[-1]
    number = {tuple(pair): d for d, pair in enumerate(paths.pairs.tolist())}
    dropped = 0
    for row, pair in enumerate(own.pairs.tolist()):
        given = [links for k in range(4) if (links := paths.links_of(number[tuple(pair)], k))]
        expected = [
            links for links in given if row < ptr[1] or topology.latency[links].sum() <= limit
        ]
        dropped += len(given) - len(expected)
        found = [links for k in range(4) if (links := own.links_of(row, k))]
        assert found == expected
    assert dropped > 0


def test_the_paths_of_upper_classes_are_the_first_rows() -> None:
    topology = random_topology(1, 6, 0.5)
    paths = teal.compute_paths(topology, num_paths=3, cache=False)
    demand = np.random.default_rng(0).random((2, len(paths.pairs)))
    problem = teal.priority_problem(
        topology, paths, {"a": demand, "b": 2 * demand, "c": 3 * demand}
    )
    upper = upper_classes(problem, 2)
    assert upper.paths.num_demands == 2 * len(paths.pairs)
    splits = problem.even_splits.clone()
    splits[:, 2 * len(paths.pairs) :] = 0
    np.testing.assert_allclose(
        upper.loads(splits[:, : 2 * len(paths.pairs)]).numpy(),
        problem.loads(splits).numpy(),
        rtol=1e-12,
    )
    np.testing.assert_array_equal(
        upper.path_mask.numpy(), problem.path_mask[:, : 2 * len(paths.pairs)].numpy()
    )


def test_limits_and_names_are_checked() -> None:
    topology = random_topology(1, 6, 0.5)
    paths = teal.compute_paths(topology, num_paths=2, cache=False)
    demand = np.ones(len(paths.pairs))
    with pytest.raises(InputError, match="one of the classes gold"):
        teal.priority_problem(topology, paths, {"gold": demand}, latency_limit_ms={"silver": 3.0})
    with pytest.raises(InputError, match="a limit > 0 ms"):
        teal.priority_problem(topology, paths, {"gold": demand}, latency_limit_ms={"gold": 0.0})
    with pytest.raises(InputError, match="a class name repeats"):
        DemandClasses(("a", "a"), np.array([0, 1, 2]))
    with pytest.raises(InputError, match="demands have no classes"):
        teal.Problem.create(topology, paths, teal.Objective(teal.ObjectiveName.PRIORITY), demand)
    assert within_latency(paths, topology, 1e-9).mask.sum() == 0


def test_shares_of_traffic_are_the_demands_of_its_classes() -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=3,load=2", topology)
    shared = traffic.in_classes({"gold": 0.25, "bronze": 0.75})
    assert shared.classes is not None
    assert shared.classes.names == ("gold", "bronze")
    np.testing.assert_allclose(
        shared.read([2])[0, : traffic.num_demands], 0.25 * traffic.read([2])[0]
    )
    carried = shared.carrying(1)
    assert carried.classes is not None
    assert carried.classes.ptr[-1] == len(carried.pairs) == shared.num_demands
    with pytest.raises(InputError, match="sum to 1"):
        traffic.in_classes({"gold": 0.5, "bronze": 0.4})
    with pytest.raises(InputError, match="already have the classes"):
        shared.in_classes({"gold": 1.0})
