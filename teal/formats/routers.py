"""The table of routers: one name for each, the others by which files and counters call it, and what
policies need.

A .csv or .xlsx file with the columns ``name`` and, as far as they are known,

| column | what |
|---|---|
| ``aliases`` | other names, separated by spaces or semicolons |
| ``router_id``, ``fqdn``, ``system_id`` | further names |
| ``loopback`` | address at which policies end |
| ``sid`` | index of the node segment, as in ``segment-routing prefix ... index N`` |
| ``sid_128`` to ``sid_255`` | likewise, of a flexible algorithm: ``prefix-sid algorithm 128 index N`` |
| ``srgb`` | first label of the router's global block (SRGB), or both ends, 16000-23999; 16000 by default |
| ``site``, ``vendor`` | of the router; the vendor (frr, iosxr, junos) decides the form of its configuration |
| ``overload`` | ``yes``: the router carries no transit traffic, as with the overload bit of IS-IS |

Networks keep the names of this column ``name``; traffic, counters, interfaces and policies may use
any.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from teal.errors import WARNING, InputError, listed
from teal.formats.cells import plain_heading, read_cells
from teal.formats.records import is_true
from teal.network import Topology
from teal.network.topology import Names

SRGB_BASE = 16_000  # the usual first label
MAX_LABEL = (1 << 20) - 1  # the largest MPLS label
_MIN_LABEL = 16  # smaller labels are reserved (RFC 3032)
VENDORS = ("frr", "iosxr", "junos")
_ALIAS_COLUMNS = ("aliases", "router_id", "fqdn", "system_id", "loopback")
_OF_ALGORITHM = re.compile(
    r"sid_(12[89]|1[3-9]\d|2[0-4]\d|25[0-5])"
)  # column of SIDs of an algorithm
_COLUMNS = ("name", *_ALIAS_COLUMNS, "sid", "srgb", "site", "vendor", "overload")


@dataclasses.dataclass(frozen=True)
class Router:
    """A router.

    Attributes:
        name: name in the network.
        aliases: other names.
        loopback: address at which policies end; "" if unknown.
        sid: index of the node segment; None if unknown.
        srgb: first label of the global block.
        site: place; "" if unknown.
        vendor: one of :data:`VENDORS`; "" if unknown.
        algorithm_sids: numbers of flexible algorithms, and the index of the router's node segment
            in each.
        is_overloaded: whether it carries no transit traffic.
    """

    name: str
    aliases: tuple[str, ...] = ()
    loopback: str = ""
    sid: int | None = None
    srgb: int = SRGB_BASE
    site: str = ""
    vendor: str = ""
    algorithm_sids: tuple[tuple[int, int], ...] = ()
    is_overloaded: bool = False

    def sid_of(self, algorithm: int) -> int | None:
        """Index of the node segment in an algorithm, 0 for the IGP itself; None if unknown."""
        return dict(self.algorithm_sids).get(algorithm) if algorithm else self.sid


class Routers(Mapping[str, Router]):
    """The routers of a table, by name.

    Args:
        routers: in the order of the table.
        where: the file, for messages.
        unused: names of columns that say nothing, for a note.

    Raises:
        InputError: a name, an alias or a SID that two routers have.
    """

    def __init__(
        self, routers: list[Router], where: str = "routers", unused: tuple[str, ...] = ()
    ) -> None:
        self._by_name = {one.name: one for one in routers}
        self.where, self._unused = where, unused
        users: dict[int, str] = {}
        for one in routers:
            own = [] if one.sid is None else [("", one.sid)]
            for use, sid in [
                *own,
                *((f" in algorithm {number}", sid) for number, sid in one.algorithm_sids),
            ]:
                if users.setdefault(sid, one.name + use) != one.name + use:
                    expected = "that of one router in one algorithm"
                    raise InputError(
                        where, f"sid {sid}", expected, f"{users[sid]} and {one.name}{use}"
                    )
        self._names = Names()
        for one in routers:
            for other in (one.name, *one.aliases):
                taken = self._names.add(other, one.name)
                if taken != one.name:
                    raise InputError(
                        where,
                        other,
                        "names that one router has",
                        f"those of {taken} and {one.name}",
                    )
        if len(self._by_name) < len(routers):
            names = [one.name for one in routers]
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            raise InputError(where, "name", "each router once", f"{twice} twice")

    def __getitem__(self, name: str) -> Router:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def name_of(self, name: str) -> str:
        """The router's name for any of its names; ``name`` itself if it is unknown."""
        return self._names.own(name)

    def applied(self, topology: Topology) -> Topology:
        """The network with the names of the table; nodes and rows that do not match are noted.

        Raises:
            InputError: two nodes are one router.
        """
        names = tuple(self.name_of(name) for name in topology.node_names)
        seen: dict[str, str] = {}
        for before, name in zip(topology.node_names, names, strict=True):
            if name in seen:
                raise InputError(
                    self.where, name, "one node of the network", f"{seen[name]} and {before}"
                )
            seen[name] = before
        unknown, unused = (
            [name for name in names if name not in self],
            [name for name in self if name not in seen],
        )
        notes = list(topology.notes)
        if self._unused:
            notes.append(f"{self.where}: columns that are not used: {', '.join(self._unused)}.")
        if unknown:
            notes.append(
                f"{WARNING}{self.where}: nodes that are not in the table of routers: "
                f"{listed(unknown)}."
            )
        if unused:
            notes.append(f"{self.where}: routers that are not in the network: {listed(unused)}.")
        aliases = {
            alias: one.name for one in self.values() if one.name in seen for alias in one.aliases
        }
        aliases |= {before: name for name, before in seen.items() if before != name}
        stubs = np.array([name in self and self[name].is_overloaded for name in names])
        if topology.no_transit is not None:
            stubs |= topology.no_transit
        return dataclasses.replace(
            topology,
            node_names=names,
            notes=tuple(notes),
            aliases=aliases,
            no_transit=stubs if stubs.any() else None,
        )


