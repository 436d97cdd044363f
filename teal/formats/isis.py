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
from teal.formats.parts import first_number, objects_of, text_of
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
# Wide metrics before narrow ones.
_METRIC_RANKS = {"extReach": 0, "mtReach": 0, "oldReach": 1}


def is_isis(document: Any) -> bool:
    """Return whether a JSON document is an IS-IS database, of one instance or several."""
    if not isinstance(document, dict):
        return False
    return isinstance(document.get("areas"), list) or isinstance(document.get("vrfs"), list)


def read_isis(document: dict[str, Any], path: Path, default_capacity: float | None) -> Topology:
    """Read the network of a database.

    Raises:
        InputError: several instances, the incomplete JSON of FRR 8, host names that cannot be
            matched, or an error of :func:`topology_of_states`.
    """
    where = str(path)
    if "vrfs" in document:
        with_areas = [
            vrf for vrf in objects_of(document["vrfs"], where, "vrfs") if vrf.get("areas")
        ]
        if len(with_areas) != 1:
            expected = 'one VRF with areas (vtysh -c "show isis vrf NAME database detail json")'
            raise InputError(where, "vrfs", expected, len(with_areas))
        document = with_areas[0]
    states = LinkStates()
    levels: dict[int, set[tuple[str, str]]] = {}
    # Add the adjacencies of every level.
    for area in objects_of(document["areas"], where, "areas"):
        for level in objects_of(area.get("levels", []), where, "levels"):
            if "lsp" in level:
                raise InputError(
                    where,
                    "lsps",
                    "the JSON of FRR 9 or later (FRR 8 writes one packet and one neighbour alone; "
                    "its OSPF JSON is complete)",
                    "lsp",
                )
            level_number = int(first_number(level.get("id"), where, "levels: id") or 0)
            routers = _routers(level.get("lsps", []), where, states)
            if not routers:
                continue
            num_before = len(states.adjacencies)
            _add_level(level_number, routers, where, states)
            ends = {
                (adjacency.source, adjacency.target)
                for adjacency in states.adjacencies[num_before:]
            }
            levels.setdefault(level_number, set()).update(ends)
    if len(levels) > 1 and len(set(map(frozenset, levels.values()))) > 1:
        states.notes.append(
            f"{WARNING}{where}: levels {' and '.join(map(str, sorted(levels)))} are read as one "
            "network: routers prefer paths within level 1, which shortest paths of the whole may "
            "leave."
        )
    return topology_of_states(path, states, default_capacity)


class _Reach(NamedTuple):
    """Neighbour stated by a router: identity, metric, interface, and rank among statements about a
    link.
    """

    identity: str
    metric: float
    interface: str
    rank: int


class _Lsps:
    """Link-state packets of a router or broadcast network.

    Attributes:
        name: system ID or host name, and pseudonode number, 00 for a router.
        reach: stated neighbours.
        is_overloaded: whether it has the overload bit.
        has_first: whether its first packet is present.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reach: list[_Reach] = []
        self.is_overloaded = False
        self.has_first = False


def _routers(packets: Any, where: str, states: LinkStates) -> list[_Lsps]:
    """Return the routers and broadcast networks of a level, in the order of the database."""
    lsps_by_name: dict[str, _Lsps] = {}
    expired: list[str] = []
    for index, packet in enumerate(objects_of(packets, where, "lsps")):
        field = f"lsps[{index}]"
        name, fragment = _identity(packet, where, field)
        # Expired packets are not used; the first packet of a router must be unique.
        if _has_expired(packet):
            expired.append(name)
            continue
        is_first = fragment in ("00", "0")
        if is_first and name in lsps_by_name and lsps_by_name[name].has_first:
            raise InputError(
                where,
                f"{field}: lsp: id",
                "a name of each router (host names are cut: no hostname dynamic)",
                f"{name}-{fragment} twice",
            )
        lsps = lsps_by_name.setdefault(name, _Lsps(name))
        lsps.has_first |= is_first
        lsps.is_overloaded |= (
            is_first and str(packet.get("attPOl", "")).rpartition("/")[2].strip() == "1"
        )
        lsps.reach += _neighbours(packet, where, field)
    states.note_count(expired, "Packets whose lifetime has ended are not used")
    without_first = [lsps.name for lsps in lsps_by_name.values() if not lsps.has_first]
    states.note_count(without_first, "Routers whose first packet is missing are not used")
    return [lsps for lsps in lsps_by_name.values() if lsps.has_first]


def _identity(packet: dict[str, Any], where: str, field: str) -> tuple[str, str]:
    """Return the name of a packet's router or network, and the number of the fragment."""
    identity = packet.get("lsp")
    text = text_of(
        identity.get("id") if isinstance(identity, dict) else identity,
        where,
        f"{field}: lsp: id",
    )
    name, _, fragment = text.rpartition("-")
    if not name:
        raise InputError(
            where, f"{field}: lsp: id", "an identity such as 0000.0000.0001.00-00", fragment
        )
    return name, fragment


