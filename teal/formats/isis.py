"""IS-IS as FRR prints it: ``vtysh -c "show isis database detail json"``, of one instance or of
``vrf all``.

Routers are named by their system IDs in adjacencies.  Where the names of link-state packets (LSPs)
are host names, they are matched by the order of the database, which is that of system IDs, and only
if then each router has an adjacency and each adjacency is said by both of its ends; otherwise the
file is refused.

An LSP whose lifetime has ended is not used (ISO 10589 7.3.16), and none of a router whose first LSP
is missing (7.2.5). A router with the overload bit carries no transit traffic (7.2.8.1).  Of an
adjacency at both levels, level 1 counts, and wide metrics before narrow ones.
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
_STANDARD = (
    "",
    "extended",
    "old",
    "standard",
    "ipv4-unicast",
    "0",
)  # names of the topology of IPv4
_NARROW_MAX = (
    63  # ISO 10589 7.2.2: the largest narrow metric, which also stands for all larger wide ones
)
_KINDS = {"extReach": 0, "mtReach": 0, "oldReach": 1}  # wide metrics before narrow ones


def is_isis(document: Any) -> bool:
    """Whether a JSON document is a database of IS-IS, of one instance or of several."""
    if not isinstance(document, dict):
        return False
    return isinstance(document.get("areas"), list) or isinstance(document.get("vrfs"), list)


def read_isis(document: dict[str, Any], path: Path, default_capacity: float | None) -> Topology:
    """The network of a database.

    Raises:
        InputError: several instances, the incomplete JSON of FRR 8, host names that cannot be
            matched, or what :func:`topology_of_states` refuses.
    """
    where = str(path)
    if "vrfs" in document:
        with_areas = [
            one for one in objects_of(document["vrfs"], where, "vrfs") if one.get("areas")
        ]
        if len(with_areas) != 1:
            expected = 'one VRF with areas (vtysh -c "show isis vrf NAME database detail json")'
            raise InputError(where, "vrfs", expected, len(with_areas))
        document = with_areas[0]
    states = LinkStates()
    levels: dict[int, set[tuple[str, str]]] = {}
    for area in objects_of(document["areas"], where, "areas"):
        for level in objects_of(area.get("levels", []), where, "levels"):
            if "lsp" in level:
                raise InputError(
                    where,
                    "lsps",
                    "the JSON of FRR 9 or later (FRR 8 writes one packet and one neighbour alone; "
                    "its "
                    "OSPF JSON is complete)",
                    "lsp",
                )
            number = int(first_number(level.get("id"), where, "levels: id") or 0)
            routers = _routers(level.get("lsps", []), where, states)
            if not routers:
                continue
            before = len(states.adjacencies)
            _add_level(number, routers, where, states)
            ends = {(one.source, one.target) for one in states.adjacencies[before:]}
            levels.setdefault(number, set()).update(ends)
    if len(levels) > 1 and len(set(map(frozenset, levels.values()))) > 1:
        states.notes.append(
            f"{WARNING}{where}: levels {' and '.join(map(str, sorted(levels)))} are read as one "
            "network: routers "
            "prefer paths within level 1, which shortest paths of the whole may leave."
        )
    return topology_of_states(path, states, default_capacity)


class _Reach(NamedTuple):
    """One neighbour that a router names: its identity, metric, interface, and rank among statements
    about one link.
    """

    identity: str
    metric: float
    interface: str
    rank: int


class _Lsps:
    """The link-state packets of one router, or of one broadcast network.

    Attributes:
        name: system ID or host name, and number of the broadcast network: 00 for a router.
        reach: the neighbours that it names.
        is_overloaded: whether it has the overload bit.
        has_first: whether its first packet is there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reach: list[_Reach] = []
        self.is_overloaded = False
        self.has_first = False


def _routers(packets: Any, where: str, states: LinkStates) -> list[_Lsps]:
    """Routers and broadcast networks of a level, in the order of the database."""
    found: dict[str, _Lsps] = {}
    expired: list[str] = []
    for number, packet in enumerate(objects_of(packets, where, "lsps")):
        field = f"lsps[{number}]"
        identity = packet.get("lsp")
        name = text_of(
            identity.get("id") if isinstance(identity, dict) else identity,
            where,
            f"{field}: lsp: id",
        )
        name, _, fragment = name.rpartition("-")
        if not name:
            raise InputError(
                where, f"{field}: lsp: id", "an identity such as 0000.0000.0001.00-00", fragment
            )
        if _has_expired(packet):
            expired.append(name)
            continue
        is_first = fragment in ("00", "0")
        if is_first and name in found and found[name].has_first:
            raise InputError(
                where,
                f"{field}: lsp: id",
                "a name of each router (host names are cut: no hostname dynamic)",
                f"{name}-{fragment} twice",
            )
        lsps = found.setdefault(name, _Lsps(name))
        lsps.has_first |= is_first
        lsps.is_overloaded |= (
            is_first and str(packet.get("attPOl", "")).rpartition("/")[2].strip() == "1"
        )
        for kind, rank in _KINDS.items():
            for place, one in enumerate(
                objects_of(packet.get(kind) or [], where, f"{field}: {kind}")
            ):
                lsps.reach.append(_reach(one, rank, where, f"{field}: {kind}[{place}]"))
    states.note_count(expired, "Packets whose lifetime has ended are not used")
    without_first = [lsps.name for lsps in found.values() if not lsps.has_first]
    states.note_count(without_first, "Routers whose first packet is missing are not used")
    return [lsps for lsps in found.values() if lsps.has_first]


