"""Failure scenarios: cables, parallel links, nodes, shared-risk groups, and pairs of cables.

:func:`failures_of` lists the :class:`Failure` records of given kinds; :class:`Groups` holds groups
of links that fail together in CSR form, for compiled kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from teal.network import Topology
from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.parallel import inner_kernel


class Failure(NamedTuple):
    """Failure scenario: links that fail together.

    Attributes:
        name: name such as ``a - b``; ``""`` for no failure.
        kind: cable, link, node, group, pair, or none.
        links: indices of the links.
    """

    name: str
    kind: str
    links: tuple[int, ...]


NO_FAILURE = Failure("", "none", ())


def cable_failures(topology: Topology) -> list[Failure]:
    """Return one failure for each cable: all links between two neighbours, in both directions.

    Args:
        topology: the network.
    """
    names = topology.node_names
    ends = (topology.link_source, topology.link_target)
    return [
        Failure(" - ".join(names[end[cable[0]]] for end in ends), "cable", tuple(cable))
        for cable in topology.cables()
    ]


def group_failures(groups: Mapping[str, Sequence[int]]) -> list[Failure]:
    """Return one failure for each named group of links.

    Args:
        groups: link indices of each group, by its name.
    """
    return [Failure(name, "group", tuple(links)) for name, links in groups.items()]


def pair_failures(
    cables: Sequence[Failure], cost: Mapping[str, float], limit: int
) -> list[Failure]:
    """Return failures of two cables at once, by decreasing sum of their costs.

    Args:
        cables: failures of single cables.
        cost: cost of each single failure, by its name.
        limit: maximum number of pairs; 0 for all.
    """
    ranked = sorted(
        itertools.combinations(cables, 2),
        key=lambda pair: -sum(cost[failure.name] for failure in pair),
    )
    return [
        Failure(f"{a.name} + {b.name}", "pair", (*a.links, *b.links))
        for a, b in (ranked[:limit] if limit else ranked)
    ]


def link_failures(topology: Topology) -> Iterator[Failure]:
    """Yield one failure for each pair of opposite links of a cable.

    Parallel links are paired in the order of the file, and the other links of the cable stay up.

    Args:
        topology: the network.
    """
    names = topology.link_names()
    for pair in topology.link_pairs():
        yield Failure(names[pair[0]].replace("->", " - "), "link", tuple(pair))


def node_failures(topology: Topology) -> Iterator[Failure]:
    """Yield one failure for each node: all links that start or end at it."""
    for node, name in enumerate(topology.node_names):
        is_incident = (topology.link_source == node) | (topology.link_target == node)
        yield Failure(name, "node", tuple(np.flatnonzero(is_incident).tolist()))


def failures_of(
    kinds: Sequence[str], topology: Topology, groups: Mapping[str, Sequence[int]]
) -> Iterator[Failure]:
    """Yield the failures of some kinds (cables, links, nodes, pairs), then the groups.

    A failure is skipped if all its links have capacity 0 (except groups), or if an earlier failure
    has the same links, as with a cable of one link in each direction.  A node failure and another
    failure with the same links are both listed, since the traffic of the node fails, too.

    Args:
        kinds: kinds of failures, in the order of the result: cables, links, nodes, pairs.
        topology: the network.
        groups: links of each shared-risk group by name.
    """
    keys = set[tuple[bool, frozenset[int]]]()
    for failure in _all_failures(kinds, topology, groups):
        key = failure.kind == "node", frozenset(failure.links)
        if key not in keys:
            keys.add(key)
            yield failure


def _all_failures(
    kinds: Sequence[str], topology: Topology, groups: Mapping[str, Sequence[int]]
) -> Iterator[Failure]:
    """Yield the failures of some kinds, then the groups; several may have the same links.

    Failures whose links all have capacity 0 are skipped, except groups.

    Args:
        kinds: kinds of failures, in the order of the result: cables, links, nodes, pairs.
        topology: the network.
        groups: links of each shared-risk group by name.
    """
    is_up = topology.capacity > 0
    cables = [failure for failure in cable_failures(topology) if is_up[list(failure.links)].any()]
    # A repeated kind counts once.
    for kind in dict.fromkeys(kinds):
        match kind:
            case "cables":
                yield from cables
            case "links":
                yield from (
                    failure
                    for failure in link_failures(topology)
                    if is_up[list(failure.links)].any()
                )
            case "nodes":
                yield from (
                    failure
                    for failure in node_failures(topology)
                    if is_up[list(failure.links)].any()
                )
            case "pairs":
                for a, b in itertools.combinations(cables, 2):
                    yield Failure(f"{a.name} + {b.name}", "pair", (*a.links, *b.links))
    # Shared-risk groups.
    yield from group_failures(groups)


class Groups(NamedTuple):
    """G groups of links that fail together, in CSR form; groups may overlap.

    Attributes:
        group_ptr: (G + 1,) the links of group g are ``group_link[group_ptr[g]:group_ptr[g + 1]]``.
        group_link: (memberships,) link indices, group by group.
        link_ptr: (E + 1,) the groups of link e are ``link_group[link_ptr[e]:link_ptr[e + 1]]``.
        link_group: (memberships,) group indices, link by link.
    """

    group_ptr: Int64Array
    group_link: Int64Array
    link_ptr: Int64Array
    link_group: Int64Array


def make_groups(groups: Sequence[Sequence[int]], num_links: int) -> Groups:
    """Return groups of links in CSR form.

    Args:
        groups: link indices of each group, distinct within a group.
        num_links: E.
    """
    # Memberships group by group, then the same memberships sorted by link.
    sizes = [len(group) for group in groups]
    group_link = np.array([link for group in groups for link in group], np.int64)
    group_of_entry = np.repeat(np.arange(len(groups), dtype=np.int64), sizes)
    group_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    link_ptr = np.concatenate(
        [[0], np.cumsum(np.bincount(group_link, minlength=num_links))]
    ).astype(np.int64)
    return Groups(
        group_ptr, group_link, link_ptr, group_of_entry[np.argsort(group_link, kind="stable")]
    )


@inner_kernel
def ban_group(group: int, groups: Groups, stamp: int, stamp_of_link: IntArray) -> None:
    """Ban the links of a group from a path search.

    A link is banned while its stamp equals that of the search.

    Args:
        group: index of the group.
        groups: all groups.
        stamp: stamp of the search.
        stamp_of_link: (E,) stamp of each link (updated).
    """
    for i in range(groups.group_ptr[group], groups.group_ptr[group + 1]):
        stamp_of_link[groups.group_link[i]] = stamp


@inner_kernel
def ban_groups_of(link: int, groups: Groups, stamp: int, stamp_of_link: IntArray) -> None:
    """Ban a link, and all links that share a group with it, from a path search.

    A link is banned while its stamp equals that of the search.

    Args:
        link: index of the link.
        groups: all groups.
        stamp: stamp of the search.
        stamp_of_link: (E,) stamp of each link (updated).
    """
    stamp_of_link[link] = stamp
    for i in range(groups.link_ptr[link], groups.link_ptr[link + 1]):
        ban_group(groups.link_group[i], groups, stamp, stamp_of_link)
