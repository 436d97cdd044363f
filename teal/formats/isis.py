"""Reader of IS-IS databases as printed by FRR: ``vtysh -c "show isis database detail json"``, of
one instance or of ``vrf all``.

Routers are identified by system IDs in adjacencies.  Where link-state packets (LSPs) are named by
host names, these are matched by the order of the database, which is that of system IDs, provided
that each router then has an adjacency and each adjacency is stated by both ends; otherwise the file
is refused.

Expired LSPs are not used (ISO 10589 7.3.16), nor those of a router whose first LSP is missing
(7.2.5).  A router with the overload bit carries no transit traffic (7.2.8.1).  Of an adjacency at
both levels, level 1 counts, and wide metrics before narrow ones.  Entry point: :func:`read_isis`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from teal.errors import WARNING, InputError
from teal.formats.adjacencies import LEVEL_RANK, Adjacency, LinkStates, topology_of_states
from teal.formats.parts import objects_of, optional_number, text_of
from teal.network import Topology

COMMAND = "show isis database detail json"
_SYSTEM_ID = re.compile(r"[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}", re.IGNORECASE)
# Names of the IPv4 topology.
_IPV4_TOPOLOGIES = (
    "",
    "extended",
    "old",
    "standard",
    "ipv4-unicast",
    "0",
)
# ISO 10589 7.2.2: the largest narrow metric, which also stands for all larger wide ones.
_MAX_NARROW_METRIC = 63
# Keys of FRR's JSON with neighbours, and the rank of their metrics: wide (0) before narrow (1).
_METRIC_RANKS = {"extReach": 0, "mtReach": 0, "oldReach": 1}


def is_isis(document: Any) -> bool:
    """Return whether a JSON document is an IS-IS database, of one instance or several."""
    if not isinstance(document, dict):
        return False
    return isinstance(document.get("areas"), list) or isinstance(document.get("vrfs"), list)


def _only_vrf_with_areas(document: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the part of the only VRF with areas.

    Raises:
        InputError: no VRF, or several, with areas.
    """
    vrfs_with_areas = [
        vrf for vrf in objects_of(document["vrfs"], where, "vrfs") if vrf.get("areas")
    ]
    if len(vrfs_with_areas) != 1:
        raise InputError.invalid(
            where,
            "vrfs",
            f"{len(vrfs_with_areas)} VRFs have areas, but only one can be read",
            'use vtysh -c "show isis vrf NAME database detail json"',
        )
    return vrfs_with_areas[0]


def read_isis(document: dict[str, Any], path: Path, default_capacity: float | None) -> Topology:
    """Read the network of an IS-IS database.

    Args:
        document: parsed JSON of FRR.
        path: path of the file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.

    Raises:
        InputError: several instances, the incomplete JSON of FRR 8, host names that cannot be
            matched, or an error of :func:`topology_of_states`.
    """
    where = str(path)
    if "vrfs" in document:
        document = _only_vrf_with_areas(document, where)
    # Collect the adjacencies of all levels, and the (source, target) pairs of each level.
    states = LinkStates()
    ends_of_level: dict[int, set[tuple[str, str]]] = {}
    for area in objects_of(document["areas"], where, "areas"):
        for level in objects_of(area.get("levels", []), where, "levels"):
            if "lsp" in level:
                raise InputError.invalid(
                    where,
                    "lsp",
                    "this is the JSON of FRR 8, which has only one packet and one neighbour",
                    "use FRR 9 or later, or the OSPF database",
                )
            # Adjacencies of the routers of this level.
            level_number = int(optional_number(level.get("id"), where, "levels: id") or 0)
            originators = _read_originators(level.get("lsps", []), where, states)
            if not originators:
                continue
            num_adjacencies_before = len(states.adjacencies)
            _add_level(level_number, originators, where, states)
            ends = {
                (adjacency.source, adjacency.target)
                for adjacency in states.adjacencies[num_adjacencies_before:]
            }
            ends_of_level.setdefault(level_number, set()).update(ends)
    # Warn if two levels differ.
    if len(ends_of_level) > 1 and len(set(map(frozenset, ends_of_level.values()))) > 1:
        states.notes.append(
            f"{WARNING}{where}: levels {' and '.join(map(str, sorted(ends_of_level)))} are read as "
            "one network, although routers prefer paths within level 1: shortest paths may "
            "differ."
        )
    return topology_of_states(path, states, default_capacity)


class _NeighbourStatement(NamedTuple):
    """Statement of a link-state packet about one neighbour.

    Attributes:
        identity: system ID or host name of the neighbour, and pseudonode number.
        metric: IGP metric.
        interface: address or number of the router's interface; "" if unknown.
        rank: precedence among statements about one link; the smallest counts.
    """

    identity: str
    metric: float
    interface: str
    rank: int


