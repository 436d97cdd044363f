"""Link-state databases as routers print them: FRR's JSON of IS-IS and OSPF, and BGP-LS of ExaBGP and GoBGP.

- IS-IS: ``vtysh -c "show isis database detail json"``.  Routers are named by their system IDs in adjacencies; where the
  names of link-state packets are host names, these are matched by the order of the database, which is that of system
  IDs, and checked by the adjacencies of both ends.
- OSPF: ``vtysh -c "show ip ospf database router json"``; OSPFv3:
  ``vtysh -c "show ipv6 ospf6 database router detail json"``.
- BGP-LS: a line of JSON for each update, as ExaBGP writes it for a process (``encoder json``), or what GoBGP prints.

Routers on a broadcast network are connected in pairs, each with the metric of its own interface.  Only BGP-LS says
capacities, TE metrics, administrative groups and, from GoBGP, delays.

BGP-LS as GoBGP prints it: ``gobgp global rib -a ls -j``, or the lines of ``gobgp monitor global rib -a ls -j``.

A path has an ``nlri`` with descriptors of one node or of two, and ``attrs``, one of which (type 29) has attributes of
nodes and links.  Versions spell keys with and without underscores: they are compared without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from teal.errors import InputError
from teal.formats.records import LinkRecord, topology_from_records
from teal.network import Topology

_LINK_STATE = 29  # type of the BGP-LS attribute


class Adjacency(NamedTuple):
    """A link as a database says it.

    Attributes:
        source: router where it starts.
        target: router where it ends.
        metric: metric of the IGP.
        capacity: Gbit/s; None if none is given.
        te_metric: TE metric; None if none is given.
        affinities: ``bit5`` for each bit of the administrative group, counted from the least significant one, 0.
        latency: ms; None if none is given.
    """

    source: str
    target: str
    metric: float
    capacity: float | None = None
    te_metric: float | None = None
    affinities: frozenset[str] = frozenset()
    latency: float | None = None


def _number(value: Any, where: str, line: int) -> float | None:
    """A number, or that of GoBGP's object of a delay; None for nothing or 0, which says that there is none."""
    value = value.get("delay") if isinstance(value, dict) else value
    try:
        return None if value in (None, "") else float(value) or None
    except (TypeError, ValueError):
        raise InputError(where, f"line {line}", "a number", repr(value)[:80]) from None


def _affinities(mask: Any, where: str, line: int) -> frozenset[str]:
    """The names of the bits of an administrative group, a number or a list of one (TLV 1088, RFC 9552)."""
    mask = mask[0] if isinstance(mask, list) and mask else mask
    try:
        number = int(mask, 0) if isinstance(mask, str) else int(mask or 0)
    except (TypeError, ValueError):
        raise InputError(where, f"line {line}", "an administrative group, a number", repr(mask)[:80]) from None
    return frozenset(f"bit{bit}" for bit in range(number.bit_length()) if number >> bit & 1)


def _gbps(bandwidth: Any) -> float | None:
    return None if bandwidth is None else float(bandwidth) * _BITS_PER_BYTE / _GIGA


