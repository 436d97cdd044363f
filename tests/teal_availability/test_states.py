"""States by descending probability, against all 2^n of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teal_availability.states import all_states, most_probable_states
from tests.teal_availability.brute import every_state


@given(seed=st.integers(0, 1000), count=st.integers(0, 7), most_down=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_state_comes_once_in_order(seed: int, count: int, most_down: int) -> None:
    unavailability = np.random.default_rng(seed).uniform(1e-4, 0.5, count)
    expected = {
        down: time
        for time, down in every_state(unavailability)
        if not most_down or len(down) <= most_down
    }
    found = list(all_states(unavailability, most_down))
    assert len(found) == len(expected)
    assert {down for _, down in found} == set(expected)
    for time, down in found:
        assert time == pytest.approx(expected[down], rel=1e-12)
    times = [time for time, _ in found]
    assert all(one >= other * (1 - 1e-12) for one, other in itertools.pairwise(times))


def test_states_are_listed_until_the_rest_is_small() -> None:
    """Ten components that are down in 1% of the time: states of at most three leave 2.0e-6."""
    unavailability = np.full(10, 0.01)
    some = most_probable_states(unavailability, rest=1e-5)
    assert max(map(len, some.down)) == 3
    assert some.rest <= 1e-5
    assert some.rest == pytest.approx(1 - some.probability.sum(), abs=1e-15)
    all_pairs = most_probable_states(unavailability, rest=0, most_down=2)
    assert len(all_pairs) == 1 + 10 + 45
    assert len(most_probable_states(unavailability, rest=0)) == 1024
    assert len(most_probable_states(unavailability, rest=0, most_states=7)) == 7
    assert most_probable_states(unavailability, rest=0).rest == pytest.approx(0, abs=1e-12)
