"""BGP-LS (RFC 9552) as ExaBGP and GoBGP print it, a JSON object a line.

ExaBGP writes a line for each update (``encoder json``).  Of GoBGP it is the output of
``gobgp global rib -a ls -j`` or the lines of ``gobgp monitor global rib -a ls -j``: a path has an
``nlri`` with descriptors of one node or of two, and ``attrs``, one of which (type 29) has
attributes of nodes and links.  Versions spell keys with and without underscores and hyphens: they
are compared without.

BGP-LS says capacities (a bandwidth of 0 is none), TE metrics, administrative groups and, from
GoBGP, delays.  Of a link that several topologies announce (RFC 9552 5.2.2.1) that of IPv4 counts,
and of several protocols the one with the smallest number: level 1 of IS-IS before level 2.  GoBGP
leaves out the topology: a link with IPv6 addresses alone is then the topology of IPv6 of one with
IPv4 addresses between the same routers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from teal.errors import InputError
from teal.formats.adjacencies import LEVEL_RANK, Adjacency, LinkStates, topology_of_states
from teal.formats.parts import first_number, list_of, object_of
from teal.network import Topology

SUFFIX = ".jsonl"
_LINK_STATE = 29  # type of the BGP-LS attribute
_LINKS = ("bgpls-link", 2)  # types of network layer reachability information (NLRI)
_NODES = ("bgpls-node", 1)
_BITS_PER_BYTE, _GIGA = 8, 1e9
_US_PER_MS = 1000.0
_PSEUDONODE = re.compile(r"(.+)-([0-9a-f]{2})", re.IGNORECASE)  # IS-IS: system ID and number
_OSPF_NETWORK = re.compile(
    r"[0-9a-f]{16}|[0-9.]+:[0-9.]+", re.IGNORECASE
)  # router and its address on the network
_SEVEN_BYTES = re.compile(r"([0-9a-f]{12})([0-9a-f]{2})", re.IGNORECASE)


class _Link(NamedTuple):
    """A link as it is announced, and what is needed to tell it from others."""

    adjacency: Adjacency
    is_standard: bool  # of the topology of IPv4
    family: str  # "4" or "6" where it has addresses of one family alone and no topology, else ""


def read_bgp_ls(path: Path, default_capacity: float | None) -> Topology:
    """The network of BGP-LS updates; withdrawn links are left out.

    Raises:
        InputError: a line that is no JSON, no link, or what :func:`topology_of_states` refuses.
    """
    updates = _Updates(str(path))
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(str(path), f"line {number}", "a JSON object", str(error)) from None
        updates.place = f"line {number}"
        updates.take_gobgp(document)
        updates.take_exabgp(document)
    return topology_of_states(path, updates.states(), default_capacity)


class _Updates:
    """The links and names of routers that updates leave.

    Args:
        where: the file, for messages.

    Attributes:
        place: line that is being read, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.place = ""
        self._links: dict[tuple[str, ...], _Link] = {}
        self._names: dict[str, str] = {}
        self._networks: set[str] = set()
        self._overloaded: dict[str, bool] = {}

    def states(self) -> LinkStates:
        """The links and routers that the updates leave, with the names of routers where they are
        known.
        """
        name = self._names
        states = LinkStates(networks=self._networks)
        states.no_transit = {
            name.get(one, one) for one, is_overloaded in self._overloaded.items() if is_overloaded
        }
        links = self._links.values()
        standard = {
            (one.adjacency.source, one.adjacency.target) for one in links if one.is_standard
        }
        without_capacity: list[str] = []
        said_twice: list[str] = []
        # Links with IPv4 addresses that no link with IPv6 addresses stands for yet.
        of_ipv4 = Counter(_place_of(one) for one in links if one.family == "4")
        for one in links:
            adjacency = one.adjacency
            ends = adjacency.source, adjacency.target
            if not one.is_standard and ends in standard:
                continue
            if one.family == "6" and of_ipv4[_place_of(one)] > 0:
                of_ipv4[_place_of(one)] -= 1
                said_twice.append(f"{name.get(ends[0], ends[0])} -> {name.get(ends[1], ends[1])}")
                continue
            renamed = adjacency._replace(
                source=name.get(ends[0], ends[0]), target=name.get(ends[1], ends[1])
            )
            if adjacency.capacity == 0:
                without_capacity.append(f"{renamed.source} -> {renamed.target}")
                renamed = renamed._replace(capacity=None)
            states.adjacencies.append(renamed)
        states.note_count(without_capacity, "Links with a bandwidth of 0, read as none")
        states.note_count(said_twice, "Links by IPv6 addresses, read as those by IPv4 addresses")
        return states

    def take_gobgp(self, document: Any) -> None:
        """Note what a document of GoBGP says; nothing of one of another kind."""
        if isinstance(document, list):
            for one in document:
                self.take_gobgp(one)
        elif isinstance(document, dict):
            nlri = document.get("nlri")
            if isinstance(nlri, dict) and "local_node_desc" in nlri:
                self._take_path(document, nlri)
            else:
                for one in document.values():
                    self.take_gobgp(one)

    def _take_path(self, path: dict[str, Any], nlri: dict[str, Any]) -> None:
        attributes = list_of(path.get("attrs"), self.where, f"{self.place}: attrs")
        of_links = [
            one for one in attributes if isinstance(one, dict) and one.get("type") == _LINK_STATE
        ]
        is_withdrawn = bool(_value(path, "withdrawal", "iswithdraw"))
        local = self._gobgp_router(nlri["local_node_desc"])
        if "remote_node_desc" not in nlri:
            node = _of(of_links, "node")
            if "prefix_desc" not in nlri:
                self._take_node(local, _value(node, "name"), _value(node, "flags"))
            return
        ends = local, self._gobgp_router(nlri["remote_node_desc"])
        link = _of(of_links, "link")
        self._put(
            ends,
            nlri.get("link_desc"),
            nlri,
            is_withdrawn,
            {
                "metric": _value(link, "igpmetric"),
                "bandwidth": _value(link, "bandwidth", "maxlinkbw"),
                "te_metric": _value(link, "defaulttemetric"),
                "group": _value(link, "admingroup"),
                "delay": _value(link, "unidirectionallinkdelay"),
            },
        )

    def take_exabgp(self, document: Any) -> None:
        """Note what an update of ExaBGP says."""
        update = _find(document, "update") or document
        if not isinstance(update, dict):
            return
        attributes = object_of(update.get("attribute"), self.where, f"{self.place}: attribute")
        attribute = object_of(attributes.get("bgp-ls"), self.where, f"{self.place}: bgp-ls")
        withdrawn = {id(one) for one in _nlris(update.get("withdraw"))}
        for one in _nlris(update):
            kind = one["ls-nlri-type"]
            if kind in _NODES and id(one) not in withdrawn:
                router = self._exabgp_router(one.get("node-descriptors"))
                self._take_node(router, attribute.get("node-name"), attribute.get("node-flags"))
            if kind in _LINKS:
                ends = (
                    self._exabgp_router(one.get("local-node-descriptors")),
                    self._exabgp_router(one.get("remote-node-descriptors")),
                )
                self._put(
                    ends,
                    one,
                    one,
                    id(one) in withdrawn,
                    {
                        "metric": attribute.get("igp-metric"),
                        "bandwidth": attribute.get("maximum-link-bandwidth"),
                        "te_metric": attribute.get("te-metric"),
                        "group": attribute.get("admin-group-mask"),
                    },
                )

    def _take_node(self, router: str, name: Any, flags: Any) -> None:
        """Note the name of a router, and whether it has the overload bit (RFC 9552 5.3.1.1)."""
        if name:
            self._names[router] = str(name)
        if flags is not None:
            bits = flags if isinstance(flags, dict) else {}
            self._overloaded[router] = any(
                _plain(key) in ("o", "overload", "overloadbit")
                and value not in (0, "0", False, None)
                for key, value in bits.items()
            )

    def _put(
        self,
        ends: tuple[str, str],
        descriptor: Any,
        nlri: dict[str, Any],
        is_withdrawn: bool,
        said: dict[str, Any],
    ) -> None:
        """Note a link, or that it is gone.

        Args:
            ends: router or broadcast network at either end.
            descriptor: what tells the link from others between the two.
            nlri: object with the protocol and the topology.
            is_withdrawn: whether it is gone.
            said: its attributes by name.
        """
        topologies = set(_scalars(descriptor, "multitopolog", "mtid"))
        is_standard = not topologies or bool(topologies & {"0", "2048"})
        protocol = str(_value(nlri, "protocolid", "protocol") or "")
        interface = next(
            iter(
                [
                    *_scalars(descriptor, "linkidentifiers", "linklocalid", "localid"),
                    *_scalars(descriptor, "interfaceaddr"),
                ]
            ),
            "",
        )
        key = (*ends, interface, protocol, *sorted(topologies))
        if is_withdrawn:
            self._links.pop(key, None)
            return
        metric = first_number(said["metric"], self.where, f"{self.place}: metric")
        te_metric = first_number(said["te_metric"], self.where, f"{self.place}: TE metric")
        delay = said.get("delay")
        delay_us = first_number(
            delay.get("delay") if isinstance(delay, dict) else delay,
            self.where,
            f"{self.place}: delay",
        )
        bandwidth = first_number(said["bandwidth"], self.where, f"{self.place}: bandwidth")
        adjacency = Adjacency(
            *ends,
            1.0 if metric is None else metric,
            interface,
            LEVEL_RANK * int(protocol) if protocol.isdecimal() else 0,
            None if bandwidth is None else bandwidth * _BITS_PER_BYTE / _GIGA,
            te_metric or None,
            self._affinities(said["group"]),
            delay_us / _US_PER_MS if delay_us else None,
        )
        families = {
            "6" if ":" in address else "4" for address in _scalars(descriptor, "interfaceaddr")
        }
        is_of_one = len(families) == 1 and not topologies
        self._links[key] = _Link(adjacency, is_standard, families.pop() if is_of_one else "")

    def _affinities(self, mask: Any) -> frozenset[str]:
        """The names of the bits of an administrative group, a number or a list of one (TLV
        1088).
        """
        mask = mask[0] if isinstance(mask, list) and mask else mask
        try:
            number = int(mask, 0) if isinstance(mask, str) else int(mask or 0)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                self.where, self.place, "an administrative group, a number", repr(mask)[:80]
            ) from None
        return frozenset(f"bit{bit}" for bit in range(number.bit_length()) if number >> bit & 1)

    def _gobgp_router(self, descriptor: Any) -> str:
        return self._end(
            _value(descriptor, "igprouterid") or _value(descriptor, "bgprouterid"), None, descriptor
        )

    def _exabgp_router(self, descriptors: Any) -> str:
        parts = descriptors if isinstance(descriptors, list) else [descriptors]
        found: dict[str, Any] = {}
        for one in parts:
            found |= one if isinstance(one, dict) else {}
        return self._end(found.get("router-id"), found.get("psn"), descriptors)

    def _end(self, router: Any, number: Any, descriptors: Any) -> str:
        """Name of a router, or of a broadcast network: the system ID of its router and a number.

        Raises:
            InputError: no router ID.
        """
        if not router or isinstance(router, dict | list):
            raise InputError(
                self.where, self.place, "a router ID of each end", repr(descriptors)[:80]
            )
        name, pseudonode = str(router), "" if number in (None, "", 0, "0", "00") else str(number)
        for pattern in (_PSEUDONODE, _SEVEN_BYTES):
            found = pattern.fullmatch(name)
            if found and not pseudonode:
                name, pseudonode = found[1], "" if found[2] == "00" else found[2]
        if _OSPF_NETWORK.fullmatch(name):
            self._networks.add(name)
            return name
        if not pseudonode:
            return name
        network = f"{name}.{pseudonode.rjust(2, '0')}"
        self._networks.add(network)
        return network


def _place_of(link: _Link) -> tuple[str, str, float]:
    """Ends and protocol of a link."""
    return link.adjacency.source, link.adjacency.target, link.adjacency.rank


def _plain(key: Any) -> str:
    return re.sub("[^a-z0-9]", "", str(key).lower())


def _scalars(part: Any, *names: str) -> Iterator[str]:
    """Texts of the values, lists and objects among them, of the keys that contain one of these
    names.
    """
    if not isinstance(part, dict):
        return
    for key, value in part.items():
        if any(name in _plain(key) for name in names):
            yield from _flat(value)


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _flat(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _flat(inner)
    elif value not in (None, ""):
        yield str(value)


def _of(attributes: list[dict[str, Any]], part: str) -> dict[str, Any]:
    for one in attributes:
        found = _value(one, part)
        if isinstance(found, dict):
            return found
    return {}


def _value(part: Any, *names: str) -> Any:
    """The value of the first key of these names, without regard to case, underscores and
    hyphens.
    """
    if isinstance(part, dict):
        for key, value in part.items():
            if _plain(key) in names and value not in (None, ""):
                return value
    return None


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
            found = _find(value, name)
            if found is not None:
                return found
    return None