def _has_expired(packet: dict[str, Any]) -> bool:
    """Whether the remaining lifetime is 0: FRR then prints the seconds since in brackets."""
    lifetime = str(packet.get("holdtime", packet.get("remainingLifetime", ""))).strip()
    return lifetime.startswith("(") or lifetime == "0"


def _reach(one: dict[str, Any], rank: int, where: str, field: str) -> _Reach:
    topology = str(one.get("mtId", "")).lower()
    metric = first_number(one.get("metric"), where, f"{field}: metric")
    if metric is None:
        raise InputError(where, f"{field}: metric", "a metric", "none")
    is_other_topology = topology not in _STANDARD
    identity = text_of(one.get("id"), where, f"{field}: id")
    return _Reach(identity, metric, _interface(one), rank + 2 * is_other_topology)


def _interface(part: Any) -> str:
    """Address or number of the own interface, of the sub-TLVs of a neighbour; "" if there is
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


def _add_level(level: int, found: list[_Lsps], where: str, states: LinkStates) -> None:
    """Note the adjacencies of a level, between routers by the names of their packets."""
    routers = [lsps for lsps in found if lsps.name.endswith(".00")]
    name_of = _names(routers, where, states)
    states.no_transit |= {lsps.name[:-3] for lsps in routers if lsps.is_overloaded}
    identity_of = {name: identity for identity, name in name_of.items()}
    narrow: list[str] = []
    for lsps in found:
        owner, _, number = lsps.name.rpartition(".")
        is_router = number == "00"
        source = owner
        if not is_router:
            source = f"{identity_of.get(owner, owner)}.{number}"
            states.networks.add(source)
        for one in lsps.reach:
            neighbour, number = _parts(one.identity)
            target = name_of.get(neighbour) if number == "00" else f"{neighbour}.{number}"
            if target is None or target == source:
                continue
            if is_router and one.rank == 1 and one.metric == _NARROW_MAX:
                narrow.append(f"{source} -> {target}")
            rank = one.rank + LEVEL_RANK * level
            states.adjacencies.append(Adjacency(source, target, one.metric, one.interface, rank))
    states.note_count(narrow, f"Narrow metrics of {_NARROW_MAX}, which may stand for larger ones")


def _parts(identity: str) -> tuple[str, str]:
    """System ID, or host name, of a neighbour's identity, and the number of its broadcast network:
    00 for none.
    """
    head, dot, tail = identity.rpartition(".")
    return (head, tail) if dot and len(tail) == 2 else (identity, "00")


def _names(routers: list[_Lsps], where: str, states: LinkStates) -> dict[str, str]:
    """Name of the router of each system ID.

    Raises:
        InputError: host names that cannot be matched with system IDs.
    """
    names = [lsps.name[:-3] for lsps in routers]
    if all(map(_SYSTEM_ID.fullmatch, names)):
        return {name: name for name in names}
    heard = {_parts(one.identity)[0] for lsps in routers for one in lsps.reach}
    identities = sorted(one for one in heard if _SYSTEM_ID.fullmatch(one))
    if len(identities) != len(routers) or not _is_mutual(routers, identities):
        raise InputError(
            where,
            "lsps",
            "system IDs as names of packets (no hostname dynamic): host names are matched with "
            "system "
            "IDs only if all adjacencies then have two ends",
            f"{len(routers)} host names, {len(identities)} system IDs",
        )
    states.notes.append("Host names were matched with system IDs by the order of the database.")
    return dict(zip(identities, names, strict=True))


def _is_mutual(routers: list[_Lsps], identities: list[str]) -> bool:
    """Whether, if routers have these system IDs, each has a neighbour, and each neighbour of a
    router names it too.
    """
    named: dict[str, set[str]] = {}
    on_networks: dict[str, set[str]] = {}
    for identity, lsps in zip(identities, routers, strict=True):
        parts = [_parts(one.identity) for one in lsps.reach]
        named[identity] = {neighbour for neighbour, number in parts if number == "00"}
        on_networks[identity] = {f"{owner}.{number}" for owner, number in parts if number != "00"}
    has_neighbour = all(named[one] or on_networks[one] for one in identities)
    is_mutual = all(one in named.get(other, set()) for one in identities for other in named[one])
    return has_neighbour and is_mutual
