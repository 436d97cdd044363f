"""Small changes that are suppressed, against the definition and against the validator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import teal
from teal.allocation.solve import changed_demands, keep_within
from teal.testing import make_topology, random_problem


@given(
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    failed=st.integers(0, 2),
)
def test_what_is_kept_is_what_was_and_nothing_is_overloaded(
    seed: int, share: float, failed: int
) -> None:
    problem = random_problem(seed, batch=2, failed=failed)
    noise = torch.from_numpy(np.random.default_rng(seed).random(problem.demand.shape))
    before = problem.with_demand(problem.demand * (0.8 + 0.4 * noise))
    previous = (
        teal.solve(before, gap=1e-3).splits * problem.path_mask
    )  # what failed since is not kept
    splits = teal.solve(problem, gap=1e-3).splits
    found = keep_within(problem, splits, previous, share)
    assert bool((teal.violations(problem, found).largest <= 1e-8).all())
    is_same = torch.isclose(found, previous, atol=1e-12, rtol=0).all(-1)
    is_new = torch.isclose(found, splits, atol=1e-12, rtol=0).all(-1)
    assert bool((is_same | is_new).all()), "each demand has the old splits or the new ones"
    moved = (splits - previous).abs().sum(-1)
    assert bool((is_new | (moved <= 2 * share + 1e-9)).all()), "only small changes are suppressed"
    is_changed = (found - previous).abs().amax(-1) > 1e-9
    assert bool(
        (changed_demands(problem, found, previous) == (is_changed & (problem.demand > 0))).all()
    )


def test_a_change_that_a_link_needs_is_made_by_hand() -> None:
    """Two demands over one link of 10: 5 and 5 before, 5 and 6 now, of which 5.5 fit."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 100.0)])
    paths = teal.compute_paths(
        topology, torch.tensor([[0, 1], [0, 2]]).int().numpy(), num_paths=1, cache=False
    )
    problem = teal.Problem.create(
        topology, paths, teal.Objective(), torch.tensor([[5.0, 6.0]]).numpy()
    )
    previous, splits = torch.ones(1, 2, 1), torch.tensor([[[0.9], [5.5 / 6]]], dtype=torch.float64)
    found = keep_within(problem, splits, previous, 0.2)
    assert found.flatten().tolist() == pytest.approx([0.9, 5.5 / 6])
    assert changed_demands(problem, found, previous).tolist() == [[True, True]]
    wide = problem.with_capacity(torch.tensor([11.0, 100.0]))
    found = keep_within(wide, splits, previous, 0.2)
    assert found.flatten().tolist() == [1.0, 1.0]
    assert changed_demands(wide, found, previous).tolist() == [[False, False]]
    found = keep_within(wide, splits, previous, 0.09)
    assert found.flatten().tolist() == pytest.approx([0.9, 1.0])
