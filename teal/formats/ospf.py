"""Reader of OSPF databases as printed by FRR.

- OSPF: ``vtysh -c "show ip ospf database router json"``, of one instance;
- OSPFv3: ``vtysh -c "show ipv6 ospf6 database router detail json"``, with point-to-point links.

Advertisements (LSAs) of the maximum age, an hour (RFC 2328 14), and virtual links, which are
tunnels over other links (RFC 2328 15), are ignored.  A router of OSPFv3 without the R bit carries
no transit traffic (RFC 5340 A.2), nor does one of OSPF with the H bit (RFC 8770).  A link described
by two areas is one link; several areas are read as one network, with a warning, since routers
prefer paths within an area (RFC 2328 16.1).  Entry point: :func:`read_ospf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import WARNING, InputError
from teal.formats.adjacencies import Adjacency, LinkStates, topology_of_states
from teal.formats.parts import object_of, objects_of, optional_number, text_of
from teal.network import Topology

COMMAND = "show ip ospf database router json"
_COMMAND_V3 = "show ipv6 ospf6 database router detail json"
_OSPF6_KEY = "areaScopedLinkStateDb"
# MaxAge of RFC 2328 B.
_MAX_AGE_S = 3600
_STUB_LINK_TYPE = re.compile("stub", re.IGNORECASE)
_VIRTUAL_LINK_TYPE = re.compile("virtual", re.IGNORECASE)
_AGE_KEYS = ("lsaAge", "age", "lsAge")


def is_ospf(document: Any) -> bool:
    """Return whether a JSON document is an OSPF database, of one instance or several."""
    if not isinstance(document, dict):
        return False
    if (
        "routerLinkStates" in document
        or _OSPF6_KEY in document
        or isinstance(document.get("areas"), dict)
    ):
        return True
    # The output of `vrf all` is a JSON object with an object for each VRF.
    return any(
        "vrfName" in instance for instance in document.values() if isinstance(instance, dict)
    ) and bool(_vrfs_with_database(document))


def _vrfs_with_database(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON objects of the VRFs in the output of ``vrf all`` that have advertisements."""
    parts = [part for part in document.values() if isinstance(part, dict)]
    return [
        part
        for part in parts
        if part.get("routerLinkStates") or part.get("areas") or part.get(_OSPF6_KEY)
    ]


def read_ospf(document: dict[str, Any], path: Path, default_capacity: float | None) -> Topology:
    """Read the network of an OSPF or OSPFv3 database.

    Args:
        document: parsed JSON of FRR.
        path: path of the file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.

    Raises:
        InputError: several instances, a summary without links, links of OSPFv3 over broadcast
            networks, or an error of :func:`topology_of_states`.
    """
    where = str(path)
    states = LinkStates()
    # Select the only database of several VRFs.
    instances = _vrfs_with_database(document)
    if (
        _OSPF6_KEY not in document
        and "routerLinkStates" not in document
        and "areas" not in document
    ):
        if len(instances) != 1:
            raise InputError.invalid(
                where,
                "",
                f"{len(instances)} VRFs have a database, but only one can be read",
                f'use vtysh -c "{COMMAND.replace("ospf", "ospf vrf NAME")}"',
            )
        document = instances[0]
    if _OSPF6_KEY in document:
        _add_ospf6(document, where, states)
    else:
        _add_ospf(document, where, states)
    return topology_of_states(path, states, default_capacity)


