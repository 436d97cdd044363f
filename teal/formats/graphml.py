"""GraphML as in the Internet Topology Zoo.

The name of a node is its ``label`` if all labels are distinct, else its id; its position is ``Longitude`` and
``Latitude``.  Capacity is ``capacity`` (Gbit/s) or the Zoo's ``LinkSpeedRaw`` (bit/s).  Most Zoo files have it for few
links or none; ``default_capacity`` gives that of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import networkx as nx

from teal.errors import InputError
from teal.formats.records import LinkRecord, number, topology_from_records
from teal.network import Topology


def read_graphml(path: Path, default_capacity: float | None = None) -> Topology:
    """Read a topology from a GraphML file.

    Raises:
        InputError: not GraphML, or what :func:`topology_from_records` refuses.
    """
    where = str(path)
    try:
        graph: Any = nx.read_graphml(path)
    except (ParseError, nx.NetworkXError, LookupError, ValueError) as error:
        raise InputError(where, "", "a GraphML file", f"{type(error).__name__}: {error}") from None
    labels = {node: str(data.get("label", node)) for node, data in graph.nodes(data=True)}
    if len(set(labels.values())) < len(labels):
        labels = {node: str(node) for node in labels}
    nodes: dict[str, tuple[float, float] | None] = {}
    for node, data in graph.nodes(data=True):
        has_position = "Longitude" in data and "Latitude" in data
        field = f"node {labels[node]}"
        nodes[labels[node]] = (
            (number(data["Longitude"], where, field), number(data["Latitude"], where, field)) if has_position else None
        )
    records = []
    for source, target, data in graph.edges(data=True):
        field = f"edge {labels[source]}-{labels[target]}"
        capacity = None
        if "capacity" in data:
            capacity = number(data["capacity"], where, f"{field}: capacity")
        elif "LinkSpeedRaw" in data:
            capacity = number(data["LinkSpeedRaw"], where, f"{field}: LinkSpeedRaw") * 1e-9
        latency = number(data["latency"], where, f"{field}: latency") if "latency" in data else None
        records.append(LinkRecord(labels[source], labels[target], capacity, latency, field))
    return topology_from_records(
        path.stem, where, nodes, records, directed=graph.is_directed(), default_capacity=default_capacity
    )
