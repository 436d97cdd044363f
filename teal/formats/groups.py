"""Shared-risk groups: cables that one event takes down together, such as those in one conduit.

- ``.csv``: columns ``group``, ``source``, ``target``, a row for each cable of a group; a cable may
  be in several.
- ``.json``: ``{"conduit 3": [["a", "b"], ["c", "d"]]}``.
- ``.graphml``: the attribute ``srlg`` of edges, names of groups separated by ``;``, in the file of
  the network itself or in another one with the same names of nodes.

All links between the two nodes of a cable fail, in both directions.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.graphml import labelled_graph
from teal.network import Topology
from teal.runtime.storage import parsed_json

ATTRIBUTE = "srlg"  # of the edges of a GraphML file: shared-risk link group
_SUFFIXES = (".csv", ".json", ".graphml")
_EXPECTED = "a .csv (group,source,target), .json or .graphml file of groups of cables"


def load_groups(path: Path, topology: Topology) -> dict[str, list[int]]:
    """Numbers of the links of each group, by its name.

    Args:
        path: path of the file.
        topology: network whose nodes it names.

    Raises:
        InputError: no such file, another format, no group, or a cable that the network does not
            have.
    """
    where = str(path)
    if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
        raise InputError(
            where, "groups", _EXPECTED, "no such file" if not path.is_file() else repr(path.suffix)
        )
    groups: dict[str, set[int]] = {}
    for field, group, a, b in _rows(path):
        try:
            groups.setdefault(group, set()).update(topology.find_links(a, b))
        except InputError as error:
            raise InputError(
                where, field, f"a cable of {topology.name}", f"{a} - {b} ({error})"
            ) from None
    if not groups:
        raise InputError(where, "groups", "at least one group", "none")
    return {group: sorted(links) for group, links in groups.items()}


def failing_links(file: str, topology: Topology) -> list[list[int]]:
    """Numbers of the links of each group in a file, or of every cable if there is none.

    Args:
        file: path; ``""`` for every cable.
        topology: network whose nodes it names.

    Raises:
        InputError: see :func:`load_groups`.
    """
    return list(load_groups(Path(file), topology).values()) if file else topology.cables()


def _rows(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Place in the file, group, and the two nodes of a cable."""
    where = str(path)
    match path.suffix.lower():
        case ".csv":
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
                for line, row in enumerate(_readable(csv.DictReader(stream), where), start=2):
                    try:
                        yield (
                            f"line {line}",
                            row["group"].strip(),
                            row["source"].strip(),
                            row["target"].strip(),
                        )
                    except (KeyError, AttributeError):
                        raise InputError(
                            where, f"line {line}", "group,source,target", str(dict(row))
                        ) from None
        case ".json":
            try:
                data: Any = parsed_json(path.read_text(encoding="utf-8"))
                cables = [
                    (str(group), str(a), str(b))
                    for group, cables_of in data.items()
                    for a, b in cables_of
                ]
            except (ValueError, AttributeError, TypeError) as error:
                raise InputError(where, "", '{"group": [["a", "b"], ...]}', error) from None
            for group, a, b in cables:
                yield f"group {group!r}", group, a, b
        case _:
            graph, names = labelled_graph(path)
            for source, target, data in graph.edges(data=True):
                for group in filter(
                    None, (part.strip() for part in str(data.get(ATTRIBUTE, "")).split(";"))
                ):
                    yield (
                        f"edge {names[source]}-{names[target]}",
                        group,
                        names[source],
                        names[target],
                    )


def _readable(rows: csv.DictReader[str], where: str) -> Iterator[dict[str, str]]:
    try:
        yield from rows
    except csv.Error as error:  # a cell of more than 128 KiB
        raise InputError(where, "", "a table", error) from None
