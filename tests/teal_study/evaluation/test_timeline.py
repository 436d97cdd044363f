"""The allocations in force while a scheme computes, against timelines worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.problem.feasibility import violations
from teal.schemes.registry import make_scheme
from teal.testing import random_problem
from teal_study.evaluation.evaluate import LazyAllocation, Timeline, carried_over


def _allocation(number: float) -> LazyAllocation:
    return LazyAllocation(
        lambda: pytest.fail("the allocation must not be computed"), torch.tensor([[number]])
    )


def _installed(
    timeline: Timeline, steps: Sequence[tuple[float, float]]
) -> list[list[tuple[float, float]]]:
    """Per interval, (share of it, number of the allocation in force); steps are (number, computing
    time in s)."""
    return [
        [
            (round(piece.share, 9), float(piece.installed.demand))
            for piece in timeline.step(_allocation(number), seconds)
        ]
        for number, seconds in steps
    ]


def test_an_allocation_of_a_fast_scheme_is_in_force_after_its_computing_time() -> None:
    assert _installed(Timeline(10.0), [(0, 4), (1, 4), (2, 0)]) == [
        [(1.0, 0)],
        [(0.4, 0), (0.6, 1)],
        [(1.0, 2)],
    ]


def test_a_slow_scheme_skips_intervals() -> None:
    # Allocation 1 is computed from 10 s to 35 s, so 2 and 3 are skipped; allocation 4 from 40 s to
    # 65 s.
    steps = [(0, 25), (1, 25), (2, 25), (3, 25), (4, 25), (5, 25), (6, 25)]
    assert _installed(Timeline(10.0), steps) == [
        [(1.0, 0)],
        [(1.0, 0)],
        [(1.0, 0)],
        [(0.5, 0), (0.5, 1)],
        [(1.0, 1)],
        [(1.0, 1)],
        [(0.5, 1), (0.5, 4)],
    ]


def test_an_allocation_done_at_the_end_of_its_interval_is_in_force_from_the_next() -> None:
    assert _installed(Timeline(10.0), [(0, 10), (1, 10), (2, 10)]) == [
        [(1.0, 0)],
        [(1.0, 0)],
        [(1.0, 1)],
    ]


def test_a_failure_leaves_the_last_allocation_in_force() -> None:
    steps = [(0, math.nan), (1, 3), (2, math.nan), (3, 5)]
    assert _installed(Timeline(10.0), steps) == [[], [(1.0, 1)], [(1.0, 1)], [(0.5, 1), (0.5, 3)]]


@given(st.integers(0, 300))
def test_stale_routes_carry_the_smaller_of_new_demand_and_old_flow(seed: int) -> None:
    problem: Problem = random_problem(seed, batch=2)
    old, new = problem.row(0), problem.row(1)
    allocation: Allocation = make_scheme("ecmp:over=candidates").solve(old)
    carried = carried_over(new, LazyAllocation(lambda: allocation, old.demand))
    before, after = old.flows(allocation.splits).sum(-1), new.flows(carried.splits).sum(-1)
    torch.testing.assert_close(after, torch.minimum(new.demand, before))
    assert float(violations(new, carried.splits).largest) < 1e-9
