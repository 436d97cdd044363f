"""Steering of single demands: loads, measurements and latencies of lists against lists that are
followed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from teal.network import all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.testing import make_topology
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.measurements import policy_measurements
from teal_ip.routing.steering import DemandSteering, steering_of
from teal_ip.routing.transit_policies import TransitSteering
from tests.igp_reference import network_with_parallels, random_metrics

# 0 - 1 - 2 - 3 in a row and 0 - 3, both directions; link numbers: 0->1, 1->2, 2->3, 0->3, then
# back.
ROW = make_topology([(0, 1, 10.0), (1, 2, 10.0), (2, 3, 10.0), (0, 3, 10.0)], both=True)
PAIRS = np.array([(0, 2), (0, 3), (0, 2)], dtype=np.int32)  # one pair twice
LISTS: dict[tuple[int, int], tuple[SegmentList, ...]] = {
    (0, 2): (SegmentList(0.25, (3,)), SegmentList(0.75, (1, 3), (-1, 3)))
}  # the second one is cut: 3 ends 0 -> 3


def test_a_list_is_followed_up_to_the_segment_that_is_cut() -> None:
    """The second list goes to 1, back to 0 for the adjacency 0 -> 3, which has failed; the first
    one takes 0 -> 1 -> 2 -> 3 and back to 2."""
    dag, policies = EcmpDag.of(ROW, np.ones(8)).without([3, 7]), SegmentPolicies(LISTS)
    demand = np.array([[4.0, 2.0, 8.0]])
    loads = IgpFailures.of_demands(dag, PAIRS, demand, policies)
    steered, back = 12.0, {0: 4, 2: 6}  # links of the other direction
    expected = np.zeros(8)
    expected[[0, 1, 2, back[2]]] += 0.25 * steered  # 0 -> 1 -> 2 -> 3 -> 2
    expected[[0, back[0]]] += 0.75 * steered  # 0 -> 1 -> 0
    expected[[0, 1, 2]] += 2.0
    np.testing.assert_allclose(loads.load[0], expected)
    assert loads.lost[0] == pytest.approx(0.75 * steered)
    measured = policy_measurements(dag, PAIRS, policies) @ demand[0]
    np.testing.assert_allclose(measured[:8], expected)
    assert np.isinf(IgpRouting(dag, PAIRS, policies).latency()).tolist() == [True, False, True]
    assert steering_of(dag, policies).loses(PAIRS).tolist() == [True, False, True]


def test_a_cut_list_that_takes_nothing_loses_nothing() -> None:
    dag = EcmpDag.of(ROW, np.ones(8)).without([3, 7])
    lists = (SegmentList(1.0, (1,)), SegmentList(0.0, (3,), (3,)))
    latency = IgpRouting(dag, PAIRS, SegmentPolicies({(0, 2): lists})).latency()
    np.testing.assert_allclose(latency / float(ROW.latency[0]), [2.0, 3.0, 2.0])


def test_values_are_weighted_by_shares_and_each_kind_has_its_steering() -> None:
    dag, policies = EcmpDag.of(ROW, np.ones(8)), SegmentPolicies(LISTS)
    assert isinstance(steering_of(dag, policies), DemandSteering)
    assert isinstance(steering_of(dag, SegmentPolicies(LISTS, is_transit=True)), TransitSteering)
    per_link = float(ROW.latency[0])
    latency = IgpRouting(dag, PAIRS, policies).latency()
    np.testing.assert_allclose(latency / per_link, [0.25 * 2 + 0.75 * 4, 1.0, 0.25 * 2 + 0.75 * 4])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_transit", [False, True])
def test_measurements_are_the_loads_where_links_have_failed(seed: int, is_transit: bool) -> None:
    """Also with adjacencies over failed links and segments without a path; the latency of what is
    lost is infinite."""
    topology, rng = network_with_parallels(seed), np.random.default_rng(seed)
    failed = rng.choice(topology.num_links, topology.num_links // 3, replace=False)
    dag, pairs = (
        EcmpDag.of(topology, random_metrics(topology, seed)).without(failed),
        all_pairs(topology),
    )
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for s, t in pairs[rng.random(len(pairs)) < (0.1 if is_transit else 0.5)].tolist():
        link, mid = int(rng.integers(topology.num_links)), int(rng.integers(topology.num_nodes))
        by_link = SegmentList(0.3, (int(topology.link_target[link]),), (link,))
        lists[s, t] = (by_link, SegmentList(0.5, (mid,)), SegmentList(0.2, ()))
    policies, demand = SegmentPolicies(lists, is_transit), rng.exponential(size=(2, len(pairs)))
    loads = IgpFailures.of_demands(dag, pairs, demand, policies)
    measured = policy_measurements(dag, pairs, policies) @ demand.T
    np.testing.assert_allclose(measured[: topology.num_links].T, loads.load, atol=1e-9)
    is_lost = np.isinf(IgpRouting(dag, pairs, policies).latency())
    only = IgpFailures.of_demands(dag, pairs, np.eye(len(pairs)), policies)
    np.testing.assert_array_equal(is_lost, only.lost > 1e-9)
