"""The search on several threads: where it stops, and what it does where LAPACK finds no factor."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch

import teal
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.solvers.interior import engine, search
from teal.solvers.interior.presolve import PresolvedProgram
from teal.solvers.interior.starts import COLD
from teal.solvers.result import Stop
from teal.testing import make_topology
from tests.solvers.interior.programs import KINDS, engine_form, problem_of, program_of

pytestmark = pytest.mark.slow


@pytest.fixture
def by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program is solved on two threads, with LAPACK's factor."""
    monkeypatch.setattr("numba.get_num_threads", lambda: 2)
    monkeypatch.setattr(search, "_MIN_LARGE_COLUMNS", 1)
    monkeypatch.setattr(search, "_MIN_LARGE_UPDATES", 1)


def _solve(problem: Problem, gap: float = 1e-7) -> teal.SolveResult:
    return teal.solve(problem, gap=gap, engine="interior")


def _searched(program: PresolvedProgram, may_shed: bool, stop: np.ndarray, count: int = 200) -> int:
    splits = np.zeros(int(program.slot.max()) + 1)
    prices = np.zeros(int(program.link.max()) + 1)
    arguments: Any = (program, may_shed, False, 1e-9, count, splits, prices, COLD, stop)
    return search.solve_on_threads(*arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_reach_the_optimum_of_each_matrix(by_steps: None, kind: str) -> None:
    """Three different matrices: values lie between those of one thread and its bounds."""
    problem = engine_form(problem_of(kind, 4, batch=3))
    sense = problem.objective.rules.sense
    found = _solve(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numba.get_num_threads", lambda: 1)
        plain = _solve(problem)
    assert len(set(plain.value.tolist())) == 3
    assert float(found.gap.max()) <= 1e-7
    assert float(violations(problem, found.splits).largest.max()) <= TOLERANCE
    for one, other in ((found, plain), (plain, found)):
        room = 1e-9 * one.bound.abs() + 1e-12
        assert bool((sense * (one.bound - other.value) >= -room).all())


@pytest.mark.parametrize("kind", ["total_flow", "max_link_utilisation", "churn limit"])
def test_a_search_on_two_threads_stops_before_its_first_iteration(
    by_steps: None, kind: str
) -> None:
    problem = problem_of(kind, 4)
    program, _ = program_of(problem)
    may_shed = not problem.price_set.on_simplex
    assert _searched(program, may_shed, np.ones(1, np.bool_)) == 0
    assert _searched(program, may_shed, np.zeros(1, np.bool_), 2) == 2
    assert _searched(program, may_shed, np.zeros(1, np.bool_)) > 3


@pytest.mark.parametrize("last", [1, 3, 5])
def test_what_another_thread_stops_is_certified(
    by_steps: None, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes during an iteration, which is the last one."""
    problem = problem_of("total_flow", 4)
    optimum = _solve(problem, 1e-9)
    stops: list[np.ndarray] = []

    def stopping(_: object, stop: np.ndarray) -> contextlib.AbstractContextManager[None]:
        stops.append(stop)
        return contextlib.nullcontext()

    advance, calls = search._predict_and_correct_kernel, itertools.count(1)

    def counted(*arguments: Any) -> bool:
        if next(calls) == last:
            stops[0][0] = True
        return bool(advance(*arguments))

    monkeypatch.setattr(engine, "ends_at", stopping)
    monkeypatch.setattr(engine, "_SHORT_S", np.inf)
    monkeypatch.setattr(search, "_predict_and_correct_kernel", counted)
    result = _solve(problem, 1e-9)
    assert result.iterations == last < optimum.iterations
    assert result.stopped_by == (Stop.DEADLINE,)
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
    assert 0 < float(result.gap) < 1
    assert float(result.value) <= float(optimum.value) * (1 + 1e-9) <= float(result.bound)


def test_a_deadline_in_the_past_ends_the_search_on_two_threads(by_steps: None) -> None:
    problem = problem_of("total_flow", 4, batch=3)
    result = teal.solve(problem, gap=1e-9, engine="interior", deadline=0)
    assert result.iterations == 0
    assert result.stopped_by == (Stop.DEADLINE,) * 3
    assert bool(result.bound.isfinite().all())
    assert bool((result.bound >= _solve(problem).value * (1 - 1e-9)).all())
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE


@pytest.mark.parametrize("kind", ["total_flow", "max_link_utilisation", "proportional_fair"])
def test_where_lapack_finds_no_factor_the_plain_one_is_used(
    by_steps: None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(kind, 4, batch=3)
    expected = _solve(problem)
    calls = []

    def failing(system: np.ndarray, **_: object) -> tuple[np.ndarray, int]:
        """Leave a spoilt matrix, as dpotrf does where a pivot is not above 0."""
        calls.append(len(system))
        system[:] = np.nan
        return system, 1

    monkeypatch.setattr(search, "dpotrf", failing)
    result = _solve(problem)
    assert calls
    assert float(result.gap.max()) <= 1e-7
    torch.testing.assert_close(result.value, expected.value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("copies", [2, 3])
def test_rows_that_depend_on_each_other_are_solved(by_steps: None, copies: int) -> None:
    """Links in a row, of one capacity and the same paths: their rows of S differ by slacks alone,
    which vanish where the links bind."""
    hops = [(2 + i, 3 + i, 6.0) for i in range(copies)]
    links = [(0, 2, 9.0), (1, 2, 9.0), *hops]
    topology = make_topology(links)
    pairs = np.array([[0, 2 + copies], [1, 2 + copies]], np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    demand = np.array([[4.0, 8.0], [8.0, 8.0], [5.0, 2.0]])
    problem = Problem.create(topology, paths, teal.Objective("total_flow"), demand)
    result = _solve(problem, 1e-9)
    assert result.value.tolist() == pytest.approx([6.0, 6.0, 6.0], rel=1e-8)
    assert float(result.gap.max()) <= 1e-9
    program, _ = program_of(problem)
    assert program.link.tolist() == list(range(2, 2 + copies))
