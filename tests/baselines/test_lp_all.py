"""LP-all against a hand-solved network, one solver against the other, and the faults that a solver
can report."""

from __future__ import annotations

import sys
from pathlib import Path

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.highs import DUAL, PRIMAL, Algorithm, select_algorithm
from baselines.linear_program import LpSettings
from baselines.lp_all import LpAll
from baselines.matrix import matrices
from baselines.path_program import path_program
from teal.errors import InputError, SolverError
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Status
from teal.problem.assessment import assess
from teal.schemes.registry import make_scheme
from teal.testing import assert_feasible, make_topology, random_problem
from tests.extremes import extreme_problem, share_program


def _triangle(objective: ObjectiveName) -> Problem:
    """Demands a->b (2) and a->c (4); a->c over the direct link (capacity 2) or over b (capacities 3
    and 3)."""
    topology = make_topology([(0, 2, 2.0), (0, 1, 3.0), (1, 2, 3.0)])
    paths = compute_paths(topology, np.array([[0, 1], [0, 2]], np.int32), num_paths=2, cache=False)
    return Problem.create(
        topology, paths, Objective(objective), np.array([2.0, 4.0]), weight=np.array([1.0, 5.0])
    )


@pytest.mark.parametrize(
    ("objective", "optimum"),
    [
        (ObjectiveName.TOTAL_FLOW, 5.0),  # 2 direct, 3 over a->b
        (ObjectiveName.WEIGHTED_FLOW, 4 * 5.0 + 1.0),  # a->c in full, 1 left of a->b
        (
            ObjectiveName.LATENCY_PENALISED_FLOW,
            2 * 0.75 + 2 * 0.75 + 1 * 0.5,
        ),  # value 3/4 for one hop, 1/2 for two
        (ObjectiveName.MAX_LINK_UTILISATION, 1.2),  # (4 - x)/2 = (2 + x)/3, x = 1.6
    ],
)
def test_lp_all_equals_the_hand_solved_optimum_of_a_triangle(
    objective: ObjectiveName, optimum: float
) -> None:
    problem = _triangle(objective)
    allocation = LpAll().solve(problem)
    measured = assess(problem, allocation)
    assert measured.value.item() == pytest.approx(optimum)
    assert measured.bound.item() == pytest.approx(optimum)
    assert allocation.status == (Status.OPTIMAL,)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.integers(0, 3),
    idle=st.sampled_from([0.2, 1.0]),
)
def test_lp_all_with_highs_and_gurobi_is_feasible_and_agrees(
    seed: int, objective: ObjectiveName, failed: int, idle: float
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed, nodes=5, idle=idle)
    allocations = [LpAll(solver=solver).solve(problem) for solver in ("highs", "gurobi")]
    for allocation in allocations:
        assert_feasible(problem, allocation)
    values = [assess(problem, allocation).value for allocation in allocations]
    torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", [*SINGLE_PROGRAMS, ObjectiveName.LEAST_COST])
@pytest.mark.parametrize(
    ("method", "crossover", "presolve"),
    [
        ("simplex", True, True),
        ("simplex", True, False),
        ("primal-simplex", True, True),
        ("primal-simplex", True, False),
        ("ipm", True, True),
        ("ipm", True, False),
        ("ipm", False, True),
        ("ipm", False, False),
    ],
)
@pytest.mark.parametrize("solver", ["highs", "gurobi"])
def test_every_method_finds_the_optimum_and_certifies_it(
    solver: str, method: str, crossover: bool, presolve: bool, objective: ObjectiveName
) -> None:
    problem = random_problem(4, objective=objective, batch=3, nodes=6)
    problem = problem.with_demand(torch.where(problem.routable, problem.demand / 20, 0))
    scheme = LpAll(solver=solver, method=method, crossover=crossover, presolve=presolve)
    if not crossover and objective is ObjectiveName.LEAST_COST:
        with pytest.raises(InputError, match="crossover=false"):
            scheme.solve(problem)
        return
    allocation = scheme.solve(problem)
    assert_feasible(problem, allocation)
    measured = assess(problem, allocation)
    assert bool((measured.gap <= 1e-6).all())
    assert bool((measured.max_violation <= 1e-9).all())


def test_the_method_is_chosen_by_whether_carrying_nothing_is_feasible() -> None:
    """Primal simplex begins at x = 0, where that is feasible; dual simplex is slow there."""
    shed, whole = (
        next(matrices(random_problem(0, objective=objective, batch=1)))
        for objective in (ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION)
    )
    programs = [path_program(m, m.routable, m.capacity).program for m in (shed, whole)]
    chosen = [select_algorithm(program, LpSettings()) for program in programs]
    assert chosen == [Algorithm("simplex", PRIMAL, presolve=False), Algorithm("simplex", DUAL)]
    unpresolved = select_algorithm(programs[1], LpSettings(presolve=False))
    assert unpresolved == Algorithm("simplex", DUAL, presolve=False)
    named = select_algorithm(programs[0], LpSettings(method="ipm"))
    assert named == Algorithm("ipm")


