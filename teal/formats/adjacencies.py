"""Adjacencies of a link-state database -> a network.  Databases say them in many ways, and often
several times.

- An adjacency that is said several times, by both levels of IS-IS, in narrow and in wide metrics,
  by several topologies of BGP-LS, or by two areas of OSPF, is one link.  Parallel links are told
  apart by the address or the number of the interface; statements without either are one link.
- A link of the largest wide metric of IS-IS, 2^24 - 1, takes no part in the search of shortest
  paths (RFC 5305 3): it is read as out of service.
- Routers on a broadcast network are connected in pairs, each with the metric of its own interface.
- What one end alone says is left out, as routers leave it out (ISO 10589 7.2.8.2, RFC 2328 16.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from teal.errors import WARNING, InputError, listed
from teal.formats.records import LinkRecord, topology_from_records
from teal.network import Topology

MAX_WIDE_METRIC = 2**24 - 1  # RFC 5305 3: not considered in the computation of shortest paths
LEVEL_RANK = 10  # between the ranks of two levels
_LEAST_OF_A_LAN = (
    3  # routers on a broadcast network, from which on pairs of links share an interface
)


class Adjacency(NamedTuple):
    """A link, in one direction, as a database says it once.

    Attributes:
        source: router or broadcast network where it starts.
        target: router or broadcast network where it ends.
        metric: metric of the IGP.
        interface: address or number of the interface of the source; "" if it is not said.
        rank: order of statements about one link, of which the first counts: that with the smallest
            rank.
        capacity: Gbit/s; None if none is given.
        te_metric: TE metric; None if none is given.
        affinities: ``bit5`` for each bit of the administrative group, counted from the least
            significant one, 0.
        latency: ms; None if none is given.
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
    """The content of a database.

    Attributes:
        adjacencies: between routers and broadcast networks.
        networks: names of the broadcast networks.
        no_transit: routers that carry no transit traffic.
        notes: sentences about what was left out or assumed.
    """

    adjacencies: list[Adjacency] = dataclasses.field(default_factory=list)
    networks: set[str] = dataclasses.field(default_factory=set)
    no_transit: set[str] = dataclasses.field(default_factory=set)
    notes: list[str] = dataclasses.field(default_factory=list)

    def note_count(self, names: Iterable[str], sentence: str) -> None:
        """Note a sentence with the names that it is about, if there are any."""
        distinct = list(dict.fromkeys(names))
        if distinct:
            self.notes.append(f"{sentence}: {listed(distinct)}.")


def topology_of_states(path: Path, states: LinkStates, default_capacity: float | None) -> Topology:
    """The network of a database.

    Raises:
        InputError: no adjacency of two routers, or what :func:`topology_from_records` refuses.
    """
    between_routers = _without_networks(states)
    if not between_routers:
        raise InputError(str(path), "", "at least one adjacency of two routers", "none")
    links = _said_by_both_ends(_one_each(between_routers, states), states)
    nodes = dict.fromkeys(name for one in between_routers for name in (one.source, one.target))
    missing = sum(one.latency is None for one in links)
    if missing:
        states.notes.append(
            f"{missing:,} of {len(links):,} adjacencies have no delay in the database: 1 ms each."
        )
    unused = [one for one in links if one.metric >= MAX_WIDE_METRIC]
    states.note_count(
        (f"{one.source} -> {one.target}" for one in unused),
        (
            f"{WARNING}links of the metric 2^24 - 1, which shortest paths do not use (RFC 5305), "
            "read "
            "as out of service"
        ),
    )
    records = [_record(one) for one in links]
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


def _record(one: Adjacency) -> LinkRecord:
    return LinkRecord(
        one.source,
        one.target,
        one.capacity,
        one.latency,
        f"{one.source} -> {one.target}",
        metric=one.metric,
        has_failed=one.metric >= MAX_WIDE_METRIC,
        te_metric=one.te_metric,
        affinities=one.affinities,
    )


def _without_networks(states: LinkStates) -> list[Adjacency]:
    """The adjacencies between routers, those over broadcast networks among them."""
    members: dict[str, dict[str, None]] = {}
    for one in states.adjacencies:
        if one.source in states.networks:
            members.setdefault(one.source, {})[one.target] = None
    found: list[Adjacency] = []
    for one in states.adjacencies:
        if one.source in states.networks:
            continue
        if one.target not in states.networks:
            found.append(one)
            continue
        others = [name for name in members.get(one.target, {}) if name != one.source]
        found += [one._replace(target=name, interface=one.target) for name in others]
    for network, routers in members.items():
        if len(routers) >= _LEAST_OF_A_LAN:
            states.notes.append(
                f"{WARNING}{len(routers)} routers are on the broadcast network {network}: each "
                "pair has a link, and "
                "the loads of a router's links on it add up on its one interface."
            )
    return found


def _one_each(adjacencies: list[Adjacency], states: LinkStates) -> list[Adjacency]:
    """Each link once: parallel ones have interfaces of their own, and statements without one are
    about one link.
    """
    by_ends: dict[tuple[str, str], dict[str, list[Adjacency]]] = {}
    for one in adjacencies:
        by_interface = by_ends.setdefault((one.source, one.target), {})
        by_interface.setdefault(one.interface, []).append(one)
    links: list[Adjacency] = []
    merged: list[str] = []
    for (source, target), by_interface in by_ends.items():
        unnamed = by_interface.pop("", [])
        over_networks = [
            said for interface, said in by_interface.items() if interface in states.networks
        ]
        named = [
            said for interface, said in by_interface.items() if interface not in states.networks
        ]
        if unnamed and not named:
            ranks = [one.rank for one in unnamed]
            if len(set(ranks)) < len(ranks):
                merged.append(f"{source} -> {target}")
            named = [unnamed]
        links += [_merged(said) for said in [*named, *_of_one_level(over_networks)]]
    states.note_count(
        merged,
        f"{WARNING}adjacencies that are said several times without addresses or numbers of "
        "interfaces, read as one "
        "link each",
    )
    return links


def _of_one_level(over_networks: list[list[Adjacency]]) -> list[list[Adjacency]]:
    """The networks between two routers at the level that has most: each level may name one network
    in its own way.
    """
    by_level: dict[int, list[list[Adjacency]]] = {}
    for said in over_networks:
        by_level.setdefault(min(one.rank for one in said) // LEVEL_RANK, []).append(said)
    return max(by_level.values(), key=len, default=[])


def _merged(statements: list[Adjacency]) -> Adjacency:
    """One link of several statements about it: the first by rank, with what it lacks from the
    others.
    """
    best, *others = sorted(statements, key=lambda one: (one.rank, one.metric))
    for one in others:
        best = best._replace(
            capacity=one.capacity if best.capacity is None else best.capacity,
            te_metric=one.te_metric if best.te_metric is None else best.te_metric,
            affinities=best.affinities or one.affinities,
            latency=one.latency if best.latency is None else best.latency,
        )
    return best


def _said_by_both_ends(links: list[Adjacency], states: LinkStates) -> list[Adjacency]:
    ends = {(one.source, one.target) for one in links}
    one_way = sorted(pair for pair in ends if pair[::-1] not in ends)
    if one_way:
        a, b = one_way[0]
        states.notes.append(
            f"{len(one_way)} adjacencies are said by one end only, such as {a} -> {b}; routers do "
            "not use them."
        )
    return [one for one in links if (one.target, one.source) in ends]
