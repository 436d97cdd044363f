"""PDHG where numbers are extreme, against optima by hand, exact fractions, and an explicit program
in HiGHS."""

from __future__ import annotations

import gc
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.network import Topology, compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.solvers import pipeline
from teal.solvers.result import SolveResult, SolveState, Stop
from teal.testing import make_topology, random_problem
from tests.extremes import ROUNDING, check, exact_bound, extreme_problem, share_program


def _problem(
    topology: Topology,
    demands: dict[tuple[int, int], float],
    objective: str = "total_flow",
    num_paths: int = 2,
) -> Problem:
    pairs = np.array(list(demands), np.int32)
    paths = compute_paths(topology, pairs, num_paths=num_paths, cache=False)
    return Problem.create(
        topology, paths, Objective(ObjectiveName(objective)), np.array([list(demands.values())])
    )


def _two_nodes(capacity: float, demand: float, objective: str = "total_flow") -> Problem:
    return _problem(make_topology([(0, 1, capacity)]), {(0, 1): demand}, objective, 1)


def _three_nodes() -> Problem:
    """Links of 1 (0 to 1), 1 (1 to 2) and 10 (0 to 2) Gbit/s; 2 Gbit/s from 0 to 1, 8 from 0 to 2:
    the optimum is 9."""
    return _problem(
        make_topology([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 10.0)]), {(0, 1): 2.0, (0, 2): 8.0}
    )


def _is_proven(problem: Problem, result: SolveResult) -> bool:
    """Whether the prices prove the bound and the value is no better, in exact arithmetic; B = 1."""
    proven = exact_bound(problem, result.prices[0])
    sign = problem.objective.rules.sense
    value = Fraction(float(result.value))
    bound = Fraction(float(result.bound))
    slack = Fraction(ROUNDING) * max(abs(proven), abs(value))
    return sign * (proven - value) >= -slack and sign * (bound - proven) >= -slack


def test_a_nearly_idle_network_is_solved_in_few_iterations() -> None:
    topology = teal.load_topology("b4")
    rates = np.zeros((1, topology.num_nodes * (topology.num_nodes - 1)))
    rates[0, 7] = 1e-3
    paths = compute_paths(topology, cache=False)
    for objective in ("latency_penalised_flow", "total_flow"):
        problem = Problem.create(topology, paths, Objective(ObjectiveName(objective)), rates)
        result = teal.solve(problem, gap=0.01)
        assert float(result.gap) <= 1e-6
        assert result.iterations <= 6


def test_traffic_of_a_ten_millionth_is_solved_to_its_optimum() -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:load=1", topology)
    problem = Problem.create(
        topology,
        compute_paths(topology, traffic.pairs, cache=False),
        Objective(),
        1e-7 * traffic.read([0]),
    )
    result = teal.solve(problem, gap=1e-4)
    assert float(result.gap) <= 1e-4
    torch.testing.assert_close(result.value, problem.demand.sum(1), rtol=1e-6, atol=0)


def test_the_bound_by_prices_of_zero_is_tried() -> None:
    """All demand fits, which prices of 0 prove at once; at any earlier moment the bound is no worse
    than all demand."""
    problem = random_problem(3, batch=1)
    for limit in (0, 1, 5):
        result = pipeline.solve(problem, gap=0, max_iterations=limit)
        routable = torch.where(problem.routable, problem.demand, 0).sum(1)
        assert float(result.bound) <= float(routable) * (1 + ROUNDING)
        assert _is_proven(problem, result)


