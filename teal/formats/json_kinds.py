"""Detection of the kind of a network's JSON document, with advice on unsupported kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats import isis, node_link, ospf, rfc8345
from teal.formats.parts import keys_of
from teal.formats.records import INSIDE, Attributes, require_attributes
from teal.network import Topology

_EXPECTED = (
    "a network as JSON: node-link data (networkx.node_link_data), RFC 8345 "
    "(ietf-network:networks), or of FRR "
    f'vtysh -c "{isis.COMMAND}", "{ospf.COMMAND}"'
)


def read_json(path: Path, default_capacity: float | None, attributes: Attributes) -> Topology:
    """Read the network of a JSON file of any known kind.

    Args:
        path: path of the file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        attributes: names of the link attributes, and of the network in a file with several.

    Raises:
        InputError: not JSON, an unknown kind of document, attributes that its kind does not have,
            or an error of the kind's reader.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError.invalid(str(path), "", f"the file is not valid JSON: {error}") from None
    # RFC 8345, then FRR's databases, then node-link data, which has nodes and links as keys.
    if rfc8345.is_rfc8345(document):
        require_attributes(attributes, (INSIDE,), "RFC 8345")
        return rfc8345.read_rfc8345(document, path, default_capacity, attributes.inside)
    for kind, is_kind, read in (
        ("FRR's database of IS-IS", isis.is_isis, isis.read_isis),
        ("FRR's database of OSPF", ospf.is_ospf, ospf.read_ospf),
    ):
        if is_kind(document) and not _is_node_link(document):
            require_attributes(attributes, (), kind)
            return read(document, path, default_capacity)
    if not _is_node_link(document):
        raise InputError.invalid(
            str(path), "", f"unsupported JSON: {_description(document)}", f"use {_EXPECTED}"
        )
    require_attributes(attributes, node_link.ATTRIBUTES, "node-link data")
    return node_link.topology_from_node_link(
        document, path.stem, str(path), default_capacity, attributes
    )


def _is_node_link(document: Any) -> bool:
    """Return whether a JSON document has the nodes and links of networkx node-link data."""
    if not isinstance(document, dict):
        return False
    return "nodes" in document and ("links" in document or "edges" in document)


def _description(document: Any) -> str:
    """Return a description of an unsupported JSON document for a message: its likely origin, and
    how to convert it.
    """
    if not isinstance(document, dict):
        return f"a {type(document).__name__}"
    if not document:
        return "an empty object: FRR prints it if the daemon is not running or has no neighbours"
    # Formats of other programs, by the keys of the document.
    if "adjacency" in document:
        return "adjacency data of networkx: write networkx.node_link_data(graph)"
    if "elements" in document:
        return "data of Cytoscape: write networkx.node_link_data(graph)"
    if "network-topology" in document or "topology" in document:
        return "a network-topology of OpenDaylight: RFC 8345 names it ietf-network:networks"
    links = document.get("links")
    if isinstance(links, list) and any(
        isinstance(link, dict) and {"src", "dst"} & set(link) for link in links
    ):
        return "links of ONOS: write nodes with id, and links with source, target and capacity"
    # Documents that are not networks.
    if "status" in document and "data" in document:
        return "a response of Prometheus, for the option --counters"
    if document.get("type") == "FeatureCollection":
        return (
            "GeoJSON, which has no links between nodes: write nodes with id, and links with "
            "source, target, capacity"
        )
    if "nodes" in document:
        return "nodes without links or edges"
    return f"an object with the keys {keys_of([document])}"
