"""Independently failing components of a network (cables, nodes, groups of cables) and the
availability of each.

An availability is given directly, or as mean time between failures and mean time to repair,

    availability = mtbf / (mtbf + mttr),

where the mean time between failures runs from a repair to the next failure. Entry point:
:func:`components_of`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from teal import InputError, Topology
from teal.formats import side_tables
from teal.network.failures import Failure, cable_failures, group_failures, node_failures
from teal.runtime.arrays import BoolArray, FloatArray

# Smallest availability of a component; the enumeration of states needs an unavailability of at
# most 0.5.
_MIN_AVAILABILITY = 0.5
# Smallest accepted probability that all components work at once: below it, too many states are
# probable to enumerate them.
_MIN_ALL_UP_PROBABILITY = 0.01
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
    """The n components of a network that can fail.

    Attributes:
        names: name of each component.
        kinds: kind of each component: cable, node or group.
        links: (n, E) whether each link fails with the component.
        unavailability: (n,) share of the time in which the component is down, in (0, 0.5].
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    links: BoolArray
    unavailability: FloatArray

    def __len__(self) -> int:
        """Return the number of components that can fail."""
        return len(self.names)

    @property
    def groups(self) -> list[list[int]]:
        """The link indices of each group of cables that fail together."""
        group_indices = [index for index, kind in enumerate(self.kinds) if kind == "group"]
        return [np.flatnonzero(self.links[index]).tolist() for index in group_indices]


def components_of(
    topology: Topology,
    *,
    file: Path | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    cable_availability: float = 0.999,
    node_availability: float = 1.0,
    group_availability: float = 1.0,
) -> Components:
    """List the components of a network; components with availability 1 are omitted.

    Args:
        topology: the network.
        file: table (.csv, .xlsx) of availabilities, or None. Its columns are ``source`` and
            ``target``, or ``node``, or ``group``; and ``availability``, or ``mtbf`` and ``mttr`` in
            hours, or in the unit of the heading or cell (s, min, h, d).
        groups: link indices of each group of cables that fail together, by group name.
        cable_availability: availability of cables that the file does not list.
        node_availability: availability of nodes that the file does not list.
        group_availability: availability of groups that the file does not list.

    Raises:
        InputError: an invalid availability, an unknown component, or availabilities so low that all
            components hardly ever work at once.
    """
    # List cables with capacity, nodes and groups, with the default availability of their kind.
    cables = [
        candidate
        for candidate in cable_failures(topology)
        if topology.capacity[list(candidate.links)].any()
    ]
    failures = [
        *((candidate, cable_availability) for candidate in cables),
        *((candidate, node_availability) for candidate in node_failures(topology)),
        *((candidate, group_availability) for candidate in group_failures(groups or {})),
    ]
    for option, value in (
        ("--cable-availability", cable_availability),
        ("--node-availability", node_availability),
        ("--group-availability", group_availability),
    ):
        _check_availability(option, value)
    # Availabilities of the file, by kind and links (cables) or kind and name (nodes, groups).
    file_availability = (
        {} if file is None else _read_availabilities(file, topology, set(groups or {}))
    )
    # Keep the components with an availability below 1; the file takes precedence.
    failing: list[tuple[Failure, float]] = []
    for failure, default_availability in failures:
        component_key = (
            ("cable", frozenset(failure.links))
            if failure.kind == "cable"
            else (failure.kind, failure.name)
        )
        availability = file_availability.pop(component_key, default_availability)
        if availability < 1:
            failing.append((failure, 1 - availability))
    # Arrays of the failing components: unavailabilities, and (n, E) links that fail with each.
    unavailability = np.array([probability for _, probability in failing], dtype=np.float64)
    _check_all_up(unavailability)
    link_indices = np.arange(topology.num_links)
    links = np.array([np.isin(link_indices, failure.links) for failure, _ in failing], dtype=bool)
    return Components(
        tuple(failure.name for failure, _ in failing),
        tuple(failure.kind for failure, _ in failing),
        links.reshape(len(failing), topology.num_links),
        unavailability,
    )


