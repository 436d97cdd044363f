"""OSPF as FRR prints it.

- OSPF: ``vtysh -c "show ip ospf database router json"``, of one instance;
- OSPFv3: ``vtysh -c "show ipv6 ospf6 database router detail json"``, whose links are point to
  point.

Not used are advertisements (LSAs) of the largest age, an hour (RFC 2328 14), and virtual links,
which are tunnels over other links (RFC 2328 15).  A router of OSPFv3 without the R bit carries no
transit traffic (RFC 5340 A.2), nor does one of OSPF with the H bit (RFC 8770).  A link that two
areas describe is one link; several areas are read as one network, and a warning says so, since
routers prefer paths within an area (RFC 2328 16.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import WARNING, InputError
from teal.formats.adjacencies import Adjacency, LinkStates, topology_of_states
from teal.formats.parts import first_number, object_of, objects_of, text_of
from teal.network import Topology

COMMAND = "show ip ospf database router json"
_COMMAND_V3 = "show ipv6 ospf6 database router detail json"
_OSPF6 = "areaScopedLinkStateDb"
_MAX_AGE_S = 3600  # RFC 2328 B: MaxAge
_STUB = re.compile("stub", re.IGNORECASE)
_VIRTUAL = re.compile("virtual", re.IGNORECASE)
_AGES = ("lsaAge", "age", "lsAge")


def is_ospf(document: Any) -> bool:
    """Whether a JSON document is a database of OSPF, of one instance or of several."""
    if not isinstance(document, dict):
        return False
    if (
        "routerLinkStates" in document
        or _OSPF6 in document
        or isinstance(document.get("areas"), dict)
    ):
        return True
    return any("vrfName" in one for one in document.values() if isinstance(one, dict)) and bool(
        _instances(document)
    )


def _instances(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The databases of ``vrf all`` that have advertisements."""
    parts = [one for one in document.values() if isinstance(one, dict)]
    return [
        one for one in parts if one.get("routerLinkStates") or one.get("areas") or one.get(_OSPF6)
    ]


def read_ospf(document: dict[str, Any], path: Path, default_capacity: float | None) -> Topology:
    """The network of a database.

    Raises:
        InputError: several instances, a summary without links, links of OSPFv3 over broadcast
            networks, or what :func:`topology_of_states` refuses.
    """
    where = str(path)
    states = LinkStates()
    instances = _instances(document)
    if _OSPF6 not in document and "routerLinkStates" not in document and "areas" not in document:
        if len(instances) != 1:
            expected = f'one VRF (vtysh -c "{COMMAND.replace("ospf", "ospf vrf NAME")}")'
            raise InputError(where, "", expected, f"{len(instances)} VRFs")
        document = instances[0]
    if _OSPF6 in document:
        _add_ospf6(document, where, states)
    else:
        _add_ospf(document, where, states)
    return topology_of_states(path, states, default_capacity)


def _add_ospf(document: dict[str, Any], where: str, states: LinkStates) -> None:
    container = object_of(document.get("routerLinkStates", document), where, "routerLinkStates")
    areas = object_of(container.get("areas"), where, "areas")
    with_links: list[str] = []
    for name, area in areas.items():
        entries = area.get("routerLinkStates") if isinstance(area, dict) else area
        before = len(states.adjacencies)
        for number, entry in enumerate(_live(entries, where, f"area {name}", states)):
            if "routerLinks" not in entry and entry.get(
                "numOfRouterLinks", entry.get("numOfLinks")
            ):
                found = "a summary, of numbers of links alone (show ip ospf database json)"
                raise InputError(where, "routerLinks", f'the output of vtysh -c "{COMMAND}"', found)
            _add_router(entry, where, f"area {name}[{number}]", states)
        if len(states.adjacencies) > before:
            with_links.append(name)
    if len(with_links) > 1:
        states.notes.append(
            f"{WARNING}{where}: areas {', '.join(with_links)} are read as one network: routers "
            "prefer paths within an "
            "area (RFC 2328 16.1), which shortest paths of the whole may leave."
        )