class _Originator:
    """Router or broadcast network of a level, with the content of its link-state packets.

    Attributes:
        name: system ID or host name, and pseudonode number, 00 for a router.
        statements: stated neighbours.
        is_overloaded: whether it has the overload bit.
        has_first_packet: whether its first packet is present.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.statements: list[_NeighbourStatement] = []
        self.is_overloaded = False
        self.has_first_packet = False


def _read_originators(packets: Any, where: str, states: LinkStates) -> list[_Originator]:
    """Return the routers and broadcast networks of a level, in the order of the database.

    Args:
        packets: JSON list of the level's link-state packets.
        where: name of the file, for messages.
        states: collector of notes (written).

    Raises:
        InputError: an invalid packet, or two routers with one name.
    """
    originator_by_name: dict[str, _Originator] = {}
    expired: list[str] = []
    for index, packet in enumerate(objects_of(packets, where, "lsps")):
        field = f"lsps[{index}]"
        name, fragment = _parse_lsp_id(packet, where, field)
        # Expired packets are not used; the first packet of a router must be unique.
        if _has_expired(packet):
            expired.append(name)
            continue
        is_first = fragment in ("00", "0")
        if is_first and name in originator_by_name and originator_by_name[name].has_first_packet:
            raise InputError.invalid(
                where,
                f"{field}: lsp: id",
                f"two routers have the name {name}, since host names are cut",
                "configure no hostname dynamic",
            )
        originator = originator_by_name.setdefault(name, _Originator(name))
        originator.has_first_packet |= is_first
        # The overload bit is the last of the flags ATT/P/OL in the first packet.
        originator.is_overloaded |= (
            is_first and str(packet.get("attPOl", "")).rpartition("/")[2].strip() == "1"
        )
        originator.statements += _neighbours(packet, where, field)
    states.note_names(expired, "Packets whose lifetime has ended are not used")
    without_first = [
        originator.name
        for originator in originator_by_name.values()
        if not originator.has_first_packet
    ]
    states.note_names(without_first, "Routers whose first packet is missing are not used")
    return [originator for originator in originator_by_name.values() if originator.has_first_packet]


def _parse_lsp_id(packet: dict[str, Any], where: str, field: str) -> tuple[str, str]:
    """Return the name of a packet's router or network, and its fragment number, from an LSP ID such
    as ``0000.0000.0001.00-00``.

    Args:
        packet: JSON of the packet.
        where: name of the file, for messages.
        field: location in the file, for messages.
    """
    identity = packet.get("lsp")
    text = text_of(
        identity.get("id") if isinstance(identity, dict) else identity,
        where,
        f"{field}: lsp: id",
    )
    name, _, fragment = text.rpartition("-")
    if not name:
        raise InputError(
            where, f"{field}: lsp: id", "an LSP ID such as 0000.0000.0001.00-00", repr(fragment)
        )
    return name, fragment


def _neighbours(packet: dict[str, Any], where: str, field: str) -> list[_NeighbourStatement]:
    """Return the neighbours that a packet states: those with wide metrics, then those with narrow
    ones.
    """
    return [
        _parse_reach(entry, rank, where, f"{field}: {key}[{index}]")
        for key, rank in _METRIC_RANKS.items()
        for index, entry in enumerate(objects_of(packet.get(key) or [], where, f"{field}: {key}"))
    ]


def _has_expired(packet: dict[str, Any]) -> bool:
    """Return whether the remaining lifetime of a packet is 0; FRR then prints the seconds since
    expiry in brackets.
    """
    lifetime = str(packet.get("holdtime", packet.get("remainingLifetime", ""))).strip()
    return lifetime.startswith("(") or lifetime == "0"


def _parse_reach(entry: dict[str, Any], rank: int, where: str, field: str) -> _NeighbourStatement:
    """Parse the statement of a link-state packet about one neighbour.

    Args:
        entry: JSON of the neighbour.
        rank: precedence of its metric, 0 for wide and 1 for narrow; it is increased by 2 for
            another topology than IPv4.
        where: name of the file, for messages.
        field: the neighbour, for messages.
    """
    topology = str(entry.get("mtId", "")).lower()
    metric = optional_number(entry.get("metric"), where, f"{field}: metric")
    if metric is None:
        raise InputError.invalid(
            where,
            f"{field}: metric",
            "the neighbour has no metric",
            f'export the database by vtysh -c "{COMMAND}"',
        )
    is_other_topology = topology not in _IPV4_TOPOLOGIES
    identity = text_of(entry.get("id"), where, f"{field}: id")
    return _NeighbourStatement(identity, metric, _interface(entry), rank + 2 * is_other_topology)


def _interface(neighbour_entry: Any) -> str:
    """Return the address or number of the router's interface from a neighbour's sub-TLVs; "" for
    none.
    """
    names = (
        "localinterfaceipaddress",
        "ipv4interfaceaddress",
        "interfaceipaddress",
        "linklocalid",
        "localid",
    )
    # Search the nested JSON objects for a key with one of these names.
    pending = [neighbour_entry]
    while pending:
        for key, value in pending.pop().items():
            if isinstance(value, dict):
                pending.append(value)
            elif re.sub("[^a-z0-9]", "", key.lower()) in names and value not in (None, ""):
                return str(value)
    return ""


def _add_level(level: int, originators: list[_Originator], where: str, states: LinkStates) -> None:
    """Add the adjacencies of a level to ``states``.

    Args:
        level: number of the level, 1 or 2.
        originators: routers and broadcast networks of the level.
        where: name of the file, for messages.
        states: collector of adjacencies, networks, overloaded routers and notes (written).
    """
    # Router names by system ID, and vice versa; packets of routers have pseudonode number 00.
    routers = [originator for originator in originators if originator.name.endswith(".00")]
    name_of_identity = _router_names(routers, where, states)
    states.no_transit |= {
        originator.name[:-3] for originator in routers if originator.is_overloaded
    }
    identity_of_name = {name: identity for identity, name in name_of_identity.items()}
    # Adjacencies of each router or network to its neighbours.
    saturated_links: list[str] = []
    for originator in originators:
        # The source: a router, or a broadcast network, named by its router's system ID.
        owner, _, pseudonode = originator.name.rpartition(".")
        is_router = pseudonode == "00"
        source = owner
        if not is_router:
            source = f"{identity_of_name.get(owner, owner)}.{pseudonode}"
            states.networks.add(source)
        for statement in originator.statements:
            neighbour, pseudonode = _split_identity(statement.identity)
            target = (
                name_of_identity.get(neighbour)
                if pseudonode == "00"
                else f"{neighbour}.{pseudonode}"
            )
            # Skip neighbours of unknown name, and adjacencies of a router to itself.
            if target is None or target == source:
                continue
            # Rank 1 is a narrow metric of the IPv4 topology.
            if is_router and statement.rank == 1 and statement.metric == _MAX_NARROW_METRIC:
                saturated_links.append(f"{source} -> {target}")
            rank = statement.rank + LEVEL_RANK * level
            states.adjacencies.append(
                Adjacency(source, target, statement.metric, statement.interface, rank)
            )
    states.note_names(
        saturated_links, f"Narrow metrics of {_MAX_NARROW_METRIC}, which may stand for larger ones"
    )


def _split_identity(identity: str) -> tuple[str, str]:
    """Split a neighbour's identity into system ID or host name, and pseudonode number; 00 is the
    router itself.
    """
    head, dot, tail = identity.rpartition(".")
    return (head, tail) if dot and len(tail) == 2 else (identity, "00")


def _router_names(routers: list[_Originator], where: str, states: LinkStates) -> dict[str, str]:
    """Return the name of each router by its system ID.

    Names are system IDs or host names.  The database is sorted by system ID, so that host names are
    matched with the sorted system IDs of the neighbours.

    Args:
        routers: routers of a level, in the order of the database.
        where: name of the file, for messages.
        states: collector of notes (written).

    Raises:
        InputError: host names that cannot be matched with system IDs.
    """
    # Names without the pseudonode number ".00".
    names = [originator.name[:-3] for originator in routers]
    if all(map(_SYSTEM_ID.fullmatch, names)):
        return {name: name for name in names}
    neighbour_names = {
        _split_identity(statement.identity)[0]
        for originator in routers
        for statement in originator.statements
    }
    identities = sorted(name for name in neighbour_names if _SYSTEM_ID.fullmatch(name))
    if len(identities) != len(routers) or not _is_mutual(routers, identities):
        raise InputError.invalid(
            where,
            "lsps",
            f"the {len(routers)} host names cannot be matched with the {len(identities)} system "
            "IDs of the neighbours",
            "configure no hostname dynamic, so that packets are named by system IDs",
        )
    states.notes.append("Host names were matched with system IDs by the order of the database.")
    return dict(zip(identities, names, strict=True))


def _is_mutual(routers: list[_Originator], identities: list[str]) -> bool:
    """Return whether these system IDs are consistent: each router has a neighbour, and two routers
    name each other.

    Args:
        routers: routers of a level.
        identities: assumed system ID of each router.
    """
    # By system ID: neighbouring routers, and adjacent broadcast networks.
    neighbours: dict[str, set[str]] = {}
    networks_of_router: dict[str, set[str]] = {}
    for identity, originator in zip(identities, routers, strict=True):
        parts = [_split_identity(statement.identity) for statement in originator.statements]
        neighbours[identity] = {neighbour for neighbour, pseudonode in parts if pseudonode == "00"}
        networks_of_router[identity] = {
            f"{owner}.{pseudonode}" for owner, pseudonode in parts if pseudonode != "00"
        }
    has_neighbour = all(
        neighbours[identity] or networks_of_router[identity] for identity in identities
    )
    is_mutual = all(
        identity in neighbours.get(neighbour_id, set())
        for identity in identities
        for neighbour_id in neighbours[identity]
    )
    return has_neighbour and is_mutual