def _add_ospf(document: dict[str, Any], where: str, states: LinkStates) -> None:
    """Add the adjacencies of an OSPF database to ``states``.

    Args:
        document: parsed JSON of FRR.
        where: name of the file, for messages.
        states: collector of adjacencies, networks and notes (written).

    Raises:
        InputError: a summary without links, or an invalid part.
    """
    # Areas, and the names of those that have links.
    container = object_of(document.get("routerLinkStates", document), where, "routerLinkStates")
    areas = object_of(container.get("areas"), where, "areas")
    areas_with_links: list[str] = []
    for name, area in areas.items():
        # Router advertisements of the area: a member of its object, or a plain list.
        entries = area.get("routerLinkStates") if isinstance(area, dict) else area
        num_adjacencies_before = len(states.adjacencies)
        for index, entry in enumerate(_current_lsas(entries, where, f"area {name}", states)):
            if "routerLinks" not in entry and entry.get(
                "numOfRouterLinks", entry.get("numOfLinks")
            ):
                raise InputError.invalid(
                    where,
                    "routerLinks",
                    "this is a summary, which has only numbers of links",
                    f'use vtysh -c "{COMMAND}"',
                )
            _add_router(entry, where, f"area {name}[{index}]", states)
        # An area has links if it has added adjacencies.
        if len(states.adjacencies) > num_adjacencies_before:
            areas_with_links.append(name)
    if len(areas_with_links) > 1:
        states.notes.append(
            f"{WARNING}{where}: areas {', '.join(areas_with_links)} are read as one network, "
            "although routers prefer paths within an area (RFC 2328 16.1): shortest paths may "
            "differ."
        )


def _current_lsas(
    entries: Any, where: str, field: str, states: LinkStates
) -> Iterator[dict[str, Any]]:
    """Yield the advertisements below the maximum age, and note the others.

    Args:
        entries: JSON list of the advertisements.
        where: name of the file, for messages.
        field: location in the file, for messages.
        states: collector of notes (written).
    """
    expired_routers: list[str] = []
    for index, entry in enumerate(objects_of(entries, where, field)):
        age = next((entry[name] for name in _AGE_KEYS if name in entry), None)
        seconds = optional_number(age, where, f"{field}[{index}]: age") or 0.0
        if seconds >= _MAX_AGE_S:
            expired_routers.append(str(entry.get("advertisingRouter") or entry.get("linkStateId")))
        else:
            yield entry
    states.note_names(
        expired_routers, f"Advertisements of the maximum age, {_MAX_AGE_S} s, are not used"
    )


def _add_router(entry: dict[str, Any], where: str, field: str, states: LinkStates) -> None:
    """Add the adjacencies of a router to ``states``.

    Args:
        entry: JSON of the router's advertisement.
        where: name of the file, for messages.
        field: location in the file, for messages.
        states: collector of adjacencies, networks and overloaded routers (written).
    """
    # The router, and its H bit: it carries no transit traffic.
    router = text_of(
        entry.get("advertisingRouter") or entry.get("linkStateId"),
        where,
        f"{field}: advertisingRouter",
    )
    if entry.get("hBit") or re.search(r"\bH\b", str(entry.get("flags", ""))):
        states.no_transit.add(router)
    # Its links, a JSON list or an object by name.
    links = entry.get("routerLinks")
    link_entries = (
        objects_of(links, where, f"{field}: routerLinks")
        if isinstance(links, list)
        else list(object_of(links, where, f"{field}: routerLinks").values())
    )
    for index, link_entry in enumerate(link_entries):
        link_field = f"{router}: routerLinks[{index}]"
        _add_link(router, object_of(link_entry, where, link_field), where, link_field, states)


