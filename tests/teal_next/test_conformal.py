"""The share of intervals in which the limit holds, for series that are stationary, drift, and
jump."""

from __future__ import annotations

import math

import numpy as np
import pytest

from teal_next.conformal import ConformalLimit


def _covered(scores: np.ndarray, level: float = 0.95) -> float:
    limit, held = ConformalLimit(level), []
    for score in scores:
        if math.isfinite(limit.limit):
            held.append(score <= limit.limit)
        limit.observe(score)
    return float(np.mean(held))


@pytest.mark.parametrize("seed", range(5))
def test_coverage_is_the_asked_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.lognormal(0, 0.1, 2000)
    trend = noise * np.linspace(1, 2, 2000)
    jump = noise * np.where(np.arange(2000) < 1000, 1.0, 1.5)
    for scores in (noise, trend, jump):
        assert 0.93 <= _covered(scores) <= 0.97
    assert 0.77 <= _covered(noise, 0.8) <= 0.83


def test_nothing_is_stated_before_there_is_enough_to_go_by() -> None:
    limit = ConformalLimit(0.95)
    for score in range(19):
        assert limit.limit == math.inf
        limit.observe(float(score))
    limit.observe(19.0)
    assert limit.limit == 19.0, "the largest of twenty"
