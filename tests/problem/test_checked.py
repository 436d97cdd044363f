"""Limits that a function does not know, and values out of range, are refused; what is kept is cut
with the rest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import teal
from teal.errors import InputError
from teal.network import PathMethod, all_pairs, compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Allocation, Problem
from teal.problem.churn import ChurnLimit
from teal.problem.priority import bound_of_class, class_certificates, priority_problem
from teal.solvers import pipeline
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.solvers.pdhg.shards.sharded import ShardedProblem
from teal.testing import assert_feasible, make_topology, random_problem


def _priority(batch: int = 1) -> Problem:
    base = random_problem(3, batch=batch)
    demand = base.demand.numpy()
    return priority_problem(base.topology, base.paths, {"gold": demand, "bronze": 2 * demand})


def _churn(batch: int = 1) -> Problem:
    problem = random_problem(1, batch=batch)
    return problem.with_churn_limit(problem.even_splits, 0.1)


_PLAIN = random_problem(1, batch=3)
_STATE = _PLAIN.even_splits, torch.zeros_like(_PLAIN.capacity)
_FAIR = dataclasses.replace(_PLAIN, objective=Objective(ObjectiveName.MAX_MIN))


class _EvenStarter:
    def start(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
        return problem.even_splits, torch.zeros_like(problem.capacity)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pipeline.solve(_FAIR, starter=_EvenStarter()), "starter"),
        (lambda: pipeline.solve(_priority(2), starter=_EvenStarter()), "starter"),
        (lambda: pipeline.solve(_priority(2), warm_start=_STATE), "shape"),
        (lambda: pipeline.solve(_PLAIN.with_protection(), engine="fused"), "engine"),
        (lambda: pipeline.solve(_PLAIN, deadline=math.nan), "deadline"),
        (lambda: pipeline.solve(_PLAIN, max_iterations=-1), "max_iterations"),
        (lambda: pipeline.solve(_PLAIN.rows(slice(0, 0))), "at least one matrix"),
        (lambda: solve_scenarios(_churn(2)), "churn"),
        (lambda: solve_scenarios(_PLAIN.with_protection()), "protection"),
        (lambda: _PLAIN.with_churn_limit(_PLAIN.even_splits * math.nan, 0.1), "finite"),
        (lambda: _PLAIN.with_churn_limit(_PLAIN.even_splits * math.inf, 0.1), "finite"),
        (lambda: _PLAIN.with_churn_limit(-_PLAIN.even_splits, 0.1), "finite"),
        (lambda: _PLAIN.with_protection([[99]]), r"groups\[0\]"),
        (lambda: _PLAIN.with_protection([[0], [-1]]), r"groups\[1\]"),
        (lambda: _churn().with_paths(_PLAIN.paths), "churn"),
        (
            lambda: compute_paths(_PLAIN.topology, method="fastest", cache=False),
            "edge-disjoint or yen",
        ),
        (lambda: _sharded(ObjectiveName.MAX_MIN), "single program"),
    ],
)
def test_what_would_have_no_effect_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def _sharded(objective: ObjectiveName, demand: np.ndarray | None = None) -> ShardedProblem:
    pairs = all_pairs(_PLAIN.topology)
    demand = np.ones(len(pairs)) if demand is None else demand
    return ShardedProblem(_PLAIN.topology, pairs, demand, Objective(objective), num_shards=2)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError, match="there is no matrix"):
        Problem.create(
            _PLAIN.topology, _PLAIN.paths, Objective(), np.zeros((0, _PLAIN.paths.num_demands))
        )


def test_a_matrix_that_is_not_there_is_refused() -> None:
    problem = random_problem(0, batch=3)
    for wrong in (3, 7, -4):
        with pytest.raises(IndexError):
            problem.row(wrong)
    with pytest.raises(InputError, match=r"use row\(0\) for one matrix"):
        problem.rows(torch.tensor(1))
    with pytest.raises(
        (InputError, TypeError)
    ):  # of the check of annotations, where tests run with it
        problem.rows(0)  # type: ignore[arg-type]
    assert torch.equal(problem.row(-1).demand, problem.demand[2:])
    assert torch.equal(problem.rows(torch.tensor([2, 0])).demand, problem.demand[[2, 0]])


def test_names_of_methods_may_be_texts() -> None:
    by_name = compute_paths(_PLAIN.topology, method="yen", cache=False)
    by_member = compute_paths(_PLAIN.topology, method=PathMethod.YEN, cache=False)
    np.testing.assert_array_equal(by_name.leaf, by_member.leaf)


def test_classes_with_latency_limits_where_no_pair_has_a_path() -> None:
    topology = make_topology([(2, 3, 1.0)], min_nodes=4)
    paths = compute_paths(topology, np.array([[0, 1], [1, 0]], np.int32), cache=False)
    assert paths.trie.num_nodes == 0
    demand = {"gold": np.ones((1, 2)), "bronze": np.ones((1, 2))}
    problem = priority_problem(topology, paths, demand, latency_limit_ms={"gold": 1.0})
    assert float(pipeline.solve(problem).value) == 0


def test_other_matrices_keep_a_limit_on_churn() -> None:
    problem = _churn(batch=1)
    several = problem.with_demand(
        torch.cat([problem.demand, 2 * problem.demand, 3 * problem.demand])
    )
    alone = pipeline.solve(problem.with_demand(3 * problem.demand), gap=1e-6)
    together = pipeline.solve(several, gap=1e-6)
    torch.testing.assert_close(together.value[2:], alone.value, rtol=3e-6, atol=0)
    limit = several.condition(ChurnLimit)
    assert limit is not None
    assert (
        limit.moved(several.program, together.splits) <= limit.budget(several.program) * (1 + 1e-6)
    ).all()


@pytest.mark.parametrize("problem", [_priority(3), _FAIR], ids=["priority", "max_min"])
def test_some_results_of_a_sequence_have_their_own_certificates(problem: Problem) -> None:
    result = pipeline.solve(problem, gap=1e-2)
    last = torch.tensor([problem.batch - 1])
    own = result.rows(last)
    assessment = teal.assess(problem.rows(last), own)
    torch.testing.assert_close(assessment.gap, own.gap, rtol=1e-6, atol=1e-9)
    figures = own.classes or own.fair
    assert figures is not None
    assert figures.of_matrix(0) == (result.classes or result.fair).of_matrix(problem.batch - 1)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="sequence"):
        result.replaced(last, own)


def test_the_assertion_of_feasibility_knows_every_rule() -> None:
    problem = random_problem(1, batch=1)
    problem = problem.with_capacity(problem.capacity * 1e9).with_churn_limit(
        problem.first_path_splits, 0.0
    )
    with pytest.raises(AssertionError, match="churn"):
        assert_feasible(problem, Allocation.of_batch(problem.even_splits, None, 0.0))
    line = make_topology([(0, 1, 10.0)])
    paths = compute_paths(line, np.array([[0, 1]], np.int32), cache=False)
    promised = Problem.create(line, paths, Objective(), np.ones((1, 1))).with_protection()
    with pytest.raises(AssertionError, match="protection"):
        assert_feasible(promised, Allocation.of_batch(promised.even_splits, None, 0.0))


def test_the_value_of_a_sharded_concurrent_flow_is_that_of_its_splits() -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        demand = rng.lognormal(0, 1.5, len(all_pairs(_PLAIN.topology)))
        with _sharded(ObjectiveName.MAX_CONCURRENT_FLOW, demand) as sharded:
            result = sharded.solve(gap=0.05 + 0.01 * seed)
            shares = np.concatenate(sharded.apply(_carried))
        assert result.value == pytest.approx(min(1.0, shares.min()), rel=1e-12)
        assert result.value <= result.bound * (1 + 1e-12)


def _carried(allocated: Any) -> np.ndarray:
    share = allocated.splits.sum(1)
    return np.asarray(share[allocated.paths.mask.any(1) & (allocated.demands.demand > 0)])


def test_a_loss_that_is_rounding_is_none() -> None:
    """A network that carries everything: the bound of what is lost is 0, and so must be what
    rounding leaves."""
    for seed in range(20):
        problem = random_problem(seed, batch=3)
        result = solve_scenarios(
            problem.with_capacity(problem.capacity * 1e3), gap=1e-3, max_iterations=500
        )
        assert result.gap <= 1e-3, seed


def test_no_class_has_more_than_its_bound_over_15_decades() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        base = random_problem(seed, batch=3)
        gold, bronze = (
            base.demand.numpy() * 10 ** rng.uniform(-5, 10, base.demand.shape) for _ in range(2)
        )
        problem = priority_problem(base.topology, base.paths, {"gold": gold, "bronze": bronze})
        result = pipeline.solve(problem, gap=0.5, max_iterations=100)
        assert result.classes is not None
        assert result.program_prices is not None
        for one in (
            result.classes,
            class_certificates(problem, result.splits, result.program_prices.prices),
        ):
            assert (one.gap >= 0).all()
            assert (one.bound >= one.value).all()


def _exact_bound(
    capacity_value: float, demand: list[list[float]], least: list[list[float]], promised: float
) -> Fraction:
    """The bound on the second of two classes, in rational arithmetic: the cheapest demands of the
    first one first."""
    second = zip(demand[1], least[1], strict=True)
    bound = Fraction(capacity_value) + sum(
        Fraction(d) * max(Fraction(0), 1 - Fraction(p)) for d, p in second
    )
    left = Fraction(promised)
    for price, rate in sorted(zip(least[0], demand[0], strict=True)):
        carried = min(left, Fraction(rate))
        bound, left = bound - carried * Fraction(price), left - carried
    return min(bound, Fraction(sum(map(Fraction, demand[1]))))


def test_the_bound_of_a_class_is_that_of_rational_arithmetic_beside_huge_demands() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        demand = 10 ** rng.uniform(-5, 10, (2, 12))
        least = rng.exponential(0.5, (2, 12)) * rng.integers(0, 2, (2, 12))
        promised = float(min(demand[0].sum(), 10 ** rng.uniform(-5, 2)))
        capacity_value = float(demand[1].sum() * rng.uniform(0, 1) + promised * least[0].max())
        numbers = [torch.from_numpy(part)[None] for part in (*demand, *least)]
        bound = float(
            bound_of_class(
                torch.tensor([capacity_value], dtype=torch.float64),
                numbers[:2],
                numbers[2:],
                torch.tensor([[promised]], dtype=torch.float64),
            )
        )
        exact = float(_exact_bound(capacity_value, demand.tolist(), least.tolist(), promised))
        assert exact <= bound * (1 + 1e-15)
        assert bound <= exact + 1e-12 * (capacity_value + demand[1].sum())
