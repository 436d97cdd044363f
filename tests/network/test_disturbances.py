"""Disturbances of matrices and networks against the definition of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.network.disturbances import fail_cables, flash_crowd, redistribute, temporal_noise
from teal.testing import make_topology, random_topology


@given(st.integers(0, 1000))
def test_cables_partition_the_links_and_fail_in_both_directions(seed: int) -> None:
    topology = random_topology(seed)
    cables = topology.cables()
    assert sorted(link for cable in cables for link in cable) == list(range(topology.num_links))
    for cable in cables:
        ends = {
            frozenset((int(topology.link_source[e]), int(topology.link_target[e]))) for e in cable
        }
        assert len(ends) == 1
    failed = fail_cables(topology, len(cables), np.random.default_rng(seed))
    assert failed == list(range(topology.num_links))
    failed_cable = fail_cables(topology, 1, np.random.default_rng(seed))
    assert failed_cable in cables
    assert fail_cables(topology, 1, np.random.default_rng(seed)) == failed_cable


def test_parallel_links_are_one_cable() -> None:
    topology = make_topology([(0, 1, 1.0), (0, 1, 2.0), (1, 0, 1.0), (1, 2, 1.0)])
    assert topology.cables() == [[0, 1, 2], [3]]
    with pytest.raises(ValueError, match=r"[Cc]annot take a larger sample"):
        fail_cables(topology, 3, np.random.default_rng(0))


def test_flash_crowd_multiplies_a_tenth_of_the_demands_by_ten() -> None:
    demand = np.random.default_rng(0).random((4, 5000)) + 0.1
    ratio = flash_crowd(demand, np.random.default_rng(1)) / demand
    assert set(ratio.round(9).ravel()) == {1.0, 10.0}
    assert (ratio > 5).mean() == pytest.approx(0.1, abs=0.01)


def test_temporal_noise_has_the_requested_variance_and_is_never_negative() -> None:
    variance = np.array([0.0, 1.0, 4.0])
    demand = np.array([5.0, 100.0, 200.0])
    rng = np.random.default_rng(0)
    drawn = np.array([temporal_noise(demand, variance, 5.0, rng) for _ in range(20_000)])
    np.testing.assert_allclose(drawn.mean(0), demand, atol=0.15)
    np.testing.assert_allclose(drawn.var(0), 5 * variance, rtol=0.05)
    assert (drawn[:, 0] == 5).all()
    assert temporal_noise(np.full(1000, 0.01), np.ones(1000), 20.0, rng).min() == 0


@given(st.integers(0, 1000), st.sampled_from([0.2, 0.4, 0.8, 1.0]))
def test_redistribution_keeps_the_total_and_moves_the_share(seed: int, share: float) -> None:
    demand = np.random.default_rng(seed).lognormal(0, 2, 130)
    top = np.argsort(-demand)[:13]
    moved = redistribute(demand, share)
    assert moved.sum() == pytest.approx(demand.sum())
    assert moved[top].sum() / moved.sum() == pytest.approx(share)
    np.testing.assert_allclose(moved[top] / moved[top].sum(), demand[top] / demand[top].sum())
    rest = np.setdiff1d(np.arange(130), top)
    if share < 1:
        np.testing.assert_allclose(
            moved[rest] / moved[rest].sum(), demand[rest] / demand[rest].sum()
        )


def test_a_single_demand_is_not_redistributed() -> None:
    single_demand = np.array([3.0, 0.0, 0.0])
    np.testing.assert_array_equal(redistribute(single_demand, 0.5), single_demand)
