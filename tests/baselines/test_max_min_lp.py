"""Exact max-min fairness on networks solved by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
from teal.problem.assessment import assess
from teal.testing import make_topology, random_problem
from tests.explicit import explicit_paths


def test_a_demand_with_two_paths_leaves_the_shared_link_to_others() -> None:
    """a -> b by two links, 4 and 2; b -> c with 3: demands a to b (10), a to c (10, only by the
    first link)."""
    topology = make_topology([(0, 1, 4.0), (0, 2, 2.0), (2, 1, 2.0), (1, 3, 3.0)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 3]], np.int32), num_paths=2, cache=False
    )
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([10.0, 10.0]))
    rates = problem.flows(teal.make_scheme("max-min-lp").solve(problem).splits).sum(-1)
    np.testing.assert_allclose(
        rates[0], [3, 3], rtol=1e-6
    )  # together 6 leave node a, and 3 is all that reaches c
    small = problem.with_demand(np.array([[10.0, 1.0]]))
    rates = small.flows(teal.make_scheme("max-min-lp").solve(small).splits).sum(-1)
    np.testing.assert_allclose(rates[0], [5, 1], rtol=1e-6)


def test_geometric_bins_are_within_their_ratio() -> None:
    topology = make_topology([(0, 1, 9.0), (1, 2, 4.0)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False
    )
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([10.0, 8.0, 6.0]))
    rates = problem.flows(teal.make_scheme("geometric-binner").solve(problem).splits).sum(-1)[0]
    ratio = rates.numpy() / np.array([7.0, 2.0, 2.0])
    assert ratio.max() <= 2
    assert ratio.min() >= 1 / 2


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), failed=st.integers(0, 1))
def test_no_rate_can_be_raised_without_lowering_one_that_is_not_larger(
    seed: int, failed: int
) -> None:
    """The definition of max-min fairness, by one linear program a demand over explicit paths."""
    problem = random_problem(seed, nodes=5, batch=1, num_paths=3, failed=failed)
    rates = problem.flows(teal.make_scheme("max-min-lp").solve(problem).splits).sum(-1)[0].numpy()
    mask, demand, capacity = (
        problem.path_mask[0].numpy(),
        problem.demand[0].numpy(),
        problem.capacity[0].numpy(),
    )
    use, of_demand = explicit_paths(problem)
    for d in np.flatnonzero((demand > 0) & mask.any(1)).tolist():
        kept = (rates <= rates[d] * (1 + 1e-6)) & (np.arange(len(rates)) != d)
        a_ub = np.concatenate([use, of_demand, -of_demand[kept]])
        b_ub = np.concatenate([capacity, demand, -rates[kept] * (1 - 1e-9)])
        best = linprog(-of_demand[d], A_ub=a_ub, b_ub=b_ub, bounds=(0, None))
        assert best.status == 0
        assert -best.fun <= rates[d] * (1 + 1e-5) + 1e-6


def test_a_demand_below_the_tolerance_of_the_solver_is_not_called_optimal() -> None:
    topology = make_topology([(0, 1, 100.0), (1, 2, 999.0), (1, 3, 999.0)])
    pairs = np.array([[0, 1], [0, 2], [0, 3]], np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective(), np.array([[1e-6, 100.0, 200.0], [1.0, 100.0, 200.0]])
    )
    status = teal.make_scheme("max-min-lp").solve(problem).status
    assert status[1] is teal.Status.OPTIMAL
    rates = problem.flows(teal.make_scheme("max-min-lp").solve(problem).splits).sum(-1)
    assert (status[0] is teal.Status.OPTIMAL) == (float(rates[0, 0]) > 0.99e-6)


@pytest.mark.parametrize("capacity", [0.01, 1.0, 100.0])
def test_the_levels_certify_the_rates_on_links_of_any_size(capacity: float) -> None:
    """A line of 9 and 4 capacities: the second link gives 2 to each of two demands, and the first
    has 7 left."""
    topology = make_topology([(0, 1, 9 * capacity), (1, 2, 4 * capacity)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False
    )
    problem = teal.Problem.create(
        topology,
        paths,
        teal.Objective(teal.ObjectiveName.MAX_MIN),
        np.array([10.0, 10.0, 10.0]) * capacity,
    )
    allocation = teal.make_scheme("max-min-lp").solve(problem)
    np.testing.assert_allclose(
        problem.flows(allocation.splits).sum(-1)[0] / capacity, [7, 2, 2], rtol=1e-6
    )
    measured = assess(problem, allocation)
    assert measured.gap.item() == pytest.approx(0, abs=1e-5)
    assert measured.fair is not None
    (levels,) = measured.fair.levels
    assert [one.level / capacity for one in levels] == pytest.approx([2, 7])
    assert [one.demands for one in levels] == [2, 1]
    assert [one.growth for one in levels] == pytest.approx([1, 1])
