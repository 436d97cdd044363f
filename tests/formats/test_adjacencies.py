"""Databases of routers: FRR's of IS-IS and OSPF, and BGP-LS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from teal.errors import InputError
from teal.formats import load_topology
from tests.igp_reference import links_of


def _write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def _isis(named: bool) -> dict[str, Any]:
    """Three routers: 1 - 2 point to point, 1 and 3 on a broadcast network whose designated router
    is 3."""
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
        {
            "lsp": {"id": f"{name}-00"},
            "extReach": [{"mtId": "Extended", "id": i, "metric": m} for i, m in targets],
        }
        for name, targets in reach.items()
    ]
    return {"areas": [{"area": {"name": "1"}, "levels": [{"id": 2, "lsps": packets}]}]}


@pytest.mark.parametrize("named", [True, False])
def test_an_isis_database_of_frr(tmp_path: Path, named: bool) -> None:
    file = _write(tmp_path / "isis.json", _isis(named))
    with pytest.raises(InputError, match="capacity"):
        load_topology(file)
    topology = load_topology(file, default_capacity=40)
    one, two, three = (
        ("rennes", "lyon", "paris") if named else (f"0000.0000.000{i}" for i in (1, 2, 3))
    )
    assert links_of(topology) == {
        (one, two): (40, 10),
        (two, one): (40, 15),
        (one, three): (40, 20),
        (three, one): (40, 25),
    }
    assert any("4 of 4 adjacencies have no delay" in note for note in topology.notes)


def test_an_ospf_database_of_frr_drops_what_one_end_alone_says(tmp_path: Path) -> None:
    def p2p(router: str, metric: int) -> dict[str, Any]:
        return {
            "linkType": "another Router (point-to-point)",
            "neighborRouterId": router,
            "tos0Metric": metric,
        }

    def on_lan(metric: int) -> dict[str, Any]:
        return {
            "linkType": "a Transit Network",
            "designatedRouterAddress": "10.0.0.1",
            "tos0Metric": metric,
        }

    stub = {"linkType": "Stub Network", "networkAddress": "10.1.0.0", "tos0Metric": 5}
    routers = {
        "1.1.1.1": [p2p("2.2.2.2", 10), on_lan(7), stub],
        "2.2.2.2": [p2p("1.1.1.1", 30), p2p("3.3.3.3", 1)],
        "3.3.3.3": [on_lan(8)],
    }
    area = [
        {
            "advertisingRouter": router,
            "routerLinks": {f"link{i}": one for i, one in enumerate(links)},
        }
        for router, links in routers.items()
    ]
    for document in (
        {"routerId": "1.1.1.1", "routerLinkStates": {"areas": {"0.0.0.0": area}}},
        {"routerId": "1.1.1.1", "areas": {"0.0.0.0": {"routerLinkStates": area}}},
    ):
        topology = load_topology(_write(tmp_path / "ospf.json", document), default_capacity=10)
        assert links_of(topology) == {
            ("1.1.1.1", "2.2.2.2"): (10, 10),
            ("2.2.2.2", "1.1.1.1"): (10, 30),
            ("1.1.1.1", "3.3.3.3"): (10, 7),
            ("3.3.3.3", "1.1.1.1"): (10, 8),
        }
        assert any("2.2.2.2 -> 3.3.3.3" in note for note in topology.notes)


def test_bgp_ls_of_exabgp_takes_bandwidth_metric_names_and_withdrawals(tmp_path: Path) -> None:
    def link(a: str, b: str, address: str) -> dict[str, Any]:
        return {
            "ls-nlri-type": "bgpls-link",
            "l3-routing-topology": 0,
            "protocol-id": 2,
            "local-node-descriptors": {"autonomous-system": 1, "router-id": a},
            "remote-node-descriptors": [{"autonomous-system": 1}, {"router-id": b}],
            "interface-address": {"interface-address": address},
        }

    def update(announced: list[Any], attribute: dict[str, Any]) -> dict[str, Any]:
        announce = {"bgp-ls bgp-ls": {"192.0.2.1": announced}}
        message = {"update": {"attribute": {"bgp-ls": attribute}, "announce": announce}}
        return {"exabgp": "5", "type": "update", "neighbor": {"message": message}}

    node = {"ls-nlri-type": "bgpls-node", "node-descriptors": {"router-id": "00000001"}}
    lines = [
        update(
            [link("00000001", "00000002", "10.0.0.1")],
            {"igp-metric": 10, "maximum-link-bandwidth": 1.25e9},
        ),
        update(
            [link("00000002", "00000001", "10.0.0.2")],
            {"igp-metric": 20, "maximum-link-bandwidth": 1.25e9},
        ),
        update(
            [link("00000001", "00000002", "10.0.0.9")],
            {"igp-metric": 99, "maximum-link-bandwidth": 1.25e9},
        ),
        {
            "neighbor": {
                "message": {
                    "update": {
                        "withdraw": {"bgp-ls bgp-ls": [link("00000001", "00000002", "10.0.0.9")]}
                    }
                }
            }
        },
        update([node], {"node-name": "rennes"}),
    ]
    file = tmp_path / "net.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    topology = load_topology(str(file))
    assert links_of(topology) == {
        ("rennes", "00000002"): (10, 10),
        ("00000002", "rennes"): (10, 20),
    }
    file.write_text("no json", encoding="utf-8")
    with pytest.raises(InputError, match="line 1"):
        load_topology(str(file))


def test_bgp_ls_of_gobgp_as_a_table_and_as_lines(tmp_path: Path) -> None:
    def link(a: str, b: str, address: str, metric: int, **more: Any) -> dict[str, Any]:
        nlri = {
            "type": 2,
            "local_node_desc": {"asn": 1, "igp_router_id": a},
            "remote_node_desc": {"igp_router_id": b},
            "link_desc": {"InterfaceAddrIPv4": address},
        }
        attribute = {
            "type": 29,
            "flags": 128,
            "node": {},
            "link": {"igp_metric": metric, "bandwidth": 1.25e9},
        }
        return {"nlri": nlri, "attrs": [{"type": 1, "value": 0}, attribute], "best": True, **more}

    node = {
        "nlri": {"type": 1, "local_node_desc": {"igp_router_id": "0001"}},
        "attrs": [{"type": 29, "node": {"name": "rennes"}}],
    }
    paths = [link("0001", "0002", "10.0.0.1", 10), link("0002", "0001", "10.0.0.2", 20), node]
    expected = {("rennes", "0002"): (10, 10), ("0002", "rennes"): (10, 20)}
    file = tmp_path / "net.jsonl"
    file.write_text(
        json.dumps({f"NLRI {number}": [path] for number, path in enumerate(paths)}),
        encoding="utf-8",
    )
    assert links_of(load_topology(str(file))) == expected
    gone = [
        link("0001", "0002", "10.0.0.9", 5),
        link("0001", "0002", "10.0.0.9", 5, withdrawal=True),
    ]
    file.write_text("\n".join(json.dumps([path]) for path in [*paths, *gone]), encoding="utf-8")
    assert links_of(load_topology(str(file))) == expected
    file.write_text(json.dumps(link("", "0002", "10.0.0.1", 1)), encoding="utf-8")
    with pytest.raises(InputError, match="router ID"):
        load_topology(str(file))


def test_bgp_ls_says_te_metrics_administrative_groups_and_delays(tmp_path: Path) -> None:
    ends = {
        f"{side}-node-descriptors": {"router-id": name}
        for side, name in (("local", "a"), ("remote", "b"))
    }
    attribute = {
        "igp-metric": 3,
        "te-metric": 70,
        "admin-group-mask": [0b100001],
        "maximum-link-bandwidth": 1.25e9,
    }
    exabgp = {
        "update": {
            "attribute": {"bgp-ls": attribute},
            "announce": {"bgp-ls": {"::": [{"ls-nlri-type": "bgpls-link", **ends}]}},
        }
    }
    link = {
        "igp_metric": 4,
        "default_te_metric": 80,
        "admin_group": 2,
        "bandwidth": 1e9,
        "UnidirectionalLinkDelay": 2500,
    }
    gobgp = {
        "nlri": {
            "type": 2,
            "local_node_desc": {"igp_router_id": "b"},
            "remote_node_desc": {"igp_router_id": "a"},
        },
        "attrs": [{"type": 29, "link": link}],
    }
    file = tmp_path / "net.jsonl"
    file.write_text(f"{json.dumps(exabgp)}\n{json.dumps(gobgp)}\n", encoding="utf-8")
    topology = load_topology(str(file))
    assert links_of(topology) == {("a", "b"): (10, 3), ("b", "a"): (8, 4)}
    forth, back = (topology.link_names().index(name) for name in ("a->b", "b->a"))
    assert topology.te_metric is not None
    assert (topology.te_metric[forth], topology.te_metric[back]) == (70, 80)
    assert topology.affinities is not None
    assert topology.affinities[forth] == {"bit0", "bit5"}
    assert topology.affinities[back] == {"bit1"}
    assert (topology.latency[forth], topology.latency[back]) == (1.0, 2.5)
    assert any("1 of 2 adjacencies have no delay" in note for note in topology.notes)


def test_the_incomplete_isis_json_of_frr_8_is_refused(tmp_path: Path) -> None:
    level = {
        "id": 2,
        "lsp": {"id": "y.00-00"},
        "ext-reach": {"id": "0000.0000.0001.00", "metric": 7},
        "count": 2,
    }
    document = {"areas": [{"area": {"name": "lab"}, "levels": [{}, level]}]}
    with pytest.raises(InputError, match="FRR 9"):
        load_topology(_write(tmp_path / "isis.json", document), default_capacity=10)


def test_an_ospfv3_database_of_frr(tmp_path: Path) -> None:
    def router(
        number: int, *neighbours: tuple[int, int], kind: str = "Point-To-Point"
    ) -> dict[str, Any]:
        links = [
            {"type": kind, "metric": cost, "neighborRouterId": f"10.255.0.{n}"}
            for n, cost in neighbours
        ]
        return {
            "type": "Router",
            "advertisingRouter": f"10.255.0.{number}",
            "lsaDescription": links,
        }

    routers = [router(1, (2, 7), (3, 1)), router(2, (1, 9)), router(3, (1, 2), (2, 4))]
    document: dict[str, Any] = {
        "areaScopedLinkStateDb": [{"areaId": "0", "lsa": [*routers, {"type": "Link"}]}]
    }
    topology = load_topology(_write(tmp_path / "ospf6.json", document), default_capacity=10)
    assert topology.metric is not None
    metric = {topology.link_name(e): int(topology.metric[e]) for e in range(topology.num_links)}
    assert metric == {
        "10.255.0.1->10.255.0.2": 7,
        "10.255.0.2->10.255.0.1": 9,
        "10.255.0.1->10.255.0.3": 1,
        "10.255.0.3->10.255.0.1": 2,
    }, "3 -> 2 is stated by one end only"
    document["areaScopedLinkStateDb"][0]["lsa"] = [router(1, (2, 7), kind="Transit-Network")]
    with pytest.raises(InputError, match="point-to-point"):
        load_topology(_write(tmp_path / "transit.json", document), default_capacity=10)


def test_an_isis_database_with_narrow_metrics_alone(tmp_path: Path) -> None:
    document = json.loads(json.dumps(_isis(named=True)).replace("extReach", "oldReach"))
    topology = load_topology(_write(tmp_path / "isis.json", document), default_capacity=40)
    assert links_of(topology) == {
        ("rennes", "lyon"): (40, 10),
        ("lyon", "rennes"): (40, 15),
        ("rennes", "paris"): (40, 20),
        ("paris", "rennes"): (40, 25),
    }


def test_gobgp_says_a_link_of_two_topologies_twice_and_without_their_numbers(
    tmp_path: Path,
) -> None:
    """A link with IPv6 addresses alone is that with IPv4 addresses; a further one with IPv4
    addresses is a link of its own."""

    def link(a: str, b: str, **addresses: str | None) -> dict[str, Any]:
        return {
            "nlri": {
                "type": 2,
                "local_node_desc": {"igp_router_id": a},
                "remote_node_desc": {"igp_router_id": b},
                "link_desc": {"InterfaceAddrIPv4": None, "InterfaceAddrIPv6": None} | addresses,
            },
            "attrs": [{"type": 29, "link": {"igp_metric": 10, "bandwidth": 1.25e9}}],
        }

    both = [
        link("a", "b", InterfaceAddrIPv4="10.0.0.1"),
        link("b", "a", InterfaceAddrIPv4="10.0.0.2"),
        link("a", "b", InterfaceAddrIPv6="2001:db8::1"),
        link("b", "a", InterfaceAddrIPv6="2001:db8::2"),
    ]
    file = tmp_path / "net.jsonl"
    for paths, expected in (
        (both, ["a->b", "b->a"]),
        (both[::-1], ["a->b", "b->a"]),
        (both[2:], ["a->b", "b->a"]),
        (
            [*both, link("a", "b", InterfaceAddrIPv4="10.0.1.1")],
            ["a->b#1", "a->b#2", "b->a"],
        ),
    ):
        file.write_text("\n".join(json.dumps([path]) for path in paths), encoding="utf-8")
        topology = load_topology(str(file))
        assert sorted(topology.link_names()) == expected
        assert set(topology.capacity.tolist()) == {10.0}
