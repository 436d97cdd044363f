"""Bounds of priority classes, against a network solved by hand and against linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from baselines.linear_program import LpSettings
from baselines.lp_priority import solve_in_order
from teal.problem.priority import class_bound, class_certificates
from teal.testing import make_topology, random_problem


def _classes_of(seed: int, failed: int = 0) -> teal.Problem:
    """A random problem of three classes, one of them under a latency limit."""
    base = random_problem(seed, batch=3, failed=failed)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([1, 2, 3], base.demand.shape).transpose(2, 0, 1)
    demand = {name: share * base.demand.numpy() for name, share in zip("abc", shares, strict=True)}
    limit = {"b": float(np.median(base.topology.latency)) * 3}
    return teal.priority_problem(
        base.topology, base.paths, demand, capacity=base.capacity.numpy(), latency_limit_ms=limit
    )


def test_two_classes_on_two_links_by_hand() -> None:
    """a -> c directly (3) or by b (5, then 2): gold 4 from a to c; bronze 4 from a to b and 4 from
    b to c."""
    topology = make_topology([(0, 2, 3.0), (0, 1, 5.0), (1, 2, 2.0)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=2, cache=False
    )
    problem = teal.priority_problem(
        topology, paths, {"gold": np.array([0.0, 4, 0]), "bronze": np.array([4.0, 0, 4])}
    )
    found = teal.solve(problem, gap=1e-6)
    assert found.classes is not None
    # Gold needs 1 Gbit/s of the way by b, which leaves bronze 4 from a to b and 1 from b to c.
    np.testing.assert_allclose(found.classes.value[0], [4.0, 5.0], rtol=1e-5)
    # A price of 1 on the link from b to c: gold pays at least 0 for 3 Gbit/s and 1 for none of the
    # rest, since its cheapest path costs 0; so that this bound on bronze is 2 + 4 and does not see
    # that gold needs the link.
    prices = torch.tensor([[0.0, 0, 1]], dtype=torch.float64)
    assert float(
        class_bound(problem, 1, torch.tensor([[4.0]], dtype=torch.float64), prices)
    ) == pytest.approx(6.0)
    # With a price of 1 on the direct link too, gold pays 4: 3 + 2 + 4 (bronze from a to b) - 4 = 5.
    prices = torch.tensor([[1.0, 0, 1]], dtype=torch.float64)
    assert float(
        class_bound(problem, 1, torch.tensor([[4.0]], dtype=torch.float64), prices)
    ) == pytest.approx(5.0)
    # If gold had only 2.5, it would pay 2.5.
    assert float(
        class_bound(problem, 1, torch.tensor([[2.5]], dtype=torch.float64), prices)
    ) == pytest.approx(6.5)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), failed=st.integers(0, 3))
def test_no_prices_prove_less_than_the_optimum_and_the_lps_prices_prove_it(
    seed: int, failed: int
) -> None:
    problem = _classes_of(seed, failed)
    exact = solve_in_order(problem, LpSettings())
    assert exact.program_prices is not None
    own = class_certificates(problem, exact.splits, exact.program_prices.prices)
    np.testing.assert_allclose(own.bound, own.value, rtol=1e-6, atol=1e-6)
    rng = np.random.default_rng(seed)
    any_prices = torch.from_numpy(
        rng.exponential(1.0, (3, 3, problem.topology.num_links)) * rng.integers(0, 2)
    )
    bounds = class_certificates(problem, exact.splits, any_prices).bound
    assert bool((bounds >= own.value * (1 - 1e-7) - 1e-7).all())
    one = class_certificates(
        problem, exact.splits, any_prices[:, 0]
    )  # the same prices for all classes
    assert bool((one.bound >= own.value * (1 - 1e-7) - 1e-7).all())
    assert bool(
        (
            class_certificates(problem, exact.splits, None).bound >= own.value * (1 - 1e-7) - 1e-7
        ).all()
    )


def test_broken_prices_prove_the_routable_demand() -> None:
    problem = _classes_of(5)
    prices = torch.full((3, 3, problem.topology.num_links), torch.nan, dtype=torch.float64)
    prices[1] = torch.inf
    figures = class_certificates(problem, problem.even_splits, prices)
    routable = torch.where(problem.routable, problem.demand, 0)
    assert problem.classes is not None
    for number, rows in enumerate(problem.classes.blocks):
        np.testing.assert_allclose(figures.bound[:, number], routable[:, rows].sum(1))


def test_the_assessment_has_the_figures_of_each_class() -> None:
    problem = _classes_of(7)
    found = teal.solve(problem, gap=1e-3)
    allocation = teal.Allocation(
        found.splits,
        found.prices,
        (teal.Status.FEASIBLE,) * 3,
        (0.0,) * 3,
        (0.0,) * 3,
        program_prices=found.program_prices,
    )
    assessed = teal.assess(problem, allocation)
    assert assessed.classes is not None
    assert found.classes is not None
    np.testing.assert_allclose(assessed.classes.bound, found.classes.bound)
    np.testing.assert_allclose(assessed.value, assessed.classes.value.sum(1))
    np.testing.assert_allclose(assessed.gap, assessed.classes.gap.amax(1))
    without = teal.assess(problem, teal.Allocation.of_batch(problem.even_splits * 0, None, 0.0))
    assert without.classes is not None
    assert bool((without.classes.value == 0).all())


def test_the_dearest_demands_of_a_higher_class_are_those_that_need_not_be_carried() -> None:
    """Gold has 2 on each of two links and promises 3, so that it pays 2 * 0.9 + 2 * 0.6 - 0.9 = 2.1
    at least."""
    topology = make_topology([(0, 1, 2.5), (1, 2, 2.5)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [1, 2]], np.int32), num_paths=1, cache=False
    )
    problem = teal.priority_problem(
        topology, paths, {"gold": np.array([2.0, 2]), "bronze": np.array([4.0, 4])}
    )
    prices, gold = (
        torch.tensor([[0.9, 0.6]], dtype=torch.float64),
        torch.tensor([[3.0]], dtype=torch.float64),
    )
    # The links cost 2.5 * 1.5, and the demands of bronze keep 4 * 0.1 and 4 * 0.4.
    assert float(class_bound(problem, 1, gold, prices)) == pytest.approx(3.75 + 2.0 - 2.1)
