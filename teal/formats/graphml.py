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
    names = attributes or Attributes()
    # Gbit/s per unit of the capacity attribute.
    unit = gbps_per_unit(names.capacity_unit or "Gbit/s", where)
    graph, node_names = labelled_graph(path)
    # Note a label that several nodes have.
    notes: tuple[str, ...] = ()
    label_counts = Counter(str(data.get("label", node)) for node, data in graph.nodes(data=True))
    ((duplicate, num_occurrences),) = label_counts.most_common(1) or [("", 0)]
    if num_occurrences > 1:
        notes = (
            (
                f"{num_occurrences} nodes have the label {duplicate!r}, so that nodes are named by "
                "their ids."
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
        _record((node_names[source], node_names[target]), data, names, unit, where)
        for source, target, data in graph.edges(data=True)
    ]
    notes += notes_on_attributes(where, links, names, _ZOO_ATTRIBUTES)
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
    ends: tuple[str, str], data: dict[str, Any], names: Attributes, unit: float, where: str
) -> LinkRecord:
    """Build the link record of an edge, with its capacity in Gbit/s.

    Args:
        ends: names of its nodes.
        data: its attributes.
        names: names of the attributes.
        unit: Gbit/s per unit of the capacity attribute.
        where: name of the file, for messages.
    """
    field = f"edge {ends[0]}-{ends[1]}"

    def value(attribute: str) -> float | None:
        return (
            number(data[attribute], where, f"{field}: {attribute}") if attribute in data else None
        )

    # The IGP does not use a link with the overload attribute, so that it is out of service, too.
    has_failed = out_of_service(data, names.status)[0]
    is_overloaded = any(
        is_true(data.get(name), where, f"{field}: {name}") for name in OVERLOAD_NAMES
    )
    # In order: source, target, capacity, latency, location, names of other attributes, metric, and
    # whether the link is out of service.
    return LinkRecord(
        *ends,
        _capacity(data, names, unit, where, field),
        value(names.latency),
        field,
        tuple(map(str, data)),
        value(names.metric),
        has_failed or is_overloaded,
        te_metric=value(names.te_metric),
        affinities=affinities_of(data.get(names.affinity), where, f"{field}: {names.affinity}"),
        cost=value(names.cost),
    )


def _capacity(
    data: dict[str, Any], names: Attributes, unit: float, where: str, field: str
) -> float | None:
    """Return the capacity of an edge, Gbit/s; None if the file has none.

    The configured attribute comes first, then the Zoo's ``LinkSpeedRaw`` (bit/s), then its
    ``LinkSpeed`` in ``LinkSpeedUnits``.

    Args:
        data: attributes of the edge.
        names: names of the attributes.
        unit: Gbit/s per unit of the configured attribute.
        where: name of the file, for messages.
        field: the edge, for messages.
    """
    if names.capacity in data:
        return number(data[names.capacity], where, f"{field}: {names.capacity}") * unit
    if "LinkSpeedRaw" in data:
        return number(data["LinkSpeedRaw"], where, f"{field}: LinkSpeedRaw") * 1e-9
    if "LinkSpeed" in data and str(data.get("LinkSpeedUnits", "")).upper() in _ZOO_UNITS:
        speed = number(data["LinkSpeed"], where, f"{field}: LinkSpeed")
        return speed * _ZOO_UNITS[str(data["LinkSpeedUnits"]).upper()]
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
