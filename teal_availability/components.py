"""Components that fail independently of each other: cables, nodes, and groups of cables; and the
share of the time in which each works.

A component's availability is given, or that of its mean time between failures and its mean time to
repair,

    availability = mtbf / (mtbf + mttr),

where the mean time between failures is that from a repair to the next failure.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from teal import InputError, Topology
from teal.formats.cells import heading, read_cells
from teal.network.failures import cable_failures, group_failures, node_failures
from teal.runtime.arrays import BoolArray, FloatArray

_LEAST = 0.5  # availability: what is down more often than up is no network
_LEAST_ALL_UP = 0.01  # of the time, in which every component works
_HOURS = {"h": 1.0, "d": 24.0}
_COLUMNS = ("source", "target", "node", "group", "availability", "mtbf", "mttr")
_TIME = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?)\s*(?P<unit>h|d)?")


@dataclasses.dataclass(frozen=True, eq=False)
class Components:
    """n components of a network that may fail.

    Attributes:
        names: name of each.
        kinds: cable, node or group.
        links: (n, E) whether a link fails with the component.
        unavailability: (n,) share of the time in which it is down, above 0 and at most 0.5.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    links: BoolArray
    unavailability: FloatArray

    def __len__(self) -> int:
        """N."""
        return len(self.names)


def components_of(
    topology: Topology,
    *,
    file: Path | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    cable_availability: float = 0.999,
    node_availability: float = 1.0,
    group_availability: float = 1.0,
) -> Components:
    """The components of a network; those that are always available are left out.

    Args:
        topology: the network.
        file: table (.csv, .xlsx) of availabilities; None for none.  Its columns are ``source`` and
            ``target``, or ``node``, or ``group``; and ``availability``, or ``mtbf`` and ``mttr`` in
            hours (h) or days (d).
        groups: numbers of the links of each group of cables that fail together, by its name.
        cable_availability: availability of a cable that the file does not name.
        node_availability: the same of a node.
        group_availability: the same of a group.

    Raises:
        InputError: an availability that is none, an unknown component, or components so often down
            that hardly ever all of them work.
    """
    cables = [one for one in cable_failures(topology) if topology.capacity[list(one.links)].any()]
    found = [
        *((one, cable_availability) for one in cables),
        *((one, node_availability) for one in node_failures(topology)),
        *((one, group_availability) for one in group_failures(groups or {})),
    ]
    for option, value in (
        ("--cable-availability", cable_availability),
        ("--node-availability", node_availability),
        ("--group-availability", group_availability),
    ):
        _check(option, "", value)
    given = {} if file is None else _read(file, topology, set(groups or {}))
    names: list[str] = []
    kinds: list[str] = []
    links: list[BoolArray] = []
    down: list[float] = []
    for failure, usual in found:
        key = (
            ("cable", frozenset(failure.links))
            if failure.kind == "cable"
            else (failure.kind, failure.name)
        )
        availability = given.pop(key, usual)
        if availability < 1:
            names.append(failure.name)
            kinds.append(failure.kind)
            links.append(np.isin(np.arange(topology.num_links), failure.links))
            down.append(1 - availability)
    unavailability = np.array(down, dtype=np.float64)
    all_up = float(np.prod(1 - unavailability))
    if all_up < _LEAST_ALL_UP:
        raise InputError(
            "availabilities",
            "",
            f"components that all work in {100 * _LEAST_ALL_UP:g}% of the time at least",
            f"{100 * all_up:.2g}%",
        )
    table = np.array(links, dtype=bool).reshape(len(names), topology.num_links)
    return Components(tuple(names), tuple(kinds), table, unavailability)


def _read(
    file: Path, topology: Topology, groups: set[str]
) -> dict[tuple[str, frozenset[int] | str], float]:
    """Availabilities of a table: of cables by their links, of others by name."""
    where = str(file)
    found: dict[tuple[str, frozenset[int] | str], float] = {}
    table = read_cells(file)
    unknown = [name for name in table.header if heading(name)[0] not in _COLUMNS]
    if unknown:
        raise InputError(where, "columns", "some of " + ", ".join(_COLUMNS), ", ".join(unknown))
    for place, cells in table.records(_COLUMNS):
        text = {name: cells.get(name, "").strip() for name in _COLUMNS}
        key = _component(where, place, text, topology, groups)
        if key in found:
            raise InputError(
                where, place, "each component once", " ".join(filter(None, text.values()))
            )
        found[key] = _availability(where, place, text)
    return found


def _component(
    where: str, place: str, text: Mapping[str, str], topology: Topology, groups: set[str]
) -> tuple[str, frozenset[int] | str]:
    """Kind of the component of a row, and its links or its name."""
    named = [name for name in ("source", "node", "group") if text[name]]
    if len(named) != 1 or bool(text["source"]) != bool(text["target"]):
        raise InputError(where, place, "source and target, or node, or group", ", ".join(named))
    if named == ["source"]:
        try:
            cable = frozenset(topology.find_links(text["source"], text["target"]))
        except InputError as error:
            found = f"{text['source']} - {text['target']} ({error})"
            raise InputError(where, place, f"a cable of {topology.name}", found) from None
        if cable not in map(frozenset, topology.cables()):
            found = f"{text['source']} - {text['target']}"
            raise InputError(where, place, "a whole cable, by the names of its nodes", found)
        return "cable", cable
    kind = named[0]
    name = topology.name_of(text[kind]) if kind == "node" else text[kind]
    if name not in (set(topology.node_names) if kind == "node" else groups):
        expected = f"a node of {topology.name}" if kind == "node" else "a group of --groups"
        raise InputError(where, place, expected, repr(text[kind]))
    return kind, name


def _availability(where: str, place: str, text: Mapping[str, str]) -> float:
    """Availability of a row."""
    given = [name for name in ("availability", "mtbf", "mttr") if text[name]]
    if given == ["availability"]:
        try:
            value = float(text["availability"])
        except ValueError:
            raise InputError(
                where, place, "an availability such as 0.9995", repr(text["availability"])
            ) from None
    elif given == ["mtbf", "mttr"]:
        up, down = (_hours(where, place, name, text[name]) for name in given)
        value = up / (up + down)
    else:
        found = ", ".join(given) or "neither"
        raise InputError(where, place, "availability, or both mtbf and mttr", found)
    _check(where, place, value)
    return value


def _hours(where: str, place: str, name: str, text: str) -> float:
    match = _TIME.fullmatch(text)
    value = float(match["number"]) * _HOURS[match["unit"] or "h"] if match else 0.0
    if not 0 < value < math.inf:
        raise InputError(
            where, f"{place}: {name}", "a time above 0 such as 2000h or 90d", repr(text)
        )
    return value


def _check(where: str, place: str, value: float) -> None:
    if not _LEAST <= value <= 1:
        hint = f"; {value:g}% is {value / 100:g}" if _LEAST <= value / 100 <= 1 else ""
        raise InputError(where, place, f"an availability in [{_LEAST}, 1]{hint}", value)
