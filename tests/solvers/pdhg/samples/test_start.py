"""Starts from samples against solves without them, on a network that is large enough for
samples."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import teal
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.solvers import pipeline
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.samples import start as sampled_start
from teal.solvers.pdhg.samples.sample import SampleAnswer
from teal.solvers.pdhg.samples.start import SampledStart, first_size, is_faster
from teal.solvers.pdhg.search import FIRST_CHECK
from tests.solvers.engine_times import prefer


def _problem(
    objective: ObjectiveName = ObjectiveName.TOTAL_FLOW, load: float = 6.0, matrices: int = 1
) -> Problem:
    topology = teal.load_topology("topohub:sndlib/germany50")
    traffic = teal.load_traffic(f"gravity:seed=3,count={matrices},load={load}", topology)
    paths = compute_paths(topology, traffic.pairs, cache=False)
    weight = 1.0 + np.arange(paths.num_demands) % 3
    return Problem.create(
        topology, paths, Objective(objective), traffic.read(slice(None)), weight=weight
    )


@pytest.fixture(autouse=True)
def _every_network_counts_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_start, "LARGE_WORK", 0)
    monkeypatch.setattr(sampled_start, "_DEMANDS_PER_LINK", 1)
    monkeypatch.setattr(sampled_start, "MAX_SHARE", 0.5)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
@pytest.mark.parametrize("load", [2.0, 6.0])
def test_a_start_from_samples_ends_at_the_same_optimum(
    objective: ObjectiveName, load: float
) -> None:
    problem = _problem(objective, load)
    sampled = pipeline.solve(problem, gap=1e-2)
    whole = pipeline.solve(problem, gap=1e-3, engine="fused")
    assert float(sampled.gap) <= 1e-2
    torch.testing.assert_close(sampled.value, whole.value, rtol=1.2e-2, atol=0)
    assert float(violations(problem, sampled.splits).largest) <= TOLERANCE
    proven = teal.problem.dual_bound(problem, sampled.prices)
    torch.testing.assert_close(proven, sampled.bound, rtol=1e-9, atol=0)


def test_each_matrix_of_a_batch_has_its_own_sample() -> None:
    problem = _problem(matrices=3)
    together = pipeline.solve(problem, gap=1e-2)
    assert (together.gap <= 1e-2).all()
    engine = FusedEngine(problem, None, torch.float32)
    start = SampledStart(problem, engine, 1e-2)
    assert complete(start.respond(torch.ones(3, dtype=torch.bool), Deadline()))
    demands = [answer.fixed_demands.tolist() for answer in start._answers]
    assert demands[0] != demands[1]


def test_samples_grow_until_they_are_too_large() -> None:
    problem = _problem()
    start = SampledStart(problem, FusedEngine(problem, None, torch.float32), 1e-2)
    unfinished = torch.ones(1, dtype=torch.bool)
    sizes = []
    while complete(start.respond(unfinished, Deadline())):
        sizes.append(start._size)
    assert sizes == [
        first_size(problem.paths, 1e-2) * sampled_start.SAMPLE_GROWTH ** (i + 1)
        for i in range(len(sizes))
    ]
    assert len(sizes) >= 1


def test_a_warm_start_keeps_its_place_where_it_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem()
    result = pipeline.solve(problem, gap=1e-3)
    drawn: list[int] = []
    respond = SampledStart.respond

    def counted(self: SampledStart, unfinished: torch.Tensor, deadline: Deadline) -> Steps[bool]:
        drawn.append(1)
        return respond(self, unfinished, deadline)

    monkeypatch.setattr(SampledStart, "respond", counted)
    second = pipeline.solve(problem, gap=5e-3, warm_start=result)
    assert (second.iterations, drawn) == (0, []), "the earlier state has the gap already"
    shocked = problem.with_demand(problem.demand.flip(1))
    pipeline.solve(shocked, gap=5e-3, warm_start=result)
    assert drawn, "after a shock the samples are asked"


def test_small_networks_and_large_samples_do_without() -> None:
    paths = _problem().paths
    assert is_faster(paths)
    assert first_size(paths, 1e-3) > first_size(paths, 1e-2) == first_size(paths, 0.5)
    sampled_start.MAX_SHARE = 0.0  # the fixture restores it
    assert not is_faster(paths)


def test_a_deadline_ends_a_start_from_samples() -> None:
    problem = _problem()
    result = pipeline.solve(problem, gap=1e-6, deadline=0.0)
    assert result.iterations == 0
    assert float(violations(problem, result.splits).largest) <= TOLERANCE
    assert 0 < float(result.gap) <= 1


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_matrices_without_demand_and_without_links_are_answered_too(
    objective: ObjectiveName,
) -> None:
    problem = _problem(objective, matrices=3)
    demand = problem.demand.clone()
    capacity = problem.capacity.clone()
    demand[1] = 0
    capacity[2] = 0
    problem = dataclasses.replace(problem, demand=demand, capacity=capacity)
    result = pipeline.solve(problem, gap=1e-2)
    assert (result.gap <= 1e-2).all()
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
    empty = pipeline.solve(problem.row(1), gap=1e-2)
    assert float(empty.gap) <= 1e-2


def test_newton_steps_bring_loads_to_capacities() -> None:
    """One link of 1 Gbit/s, demand 2 of value 1: half is carried where exp(q (1 - p)) = 1, so at p
    = 1."""
    answer = SampleAnswer(np.array([0.9]), 4.0, np.zeros(0, np.int64), np.zeros((0, 1)))
    for _ in range(40):
        share = 1 / (1 + np.exp(-answer.sharpness * (1 - answer.prices)))
        answer = answer.corrected(2 * share, answer.sharpness * 2 * share * (1 - share), np.ones(1))
    np.testing.assert_allclose(answer.prices, 1.0, rtol=1e-6)


def test_a_start_from_samples_checks_its_result_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem()
    refills = []
    check = FusedEngine.check

    def counted(
        self: FusedEngine, refill: int = 0, enough: float = math.inf
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._problem.paths is problem.paths:
            refills.append(refill)
        return check(self, refill, enough)

    monkeypatch.setattr(FusedEngine, "check", counted)
    pipeline.solve(problem, gap=1e-6, max_iterations=0)
    assert len(refills) == 1


class _Recorder:
    """A starter that solves what it is given, and remembers how many demands that had."""

    def __init__(self, factor: float = 1.0) -> None:
        self.demands: list[int] = []
        self._factor = factor

    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        self.demands.append(problem.paths.num_demands)
        result = pipeline.solve(problem, gap=1e-4, engine="fused")
        return result.splits * self._factor, result.prices * self._factor


def test_a_starter_solves_the_first_sample_where_a_value_is_maximised_to_half_a_per_cent_or_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Interior points would start from it for all demands.
    prefer(monkeypatch, "pdhg")
    problem = _problem()
    starter = _Recorder()
    result = pipeline.solve(problem, gap=1e-2, starter=starter)
    assert float(result.gap) <= 1e-2
    assert len(starter.demands) == 1
    assert starter.demands[0] < problem.paths.num_demands / 2
    pipeline.solve(problem, gap=4e-3, starter=starter)
    pipeline.solve(_problem(ObjectiveName.MAX_LINK_UTILISATION), gap=1e-2, starter=starter)
    pipeline.solve(problem, gap=1e-2, warm_start=result, starter=starter)
    assert len(starter.demands) == 1


@pytest.mark.parametrize("factor", [math.nan, 1e30, -1.0])
def test_a_useless_starter_costs_time_and_nothing_else(factor: float) -> None:
    problem = _problem()
    result = pipeline.solve(problem, gap=1e-2, starter=_Recorder(factor))
    assert float(result.gap) <= 1e-2
    assert float(violations(problem, result.splits).largest) <= TOLERANCE


def test_a_starter_gives_the_start_of_all_demands_without_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampled_start, "LARGE_WORK", math.inf)
    prefer(monkeypatch, "pdhg")
    problem = _problem()
    starter = _Recorder()
    result = pipeline.solve(problem, gap=2e-3, starter=starter)
    assert starter.demands == [problem.paths.num_demands]
    assert result.iterations == FIRST_CHECK
