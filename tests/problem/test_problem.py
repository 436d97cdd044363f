"""A problem passes between processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

from teal.problem import Problem, scaled_dual_bound
from teal.solvers import pipeline
from teal.testing import random_problem, with_random_steps


@pytest.mark.parametrize(
    "changed",
    [
        lambda problem: problem,
        lambda problem: with_random_steps(problem, 0),
        lambda problem: problem.with_churn_limit(problem.even_splits, 0.1),
        lambda problem: problem.with_protection(),
        lambda problem: problem.with_protection().over_columns,
    ],
)
def test_a_problem_that_was_solved_can_be_pickled(changed: Callable[[Problem], Problem]) -> None:
    problem = changed(random_problem(1, batch=3))
    result = pipeline.solve(problem, gap=1e-3)
    bound = scaled_dual_bound(problem, result.prices)
    again = pickle.loads(pickle.dumps(problem))
    torch.testing.assert_close(again.value(result.splits), problem.value(result.splits))
    torch.testing.assert_close(scaled_dual_bound(again, result.prices), bound)
