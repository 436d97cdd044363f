"""Merged rows of classes, against rows of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from teal.problem.priority import class_certificates
from teal.solvers.result import SolveState
from teal.solvers.sequences.class_rows import ClassRows
from teal.testing import random_problem


def _classes_of(seed: int, limit: float) -> teal.Problem:
    base = random_problem(seed, nodes=9, batch=3, failed=1)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([1, 2, 3], base.demand.shape).transpose(2, 0, 1) * (
        rng.random((3, 1, 1)) < 0.9
    )
    demand = {name: share * base.demand.numpy() for name, share in zip("abc", shares, strict=True)}
    limits = {"a": limit * float(np.median(base.topology.latency))} if limit else {}
    return teal.priority_problem(
        base.topology, base.paths, demand, capacity=base.capacity.numpy(), latency_limit_ms=limits
    )


@pytest.mark.parametrize("limit", [0.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_merged_rows_have_the_loads_values_and_figures_of_all_demands(
    seed: int, limit: float
) -> None:
    problem = _classes_of(seed, limit)
    rows = ClassRows(problem, may_merge=True)
    assert rows.is_merged
    rng = np.random.default_rng(seed)
    for number in range(3):
        program = rows.program(number, 4.0)
        own = ClassRows(problem, may_merge=False).program(number, 4.0)
        assert program.paths.num_demands <= own.paths.num_demands
        torch.testing.assert_close(program.demand.sum(1), own.demand.sum(1))
        prices = torch.from_numpy(rng.exponential(1.0, problem.capacity.shape))
        torch.testing.assert_close(
            teal.problem.dual_bound(program, prices), teal.problem.dual_bound(own, prices)
        )
    merged = program.even_splits * torch.from_numpy(rng.random((3, program.paths.num_demands, 1)))
    splits = rows.splits(merged)
    torch.testing.assert_close(problem.loads(splits), program.loads(merged))
    torch.testing.assert_close(own.value(splits), program.value(merged))
    back = rows.state(SolveState(splits, problem.capacity)).splits
    torch.testing.assert_close(program.flows(back), program.flows(merged))
    prices = torch.from_numpy(rng.exponential(0.5, (3, 3, problem.topology.num_links)))
    result = rows.certificates(merged, prices)
    expected = class_certificates(problem, splits, prices)
    for name in ("demand", "value", "bound"):
        torch.testing.assert_close(getattr(result, name), getattr(expected, name))


@pytest.mark.system
@pytest.mark.parametrize("limit", [0.0, 2.0])
def test_engines_with_and_without_merged_rows_find_the_same_optimum(limit: float) -> None:
    problem = _classes_of(7, limit)
    values = []
    for engine in ("auto", "plain", "interior"):
        result = teal.solve(problem, gap=1e-4, engine=engine).classes
        assert result is not None
        assert bool((result.gap <= 1e-4).all())
        values.append(result.value)
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], rtol=3e-4, atol=1e-6)
