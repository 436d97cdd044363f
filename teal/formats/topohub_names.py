"""Topologies of the package ``topohub`` (Jurkiewicz, 2023) by name: ``topohub:sndlib/geant``.

topohub has positions and link lengths but no capacities.  All links get the same capacity, 100
Gbit/s by default or that of ``topohub:NAME,capacity=40``.  Latency is the propagation delay in
fibre of the link's length.  Entry point: :func:`load_topohub`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from teal.errors import InputError, did_you_mean
from teal.formats.records import LinkRecord, topology_from_records
from teal.formats.units import fibre_latency_ms
from teal.network import Topology
from teal.spec import parse_spec

PREFIX = "topohub:"


def topohub_folder(where: str, field: str) -> Traversable:
    """Return the folder of the network files in the package topohub, with a subfolder per group.

    Raises:
        InputError: the package is not installed; the message names ``where`` and ``field``.
    """
    try:
        return resources.files("topohub") / "data"
    except ModuleNotFoundError:
        raise InputError.invalid(
            where, field, "the package topohub is not installed", "run pip install topohub"
        ) from None


def _read_network(text: str, name: str) -> dict[str, Any]:
    """Read topohub's JSON of a network, without its own reader, which leaves files open.

    Args:
        text: specification of the network, for messages.
        name: name of the network, ``GROUP/NAME``.

    Raises:
        InputError: topohub is not installed, or has no such network.
    """
    folder = topohub_folder(text, "topology")
    parts = name.split("/")
    file = folder.joinpath(*parts[:-1], f"{parts[-1]}.json")
    if (
        len(parts) not in (2, 3)
        or not all(re.fullmatch(r"[\w.-]*\w", part) for part in parts)
        or not file.is_file()
    ):
        expected = (
            "a name such as sndlib/geant, topozoo/Abilene, caida/2024-08/7018 or backbone/africa "
            "(teal topology list)"
        )
        suggestion = did_you_mean(name, (known_name for known_name, _ in stored_files(folder)))
        raise InputError(text, "topology", expected, repr(name) + suggestion)
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


def known_topologies() -> list[tuple[str, int]]:
    """Return name and number of nodes of b4, then of every network of topohub, sorted by name.

    Raises:
        InputError: topohub is not installed.
    """
    files = stored_files(topohub_folder("topohub", "networks"))
    sizes = (
        (name, len(json.loads(file.read_text(encoding="utf-8"))["nodes"])) for name, file in files
    )
    return [("b4", 12), *sorted((PREFIX + name, size) for name, size in sizes)]


def stored_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the name ``GROUP/NAME`` and the file of every network in a folder of the package.

    Args:
        folder: a folder within :func:`topohub_folder`.
        prefix: prefix of the names.
    """
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from stored_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".json"):
            yield f"{prefix}{entry.name.removesuffix('.json')}", entry


def load_topohub(text: str) -> Topology:
    """Load the topology ``topohub:GROUP/NAME[,capacity=GBPS]``; some groups contain folders.

    Raises:
        InputError: the package is not installed, an unknown name, a capacity that is not positive.
    """
    spec = parse_spec(text, prefix=PREFIX)
    capacity = float(spec.parse_options(capacity=100.0)["capacity"])
    data = _read_network(text, spec.name)
    # Names of the nodes: their ids if two nodes have the same name.
    names = [str(node.get("name", node["id"])) for node in data["nodes"]]
    if len(set(names)) < len(names):
        names = [str(node["id"]) for node in data["nodes"]]
    name_of_id = {node["id"]: name for node, name in zip(data["nodes"], names, strict=True)}
    # (longitude, latitude) of each node by its name; None where unknown.
    nodes = {
        name_of_id[node["id"]]: (float(node["pos"][0]), float(node["pos"][1]))
        if "pos" in node
        else None
        for node in data["nodes"]
    }
    # Links of equal capacity.
    links = [
        LinkRecord(
            name_of_id[link["source"]],
            name_of_id[link["target"]],
            capacity,
            fibre_latency_ms(float(link["dist"])) if "dist" in link else None,
            f"edges[{index}]",
        )
        for index, link in enumerate(data["edges"])
    ]
    notes = (f"topohub has no capacities: every link has {capacity:g} Gbit/s.",)
    name = spec.name.replace("/", "-")
    return topology_from_records(
        name, text, nodes, links, directed=bool(data.get("directed")), notes=notes
    )
