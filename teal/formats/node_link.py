"""Reader and writer of networkx node-link JSON.

Nodes have an ``id`` (any scalar, converted to a string) and optionally ``pos`` ([longitude,
latitude]) or ``lon`` and ``lat``; invalid positions are ignored.  Links (key ``links`` or
``edges``) have ``source``, ``target``, ``capacity`` and optionally ``latency`` in ms, an IGP
``metric``, a ``te_metric``, a ``cost`` of a Gbit/s, ``affinity`` (a name or a list of names).  A
link with any sign of being down, such as ``"failed": true``, ``"up": false`` or a ``status`` or
``oper_status`` of ``down``, is out of service, the IGP does not use one with ``"overload": true``,
and a node with it carries no transit traffic.  A note names other attributes.  Capacities are in
Gbit/s unless the ``graph`` object has a ``capacity_unit``.  Without ``"directed": true`` each link
stands for both directions.  Entry points: :func:`topology_from_node_link`,
:func:`topology_to_node_link`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from teal.errors import InputError, listed
from teal.formats.records import (
    OVERLOAD_NAMES,
    Attributes,
    LinkRecord,
    affinities_of,
    is_state_name,
    is_true,
    number,
    out_of_service,
    topology_from_records,
    unknown_status,
)
from teal.formats.units import gbps_per_unit
from teal.network import Topology

ATTRIBUTES = (
    "capacity",
    "latency",
    "metric",
    "te_metric",
    "cost",
    "affinity",
    "status",
    "capacity_unit",
)
# Attributes of a link that are read under these names only.
_ENDS = ("source", "target", "key")
# Maximum number of attributes in a note.
_MAX_LISTED = 10
# Maximum absolute value of a coordinate; some data sets have coordinates that are not degrees.
_MAX_COORDINATE = 1e6


def read_node_link(
    path: Path, default_capacity: float | None = None, attributes: Attributes | None = None
) -> Topology:
    """Read a topology from a node-link JSON file.

    Args:
        path: path of the file.
        default_capacity: Gbit/s (not in the file's ``capacity_unit``) of links without capacity;
            None refuses them.
        attributes: names of the link attributes; None for the defaults.

    Raises:
        InputError: not JSON, not node-link, or an error of :func:`topology_from_records`.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError.invalid(str(path), "", f"the file is not valid JSON: {error}") from None
    return topology_from_node_link(data, path.stem, str(path), default_capacity, attributes)


def topology_from_node_link(
    data: Any,
    name: str,
    where: str,
    default_capacity: float | None = None,
    attributes: Attributes | None = None,
) -> Topology:
    """Build a topology from parsed node-link JSON.

    Args:
        data: the parsed JSON.
        name: name of the topology.
        where: name of the file or other origin, for messages.
        default_capacity: Gbit/s (not in the file's ``capacity_unit``) of links without capacity;
            None refuses them.
        attributes: names of the link attributes; None for the defaults.

    Raises:
        InputError: not node-link, or an error of :func:`topology_from_records`.
    """
    # Check the structure.
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise InputError.invalid(
            where,
            "nodes",
            "not networkx node-link data: it has no list of nodes",
            "write networkx.node_link_data(graph)",
        )
    links = data.get("links", data.get("edges"))
    if not isinstance(links, list):
        raise InputError.invalid(
            where,
            "links",
            "not networkx node-link data: it has no list of links",
            "write networkx.node_link_data(graph)",
        )
    # Gbit/s per unit of the capacities.
    graph = data.get("graph") if isinstance(data.get("graph"), dict) else {}
    attribute_names = attributes or Attributes()
    unit_gbps = gbps_per_unit(
        attribute_names.capacity_unit or str((graph or {}).get("capacity_unit", "Gbit/s")), where
    )
    nodes, no_transit = _parse_nodes(data["nodes"], where)
    # One record for each link.
    records = []
    for index, link in enumerate(links):
        if not isinstance(link, dict) or "source" not in link or "target" not in link:
            raise InputError(
                where, f"links[{index}]", "a link with source and target", repr(link)[:80]
            )
        records.append(_record(link, attribute_names, unit_gbps, where, f"links[{index}]"))
    return topology_from_records(
        name,
        where,
        nodes,
        records,
        directed=bool(data.get("directed")),
        default_capacity=default_capacity,
        notes=notes_on_attributes(where, links, attribute_names),
        no_transit=no_transit,
    )


def _parse_nodes(
    entries: list[Any], where: str
) -> tuple[dict[str, tuple[float, float] | None], list[str]]:
    """Parse the nodes of node-link JSON into positions and overload bits.

    Args:
        entries: JSON entries of the nodes.
        where: name of the file, for messages.

    Returns:
        (longitude, latitude) by node name, None where unknown; and the names of overloaded nodes,
        which carry no transit traffic.

    Raises:
        InputError: a node without an id, or two nodes with one id.
    """
    nodes: dict[str, tuple[float, float] | None] = {}
    no_transit: list[str] = []
    for index, node in enumerate(entries):
        field = f"nodes[{index}]"
        if not isinstance(node, dict) or "id" not in node:
            raise InputError.invalid(
                where, f"{field}: id", "the node has no id", "give each node an id"
            )
        name = str(node["id"])
        if name in nodes:
            raise InputError.invalid(
                where,
                f"{field}: id",
                f"an earlier node has the id {node['id']!r}, too",
                "give each node its own id",
            )
        nodes[name] = _position(node, where, field)
        if is_true(_first_value(node, OVERLOAD_NAMES), where, f"{field}: overload"):
            no_transit.append(name)
    return nodes, no_transit


def _record(
    link: dict[str, Any], attribute_names: Attributes, unit_gbps: float, where: str, field: str
) -> LinkRecord:
    """Build the link record of an entry of node-link JSON, with its capacity in Gbit/s.

    Args:
        link: JSON entry of the link.
        attribute_names: names of its attributes.
        unit_gbps: Gbit/s per unit of its capacity.
        where: name of the file, for messages.
        field: the link, for messages.
    """

    def value(attribute: str) -> float | None:
        text = link.get(attribute)
        return None if text is None else number(text, where, f"{field}: {attribute}")

    # Messages about a missing capacity name the attributes that have no other use.
    capacity = value(attribute_names.capacity)
    has_failed = out_of_service(link, attribute_names.status)[0]
    used = (
        *_ENDS,
        attribute_names.latency,
        attribute_names.metric,
        attribute_names.te_metric,
        attribute_names.affinity,
        attribute_names.cost,
    )
    # In order: source, target, capacity, latency, location, names of other attributes, metric, and
    # whether the link is out of service.
    return LinkRecord(
        str(link["source"]),
        str(link["target"]),
        None if capacity is None else capacity * unit_gbps,
        value(attribute_names.latency),
        f"{field} ({link['source']}->{link['target']})",
        tuple(str(key) for key in link if key not in used),
        value(attribute_names.metric),
        has_failed or is_true(_first_value(link, OVERLOAD_NAMES), where, f"{field}: overload"),
        te_metric=value(attribute_names.te_metric),
        affinities=affinities_of(
            link.get(attribute_names.affinity), where, f"{field}: {attribute_names.affinity}"
        ),
        cost=value(attribute_names.cost),
    )


def notes_on_attributes(
    where: str,
    links: Iterable[Any],
    attribute_names: Attributes,
    other_used_attributes: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return notes about unused link attributes, and about statuses of unknown meaning.

    Args:
        where: name of the file, for messages.
        links: attributes of each link.
        attribute_names: names of the used attributes.
        other_used_attributes: further used attributes.
    """
    # Unused attributes, apart from those that state whether a link is up.
    links = [entry for entry in links if isinstance(entry, dict)]
    used_attributes = {
        *_ENDS,
        *OVERLOAD_NAMES,
        *other_used_attributes,
        attribute_names.capacity,
        attribute_names.latency,
        attribute_names.metric,
        attribute_names.te_metric,
        attribute_names.affinity,
        attribute_names.cost,
    }
    keys = dict.fromkeys(str(key) for link in links for key in link if key not in used_attributes)
    unused_attributes = [key for key in keys if not is_state_name(key, attribute_names.status)]
    notes = (
        (f"Attributes of links that are not used: {listed(unused_attributes, _MAX_LISTED)}.",)
        if unused_attributes
        else ()
    )
    # Values of status attributes that mean neither up nor down.
    unknown_statuses = [
        value for link in links for value in out_of_service(link, attribute_names.status)[1]
    ]
    return notes + unknown_status(where, unknown_statuses)


def _first_value(json_object: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the value of the first of these attributes that a JSON object has; None if it has none
    of them.
    """
    return next((json_object[name] for name in names if json_object.get(name) is not None), None)


def _position(node: dict[str, Any], where: str, field: str) -> tuple[float, float] | None:
    """Return a node's (longitude, latitude) from ``pos`` or ``lon`` and ``lat``; None if it has no
    position, or an implausible one.

    Args:
        node: JSON entry of the node.
        where: name of the file, for messages.
        field: the node, for messages.
    """
    if isinstance(node.get("pos"), list) and len(node["pos"]) == 2:
        x, y = (number(value, where, field) for value in node["pos"])
    elif "lon" in node and "lat" in node:
        x = number(node["lon"], where, field)
        y = number(node["lat"], where, field)
    else:
        return None
    # NaN fails both comparisons.
    return (x, y) if abs(x) <= _MAX_COORDINATE and abs(y) <= _MAX_COORDINATE else None


def topology_to_node_link(topology: Topology) -> dict[str, Any]:
    """Return a network as networkx node-link data, a dict for JSON; the network's name is lost.

    Capacities are in Gbit/s, latencies in ms; nodes without coordinates have no ``pos``.
    ``multigraph`` lets networkx keep parallel links.
    """
    # Nodes, with their positions and overload bits.
    names = topology.node_names
    nodes: list[dict[str, Any]] = []
    for name, (x, y) in zip(names, topology.coordinates.tolist(), strict=True):
        has_position = math.isfinite(x) and math.isfinite(y)
        node: dict[str, Any] = {"id": name}
        if has_position:
            node["pos"] = [x, y]
        if topology.no_transit is not None and topology.no_transit[len(nodes)]:
            node["overload"] = True
        nodes.append(node)
    # Links, with metrics, affinities and costs where they have them; capacity 0 means failed.
    ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    capacity_and_latency = zip(topology.capacity.tolist(), topology.latency.tolist(), strict=True)
    links: list[dict[str, Any]] = [
        {"source": names[s], "target": names[t], "capacity": capacity, "latency": latency}
        | ({} if capacity else {"failed": True})
        for (s, t), (capacity, latency) in zip(ends, capacity_and_latency, strict=True)
    ]
    links = [{**link, **topology.igp_attributes(index)} for index, link in enumerate(links)]
    return {"directed": True, "multigraph": True, "nodes": nodes, "links": links}
