"""Networks as routers know them: databases, tables of links, YANG data; and what is written for routers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats import load_topology, load_traffic, save_topology
from teal.formats.segment_lists import read_policies, write_policies
from teal.formats.sr_policies import SRGB_BASE, check_depth, to_frr, to_json, weights
from teal.network import Topology
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies, segment_volumes
from teal.pathops.igp_failures import IgpFailures
from teal.testing import make_topology


def _links(topology: Topology) -> dict[tuple[str, str], tuple[float, int | None]]:
    names, metric = topology.node_names, topology.metric
    return {
        (names[s], names[t]): (float(topology.capacity[e]), None if metric is None else int(metric[e]))
        for e, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }


def _write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def _isis(named: bool) -> dict[str, Any]:
    """Three routers: 1 - 2 point to point, 1 and 3 on a broadcast network whose designated router is 3."""
    ids = {1: "0000.0000.0001", 2: "0000.0000.0002", 3: "0000.0000.0003"}
    hosts = {1: "rennes", 2: "lyon", 3: "paris"}
    own = hosts if named else ids
    reach = {
        f"{own[1]}.00": [(f"{ids[2]}.00", 10), (f"{ids[3]}.05", 20)],
        f"{own[2]}.00": [(f"{ids[1]}.00", 15)],
        f"{own[3]}.00": [(f"{ids[3]}.05", 25)],
        f"{own[3]}.05": [(f"{ids[1]}.00", 0), (f"{ids[3]}.00", 0)],
    }
    packets = [
        {"lsp": {"id": f"{name}-00"}, "extReach": [{"mtId": "Extended", "id": i, "metric": m} for i, m in targets]}
        for name, targets in reach.items()
    ]
    return {"areas": [{"area": {"name": "1"}, "levels": [{"id": 2, "lsps": packets}]}]}


@pytest.mark.parametrize("named", [True, False])
def test_an_isis_database_of_frr(tmp_path: Path, named: bool) -> None:
    file = _write(tmp_path / "isis.json", _isis(named))
    with pytest.raises(InputError, match="capacity"):
        load_topology(file)
    topology = load_topology(file, default_capacity=40)
    one, two, three = ("rennes", "lyon", "paris") if named else (f"0000.0000.000{i}" for i in (1, 2, 3))
    assert _links(topology) == {
        (one, two): (40, 10), (two, one): (40, 15), (one, three): (40, 20), (three, one): (40, 25),
    }  # fmt: skip
    assert any("no delays" in note for note in topology.notes)


def test_an_ospf_database_of_frr_drops_what_one_end_alone_says(tmp_path: Path) -> None:
    def p2p(router: str, metric: int) -> dict[str, Any]:
        return {"linkType": "another Router (point-to-point)", "neighborRouterId": router, "tos0Metric": metric}

    def on_lan(metric: int) -> dict[str, Any]:
        return {"linkType": "a Transit Network", "designatedRouterAddress": "10.0.0.1", "tos0Metric": metric}

    stub = {"linkType": "Stub Network", "networkAddress": "10.1.0.0", "tos0Metric": 5}
    routers = {
        "1.1.1.1": [p2p("2.2.2.2", 10), on_lan(7), stub],
        "2.2.2.2": [p2p("1.1.1.1", 30), p2p("3.3.3.3", 1)],
        "3.3.3.3": [on_lan(8)],
    }
    area = [
        {"advertisingRouter": router, "routerLinks": {f"link{i}": one for i, one in enumerate(links)}}
        for router, links in routers.items()
    ]
    for document in (
        {"routerId": "1.1.1.1", "routerLinkStates": {"areas": {"0.0.0.0": area}}},
        {"routerId": "1.1.1.1", "areas": {"0.0.0.0": {"routerLinkStates": area}}},
    ):
        topology = load_topology(_write(tmp_path / "ospf.json", document), default_capacity=10)
        assert _links(topology) == {
            ("1.1.1.1", "2.2.2.2"): (10, 10), ("2.2.2.2", "1.1.1.1"): (10, 30),
            ("1.1.1.1", "3.3.3.3"): (10, 7), ("3.3.3.3", "1.1.1.1"): (10, 8),
        }  # fmt: skip
        assert any("2.2.2.2 -> 3.3.3.3" in note for note in topology.notes)


def test_bgp_ls_of_exabgp_takes_bandwidth_metric_names_and_withdrawals(tmp_path: Path) -> None:
    def link(a: str, b: str, address: str) -> dict[str, Any]:
        return {
            "ls-nlri-type": "bgpls-link", "l3-routing-topology": 0, "protocol-id": 2,
            "local-node-descriptors": {"autonomous-system": 1, "router-id": a},
            "remote-node-descriptors": [{"autonomous-system": 1}, {"router-id": b}],
            "interface-address": {"interface-address": address},
        }  # fmt: skip

    def update(announced: list[Any], attribute: dict[str, Any]) -> dict[str, Any]:
        announce = {"bgp-ls bgp-ls": {"192.0.2.1": announced}}
        message = {"update": {"attribute": {"bgp-ls": attribute}, "announce": announce}}
        return {"exabgp": "5", "type": "update", "neighbor": {"message": message}}

    node = {"ls-nlri-type": "bgpls-node", "node-descriptors": {"router-id": "00000001"}}
    lines = [
        update([link("00000001", "00000002", "10.0.0.1")], {"igp-metric": 10, "maximum-link-bandwidth": 1.25e9}),
        update([link("00000002", "00000001", "10.0.0.2")], {"igp-metric": 20, "maximum-link-bandwidth": 1.25e9}),
        update([link("00000001", "00000002", "10.0.0.9")], {"igp-metric": 99, "maximum-link-bandwidth": 1.25e9}),
        {"neighbor": {"message": {"update": {"withdraw": {
            "bgp-ls bgp-ls": [link("00000001", "00000002", "10.0.0.9")]}}}}},
        update([node], {"node-name": "rennes"}),
    ]  # fmt: skip
    file = tmp_path / "net.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    topology = load_topology(str(file))
    assert _links(topology) == {("rennes", "00000002"): (10, 10), ("00000002", "rennes"): (10, 20)}
    file.write_text("no json", encoding="utf-8")
    with pytest.raises(InputError, match="line 1"):
        load_topology(str(file))


def test_a_table_of_cables_with_units_members_and_other_names(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text(
        "A;Z;Speed;delay;metric;members;owner\nfra;ams;2x100G;3.5ms;10;;x\nfra;par;10 Gbit/s;800us;20;3;y\n", "utf-8"
    )
    topology = load_topology(str(file), attributes="source=A,target=Z,capacity=Speed")
    assert _links(topology) == {
        ("fra", "ams"): (200, 10), ("ams", "fra"): (200, 10), ("fra", "par"): (30, 20), ("par", "fra"): (30, 20),
    }  # fmt: skip
    assert topology.latency.tolist() == [3.5, 3.5, 0.8, 0.8]
    assert "Columns that are not used: owner." in topology.notes
    directed = tmp_path / "directed.csv"
    directed.write_text("source,target,capacity\na,b,10\nb,a,20\n", "utf-8")
    assert _links(load_topology(str(directed))) == {("a", "b"): (10, None), ("b", "a"): (20, None)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target,capacity\na,b,ten\n", "line 2: capacity"),
        ("source,capacity\na,1\n", "target"),
        ("source,target,capacity\n", "a row for each link"),
        ("source,target,capacity,metric\na,b,1,0\n", "metric"),
        ("source,target,capacity,delay\na,b,1,3 weeks\n", "a delay"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "links.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_topology(str(file))


@pytest.mark.parametrize("name", ["net.rfc8345.json", "net.csv", "net.json"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    topology = make_topology([(0, 1, 10), (1, 0, 10), (1, 2, 2.5), (2, 1, 2.5), (2, 1, 2.5), (1, 2, 2.5)], latency=3.25)
    topology = Topology(**{**vars(topology), "metric": np.array([1, 2, 3, 4, 5, 6])})
    save_topology(tmp_path / name, topology)
    again = load_topology(str(tmp_path / name))
    assert again.node_names == topology.node_names
    for field in ("link_source", "link_target", "capacity", "latency", "metric"):
        np.testing.assert_allclose(getattr(again, field), getattr(topology, field), rtol=1e-6)


def test_a_table_of_demands_without_times_is_one_matrix(tmp_path: Path) -> None:
    file = tmp_path / "demands.csv"
    file.write_text("source,target,rate\nn0,n1,3\nn1,n2,4\n", encoding="utf-8")
    traffic = load_traffic(str(file), make_topology([(0, 1, 10), (1, 2, 10)], both=True))
    assert traffic.num_matrices == 1
    assert traffic.read([0]).tolist() == [[3, 4]]


def _policies() -> tuple[Topology, SegmentPolicies]:
    topology = make_topology([(0, 1, 10), (1, 3, 10), (0, 2, 10), (2, 3, 10), (1, 2, 10)], both=True)
    return topology, SegmentPolicies(
        {(0, 3): (SegmentList(0.25, (2,)), SegmentList(0.75, ())), (1, 0): (SegmentList(1.0, (2,)),)}
    )


def test_labels_expanded_again_give_the_same_loads(tmp_path: Path) -> None:
    topology, policies = _policies()
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for one in to_json(topology, policies)["sr-policies"]:
        found = one["candidate-paths"][0]["segment-lists"]
        total = sum(part["weight"] for part in found)
        pair = topology.node_index()[one["headend"]], topology.node_index()[one["endpoint"]]
        lists[pair] = tuple(
            SegmentList(part["weight"] / total, tuple(s["label"] - SRGB_BASE for s in part["segments"][:-1]))
            for part in found
        )
    dag, pairs, demand = EcmpDag.of(topology, np.ones(10)), np.array([[0, 3], [1, 0], [2, 1]]), np.array([[4.0, 2, 1]])
    loads = [
        IgpFailures(dag, segment_volumes(pairs, demand, one, 4)).load for one in (policies, SegmentPolicies(lists))
    ]
    np.testing.assert_allclose(loads[0], loads[1], atol=1e-12)
    write_policies(tmp_path / "p.json", topology, policies, {})
    assert read_policies(tmp_path / "p.json", topology).lists == policies.lists


def test_frr_prefers_the_list_with_the_largest_share() -> None:
    topology, policies = _policies()
    text = to_frr(topology, policies, 0)
    labels = re.findall(r"index \d+ mpls label (\d+)", text)
    assert [int(label) - SRGB_BASE for label in labels] == [3, 2, 3]
    assert text.index("preference 99") < text.index("preference 98")
    assert weights((SegmentList(1 / 3, ()), SegmentList(2 / 3, (1,)))) == [333, 667]


def test_lists_deeper_than_routers_can_push_and_faulty_files_are_refused(tmp_path: Path) -> None:
    topology, policies = _policies()
    check_depth(policies, 2, "p")
    with pytest.raises(InputError, match="MSD"):
        check_depth(policies, 1, "p")
    document = {
        "format": 1,
        "policies": [{"source": "n0", "target": "n3", "lists": [{"share": 0.5, "segments": ["n3"]}]}],
    }
    for change, message in (
        ({}, "shares that sum to 1"),
        ({"source": "n9"}, "a node of"),
        ({"lists": [{"share": 1, "segments": ["n2"]}]}, "ends at n3"),
        ({"lists": []}, "lists"),
    ):
        with pytest.raises(InputError, match=message):
            read_policies(
                Path(_write(tmp_path / "p.json", {"format": 1, "policies": [{**policy, **change}]})), topology
            )
