"""Table of routers: primary names, aliases in files and counters, and segment routing attributes.

A .csv or .xlsx file with the column ``name`` and these optional columns:

- ``aliases``: other names, separated by spaces or semicolons;
- ``router_id``, ``fqdn``, ``system_id``: further names;
- ``loopback``: address at which policies end;
- ``sid``: index of the node segment, as in ``segment-routing prefix ... index N``;
- ``sid_128`` to ``sid_255``: index of the node segment in a flexible algorithm, as in
  ``prefix-sid algorithm 128 index N``;
- ``srgb``: first label of the router's global block (SRGB), or first and last, as 16000-23999; the
  default is 16000;
- ``site``: site of the router;
- ``vendor``: frr, iosxr or junos, which decides the syntax of its configuration;
- ``overload``: ``yes`` if the router carries no transit traffic, as with the overload bit of IS-IS.

Networks use the names of column ``name``; traffic, counters, interfaces and policies may use any
alias.  Entry point: :func:`read_routers`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from teal.errors import WARNING, InputError, listed
from teal.formats.cells import CellTable, plain_heading, read_cells
from teal.formats.records import is_true
from teal.network import Topology
from teal.network.topology import Names

# Default start of the segment routing global block.
SRGB_BASE = 16_000
# Largest MPLS label (20 bits).
MAX_LABEL = (1 << 20) - 1
# Smaller labels are reserved (RFC 3032).
_MIN_LABEL = 16
VENDORS = ("frr", "iosxr", "junos")
_ALIAS_COLUMNS = ("aliases", "router_id", "fqdn", "system_id", "loopback")
# Column of the SIDs of a flexible algorithm.
_ALGORITHM_SID = re.compile(r"sid_(12[89]|1[3-9]\d|2[0-4]\d|25[0-5])")
_COLUMNS = ("name", *_ALIAS_COLUMNS, "sid", "srgb", "site", "vendor", "overload")


@dataclasses.dataclass(frozen=True)
class Router:
    """Router with its names and attributes, as a row of the table of routers gives them.

    Attributes:
        name: name in the network.
        aliases: other names.
        loopback: address at which policies end; "" if unknown.
        sid: index of the node segment; None if unknown.
        srgb: first label of the global block.
        site: site; "" if unknown.
        vendor: one of :data:`VENDORS`; "" if unknown.
        algorithm_sids: pairs of a flexible algorithm's number and the index of the router's node
            segment in it.
        is_overloaded: whether the router carries no transit traffic.
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
        """Return the index of the node segment in an algorithm, 0 for the IGP itself; None if
        unknown.
        """
        return dict(self.algorithm_sids).get(algorithm) if algorithm else self.sid


