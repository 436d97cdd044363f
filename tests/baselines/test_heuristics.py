"""Baselines other than LP-all against its optimum and against a network solved by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.cspf import Cspf
from baselines.demand_pinning import DemandPinning
from baselines.ecmp import EcmpOverCandidates
from baselines.largest import largest
from baselines.linear_program import LinearProgram, LpSettings, LpSolution
from baselines.lp_all import LpAll
from baselines.lp_top import LpTop
from baselines.matrix import matrices
from baselines.ncflow import NcFlow
from baselines.pop import Pop, split
from baselines.teavar import Teavar
from baselines.uninformed import Uninformed
from baselines.workers import solve_all
from teal.errors import InputError, SolverError
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem, Status
from teal.problem.assessment import assess
from teal.schemes.registry import Scheme, make_scheme
from teal.testing import assert_batch_equals_loop, assert_feasible, make_topology, random_problem

FLOW_OBJECTIVES = [name for name in SINGLE_PROGRAMS if Objective(name).maximises_value]
LP_OBJECTIVES = [*FLOW_OBJECTIVES, ObjectiveName.MAX_LINK_UTILISATION]
# Settings with which the decomposition is the whole LP.
EXACT_SCHEMES: list[Scheme] = [
    LpTop(alpha=1.0),
    DemandPinning(alpha=1.0),
    Pop(replicas=1, workers=1),
]
# Settings with which the scheme is a heuristic, never better than the LP.
HEURISTIC_SCHEMES: list[Scheme] = [
    LpTop(alpha=0.3),
    DemandPinning(alpha=0.3),
    Pop(replicas=3, workers=1),
]


def _values(problem: Problem, scheme: Scheme) -> torch.Tensor:
    allocation = scheme.solve(problem)
    assert_feasible(problem, allocation)
    return assess(problem, allocation).value


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(LP_OBJECTIVES),
    failed=st.sampled_from([0, 2]),
)
def test_decompositions_equal_the_lp_where_theory_says_so(
    seed: int, objective: ObjectiveName, failed: int
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    optimum = _values(problem, LpAll())
    for scheme in EXACT_SCHEMES:
        torch.testing.assert_close(_values(problem, scheme), optimum, rtol=1e-6, atol=1e-6)


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(LP_OBJECTIVES),
    failed=st.sampled_from([0, 2, 99]),
)
def test_heuristics_are_never_better_than_the_lp(
    seed: int, objective: ObjectiveName, failed: int
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed)
    optimum, sign = _values(problem, LpAll()), problem.objective.rules.sense
    greedy: list[Scheme] = [Cspf(), Cspf(partial=True)] if problem.objective.maximises_value else []
    for scheme in [*HEURISTIC_SCHEMES, Uninformed(0), EcmpOverCandidates(), *greedy]:
        assert (
            sign * (optimum - _values(problem, scheme)) >= -1e-6 * optimum.clamp(min=1)
        ).all(), scheme


@pytest.mark.parametrize("objective", LP_OBJECTIVES)
def test_prices_of_pop_bound_the_optimum(objective: ObjectiveName) -> None:
    problem = random_problem(4, objective=objective)
    measured = assess(problem, Pop(replicas=3, workers=1).solve(problem))
    optimum = _values(problem, LpAll())
    sign = problem.objective.rules.sense
    assert (sign * (measured.bound - optimum) >= -1e-6).all()
    assert (measured.gap < 0.6).all(), "the bound must be closer than one without prices"


def test_heuristics_on_a_batch_equal_their_matrices_one_by_one() -> None:
    for scheme in [*HEURISTIC_SCHEMES, Uninformed(0), EcmpOverCandidates(), Cspf()]:
        assert_batch_equals_loop(scheme, random_problem(3))


def _problem_with_shared_link(demand: list[float]) -> Problem:
    """Demands a->c and b->c, whose first paths share d->c (capacity 3); a has a second path of
    capacity 2 over e, f."""
    links = [(0, 3, 9.0), (1, 3, 9.0), (3, 2, 3.0), (0, 4, 2.0), (4, 5, 2.0), (5, 2, 2.0)]
    topology = make_topology(links)
    pairs = np.array([[0, 2], [1, 2]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    return Problem.create(topology, paths, Objective(), np.array(demand))


@pytest.mark.parametrize(
    ("scheme", "demand", "flows"),
    [
        (
            Uninformed(0),
            [4.0, 2.0],
            [[2.0, 0.0], [1.0, 0.0]],
        ),  # both flows over d->c are cut in proportion
        (
            EcmpOverCandidates(),
            [4.0, 2.0],
            [[2.0, 0.0], [1.0, 0.0]],
        ),  # the second path is longer, so it is not used
        (Cspf(), [2.0, 3.0], [[0.0, 2.0], [3.0, 0.0]]),  # the larger demand is routed first
        (Cspf(), [2.5, 3.0], [[0.0, 0.0], [3.0, 0.0]]),  # 2.5 fits on no path
        (Cspf(partial=True), [2.5, 3.0], [[0.0, 2.0], [3.0, 0.0]]),
        (
            LpTop(alpha=0.5),
            [4.0, 2.0],
            [[3.0, 1.0], [0.0, 0.0]],
        ),  # the LP excludes the smaller demand
        (DemandPinning(alpha=0.5), [4.0, 2.0], [[1.0, 2.0], [2.0, 0.0]]),
    ],
)
def test_heuristics_on_a_shared_link_equal_flows_computed_by_hand(
    scheme: Scheme, demand: list[float], flows: list[list[float]]
) -> None:
    problem = _problem_with_shared_link(demand)
    allocated = problem.flows(scheme.solve(problem).splits)[0]
    if isinstance(scheme, LpTop):  # the LP has several optima, all with a flow of 4
        assert allocated[0].sum() == pytest.approx(4.0)
        assert allocated[1].sum() == pytest.approx(min(2.0, 3.0 - float(allocated[0, 0])))
        return
    torch.testing.assert_close(allocated, torch.tensor(flows, dtype=torch.float64))


def test_largest_selects_the_demands_above_the_quantile() -> None:
    demand = np.array([5.0, 0.0, 1.0, 3.0, 1e-4, 2.0])
    assert np.flatnonzero(largest(demand, 0.25)).tolist() == [0], (
        "the 0.75 quantile of 1, 2, 3, 5 is 3.5"
    )
    assert largest(demand, 1.0).all()
    assert not largest(np.zeros(3), 0.5).any()


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_pop_splits_the_largest_demands_first(replicas: int) -> None:
    demand = np.array([16.0, 1.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    shares = split(demand, replicas, phi=0.5, seed=0)
    assert shares.shape == (replicas, 8)
    np.testing.assert_allclose(shares.sum(0), demand)
    if replicas > 1:
        # 7 demands allow 3 halvings: 16 -> 8 8 -> 4 4 8 -> 4 4 4 4; of two replicas each holds two
        # pieces of 4.
        pieces = np.sort(shares[:, 0])[::-1]
        np.testing.assert_allclose(pieces[:4], [4.0] * 4 if replicas == 5 else [8.0, 8.0])
        assert (np.count_nonzero(shares[:, 1:], axis=0) <= 1).all(), (
            "the other demands are not split"
        )
        parts = np.count_nonzero(shares[:, 1:], axis=1)
        assert parts.max() - parts.min() <= 1


@pytest.mark.slow
def test_pop_in_two_processes_equals_pop_in_one() -> None:
    problem = random_problem(6, batch=1)
    one_process, two_processes = (
        Pop(replicas=3, workers=workers).solve(problem) for workers in (1, 2)
    )
    torch.testing.assert_close(one_process.splits, two_processes.splits)
    (parallel_s,) = two_processes.parallel_s
    assert parallel_s is not None
    assert 0 < parallel_s <= two_processes.build_s[0] + two_processes.solve_s[0]


def test_wrong_objectives_and_solvers_of_heuristics_are_refused() -> None:
    with pytest.raises(InputError, match="total_flow"):
        Cspf().solve(random_problem(0, objective=ObjectiveName.MAX_LINK_UTILISATION))
    with pytest.raises(InputError, match="max_concurrent_flow"):
        LpTop().solve(random_problem(0, objective=ObjectiveName.MAX_CONCURRENT_FLOW))
    with pytest.raises(InputError, match="highs or gurobi"):
        LpSettings(solver="cplex")


def test_pop_with_highs_and_gurobi_agree_and_a_model_beyond_the_licence_is_refused() -> None:
    problem = random_problem(8)
    by_highs, by_gurobi = (
        _values(problem, Pop(replicas=2, workers=1, settings=LpSettings(name)))
        for name in ("highs", "gurobi")
    )
    torch.testing.assert_close(by_highs, by_gurobi, rtol=1e-6, atol=1e-6)
    large = random_problem(0, nodes=40, density=0.5, batch=1)
    with pytest.raises(SolverError, match="2,000 variables"):
        LpTop(alpha=1.0, settings=LpSettings("gurobi")).solve(large)


def test_a_threshold_in_capacities_decides_what_is_pinned() -> None:
    """Mean capacity 4: demands of at most 2 are pinned by the threshold 0.5, whatever the others
    are."""
    topology = make_topology([(0, 1, 4.0), (0, 2, 4.0), (2, 1, 4.0)])
    paths = compute_paths(topology, np.array([[0, 1], [0, 2]], np.int32), num_paths=2, cache=False)
    problem = Problem.create(
        topology, paths, Objective(), np.array([[2.0, 8.0], [2.1, 1.0], [1.0, 2.0]])
    )
    scheme = DemandPinning(threshold=0.5)
    optimised = [scheme.optimised(matrix).tolist() for matrix in matrices(problem)]
    assert optimised == [[False, True], [True, False], [False, False]]
    with pytest.raises(InputError, match="threshold"):
        make_scheme("demand-pinning:threshold=-1")


@pytest.mark.parametrize("scheme", [DemandPinning(), LpTop(), Pop(replicas=2, workers=1)])
def test_a_network_without_any_path_has_an_allocation_of_nothing(scheme: Scheme) -> None:
    topology = make_topology([(0, 1, 1.0)], min_nodes=4)
    paths = compute_paths(topology, np.array([[2, 3], [3, 2]], np.int32), cache=False)
    problem = Problem.create(
        topology, paths, Objective(ObjectiveName.MAX_LINK_UTILISATION), np.array([1.0, 2.0])
    )
    assert float(_values(problem, scheme)) == 0.0


@pytest.mark.parametrize("unit", [1e-9, 4e-3, 1e9])
@pytest.mark.parametrize(
    "scheme", [Pop(replicas=4, phi=0.0, workers=1), NcFlow(workers=1), Teavar(), LpAll()]
)
def test_the_unit_of_rates_changes_no_result(scheme: Scheme, unit: float) -> None:
    """Absolute tolerances of LP solvers made allocations on links of 0.04 Gbit/s infeasible."""
    problem = random_problem(6, nodes=6, density=0.5, batch=1)
    scaled = problem.with_demand(problem.demand * unit).with_capacity(problem.capacity * unit)
    expected, actual = (_values(p, scheme) for p in (problem, scaled))
    torch.testing.assert_close(actual / unit, expected, rtol=1e-5, atol=0)


def test_lp_top_places_small_demands_on_their_first_path_alone() -> None:
    """b -> c fills d -> c, on which the first path of a -> c lies: a gets nothing, though its
    second path is free."""
    problem = _problem_with_shared_link([2.0, 4.0])
    flows = problem.flows(LpTop(alpha=0.5).solve(problem).splits)[0]
    torch.testing.assert_close(flows, torch.tensor([[0.0, 0.0], [3.0, 0.0]], dtype=torch.float64))


def test_ecmp_over_candidates_takes_the_shortest_live_path() -> None:
    """Without d -> c the demand a -> c has its path over e and f, with 2 Gbit/s, and b -> c has
    none."""
    problem = _problem_with_shared_link([4.0, 2.0])
    without = problem.with_capacity(torch.where(problem.capacity == 3.0, 0.0, problem.capacity))
    flows = without.flows(EcmpOverCandidates().solve(without).splits)[0]
    torch.testing.assert_close(flows, torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("scheme", [LpTop(alpha=0.5), DemandPinning(alpha=0.5)])
def test_demands_above_a_thousandth_of_a_gigabit_count_for_the_quantile_on_links_of_any_size(
    scheme: LpTop | DemandPinning,
) -> None:
    """The median of 0.05, 0.06, 10 and 20 Gbit/s is about 5; that of 10 and 20 alone would be
    15."""
    for capacity in (1.0, 100.0, 10_000.0):
        topology = make_topology(
            [(0, 1, capacity), (0, 2, capacity), (0, 3, capacity), (0, 4, capacity)]
        )
        paths = compute_paths(
            topology, np.array([[0, n] for n in range(1, 5)], np.int32), num_paths=1, cache=False
        )
        problem = Problem.create(topology, paths, Objective(), np.array([0.05, 0.06, 10.0, 20.0]))
        (matrix,) = matrices(problem)
        assert scheme.optimised(matrix).tolist() == [False, False, True, True], capacity


@pytest.mark.parametrize("ended", [Status.TIME_LIMIT, Status.FAILED])
@pytest.mark.parametrize("replica", [0, 1, 2])
def test_pop_has_no_allocation_if_the_program_of_any_replica_has_none(
    replica: int, ended: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve_but_one(
        programs: list[LinearProgram], settings: LpSettings, workers: int
    ) -> list[LpSolution]:
        solutions = solve_all(programs, settings, workers)
        lost = solutions[replica]
        solutions[replica] = LpSolution(
            np.zeros_like(lost.x), np.zeros_like(lost.dual), ended, lost.seconds
        )
        return solutions

    problem = random_problem(4, batch=1)
    monkeypatch.setattr("baselines.pop.solve_all", solve_but_one)
    allocation = Pop(replicas=3, workers=1).solve(problem)
    assert allocation.status == (ended,)
    assert assess(problem, allocation).value.isnan().all()
