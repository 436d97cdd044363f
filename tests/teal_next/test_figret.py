"""The penalty on demands that vary: their splits are spread."""

from __future__ import annotations

import numpy as np
import pytest

from teal.errors import InputError
from teal.schemes.hedges import make_hedge
from tests.teal_next.series import make_past


def test_a_demand_that_varies_is_spread() -> None:
    rng = np.random.default_rng(0)
    demand = np.full((60, 3), 1.0)
    demand[:, 0] += 0.5 * (rng.random(60) < 0.5)
    spread = make_hedge("figret:window=2,steps=300,sensitivity=3").allocate(make_past(demand))
    plain = make_hedge("figret:window=2,steps=300,sensitivity=0.001").allocate(make_past(demand))
    assert float(spread[0].max()) < 0.55
    assert float(plain[0].max()) > float(spread[0].max())
    with pytest.raises(InputError, match="sensitivity"):
        make_hedge("figret:sensitivity=-1")
