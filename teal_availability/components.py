"""Components that fail independently of each other: cables, nodes, and groups of cables; and the
share of the time in which each works.

A component's availability is given, or that of its mean time between failures and its mean time to
repair,

    availability = mtbf / (mtbf + mttr),

where the mean time between failures is that from a repair to the next failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from teal import InputError, Topology
from teal.formats import side_tables
from teal.network.failures import cable_failures, group_failures, node_failures
from teal.runtime.arrays import BoolArray, FloatArray

_LEAST = 0.5  # availability: what is down more often than up is no network
_LEAST_ALL_UP = 0.01  # of the time, in which every component works
_COLUMNS = (
    side_tables.Column("source", aliases=("from",)),
    side_tables.Column("target", aliases=("to",)),
    side_tables.Column("node"),
    side_tables.Column("group"),
    side_tables.Column("availability", side_tables.Kind.SHARE),
    side_tables.Column("mtbf", side_tables.Kind.DURATION),
    side_tables.Column("mttr", side_tables.Kind.DURATION),
)


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

    @property
    def groups(self) -> list[list[int]]:
        """Indices of the links of each group of cables that fails together."""
        numbers = [number for number, kind in enumerate(self.kinds) if kind == "group"]
        return [np.flatnonzero(self.links[number]).tolist() for number in numbers]


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
            hours, or in the unit of the heading or cell (s, min, h, d).
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
        _check(option, value)
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
    rows = side_tables.read_side_table(file, _COLUMNS)
    keys = [_component(row, topology, groups) for row in rows]
    side_tables.require_once(rows, keys, "each component")
    return {key: _availability(row) for key, row in zip(keys, rows, strict=True)}


def _component(
    row: side_tables.Row, topology: Topology, groups: set[str]
) -> tuple[str, frozenset[int] | str]:
    """Kind of the component of a row, and its links or its name."""
    source, target = row.text("source"), row.text("target")
    named = [name for name in ("source", "node", "group") if row.text(name)]
    if len(named) != 1 or bool(source) != bool(target):
        raise InputError(row.where, "", "source and target, or node, or group", ", ".join(named))
    if named == ["source"]:
        try:
            cable = frozenset(topology.find_links(source, target))
        except InputError as error:
            found = f"{source} - {target} ({error})"
            raise InputError(row.where, "", f"a cable of {topology.name}", found) from None
        if cable not in map(frozenset, topology.cables()):
            found = f"{source} - {target}"
            expected = "a whole cable, by the names of its nodes"
            raise InputError(row.where, "", expected, found)
        return "cable", cable
    if named == ["node"]:
        return "node", topology.node_names[row.node("node", topology)]
    group = row.text("group")
    if group not in groups:
        raise InputError(row.where, "group", "a group of --groups", repr(group))
    return "group", group


def _availability(row: side_tables.Row) -> float:
    """Availability of a row."""
    given = [name for name in ("availability", "mtbf", "mttr") if row.values.get(name) is not None]
    if given == ["availability"]:
        value = float(row.values["availability"])
    elif given == ["mtbf", "mttr"]:
        up = row.number("mtbf")
        down = row.number("mttr")
        value = up / (up + down)
    else:
        found = ", ".join(given) or "neither"
        raise InputError(row.where, "", "availability, or both mtbf and mttr", found)
    _check(row.where, value)
    return value


def _check(where: str, value: float) -> None:
    if _LEAST <= value <= 1:
        return
    hint = ""
    if _LEAST <= value / 100 <= 1:
        hint = f"; {value:g}% is {value / 100:g}"
    elif 0 <= value < _LEAST:
        hint = "; a link that is out of service has the status down in the table of links"
    raise InputError(where, "", f"an availability in [{_LEAST}, 1]{hint}", f"{value:g}")