@pytest.mark.parametrize("load", [1e-3, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_links_that_cannot_decide_have_no_row_and_the_optimum_stays(
    monkeypatch: pytest.MonkeyPatch, objective: ObjectiveName, load: float
) -> None:
    """The multipliers of the rows that are left prove the value; no modelling layer is needed."""
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    for seed in range(4):
        problem = random_problem(seed, objective=objective, failed=seed % 3, nodes=6, density=0.3)
        problem = problem.with_demand(problem.demand * load)
        measured = assess(problem, LpAll(threads=1).solve(problem))
        assert (measured.max_violation <= 1e-9).all()
        torch.testing.assert_close(measured.value, measured.bound, rtol=1e-9, atol=1e-12)
        for matrix in matrices(problem.solved):
            lp = path_program(matrix, matrix.routable, matrix.capacity)
            if load == 1e-3 and problem.objective.maximises_value:
                assert not len(lp.links), "no link can be filled"


def test_lp_all_of_a_network_without_routes_is_zero() -> None:
    topology = make_topology([(0, 1, 1.0)])
    paths = compute_paths(topology, np.array([[1, 0]], np.int32), cache=False)
    for objective in (ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION):
        problem = Problem.create(topology, paths, Objective(objective), np.array([3.0]))
        allocation = LpAll().solve(problem)
        assert allocation.status == (Status.OPTIMAL,)
        assert assess(problem, allocation).value.item() == 0.0


def test_lp_all_beyond_the_gurobi_licence_is_refused_and_the_limit_named() -> None:
    topology = load_topology("topohub:sndlib/germany50")
    traffic = load_traffic("gravity:seed=0,count=1", topology)
    problem = Problem.create(
        topology, compute_paths(topology, traffic.pairs), Objective(), traffic.read([0])
    )
    with pytest.raises(
        SolverError, match=r"2,000 variables and 2,000 constraints.*lp-all:solver=highs"
    ):
        LpAll(solver="gurobi").solve(problem)


def test_a_missing_solver_is_refused_and_its_package_named() -> None:
    if "CUOPT" in cvxpy.installed_solvers():
        pytest.skip("cuOpt is installed")
    with pytest.raises(SolverError, match="NVIDIA cuOpt is not installed"):
        make_scheme("lp-all:solver=cuopt").solve(random_problem(0))


def test_lp_all_at_its_time_limit_has_a_status_and_no_value() -> None:
    topology = load_topology("topohub:sndlib/germany50")
    traffic = load_traffic("gravity:seed=0,count=1,load=4", topology)
    problem = Problem.create(
        topology, compute_paths(topology, traffic.pairs), Objective(), traffic.read([0])
    )
    allocation = LpAll(method="simplex", time_limit=1e-3).solve(problem)
    assert allocation.status == (Status.TIME_LIMIT,)
    assert assess(problem, allocation).value.isnan().all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lp-all:solver=cplex", "highs, gurobi or cuopt"),
        (
            "lp-all:speed=9",
            "one of: crossover, method, presolve, solver, threads, time_limit, warm",
        ),
        ("lp-all:threads=two", "an integer"),
        ("lp-all:time_limit=-1", "a number >= 0"),
        ("lp-none", "one of:"),
        ("pdhg:gap=-1", "a number >= 0"),
    ],
)
def test_wrong_specifications_of_schemes_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_scheme(text)


def test_options_of_a_specification_reach_lp_all() -> None:
    scheme = make_scheme("lp-all:solver=gurobi,time-limit=2.5,threads=1", Path("unused"))
    assert scheme == LpAll(solver="gurobi", time_limit=2.5, threads=1)


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
@pytest.mark.parametrize("scheme", ["lp-all", "pop:replicas=1"])
def test_tiny_demands_do_not_hide_behind_the_tolerance_of_the_solver(
    solver: str, scheme: str
) -> None:
    """Links 1 and 10, demands 2 and 1.5e-7: by hand alpha is 1/2, and 2 the largest utilisation."""
    topology = make_topology([(0, 1, 1.0), (1, 2, 10.0)])
    paths = compute_paths(topology, np.array([[0, 1], [1, 2]], np.int32), cache=False)
    optima = {ObjectiveName.MAX_LINK_UTILISATION: 2.0}
    if scheme == "lp-all":
        optima[ObjectiveName.MAX_CONCURRENT_FLOW] = 0.5
    for objective, optimum in optima.items():
        problem = Problem.create(topology, paths, Objective(objective), np.array([2.0, 1.5e-7]))
        option = f"{scheme}{',' if ':' in scheme else ':'}solver={solver}"
        measured = assess(problem, make_scheme(option, None).solve(problem))
        assert measured.status == (Status.OPTIMAL,)
        assert measured.value.item() == pytest.approx(optimum, rel=1e-6)
        assert measured.gap.item() == pytest.approx(0, abs=1e-6)


@settings(max_examples=20)
@given(seed=st.integers(0, 100_000), solver=st.sampled_from(["highs", "gurobi"]))
def test_lp_all_is_optimal_over_fifteen_decades(seed: int, solver: str) -> None:
    """Against the program in benchmarks/extremes.py, written and scaled independently."""
    problem, _ = extreme_problem(seed)
    measured = assess(problem, LpAll(solver).solve(problem))
    assert measured.status == (Status.OPTIMAL,)
    assert measured.value.item() == pytest.approx(share_program(problem), rel=1e-5, abs=0)


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
def test_lp_all_uses_the_links_of_each_matrix_also_after_one_that_spans_many_decades(
    solver: str,
) -> None:
    """A triangle whose direct link fails in the second matrix, which needs the scaled program, and
    in the third."""
    problem = _triangle(ObjectiveName.MAX_LINK_UTILISATION)
    batch = problem.with_demand(
        torch.tensor([[2.0, 4.0], [1e-8, 4.0], [2.0, 4.0]], dtype=torch.float64)
    )
    batch = batch.with_capacity(
        torch.tensor([[2.0, 3.0, 3.0], [0.0, 3.0, 3.0], [0.0, 3.0, 3.0]], dtype=torch.float64)
    )
    allocation = LpAll(solver=solver).solve(batch)
    assert allocation.status == (Status.OPTIMAL,) * 3
    assert_feasible(batch, allocation)
    assert assess(batch, allocation).value.tolist() == pytest.approx([1.2, 4 / 3, 2.0])
