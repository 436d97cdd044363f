"""Loads under failures of shortest-path routing, against plain references and pyNTM."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.pathops.segment_passes import volumes
from teal.runtime.arrays import FloatArray, IntArray
from teal.testing import make_topology
from teal_ip.routing.igp_failures import IgpFailures
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares


def _case(seed: int) -> tuple[Topology, FloatArray, FloatArray]:
    topology = network_with_parallels(seed)
    volume = np.random.default_rng(seed).uniform(size=(2, topology.num_nodes, topology.num_nodes))
    volume[:, np.arange(topology.num_nodes), np.arange(topology.num_nodes)] = 0
    return topology, random_metrics(topology, seed), volume


def _failures(topology: Topology) -> list[list[int]]:
    cables = topology.cables()
    of_nodes = [
        np.flatnonzero((topology.link_source == n) | (topology.link_target == n)).tolist()
        for n in range(topology.num_nodes)
    ]
    pairs = [[*a, *b] for a, b in itertools.combinations(cables, 2)]
    return [[0], *cables, *of_nodes, *pairs[:40]]


@pytest.mark.parametrize("seed", range(4))
def test_loads_after_convergence_are_those_of_the_network_without_the_links(seed: int) -> None:
    topology, metric, volume = _case(seed)
    failures = _failures(topology)
    results = IgpFailures(EcmpDag.of(topology, metric), volume).under(failures, loads=True)
    for s, links in enumerate(failures):
        shares = segment_shares(topology.with_failed_links(links), metric)
        expected = np.einsum("tue,mtu->me", np.nan_to_num(shares), volume)
        np.testing.assert_allclose(results.load[s], expected, atol=1e-11)
        np.testing.assert_allclose(
            results.lost[s], volume[:, np.isnan(shares[..., 0])].sum(1), atol=1e-11
        )
        utilisation = np.delete(expected / topology.capacity, links, axis=1)
        np.testing.assert_allclose(results.utilisation[s], utilisation.max(1), atol=1e-11)
        over = np.maximum(0, np.delete(expected - topology.capacity, links, axis=1)).sum(1)
        np.testing.assert_allclose(results.overload[s], over, atol=1e-10)


def _repaired(
    topology: Topology, metric: FloatArray, failed: list[int], volume: FloatArray
) -> tuple[FloatArray, float]:
    """Loads and lost traffic while only the nodes at failed links have acted: node by node, from
    far to near."""
    before, after = (
        segment_shares(topology, metric),
        segment_shares(topology.with_failed_links(failed), metric),
    )
    dag, load, lost = EcmpDag.of(topology, metric), np.zeros(topology.num_links), 0.0
    for t in range(topology.num_nodes):
        at = np.where(np.isnan(after[t, :, 0]), 0, volume[t])
        lost += float(volume[t].sum() - at.sum())
        reached = [u for u in range(topology.num_nodes) if not np.isnan(before[t, u, 0]) and u != t]
        for u in sorted(reached, key=lambda u: -dag.dags.distance[t, u]):
            hops = {e: share for e, share in dag.next_hops(u, t).items() if e not in failed}
            for e, share in hops.items():
                part = at[u] * share / sum(hops.values())
                load[e] += part
                at[topology.link_target[e]] += part
            if not hops and np.isnan(after[t, u, 0]):
                lost += at[u]
            elif not hops:
                load += at[u] * after[t, u]
    return load, lost


@pytest.mark.parametrize("seed", range(3))
def test_loads_under_fast_reroute(seed: int) -> None:
    topology, metric, volume = _case(seed)
    failures = _failures(topology)[:30]
    results = IgpFailures(EcmpDag.of(topology, metric), volume).under(
        failures, repairing=True, loads=True
    )
    for s, links in enumerate(failures):
        load, lost = _repaired(topology, metric, links, volume[0])
        np.testing.assert_allclose(results.load[s, 0], load, atol=1e-11)
        assert results.lost[s, 0] == pytest.approx(lost, abs=1e-11)


def test_a_ring_has_a_micro_loop_where_traffic_turns_round() -> None:
    # A ring of five nodes with metrics of 1; when 0-1 fails, 0 sends to 1 by 4, which still sends
    # by 0.
    ring = make_topology([(n, (n + 1) % 5, 10.0) for n in range(5)], both=True)
    volume = np.zeros((1, 5, 5))
    volume[0, 1] = [3, 0, 5, 7, 11]  # to node 1
    cable = next(links for links in ring.cables() if 0 in links)
    failures = IgpFailures(EcmpDag.of(ring, np.ones(10)), volume)
    # 0 -> 4 after, 4 -> 0 before: nodes 0 and 4 reach the loop; 3 and 2 do not turn round.
    assert failures.under([cable], repairing=True).at_risk[0, 0] == 3 + 11
    assert failures.under([[]], repairing=True).at_risk[0, 0] == 0


@pytest.mark.parametrize("repairing", [False, True])
def test_no_load_is_negative_by_rounding(repairing: bool) -> None:
    # With these demands, 0.25 of the pairs of a ring with a chord, links lose all they carry in
    # several failures.
    ring = make_topology([*((n, (n + 1) % 8, 10.0) for n in range(8)), (0, 4, 10.0)], both=True)
    rng = np.random.default_rng(1)
    volume = rng.uniform(size=(1, 8, 8)) * (rng.random((1, 8, 8)) < 0.25)
    volume[:, range(8), range(8)] = 0
    results = IgpFailures(EcmpDag.of(ring, np.ones(ring.num_links)), volume).under(
        _failures(ring), repairing=repairing, loads=True
    )
    assert results.load.min() == 0


def test_a_link_out_of_service_makes_no_micro_loop() -> None:
    # 0 sends to 1 by 2, which is cut off when 2->1 fails; the link from 2 back to 0 is out of
    # service.
    topology = make_topology([(0, 2, 10.0), (2, 1, 10.0), (0, 1, 10.0), (2, 0, 0.0)])
    volume = np.zeros((1, 3, 3))
    volume[0, 1] = [3, 0, 5]
    failures = IgpFailures(EcmpDag.of(topology, np.array([1.0, 1, 5, 1])), volume)
    assert failures.under([[1]], repairing=True).at_risk[0, 0] == 0


@pytest.mark.parametrize(
    "seed", [0, 2]
)  # networks whose routers all carry transit traffic, as those of pyNTM
def test_loads_equal_those_of_pyntm(seed: int) -> None:
    pyntm = pytest.importorskip("pyNTM", reason="pip install pyNTM networkx to compare with it")
    topology, metric, volume = _case(seed)
    cables = topology.cables()[:4]
    dag = EcmpDag.of(topology, metric)
    ours = IgpFailures(dag, volume[:1]).under([[], *cables], loads=True).load[:, 0]
    for s, failed in enumerate([[], *cables]):
        has_path = ~np.isnan(segment_shares(topology.with_failed_links(failed), metric)[..., 0])
        theirs = _pyntm_loads(pyntm, topology, metric, volume[0] * has_path, failed)
        np.testing.assert_allclose(ours[s], theirs, atol=1e-9)


def _pyntm_loads(pyntm, topology, metric, volume, failed):  # type: ignore[no-untyped-def]
    """Loads of all links; pyNTM takes circuits of two interfaces, so every link gets a reverse one
    of no use."""
    far, interfaces = 10**6, []
    for e in range(topology.num_links):
        a, b = (
            topology.node_names[topology.link_source[e]],
            topology.node_names[topology.link_target[e]],
        )
        cost = far if e in failed else int(metric[e])
        for node, other, name, m in ((a, b, f"link-{e}", cost), (b, a, f"back-{e}", far)):
            interfaces.append((name, m, 1e9, pyntm.Node(node), pyntm.Node(other), str(e)))
    model = pyntm.Parallel_Link_Model(
        {pyntm.Interface(*interface) for interface in interfaces},
        {pyntm.Node(name) for name in topology.node_names},
        set(),
        set(),
    )
    for t, u in np.argwhere(volume > 0):
        model.add_demand(
            topology.node_names[u], topology.node_names[t], float(volume[t, u]), f"{u}-{t}"
        )
    model.update_simulation()
    return np.array(
        [
            model.get_interface_object(
                f"link-{e}", topology.node_names[topology.link_source[e]]
            ).traffic
            or 0.0
            for e in range(topology.num_links)
        ]
    )


def test_volumes_have_the_destination_first() -> None:
    volume = volumes(np.array([[0, 2], [1, 2]]), np.array([[3.0, 4.0]]), 3)
    assert volume[0, 2].tolist() == [3, 4, 0]
    assert volume.sum() == 7


@pytest.mark.parametrize("repairing", [False, True])
def test_traffic_of_an_adjacency_segment_is_lost_when_its_link_fails(repairing: bool) -> None:
    ring = make_topology([(n, (n + 1) % 5, 10.0) for n in range(5)], both=True)
    adjacency = np.zeros((1, 10))
    adjacency[0, 3] = 5.0
    failures = IgpFailures(EcmpDag.of(ring, np.ones(10)), np.zeros((1, 5, 5)), adjacency)
    assert failures.load[0].tolist() == adjacency[0].tolist()
    assert failures.under([[3], [2], [2, 3]], repairing=repairing).lost.tolist() == [
        [5.0],
        [0.0],
        [5.0],
    ]


def _random_lists(topology: Topology, pairs: IntArray, seed: int) -> SegmentPolicies:
    """Two lists for most pairs, with up to three stops, some of which are the end of an
    adjacency."""
    rng, lists = np.random.default_rng(seed), {}
    for s, t in pairs[rng.random(len(pairs)) < 0.7].tolist():
        own = []
        for share in (0.75, 0.25):
            links = (
                rng.integers(-2 * topology.num_links, topology.num_links, rng.integers(0, 4))
                .clip(-1)
                .tolist()
            )
            stops = [
                int(topology.link_target[e]) if e >= 0 else int(rng.integers(topology.num_nodes))
                for e in links
            ]
            own.append(SegmentList(share, tuple(stops), tuple(links)))
        lists[s, t] = tuple(own)
    return SegmentPolicies(lists)


def _walked(
    topology: Topology,
    shares: FloatArray,
    failed: list[int],
    policies: SegmentPolicies,
    demands: dict,  # type: ignore[type-arg]
) -> tuple[FloatArray, float]:
    """Loads and lost traffic: each list stop by stop, until one cannot be reached; NaN in
    ``shares`` is no path."""
    load, lost = np.zeros(topology.num_links), 0.0
    for (source, target), demand in demands.items():
        for one in policies.lists.get((source, target), (SegmentList(1.0, ()),)):
            amount, here = one.share * demand, source
            for stop, link in (*one.stops, (target, -1)):
                end = stop if link < 0 else int(topology.link_source[link])
                if np.isnan(shares[end, here, 0]):
                    lost += amount
                    break
                load += amount * shares[end, here]
                if link in failed:
                    lost += amount
                    break
                if link >= 0:
                    load[link] += amount
                here = stop
    return load, lost


@pytest.mark.parametrize("seed", range(3))
def test_what_a_list_loses_under_a_failure_is_lost_once_and_not_sent_on(seed: int) -> None:
    topology, metric, _ = _case(seed)
    out_of_service = [5]
    topology = topology.with_failed_links(out_of_service)
    pairs = all_pairs(topology)
    policies, demand = (
        _random_lists(topology, pairs, seed),
        np.random.default_rng(seed).uniform(size=(2, len(pairs))),
    )
    failures = [[], *_failures(topology)[:40]]
    loads = IgpFailures.of_demands(EcmpDag.of(topology, metric), pairs, demand, policies)
    results = loads.under(failures, loads=True)
    for s, links in enumerate(failures):
        shares, down = (
            segment_shares(topology.with_failed_links(links), metric),
            [*out_of_service, *links],
        )
        for m in range(2):
            demands = dict(zip(map(tuple, pairs.tolist()), demand[m], strict=True))
            load, lost = _walked(topology, shares, down, policies, demands)
            np.testing.assert_allclose(results.load[s, m], load, atol=1e-11)
            assert results.lost[s, m] == pytest.approx(lost, abs=1e-11)
            utilisation = np.delete(load, down) / np.delete(topology.capacity, down)
            assert results.utilisation[s, m] == pytest.approx(utilisation.max(), abs=1e-11)
    assert loads.lost == pytest.approx(results.lost[0], abs=1e-11)
    np.testing.assert_allclose(loads.load, results.load[0], atol=1e-11)
