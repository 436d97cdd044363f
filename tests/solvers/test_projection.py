"""Projection and refilling against the validator and a hand-solved network."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.feasibility import violations
from teal.solvers.projection import project
from teal.testing import make_topology, random_problem

OBJECTIVES = st.sampled_from(SINGLE_PROGRAMS)


@given(
    seed=st.integers(0, 10_000),
    objective=OBJECTIVES,
    num_paths=st.integers(1, 4),
    density=st.sampled_from([0.1, 0.3, 0.7]),
    failed=st.integers(0, 4),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
    refill=st.integers(0, 5),
)
def test_projection_of_any_splits_is_feasible(
    seed: int,
    objective: ObjectiveName,
    num_paths: int,
    density: float,
    failed: int,
    idle: float,
    refill: int,
) -> None:
    """Failed links, zero demands, unreachable pairs, one path, disconnected graphs; random splits,
    also negative."""
    problem = random_problem(
        seed, objective=objective, num_paths=num_paths, density=density, failed=failed, idle=idle
    )
    random_splits = torch.randn(
        problem.path_mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    splits = project(problem, 3 * random_splits, refill)
    assert violations(problem, splits).largest.max() <= 1e-9
    if objective is ObjectiveName.MAX_CONCURRENT_FLOW:
        return  # all demands are then carried in the same proportion again
    projected_again = project(problem, splits, 0)
    torch.testing.assert_close(
        problem.flows(projected_again),
        problem.flows(splits),
        atol=1e-9,
        rtol=1e-9,
        msg="projection must not change feasible splits",
    )


@given(seed=st.integers(0, 10_000), objective=OBJECTIVES)
def test_refilling_after_projection_never_lowers_the_value(
    seed: int, objective: ObjectiveName
) -> None:
    problem = random_problem(seed, objective=objective, failed=1)
    splits = problem.path_mask.to(torch.float64)
    values = [problem.value(project(problem, splits, rounds)) for rounds in range(4)]
    if objective is ObjectiveName.MAX_LINK_UTILISATION:
        assert all(torch.equal(values[0], value) for value in values)
    else:
        assert all((later >= earlier - 1e-9).all() for earlier, later in pairwise(values))


def test_projection_and_refilling_of_a_shared_link_equal_flows_computed_by_hand() -> None:
    """a->b->c with capacities 1 and 10: a->c (2) and a->b (2) share the first link half and
    half."""
    topology = make_topology([(0, 1, 1.0), (1, 2, 10.0)])
    paths = compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False
    )
    problem = Problem.create(topology, paths, Objective(), np.array([2.0, 2.0, 20.0]))
    cut = problem.flows(
        project(problem, torch.ones(1, 3, 1, dtype=torch.float64), refill=0)
    ).flatten()
    # Link 1 would carry 22 of 10, so a->c is divided by the larger of 4 and 2.2.
    assert cut.tolist() == pytest.approx([0.5, 0.5, 20 / 2.2])
    full = problem.flows(
        project(problem, torch.ones(1, 3, 1, dtype=torch.float64), refill=2)
    ).flatten()
    assert full.tolist() == pytest.approx([0.5, 0.5, 9.5])


def test_splits_of_one_matrix_are_refused_for_several() -> None:
    problem = random_problem(0, batch=3)
    with pytest.raises(ValueError, match="splits must be"):
        project(problem, problem.even_splits[0])
