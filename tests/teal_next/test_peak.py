"""The peak hedge: limits of shares, and the largest rates of the window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import teal
from teal_next.peak import Peak, clip_to_limits
from tests.teal_next.series import make_past


@given(seed=st.integers(0, 1000), spread=st.floats(0.05, 1.0))
def test_no_share_exceeds_its_limit_and_nothing_is_lost(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    splits = torch.from_numpy(rng.dirichlet(np.ones(4) * 0.3, 6))
    limit = torch.from_numpy(rng.dirichlet(np.ones(4), 6)) / spread
    result = clip_to_limits(splits, limit)
    assert bool((result <= limit + 1e-12).all())
    torch.testing.assert_close(result.sum(-1), splits.sum(-1))
    torch.testing.assert_close(clip_to_limits(splits, 1e6 * limit), splits)


def test_the_peak_of_a_window_is_allocated_for() -> None:
    demand = np.array([[50.0, 1.0, 1.0], [1.0, 8.0, 1.0], [2.0, 1.0, 6.0]])
    splits = Peak(2).allocate(make_past(demand))
    problem = make_past(demand).last(1).with_demand(torch.tensor([[2.0, 8.0, 6.0]]))
    optimum = float(teal.solve(problem, gap=1e-4).value)
    assert float(problem.value(splits[None])) == pytest.approx(optimum, rel=4e-3)


def test_full_spread_splits_by_capacity() -> None:
    splits = Peak(1, 1.0).allocate(make_past(np.ones((2, 3))))
    torch.testing.assert_close(splits, torch.full((3, 2), 0.5, dtype=torch.float64))