class Routers(Mapping[str, Router]):
    """Mapping from names to the routers of a table, which also resolves their aliases.

    Args:
        routers: routers in the order of the table.
        where: name of the file, for messages.
        unused: names of unused columns, for a note.

    Raises:
        InputError: a name, an alias or a SID of two routers.
    """

    def __init__(
        self, routers: list[Router], where: str = "routers", unused: tuple[str, ...] = ()
    ) -> None:
        """Index the routers by name and alias; check that names, aliases and SIDs are unique."""
        self._by_name = {router.name: router for router in routers}
        self.where = where
        self._unused = unused
        # Each SID belongs to one router in one algorithm.
        owner_of_sid: dict[int, str] = {}
        for router in routers:
            owned_sids = [] if router.sid is None else [(router.name, router.sid)]
            owned_sids += [
                (f"{router.name} in algorithm {algorithm}", sid)
                for algorithm, sid in router.algorithm_sids
            ]
            for owner, sid in owned_sids:
                if owner_of_sid.setdefault(sid, owner) != owner:
                    raise InputError.invalid(
                        where,
                        f"sid {sid}",
                        f"two routers or algorithms have this SID: {owner_of_sid[sid]} and {owner}",
                        "change one",
                    )
        # Each alias belongs to one router.
        self._names = Names()
        for router in routers:
            for alias in (router.name, *router.aliases):
                owner = self._names.add(alias, router.name)
                if owner != router.name:
                    raise InputError.invalid(
                        where,
                        alias,
                        f"two routers have this name: {owner} and {router.name}",
                        "change one",
                    )
        # Each router has one row.
        if len(self._by_name) < len(routers):
            names = [router.name for router in routers]
            duplicate = next(name for index, name in enumerate(names) if name in names[:index])
            raise InputError.invalid(
                where, "name", f"two rows have the name {duplicate}", "remove one"
            )

    def __getitem__(self, name: str) -> Router:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def name_of(self, name: str) -> str:
        """Return the router's name for any of its aliases; ``name`` itself if it is unknown."""
        return self._names.resolve(name)

    def _old_names(self, topology: Topology) -> dict[str, str]:
        """Return the name of each node in the network by its name in this table, in node order.

        Raises:
            InputError: two nodes of the network are names of one router.
        """
        old_name_of: dict[str, str] = {}
        for old_name in topology.node_names:
            name = self.name_of(old_name)
            if name in old_name_of:
                raise InputError.invalid(
                    self.where,
                    name,
                    f"two nodes of the network are this router: {old_name_of[name]} and {old_name}",
                    "change the aliases",
                )
            old_name_of[name] = old_name
        return old_name_of

    def apply_to(self, topology: Topology) -> Topology:
        """Return the network with the facts of this table: nodes have the names of the table and
        its aliases, overloaded routers carry no transit traffic, and notes name the nodes and rows
        that have no counterpart.

        Args:
            topology: the network; its nodes may be named by aliases.

        Raises:
            InputError: two nodes of the network are names of one router.
        """
        old_name_of = self._old_names(topology)
        names = tuple(old_name_of)
        # Note nodes without a row, and rows without a node.
        unknown_nodes = [name for name in names if name not in self]
        unused_rows = [name for name in self if name not in old_name_of]
        notes = list(topology.notes)
        if self._unused:
            notes.append(f"{self.where}: unused columns: {', '.join(self._unused)}.")
        if unknown_nodes:
            notes.append(
                f"{WARNING}{self.where}: nodes that are not in the table of routers: "
                f"{listed(unknown_nodes)}."
            )
        if unused_rows:
            notes.append(
                f"{self.where}: routers that are not in the network: {listed(unused_rows)}."
            )
        # Aliases of the nodes: those of the table, and their former names.
        aliases = {
            alias: router.name
            for router in self.values()
            if router.name in old_name_of
            for alias in router.aliases
        }
        aliases |= {old_name: name for name, old_name in old_name_of.items() if old_name != name}
        # (N,) whether a node carries no transit traffic, by the table or the network's file.
        no_transit = np.array([name in self and self[name].is_overloaded for name in names])
        if topology.no_transit is not None:
            no_transit |= topology.no_transit
        return dataclasses.replace(
            topology,
            node_names=names,
            notes=tuple(notes),
            aliases=aliases,
            no_transit=no_transit if no_transit.any() else None,
        )


def read_routers(path: Path) -> Routers:
    """Read the table of routers in a .csv or .xlsx file.

    Raises:
        InputError: a missing file, no column ``name``, or an invalid cell.
    """
    table = read_cells(path)
    where = table.where
    is_used_column = _used_columns(table)
    sid_columns = [
        name for name in map(plain_heading, table.header) if _ALGORITHM_SID.fullmatch(name)
    ]
    # One router for each row, and the largest SID that fits its label block (SRGB).
    routers = list[Router]()
    max_sids = list[tuple[str, int]]()
    largest_sid = _LargestSid()
    # Arguments: columns to read, and those of them that are numeric.
    for field, cell in table.records((*_COLUMNS, *sid_columns), ("sid", "srgb", *sid_columns)):
        router, max_sid = _parse_router(cell, sid_columns, where, field)
        routers.append(router)
        max_sids.append((f"{field}: srgb", max_sid))
        largest_sid = largest_sid.updated(router, field)
    if not routers:
        raise InputError.invalid(where, "", "the table has no rows", "add a row for each router")
    # Every router needs a label for the SIDs of all routers in its own block.
    for field, max_sid in max_sids:
        if largest_sid.sid > max_sid:
            raise InputError.invalid(
                where,
                field,
                f"the block has labels for SIDs up to {max_sid:,}, but a router has SID "
                f"{largest_sid.sid:,} ({largest_sid.field})",
                "enlarge the block",
            )
    unused = tuple(
        text
        for text, is_used in zip(table.header, is_used_column, strict=True)
        if text.strip() and not is_used
    )
    return Routers(routers, where, unused)


class _LargestSid(NamedTuple):
    """Largest index of a node segment in a table, and the row that has it.

    Attributes:
        sid: the index; 0 for none.
        field: the row, for messages.
    """

    sid: int = 0
    field: str = ""

    def updated(self, router: Router, field: str) -> _LargestSid:
        """Return the largest of this index and the indices of a router in row ``field``, with the
        row that has it.
        """
        sid = max([router.sid or 0, *(index for _, index in router.algorithm_sids)])
        return _LargestSid(sid, field) if sid > self.sid else self


