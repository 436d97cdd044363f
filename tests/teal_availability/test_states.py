"""States by descending probability, against all 2^n of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teal_availability.states import all_states, most_probable_states
from tests.teal_availability.brute import every_state


@given(seed=st.integers(0, 1000), count=st.integers(0, 7), max_failed_components=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_state_comes_once_in_order(seed: int, count: int, max_failed_components: int) -> None:
    unavailability = np.random.default_rng(seed).uniform(1e-4, 0.5, count)
    expected = {
        down: time
        for time, down in every_state(unavailability)
        if not max_failed_components or len(down) <= max_failed_components
    }
    found = list(all_states(unavailability, max_failed_components))
    assert len(found) == len(expected)
    assert {down for _, down in found} == set(expected)
    for time, down in found:
        assert time == pytest.approx(expected[down], rel=1e-12)
    times = [time for time, _ in found]
    assert all(one >= other * (1 - 1e-12) for one, other in itertools.pairwise(times))


def test_states_are_listed_until_the_rest_is_small() -> None:
    """Ten components that are down in 1% of the time: states of at most three leave 2.0e-6."""
    unavailability = np.full(10, 0.01)
    some = most_probable_states(unavailability, max_unlisted_probability=1e-5)
    assert max(map(len, some.down)) == 3
    assert some.unlisted_probability <= 1e-5
    assert some.unlisted_probability == pytest.approx(1 - some.probability.sum(), abs=1e-15)
    all_pairs = most_probable_states(
        unavailability, max_unlisted_probability=0, max_failed_components=2
    )
    assert len(all_pairs) == 1 + 10 + 45
    assert len(most_probable_states(unavailability, max_unlisted_probability=0)) == 1024
    assert len(most_probable_states(unavailability, max_unlisted_probability=0, max_states=7)) == 7
    assert most_probable_states(
        unavailability, max_unlisted_probability=0
    ).unlisted_probability == pytest.approx(0, abs=1e-12)
