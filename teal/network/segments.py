"""Segment lists: the shortest list of segment identifiers (SIDs) that makes a packet take exactly one path.

In segment routing (RFC 8402) a *node segment* sends a packet to a node along the shortest paths of the interior gateway
protocol (IGP), all of equal cost at once, and an *adjacency segment* over one link of the node where it is.  A node
segment from u to v stands for a part of a path only if that part is the one shortest path from u to v.  The shortest
list is found by dynamic programming over the nodes of the path: O(n^2) for n links.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.shortest import shortest_trees
from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray, Int64Array

_TIE = 1e-9  # relative: paths whose costs differ by less are of equal cost


class Segment(NamedTuple):
    """One segment.

    Attributes:
        kind: ``node`` or ``adjacency``.
        number: of the node it leads to, or of the link.
    """

    kind: str
    number: int


class Igp:
    """The shortest paths of an IGP.

    Args:
        topology: the network; links without capacity have failed and are not used.
        metric: (E,) of each link, above 0.
    """

    def __init__(self, topology: Topology, metric: FloatArray) -> None:
        self._topology = topology
        self._metric = np.where(topology.capacity > 0, metric, np.inf)
        nodes = np.arange(topology.num_nodes, dtype=np.int32)
        self._distance, _ = shortest_trees(
            topology.num_nodes, topology.link_source, topology.link_target, self._metric, nodes
        )
        self._on_shortest: dict[tuple[int, int], list[int]] = {}

    def on_shortest(self, source: int, target: int) -> Int64Array:
        """Numbers of the links on the shortest paths from a node to another one."""
        total = self._distance[source, target]
        tail, head = self._topology.link_source, self._topology.link_target
        through = self._distance[source, tail] + self._metric + self._distance[head, target]
        is_on = np.isfinite(through) & (through <= total * (1 + _TIE))
        found: Int64Array = np.flatnonzero(is_on)
        return found

    def is_only_path(self, path: list[int]) -> bool:
        """Whether the links of a path are all the links on the shortest paths between its ends."""
        source = int(self._topology.link_source[path[0]])
        target = int(self._topology.link_target[path[-1]])
        if (source, target) not in self._on_shortest:
            self._on_shortest[source, target] = self.on_shortest(source, target).tolist()
        return sorted(path) == self._on_shortest[source, target]


def segment_list(igp: Igp, topology: Topology, path: list[int]) -> list[Segment]:
    """The shortest list of segments that leads along a path, and along no other link.

    Of lists of equal length, the one with more node segments, which outlive failures better.

    Args:
        igp: shortest paths.
        topology: of the path.
        path: numbers of its links, from the source.
    """
    length = len(path)
    best = [(length - i, 0) for i in range(length + 1)]  # segments, and adjacency segments, from the i-th node on
    choice = [i + 1 for i in range(length)]
    is_node = [False] * length
    for i in reversed(range(length)):
        best[i] = (best[i + 1][0] + 1, best[i + 1][1] + 1)  # an adjacency segment
        for j in range(i + 1, length + 1):
            cost = (best[j][0] + 1, best[j][1])
            if cost < best[i] and igp.is_only_path(path[i:j]):
                best[i], choice[i], is_node[i] = cost, j, True
    segments, i = [], 0
    while i < length:
        j = choice[i]
        segments.append(
            Segment("node", int(topology.link_target[path[j - 1]])) if is_node[i] else Segment("adjacency", path[i])
        )
        i = j
    return segments
