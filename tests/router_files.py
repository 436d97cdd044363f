"""A network as routers would say it: databases of IS-IS and OSPF of FRR, and updates of BGP-LS of
ExaBGP.

Written from ISO 10589, RFC 5305, RFC 2328 and RFC 9552, with nothing of the readers.  Each link has
an interface with an address of its own; of a link that leads in one direction its own end alone
speaks.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from teal.network import Topology


def system_id(node: int) -> str:
    """System ID of a node."""
    return f"0000.0000.{node + 1:04d}"


def _address(link: int) -> str:
    return f"10.{link // 250}.{link % 250}.1"


def _links_of(topology: Topology, node: int) -> list[int]:
    return [int(link) for link in np.flatnonzero(topology.link_source == node)]


def isis_of(topology: Topology, levels: tuple[int, ...], kinds: tuple[str, ...]) -> dict[str, Any]:
    """``show isis database detail json``: each adjacency at all of these levels, in each kind of
    reachability.

    Args:
        topology: the network, with metrics.
        levels: 1, 2, or both.
        kinds: extReach (wide metrics) and oldReach (narrow ones).
    """
    assert topology.metric is not None
    packets = []
    for node in range(topology.num_nodes):
        is_overloaded = topology.no_transit is not None and bool(topology.no_transit[node])
        reach = [
            {
                "id": f"{system_id(int(topology.link_target[link]))}.00",
                "metric": int(topology.metric[link]),
                "subtlvs": {"local-interface-ip-address": _address(link)},
            }
            for link in _links_of(topology, node)
        ]
        narrow = [
            {name: value for name, value in one.items() if name != "subtlvs"} for one in reach
        ]
        packet: dict[str, Any] = {
            "lsp": {"id": f"{system_id(node)}.00-00"},
            "holdtime": 1100,
            "attPOl": f"0/0/{int(is_overloaded)}",
        }
        for kind in kinds:
            packet[kind] = reach if kind == "extReach" else narrow
        packets.append(packet)
    return {
        "areas": [
            {"area": {"name": "1"}, "levels": [{"id": level, "lsps": packets} for level in levels]}
        ]
    }


def ospf_of(topology: Topology, areas: tuple[str, ...]) -> dict[str, Any]:
    """``show ip ospf database router json``: each link in all of these areas."""
    assert topology.metric is not None
    entries = []
    for node in range(topology.num_nodes):
        links = {
            f"link{place}": {
                "linkType": "another Router (point-to-point)",
                "neighborRouterId": system_id(int(topology.link_target[link])),
                "routerInterfaceAddress": _address(link),
                "tos0Metric": int(topology.metric[link]),
            }
            for place, link in enumerate(_links_of(topology, node))
        }
        entries.append({"lsaAge": 100, "advertisingRouter": system_id(node), "routerLinks": links})
    return {"routerId": system_id(0), "routerLinkStates": {"areas": dict.fromkeys(areas, entries)}}


def bgp_ls_of(topology: Topology, topologies: tuple[int, ...]) -> str:
    """Updates of ExaBGP: each link once for each of these topologies (0 of IPv4, 2 of IPv6), nodes
    with their flags."""
    assert topology.metric is not None
    lines = []
    for node in range(topology.num_nodes):
        is_overloaded = topology.no_transit is not None and bool(topology.no_transit[node])
        flags = {"node-name": system_id(node), "node-flags": {"O": int(is_overloaded), "T": 0}}
        nlri = {
            "ls-nlri-type": "bgpls-node",
            "protocol-id": 2,
            "node-descriptors": {"router-id": f"r{node}"},
        }
        lines.append(_update(flags, nlri))
    for link in range(topology.num_links):
        for number in topologies:
            attribute: dict[str, Any] = {
                "igp-metric": int(topology.metric[link]),
                "maximum-link-bandwidth": float(topology.capacity[link]) * 1e9 / 8,
            }
            nlri = {
                "ls-nlri-type": "bgpls-link",
                "protocol-id": 2,
                "local-node-descriptors": {"router-id": f"r{topology.link_source[link]}"},
                "remote-node-descriptors": {"router-id": f"r{topology.link_target[link]}"},
                "interface-addresses": [_address(link) if number == 0 else f"2001:db8::{link:x}"],
                "multi-topology-ids": [] if number == 0 else [{"multi-topology-ids": [number]}],
            }
            lines.append(_update(attribute, nlri))
    return "\n".join(lines) + "\n"


def _update(attribute: dict[str, Any], nlri: dict[str, Any]) -> str:
    announce = {"bgp-ls bgp-ls": {"192.0.2.1": [nlri]}}
    update = {"attribute": {"bgp-ls": attribute}, "announce": announce}
    return json.dumps({"type": "update", "neighbor": {"message": {"update": update}}})


def with_both_ends(topology: Topology) -> Topology | None:
    """The network without links whose other end says nothing; None where no link is left."""
    ends = set(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True))
    kept = np.array(
        [(b, a) in ends for a, b in zip(topology.link_source, topology.link_target, strict=True)]
    )
    return topology.with_links(kept) if kept.any() else None
