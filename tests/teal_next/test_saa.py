"""The sample average against the scenario program, interval by interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal_next.saa import SampleAverage
from tests.teal_next.series import make_past


def _mean(demand: np.ndarray, splits: torch.Tensor) -> float:
    problem = make_past(demand).last(len(demand))
    return float(problem.utilisation(splits.expand(problem.batch, -1, -1)).amax(1).mean())


def test_each_interval_has_the_optimum_of_its_window() -> None:
    demand = np.random.default_rng(0).lognormal(1, 0.8, (12, 3))
    demand[7] = 0  # a gap: the window has fewer matrices for a while
    hedge = SampleAverage(4, gap=1e-4)
    for known in range(1, 13):
        splits = hedge.allocate(make_past(demand[:known]))
        window = make_past(demand[:known]).last(4)
        best = solve_scenarios(window, gap=1e-5).bound
        value = float(window.utilisation(splits.expand(window.batch, -1, -1)).amax(1).mean())
        assert value == pytest.approx(best, rel=2e-4)


def test_decay_weighs_recent_matrices() -> None:
    demand = np.array([[9.0, 0.1, 0.1]] * 6 + [[0.1, 0.1, 9.0]] * 2)
    equal, recent = SampleAverage(8, gap=1e-5), SampleAverage(8, decay=0.7, gap=1e-5)
    past = make_past(demand)
    assert (
        _mean(demand[-1:], recent.allocate(past)) <= _mean(demand[-1:], equal.allocate(past)) + 1e-9
    )
