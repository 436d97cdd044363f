"""Reader and writer of YANG topologies in JSON: RFC 8345, metrics of RFC 8346, bandwidth and delay
of RFC 8795.

    {"ietf-network:networks": {"network": [{"network-id": "...", "node": [{"node-id": "a"}],
        "ietf-network-topology:link": [{"link-id": "a->b", "source": {"source-node": "a"},
            "destination": {"dest-node": "b"},
            "ietf-l3-unicast-topology:l3-link-attributes": {"metric1": "10"},
            "ietf-te-topology:te": {"te-link-attributes": {
                "max-link-bandwidth": {"te-bandwidth": {"generic": "0x1p+30"}},
                "te-delay-metric": 3500}}}]}]}}

Links are directed; the generic bandwidth is bytes a second as a hexadecimal number, te-delay-metric
microseconds, te-default-metric the TE metric.  A link whose ``oper-status`` or ``admin-status`` is
``down`` is out of service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError, listed
from teal.formats.parts import object_of, objects_of, optional_number, text_of
from teal.formats.records import LinkRecord, is_down, topology_from_records
from teal.network import Topology

ROOT = "ietf-network:networks"
_SINGLE_ROOT = "ietf-network:network"
_L3 = "ietf-l3-unicast-topology"
_TE = "ietf-te-topology"
_BYTES_PER_GBIT = 1e9 / 8
_US_PER_MS = 1000


def is_rfc8345(document: Any) -> bool:
    """Return whether a JSON document has networks of RFC 8345: all networks of a server, or one of
    them, as RESTCONF returns it for ``.../network=ID``.
    """
    return isinstance(document, dict) and (ROOT in document or _SINGLE_ROOT in document)


def read_rfc8345(
    document: dict[str, Any], path: Path, default_capacity: float | None, network_id: str = ""
) -> Topology:
    """Read the only network with links, or the network with an ID.

    Args:
        document: parsed JSON.
        path: path of the file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        network_id: ID of the network; "" for the only one with links.

    Raises:
        InputError: no such network, several without a choice, a field that the model lacks, or an
            error of :func:`topology_from_records`.
    """
    where = str(path)
    network = _select_network(document, where, network_id)
    nodes: dict[str, tuple[float, float] | None] = {}
    for index, node in enumerate(objects_of(network.get("node"), where, "node")):
        nodes[text_of(node.get("node-id"), where, f"node[{index}]: node-id")] = None
    links = objects_of(_yang_member(network, "link", "ietf-network-topology"), where, "link")
    records = [_record(link, where, f"link[{index}]") for index, link in enumerate(links)]
    down_links = [record.field for record in records if record.has_failed]
    notes = (f"Links whose status is down: {listed(down_links)}.",) if down_links else ()
    return topology_from_records(
        str(network.get("network-id", path.stem)),
        where,
        nodes,
        records,
        directed=True,
        default_capacity=default_capacity,
        notes=notes,
    )


def _select_network(document: dict[str, Any], where: str, network_id: str) -> dict[str, Any]:
    """Return the JSON object of one network of a document.

    Args:
        document: parsed JSON.
        where: name of the file, for messages.
        network_id: ID of the network; "" for the only one with links.

    Raises:
        InputError: no such network, or several networks with links.
    """
    # All networks of the document.
    if ROOT in document:
        networks = objects_of(
            object_of(document[ROOT], where, ROOT).get("network"), where, "network"
        )
    else:
        networks = objects_of(document[_SINGLE_ROOT], where, _SINGLE_ROOT)
    # The network with this ID.
    network_ids = [str(network.get("network-id", "")) for network in networks]
    if network_id:
        selected = [
            network
            for network, name in zip(networks, network_ids, strict=True)
            if name == network_id
        ]
        if len(selected) != 1:
            raise InputError.invalid(
                where,
                f"#{network_id}",
                f"{len(selected) or 'no'} networks have this ID",
                f"use one of: {', '.join(network_ids)}",
            )
        return selected[0]
    # The only network with links.
    networks_with_links = [
        network for network in networks if _yang_member(network, "link", "ietf-network-topology")
    ]
    if not networks_with_links:
        raise InputError.invalid(
            where,
            "network",
            "no network has links",
            "add the list ietf-network-topology:link to a network",
        )
    if len(networks_with_links) > 1:
        network_ids = [str(network.get("network-id", "")) for network in networks_with_links]
        raise InputError.invalid(
            where,
            "network",
            f"several networks have links: {', '.join(network_ids)}",
            "name one of them as FILE#ID",
        )
    return networks_with_links[0]


def _record(link: dict[str, Any], where: str, field: str) -> LinkRecord:
    """Build the record of a directed link, with units converted.

    Args:
        link: JSON object of the link.
        where: name of the file, for messages.
        field: location in the file, for messages.

    Raises:
        InputError: a member of the wrong type.
    """
    field = f"{field} ({link.get('link-id', '')})"
    # Members of the link, which may be absent.
    source = object_of(link.get("source"), where, f"{field}: source").get("source-node")
    target = object_of(link.get("destination"), where, f"{field}: destination").get("dest-node")
    l3_attributes = object_of(
        _yang_member(link, "l3-link-attributes", _L3), where, f"{field}: l3-link-attributes"
    )
    te_container = object_of(_yang_member(link, "te", _TE), where, f"{field}: te")
    te_attributes = object_of(
        te_container.get("te-link-attributes"), where, f"{field}: te-link-attributes"
    )
    bandwidth = object_of(
        te_attributes.get("max-link-bandwidth"), where, f"{field}: max-link-bandwidth"
    )
    generic_bandwidth = object_of(
        bandwidth.get("te-bandwidth"), where, f"{field}: te-bandwidth"
    ).get("generic")
    delay_us = optional_number(
        te_attributes.get("te-delay-metric"), where, f"{field}: te-delay-metric"
    )
    # The link, in the project's units.
    statuses = (
        te_container.get("oper-status"),
        te_container.get("admin-status"),
        te_attributes.get("admin-status"),
    )
    return LinkRecord(
        text_of(source, where, f"{field}: source-node"),
        text_of(target, where, f"{field}: dest-node"),
        None
        if generic_bandwidth is None
        else _parse_bandwidth(generic_bandwidth, where, field) / _BYTES_PER_GBIT,
        None if delay_us is None else max(delay_us, 1) / _US_PER_MS,
        field,
        metric=optional_number(l3_attributes.get("metric1"), where, f"{field}: metric1"),
        has_failed=any(is_down(status) for status in statuses),
        te_metric=optional_number(
            te_attributes.get("te-default-metric"), where, f"{field}: te-default-metric"
        ),
    )


def _yang_member(part: dict[str, Any], name: str, module: str) -> Any:
    """Return a member with or without the prefix of its YANG module, which may be omitted if the
    parent's module is the same (RFC 7951).
    """
    return part.get(f"{module}:{name}", part.get(name))


def _parse_bandwidth(text: object, where: str, field: str) -> float:
    """Parse a generic bandwidth, bytes per second, in hexadecimal or decimal notation."""
    try:
        return float.fromhex(str(text)) if "x" in str(text).lower() else float(str(text))
    except (ValueError, OverflowError):
        raise InputError(
            where, f"{field}: generic", "bytes per second such as 0x1p+30", repr(text)
        ) from None


def to_rfc8345(topology: Topology) -> dict[str, Any]:
    """Return a network as an RFC 8345 document, a dict for JSON, with links, metrics, bandwidths
    and delays.
    """
    return {
        ROOT: {
            "network": [
                {
                    "network-id": topology.name,
                    "network-types": {f"{_L3}:l3-unicast-topology": {}, f"{_TE}:te-topology": {}},
                    "node": [{"node-id": name} for name in topology.node_names],
                    "ietf-network-topology:link": [
                        _link_object(topology, link, name)
                        for link, name in enumerate(topology.link_names())
                    ],
                }
            ]
        }
    }


def _link_object(topology: Topology, link: int, name: str) -> dict[str, Any]:
    """Return the JSON object of a directed link: ends, bandwidth, delay, metrics and status.

    Args:
        topology: the network.
        link: index of the link.
        name: name of the link.
    """
    # TE attributes: bandwidth in bytes a second, delay in microseconds, metric and status.
    names = topology.node_names
    te_attributes: dict[str, Any] = {
        "max-link-bandwidth": {
            "te-bandwidth": {"generic": float(topology.capacity[link] * _BYTES_PER_GBIT).hex()}
        },
        "te-delay-metric": max(1, round(float(topology.latency[link]) * _US_PER_MS)),
    }
    if topology.te_metric is not None and topology.te_metric[link]:
        te_attributes["te-default-metric"] = int(topology.te_metric[link])
    te_container: dict[str, Any] = {"te-link-attributes": te_attributes}
    if topology.capacity[link] <= 0:
        te_container["oper-status"] = "down"
    # The link, with its IGP metric.
    link_object: dict[str, Any] = {
        "link-id": name,
        "source": {"source-node": names[topology.link_source[link]]},
        "destination": {"dest-node": names[topology.link_target[link]]},
        f"{_TE}:te": te_container,
    }
    if topology.metric is not None:
        link_object[f"{_L3}:l3-link-attributes"] = {
            "metric1": int(np.asarray(topology.metric)[link])
        }
    return link_object
