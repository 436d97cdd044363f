"""The static hedge: computed once, from matrices spread over the whole past."""

from __future__ import annotations

import numpy as np
import pytest

from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal_next.static import Static
from tests.teal_next.series import make_past


def test_splits_are_those_of_the_first_past() -> None:
    demand = np.random.default_rng(0).lognormal(1, 0.8, (40, 3))
    hedge = Static(5)
    first, past = hedge.allocate(make_past(demand[:20])), make_past(demand[:20]).last(20, 5)
    value = float(past.utilisation(first.expand(5, -1, -1)).amax(1).mean())
    assert value == pytest.approx(solve_scenarios(past, gap=1e-5).bound, rel=4e-3)
    assert hedge.allocate(make_past(demand)) is first
