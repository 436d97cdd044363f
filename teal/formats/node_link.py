"""networkx node-link JSON.

Nodes have an ``id`` (any scalar, converted to a string) and perhaps ``pos`` ([longitude, latitude]) or ``lon`` and
``lat``; a node without a valid position has none.  Links (key ``links`` or ``edges``) have ``source``, ``target``,
``capacity`` and perhaps ``latency`` in ms, an IGP ``metric``, a ``te_metric``, ``affinity`` (a name or a list of
names), and ``"failed": true`` if they are out of service.
Capacities are in Gbit/s unless the ``graph`` object has a ``capacity_unit``.  Without ``"directed": true`` each link
stands for two, one in each direction.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.records import Attributes, LinkRecord, affinities_of, number, topology_from_records
from teal.formats.units import gbps_per_unit
from teal.network import Topology

_OWN = ("source", "target", "key", "metric", "te_metric", "affinity")  # attributes of a link that are read
_MAX_COORDINATE = 1e6  # of any coordinate; other data sets have some that are no degrees


def read_node_link(
    path: Path, default_capacity: float | None = None, attributes: Attributes | None = None
) -> Topology:  # fmt: skip
    """Read a topology from a node-link JSON file.

    Args:
        path: path of the file.
        default_capacity: Gbit/s (not in the file's ``capacity_unit``) of links without capacity; None refuses them.
        attributes: names of the attributes of links; None for the usual ones.

    Raises:
        InputError: not JSON, not node-link, or what :func:`topology_from_records` refuses.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", "a JSON file", f"invalid JSON: {error}") from None
    return topology_from_node_link(data, path.stem, str(path), default_capacity, attributes)


def topology_from_node_link(
    data: Any, name: str, where: str, default_capacity: float | None = None, attributes: Attributes | None = None
) -> Topology:  # fmt: skip
    """Build a topology from parsed node-link JSON.

    Args:
        data: the parsed JSON.
        name: name of the topology.
        where: file or other origin, for messages.
        default_capacity, attributes: see :func:`read_node_link`.

    Raises:
        InputError: not node-link, or what :func:`topology_from_records` refuses.
    """
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise InputError(where, "nodes", "a list of nodes (networkx node-link data)", "none or no list")
    links = data.get("links", data.get("edges"))
    if not isinstance(links, list):
        raise InputError(where, "links", "a list of links (networkx node-link data)", "none or no list")
    graph = data.get("graph") if isinstance(data.get("graph"), dict) else {}
    names = attributes or Attributes()
    gbps_per_file_unit = gbps_per_unit(names.capacity_unit or str((graph or {}).get("capacity_unit", "Gbit/s")), where)
    nodes: dict[str, tuple[float, float] | None] = {}
    for i, node in enumerate(data["nodes"]):
        if not isinstance(node, dict) or "id" not in node:
            raise InputError(where, f"nodes[{i}]: id", "a node id", "none")
        if str(node["id"]) in nodes:
            raise InputError(where, f"nodes[{i}]: id", "distinct ids", f"{node['id']!r} twice")
        nodes[str(node["id"])] = _position(node, where, f"nodes[{i}]")
    records = []
    for i, link in enumerate(links):
        field = f"links[{i}]"
        if not isinstance(link, dict) or "source" not in link or "target" not in link:
            raise InputError(where, field, "a link with source and target", repr(link)[:80])
        capacity = link.get(names.capacity)
        records.append(
            LinkRecord(
                str(link["source"]),
                str(link["target"]),
                None
                if capacity is None
                else number(capacity, where, f"{field}: {names.capacity}") * gbps_per_file_unit,
                number(link[names.latency], where, f"{field}: {names.latency}") if names.latency in link else None,
                f"{field} ({link['source']}->{link['target']})",
                tuple(str(key) for key in link if key not in (*_OWN, names.latency)),
                number(link["metric"], where, f"{field}: metric") if "metric" in link else None,
                link.get("failed") is True,
                te_metric=number(link["te_metric"], where, f"{field}: te_metric") if "te_metric" in link else None,
                affinities=affinities_of(link.get("affinity"), where, f"{field}: affinity"),
            )
        )
    return topology_from_records(
        name, where, nodes, records, directed=bool(data.get("directed")), default_capacity=default_capacity
    )


def _position(node: dict[str, Any], where: str, field: str) -> tuple[float, float] | None:
    if isinstance(node.get("pos"), list) and len(node["pos"]) == 2:
        x, y = (number(value, where, field) for value in node["pos"])
    elif "lon" in node and "lat" in node:
        x, y = number(node["lon"], where, field), number(node["lat"], where, field)
    else:
        return None
    return (x, y) if abs(x) <= _MAX_COORDINATE and abs(y) <= _MAX_COORDINATE else None  # NaN is not either


def topology_to_node_link(topology: Topology) -> dict[str, Any]:
    """Node-link data that :func:`topology_from_node_link` reads back, except for the name.

    Capacities in Gbit/s, latencies in ms; nodes without coordinates have no ``pos``.  ``multigraph`` lets networkx keep
    parallel links.
    """
    names = topology.node_names
    nodes: list[dict[str, Any]] = []
    for name, (x, y) in zip(names, topology.coordinates.tolist(), strict=True):
        has_position = math.isfinite(x) and math.isfinite(y)
        nodes.append({"id": name, "pos": [x, y]} if has_position else {"id": name})
    ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    capacity_and_latency = zip(topology.capacity.tolist(), topology.latency.tolist(), strict=True)
    links: list[dict[str, Any]] = [
        {"source": names[s], "target": names[t], "capacity": capacity, "latency": latency}
        | ({} if capacity else {"failed": True})
        for (s, t), (capacity, latency) in zip(ends, capacity_and_latency, strict=True)
    ]
    links = [{**link, **topology.igp_attributes(number)} for number, link in enumerate(links)]
    return {"directed": True, "multigraph": True, "nodes": nodes, "links": links}
