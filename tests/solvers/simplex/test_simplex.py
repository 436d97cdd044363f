"""Dual simplex method: a hand-solved network, random programs against HiGHS and exact fractions,
bases as dense matrices, and starts that are good, bad or from interior points."""

from __future__ import annotations

import math
from fractions import Fraction

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.errors import InputError
from teal.network.path_links import path_links_of
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import kernel
from teal.solvers import cost_model
from teal.solvers.result import Stop
from teal.solvers.simplex import engine, method
from teal.solvers.simplex.basis import (
    KEY,
    NO_BLOCK,
    Basis,
    Program,
    blocks_of,
    new_basis,
    paths_by_row,
)
from teal.solvers.simplex.method import Work, new_work, optimise
from teal.testing import make_topology, random_problem
from tests.extremes import ROUNDING, exact_bound, share_program
from tests.solvers.interior.programs import problem_of

KINDS = ("total_flow", "weighted_flow", "latency_penalised_flow")
STARTS = ("optimum", "another matrix", "interior point", "random", "zero", "huge")
# Gap of an optimal basis: three perturbations, and rounding.
GAP = 4 * engine.PERTURBATION


def test_a_hand_solved_network() -> None:
    """From 0 to 2 over a link of 4 Gbit/s, or by way of 1 over links of 3 and of 5 Gbit/s: full
    links, then a smaller demand, then a failed link.
    """
    topology = make_topology([(0, 2, 4.0), (0, 1, 3.0), (1, 2, 5.0)])
    paths = teal.compute_paths(topology, np.array([[0, 2]]), num_paths=2, cache=False)
    capacity = np.array([[4.0, 3.0, 5.0], [4.0, 3.0, 5.0], [0.0, 3.0, 5.0]])
    demand = np.array([[10.0], [5.0], [8.0]])
    problem = Problem.create(topology, paths, "total_flow", demand, capacity=capacity)
    result = teal.solve(problem, gap=1e-7, engine="simplex")
    assert result.value.tolist() == pytest.approx([7, 5, 3], rel=GAP)
    assert result.bound.tolist() == pytest.approx([7, 5, 3], rel=GAP)
    assert result.stopped_by == (Stop.GAP,) * 3
    flows = problem.flows(result.splits)
    assert flows[0, 0].tolist() == pytest.approx([4, 3], rel=1e-6)
    assert float(flows[1].sum()) == pytest.approx(5, rel=1e-6)
    assert flows[2, 0].tolist() == pytest.approx([0, 3], rel=1e-6)
    # One Gbit/s more of a full link carries as much more, except over what is full anyway.
    assert result.prices[0].tolist() == pytest.approx([1, 1, 0], abs=1e-6)
    assert result.prices[1].tolist() == pytest.approx([0, 0, 0], abs=1e-6)


