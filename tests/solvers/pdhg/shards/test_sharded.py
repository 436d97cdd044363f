"""Shards against one process: the same search, value, bound and splits, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.errors import InputError
from teal.network.shards import PathSearch
from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.problem import Allocation, Problem, Status, dual_bound
from teal.runtime.storage import cache_dir
from teal.solvers import pipeline
from teal.solvers.pdhg.shards import sharded
from teal.solvers.pdhg.shards.sharded import ShardedProblem, ShardedResult
from teal.solvers.pdhg.shards.shards import Allocated
from teal.solvers.result import Stop
from teal.testing import assert_feasible, random_problem


def _shards(problem: Problem, count: int) -> ShardedProblem:
    weight = problem.demand_value.numpy() if problem.objective.maximises_value else None
    return ShardedProblem(
        problem.topology,
        problem.paths.pairs,
        problem.demand[0].numpy(),
        problem.objective,
        num_shards=count,
        search=PathSearch(problem.paths.num_paths),
        capacity=problem.capacity[0].numpy(),
        weight=weight,
    )


def _splits(allocated: Allocated) -> np.ndarray:
    return allocated.splits


def _check(problem: Problem, result: ShardedResult, splits: np.ndarray) -> None:
    """Value and bound as the splits and prices give them, and what one process finds."""
    tensor = torch.from_numpy(splits)[None]
    assert_feasible(problem, Allocation(tensor, None, (Status.FEASIBLE,), (0.0,), (0.0,)))
    prices = torch.from_numpy(result.prices)[None]
    assert float(problem.value(tensor)) == pytest.approx(result.value, rel=1e-6, abs=1e-12)
    assert float(dual_bound(problem, prices)) == pytest.approx(result.bound, rel=1e-6, abs=1e-12)
    optimum = pipeline.solve(problem, gap=1e-4, engine="plain")
    low, high = sorted((float(optimum.value), float(optimum.bound)))
    slack = 1e-6 * high + 1e-12
    assert min(result.value, result.bound) <= high + slack
    assert max(result.value, result.bound) >= low - slack


@pytest.mark.system
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 3]),
    count=st.integers(1, 5),
    memory=st.sampled_from([0, 1 << 30]),
)
def test_shards_are_certified_and_feasible(
    seed: int, objective: ObjectiveName, failed: int, count: int, memory: int
) -> None:
    problem = random_problem(seed, objective=objective, nodes=9, batch=1, failed=failed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded, "_STATE_BYTES", memory)
        with _shards(problem, count) as shards:
            result = shards.solve(gap=1e-3)
            splits = np.concatenate(shards.apply(_splits))
    assert result.gap <= 1e-3 or result.stopped_by is not Stop.GAP
    _check(problem, result, splits)


@pytest.mark.parametrize(
    "objective", ["total_flow", "latency_penalised_flow", "max_link_utilisation"]
)
def test_the_search_is_that_of_one_process(objective: str) -> None:
    """The iterations, their number too, are those of the fused engine; sums over shards differ by
    rounding alone."""
    problem = random_problem(8, objective=ObjectiveName(objective), nodes=14, batch=1, idle=0.0)
    reference = pipeline.solve(problem, gap=1e-3, engine="fused", max_iterations=60)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        # one process takes no sample of so few demands
        patch.setattr(sharded, "SampledStart", lambda *_: None)
        for count in (1, 4):
            with _shards(problem, count) as shards:
                results.append(shards.solve(gap=1e-3, max_iterations=60))
    for result in results:
        # one process tests every fourth bound
        assert result.iterations == pytest.approx(reference.iterations, abs=4)
        assert result.value == pytest.approx(float(reference.value), rel=2e-3)
        assert result.bound == pytest.approx(float(reference.bound), rel=2e-3)
    assert results[0].iterations == results[1].iterations
    assert results[0].value == pytest.approx(results[1].value, rel=1e-6)
    np.testing.assert_allclose(results[0].prices, results[1].prices, rtol=1e-4, atol=1e-7)


def test_samples_do_not_depend_on_the_number_of_shards() -> None:
    problem = random_problem(8, nodes=30, batch=1, idle=0.0, density=0.1)
    drawn = []
    results = []
    for count in (1, 6):
        with _shards(problem, count) as shards:
            drawn.append(shards._draw(100, 0))
            results.append(shards.solve(gap=0.02))
    np.testing.assert_array_equal(drawn[0].demands, drawn[1].demands)
    np.testing.assert_array_equal(drawn[0].problem.demand, drawn[1].problem.demand)
    np.testing.assert_array_equal(drawn[0].problem.paths.leaf, drawn[1].problem.paths.leaf)
    assert results[0].gap <= 0.02
    assert results[0].value == pytest.approx(results[1].value, rel=1e-4)


@pytest.mark.system
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_a_second_search_starts_anew(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_STATE_BYTES", memory)
    problem = random_problem(8, nodes=9, batch=1)
    with _shards(problem, 3) as shards:
        first = shards.solve(gap=1e-4)
        second = shards.solve(gap=1e-4)
    assert (first.value, first.bound, first.iterations) == (
        second.value,
        second.bound,
        second.iterations,
    )


def test_the_state_on_disk_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_STATE_BYTES", 0)

    def states() -> list[Path]:
        return list(cache_dir("shards").glob(".state-*"))

    with _shards(random_problem(8, nodes=9, batch=1), 3) as shards:
        shards.solve()
        assert len(states()) == 1
    assert not states()
    # a fault while shards are made
    monkeypatch.setattr("teal.solvers.pdhg.shards.shards.ShardWorker", None)
    with pytest.raises(TypeError):
        _shards(random_problem(8, nodes=9, batch=1), 3)
    assert not states()


def test_wrong_arrays_are_refused() -> None:
    problem = random_problem(8, nodes=9, batch=1)
    with pytest.raises(InputError, match="single program"):
        ShardedProblem(
            problem.topology,
            problem.paths.pairs,
            problem.demand[0].numpy(),
            "max_min",
            num_shards=2,
        )
    with pytest.raises(InputError, match="num_shards"):
        _shards(problem, 0)
    for demand in (problem.demand[:, 1:], -1 - problem.demand):
        with pytest.raises(InputError, match="demand"):
            ShardedProblem(problem.topology, problem.paths.pairs, demand[0].numpy(), num_shards=2)