def _neighbours(packet: dict[str, Any], where: str, field: str) -> list[_Reach]:
    """Return the neighbours that a packet states, with wide and narrow metrics."""
    return [
        _parse_reach(entry, rank, where, f"{field}: {kind}[{index}]")
        for kind, rank in _METRIC_RANKS.items()
        for index, entry in enumerate(objects_of(packet.get(kind) or [], where, f"{field}: {kind}"))
    ]


def _has_expired(packet: dict[str, Any]) -> bool:
    """Return whether the remaining lifetime is 0: FRR then prints the seconds since in brackets."""
    lifetime = str(packet.get("holdtime", packet.get("remainingLifetime", ""))).strip()
    return lifetime.startswith("(") or lifetime == "0"


def _parse_reach(entry: dict[str, Any], rank: int, where: str, field: str) -> _Reach:
    topology = str(entry.get("mtId", "")).lower()
    metric = first_number(entry.get("metric"), where, f"{field}: metric")
    if metric is None:
        raise InputError(where, f"{field}: metric", "a metric", "none")
    is_other_topology = topology not in _IPV4_TOPOLOGIES
    identity = text_of(entry.get("id"), where, f"{field}: id")
    return _Reach(identity, metric, _interface(entry), rank + 2 * is_other_topology)


def _interface(part: Any) -> str:
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
    pending = [part]
    while pending:
        for key, value in pending.pop().items():
            if isinstance(value, dict):
                pending.append(value)
            elif re.sub("[^a-z0-9]", "", key.lower()) in names and value not in (None, ""):
                return str(value)
    return ""


def _add_level(level: int, level_lsps: list[_Lsps], where: str, states: LinkStates) -> None:
    """Add the adjacencies of a level to ``states``."""
    # Names of the routers.
    routers = [lsps for lsps in level_lsps if lsps.name.endswith(".00")]
    name_of_identity = _router_names(routers, where, states)
    states.no_transit |= {lsps.name[:-3] for lsps in routers if lsps.is_overloaded}
    identity_of_name = {name: identity for identity, name in name_of_identity.items()}
    # Adjacencies that each packet states.
    saturated: list[str] = []
    for lsps in level_lsps:
        owner, _, pseudonode = lsps.name.rpartition(".")
        is_router = pseudonode == "00"
        source = owner
        if not is_router:
            source = f"{identity_of_name.get(owner, owner)}.{pseudonode}"
            states.networks.add(source)
        for reach in lsps.reach:
            neighbour, pseudonode = _split_identity(reach.identity)
            target = (
                name_of_identity.get(neighbour)
                if pseudonode == "00"
                else f"{neighbour}.{pseudonode}"
            )
            if target is None or target == source:
                continue
            if is_router and reach.rank == 1 and reach.metric == _MAX_NARROW_METRIC:
                saturated.append(f"{source} -> {target}")
            rank = reach.rank + LEVEL_RANK * level
            states.adjacencies.append(
                Adjacency(source, target, reach.metric, reach.interface, rank)
            )
    states.note_count(
        saturated, f"Narrow metrics of {_MAX_NARROW_METRIC}, which may stand for larger ones"
    )


def _split_identity(identity: str) -> tuple[str, str]:
    """Split a neighbour's identity into system ID or host name, and pseudonode number, 00 for
    none.
    """
    head, dot, tail = identity.rpartition(".")
    return (head, tail) if dot and len(tail) == 2 else (identity, "00")


def _router_names(routers: list[_Lsps], where: str, states: LinkStates) -> dict[str, str]:
    """Return the router name of each system ID.

    Raises:
        InputError: host names that cannot be matched with system IDs.
    """
    names = [lsps.name[:-3] for lsps in routers]
    if all(map(_SYSTEM_ID.fullmatch, names)):
        return {name: name for name in names}
    neighbour_names = {
        _split_identity(reach.identity)[0] for lsps in routers for reach in lsps.reach
    }
    identities = sorted(name for name in neighbour_names if _SYSTEM_ID.fullmatch(name))
    if len(identities) != len(routers) or not _is_mutual(routers, identities):
        raise InputError(
            where,
            "lsps",
            "system IDs as names of packets (no hostname dynamic): host names are matched with "
            "system IDs only if all adjacencies then have two ends",
            f"{len(routers)} host names, {len(identities)} system IDs",
        )
    states.notes.append("Host names were matched with system IDs by the order of the database.")
    return dict(zip(identities, names, strict=True))


def _is_mutual(routers: list[_Lsps], identities: list[str]) -> bool:
    """Return whether with these system IDs each router has a neighbour, and neighbours name each
    other.
    """
    neighbours: dict[str, set[str]] = {}
    on_networks: dict[str, set[str]] = {}
    for identity, lsps in zip(identities, routers, strict=True):
        parts = [_split_identity(reach.identity) for reach in lsps.reach]
        neighbours[identity] = {neighbour for neighbour, pseudonode in parts if pseudonode == "00"}
        on_networks[identity] = {
            f"{owner}.{pseudonode}" for owner, pseudonode in parts if pseudonode != "00"
        }
    has_neighbour = all(neighbours[identity] or on_networks[identity] for identity in identities)
    is_mutual = all(
        identity in neighbours.get(neighbour_id, set())
        for identity in identities
        for neighbour_id in neighbours[identity]
    )
    return has_neighbour and is_mutual