def _start(problem: Problem, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits (B, D, K) and prices (B, E) of a kind."""
    rng = np.random.default_rng(seed)
    even = problem.even_splits
    value = float(problem.demand_value.max())
    prices = torch.from_numpy(rng.uniform(0, value, problem.capacity.shape)).to(even)
    if kind in ("optimum", "another matrix", "interior point"):
        factor = rng.lognormal(0, 0.3, problem.demand.shape) if kind == "another matrix" else 1.0
        demand = problem.demand * torch.as_tensor(factor, dtype=problem.demand.dtype)
        name = "interior" if kind == "interior point" else "simplex"
        solved = teal.solve(problem.with_demand(demand), gap=1e-7, engine=name)
        return solved.splits, solved.prices
    if kind == "zero":
        return torch.zeros_like(even), torch.zeros_like(prices)
    return even, prices * (1e9 if kind == "huge" else 1)


@given(
    seed=st.integers(0, 100_000),
    kind=st.sampled_from(KINDS),
    start=st.sampled_from((None, *STARTS)),
    failed=st.sampled_from([0, 2]),
)
@settings(max_examples=80, deadline=None)
def test_any_start_ends_at_the_optimum(
    seed: int, kind: str, start: str | None, failed: int
) -> None:
    """Three different matrices; the certificate holds in exact fractions."""
    problem = problem_of(kind, seed, batch=3, failed=failed)
    warm_start = None if start is None else _start(problem, start, seed)
    result = teal.solve(problem, gap=1e-7, engine="simplex", warm_start=warm_start)
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
    assert float(result.gap.max()) <= GAP
    for row in range(problem.batch):
        one = problem.row(row)
        assert float(result.value[row]) == pytest.approx(share_program(one), rel=1e-7, abs=1e-9)
        proven = exact_bound(one, result.prices[row])
        assert Fraction(float(result.bound[row])) >= proven * (1 - Fraction(ROUNDING))


def test_the_basis_of_an_optimum_is_recognised_in_its_splits_and_prices() -> None:
    """A solve from the optimum of an earlier one takes hardly a pivot."""
    cold, warm = 0, 0
    for seed in range(20):
        problem = random_problem(seed, batch=1, num_paths=4)
        first = teal.solve(problem, gap=1e-7, engine="simplex")
        # From interior points the first basis lowers some values; now it starts from a vertex.
        second = teal.solve(problem, gap=1e-7, engine="simplex", warm_start=first)
        third = teal.solve(problem, gap=1e-7, engine="simplex", warm_start=second)
        cold += first.iterations
        warm += third.iterations
        assert float(third.value[0]) == pytest.approx(float(first.value[0]), rel=GAP, abs=1e-12)
    assert cold > 100
    assert warm <= 0.1 * cold


def _program(problem: Problem, row: int) -> Program:
    """The program of a matrix, as the engine builds it."""
    links = path_links_of(problem.paths)
    num_links = problem.capacity.shape[1]
    block = blocks_of(links, num_links)
    demand = problem.demand.to(torch.float64).numpy()[row]
    capacity = np.minimum(problem.capacity.to(torch.float64).numpy()[row], demand.sum())
    value = engine._perturbed_values(problem.to(torch.float64), links, len(block))
    users = paths_by_row(links, num_links)
    return Program(
        links.path_ptr, links.link_ptr, links.link, *users, block, demand, capacity, value
    )


def _columns(program: Program) -> FloatArray:
    """(D + n, P + D + n) the equations of a program: blocks, then rows."""
    num_paths = len(program.link_ptr) - 1
    num_blocks, num_rows = len(program.demand), len(program.capacity)
    matrix = np.zeros((num_blocks + num_rows, len(program.block)))
    for column, block in enumerate(program.block):
        if block != NO_BLOCK:
            matrix[block, column] = 1
        if column < num_paths:
            for i in range(program.link_ptr[column], program.link_ptr[column + 1]):
                matrix[num_blocks + program.link[i], column] += 1
        if block == NO_BLOCK:
            matrix[num_blocks + column - num_paths - num_blocks, column] = 1
    return matrix


def _check_optimal(program: Program, basis: Basis, work: Work) -> None:
    """Check a basis by the equations of the whole program, without generalized upper bounds."""
    matrix = _columns(program)
    right = np.concatenate([program.demand, program.capacity])
    columns = np.concatenate([basis.key, basis.column])
    assert len(set(columns.tolist())) == len(columns)
    assert (basis.position[basis.key] == KEY).all()
    np.testing.assert_array_equal(basis.position[basis.column], np.arange(len(basis.column)))
    # Flows and prices are those of the basis matrix.
    flows = np.linalg.solve(matrix[:, columns], right)
    scale = right.max()
    np.testing.assert_allclose(
        np.concatenate([work.key_flow, work.flow]), flows, rtol=0, atol=1e-9 * scale
    )
    prices = np.linalg.solve(matrix[:, columns].T, program.value[columns])
    np.testing.assert_allclose(work.price, prices[len(program.demand) :], rtol=0, atol=1e-9)
    # Optimality.
    assert flows.min() >= -1e-9 * scale
    assert (program.value - matrix.T @ prices).max() <= 1e-9
    # W, its inverse, and the norms of the rows.
    rows = matrix[len(program.demand) :]
    working = rows[:, basis.column].copy()
    for i, column in enumerate(basis.column):
        if program.block[column] != NO_BLOCK:
            working[:, i] -= rows[:, basis.key[program.block[column]]]
    np.testing.assert_allclose(basis.inverse @ working, np.eye(len(working)), rtol=0, atol=1e-9)
    np.testing.assert_allclose(basis.squared_norm, (basis.inverse**2).sum(1), rtol=1e-9)


@kernel
def _optimise(
    program: Program, basis: Basis, work: Work, max_pivots: int, stop: np.ndarray
) -> tuple[int, bool]:
    return optimise(program, basis, work, max_pivots, stop)


def _new(program: Program) -> tuple[Basis, Work]:
    """An empty basis, and workspace."""
    size = len(program.link_ptr) - 1, len(program.demand), len(program.capacity)
    return new_basis(*size), new_work(*size)


@pytest.mark.parametrize("seed", range(10))
def test_bases_of_a_series_are_optimal_by_the_whole_equations(seed: int) -> None:
    """Eight matrices, each from the basis of the one before; some capacities change, too."""
    problem = random_problem(seed, batch=8, num_paths=4, failed=seed % 3)
    basis, work = _new(_program(problem, 0))
    pivots = 0
    for row in range(problem.batch):
        program = _program(problem, row)
        count, is_optimal = _optimise(program, basis, work, 1_000, np.zeros(1, np.bool_))
        assert is_optimal
        pivots += count
        _check_optimal(program, basis, work)
    assert pivots > 0


@pytest.mark.parametrize("seed", range(10))
def test_other_values_take_primal_pivots_to_the_optimum(seed: int) -> None:
    """After a change of values the basis is not dual feasible, so that costs are shifted."""
    problem = random_problem(seed, batch=3, num_paths=4)
    program = _program(problem, 0)
    basis, work = _new(program)
    _optimise(program, basis, work, 1_000, np.zeros(1, np.bool_))
    rng = np.random.default_rng(seed)
    num_paths = len(program.link_ptr) - 1
    for row in range(problem.batch):
        program = _program(problem, row)
        program.value[:num_paths] *= rng.uniform(0.2, 5, num_paths)
        _, is_optimal = _optimise(program, basis, work, 1_000, np.zeros(1, np.bool_))
        assert is_optimal
        _check_optimal(program, basis, work)


@kernel
def _primal_simplex(program: Program, basis: Basis, work: Work, stop: np.ndarray) -> bool:
    method._restore_values(program, work)
    method._set_tolerances(program, work)
    method._compute_prices(program, basis, work)
    method._compute_flows(program, basis, work)
    status = method._primal_simplex(program, basis, work, 1_000, 1e-11, stop)[1]
    return status == method._DONE


@pytest.mark.parametrize("seed", range(10))
def test_primal_iterations_stay_feasible(seed: int) -> None:
    """From the optimum at other values, without dual iterations that would repair a flow."""
    problem = random_problem(seed, batch=3, num_paths=4)
    program = _program(problem, 0)
    basis, work = _new(program)
    stop = np.zeros(1, np.bool_)
    _optimise(program, basis, work, 1_000, stop)
    rng = np.random.default_rng(seed)
    num_paths = len(program.link_ptr) - 1
    for _ in range(3):
        program.value[:num_paths] = rng.uniform(0.2, 1, num_paths)
        assert _primal_simplex(program, basis, work, stop)
        _check_optimal(program, basis, work)


@pytest.mark.parametrize("seed", range(6))
def test_a_basis_with_rounding_errors_is_factorised_anew(seed: int) -> None:
    """A wrong inverse does not end as an optimal basis, but is computed anew."""
    problem = random_problem(seed, batch=3, num_paths=4)
    program = _program(problem, 0)
    basis, work = _new(program)
    stop = np.zeros(1, np.bool_)
    _optimise(program, basis, work, 1_000, stop)
    for row in range(problem.batch):
        errors = np.random.default_rng(seed).uniform(0.5e-4, 1e-4, basis.inverse.shape)
        basis.inverse[:] += errors
        program = _program(problem, row)
        _, is_optimal = _optimise(program, basis, work, 1_000, stop)
        assert is_optimal
        _check_optimal(program, basis, work)


def test_limits_leave_the_splits_of_the_warm_start() -> None:
    """A pivot limit or a deadline ends the method; every matrix keeps the splits of its own start."""
    problem = random_problem(3, batch=5, num_paths=4)
    first = teal.solve(problem, gap=1e-7, engine="simplex")
    start = teal.solve(problem, gap=1e-7, engine="simplex", warm_start=first)
    # The first matrix stays optimal; the others do not.
    changed = problem.with_demand(problem.demand * torch.linspace(1, 3, 5)[:, None])
    cut = teal.solve(changed, gap=1e-7, engine="simplex", max_iterations=0, warm_start=start)
    late = teal.solve(changed, gap=1e-7, engine="simplex", deadline=0, warm_start=start)
    feasible = teal.project(changed, start.splits, refill=0)
    for result, stop in ((cut, Stop.ITERATIONS), (late, Stop.DEADLINE)):
        assert stop in result.stopped_by
        assert float(violations(changed, result.splits).largest.max()) <= TOLERANCE
        assert (result.value <= result.bound * (1 + 1e-9)).all()
        torch.testing.assert_close(result.splits[1:], feasible[1:], rtol=0, atol=1e-6)


def test_a_cold_batch_falls_back_to_the_last_optimal_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the first matrix has a start, from interior points; no pivot is allowed."""
    monkeypatch.setattr(engine, "_MAX_PIVOTS_PER_ROW", 0)
    problem = random_problem(3, batch=8, num_paths=4)
    problem = problem.with_demand(problem.demand[:1] * torch.linspace(1, 1.2, 8)[:, None])
    result = teal.solve(problem, gap=1e-7, engine="simplex")
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
    assert (result.value >= 0.5 * result.bound).all()


def test_a_batch_with_a_matrix_without_demand() -> None:
    """It has the bound 0, and the next matrix goes on from its basis."""
    problem = random_problem(2, batch=4, num_paths=4)
    demand = problem.demand.clone()
    demand[2] = 0
    problem = problem.with_demand(demand)
    result = teal.solve(problem, gap=1e-7, engine="simplex")
    assert float(result.gap.max()) <= GAP
    assert float(result.value[2]) == 0
    assert float(result.bound[2]) == pytest.approx(0, abs=1e-12)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    """Parts of a batch are the same, so that each matrix has the same bits."""
    problem = random_problem(4, batch=43, num_paths=4)
    threads = numba.get_num_threads()
    results = []
    for count in {1, threads}:
        numba.set_num_threads(count)
        try:
            results.append(teal.solve(problem, gap=1e-6, engine="simplex"))
        finally:
            numba.set_num_threads(threads)
    assert float(results[0].gap.max()) <= GAP
    for result in results:
        torch.testing.assert_close(result.splits, results[0].splits, rtol=0, atol=0)
        torch.testing.assert_close(result.prices, results[0].prices, rtol=0, atol=0)


def test_interior_points_solve_what_the_method_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pivot allowed, auto ends at the target gap all the same."""
    monkeypatch.setattr(engine, "_MAX_PIVOTS_PER_ROW", 0)
    problem = random_problem(5, batch=8, num_paths=4)
    result = teal.solve(problem, gap=1e-6)
    names = [stage.name for stage in result.trace]
    assert names.index("iterate: simplex") < names.index("iterate: interior")
    assert float(result.gap.max()) <= 1e-6
    assert result.stopped_by == (Stop.GAP,) * 8


@pytest.mark.parametrize(
    ("batch", "is_warm", "gap", "is_chosen"),
    [
        (8, False, 1e-2, True),
        (3, False, 1e-2, False),
        (1, True, 1e-6, True),
        (3, True, 1e-6, True),
        (8, True, 1e-9, False),
        (1, True, 1e-2, False),
        (8, True, 1e-2, False),
    ],
)
def test_auto_uses_it_where_there_is_a_basis(
    batch: int, is_warm: bool, gap: float, is_chosen: bool
) -> None:
    problem = random_problem(1, batch=batch)
    start = teal.solve(problem, gap=1e-7, engine="simplex") if is_warm else None
    result = teal.solve(problem, gap=gap, warm_start=start)
    assert ("iterate: simplex" in [stage.name for stage in result.trace]) == is_chosen


def test_large_networks_are_left_to_other_engines() -> None:
    """The rule looks at path slots, more of them at a small gap."""
    problem = random_problem(0, nodes=20, batch=8, num_paths=10)
    assert not cost_model.favours_simplex(problem, is_warm=False, gap=1e-2)
    assert cost_model.favours_simplex(problem, is_warm=False, gap=1e-6)
    # Few demands on many links: the inverse has an entry for each pair of links.
    dense = random_problem(0, nodes=20, density=0.9, batch=8, num_paths=2)
    assert dense.topology.num_links > 250
    assert not cost_model.favours_simplex(dense, is_warm=False, gap=1e-6)
    assert math.isclose(
        cost_model.simplex_seconds(problem, is_warm=True),
        8 * cost_model.simplex_seconds(problem.row(0), is_warm=True),
    )


@pytest.mark.parametrize("kind", ["max_link_utilisation", "proportional_fair", "value in steps"])
def test_other_programs_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match="simplex"):
        teal.solve(problem_of(kind, 0, batch=3), engine="simplex")
