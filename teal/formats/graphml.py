"""Reader of GraphML in the style of the Internet Topology Zoo.

The name of a node is its ``label`` if all labels are distinct, else its id; its position is
``Longitude`` and ``Latitude``.  Capacity is ``capacity`` (Gbit/s), the Zoo's ``LinkSpeedRaw``
(bit/s), or its ``LinkSpeed`` in ``LinkSpeedUnits`` (K, M, G or T).  Most Zoo files have it for few
links or none; ``default_capacity`` applies to the others.  Links may have ``latency`` (ms),
``metric``, ``te_metric``, ``cost``, ``affinity`` (names of administrative groups), ``status``
(``up`` or ``down``) and ``overload`` (``yes``: the IGP does not use the link).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from teal.errors import InputError
from teal.formats.node_link import notes_on_attributes
from teal.formats.records import (
    OVERLOAD_NAMES,
    Attributes,
    LinkRecord,
    affinities_of,
    is_true,
    number,
    out_of_service,
    topology_from_records,
)
from teal.formats.units import gbps_per_unit
from teal.network import Topology

# Attributes of the Topology Zoo that are read, or descriptive only.
_ZOO_ATTRIBUTES = (
    "LinkSpeedRaw",
    "LinkSpeed",
    "LinkSpeedUnits",
    "LinkLabel",
    "LinkType",
    "LinkNote",
    "id",
    "zorder",
    "srlg",
)
# Gbit/s for each value of LinkSpeedUnits.
_ZOO_UNITS = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}


def read_graphml(
    path: Path, default_capacity: float | None = None, attributes: Attributes | None = None
) -> Topology:
    """Read a topology from a GraphML file.

    Args:
        path: path of the file.
        default_capacity: Gbit/s of links without capacity; None refuses them.
        attributes: names of the link attributes; None for the defaults.

    Raises:
        InputError: not GraphML, or an error of :func:`topology_from_records`.
    """
    where = str(path)
    attribute_names = attributes or Attributes()
    # Gbit/s per unit of the capacity attribute.
    unit_gbps = gbps_per_unit(attribute_names.capacity_unit or "Gbit/s", where)
    graph, node_names = labelled_graph(path)
    # Note a label that several nodes have.
    notes: tuple[str, ...] = ()
    label_counts = Counter(str(data.get("label", node)) for node, data in graph.nodes(data=True))
    ((duplicate_label, num_occurrences),) = label_counts.most_common(1) or [("", 0)]
    if num_occurrences > 1:
        notes = (
            (
                f"{num_occurrences} nodes have the label {duplicate_label!r}, so that nodes are "
                "named by their ids."
            ),
        )
    # Position (longitude, latitude) of each node, by its name.
    nodes: dict[str, tuple[float, float] | None] = {}
    for node, data in graph.nodes(data=True):
        has_position = "Longitude" in data and "Latitude" in data
        field = f"node {node_names[node]}"
        nodes[node_names[node]] = (
            (number(data["Longitude"], where, field), number(data["Latitude"], where, field))
            if has_position
            else None
        )
    # One record for each edge.
    links = [data for _, _, data in graph.edges(data=True)]
    records = [
        _record((node_names[source], node_names[target]), data, attribute_names, unit_gbps, where)
        for source, target, data in graph.edges(data=True)
    ]
    notes += notes_on_attributes(where, links, attribute_names, _ZOO_ATTRIBUTES)
    return topology_from_records(
        path.stem,
        where,
        nodes,
        records,
        directed=graph.is_directed(),
        default_capacity=default_capacity,
        notes=notes,
    )


def _record(
    ends: tuple[str, str],
    edge_attributes: dict[str, Any],
    attribute_names: Attributes,
    unit_gbps: float,
    where: str,
) -> LinkRecord:
    """Build the link record of an edge, with its capacity in Gbit/s.

    Args:
        ends: names of its nodes.
        edge_attributes: its attributes.
        attribute_names: names of the attributes.
        unit_gbps: Gbit/s per unit of the capacity attribute.
        where: name of the file, for messages.
    """
    field = f"edge {ends[0]}-{ends[1]}"

    def value(attribute: str) -> float | None:
        return (
            number(edge_attributes[attribute], where, f"{field}: {attribute}")
            if attribute in edge_attributes
            else None
        )

    # The IGP does not use a link with the overload attribute, so that it is out of service, too.
    has_failed = out_of_service(edge_attributes, attribute_names.status)[0]
    is_overloaded = any(
        is_true(edge_attributes.get(name), where, f"{field}: {name}") for name in OVERLOAD_NAMES
    )
    # In order: source, target, capacity, latency, location, names of other attributes, metric, and
    # whether the link is out of service.
    return LinkRecord(
        *ends,
        _capacity(edge_attributes, attribute_names, unit_gbps, where, field),
        value(attribute_names.latency),
        field,
        tuple(map(str, edge_attributes)),
        value(attribute_names.metric),
        has_failed or is_overloaded,
        te_metric=value(attribute_names.te_metric),
        affinities=affinities_of(
            edge_attributes.get(attribute_names.affinity),
            where,
            f"{field}: {attribute_names.affinity}",
        ),
        cost=value(attribute_names.cost),
    )


def _capacity(
    edge_attributes: dict[str, Any],
    attribute_names: Attributes,
    unit_gbps: float,
    where: str,
    field: str,
) -> float | None:
    """Return the capacity of an edge, Gbit/s; None if the file has none.

    The configured attribute comes first, then the Zoo's ``LinkSpeedRaw`` (bit/s), then its
    ``LinkSpeed`` in ``LinkSpeedUnits``.

    Args:
        edge_attributes: attributes of the edge.
        attribute_names: names of the attributes.
        unit_gbps: Gbit/s per unit of the configured attribute.
        where: name of the file, for messages.
        field: the edge, for messages.
    """
    if attribute_names.capacity in edge_attributes:
        return (
            number(
                edge_attributes[attribute_names.capacity],
                where,
                f"{field}: {attribute_names.capacity}",
            )
            * unit_gbps
        )
    if "LinkSpeedRaw" in edge_attributes:
        return number(edge_attributes["LinkSpeedRaw"], where, f"{field}: LinkSpeedRaw") * 1e-9
    if (
        "LinkSpeed" in edge_attributes
        and str(edge_attributes.get("LinkSpeedUnits", "")).upper() in _ZOO_UNITS
    ):
        speed = number(edge_attributes["LinkSpeed"], where, f"{field}: LinkSpeed")
        return speed * _ZOO_UNITS[str(edge_attributes["LinkSpeedUnits"]).upper()]
    return None


def labelled_graph(path: Path) -> tuple[Any, dict[Any, str]]:
    """Return the graph of a GraphML file, and the name of each node by its id.

    The name is the label if all labels are distinct, else the id.

    Raises:
        InputError: not GraphML.
    """
    # Imported here: it takes a third of a second, and other formats do not need it.
    import networkx as nx

    try:
        graph: Any = nx.read_graphml(path)
    except (ParseError, nx.NetworkXError, LookupError, ValueError) as error:
        raise InputError.invalid(
            str(path), "", f"the file is not valid GraphML: {type(error).__name__}: {error}"
        ) from None
    labels = {node: str(data.get("label", node)) for node, data in graph.nodes(data=True)}
    if len(set(labels.values())) < len(labels):
        labels = {node: str(node) for node in labels}
    return graph, labels
