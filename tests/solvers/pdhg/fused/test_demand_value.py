"""Demands whose paths have caps: the kernels against the projection and the support in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.problem.prox import project_box_in_torch
from teal.problem.sets import Capped
from teal.solvers.pdhg.fused.demand_value import capped_profit, capped_shift


@pytest.mark.parametrize("width", [1, 8])
def test_caps_in_kernels_are_those_of_the_demand_set(width: int) -> None:
    rng = np.random.default_rng(width)
    lanes = (0,) * width
    for n in (1, 2, 5, 8):
        for _ in range(50):
            cap = (
                rng.random((n, width))
                * rng.choice([0.2, 1.0], (n, width))
                * (rng.random((n, width)) < 0.8)
            )
            moved, profit = rng.normal(0.2, 0.6, (2, n, width))
            shift = np.empty(width)
            best = np.empty(width)
            is_used = np.empty(n, np.bool_)
            capped_shift(moved.reshape(-1), cap.reshape(-1), 0, n, lanes, shift)
            capped_profit(profit.reshape(-1), cap.reshape(-1), 0, n, lanes, is_used, best)
            caps = torch.from_numpy(cap.T.copy())[:, None]
            expected = project_box_in_torch(
                torch.from_numpy(moved.T.copy())[:, None], caps, torch.ones_like(caps)
            )
            np.testing.assert_allclose(np.clip(moved - shift, 0, cap).T, expected[:, 0], atol=1e-12)
            profits = torch.from_numpy(profit.T.copy())[:, None]
            support = Capped(caps).support(profits, torch.ones_like(profits, dtype=torch.bool))
            np.testing.assert_allclose(best, support[:, 0], atol=1e-12)
