"""Network topologies as YANG data in JSON: RFC 8345, metrics of RFC 8346, bandwidth and delay of
RFC 8795.

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
from teal.formats.parts import first_number, object_of, objects_of, text_of
from teal.formats.records import LinkRecord, is_down, topology_from_records
from teal.network import Topology

ROOT = "ietf-network:networks"
_ONE = "ietf-network:network"
_L3, _TE = "ietf-l3-unicast-topology", "ietf-te-topology"
_BYTES_PER_GBIT = 1e9 / 8
_US_PER_MS = 1000


def is_rfc8345(document: Any) -> bool:
    """Whether a JSON document has networks of RFC 8345, all of them or one (RESTCONF of
    ``.../network=ID``).
    """
    return isinstance(document, dict) and (ROOT in document or _ONE in document)


def read_rfc8345(
    document: dict[str, Any], path: Path, default_capacity: float | None, network_id: str = ""
) -> Topology:
    """Read the network that has links, or the one of an ID.

    Raises:
        InputError: no such network, several of which none is chosen, a field that the model lacks,
            or what :func:`topology_from_records` refuses.
    """
    where = str(path)
    network = _network(document, where, network_id)
    nodes: dict[str, tuple[float, float] | None] = {}
    for number, one in enumerate(objects_of(network.get("node"), where, "node")):
        nodes[text_of(one.get("node-id"), where, f"node[{number}]: node-id")] = None
    links = objects_of(_get(network, "link", "ietf-network-topology"), where, "link")
    records = [_record(link, where, f"link[{number}]") for number, link in enumerate(links)]
    down = [record.field for record in records if record.has_failed]
    notes = (f"Links whose status is down: {listed(down)}.",) if down else ()
    return topology_from_records(
        str(network.get("network-id", path.stem)),
        where,
        nodes,
        records,
        directed=True,
        default_capacity=default_capacity,
        notes=notes,
    )


def _network(document: dict[str, Any], where: str, network_id: str) -> dict[str, Any]:
    """The network that is read."""
    if ROOT in document:
        networks = objects_of(
            object_of(document[ROOT], where, ROOT).get("network"), where, "network"
        )
    else:
        networks = objects_of(document[_ONE], where, _ONE)
    names = [str(one.get("network-id", "")) for one in networks]
    if network_id:
        chosen = [one for one, name in zip(networks, names, strict=True) if name == network_id]
        if len(chosen) != 1:
            raise InputError(where, f"#{network_id}", f"one of: {', '.join(names)}", "none of them")
        return chosen[0]
    with_links = [one for one in networks if _get(one, "link", "ietf-network-topology")]
    if not with_links:
        raise InputError(where, "network", "a network with links", "none")
    if len(with_links) > 1:
        names = [str(one.get("network-id", "")) for one in with_links]
        raise InputError(where, "network", "one network with links, or FILE#ID", ", ".join(names))
    return with_links[0]


def _record(link: dict[str, Any], where: str, field: str) -> LinkRecord:
    field = f"{field} ({link.get('link-id', '')})"
    source = object_of(link.get("source"), where, f"{field}: source").get("source-node")
    target = object_of(link.get("destination"), where, f"{field}: destination").get("dest-node")
    l3 = object_of(_get(link, "l3-link-attributes", _L3), where, f"{field}: l3-link-attributes")
    te = object_of(_get(link, "te", _TE), where, f"{field}: te")
    attributes = object_of(te.get("te-link-attributes"), where, f"{field}: te-link-attributes")
    bandwidth = object_of(
        attributes.get("max-link-bandwidth"), where, f"{field}: max-link-bandwidth"
    )
    generic = object_of(bandwidth.get("te-bandwidth"), where, f"{field}: te-bandwidth").get(
        "generic"
    )
    delay_us = first_number(attributes.get("te-delay-metric"), where, f"{field}: te-delay-metric")
    statuses = (te.get("oper-status"), te.get("admin-status"), attributes.get("admin-status"))
    return LinkRecord(
        text_of(source, where, f"{field}: source-node"),
        text_of(target, where, f"{field}: dest-node"),
        None if generic is None else _bytes(generic, where, field) / _BYTES_PER_GBIT,
        None if delay_us is None else max(delay_us, 1) / _US_PER_MS,
        field,
        metric=first_number(l3.get("metric1"), where, f"{field}: metric1"),
        has_failed=any(is_down(status) for status in statuses),
        te_metric=first_number(
            attributes.get("te-default-metric"), where, f"{field}: te-default-metric"
        ),
    )


def _get(part: dict[str, Any], name: str, module: str) -> Any:
    """A member with or without the name of its module, which JSON may leave out where it is that of
    the parent.
    """
    return part.get(f"{module}:{name}", part.get(name))


def _bytes(text: object, where: str, field: str) -> float:
    try:
        return float.fromhex(str(text)) if "x" in str(text).lower() else float(str(text))
    except (ValueError, OverflowError):
        raise InputError(
            where, f"{field}: generic", "bytes a second such as 0x1p+30", repr(text)
        ) from None


def to_rfc8345(topology: Topology) -> dict[str, Any]:
    """The document of a network; :func:`read_rfc8345` reads it back."""
    names, links = topology.node_names, []
    for e, name in enumerate(topology.link_names()):
        attributes: dict[str, Any] = {
            "max-link-bandwidth": {
                "te-bandwidth": {"generic": float(topology.capacity[e] * _BYTES_PER_GBIT).hex()}
            },
            "te-delay-metric": max(1, round(float(topology.latency[e]) * _US_PER_MS)),
        }
        if topology.te_metric is not None and topology.te_metric[e]:
            attributes["te-default-metric"] = int(topology.te_metric[e])
        te: dict[str, Any] = {"te-link-attributes": attributes}
        if topology.capacity[e] <= 0:
            te["oper-status"] = "down"
        link: dict[str, Any] = {
            "link-id": name,
            "source": {"source-node": names[topology.link_source[e]]},
            "destination": {"dest-node": names[topology.link_target[e]]},
            f"{_TE}:te": te,
        }
        if topology.metric is not None:
            link[f"{_L3}:l3-link-attributes"] = {"metric1": int(np.asarray(topology.metric)[e])}
        links.append(link)
    return {
        ROOT: {
            "network": [
                {
                    "network-id": topology.name,
                    "network-types": {f"{_L3}:l3-unicast-topology": {}, f"{_TE}:te-topology": {}},
                    "node": [{"node-id": name} for name in names],
                    "ietf-network-topology:link": links,
                }
            ]
        }
    }
