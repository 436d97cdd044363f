"""The baselines that are not the LP itself, against it and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.cspf import Cspf
from baselines.demand_pinning import DemandPinning
from baselines.ecmp import Ecmp
from baselines.largest import largest
from baselines.linear_program import LpSettings
from baselines.lp_all import LpAll
from baselines.lp_top import LpTop
from baselines.pop import Pop, split
from baselines.shortest_path import ShortestPath
from teal.errors import InputError, SolverError
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.schemes.registry import Scheme
from teal.testing import assert_batch_equals_loop, assert_feasible, make_topology, random_problem

FLOWS = [name for name in ObjectiveName if Objective(name).maximises_value]
LPS = [*FLOWS, ObjectiveName.MAX_LINK_UTILISATION]
EQUAL: list[Scheme] = [LpTop(alpha=1.0), DemandPinning(alpha=1.0), Pop(replicas=1, workers=1)]
BELOW: list[Scheme] = [LpTop(alpha=0.3), DemandPinning(alpha=0.3), Pop(replicas=3, workers=1)]


def _values(problem: Problem, scheme: Scheme) -> torch.Tensor:
    allocation = scheme.solve(problem)
    assert_feasible(problem, allocation)
    return assess(problem, allocation).value


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), objective=st.sampled_from(LPS), failed=st.sampled_from([0, 2]))
def test_decompositions_equal_the_lp_where_theory_says_so(seed: int, objective: ObjectiveName, failed: int) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    optimum = _values(problem, LpAll())
    for scheme in EQUAL:
        torch.testing.assert_close(_values(problem, scheme), optimum, rtol=1e-6, atol=1e-6)


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), objective=st.sampled_from(LPS), failed=st.sampled_from([0, 2, 99]))
def test_heuristics_stay_below_the_lp_elsewhere(seed: int, objective: ObjectiveName, failed: int) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    optimum, sign = _values(problem, LpAll()), 1 if problem.objective.higher_is_better else -1
    greedy: list[Scheme] = [Cspf(), Cspf(partial=True)] if problem.objective.maximises_value else []
    for scheme in [*BELOW, ShortestPath(), Ecmp(), *greedy]:
        assert (sign * (optimum - _values(problem, scheme)) >= -1e-6 * optimum.clamp(min=1)).all(), scheme


@pytest.mark.parametrize("objective", LPS)
def test_prices_of_pop_bound_the_optimum(objective: ObjectiveName) -> None:
    problem = random_problem(4, objective=objective)
    measured = assess(problem, Pop(replicas=3, workers=1).solve(problem))
    optimum = _values(problem, LpAll())
    sign = 1 if problem.objective.higher_is_better else -1
    assert (sign * (measured.bound - optimum) >= -1e-6).all()
    assert (measured.gap < 0.6).all(), "and more closely than none at all"


def test_batches_are_loops() -> None:
    for scheme in [*BELOW, ShortestPath(), Ecmp(), Cspf()]:
        assert_batch_equals_loop(scheme, random_problem(3))


def _shared_link(demand: list[float]) -> Problem:
    """a->c and b->c, both over d->c (3) first; a has another way of capacity 2 through e."""
    links = [(0, 3, 9.0), (1, 3, 9.0), (3, 2, 3.0), (0, 4, 2.0), (4, 5, 2.0), (5, 2, 2.0)]
    topology = make_topology(links)
    pairs = np.array([[0, 2], [1, 2]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    return Problem.create(topology, paths, Objective(), np.array(demand))


@pytest.mark.parametrize(
    ("scheme", "demand", "flows"),
    [
        (ShortestPath(), [4.0, 2.0], [[2.0, 0.0], [1.0, 0.0]]),  # cut in proportion
        (Ecmp(), [4.0, 2.0], [[2.0, 0.0], [1.0, 0.0]]),  # the detour is longer
        (Cspf(), [2.0, 3.0], [[0.0, 2.0], [3.0, 0.0]]),  # the larger first
        (Cspf(), [2.5, 3.0], [[0.0, 0.0], [3.0, 0.0]]),  # fits nowhere
        (Cspf(partial=True), [2.5, 3.0], [[0.0, 2.0], [3.0, 0.0]]),
        (LpTop(alpha=0.5), [4.0, 2.0], [[3.0, 1.0], [0.0, 0.0]]),  # the LP is blind to the small one: it takes d->c
        (DemandPinning(alpha=0.5), [4.0, 2.0], [[1.0, 2.0], [2.0, 0.0]]),
    ],
)
def test_a_network_worked_out_by_hand(scheme: Scheme, demand: list[float], flows: list[list[float]]) -> None:
    problem = _shared_link(demand)
    found = problem.flows(scheme.solve(problem).splits)[0]
    if isinstance(scheme, LpTop):  # its LP has several optima: 4 in all, however split
        assert found[0].sum() == pytest.approx(4.0)
        assert found[1].sum() == pytest.approx(min(2.0, 3.0 - float(found[0, 0])))
        return
    torch.testing.assert_close(found, torch.tensor(flows, dtype=torch.float64))


def test_the_largest_demands() -> None:
    demand = np.array([5.0, 0.0, 1.0, 3.0, 1e-4, 2.0])
    assert np.flatnonzero(largest(demand, 0.25)).tolist() == [0], "the 0.75 quantile of 1, 2, 3, 5 is 3.5"
    assert largest(demand, 1.0).all()
    assert not largest(np.zeros(3), 0.5).any()


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_pop_splits_the_largest_first(replicas: int) -> None:
    demand = np.array([16.0, 1.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    shares = split(demand, replicas, phi=0.5, seed=0)
    assert shares.shape == (replicas, 8)
    np.testing.assert_allclose(shares.sum(0), demand)
    if replicas > 1:
        # 7 demands, 3 halvings: 16 -> 8 8 -> 4 4 8 -> 4 4 4 4, which two replicas hold two by two.
        pieces = np.sort(shares[:, 0])[::-1]
        np.testing.assert_allclose(pieces[:4], [4.0] * 4 if replicas == 5 else [8.0, 8.0])
        assert (np.count_nonzero(shares[:, 1:], axis=0) <= 1).all(), "the others stay whole"
        parts = np.count_nonzero(shares[:, 1:], axis=1)
        assert parts.max() - parts.min() <= 1


def test_pop_in_processes_is_pop_in_one() -> None:
    problem = random_problem(6, batch=1)
    alone, together = (Pop(replicas=3, workers=workers).solve(problem) for workers in (1, 2))
    torch.testing.assert_close(alone.splits, together.splits)
    (parallel,) = together.parallel_s
    assert parallel is not None
    assert 0 < parallel <= together.build_s[0] + together.solve_s[0]


def test_wrong_use_is_an_error_that_says_so() -> None:
    with pytest.raises(InputError, match="total_flow"):
        Cspf().solve(random_problem(0, objective=ObjectiveName.MAX_LINK_UTILISATION))
    with pytest.raises(InputError, match="max_concurrent_flow"):
        LpTop().solve(random_problem(0, objective=ObjectiveName.MAX_CONCURRENT_FLOW))
    with pytest.raises(InputError, match="highs or gurobi"):
        LpSettings(solver="cplex")


def test_solvers_agree_and_a_small_licence_says_so() -> None:
    problem = random_problem(8)
    one, other = (_values(problem, Pop(replicas=2, workers=1, how=LpSettings(name))) for name in ("highs", "gurobi"))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    large = random_problem(0, nodes=40, density=0.5, batch=1)
    with pytest.raises(SolverError, match="2,000 variables"):
        LpTop(alpha=1.0, how=LpSettings("gurobi")).solve(large)
