"""Failures: cables, members of a cable, nodes, groups that share a risk, pairs of cables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from teal.network import Topology
from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.parallel import inner_kernel


class Failure(NamedTuple):
    """Links that fail together.

    Attributes:
        name: such as ``a - b``; ``""`` for no failure.
        kind: cable, link, node, group, pair, or none.
        links: their numbers.
    """

    name: str
    kind: str
    links: tuple[int, ...]


NO_FAILURE = Failure("", "none", ())


def cable_failures(topology: Topology) -> list[Failure]:
    """One failure for each cable."""
    names, ends = topology.node_names, (topology.link_source, topology.link_target)
    return [
        Failure(" - ".join(names[end[cable[0]]] for end in ends), "cable", tuple(cable))
        for cable in topology.cables()
    ]


def group_failures(groups: Mapping[str, Sequence[int]]) -> list[Failure]:
    """One failure for each group of links, by its name."""
    return [Failure(name, "group", tuple(links)) for name, links in groups.items()]


def pair_failures(
    cables: Sequence[Failure], cost: Mapping[str, float], limit: int
) -> list[Failure]:
    """Failures of two cables at once, those first whose cables cost most alone.

    Args:
        cables: the single failures.
        cost: cost of each, by its name; pairs are ranked by the sum.
        limit: number of pairs, at most; 0 for all.
    """
    ranked = sorted(
        itertools.combinations(cables, 2), key=lambda pair: -sum(cost[one.name] for one in pair)
    )
    return [
        Failure(f"{a.name} + {b.name}", "pair", (*a.links, *b.links))
        for a, b in (ranked[:limit] if limit else ranked)
    ]


def link_failures(topology: Topology) -> Iterator[Failure]:
    """One failure for each member of a cable.

    A link and one in the other direction, paired in the order of the file; parallel ones remain.
    """
    names = topology.link_names()
    for pair in topology.link_pairs():
        yield Failure(names[pair[0]].replace("->", " - "), "link", tuple(pair))


def node_failures(topology: Topology) -> Iterator[Failure]:
    """One failure for each node: of all its links."""
    for n, name in enumerate(topology.node_names):
        ends = (topology.link_source == n) | (topology.link_target == n)
        yield Failure(name, "node", tuple(np.flatnonzero(ends).tolist()))


def failures_of(
    kinds: Sequence[str], topology: Topology, groups: Mapping[str, Sequence[int]]
) -> Iterator[Failure]:
    """The failures of these kinds (cables, links, nodes, pairs), then the groups; links of capacity
    0 fail no more.

    What fails the same links as an earlier one, such as the only link of a cable, is left out; a
    node is one of its own, since its traffic fails too.
    """
    seen = set[tuple[bool, frozenset[int]]]()
    for one in _each_of(kinds, topology, groups):
        key = one.kind == "node", frozenset(one.links)
        if key not in seen:
            seen.add(key)
            yield one


def _each_of(
    kinds: Sequence[str], topology: Topology, groups: Mapping[str, Sequence[int]]
) -> Iterator[Failure]:
    live = topology.capacity > 0
    cables = [one for one in cable_failures(topology) if live[list(one.links)].any()]
    for kind in dict.fromkeys(kinds):
        match kind:
            case "cables":
                yield from cables
            case "links":
                yield from (one for one in link_failures(topology) if live[list(one.links)].any())
            case "nodes":
                yield from (one for one in node_failures(topology) if live[list(one.links)].any())
            case "pairs":
                for a, b in itertools.combinations(cables, 2):
                    yield Failure(f"{a.name} + {b.name}", "pair", (*a.links, *b.links))
    yield from group_failures(groups)


class Groups(NamedTuple):
    """G groups of links that fail together; a link may be in several, or in none.

    Attributes:
        group_ptr: (G + 1,) the links of group g are ``group_link[group_ptr[g]:group_ptr[g + 1]]``.
        group_link: link numbers.
        link_ptr: (E + 1,) the groups of link e are ``link_group[link_ptr[e]:link_ptr[e + 1]]``.
        link_group: group numbers.
    """

    group_ptr: Int64Array
    group_link: Int64Array
    link_ptr: Int64Array
    link_group: Int64Array


def make_groups(groups: Sequence[Sequence[int]], num_links: int) -> Groups:
    """Groups of links (numbers, each once a group) among E links."""
    size = [len(group) for group in groups]
    group_link = np.array([link for group in groups for link in group], np.int64)
    of_entry = np.repeat(np.arange(len(groups), dtype=np.int64), size)
    group_ptr = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    link_ptr = np.concatenate(
        [[0], np.cumsum(np.bincount(group_link, minlength=num_links))]
    ).astype(np.int64)
    return Groups(group_ptr, group_link, link_ptr, of_entry[np.argsort(group_link, kind="stable")])


@inner_kernel
def ban_group(group: int, groups: Groups, stamp: int, banned: IntArray) -> None:
    """Stamp the links of a group in ``banned`` (E,)."""
    for i in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
        banned[groups.group_link[i]] = stamp


@inner_kernel
def ban_groups_of(link: int, groups: Groups, stamp: int, banned: IntArray) -> None:
    """Stamp a link, and those of all groups that it is in."""
    banned[link] = stamp
    for i in range(groups.link_ptr[link], groups.link_ptr[link + 1]):
        ban_group(groups.link_group[i], groups, stamp, banned)
