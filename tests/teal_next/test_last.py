"""The last hedge: the optimum of the newest matrix, near the splits of the interval before."""

from __future__ import annotations

import numpy as np
import pytest

import teal
from teal_next.last import Last
from tests.teal_next.series import make_past


def test_each_interval_has_the_optimum_of_the_newest_matrix() -> None:
    demand = np.random.default_rng(0).lognormal(1, 0.8, (6, 3))
    hedge = Last(1e-4)
    for known in range(1, 7):
        splits, problem = (
            hedge.allocate(make_past(demand[:known])),
            make_past(demand[:known]).last(1),
        )
        assert float(problem.value(splits[None])) == pytest.approx(
            float(teal.solve(problem, gap=1e-5).value), rel=2e-4
        )
    again = hedge.allocate(make_past(demand))
    assert float((again - splits).abs().max()) < 1e-3, "the same matrix moves nothing"
