"""Promises as part of a problem: bundles, validator and bound, against linear programs and
simulated failures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
from teal.errors import InputError
from teal.network import PathMethod
from teal.problem.feasibility import TOLERANCE
from teal.problem.protection import Protection, failed_paths, vertices
from teal.solvers.protection import under_failures
from teal.testing import make_topology, random_problem


@pytest.mark.parametrize("seed", range(10))
def test_the_cheapest_vertex_is_the_optimum_of_the_covering_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sets = rng.random((5, 4)) < 0.6
    sets[~sets.any(1), 0] = True
    price = rng.random(4)
    found = vertices(sets)
    assert (sets.astype(float) @ found.T >= 1 - 1e-9).all()
    optimum = linprog(price, -sets.astype(float), -np.ones(5)).fun
    assert (found @ price).min() == pytest.approx(optimum, abs=1e-9)
    assert vertices(np.array([[True, False], [False, False]])).shape == (0, 2)


def test_failed_paths_are_those_with_a_failed_link() -> None:
    problem = random_problem(4)
    groups = problem.topology.cables()[:3]
    failed = failed_paths(problem.ops, problem.topology.num_links, groups)
    for number, links in enumerate(groups):
        for d in range(problem.paths.num_demands):
            for k in range(problem.paths.num_paths):
                assert bool(failed[number, d, k]) == bool(
                    set(problem.paths.links_of(d, k)) & set(links)
                )


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.2, 1.0, 3.0]))
def test_what_the_validator_passes_survives_every_failure(seed: int, scale: float) -> None:
    """A simulation of every failure, also where links have failed before; and reservations that fit
    are passed."""
    torch.manual_seed(seed)
    problem = random_problem(seed, nodes=6, density=0.6, batch=3, failed=seed % 3).with_protection()
    protection = problem.condition(Protection)
    assert protection is not None
    splits = torch.rand(problem.path_mask.shape, dtype=torch.float64) * problem.path_mask
    splits = (
        splits
        * (torch.rand(splits.shape) < 0.7)
        * scale
        / splits.sum(-1, keepdim=True).clamp(min=1e-9)
    )
    splits = teal.project(dataclasses.replace(problem, conditions=()), splits.clamp(max=1))
    left = protection.surviving_fraction(splits)
    reserved = torch.where(left[..., None] > 0, protection.reserved(splits), 0)
    fullest = problem.utilisation(reserved).amax(1, keepdim=True).clamp(min=1)
    fitting = torch.where(left[..., None] > 0, splits, 0) / fullest[..., None]
    for own, must_pass in ((splits, False), (fitting, True), (splits * 0, True)):
        passed = teal.violations(problem, own).largest <= TOLERANCE
        utilisation, lost = under_failures(problem, own)
        survives = (utilisation.amax(0) <= 1 + 2 * TOLERANCE) & (lost.amax(0) <= 0)
        assert bool((survives | ~passed).all())
        assert bool(passed.all()) or not must_pass


def test_a_path_that_has_failed_is_none_that_survives() -> None:
    topology = make_topology([(0, 2, 1e5), (2, 1, 1e5), (0, 3, 1e5), (3, 1, 1e5)])
    paths = teal.compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=2, cache=False)
    plain = teal.Problem.create(topology, paths, teal.Objective(), np.array([0.05]))
    problem = plain.with_capacity(np.array([1e5, 1e5, 0.0, 1e5])).with_protection()
    almost_alone = torch.tensor([[[1 - 9e-7, 9e-7]]], dtype=torch.float64)
    assert float(teal.violations(problem, almost_alone).conditions["protection"]) > 0.9


def test_paths_of_an_allocation_are_protected_too() -> None:
    """Two candidate paths without a common link; the allocation's own ones share their first
    link."""
    links = [
        (0, 2, 9.0),
        (2, 1, 9.0),
        (2, 4, 9.0),
        (4, 1, 9.0),
        (0, 3, 9.0),
        (3, 5, 9.0),
        (5, 6, 9.0),
        (6, 1, 9.0),
    ]
    topology, pairs = make_topology(links), np.array([[0, 1]], np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=2, cache=False)
    own = teal.compute_paths(topology, pairs, num_paths=2, method=PathMethod.YEN, cache=False)
    assert own.links_of(0, 0)[0] == own.links_of(0, 1)[0] == paths.links_of(0, 0)[0]
    problem = teal.Problem.create(
        topology, paths, teal.Objective(), np.array([4.0])
    ).with_protection()
    splits = torch.full((1, 1, own.num_paths), 1 / own.num_paths, dtype=torch.float64)
    allocation = dataclasses.replace(teal.Allocation.of_batch(splits, None, 0.0), paths=own)
    assert teal.assess(problem, allocation).status[0] == "infeasible"


@pytest.mark.parametrize("seed", range(8))
def test_optimum_and_bound_are_those_of_the_linear_program(seed: int) -> None:
    """Also where links have failed already, other ones in each matrix, and demands have weights."""
    name = (teal.ObjectiveName.TOTAL_FLOW, teal.ObjectiveName.WEIGHTED_FLOW)[seed % 2]
    problem = random_problem(seed, nodes=7, density=0.6, batch=3, objective=name, failed=seed % 3)
    capacity = problem.capacity.clone()
    capacity[1, seed % capacity.shape[1]] = 0
    problem = problem.with_capacity(capacity).with_protection()
    exact, found = teal.make_scheme("lp-all").solve(problem), teal.solve(problem, gap=1e-3)
    optimum = problem.value(exact.splits)
    assert bool((found.value <= optimum * (1 + 1e-6) + 1e-9).all())
    assert bool((found.bound >= optimum * (1 - 1e-6) - 1e-9).all())
    assert bool((found.gap <= 1e-3).all())
    assessed = teal.assess(problem, exact)
    assert all(status.usable for status in assessed.status)
    assert float(assessed.gap.max()) < 1e-6, "the prices of the linear program prove its optimum"
    utilisation, lost = under_failures(problem, found.splits)
    assert float(utilisation.max()) <= 1 + 1e-9
    assert float(lost.max()) == 0.0


@given(seed=st.integers(0, 10_000))
def test_no_prices_prove_less_than_the_optimum(seed: int) -> None:
    torch.manual_seed(seed)
    problem = random_problem(seed, nodes=6, density=0.6, batch=1).with_protection()
    optimum = problem.value(teal.make_scheme("lp-all").solve(problem).splits)
    prices = torch.rand(problem.capacity.shape, dtype=torch.float64) * (
        torch.rand(problem.capacity.shape) < 0.4
    )
    assert float(teal.dual_bound(problem, prices)) >= float(optimum) * (1 - 1e-6) - 1e-9


def test_what_other_schemes_find_breaks_promises_by_hand() -> None:
    """Paths of 4 and 3 Gbit/s: 7 can be carried, and 3 promised."""
    topology = make_topology([(0, 2, 4.0), (2, 1, 4.0), (0, 3, 3.0), (3, 1, 3.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=2, cache=False)
    plain = teal.Problem.create(topology, paths, teal.Objective(), np.array([10.0]))
    problem = plain.with_protection()
    carried = teal.solve(plain, gap=1e-4)
    assert float(plain.value(carried.splits)) == pytest.approx(7.0, rel=1e-3)
    assert (
        teal.assess(problem, teal.Allocation.of_batch(carried.splits, None, 0.0)).status[0]
        == "infeasible"
    )
    # 3.5 Gbit/s on one path: if it fails nothing is left, which no reservation mends.
    alone = torch.tensor([[[0.35, 0.0]]], dtype=torch.float64)
    assert float(teal.violations(problem, alone).conditions["protection"]) == pytest.approx(0.35)
    promised = teal.solve(problem, gap=1e-4)
    assert float(promised.value) == pytest.approx(3.0, rel=1e-3)
    assert (
        teal.assess(problem, teal.Allocation.of_batch(promised.splits, promised.prices, 0.0)).gap
        < 1e-3
    )


def test_of_many_paths_those_carry_promises_that_survive() -> None:
    """Seven paths cross one cable, the eighth avoids it: it is among the six, and promises fit as
    on two paths."""
    links = [(0, 1, 20.0), (0, 9, 5.0), (9, 8, 50.0)]
    for middle in range(2, 9 - 1):
        links += [(1, middle, 9.0), (middle, 8, 9.0)]
    links += [(1, 8, 9.0)]
    topology = make_topology(links)
    paths = teal.compute_paths(
        topology, np.array([[0, 8]], np.int32), num_paths=8, method=PathMethod.YEN, cache=False
    )
    assert int(paths.mask.sum()) == 8
    problem = teal.Problem.create(
        topology, paths, teal.Objective(), np.array([12.0])
    ).with_protection()
    protection = problem.condition(Protection)
    assert protection is not None
    used = (protection.bundles[0] > 0).any(0)
    assert int(used.sum()) <= 6
    around = [k for k in range(8) if paths.links_of(0, k)[0] == 1]
    assert used[around].all()
    promised = teal.solve(problem, gap=1e-4)
    assert float(promised.value) == pytest.approx(5.0, rel=1e-3), "the way around has 5 Gbit/s"
    utilisation, lost = under_failures(problem, promised.splits)
    assert float(utilisation.max()) <= 1 + 1e-9
    assert float(lost.max()) == 0.0
    others = torch.zeros(1, 1, 8, dtype=torch.float64)
    others[0, 0, int(torch.nonzero(~used)[0])] = 0.1
    assert float(teal.violations(problem, others).largest) > 1e-3, (
        "a path that carries no promise counts as lost"
    )


def test_wrong_problems_are_refused() -> None:
    for objective in (teal.ObjectiveName.MAX_LINK_UTILISATION, teal.ObjectiveName.MAX_MIN):
        with pytest.raises(InputError, match=f"not {objective}"):
            random_problem(1, objective=objective).with_protection()
    limited = random_problem(1).with_churn_limit(random_problem(1).even_splits, 0.1)
    with pytest.raises(InputError, match="churn"):
        limited.with_protection()
    with pytest.raises(InputError, match="no further condition"):
        random_problem(1).with_protection().with_churn_limit(random_problem(1).even_splits, 0.1)
