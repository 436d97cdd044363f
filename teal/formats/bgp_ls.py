"""Reader of BGP-LS (RFC 9552) as printed by ExaBGP and GoBGP, one JSON object per line.

ExaBGP writes one line per update (``encoder json``).  GoBGP's format is the output of
``gobgp global rib -a ls -j`` or the lines of ``gobgp monitor global rib -a ls -j``: a path has an
``nlri`` with descriptors of one or two nodes, and ``attrs``, one of which (type 29) has attributes
of nodes and links.  Versions spell keys with and without underscores and hyphens, which are
ignored.

BGP-LS has capacities (a bandwidth of 0 is none), TE metrics, administrative groups and, from GoBGP,
delays.  Of a link announced by several topologies (RFC 9552 5.2.2.1) the IPv4 one counts, and of
several protocols the one with the smallest number: level 1 of IS-IS before level 2.  GoBGP omits
the topology: a link with IPv6 addresses only is then the IPv6 topology's copy of one with IPv4
addresses between the same routers.  Entry point: :func:`read_bgp_ls`.
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
from teal.formats.parts import list_of, object_of, optional_number
from teal.network import Topology

SUFFIX = ".jsonl"
# Type code of the BGP-LS attribute.
_LINK_STATE_TYPE = 29
# Types of network layer reachability information (NLRI).
_LINK_NLRI_TYPES = ("bgpls-link", 2)
_NODE_NLRI_TYPES = ("bgpls-node", 1)
_BITS_PER_BYTE = 8
_GIGA = 1e9
_US_PER_MS = 1000.0
# IS-IS: system ID and pseudonode number.
_PSEUDONODE = re.compile(r"(.+)-([0-9a-f]{2})", re.IGNORECASE)
# OSPF: router and its address on the network.
_OSPF_NETWORK = re.compile(r"[0-9a-f]{16}|[0-9.]+:[0-9.]+", re.IGNORECASE)
_NETWORK_ID = re.compile(r"([0-9a-f]{12})([0-9a-f]{2})", re.IGNORECASE)


class _Link(NamedTuple):
    """Announced link, with the properties that identify duplicates.

    Attributes:
        adjacency: the link.
        is_ipv4_topology: whether it is in the IPv4 topology.
        address_family: "4" or "6" where it has addresses of one family only and no topology; else
            "".
    """

    adjacency: Adjacency
    is_ipv4_topology: bool
    address_family: str


def read_bgp_ls(path: Path, default_capacity: float | None) -> Topology:
    """Read the network that a sequence of BGP-LS updates results in; withdrawn links are omitted.

    Args:
        path: path of a file with a JSON object per line.
        default_capacity: Gbit/s of links without a capacity; None refuses them.

    Raises:
        InputError: a line that is not JSON, no link, or an error of :func:`topology_of_states`.
    """
    updates = _Updates(str(path))
    text = path.read_text(encoding="utf-8", errors="replace")
    for line_number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError.invalid(
                str(path),
                f"line {line_number}",
                f"the line is not valid JSON: {error}",
                "write one JSON object on each line",
            ) from None
        updates.location = f"line {line_number}"
        updates.read_gobgp(document)
        updates.read_exabgp(document)
    return topology_of_states(path, updates.link_states(), default_capacity)


class _Updates:
    """Collector of the links and routers that a sequence of BGP-LS updates results in.

    Args:
        where: name of the file, for messages.

    Attributes:
        where: name of the file, for messages.
        location: line of the present update, for messages.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.location = ""
        # Announced links by ends, interface, protocol and topologies.
        self._links: dict[tuple[str, ...], _Link] = {}
        # Router name by router ID; IDs of broadcast networks; overload bit by router ID.
        self._names: dict[str, str] = {}
        self._networks: set[str] = set()
        self._overloaded: dict[str, bool] = {}

    def link_states(self) -> LinkStates:
        """Return the resulting links and routers, with router names where they are known.

        Duplicate announcements of a link are dropped: those of other topologies than IPv4, and
        those with IPv6 addresses of a link that also has IPv4 addresses.
        """
        router_names = self._names
        link_states = LinkStates(networks=self._networks)
        link_states.no_transit = {
            router_names.get(router, router)
            for router, is_overloaded in self._overloaded.items()
            if is_overloaded
        }
        links = self._links.values()
        # (source, target) of the links in the IPv4 topology.
        ipv4_topology_ends = {
            (link.adjacency.source, link.adjacency.target)
            for link in links
            if link.is_ipv4_topology
        }
        links_without_capacity: list[str] = []
        ipv6_copies: list[str] = []
        # Number of links with IPv4 addresses, by ends and protocol, without an IPv6 copy so far.
        num_uncopied_ipv4_links = Counter(
            _link_key(link) for link in links if link.address_family == "4"
        )
        for link in links:
            # Drop duplicates: another topology's copy, or an IPv6 copy of an IPv4 link, of which
            # there are at most as many as IPv4 links.
            adjacency = link.adjacency
            ends = adjacency.source, adjacency.target
            if not link.is_ipv4_topology and ends in ipv4_topology_ends:
                continue
            if link.address_family == "6" and num_uncopied_ipv4_links[_link_key(link)] > 0:
                num_uncopied_ipv4_links[_link_key(link)] -= 1
                ipv6_copies.append(
                    f"{router_names.get(ends[0], ends[0])} -> {router_names.get(ends[1], ends[1])}"
                )
                continue
            # Replace router IDs by names, and a bandwidth of 0 by none.
            named_adjacency = adjacency._replace(
                source=router_names.get(ends[0], ends[0]), target=router_names.get(ends[1], ends[1])
            )
            if adjacency.capacity == 0:
                links_without_capacity.append(
                    f"{named_adjacency.source} -> {named_adjacency.target}"
                )
                named_adjacency = named_adjacency._replace(capacity=None)
            link_states.adjacencies.append(named_adjacency)
        link_states.note_names(
            links_without_capacity, "Links with a bandwidth of 0, read as unknown"
        )
        link_states.note_names(
            ipv6_copies, "Links with IPv6 addresses, read as copies of IPv4 links"
        )
        return link_states

    def read_gobgp(self, document: Any) -> None:
        """Store the nodes and links of a JSON document of GoBGP, which may be a list of paths or
        nest them; ignore other documents.
        """
        if isinstance(document, list):
            for part in document:
                self.read_gobgp(part)
        elif isinstance(document, dict):
            nlri = document.get("nlri")
            if isinstance(nlri, dict) and "local_node_desc" in nlri:
                self._read_path(document, nlri)
            else:
                for part in document.values():
                    self.read_gobgp(part)

    def _read_path(self, path: dict[str, Any], nlri: dict[str, Any]) -> None:
        """Store the router or link that a path of GoBGP announces, or withdraw the link.

        Args:
            path: JSON object of the path.
            nlri: its network layer reachability information.
        """
        # Link-state attributes.
        attributes = list_of(path.get("attrs"), self.where, f"{self.location}: attrs")
        link_state_attributes = [
            attribute
            for attribute in attributes
            if isinstance(attribute, dict) and attribute.get("type") == _LINK_STATE_TYPE
        ]
        is_withdrawn = bool(_value_of_key(path, "withdrawal", "iswithdraw"))
        # Without a remote end it is a node, or a prefix, which is ignored.
        local_end = self._gobgp_router(nlri["local_node_desc"])
        if "remote_node_desc" not in nlri:
            node_part = _attribute_part(link_state_attributes, "node")
            if "prefix_desc" not in nlri:
                self._update_node(
                    local_end, _value_of_key(node_part, "name"), _value_of_key(node_part, "flags")
                )
            return
        # A link.
        ends = local_end, self._gobgp_router(nlri["remote_node_desc"])
        link_part = _attribute_part(link_state_attributes, "link")
        self._update_link(
            ends,
            nlri.get("link_desc"),
            nlri,
            is_withdrawn,
            {
                "metric": _value_of_key(link_part, "igpmetric"),
                "bandwidth": _value_of_key(link_part, "bandwidth", "maxlinkbw"),
                "te_metric": _value_of_key(link_part, "defaulttemetric"),
                "group": _value_of_key(link_part, "admingroup"),
                "delay": _value_of_key(link_part, "unidirectionallinkdelay"),
            },
        )

    def read_exabgp(self, document: Any) -> None:
        """Store or withdraw the nodes and links of an update of ExaBGP; ignore other documents."""
        # Attributes of all objects of the update, and the withdrawn objects by their id.
        update = _find_value(document, "update") or document
        if not isinstance(update, dict):
            return
        update_attributes = object_of(
            update.get("attribute"), self.where, f"{self.location}: attribute"
        )
        bgp_ls_attribute = object_of(
            update_attributes.get("bgp-ls"), self.where, f"{self.location}: bgp-ls"
        )
        withdrawn = {id(nlri) for nlri in _nlris(update.get("withdraw"))}
        # Nodes, whose withdrawal is ignored, and links.
        for nlri in _nlris(update):
            nlri_type = nlri["ls-nlri-type"]
            if nlri_type in _NODE_NLRI_TYPES and id(nlri) not in withdrawn:
                router = self._exabgp_router(nlri.get("node-descriptors"))
                self._update_node(
                    router, bgp_ls_attribute.get("node-name"), bgp_ls_attribute.get("node-flags")
                )
            # Links, each with the attributes of the update.
            if nlri_type in _LINK_NLRI_TYPES:
                ends = (
                    self._exabgp_router(nlri.get("local-node-descriptors")),
                    self._exabgp_router(nlri.get("remote-node-descriptors")),
                )
                self._update_link(
                    ends,
                    nlri,
                    nlri,
                    id(nlri) in withdrawn,
                    {
                        "metric": bgp_ls_attribute.get("igp-metric"),
                        "bandwidth": bgp_ls_attribute.get("maximum-link-bandwidth"),
                        "te_metric": bgp_ls_attribute.get("te-metric"),
                        "group": bgp_ls_attribute.get("admin-group-mask"),
                    },
                )

    def _update_node(self, router: str, name: Any, flags: Any) -> None:
        """Store the name of a router, and whether it has the overload bit (RFC 9552 5.3.1.1).

        Args:
            router: router ID.
            name: JSON value of its name; empty or None to keep the stored name.
            flags: JSON object of its flags, by their names; None to keep the stored bit.
        """
        if name:
            self._names[router] = str(name)
        if flags is not None:
            flag_values = flags if isinstance(flags, dict) else {}
            self._overloaded[router] = any(
                _normalise_key(key) in ("o", "overload", "overloadbit")
                and value not in (0, "0", False, None)
                for key, value in flag_values.items()
            )

    def _update_link(
        self,
        ends: tuple[str, str],
        descriptor: Any,
        nlri: dict[str, Any],
        is_withdrawn: bool,
        attributes: dict[str, Any],
    ) -> None:
        """Store an announced link, or remove a withdrawn one.

        Args:
            ends: names of source and target, each a router or broadcast network.
            descriptor: JSON object with interface addresses and topologies, which distinguish
                parallel links.
            nlri: JSON object with the protocol.
            is_withdrawn: whether the link is withdrawn.
            attributes: JSON values of ``metric``, ``bandwidth``, ``te_metric``, ``group`` and
                optionally ``delay``.
        """
        # Key of the link: ends, interface, protocol and topologies.  A link without a topology is
        # in the IPv4 topology, as are those of the identifiers 0 (RFC 5120) and 2048.
        topologies = set(_scalars(descriptor, "multitopolog", "mtid"))
        is_ipv4_topology = not topologies or bool(topologies & {"0", "2048"})
        protocol = str(_value_of_key(nlri, "protocolid", "protocol") or "")
        # Interface of the source: its local number, else its first address; "" if unknown.
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
        # Address families of its interfaces, 4 and 6.
        families = {
            "6" if ":" in address else "4" for address in _scalars(descriptor, "interfaceaddr")
        }
        has_one_family = len(families) == 1 and not topologies
        self._links[key] = _Link(
            self._adjacency(ends, interface, protocol, attributes),
            is_ipv4_topology,
            families.pop() if has_one_family else "",
        )

    def _adjacency(
        self, ends: tuple[str, str], interface: str, protocol: str, attributes: dict[str, Any]
    ) -> Adjacency:
        """Build the adjacency of a link, with attributes in the project's units.

        Args:
            ends: names of source and target, each a router or broadcast network.
            interface: address or number of the source's interface; "" if unknown.
            protocol: number of the protocol, as text.
            attributes: JSON values of ``metric``, ``bandwidth`` (bytes a second), ``te_metric``,
                ``group`` and optionally ``delay`` (microseconds).
        """
        # Metrics; a missing IGP metric is 1, and a TE metric of 0 is none.
        metric = optional_number(attributes["metric"], self.where, f"{self.location}: metric")
        te_metric = optional_number(
            attributes["te_metric"], self.where, f"{self.location}: TE metric"
        )
        # Delay: a number, or an object with the number as a member.
        delay = attributes.get("delay")
        delay_us = optional_number(
            delay.get("delay") if isinstance(delay, dict) else delay,
            self.where,
            f"{self.location}: delay",
        )
        bandwidth = optional_number(
            attributes["bandwidth"], self.where, f"{self.location}: bandwidth"
        )
        # In order: source, target, metric, interface, rank, capacity, TE metric, affinities and
        # latency.  The rank gives the protocol with the smallest number precedence.
        return Adjacency(
            *ends,
            1.0 if metric is None else metric,
            interface,
            LEVEL_RANK * int(protocol) if protocol.isdecimal() else 0,
            None if bandwidth is None else bandwidth * _BITS_PER_BYTE / _GIGA,
            te_metric or None,
            self._affinities(attributes["group"]),
            delay_us / _US_PER_MS if delay_us else None,
        )

    def _affinities(self, mask: Any) -> frozenset[str]:
        """Return names ``bit5`` of the set bits of an administrative group (TLV 1088), a number or
        a list of one number.
        """
        mask = mask[0] if isinstance(mask, list) and mask else mask
        try:
            bit_mask = int(mask, 0) if isinstance(mask, str) else int(mask or 0)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                self.where, self.location, "an integer as administrative group", repr(mask)[:80]
            ) from None
        return frozenset(f"bit{bit}" for bit in range(bit_mask.bit_length()) if bit_mask >> bit & 1)

    def _gobgp_router(self, descriptor: Any) -> str:
        """Return the name of the router or broadcast network in a node descriptor of GoBGP."""
        return self._end_name(
            _value_of_key(descriptor, "igprouterid") or _value_of_key(descriptor, "bgprouterid"),
            None,
            descriptor,
        )

    def _exabgp_router(self, descriptors: Any) -> str:
        """Return the name of the router or broadcast network in node descriptors of ExaBGP: one
        object, or a list whose objects are merged.
        """
        parts = descriptors if isinstance(descriptors, list) else [descriptors]
        descriptor: dict[str, Any] = {}
        for part in parts:
            descriptor |= part if isinstance(part, dict) else {}
        return self._end_name(descriptor.get("router-id"), descriptor.get("psn"), descriptors)

    def _end_name(self, router: Any, pseudonode_number: Any, descriptors: Any) -> str:
        """Return the name of a link's end: a router ID, or for a broadcast network the system ID of
        its router and the pseudonode number (``ID.NUMBER``), or OSPF's ID of the network.

        Args:
            router: JSON value of the router ID.
            pseudonode_number: JSON value of the pseudonode number; None if the router ID has it.
            descriptors: JSON descriptors of the end, for messages.

        Raises:
            InputError: no router ID.
        """
        if not router or isinstance(router, dict | list):
            raise InputError.invalid(
                self.where,
                self.location,
                f"a node has no router ID: {repr(descriptors)[:80]}",
                "export the node descriptors with their router IDs",
            )
        # Split the router ID from the pseudonode number; number 0 is the router itself.
        router_id = str(router)
        pseudonode = "" if pseudonode_number in (None, "", 0, "0", "00") else str(pseudonode_number)
        for pattern in (_PSEUDONODE, _NETWORK_ID):
            match = pattern.fullmatch(router_id)
            if match and not pseudonode:
                router_id = match[1]
                pseudonode = "" if match[2] == "00" else match[2]
        # Record broadcast networks, which OSPF names by their router and its address.
        if _OSPF_NETWORK.fullmatch(router_id):
            self._networks.add(router_id)
            return router_id
        if not pseudonode:
            return router_id
        network_name = f"{router_id}.{pseudonode.rjust(2, '0')}"
        self._networks.add(network_name)
        return network_name