def read_routers(path: Path) -> Routers:
    """Read a table of routers.

    Raises:
        InputError: no such file, no column ``name``, or a cell that is not what its column says.
    """
    table = read_cells(path)
    where, header = table.where, table.header
    plain = [plain_heading(name) for name in header]
    if "name" not in plain:
        raise InputError(
            where,
            "name",
            f"a column name, and perhaps {', '.join(_COLUMNS[1:])}",
            ", ".join(header),
        )
    used = [name in _COLUMNS or _OF_ALGORITHM.fullmatch(name) is not None for name in plain]
    twice = [
        name for name, is_used in zip(plain, used, strict=True) if is_used and plain.count(name) > 1
    ]
    if twice:
        raise InputError(where, twice[0], "each column once", f"{plain.count(twice[0])} of them")
    algorithms = [name for name in plain if _OF_ALGORITHM.fullmatch(name)]
    routers = list[Router]()
    last_indices = list[
        tuple[str, int]
    ]()  # of the blocks of labels, with the places of those that say their end
    largest, of_largest = 0, ""  # of all indices, and the row that has it
    for field, cell in table.records((*_COLUMNS, *algorithms), ("sid", "srgb", *algorithms)):
        if not cell["name"]:
            raise InputError(where, f"{field}: name", "a name of a router", "an empty cell")
        loopback = _address(cell.get("loopback", ""), where, f"{field}: loopback")
        vendor = re.sub(r"[\s_-]", "", cell.get("vendor", "").lower())
        if vendor and vendor not in VENDORS:
            raise InputError(where, f"{field}: vendor", ", ".join(VENDORS), repr(cell["vendor"]))
        sid = _number(cell.get("sid", ""), where, f"{field}: sid")
        srgb, last = _block(cell.get("srgb", ""), where, f"{field}: srgb")
        last_indices.append((f"{field}: srgb", last - srgb))
        sids = list[tuple[int, int]]()
        for name in algorithms:
            index = _number(cell[name], where, f"{field}: {name}")
            if index is not None:
                sids.append((int(name.removeprefix("sid_")), index))
        own = max([sid or 0, *(index for _, index in sids)])
        if own > largest:
            largest, of_largest = own, field
        names = [
            name
            for column in _ALIAS_COLUMNS
            for name in re.split(r"[\s;]+", cell.get(column, ""))
            if name
        ]
        aliases = dict.fromkeys([*names, loopback] if loopback else names)
        routers.append(
            Router(
                cell["name"],
                tuple(aliases),
                loopback,
                sid,
                srgb,
                cell.get("site", ""),
                vendor,
                tuple(sids),
                is_true(cell.get("overload"), where, f"{field}: overload"),
            )
        )
    if not routers:
        raise InputError(where, "", "a row for each router", "none")
    for field, last in last_indices:  # every router reads labels of all others
        if largest > last:
            expected = f"a block with a label for sid {largest:,} ({of_largest})"
            raise InputError(where, field, expected, f"labels up to that of {last:,}")
    unused = tuple(
        text for text, is_used in zip(header, used, strict=True) if text.strip() and not is_used
    )
    return Routers(routers, where, unused)


def _address(text: str, where: str, field: str) -> str:
    """The address in its usual form; "" for an empty cell."""
    if not text:
        return ""
    try:
        return str(ipaddress.ip_interface(text).ip)
    except ValueError:
        raise InputError(where, field, "an address such as 10.0.0.1", repr(text)) from None


def _block(text: str, where: str, field: str) -> tuple[int, int]:
    """First and last label of a global block, from ``16000`` or ``16000-23999``."""
    first, dash, last = text.partition("-")
    start = _number(first.strip(), where, field) if text else SRGB_BASE
    end = _number(last.strip(), where, field) if dash else MAX_LABEL
    if start is None or end is None or not _MIN_LABEL <= start <= end <= MAX_LABEL:
        expected = f"a label from {_MIN_LABEL} to {MAX_LABEL:,}, or two such as 16000-23999"
        raise InputError(where, field, expected, repr(text))
    return start, end


def _number(text: str, where: str, field: str) -> int | None:
    if not text:
        return None
    found = re.fullmatch(r"([0-9]+)(?:\.0*)?", text)  # spreadsheets write 1.0
    if found is None:
        raise InputError(where, field, "a whole number of at least 0", repr(text))
    return int(found[1])
