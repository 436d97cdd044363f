"""Topologies of the package ``topohub`` (Jurkiewicz, 2023) by name: ``topohub:sndlib/geant``.

topohub has positions and link lengths but no capacities.  Every link gets the same one: 100 Gbit/s,
or the one in ``topohub:NAME,capacity=40``.  Latency is the time of light through fibre of the
link's length.
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
    """The folder of the package's files, which contains a folder for each group.

    Raises:
        InputError: the package is not installed; the message names ``where`` and ``field``.
    """
    try:
        return resources.files("topohub") / "data"
    except ModuleNotFoundError:
        raise InputError(
            where, field, "the package topohub (pip install topohub)", "not installed"
        ) from None


def _stored(text: str, name: str) -> dict[str, Any]:
    """The package's JSON for ``name``.  It is read as a file, because the package's reader leaves
    the file open.
    """
    folder = topohub_folder(text, "topology")
    parts = name.split("/")
    file = folder.joinpath(*parts[:-1], f"{parts[-1]}.json")
    if (
        len(parts) not in (2, 3)
        or not all(re.fullmatch(r"[\w.-]*\w", part) for part in parts)
        or not file.is_file()
    ):
        hint = (
            "a name such as sndlib/geant, topozoo/Abilene, caida/2024-08/7018, backbone/africa "
            "(teal topology list)"
        )
        hint += did_you_mean(name, (one for one, _ in stored_files(folder)))
        raise InputError(text, "topology", hint, repr(name))
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


def known_topologies() -> list[tuple[str, int]]:
    """The name and number of nodes of b4 and every network of topohub, sorted.

    Raises:
        InputError: topohub is not installed.
    """
    files = stored_files(topohub_folder("topohub", "networks"))
    sizes = (
        (name, len(json.loads(file.read_text(encoding="utf-8"))["nodes"])) for name, file in files
    )
    return [("b4", 12), *sorted((PREFIX + name, size) for name, size in sizes)]


def stored_files(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    """The name and file of every network in a folder of the package, as ``GROUP/NAME``.

    Args:
        folder: see :func:`topohub_folder`.
        above: what the names begin with.
    """
    for inner in folder.iterdir():
        if inner.is_dir():
            yield from stored_files(inner, f"{above}{inner.name}/")
        elif inner.name.endswith(".json"):
            yield f"{above}{inner.name.removesuffix('.json')}", inner


def load_topohub(text: str) -> Topology:
    """The topology named by ``topohub:GROUP/NAME[,capacity=GBPS]``; some groups contain folders.

    Raises:
        InputError: the package is not installed, an unknown name, a capacity that is not positive.
    """
    spec = parse_spec(text, prefix=PREFIX)
    capacity = float(spec.parse_options(capacity=100.0)["capacity"])
    data = _stored(text, spec.name)
    names = [str(node.get("name", node["id"])) for node in data["nodes"]]
    if len(set(names)) < len(names):
        names = [str(node["id"]) for node in data["nodes"]]
    by_id = {node["id"]: name for node, name in zip(data["nodes"], names, strict=True)}
    nodes = {
        by_id[node["id"]]: (float(node["pos"][0]), float(node["pos"][1])) if "pos" in node else None
        for node in data["nodes"]
    }
    links = [
        LinkRecord(
            by_id[link["source"]],
            by_id[link["target"]],
            capacity,
            fibre_latency_ms(float(link["dist"])) if "dist" in link else None,
            f"edges[{i}]",
        )
        for i, link in enumerate(data["edges"])
    ]
    notes = (f"topohub has no capacities: every link is given {capacity:g} Gbit/s.",)
    name = spec.name.replace("/", "-")
    return topology_from_records(
        name, text, nodes, links, directed=bool(data.get("directed")), notes=notes
    )