class _Updates:
    """The links and names of routers that updates leave."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.links: dict[tuple[str, ...], Adjacency] = {}
        self.names: dict[str, str] = {}

    def take_gobgp(self, document: Any, line: int) -> None:
        """Note what a document of GoBGP says; nothing of one of another kind."""
        if isinstance(document, list):
            for one in document:
                self.take_gobgp(one, line)
        elif isinstance(document, dict):
            nlri = document.get("nlri")
            if isinstance(nlri, dict) and "local_node_desc" in nlri:
                self._take_path(document, nlri, line)
            else:
                for one in document.values():
                    self.take_gobgp(one, line)

    def _take_path(self, path: dict[str, Any], nlri: dict[str, Any], line: int) -> None:
        attributes = [
            one for one in path.get("attrs") or [] if isinstance(one, dict) and one.get("type") == _LINK_STATE
        ]
        local = _gobgp_router(nlri["local_node_desc"])
        if "remote_node_desc" not in nlri:
            name = _value(_of(attributes, "node"), "name")
            if name and "prefix_desc" not in nlri:
                self.names[local] = str(name)
            return
        ends = local, _gobgp_router(nlri["remote_node_desc"])
        if not all(ends):
            raise InputError(self.where, f"line {line}", "a router ID of each end", ends)
        link = _of(attributes, "link")
        metric, where = _value(link, "igpmetric"), self.where
        delay = _number(_value(link, "unidirectionallinkdelay"), where, line)
        self._put(
            (*ends, json.dumps(nlri.get("link_desc"), sort_keys=True)),
            bool(_value(path, "withdrawal", "iswithdraw")),
            Adjacency(
                *ends, 1.0 if metric is None else float(metric), _gbps(_value(link, "bandwidth", "maxlinkbw")),
                _number(_value(link, "defaulttemetric"), where, line),
                _affinities(_value(link, "admingroup"), where, line), None if delay is None else delay / _US_PER_MS,
            ),
        )  # fmt: skip

    def take_exabgp(self, document: Any, line: int) -> None:
        """Note what an update of ExaBGP says."""
        update = _find(document, "update") or document
        if not isinstance(update, dict):
            return
        attribute = (update.get("attribute") or {}).get("bgp-ls") or {}
        withdrawn = {id(one) for one in _nlris(update.get("withdraw"))}
        for one in _nlris(update):
            kind = one["ls-nlri-type"]
            if kind in ("bgpls-node", 1) and attribute.get("node-name"):
                self.names[_router(one.get("node-descriptors"), self.where, line)] = str(attribute["node-name"])
            if kind not in ("bgpls-link", 2):
                continue
            local, remote = (
                _router(one.get(f"{side}-node-descriptors"), self.where, line) for side in ("local", "remote")
            )
            bandwidth = attribute.get("maximum-link-bandwidth")
            self._put(
                (local, remote, json.dumps(one.get("interface-address", one.get("interface-addresses")))),
                id(one) in withdrawn,
                Adjacency(
                    local, remote, float(attribute.get("igp-metric", 1)), _gbps(bandwidth),
                    _number(attribute.get("te-metric"), self.where, line),
                    _affinities(attribute.get("admin-group-mask"), self.where, line),
                ),
            )  # fmt: skip

    def _put(self, key: tuple[str, ...], is_withdrawn: bool, link: Adjacency) -> None:
        if is_withdrawn:
            self.links.pop(key, None)
        else:
            self.links[key] = link


def _of(attributes: list[dict[str, Any]], part: str) -> dict[str, Any]:
    for one in attributes:
        found = _value(one, part)
        if isinstance(found, dict):
            return found
    return {}


def _value(part: Any, *names: str) -> Any:
    """The value of the first key of these names, without regard to case and underscores."""
    if isinstance(part, dict):
        for key, value in part.items():
            if re.sub("[^a-z0-9]", "", key.lower()) in names and value not in (None, ""):
                return value
    return None


def _gobgp_router(descriptor: Any) -> str:
    """ID of a router; "" for none."""
    found = _value(descriptor, "igprouterid") or _value(descriptor, "bgprouterid")
    return str(found or "")


BGP_LS_SUFFIX = ".jsonl"
_SYSTEM_ID = re.compile(r"[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}", re.IGNORECASE)
_OSPF6 = "areaScopedLinkStateDb"
_BITS_PER_BYTE, _GIGA = 8, 1e9
_US_PER_MS = 1000.0


def is_router_database(document: Any) -> bool:
    """Whether a JSON document is one of FRR's databases."""
    if not isinstance(document, dict):
        return False
    areas = document.get("areas")
    return (
        "routerLinkStates" in document
        or _OSPF6 in document
        or isinstance(areas, dict)
        or (isinstance(areas, list) and "nodes" not in document)
    )


