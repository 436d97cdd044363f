"""Hitless updates, against networks solved by hand and random interleavings of routers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import teal
from teal.allocation.update import PathIncidence, plan_update, worst_utilisation
from teal.errors import SolverError
from teal.testing import random_problem


def _two_links(capacity: float = 1.0) -> PathIncidence:
    """Two demands, each with one path over either of two links."""
    through = sp.csr_array(np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]]))
    return PathIncidence(through, np.array([0, 0, 1, 1]), np.full(2, capacity))


def test_demands_that_change_places_by_hand() -> None:
    before, after = np.array([0.6, 0, 0, 0.6]), np.array([0, 0.6, 0.6, 0])
    # At once, a link would carry 1.2 if one router were late.
    assert worst_utilisation(_two_links(), before, after) == pytest.approx(1.2)
    found = plan_update(_two_links(), before, after)
    assert found.steps == 2
    assert found.min_served_fraction == pytest.approx(1.0)
    assert plan_update(_two_links(1.2), before, after).steps == 1
    # Two full links: with s steps, a share of 1 / (s - 1) must be shed to make room for the others.
    for most in (2, 3, 5):
        full = plan_update(_two_links(), np.array([1.0, 0, 0, 1]), np.array([0, 1.0, 1, 0]), most)
        assert full.min_served_fraction == pytest.approx(
            1 - 1 / (most - 1) if most > 2 else 0.0, abs=1e-6
        )
    with pytest.raises(SolverError, match="before"):
        plan_update(_two_links(0.5), before, after)


@pytest.mark.parametrize("name", ["b4", "topohub:sndlib/abilene", "topohub:sndlib/geant"])
def test_no_interleaving_of_an_update_overloads_a_link(name: str) -> None:
    topology = teal.load_topology(name)
    traffic = teal.load_traffic("gravity:seed=3,count=4,load=5", topology)
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=3, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    splits = teal.solve(
        problem.with_capacity(0.9 * problem.capacity), gap=0.01
    ).splits  # a slack of a tenth
    flows = problem.flows(splits).numpy().reshape(4, -1)
    path, link = paths.incidences()
    through = sp.csr_array(
        (np.ones(len(link)), (link, path)), shape=(topology.num_links, paths.leaf.size)
    )
    own = PathIncidence(
        through, np.repeat(np.arange(paths.num_demands), paths.num_paths), topology.capacity
    )
    rng, steps = np.random.default_rng(0), 1
    for t in range(3):
        found = plan_update(own, flows[t], flows[t + 1])
        assert found.min_served_fraction >= 0.999
        steps = max(steps, found.steps)
        least = np.minimum(*(own_flow.reshape(-1, 3).sum(1) for own_flow in flows[t : t + 2]))
        for a in range(found.steps):
            now, then = found.flows[a], found.flows[a + 1]
            assert worst_utilisation(own, now, then) <= 1 + 1e-7
            assert (then.reshape(-1, 3).sum(1) >= 0.999 * least - 1e-6).all()
            for _ in range(50):
                is_new = rng.random(len(now)) < rng.random()
                load = through @ np.where(is_new, then, now)
                assert (load <= topology.capacity * (1 + 1e-7)).all()
        np.testing.assert_array_equal(found.flows[0], flows[t])
        np.testing.assert_array_equal(found.flows[-1], flows[t + 1])


def _random_update(seed: int, scale: float) -> tuple[PathIncidence, np.ndarray, np.ndarray]:
    """Two allocations of a random network that fill some of its links; one demand is a millionth of
    the others."""
    problem = random_problem(seed, nodes=6, density=0.5, batch=2, idle=0.0)
    demand = problem.demand * 3
    demand[:, 0] *= 1e-6
    problem = problem.with_demand(demand)
    flows = problem.flows(teal.solve(problem, gap=1e-4).splits).numpy().reshape(2, -1)
    paths = problem.paths
    path, link = paths.incidences()
    through = sp.csr_array(
        (np.ones(len(link)), (link, path)), shape=(problem.topology.num_links, paths.leaf.size)
    )
    capacity = scale * problem.capacity[0].numpy()
    own = PathIncidence(through, np.repeat(np.arange(paths.num_demands), paths.num_paths), capacity)
    return own, scale * flows[0], scale * flows[1]


@pytest.mark.parametrize("scale", [1e-9, 1e-7, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(6))
def test_steps_fit_and_keep_what_they_say_at_any_magnitude(seed: int, scale: float) -> None:
    paths, before, after = _random_update(seed, scale)
    found = plan_update(paths, before, after)
    of_demand = [found.flows[:, paths.demand == d].sum(1) for d in range(paths.demand.max() + 1)]
    counted = [own for own in of_demand if own[0] > 0 and own[-1] > 0]
    kept = min(min(1.0, own[1:-1].min(initial=np.inf) / min(own[0], own[-1])) for own in counted)
    assert found.min_served_fraction == pytest.approx(kept, rel=1e-12)
    for now, then in itertools.pairwise(found.flows):
        assert worst_utilisation(paths, now, then) <= 1 + 1e-9
    reference, first, last = _random_update(seed, 1.0)
    assert found.min_served_fraction == pytest.approx(
        plan_update(reference, first, last).min_served_fraction, abs=1e-3
    ), "units change nothing"


def test_a_tiny_link_beside_a_large_one_and_a_link_without_capacity() -> None:
    """Two demands change places on links of 1 Mbit/s; others on links of 400 Gbit/s, and a third
    link has failed."""
    through = sp.csr_array(
        np.array([[1.0, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]])
    )
    paths = PathIncidence(through, np.array([0, 0, 1, 1, 2, 2]), np.array([1e-3, 1e-3, 400.0, 0.0]))
    before, after = np.array([6e-4, 0, 0, 6e-4, 100.0, 0]), np.array([0, 6e-4, 6e-4, 0, 300.0, 0])
    found = plan_update(paths, before, after)
    assert found.steps == 2
    assert found.min_served_fraction == pytest.approx(1.0)
    assert (found.flows[:, 5] == 0).all()
    for now, then in itertools.pairwise(found.flows):
        assert worst_utilisation(paths, now, then) <= 1 + 1e-9