def _live(entries: Any, where: str, field: str, states: LinkStates) -> Iterator[dict[str, Any]]:
    """The advertisements that are not of the largest age."""
    aged: list[str] = []
    for number, entry in enumerate(objects_of(entries, where, field)):
        age = next((entry[name] for name in _AGES if name in entry), None)
        seconds = first_number(age, where, f"{field}[{number}]: age") or 0.0
        if seconds >= _MAX_AGE_S:
            aged.append(str(entry.get("advertisingRouter") or entry.get("linkStateId")))
        else:
            yield entry
    states.note_count(aged, f"Advertisements of the largest age, {_MAX_AGE_S} s, are not used")


def _add_router(entry: dict[str, Any], where: str, field: str, states: LinkStates) -> None:
    """Note the adjacencies of a router."""
    router = text_of(
        entry.get("advertisingRouter") or entry.get("linkStateId"),
        where,
        f"{field}: advertisingRouter",
    )
    if entry.get("hBit") or re.search(r"\bH\b", str(entry.get("flags", ""))):
        states.no_transit.add(router)
    links = entry.get("routerLinks")
    listed_links = (
        objects_of(links, where, f"{field}: routerLinks")
        if isinstance(links, list)
        else list(object_of(links, where, f"{field}: routerLinks").values())
    )
    for number, one in enumerate(listed_links):
        place = f"{router}: routerLinks[{number}]"
        link = object_of(one, where, place)
        kind = str(link.get("linkType", ""))
        if _STUB.search(kind):
            continue
        if _VIRTUAL.search(kind):
            states.note_count(
                [f"{router} - {link.get('neighborRouterId')}"], "A virtual link is no link"
            )
            continue
        neighbour = link.get("neighborRouterId")
        network = link.get("designatedRouterAddress")
        if neighbour is None and network is None:
            continue
        metric = first_number(
            link.get("tos0Metric", link.get("metric")), where, f"{place}: tos0Metric"
        )
        if metric is None:
            raise InputError(where, place, "a metric of each link (tos0Metric)", "none")
        interface = str(link.get("routerInterfaceAddress", ""))
        if neighbour is not None:
            target = text_of(neighbour, where, f"{place}: neighborRouterId")
            states.adjacencies.append(Adjacency(router, target, metric, interface))
            continue
        name = text_of(network, where, f"{place}: designatedRouterAddress")
        states.networks.add(name)
        states.adjacencies.append(Adjacency(router, name, metric))
        states.adjacencies.append(Adjacency(name, router, 0.0))


def _add_ospf6(document: dict[str, Any], where: str, states: LinkStates) -> None:
    """Note the adjacencies of OSPFv3; those over broadcast networks, which need network LSAs, are
    refused.
    """
    for number, area in enumerate(objects_of(document[_OSPF6], where, _OSPF6)):
        for entry in _live(area.get("lsa"), where, f"{_OSPF6}[{number}]: lsa", states):
            if entry.get("type") != "Router":
                continue
            router = text_of(entry.get("advertisingRouter"), where, "lsa: advertisingRouter")
            options = str(entry.get("options", ""))
            if options and "R" not in re.split(r"[^A-Za-z0-9]+", options):
                states.no_transit.add(router)
            if "lsaDescription" not in entry and "numOfLinks" in entry:
                raise InputError(
                    where, "lsaDescription", f'the output of vtysh -c "{_COMMAND_V3}"', "a summary"
                )
            for place, one in enumerate(
                objects_of(entry.get("lsaDescription"), where, f"{router}: lsaDescription")
            ):
                field = f"{router}: lsaDescription[{place}]"
                kind = str(one.get("type", ""))
                if _VIRTUAL.search(kind):
                    continue
                if kind != "Point-To-Point":
                    expected = "point-to-point links (ipv6 ospf6 network point-to-point)"
                    raise InputError(where, field, expected, repr(kind))
                metric = first_number(one.get("metric"), where, f"{field}: metric")
                if metric is None:
                    raise InputError(where, f"{field}: metric", "a metric", "none")
                target = text_of(one.get("neighborRouterId"), where, f"{field}: neighborRouterId")
                interface = str(one.get("interfaceId", ""))
                states.adjacencies.append(Adjacency(router, target, metric, interface))