def _used_columns(table: CellTable) -> list[bool]:
    """Return whether each column of the table, in the order of its header, has a meaning for
    routers.

    Raises:
        InputError: no column ``name``, or a used column twice.
    """
    # The column name is required.
    normalised = [plain_heading(name) for name in table.header]
    if "name" not in normalised:
        raise InputError(
            table.where,
            "name",
            f"a column name, optionally with {', '.join(_COLUMNS[1:])}",
            ", ".join(table.header),
        )
    is_used_column = [
        name in _COLUMNS or _ALGORITHM_SID.fullmatch(name) is not None for name in normalised
    ]
    # Each used column occurs once.
    duplicates = [
        name
        for name, is_used in zip(normalised, is_used_column, strict=True)
        if is_used and normalised.count(name) > 1
    ]
    if duplicates:
        raise InputError.invalid(
            table.where,
            duplicates[0],
            f"{normalised.count(duplicates[0])} columns have this name",
            "keep one",
        )
    return is_used_column


def _parse_router(
    cells: dict[str, str], sid_columns: list[str], where: str, field: str
) -> tuple[Router, int]:
    """Parse the router of a table row.

    Args:
        cells: text of each column, by its name; "" for an empty cell.
        sid_columns: names of the columns ``sid_128`` to ``sid_255`` that the table has.
        where: name of the file, for messages.
        field: the row, for messages.

    Returns:
        The router, and the largest SID index for which its label block has a label.

    Raises:
        InputError: an invalid cell.
    """
    if not cells["name"]:
        raise InputError(where, f"{field}: name", "a name of a router", "an empty cell")
    # Address, vendor, and labels.
    loopback = _parse_address(cells.get("loopback", ""), where, f"{field}: loopback")
    vendor = re.sub(r"[\s_-]", "", cells.get("vendor", "").lower())
    if vendor and vendor not in VENDORS:
        expected = f"one of {', '.join(VENDORS)}"
        raise InputError(where, f"{field}: vendor", expected, repr(cells["vendor"]))
    sid = _parse_integer(cells.get("sid", ""), where, f"{field}: sid")
    first_label, last_label = _parse_srgb(cells.get("srgb", ""), where, f"{field}: srgb")
    algorithm_sids = list[tuple[int, int]]()
    for column in sid_columns:
        index = _parse_integer(cells[column], where, f"{field}: {column}")
        if index is not None:
            algorithm_sids.append((int(column.removeprefix("sid_")), index))
    # Aliases, each once; the loopback address is one of them.
    names = [
        name
        for column in _ALIAS_COLUMNS
        for name in re.split(r"[\s;]+", cells.get(column, ""))
        if name
    ]
    aliases = dict.fromkeys([*names, loopback] if loopback else names)
    # In order: name, aliases, loopback, SID, start of the label block, site, vendor, SIDs of
    # flexible algorithms, and whether the router is overloaded.
    router = Router(
        cells["name"],
        tuple(aliases),
        loopback,
        sid,
        first_label,
        cells.get("site", ""),
        vendor,
        tuple(algorithm_sids),
        is_true(cells.get("overload"), where, f"{field}: overload"),
    )
    return router, last_label - first_label


def _parse_address(text: str, where: str, field: str) -> str:
    """Return an IP address without prefix length in canonical form; "" for an empty cell."""
    if not text:
        return ""
    try:
        return str(ipaddress.ip_interface(text).ip)
    except ValueError:
        raise InputError(where, field, "an address such as 10.0.0.1", repr(text)) from None


def _parse_srgb(text: str, where: str, field: str) -> tuple[int, int]:
    """Parse the first and last label of a segment routing global block (SRGB).

    Args:
        text: ``16000`` or ``16000-23999``; "" for the default start.  Without a last label the
            block ends at the largest MPLS label.
        where: name of the file, for messages.
        field: the cell, for messages.

    Raises:
        InputError: another text, or labels out of range.
    """
    first, dash, last = text.partition("-")
    start = _parse_integer(first.strip(), where, field) if text else SRGB_BASE
    end = _parse_integer(last.strip(), where, field) if dash else MAX_LABEL
    if start is None or end is None or not _MIN_LABEL <= start <= end <= MAX_LABEL:
        expected = f"a label from {_MIN_LABEL:,} to {MAX_LABEL:,}, or a range such as 16000-23999"
        raise InputError(where, field, expected, repr(text))
    return start, end


def _parse_integer(text: str, where: str, field: str) -> int | None:
    """Parse a cell with an integer >= 0; None for an empty cell.

    Args:
        text: text of the cell.
        where: name of the file, for messages.
        field: the cell, for messages.
    """
    if not text:
        return None
    # Spreadsheets write integers as 1.0.
    match = re.fullmatch(r"([0-9]+)(?:\.0*)?", text)
    if match is None:
        raise InputError(where, field, "an integer >= 0", repr(text))
    return int(match[1])
