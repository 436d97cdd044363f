"""Passes over the DAGs of shortest paths against explicit shares of ECMP and their transpose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.network.ecmp import EcmpDag
from teal.pathops.segment_passes import SegmentPasses, volumes
from teal.testing import make_topology
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_sums_maxima_and_loads_are_those_of_explicit_shares(seed: int) -> None:
    """Parallel links, a router without transit, pairs without a path, three rows of values."""
    topology = network_with_parallels(seed, 6)
    metric = random_metrics(topology, seed)
    share = segment_shares(topology, metric)
    has_path = np.isfinite(share.sum(-1))
    passes = SegmentPasses(EcmpDag.of(topology, metric))
    rng = np.random.default_rng(seed)
    values = rng.random((3, topology.num_links))
    sums = passes.segment_sum(values)
    largest, first = passes.segment_max(values)
    volume = rng.exponential(1, (3, *has_path.shape))
    load = passes.segment_load(volume.copy())
    known = np.where(has_path[..., None], share, 0.0)
    np.testing.assert_allclose(load, np.einsum("ltu,tue->le", volume, known), rtol=1e-9, atol=1e-12)
    for row in range(3):
        expected = np.where(has_path, known @ values[row], np.inf)
        np.testing.assert_allclose(sums[row], expected, rtol=1e-9)
        used = np.where(known > 0, values[row], -np.inf)
        maximum = np.where(has_path, used.max(-1), np.inf)
        np.testing.assert_array_equal(largest[row], maximum)
        is_used = has_path & ~np.eye(len(has_path), dtype=bool)
        np.testing.assert_array_equal(first[row][is_used], used.argmax(-1)[is_used])
        assert (first[row][~is_used] == -1).all()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_loads_are_the_transpose_of_sums(seed: int) -> None:
    topology = network_with_parallels(seed, 7)
    passes = SegmentPasses(EcmpDag.of(topology, random_metrics(topology, seed)))
    rng = np.random.default_rng(seed)
    values = rng.random((3, topology.num_links))
    sums = passes.segment_sum(values)
    volume = np.where(np.isfinite(sums), rng.exponential(1, sums.shape), 0.0)
    carried = (volume * np.where(np.isfinite(sums), sums, 0.0)).sum((1, 2))
    load = passes.segment_load(volume)
    np.testing.assert_allclose((load * values).sum(1), carried, rtol=1e-9)


def test_equal_costs_are_shared_evenly_by_hand() -> None:
    """From 0 to 3 by way of 1 or of 2, half of it each; node 4 is not connected."""
    topology = make_topology([(0, 1, 1.0), (0, 2, 1.0), (1, 3, 1.0), (2, 3, 1.0)], min_nodes=5)
    passes = SegmentPasses(EcmpDag.of(topology, np.ones(4)))
    sums = passes.segment_sum(np.array([[1.0, 3.0, 5.0, 7.0]]))[0]
    assert sums[3, 0] == pytest.approx((1 + 5 + 3 + 7) / 2)
    assert np.isinf(sums[3, 4])
    pairs = np.array([[0, 3], [0, 1], [4, 3]], np.int32)
    volume = volumes(pairs, np.array([[4.0, 1.0, 9.0], [2.0, 0.0, 0.0], [0.0, 5.0, 0.0]]), 5)
    assert volume[0, 3, 0] == 4.0
    load = passes.segment_load(volume)
    assert load.tolist() == [[3.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0], [5.0, 0.0, 0.0, 0.0]]
