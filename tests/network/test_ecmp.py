"""Shortest paths with equal-cost multipath, against networkx."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from teal.errors import InputError
from teal.network.ecmp import EcmpDag
from teal.pathops.segment_passes import SegmentPasses
from teal.testing import make_topology
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares


def test_a_square_divides_evenly_at_every_node_and_by_weight_where_asked() -> None:
    #   0 -> 1 -> 3, 0 -> 2 -> 3, and a second link 0 -> 1
    topology = make_topology([(0, 1, 1), (0, 1, 2), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    metric = np.ones(5)
    assert EcmpDag.of(topology, metric).next_hops(0, 3) == pytest.approx(
        {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}
    )
    by_capacity = EcmpDag.of(topology, metric, weight=topology.capacity)
    assert by_capacity.next_hops(0, 3) == pytest.approx({0: 1 / 4, 1: 1 / 2, 2: 1 / 4})
    longer = EcmpDag.of(topology, np.array([1, 1, 2, 1, 1]))
    assert longer.next_hops(0, 3) == {0: 0.5, 1: 0.5}
    assert longer.next_hops(3, 0) == {}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_loads_and_maxima_are_those_of_the_shares(seed: int, weighted: bool) -> None:
    topology = network_with_parallels(seed)
    rng, metric = np.random.default_rng(seed), random_metrics(topology, seed)
    weight = rng.uniform(0.5, 2, topology.num_links) if weighted else None
    shares = segment_shares(topology, metric, weight)
    passes = SegmentPasses(EcmpDag.of(topology, metric, weight))
    value = rng.uniform(size=(2, topology.num_links))
    np.testing.assert_allclose(
        np.nan_to_num(passes.segment_sum(value), posinf=np.nan),
        np.einsum("tue,le->ltu", shares, value),
        atol=1e-12,
    )
    volume = rng.uniform(size=(2, *shares.shape[:2]))
    expected = np.einsum("tue,ltu->le", np.nan_to_num(shares), volume)
    np.testing.assert_allclose(passes.segment_load(volume), expected, atol=1e-12)
    largest, first = passes.segment_max(value)
    for t, u in np.argwhere(~np.isnan(shares[..., 0])):
        used = np.flatnonzero(shares[t, u] > 0)
        for i in range(2):
            assert largest[i, t, u] == (value[i, used].max() if len(used) else -np.inf)
            assert (first[i, t, u] in used) if len(used) else first[i, t, u] == -1


@pytest.mark.parametrize("seed", range(6))
def test_rebuilding_after_changes_and_failures_equals_building_anew(seed: int) -> None:
    topology = network_with_parallels(seed)
    rng, metric = np.random.default_rng(seed), random_metrics(topology, seed)
    dag = EcmpDag.of(topology, metric)
    for _ in range(5):
        changed = rng.integers(0, topology.num_links, 3)
        metric = metric.copy()
        metric[changed] = np.where(rng.random(3) < 0.3, np.inf, rng.integers(1, 6, 3))
        dag = dag.rebuilt(metric)
        anew = EcmpDag.of(
            topology.with_failed_links(np.flatnonzero(np.isinf(metric))),
            np.where(np.isinf(metric), 1, metric),
        )
        np.testing.assert_array_equal(dag.dags.distance, anew.dags.distance)
        volume = np.ones((1, topology.num_nodes, topology.num_nodes))
        np.testing.assert_allclose(
            SegmentPasses(dag).segment_load(volume),
            SegmentPasses(anew).segment_load(volume),
            atol=1e-12,
        )


@pytest.mark.parametrize("seed", range(40))
def test_after_failures_alone_the_nodes_behind_them_are_searched_anew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = network_with_parallels(seed)
    is_edge = rng.random(topology.num_nodes) < (0.2 if seed % 2 else 0.0)  # of no transit
    topology = dataclasses.replace(topology, no_transit=is_edge if is_edge.any() else None)
    metric = random_metrics(topology, seed)
    dag = EcmpDag.of(topology, metric)
    failed = np.zeros(topology.num_links, dtype=bool)
    for _ in range(4):
        failed[rng.integers(0, topology.num_links, rng.integers(1, 4))] = True
        later = rng.integers(0, topology.num_links)
        metric[later] += 1  # a rise that is no failure
        dag = dag.rebuilt(np.where(failed, np.inf, metric))
        anew = EcmpDag.of(topology.with_failed_links(np.flatnonzero(failed)), metric)
        np.testing.assert_array_equal(dag.dags.distance, anew.dags.distance)
        np.testing.assert_array_equal(dag.dags.reached, anew.dags.reached)
        for t in range(topology.num_nodes):
            reached = dag.dags.order[t, : dag.dags.reached[t]]
            assert (np.diff(dag.dags.distance[t, reached]) >= 0).all(), "nodes by distance"
            for node in range(topology.num_nodes):
                assert dag.next_hops(node, t) == anew.next_hops(node, t)


def test_a_metric_that_is_no_whole_number_above_0_is_refused() -> None:
    topology = make_topology([(0, 1, 1), (1, 0, 1)])
    for wrong in (0, 1.5, np.inf, 2**33):
        with pytest.raises(InputError, match="n1->n0: metric"):
            EcmpDag.of(topology, np.array([1, wrong]))
    with pytest.raises(InputError, match="weight"):
        EcmpDag.of(topology, np.ones(2), np.zeros(2))
