"""Transit policies against packets that are forwarded node by node, and hand-solved networks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats.segment_lists import read_policies, write_policies
from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.arrays import FloatArray
from teal.testing import make_topology
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.measurements import policy_measurements
from teal_ip.routing.transit_policies import TransitSteering
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares

_Packets = tuple[
    int, tuple[tuple[str, int], ...], bool
]  # node, segments, whether a policy has just replaced the first
_HOPS = 1_000  # after which what has not arrived is in a loop


def forwarded(
    topology: Topology, shares: FloatArray, policies: SegmentPolicies, source: int, target: int
) -> tuple[FloatArray, float, float]:
    """(E,) expected passages of each link by a demand of 1 Gbit/s, what is lost of it, and what
    goes in circles.

    Each node looks at the uppermost segment alone: one that ends there is removed; one that a
    policy of the node steers is replaced by the policy's list, once; every other one is followed.

    Args:
        shares: of :func:`segment_shares`.
    """
    passed, lost = np.zeros(topology.num_links), 0.0
    here: dict[_Packets, float] = {(source, (("node", target),), False): 1.0}
    for _ in range(_HOPS):
        there: dict[_Packets, float] = defaultdict(float)
        while here:
            (node, stack, is_replaced), part = here.popitem()
            if not stack or part < 1e-14:
                continue
            kind, where = stack[0]
            reaches = kind == "link" or np.isfinite(shares[where, node]).all()
            if kind == "node" and where == node:
                here[node, stack[1:], False] = here.get((node, stack[1:], False), 0.0) + part
            elif not reaches or (kind == "link" and topology.capacity[where] <= 0):
                lost += part
            elif (node, where) in policies.lists and kind == "node" and not is_replaced:
                for one in policies.lists[node, where]:
                    new = list[tuple[str, int]]()
                    for stop, link in (*one.stops, (where, -1)):
                        leads = (
                            [("node", stop)]
                            if link < 0
                            else [("node", int(topology.link_source[link]))]
                        )
                        new += leads + ([("link", link)] if link >= 0 else [])
                    state = node, (*new, *stack[1:]), True
                    here[state] = here.get(state, 0.0) + part * one.share
            else:
                out = np.flatnonzero(topology.link_source == node)
                hops = (
                    [(where, 1.0)]
                    if kind == "link"
                    else [(int(e), shares[where, node, e]) for e in out]
                )
                for e, share in hops:
                    passed[e] += part * share
                    there[
                        int(topology.link_target[e]), stack[1:] if kind == "link" else stack, False
                    ] += part * share
        here = there
    return passed, lost, sum(here.values())


def _random_policies(topology: Topology, seed: int) -> SegmentPolicies:
    """Policies of some endpoints, with splits, adjacencies, straight lists, and midpoints that
    other policies steer."""
    rng, nodes = np.random.default_rng(seed), topology.num_nodes
    lists = dict[tuple[int, int], tuple[SegmentList, ...]]()
    for endpoint in rng.choice(nodes, nodes // 2).tolist():  # several policies of an endpoint
        router = int(rng.choice([n for n in range(nodes) if n != endpoint]))
        found, count = [], int(rng.integers(1, 4))
        for share in rng.dirichlet(np.full(count, 5.0)).tolist():
            if rng.random() < 0.3:
                link = int(rng.integers(topology.num_links))
                found.append(SegmentList(share, (int(topology.link_target[link]),), (link,)))
            else:
                stops = rng.choice(nodes, rng.integers(0, 3), replace=False).tolist()
                found.append(
                    SegmentList(share, tuple(n for n in stops if n not in (router, endpoint)))
                )
        lists[router, endpoint] = tuple(found)
    return SegmentPolicies(lists, is_transit=True)


@pytest.mark.parametrize("seed", range(25))
def test_loads_and_losses_are_those_of_packets_that_are_forwarded_node_by_node(seed: int) -> None:
    topology = network_with_parallels(seed)
    metric = random_metrics(topology, seed)
    dag = EcmpDag.of(topology, metric)
    policies, pairs = _random_policies(topology, seed), all_pairs(topology)
    demand = np.random.default_rng(seed).exponential(size=(1, len(pairs)))
    loads = IgpFailures.of_demands(dag, pairs, demand, policies)
    failures = [[0], [1, 2], [topology.num_links - 1]]
    under = loads.under(failures, loads=True)
    scenarios = [(topology, loads.load[0], loads.lost[0])]
    for number, failed in enumerate(failures):
        scenarios.append(
            (topology.with_failed_links(failed), under.load[number, 0], under.lost[number, 0])
        )
    is_without_loop = True
    for number, (changed, load, lost) in enumerate(scenarios):
        shares, expected, loses, loops = (
            segment_shares(changed, metric),
            np.zeros(topology.num_links),
            0.0,
            0.0,
        )
        for (s, t), rate in zip(pairs.tolist(), demand[0], strict=True):
            passed, share, circles = forwarded(changed, shares, policies, s, t)
            expected, loses, loops = (
                expected + rate * passed,
                loses + rate * share,
                loops + rate * circles,
            )
        assert (
            loses - 1e-6 <= lost <= loses + loops + 1e-6
        )  # what circles for long may arrive in the end
        if loops < 1e-9:  # loads of a loop have no limit
            np.testing.assert_allclose(load, expected, atol=1e-6)
        elif number == 0:
            is_without_loop = False
    if is_without_loop:
        measured = policy_measurements(dag, pairs, policies) @ demand[0]
        np.testing.assert_allclose(measured[: topology.num_links], loads.load[0], atol=1e-9)


_BACK = 5  # link from 1 to 0 of the ring


def _ring() -> tuple[Topology, EcmpDag]:
    """0 - 1 - 2 - 3 in a row with metric 1, and 1 - 4 - 3 with metric 2 each; 1 ms a link."""
    ends = [(0, 1, 10.0), (1, 2, 10.0), (2, 3, 10.0), (1, 4, 10.0), (4, 3, 10.0)]
    topology = make_topology(ends, both=True)
    slow = {(1, 4), (4, 1), (4, 3), (3, 4)}
    metric = [
        2 if (int(s), int(t)) in slow else 1
        for s, t in zip(topology.link_source, topology.link_target, strict=True)
    ]
    return topology, EcmpDag.of(topology, np.array(metric, dtype=np.float64))


def test_one_policy_steers_what_crosses_its_router_from_everywhere() -> None:
    topology, dag = _ring()
    policies = SegmentPolicies(
        {(1, 3): (SegmentList(0.75, (4,)), SegmentList(0.25, ()))}, is_transit=True
    )
    pairs = np.array([(0, 3), (1, 3), (2, 3), (0, 2)], dtype=np.int32)
    loads = IgpFailures.of_demands(dag, pairs, np.array([[4.0, 8.0, 1.0, 2.0]]), policies)
    index = {
        (int(s), int(t)): e
        for e, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }
    load = {ends: loads.load[0, e] for ends, e in index.items()}
    assert (load[0, 1], load[1, 4], load[4, 3], load[1, 2], load[2, 3]) == (6.0, 9.0, 9.0, 5.0, 4.0)
    # Without the link 1 -> 4 the list's way to 4 is 1, 2, 3, 4, and back over 3, where it has
    # arrived.
    under = loads.under([[index[1, 4]]], loads=True)
    assert under.load[0, 0, index[2, 3]] == pytest.approx(12 + 1 + 0)
    assert under.lost[0, 0] == 0
    latency = IgpRouting(dag, pairs, policies).latency()
    per_link = topology.latency[0]
    np.testing.assert_allclose(latency / per_link, [3.0, 2.0, 1.0, 2.0])


def test_a_list_that_comes_back_to_its_router_for_ever_loses_what_it_takes() -> None:
    """The list of 1 for 3 goes back to 0, whose only way leads over 1 again."""
    _, dag = _ring()
    policies = SegmentPolicies({(1, 3): (SegmentList(1.0, (0,)),)}, is_transit=True)
    pairs = np.array([(0, 3), (2, 3)], dtype=np.int32)
    loads = IgpFailures.of_demands(dag, pairs, np.array([[4.0, 1.0]]), policies)
    assert loads.lost.tolist() == [4.0]
    assert np.isinf(IgpRouting(dag, pairs, policies).latency()).tolist() == [True, False]
    half = SegmentPolicies(
        {(1, 3): (SegmentList(0.5, (0,)), SegmentList(0.5, ()))}, is_transit=True
    )
    loads = IgpFailures.of_demands(dag, pairs, np.array([[4.0, 1.0]]), half)
    assert loads.lost.tolist() == [0.0]
    assert loads.load[0, _BACK] == pytest.approx(
        4.0
    )  # half of 8, which 1 takes in all: 4 + 2 + 1 + ...


def test_what_comes_back_nearly_always_arrives_in_the_end_beside_what_never_does() -> None:
    """Of what 1 takes for 3, 0.9999 goes back to 0 and is taken again; what 2 takes for 0 goes in
    circles for ever."""
    _, dag = _ring()
    slow = (SegmentList(0.9999, (0,)), SegmentList(0.0001, ()))
    policies = SegmentPolicies(
        {(1, 3): slow, (2, 0): (SegmentList(1.0, (3, 2)),), (3, 2): (SegmentList(1.0, (4,)),)},
        is_transit=True,
    )
    steering = TransitSteering(dag, policies)
    _, arrives = steering._step_weights(steering._arrival_share)
    np.testing.assert_allclose(arrives, steering._arrival_share, atol=1e-9)
    assert steering._arrival_share[0] == pytest.approx(1.0, abs=1e-6)
    pairs = np.array([(0, 3)], dtype=np.int32)
    loads = IgpFailures.of_demands(
        dag, pairs, np.array([[1.0]]), SegmentPolicies({(1, 3): slow}, is_transit=True)
    )
    assert loads.lost[0] == pytest.approx(0.0, abs=1e-6)
    assert loads.load[0, _BACK] == pytest.approx(9999.0, rel=1e-6)  # 0.9999 of 10,000


def test_a_file_keeps_that_policies_are_of_transit(tmp_path: Path) -> None:
    topology, dag = _ring()
    policies = SegmentPolicies({(1, 3): (SegmentList(1.0, (4,)),)}, is_transit=True)
    write_policies(tmp_path / "p.json", topology, policies, {})
    again = read_policies(tmp_path / "p.json", topology)
    assert (again.lists, again.is_transit) == (policies.lists, True)
    text = (tmp_path / "p.json").read_text().replace('"transit": true', '"transit": "yes"')
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(InputError, match="transit"):
        read_policies(tmp_path / "q.json", topology)
    (tmp_path / "q.json").write_text(
        (tmp_path / "p.json").read_text().replace('"source": "n1"', '"source": "n3"')
    )
    with pytest.raises(InputError, match="source and target are the same node"):
        read_policies(tmp_path / "q.json", topology)
    loads = IgpFailures.of_demands(
        dag, np.array([(0, 3)], dtype=np.int32), np.ones((1, 1)), policies
    )
    with pytest.raises(InputError, match="transit policies"):
        loads.under([[0]], repairing=True)


def test_a_small_part_that_is_lost_is_lost() -> None:
    """Half a percent of what 1 sends to 3 takes the link 1 -> 4, which has failed."""
    _, dag = _ring()
    lists = (SegmentList(0.995, (2,)), SegmentList(0.005, (4,), (3,)))
    policies, pairs = (
        SegmentPolicies({(1, 3): lists}, is_transit=True),
        np.array([(0, 3), (2, 3)], dtype=np.int32),
    )
    latency = IgpRouting(dag.without([3]), pairs, policies).latency()
    assert np.isinf(latency).tolist() == [True, False]
    loads = IgpFailures.of_demands(dag.without([3]), pairs, np.array([[4.0, 1.0]]), policies)
    assert loads.lost[0] == pytest.approx(0.02)


def test_what_is_lost_in_a_loop_loads_the_way_to_it_alone() -> None:
    """Loads of a loop have no limit; what is lost there counts as lost at its first router."""
    topology, dag = _ring()
    policies = SegmentPolicies({(1, 3): (SegmentList(1.0, (0,)),)}, is_transit=True)
    loads = IgpFailures.of_demands(
        dag, np.array([(0, 3)], dtype=np.int32), np.array([[4.0]]), policies
    )
    expected = np.zeros(topology.num_links)
    expected[0] = 4.0  # 0 -> 1
    np.testing.assert_allclose(loads.load[0], expected, atol=1e-12)