def _check_all_up(unavailability: FloatArray) -> None:
    """Raise InputError if all components hardly ever work at once.

    Args:
        unavailability: (n,) unavailability of each component.
    """
    all_up = float(np.prod(1 - unavailability))
    if all_up < _MIN_ALL_UP_PROBABILITY:
        raise InputError.invalid(
            "availabilities",
            "",
            f"all components work at once in only {100 * all_up:.2g}% of the time, less than "
            f"{100 * _MIN_ALL_UP_PROBABILITY:g}%",
            "raise the availabilities",
        )


def _read_availabilities(
    file: Path, topology: Topology, groups: set[str]
) -> dict[tuple[str, frozenset[int] | str], float]:
    """Read a table of availabilities.

    Args:
        file: the table (.csv, .xlsx).
        topology: the network.
        groups: names of the known groups.

    Returns:
        availability by kind and links (cables), or by kind and name (nodes, groups).
    """
    rows = side_tables.read_side_table(file, _COLUMNS)
    keys = [_parse_component(row, topology, groups) for row in rows]
    side_tables.require_once(rows, keys, "each component")
    return {key: _parse_availability(row) for key, row in zip(keys, rows, strict=True)}


def _parse_component(
    row: side_tables.Row, topology: Topology, groups: set[str]
) -> tuple[str, frozenset[int] | str]:
    """Return the kind of the component of a table row, and its links (cables) or its name
    (nodes, groups).

    Args:
        row: row of the table.
        topology: the network.
        groups: names of the known groups.

    Raises:
        InputError: the row names no component or several, or an unknown cable, node or group.
    """
    source = row.text("source")
    target = row.text("target")
    named_columns = [name for name in ("source", "node", "group") if row.text(name)]
    if len(named_columns) != 1 or bool(source) != bool(target):
        raise InputError.invalid(
            row.where,
            "",
            "the row does not name one component",
            "fill in source and target, or node, or group",
        )
    # A cable, by its two nodes: all links between them.
    if named_columns == ["source"]:
        try:
            cable = frozenset(topology.find_links(source, target))
        except InputError as error:
            actual = f"{source} - {target} ({error})"
            raise InputError(row.where, "", f"a cable of {topology.name}", actual) from None
        if cable not in map(frozenset, topology.cables()):
            actual = f"{source} - {target}"
            expected = "a cable, by the names of its two nodes without a suffix such as #2"
            raise InputError(row.where, "", expected, actual)
        return "cable", cable
    # A node or a group, by its name.
    if named_columns == ["node"]:
        return "node", topology.node_names[row.node("node", topology)]
    group = row.text("group")
    if group not in groups:
        raise InputError(row.where, "group", "a group in the --groups file", repr(group))
    return "group", group


def _parse_availability(row: side_tables.Row) -> float:
    """Return the availability of a table row: given directly, or computed as mtbf / (mtbf + mttr).

    Args:
        row: row of the table.

    Raises:
        InputError: the row has neither or both, or a number out of range.
    """
    # Columns with a value in this row.
    present_columns = [
        name for name in ("availability", "mtbf", "mttr") if row.values.get(name) is not None
    ]
    if present_columns == ["availability"]:
        value = float(row.values["availability"])
    elif present_columns == ["mtbf", "mttr"]:
        time_between_failures = row.number("mtbf")
        time_to_repair = row.number("mttr")
        value = time_between_failures / (time_between_failures + time_to_repair)
    else:
        raise InputError.invalid(
            row.where,
            "",
            f"the row has {' and '.join(present_columns) or 'no availability'}",
            "fill in availability, or both mtbf and mttr",
        )
    _check_availability(row.where, value)
    return value


def _check_availability(location: str, value: float) -> None:
    """Raise InputError for a number outside the accepted availabilities, from 0.5 to 1.

    Args:
        location: option or table row of the number, for the message.
        value: the number.
    """
    if _MIN_AVAILABILITY <= value <= 1:
        return
    hint = ""
    if _MIN_AVAILABILITY <= value / 100 <= 1:
        hint = f"; {value:g}% is {value / 100:g}"
    elif 0 <= value < _MIN_AVAILABILITY:
        hint = "; give a link out of service the status down in the table of links"
    raise InputError(
        location, "", f"an availability in [{_MIN_AVAILABILITY}, 1]{hint}", f"{value:g}"
    )