def read_router_database(document: Any, path: Path, default_capacity: float | None) -> Topology:
    """The network of FRR's JSON of IS-IS or OSPF.

    Raises:
        InputError: no adjacency, or what :func:`topology_from_records` refuses.
    """
    where, notes = str(path), list[str]()
    if _OSPF6 in document:
        found = list(_ospf6(document, where))
    elif isinstance(document.get("areas"), list):
        found = list(_isis(document, where, notes))
    else:
        found = list(_ospf(document, where))
    return _topology(path, found, default_capacity, tuple(notes))


def read_bgp_ls(path: Path, default_capacity: float | None) -> Topology:
    """The network of BGP-LS updates, one JSON object a line; withdrawn links are left out.

    Raises:
        InputError: a line that is no JSON, no link, or what :func:`topology_from_records` refuses.
    """
    updates = _Updates(str(path))
    for line, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InputError(str(path), f"line {line}", "a JSON object", str(error)) from None
        updates.take_gobgp(document, line)
        updates.take_exabgp(document, line)
    name = updates.names
    found = [
        one._replace(source=name.get(one.source, one.source), target=name.get(one.target, one.target))
        for one in updates.links.values()
    ]
    return _topology(path, found, default_capacity, ())


def _topology(path: Path, found: list[Adjacency], default_capacity: float | None, notes: tuple[str, ...]) -> Topology:
    if not found:
        raise InputError(str(path), "", "at least one adjacency of two routers", "none")
    nodes = dict.fromkeys(name for one in found for name in one[:2])
    records = [
        LinkRecord(
            one.source,
            one.target,
            one.capacity,
            one.latency,
            f"{one.source} -> {one.target}",
            metric=one.metric,
            te_metric=one.te_metric,
            affinities=one.affinities,
        )
        for one in found
    ]
    one_way = {(a, b) for a, b, *_ in found} - {(b, a) for a, b, *_ in found}
    if one_way:
        a, b = sorted(one_way)[0]
        notes += (f"{len(one_way)} adjacencies are said by one end only, such as {a} -> {b}; routers do not use them.",)
        records = [one for one in records if (one.source, one.target) not in one_way]
    missing = sum(one.latency is None for one in found)
    if missing:
        notes += (f"{missing:,} of {len(found):,} adjacencies have no delay in the database: 1 ms each.",)
    return topology_from_records(
        path.stem, str(path), nodes, records, directed=True, default_capacity=default_capacity, notes=notes
    )


def _isis(document: dict[str, Any], where: str, notes: list[str]) -> Iterator[Adjacency]:
    for area in document["areas"]:
        for level in area.get("levels", []):
            if "lsp" in level:
                raise InputError(
                    where, "lsps", "the JSON of FRR 9 or later (FRR 8 writes one packet and one neighbour alone; its "
                    "OSPF JSON is complete)", "lsp",
                )  # fmt: skip
            packets = [one for one in level.get("lsps", []) if isinstance(one, dict)]
            reach: dict[str, list[tuple[str, float]]] = {}
            order: list[str] = []
            for packet in packets:
                lsp = packet.get("lsp", {})
                name = str(lsp.get("id") if isinstance(lsp, dict) else lsp).rsplit("-", 1)[0]  # without the fragment
                if name not in reach:
                    reach[name] = []
                    order.append(name)
                for one in [*packet.get("extReach", []), *packet.get("oldReach", [])]:
                    reach[name].append((str(one["id"]), float(one["metric"])))
            if reach:
                yield from _isis_level(order, reach, where, notes)


