"""Files of shared-risk link groups: cables that fail together, such as those in one conduit.

- ``.csv`` or ``.xlsx``: columns ``group``, ``source``, ``target``, a row per cable of a group; a
  cable may be in several groups (:mod:`teal.formats.side_tables`).
- ``.json``: ``{"conduit 3": [["a", "b"], ["c", "d"]]}``.
- ``.graphml``: the attribute ``srlg`` of edges, names of groups separated by ``;``, in the file of
  the network itself or in another one with the same names of nodes.

All links between the two nodes of a cable fail, in both directions.  Entry point:
:func:`load_groups`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import InputError, listed
from teal.formats.graphml import labelled_graph
from teal.formats.link_tables import similar_name_pairs
from teal.formats.side_tables import (
    SOURCE,
    SUFFIXES,
    TARGET,
    Column,
    read_side_table,
    warn,
)
from teal.network import Topology
from teal.runtime.storage import parsed_json

# Edge attribute of a GraphML file: shared-risk link group.
ATTRIBUTE = "srlg"
_SUFFIXES = (*SUFFIXES, ".json", ".graphml")
_EXPECTED = (
    "a .csv, .tsv or .xlsx table (group, source, target), .json or .graphml file of groups of "
    "cables"
)
_GROUP = Column("group", required=True)


def load_groups(path: Path, topology: Topology) -> dict[str, list[int]]:
    """Return the link indices of each shared-risk group of a file, ascending, by name of the group.

    Args:
        path: path of the file.
        topology: network with the node names.

    Raises:
        InputError: a missing file, another format, no group, or an unknown cable.
    """
    where = str(path)
    if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
        problem = (
            f"unknown kind of file ({path.suffix or 'no suffix'})"
            if path.is_file()
            else "no such file"
        )
        raise InputError.invalid(where, "groups", problem, f"use {_EXPECTED}")
    # Both directions of each cable of a group.
    groups: dict[str, set[int]] = {}
    for field, group, a, b in _rows(path):
        try:
            groups.setdefault(group, set()).update(topology.find_links(a, b))
        except InputError as error:
            raise InputError.invalid(
                where, field, f"{topology.name} has no cable {a} - {b} ({error})"
            ) from None
    if not groups:
        raise InputError.invalid(where, "groups", "the file has no groups", f"use {_EXPECTED}")
    similar = similar_name_pairs(list(groups))
    if similar:
        warn(f"{where}: similar names of different groups: {listed(similar)}")
    return {group: sorted(links) for group, links in groups.items()}


def failing_links(file: str, topology: Topology) -> list[list[int]]:
    """Return the link indices of each group of links that fail together: the groups of a file, or
    without a file each cable.

    Args:
        file: path of the file; ``""`` for none.
        topology: network with the node names.

    Raises:
        InputError: a missing file, another format, no group, or an unknown cable.
    """
    return list(load_groups(Path(file), topology).values()) if file else topology.cables()


def _rows(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield location in the file, name of the group, and names of the two nodes of each cable."""
    match path.suffix.lower():
        case ".json":
            yield from _rows_of_json(path)
        case ".graphml":
            yield from _rows_of_graphml(path)
        case _:
            for row in read_side_table(path, (_GROUP, SOURCE, TARGET)):
                location = row.where.removeprefix(f"{path}: ")
                for name in ("group", "source", "target"):
                    if not row.text(name):
                        raise InputError(row.where, name, "a name", "an empty cell")
                yield location, row.text("group"), row.text("source"), row.text("target")


def _rows_of_json(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield location, name of the group, and names of the two nodes of each cable of a JSON
    file.
    """
    where = str(path)
    expected = '{"group": [["a", "b"], ...]}'
    try:
        data: Any = parsed_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError.invalid(
            where, "", f"the file is not valid JSON: {error}", f"use the form {expected}"
        ) from None
    if not isinstance(data, dict):
        raise InputError(where, "", expected, type(data).__name__)
    for group, cables in data.items():
        for cable in cables if isinstance(cables, list) else [cables]:
            if not isinstance(cable, list) or len(cable) != 2:
                raise InputError(where, f"group {group!r}", expected, repr(cable)[:80])
            yield f"group {group!r}", str(group), str(cable[0]), str(cable[1])


def _rows_of_graphml(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield location, name of the group, and names of the two nodes, for each edge of a GraphML
    file and each of its groups.
    """
    graph, names = labelled_graph(path)
    for source, target, data in graph.edges(data=True):
        edge_groups = [part.strip() for part in str(data.get(ATTRIBUTE, "")).split(";")]
        for group in filter(None, edge_groups):
            location = f"edge {names[source]}-{names[target]}"
            yield location, group, names[source], names[target]
