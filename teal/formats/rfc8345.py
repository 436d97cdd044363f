"""Network topologies as YANG data in JSON: RFC 8345, metrics of RFC 8346, bandwidth and delay of RFC 8795.

    {"ietf-network:networks": {"network": [{"network-id": "...", "node": [{"node-id": "a"}],
        "ietf-network-topology:link": [{"link-id": "a->b", "source": {"source-node": "a"},
            "destination": {"dest-node": "b"}, "ietf-l3-unicast-topology:l3-link-attributes": {"metric1": "10"},
            "ietf-te-topology:te": {"te-link-attributes": {
                "max-link-bandwidth": {"te-bandwidth": {"generic": "0x1p+30"}}, "te-delay-metric": 3500}}}]}]}}

Links are directed; the generic bandwidth is bytes a second as a hexadecimal number, te-delay-metric microseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.formats.records import LinkRecord, number, topology_from_records
from teal.network import Topology

ROOT = "ietf-network:networks"
_L3, _TE = "ietf-l3-unicast-topology", "ietf-te-topology"
_BYTES_PER_GBIT = 1e9 / 8
_US_PER_MS = 1000


def read_rfc8345(document: dict[str, Any], path: Path, default_capacity: float | None) -> Topology:
    """Read the first network that has links.

    Raises:
        InputError: no such network, a field that the model lacks, or what :func:`topology_from_records` refuses.
    """
    where = str(path)
    networks = document[ROOT].get("network", []) if isinstance(document[ROOT], dict) else []
    with_links = [one for one in networks if isinstance(one, dict) and _get(one, "link", "ietf-network-topology")]
    if not with_links:
        raise InputError(where, "network", "a network with links", "none")
    network, notes = with_links[0], tuple[str, ...]()
    if len(networks) > 1:
        notes = (f"{len(networks)} networks in the file: the first with links is read, {network.get('network-id')}.",)
    nodes: dict[str, tuple[float, float] | None] = {str(one["node-id"]): None for one in network.get("node", [])}
    records = []
    for position, link in enumerate(_get(network, "link", "ietf-network-topology")):
        field = f"link[{position}] ({link.get('link-id', '')})"
        source, target = link.get("source", {}).get("source-node"), link.get("destination", {}).get("dest-node")
        if source is None or target is None:
            raise InputError(where, field, "source-node and dest-node", repr(link)[:80])
        metric = (_get(link, "l3-link-attributes", _L3) or {}).get("metric1")
        te = (_get(link, "te", _TE) or {}).get("te-link-attributes", {})
        bandwidth = te.get("max-link-bandwidth", {}).get("te-bandwidth", {}).get("generic")
        delay = te.get("te-delay-metric")
        records.append(LinkRecord(
            str(source), str(target), None if bandwidth is None else _bytes(bandwidth, where, field) / _BYTES_PER_GBIT,
            None if delay is None else max(number(delay, where, field), 1) / _US_PER_MS, field,
            metric=None if metric is None else number(metric, where, f"{field}: metric1"),
        ))  # fmt: skip
    return topology_from_records(
        str(network.get("network-id", path.stem)), where, nodes, records, directed=True,
        default_capacity=default_capacity, notes=notes,
    )  # fmt: skip


def _get(part: dict[str, Any], name: str, module: str) -> Any:
    """A member with or without the name of its module, which JSON may leave out where it is that of the parent."""
    return part.get(f"{module}:{name}", part.get(name))


def _bytes(text: object, where: str, field: str) -> float:
    try:
        return float.fromhex(str(text)) if "x" in str(text).lower() else float(str(text))
    except ValueError:
        raise InputError(where, f"{field}: generic", "bytes a second such as 0x1p+30", repr(text)) from None


def to_rfc8345(topology: Topology) -> dict[str, Any]:
    """The document of a network; :func:`read_rfc8345` reads it back."""
    names, links = topology.node_names, []
    for e, name in enumerate(topology.link_names()):
        te = {
            "max-link-bandwidth": {"te-bandwidth": {"generic": float(topology.capacity[e] * _BYTES_PER_GBIT).hex()}},
            "te-delay-metric": max(1, round(float(topology.latency[e]) * _US_PER_MS)),
        }
        link: dict[str, Any] = {
            "link-id": name,
            "source": {"source-node": names[topology.link_source[e]]},
            "destination": {"dest-node": names[topology.link_target[e]]},
            f"{_TE}:te": {"te-link-attributes": te},
        }
        if topology.metric is not None:
            link[f"{_L3}:l3-link-attributes"] = {"metric1": int(np.asarray(topology.metric)[e])}
        links.append(link)
    return {ROOT: {"network": [{
        "network-id": topology.name,
        "network-types": {f"{_L3}:l3-unicast-topology": {}, f"{_TE}:te-topology": {}},
        "node": [{"node-id": name} for name in names],
        "ietf-network-topology:link": links,
    }]}}  # fmt: skip