def _add_link(
    router: str, link: dict[str, Any], where: str, field: str, states: LinkStates
) -> None:
    """Add the adjacencies of a router's link to ``states``: to the neighbour, or to and from a
    broadcast network; stub and virtual links are ignored.

    Args:
        router: ID of the router.
        link: JSON of the link.
        where: name of the file, for messages.
        field: location in the file, for messages.
        states: collector of adjacencies, networks and notes (written).
    """
    link_type = str(link.get("linkType", ""))
    if _STUB_LINK_TYPE.search(link_type):
        return
    if _VIRTUAL_LINK_TYPE.search(link_type):
        states.note_names(
            [f"{router} - {link.get('neighborRouterId')}"], "Virtual links are ignored"
        )
        return
    # Point-to-point links have a neighbour, links to broadcast networks a designated router.
    neighbour = link.get("neighborRouterId")
    network = link.get("designatedRouterAddress")
    if neighbour is None and network is None:
        return
    metric = optional_number(
        link.get("tos0Metric", link.get("metric")), where, f"{field}: tos0Metric"
    )
    if metric is None:
        raise InputError.invalid(
            where,
            field,
            "the link has no metric (tos0Metric)",
            f'export the database by vtysh -c "{COMMAND}"',
        )
    if neighbour is not None:
        target = text_of(neighbour, where, f"{field}: neighborRouterId")
        interface = str(link.get("routerInterfaceAddress", ""))
        states.adjacencies.append(Adjacency(router, target, metric, interface))
        return
    name = text_of(network, where, f"{field}: designatedRouterAddress")
    # The metric is that of the router's interface; leaving the network costs nothing.
    states.networks.add(name)
    states.adjacencies.append(Adjacency(router, name, metric))
    states.adjacencies.append(Adjacency(name, router, 0.0))


def _add_ospf6(document: dict[str, Any], where: str, states: LinkStates) -> None:
    """Add the adjacencies of an OSPFv3 database to ``states``.

    Args:
        document: parsed JSON of FRR.
        where: name of the file, for messages.
        states: collector of adjacencies, routers without transit, and notes (written).

    Raises:
        InputError: a summary without links, an invalid part, or a broadcast network, whose routers
            only network LSAs list.
    """
    for index, area in enumerate(objects_of(document[_OSPF6_KEY], where, _OSPF6_KEY)):
        for entry in _current_lsas(area.get("lsa"), where, f"{_OSPF6_KEY}[{index}]: lsa", states):
            if entry.get("type") != "Router":
                continue
            router = text_of(entry.get("advertisingRouter"), where, "lsa: advertisingRouter")
            # A router without the R bit carries no transit traffic.
            options = str(entry.get("options", ""))
            if options and "R" not in re.split(r"[^A-Za-z0-9]+", options):
                states.no_transit.add(router)
            if "lsaDescription" not in entry and "numOfLinks" in entry:
                raise InputError.invalid(
                    where,
                    "lsaDescription",
                    "this is a summary, which has only numbers of links",
                    f'use vtysh -c "{_COMMAND_V3}"',
                )
            # Point-to-point links; virtual links are ignored.
            for link_index, link in enumerate(
                objects_of(entry.get("lsaDescription"), where, f"{router}: lsaDescription")
            ):
                field = f"{router}: lsaDescription[{link_index}]"
                if not _VIRTUAL_LINK_TYPE.search(str(link.get("type", ""))):
                    states.adjacencies.append(_point_to_point_adjacency(router, link, where, field))


def _point_to_point_adjacency(
    router: str, link: dict[str, Any], where: str, field: str
) -> Adjacency:
    """Return the adjacency of a point-to-point link of an OSPFv3 router LSA.

    Args:
        router: ID of the router whose LSA has the link.
        link: the link's part of the LSA.
        where: name of the file, for messages.
        field: place of the link in the file, for messages.

    Raises:
        InputError: a broadcast network, or a link without a metric or neighbour.
    """
    link_type = str(link.get("type", ""))
    if link_type != "Point-To-Point":
        raise InputError.invalid(
            where,
            field,
            f"a link has the type {link_type!r}, but only point-to-point links are read",
            "configure ipv6 ospf6 network point-to-point",
        )
    metric = optional_number(link.get("metric"), where, f"{field}: metric")
    if metric is None:
        raise InputError.invalid(
            where,
            f"{field}: metric",
            "the link has no metric",
            f'export the database by vtysh -c "{_COMMAND_V3}"',
        )
    target = text_of(link.get("neighborRouterId"), where, f"{field}: neighborRouterId")
    return Adjacency(router, target, metric, str(link.get("interfaceId", "")))