def _isis_level(
    order: list[str], reach: dict[str, list[tuple[str, float]]], where: str, notes: list[str]
) -> Iterator[Adjacency]:
    """The adjacencies of one level; names end in .00 for a router, in another number for a broadcast network."""
    routers = [name for name in order if name.endswith(".00")]
    heard = {_owner(target) for targets in reach.values() for target, _ in targets}
    system = {name: name[:-3] for name in routers}
    if not all(_SYSTEM_ID.fullmatch(name[:-3]) for name in routers):
        ids = sorted(one for one in heard if _SYSTEM_ID.fullmatch(one))
        if len(ids) != len(routers):
            raise InputError(
                where, "lsps", "an adjacency with each router, to match host names and system IDs "
                "(or configure: no hostname dynamic)", f"{len(routers)} routers, {len(ids)} system IDs",
            )  # fmt: skip
        system = dict(zip(routers, ids, strict=True))
        notes.append("Host names were matched with system IDs by the order of the database.")
    name_of = {identity: router[:-3] for router, identity in system.items()}
    networks: dict[str, list[str]] = {}
    for name, targets in reach.items():
        if not name.endswith(".00"):
            router, number = name.rsplit(".", 1)
            identity = next((i for i, host in name_of.items() if host == router), router)
            networks[f"{identity}.{number}"] = [_owner(target) for target, _ in targets]
    for router in routers:
        own = system[router]
        for target, metric in reach[router]:
            if target.endswith(".00") or _SYSTEM_ID.fullmatch(target):
                others = [_owner(target)]
            else:
                others = [one for one in networks.get(target, []) if one != own]
            for other in others:
                if other in name_of:
                    yield Adjacency(router[:-3], name_of[other], metric)


def _owner(identity: str) -> str:
    """The system ID, or host name, of a neighbour's identity."""
    head, dot, tail = identity.rpartition(".")
    return head if dot and len(tail) == 2 else identity


def _ospf(document: dict[str, Any], where: str) -> Iterator[Adjacency]:
    states = document.get("routerLinkStates", document)
    areas = states.get("areas", {})
    for area in areas.values():
        entries = area if isinstance(area, list) else area.get("routerLinkStates", [])
        on_network: dict[str, list[tuple[str, float]]] = {}
        for entry in entries:
            router = str(entry.get("advertisingRouter") or entry.get("linkStateId") or "")
            for one in entry.get("routerLinks", {}).values():
                metric = one.get("tos0Metric", one.get("metric"))
                if one.get("linkType") == "Stub Network":
                    continue
                if metric is None:
                    raise InputError(where, f"{router}: routerLinks", "a metric of each link (tos0Metric)", "none")
                if "neighborRouterId" in one:
                    yield Adjacency(router, str(one["neighborRouterId"]), float(metric))
                elif "designatedRouterAddress" in one:
                    on_network.setdefault(str(one["designatedRouterAddress"]), []).append((router, float(metric)))
        for members in on_network.values():
            for router, metric in members:
                for other, _ in members:
                    if other != router:
                        yield Adjacency(router, other, metric)


def _ospf6(document: dict[str, Any], where: str) -> Iterator[Adjacency]:
    """The adjacencies of OSPFv3's router LSAs; those over broadcast networks, which need network LSAs, are refused."""
    for area in document[_OSPF6]:
        for entry in area.get("lsa", []):
            if entry.get("type") != "Router":
                continue
            router = str(entry.get("advertisingRouter", ""))
            for one in entry.get("lsaDescription", []):
                if one.get("type") != "Point-To-Point":
                    raise InputError(
                        where, f"{router}: lsaDescription", "point-to-point links (ipv6 ospf6 network point-to-point)",
                        repr(one.get("type")),
                    )  # fmt: skip
                yield Adjacency(router, str(one["neighborRouterId"]), float(one["metric"]))


def _nlris(part: Any) -> Iterator[dict[str, Any]]:
    """All objects with a type of BGP-LS inside a document."""
    if isinstance(part, dict):
        if "ls-nlri-type" in part:
            yield part
        for value in part.values():
            yield from _nlris(value)
    elif isinstance(part, list):
        for value in part:
            yield from _nlris(value)


def _find(part: Any, name: str) -> Any:
    if isinstance(part, dict):
        if name in part:
            return part[name]
        for value in part.values():
            if (found := _find(value, name)) is not None:
                return found
    return None


def _router(descriptors: Any, where: str, line: int) -> str:
    """The router ID of node descriptors, an object or a list of objects."""
    for one in descriptors if isinstance(descriptors, list) else [descriptors]:
        if isinstance(one, dict) and one.get("router-id"):
            return str(one["router-id"])
    raise InputError(where, f"line {line}", "a router-id of each end", repr(descriptors)[:80])
