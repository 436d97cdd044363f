"""Projections onto simplices against a convex program that a general solver solves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.solvers.pdhg.fused.simplex import limited_simplex


def _projected(
    dual: np.ndarray, slope: np.ndarray, live: np.ndarray, limits: np.ndarray
) -> np.ndarray:
    """(S, E) by bisection in nested loops over the multipliers, from the optimality conditions."""

    def of_scenario(s: int, t: float) -> np.ndarray:
        def y(shift: float) -> np.ndarray:
            return np.where(live[s], np.maximum(0, dual[s] - shift * slope[s]), 0)

        if y(t).sum() <= limits[s]:
            return y(t)
        low = t
        high = float((dual[s] / slope[s])[live[s]].max())
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if y(middle).sum() > limits[s] else (low, middle)
        return y(high)

    def everything(t: float) -> np.ndarray:
        return np.stack([of_scenario(s, t) for s in range(len(limits))])

    high = float((dual / slope)[live].max())
    low = float(((dual - 1) / slope)[live].min())
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if everything(middle).sum() > 1 else (low, middle)
    return everything(low)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    scenarios=st.integers(1, 11),
    links=st.integers(2, 6),
    tail=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    width=st.sampled_from([1, 8]),
)
def test_the_limited_simplex_is_the_nearest_point(
    seed: int, scenarios: int, links: int, tail: float, width: int
) -> None:
    rng = np.random.default_rng(seed)
    dual = rng.normal(0, 1, (scenarios, links))
    slope = rng.lognormal(0, 1, (scenarios, links))
    live = rng.random((scenarios, links)) < 0.8
    live[:, 0] = True
    weights = rng.random(scenarios) + 0.1
    limits = np.minimum(weights / weights.sum() / (1 - tail), 1) if tail < 1 else np.ones(scenarios)
    groups = -(-scenarios // width)

    def rows(values: np.ndarray) -> np.ndarray:
        padded = np.zeros((groups * width, links))
        padded[:scenarios] = values
        return padded.reshape(groups, width, links).transpose(0, 2, 1).reshape(-1).copy()

    flat = rows(dual)
    steps = rows(slope)
    limited_simplex(flat, steps, rows(live), limits, width)
    actual = flat.reshape(groups, links, width).transpose(0, 2, 1).reshape(-1, links)[:scenarios]
    assert actual.sum() == pytest.approx(1, abs=1e-9)
    assert (actual.sum(1) <= limits + 1e-9).all()
    np.testing.assert_allclose(actual, _projected(dual, slope, live, limits), atol=1e-7)
