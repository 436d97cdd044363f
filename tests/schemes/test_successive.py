"""PDHG over matrices that follow each other, where the next one has other rows."""

from __future__ import annotations

import numpy as np
import torch

import teal
import teal.problem.bounds
from teal.schemes.successive import SuccessivePdhg
from teal.solvers.result import SolveState, Stop
from teal.testing import random_problem


def test_other_numbers_of_classes_follow_each_other() -> None:
    base, engine = random_problem(0, batch=1), SuccessivePdhg()
    for count in (2, 3, 2, 2):
        demand = {f"class {number}": base.demand.numpy() / count for number in range(count)}
        problem = teal.priority_problem(
            base.topology, base.paths, demand, capacity=base.capacity.numpy()
        )
        assert float(engine.solve(problem, gap=1e-2).gap) <= 1e-2


def test_several_matrices_start_from_the_last_one_of_the_call_before() -> None:
    base = random_problem(1, batch=3)
    for objective in ("priority", "max_min"):
        engine = SuccessivePdhg()
        for rows in (slice(0, 1), slice(0, 3)):
            demand = 2 * base.demand[rows].numpy()
            capacity = base.capacity[rows].numpy()
            if objective == "priority":
                parts = {"gold": 0.3 * demand, "bronze": 0.7 * demand}
                problem = teal.priority_problem(base.topology, base.paths, parts, capacity=capacity)
            else:
                problem = teal.Problem.create(
                    base.topology, base.paths, teal.Objective(objective), demand, capacity=capacity
                )
            assert np.all(engine.solve(problem, gap=1e-2).gap.numpy() <= 1e-2)


def test_earlier_prices_bound_what_a_limit_leaves() -> None:
    """Without iterations the bound is that of earlier prices, if it is tighter."""
    problem = random_problem(2, batch=3)
    engine = SuccessivePdhg()
    solved = engine.solve(problem, gap=1e-6)
    # Splits and prices of a start that prove nothing.
    start = SolveState(torch.zeros_like(solved.splits), torch.zeros_like(solved.prices))
    stopped = engine.solve(problem, gap=1e-6, max_iterations=0, start=start)
    torch.testing.assert_close(stopped.bound, solved.bound, rtol=2e-4, atol=0)
    torch.testing.assert_close(
        teal.problem.bounds.dual_bound(problem, stopped.prices), stopped.bound
    )
    alone = teal.solve(problem, gap=1e-6, max_iterations=0, warm_start=start, model=None)
    assert (alone.bound > 1.01 * stopped.bound).any()
    assert stopped.stopped_by == (Stop.ITERATIONS,) * 3
    # A wide gap is reached by the prices alone, from the splits of a solve without prices.
    good_splits = SolveState(solved.splits, torch.zeros_like(solved.prices))
    reached = engine.solve(problem, gap=0.01, max_iterations=0, start=good_splits)
    assert reached.stopped_by == (Stop.GAP,) * 3
    assert float(reached.gap.max()) <= 0.01


def test_prices_of_other_matrices_loosen_no_bound() -> None:
    first = random_problem(2, batch=3)
    engine = SuccessivePdhg()
    engine.solve(first, gap=1e-6)
    # Matrices that the library has not seen, from their own optimal prices.
    rates = 1.5 * first.demand.flip(1).numpy()
    other = teal.Problem.create(
        first.topology, first.paths, first.objective, rates, capacity=first.capacity.numpy()
    )
    solved = teal.solve(other, gap=1e-6)
    start = SolveState(torch.zeros_like(solved.splits), solved.prices)
    stopped = engine.solve(other, gap=1e-6, max_iterations=0, start=start)
    library = teal.PriceLibrary()
    library.add(first, teal.solve(first, gap=1e-6).prices)
    assert (library.bound(other) > 1.01 * solved.bound).any()
    torch.testing.assert_close(stopped.bound, solved.bound, rtol=1e-6, atol=0)


def test_prices_stay_when_paths_are_added() -> None:
    problem = random_problem(2, batch=3)
    engine = SuccessivePdhg()
    solved = engine.solve(problem, gap=1e-6)
    num_paths = problem.paths.num_paths
    resized = engine.resized(num_paths + 1)
    paths = teal.compute_paths(
        problem.topology, problem.paths.pairs, num_paths=num_paths + 1, cache=False
    )
    larger = teal.Problem.create(
        problem.topology,
        paths,
        problem.objective,
        problem.demand,
        capacity=problem.capacity.numpy(),
    )
    zero = torch.zeros(larger.even_splits.shape, dtype=torch.float64)
    start = SolveState(zero, torch.zeros_like(solved.prices))
    stopped = resized.solve(larger, gap=1e-6, max_iterations=0, start=start)
    assert (stopped.bound >= teal.solve(larger, gap=1e-6).value * (1 - 1e-9)).all()
    assert (stopped.bound < larger.demand.sum(1)).any()
