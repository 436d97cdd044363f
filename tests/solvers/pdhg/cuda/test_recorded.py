"""What a solve on a GPU launches and waits for, counted on a stand-in whose recorded graphs are
replayed over the same memory; its results, also on a GPU, against the same kernels without
graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime import cuda
from teal.solvers import pipeline
from teal.solvers.result import SolveResult
from teal.testing import random_problem
from tests.stand_in_gpu import PLAIN, RecordedGraph, any_gpu, without_recordings

pytestmark = [
    pytest.mark.system,  # the simulator takes a tenth of a second for each iteration
    pytest.mark.usefixtures("quick_simulator"),
]

_MOST_LAUNCHES = 12  # outside of graphs, of a solve
_MOST_WAITS = 2  # of a gap check


def _small(objective: ObjectiveName = ObjectiveName.TOTAL_FLOW, batch: int = 1) -> Problem:
    return random_problem(
        1,
        objective=objective,
        num_paths=3,
        failed=0,
        idle=0.0,
        nodes=4,
        density=0.7,
        batch=batch,
    )


def _made(problem: Problem, demand: np.ndarray, device: str) -> Problem:
    return Problem.create(
        problem.topology,
        problem.paths,
        problem.objective,
        demand,
        capacity=problem.capacity.numpy(),
        device=device,
        backend="cuda",
    )


def _on_cpu(result: SolveResult) -> list[torch.Tensor]:
    numbers = result.value, result.bound, result.splits, result.prices
    return [one.cpu() for one in numbers]


def test_a_solve_starts_a_handful_of_kernels_and_a_check_waits_at_most_twice() -> None:
    problem = _small()
    demand = 1.5 * problem.demand.numpy()
    waits: list[tuple[int, int]] = []
    with any_gpu() as counts:
        on_gpu = _made(problem, demand, "cuda")
        for _ in range(2):  # the second time records
            pipeline.solve(on_gpu, gap=0.01)

        def report(done: int, _: float) -> None:
            waits.append((done, counts["read"] + counts["copied"]))

        counts.clear()
        result = pipeline.solve(on_gpu.with_demand(1.1 * demand), gap=0.01, report=report)
        launched = counts["launched"]
        assert float(result.gap[0]) <= 0.01
        for _ in range(2):
            pipeline.solve(on_gpu, gap=0.01, warm_start=result)
        counts.clear()
        pipeline.solve(on_gpu.with_demand(1.2 * demand), gap=0.01, warm_start=result)
        warm = counts["launched"]
    assert result.iterations > 5
    if not cuda.SIMULATED:
        return
    assert max(launched, warm) <= _MOST_LAUNCHES
    before = 0, 2  # the program's extremes, and its bound without prices
    for done, count in waits:
        of_iterations = math.ceil((done - before[0]) / 4)
        assert count - before[1] <= of_iterations + _MOST_WAITS
        before = done, count


def test_splits_of_each_matrix_are_those_of_its_value() -> None:
    """Of several matrices some keep a new best allocation and others the one before."""
    problem = _small(batch=3)
    factors = np.array([[0.7], [2.0], [1.3]])
    demand = factors * problem.demand.numpy()
    with any_gpu():
        on_gpu = _made(problem, demand, "cuda")
        result = pipeline.solve(on_gpu, gap=1e-9, max_iterations=12)
        value = result.value.cpu()
        of_splits = on_gpu.value(result.splits).cpu()
    torch.testing.assert_close(of_splits, value, rtol=1e-6, atol=0, check_dtype=False)


@pytest.mark.parametrize(
    ("objective", "refused"),
    [
        (ObjectiveName.TOTAL_FLOW, ()),
        (ObjectiveName.LATENCY_PENALISED_FLOW, ("_set_up",)),
        (ObjectiveName.MAX_CONCURRENT_FLOW, ()),  # solved as the largest utilisation
    ],
)
def test_recorded_launches_compute_what_launches_one_by_one_do(
    objective: ObjectiveName, refused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For programs of one shape, one after another, from nothing and from an earlier result: no
    number of an earlier program stays, also where the driver has refused one recording."""
    monkeypatch.setattr(RecordedGraph, "refused", refused)
    problem = _small(objective, batch=3)
    rng = np.random.default_rng(0)
    demands = [problem.demand.numpy() * rng.uniform(0.5, 3, problem.demand.shape) for _ in range(2)]
    capacity = problem.capacity.numpy()
    capacities = [capacity * rng.uniform(0.8, 1.2, (1, capacity.shape[1])) for _ in range(2)]

    def solved(problem: Problem) -> list[SolveResult]:
        programs = [
            problem.with_demand(demand).with_capacity(torch.from_numpy(limit).to(problem.capacity))
            for demand, limit in zip(demands, capacities, strict=True)
        ]
        result = [_solve(one) for one in programs]
        return [*result, _solve(programs[0], result[1]), _solve(programs[1])]

    with without_recordings():
        plain = solved(_made(problem, demands[0], PLAIN))
    with any_gpu() as counts:
        results = [_on_cpu(one) for one in solved(_made(problem, demands[0], "cuda"))]
        assert not cuda.SIMULATED or counts["replayed"] >= 2 * len(
            ("set-up", "iterations", "check")
        )
    for expected, numbers in zip(plain, results, strict=True):
        for own, other in zip(_on_cpu(expected), numbers, strict=True):
            torch.testing.assert_close(other, own, rtol=1e-12, atol=1e-12)


def _solve(problem: Problem, start: SolveResult | None = None) -> SolveResult:
    return pipeline.solve(problem, gap=1e-4, max_iterations=5, warm_start=start)
