"""Starts from a model: asked where they save iterations, never believed, and as if the engine had
started from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baselines.lp_all import LpAll
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.feasibility import TOLERANCE, violations
from teal.runtime.interruptible import Deadline
from teal.solvers import pipeline
from teal.solvers.contract import Limits, Start
from teal.solvers.engine_choice import choose_engines
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.model_start import ModelStart, expected_iterations
from teal.solvers.pdhg.search import FIRST_CHECK, Search
from teal.solvers.result import SolveResult, SolveState
from teal.testing import random_problem
from tests.solvers.engine_times import prefer

_TARGET = 1e-3


@pytest.fixture(autouse=True)
def _by_pdhg(monkeypatch: pytest.MonkeyPatch) -> None:
    """These starts are of PDHG, also where interior points would be faster."""
    prefer(monkeypatch, "pdhg")


def _planar(load: float, matrices: int = 1) -> Problem:
    """A planar network of 60 routers; its optimum carries all demand at load 1, and half of it at
    load 6."""
    topology = load_topology("topohub:gabriel/60/3")
    traffic = load_traffic(f"gravity:seed=2,count={matrices},load={load}", topology)
    paths = compute_paths(topology, traffic.pairs)
    return Problem.create(topology, paths, Objective(), traffic.read(slice(None)))


class _Recorder:
    """A starter that gives a stored start times a factor, and counts how often it was asked."""

    def __init__(self, splits: torch.Tensor, prices: torch.Tensor, factor: float = 1.0) -> None:
        self.splits = splits * factor
        self.prices = prices * factor
        self.asked = 0

    def start(self, _: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        self.asked += 1
        return self.splits, self.prices


@pytest.fixture(scope="module")
def optimum() -> tuple[Problem, SolveResult]:
    problem = _planar(6)
    return problem, pipeline.solve(problem, gap=1e-5)


def test_an_easy_program_is_solved_as_if_there_were_no_model() -> None:
    problem = _planar(1)
    reference = pipeline.solve(problem, gap=_TARGET)
    starter = _Recorder(reference.splits, reference.prices)
    beside = pipeline.solve(problem, gap=_TARGET, starter=starter)
    assert starter.asked == 0
    assert reference.iterations == beside.iterations == FIRST_CHECK
    assert torch.equal(reference.splits, beside.splits)


def test_a_hard_program_starts_from_the_model_after_the_first_check(
    optimum: tuple[Problem, SolveResult],
) -> None:
    problem, best = optimum
    starter = _Recorder(best.splits, best.prices)
    result = pipeline.solve(problem, gap=_TARGET, starter=starter)
    reference = pipeline.solve(problem, gap=_TARGET)
    assert starter.asked == 1
    assert result.iterations == FIRST_CHECK < reference.iterations / 5
    lp = float(assess(problem, LpAll().solve(problem)).value)
    assert float(result.value) <= lp * (1 + 1e-9) <= float(result.bound) * (1 + 2e-9)
    assert float(result.value) >= lp * (1 - _TARGET)


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e30, -1.0, 0.0])
def test_a_useless_model_costs_time_and_nothing_else(
    factor: float, optimum: tuple[Problem, SolveResult]
) -> None:
    problem, best = optimum
    starter = _Recorder(best.splits, best.prices, factor)
    result = pipeline.solve(problem, gap=_TARGET, starter=starter)
    assert starter.asked == 1
    assert float(result.gap) <= _TARGET
    assert float(result.value) <= float(best.bound)
    assert float(result.bound) >= float(best.value)
    assert float(violations(problem, result.splits).largest) <= TOLERANCE


def test_several_matrices_ask_no_model(optimum: tuple[Problem, SolveResult]) -> None:
    many = _planar(6, matrices=8)
    starter = _Recorder(many.even_splits, torch.ones_like(many.capacity))
    pipeline.solve(many, gap=1e-2, starter=starter)
    assert starter.asked == 0


def test_a_start_that_is_given_is_left_where_it_is_far_from_the_target(
    optimum: tuple[Problem, SolveResult],
) -> None:
    """A gap of four times the target is near, and no splits at all are far."""
    problem, best = optimum
    starter = _Recorder(best.splits, best.prices)
    near = pipeline.solve(problem, gap=3.5e-2)
    reference = pipeline.solve(problem, gap=1e-2, warm_start=near)
    beside = pipeline.solve(problem, gap=1e-2, warm_start=near, starter=starter)
    assert starter.asked == 0
    assert reference.iterations == beside.iterations > 0
    assert torch.equal(reference.splits, beside.splits)
    far = pipeline.solve(
        problem, gap=_TARGET, starter=starter, warm_start=(best.splits * 0, best.prices * 0)
    )
    assert starter.asked == 1
    assert (float(far.gap) <= _TARGET, far.iterations) == (True, 0)
    none = pipeline.solve(problem, gap=_TARGET, starter=starter, warm_start=near, max_iterations=0)
    assert starter.asked == 1
    assert float(none.gap) > _TARGET


def test_a_model_is_asked_only_if_it_ends_before_the_deadline(
    optimum: tuple[Problem, SolveResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, best = optimum
    monkeypatch.setattr(ModelStart, "cost", lambda *_: 1e15)
    monkeypatch.setattr(ModelStart, "saves_time", lambda *_: True)
    starter = _Recorder(best.splits, best.prices)
    pipeline.solve(problem, gap=_TARGET, starter=starter, deadline=600)
    assert starter.asked == 0
    pipeline.solve(problem, gap=_TARGET, starter=starter)
    assert starter.asked == 1


def test_expected_iterations_follow_the_formula() -> None:
    assert expected_iterations(0.0, 1e-2) == FIRST_CHECK
    assert expected_iterations(0.1, 1e-2) == pytest.approx(6 + 4 * 10)
    assert expected_iterations(0.1, 0.1) == pytest.approx(6 + 4)
    assert expected_iterations(0.1, 1e-3) == pytest.approx(6 + 40 * 10**0.3)
    assert math.isfinite(expected_iterations(1.0, 0.0))
    assert expected_iterations(0.1, 1e-2, is_warm=True) == pytest.approx(8 * 10)


class _Adaptive(_Recorder):
    """A starter that can be given more or less work."""

    def __init__(self, splits: torch.Tensor, prices: torch.Tensor, rounds: int) -> None:
        super().__init__(splits, prices)
        self.rounds = rounds
        self.foretold = list[float]()

    def rounds_for(self, iterations: float) -> int:
        self.foretold.append(iterations)
        return self.rounds

    def start_for(self, problem: Problem, iterations: float) -> tuple[torch.Tensor, torch.Tensor]:
        self.foretold.append(iterations)
        return self.start(problem)


def test_a_model_gets_work_by_the_iterations_that_are_foretold(
    optimum: tuple[Problem, SolveResult],
) -> None:
    problem, best = optimum
    starter = _Adaptive(best.splits, best.prices, rounds=30)
    result = pipeline.solve(problem, gap=_TARGET, starter=starter)
    assert starter.asked == 1
    assert len(set(starter.foretold)) == 1, "cost and start are of the same number"
    first = pipeline.solve(problem, gap=0.0, max_iterations=FIRST_CHECK)
    assert starter.foretold[0] == pytest.approx(
        expected_iterations(float(first.gap), _TARGET), rel=0.5
    )
    assert result.iterations == FIRST_CHECK
    slow = _Adaptive(best.splits, best.prices, rounds=100_000)
    pipeline.solve(problem, gap=_TARGET, starter=slow)
    assert slow.asked == 0, "more rounds than iterations to save"


def test_no_model_is_asked_where_the_gap_is_not_known(
    optimum: tuple[Problem, SolveResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, best = optimum
    starter = _Adaptive(best.splits, best.prices, rounds=30)
    monkeypatch.setattr(Search, "_gaps", lambda search, _: np.full(search._problem.batch, math.nan))
    pipeline.solve(problem, gap=_TARGET, starter=starter, max_iterations=12)
    assert (starter.asked, starter.foretold) == (0, [])


def test_the_cost_of_a_model_follows_the_formula(
    optimum: tuple[Problem, SolveResult],
) -> None:
    problem, best = optimum
    paths = problem.paths
    for rounds in (10, 50):
        start = ModelStart(
            problem,
            FusedEngine(problem, None, torch.float32),
            _TARGET,
            _Adaptive(best.splits, best.prices, rounds),
        )
        size = 1400 + paths.scan_size
        expected = 3 + 220_000 / size + rounds * (0.67 + 11 * paths.num_links / size)
        assert start.cost(0.1) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(6))
def test_a_restarted_engine_goes_on_like_one_that_started_there(seed: int) -> None:
    problem = random_problem(seed, batch=3).to(torch.float64)
    rng = np.random.default_rng(seed)
    splits = torch.from_numpy(rng.random(problem.even_splits.shape)) * problem.path_mask
    prices = torch.from_numpy(rng.random(problem.capacity.shape))
    state = SolveState(splits / splits.sum(-1, keepdim=True).clamp(min=1), prices)
    fresh = FusedEngine(problem, state, torch.float64)
    used = FusedEngine(problem, None, torch.float64)
    used.advance(7)
    used.restart(state)
    for engine in (fresh, used):
        engine.advance(13)
    assert torch.equal(fresh.check()[0], used.check()[0])
    assert torch.equal(fresh.check()[1], used.check()[1])


@pytest.mark.parametrize("factor", [1.0, math.nan, 0.0])
def test_interior_points_start_from_the_model_where_that_is_expected_to_be_faster(
    factor: float, optimum: tuple[Problem, SolveResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take few iterations from the optimum, and from a useless model as many as from nothing;
    the model is asked once in any case.
    """
    monkeypatch.undo()
    problem, best = optimum
    starter = _Recorder(best.splits, best.prices, factor)
    result = pipeline.solve(problem, gap=1e-4, starter=starter)
    cold = pipeline.solve(problem, gap=1e-4, engine="interior")
    assert starter.asked == 1
    assert float(result.gap) <= 1e-4
    assert float(violations(problem, result.splits).largest) <= TOLERANCE
    assert float(result.value) <= float(best.bound) * (1 + 1e-9)
    assert result.iterations <= (0 if factor == 1 else 2 * cold.iterations)
    exact = problem.to(torch.float64)
    choice = choose_engines(
        exact,
        Start(model=starter),
        Limits(1e-4, Deadline(), 10_000),
        "auto",
        None,
        may_span_decades=False,
    )
    assert choice.runs[0].engine.name == "interior"
    start = choice.runs[0].start
    assert start is not None
    assert start.model is starter
    hurried = Limits(1e-4, Deadline.after(1e-3), 10_000)
    choice = choose_engines(
        exact, Start(model=starter), hurried, "auto", None, may_span_decades=False
    )
    assert choice.runs[0].engine.name == "pdhg"


def test_a_start_that_certifies_the_target_needs_no_iteration_and_is_what_is_given() -> None:
    problem = _planar(4)
    known = pipeline.solve(problem, gap=1e-3, engine="fused")
    second = pipeline.solve(problem, gap=2e-3, engine="interior", warm_start=known)
    assert second.iterations == 0
    assert float(second.value) == pytest.approx(float(known.value), rel=1e-6)
    assert float(second.bound) == pytest.approx(float(known.bound), rel=1e-6)
