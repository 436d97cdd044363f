"""Split tables against largest remainders computed by hand and against the LP-all optimum before
rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.lp_all import LpAll
from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Allocation, Problem
from teal.problem.feasibility import violations
from teal.solvers import pipeline
from teal.solvers.projection import project
from teal.solvers.split_table import feasible_tables, in_table, table_weights, without_small
from teal.testing import assert_feasible, make_topology, random_problem


def test_table_weights_equal_largest_remainders_computed_by_hand() -> None:
    splits = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.1], [0.0, 0.0, 0.0], [0.06, 0.0, 0.34]]])
    assert table_weights(splits, 4).tolist() == [[[2, 1, 1], [2, 1, 1], [0, 0, 0], [1, 0, 3]]]
    assert table_weights(splits, 1).tolist() == [[[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]]
    torch.testing.assert_close(in_table(splits, 4)[0, 3], torch.tensor([0.1, 0.0, 0.3]))
    with pytest.raises(InputError, match="at least 1"):
        table_weights(splits, 0)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 2, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
    entries=st.sampled_from([1, 4, 16]),
)
def test_admitted_flows_are_feasible_and_in_the_ratios_of_the_split_table(
    seed: int, objective: ObjectiveName, failed: int, idle: float, entries: int
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed, idle=idle)
    expected = torch.rand(
        problem.path_mask.shape, generator=torch.Generator().manual_seed(seed)
    ).double()
    splits = feasible_tables(problem, expected, entries)
    assert (violations(problem, splits).largest <= 1e-9).all()
    total = splits.sum(-1, keepdim=True)
    counts = torch.where(total > 1e-9, splits / total.clamp(min=1e-9), 0) * entries
    torch.testing.assert_close(counts, counts.round(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
def test_rounding_to_a_split_table_loses_little_and_never_gains(objective: ObjectiveName) -> None:
    problem = random_problem(5, objective=objective)
    exact = LpAll().solve(problem)
    optimum = problem.value(exact.splits)
    sign = 1 if problem.objective.maximises_value else -1
    for entries, max_loss in ((100_000, 1e-3), (16, 0.2)):
        loss = (
            sign
            * (optimum - problem.value(feasible_tables(problem, exact.splits, entries)))
            / optimum
        )
        assert (loss <= max_loss).all()
        assert (loss >= -1e-9).all()


def test_capacity_freed_by_admission_is_filled_again() -> None:
    """Two demands over one link of 3: one asks for 4 on it, the other for 4 through a second link
    of 1."""
    topology = make_topology([(0, 1, 3.0), (1, 2, 1.0)])
    paths = compute_paths(
        topology, np.array([(0, 1), (0, 2)], dtype=np.int32), num_paths=1, cache=False
    )
    problem = Problem.create(topology, paths, Objective(), np.array([4.0, 4.0]))
    splits = feasible_tables(problem, torch.ones(problem.path_mask.shape).double(), 16)
    assert problem.flows(splits).flatten().tolist() == pytest.approx([2.0, 1.0])
    torch.testing.assert_close(splits, project(problem, torch.ones_like(splits)))


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_no_split_is_below_the_least_and_nothing_overflows(objective: ObjectiveName) -> None:
    for seed in range(6):
        problem = random_problem(seed, objective=objective, batch=3)
        splits = pipeline.solve(problem, gap=1e-3).splits
        for least in (0.0, 0.1, 0.4, 0.9):
            kept = without_small(problem, splits, least)
            assert_feasible(problem, Allocation.of_batch(kept, None, 0.0))
            assert not bool(((kept > 0) & (kept < least * (1 - 1e-9))).any())
            if not problem.objective.may_shed:
                torch.testing.assert_close(kept.sum(-1), splits.sum(-1))
        sign = problem.objective.rules.sense
        gain = sign * (problem.value(without_small(problem, splits, 0.0)) - problem.value(splits))
        assert float(gain.min()) >= -1e-9 * float(problem.value(splits).max())