@pytest.mark.parametrize("factor", [10.0, 1e3, 1e6, 1e300])
def test_a_warm_start_with_prices_far_too_high_recovers(factor: float) -> None:
    problem = _three_nodes()
    cold = pipeline.solve(problem, gap=1e-4)
    assert float(cold.value) == pytest.approx(9, rel=1e-4)
    for prices in (cold.prices * factor, torch.full_like(cold.prices, factor)):
        warm = pipeline.solve(problem, gap=1e-4, warm_start=(cold.splits, prices))
        assert float(warm.gap) <= 1e-4
        assert warm.iterations <= 200
        assert _is_proven(problem, warm)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_value_and_gap_of_max_concurrent_flow_are_those_of_its_splits(seed: int) -> None:
    problem = random_problem(seed, objective=ObjectiveName.MAX_CONCURRENT_FLOW, batch=1)
    result = pipeline.solve(problem, gap=0.3, max_iterations=3)
    torch.testing.assert_close(result.value, problem.value(result.splits), rtol=1e-12, atol=0)
    expected = (result.bound - result.value) / result.bound
    torch.testing.assert_close(result.gap, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("entry", [1e300, 1e308, math.inf, math.nan, -1.0])
@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_prices_without_sense_certify_nothing_wrong(objective: ObjectiveName, entry: float) -> None:
    problem = random_problem(5, objective=objective, batch=1)
    optimum = pipeline.solve(problem, gap=1e-6)
    prices = torch.where(torch.arange(optimum.prices.shape[1]) % 2 == 0, entry, optimum.prices)
    bound = teal.problem.dual_bound(problem, prices)
    assert not bool(bound.isnan())
    sign = problem.objective.rules.sense
    assert sign * float(bound - optimum.value) >= -1e-6 * abs(float(optimum.value))
    warm = pipeline.solve(problem, gap=1e-3, warm_start=SolveState(optimum.splits, prices))
    assert float(warm.gap) <= 1e-3
    assert _is_proven(problem, warm)


def test_a_number_that_is_none_is_never_a_good_gap() -> None:
    maximum = _two_nodes(1, 1)
    minimum = _two_nodes(1, 1, "max_link_utilisation")
    for bad in (math.nan, math.inf):
        for problem in (maximum, minimum):
            for value, bound in ((1.0, bad), (bad, 1.0), (bad, bad), (0.0, bad)):
                gap = teal.problem.bounds.gap(problem, torch.tensor([value]), torch.tensor([bound]))
                assert float(gap) == math.inf


@pytest.mark.parametrize(
    ("capacity", "demand"),
    [(1e-320, 1.0), (1.0, 1e-320), (1e-320, 1e-320), (1e12, 1e12), (1e300, 1.0), (1.0, 1e300)],
)
@pytest.mark.parametrize("objective", ["total_flow", "max_concurrent_flow", "max_link_utilisation"])
def test_one_link_of_any_size_has_its_optimum_by_hand(
    capacity: float, demand: float, objective: str
) -> None:
    problem = _two_nodes(capacity, demand, objective)
    result = pipeline.solve(problem, gap=1e-4, max_iterations=100)
    utilisation = demand / capacity if demand / capacity < math.inf else math.inf
    optimum = {"total_flow": min(capacity, demand), "max_link_utilisation": utilisation}.get(
        objective, min(1.0, capacity / demand)
    )
    if math.isfinite(optimum) and optimum > 1e-300:
        assert float(result.value) == pytest.approx(optimum, rel=1e-4)
        assert result.stopped_by[0] in (Stop.GAP, Stop.ROUNDING), (
            "a subnormal number has few digits"
        )
    assert float(violations(problem, result.splits).largest) <= TOLERANCE
    assert not bool(result.gap.isnan())


@pytest.mark.parametrize("objective", ["max_link_utilisation", "max_concurrent_flow"])
def test_a_link_that_is_the_only_way_counts_however_narrow_it_is(objective: str) -> None:
    topology = make_topology([(0, 1, 1e-25), (1, 2, 10.0)])
    problem = _problem(topology, {(0, 1): 1.0, (1, 2): 1.0}, objective, 1)
    result = pipeline.solve(problem, gap=1e-2)
    optimum = 1e25 if objective == "max_link_utilisation" else 1e-25
    assert float(result.value) == pytest.approx(optimum, rel=1e-2)
    assert float(result.gap) <= 1e-2


def test_a_problem_and_its_usable_form_are_freed_without_the_garbage_collector() -> None:
    problem = _two_nodes(1e9, 1.0)
    ordinary = random_problem(1)
    reduced = weakref.ref(problem.usable)
    assert ordinary.usable is ordinary
    assert reduced() is not problem
    gc.disable()
    try:
        forgotten = weakref.ref(ordinary)
        del problem, ordinary
        assert (reduced(), forgotten()) == (None, None)
    finally:
        gc.enable()


def test_what_stopped_the_search_is_said() -> None:
    problem = random_problem(4, batch=3)
    assert pipeline.solve(problem, gap=0.5).stopped_by == (Stop.GAP,) * 3
    assert Stop.ITERATIONS in pipeline.solve(problem, gap=0, max_iterations=3).stopped_by
    assert Stop.DEADLINE in pipeline.solve(problem, gap=0, deadline=0.0).stopped_by
    # A nearly idle matrix beside one that needs more than an iteration.
    uneven = problem.with_demand(
        problem.demand * torch.tensor([[0.05], [3.0], [0.05]], dtype=torch.float64)
    )
    assert pipeline.solve(uneven, gap=0.01, max_iterations=1).stopped_by == (
        Stop.GAP,
        Stop.ITERATIONS,
        Stop.GAP,
    )


def test_ordinary_and_extreme_matrices_of_a_batch_are_all_solved() -> None:
    ordinary = random_problem(2, batch=3)
    capacity = ordinary.capacity.clone()
    capacity[1] *= 10.0 ** torch.linspace(-7, 7, capacity.shape[1], dtype=torch.float64)
    problem = ordinary.with_capacity(capacity)
    together = pipeline.solve(problem, gap=1e-4)
    assert (together.gap <= 1e-4).all()
    for b in range(3):
        reference = pipeline.solve(problem.row(b), gap=1e-4)
        torch.testing.assert_close(together.value[b], reference.value[0], rtol=2e-4, atol=0)


@settings(max_examples=40)
@given(seed=st.integers(0, 100_000))
def test_certificates_hold_over_fifteen_decades(seed: int) -> None:
    row = check(seed, gap=1e-4, with_oracle=True, max_iterations=2000)
    wrong = ("false_certificate", "nan", "infeasible", "better_than_oracle", "oracle_outside_bound")
    assert not any(row[name] for name in wrong), row


@pytest.mark.system
def test_at_most_one_in_fifty_extreme_problems_misses_its_gap() -> None:
    """One in five did with the step sizes of the plain engine."""
    missed = [
        seed
        for seed in range(100)
        if check(seed, gap=1e-4, with_oracle=False, max_iterations=2000)["above_gap"]
    ]
    assert len(missed) <= 2, missed


def test_the_name_of_an_engine_that_is_gone_is_auto_and_warns() -> None:
    problem = random_problem(11, batch=3)
    with pytest.warns(DeprecationWarning, match="engine equilibrated is deprecated: use auto"):
        result = pipeline.solve(problem, gap=1e-5, engine="equilibrated")
    torch.testing.assert_close(result.value, pipeline.solve(problem, gap=1e-5).value)


def test_the_oracle_of_extreme_problems_agrees_with_optima_by_hand() -> None:
    assert share_program(_three_nodes()) == pytest.approx(9)
    problem, _ = extreme_problem(0)
    assert share_program(problem) > 0
