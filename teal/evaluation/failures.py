"""What may fail together: cables, members of a cable, nodes, groups that share a risk, pairs of cables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from teal.network import Topology


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
        Failure(" - ".join(names[end[cable[0]]] for end in ends), "cable", tuple(cable)) for cable in topology.cables()
    ]


def group_failures(groups: Mapping[str, Sequence[int]]) -> list[Failure]:
    """One failure for each group of links, by its name."""
    return [Failure(name, "group", tuple(links)) for name, links in groups.items()]


def pair_failures(cables: Sequence[Failure], cost: Mapping[str, float], limit: int) -> list[Failure]:
    """Failures of two cables at once, those first whose cables cost most alone.

    Args:
        cables: the single failures.
        cost: of each, by its name; pairs are ranked by the sum.
        limit: number of pairs, at most; 0 for all.
    """
    ranked = sorted(itertools.combinations(cables, 2), key=lambda pair: -sum(cost[one.name] for one in pair))
    return [
        Failure(f"{a.name} + {b.name}", "pair", (*a.links, *b.links)) for a, b in (ranked[:limit] if limit else ranked)
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


def failures_of(kinds: Sequence[str], topology: Topology, groups: Mapping[str, Sequence[int]]) -> Iterator[Failure]:
    """The failures of these kinds (cables, links, nodes, pairs), then the groups; links of capacity 0 fail no more."""
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
