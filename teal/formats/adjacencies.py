"""Conversion of the adjacencies of a link-state database into a network.

- Repeated statements about an adjacency (both levels of IS-IS, narrow and wide metrics, several
  topologies of BGP-LS, two areas of OSPF) are one link.  Parallel links are distinguished by
  address or number of the interface; statements without either are one link.
- A link with the largest wide metric of IS-IS, 2^24 - 1, is excluded from shortest paths (RFC 5305
  3): it is read as out of service.
- Routers on a broadcast network are connected in pairs, each with the metric of its own interface.
- Adjacencies of one end only are ignored, as routers ignore them (ISO 10589 7.2.8.2, RFC 2328
  16.1).

Entry point: :func:`topology_of_states`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from teal.errors import WARNING, InputError, listed
from teal.formats.records import LinkRecord, topology_from_records
from teal.network import Topology

# RFC 5305 section 3: links with this metric are excluded from shortest paths.
MAX_WIDE_METRIC = 2**24 - 1
# Difference between the ranks of two levels.
LEVEL_RANK = 10
# Minimum number of routers on a broadcast network for which pairs of links share an interface.
_MIN_LAN_ROUTERS = 3


class Adjacency(NamedTuple):
    """Statement about a directed link in a link-state database.

    Attributes:
        source: router or broadcast network where it starts.
        target: router or broadcast network where it ends.
        metric: IGP metric.
        interface: address or number of the source's interface; "" if unknown.
        rank: precedence among statements about one link; the smallest counts.
        capacity: Gbit/s; None if unknown.
        te_metric: TE metric; None if unknown.
        affinities: ``bit5`` for each bit of the administrative group, counted from the least
            significant bit, 0.
        latency: ms; None if unknown.
    """

    source: str
    target: str
    metric: float
    interface: str = ""
    rank: int = 0
    capacity: float | None = None
    te_metric: float | None = None
    affinities: frozenset[str] = frozenset()
    latency: float | None = None


@dataclasses.dataclass
class LinkStates:
    """Adjacencies and routers of a link-state database, and notes about reading it.

    Attributes:
        adjacencies: adjacencies between routers and broadcast networks.
        networks: names of the broadcast networks.
        no_transit: routers that carry no transit traffic.
        notes: sentences about omissions and assumptions.
    """

    adjacencies: list[Adjacency] = dataclasses.field(default_factory=list)
    networks: set[str] = dataclasses.field(default_factory=set)
    no_transit: set[str] = dataclasses.field(default_factory=set)
    notes: list[str] = dataclasses.field(default_factory=list)

    def note_names(self, names: Iterable[str], sentence: str) -> None:
        """Add the note ``SENTENCE: NAMES.``, unless there are no names."""
        distinct = list(dict.fromkeys(names))
        if distinct:
            self.notes.append(f"{sentence}: {listed(distinct)}.")


def topology_of_states(path: Path, states: LinkStates, default_capacity: float | None) -> Topology:
    """Build the network of a link-state database.

    Args:
        path: path of the file.
        states: adjacencies, networks and routers of the database; its notes are extended.
        default_capacity: Gbit/s of links without a capacity; None refuses them.

    Raises:
        InputError: no adjacency of two routers, or an error of :func:`topology_from_records`.
    """
    # Links between routers, stated by both ends.
    between_routers = _expand_networks(states)
    if not between_routers:
        raise InputError.invalid(
            str(path),
            "",
            "the database has no adjacency of two routers",
            "export the database of a network with at least two adjacent routers",
        )
    links = _two_way_links(_merge_statements(between_routers, states), states)
    nodes = dict.fromkeys(
        name for adjacency in between_routers for name in (adjacency.source, adjacency.target)
    )
    # Notes on missing delays and unused links.
    num_without_delay = sum(adjacency.latency is None for adjacency in links)
    if num_without_delay:
        states.notes.append(
            f"{num_without_delay:,} of {len(links):,} adjacencies have no delay in the database: "
            "their latency is read as 1 ms."
        )
    excluded_links = [adjacency for adjacency in links if adjacency.metric >= MAX_WIDE_METRIC]
    states.note_names(
        (f"{adjacency.source} -> {adjacency.target}" for adjacency in excluded_links),
        (
            f"{WARNING}links of the metric 2^24 - 1, which shortest paths do not use (RFC 5305), "
            "read as out of service"
        ),
    )
    # Build the network.
    records = [_record(adjacency) for adjacency in links]
    return topology_from_records(
        path.stem,
        str(path),
        nodes,
        records,
        directed=True,
        default_capacity=default_capacity,
        notes=tuple(states.notes),
        no_transit=[name for name in nodes if name in states.no_transit],
    )


def _record(adjacency: Adjacency) -> LinkRecord:
    """Build the link record of an adjacency; a link of metric 2^24 - 1 is out of service."""
    return LinkRecord(
        adjacency.source,
        adjacency.target,
        adjacency.capacity,
        adjacency.latency,
        f"{adjacency.source} -> {adjacency.target}",
        metric=adjacency.metric,
        has_failed=adjacency.metric >= MAX_WIDE_METRIC,
        te_metric=adjacency.te_metric,
        affinities=adjacency.affinities,
    )


def _expand_networks(states: LinkStates) -> list[Adjacency]:
    """Return the adjacencies between routers; those over a broadcast network become one for each
    ordered pair of its routers.

    Args:
        states: adjacencies between routers and broadcast networks; its notes are extended.
    """
    # Ordered set of the routers on each broadcast network.
    routers_of_network: dict[str, dict[str, None]] = {}
    for adjacency in states.adjacencies:
        if adjacency.source in states.networks:
            routers_of_network.setdefault(adjacency.source, {})[adjacency.target] = None
    # Replace each adjacency to a network by adjacencies to its other routers; these share an
    # interface, which gets the name of the network.
    router_adjacencies: list[Adjacency] = []
    for adjacency in states.adjacencies:
        if adjacency.source in states.networks:
            continue
        if adjacency.target not in states.networks:
            router_adjacencies.append(adjacency)
            continue
        neighbours = [
            name
            for name in routers_of_network.get(adjacency.target, {})
            if name != adjacency.source
        ]
        router_adjacencies += [
            adjacency._replace(target=name, interface=adjacency.target) for name in neighbours
        ]
    # Note networks whose links share an interface.
    for network, routers in routers_of_network.items():
        if len(routers) >= _MIN_LAN_ROUTERS:
            states.notes.append(
                f"{WARNING}the {len(routers)} routers of the broadcast network {network} are "
                "connected in pairs: each router's links share one interface, whose load is their "
                "sum."
            )
    return router_adjacencies


def _merge_statements(adjacencies: list[Adjacency], states: LinkStates) -> list[Adjacency]:
    """Merge the statements about each link into one adjacency.

    The interface of the source distinguishes parallel links.  Statements without an interface are
    about one link; they are dropped if others between the same routers name an interface.

    Args:
        adjacencies: statements of a link-state database about directed links between routers; rank
            is the precedence among those about one link.
        states: names of the broadcast networks; notes are added (written).
    """
    # Group the statements by nodes and interface.
    by_ends: dict[tuple[str, str], dict[str, list[Adjacency]]] = {}
    for adjacency in adjacencies:
        by_interface = by_ends.setdefault((adjacency.source, adjacency.target), {})
        by_interface.setdefault(adjacency.interface, []).append(adjacency)
    # For each pair of routers, merge the statements about each interface.
    links: list[Adjacency] = []
    ambiguous_pairs: list[str] = []
    for (source, target), by_interface in by_ends.items():
        # Groups of statements: without an interface, over broadcast networks, and over interfaces.
        without_interface = by_interface.pop("", [])
        over_networks = [
            statements
            for interface, statements in by_interface.items()
            if interface in states.networks
        ]
        over_interfaces = [
            statements
            for interface, statements in by_interface.items()
            if interface not in states.networks
        ]
        if without_interface and not over_interfaces:
            # Two statements of equal rank may be about parallel links.
            ranks = [adjacency.rank for adjacency in without_interface]
            if len(set(ranks)) < len(ranks):
                ambiguous_pairs.append(f"{source} -> {target}")
            over_interfaces = [without_interface]
        # One link for each interface, and one for each broadcast network of a single level.
        links += [
            _merge(statements) for statements in [*over_interfaces, *_select_level(over_networks)]
        ]
    states.note_names(
        ambiguous_pairs,
        f"{WARNING}repeated adjacencies without an address or number of the interface, each read "
        "as one link",
    )
    return links


def _select_level(over_networks: list[list[Adjacency]]) -> list[list[Adjacency]]:
    """Return the statements of the IS-IS level with the most broadcast networks between two
    routers, since the levels may name the same network differently.

    Args:
        over_networks: statements about each broadcast network between the two routers.
    """
    by_level: dict[int, list[list[Adjacency]]] = {}
    for statements in over_networks:
        by_level.setdefault(
            min(adjacency.rank for adjacency in statements) // LEVEL_RANK, []
        ).append(statements)
    return max(by_level.values(), key=len, default=[])


def _merge(statements: list[Adjacency]) -> Adjacency:
    """Merge statements about one link: return the one with the smallest rank, with attributes that
    it lacks taken from the others.
    """
    merged, *lower_ranked = sorted(
        statements, key=lambda adjacency: (adjacency.rank, adjacency.metric)
    )
    for adjacency in lower_ranked:
        merged = merged._replace(
            capacity=adjacency.capacity if merged.capacity is None else merged.capacity,
            te_metric=adjacency.te_metric if merged.te_metric is None else merged.te_metric,
            affinities=merged.affinities or adjacency.affinities,
            latency=adjacency.latency if merged.latency is None else merged.latency,
        )
    return merged


def _two_way_links(links: list[Adjacency], states: LinkStates) -> list[Adjacency]:
    """Return the links whose reverse link exists, and note the others, which routers ignore."""
    ends = {(adjacency.source, adjacency.target) for adjacency in links}
    one_way_pairs = sorted(pair for pair in ends if pair[::-1] not in ends)
    if one_way_pairs:
        a, b = one_way_pairs[0]
        states.notes.append(
            f"{len(one_way_pairs)} adjacencies are stated by one end only, such as {a} -> {b}; "
            "routers ignore them."
        )
    return [adjacency for adjacency in links if (adjacency.target, adjacency.source) in ends]
