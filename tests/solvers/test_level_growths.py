"""Certified growth of fair levels, against linear programs and a link shared by three demands."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
from teal.problem.fair_levels import growth_bound
from teal.solvers.level_growths import level_growths
from teal.testing import make_topology, random_problem
from tests.explicit import explicit_paths


def _exact_growth(
    problem: teal.Problem, rate: np.ndarray, grows: np.ndarray, level: float
) -> float:
    """The largest theta, by bisection over linear programs that ask whether the rates fit."""
    demand = problem.demand[0].numpy()
    capacity = problem.capacity[0].numpy()
    use, of_demand = explicit_paths(problem)

    def fits(theta: float) -> bool:
        needed = np.where(grows, np.minimum(theta * level, demand), rate)
        a_ub = np.concatenate([use, -of_demand])
        b_ub = np.concatenate([capacity, -needed * (1 - 1e-9)])
        return bool(
            linprog(np.zeros(use.shape[1]), A_ub=a_ub, b_ub=b_ub, bounds=(0, None)).status == 0
        )

    low = 0.0
    high = float((demand[grows] / level).max())
    if fits(high):
        return math.inf
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10_000),
    scheme=st.sampled_from(["max-min-lp", "max-min", "adaptive-waterfiller", "pdhg"]),
)
def test_bounds_hold_and_are_close(seed: int, scheme: str) -> None:
    problem = random_problem(seed, nodes=6, batch=1, idle=0.0)
    splits = teal.make_scheme(scheme).solve(problem).splits
    rate = problem.flows(splits).sum(-1)[0].numpy()
    for one in level_growths(problem, splits, levels=3):
        is_open = rate < 0.99 * problem.demand[0].numpy()
        # A demand at the level counts, whatever the last bits of its rate are.
        above = (is_open & (rate >= one.level * (1 + 1e-9))).sum()
        assert above <= one.demands <= (is_open & (rate >= one.level * (1 - 1e-9))).sum()
        grows = (is_open & (rate >= one.level)) | (~is_open & (rate > one.level))
        exact = _exact_growth(problem, rate, grows, one.level)
        assert one.growth >= exact * (1 - 1e-6)
        if math.isfinite(one.growth):
            assert one.growth <= exact * 1.1
        if scheme == "max-min-lp":
            assert one.growth <= 1.01, "exact levels cannot grow"


def test_three_demands_on_one_link_by_hand() -> None:
    topology = make_topology([(0, 1, 10.0), (1, 2, 99.0), (1, 3, 99.0)])
    pairs = np.array([[0, 1], [0, 2], [0, 3]], np.int32)
    paths = teal.compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), np.array([20.0, 20.0, 20.0]))
    splits = torch.tensor([[[0.1], [0.2], [0.2]]], dtype=torch.float64)  # 2, 4 and 4 Gbit/s
    low, high = level_growths(problem, splits)
    assert (low.level, low.demands, high.level, high.demands) == pytest.approx((2.0, 3, 4.0, 2))
    assert low.growth == pytest.approx(10 / 3 / 2, rel=1e-6)
    assert high.growth == pytest.approx(1.0, rel=1e-6)
    weighted = level_growths(problem, splits, torch.tensor([1.0, 2.0, 2.0]))
    assert [one.growth for one in weighted] == pytest.approx([1.0], rel=1e-6)
    rate = torch.tensor([2.0, 4.0, 4.0], dtype=torch.float64)
    grows = torch.tensor([True, True, True])
    nothing = torch.zeros(1, 3, dtype=torch.float64)
    assert growth_bound(problem, rate, grows, torch.full_like(rate, 2.0), nothing) == math.inf