def _link_key(link: _Link) -> tuple[str, str, float]:
    """Return source, target and protocol rank of a link, which its IPv4 and IPv6 copies share."""
    return link.adjacency.source, link.adjacency.target, link.adjacency.rank


def _normalise_key(key: Any) -> str:
    """Return a JSON key in lower case, with letters and digits only."""
    return re.sub("[^a-z0-9]", "", str(key).lower())


def _scalars(json_object: Any, *names: str) -> Iterator[str]:
    """Yield as text the scalar values, also nested ones, of an object's keys that contain one of
    these names.
    """
    if not isinstance(json_object, dict):
        return
    # Versions spell keys differently, so that a part of the name is enough.
    for key, value in json_object.items():
        if any(name in _normalise_key(key) for name in names):
            yield from _flatten(value)


def _flatten(value: Any) -> Iterator[str]:
    """Yield all scalars within nested JSON as text, without empty ones."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _flatten(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _flatten(inner)
    elif value not in (None, ""):
        yield str(value)


def _attribute_part(attributes: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """Return the first JSON object that a link-state attribute of GoBGP has under the key ``part``
    (``node`` or ``link``); {} if there is none.
    """
    for attribute in attributes:
        value = _value_of_key(attribute, part)
        if isinstance(value, dict):
            return value
    return {}


def _value_of_key(json_object: Any, *names: str) -> Any:
    """Return the value of the first key with one of these names, ignoring case, underscores and
    hyphens; None if there is no such key with a non-empty value.
    """
    if isinstance(json_object, dict):
        for key, value in json_object.items():
            if _normalise_key(key) in names and value not in (None, ""):
                return value
    return None


def _nlris(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a document of ExaBGP, at any depth, that have a BGP-LS type."""
    if isinstance(part, dict):
        if "ls-nlri-type" in part:
            yield part
        for value in part.values():
            yield from _nlris(value)
    elif isinstance(part, list):
        for value in part:
            yield from _nlris(value)


def _find_value(part: Any, name: str) -> Any:
    """Return the first value of a key in nested JSON objects; None for none."""
    if isinstance(part, dict):
        if name in part:
            return part[name]
        for value in part.values():
            nested = _find_value(value, name)
            if nested is not None:
                return nested
    return None
