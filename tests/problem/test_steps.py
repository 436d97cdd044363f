"""Values that fall in steps, against the same demands as rows of their own, one for each step."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.network.subset import joined
from teal.objectives import ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem, dual_bound
from teal.problem.bounds import scaled_dual_bound
from teal.testing import random_problem, with_random_steps


def _unrolled(problem: Problem) -> Problem:
    """A row for each demand and step."""
    assert problem.steps is not None
    level, end = problem.steps.level.T, problem.steps.end
    width = torch.diff(end, dim=-1, prepend=torch.zeros_like(end[..., :1]))
    paths = joined([problem.paths] * len(level))
    return dataclasses.replace(
        problem,
        paths=paths,
        ops=make_path_ops(paths, "cpu"),
        steps=None,
        demand=torch.cat([problem.demand * width[..., c] for c in range(len(level))], 1),
        demand_value=torch.cat([problem.demand_value * one for one in level]),
    )


def _in_order(problem: Problem, splits: torch.Tensor) -> torch.Tensor:
    """Splits of the unrolled rows, where each demand fills its steps one after the other."""
    assert problem.steps is not None
    end = problem.steps.end
    start = torch.cat([torch.zeros_like(end[..., :1]), end[..., :-1]], -1)
    total = splits.sum(-1, keepdim=True)
    share = torch.where(
        end > start, (total - start).clamp(min=0).minimum(end - start) / (end - start), 0
    )
    mix = splits / total.clamp(min=1e-300)
    return torch.cat([mix * share[..., c, None] for c in range(end.shape[-1])], 1)


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from([ObjectiveName.TOTAL_FLOW, ObjectiveName.WEIGHTED_FLOW]),
    failed=st.sampled_from([0, 2]),
)
def test_value_and_bound_are_those_of_rows_of_their_own(
    seed: int, objective: ObjectiveName, failed: int
) -> None:
    problem = with_random_steps(
        random_problem(seed, objective=objective, batch=3, failed=failed), seed
    )
    unrolled, rng = _unrolled(problem), np.random.default_rng(seed)
    splits = problem.even_splits * torch.from_numpy(rng.random((3, problem.paths.num_demands, 1)))
    torch.testing.assert_close(problem.value(splits), unrolled.value(_in_order(problem, splits)))
    torch.testing.assert_close(problem.loads(splits), unrolled.loads(_in_order(problem, splits)))
    prices = torch.from_numpy(rng.exponential(0.3, (3, problem.topology.num_links)))
    for bound in (dual_bound, scaled_dual_bound):
        torch.testing.assert_close(bound(problem, prices), bound(unrolled, prices))


def test_steps_follow_the_matrices_and_the_demands() -> None:
    problem = with_random_steps(random_problem(5, batch=3), 5)
    assert problem.steps is not None
    for row in range(3):
        part = problem.row(row)
        torch.testing.assert_close(
            part.value(part.even_splits)[0], problem.value(problem.even_splits)[row]
        )
    chosen = torch.tensor([1, 4])
    torch.testing.assert_close(problem.steps.demands(chosen).end, problem.steps.end[:, chosen])
