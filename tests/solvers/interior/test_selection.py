"""Column selection: restricted programs as dense matrices, and searches from any prices, good or
bad, against HiGHS and exact fractions over all columns."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import kernel
from teal.solvers.interior import engine, selection
from teal.solvers.interior.presolve import PresolvedProgram, Restricted, restrict
from teal.solvers.interior.starts import Iterate, carry_over, cold_start, new_iterate
from teal.testing import random_problem
from tests.extremes import ROUNDING, exact_bound, share_program
from tests.solvers.interior.programs import dense, problem_of, program_of

STARTS = ("optimum", "another matrix", "random", "zero", "huge", "nothing selected")
KINDS = ("total_flow", "weighted_flow", "latency_penalised_flow")


@pytest.fixture(autouse=True)
def _select_in_small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MIN_SELECTED_COLUMNS", 1)


def _start(problem: Problem, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits (B, D, K) and prices (B, E) of a kind."""
    rng = np.random.default_rng(seed)
    even = problem.even_splits
    value = float(problem.demand_value.max())
    prices = torch.from_numpy(rng.uniform(0, value, problem.capacity.shape)).to(even)
    if kind in ("optimum", "another matrix"):
        factor = 1.0 if kind == "optimum" else rng.lognormal(0, 0.3, problem.demand.shape)
        demand = problem.demand * torch.as_tensor(factor, dtype=problem.demand.dtype)
        solved = teal.solve(problem.with_demand(demand), gap=1e-6, engine="interior")
        return solved.splits, solved.prices
    if kind == "random":
        return even, prices
    if kind == "zero":
        return torch.zeros_like(even), torch.zeros_like(prices)
    if kind == "huge":
        return even, prices * 1e9
    return torch.zeros_like(even), torch.full_like(prices, 2 * value)


@given(
    seed=st.integers(0, 100_000),
    kind=st.sampled_from(KINDS),
    start=st.sampled_from(STARTS),
    failed=st.sampled_from([0, 2]),
)
@settings(max_examples=60, deadline=None)
def test_any_start_ends_at_the_optimum_over_all_columns(
    seed: int, kind: str, start: str, failed: int
) -> None:
    """Three different matrices; the certificate holds in exact fractions."""
    problem = problem_of(kind, seed, batch=3, failed=failed)
    result = teal.solve(
        problem, gap=1e-7, engine="interior", warm_start=_start(problem, start, seed)
    )
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
    assert float(result.gap.max()) <= 1e-7
    for row in range(problem.batch):
        one = problem.row(row)
        value = float(result.value[row])
        bound = float(result.bound[row])
        assert value == pytest.approx(share_program(one), rel=2e-7, abs=1e-9)
        proven = exact_bound(one, result.prices[row])
        assert Fraction(bound) >= proven * (1 - Fraction(ROUNDING))


def test_certificates_in_exact_fractions() -> None:
    """No bound of 200 matrices is below what its prices prove, and columns were left out."""
    left_out = 0
    for seed in range(40):
        problem = problem_of(KINDS[seed % 3], seed, batch=5)
        start = _start(problem, STARTS[seed % len(STARTS)], seed)
        result = teal.solve(problem, gap=1e-4, engine="interior", warm_start=start)
        for row in range(problem.batch):
            proven = exact_bound(problem.row(row), result.prices[row])
            assert Fraction(float(result.bound[row])) >= proven * (1 - Fraction(ROUNDING))
            assert Fraction(float(result.value[row])) <= proven * (1 + Fraction(ROUNDING))
        program, _ = program_of(problem)
        left_out += not _selected(program, start[1][0].numpy(), start[0][0].numpy()).all()
    assert left_out > 12


def _selected(program: PresolvedProgram, prices: FloatArray, splits: FloatArray) -> np.ndarray:
    """(Q,) the columns that a search keeps at first, by the definition."""
    equations = dense(program)
    path_price = equations.loads.T @ (prices[program.link] / program.scale)
    profit = program.column_value - path_price
    share = splits.reshape(-1)[program.slot]
    keep = np.zeros(len(profit), bool)
    for g in range(len(program.rate)):
        of_block = equations.block == g
        best = max(0.0, profit[of_block].max())
        margin = selection._PROFIT_MARGIN * program.column_value[of_block].max()
        keep |= of_block & ((profit >= best - margin) | (share > selection._MIN_SHARE))
    return keep


@pytest.mark.parametrize("seed", range(12))
def test_a_restricted_program_has_the_selected_columns(seed: int) -> None:
    """Its matrix is a part of the full one; rows that it lacks cannot bind."""
    program, _ = program_of(problem_of(KINDS[seed % 3], seed))
    keep = np.random.default_rng(seed).random(len(program.column_value)) < 0.6
    part = _restrict(program, keep)
    full, small = dense(program), dense(part.program)
    np.testing.assert_array_equal(part.column, np.flatnonzero(keep))
    np.testing.assert_array_equal(part.program.slot, program.slot[keep])
    np.testing.assert_array_equal(part.program.column_value, program.column_value[keep])
    np.testing.assert_array_equal(part.program.rate, program.rate[part.block])
    np.testing.assert_array_equal(part.block[small.block], full.block[keep])
    for r, index in enumerate(part.row):
        if index >= 0:
            np.testing.assert_array_equal(small.loads[index], full.loads[r, keep])
            assert part.program.link[index] == program.link[r]
            assert part.program.capacity[index] == program.capacity[r]
        else:
            # All demands that can use it, each once.
            users = {full.block[q] for q in np.flatnonzero(full.loads[r] * keep)}
            largest = sum(program.rate[g] for g in users)
            assert largest <= program.capacity[r] * (1 + 1e-9)


@kernel
def _restrict(program: PresolvedProgram, keep: np.ndarray) -> Restricted:
    return restrict(program, keep)


@kernel
def _carried_over(
    program: PresolvedProgram, old: Restricted, mu: float, new: Restricted
) -> Iterate:
    """The cold start of one restricted program, carried over to another."""
    old_point = new_iterate(old.program)
    cold_start(old.program, True, old_point)
    point = new_iterate(new.program)
    carry_over(program, old, old_point, mu, new, point)
    return point


@pytest.mark.parametrize("seed", range(12))
def test_a_point_that_is_carried_over_is_interior_and_dual_feasible(seed: int) -> None:
    """Columns, demands and rows join; z = A' y - c - l, shares sum to 1, all above 0."""
    program, _ = program_of(problem_of(KINDS[seed % 3], seed))
    rng = np.random.default_rng(seed)
    keep = rng.random(len(program.column_value)) < 0.5
    keep[rng.integers(len(keep))] = True
    more = keep | (rng.random(len(keep)) < 0.5)
    old, new = _restrict(program, keep), _restrict(program, more)
    point = _carried_over(program, old, 1e-3 * float(program.column_value.mean()), new)
    equations = dense(new.program)
    reduced_cost = equations.loads.T @ point.price - new.program.column_value
    reduced_cost -= point.multiplier[equations.block]
    # Reduced costs of present columns keep more digits than this difference has.
    np.testing.assert_allclose(point.reduced_cost, reduced_cost, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(point.unserved_dual, -point.multiplier, rtol=1e-9, atol=1e-15)
    carried = equations.blocks @ point.share
    np.testing.assert_allclose(carried + point.unserved, 1.0, rtol=1e-9)
    for values in (point.share, point.reduced_cost, point.unserved, point.price, point.slack):
        assert (values > 0).all()


@pytest.mark.parametrize("batch", [1, 5])
def test_several_threads_take_the_steps_of_one(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(4, nodes=9, num_paths=4, batch=batch)
    start = _start(problem, "another matrix", 4)
    results = []
    for threads in (1, 2):
        monkeypatch.setattr("numba.get_num_threads", lambda threads=threads: threads)
        for name in ("_MIN_LARGE_COLUMNS", "_MIN_LARGE_UPDATES"):
            monkeypatch.setattr(f"teal.solvers.interior.search.{name}", 1)
        monkeypatch.setattr(engine, "_MIN_PARALLEL_SCAN", 1)
        results.append(teal.solve(problem, gap=1e-7, engine="interior", warm_start=start))
    assert results[0].iterations == results[1].iterations > 1
    torch.testing.assert_close(results[0].value, results[1].value, rtol=1e-8, atol=0)
    torch.testing.assert_close(results[0].bound, results[1].bound, rtol=1e-8, atol=0)


def test_a_search_that_makes_no_progress_continues_over_all_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "_solve_on_one_thread", lambda *_: (2, True, 1))
    problem = random_problem(4, nodes=9, num_paths=4, batch=1)
    start = _start(problem, "random", 4)
    result = teal.solve(problem, gap=1e-7, engine="interior", warm_start=start)
    assert float(result.gap) <= 1e-7
    assert result.iterations > 2


def test_iterations_end_with_what_there_is() -> None:
    problem = random_problem(1, nodes=9, num_paths=4, batch=1)
    start = _start(problem, "random", 1)
    gaps = [
        float(
            teal.solve(problem, gap=1e-9, engine="interior", max_iterations=n, warm_start=start).gap
        )
        for n in (0, 2, 4, 8, 16)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-6 < gaps[0]


def test_the_trace_says_where_it_started_and_how_many_columns_it_used() -> None:
    problem = random_problem(4, nodes=9, num_paths=4, batch=1)
    start = _start(problem, "another matrix", 4)
    result = teal.solve(problem, gap=1e-7, engine="interior", warm_start=start)
    program, _ = program_of(problem)
    (turn,) = result.engine_runs
    found = re.fullmatch(r"interior: (\d+) iterations, warm start, (\d+) of (\d+) columns", turn)
    assert found is not None, turn
    iterations, selected, total = map(int, found.groups())
    assert iterations == result.iterations
    assert _selected(program, start[1][0].numpy(), start[0][0].numpy()).sum() <= selected < total
    assert total == len(program.column_value)
